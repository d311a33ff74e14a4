#include "device/cpu/lin_acts.h"

#include "device/cpu/lin_vec.h"

typedef enum Order { HALVES, ODD, EIGHTS, NATURAL, Q4_K } Order;
/* What a layout has beside codes and scales; SUMS: of blocks of 32, SUMS_16: of 16. */
typedef enum Extra { START, SCALED, SUMS, SUMS_16 } Extra;

typedef struct Shape {
    Order order;
    Extra extra;
    int offset;
    float scale; /* multiplies the scales */
} Shape;

static ALWAYS_INLINE bool pairs(Shape s)
{
    return s.order == HALVES || s.order == ODD || s.order == EIGHTS;
}

static ALWAYS_INLINE bool has_sums(Shape s)
{
    return s.extra == SUMS || s.extra == SUMS_16;
}

/* Sums in 128 elements. */
static ALWAYS_INLINE int n_sums(Shape s)
{
    return s.extra == SUMS_16 ? 8 : 4;
}

static ALWAYS_INLINE int chunk_bytes(Shape s)
{
    if (pairs(s))
        return has_sums(s) ? ACTS_PAIRS : ACTS_PAIRS_START;
    return has_sums(s) ? ACTS_SINGLE : ACTS_SINGLE_START;
}

static ALWAYS_INLINE int chunk_elements(Shape s)
{
    return pairs(s) ? 128 : 64;
}

static ALWAYS_INLINE int64_t record_bytes(Shape s, int k)
{
    const int64_t sums = has_sums(s) ? i64_round_up((int64_t)k / (128 / n_sums(s)) * 4, 64) : 0;
    return lin_acts_sums_at(k, chunk_bytes(s), chunk_elements(s)) + sums;
}

/* v[j] lane l = element 4 l + j of the 64 in z0..z3. */
static ALWAYS_INLINE void spread(__m512 z0, __m512 z1, __m512 z2, __m512 z3, __m512 v[4])
{
    const __m512i index =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    for (int j = 0; j < 4; j++) {
        const __m512i at = _mm512_add_epi32(index, _mm512_set1_epi32(j));
        const __m512 lo = _mm512_permutex2var_ps(z0, at, z1);
        const __m512 hi = _mm512_permutex2var_ps(z2, at, z3);
        v[j] = _mm512_shuffle_f32x4(lo, hi, 0x44);
    }
}

/* Lanes: the largest magnitude of n vectors. */
static ALWAYS_INLINE __m512 lane_max(const __m512 *v, int n)
{
    __m512 max = _mm512_abs_ps(v[0]);
    for (int i = 1; i < n; i++)
        max = _mm512_max_ps(max, _mm512_abs_ps(v[i]));
    return max;
}

/* Four vectors to four bytes a lane; adds them to *sum. */
static ALWAYS_INLINE __m512i quantise4(const __m512 v[4], __m512 inverse, __m512i *sum)
{
    const __m512i byte = _mm512_set1_epi32(255);
    __m512i packed = _mm512_setzero_si512();
    for (int j = 0; j < 4; j++) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[j], inverse));
        *sum = _mm512_add_epi32(*sum, q);
        packed =
            _mm512_or_si512(packed, _mm512_slli_epi32(_mm512_and_si512(q, byte), 8U * (unsigned)j));
    }
    return packed;
}

/* One chunk from n / 4 groups of four vectors: codes, scales, start. Returns scale * sum(q). */
static ALWAYS_INLINE __m512 write_chunk(Shape s, const __m512 *v, int n, uint8_t *out)
{
    const __m512 max = lane_max(v, n);
    const __mmask16 some = _mm512_cmp_ps_mask(max, _mm512_set1_ps(0x1p-120F), _CMP_NLT_UQ);
    const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(127.0F), max);
    const __m512 scale = _mm512_maskz_mul_ps(some, max, _mm512_set1_ps(1.0F / 127.0F));
    __m512i sum = _mm512_setzero_si512();
    for (int g = 0; g < n / 4; g++, out += 64)
        _mm512_store_si512(out, quantise4(v + 4 * g, inverse, &sum));
    _mm512_store_ps(out, _mm512_mul_ps(scale, _mm512_set1_ps(s.scale)));
    const __m512 scaled = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum));
    if (s.extra == START)
        _mm512_store_si512(out + 64, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-s.offset)));
    if (s.extra == SCALED)
        _mm512_store_ps(out + 64, scaled);
    return scaled;
}

/* Each lane: the sum of its group of n lanes: 2, 4 or 8. */
static ALWAYS_INLINE __m512 group_sum(__m512 v, int n)
{
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
    if (n > 2)
        v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
    return n > 4 ? _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1)) : v;
}

/* z (8 vectors in natural order) to A and B, four vectors each: vector t holds element t of each
 * lane. */
static ALWAYS_INLINE void split(Order order, const __m512 z[8], __m512 v[8])
{
    if (order == HALVES) {
        spread(z[0], z[2], z[4], z[6], v);
        spread(z[1], z[3], z[5], z[7], v + 4);
        return;
    }
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i first =
        _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    __m512 lo[4];
    __m512 hi[4];
    spread(z[0], z[1], z[2], z[3], lo);
    spread(z[4], z[5], z[6], z[7], hi);
    for (int t = 0; t < 8; t++) {
        if (order == ODD) /* element 8 l + t of lane l; even t are A */
            v[t / 2 + t % 2 * 4] = _mm512_permutex2var_ps(lo[t % 4], t < 4 ? even : odd, hi[t % 4]);
        else
            v[t] = _mm512_permutex2var_ps(lo[t % 4], t < 4 ? first : second, hi[t % 4]);
    }
}

/* 128 elements z (8 vectors in natural order). sums: those of its blocks. */
static ALWAYS_INLINE void pack_128(Shape s, const __m512 z[8], uint8_t *out, float *sums)
{
    __m512 v[8];
    ALIGNED(64) float lane[2][16];
    if (pairs(s)) {
        const int lanes = 16 / n_sums(s);
        split(s.order, z, v);
        _mm512_store_ps(lane[0], group_sum(write_chunk(s, v, 8, out), lanes));
        if (has_sums(s))
            for (int i = 0; i < n_sums(s); i++)
                sums[i] = lane[0][lanes * i];
        return;
    }
    if (s.order == NATURAL) {
        spread(z[0], z[1], z[2], z[3], v);
        spread(z[4], z[5], z[6], z[7], v + 4);
    } else {
        spread(z[0], z[1], z[4], z[5], v);
        spread(z[2], z[3], z[6], z[7], v + 4);
    }
    _mm512_store_ps(lane[0], group_sum(write_chunk(s, v, 4, out), 8));
    _mm512_store_ps(lane[1], group_sum(write_chunk(s, v + 4, 4, out + chunk_bytes(s)), 8));
    if (has_sums(s))
        for (int i = 0; i < 4; i++)
            sums[i] = s.order == Q4_K ? lane[i % 2][i / 2 * 8] : lane[i / 2][i % 2 * 8];
}

static ALWAYS_INLINE void pack_row(Shape s, const float *x, int k, uint8_t *out)
{
    const int step = 128 / chunk_elements(s) * chunk_bytes(s);
    const int64_t sums_at = lin_acts_sums_at(k, chunk_bytes(s), chunk_elements(s));
    if (has_sums(s))
        memset(out + sums_at, 0, (size_t)(record_bytes(s, k) - sums_at));
    for (int o = 0; o < k; o += 128, out += step) {
        __m512 z[8];
        for (int i = 0; i < 8; i++) /* k is a multiple of 32 */
            z[i] = o + 16 * i < k ? _mm512_loadu_ps(x + o + 16 * i) : _mm512_setzero_ps();
        float sums[8];
        pack_128(s, z, out, sums);
        if (has_sums(s)) {
            const int block = 128 / n_sums(s);
            const int n = k - o < 128 ? (k - o) / block : n_sums(s);
            memcpy(out + sums_at - o / 128 * step + o / block * 4, sums, (size_t)n * 4);
        }
    }
}

#define LAYOUT(id, ...)                                                                            \
    static int64_t id##_bytes(int k)                                                               \
    {                                                                                              \
        return record_bytes((Shape){__VA_ARGS__}, k);                                              \
    }                                                                                              \
    static void id##_pack(const float *x, int64_t ldx, const int32_t *idx, int rows, int k,        \
                          uint8_t *out)                                                            \
    {                                                                                              \
        const int64_t bytes = id##_bytes(k);                                                       \
        for (int r = 0; r < rows; r++)                                                             \
            pack_row((Shape){__VA_ARGS__}, x + (idx ? idx[r] : r) * ldx, k, out + r * bytes);      \
    }                                                                                              \
    const LinLayout lin_acts_##id = {"i8 " #id, id##_bytes, id##_pack};

LAYOUT(q4_0, HALVES, START, 8, 1.0F)
LAYOUT(q4_1, HALVES, SCALED, 0, 1.0F)
LAYOUT(mxfp4, HALVES, START, 12, 0.5F)
LAYOUT(mxfp4p, ODD, START, 12, 0.5F)
LAYOUT(affine4, ODD, SUMS, 0, 1.0F)
LAYOUT(q5_0, HALVES, START, 16, 1.0F)
LAYOUT(iq4, HALVES, START, 127, 1.0F)
LAYOUT(affine2, EIGHTS, SUMS, 0, 1.0F)
LAYOUT(q2_k, EIGHTS, SUMS_16, 0, 1.0F)
LAYOUT(q3_k, EIGHTS, START, 4, 1.0F)
LAYOUT(tq2_0, EIGHTS, START, 1, 1.0F)
LAYOUT(nvfp4, EIGHTS, START, 12, 0.5F)
LAYOUT(q1_0, NATURAL, START, 1, 1.0F)
LAYOUT(q8_0, NATURAL, START, 128, 1.0F)
LAYOUT(q6_k, NATURAL, START, 32, 1.0F)
LAYOUT(affine8, NATURAL, SUMS, 0, 1.0F)
LAYOUT(q4_k, Q4_K, SUMS, 0, 1.0F)
