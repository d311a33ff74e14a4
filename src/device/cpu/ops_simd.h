/* ops_simd.h: the elementwise and reducing operations over the vectors of simd_*.h, the body of
 * ops_<isa>.c. What only moves, or multiplies and adds as the reference does (add, rope, kv_write),
 * is bit-equal to it. Tails go through the same arithmetic in a part of a vector, so an element's
 * place does not show in its bits. */
#ifndef MERE_DEVICE_CPU_OPS_SIMD_H
#define MERE_DEVICE_CPU_OPS_SIMD_H

#include "device/cpu/kernels_sets.h"
#include "device/cpu/simd_math.h"

#include <math.h>
#include <string.h>

/* Sum of squares: 4 x V_WIDTH chains of about n / (4 V_WIDTH) additions. */
static ALWAYS_INLINE float square_sum(const float *x, int n)
{
    vf s[4] = {v_set(0.0F), v_set(0.0F), v_set(0.0F), v_set(0.0F)};
    int i = 0;
    for (; i + 4 * V_WIDTH <= n; i += 4 * V_WIDTH) {
        for (int j = 0; j < 4; j++) {
            const vf v = v_load(x + i + j * V_WIDTH);
            s[j] = v_fma(v, v, s[j]);
        }
    }
    for (int j = 0; i < n; i += V_WIDTH, j++) {
        const vf v = v_load_n(x + i, (int)i64_min(V_WIDTH, n - i));
        s[j] = v_fma(v, v, s[j]);
    }
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

/* y = x * rms * w (* silu(z)) over one group; w and z may be NULL. */
static ALWAYS_INLINE void norm_group(const float *x, const float *w, const float *z, float eps,
                                     int n, float *y)
{
    const float mean = square_sum(x, n) / (float)n;
    const vf by = v_set(1.0F / sqrtf(mean + eps));
    for (int i = 0; i < n; i += V_WIDTH) {
        const int part = n - i;
        const bool whole = part >= V_WIDTH;
        vf v = v_mul(whole ? v_load(x + i) : v_load_n(x + i, part), by);
        if (w)
            v = v_mul(v, whole ? v_load(w + i) : v_load_n(w + i, part));
        if (z)
            v = v_mul(v, v_silu(whole ? v_load(z + i) : v_load_n(z + i, part)));
        if (whole)
            v_store(y + i, v);
        else
            v_store_n(y + i, v, part);
    }
}

static void rms_norm(const float *x, int64_t ldx, const float *w, float eps, int width, int group,
                     int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int g = 0; g < width; g += group)
            norm_group(x + r * ldx + g, w, NULL, eps, group, y + r * ldy + g);
    }
}

static void rms_norm_gated(const float *x, int64_t ldx, const float *z, int64_t ldz, const float *w,
                           float eps, int width, int group, int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int g = 0; g < width; g += group)
            norm_group(x + r * ldx + g, w, z + r * ldz + g, eps, group, y + r * ldy + g);
    }
}

static void silu_mul(const float *gate, int64_t ldg, const float *up, int64_t ldu, int width,
                     int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        const float *g = gate + r * ldg;
        const float *u = up + r * ldu;
        float *o = y + r * ldy;
        int i = 0;
        for (; i + V_WIDTH <= width; i += V_WIDTH)
            v_store(o + i, v_mul(v_silu(v_load(g + i)), v_load(u + i)));
        if (i < width) {
            const int n = width - i;
            v_store_n(o + i, v_mul(v_silu(v_load_n(g + i, n)), v_load_n(u + i, n)), n);
        }
    }
}

static void sigmoid_mul(const float *x, int64_t ldx, const float *g, int64_t ldg, bool per_row,
                        int width, int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        const float *gate = g + r * ldg;
        const vf row_by = v_sigmoid(v_set(gate[0]));
        for (int i = 0; i < width; i += V_WIDTH) {
            const int n = (int)i64_min(V_WIDTH, width - i);
            const vf by = per_row ? row_by : v_sigmoid(v_load_n(gate + i, n));
            v_store_n(y + r * ldy + i, v_mul(v_load_n(x + r * ldx + i, n), by), n);
        }
    }
}

static void add(const float *a, int64_t lda, const float *b, int64_t ldb, int width, int rows,
                float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < width; i += V_WIDTH) {
            const int n = (int)i64_min(V_WIDTH, width - i);
            v_store_n(y + r * ldy + i,
                      v_add(v_load_n(a + r * lda + i, n), v_load_n(b + r * ldb + i, n)), n);
        }
    }
}

/* Rotates (lo[i], hi[i]), i < half. */
static ALWAYS_INLINE void rope_halves(float *lo, float *hi, const float *c, const float *s,
                                      int half)
{
    for (int i = 0; i < half; i += V_WIDTH) {
        const int n = (int)i64_min(V_WIDTH, half - i);
        const vf a = v_load_n(lo + i, n);
        const vf b = v_load_n(hi + i, n);
        const vf cv = v_load_n(c + i, n);
        const vf sv = v_load_n(s + i, n);
        v_store_n(lo + i, v_sub(v_mul(a, cv), v_mul(b, sv)), n);
        v_store_n(hi + i, v_add(v_mul(b, cv), v_mul(a, sv)), n);
    }
}

static void rope(float *x, int64_t ldx, int n_heads, const RopeArgs *rope, const float *cs,
                 int rows)
{
    const int half = rope->rot_dim / 2;
    for (int r = 0; r < rows; r++) {
        const float *c = cs + (int64_t)r * rope->rot_dim;
        const float *s = c + half;
        for (int h = 0; h < n_heads; h++) {
            float *v = x + r * ldx + (int64_t)h * rope->head_dim;
            if (!rope->pairs) {
                rope_halves(v, v + half, c, s, half);
                continue;
            }
            for (int i = 0; i < half; i++) {
                const float a = v[2 * i];
                const float b = v[2 * i + 1];
                v[2 * i] = a * c[i] - b * s[i];
                v[2 * i + 1] = b * c[i] + a * s[i];
            }
        }
    }
}

/* n f32 to f16. */
static ALWAYS_INLINE void narrow(const float *x, int n, uint16_t *to)
{
    int i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH)
        v_store_f16(to + i, v_load(x + i));
    if (i < n) {
        uint16_t part[V_WIDTH];
        v_store_f16(part, v_load_n(x + i, n - i));
        memcpy(to + i, part, (size_t)(n - i) * sizeof *part);
    }
}

/* Keys go through a buffer of 64 dims, then to their places, one f16 or f32 a dim. */
static void key_write(const KvLayer *kv, const float *k, int64_t slot, int h)
{
    enum { PART = 64 };
    uint16_t part[PART];
    const int64_t tile = i64_min(KV_TILE, kv->page_tokens);
    const int64_t at = kernels_k_index(kv, slot, h, 0);
    if (kv->type == KV_F32) {
        for (int d = 0; d < kv->head_dim; d++)
            memcpy(kv->k + (at + d * tile) * 4, k + d, sizeof *k);
        return;
    }
    for (int d0 = 0; d0 < kv->head_dim; d0 += PART) {
        const int n = (int)i64_min(PART, kv->head_dim - d0);
        uint8_t *to = kv->k + (at + d0 * tile) * 2;
        narrow(k + d0, n, part);
        for (int d = 0; d < n; d++)
            memcpy(to + d * tile * 2, part + d, sizeof *part);
    }
}

static void kv_write(const KvLayer *kv, const float *k, int64_t ldk, const float *v, int64_t ldv,
                     const int32_t *slots, int rows)
{
    for (int r = 0; r < rows; r++) {
        if (slots[r] < 0)
            continue;
        for (int h = 0; h < kv->n_kv_heads; h++) {
            const float *from = v + r * ldv + (int64_t)h * kv->v_dim;
            const int64_t at = kernels_v_index(kv, slots[r], h);
            key_write(kv, k + r * ldk + (int64_t)h * kv->head_dim, slots[r], h);
            if (kv->type == KV_F16)
                narrow(from, kv->v_dim, (uint16_t *)(void *)(kv->v + at * 2));
            else
                memcpy(kv->v + at * 4, from, (size_t)kv->v_dim * sizeof *from);
        }
    }
}

/* Sum of e^(x - max): chains of at most 64 vectors in f32, then double. */
static double exp_sum(const float *x, int n, float max)
{
    enum { CHAIN = 64 * V_WIDTH };
    const vf m = v_set(max);
    double sum = 0.0;
    for (int c = 0; c < n; c += CHAIN) {
        const int end = (int)i64_min(n, (int64_t)c + CHAIN);
        vf s = v_set(0.0F);
        int i = c;
        for (; i + V_WIDTH <= end; i += V_WIDTH)
            s = v_add(s, v_exp(v_sub(v_load(x + i), m)));
        if (i < end)
            s = v_add(s,
                      v_keep(v_exp(v_sub(v_load_n(x + i, end - i), m)), 0, end - i, v_set(0.0F)));
        sum += (double)v_sum(s);
    }
    return sum;
}

static double log_sum_exp(const float *x, int n, float max)
{
    return log(exp_sum(x, n, max)) + (double)max;
}

static void route_softmax(const float *logits, int64_t ld, int n, int k, bool renorm, int rows,
                          int32_t *ids, float *weights)
{
    for (int r = 0; r < rows; r++) {
        const float *x = logits + r * ld;
        int32_t *id = ids + (int64_t)r * k;
        float *top = weights + (int64_t)r * k;
        int have = 0;
        for (int i = 0; i < n; i++) { /* insertion into the sorted best k */
            const float v = x[i] == x[i] ? x[i] : -INFINITY;
            if (have == k && !(v > top[k - 1]))
                continue;
            int at = have < k ? have++ : k - 1;
            for (; at > 0 && v > top[at - 1]; at--) {
                top[at] = top[at - 1];
                id[at] = id[at - 1];
            }
            top[at] = v;
            id[at] = i;
        }
        const float max = top[0];
        const double sum = renorm ? exp_sum(top, k, max) : exp_sum(x, n, max);
        const vf by = v_set((float)(1.0 / sum));
        for (int i = 0; i < k; i += V_WIDTH) {
            const int part = (int)i64_min(V_WIDTH, k - i);
            v_store_n(top + i, v_mul(v_exp(v_sub(v_load_n(top + i, part), v_set(max))), by), part);
        }
    }
}

/* V_WIDTH channels from c, of which n count; width and n are constants of the caller where speed
 * matters. */
static ALWAYS_INLINE void conv_channels(const float *x, int64_t ldx, const float *w, int width,
                                        const float *state_in, float *state_out, int c, int n,
                                        int n_rows, float *y, int64_t ldy)
{
    const int past = width - 1;
    float lanes[8][V_WIDTH] = {{0}};
    vf tap[8];
    vf window[8]; /* the last `past` inputs, then this row's */
    for (int t = 0; t < width; t++) {
        for (int i = 0; i < n; i++)
            lanes[t][i] = w[(int64_t)(c + i) * width + t];
        tap[t] = v_load(lanes[t]);
    }
    for (int t = 0; t < past; t++) {
        for (int i = 0; i < n; i++)
            lanes[t][i] = state_in ? state_in[(int64_t)(c + i) * past + t] : 0.0F;
        window[t] = v_load(lanes[t]);
    }
    for (int r = 0; r < n_rows; r++) {
        window[past] = v_load_n(x + r * ldx + c, n);
        vf sum = v_mul(tap[0], window[0]);
        for (int t = 1; t < width; t++)
            sum = v_fma(tap[t], window[t], sum);
        v_store_n(y + r * ldy + c, v_silu(sum), n);
        for (int t = 0; t < past; t++)
            window[t] = window[t + 1];
    }
    for (int t = 0; t < past; t++) {
        v_store(lanes[t], window[t]);
        for (int i = 0; i < n; i++)
            state_out[(int64_t)(c + i) * past + t] = lanes[t][i];
    }
}

static void conv_silu(const float *x, int64_t ldx, const float *w, int width, const float *state_in,
                      float *state_out, int c0, int c1, int n_rows, float *y, int64_t ldy)
{
    for (int c = c0; c < c1; c += V_WIDTH) {
        const int n = (int)i64_min(V_WIDTH, c1 - c);
        if (width == 4) /* of every published model so far */
            conv_channels(x, ldx, w, 4, state_in, state_out, c, n, n_rows, y, ldy);
        else
            conv_channels(x, ldx, w, width, state_in, state_out, c, n, n_rows, y, ldy);
    }
}

static void combine(const float *x, int64_t ldx, const int32_t *place, const float *weights, int k,
                    const float *add_rows, int64_t lda, int width, int rows, float *out,
                    int64_t ldo)
{
    for (int r = 0; r < rows; r++) {
        const int32_t *at = place + (int64_t)r * k;
        const float *by = weights + (int64_t)r * k;
        for (int i = 0; i < width; i += V_WIDTH) {
            const int n = (int)i64_min(V_WIDTH, width - i);
            vf sum = v_set(0.0F);
            for (int j = 0; j < k; j++)
                sum = v_fma(v_set(by[j]), v_load_n(x + at[j] * ldx + i, n), sum);
            if (add_rows)
                sum = v_add(sum, v_load_n(add_rows + r * lda + i, n));
            v_store_n(out + r * ldo + i, sum, n);
        }
    }
}

/* The maximum block by block, then its first place in the block that raised it. */
static int32_t argmax(const float *x, int n, float *max)
{
    enum { STRETCH = 1024 };
    float best = -INFINITY;
    int from = -1;
    for (int c = 0; c < n; c += STRETCH) {
        const int end = (int)i64_min(n, (int64_t)c + STRETCH);
        vf m = v_set(-INFINITY);
        int i = c;
        for (; i + V_WIDTH <= end; i += V_WIDTH)
            m = v_max(v_load(x + i), m); /* m where x is NaN */
        float top = v_top(m);
        for (; i < end; i++)
            top = x[i] > top ? x[i] : top;
        if (top > best || from < 0) {
            best = top;
            from = c;
        }
    }
    *max = best;
    for (int i = from; i < n; i++) {
        if (x[i] == best)
            return i;
    }
    return 0;
}

static void ops_set(CpuKernels *k)
{
    k->rms_norm = rms_norm;
    k->silu_mul = silu_mul;
    k->sigmoid_mul = sigmoid_mul;
    k->add = add;
    k->rope = rope;
    k->kv_write = kv_write;
    k->route_softmax = route_softmax;
    k->conv_silu = conv_silu;
    k->rms_norm_gated = rms_norm_gated;
    k->combine = combine;
    k->argmax = argmax;
    k->log_sum_exp = log_sum_exp;
}

#endif
