/* kernels.h: every CPU kernel that is not a weight product (those are lin.h), as a table filled
 * weakest first.
 *
 * Activations are f32, row-major, [n_rows][width] with a row stride (ld, in floats). Kernels work
 * on row or head ranges given by the caller, so one call is one tile of a stage; ranges that are
 * disjoint write disjoint memory. Nothing is allocated. Each has a scalar reference (ops_ref.c:
 * long sums in double) that is its definition. Results of a row never depend on other rows in the
 * call, nor on the tile, so all of them are `invariant`. */
#ifndef MERE_DEVICE_CPU_KERNELS_H
#define MERE_DEVICE_CPU_KERNELS_H

#include "base/format.h"
#include "device/op.h"

/* Rotary table: cos/sin of each position are computed from inv_freq when the rows are known (once a
 * step), f64 angle then f32. */
typedef struct RopeArgs {
    int head_dim;
    int rot_dim;           /* dims that rotate, even, from the first; the rest pass */
    bool pairs;            /* true: (2i, 2i+1); false: (i, i + rot_dim/2) */
    float scale;           /* multiplies cos and sin (YaRN attention factor); 1 for none */
    const float *inv_freq; /* [rot_dim / 2] */
    const uint8_t *axis;   /* [rot_dim / 2]: the position that turns each frequency, or NULL: one */
    int n_axes;            /* positions of a row; read with `axis` alone */
} RopeArgs;

typedef enum KvType { KV_F16, KV_F32, KV_TYPE_COUNT } KvType;

/* Most keys of a tile, the unit of K's layout: one block of attention. */
enum { KV_TILE = 64 };

/* One layer's share of the page pool. The values of (page p, kv head h) start at element
 * (p * n_kv_heads + h) * page_tokens * v_dim of v and are rows [page_tokens][v_dim]. The keys start
 * at (p * n_kv_heads + h) * page_tokens * head_dim of k and are transposed in tiles of
 * min(KV_TILE, page_tokens) slots: [page_tokens / tile][head_dim][tile] (kernels_k_index). So
 * scores of neighbouring keys are lanes of one register without a shuffle, for one query row as for
 * many, and each is the same chain of products over ascending d. Pages of 64 tokens or more are
 * read as one stream and are fastest; those under 16 are for tests. Only kv_write and attn know the
 * layout; whole pages may be copied as bytes. */
typedef struct KvLayer {
    uint8_t *k;
    uint8_t *v;
    int n_kv_heads;
    int head_dim; /* of K and Q */
    int v_dim;
    int page_tokens; /* power of two */
    KvType type;
} KvLayer;

/* Rows [row0, row0 + n_rows) are consecutive new tokens of one sequence whose kv positions are
 * kv_len - n_rows .. kv_len - 1. */
typedef struct AttnSeg {
    int row0;
    int n_rows;
    int kv_len;           /* keys in the cache including this step's */
    const int32_t *pages; /* pages[i] holds positions [i * page_tokens, (i + 1) * page_tokens); -1
                             where a window has passed */
} AttnSeg;

/* Element of k that holds dim d of the key in `slot` (page * page_tokens + offset) of kv head h. */
static inline int64_t kernels_k_index(const KvLayer *kv, int64_t slot, int h, int d)
{
    const int64_t page = slot / kv->page_tokens;
    const int64_t t = slot % kv->page_tokens;
    const int64_t tile = i64_min(KV_TILE, kv->page_tokens);
    return ((page * kv->n_kv_heads + h) * kv->page_tokens + t / tile * tile) * kv->head_dim +
           d * tile + t % tile;
}

/* Element of v that holds dim 0 of the value in `slot`; the other dims follow. */
static inline int64_t kernels_v_index(const KvLayer *kv, int64_t slot, int h)
{
    const int64_t page = slot / kv->page_tokens;
    const int64_t t = slot % kv->page_tokens;
    return ((page * kv->n_kv_heads + h) * kv->page_tokens + t) * kv->v_dim;
}

typedef struct AttnArgs {
    int n_heads; /* multiple of n_kv_heads; head h uses kv head h / (n_heads / n_kv_heads) */
    float scale;
    float softcap;      /* 0: none */
    int window;         /* keys visible including itself; 0: all */
    const float *sinks; /* [n_heads] or NULL */
    bool full;          /* every key is visible; no window then */
    const float *bias;  /* [n_heads][2 * span + 1], added to the scaled score before the softcap:
                           entry  span + (key - query), cut to the table's ends; or NULL */
    int span;
} AttnArgs;

/* Gated delta net, one layer (families.md GDN). */
typedef struct DeltaArgs {
    int n_k_heads, n_v_heads; /* v head h uses k head h / (n_v_heads / n_k_heads) */
    int k_dim, v_dim;
} DeltaArgs;

typedef struct CpuKernels {
    /* y[r][i] = x[r][i] * rsqrt(mean(x[r]^2) + eps) * w[i]; in groups of `group` elements each
     * normed alone (head norm: group = head_dim, w has `group` elements and repeats), group = width
     * for a whole row. w NULL: no weight. x == y allowed. */
    void (*rms_norm)(const float *x, int64_t ldx, const float *w, float eps, int width, int group,
                     int rows, float *y, int64_t ldy);
    /* y = act(gate) * up; width elements a row. */
    void (*silu_mul)(const float *gate, int64_t ldg, const float *up, int64_t ldu, int width,
                     int rows, float *y, int64_t ldy);
    /* y[r][i] = x[r][i] * sigmoid(g[r][i]); with per_row, g has one number a row. x == y allowed.
     */
    void (*sigmoid_mul)(const float *x, int64_t ldx, const float *g, int64_t ldg, bool per_row,
                        int width, int rows, float *y, int64_t ldy);
    void (*add)(const float *a, int64_t lda, const float *b, int64_t ldb, int width, int rows,
                float *y, int64_t ldy);
    /* Rotates n_heads heads of each row in place; cs is [rows][rot_dim] : cos of each frequency,
     * then sin. */
    void (*rope)(float *x, int64_t ldx, int n_heads, const RopeArgs *rope, const float *cs,
                 int rows);
    /* pos [rows], or with rope->axis [rows][n_axes]. */
    void (*rope_table)(const RopeArgs *rope, const int32_t *pos, int rows, float *cs);
    /* Writes new keys and values of rows into their slots: slots[r] = page * page_tokens + offset,
     * -1: skip. k [rows][n_kv_heads * head_dim], v [rows][n_kv_heads * v_dim]. */
    void (*kv_write)(const KvLayer *kv, const float *k, int64_t ldk, const float *v, int64_t ldv,
                     const int32_t *slots, int rows);
    /* out[r][h * v_dim ..] for query rows [q0, q1) of the segment (counted from seg->row0; q, out
     * point at row 0 of the step) and kv head `kv_head` (all its query heads). Key j is visible to
     * the query at position p when p - window < j <= p, or always when the call is `full`. Softmax
     * in f32, online over blocks of keys at fixed positions (multiples of the block), so a result
     * depends on neither the tile nor the chunking. work: attn_work_bytes. */
    void (*attn)(const KvLayer *kv, const AttnArgs *a, const AttnSeg *seg, int kv_head, int q0,
                 int q1, const float *q, int64_t ldq, float *out, int64_t ldo, uint8_t *work);
    /* Router: softmax over n logits, top k (ties: lower index), optional renormalisation; ids,
     * weights [rows][k], heaviest first. k <= n <= 1024. NaN counts as -inf for the choice, so that
     * ids are k different experts whatever comes in. */
    void (*route_softmax)(const float *logits, int64_t ld, int n, int k, bool renorm, int rows,
                          int32_t *ids, float *weights);
    /* Causal depthwise convolution then SiLU over the rows of one segment, channels [c0, c1): w
     * [channels][width], state_in/out [channels][width - 1] are the inputs before the segment,
     * oldest first. state_in NULL: zeros; state_in == state_out and x == y allowed. x, y [n_rows]
     * from the segment; w, the states, x and y start at channel 0. width 1..8. */
    void (*conv_silu)(const float *x, int64_t ldx, const float *w, int width, const float *state_in,
                      float *state_out, int c0, int c1, int n_rows, float *y, int64_t ldy);
    /* Delta rule for v heads [h0, h1) over n_rows rows of one segment. qkv [n_rows][2 * n_k_heads *
     * k_dim + n_v_heads * v_dim] after the convolution (q | k | v), a and b [n_rows][n_v_heads]; q
     * and k are L2-normalised here (x * rsqrt(sum x^2 + 1e-6)), q scaled by k_dim^-0.5; g =
     * -exp(a_log) * softplus(a + dt_bias); beta = sigmoid(b). S = S*exp(g); S += k (beta (v - S^T
     * k))^T; y = S^T q. state [n_v_heads][k_dim][v_dim] f32; state_in NULL: zeros; state_in ==
     * state_out allowed. y [n_rows][n_v_heads * v_dim]. work: delta_work_bytes, 64-byte aligned. */
    void (*delta)(const DeltaArgs *d, const float *qkv, int64_t ldx, const float *a, int64_t lda,
                  const float *b, int64_t ldb, const float *a_log, const float *dt_bias,
                  const float *state_in, float *state_out, int h0, int h1, int n_rows, float *y,
                  int64_t ldy, uint8_t *work);
    /* y = (x - mean) / sqrt(variance + eps) * w + b over each row (the variance divides by width);
     * b NULL: none. x == y allowed. */
    void (*layer_norm)(const float *x, int64_t ldx, const float *w, const float *b, float eps,
                       int width, int rows, float *y, int64_t ldy);
    /* y = act(x) * up, or act(x) when up is NULL. x == y allowed. */
    void (*act)(ActKind act, const float *x, int64_t ldx, const float *up, int64_t ldu, int width,
                int rows, float *y, int64_t ldy);
    /* Rows [from, from + rows) of the windows over one segment of n rows: y[r][c * taps + t] =
     * x[(from + r) * stride - pad + t][c], 0 outside [0, n). */
    void (*window)(const float *x, int64_t ldx, int n, int width, const WindowDesc *w, int from,
                   int rows, float *y, int64_t ldy);
    /* y = rms_norm(x over each `group`, w) * silu(z). */
    void (*rms_norm_gated)(const float *x, int64_t ldx, const float *z, int64_t ldz, const float *w,
                           float eps, int width, int group, int rows, float *y, int64_t ldy);
    /* y[r] = row ids[r] of the table, dequantised; ids out of [0, n) give zeros. */
    void (*embed)(const RowView *table, const int32_t *ids, int rows, float *y, int64_t ldy);
    /* out[r] = sum_j weights[r][j] * x[place[r * k + j]][..] + (add ? add[r] : 0): gathers expert
     * outputs back. j ascending. */
    void (*combine)(const float *x, int64_t ldx, const int32_t *place, const float *weights, int k,
                    const float *add, int64_t lda, int width, int rows, float *out, int64_t ldo);
    /* Largest logit (ties: lowest id; NaN is never the largest; 0 when all are NaN), and
     * log(sum(exp(x - max))) + max. n >= 1. */
    int32_t (*argmax)(const float *x, int n, float *max);
    double (*log_sum_exp)(const float *x, int n, float max);
} CpuKernels;

/* Fills the table for an instruction set (lin.h's CPU_*), weakest first. Pure: a test can ask for
 * any level. */
void kernels_init(CpuKernels *k, unsigned isa);
/* Scratch of one call, enough for every level. q_rows: the largest q1 - q0. About 32 query rows a
 * call is best for prefill: fewer convert f16 keys more often, more leave the caches. */
int64_t attn_work_bytes(const KvLayer *kv, const AttnArgs *a, int q_rows);
int64_t delta_work_bytes(const DeltaArgs *d);

#endif
