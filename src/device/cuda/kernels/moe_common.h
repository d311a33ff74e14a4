/* moe_common.h: what the expert kernels share: an item's rows and where they are written. */
#ifndef MERE_MOE_COMMON_H
#define MERE_MOE_COMMON_H

#include "lin_rows.h"
#include "moe_route.h"

struct MoeItem {
    int expert, first, count;
};

/* Row r of block blk of an expert's weight: as LinCols, from the expert's own rows. */
template <int RW> DEVICE LinAt<RW> moe_at(const MoeParams &p, int expert, int blk)
{
    const int step = p.half ? RW / 2 : RW;
    LinAt<RW> a;
    UNROLL for (int r = 0; r < RW; r++)
    {
        const int c = blk * step + (p.half ? r / 2 : r);
        const uint32_t row =
            (uint32_t)(p.w.row0 + (c < p.n ? c : p.n - 1) + (p.half ? r % 2 * p.half : 0));
        a.code16[r] = (uint32_t)expert * p.w.expert16 + row * p.w.code_stride16;
        a.scale[r] = (uint32_t)expert * p.w.expert_scale + row * p.w.scale_stride;
    }
    return a;
}

/* Stores a block's sums, lane's being v: row idx / RW of the item, pair(i) telling which pair. */
template <int R, int RW, class Pair>
DEVICE void moe_store(const MoeParams &p, const MoeItem &item, int blk, Pair pair, float v)
{
    constexpr int M = LinLog2<R * RW>::value;
    const int lane = thread_id() % 32;
    const int idx = lane >> (5 - M);
    const int r = idx % RW;
    const int i = idx / RW;
    const int c = blk * (p.half ? RW / 2 : RW) + (p.half ? r / 2 : r);
    const bool writes = (lane & ((1 << (5 - M)) - 1)) == 0 && i < item.count && c < p.n;
    if (writes && p.bias)
        v += p.bias[(int64_t)item.expert * p.bias_ld + c + (p.half ? r % 2 * p.half : 0)];
    float *y = p.y + ((int64_t)(i < item.count ? pair(i) : 0) * p.ld_y + c);
    if (p.half) {
        const float up = shfl_down(v, 1 << (5 - M));
        if (writes && r % 2 == 0)
            *y = lin_silu(v, up);
    } else if (writes) {
        *y = v;
    }
}

#endif
