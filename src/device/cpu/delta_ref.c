/* The definition of the gated delta rule: row by row, state f32, sums in double. */
#include "device/cpu/kernels_sets.h"

#include <math.h>
#include <string.h>

/* out[n] = x[n] * rsqrt(sum x^2 + 1e-6) * scale */
static void l2_norm(const float *x, int n, double scale, double *out)
{
    double sum = 1e-6;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < n; i++)
        out[i] = (double)x[i] * scale / sqrt(sum);
}

static double softplus(double x)
{
    return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

/* One row of one head. s [k_dim][v_dim]. */
static void step(const DeltaArgs *d, double decay, double beta, const double *q, const double *k,
                 const float *v, float *s, double *diff, float *y)
{
    for (int j = 0; j < d->v_dim; j++) {
        double seen = 0.0;
        for (int i = 0; i < d->k_dim; i++)
            seen += k[i] * ((double)s[(int64_t)i * d->v_dim + j] * decay);
        diff[j] = beta * ((double)v[j] - seen);
    }
    for (int j = 0; j < d->v_dim; j++) {
        double sum = 0.0;
        for (int i = 0; i < d->k_dim; i++) {
            float *at = s + (int64_t)i * d->v_dim + j;
            const double next = (double)*at * decay + k[i] * diff[j];
            sum += q[i] * next;
            *at = (float)next;
        }
        y[j] = (float)sum;
    }
}

static void delta(const DeltaArgs *d, const float *qkv, int64_t ldx, const float *a, int64_t lda,
                  const float *b, int64_t ldb, const float *a_log, const float *dt_bias,
                  const float *state_in, float *state_out, int h0, int h1, int n_rows, float *y,
                  int64_t ldy, uint8_t *work)
{
    const int64_t k_all = (int64_t)d->n_k_heads * d->k_dim;
    const int64_t s_size = (int64_t)d->k_dim * d->v_dim;
    double *q = (double *)(void *)work;
    double *k = q + d->k_dim;
    double *diff = k + d->k_dim;
    for (int h = h0; h < h1; h++) {
        const int64_t kh = h / (d->n_v_heads / d->n_k_heads);
        float *s = state_out + h * s_size;
        if (!state_in)
            memset(s, 0, (size_t)s_size * sizeof *s);
        else if (state_in != state_out)
            memcpy(s, state_in + h * s_size, (size_t)s_size * sizeof *s);
        for (int r = 0; r < n_rows; r++) {
            const float *row = qkv + r * ldx;
            const double dt = softplus((double)a[r * lda + h] + (double)dt_bias[h]);
            const double decay = exp(-exp((double)a_log[h]) * dt);
            const double beta = 1.0 / (1.0 + exp(-(double)b[r * ldb + h]));
            l2_norm(row + kh * d->k_dim, d->k_dim, 1.0 / sqrt(d->k_dim), q);
            l2_norm(row + k_all + kh * d->k_dim, d->k_dim, 1.0, k);
            step(d, decay, beta, q, k, row + 2 * k_all + (int64_t)h * d->v_dim, s, diff,
                 y + r * ldy + (int64_t)h * d->v_dim);
        }
    }
}

void delta_ref_set(CpuKernels *k)
{
    k->delta = delta;
}
