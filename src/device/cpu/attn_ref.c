/* The definition of attention: one query and head at a time, everything but the inputs and the
 * result in double. */
#include "device/cpu/kernels_sets.h"

#include "base/num.h"

#include <math.h>

static double kv_load(const uint8_t *base, KvType type, int64_t at)
{
    uint16_t h;
    float f;
    if (type == KV_F16) {
        memcpy(&h, base + at * 2, sizeof h);
        f = num_from_f16(h);
    } else {
        memcpy(&f, base + at * 4, sizeof f);
    }
    return (double)f;
}

/* One query vector at position `pos` over keys [from, to): sum, then the running softmax in acc
 * [v_dim]. bias: the head's row of a->bias. */
static void attend(const KvLayer *kv, const AttnArgs *a, const int32_t *pages, int h, int pos,
                   int from, int to, const float *q, float sink, const float *bias, double *acc,
                   float *out)
{
    double max = -HUGE_VAL;
    double sum = 0.0;
    for (int d = 0; d < kv->v_dim; d++)
        acc[d] = 0.0;
    for (int j = from; j < to; j++) {
        const int64_t slot =
            (int64_t)pages[j / kv->page_tokens] * kv->page_tokens + j % kv->page_tokens;
        double s = 0.0;
        for (int d = 0; d < kv->head_dim; d++)
            s += (double)q[d] * kv_load(kv->k, kv->type, kernels_k_index(kv, slot, h, d));
        s *= (double)a->scale;
        if (bias)
            s += (double)bias[a->span + i64_max(-a->span, i64_min(a->span, j - pos))];
        if (a->softcap > 0.0F)
            s = (double)a->softcap * tanh(s / (double)a->softcap);
        const double shift = s > max ? exp(max - s) : 1.0; /* of what was summed so far */
        max = s > max ? s : max;
        const double p = exp(s - max);
        sum = sum * shift + p;
        for (int d = 0; d < kv->v_dim; d++)
            acc[d] =
                acc[d] * shift + p * kv_load(kv->v, kv->type, kernels_v_index(kv, slot, h) + d);
    }
    const double top = (double)sink > max ? (double)sink : max;
    const double shift = exp(max - top);
    sum = sum * shift + exp((double)sink - top); /* no sink: -inf adds 0 */
    for (int d = 0; d < kv->v_dim; d++)
        out[d] = (float)(acc[d] * shift / sum);
}

static void attn(const KvLayer *kv, const AttnArgs *a, const AttnSeg *seg, int kv_head, int q0,
                 int q1, const float *q, int64_t ldq, float *out, int64_t ldo, uint8_t *work)
{
    const int share = a->n_heads / kv->n_kv_heads;
    double *acc = (double *)(void *)work;
    for (int r = q0; r < q1; r++) {
        const int pos = seg->kv_len - seg->n_rows + r;
        const int from = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
        const int64_t row = seg->row0 + r;
        for (int h = kv_head * share; h < (kv_head + 1) * share; h++) {
            attend(kv, a, seg->pages, kv_head, pos, from, a->full ? seg->kv_len : pos + 1,
                   q + row * ldq + (int64_t)h * kv->head_dim, a->sinks ? a->sinks[h] : -INFINITY,
                   a->bias ? a->bias + (int64_t)h * (2 * (int64_t)a->span + 1) : NULL, acc,
                   out + row * ldo + (int64_t)h * kv->v_dim);
        }
    }
}

void attn_ref_set(CpuKernels *k)
{
    k->attn = attn;
}
