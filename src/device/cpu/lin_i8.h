/* lin_i8.h: products with int8 activations, straight from the published layouts: for one row to a
 * handful, or for any number where the result must not depend on it. The body of
 * lin_i8*_avx512vnni.c: each of those defines step() for its kinds of weights. Empty for a file
 * compiled without VNNI and VBMI.
 *
 * 128 weights are two registers of unsigned bytes, split from the codes in lane order; VNNI sums 4
 * products a lane, a lane never leaves a block, so one multiply by a register of block scales
 * (spread with one permute) and one by the activations' scales finish a chunk. Offsets of signed
 * codes sit in the start value of the integer sum, biases in one multiply-add per 512 elements. All
 * integer sums are exact.
 *
 * Up to 4 weight rows are read at a time, far apart in [j0, j1): each is then a contiguous stream.
 * Neighbouring rows, interleaved inside a page, halve the speed or worse. The order of the float
 * operations of one result is the same for every number of rows. */
#ifndef MERE_DEVICE_CPU_LIN_I8_H
#define MERE_DEVICE_CPU_LIN_I8_H

#include "device/cpu/lin_acts.h"
#include "device/cpu/lin_levels.h"
#include "device/cpu/lin_numbers.h"

#if defined(__AVX512VBMI__)

typedef enum Kind {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q1_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    TQ2_0,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    MXFP4P,
    NVFP4P, /* NVFP4S, too */
    AFFINE1,
    AFFINE2,
    AFFINE3,
    AFFINE5,
    AFFINE6,
    AFFINE4_F32,
    AFFINE4_F16,
    AFFINE4_BF16,
    AFFINE8_F32,
    AFFINE8_F16,
    AFFINE8_BF16,
    KIND_COUNT
} Kind;

enum {
    MAX_COLS = 8,
    MAX_ROWS = 4,
    /* Bytes that a stream is fetched ahead. The hardware's prefetcher starts anew in every 4 KiB
     * page; with this two threads of a Sapphire Rapids read 20 % more (1B Q4_0 decode 25 to 30
     * tok/s; 1, 2 and 4 KiB alike). Past the end of a row lies the next one, past the last row
     * nothing that a prefetch minds. */
    AHEAD = 2048,
};

/* What a step takes and how its activations lie (lin_acts.h). */
typedef struct Step {
    int elements; /* a kind with 256 has no tail */
    int bytes;
    int chunk; /* elements of a chunk of the record: 128 pairs, 64 singles */
    int chunk_bytes;
    bool has_biases;
    FormatId scales; /* of the AFFINE4 and 8; of the others the plan has it */
} Step;

#define PAIRS_START 128, ACTS_PAIRS_START, false, FMT_COUNT
#define PAIRS 128, ACTS_PAIRS, false, FMT_COUNT
#define PAIRS_BIASES(scales) 128, ACTS_PAIRS, true, scales
#define SINGLES_START 64, ACTS_SINGLE_START, false, FMT_COUNT
#define SINGLES 64, ACTS_SINGLE, false, FMT_COUNT
#define SINGLES_BIASES(scales) 64, ACTS_SINGLE, true, scales
static const Step steps[KIND_COUNT] = {
    [Q4_0] = {128, 72, PAIRS_START},
    [Q4_1] = {128, 80, PAIRS_START},
    [Q5_0] = {128, 88, PAIRS_START},
    [Q5_1] = {128, 96, PAIRS_START},
    [Q8_0] = {128, 136, SINGLES_START},
    [Q1_0] = {128, 18, SINGLES_START},
    [Q2_K] = {256, 84, PAIRS},
    [Q3_K] = {256, 110, PAIRS_START},
    [Q4_K] = {256, 144, SINGLES},
    [Q5_K] = {256, 176, SINGLES},
    [Q6_K] = {256, 210, SINGLES_START},
    [TQ2_0] = {256, 66, PAIRS_START},
    [IQ4_NL] = {128, 72, PAIRS_START},
    [IQ4_XS] = {256, 136, PAIRS_START},
    [MXFP4] = {128, 68, PAIRS_START},
    [NVFP4] = {128, 72, PAIRS_START},
    [MXFP4P] = {128, 64, PAIRS_START},
    [NVFP4P] = {128, 64, PAIRS_START},
    [AFFINE1] = {128, 16, PAIRS_BIASES(FMT_COUNT)},
    [AFFINE2] = {128, 32, PAIRS_BIASES(FMT_COUNT)},
    [AFFINE3] = {128, 48, PAIRS_BIASES(FMT_COUNT)},
    [AFFINE5] = {128, 80, PAIRS_BIASES(FMT_COUNT)},
    [AFFINE6] = {128, 96, PAIRS_BIASES(FMT_COUNT)},
    [AFFINE4_F32] = {128, 64, PAIRS_BIASES(FMT_F32)},
    [AFFINE4_F16] = {128, 64, PAIRS_BIASES(FMT_F16)},
    [AFFINE4_BF16] = {128, 64, PAIRS_BIASES(FMT_BF16)},
    [AFFINE8_F32] = {128, 128, SINGLES_BIASES(FMT_F32)},
    [AFFINE8_F16] = {128, 128, SINGLES_BIASES(FMT_F16)},
    [AFFINE8_BF16] = {128, 128, SINGLES_BIASES(FMT_BF16)},
};

#define RUN4(b) (b), (b) + 1, (b) + 2, (b) + 3
#define RUN8(b) RUN4(b), RUN4((b) + 4)
#define RUN12(b) RUN8(b), RUN4((b) + 8)
#define RUN16(b) RUN8(b), RUN8((b) + 8)

/* What all rows of one call share. */
typedef struct Plan {
    __m512i scale_index[2]; /* AFFINE: lane to entry, of A (or both) and of B */
    __m512i bias_index;     /* block of 32 to entry */
    __mmask8 entries;       /* scale entries that a chunk reads */
    __mmask8 tail_entries;
    int tail_bytes; /* of the last k % 128 elements */
    int group_shift;
    FormatId scales; /* PLANE */
    float factor;    /* of the scales of NVFP4P */
    int64_t sums_at;
} Plan;

/* One step of a weight row: acc[c] += its products with `cols` records x that are xb apart. o: its
 * first element, p: its codes, s: its first scale (PLANE), tail: it has plan->tail_bytes. */
static ALWAYS_INLINE void step(Kind k, const Plan *plan, const uint8_t *p, const uint8_t *s, int o,
                               bool tail, const uint8_t *x, int64_t xb, int cols, __m512 *acc);

static ALWAYS_INLINE FormatId scales_of(Kind k, const Plan *plan)
{
    return steps[k].scales == FMT_COUNT ? plan->scales : steps[k].scales;
}

/* Bytes of an entry of the scale plane. */
static ALWAYS_INLINE int scale_size(Kind k, const Plan *plan)
{
    if (!steps[k].has_biases)
        return 1;
    return scales_of(k, plan) == FMT_F32 ? 4 : 2;
}

/* Records of the chunk that holds element o. */
static ALWAYS_INLINE const uint8_t *chunk_at(Kind k, const uint8_t *x, int o)
{
    return x + (int64_t)o / steps[k].chunk * steps[k].chunk_bytes;
}

static ALWAYS_INLINE __m512i load_table(const void *p)
{
    return _mm512_load_si512(p);
}

/* The first n bytes of 64, the rest zero. */
static ALWAYS_INLINE __m512i load_bytes(const uint8_t *p, int n)
{
    const __mmask64 m = n <= 0 ? 0 : n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
    return _mm512_maskz_loadu_epi8(m, p);
}

static ALWAYS_INLINE __m512 f16_lanes(__m512i words)
{
    return _mm512_cvtph_ps(_mm512_castsi512_si256(words));
}

/* acc[c] += (start + a . A + b . B) * scale * scale of X, for `cols` records x that are xb apart.
 */
static ALWAYS_INLINE void madd_pairs(__m512i a, __m512i b, __m512 scale, bool start,
                                     const uint8_t *x, int64_t xb, int cols, __m512 *acc)
{
    UNROLL for (int c = 0; c < cols; c++)
    {
        const uint8_t *X = x + c * xb;
        __m512i d = start ? _mm512_load_si512(X + 192) : _mm512_setzero_si512();
        d = _mm512_dpbusd_epi32(d, a, _mm512_load_si512(X));
        d = _mm512_dpbusd_epi32(d, b, _mm512_load_si512(X + 64));
        const __m512 s = _mm512_mul_ps(scale, _mm512_load_ps(X + 128));
        acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), s, acc[c]);
    }
}

static ALWAYS_INLINE void madd_single(__m512i a, __m512 scale, bool start, const uint8_t *x,
                                      int64_t xb, int cols, __m512 *acc)
{
    UNROLL for (int c = 0; c < cols; c++)
    {
        const uint8_t *X = x + c * xb;
        __m512i d = start ? _mm512_load_si512(X + 128) : _mm512_setzero_si512();
        d = _mm512_dpbusd_epi32(d, a, _mm512_load_si512(X));
        const __m512 s = _mm512_mul_ps(scale, _mm512_load_ps(X + 64));
        acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), s, acc[c]);
    }
}

static ALWAYS_INLINE __m512i low_nibbles(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

static ALWAYS_INLINE __m512i high_nibbles(__m512i v)
{
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}

static ALWAYS_INLINE __m512i load_half(const uint8_t *p)
{
    return _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i_u *)(const void *)p));
}

/* Lane l: entry first + l / 2 of v, and first + l / 4. */
static ALWAYS_INLINE __m512 each_twice(__m512 v, int first)
{
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(first)), v);
}

static ALWAYS_INLINE __m512 each_4_times(__m512 v, int first)
{
    const __m512i index = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(first)), v);
}

/* d times sixteen signed bytes. */
static ALWAYS_INLINE __m512 scaled_bytes(float d, __m128i bytes)
{
    return _mm512_mul_ps(_mm512_set1_ps(d), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

/* Scales of an AFFINE format, spread to lanes. */
static ALWAYS_INLINE __m512 plane_lanes(FormatId format, const uint8_t *s, __mmask8 entries,
                                        __m512i index)
{
    if (format == FMT_F32)
        return _mm512_permutexvar_ps(index, _mm512_castps128_ps512(_mm_maskz_loadu_ps(entries, s)));
    const __m512i v = _mm512_castsi128_si512(_mm_maskz_loadu_epi16(entries, s));
    if (format == FMT_F16) /* the index's words are all set: word 2 l is lane l's */
        return f16_lanes(_mm512_permutexvar_epi16(index, v));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaaU, index, v));
}

/* acc[c] += bias . block sums, 16 blocks of 32 at a time. */
static ALWAYS_INLINE void add_biases(Kind k, const Plan *plan, const uint8_t *biases, int elements,
                                     const uint8_t *sums, int64_t xb, int cols, __m512 *acc)
{
    const FormatId format = scales_of(k, plan);
    const int groups = elements >> plan->group_shift;
    const int per = 512 >> plan->group_shift; /* groups of 16 blocks */
    for (int g = 0; g < groups; g += per, biases += per * scale_size(k, plan), sums += 64) {
        const int n = groups - g < per ? groups - g : per;
        const __mmask16 m = (__mmask16)((1U << n) - 1);
        __m512 b;
        if (format == FMT_F32) {
            b = _mm512_maskz_loadu_ps(m, biases);
        } else {
            const __m256i h = _mm256_maskz_loadu_epi16(m, biases);
            b = format == FMT_F16
                    ? _mm512_cvtph_ps(h)
                    : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        }
        b = _mm512_permutexvar_ps(plan->bias_index, b);
        UNROLL for (int c = 0; c < cols; c++) acc[c] =
            _mm512_fmadd_ps(b, _mm512_load_ps(sums + c * xb), acc[c]);
    }
}

static ALWAYS_INLINE void put(const LinOut *out, int64_t r, int64_t j, float v)
{
    if (out->bias)
        v += out->bias[j];
    if (out->add)
        v += out->add[r * out->ld_add + j];
    out->y[r * out->ldy + j] = v;
}

/* Weight rows j, j + apart, .. (n_w of them) with activation rows r .. r + cols - 1. */
static ALWAYS_INLINE void dots(Kind k, const Plan *plan, const RowView *w, int64_t j, int64_t apart,
                               int n_w, const uint8_t *x, int64_t xb, int64_t r, int cols,
                               const LinOut *out)
{
    __m512 acc[MAX_ROWS * MAX_COLS]; // [weight row][activation row]
    const uint8_t *p = w->data + j * w->row_bytes;
    const uint8_t *s = w->scales ? w->scales + j * w->scale_row_bytes : p;
    const int64_t p_apart = apart * w->row_bytes;
    const int64_t s_apart = w->scales ? apart * w->scale_row_bytes : 0;
    UNROLL for (int i = 0; i < n_w * cols; i++) acc[i] = _mm512_setzero_ps();
    if (steps[k].has_biases) {
        const uint8_t *b = w->biases + j * w->scale_row_bytes;
        UNROLL for (int i = 0; i < n_w; i++)
            add_biases(k, plan, b + i * s_apart, w->k, x + plan->sums_at, xb, cols, acc + i * cols);
    }
    const int whole = w->k - w->k % steps[k].elements;
    for (int o = 0; o < whole; o += steps[k].elements, p += steps[k].bytes) {
        UNROLL for (int i = 0; i < n_w; i++)
        {
            UNROLL for (int l = 0; l < (steps[k].bytes + 32) / 64; l++)
                _mm_prefetch((const char *)(p + i * p_apart + AHEAD + 64 * l), _MM_HINT_T0);
        }
        UNROLL for (int i = 0; i < n_w; i++)
            step(k, plan, p + i * p_apart, s + i * s_apart, o, false, x, xb, cols, acc + i * cols);
    }
    if (steps[k].elements == 128 && whole < w->k) {
        UNROLL for (int i = 0; i < n_w; i++) step(k, plan, p + i * p_apart, s + i * s_apart, whole,
                                                  true, x, xb, cols, acc + i * cols);
    }
    UNROLL for (int i = 0; i < n_w * cols; i += 4)
    {
        const int last = n_w * cols - 1;
        float sum[4];
        _mm_storeu_ps(sum,
                      vf_fold4(acc[i], acc[i + 1 < last ? i + 1 : last],
                               acc[i + 2 < last ? i + 2 : last], acc[i + 3 < last ? i + 3 : last]));
        for (int t = 0; t < 4 && i + t <= last; t++)
            put(out, r + (i + t) % cols, j + (i + t) / cols * apart, sum[t]);
    }
}

/* What one function below multiplies: weight rows j, j + apart, .. with rows r .. of x. */
typedef struct Call {
    const Plan *plan;
    const RowView *w;
    const LinOut *out;
    const uint8_t *x; /* record of row r */
    int64_t row_bytes;
    int64_t r;
    int64_t apart;
} Call;

typedef void (*DotsFn)(const Call *c, int64_t j);

/* A kind's functions by shape: activation rows, then weight rows at a time. */
typedef struct Dots {
    DotsFn one_by_one, one_by_four, two_by_four, four_by_two, eight_by_one;
} Dots;

/* All weight rows, n_w at a time, with `cols` activation rows. */
static void pass(const Dots *dots, DotsFn f, Call *c, int n_w, int cols, int64_t j0, int64_t j1)
{
    c->apart = (j1 - j0) / n_w;
    for (int64_t j = j0; j < j0 + c->apart; j++)
        f(c, j);
    for (int i = 0; i < cols; i++, c->r++, c->x += c->row_bytes)
        for (int64_t j = j0 + c->apart * n_w; j < j1; j++)
            dots->one_by_one(c, j);
}

static ALWAYS_INLINE Plan make_plan(Kind k, const RowView *w)
{
    const int tail = w->k % 128;
    Plan plan = {.scales = w->scale_format, .factor = 1};
    plan.tail_bytes = (int)format_row_bytes(w->format, tail);
    plan.sums_at = lin_acts_sums_at(w->k, steps[k].chunk_bytes, steps[k].chunk);
    if (!w->scales)
        return plan;
    const int shift = w->group == 16 ? 4 : w->group == 32 ? 5 : w->group == 64 ? 6 : 7;
    plan.group_shift = shift;
    plan.entries = (__mmask8)((1U << (128 >> shift)) - 1);
    plan.tail_entries = (__mmask8)((1U << ((tail + w->group - 1) >> shift)) - 1);
    if (w->format == FMT_NVFP4S)
        plan.factor = w->factor_divides ? 1 / w->factor : w->factor;
    if (!steps[k].has_biases)
        return plan;
    const bool is_single = steps[k].chunk == 64;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    plan.bias_index = _mm512_srl_epi32(lane, _mm_cvtsi32_si128(shift - 5));
    for (int h = 0; h < 2; h++) {
        const __m512i at =
            is_single ? _mm512_add_epi32(_mm512_slli_epi32(lane, 2), _mm512_set1_epi32(64 * h))
                      : _mm512_slli_epi32(lane, 3);
        const __m512i entry = _mm512_srl_epi32(at, _mm_cvtsi32_si128(shift));
        if (plan.scales == FMT_F16) /* sixteen words, for a conversion of 256 bits */
            plan.scale_index[h] = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(entry));
        else if (plan.scales == FMT_F32)
            plan.scale_index[h] = entry;
        else /* the upper word of a lane, whose lower one is zeroed */
            plan.scale_index[h] = _mm512_slli_epi32(entry, 16);
    }
    return plan;
}

static void run(const Dots *dots, const Plan *plan, const LinLayout *layout, const RowView *w,
                int64_t j0, int64_t j1, const uint8_t *x, int rows, const LinOut *out)
{
    Call c = {.plan = plan, .w = w, .out = out, .x = x, .row_bytes = layout->row_bytes(w->k)};
    while (c.r < rows) { /* pass advances it */
        const int64_t left = rows - c.r;
        if (left >= 8)
            pass(dots, dots->eight_by_one, &c, 1, 8, j0, j1);
        else if (left >= 4)
            pass(dots, dots->four_by_two, &c, 2, 4, j0, j1);
        else if (left >= 2)
            pass(dots, dots->two_by_four, &c, 4, 2, j0, j1);
        else
            pass(dots, dots->one_by_four, &c, 4, 1, j0, j1);
    }
}

static int64_t no_work_bytes(int k)
{
    (void)k;
    return 0;
}

#define DOTS_FUNCTION(kind, cols, n_w)                                                             \
    static void kind##_##cols##_by_##n_w(const Call *c, int64_t j)                                 \
    {                                                                                              \
        dots(kind, c->plan, c->w, j, c->apart, n_w, c->x, c->row_bytes, c->r, cols, c->out);       \
    }
#define DOTS(kind)                                                                                 \
    DOTS_FUNCTION(kind, 1, 1)                                                                      \
    DOTS_FUNCTION(kind, 1, 4)                                                                      \
    DOTS_FUNCTION(kind, 2, 4)                                                                      \
    DOTS_FUNCTION(kind, 4, 2)                                                                      \
    DOTS_FUNCTION(kind, 8, 1)                                                                      \
    static const Dots dots_##kind = {kind##_1_by_1, kind##_1_by_4, kind##_2_by_4, kind##_4_by_2,   \
                                     kind##_8_by_1};

#define KERNEL(id, acts, body)                                                                     \
    static void id##_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,     \
                         const LinOut *out, uint8_t *work)                                         \
    {                                                                                              \
        const LinLayout *layout = &lin_acts_##acts;                                                \
        (void)work;                                                                                \
        body                                                                                       \
    }                                                                                              \
    static const LinKernel id = {.name = "avx512vnni " #id,                                        \
                                 .layout = &lin_acts_##acts,                                       \
                                 .max_rows = 0,                                                    \
                                 .tile_rows = 16,                                                  \
                                 .invariant = true,                                                \
                                 .run = id##_run,                                                  \
                                 .work_bytes = no_work_bytes};

#define RUN(kind)                                                                                  \
    {                                                                                              \
        const Plan plan = make_plan(kind, w);                                                      \
        run(&dots_##kind, &plan, layout, w, j0, j1, x, rows, out);                                 \
    }

#endif
#endif
