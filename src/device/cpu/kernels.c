#include "device/cpu/kernels.h"

#include "device/cpu/kernels_sets.h"
#include "device/cpu/lin.h"

void kernels_init(CpuKernels *k, unsigned isa)
{
    ops_ref_set(k);
    attn_ref_set(k);
    delta_ref_set(k);
    if (isa & CPU_AVX2) {
        ops_avx2_set(k);
        attn_avx2_set(k);
        delta_avx2_set(k);
    }
    if (isa & CPU_AVX512) {
        ops_avx512_set(k);
        attn_avx512_set(k);
        delta_avx512_set(k);
    }
}

/* Sum of what attn_simd.h takes: query rows, accumulators, maxima and sums, then one block of keys
 * and values in f32. The reference needs v_dim doubles, which is less. */
int64_t attn_work_bytes(const KvLayer *kv, const AttnArgs *a, int q_rows)
{
    const int64_t rows = (int64_t)q_rows * (a->n_heads / kv->n_kv_heads);
    const int64_t v_pad = i64_round_up(kv->v_dim, 16);
    const int64_t floats = i64_round_up(rows * kv->head_dim, 16) + rows * v_pad +
                           i64_round_up(rows, 16) + 16 * rows + ATTN_BLOCK * (kv->head_dim + v_pad);
    return floats * (int64_t)sizeof(float);
}

/* delta_simd.h: normalised q and k of a batch of rows and one stripe of the state; the reference
 * takes q, k and one row of differences in double, which is less but for a v_dim far above k_dim.
 */
int64_t delta_work_bytes(const DeltaArgs *d)
{
    const int64_t k_pad = i64_round_up(d->k_dim, 16);
    const int64_t fast = (2 * DELTA_BATCH + DELTA_STRIPE) * k_pad * (int64_t)sizeof(float);
    const int64_t ref = (2 * d->k_dim + d->v_dim) * (int64_t)sizeof(double);
    return i64_max(fast, ref);
}
