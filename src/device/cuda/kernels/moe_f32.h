/* moe_f32.h: experts in f32: any layout, shape and number of tokens. CTAs take an item (an expert
 * and up to R of its pairs) and a share of the expert's rows at a time; y has a row for each
 * pair.*/
#ifndef MERE_MOE_F32_H
#define MERE_MOE_F32_H

#include "moe_common.h"

template <int R, class L, int RW, int D>
DEVICE void moe_f32_item(const MoeParams &p, const MoeItem &item, const int32_t *pairs, int b0,
                         int b1, float *x, float *ssq)
{
    LinStream<L, RW, D> s;
    s.init(p.w, p.w.k);
    int blk = b0 + thread_id() / 32;
    if (blk < b1)
        s.begin(moe_at<RW>(p, item.expert, blk));
    const int div = p.per_pair ? 1 : p.route.top_k;
    const auto pair = [&](int i) { return pairs[i < item.count ? i : item.count - 1]; };
    const auto src = [&](int i) { return p.in.x + (int64_t)(pair(i) / div) * p.in.ld; };
    const bool norm = p.in.eps > 0;
    const bool one = p.tile >= p.w.k;
    if (one)
        lin_fill<L::K>(p.in, p.w.k, 0, p.tile, R, src, x, norm ? ssq : nullptr);
    else if (norm)
        lin_squares(p.in, p.w.k, R, src, ssq);
    block_sync();
    float inv = 1;
    if (norm) {
        const int i = thread_id() % 32 >> (5 - LinLog2<R * RW>::value + LinLog2<RW>::value);
        inv = lin_inv_rms(ssq + i * LIN_WARPS, p.w.k, p.in.eps);
    }
    const int tile_stages = one ? s.stages : p.tile / (32 * L::K);
    const int turns = (b1 - b0 + LIN_WARPS - 1) / LIN_WARPS;
    NO_UNROLL for (int turn = 0; turn < turns; turn++, blk += LIN_WARPS)
    {
        const bool active = blk < b1;
        const bool more = blk + LIN_WARPS < b1;
        if (more)
            s.next = moe_at<RW>(p, item.expert, blk + LIN_WARPS);
        float acc[R * RW];
        UNROLL for (int i = 0; i < R * RW; i++) acc[i] = 0;
        NO_UNROLL for (int from = 0; from < s.stages; from += tile_stages)
        {
            if (!one) {
                block_sync();
                lin_fill<L::K>(p.in, p.w.k, from * 32 * L::K, p.tile, R, src, x, nullptr);
                block_sync();
            }
            const int to = from + tile_stages < s.stages ? from + tile_stages : s.stages;
            if (active)
                lin_mul_f32<R>(s, more, from, to, x, p.tile, acc);
        }
        if (!active)
            continue;
        s.at = s.next;
        moe_store<R, RW>(p, item, blk, pair, lin_reduce<R * RW>(acc) * inv);
    }
}

template <class L, int R, int D> DEVICE void moe_f32(const MoeParams &p, uint8_t *sm)
{
    SHARED(int32_t, pairs, R);
    float *x = (float *)sm;
    float *ssq = x + R * lin_f32_row<L::K>(p.tile);
    griddep_launch();
    griddep_wait();
    const int n_items = load_i32(p.route.items);
    const int step = p.half ? 1 : 2; /* RW 2 */
    const int nb = (p.n + step - 1) / step;
    NO_UNROLL for (int unit = block_x(); unit < n_items * p.splits; unit += grid_x())
    {
        const int32_t *at = p.route.items + 1 + 3 * (unit / p.splits);
        const int split = unit % p.splits;
        const MoeItem item = {load_i32(at), load_i32(at + 1), load_i32(at + 2)};
        const int b0 = (int)((int64_t)split * nb / p.splits);
        const int b1 = (int)((int64_t)(split + 1) * nb / p.splits);
        block_sync(); /* the item before has been read */
        if (thread_id() < item.count)
            pairs[thread_id()] = load_i32(p.route.pairs + item.first + thread_id());
        block_sync();
        moe_f32_item<R, L, 2, D>(p, item, pairs, b0, b1, x, ssq);
    }
}

#define MOE_F32(layout, L, R, D)                                                                   \
    KERNEL(LIN_THREADS, 1) moe_f32_##layout##_r##R(const MoeParams p)                              \
    {                                                                                              \
        SHARED_DYNAMIC(sm);                                                                        \
        moe_f32<L, R, D>(p, sm);                                                                   \
    }
/* By the most pairs an item has. */
#define MOE_F32_SET(layout, L)                                                                     \
    MOE_F32(layout, L, 1, 4)                                                                       \
    MOE_F32(layout, L, 2, 4)                                                                       \
    MOE_F32(layout, L, 4, 2)                                                                       \
    MOE_F32(layout, L, 8, 2)

#endif
