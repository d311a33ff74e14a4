#include "device/cpu/lin_f32.h"

static const LinKernel panel = F32_KERNEL("avx512 f32", f32_run, 0, f32_work_bytes);
static const LinKernel few_f32 =
    F32_KERNEL("avx512 f32 few rows", f32_direct_run, PLAIN_MAX_ROWS, no_work_bytes);
static const LinKernel few_f16 =
    F32_KERNEL("avx512 f16 few rows", f16_run, PLAIN_MAX_ROWS, no_work_bytes);
static const LinKernel few_bf16 =
    F32_KERNEL("avx512 bf16 few rows", bf16_run, PLAIN_MAX_ROWS, no_work_bytes);

const LinKernel *lin_f32_avx512(FormatId format, int rows)
{
    if (rows > PLAIN_MAX_ROWS)
        return &panel;
    if (format == FMT_F32)
        return &few_f32;
    if (format == FMT_F16)
        return &few_f16;
    return format == FMT_BF16 ? &few_bf16 : &panel;
}
