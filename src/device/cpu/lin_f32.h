/* lin_f32.h: products with f32 activations in the contract tree (lin_ref.c), written once over
 * lin_vec.h; lin_f32_avx2.c and lin_f32_avx512.c compile it. Private to those; empty without AVX2.
 *
 * Weight rows are dequantised for PANEL_K elements, PANEL_ROWS of them for many activation rows
 * (256 KiB: in L2), TILE for a few (16 KiB: in L1), then every tile of 4 activation rows x 4 weight
 * rows runs over them block by block; a block's 16 sums join the running sums in the scratch. Few
 * rows of a PLAIN format: the weights are converted in registers, 4 weight rows far apart (rows
 * next to each other halve the speed of the prefetcher).
 */
#ifndef MERE_DEVICE_CPU_LIN_F32_H
#define MERE_DEVICE_CPU_LIN_F32_H

#include "device/cpu/lin_dequant.h"
#include "device/cpu/lin_levels.h"
#include "device/cpu/lin_numbers.h"

#if defined(__AVX2__)

enum {
    BLOCK = 256, /* of the contract tree */
    TILE = 4,
    PANEL_ROWS = 64,
    PANEL_K = 1024,
    FEW_ROWS = 4,    /* up to which converting PLAIN weights again for each row beats the panel */
    ROW_BLOCK = 256, /* activation rows that share one unpacking; the sums of them are 64 KiB */
};

typedef struct F32Work {
    ALIGNED(64) float panel[PANEL_ROWS][PANEL_K];
    ALIGNED(64) float sums[ROW_BLOCK][PANEL_ROWS];
} F32Work;

static int64_t f32_work_bytes(int k)
{
    (void)k;
    return (int64_t)sizeof(F32Work);
}

static ALWAYS_INLINE const float *f32_row(const uint8_t *x, int64_t row_bytes, int64_t r)
{
    return (const float *)(const void *)(x + r * row_bytes);
}

static ALWAYS_INLINE void put(const LinOut *out, int64_t r, int64_t j, float v)
{
    if (out->bias)
        v += out->bias[j];
    if (out->add)
        v += out->add[r * out->ld_add + j];
    out->y[r * out->ldy + j] = v;
}

/* sums[i][0..3] += x[i] . w[0..3] over kc elements, R rows. x, w are at the first element; sums has
 * a stride of PANEL_ROWS. */
static ALWAYS_INLINE void f32_tile(const float *const x[TILE], const float *const w[TILE], int kc,
                                   float *sums, int n_rows)
{
    for (int b = 0; b < kc; b += BLOCK) {
        const int end = kc - b < BLOCK ? kc : b + BLOCK;
        Vf acc[TILE][TILE]; // [activation row][weight row]
        for (int i = 0; i < n_rows; i++)
            for (int j = 0; j < TILE; j++)
                acc[i][j] = vf_zero();
        for (int e = b; e < end; e += LANES) {
            Vf wv[TILE];
            for (int j = 0; j < TILE; j++)
                wv[j] = vf_load(w[j] + e);
            for (int i = 0; i < n_rows; i++) {
                const Vf xv = vf_load(x[i] + e);
                for (int j = 0; j < TILE; j++)
                    acc[i][j] = vf_fma(xv, wv[j], acc[i][j]);
            }
        }
        for (int i = 0; i < n_rows; i++) {
            float *s = sums + i * PANEL_ROWS;
            const __m128 block = vf_fold4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
            _mm_storeu_ps(s, _mm_add_ps(_mm_loadu_ps(s), block));
        }
    }
}

/* All activation rows of a block against n_w rows of the panel. */
static void f32_panel(F32Work *work, const uint8_t *x, int64_t row_bytes, int rows, int k0, int kc,
                      int n_w)
{
    for (int r = 0; r < rows; r += TILE) {
        const int n = rows - r < TILE ? rows - r : TILE;
        const float *xr[TILE];
        for (int i = 0; i < TILE; i++)
            xr[i] = f32_row(x, row_bytes, r + (i < n ? i : 0)) + k0;
        for (int j = 0; j < n_w; j += TILE) { /* a short last tile repeats its last row */
            const float *w[TILE];
            for (int i = 0; i < TILE; i++)
                w[i] = work->panel[j + i < n_w ? j + i : n_w - 1];
            if (n == TILE)
                f32_tile(xr, w, kc, &work->sums[r][j], TILE);
            else
                for (int i = 0; i < n; i++)
                    f32_tile(xr + i, w, kc, &work->sums[r + i][j], 1);
        }
    }
}

/* Fetches what is unpacked next of weight row j after elements [k0, k0 + PANEL_K): the ones behind
 * them, at the end of the row the first ones of row j + step. */
static ALWAYS_INLINE void fetch_next(const RowView *w, int64_t j, int step, int k0)
{
    const int64_t at = k0 + PANEL_K;
    const uint8_t *row = w->data + (at < w->k ? j : j + step) * w->row_bytes;
    const uint8_t *p = row + (at < w->k ? at * w->row_bytes / w->k : 0);
    const int64_t bytes = PANEL_K * w->row_bytes / w->k;
    for (int64_t o = 0; o < bytes; o += 64)
        _mm_prefetch((const char *)(p + o), _MM_HINT_T0);
}

static ALWAYS_INLINE void f32_panels(LinDequant dequant, const RowView *w, int64_t j0, int64_t j1,
                                     const uint8_t *x, int rows, const LinOut *out,
                                     uint8_t *scratch)
{
    F32Work *work = (F32Work *)(void *)scratch;
    const int64_t row_bytes = lin_layout_f32.row_bytes(w->k);
    const int step = rows <= FEW_ROWS ? TILE : PANEL_ROWS;
    for (int r0 = 0; r0 < rows; r0 += ROW_BLOCK) {
        const int n_x = rows - r0 < ROW_BLOCK ? rows - r0 : ROW_BLOCK;
        for (int64_t j = j0; j < j1; j += step) {
            const int n_w = (int)i64_min(step, j1 - j);
            memset(work->sums, 0, (size_t)n_x * sizeof work->sums[0]);
            for (int k0 = 0; k0 < w->k; k0 += PANEL_K) {
                const int kc = w->k - k0 < PANEL_K ? w->k - k0 : PANEL_K;
                for (int i = 0; i < n_w; i++) {
                    fetch_next(w, j + i, step, k0);
                    dequant(w, j + i, k0, kc, work->panel[i]);
                }
                f32_panel(work, x + r0 * row_bytes, row_bytes, n_x, k0, kc, n_w);
            }
            for (int r = 0; r < n_x; r++)
                for (int i = 0; i < n_w; i++)
                    put(out, r0 + r, j + i, work->sums[r][i]);
        }
    }
}

/* One activation row against rows j, j + step, .. (n of them, at most TILE) of PLAIN weights. */
static ALWAYS_INLINE void plain_dots(const RowView *w, FormatId format, int64_t j, int64_t step,
                                     int n, const float *x, const LinOut *out, int64_t r)
{
    const int size = format == FMT_F32 ? 4 : 2;
    const int whole = w->k / LANES * LANES;
    const uint8_t *row[TILE];
    for (int i = 0; i < n; i++)
        row[i] = w->data + (j + i * step) * w->row_bytes;
    __m128 sum = _mm_setzero_ps();
    for (int b = 0; b < w->k; b += BLOCK) {
        const int end = whole - b < BLOCK ? whole : b + BLOCK;
        Vf acc[TILE];
        for (int i = 0; i < TILE; i++)
            acc[i] = vf_zero();
        for (int e = b; e < end; e += LANES) {
            const Vf xv = vf_load(x + e);
            for (int i = 0; i < n; i++)
                acc[i] = vf_fma(xv, plain_load(format, row[i] + (int64_t)e * size), acc[i]);
        }
        if (end == whole && whole < w->k &&
            b + BLOCK > whole) { /* the row's last k % 16 elements */
            const Vf xv = vf_load(x + whole);
            for (int i = 0; i < n; i++) {
                float tail[LANES] = {0};
                for (int e = whole; e < w->k; e++)
                    tail[e - whole] = load_number(row[i], format, e);
                acc[i] = vf_fma(xv, vf_load(tail), acc[i]);
            }
        }
        sum = _mm_add_ps(sum, vf_fold4(acc[0], acc[1], acc[2], acc[3]));
    }
    float s[4];
    _mm_storeu_ps(s, sum);
    for (int i = 0; i < n; i++)
        put(out, r, j + i * step, s[i]);
}

static ALWAYS_INLINE void plain_run(FormatId format, const RowView *w, int64_t j0, int64_t j1,
                                    const uint8_t *x, int rows, const LinOut *out)
{
    const int64_t row_bytes = lin_layout_f32.row_bytes(w->k);
    const int64_t step = (j1 - j0) / TILE;
    for (int64_t j = j0; j < j0 + step; j++)
        for (int r = 0; r < rows; r++)
            plain_dots(w, format, j, step, TILE, f32_row(x, row_bytes, r), out, r);
    for (int64_t j = j0 + TILE * step; j < j1; j++)
        for (int r = 0; r < rows; r++)
            plain_dots(w, format, j, 1, 1, f32_row(x, row_bytes, r), out, r);
}

static void f16_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                    const LinOut *out, uint8_t *work)
{
    (void)work;
    plain_run(FMT_F16, w, j0, j1, x, rows, out);
}

static void bf16_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                     const LinOut *out, uint8_t *work)
{
    (void)work;
    plain_run(FMT_BF16, w, j0, j1, x, rows, out);
}

static void f32_direct_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,
                           const LinOut *out, uint8_t *work)
{
    (void)work;
    plain_run(FMT_F32, w, j0, j1, x, rows, out);
}

static int64_t no_work_bytes(int k)
{
    (void)k;
    return 0;
}

#define F32_KERNEL(kernel_name, run_function, max, work)                                           \
    {                                                                                              \
        .name = kernel_name, .layout = &lin_layout_f32, .max_rows = max, .tile_rows = 16,          \
        .invariant = true, .run = run_function, .work_bytes = work                                 \
    }

#endif
#endif
