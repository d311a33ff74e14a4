/* The definition of the exact class, in scalar C: any format, f32 activations, weights as
 * format_dequant_row gives them.
 *
 * The contract tree, the same at every level and for any number of rows, so that all levels give
 * the same bits: k is cut into blocks of 256, ascending. Inside a block 16 lanes are summed, lane l
 * over elements l, l + 16, .. with one fused multiply-add each, starting at 0. The lanes are folded
 * by halves: l + (l + 8), then 4, 2, 1. The block sums are added ascending, starting at 0. A short
 * last block counts as filled up with zeros. */
#include "device/cpu/lin_levels.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, BLOCK = 256 };

static int64_t f32_row_bytes(int k)
{
    return i64_round_up((int64_t)k * 4, 64);
}

static void f32_pack(const float *x, int64_t ldx, const int32_t *idx, int rows, int k, uint8_t *out)
{
    const int64_t bytes = f32_row_bytes(k);
    const size_t used = (size_t)k * 4;
    for (int r = 0; r < rows; r++) {
        uint8_t *to = out + r * bytes;
        memcpy(to, x + (idx ? idx[r] : r) * ldx, used);
        memset(to + used, 0, (size_t)bytes - used);
    }
}

const LinLayout lin_layout_f32 = {"f32", f32_row_bytes, f32_pack};

static float dot(const float *x, const float *w, int k)
{
    float sum = 0;
    for (int b = 0; b < k; b += BLOCK) {
        const int end = k - b < BLOCK ? k : b + BLOCK;
        float lane[LANES] = {0};
        for (int i = b; i < end; i++)
            lane[(i - b) % LANES] = fmaf(x[i], w[i], lane[(i - b) % LANES]);
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++)
                lane[l] += lane[l + half];
        sum += lane[0];
    }
    return sum;
}

/* work: one dequantised weight row. */
static void ref_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                    const LinOut *out, uint8_t *work)
{
    float *row = (float *)(void *)work;
    const int64_t bytes = f32_row_bytes(w->k);
    for (int64_t j = j0; j < j1; j++) {
        format_dequant_row(w, j, row);
        for (int r = 0; r < rows; r++) {
            float v = dot((const float *)(const void *)(x + r * bytes), row, w->k);
            if (out->bias)
                v += out->bias[j];
            if (out->add)
                v += out->add[r * out->ld_add + j];
            out->y[r * out->ldy + j] = v;
        }
    }
}

const LinKernel lin_ref = {
    .name = "scalar f32",
    .layout = &lin_layout_f32,
    .max_rows = 0,
    .tile_rows = 1,
    .invariant = true,
    .run = ref_run,
    .work_bytes = f32_row_bytes,
};
