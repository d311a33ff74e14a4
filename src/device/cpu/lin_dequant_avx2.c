#include "device/cpu/lin_dequant_simd.h"

void lin_dequant_avx2(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    dequant(w, row, k0, kc, out);
}
