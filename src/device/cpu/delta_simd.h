/* delta_simd.h: the gated delta rule over the vectors of simd_*.h, the body of delta_<isa>.c.
 *
 * Rows stay in sequence. With s the state before a row, e = exp(g) and u = beta (v - e s^T k), the
 * row gives y = e s^T q + (q . k) u and leaves e s + k u^T. So one walk over the state serves two
 * rows: it applies what the row before left open and sums s^T k and s^T q of this one. The state
 * after a row is rounded to f32 whether or not a chunk ends there, so chunks do not show.
 *
 * The state is walked in stripes of columns that fill a register tile (64 with AVX-512). From the
 * second row of a batch on, a stripe lives in scratch [k_dim][stripe] (32 KB at k_dim 128, so L1):
 * in place its rows, 512 bytes apart, would fall on a quarter of the cache's sets. */
#ifndef MERE_DEVICE_CPU_DELTA_SIMD_H
#define MERE_DEVICE_CPU_DELTA_SIMD_H

#include "device/cpu/kernels_sets.h"
#include "device/cpu/simd_math.h"

#include <math.h>
#include <string.h>

enum {
    BATCH = DELTA_BATCH,
    STRIPE = V_MANY * V_WIDTH,
};
_Static_assert((int)STRIPE <= (int)DELTA_STRIPE, "scratch is sized for DELTA_STRIPE columns");

/* Rows of a batch of one head, made ready. */
typedef struct Ready {
    int k_dim;
    int64_t k_pad;
    float *q, *k;       /* [BATCH][k_pad], normalised */
    float *scratch;     /* [k_dim][STRIPE] */
    float decay[BATCH]; /* e */
    float beta[BATCH];
    float qk[BATCH]; /* q . k */
} Ready;

/* Columns of a state: where a stripe is read, and where it is written. */
typedef struct Source {
    const float *s;
    int64_t ld;
} Source;
typedef struct Target {
    float *s;
    int64_t ld;
} Target;

static ALWAYS_INLINE float dot(const float *a, const float *b, int n)
{
    vf sum = v_set(0.0F);
    for (int i = 0; i < n; i += V_WIDTH) {
        const int part = (int)i64_min(V_WIDTH, n - i);
        sum = v_fma(v_load_n(a + i, part), v_load_n(b + i, part), sum);
    }
    return v_sum(sum);
}

static ALWAYS_INLINE void l2_norm(const float *x, int n, float scale, float *out)
{
    const vf by = v_set(scale / sqrtf(dot(x, x, n) + 1e-6F));
    for (int i = 0; i < n; i += V_WIDTH) {
        const int part = (int)i64_min(V_WIDTH, n - i);
        v_store_n(out + i, v_mul(v_load_n(x + i, part), by), part);
    }
}

static ALWAYS_INLINE vf part_load(const float *p, int lanes)
{
    return lanes == V_WIDTH ? v_load(p) : v_load_n(p, lanes);
}

static ALWAYS_INLINE void part_store(float *p, vf v, int lanes)
{
    if (lanes == V_WIDTH)
        v_store(p, v);
    else
        v_store_n(p, v, lanes);
}

/* One element row of n vectors: what row `r` of the batch left open. */
static ALWAYS_INLINE vf advance(vf s, vf decay, vf k, vf u)
{
    return v_fma(k, u, v_mul(s, decay));
}

/* seen = s^T k, out = s^T q for row r, n vectors of columns. With `open`, s is first brought past
 * row r - 1 and stored. */
static ALWAYS_INLINE void scan(const Ready *b, int r, bool open, Source in, Target to, const vf *u,
                               vf *seen, vf *out, int n, int lanes)
{
    const float *q = b->q + r * b->k_pad;
    const float *k = b->k + r * b->k_pad;
    const float *k_before = open ? k - b->k_pad : k;
    const vf decay = v_set(open ? b->decay[r - 1] : 1.0F);
    for (int j = 0; j < n; j++)
        seen[j] = out[j] = v_set(0.0F);
    for (int i = 0; i < b->k_dim; i++) {
        const vf ki = v_set(k[i]);
        const vf qi = v_set(q[i]);
        const vf bi = v_set(k_before[i]);
        for (int j = 0; j < n; j++) {
            vf s = part_load(in.s + i * in.ld + j * V_WIDTH, lanes);
            if (open) {
                s = advance(s, decay, bi, u[j]);
                part_store(to.s + i * to.ld + j * V_WIDTH, s, lanes);
            }
            seen[j] = v_fma(ki, s, seen[j]);
            out[j] = v_fma(qi, s, out[j]);
        }
    }
}

/* n vectors of columns (the last with `lanes` lanes; n is 1 when that is a part) over the batch.
 * v, y: first column of row 0. */
static ALWAYS_INLINE void stripe(const Ready *b, int rows, Source in, Target to, const float *v,
                                 int64_t ldv, float *y, int64_t ldy, int n, int lanes)
{
    const Target own = {b->scratch, STRIPE};
    const Source back = {b->scratch, STRIPE};
    vf u[V_MANY];
    for (int r = 0; r < rows; r++) {
        vf seen[V_MANY];
        vf out[V_MANY];
        const vf decay = v_set(b->decay[r]);
        if (r == 0)
            scan(b, r, false, in, own, u, seen, out, n, lanes);
        else
            scan(b, r, true, r == 1 ? in : back, own, u, seen, out, n, lanes);
        for (int j = 0; j < n; j++) {
            const vf want = part_load(v + r * ldv + j * V_WIDTH, lanes);
            u[j] = v_mul(v_set(b->beta[r]), v_sub(want, v_mul(decay, seen[j])));
            part_store(y + r * ldy + j * V_WIDTH,
                       v_fma(v_set(b->qk[r]), u[j], v_mul(decay, out[j])), lanes);
        }
    }
    const Source from = rows == 1 ? in : back;
    const float *k = b->k + (rows - 1) * b->k_pad;
    const vf decay = v_set(b->decay[rows - 1]);
    for (int i = 0; i < b->k_dim; i++) {
        for (int j = 0; j < n; j++) {
            const vf s = part_load(from.s + i * from.ld + j * V_WIDTH, lanes);
            part_store(to.s + i * to.ld + j * V_WIDTH, advance(s, decay, v_set(k[i]), u[j]), lanes);
        }
    }
}

static void head(const Ready *b, int rows, int v_dim, Source in, Target to, const float *v,
                 int64_t ldv, float *y, int64_t ldy)
{
    int c = 0;
    for (; c + STRIPE <= v_dim; c += STRIPE) {
        stripe(b, rows, (Source){in.s + c, in.ld}, (Target){to.s + c, to.ld}, v + c, ldv, y + c,
               ldy, V_MANY, V_WIDTH);
    }
    for (; c < v_dim; c += V_WIDTH) {
        stripe(b, rows, (Source){in.s + c, in.ld}, (Target){to.s + c, to.ld}, v + c, ldv, y + c,
               ldy, 1, (int)i64_min(V_WIDTH, v_dim - c));
    }
}

static double softplus(double x)
{
    return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static void delta(const DeltaArgs *d, const float *qkv, int64_t ldx, const float *a, int64_t lda,
                  const float *b, int64_t ldb, const float *a_log, const float *dt_bias,
                  const float *state_in, float *state_out, int h0, int h1, int n_rows, float *y,
                  int64_t ldy, uint8_t *work)
{
    const int64_t k_all = (int64_t)d->n_k_heads * d->k_dim;
    const int64_t s_size = (int64_t)d->k_dim * d->v_dim;
    const float q_scale = 1.0F / sqrtf((float)d->k_dim);
    Ready ready = {.k_dim = d->k_dim, .k_pad = i64_round_up(d->k_dim, 16)};
    ready.q = (float *)(void *)work;
    ready.k = ready.q + BATCH * ready.k_pad;
    ready.scratch = ready.k + BATCH * ready.k_pad;
    for (int h = h0; h < h1; h++) {
        const int64_t kh = h / (d->n_v_heads / d->n_k_heads);
        const Target to = {state_out + h * s_size, d->v_dim};
        Source in = {state_in ? state_in + h * s_size : to.s, d->v_dim};
        if (!state_in)
            memset(to.s, 0, (size_t)s_size * sizeof(float));
        for (int r0 = 0; r0 < n_rows; r0 += BATCH) {
            const int rows = (int)i64_min(BATCH, n_rows - r0);
            for (int r = 0; r < rows; r++) {
                const int64_t at = r0 + r;
                const float *row = qkv + at * ldx + kh * d->k_dim;
                float *q = ready.q + r * ready.k_pad;
                float *k = ready.k + r * ready.k_pad;
                const double dt = softplus((double)a[at * lda + h] + (double)dt_bias[h]);
                ready.decay[r] = (float)exp(-exp((double)a_log[h]) * dt);
                ready.beta[r] = (float)(1.0 / (1.0 + exp(-(double)b[at * ldb + h])));
                l2_norm(row, d->k_dim, q_scale, q);
                l2_norm(row + k_all, d->k_dim, 1.0F, k);
                ready.qk[r] = dot(q, k, d->k_dim);
            }
            head(&ready, rows, d->v_dim, in, to, qkv + r0 * ldx + 2 * k_all + (int64_t)h * d->v_dim,
                 ldx, y + r0 * ldy + (int64_t)h * d->v_dim, ldy);
            in.s = to.s;
        }
    }
}

#endif
