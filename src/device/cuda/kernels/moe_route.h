/* moe_route.h: which experts a token goes to, as route_softmax of device/cpu/ops_ref.c: the top_k
 * largest logits (of equals the lower expert, NaN last), shares by softmax over all experts, or
 * over the chosen ones. */
#ifndef MERE_MOE_ROUTE_H
#define MERE_MOE_ROUTE_H

#include "gpu_compat.h"
#include "gpu_words.h"
#include "lin_params.h"

DEVICE float moe_lowest()
{
    return f32_of_bits(0xff800000u);
}

/* How many of the logits that thread `part` of `per` looks at come before v of expert e: four at a
 * read, of which eight are under way at once. */
DEVICE int moe_count_before(const float *lg, int n, float v, int e, int part, int per)
{
    int rank = 0;
    int j = part * 4;
    for (; j + 28 * per + 4 <= n; j += 32 * per) {
        f32x4 x[8];
        UNROLL for (int i = 0; i < 8; i++) x[i] = *(const f32x4 *)(lg + j + i * 4 * per);
        UNROLL for (int i = 0; i < 8; i++)
        {
            const int at = j + i * 4 * per;
            rank += x[i].x > v || (x[i].x == v && at < e);
            rank += x[i].y > v || (x[i].y == v && at + 1 < e);
            rank += x[i].z > v || (x[i].z == v && at + 2 < e);
            rank += x[i].w > v || (x[i].w == v && at + 3 < e);
        }
    }
    for (; j < n; j += 4 * per)
        for (int i = j; i < n && i < j + 4; i++)
            rank += lg[i] > v || (lg[i] == v && i < e);
    return rank;
}

/* All LIN_THREADS threads of a CTA. A logit's rank is the number of those before it, counted by as
 * many threads as there are for each logit. lg [n_experts], 16-byte aligned; ids, shares [top_k],
 * best first: all in shared memory, and valid for all threads afterwards. */
DEVICE void moe_rank(const float *logits, int n, int k, bool renorm, float *lg, int32_t *ids,
                     float *shares, bool want_shares = true)
{
    const int tid = thread_id();
    for (int i = tid; i < n; i += LIN_THREADS) {
        const float v = load_f32(logits + i);
        lg[i] = v == v ? v : moe_lowest();
    }
    block_sync();
    int per = 1;
    while (per < 32 && n * per * 2 <= LIN_THREADS)
        per *= 2;
    for (int e0 = 0; e0 < n; e0 += LIN_THREADS / per) {
        const int e = e0 + tid / per;
        const float v = e < n ? lg[e] : moe_lowest();
        int rank = moe_count_before(lg, n, v, e, tid % per, per);
        for (int o = 1; o < per; o *= 2)
            rank += shfl_xor(rank, o);
        if (tid % per == 0 && e < n && rank < k) {
            ids[rank] = e;
            shares[rank] = v;
        }
    }
    block_sync();
    if (!want_shares)
        return;
    if (tid < 32) {
        const float max = shares[0];
        float sum = 0;
        if (renorm) {
            for (int j = tid; j < k; j += 32)
                sum += expf(shares[j] - max);
        } else {
            for (int i = tid; i < n; i += 32)
                sum += expf(load_f32(logits + i) - max);
        }
        UNROLL for (int o = 16; o; o >>= 1) sum += shfl_xor(sum, o);
        for (int j = tid; j < k; j += 32)
            shares[j] = expf(shares[j] - max) / sum;
    }
    block_sync();
}

#endif
