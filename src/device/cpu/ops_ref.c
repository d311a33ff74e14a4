/* The definitions of the elementwise and reducing operations: scalar, f32 results, long sums in
 * double. */
#include "device/cpu/kernels_sets.h"

#include "base/num.h"

#include <math.h>

static float sigmoid(float x)
{
    return 1.0F / (1.0F + expf(-x));
}

static void rms_norm(const float *x, int64_t ldx, const float *w, float eps, int width, int group,
                     int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int g = 0; g < width; g += group) {
            const float *xg = x + r * ldx + g;
            float *yg = y + r * ldy + g;
            double sum = 0.0;
            for (int i = 0; i < group; i++)
                sum += (double)xg[i] * (double)xg[i];
            const float s = (float)(1.0 / sqrt(sum / group + (double)eps));
            for (int i = 0; i < group; i++)
                yg[i] = w ? xg[i] * s * w[i] : xg[i] * s;
        }
    }
}

static void silu_mul(const float *gate, int64_t ldg, const float *up, int64_t ldu, int width,
                     int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < width; i++) {
            const float g = gate[r * ldg + i];
            y[r * ldy + i] = g / (1.0F + expf(-g)) * up[r * ldu + i];
        }
    }
}

static void sigmoid_mul(const float *x, int64_t ldx, const float *g, int64_t ldg, bool per_row,
                        int width, int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < width; i++)
            y[r * ldy + i] = x[r * ldx + i] * sigmoid(g[r * ldg + (per_row ? 0 : i)]);
    }
}

static void add(const float *a, int64_t lda, const float *b, int64_t ldb, int width, int rows,
                float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < width; i++)
            y[r * ldy + i] = a[r * lda + i] + b[r * ldb + i];
    }
}

static void rope(float *x, int64_t ldx, int n_heads, const RopeArgs *rope, const float *cs,
                 int rows)
{
    const int half = rope->rot_dim / 2;
    const int step = rope->pairs ? 2 : 1;
    const int other = rope->pairs ? 1 : half;
    for (int r = 0; r < rows; r++) {
        const float *c = cs + (int64_t)r * rope->rot_dim;
        const float *s = c + half;
        for (int h = 0; h < n_heads; h++) {
            float *v = x + r * ldx + (int64_t)h * rope->head_dim;
            for (int i = 0; i < half; i++) {
                const float a = v[i * step];
                const float b = v[i * step + other];
                v[i * step] = a * c[i] - b * s[i];
                v[i * step + other] = b * c[i] + a * s[i];
            }
        }
    }
}

static void rope_table(const RopeArgs *rope, const int32_t *pos, int rows, float *cs)
{
    const int half = rope->rot_dim / 2;
    for (int r = 0; r < rows; r++) {
        float *c = cs + (int64_t)r * rope->rot_dim;
        for (int i = 0; i < half; i++) {
            const int32_t at = rope->axis ? pos[(int64_t)r * rope->n_axes + rope->axis[i]] : pos[r];
            const double angle = (double)at * (double)rope->inv_freq[i];
            c[i] = (float)(cos(angle) * (double)rope->scale);
            c[half + i] = (float)(sin(angle) * (double)rope->scale);
        }
    }
}

static void kv_store(uint8_t *base, KvType type, int64_t at, float x)
{
    const uint16_t h = num_to_f16(x);
    if (type == KV_F16)
        memcpy(base + at * 2, &h, sizeof h);
    else
        memcpy(base + at * 4, &x, sizeof x);
}

static void kv_write(const KvLayer *kv, const float *k, int64_t ldk, const float *v, int64_t ldv,
                     const int32_t *slots, int rows)
{
    for (int r = 0; r < rows; r++) {
        if (slots[r] < 0)
            continue;
        for (int h = 0; h < kv->n_kv_heads; h++) {
            const float *kr = k + r * ldk + (int64_t)h * kv->head_dim;
            const float *vr = v + r * ldv + (int64_t)h * kv->v_dim;
            for (int d = 0; d < kv->head_dim; d++)
                kv_store(kv->k, kv->type, kernels_k_index(kv, slots[r], h, d), kr[d]);
            for (int d = 0; d < kv->v_dim; d++)
                kv_store(kv->v, kv->type, kernels_v_index(kv, slots[r], h) + d, vr[d]);
        }
    }
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
        double all = 0.0;
        double best = 0.0;
        const float max = top[0];
        for (int i = 0; i < n; i++)
            all += (double)expf(x[i] - max);
        for (int j = 0; j < k; j++)
            best += (double)expf(top[j] - max);
        for (int j = 0; j < k; j++)
            top[j] = (float)((double)expf(top[j] - max) / (renorm ? best : all));
    }
}

static void conv_silu(const float *x, int64_t ldx, const float *w, int width, const float *state_in,
                      float *state_out, int c0, int c1, int n_rows, float *y, int64_t ldy)
{
    const int past = width - 1;
    for (int c = c0; c < c1; c++) {
        float window[8] = {0}; /* the last `past` inputs, then this row's */
        for (int t = 0; t < past; t++)
            window[t] = state_in ? state_in[(int64_t)c * past + t] : 0.0F;
        for (int r = 0; r < n_rows; r++) {
            window[past] = x[r * ldx + c];
            double sum = 0.0;
            for (int t = 0; t < width; t++)
                sum += (double)w[(int64_t)c * width + t] * (double)window[t];
            const float s = (float)sum;
            y[r * ldy + c] = s / (1.0F + expf(-s));
            for (int t = 0; t < past; t++)
                window[t] = window[t + 1];
        }
        for (int t = 0; t < past; t++)
            state_out[(int64_t)c * past + t] = window[t];
    }
}

static void layer_norm(const float *x, int64_t ldx, const float *w, const float *b, float eps,
                       int width, int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        const float *xr = x + r * ldx;
        double sum = 0.0;
        double squares = 0.0;
        for (int i = 0; i < width; i++)
            sum += (double)xr[i];
        const double mean = sum / width;
        for (int i = 0; i < width; i++)
            squares += ((double)xr[i] - mean) * ((double)xr[i] - mean);
        const double s = 1.0 / sqrt(squares / width + (double)eps);
        for (int i = 0; i < width; i++)
            y[r * ldy + i] =
                (float)(((double)xr[i] - mean) * s * (double)w[i] + (b ? (double)b[i] : 0.0));
    }
}

/* In double: gelu's tail is a difference of near-equal numbers. */
static double act_one(ActKind act, double x)
{
    switch (act) {
    case ACT_GELU:
        return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case ACT_GELU_TANH: /* x / 2 * (1 + tanh u) is x * sigmoid(2 u) */
        return x / (1.0 + exp(-2.0 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case ACT_QUICK_GELU:
        return x / (1.0 + exp(-1.702 * x));
    case ACT_RELU:
        break;
    }
    return x < 0.0 ? 0.0 : x;
}

static void act(ActKind kind, const float *x, int64_t ldx, const float *up, int64_t ldu, int width,
                int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < width; i++) {
            const double v = act_one(kind, (double)x[r * ldx + i]);
            y[r * ldy + i] = (float)(up ? v * (double)up[r * ldu + i] : v);
        }
    }
}

static void window(const float *x, int64_t ldx, int n, int width, const WindowDesc *w, int from,
                   int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        const int64_t first = (int64_t)(from + r) * w->stride - w->pad;
        for (int t = 0; t < w->taps; t++) {
            const bool inside = first + t >= 0 && first + t < n;
            const float *row = x + (inside ? first + t : 0) * ldx;
            for (int c = 0; c < width; c++)
                y[r * ldy + (int64_t)c * w->taps + t] = inside ? row[c] : 0.0F;
        }
    }
}

static void rms_norm_gated(const float *x, int64_t ldx, const float *z, int64_t ldz, const float *w,
                           float eps, int width, int group, int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        rms_norm(x + r * ldx, ldx, w, eps, width, group, 1, y + r * ldy, ldy);
        for (int i = 0; i < width; i++) {
            const float g = z[r * ldz + i];
            y[r * ldy + i] *= g / (1.0F + expf(-g));
        }
    }
}

static void embed(const RowView *table, const int32_t *ids, int rows, float *y, int64_t ldy)
{
    for (int r = 0; r < rows; r++) {
        if (ids[r] >= 0 && ids[r] < table->n)
            format_dequant_row(table, ids[r], y + r * ldy);
        else
            memset(y + r * ldy, 0, (size_t)table->k * sizeof *y);
    }
}

static void combine(const float *x, int64_t ldx, const int32_t *place, const float *weights, int k,
                    const float *add_rows, int64_t lda, int width, int rows, float *out,
                    int64_t ldo)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < width; i++) {
            double sum = 0.0;
            for (int j = 0; j < k; j++) {
                const int64_t at = (int64_t)r * k + j;
                sum += (double)weights[at] * (double)x[place[at] * ldx + i];
            }
            if (add_rows)
                sum += (double)add_rows[r * lda + i];
            out[r * ldo + i] = (float)sum;
        }
    }
}

static int32_t argmax(const float *x, int n, float *max)
{
    int32_t best = -1;
    for (int i = 0; i < n; i++) {
        if (x[i] == x[i] && (best < 0 || x[i] > x[best]))
            best = i;
    }
    *max = best < 0 ? -INFINITY : x[best];
    return best < 0 ? 0 : best;
}

static double log_sum_exp(const float *x, int n, float max)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += (double)expf(x[i] - max);
    return log(sum) + (double)max;
}

void ops_ref_set(CpuKernels *k)
{
    k->rms_norm = rms_norm;
    k->silu_mul = silu_mul;
    k->sigmoid_mul = sigmoid_mul;
    k->add = add;
    k->rope = rope;
    k->rope_table = rope_table;
    k->kv_write = kv_write;
    k->route_softmax = route_softmax;
    k->conv_silu = conv_silu;
    k->rms_norm_gated = rms_norm_gated;
    k->layer_norm = layer_norm;
    k->act = act;
    k->window = window;
    k->embed = embed;
    k->combine = combine;
    k->argmax = argmax;
    k->log_sum_exp = log_sum_exp;
}
