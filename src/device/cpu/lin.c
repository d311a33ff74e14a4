#include "device/cpu/lin_levels.h"

/* Rows up to which reading the weights anew for every few rows beats unpacking them into a panel:
 * of quantised formats, with int8 activations, and of 16-bit ones, with f32 activations. */
enum { FEW_ROWS = 16, FEW_PLAIN_ROWS = 4 };

const LinKernel *lin_select(unsigned isa, FormatId format, int group, LinClass cls, int rows)
{
    (void)group;
    const bool is_plain = format_info(format)->kind == FMT_PLAIN;
    /* f32 weights stay f32: a checkpoint that has them wants them. */
    if (cls == LIN_FAST && rows > (is_plain ? FEW_PLAIN_ROWS : FEW_ROWS) && format != FMT_F32) {
        if (isa & CPU_AMX)
            return lin_bf16_amx();
        if (isa & CPU_AVX512_BF16)
            return lin_bf16_avx512bf16();
    }
    if (cls != LIN_EXACT && isa & CPU_AVX512_VNNI) {
        const LinKernel *nibbles = lin_i8_avx512vnni(format);
        const LinKernel *k = nibbles ? nibbles : lin_i8_bits_avx512vnni(format);
        if (k)
            return k;
    }
    if (isa & CPU_AVX512)
        return lin_f32_avx512(format, rows);
    if (isa & CPU_AVX2)
        return lin_f32_avx2(format, rows);
    return &lin_ref;
}
