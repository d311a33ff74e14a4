/* Codes of four and eight bits, and those of five and six that lie as nibbles and more bits. */
#include "device/cpu/lin_i8.h"

#include "base/format_blocks.h"

#define REP4(v) (v), (v), (v), (v)
#define REP8(v) REP4(v), REP4(v)
/* Codes of four blocks of 17 to 24 bytes from two loads, of the first 64 bytes and of the last
 * 64 (indices from 64). */
static const ALIGNED(64) uint8_t codes_q4_0[64] = {RUN16(2), RUN16(20), RUN16(38), RUN8(56),
                                                   RUN8(120)};
static const ALIGNED(64) uint8_t codes_q4_1[64] = {RUN16(4), RUN16(24), RUN16(44), RUN16(112)};
static const ALIGNED(64) uint8_t codes_mxfp4[64] = {RUN16(1), RUN16(18), RUN16(35), RUN12(52),
                                                    RUN4(124)};
static const ALIGNED(64) uint8_t codes_q5_0[64] = {RUN16(6), RUN16(28), RUN16(90), RUN16(112)};
static const ALIGNED(64) uint8_t codes_q5_1[64] = {RUN16(8), RUN16(32), RUN16(88), RUN16(112)};
/* Words of the two loads that hold a lane's scale; the second halves are minima. */
static const ALIGNED(64) uint16_t scales_q4_0[32] = {REP4(0), REP4(9), REP4(18), REP4(27)};
static const ALIGNED(64) uint16_t scales_q4_1[32] = {REP4(0), REP4(10), REP4(20), REP4(30),
                                                     REP4(1), REP4(11), REP4(21), REP4(31)};
static const ALIGNED(64) uint16_t scales_q5_0[32] = {REP4(0), REP4(11), REP4(22), REP4(53)};
static const ALIGNED(64) uint16_t scales_q5_1[32] = {REP4(0), REP4(12), REP4(24), REP4(52),
                                                     REP4(1), REP4(13), REP4(25), REP4(53)};
static const ALIGNED(64) uint16_t scales_q8_0[32] = {REP8(0), REP8(17)};
/* Byte 0 of each lane: the block's exponent. */
#define EXP4(v) (v), 0, 0, 0, (v), 0, 0, 0, (v), 0, 0, 0, (v), 0, 0, 0
static const ALIGNED(64) uint8_t exps_mxfp4[64] = {EXP4(0), EXP4(17), EXP4(34), EXP4(51)};
static const ALIGNED(64) uint8_t exps_mxfp4p[64] = {EXP4(0), EXP4(1), EXP4(2), EXP4(3)};
static const uint64_t exp_bytes = 0x1111111111111111U;

static ALWAYS_INLINE __m512 exp_lanes(__m512i exps)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(exps, 23));
}

/* e2m1 codes to twice their value, plus 12. */
static ALWAYS_INLINE __m512i e2m1_bytes(__m512i codes)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

/* Codes of the IQ4 formats to their value, plus 127. */
static ALWAYS_INLINE __m512i iq4_bytes(__m512i codes)
{
    const __m128i values = load128((const uint8_t *)format_iq4);
    const __m128i table = _mm_add_epi8(values, _mm_set1_epi8(127));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

/* 32 bytes each; the second ones are 0 if they are not there. */
static ALWAYS_INLINE __m512i two_halves(const uint8_t *p0, const uint8_t *p1, bool second)
{
    const __m256i hi = _mm256_maskz_loadu_epi8(second ? ~(__mmask32)0 : 0, p1);
    return _mm512_inserti64x4(load_half(p0), hi, 1);
}

/* Sixteen bits at p of each of n blocks. */
static ALWAYS_INLINE __mmask64 block_bits(const uint8_t *p, int block_bytes, int n)
{
    uint64_t bits = 0;
    for (int b = 0; b < n; b++)
        bits |= (uint64_t)load_u16(p + b * block_bytes) << 16 * b;
    return bits;
}

static ALWAYS_INLINE __m512i add_fifth(__m512i codes, __mmask64 bits)
{
    return _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(16));
}

/* Where the codes of four blocks and their scales are. */
static ALWAYS_INLINE const uint8_t *block_codes(Kind k)
{
    switch ((int)k) {
    case Q4_1:
        return codes_q4_1;
    case Q5_0:
        return codes_q5_0;
    case Q5_1:
        return codes_q5_1;
    case MXFP4:
        return codes_mxfp4;
    default:
        return codes_q4_0;
    }
}

static ALWAYS_INLINE const uint16_t *block_scales(Kind k)
{
    switch ((int)k) {
    case Q4_1:
        return scales_q4_1;
    case Q5_0:
        return scales_q5_0;
    case Q5_1:
        return scales_q5_1;
    default:
        return scales_q4_0;
    }
}

/* Four blocks of 32; n: bytes there (tail). */
static ALWAYS_INLINE void step_blocks(Kind k, const uint8_t *p, bool tail, int n, const uint8_t *x,
                                      int64_t xb, int cols, __m512 *acc)
{
    const int bytes = steps[k].bytes;
    const __m512i z0 = tail ? load_bytes(p, n) : _mm512_loadu_si512(p);
    const __m512i z1 =
        tail ? load_bytes(p + bytes - 64, n - (bytes - 64)) : _mm512_loadu_si512(p + bytes - 64);
    const __m512i codes = _mm512_permutex2var_epi8(z0, load_table(block_codes(k)), z1);
    __m512i a = low_nibbles(codes);
    __m512i b = high_nibbles(codes);
    if (k == MXFP4) {
        const __m512i e = _mm512_maskz_permutexvar_epi8(exp_bytes, load_table(exps_mxfp4), z0);
        madd_pairs(e2m1_bytes(a), e2m1_bytes(b), exp_lanes(e), true, x, xb, cols, acc);
        return;
    }
    if (k == IQ4_NL) {
        a = iq4_bytes(a);
        b = iq4_bytes(b);
    }
    const bool has_fifth = k == Q5_0 || k == Q5_1;
    if (has_fifth) {
        const int blocks = tail ? n * 4 / bytes : 4;
        const uint8_t *fifth = p + (k == Q5_0 ? 2 : 4);
        a = add_fifth(a, block_bits(fifth, bytes / 4, blocks));
        b = add_fifth(b, block_bits(fifth + 2, bytes / 4, blocks));
    }
    const __m512i words = load_table(block_scales(k));
    const __m512i s =
        has_fifth ? _mm512_permutex2var_epi16(z0, words, z1) : _mm512_permutexvar_epi16(words, z0);
    const bool has_min = k == Q4_1 || k == Q5_1;
    madd_pairs(a, b, f16_lanes(s), !has_min, x, xb, cols, acc);
    if (has_min) {
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
        const __m512i w = two_halves(p + 2, p + 36, second);
        const __m512i z = second ? _mm512_loadu_si512(p) : load_bytes(p, 34);
        const __m512i s = _mm512_permutexvar_epi16(load_table(scales_q8_0), z);
        madd_single(_mm512_xor_si512(w, _mm512_set1_epi8(INT8_MIN)), f16_lanes(s), true, x, xb,
                    cols, acc);
    }
}

/* Eight e4m3 scales, each for two lanes. */
static ALWAYS_INLINE __m512 e4m3_lanes(__m128i codes)
{
    return vf_from_e4m3(_mm_unpacklo_epi8(codes, codes));
}

/* Two blocks of 64, of the last one or none. */
static ALWAYS_INLINE void step_nvfp4(const uint8_t *p, bool tail, const uint8_t *x, int64_t xb,
                                     int cols, __m512 *acc)
{
    const __m512i codes = two_halves(p + 4, p + 40, !tail);
    const __m128i mask = _mm_set1_epi8(0x7f);
    const __m128i s = _mm_and_si128(
        two_u64(load_u32(p) | (tail ? 0 : (uint64_t)load_u32(p + 36)) << 32, 0), mask);
    const __m128i scales = _mm_andnot_si128(_mm_cmpeq_epi8(s, mask), s);
    madd_pairs(e2m1_bytes(low_nibbles(codes)), e2m1_bytes(high_nibbles(codes)), e4m3_lanes(scales),
               true, x, xb, cols, acc);
}

static ALWAYS_INLINE void step_nibble_plane(Kind k, const Plan *plan, const uint8_t *p,
                                            const uint8_t *s, bool tail, const uint8_t *x,
                                            int64_t xb, int cols, __m512 *acc)
{
    const __m512i codes = tail ? load_bytes(p, plan->tail_bytes) : _mm512_loadu_si512(p);
    const __m512i a = low_nibbles(codes);
    const __m512i b = high_nibbles(codes);
    const __mmask8 entries = tail ? plan->tail_entries : plan->entries;
    if (steps[k].has_biases) {
        madd_pairs(a, b, plane_lanes(scales_of(k, plan), s, entries, plan->scale_index[0]), false,
                   x, xb, cols, acc);
        return;
    }
    const __m128i codes8 = _mm_maskz_loadu_epi8(entries, s);
    __m512 scales;
    if (k == MXFP4P) {
        const __m512i v = _mm512_castsi128_si512(codes8);
        const __m512i e = _mm512_maskz_permutexvar_epi8(exp_bytes, load_table(exps_mxfp4p), v);
        scales = exp_lanes(e);
    } else {
        scales = _mm512_mul_ps(e4m3_lanes(codes8), _mm512_set1_ps(plan->factor));
    }
    madd_pairs(e2m1_bytes(a), e2m1_bytes(b), scales, true, x, xb, cols, acc);
}

static ALWAYS_INLINE void step_byte_plane(Kind k, const Plan *plan, const uint8_t *p,
                                          const uint8_t *s, bool tail, const uint8_t *x, int64_t xb,
                                          int cols, __m512 *acc)
{
    const __mmask8 entries = tail ? plan->tail_entries : plan->entries;
    for (int h = 0; h < 2; h++) {
        const int n = plan->tail_bytes - 64 * h;
        if (tail && n <= 0)
            return;
        const __m512i codes = tail ? load_bytes(p + 64 * h, n) : _mm512_loadu_si512(p + 64 * h);
        const __m512 scales = plane_lanes(scales_of(k, plan), s, entries, plan->scale_index[h]);
        madd_single(codes, scales, false, x + h * ACTS_SINGLE, xb, cols, acc);
    }
}

/* Q4_K, or Q5_K. Each half holds four sub-blocks, the even ones as low nibbles of 64 bytes; bit j
 * of Q5_K's 32 bytes is the fifth one in sub-block j. sums: of the eight, of record 0. */
static ALWAYS_INLINE void step_q45_k(Kind k, const uint8_t *p, const uint8_t *x,
                                     const uint8_t *sums, int64_t xb, int cols, __m512 *acc)
{
    const __m512i index = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m128i both = scales_q4_k(p + 4);
    const __m512 scales = scaled_bytes(load_f16(p), both);
    const __m512 mins = scaled_bytes(load_f16(p + 2), _mm_srli_si128(both, 8)); /* and zeros */
    const uint8_t *fifth = p + 16;
    p += k == Q5_K ? 48 : 16;
    UNROLL for (int c = 0; c < cols; c++)
    {
        const __m512 s = _mm512_maskz_loadu_ps(255, sums + c * xb);
        acc[c] = _mm512_fnmadd_ps(mins, s, acc[c]);
    }
    const __m512i bits = k == Q5_K
                             ? _mm512_broadcast_i64x4(_mm512_castsi512_si256(load_half(fifth)))
                             : _mm512_setzero_si512();
    UNROLL for (int h = 0; h < 4; h++)
    {
        const __m512i codes = _mm512_loadu_si512(p + 64 * (h / 2));
        __m512i q = h % 2 ? high_nibbles(codes) : low_nibbles(codes);
        const int j = h / 2 * 4 + h % 2; /* and j + 2 */
        if (k == Q5_K) {
            const __m512i bit = _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << j)),
                                                   _mm256_set1_epi8((char)(4 << j)), 1);
            q = add_fifth(q, _mm512_test_epi8_mask(bits, bit));
        }
        const __m512 s =
            _mm512_permutexvar_ps(_mm512_add_epi32(index, _mm512_set1_epi32(j)), scales);
        madd_single(q, s, false, x + h * ACTS_SINGLE, xb, cols, acc);
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
    const __m512 scales = scaled_bytes(load_f16(p + 208), load128(p + 192));
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i lo = _mm512_loadu_si512(p + 64 * h);
        const __m512i hi = _mm512_broadcast_i64x4(
            _mm256_loadu_si256((const __m256i_u *)(const void *)(p + 128 + 32 * h)));
        const __m512i ha = _mm512_and_si512(_mm512_sllv_epi64(hi, left), bits);
        const __m512i hb = _mm512_and_si512(_mm512_srlv_epi64(hi, right), bits);
        const uint8_t *X = x + 2 * h * ACTS_SINGLE_START;
        madd_single(_mm512_or_si512(low_nibbles(lo), ha), each_4_times(scales, 8 * h), true, X, xb,
                    cols, acc);
        madd_single(_mm512_or_si512(high_nibbles(lo), hb), each_4_times(scales, 8 * h + 4), true,
                    X + ACTS_SINGLE_START, xb, cols, acc);
    }
}

static ALWAYS_INLINE void step_iq4_xs(const uint8_t *p, const uint8_t *x, int64_t xb, int cols,
                                      __m512 *acc)
{
    const __m512 scales = scaled_bytes(load_f16(p), scales_iq4_xs(p));
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i codes = _mm512_loadu_si512(p + 8 + 64 * h);
        madd_pairs(iq4_bytes(low_nibbles(codes)), iq4_bytes(high_nibbles(codes)),
                   each_4_times(scales, 4 * h), true, x + h * ACTS_PAIRS_START, xb, cols, acc);
    }
}

static ALWAYS_INLINE void step(Kind k, const Plan *plan, const uint8_t *p, const uint8_t *s, int o,
                               bool tail, const uint8_t *x, int64_t xb, int cols, __m512 *acc)
{
    const uint8_t *X = chunk_at(k, x, o);
    const uint8_t *S = s + (o >> plan->group_shift) * scale_size(k, plan);
    switch ((int)k) {
    case Q4_K:
    case Q5_K:
        step_q45_k(k, p, X, x + plan->sums_at + o / 8, xb, cols, acc); /* 4 bytes per 32 */
        return;
    case Q6_K:
        step_q6_k(p, X, xb, cols, acc);
        return;
    case IQ4_XS:
        step_iq4_xs(p, X, xb, cols, acc);
        return;
    case Q8_0:
        step_q8_0(p, tail, plan->tail_bytes / 34, X, xb, cols, acc);
        return;
    case NVFP4:
        step_nvfp4(p, tail, X, xb, cols, acc);
        return;
    case AFFINE8_F32:
    case AFFINE8_F16:
    case AFFINE8_BF16:
        step_byte_plane(k, plan, p, S, tail, X, xb, cols, acc);
        return;
    case MXFP4P:
    case NVFP4P:
    case AFFINE4_F32:
    case AFFINE4_F16:
    case AFFINE4_BF16:
        step_nibble_plane(k, plan, p, S, tail, X, xb, cols, acc);
        return;
    default:
        step_blocks(k, p, tail, plan->tail_bytes, X, xb, cols, acc);
        return;
    }
}

DOTS(Q4_0)
DOTS(Q4_1)
DOTS(Q5_0)
DOTS(Q5_1)
DOTS(Q8_0)
DOTS(Q4_K)
DOTS(Q5_K)
DOTS(Q6_K)
DOTS(IQ4_NL)
DOTS(IQ4_XS)
DOTS(MXFP4)
DOTS(NVFP4)
DOTS(MXFP4P)
DOTS(NVFP4P)
DOTS(AFFINE4_F32)
DOTS(AFFINE4_F16)
DOTS(AFFINE4_BF16)
DOTS(AFFINE8_F32)
DOTS(AFFINE8_F16)
DOTS(AFFINE8_BF16)

#define RUN_BY_SCALES(kind)                                                                        \
    if (w->scale_format == FMT_F32)                                                                \
        RUN(kind##_F32)                                                                            \
    else if (w->scale_format == FMT_F16)                                                           \
        RUN(kind##_F16)                                                                            \
    else                                                                                           \
        RUN(kind##_BF16)

KERNEL(q4_0, q4_0, RUN(Q4_0))
KERNEL(q4_1, q4_1, RUN(Q4_1))
KERNEL(q5_0, q5_0, RUN(Q5_0))
KERNEL(q5_1, q4_1, RUN(Q5_1))
KERNEL(q8_0, q8_0, RUN(Q8_0))
KERNEL(q4_k, q4_k, RUN(Q4_K))
KERNEL(q5_k, q4_k, RUN(Q5_K))
KERNEL(q6_k, q6_k, RUN(Q6_K))
KERNEL(iq4_nl, iq4, RUN(IQ4_NL))
KERNEL(iq4_xs, iq4, RUN(IQ4_XS))
KERNEL(mxfp4, mxfp4, RUN(MXFP4))
KERNEL(nvfp4, nvfp4, RUN(NVFP4))
KERNEL(mxfp4p, mxfp4p, RUN(MXFP4P))
KERNEL(nvfp4p, mxfp4p, RUN(NVFP4P))
KERNEL(affine4, affine4, RUN_BY_SCALES(AFFINE4))
KERNEL(affine8, affine8, RUN_BY_SCALES(AFFINE8))

const LinKernel *lin_i8_avx512vnni(FormatId format)
{
    static const LinKernel *const kernels[FMT_COUNT] = {
        [FMT_Q4_0] = &q4_0,       [FMT_Q4_1] = &q4_1,       [FMT_Q5_0] = &q5_0,
        [FMT_Q5_1] = &q5_1,       [FMT_Q8_0] = &q8_0,       [FMT_Q4_K] = &q4_k,
        [FMT_Q5_K] = &q5_k,       [FMT_Q6_K] = &q6_k,       [FMT_IQ4_NL] = &iq4_nl,
        [FMT_IQ4_XS] = &iq4_xs,   [FMT_MXFP4] = &mxfp4,     [FMT_NVFP4] = &nvfp4,
        [FMT_MXFP4P] = &mxfp4p,   [FMT_NVFP4P] = &nvfp4p,   [FMT_NVFP4S] = &nvfp4p,
        [FMT_AFFINE4] = &affine4, [FMT_AFFINE8] = &affine8,
    };
    return kernels[format];
}
