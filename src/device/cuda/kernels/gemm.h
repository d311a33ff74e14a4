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
 * comes last adds what all wrote. */
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

template <class W, int MT, int NT, int WN, int WK> struct Gemm {
    static_assert(WN == 1 || WK == 1, "a chunk of a belongs to one warp, or to all");
    enum {
        BM = MT * 16,
        ROWS = NT * 8, /* weight rows of a warp */
        A_BYTES = BM * GEMM_A_CHUNK_BYTES,
        W_BYTES = ROWS * W::BYTES,
        STAGE = GEMM_STAGE_BYTES(MT, NT, WN, WK, W::BYTES),
        STAGES = GEMM_STAGES(STAGE)
    };
    const GemmParams &p;
    int *rows_a; /* [BM] row of a, -1: none */
    int *rows_y; /* [BM] */
    uint8_t *stages;
    int warp, lane, wn, wk;
    int col0;   /* of the CTA, in y */
    int c0, c1; /* chunks of this split */
    int64_t expert;

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

    /* Column of y of the warp's weight row. With silu, groups of 8 rows are gate's and up's in
     * turn. */
    DEVICE int column(int row) const
    {
        const int c =
            p.silu ? col0 + wn * (ROWS / 2) + row / 16 * 8 + row % 8 : col0 + wn * ROWS + row;
        return c < p.n ? c : p.n - 1;
    }
    DEVICE const uint8_t *code_row(int row) const
    {
        const uint8_t *base = p.silu && row / 8 % 2 ? p.codes_up : p.codes;
        return base + expert * p.code_bytes + (int64_t)column(row) * p.code_stride;
    }
    DEVICE const uint8_t *scale_row(int row) const
    {
        const uint8_t *base = p.silu && row / 8 % 2 ? p.scales_up : p.scales;
        return base + expert * p.scale_bytes + (int64_t)column(row) * p.scale_stride;
    }

    /* Codes of step s. Units past the row's end are zeros. */
    DEVICE void copy_w(int s) const
    {
        const int c = chunk(s);
        if (c >= c1)
            return;
        uint8_t *to = stage_w(s);
        UNROLL
        for (int i = 0; i < ROWS * W::UNITS / 32; i++) {
            const int row = (i * 32 + lane) / W::UNITS;
            const int u = (i * 32 + lane) % W::UNITS;
            const int64_t at = (int64_t)c * (W::UNITS * 16) + u * 16;
            copy_async16(to + row * W::BYTES + W::place(row, u), code_row(row) + at,
                         at < p.code_stride ? 16 : 0);
        }
        if (W::EXTRA) {
            UNROLL
            for (int i = 0; i < ROWS * 2 / 32; i++) {
                const int row = i * 16 + lane / 2;
                copy_async16(to + row * W::BYTES + 64 + lane % 2 * 16,
                             code_row(row) + p.k / 2 + c * 32 + lane % 2 * 16, 16);
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
        const int me = WN > 1 ? warp * 32 + lane : lane;
        uint8_t *to = stage_a(s);
        UNROLL
        for (int i = 0; i < BM * 16 / threads; i++) {
            const int row = i * (threads / 16) + me / 16;
            const int u = me % 16;
            const int from = rows_a[row];
            copy_async16(to + row * GEMM_A_CHUNK_BYTES + (u ^ (row & 7)) * 16,
                         p.a + ((int64_t)(from < 0 ? 0 : from) * p.kp + c * GEMM_CHUNK) * 2 +
                             u * 16,
                         from < 0 ? 0 : 16);
        }
    }

    DEVICE void scales(GemmScaleRaw raw[NT], int s) const
    {
        const int c = chunk(s);
        UNROLL
        for (int n = 0; n < NT; n++) {
            if (c < c1)
                raw[n] =
                    W::scale_load(p, scale_row(n * 8 + lane / 4), c * GEMM_CHUNK + lane % 4 * 32);
        }
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
        UNROLL
        for (int n = 0; n < NT; n++)
            scale[n] = W::scale_make(p, raw[n]);
        UNROLL
        for (int q = 0; q < 4; q++) {
            uint32_t b[NT][4];
            UNROLL
            for (int n = 0; n < NT; n++) {
                if (q % W::QS == 0)
                    codes[n] = W::load(w + (n * 8 + g) * W::BYTES, n * 8 + g, t, q);
                W::unpack(b[n], codes[n], q, scale[n]);
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

    /* Warps along k: the first takes the sums of all. */
    DEVICE void join_warps(float acc[MT][NT][4]) const
    {
        f32x4 *sums = (f32x4 *)stages;
        block_sync();
        if (wk > 0) {
            UNROLL
            for (int i = 0; i < MT * NT; i++) {
                const float *c = acc[i / NT][i % NT];
                sums[((wk - 1) * MT * NT + i) * 32 + lane] = f32x4{c[0], c[1], c[2], c[3]};
            }
        }
        block_sync();
        if (wk > 0)
            return;
        UNROLL
        for (int i = 0; i < MT * NT; i++) {
            float *c = acc[i / NT][i % NT];
            for (int k = 0; k < WK - 1; k++) {
                const f32x4 v = sums[(k * MT * NT + i) * 32 + lane];
                c[0] += v.x;
                c[1] += v.y;
                c[2] += v.z;
                c[3] += v.w;
            }
        }
    }

    /* True for the CTA that came last to this tile: acc is the sum of all then. */
    DEVICE bool join_splits(float acc[MT][NT][4], int tile, int split) const
    {
        const int writers = WN * 32;
        const int me = wn * 32 + lane;
        f32x4 *part = (f32x4 *)p.partial + (int64_t)tile * p.splits * MT * NT * writers;
        int *came = rows_y + BM;
        if (wk == 0) {
            UNROLL
            for (int i = 0; i < MT * NT; i++) {
                const float *c = acc[i / NT][i % NT];
                part[(split * MT * NT + i) * writers + me] = f32x4{c[0], c[1], c[2], c[3]};
            }
        }
        fence_device();
        block_sync();
        if (thread_id() == 0)
            *came = (int)atomic_add(p.tickets + tile, 1);
        block_sync();
        if (*came != p.splits - 1)
            return false;
        fence_device();
        if (thread_id() == 0)
            p.tickets[tile] = 0;
        if (wk > 0)
            return true;
        UNROLL
        for (int i = 0; i < MT * NT; i++) {
            float *c = acc[i / NT][i % NT];
            c[0] = c[1] = c[2] = c[3] = 0.0F;
            for (int k = 0; k < p.splits; k++) {
                const f32x4 v =
                    load_f32x4((const float *)(part + (k * MT * NT + i) * writers + me));
                c[0] += v.x;
                c[1] += v.y;
                c[2] += v.z;
                c[3] += v.w;
            }
        }
        return true;
    }

    DEVICE void put(int row, int col, float v0, float v1) const
    {
        float *y = p.y + (int64_t)row * p.ld_y + col;
        const float *add = p.add ? p.add + (int64_t)row * p.ld_add + col : nullptr;
        if (p.pairs) {
            if (add) {
                const f32x2 v = *(const f32x2 *)add;
                v0 += v.x;
                v1 += v.y;
            }
            *(f32x2 *)y = f32x2{v0, v1};
            return;
        }
        y[0] = add ? v0 + add[0] : v0;
        if (col + 1 < p.n)
            y[1] = add ? v1 + add[1] : v1;
    }
    DEVICE float bias_of(const float *bias, int col) const
    {
        return bias && col < p.n ? bias[expert * p.bias_ld + col] : 0.0F;
    }

    DEVICE void finish(const float acc[MT][NT][4]) const
    {
        const int t = lane % 4;
        UNROLL
        for (int m = 0; m < MT; m++) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                const int i = m * 16 + h * 8 + lane / 4;
                const int row = rows_y[i];
                if (row < 0)
                    continue;
                const float scale = load_f32(p.row_scale + rows_a[i]);
                UNROLL
                for (int n = 0; n < NT; n++) {
                    const float v0 = acc[m][n][h * 2] * scale;
                    const float v1 = acc[m][n][h * 2 + 1] * scale;
                    if (!p.silu) {
                        const int col = col0 + wn * ROWS + n * 8 + 2 * t;
                        if (col < p.n)
                            put(row, col, v0 + bias_of(p.bias, col), v1 + bias_of(p.bias, col + 1));
                    } else if (n % 2 == 0) {
                        const int col = col0 + wn * (ROWS / 2) + n / 2 * 8 + 2 * t;
                        const float g0 = v0 + bias_of(p.bias, col);
                        const float g1 = v1 + bias_of(p.bias, col + 1);
                        const float u0 = acc[m][n + 1][h * 2] * scale + bias_of(p.bias_up, col);
                        const float u1 =
                            acc[m][n + 1][h * 2 + 1] * scale + bias_of(p.bias_up, col + 1);
                        if (col < p.n)
                            put(row, col, g0 / (1.0F + exp_fast(-g0)) * u0,
                                g1 / (1.0F + exp_fast(-g1)) * u1);
                    }
                }
            }
        }
    }

    /* The rows of the CTA; false: none is wanted. All after griddep_wait. */
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

    DEVICE void run()
    {
        const int n_chunks = p.kp / GEMM_CHUNK;
        c0 = block_z() * n_chunks / p.splits;
        c1 = (block_z() + 1) * n_chunks / p.splits;
        col0 = block_y() * (p.silu ? ROWS * WN / 2 : ROWS * WN);
        const int steps = (c1 - c0 + WK - 1) / WK;
        GemmScaleRaw raw[NT] = {};
        /* Weights wait for nothing, unless a list says which. */
        if (!p.tiles) {
            scales(raw, 0);
            for (int s = 0; s < STAGES - 1; s++)
                copy_w(s);
        }
        griddep_wait();
        if (!take_rows())
            return;
        if (p.tiles) {
            scales(raw, 0);
            for (int s = 0; s < STAGES - 1; s++)
                copy_w(s);
        }
        for (int s = 0; s < STAGES - 1; s++) {
            copy_a(s);
            copy_commit();
        }
        float acc[MT][NT][4] = {};
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
        if (WK > 1)
            join_warps(acc);
        if (p.splits > 1 && !join_splits(acc, block_y() * grid_x() + block_x(), block_z()))
            return;
        if (wk == 0)
            finish(acc);
    }
};

template <class W, int MT, int NT, int WN, int WK>
DEVICE void gemm_run(const GemmParams &p, uint8_t *mem)
{
    griddep_launch();
    const int warp = thread_id() / 32;
    Gemm<W, MT, NT, WN, WK> g{p,
                              (int *)mem,
                              (int *)mem + MT * 16,
                              mem + GEMM_HEAD_BYTES(MT),
                              warp,
                              thread_id() % 32,
                              warp % WN,
                              warp / WN,
                              0,
                              0,
                              0,
                              0};
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
