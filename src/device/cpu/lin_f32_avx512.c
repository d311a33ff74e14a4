#include "device/cpu/lin_f32.h"

static void f32_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                    const LinOut *out, uint8_t *work)
{
    f32_panels(lin_dequant_avx512, w, j0, j1, x, rows, out, work);
}

static const LinKernel panel = F32_KERNEL("avx512 f32", f32_run, 0, f32_work_bytes);
static const LinKernel few_f32 =
    F32_KERNEL("avx512 f32 few rows", f32_direct_run, FEW_ROWS, no_work_bytes);
static const LinKernel few_f16 =
    F32_KERNEL("avx512 f16 few rows", f16_run, FEW_ROWS, no_work_bytes);
static const LinKernel few_bf16 =
    F32_KERNEL("avx512 bf16 few rows", bf16_run, FEW_ROWS, no_work_bytes);

const LinKernel *lin_f32_avx512(FormatId format, int rows)
{
    if (rows > FEW_ROWS)
        return &panel;
    if (format == FMT_F32)
        return &few_f32;
    if (format == FMT_F16)
        return &few_f16;
    return format == FMT_BF16 ? &few_bf16 : &panel;
}
