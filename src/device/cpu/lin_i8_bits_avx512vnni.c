/* Codes of one to six bits of which no register of nibbles is made: sixteen elements side by side
 * are two groups of eight bytes, A and B (the order `eights` of lin_acts.h). */
#include "device/cpu/lin_i8.h"

/* Where the sixteen codes of a qword begin, 3 bits each; the eight of A and of B, 5 and 6 bits, in
 * two loads, of the first 64 bytes and of the last 64 (indices from 64). What follows a qword's
 * codes is any byte. */
static const ALIGNED(64) uint8_t qwords_3[64] = {RUN8(0),  RUN8(6),  RUN8(12), RUN8(18),
                                                 RUN8(24), RUN8(30), RUN8(36), RUN8(42)};
static const ALIGNED(64) uint8_t qwords_5[2][64] = {
    {RUN8(0), RUN8(10), RUN8(20), RUN8(30), RUN8(40), RUN8(50), RUN8(108), RUN8(118)},
    {RUN8(5), RUN8(15), RUN8(25), RUN8(35), RUN8(45), RUN8(55), RUN8(113), RUN8(123)}};
static const ALIGNED(64) uint8_t qwords_6[2][64] = {
    {RUN8(0), RUN8(12), RUN8(24), RUN8(36), RUN8(48), RUN8(92), RUN8(104), RUN8(116)},
    {RUN8(6), RUN8(18), RUN8(30), RUN8(42), RUN8(54), RUN8(98), RUN8(110), RUN8(122)}};

/* Codes of `bits` bits of each qword from bit `at` on to bytes. */
static ALWAYS_INLINE __m512i eight_codes(int bits, int at, __m512i qwords)
{
    const int64_t each = 0x0101010101010101;
    const int64_t place = 0x0706050403020100 * bits + each * at;
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set1_epi64(place), qwords),
                            _mm512_set1_epi8((char)((1 << bits) - 1)));
}

/* n: bytes there (tail). */
static ALWAYS_INLINE void step_affine(int bits, const Plan *plan, const uint8_t *p,
                                      const uint8_t *s, bool tail, const uint8_t *x, int64_t xb,
                                      int cols, __m512 *acc)
{
    const int bytes = 16 * bits;
    const int n = tail ? plan->tail_bytes : bytes;
    __m512i a;
    __m512i b;
    int at_b = 8 * bits; /* A and B in the same qwords */
    if (bits == 1) {
        const __m128i v = tail ? _mm512_castsi512_si128(load_bytes(p, n)) : load128(p);
        a = b = _mm512_cvtepu16_epi64(v);
    } else if (bits == 2) {
        const __m512i v = tail ? load_bytes(p, n) : load_half(p);
        a = b = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(v));
    } else if (bits == 3) {
        a = b = _mm512_permutexvar_epi8(load_table(qwords_3), load_bytes(p, n));
    } else {
        const uint8_t(*table)[64] = bits == 5 ? qwords_5 : qwords_6;
        const __m512i z0 = tail ? load_bytes(p, n) : _mm512_loadu_si512(p);
        const __m512i z1 = tail ? load_bytes(p + bytes - 64, n - (bytes - 64))
                                : _mm512_loadu_si512(p + bytes - 64);
        a = _mm512_permutex2var_epi8(z0, load_table(table[0]), z1);
        b = _mm512_permutex2var_epi8(z0, load_table(table[1]), z1);
        at_b = 0;
    }
    const __m512 scales = plane_lanes(plan->scales, s, tail ? plan->tail_entries : plan->entries,
                                      plan->scale_index[0]);
    madd_pairs(eight_codes(bits, 0, a), eight_codes(bits, at_b, b), scales, false, x, xb, cols,
               acc);
}

/* A half of a block of 256 keeps its elements 32 t + i in bits 2 t of byte i: those bytes for each
 * group of 16, those of A and of B. */
static ALWAYS_INLINE __m512i bytes_of_a(__m512i bytes)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 0, 2, 0, 2, 0, 2), bytes);
}

static ALWAYS_INLINE __m512i bytes_of_b(__m512i bytes)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(1, 3, 1, 3, 1, 3, 1, 3), bytes);
}

static ALWAYS_INLINE __m512i crumbs(__m512i bytes)
{
    const __m512i shift = _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6);
    return _mm512_and_si512(_mm512_srlv_epi64(bytes, shift), _mm512_set1_epi8(3));
}

/* sums: of the groups of 16, of record 0. */
static ALWAYS_INLINE void step_q2_k(const uint8_t *p, const uint8_t *x, const uint8_t *sums,
                                    int64_t xb, int cols, __m512 *acc)
{
    const __m128i both = load128(p);
    const __m128i low = _mm_set1_epi8(15);
    const __m512 scales = scaled_bytes(load_f16(p + 80), _mm_and_si128(both, low));
    const __m512 mins = scaled_bytes(load_f16(p + 82), _mm_and_si128(_mm_srli_epi16(both, 4), low));
    UNROLL for (int c = 0; c < cols; c++) acc[c] =
        _mm512_fnmadd_ps(mins, _mm512_load_ps(sums + c * xb), acc[c]);
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i codes = load_half(p + 16 + 32 * h);
        madd_pairs(crumbs(bytes_of_a(codes)), crumbs(bytes_of_b(codes)), each_twice(scales, 8 * h),
                   false, x + h * ACTS_PAIRS, xb, cols, acc);
    }
}

/* Codes with the third bits, which are bits 4 h + t of their bytes. */
static ALWAYS_INLINE __m512i add_third(__m512i codes, __m512i bytes, int h)
{
    const __m512i bit = _mm512_setr_epi64(
        0x0101010101010101, 0x0101010101010101, 0x0202020202020202, 0x0202020202020202,
        0x0404040404040404, 0x0404040404040404, 0x0808080808080808, 0x0808080808080808);
    const __mmask64 m = _mm512_test_epi8_mask(bytes, _mm512_slli_epi64(bit, 4U * (unsigned)h));
    return _mm512_mask_add_epi8(codes, m, codes, _mm512_set1_epi8(4));
}

static ALWAYS_INLINE void step_q3_k(const uint8_t *p, const uint8_t *x, int64_t xb, int cols,
                                    __m512 *acc)
{
    const __m512 scales = scaled_bytes(load_f16(p + 108), scales_q3_k(p + 96));
    const __m512i third_a = bytes_of_a(load_half(p));
    const __m512i third_b = bytes_of_b(load_half(p));
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i codes = load_half(p + 32 + 32 * h);
        madd_pairs(add_third(crumbs(bytes_of_a(codes)), third_a, h),
                   add_third(crumbs(bytes_of_b(codes)), third_b, h), each_twice(scales, 8 * h),
                   true, x + h * ACTS_PAIRS_START, xb, cols, acc);
    }
}

static ALWAYS_INLINE void step_tq2_0(const uint8_t *p, const uint8_t *x, int64_t xb, int cols,
                                     __m512 *acc)
{
    const __m512 scale = _mm512_set1_ps(load_f16(p + 64));
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i codes = load_half(p + 32 * h);
        madd_pairs(crumbs(bytes_of_a(codes)), crumbs(bytes_of_b(codes)), scale, true,
                   x + h * ACTS_PAIRS_START, xb, cols, acc);
    }
}

/* Bits to 0 and 2. */
static ALWAYS_INLINE void step_q1_0(const uint8_t *p, const uint8_t *x, int64_t xb, int cols,
                                    __m512 *acc)
{
    const __m512 scale = _mm512_set1_ps(load_f16(p));
    UNROLL for (int h = 0; h < 2; h++)
        madd_single(_mm512_maskz_set1_epi8(load_u64(p + 2 + 8 * h), 2), scale, true,
                    x + h * ACTS_SINGLE_START, xb, cols, acc);
}

static ALWAYS_INLINE void step(Kind k, const Plan *plan, const uint8_t *p, const uint8_t *s, int o,
                               bool tail, const uint8_t *x, int64_t xb, int cols, __m512 *acc)
{
    const uint8_t *X = chunk_at(k, x, o);
    switch ((int)k) {
    case Q1_0:
        step_q1_0(p, X, xb, cols, acc);
        return;
    case Q2_K:
        step_q2_k(p, X, x + plan->sums_at + o / 4, xb, cols, acc); /* 4 bytes per 16 */
        return;
    case Q3_K:
        step_q3_k(p, X, xb, cols, acc);
        return;
    case TQ2_0:
        step_tq2_0(p, X, xb, cols, acc);
        return;
    default:
        step_affine(steps[k].bytes / 16, plan, p,
                    s + (o >> plan->group_shift) * scale_size(k, plan), tail, X, xb, cols, acc);
        return;
    }
}

DOTS(Q1_0)
DOTS(Q2_K)
DOTS(Q3_K)
DOTS(TQ2_0)
DOTS(AFFINE1)
DOTS(AFFINE2)
DOTS(AFFINE3)
DOTS(AFFINE5)
DOTS(AFFINE6)

KERNEL(q1_0, q1_0, RUN(Q1_0))
KERNEL(q2_k, q2_k, RUN(Q2_K))
KERNEL(q3_k, q3_k, RUN(Q3_K))
KERNEL(tq2_0, tq2_0, RUN(TQ2_0))
KERNEL(affine1, affine2, RUN(AFFINE1))
KERNEL(affine2, affine2, RUN(AFFINE2))
KERNEL(affine3, affine2, RUN(AFFINE3))
KERNEL(affine5, affine2, RUN(AFFINE5))
KERNEL(affine6, affine2, RUN(AFFINE6))

const LinKernel *lin_i8_bits_avx512vnni(FormatId format)
{
    static const LinKernel *const kernels[FMT_COUNT] = {
        [FMT_Q1_0] = &q1_0,       [FMT_Q2_K] = &q2_k,       [FMT_Q3_K] = &q3_k,
        [FMT_TQ2_0] = &tq2_0,     [FMT_AFFINE1] = &affine1, [FMT_AFFINE2] = &affine2,
        [FMT_AFFINE3] = &affine3, [FMT_AFFINE5] = &affine5, [FMT_AFFINE6] = &affine6,
    };
    return kernels[format];
}
