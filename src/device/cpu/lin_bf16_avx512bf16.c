#include "device/cpu/lin_panel.h"

/* bf16 in natural order, zero up to a whole tile of 32, then padding: rows are an odd number of
 * cache lines apart, as the 16 rows of a tile that are a multiple of 4 KiB apart (k = 2048) would
 * share one set of L1. */
static int64_t bf16_row_bytes(int k)
{
    const int64_t lines = i64_round_up(k, 32) / 32;
    return (lines + !(lines % 2)) * 64;
}

static void bf16_pack(const float *x, int64_t ldx, const int32_t *idx, int rows, int k,
                      uint8_t *out)
{
    const int64_t bytes = bf16_row_bytes(k);
    for (int r = 0; r < rows; r++) {
        const float *from = x + (idx ? idx[r] : r) * ldx;
        uint8_t *to = out + r * bytes;
        for (int i = 0; i < k; i += 32, to += 64) {
            const uint32_t m = k - i >= 32 ? ~0U : (1U << (k - i)) - 1;
            const __m512 lo = _mm512_maskz_loadu_ps((__mmask16)m, from + i);
            const __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(m >> 16), from + i + 16);
            _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
        }
        if (to < out + (r + 1) * bytes)
            _mm512_store_si512(to, _mm512_setzero_si512());
    }
}

const LinLayout lin_layout_bf16 = {"bf16", bf16_row_bytes, bf16_pack};

enum { ROWS = 12 }; /* 24 sums, two registers of weights, the rest for broadcasts */

static ALWAYS_INLINE void multiply_rows(const PanelBlock *b, const uint8_t *x, const float *from,
                                        float *to, int n)
{
    __m512 acc[ROWS][2];
    UNROLL for (int i = 0; i < n; i++)
    {
        acc[i][0] = b->first ? _mm512_setzero_ps() : _mm512_load_ps(from + i * COLS);
        acc[i][1] = b->first ? _mm512_setzero_ps() : _mm512_load_ps(from + i * COLS + 16);
    }
    const int64_t bytes = (int64_t)b->n_tiles * TILE_BYTES;
    for (int64_t o = 0; o < bytes; o += 64, x += 4) { /* a pair of k */
        const __m512bh w0 = (__m512bh)_mm512_load_si512(b->w0 + o);
        const __m512bh w1 = (__m512bh)_mm512_load_si512(b->w1 + o);
        UNROLL for (int i = 0; i < n; i++)
        {
            int32_t pair;
            memcpy(&pair, x + i * b->row_bytes, sizeof pair);
            const __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], w0, v);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], w1, v);
        }
    }
    UNROLL for (int i = 0; i < n; i++)
    {
        _mm512_store_ps(to + i * COLS, acc[i][0]);
        _mm512_store_ps(to + i * COLS + 16, acc[i][1]);
    }
}

static void multiply(const PanelBlock *b)
{
    if (b->n_rows == ROWS) {
        multiply_rows(b, b->x, b->from, b->to, ROWS);
        return;
    }
    int r = 0;
    for (; r + 4 <= b->n_rows; r += 4)
        multiply_rows(b, b->x + r * b->row_bytes, b->from + r * COLS, b->to + r * COLS, 4);
    for (; r < b->n_rows; r++)
        multiply_rows(b, b->x + r * b->row_bytes, b->from + r * COLS, b->to + r * COLS, 1);
}

static void bf16_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                     const LinOut *out, uint8_t *work)
{
    panel_run(w, j0, j1, x, rows, out, work, ROWS, multiply);
}

static const LinKernel panel = {
    .name = "avx512bf16 panel",
    .layout = &lin_layout_bf16,
    .max_rows = 0,
    .tile_rows = COLS,
    .invariant = true,
    .run = bf16_run,
    .work_bytes = panel_work_bytes,
};

const LinKernel *lin_bf16_avx512bf16(void)
{
    return &panel;
}
