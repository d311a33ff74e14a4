/* lin_general.h: the general product: any layout, any k, any number of rows (R a CTA, grid y),
 * weights dequantised and multiplied in f32. The exact class, `precise` weights, F32, F16 and BF16
 * weights, and every shape that lin_gemv.h does not take.
 *
 * Activations lie in shared memory as f32, all of k where R rows of it fit, else a tile at a time:
 * then all warps of a CTA meet at each tile's borders. */
#ifndef MERE_LIN_GENERAL_H
#define MERE_LIN_GENERAL_H

#include "lin_rows.h"

/* Blocks [b0, b1) of a weight's rows times R rows. at(blk): where a block's rows lie; ready() waits
 * for the input; src(r): its row r; open(blk), called before the sums are there, takes them. */
template <class L, int R, int RW, int D, class At, class Ready, class Src, class Open>
DEVICE void lin_f32_blocks(const LinInput &in, const LinWeight &w, int tile, int b0, int b1,
                           uint8_t *sm, At at, Ready ready, Src src, Open open)
{
    float *x = (float *)sm;
    float *ssq = x + R * lin_f32_row<L::K>(tile); /* [R][LIN_WARPS] */
    LinStream<L, RW, D> s;
    s.init(w, w.k);
    int blk = b0 + thread_id() / 32;
    if (blk < b1)
        s.begin(at(blk));
    ready();

    const bool norm = in.eps > 0;
    const bool one = tile >= w.k;
    if (one)
        lin_fill<L::K>(in, w.k, 0, tile, R, src, x, norm ? ssq : nullptr);
    else if (norm)
        lin_squares(in, w.k, R, src, ssq);
    block_sync();
    float inv = 1;
    if (norm) {
        const int i = thread_id() % 32 >> (5 - LinLog2<R * RW>::value + LinLog2<RW>::value);
        inv = lin_inv_rms(ssq + i * LIN_WARPS, w.k, in.eps);
    }
    const int tile_stages = one ? s.stages : tile / (32 * L::K);
    const int turns = (b1 - b0 + LIN_WARPS - 1) / LIN_WARPS;
    NO_UNROLL for (int turn = 0; turn < turns; turn++, blk += LIN_WARPS)
    {
        const bool active = blk < b1;
        const bool more = blk + LIN_WARPS < b1;
        const auto store = open(active ? blk : b1 - 1);
        if (more)
            s.next = at(blk + LIN_WARPS);
        float acc[R * RW];
        UNROLL for (int i = 0; i < R * RW; i++) acc[i] = 0;
        NO_UNROLL for (int from = 0; from < s.stages; from += tile_stages)
        {
            if (!one) {
                block_sync();
                lin_fill<L::K>(in, w.k, from * 32 * L::K, tile, R, src, x, nullptr);
                block_sync();
            }
            const int to = from + tile_stages < s.stages ? from + tile_stages : s.stages;
            if (active)
                lin_mul_f32<R>(s, more, from, to, x, tile, acc);
        }
        if (!active)
            continue;
        s.at = s.next;
        store(lin_reduce<R * RW>(acc) * inv);
    }
}

template <class L, int R, int RW, int D> DEVICE void lin_f32(const LinParams &p, uint8_t *sm)
{
    const int row0 = block_y() * R;
    const LinCols<RW> cols(p);
    const int nb = cols.blocks();
    const int b0 = (int)((int64_t)block_x() * nb / grid_x());
    const int b1 = (int)((int64_t)(block_x() + 1) * nb / grid_x());
    griddep_launch();
    if (b0 == b1)
        return;
    const int rows = p.in.rows - row0 < R ? p.in.rows - row0 : R;
    lin_f32_blocks<L, R, RW, D>(
        p.in, p.w, p.tile, b0, b1, sm, [&](int blk) { return cols.at(p.w, blk); },
        [] { griddep_wait(); },
        [&](int r) { return lin_row(p.in, row0 + (r < rows ? r : rows - 1)); },
        [&](int blk) {
            const LinOut<R, RW> out(p, cols, blk, row0);
            return [&p, out](float v) { out.store(p, v); };
        });
}

#define LIN_F32(layout, L, shape, R, RW, D)                                                        \
    KERNEL(LIN_THREADS, 1) lin_f32_##layout##_r##R##_##shape(const LinParams p)                    \
    {                                                                                              \
        SHARED_DYNAMIC(sm);                                                                        \
        lin_f32<L, R, RW, D>(p, sm);                                                               \
    }

/* full: as in lin_gemv_set.h. thin: RW 1, for weights with so few rows that warps would idle. */
#define LIN_F32_SET(layout, L)                                                                     \
    LIN_F32(layout, L, full, 1, 2, 4)                                                              \
    LIN_F32(layout, L, full, 2, 2, 4)                                                              \
    LIN_F32(layout, L, full, 4, 2, 4)                                                              \
    LIN_F32(layout, L, full, 8, 2, 2)                                                              \
    LIN_F32(layout, L, thin, 1, 1, 4)

#endif
