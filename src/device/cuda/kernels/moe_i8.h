/* moe_i8.h: experts of 1 to 8 tokens with int8 activations: two kernels, up = silu(gate) * up of
 * every pair, down = one long dot product a token and column over k = top_k * ffn, the router's
 * shares multiplied into the activations' scales, so that the sum over experts is the dot itself.
 *
 * One token: both kernels rank the router's logits themselves; reading ids that another kernel
 * wrote saves 0.6 us a kernel and costs that kernel. Several: moe_route lists each expert once with
 * its pairs; down reads an expert's row again for each of its tokens, right after another, from L2.
 *
 * up lets its successor start only after its own wait, so what came before up is complete when down
 * starts: down may read logits or ids, and with them its weights, before its own wait. */
#ifndef MERE_MOE_I8_H
#define MERE_MOE_I8_H

#include "moe_common.h"

/* Shared memory of up behind the activations. */
struct MoeUpShared {
    float ssq[LIN_ROWS_MAX * LIN_WARPS];
    float inv[LIN_ROWS_MAX];
    int32_t items[3 * MOE_PAIRS_MAX];
    int32_t pairs[MOE_PAIRS_MAX];
    float shares[MOE_TOP_MAX];
    float logits[MOE_EXPERTS_MAX];
};
static_assert(sizeof(MoeUpShared) == MOE_UP_SHARED, "the host reckons with it");

template <int R, class L, int RW, int D>
DEVICE void moe_up_block(const MoeParams &p, LinStream<L, RW, D> &s, bool more, const MoeItem &item,
                         int blk, const uint8_t *x, int chunks, const MoeUpShared &sh)
{
    const int x_bytes = LIN_X_BYTES_OF(chunks);
    const auto pair = [&](int i) {
        return sh.pairs[item.first + (i < item.count ? i : item.count - 1)];
    };
    const uint8_t *row[R];
    UNROLL for (int i = 0; i < R; i++) row[i] = x + pair(i) / p.route.top_k * x_bytes;
    float acc[R * RW];
    UNROLL for (int i = 0; i < R * RW; i++) acc[i] = 0;
    lin_mul_i8<R>(
        s, more, [&](int i) { return row[i]; }, chunks, acc);
    const int mine = thread_id() % 32 >> (5 - LinLog2<R * RW>::value + LinLog2<RW>::value);
    const float inv = p.in.eps > 0 ? sh.inv[pair(mine) / p.route.top_k] : 1.0F;
    moe_store<R, RW>(p, item, blk, pair, lin_reduce<R * RW>(acc) * inv);
}

/* MANY: items come from moe_route, else the one token's are found here. */
template <class L, int RW, int D, bool MANY, int BATCH, int K>
DEVICE void moe_up(const MoeParams &p, uint8_t *sm)
{
    const int k = K > 0 ? K : p.w.k;
    const int tid = thread_id();
    const int tokens = MANY ? p.in.rows : 1;
    const int chunks = LIN_X_CHUNKS(k);
    MoeUpShared &sh = *(MoeUpShared *)(sm + tokens * LIN_X_BYTES_OF(chunks));
    LinNormAhead<1> ahead;
    ahead.load(p.in, k);
    griddep_wait();
    griddep_launch();

    int n_items;
    if (MANY) {
        n_items = load_i32(p.route.items);
        for (int i = tid; i < n_items * 3; i += LIN_THREADS)
            sh.items[i] = load_i32(p.route.items + 1 + i);
        for (int i = tid; i < tokens * p.route.top_k; i += LIN_THREADS)
            sh.pairs[i] = load_i32(p.route.pairs + i);
    } else {
        n_items = p.route.top_k;
        moe_rank(p.route.logits, p.route.n_experts, n_items, p.route.renorm, sh.logits,
                 sh.pairs + n_items, sh.shares, false);
        for (int i = tid; i < n_items; i += LIN_THREADS) {
            sh.items[3 * i] = sh.pairs[n_items + i];
            sh.items[3 * i + 1] = i;
            sh.items[3 * i + 2] = 1;
            sh.pairs[i] = i;
        }
    }
    block_sync();

    const int nb = (p.n + RW / 2 - 1) / (RW / 2); /* blocks of an expert */
    const int b0 = (int)((int64_t)block_x() * nb * n_items / grid_x());
    const int b1 = (int)((int64_t)(block_x() + 1) * nb * n_items / grid_x());
    LinStream<L, RW, D> s;
    s.init(p.w, k);
    int blk = b0 + tid / 32;
    if (blk < b1)
        s.begin(moe_at<RW>(p, sh.items[3 * (blk / nb)], blk % nb));
    lin_pack<L::KIND, BATCH>(
        p.in, k, tokens, ahead, [&](int r) { return p.in.x + (int64_t)r * p.in.ld; },
        [](int, int) { return 1.0F; }, sm, sh.ssq);
    block_sync();
    if (p.in.eps > 0 && tid < tokens)
        sh.inv[tid] = lin_inv_rms(sh.ssq + tid * LIN_WARPS, k, p.in.eps);
    block_sync();

    NO_UNROLL for (; blk < b1; blk += LIN_WARPS)
    {
        const bool more = blk + LIN_WARPS < b1;
        const int32_t *it = sh.items + 3 * (blk / nb);
        const MoeItem item = {it[0], it[1], it[2]};
        if (more)
            s.next = moe_at<RW>(p, sh.items[3 * ((blk + LIN_WARPS) / nb)], (blk + LIN_WARPS) % nb);
        if (!MANY || item.count == 1)
            moe_up_block<1>(p, s, more, item, blk % nb, sm, chunks, sh);
        else if (item.count == 2)
            moe_up_block<2>(p, s, more, item, blk % nb, sm, chunks, sh);
        else if (item.count <= 4)
            moe_up_block<4>(p, s, more, item, blk % nb, sm, chunks, sh);
        else
            moe_up_block<8>(p, s, more, item, blk % nb, sm, chunks, sh);
        s.at = s.next;
    }
}

/* ---- down ---- */

struct MoeDownShared {
    uint32_t code16[MOE_PAIRS_MAX]; /* of the expert of a pair */
    uint32_t scale[MOE_PAIRS_MAX];
    float shares[MOE_PAIRS_MAX];
    int32_t ids[MOE_PAIRS_MAX];
    float logits[MOE_EXPERTS_MAX];
    uint32_t unit[1]; /* [units]: j << 24 | unit of the expert's row */
};
static_assert(sizeof(MoeDownShared) == MOE_DOWN_SHARED(1), "the host reckons with it");

/* D stages of one column of one token. */
template <class L, int D> struct MoeLong {
    typename L::Reg w[D];
    LinGeom g;
    int units, stages;
    DEVICE void load(const MoeParams &p, const MoeDownShared &sh, int d, int stage, int token,
                     int col)
    {
        int u = stage * 32 + thread_id() % 32;
        u = u < units ? u : units - 1;
        const uint32_t at = sh.unit[u];
        const int pair = token * p.route.top_k + (int)(at >> 24);
        const uint32_t row = (uint32_t)(p.w.row0 + col);
        L::load(w[d], g, sh.code16[pair] + row * p.w.code_stride16,
                sh.scale[pair] + row * p.w.scale_stride, (int)(at & 0xffffffu));
    }
};

template <class L, int D, int BATCH, int K, int TOP>
DEVICE void moe_down(const MoeParams &p, uint8_t *sm)
{
    const int ffn = K > 0 ? K : p.w.k;
    const int tid = thread_id();
    const int lane = tid % 32;
    const int top_k = TOP > 0 ? TOP : p.route.top_k;
    const int tokens = TOP > 0 ? 1 : p.route.n_tokens; /* TOP: one token */
    const int k = top_k * ffn;
    const int chunks = LIN_X_CHUNKS(k);
    const int x_bytes = LIN_X_BYTES_OF(chunks);
    MoeDownShared &sh = *(MoeDownShared *)(sm + tokens * x_bytes);
    const int per_expert = ffn / L::K;
    MoeLong<L, D> s;
    s.g = lin_geom(p.w);
    s.units = top_k * per_expert;
    s.stages = (s.units + 31) / 32;
    const int nb = p.n * tokens;
    const int b0 = (int)((int64_t)block_x() * nb / grid_x());
    const int b1 = (int)((int64_t)(block_x() + 1) * nb / grid_x());
    griddep_launch();
    if (b0 == b1)
        return;

    for (int u = tid; u < s.units; u += LIN_THREADS)
        sh.unit[u] = (uint32_t)(u / per_expert) << 24 | (uint32_t)(u % per_expert);
    if (tokens == 1) {
        moe_rank(p.route.logits, p.route.n_experts, top_k, p.route.renorm, sh.logits, sh.ids,
                 sh.shares);
    } else {
        for (int i = tid; i < tokens * top_k; i += LIN_THREADS) {
            sh.ids[i] = load_i32(p.route.ids + i);
            sh.shares[i] = load_f32(p.route.shares + i);
        }
    }
    for (int i = tid; i < tokens * top_k; i += LIN_THREADS) {
        const uint32_t e = sh.ids[i] < 0 ? 0u : (uint32_t)sh.ids[i];
        sh.code16[i] = e * p.w.expert16;
        sh.scale[i] = e * p.w.expert_scale;
    }
    block_sync();
    int blk = b0 + tid / 32;
    if (blk < b1) {
        UNROLL for (int d = 0; d < D; d++)
        {
            if (d < s.stages)
                s.load(p, sh, d, d, blk % tokens, blk / tokens);
        }
    }
    griddep_wait();
    const LinNormAhead<1> none = {};
    lin_pack<L::KIND, BATCH>(
        p.in, k, tokens, none, [&](int r) { return p.in.x + (int64_t)r * k; },
        [&](int r, int c) {
            const int j = c * 32 / ffn;
            return j < top_k ? sh.shares[r * top_k + j] : 0.0F;
        },
        sm, nullptr);
    block_sync();

    NO_UNROLL for (; blk < b1; blk += LIN_WARPS)
    {
        const int token = blk % tokens;
        const int col = blk / tokens;
        const int next = blk + LIN_WARPS;
        const bool writes = lane == 0 && sh.ids[token * top_k] >= 0;
        float add = 0;
        if (writes && p.addend)
            add = load_f32(p.addend + ((int64_t)token * p.ld_addend + col));
        if (p.bias) {
            for (int j = lane; j < top_k; j += 32) {
                const int pair = token * top_k + j;
                if (sh.ids[pair] >= 0)
                    add =
                        fmaf(sh.shares[pair], p.bias[(int64_t)sh.ids[pair] * p.bias_ld + col], add);
            }
        }
        float acc = 0;
        const uint8_t *row = sm + token * x_bytes;
        NO_UNROLL for (int j = 0; j < s.stages; j += D)
        {
            UNROLL for (int d = 0; d < D; d++)
            {
                const int stage = j + d;
                if (stage < s.stages) {
                    typename L::X x;
                    x.load(row, chunks, stage * 32 + lane);
                    L::mul(s.w[d], x, acc);
                    if (stage + D < s.stages)
                        s.load(p, sh, d, stage + D, token, col);
                    else if (next < b1)
                        s.load(p, sh, d, d, next % tokens, next / tokens);
                }
            }
        }
        acc += add;
        UNROLL for (int o = 16; o; o >>= 1) acc += shfl_xor(acc, o);
        if (writes)
            p.y[(int64_t)token * p.ld_y + col] = acc;
    }
}

/* moe_up1_<layout>_full, _wide: one token; moe_up8: up to 8; moe_down: up to 8. */
#define MOE_I8_KERNEL(name, ...)                                                                   \
    KERNEL(LIN_THREADS, 1) name(const MoeParams p)                                                 \
    {                                                                                              \
        SHARED_DYNAMIC(sm);                                                                        \
        __VA_ARGS__(p, sm);                                                                        \
    }
#define MOE_I8_SET(layout, L, D, WIDE)                                                             \
    MOE_I8_KERNEL(moe_up1_##layout##_full, moe_up<L, 2, D, false, 2, 0>)                           \
    MOE_I8_KERNEL(moe_up1_##layout##_wide, moe_up<L, 4, WIDE, false, 2, 0>)                        \
    MOE_I8_KERNEL(moe_up8_##layout, moe_up<L, 2, WIDE, true, 2, 0>)                                \
    MOE_I8_KERNEL(moe_down_##layout, moe_down<L, 3, 4, 0, 0>)
/* One token, shapes of many models known: hidden 2048; 8 experts of 768. */
#define MOE_I8_K_SET(layout, L, WIDE)                                                              \
    MOE_I8_KERNEL(moe_up1_##layout##_wide_k2048, moe_up<L, 4, WIDE, false, 2, 2048>)               \
    MOE_I8_KERNEL(moe_down_##layout##_k768x8, moe_down<L, 3, 4, 768, 8>)

#endif
