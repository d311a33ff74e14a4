/* gemm.h: one tile of rows times weight, on matrix instructions.
 *
 *   rows of a (packed, 16-bit)  global -> shared by asynchronous copies -> fragments by load_matrix
 *   rows of w (packed codes)    global -> shared by asynchronous copies -> registers -> unpacked
 *                               there into fragments
 * A warp's weight rows are its own: each code is unpacked once a CTA, for all its rows of a. The
 * packing of a gives a thread 32 consecutive k, so codes need neither shuffles nor shared memory in
 * their unpacked form. Warps along k (k16, k32) have chunks of a of their own too and never meet
 * before the end.
 *
 * Sums of k: in chunks of a warp, then warps along k in order, then splits in order: the CTA that
 * comes last adds what all wrote. What follows the sum is done from shared memory in a short loop:
 * written out for each accumulator it was 20,000 instructions. */
#ifndef MERE_GEMM_H
#define MERE_GEMM_H

#include "gemm_params.h"
#include "gemm_weights.h"
#include "gpu_compat.h"
#include "gpu_words.h"

template <class W> DEVICE void gemm_mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    if (W::BF16)
        mma_bf16(c, a, b);
    else
        mma_f16(c, a, b);
}

/* Shared memory: a head of tables, then the stages; at the end sums of the tile take their place.
 */
template <class W, int MT, int NT, int WN, int WK> struct Gemm {
    static_assert(WN == 1 || WK == 1, "a chunk of a belongs to one warp, or to all");
    enum {
        BM = MT * 16,
        ROWS = NT * 8, /* weight rows of a warp */
        BN = ROWS * WN,
        LD = BN + 8, /* of sums: eight rows of a fragment meet all banks */
        A_BYTES = BM * GEMM_A_CHUNK_BYTES,
        W_BYTES = ROWS * W::BYTES,
        STAGE = GEMM_STAGE_BYTES(MT, NT, WN, WK, W::BYTES),
        STAGES = GEMM_STAGES(STAGE)
    };
    static_assert(WK * BM * LD * 4 <= STAGES * STAGE, "sums fit where stages were");
    const GemmParams &p;
    const uint8_t **code_rows; /* [BN] */
    uint32_t *scale_rows;      /* [BN] bytes from the expert's scales, gate's or up's */
    int *rows_a;               /* [BM] row of a, -1: none */
    int *rows_y;               /* [BM] */
    int *ticket;
    uint8_t *stages;
    int warp, lane, wn, wk;
    int col0;   /* of the CTA, in y */
    int c0, c1; /* chunks of this split */
    int64_t expert;

    DEVICE Gemm(const GemmParams &params, uint8_t *mem)
        : p(params), code_rows((const uint8_t **)mem), scale_rows((uint32_t *)(mem + BN * 8)),
          rows_a((int *)(mem + BN * 12)), rows_y(rows_a + BM), ticket(rows_y + BM),
          stages(mem + GEMM_HEAD_BYTES(MT, NT, WN)), warp(thread_id() / 32), lane(thread_id() % 32),
          wn(warp % WN), wk(warp / WN), col0(block_y() * (params.silu ? BN / 2 : BN)), expert(0)
    {
        const int n_chunks = p.kp / GEMM_CHUNK;
        c0 = block_z() * n_chunks / p.splits;
        c1 = (block_z() + 1) * n_chunks / p.splits;
    }

    DEVICE void sync() const
    {
        if (WN > 1)
            block_sync();
        else
            warp_sync();
    }

    DEVICE uint8_t *stage_a(int s) const
    {
        return stages + s % STAGES * STAGE + wk * A_BYTES;
    }
    DEVICE uint8_t *stage_w(int s) const
    {
        return stages + s % STAGES * STAGE + WK * A_BYTES + warp * W_BYTES;
    }
    DEVICE int chunk(int s) const
    {
        return c0 + s * WK + wk;
    }

    /* Codes of step s. Units past the row's end are zeros. */
    DEVICE void copy_w(int s) const
    {
        const int c = chunk(s);
        if (c >= c1)
            return;
        uint8_t *to = stage_w(s);
        UNROLL_4
        for (int i = 0; i < ROWS * W::UNITS / 32; i++) {
            const int row = (i * 32 + lane) / W::UNITS;
            const int u = (i * 32 + lane) % W::UNITS;
            const int at = c * (W::UNITS * 16) + u * 16;
            copy_async16(to + row * W::BYTES + W::place(row, u), code_rows[wn * ROWS + row] + at,
                         at < p.code_stride ? 16 : 0);
        }
        if (W::EXTRA) {
            UNROLL
            for (int i = 0; i < ROWS * 2 / 32; i++) {
                const int row = i * 16 + lane / 2;
                copy_async16(to + row * W::BYTES + 64 + lane % 2 * 16,
                             code_rows[wn * ROWS + row] + p.k / 2 + c * 32 + lane % 2 * 16, 16);
            }
        }
    }
    /* Rows of a: by the warp whose chunk it is, or by all. */
    DEVICE void copy_a(int s) const
    {
        const int c = chunk(s);
        if (c >= c1)
            return;
        const int threads = WN > 1 ? GEMM_THREADS : 32;
        const int me = WN > 1 ? thread_id() : lane;
        uint8_t *to = stage_a(s);
        const uint8_t *a = p.a + (int64_t)c * GEMM_A_CHUNK_BYTES + me % 16 * 16;
        UNROLL_4
        for (int i = 0; i < BM * 16 / threads; i++) {
            const int row = i * (threads / 16) + me / 16;
            const int from = rows_a[row];
            copy_async16(to + row * GEMM_A_CHUNK_BYTES + (me % 16 ^ (row & 7)) * 16,
                         a + (int64_t)(from < 0 ? 0 : from) * (p.kp * 2), from < 0 ? 0 : 16);
        }
    }

    DEVICE void scales(GemmScaleRaw raw[NT], int s) const
    {
        const int c = chunk(s);
        const int k0 = c * GEMM_CHUNK + lane % 4 * 32;
        if (c >= c1)
            return;
        const uint8_t *rows[NT];
        UNROLL
        for (int n = 0; n < NT; n++)
            rows[n] = (p.silu && n % 2 ? p.scales_up : p.scales) + expert * p.scale_bytes +
                      scale_rows[wn * ROWS + n * 8 + lane / 4];
        W::template scale_load<NT>(raw, p, rows, k0);
    }

    DEVICE void multiply(float acc[MT][NT][4], const GemmScaleRaw raw[NT], int s) const
    {
        const uint8_t *a = stage_a(s) + (lane % 16) * GEMM_A_CHUNK_BYTES;
        const uint8_t *w = stage_w(s);
        const int g = lane / 4;
        const int t = lane % 4;
        const int swap = lane & 7;
        GemmScale scale[NT];
        typename W::Raw codes[NT];
        W::template scale_make<NT>(scale, p, raw);
        UNROLL
        for (int q = 0; q < 4; q++) {
            uint32_t b[NT][4];
            UNROLL
            for (int n = 0; n < NT; n++) {
                if (q % W::QS == 0)
                    codes[n] = W::load(w + (n * 8 + g) * W::BYTES, n * 8 + g, t, q);
                W::unpack(b[n], codes[n], q, scale[n], p);
            }
            UNROLL
            for (int half = 0; half < 2; half++) {
                const int unit = ((q * 4 + half * 2 + lane / 16) ^ swap) * 16;
                UNROLL
                for (int m = 0; m < MT; m++) {
                    uint32_t f[4];
                    load_matrix(f, a + m * 16 * GEMM_A_CHUNK_BYTES + unit);
                    UNROLL
                    for (int n = 0; n < NT; n++)
                        gemm_mma<W>(acc[m][n], f, b[n] + half * 2);
                }
            }
        }
    }

    /* Accumulators -> sums[wk][BM][LD]. */
    DEVICE void spread(const float acc[MT][NT][4]) const
    {
        block_sync(); /* nobody reads stages any more */
        float *sums = (float *)stages + (wk * BM + lane / 4) * LD + wn * ROWS + lane % 4 * 2;
        UNROLL
        for (int m = 0; m < MT; m++) {
            UNROLL
            for (int n = 0; n < NT; n++) {
                float *to = sums + m * 16 * LD + n * 8;
                *(f32x2 *)to = f32x2{acc[m][n][0], acc[m][n][1]};
                *(f32x2 *)(to + 8 * LD) = f32x2{acc[m][n][2], acc[m][n][3]};
            }
        }
        block_sync();
    }

    static DEVICE f32x4 plus(const f32x4 a, const f32x4 b)
    {
        return f32x4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    }

    /* Four columns of the tile: warps along k in order. */
    DEVICE f32x4 sum_warps(int row, int col) const
    {
        const float *at = (const float *)stages + row * LD + col;
        f32x4 v = *(const f32x4 *)at;
        UNROLL
        for (int k = 1; k < WK; k++)
            v = plus(v, *(const f32x4 *)(at + k * BM * LD));
        return v;
    }

    /* Splits: sums go out; true for the CTA that came last to the tile, which takes all back in. */
    DEVICE bool join_splits() const
    {
        const int64_t tile = (int64_t)block_y() * grid_x() + block_x();
        float *part = p.partial + tile * p.splits * BM * BN;
        NO_UNROLL
        for (int i = thread_id(); i < BM * BN / 4; i += GEMM_THREADS)
            *(f32x4 *)(part + block_z() * BM * BN + i * 4) =
                sum_warps(i / (BN / 4), i % (BN / 4) * 4);
        fence_device();
        block_sync();
        if (thread_id() == 0)
            *ticket = (int)atomic_add(p.tickets + tile, 1);
        block_sync();
        if (*ticket != p.splits - 1)
            return false;
        fence_device();
        if (thread_id() == 0)
            p.tickets[tile] = 0;
        NO_UNROLL
        for (int i = thread_id(); i < BM * BN / 4; i += GEMM_THREADS) {
            f32x4 v = load_f32x4(part + i * 4);
            UNROLL_4
            for (int z = 1; z < p.splits; z++)
                v = plus(v, load_f32x4(part + z * BM * BN + i * 4));
            *(f32x4 *)((float *)stages + i / (BN / 4) * LD + i % (BN / 4) * 4) = v;
        }
        return true; /* each thread finishes what it took in */
    }

    DEVICE f32x4 read4(const float *x, int col) const
    {
        if (p.quads)
            return load_f32x4(x + col);
        return f32x4{load_f32(x + col), col + 1 < p.n ? load_f32(x + col + 1) : 0.0F,
                     col + 2 < p.n ? load_f32(x + col + 2) : 0.0F,
                     col + 3 < p.n ? load_f32(x + col + 3) : 0.0F};
    }
    DEVICE f32x4 scaled(f32x4 v, float s, const float *bias, int col) const
    {
        v = f32x4{v.x * s, v.y * s, v.z * s, v.w * s};
        return bias ? plus(v, read4(bias + expert * p.bias_ld, col)) : v;
    }
    static DEVICE float gated(float g, float u)
    {
        return g / (1.0F + exp_fast(-g)) * u;
    }

    /* Four columns of one row: scale, bias, gate, addend. `only`: the first warp's sums are all. */
    DEVICE void finish(int row, int c, bool only) const
    {
        const int at = p.silu ? c / 8 * 16 + c % 8 : c;
        const int col = col0 + c;
        const int to = rows_y[row];
        if (to < 0 || col >= p.n)
            return;
        const float *sums = (const float *)stages + row * LD + at;
        const float s = load_f32(p.row_scale + rows_a[row]);
        f32x4 v = scaled(only ? *(const f32x4 *)sums : sum_warps(row, at), s, p.bias, col);
        if (p.silu) {
            const f32x4 u = scaled(only ? *(const f32x4 *)(sums + 8) : sum_warps(row, at + 8), s,
                                   p.bias_up, col);
            v = f32x4{gated(v.x, u.x), gated(v.y, u.y), gated(v.z, u.z), gated(v.w, u.w)};
        }
        if (p.add)
            v = plus(v, read4(p.add + (int64_t)to * p.ld_add, col));
        float *y = p.y + (int64_t)to * p.ld_y + col;
        if (p.quads) {
            *(f32x4 *)y = v;
            return;
        }
        y[0] = v.x;
        if (col + 1 < p.n)
            y[1] = v.y;
        if (col + 2 < p.n)
            y[2] = v.z;
        if (col + 3 < p.n)
            y[3] = v.w;
    }

    DEVICE void finish_all(bool only) const
    {
        const int quads = p.silu ? BN / 8 : BN / 4;
        UNROLL_2
        for (int i = thread_id(); i < BM * quads; i += GEMM_THREADS)
            finish(i / quads, i % quads * 4, only);
    }

    /* Where the CTA's weight rows are. With silu, groups of 8 rows are gate's and up's in turn. */
    DEVICE void take_columns() const
    {
        for (int i = thread_id(); i < BN; i += GEMM_THREADS) {
            const int c = col0 + (p.silu ? i / 16 * 8 + i % 8 : i);
            const int col = c < p.n ? c : p.n - 1;
            code_rows[i] = (p.silu && i / 8 % 2 ? p.codes_up : p.codes) + expert * p.code_bytes +
                           (int64_t)col * p.code_stride;
            scale_rows[i] = (uint32_t)col * (uint32_t)p.scale_stride;
        }
        block_sync();
    }

    /* The rows of the CTA; false: none is wanted. After griddep_wait. */
    DEVICE bool take_rows()
    {
        int first = block_x() * BM;
        int count = p.rows - first;
        if (p.tiles) {
            if (block_x() >= load_i32(p.n_tiles))
                return false;
            const int32_t *tile = (const int32_t *)(p.tiles + block_x());
            expert = load_i32(tile);
            first = load_i32(tile + 1);
            count = load_i32(tile + 2);
        } else if (p.limit) {
            const int wanted = load_i32(p.limit) * p.limit_times - first;
            count = count < wanted ? count : wanted;
        }
        if (count <= 0)
            return false;
        for (int i = thread_id(); i < BM; i += GEMM_THREADS) {
            int row = -1;
            if (i < count)
                row = p.tiles ? load_i32(p.list + expert * p.list_ld + first + i) : first + i;
            rows_y[i] = row;
            rows_a[i] = row < 0 ? -1 : row / p.list_div;
        }
        block_sync();
        return true;
    }

    DEVICE void start_weights(GemmScaleRaw raw[NT]) const
    {
        take_columns();
        NO_UNROLL
        for (int s = 0; s < STAGES - 1; s++)
            copy_w(s);
        scales(raw, 0);
    }

    DEVICE void run()
    {
        GemmScaleRaw raw[NT] = {};
        /* Weights wait for nothing, unless a list says which. */
        if (!p.tiles)
            start_weights(raw);
        griddep_wait();
        if (!take_rows())
            return;
        if (p.tiles)
            start_weights(raw);
        NO_UNROLL
        for (int s = 0; s < STAGES - 1; s++) {
            copy_a(s);
            copy_commit();
        }
        float acc[MT][NT][4] = {};
        const int steps = (c1 - c0 + WK - 1) / WK;
        NO_UNROLL
        for (int s = 0; s < steps; s++) {
            copy_wait<STAGES - 2>();
            sync(); /* step s has landed for all, and nobody reads step s - 1 any more */
            copy_w(s + STAGES - 1);
            copy_a(s + STAGES - 1);
            copy_commit();
            GemmScaleRaw now[NT];
            UNROLL
            for (int n = 0; n < NT; n++)
                now[n] = raw[n];
            scales(raw, s + 1);
            if (chunk(s) < c1)
                multiply(acc, now, s);
        }
        spread(acc);
        const bool splits = p.splits > 1;
        if (splits && !join_splits())
            return;
        if (splits)
            block_sync();
        finish_all(splits);
    }
};

template <class W, int MT, int NT, int WN, int WK>
DEVICE void gemm_run(const GemmParams &p, uint8_t *mem)
{
    griddep_launch();
    Gemm<W, MT, NT, WN, WK> g(p, mem);
    g.run();
}

/* The kernels of one layout, by shape. */
#define GEMM_KERNEL(layout, W, shape, mt, nt, wn, wk)                                              \
    KERNEL(GEMM_THREADS, 2) gemm_##layout##_##shape(const GemmParams p)                            \
    {                                                                                              \
        SHARED_DYNAMIC(mem);                                                                       \
        gemm_run<W, mt, nt, wn, wk>(p, mem);                                                       \
    }

#endif
