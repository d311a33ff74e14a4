/* lin_rows.h: the loop that products share: a warp takes blocks of RW weight rows, D stages of 32
 * units (one a lane) of each row lie in registers, loaded that far ahead, across the end of a block
 * into the next one. No shared-memory ring: weights go from memory into registers.
 *
 * The sum of a row: lane l adds units l, l + 32, .. ascending (f32 layouts first sum a unit), then
 * lanes are added by halves (l and l + 16, 8, 4, 2, 1). That order depends neither on R, RW, D nor
 * on the grid, so a row's result does not depend on how many rows there are.
 *
 * Measured on an H200 (W4, 1 row): RW 2, D 4, 16 warps a CTA, one CTA a multiprocessor; 24 or 32
 * warps, or RW 4 with D 4, 1 to 11 % slower. */
#ifndef MERE_LIN_ROWS_H
#define MERE_LIN_ROWS_H

#include "lin_layout.h"

template <int V> struct LinLog2 {
    enum { value = 1 + LinLog2<V / 2>::value };
};
template <> struct LinLog2<1> {
    enum { value = 0 };
};

/* N sums stay in this lane, the other N go to lane ^ O. A template: a loop at run time would put
 * the sums into local memory. */
template <int N, int O> DEVICE void lin_halve(float *acc, int lane)
{
    if constexpr (N >= 1) {
        const bool up = lane & O;
        UNROLL for (int i = 0; i < N; i++)
        {
            const float send = up ? acc[i] : acc[i + N];
            const float keep = up ? acc[i + N] : acc[i];
            acc[i] = keep + shfl_xor(send, O);
        }
        lin_halve<N / 2, O / 2>(acc, lane);
    }
}

/* V sums over the lanes: lane gets sum number lane >> (5 - log2 V). */
template <int V> DEVICE float lin_reduce(float *acc)
{
    constexpr int M = LinLog2<V>::value;
    static_assert(V == 1 << M && V <= 32, "sums");
    lin_halve<V / 2, 16>(acc, thread_id() % 32);
    float v = acc[0];
    UNROLL for (int o = 16 >> M; o; o /= 2) v += shfl_xor(v, o);
    return v;
}

/* Weight rows of a block: where they begin. */
template <int RW> struct LinAt {
    uint32_t code16[RW];
    uint32_t scale[RW];
};

template <class L, int RW, int D> struct LinStream {
    typename L::Reg w[D][RW];
    LinAt<RW> at, next;
    LinGeom g;
    int units, stages;

    DEVICE void init(const LinWeight &weight, int k)
    {
        g = lin_geom(weight);
        units = (k + L::K - 1) / L::K;
        stages = (units + 31) / 32;
        UNROLL for (int r = 0; r < RW; r++) next.code16[r] = next.scale[r] = 0;
    }
    /* Lanes past the end read the last unit again; their activations are zero. */
    DEVICE void load(int d, int stage, const LinAt<RW> &from)
    {
        int u = stage * 32 + thread_id() % 32;
        u = u < units ? u : units - 1;
        UNROLL for (int r = 0; r < RW; r++) L::load(w[d][r], g, from.code16[r], from.scale[r], u);
    }
    /* The first stages of the first block. */
    DEVICE void begin(const LinAt<RW> &first)
    {
        at = first;
        UNROLL for (int d = 0; d < D; d++)
        {
            if (d < stages)
                load(d, d, at);
        }
    }
    /* Frees slot d, used for `stage`: the row's stage D further on, or the next block's first. */
    DEVICE void refill(int d, int stage, bool more)
    {
        const bool here = stage + D < stages;
        if (!here && !more)
            return;
        LinAt<RW> from;
        UNROLL for (int r = 0; r < RW; r++)
        {
            from.code16[r] = here ? at.code16[r] : next.code16[r];
            from.scale[r] = here ? at.scale[r] : next.scale[r];
        }
        load(d, here ? stage + D : d, from);
    }
};

/* Stages [from, to) of the block at s.at for R rows of int8 activations, row i at xrow(i); from is
 * a multiple of D. acc [R][RW]. */
template <int R, class L, int RW, int D, class XRow>
DEVICE void lin_mul_i8(LinStream<L, RW, D> &s, bool more, XRow xrow, int chunks, float *acc)
{
    NO_UNROLL for (int j = 0; j < s.stages; j += D)
    {
        UNROLL for (int d = 0; d < D; d++)
        {
            const int stage = j + d;
            if (stage < s.stages) {
                UNROLL for (int i = 0; i < R; i++)
                {
                    typename L::X x;
                    x.load(xrow(i), chunks, stage * 32 + thread_id() % 32);
                    UNROLL for (int r = 0; r < RW; r++) L::mul(s.w[d][r], x, acc[i * RW + r]);
                }
                s.refill(d, stage, more);
            }
        }
    }
}

/* The same with f32 activations, a tile of them at x: stages [from, to), of which the tile's first
 * is `from`. */
template <int R, class L, int RW, int D>
DEVICE void lin_mul_f32(LinStream<L, RW, D> &s, bool more, int from, int to, const float *x,
                        int tile, float *acc)
{
    const int row = lin_f32_row<L::K>(tile);
    const int plane = row / L::K * 4; /* from quad to quad */
    NO_UNROLL for (int j = from; j < to; j += D)
    {
        UNROLL for (int d = 0; d < D; d++)
        {
            const int stage = j + d;
            if (stage < to) {
                const float *xu = x + ((stage - from) * 32 + thread_id() % 32) * 4;
                float part[R * RW];
                UNROLL for (int i = 0; i < R * RW; i++) part[i] = 0;
                UNROLL for (int q = 0; q < L::K / 4; q++)
                {
                    float v[RW][4];
                    UNROLL for (int r = 0; r < RW; r++) L::get4(s.w[d][r], q, v[r]);
                    UNROLL for (int i = 0; i < R; i++)
                    {
                        const f32x4 a = *(const f32x4 *)(xu + i * row + q * plane);
                        UNROLL for (int r = 0; r < RW; r++)
                        {
                            float &p = part[i * RW + r];
                            p = fmaf(a.x, v[r][0], p);
                            p = fmaf(a.y, v[r][1], p);
                            p = fmaf(a.z, v[r][2], p);
                            p = fmaf(a.w, v[r][3], p);
                        }
                    }
                }
                UNROLL for (int i = 0; i < R * RW; i++) acc[i] += part[i];
                s.refill(d, stage, more);
            }
        }
    }
}

DEVICE float lin_silu(float gate, float up)
{
    return gate / (1.0F + expf(-gate)) * up;
}

/* Weight row number r of block blk: output column and its row, gate and up alternating. */
template <int RW> struct LinCols {
    int n, half, row0, step;
    DEVICE LinCols(const LinParams &p)
        : n(p.n), half(p.half), row0(p.w.row0), step(p.half ? RW / 2 : RW)
    {
    }
    DEVICE int blocks() const
    {
        return (n + step - 1) / step;
    }
    DEVICE int col(int blk, int r) const
    {
        return blk * step + (half ? r / 2 : r);
    }
    DEVICE int row(int blk, int r) const
    {
        const int c = col(blk, r);
        return row0 + (c < n ? c : n - 1) + (half ? r % 2 * half : 0);
    }
    DEVICE LinAt<RW> at(const LinWeight &w, int blk) const
    {
        LinAt<RW> a;
        UNROLL for (int r = 0; r < RW; r++)
        {
            const uint32_t i = (uint32_t)row(blk, r);
            a.code16[r] = i * w.code_stride16;
            a.scale[r] = i * w.scale_stride;
        }
        return a;
    }
};

/* What a lane writes of a block: reads the addend early, stores at the end. */
template <int R, int RW> struct LinOut {
    float *to;
    float add;
    bool writes;
    DEVICE LinOut(const LinParams &p, const LinCols<RW> &cols, int blk, int row0)
    {
        constexpr int M = LinLog2<R * RW>::value;
        const int lane = thread_id() % 32;
        const int idx = lane >> (5 - M);
        const int r = idx % RW;
        const int x = row0 + idx / RW;
        const int c = cols.col(blk, r);
        writes = (lane & ((1 << (5 - M)) - 1)) == 0 && x < p.in.rows && c < p.n;
        add = 0;
        to = p.y + ((int64_t)x * p.ld_y + c);
        if (writes && p.bias)
            add = p.bias[c + (p.half ? r % 2 * p.half : 0)];
        if (writes && p.addend)
            add += load_f32(p.addend + ((int64_t)x * p.ld_addend + c));
    }
    /* v: this lane's sum. All lanes. */
    DEVICE void store(const LinParams &p, float v) const
    {
        constexpr int M = LinLog2<R * RW>::value;
        if (p.half) {
            if constexpr (RW > 1) {
                v += add;
                const float up = shfl_down(v, 1 << (5 - M));
                const int r = (thread_id() % 32 >> (5 - M)) % RW;
                if (writes && r % 2 == 0)
                    *to = lin_silu(v, up);
            }
        } else if (writes) {
            *to = v + add;
        }
    }
};

#endif
