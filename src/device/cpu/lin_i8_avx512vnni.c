/* Products with int8 activations, straight from the published layouts: for one row to a handful, or
 * for any number where the result must not depend on it.
 *
 * 128 weights are two registers of unsigned bytes, split from the nibbles in lane order; VNNI sums
 * 4 products a lane, a lane never leaves a block, so one multiply by a register of block scales
 * (spread with one permute) and one by the activations' scales finish a chunk. Offsets of signed
 * codes sit in the start value of the integer sum, biases in one multiply-add per 512 elements. All
 * integer sums are exact.
 *
 * Up to 4 weight rows are read at a time, far apart in [j0, j1): each is then a contiguous stream.
 * Neighbouring rows, interleaved inside a page, halve the speed or worse. The order of the float
 * operations of one result is the same for every number of rows. */
#include "device/cpu/lin_acts.h"
#include "device/cpu/lin_levels.h"
#include "device/cpu/lin_vec.h"

typedef enum Kind {
    Q4_0,
    Q4_1,
    Q8_0,
    Q4_K,
    Q6_K,
    MXFP4,
    MXFP4P,
    AFFINE4_F32,
    AFFINE4_F16,
    AFFINE4_BF16,
    AFFINE8_F32,
    AFFINE8_F16,
    AFFINE8_BF16,
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

#define RUN4(b) (b), (b) + 1, (b) + 2, (b) + 3
#define RUN8(b) RUN4(b), RUN4((b) + 4)
#define RUN12(b) RUN8(b), RUN4((b) + 8)
#define RUN16(b) RUN8(b), RUN8((b) + 8)
#define REP4(v) (v), (v), (v), (v)
#define REP8(v) REP4(v), REP4(v)
/* Codes of four blocks of 18, 20 or 17 bytes from two loads, of the first 64 bytes and of the last
 * 64 (indices from 64). */
static const ALIGNED(64) uint8_t codes_q4_0[64] = {RUN16(2), RUN16(20), RUN16(38), RUN8(56),
                                                   RUN8(120)};
static const ALIGNED(64) uint8_t codes_q4_1[64] = {RUN16(4), RUN16(24), RUN16(44), RUN16(112)};
static const ALIGNED(64) uint8_t codes_mxfp4[64] = {RUN16(1), RUN16(18), RUN16(35), RUN12(52),
                                                    RUN4(124)};
/* Words of the first 64 bytes that hold a lane's scale; the second halves are Q4_1's minimum. */
static const ALIGNED(64) uint16_t scales_q4_0[32] = {REP4(0), REP4(9), REP4(18), REP4(27)};
static const ALIGNED(64) uint16_t scales_q4_1[32] = {REP4(0), REP4(10), REP4(20), REP4(30),
                                                     REP4(1), REP4(11), REP4(21), REP4(31)};
static const ALIGNED(64) uint16_t scales_q8_0[32] = {REP8(0), REP8(17)};
/* Byte 0 of each lane: the block's exponent. */
#define EXP4(v) (v), 0, 0, 0, (v), 0, 0, 0, (v), 0, 0, 0, (v), 0, 0, 0
static const ALIGNED(64) uint8_t exps_mxfp4[64] = {EXP4(0), EXP4(17), EXP4(34), EXP4(51)};
static const ALIGNED(64) uint8_t exps_mxfp4p[64] = {EXP4(0), EXP4(1), EXP4(2), EXP4(3)};
static const uint64_t exp_bytes = 0x1111111111111111U;

/* What all rows of one call share. */
typedef struct Plan {
    __m512i scale_index[2]; /* PLANE: lane to entry, of A (or both) and of B */
    __m512i bias_index;     /* block of 32 to entry */
    __mmask8 entries;       /* scale entries that a chunk reads */
    __mmask8 tail_entries;
    int tail_blocks; /* blocks of 32 in the last k % 128 elements */
    int group_shift;
    int64_t sums_at;
} Plan;

static ALWAYS_INLINE bool is_affine4(Kind k)
{
    return k == AFFINE4_F32 || k == AFFINE4_F16 || k == AFFINE4_BF16;
}

static ALWAYS_INLINE bool is_affine8(Kind k)
{
    return k == AFFINE8_F32 || k == AFFINE8_F16 || k == AFFINE8_BF16;
}

static ALWAYS_INLINE bool is_f32(Kind k)
{
    return k == AFFINE4_F32 || k == AFFINE8_F32;
}

static ALWAYS_INLINE bool is_f16(Kind k)
{
    return k == AFFINE4_F16 || k == AFFINE8_F16;
}

static ALWAYS_INLINE int scale_size(Kind k)
{
    return k == MXFP4P ? 1 : is_f32(k) ? 4 : 2;
}

static ALWAYS_INLINE bool is_super(Kind k)
{
    return k == Q4_K || k == Q6_K;
}

/* Elements, bytes of weights and bytes of activations that a step takes. */
static ALWAYS_INLINE int step_elements(Kind k)
{
    return is_super(k) ? 256 : 128;
}

static ALWAYS_INLINE int step_bytes(Kind k)
{
    switch (k) {
    case Q4_0:
        return 72;
    case Q4_1:
        return 80;
    case Q8_0:
        return 136;
    case Q4_K:
        return 144;
    case Q6_K:
        return 210;
    case MXFP4:
        return 68;
    case AFFINE8_F32:
    case AFFINE8_F16:
    case AFFINE8_BF16:
        return 128;
    case MXFP4P:
    case AFFINE4_F32:
    case AFFINE4_F16:
    case AFFINE4_BF16:
        break;
    }
    return 64;
}

static ALWAYS_INLINE int chunk_bytes(Kind k)
{
    if (is_affine4(k))
        return ACTS_PAIRS;
    if (is_affine8(k) || k == Q4_K)
        return ACTS_SINGLE;
    return k == Q8_0 || k == Q6_K ? ACTS_SINGLE_START : ACTS_PAIRS_START;
}

static ALWAYS_INLINE int chunk_elements(Kind k)
{
    return is_affine8(k) || is_super(k) || k == Q8_0 ? 64 : 128;
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

static ALWAYS_INLINE __m512 exp_lanes(__m512i exps)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(exps, 23));
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

/* e2m1 codes to twice their value, plus 12. */
static ALWAYS_INLINE __m512i e2m1_bytes(__m512i codes)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

/* Four blocks of Q4_0, Q4_1 or MXFP4; n: blocks there (tail). */
static ALWAYS_INLINE void step_blocks(Kind k, const uint8_t *p, bool tail, int n, const uint8_t *x,
                                      int64_t xb, int cols, __m512 *acc)
{
    const int bytes = step_bytes(k);
    const __m512i z0 = tail ? load_bytes(p, n * bytes / 4) : _mm512_loadu_si512(p);
    const __m512i z1 = tail ? load_bytes(p + bytes - 64, n * bytes / 4 - (bytes - 64))
                            : _mm512_loadu_si512(p + bytes - 64);
    const uint8_t *table = k == Q4_0 ? codes_q4_0 : k == Q4_1 ? codes_q4_1 : codes_mxfp4;
    const __m512i codes = _mm512_permutex2var_epi8(z0, load_table(table), z1);
    __m512i a = low_nibbles(codes);
    __m512i b = high_nibbles(codes);
    if (k == MXFP4) {
        const __m512i e = _mm512_maskz_permutexvar_epi8(exp_bytes, load_table(exps_mxfp4), z0);
        madd_pairs(e2m1_bytes(a), e2m1_bytes(b), exp_lanes(e), true, x, xb, cols, acc);
        return;
    }
    const uint16_t *words = k == Q4_0 ? scales_q4_0 : scales_q4_1;
    const __m512i s = _mm512_permutexvar_epi16(load_table(words), z0);
    madd_pairs(a, b, f16_lanes(s), k == Q4_0, x, xb, cols, acc);
    if (k == Q4_1) {
        const __m512 min = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(s, 1));
        UNROLL for (int c = 0; c < cols; c++) acc[c] =
            _mm512_fmadd_ps(min, _mm512_load_ps(x + c * xb + 192), acc[c]);
    }
}

static ALWAYS_INLINE void step_q8_0(const uint8_t *p, bool tail, int n, const uint8_t *x,
                                    int64_t xb, int cols, __m512 *acc)
{
    for (int h = 0; h < 2; h++, p += 68, x += ACTS_SINGLE_START, n -= 2) {
        if (tail && n <= 0)
            return;
        const bool second = !tail || n > 1;
        const __m256i w0 = _mm256_loadu_si256((const __m256i_u *)(const void *)(p + 2));
        const __m256i w1 = _mm256_maskz_loadu_epi8(second ? ~(__mmask32)0 : 0, p + 36);
        const __m512i w = _mm512_inserti64x4(_mm512_castsi256_si512(w0), w1, 1);
        const __m512i z = second ? _mm512_loadu_si512(p) : load_bytes(p, 34);
        const __m512i s = _mm512_permutexvar_epi16(load_table(scales_q8_0), z);
        madd_single(_mm512_xor_si512(w, _mm512_set1_epi8(INT8_MIN)), f16_lanes(s), true, x, xb,
                    cols, acc);
    }
}

/* Scales of a PLANE format, spread to lanes. */
static ALWAYS_INLINE __m512 plane_lanes(Kind k, const uint8_t *s, __mmask8 entries, __m512i index)
{
    if (is_f32(k))
        return _mm512_permutexvar_ps(index, _mm512_castps128_ps512(_mm_maskz_loadu_ps(entries, s)));
    const __m512i v = _mm512_castsi128_si512(_mm_maskz_loadu_epi16(entries, s));
    if (is_f16(k)) /* the index's words are all set: word 2 l is lane l's */
        return f16_lanes(_mm512_permutexvar_epi16(index, v));
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaaU, index, v));
}

static ALWAYS_INLINE void step_nibble_plane(Kind k, const Plan *plan, const uint8_t *p,
                                            const uint8_t *s, bool tail, const uint8_t *x,
                                            int64_t xb, int cols, __m512 *acc)
{
    const __m512i codes = tail ? load_bytes(p, plan->tail_blocks * 16) : _mm512_loadu_si512(p);
    const __m512i a = low_nibbles(codes);
    const __m512i b = high_nibbles(codes);
    const __mmask8 entries = tail ? plan->tail_entries : plan->entries;
    if (k == MXFP4P) {
        const __m512i v = _mm512_castsi128_si512(_mm_maskz_loadu_epi8(entries, s));
        const __m512i e = _mm512_maskz_permutexvar_epi8(exp_bytes, load_table(exps_mxfp4p), v);
        madd_pairs(e2m1_bytes(a), e2m1_bytes(b), exp_lanes(e), true, x, xb, cols, acc);
        return;
    }
    madd_pairs(a, b, plane_lanes(k, s, entries, plan->scale_index[0]), false, x, xb, cols, acc);
}

static ALWAYS_INLINE void step_byte_plane(Kind k, const Plan *plan, const uint8_t *p,
                                          const uint8_t *s, bool tail, const uint8_t *x, int64_t xb,
                                          int cols, __m512 *acc)
{
    const __mmask8 entries = tail ? plan->tail_entries : plan->entries;
    for (int h = 0; h < 2; h++) {
        const int n = plan->tail_blocks - 2 * h;
        if (tail && n <= 0)
            return;
        const __m512i codes =
            tail ? load_bytes(p + 64 * h, n * 32) : _mm512_loadu_si512(p + 64 * h);
        madd_single(codes, plane_lanes(k, s, entries, plan->scale_index[h]), false,
                    x + h * ACTS_SINGLE, xb, cols, acc);
    }
}

/* Lane to sub-block scale of the 8 (Q4_K) or 16 (Q6_K) of a super-block, chunk u of 64. */
static ALWAYS_INLINE __m512 super_lanes(Kind k, __m512 scales, int u)
{
    const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i index = k == Q4_K ? _mm512_add_epi32(half, _mm512_set1_epi32(u / 2 * 4 + u % 2))
                                    : _mm512_add_epi32(quarter, _mm512_set1_epi32(u * 4));
    return _mm512_permutexvar_ps(index, scales);
}

static ALWAYS_INLINE float f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return _cvtsh_ss(h);
}

/* Eight bytes to f32 in the low half, times d. */
static ALWAYS_INLINE __m512 scaled_bytes(uint64_t bytes, float d)
{
    const __m256i v = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)bytes));
    return _mm512_zextps256_ps512(_mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(v)));
}

/* sums: of the super-block's eight sub-blocks, of record 0. */
static ALWAYS_INLINE void step_q4_k(const uint8_t *p, const uint8_t *x, const uint8_t *sums,
                                    int64_t xb, int cols, __m512 *acc)
{
    uint32_t u[3];
    memcpy(u, p + 4, sizeof u);
    const uint32_t sc_hi = (u[2] & 0x0f0f0f0fU) | (u[0] >> 2 & 0x30303030U);
    const uint32_t mn_hi = (u[2] >> 4 & 0x0f0f0f0fU) | (u[1] >> 2 & 0x30303030U);
    const uint64_t sc = (u[0] & 0x3f3f3f3fU) | (uint64_t)sc_hi << 32;
    const uint64_t mn = (u[1] & 0x3f3f3f3fU) | (uint64_t)mn_hi << 32;
    const __m512 scales = scaled_bytes(sc, f16_at(p));
    const __m512 mins = scaled_bytes(mn, f16_at(p + 2));
    UNROLL for (int c = 0; c < cols; c++)
    {
        const __m512 s = _mm512_maskz_loadu_ps(255, sums + c * xb);
        acc[c] = _mm512_fnmadd_ps(mins, s, acc[c]);
    }
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i codes = _mm512_loadu_si512(p + 16 + 64 * h);
        const uint8_t *X = x + 2 * h * ACTS_SINGLE;
        madd_single(low_nibbles(codes), super_lanes(Q4_K, scales, 2 * h), false, X, xb, cols, acc);
        madd_single(high_nibbles(codes), super_lanes(Q4_K, scales, 2 * h + 1), false,
                    X + ACTS_SINGLE, xb, cols, acc);
    }
}

/* A half (128 elements): low nibbles of 64 bytes are elements 0..63, high ones 64..127; the 32
 * bytes of bit pairs hold elements 0..31 in bits 0 and 1, 32..63 in the next two, and so on. */
static ALWAYS_INLINE void step_q6_k(const uint8_t *p, const uint8_t *x, int64_t xb, int cols,
                                    __m512 *acc)
{
    const __m512i bits = _mm512_set1_epi8(0x30);
    const __m512i left = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2);
    const __m512i right = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    const __m512i sc = _mm512_cvtepi8_epi32(load128(p + 192));
    const __m512 scales = _mm512_mul_ps(_mm512_set1_ps(f16_at(p + 208)), _mm512_cvtepi32_ps(sc));
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i lo = _mm512_loadu_si512(p + 64 * h);
        const __m512i hi = _mm512_broadcast_i64x4(
            _mm256_loadu_si256((const __m256i_u *)(const void *)(p + 128 + 32 * h)));
        const __m512i ha = _mm512_and_si512(_mm512_sllv_epi64(hi, left), bits);
        const __m512i hb = _mm512_and_si512(_mm512_srlv_epi64(hi, right), bits);
        const uint8_t *X = x + 2 * h * ACTS_SINGLE_START;
        madd_single(_mm512_or_si512(low_nibbles(lo), ha), super_lanes(Q6_K, scales, 2 * h), true, X,
                    xb, cols, acc);
        madd_single(_mm512_or_si512(high_nibbles(lo), hb), super_lanes(Q6_K, scales, 2 * h + 1),
                    true, X + ACTS_SINGLE_START, xb, cols, acc);
    }
}

static ALWAYS_INLINE void step(Kind k, const Plan *plan, const uint8_t *p, const uint8_t *s, int o,
                               bool tail, const uint8_t *x, int64_t xb, int cols, __m512 *acc)
{
    const uint8_t *X = x + (int64_t)o / chunk_elements(k) * chunk_bytes(k);
    switch (k) {
    case Q4_0:
    case Q4_1:
    case MXFP4:
        step_blocks(k, p, tail, plan->tail_blocks, X, xb, cols, acc);
        return;
    case Q8_0:
        step_q8_0(p, tail, plan->tail_blocks, X, xb, cols, acc);
        return;
    case Q4_K:
        step_q4_k(p, X, x + plan->sums_at + o / 8, xb, cols, acc); /* a sum of 4 bytes per 32 */
        return;
    case Q6_K:
        step_q6_k(p, X, xb, cols, acc);
        return;
    case MXFP4P:
    case AFFINE4_F32:
    case AFFINE4_F16:
    case AFFINE4_BF16:
        step_nibble_plane(k, plan, p, s + (o >> plan->group_shift) * scale_size(k), tail, X, xb,
                          cols, acc);
        return;
    case AFFINE8_F32:
    case AFFINE8_F16:
    case AFFINE8_BF16:
        step_byte_plane(k, plan, p, s + (o >> plan->group_shift) * scale_size(k), tail, X, xb, cols,
                        acc);
        return;
    }
}

/* acc[c] += bias . block sums, 16 blocks of 32 at a time. */
static ALWAYS_INLINE void add_biases(Kind k, const Plan *plan, const uint8_t *biases, int elements,
                                     const uint8_t *sums, int64_t xb, int cols, __m512 *acc)
{
    const int groups = elements >> plan->group_shift;
    const int per = 512 >> plan->group_shift; /* groups of 16 blocks */
    for (int g = 0; g < groups; g += per, biases += per * scale_size(k), sums += 64) {
        const int n = groups - g < per ? groups - g : per;
        const __mmask16 m = (__mmask16)((1U << n) - 1);
        __m512 b;
        if (is_f32(k)) {
            b = _mm512_maskz_loadu_ps(m, biases);
        } else {
            const __m256i h = _mm256_maskz_loadu_epi16(m, biases);
            b = is_f16(k) ? _mm512_cvtph_ps(h)
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
    if (is_affine4(k) || is_affine8(k)) {
        const uint8_t *b = w->biases + j * w->scale_row_bytes;
        UNROLL for (int i = 0; i < n_w; i++)
            add_biases(k, plan, b + i * s_apart, w->k, x + plan->sums_at, xb, cols, acc + i * cols);
    }
    const int whole = w->k - w->k % step_elements(k);
    for (int o = 0; o < whole; o += step_elements(k), p += step_bytes(k)) {
        UNROLL for (int i = 0; i < n_w; i++)
        {
            UNROLL for (int l = 0; l < (step_bytes(k) + 32) / 64; l++)
                _mm_prefetch((const char *)(p + i * p_apart + AHEAD + 64 * l), _MM_HINT_T0);
        }
        UNROLL for (int i = 0; i < n_w; i++)
            step(k, plan, p + i * p_apart, s + i * s_apart, o, false, x, xb, cols, acc + i * cols);
    }
    if (!is_super(k) && whole < w->k) {
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
    Plan plan = {.tail_blocks = w->k % 128 / 32};
    plan.sums_at = lin_acts_sums_at(w->k, chunk_bytes(k), chunk_elements(k));
    if (!w->scales)
        return plan;
    const int shift = w->group == 32 ? 5 : w->group == 64 ? 6 : 7;
    const int chunk = k == MXFP4P ? 128 : step_elements(k);
    plan.group_shift = shift;
    plan.entries = (__mmask8)((1U << (chunk >> shift)) - 1);
    plan.tail_entries = (__mmask8)((1U << ((plan.tail_blocks * 32 + w->group - 1) >> shift)) - 1);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    plan.bias_index = _mm512_srl_epi32(lane, _mm_cvtsi32_si128(shift - 5));
    for (int h = 0; h < 2; h++) {
        const __m512i at =
            is_affine8(k) ? _mm512_add_epi32(_mm512_slli_epi32(lane, 2), _mm512_set1_epi32(64 * h))
                          : _mm512_slli_epi32(lane, 3);
        const __m512i entry = _mm512_srl_epi32(at, _mm_cvtsi32_si128(shift));
        if (is_f16(k)) /* sixteen words, for a conversion of 256 bits */
            plan.scale_index[h] = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(entry));
        else if (is_f32(k))
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

DOTS(Q4_0)
DOTS(Q4_1)
DOTS(Q8_0)
DOTS(Q4_K)
DOTS(Q6_K)
DOTS(MXFP4)
DOTS(MXFP4P)
DOTS(AFFINE4_F32)
DOTS(AFFINE4_F16)
DOTS(AFFINE4_BF16)
DOTS(AFFINE8_F32)
DOTS(AFFINE8_F16)
DOTS(AFFINE8_BF16)

#define KERNEL(id, body)                                                                           \
    static void id##_run(const RowView *w, int64_t j0, int64_t j1, const uint8_t *x, int rows,     \
                         const LinOut *out, uint8_t *work)                                         \
    {                                                                                              \
        const LinLayout *layout = &lin_acts_##id;                                                  \
        (void)work;                                                                                \
        body                                                                                       \
    }                                                                                              \
    static const LinKernel id = {.name = "avx512vnni " #id,                                        \
                                 .layout = &lin_acts_##id,                                         \
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
#define RUN_BY_SCALES(kind)                                                                        \
    if (w->scale_format == FMT_F32)                                                                \
        RUN(kind##_F32)                                                                            \
    else if (w->scale_format == FMT_F16)                                                           \
        RUN(kind##_F16)                                                                            \
    else                                                                                           \
        RUN(kind##_BF16)

KERNEL(q4_0, RUN(Q4_0))
KERNEL(q4_1, RUN(Q4_1))
KERNEL(q8_0, RUN(Q8_0))
KERNEL(q4_k, RUN(Q4_K))
KERNEL(q6_k, RUN(Q6_K))
KERNEL(mxfp4, RUN(MXFP4))
KERNEL(mxfp4p, RUN(MXFP4P))
KERNEL(affine4, RUN_BY_SCALES(AFFINE4))
KERNEL(affine8, RUN_BY_SCALES(AFFINE8))

const LinKernel *lin_i8_avx512vnni(FormatId format)
{
    static const LinKernel *const kernels[FMT_COUNT] = {
        [FMT_Q4_0] = &q4_0,     [FMT_Q4_1] = &q4_1,       [FMT_Q8_0] = &q8_0,
        [FMT_Q4_K] = &q4_k,     [FMT_Q6_K] = &q6_k,       [FMT_MXFP4] = &mxfp4,
        [FMT_MXFP4P] = &mxfp4p, [FMT_AFFINE4] = &affine4, [FMT_AFFINE8] = &affine8,
    };
    return kernels[format];
}
