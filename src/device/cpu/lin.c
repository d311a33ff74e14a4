#include "device/cpu/lin_levels.h"

/* Rows up to which reading the weights anew for every few rows beats unpacking them into a panel.
 */
enum { FEW_ROWS = 12 };

const LinKernel *lin_select(unsigned isa, FormatId format, int group, LinClass cls, int rows)
{
    (void)group;
    /* f32 weights stay f32: a checkpoint that has them wants them. */
    if (cls == LIN_FAST && rows > FEW_ROWS && format != FMT_F32) {
        if (isa & CPU_AMX)
            return lin_bf16_amx();
        if (isa & CPU_AVX512_BF16)
            return lin_bf16_avx512bf16();
    }
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
