/* lin_panel.h: products of many rows through bf16 panels, for any format. Private to lin*.c; the
 * innermost block is the level's (lin_bf16_avx512bf16.c, lin_bf16_amx.c).
 *
 * PANEL_ROWS weight rows are unpacked once for PANEL_K elements into a panel of bf16 pairs,
 *   panel [row / 16][k / 32][pair of k: 16][row: 16][2],
 * which is both the B tile of AMX (1 KiB) and what VDPBF16PS wants beside a broadcast pair of
 * activations; then every block of activation rows runs over it. Sums stay in f32: no scale touches
 * them. Working set per thread: 128 x 640 bf16 of panel (160 KiB), 512 x 128 sums (256 KiB), in L2;
 * a block of 32 activation rows x 512 (32 KiB) in L1. Reading the activations again for every
 * PANEL_ROWS weight rows needs 2 bytes a 128 multiply-adds from L3.
 *
 * Both factors are rounded to bf16 once (nearest even), so a product's error is up to 2^-7 of
 * sum |x w|. A row's result depends on no other row. */
#ifndef MERE_DEVICE_CPU_LIN_PANEL_H
#define MERE_DEVICE_CPU_LIN_PANEL_H

#include "device/cpu/lin_dequant.h"
#include "device/cpu/lin_levels.h"
#include "device/cpu/lin_vec.h"

#if defined(__AVX512BF16__)

enum {
    PANEL_ROWS = 128,
    PANEL_K = 640,   /* a row of up to this is one piece (576) .. */
    PIECE_K = 512,   /* .. longer ones come in pieces of this */
    ROW_BLOCK = 512, /* activation rows that share one unpacking */
    PART_K = 256,    /* elements of 16 rows that are f32 at a time: 16 KiB */
    TILE_BYTES = 1024,
    COLS = 32, /* weight rows of a block: two tiles */
};

typedef struct PanelWork {
    ALIGNED(64) uint8_t panel[PANEL_ROWS / 16][PANEL_K / 32][TILE_BYTES];
    ALIGNED(64) float sums[PANEL_ROWS / COLS][ROW_BLOCK][COLS];
    ALIGNED(64) float part[16][PART_K];
    ALIGNED(64) float block[32 * COLS]; /* finished sums of one block */
} PanelWork;

/* n_rows activation rows times COLS weight rows over n_tiles tiles of 32 elements. */
typedef struct PanelBlock {
    const uint8_t *x; /* records at the piece's first element */
    int64_t row_bytes;
    int n_rows;
    const uint8_t *w0, *w1; /* n_tiles tiles of 16 weight rows each */
    int n_tiles;
    bool first;        /* the sums start at zero, not at `from` */
    const float *from; /* [n_rows][COLS] */
    float *to;         /* [n_rows][COLS]; may be `from` */
} PanelBlock;

static int64_t panel_work_bytes(int k)
{
    (void)k;
    return (int64_t)sizeof(PanelWork);
}

/* Transposes 16 x 16 dwords. */
static ALWAYS_INLINE void transpose16(__m512i r[16])
{
    __m512i t[16];
    UNROLL for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4)
    {
        UNROLL for (int h = 0; h < 2; h++)
        {
            r[i + 2 * h] = _mm512_unpacklo_epi64(t[i + h], t[i + h + 2]);
            r[i + 2 * h + 1] = _mm512_unpackhi_epi64(t[i + h], t[i + h + 2]);
        }
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* Any format, through f32: elements [k0, k0 + kc) of 16 rows from j, n of which are there, to
 * tiles.
 */
static void unpack_any(const RowView *w, int64_t j, int n, int k0, int kc, PanelWork *work,
                       uint8_t (*tiles)[TILE_BYTES])
{
    for (int o = 0; o < kc; o += PART_K) {
        const int part = kc - o < PART_K ? kc - o : PART_K;
        for (int i = 0; i < n; i++) {
            lin_dequant_avx512(w, j + i, k0 + o, part, work->part[i]);
            if ((part + 15) / 16 % 2)
                memset(&work->part[i][(part + 15) / 16 * 16], 0, 64);
        }
        for (int t = 0; t < (part + 31) / 32; t++) {
            __m512i r[16];
            UNROLL for (int i = 0; i < 16; i++)
            {
                const float *p = &work->part[i][32 * t];
                r[i] = i < n
                           ? (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(p + 16), _mm512_load_ps(p))
                           : _mm512_setzero_si512();
            }
            transpose16(r);
            uint8_t *to = tiles[o / 32 + t];
            UNROLL for (int i = 0; i < 16; i++) _mm512_store_si512(to + 64 * i, r[i]);
        }
    }
}

static void unpack(const RowView *w, int64_t j, int n_w, int k0, int kc, PanelWork *work)
{
    for (int i = 0; i < n_w; i += 16) {
        const int n = n_w - i < 16 ? n_w - i : 16;
        unpack_any(w, j + i, n, k0, kc, work, work->panel[i / 16]);
    }
    if ((n_w + 15) / 16 % 2) /* the second tile of the last pair */
        memset(work->panel[(n_w + 15) / 16], 0, sizeof work->panel[0]);
}

/* Finished sums [n_rows][COLS] of rows r.. and weight rows j.. (n of them) to their places. */
static ALWAYS_INLINE void panel_put(const LinOut *out, const float *sums, int64_t r, int n_rows,
                                    int64_t j, int n)
{
    const __mmask16 m0 = (__mmask16)(n >= 16 ? 0xffffU : (1U << n) - 1);
    const __mmask16 m1 = (__mmask16)(n >= 32 ? 0xffffU : n > 16 ? (1U << (n - 16)) - 1 : 0);
    __m512 b0 = _mm512_setzero_ps();
    __m512 b1 = _mm512_setzero_ps();
    if (out->bias) {
        b0 = _mm512_maskz_loadu_ps(m0, out->bias + j);
        b1 = _mm512_maskz_loadu_ps(m1, out->bias + j + 16);
    }
    for (int i = 0; i < n_rows; i++, sums += COLS) {
        __m512 v0 = _mm512_load_ps(sums);
        __m512 v1 = _mm512_load_ps(sums + 16);
        if (out->bias) {
            v0 = _mm512_add_ps(v0, b0);
            v1 = _mm512_add_ps(v1, b1);
        }
        if (out->add) {
            const float *a = out->add + (r + i) * out->ld_add + j;
            v0 = _mm512_add_ps(v0, _mm512_maskz_loadu_ps(m0, a));
            v1 = _mm512_add_ps(v1, _mm512_maskz_loadu_ps(m1, a + 16));
        }
        float *y = out->y + (r + i) * out->ldy + j;
        _mm512_mask_storeu_ps(y, m0, v0);
        _mm512_mask_storeu_ps(y + 16, m1, v1);
    }
}

/* All blocks of n_x activation rows (x: their records at k0) and n_w unpacked weight rows. `last`:
 * the sums are finished and go out. step: rows that `multiply` takes. */
static ALWAYS_INLINE void panel_piece(PanelWork *work, const uint8_t *x, int64_t row_bytes, int n_x,
                                      int n_w, int kc, bool first, bool last, const LinOut *out,
                                      int64_t r0, int64_t j, int step,
                                      void (*multiply)(const PanelBlock *))
{
    for (int r = 0; r < n_x; r += step) {
        const int n_rows = n_x - r < step ? n_x - r : step;
        for (int c = 0; c < n_w; c += COLS) {
            float *sums = work->sums[c / COLS][r];
            const PanelBlock b = {.x = x + r * row_bytes,
                                  .row_bytes = row_bytes,
                                  .n_rows = n_rows,
                                  .w0 = work->panel[c / 16][0],
                                  .w1 = work->panel[c / 16 + 1][0],
                                  .n_tiles = (kc + 31) / 32,
                                  .first = first,
                                  .from = sums,
                                  .to = last ? work->block : sums};
            multiply(&b);
            if (last)
                panel_put(out, work->block, r0 + r, n_rows, j + c, n_w - c);
        }
    }
}

static ALWAYS_INLINE void panel_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x,
                                    int rows, const LinOut *out, uint8_t *scratch, int step,
                                    void (*multiply)(const PanelBlock *))
{
    PanelWork *work = (PanelWork *)(void *)scratch;
    const int64_t row_bytes = lin_layout_bf16.row_bytes(w->k);
    const int piece = w->k <= PANEL_K ? PANEL_K : PIECE_K;
    for (int r0 = 0; r0 < rows; r0 += ROW_BLOCK) {
        const int n_x = rows - r0 < ROW_BLOCK ? rows - r0 : ROW_BLOCK;
        for (int64_t j = j0; j < j1; j += PANEL_ROWS) {
            const int n_w = (int)i64_min(PANEL_ROWS, j1 - j);
            for (int k0 = 0; k0 < w->k; k0 += piece) {
                const int kc = w->k - k0 < piece ? w->k - k0 : piece;
                unpack(w, j, n_w, k0, kc, work);
                panel_piece(work, x + r0 * row_bytes + (int64_t)k0 * 2, row_bytes, n_x, n_w, kc,
                            k0 == 0, k0 + kc == w->k, out, r0, j, step, multiply);
            }
        }
    }
}

#endif
#endif
