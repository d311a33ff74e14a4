/* attn_simd.h: attention over the vectors of simd_*.h, the body of attn_<isa>.c.
 *
 * Query vectors of a call (query row major, then the heads that share the kv head) are taken six at
 * a time against blocks of 64 keys: scores [6][64], online softmax, then the values. Every score is
 * one chain of products over ascending dims, every output element one chain over ascending keys of
 * the block, and blocks start at multiples of 64 positions; masked keys are left out rather than
 * added as zeros. So the six, the call and the chunk that a row came in do not show in its bits.
 *
 * f16 keys and values are converted where they are used when few query vectors share them (decode:
 * each is read once), else one block at a time into scratch (prefill: once per call). */
#ifndef MERE_DEVICE_CPU_ATTN_SIMD_H
#define MERE_DEVICE_CPU_ATTN_SIMD_H

#include "device/cpu/kernels_sets.h"
#include "device/cpu/simd_math.h"

#include "base/num.h"

#include <math.h>

enum {
    ROWS = 6,
    BLOCK = ATTN_BLOCK,
    GROUP = 16, /* keys that lie together in every page of 16 tokens or more */
    GROUPS = BLOCK / GROUP,
    LINE = 64,   /* bytes of a cache line */
    SHIFTS = 16, /* whole vectors with room for ROWS */
};

/* A block of keys as the register tiles read it. */
typedef struct Block {
    const uint8_t *k[GROUPS]; /* [head_dim] rows of k_step, GROUP of them used */
    const uint8_t *v[GROUPS]; /* [GROUP][v_step] */
    int64_t k_step, v_step;   /* elements */
    int64_t k_ahead, v_ahead; /* bytes from here to the next block; 0: unknown or near */
    bool k_f16, v_f16;
} Block;

/* Six query vectors on their way through a block. */
typedef struct Six {
    float s[ROWS][BLOCK];   /* scores, then e^(score - max) */
    float shift[SHIFTS];    /* factor of what was summed before; first ROWS */
    int lo[ROWS], hi[ROWS]; /* visible keys of the block */
    int n;
} Six;

static ALWAYS_INLINE vf load_kv(const uint8_t *p, int64_t at, bool f16)
{
    return f16 ? v_load_f16(p + at * 2) : v_load(p + at * 4);
}

/* s[rows][v .. v + n) = q . k for n vectors of keys. */
static ALWAYS_INLINE void scores_tile(const float *q, int head_dim, const Block *b, bool f16,
                                      int rows, int v, int n, Six *six)
{
    vf acc[ROWS][V_MANY];       // [rows][n]
    const uint8_t *key[V_MANY]; // [n]
    for (int j = 0; j < n; j++) {
        const int lane = (v + j) * V_WIDTH;
        key[j] = b->k[lane / GROUP] + lane % GROUP * (f16 ? 2 : 4);
        for (int i = 0; i < rows; i++)
            acc[i][j] = v_set(0.0F);
    }
    for (int64_t d = 0; d < head_dim; d++) {
        vf k[V_MANY];
        for (int j = 0; j < n; j++)
            k[j] = load_kv(key[j], d * b->k_step, f16);
        for (int j = 0; j < n; j += LINE / (V_WIDTH * (f16 ? 2 : 4)))
            v_prefetch(key[j] + d * b->k_step * (f16 ? 2 : 4) + b->k_ahead);
        for (int i = 0; i < rows; i++) {
            const vf x = v_set(q[(int64_t)i * head_dim + d]);
            for (int j = 0; j < n; j++)
                acc[i][j] = v_fma(x, k[j], acc[i][j]);
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < n; j++)
            v_store(six->s[i] + (v + j) * V_WIDTH, acc[i][j]);
    }
}

static ALWAYS_INLINE void scores_rows(const float *q, int head_dim, const Block *b, bool f16,
                                      int rows, int v, int end, Six *six)
{
    for (; v + V_MANY <= end; v += V_MANY)
        scores_tile(q, head_dim, b, f16, rows, v, V_MANY, six);
    if (V_MANY > 2 && v + 2 <= end) {
        scores_tile(q, head_dim, b, f16, rows, v, 2, six);
        v += 2;
    }
    if (v < end)
        scores_tile(q, head_dim, b, f16, rows, v, 1, six);
}

/* Scores of keys [from, to) of the block, rounded out to vectors. */
static ALWAYS_INLINE void scores_type(const float *q, int head_dim, const Block *b, bool f16,
                                      int from, int to, Six *six)
{
    const int v = from / V_WIDTH;
    const int end = (to + V_WIDTH - 1) / V_WIDTH;
    switch (six->n) {
    case 1:
        scores_rows(q, head_dim, b, f16, 1, v, end, six);
        break;
    case 2:
        scores_rows(q, head_dim, b, f16, 2, v, end, six);
        break;
    case 3:
        scores_rows(q, head_dim, b, f16, 3, v, end, six);
        break;
    case 4:
        scores_rows(q, head_dim, b, f16, 4, v, end, six);
        break;
    case 5:
        scores_rows(q, head_dim, b, f16, 5, v, end, six);
        break;
    default:
        scores_rows(q, head_dim, b, f16, ROWS, v, end, six);
        break;
    }
}

static void scores(const float *q, int head_dim, const Block *b, int from, int to, Six *six)
{
    if (b->k_f16)
        scores_type(q, head_dim, b, true, from, to, six);
    else
        scores_type(q, head_dim, b, false, from, to, six);
}

/* Largest score of keys [lo, hi) of one row; the others of their vectors become -inf. lo and hi are
 * constants for a row that sees the whole block. */
static ALWAYS_INLINE float row_top(const AttnArgs *a, float *s, int lo, int hi)
{
    const vf none = v_set(-INFINITY);
    const vf cap = v_set(a->softcap);
    vf most = none;
    for (int c = lo / V_WIDTH * V_WIDTH; c < hi; c += V_WIDTH) {
        vf x = v_load(s + c);
        if (a->softcap > 0.0F)
            x = v_mul(cap, v_tanh(v_div(x, cap)));
        if (lo > c || hi < c + V_WIDTH)
            x = v_keep(x, lo - c, hi - c, none);
        v_store(s + c, x);
        most = v_max(x, most);
    }
    return v_top(most);
}

/* Scores to e^(score - top); returns their sum by lane. */
static ALWAYS_INLINE vf row_weights(float *s, float top, int lo, int hi)
{
    const vf m = v_set(top);
    vf all = v_set(0.0F);
    for (int c = lo / V_WIDTH * V_WIDTH; c < hi; c += V_WIDTH) {
        const vf p = v_exp_negative(v_sub(v_load(s + c), m));
        v_store(s + c, p);
        all = v_add(all, p);
    }
    return all;
}

/* Scores to weights relative to the new maximum. max [rows] and sum [rows][16 lanes] are the rows'
 * running ones. */
static void soften(const AttnArgs *a, Six *six, float *max, float *sum)
{
    float old[SHIFTS] = {0};
    float top[SHIFTS] = {0};
    for (int i = 0; i < six->n; i++) {
        if (six->lo[i] >= six->hi[i])
            continue; /* shift is e^0 */
        const bool whole = six->lo[i] == 0 && six->hi[i] == BLOCK;
        const float here =
            whole ? row_top(a, six->s[i], 0, BLOCK) : row_top(a, six->s[i], six->lo[i], six->hi[i]);
        old[i] = max[i];
        top[i] = here > max[i] ? here : max[i];
        max[i] = top[i];
    }
    for (int c = 0; c < SHIFTS; c += V_WIDTH)
        v_store(six->shift + c, v_exp_negative(v_sub(v_load(old + c), v_load(top + c))));
    for (int i = 0; i < six->n; i++) {
        if (six->lo[i] >= six->hi[i])
            continue;
        const bool whole = six->lo[i] == 0 && six->hi[i] == BLOCK;
        const vf all = whole ? row_weights(six->s[i], top[i], 0, BLOCK)
                             : row_weights(six->s[i], top[i], six->lo[i], six->hi[i]);
        float *const lanes = sum + i * SHIFTS;
        v_store(lanes, v_fma(v_load(lanes), v_set(six->shift[i]), all));
    }
}

/* acc[rows][c .. c + n vectors) = acc * shift + weights . values of keys [from, to). */
static ALWAYS_INLINE void values_tile(const float *p, const float *shift, const Block *b, bool f16,
                                      int rows, int c, int n, int from, int to, float *acc,
                                      int64_t ld)
{
    vf o[ROWS][V_MANY]; // [rows][n]
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < n; j++)
            o[i][j] = v_mul(v_load(acc + i * ld + c + j * V_WIDTH), v_set(shift[i]));
    }
    for (int t = from; t < to;) {
        const int end = (int)i64_min(to, (t / GROUP + 1) * GROUP);
        const int64_t step = b->v_step * (f16 ? 2 : 4);
        const uint8_t *row = b->v[t / GROUP] + t % GROUP * step + c * (f16 ? 2 : 4);
        for (; t < end; t++, row += step) {
            vf v[V_MANY];
            for (int j = 0; j < n; j++)
                v[j] = load_kv(row, j * V_WIDTH, f16);
            for (int j = 0; j < n; j += LINE / (V_WIDTH * (f16 ? 2 : 4)))
                v_prefetch(row + j * V_WIDTH * (f16 ? 2 : 4) + b->v_ahead);
            for (int i = 0; i < rows; i++) {
                const vf x = v_set(p[i * BLOCK + t]);
                for (int j = 0; j < n; j++)
                    o[i][j] = v_fma(x, v[j], o[i][j]);
            }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < n; j++)
            v_store(acc + i * ld + c + j * V_WIDTH, o[i][j]);
    }
}

static ALWAYS_INLINE void values_rows(const float *p, const float *shift, const Block *b, bool f16,
                                      int rows, int from, int to, float *acc, int64_t ld, int width)
{
    int c = 0;
    for (; c + V_MANY * V_WIDTH <= width; c += V_MANY * V_WIDTH)
        values_tile(p, shift, b, f16, rows, c, V_MANY, from, to, acc, ld);
    if (V_MANY > 2 && c + 2 * V_WIDTH <= width) {
        values_tile(p, shift, b, f16, rows, c, 2, from, to, acc, ld);
        c += 2 * V_WIDTH;
    }
    if (c < width)
        values_tile(p, shift, b, f16, rows, c, 1, from, to, acc, ld);
}

static ALWAYS_INLINE void values_type(const float *p, const float *shift, const Block *b, bool f16,
                                      int rows, int from, int to, float *acc, int64_t ld, int width)
{
    switch (rows) {
    case 1:
        values_rows(p, shift, b, f16, 1, from, to, acc, ld, width);
        break;
    case 2:
        values_rows(p, shift, b, f16, 2, from, to, acc, ld, width);
        break;
    case 3:
        values_rows(p, shift, b, f16, 3, from, to, acc, ld, width);
        break;
    case 4:
        values_rows(p, shift, b, f16, 4, from, to, acc, ld, width);
        break;
    case 5:
        values_rows(p, shift, b, f16, 5, from, to, acc, ld, width);
        break;
    default:
        values_rows(p, shift, b, f16, ROWS, from, to, acc, ld, width);
        break;
    }
}

/* width: v_dim rounded up to vectors, at most ld. */
static void values(const float *p, const float *shift, const Block *b, int rows, int from, int to,
                   float *acc, int64_t ld, int width)
{
    if (b->v_f16)
        values_type(p, shift, b, true, rows, from, to, acc, ld, width);
    else
        values_type(p, shift, b, false, rows, from, to, acc, ld, width);
}

/* Adds the values with the weights in `six`. Keys that all six see go through one tile; the few at
 * either end that only some see are added row by row, in the same order. */
static void gather(Six *six, const Block *b, float *acc, int64_t ld, int width)
{
    const float one[ROWS] = {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
    int from = 0;
    int to = BLOCK;
    for (int i = 0; i < six->n; i++) {
        from = six->lo[i] > from ? six->lo[i] : from;
        to = six->hi[i] < to ? six->hi[i] : to;
    }
    const bool common = from < to;
    for (int i = 0; i < six->n; i++) {
        const int end = common ? from : six->hi[i];
        if (six->lo[i] < end) {
            values(six->s[i], six->shift + i, b, 1, six->lo[i], end, acc + i * ld, ld, width);
            six->shift[i] = 1.0F;
        }
    }
    if (!common)
        return;
    values(six->s[0], six->shift, b, six->n, from, to, acc, ld, width);
    for (int i = 0; i < six->n; i++) {
        if (to < six->hi[i])
            values(six->s[i], one, b, 1, to, six->hi[i], acc + i * ld, ld, width);
    }
}

/* Copies n elements to f32. */
static void widen(const uint8_t *from, KvType type, int64_t n, float *to)
{
    int64_t i = 0;
    for (; i + V_WIDTH <= n; i += V_WIDTH)
        v_store(to + i, load_kv(from, i, type == KV_F16));
    for (; i < n; i++) {
        uint16_t h;
        if (type == KV_F16) {
            memcpy(&h, from + i * 2, sizeof h);
            to[i] = num_from_f16(h);
        } else {
            memcpy(to + i, from + i * 4, sizeof *to);
        }
    }
}

/* What a call holds besides its arguments; all in `work`. */
typedef struct Call {
    const KvLayer *kv;
    const int32_t *pages;
    int kv_head;
    int end;    /* keys that the last row sees */
    bool few;   /* query vectors: read f16 in place */
    int64_t ld; /* v_dim rounded up to 16 */
    float *q;   /* [rows][head_dim] */
    float *acc; /* [rows][ld] */
    float *max; /* [rows] */
    float *sum; /* [rows][SHIFTS], the first V_WIDTH lanes */
    float *k;   /* [head_dim][BLOCK] */
    float *v;   /* [BLOCK][ld] */
} Call;

/* Element of k and v where slot `pos` of the sequence lies. */
static int64_t slot_at(const Call *c, int pos)
{
    const int tokens = c->kv->page_tokens;
    return (int64_t)c->pages[pos / tokens] * tokens + pos % tokens;
}

/* Pages smaller than a tile: element by element. */
static void block_gather(const Call *c, int first, int from, int to)
{
    const KvLayer *kv = c->kv;
    const int size = kv->type == KV_F16 ? 2 : 4;
    for (int j = from; j < to; j++) {
        const int64_t slot = slot_at(c, first + j);
        for (int d = 0; d < kv->head_dim; d++)
            widen(kv->k + kernels_k_index(kv, slot, c->kv_head, d) * size, kv->type, 1,
                  c->k + (int64_t)d * BLOCK + j);
        widen(kv->v + kernels_v_index(kv, slot, c->kv_head) * size, kv->type, kv->v_dim,
              c->v + j * c->ld);
    }
}

/* Bytes from this block to the next one, so that its lines can be fetched early: the hardware's
 * prefetcher starts anew in every page. Only where a block is one tile that is read in place. */
static void block_ahead(const Call *c, int first, Block *b)
{
    const int next = first + BLOCK;
    b->k_ahead = 0;
    b->v_ahead = 0;
    if (next >= c->end || c->kv->page_tokens < BLOCK || !(c->few || c->kv->type == KV_F32))
        return;
    const int64_t size = c->kv->type == KV_F16 ? 2 : 4;
    const int64_t here = slot_at(c, first);
    const int64_t there = slot_at(c, next);
    b->k_ahead = size * (kernels_k_index(c->kv, there, c->kv_head, 0) -
                         kernels_k_index(c->kv, here, c->kv_head, 0));
    b->v_ahead = size * (kernels_v_index(c->kv, there, c->kv_head) -
                         kernels_v_index(c->kv, here, c->kv_head));
}

/* Keys [from, to) of the block at position `first`. */
static void block_open(const Call *c, int first, int from, int to, Block *b)
{
    const KvLayer *kv = c->kv;
    const int size = kv->type == KV_F16 ? 2 : 4;
    const bool tiled = kv->page_tokens >= GROUP;
    const int64_t tile = i64_min(KV_TILE, kv->page_tokens);
    const bool in_place = tiled && (c->few || kv->type == KV_F32);
    const bool v_in_place = in_place && kv->v_dim % V_WIDTH == 0;
    b->k_f16 = in_place && kv->type == KV_F16;
    b->v_f16 = v_in_place && kv->type == KV_F16;
    b->k_step = in_place ? tile : BLOCK;
    b->v_step = v_in_place ? kv->v_dim : c->ld;
    if (!tiled)
        block_gather(c, first, from, to);
    for (int t = from / GROUP; t * GROUP < to; t++) {
        float *k = c->k + t * GROUP;
        float *v = c->v + t * GROUP * c->ld;
        b->k[t] = (const uint8_t *)k;
        b->v[t] = (const uint8_t *)v;
        if (!tiled)
            continue;
        const int64_t slot = slot_at(c, first + t * GROUP);
        const uint8_t *key = kv->k + kernels_k_index(kv, slot, c->kv_head, 0) * size;
        const uint8_t *value = kv->v + kernels_v_index(kv, slot, c->kv_head) * size;
        if (in_place)
            b->k[t] = key;
        for (int d = 0; !in_place && d < kv->head_dim; d++)
            widen(key + d * tile * size, kv->type, GROUP, k + (int64_t)d * BLOCK);
        if (v_in_place) {
            b->v[t] = value;
            continue;
        }
        const int end = (int)i64_min(to - t * GROUP, GROUP);
        for (int j = 0; j < end; j++)
            widen(value + (int64_t)j * kv->v_dim * size, kv->type, kv->v_dim, v + j * c->ld);
    }
}

static void call_open(Call *c, int64_t rows, uint8_t *work)
{
    c->few = rows <= 2 * ROWS;
    c->ld = i64_round_up(c->kv->v_dim, 16);
    c->q = (float *)(void *)work;
    c->acc = c->q + i64_round_up(rows * c->kv->head_dim, 16);
    c->max = c->acc + rows * c->ld;
    c->sum = c->max + i64_round_up(rows, 16);
    c->k = c->sum + rows * SHIFTS;
    c->v = c->k + (int64_t)BLOCK * c->kv->head_dim;
    memset(c->acc, 0, (size_t)(rows * c->ld) * sizeof(float));
    memset(c->sum, 0, (size_t)(rows * SHIFTS) * sizeof(float));
    for (int64_t i = 0; i < rows; i++)
        c->max[i] = -INFINITY;
}

/* out[v_dim] = acc / sum, after the sink has joined the sum. */
static void finish(const Call *c, int64_t row, float sink, float *out)
{
    const float top = sink > c->max[row] ? sink : c->max[row];
    const float *acc = c->acc + row * c->ld;
    const float sum = v_sum(v_load(c->sum + row * SHIFTS));
    float by = 1.0F / sum;
    if (sink > -INFINITY) {
        float parts[V_WIDTH] = {c->max[row] - top, sink - top};
        v_store(parts, v_exp_negative(v_load(parts)));
        by = parts[0] / (sum * parts[0] + parts[1]);
    }
    const vf scale = v_set(by);
    for (int i = 0; i < c->kv->v_dim; i += V_WIDTH) {
        const int n = (int)i64_min(V_WIDTH, c->kv->v_dim - i);
        v_store_n(out + i, v_mul(v_load(acc + i), scale), n);
    }
}

/* Adds the bias of a head to the scores of keys [lo, hi) of the block at position `first`; the
 * query is at `pos`. */
static void add_bias(const AttnArgs *a, int h, int pos, int first, int lo, int hi, float *s)
{
    const float *bias = a->bias + (int64_t)h * (2 * (int64_t)a->span + 1) + a->span;
    for (int j = lo; j < hi; j++)
        s[j] += bias[i64_max(-a->span, i64_min(a->span, (int64_t)first + j - pos))];
}

static void attn(const KvLayer *kv, const AttnArgs *a, const AttnSeg *seg, int kv_head, int q0,
                 int q1, const float *q, int64_t ldq, float *out, int64_t ldo, uint8_t *work)
{
    const int share = a->n_heads / kv->n_kv_heads;
    const int rows = (q1 - q0) * share;
    const int past = seg->kv_len - seg->n_rows + 1; /* keys that row 0 sees without a window */
    const int window = a->window > 0 ? a->window : seg->kv_len;
    const bool full = a->full;
    const int width = (int)i64_round_up(kv->v_dim, V_WIDTH);
    Call c = {.kv = kv, .pages = seg->pages, .kv_head = kv_head};
    call_open(&c, rows, work);
    for (int r = q0; r < q1; r++) {
        const float *from = q + (seg->row0 + r) * ldq + (int64_t)kv_head * share * kv->head_dim;
        float *to = c.q + (int64_t)(r - q0) * share * kv->head_dim;
        for (int64_t i = 0; i < (int64_t)share * kv->head_dim; i++)
            to[i] = from[i] * a->scale;
    }
    const int lo_all = full ? 0 : (int)i64_max(0, past + q0 - window);
    const int hi_all = full ? seg->kv_len : past + q1 - 1;
    c.end = hi_all;
    for (int first = lo_all / BLOCK * BLOCK; first < hi_all; first += BLOCK) {
        Block b;
        block_ahead(&c, first, &b);
        block_open(&c, first, (int)i64_max(0, lo_all - first), (int)i64_min(BLOCK, hi_all - first),
                   &b);
        for (int row = 0; row < rows; row += ROWS) {
            Six six;
            six.n = (int)i64_min(ROWS, rows - row);
            int from = BLOCK;
            int to = 0;
            for (int i = 0; i < six.n; i++) {
                const int hi = full ? seg->kv_len : past + q0 + (row + i) / share;
                six.lo[i] = (int)i64_max(0, hi - window - first);
                six.hi[i] = (int)i64_min(BLOCK, hi - first);
                if (six.lo[i] < six.hi[i]) {
                    from = six.lo[i] < from ? six.lo[i] : from;
                    to = six.hi[i] > to ? six.hi[i] : to;
                }
            }
            if (from >= to)
                continue;
            scores(c.q + (int64_t)row * kv->head_dim, kv->head_dim, &b, from, to, &six);
            for (int i = 0; a->bias && i < six.n; i++)
                add_bias(a, kv_head * share + (row + i) % share, past - 1 + q0 + (row + i) / share,
                         first, six.lo[i], six.hi[i], six.s[i]);
            soften(a, &six, c.max + row, c.sum + (int64_t)row * SHIFTS);
            gather(&six, &b, c.acc + row * c.ld, c.ld, width);
        }
    }
    for (int row = 0; row < rows; row++) {
        const int h = kv_head * share + row % share;
        finish(&c, row, a->sinks ? a->sinks[h] : -INFINITY,
               out + (seg->row0 + q0 + row / share) * ldo + (int64_t)h * kv->v_dim);
    }
}

#endif
