/* moe_f32.h: experts in f32: any layout, shape and number of tokens. CTAs take an item (an expert
 * and up to R of its pairs) and a share of the expert's rows at a time; y has a row for each
 * pair.*/
#ifndef MERE_MOE_F32_H
#define MERE_MOE_F32_H

#include "lin_general.h"
#include "moe_common.h"

template <int R, class L, int RW, int D>
DEVICE void moe_f32_item(const MoeParams &p, const MoeItem &item, const int32_t *pairs, int b0,
                         int b1, uint8_t *sm)
{
    const int div = p.per_pair ? 1 : p.route.top_k;
    const auto pair = [&](int i) { return pairs[i < item.count ? i : item.count - 1]; };
    lin_f32_blocks<L, R, RW, D>(
        p.in, p.w, p.tile, b0, b1, sm, [&](int blk) { return moe_at<RW>(p, item.expert, blk); },
        [] {}, [&](int i) { return p.in.x + (int64_t)(pair(i) / div) * p.in.ld; },
        [&](int blk) { return [&, blk](float v) { moe_store<R, RW>(p, item, blk, pair, v); }; });
}

template <class L, int R, int D> DEVICE void moe_f32(const MoeParams &p, uint8_t *sm)
{
    SHARED(int32_t, pairs, R);
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
        moe_f32_item<R, L, 2, D>(p, item, pairs, b0, b1, sm);
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
