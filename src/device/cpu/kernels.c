#include "device/cpu/kernels.h"

#include "device/cpu/kernels_sets.h"
#include "device/cpu/lin.h"

void kernels_init(CpuKernels *k, unsigned isa)
{
    ops_ref_set(k);
    attn_ref_set(k);
    delta_ref_set(k);
    (void)isa;
}

/* Sum of what attn_simd.h takes: query rows, accumulators, maxima and sums, then one block of keys
 * and values in f32. The reference needs v_dim doubles, which is less. */
int64_t attn_work_bytes(const KvLayer *kv, const AttnArgs *a, int q_rows)
{
    const int64_t rows = (int64_t)q_rows * (a->n_heads / kv->n_kv_heads);
    const int64_t v_pad = i64_round_up(kv->v_dim, 16);
    const int64_t floats = i64_round_up(rows * kv->head_dim, 16) + rows * v_pad +
                           2 * i64_round_up(rows, 16) + 64 * (kv->head_dim + v_pad);
    return floats * (int64_t)sizeof(float);
}

/* delta_simd.h: normalised q and k of a batch of rows, and a panel of the state; the reference
 * keeps q, k and one row of differences in doubles. */
int64_t delta_work_bytes(const DeltaArgs *d)
{
    const int64_t k_pad = i64_round_up(d->k_dim, 16);
    const int64_t v_pad = i64_round_up(d->v_dim, 16);
    return (2 * DELTA_BATCH * k_pad + DELTA_PANEL * k_pad + v_pad + 2 * k_pad) *
           (int64_t)sizeof(double);
}
