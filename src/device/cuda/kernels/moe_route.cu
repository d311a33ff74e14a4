/* Routing of several tokens, lists of who goes to which expert, and the sum over experts. */
#include "moe_route.h"

/* Groups pairs by expert: items of at most p.group pairs. The order of an expert's pairs is
 * the order of the atomic additions; no result depends on it. */
DEVICE void moe_list(const MoeRoute &p)
{
    SHARED(uint32_t, count, MOE_EXPERTS_MAX);
    SHARED(int32_t, start, MOE_EXPERTS_MAX);
    SHARED(int32_t, item, MOE_EXPERTS_MAX);
    const int tid = thread_id();
    const int n = p.n_experts;
    const int n_pairs = p.n_tokens * p.top_k;
    for (int e = tid; e < n; e += LIN_THREADS)
        count[e] = 0;
    block_sync();
    for (int i = tid; i < n_pairs; i += LIN_THREADS) {
        const int e = load_i32(p.ids + i);
        if (e >= 0)
            atomic_add(count + e, 1);
    }
    block_sync();
    if (tid < 32) { /* a lane sums a run of experts */
        const int per = (n + 31) / 32;
        int pairs = 0;
        int items = 0;
        for (int e = tid * per; e < (tid + 1) * per && e < n; e++) {
            pairs += (int)count[e];
            items += ((int)count[e] + p.group - 1) / p.group;
        }
        int pairs_to = pairs;
        int items_to = items;
        UNROLL for (int o = 1; o < 32; o *= 2)
        {
            const int a = shfl_up(pairs_to, o);
            const int b = shfl_up(items_to, o);
            if (tid >= o) {
                pairs_to += a;
                items_to += b;
            }
        }
        if (tid == 31)
            p.items[0] = items_to;
        pairs_to -= pairs;
        items_to -= items;
        for (int e = tid * per; e < (tid + 1) * per && e < n; e++) {
            start[e] = pairs_to;
            item[e] = items_to;
            pairs_to += (int)count[e];
            items_to += ((int)count[e] + p.group - 1) / p.group;
        }
    }
    block_sync();
    for (int e = tid; e < n; e += LIN_THREADS) {
        int left = (int)count[e];
        for (int i = 0; left > 0; i++, left -= p.group) {
            int32_t *to = p.items + 1 + 3 * (item[e] + i);
            to[0] = e;
            to[1] = start[e] + i * p.group;
            to[2] = left < p.group ? left : p.group;
        }
        count[e] = 0;
    }
    block_sync();
    for (int i = tid; i < n_pairs; i += LIN_THREADS) {
        const int e = load_i32(p.ids + i);
        if (e >= 0)
            p.pairs[start[e] + (int)atomic_add(count + e, 1)] = i;
    }
}

/* A CTA a token, or (with_list) one CTA for all of them. */
KERNEL(LIN_THREADS, 1) moe_route(const MoeRoute p)
{
    SHARED(f32x4, lg4, MOE_EXPERTS_MAX / 4); /* read four at a time */
    float *lg = (float *)lg4;
    SHARED(int32_t, ids, MOE_TOP_MAX);
    SHARED(float, shares, MOE_TOP_MAX);
    griddep_launch();
    griddep_wait();
    const int n_rows = load_i32(p.step + GPU_STEP_N_ROWS);
    for (int t = block_x(); t < p.n_tokens; t += grid_x()) {
        moe_rank(p.logits + (int64_t)t * p.ld_logits, p.n_experts, p.top_k, p.renorm, lg, ids,
                 shares);
        for (int j = thread_id(); j < p.top_k; j += LIN_THREADS) {
            p.ids[t * p.top_k + j] = t < n_rows ? ids[j] : -1;
            p.shares[t * p.top_k + j] = shares[j];
        }
        block_sync();
    }
    if (p.with_list)
        moe_list(p);
}

KERNEL(LIN_THREADS, 1) moe_lists(const MoeRoute p)
{
    griddep_launch();
    griddep_wait();
    moe_list(p);
}

/* y[t] = sum over j of shares[t][j] * parts[t, j] + addend[t]; grid y: tokens. */
KERNEL(256, 1) moe_combine(const MoeCombineParams p)
{
    griddep_launch();
    griddep_wait();
    const int t = block_y();
    if (load_i32(p.ids + t * p.top_k) < 0)
        return;
    for (int c = block_x() * 256 + thread_id(); c < p.n; c += grid_x() * 256) {
        float sum = 0;
        for (int j = 0; j < p.top_k; j++) {
            const int pair = t * p.top_k + j;
            sum = fmaf(load_f32(p.shares + pair), load_f32(p.parts + (int64_t)pair * p.ld_parts + c),
                       sum);
        }
        if (p.addend)
            sum += load_f32(p.addend + (int64_t)t * p.ld_addend + c);
        p.y[(int64_t)t * p.ld_y + c] = sum;
    }
}
