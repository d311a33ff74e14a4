/* moe_route.h: which experts a token goes to, as route_softmax of device/cpu/ops_ref.c: the top_k
 * largest logits (of equals the lower expert, NaN last), shares by softmax over all experts, or over
 * the chosen ones. */
#ifndef MERE_MOE_ROUTE_H
#define MERE_MOE_ROUTE_H

#include "gpu_compat.h"
#include "gpu_words.h"
#include "lin_params.h"

DEVICE float moe_lowest()
{
    return f32_of_bits(0xff800000u);
}

/* All LIN_THREADS threads of a CTA. A logit's rank is the number of those before it, counted by as
 * many threads as there are for each logit. lg [n_experts]; ids, shares [top_k], best first: all in
 * shared memory, and valid for all threads afterwards. */
DEVICE void moe_rank(const float *logits, int n, int k, bool renorm, float *lg, int32_t *ids,
                     float *shares)
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
        int rank = 0;
        for (int j = tid % per; j < n; j += per)
            rank += lg[j] > v || (lg[j] == v && j < e);
        for (int o = 1; o < per; o *= 2)
            rank += shfl_xor(rank, o);
        if (tid % per == 0 && e < n && rank < k) {
            ids[rank] = e;
            shares[rank] = v;
        }
    }
    block_sync();
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
