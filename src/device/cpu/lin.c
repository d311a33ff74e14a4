#include "device/cpu/lin_levels.h"

const LinKernel *lin_select(unsigned isa, FormatId format, int group, LinClass cls, int rows)
{
    (void)group;
    if (cls != LIN_EXACT && isa & CPU_AVX512_VNNI) {
        const LinKernel *k = lin_i8_avx512vnni(format);
        if (k)
            return k;
    }
    if (isa & CPU_AVX512)
        return lin_f32_avx512(format, rows);
    if (isa & CPU_AVX2)
        return lin_f32_avx2(format, rows);
    return &lin_ref;
}
