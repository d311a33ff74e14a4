/* lin_dequant_simd.h: the body of lin_dequant_avx2.c and lin_dequant_avx512.c, written once over
 * lin_vec.h: sixteen elements at a time. format_blocks.c explains each layout. */
#ifndef MERE_DEVICE_CPU_LIN_DEQUANT_SIMD_H
#define MERE_DEVICE_CPU_LIN_DEQUANT_SIMD_H

#include "device/cpu/lin_dequant.h"
#include "device/cpu/lin_numbers.h"
#include "base/format_blocks.h"

/* (byte >> shift) & mask of each byte; the shift is below 8. */
static ALWAYS_INLINE __m128i byte_bits(__m128i v, int shift, int mask)
{
    return _mm_and_si128(_mm_srl_epi16(v, _mm_cvtsi32_si128(shift)), _mm_set1_epi8((char)mask));
}

static ALWAYS_INLINE Vf vf_from_s8(__m128i bytes)
{
    return vf_from_int(vi_widen_s8(bytes));
}

/* scale * q */
static ALWAYS_INLINE void put_scaled(float *out, Vf scale, __m128i q)
{
    vf_store(out, vf_mul(scale, vf_from_s8(q)));
}

/* scale * q + bias */
static ALWAYS_INLINE void put_affine(float *out, Vf scale, __m128i q, Vf bias)
{
    vf_store(out, vf_add(vf_mul(scale, vf_from_s8(q)), bias));
}

/* ---- blocks of 32 ---- */

/* Sixteen fifth bits, worth 16. */
static ALWAYS_INLINE __m128i fifth_bits(uint32_t bits)
{
    const __m128i bit = _mm_set1_epi64x((int64_t)0x8040201008040201U);
    const __m128i byte = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i v = _mm_shuffle_epi8(_mm_cvtsi32_si128((int32_t)bits), byte);
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(v, bit), bit), _mm_set1_epi8(16));
}

static ALWAYS_INLINE void dequant_q4_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    const __m128i codes = load128(p + 2);
    UNROLL for (int h = 0; h < 2; h++)
        put_scaled(out + 16 * h, d, _mm_sub_epi8(byte_bits(codes, 4 * h, 15), _mm_set1_epi8(8)));
}

static ALWAYS_INLINE void dequant_q4_1(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    const Vf m = vf_set1(load_f16(p + 2));
    const __m128i codes = load128(p + 4);
    UNROLL for (int h = 0; h < 2; h++) put_affine(out + 16 * h, d, byte_bits(codes, 4 * h, 15), m);
}

static ALWAYS_INLINE void dequant_q5_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    const uint32_t fifth = load_u32(p + 2);
    const __m128i codes = load128(p + 6);
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m128i q = _mm_or_si128(byte_bits(codes, 4 * h, 15), fifth_bits(fifth >> 16 * h));
        put_scaled(out + 16 * h, d, _mm_sub_epi8(q, _mm_set1_epi8(16)));
    }
}

static ALWAYS_INLINE void dequant_q5_1(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    const Vf m = vf_set1(load_f16(p + 2));
    const uint32_t fifth = load_u32(p + 4);
    const __m128i codes = load128(p + 8);
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m128i q = _mm_or_si128(byte_bits(codes, 4 * h, 15), fifth_bits(fifth >> 16 * h));
        put_affine(out + 16 * h, d, q, m);
    }
}

static ALWAYS_INLINE void dequant_q8_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    put_scaled(out, d, load128(p + 2));
    put_scaled(out + 16, d, load128(p + 18));
}

/* 32 codes of a table of 16 signed values. */
static ALWAYS_INLINE void put_iq4(float *out, Vf scale, const uint8_t *codes)
{
    const __m128i values = load128((const uint8_t *)format_iq4);
    const __m128i v = load128(codes);
    UNROLL for (int h = 0; h < 2; h++)
        put_scaled(out + 16 * h, scale, _mm_shuffle_epi8(values, byte_bits(v, 4 * h, 15)));
}

static ALWAYS_INLINE void dequant_iq4_nl(const uint8_t *p, float *out)
{
    put_iq4(out, vf_set1(load_f16(p)), p + 2);
}

static ALWAYS_INLINE void dequant_mxfp4(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(num_from_e8m0(p[0]));
    const Vi codes = vi_from_u8(p + 1);
    vf_store(out, vf_mul(d, vf_lookup(format_e2m1, codes)));
    vf_store(out + 16, vf_mul(d, vf_lookup(format_e2m1, vi_shr(codes, 4))));
}

/* ---- blocks of 64 and 128 ---- */

/* Sixteen bytes of which the first n are at p, the others 0. */
static ALWAYS_INLINE __m128i load_upto(const uint8_t *p, int n)
{
    uint8_t v[16] = {0};
    memcpy(v, p, (size_t)n);
    return load128(v);
}

static ALWAYS_INLINE void dequant_nvfp4(const uint8_t *p, float *out)
{
    float scale[LANES];
    const __m128i mask = _mm_set1_epi8(0x7f);
    const __m128i codes = _mm_and_si128(_mm_cvtsi32_si128((int32_t)load_u32(p)), mask);
    vf_store(scale, vf_from_e4m3(_mm_andnot_si128(_mm_cmpeq_epi8(codes, mask), codes)));
    UNROLL for (int s = 0; s < 4; s++)
    {
        const __m128i low = _mm_cvtsi64_si128((int64_t)load_u64(p + 4 + 8 * s));
        const __m128i q = _mm_unpacklo_epi64(low, _mm_srli_epi16(low, 4));
        vf_store(out + 16 * s, vf_mul(vf_set1(scale[s]), vf_lookup(format_e2m1, vi_widen_u8(q))));
    }
}

/* v, of each lane negated where that lane's bit is set. */
static ALWAYS_INLINE Vf vf_negate(Vf v, uint32_t bits)
{
    return vf_flip(v, vi_shl(vi_shrv(vi_set1((int32_t)bits), vi_lanes()), 31));
}

static ALWAYS_INLINE void dequant_q1_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    for (int i = 0; i < 128; i += LANES)
        vf_store(out + i, vf_negate(d, ~(uint32_t)load_u16(p + 2 + i / 8)));
}

/* ---- blocks of 256 ---- */

/* Q4_K and Q5_K; fifth: the latter's fifth bits, or NULL. */
static ALWAYS_INLINE void put_k(const uint8_t *p, const uint8_t *fifth, const uint8_t *codes,
                                float *out)
{
    const Vf scales = vf_from_s8(scales_q4_k(p + 4));
    float sc[LANES];
    float mn[LANES];
    vf_store(sc, vf_mul(vf_set1(load_f16(p)), scales));
    vf_store(mn, vf_mul(vf_set1(load_f16(p + 2)), scales));
    UNROLL for (int j = 0; j < 8; j++)
    {
        UNROLL for (int i = 0; i < 32; i += LANES)
        {
            __m128i q = byte_bits(load128(codes + j / 2 * 32 + i), j % 2 * 4, 15);
            if (fifth)
                q = _mm_or_si128(q, _mm_slli_epi16(byte_bits(load128(fifth + i), j, 1), 4));
            const Vf v = vf_mul(vf_set1(sc[j]), vf_from_s8(q));
            vf_store(out + j * 32 + i, vf_sub(v, vf_set1(mn[8 + j])));
        }
    }
}

static ALWAYS_INLINE void dequant_q4_k(const uint8_t *p, float *out)
{
    put_k(p, NULL, p + 16, out);
}

static ALWAYS_INLINE void dequant_q5_k(const uint8_t *p, float *out)
{
    put_k(p, p + 16, p + 48, out);
}

static ALWAYS_INLINE void dequant_q6_k(const uint8_t *p, float *out)
{
    float sc[LANES];
    vf_store(sc, vf_mul(vf_set1(load_f16(p + 208)), vf_from_s8(load128(p + 192))));
    UNROLL for (int g = 0; g < 16; g++) /* groups of 16 elements, each with a scale */
    {
        const int half = g / 8;
        const int quarter = g % 8 / 2;
        const int at = g % 2 * LANES;
        const __m128i lo =
            byte_bits(load128(p + half * 64 + quarter % 2 * 32 + at), quarter / 2 * 4, 15);
        const __m128i hi = byte_bits(load128(p + 128 + half * 32 + at), 2 * quarter, 3);
        const __m128i q = _mm_or_si128(lo, _mm_slli_epi16(hi, 4));
        put_scaled(out + g * LANES, vf_set1(sc[g]), _mm_sub_epi8(q, _mm_set1_epi8(32)));
    }
}

/* Codes of two bits of group g in the 64 bytes of a block. */
static ALWAYS_INLINE __m128i crumbs(const uint8_t *codes, int g)
{
    return byte_bits(load128(codes + g / 8 * 32 + g % 2 * LANES), g % 8 / 2 * 2, 3);
}

static ALWAYS_INLINE void dequant_q2_k(const uint8_t *p, float *out)
{
    const __m128i scales = load128(p);
    float sc[LANES];
    float mn[LANES];
    vf_store(sc, vf_mul(vf_set1(load_f16(p + 80)), vf_from_s8(byte_bits(scales, 0, 15))));
    vf_store(mn, vf_mul(vf_set1(load_f16(p + 82)), vf_from_s8(byte_bits(scales, 4, 15))));
    UNROLL for (int g = 0; g < 16; g++)
    {
        const Vf v = vf_mul(vf_set1(sc[g]), vf_from_s8(crumbs(p + 16, g)));
        vf_store(out + g * LANES, vf_sub(v, vf_set1(mn[g])));
    }
}

static ALWAYS_INLINE void dequant_q3_k(const uint8_t *p, float *out)
{
    float sc[LANES];
    vf_store(sc, vf_mul(vf_set1(load_f16(p + 108)), vf_from_s8(scales_q3_k(p + 96))));
    UNROLL for (int g = 0; g < 16; g++)
    {
        const __m128i third = byte_bits(load128(p + g % 2 * LANES), g / 2, 1);
        const __m128i q = _mm_or_si128(crumbs(p + 32, g), _mm_slli_epi16(third, 2));
        put_scaled(out + g * LANES, vf_set1(sc[g]), _mm_sub_epi8(q, _mm_set1_epi8(4)));
    }
}

static ALWAYS_INLINE void dequant_tq2_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p + 64));
    UNROLL for (int g = 0; g < 16; g++)
        put_scaled(out + g * LANES, d, _mm_sub_epi8(crumbs(p, g), _mm_set1_epi8(1)));
}

/* Sixteen digits of base 3 by sixteen bytes times powers of 3, mod 256. */
static ALWAYS_INLINE void put_digits(float *out, Vf d, Vi products)
{
    const Vi tops = vi_mul(vi_and(products, vi_set1(255)), vi_set1(3));
    vf_store(out, vf_mul(d, vf_from_int(vi_sub(vi_shr(tops, 8), vi_set1(1)))));
}

static ALWAYS_INLINE void dequant_tq1_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p + 52));
    int power = 1;
    for (int digit = 0; digit < 5; digit++, power *= 3) {
        put_digits(out + digit * 32, d, vi_mul(vi_from_u8(p), vi_set1(power)));
        put_digits(out + digit * 32 + 16, d, vi_mul(vi_from_u8(p + 16), vi_set1(power)));
        put_digits(out + 160 + digit * 16, d, vi_mul(vi_from_u8(p + 32), vi_set1(power)));
    }
    const __m128i last = _mm_set1_epi32((int32_t)load_u32(p + 48));
    const __m128i powers = _mm_setr_epi8(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    put_digits(out + 240, d, vi_mul(vi_widen_u8(last), vi_widen_u8(powers)));
}

static ALWAYS_INLINE void dequant_iq4_xs(const uint8_t *p, float *out)
{
    float sc[LANES];
    vf_store(sc, vf_mul(vf_set1(load_f16(p)), vf_from_s8(scales_iq4_xs(p))));
    UNROLL for (int b = 0; b < 8; b++) put_iq4(out + b * 32, vf_set1(sc[b]), p + 8 + b * 16);
}

/* ---- blocks of 256 with codebooks ---- */

/* Eight signs in seven bits: the eighth makes their number even. */
static ALWAYS_INLINE uint32_t even_signs(uint32_t seven)
{
    seven &= 127;
    return seven | ((uint32_t)__builtin_popcount(seven) & 1) << 7;
}

/* Two entries of eight values, and their signs. */
static ALWAYS_INLINE void put_book2(float *out, float scale, uint16_t a, uint16_t b, uint32_t signs)
{
    static const float values[16] = {8, 25, 43, 0, 8, 25, 43, 0, 8, 25, 43, 0, 8, 25, 43, 0};
    const Vi eighths = vi_and(vi_lanes(), vi_set1(7));
    const Vi index = vi_shrv(vi_pair(a, b), vi_shl(eighths, 1));
    vf_store(out, vf_negate(vf_mul(vf_set1(scale), vf_lookup(values, index)), signs));
}

static ALWAYS_INLINE void dequant_iq2_xxs(const uint8_t *p, float *out)
{
    const float d = load_f16(p);
    for (int b = 0; b < 8; b++) {
        const uint8_t *e = p + 2 + b * 8;
        const uint32_t s = load_u32(e + 4);
        const float scale = d * (0.5F + (float)(s >> 28)) * 0.25F;
        for (int l = 0; l < 4; l += 2)
            put_book2(out + b * 32 + l * 8, scale, format_iq2_xxs[e[l]], format_iq2_xxs[e[l + 1]],
                      even_signs(s >> 7 * l) | even_signs(s >> (7 * l + 7)) << 8);
    }
}

/* Scale of the sixteen elements 16 g of IQ2_XS and IQ2_S. */
static ALWAYS_INLINE float nibble_scale(const uint8_t *scales, int g, float d)
{
    return d * (0.5F + (float)(scales[g / 2] >> (g % 2 * 4) & 15)) * 0.25F;
}

static ALWAYS_INLINE void dequant_iq2_xs(const uint8_t *p, float *out)
{
    const float d = load_f16(p);
    for (int g = 0; g < 16; g++) {
        const uint32_t q = load_u32(p + 2 + g * 4);
        put_book2(out + g * LANES, nibble_scale(p + 66, g, d), format_iq2_xs[q & 511],
                  format_iq2_xs[q >> 16 & 511], even_signs(q >> 9) | even_signs(q >> 25) << 8);
    }
}

static ALWAYS_INLINE void dequant_iq2_s(const uint8_t *p, float *out)
{
    const float d = load_f16(p);
    for (int g = 0; g < 16; g++) {
        const int high = p[66 + g / 2] >> (g % 2 * 4);
        put_book2(out + g * LANES, nibble_scale(p + 74, g, d),
                  format_iq2_s[p[2 + 2 * g] | (high & 3) << 8],
                  format_iq2_s[p[3 + 2 * g] | (high >> 2 & 3) << 8], load_u16(p + 34 + 2 * g));
    }
}

/* Four entries of four values, three bits each, and their signs. */
static ALWAYS_INLINE void put_book3(float *out, float scale, const float values[16],
                                    const uint16_t entry[4], uint32_t signs)
{
    const Vi quarter = vi_shr(vi_lanes(), 2);
    const Vi word = vi_or(vi_mul(quarter, vi_set1(0x0202)), vi_set1((int32_t)0x80800100U));
    const Vi place = vi_mul(vi_and(vi_lanes(), vi_set1(3)), vi_set1(3));
    const __m128i entries = _mm_cvtsi64_si128((int64_t)load_u64((const uint8_t *)entry));
    const Vi index = vi_shrv(vi_pick(entries, word), place);
    vf_store(out, vf_negate(vf_mul(vf_set1(scale), vf_lookup(values, index)), signs));
}

static ALWAYS_INLINE void dequant_iq3_xxs(const uint8_t *p, float *out)
{
    static const float values[16] = {4, 12, 20, 28, 36, 44, 52, 62, 4, 12, 20, 28, 36, 44, 52, 62};
    const float d = load_f16(p);
    for (int b = 0; b < 8; b++) {
        const uint32_t s = load_u32(p + 66 + b * 4);
        const float scale = d * (0.5F + (float)(s >> 28)) * 0.5F;
        for (int h = 0; h < 2; h++) {
            const uint8_t *e = p + 2 + b * 8 + h * 4;
            const uint16_t entry[4] = {format_iq3_xxs[e[0]], format_iq3_xxs[e[1]],
                                       format_iq3_xxs[e[2]], format_iq3_xxs[e[3]]};
            put_book3(out + b * 32 + h * 16, scale, values, entry,
                      even_signs(s >> 14 * h) | even_signs(s >> (14 * h + 7)) << 8);
        }
    }
}

static ALWAYS_INLINE void dequant_iq3_s(const uint8_t *p, float *out)
{
    static const float values[16] = {1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15};
    const float d = load_f16(p);
    for (int g = 0; g < 16; g++) {
        const float scale = d * (float)(1 + 2 * (p[106 + g / 4] >> (g / 2 % 2 * 4) & 15));
        const int high = p[66 + g / 2] >> (g % 2 * 4);
        uint16_t entry[4];
        for (int i = 0; i < 4; i++)
            entry[i] = format_iq3_s[p[2 + g * 4 + i] | (high >> i & 1) << 8];
        put_book3(out + g * LANES, scale, values, entry, load_u16(p + 74 + g * 2));
    }
}

/* Two entries of eight values -1, 0, 1, each entry with an eighth added, or taken if its `less` is
 * 1. */
static ALWAYS_INLINE void put_book1(float *out, float scale, uint16_t a, uint16_t b, int less_a,
                                    int less_b)
{
    static const float values[16] = {-0.875F, 0.125F,  1.125F, 2.125F,
                                     -1.125F, -0.125F, 0.875F, 1.875F};
    const Vi eighths = vi_and(vi_lanes(), vi_set1(7));
    const Vi code = vi_and(vi_shrv(vi_pair(a, b), vi_shl(eighths, 1)), vi_set1(3));
    const Vi index = vi_or(code, vi_pair(less_a * 4, less_b * 4));
    vf_store(out, vf_mul(vf_set1(scale), vf_lookup(values, index)));
}

static ALWAYS_INLINE void dequant_iq1_s(const uint8_t *p, float *out)
{
    const float d = load_f16(p);
    for (int g = 0; g < 16; g++) {
        const int word = load_u16(p + 34 + g / 2 * 2);
        const int high = word >> (g % 2 * 6);
        const float scale = d * (float)(2 * (word >> 12 & 7) + 1);
        put_book1(out + g * LANES, scale, format_iq1[p[2 + g * 2] | (high & 7) << 8],
                  format_iq1[p[3 + g * 2] | (high >> 3 & 7) << 8], word >> 15, word >> 15);
    }
}

static ALWAYS_INLINE void dequant_iq1_m(const uint8_t *p, float *out)
{
    const uint64_t words = load_u64(p + 48); /* the top nibbles of its four are the f16 scale */
    const uint64_t bits =
        (words >> 12 & 15) | (words >> 24 & 0xf0) | (words >> 36 & 0xf00) | (words >> 48 & 0xf000);
    const float d = _cvtsh_ss((uint16_t)bits);
    for (int g = 0; g < 16; g++) {
        const float scale = d * (float)(2 * (words >> (g / 4 * 16 + g % 4 * 3) & 7) + 1);
        const int high = p[32 + g];
        put_book1(out + g * LANES, scale, format_iq1[p[2 * g] | (high & 7) << 8],
                  format_iq1[p[2 * g + 1] | (high >> 4 & 7) << 8], high >> 3 & 1, high >> 7);
    }
}

/* ---- planes ---- */

/* Where sixteen codes of a bit stream lie in a register: two bytes of it for each lane, and the
 * code's place in them. */
typedef struct Spread {
    Vi bytes;
    Vi shift;
} Spread;

/* From bit `at` on. The second byte of a code that ends in its first one may be any. */
static ALWAYS_INLINE Spread spread_from(int bits, int at)
{
    const Vi bit = vi_sub(vi_mul(vi_lanes(), vi_set1(bits)), vi_set1(-at));
    const Vi two = vi_mul(vi_shr(bit, 3), vi_set1(0x0101));
    const Vi next = vi_sub(two, vi_set1(-0x0100));
    return (Spread){vi_or(vi_and(next, vi_set1(0x0f0f)), vi_set1((int32_t)0x80800000U)),
                    vi_and(bit, vi_set1(7))};
}

/* Bits above the code are left. */
static ALWAYS_INLINE Vi spread(Spread s, __m128i v)
{
    return vi_shrv(vi_pick(v, s.bytes), s.shift);
}

/* n bytes, a multiple of 4. */
static ALWAYS_INLINE __m128i load_words(const uint8_t *p, int n)
{
    if (n == 4)
        return _mm_cvtsi32_si128((int32_t)load_u32(p));
    if (n == 8)
        return two_u64(load_u64(p), 0);
    return n == 12 ? two_u64(load_u64(p), load_u32(p + 8)) : load128(p);
}

/* 32 codes are 4 * bits bytes: in one register, or in two, of which the second ends with them. */
static ALWAYS_INLINE void affine_bits(int bits, const RowView *w, int64_t row, int k0, int kc,
                                      float *out)
{
    const uint8_t *codes = w->data + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    const uint8_t *biases = w->biases + row * w->scale_row_bytes;
    const int bytes = 4 * bits;
    const int second = bytes > 16 ? bytes - 16 : 0;
    const Spread lo = spread_from(bits, 0);
    const Spread hi = spread_from(bits, 16 * bits - 8 * second);
    const Vi mask = vi_set1((1 << bits) - 1);
    for (int i = k0; i < k0 + kc; i += 32) { /* 32: the smallest group */
        const Vf scale = vf_set1(load_number(scales, w->scale_format, i / w->group));
        const Vf bias = vf_set1(load_number(biases, w->scale_format, i / w->group));
        const uint8_t *p = codes + (int64_t)i / 32 * bytes;
        const __m128i v0 = load_words(p, bytes < 16 ? bytes : 16);
        const __m128i v1 = second ? load128(p + second) : v0;
        const Vf q0 = vf_from_int(vi_and(spread(lo, v0), mask));
        const Vf q1 = vf_from_int(vi_and(spread(hi, v1), mask));
        vf_store(out + i - k0, vf_add(vf_mul(scale, q0), bias));
        vf_store(out + i - k0 + 16, vf_add(vf_mul(scale, q1), bias));
    }
}

#define AFFINE_BITS(bits)                                                                          \
    static void dequant_affine##bits(const RowView *w, int64_t row, int k0, int kc, float *out)    \
    {                                                                                              \
        affine_bits(bits, w, row, k0, kc, out);                                                    \
    }
AFFINE_BITS(1)
AFFINE_BITS(2)
AFFINE_BITS(3)
AFFINE_BITS(4)
AFFINE_BITS(5)
AFFINE_BITS(6)
AFFINE_BITS(8)

/* Sixteen codes of four bits, low nibble first; bits above the code are left. */
static ALWAYS_INLINE Vi nibbles(const uint8_t *p)
{
    return spread(spread_from(4, 0), _mm_cvtsi64_si128((int64_t)load_u64(p)));
}

static void dequant_mxfp4p(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    const uint8_t *codes = w->data + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    for (int i = k0; i < k0 + kc; i += LANES) {
        const Vf scale = vf_set1(num_from_e8m0(scales[i / 32]));
        vf_store(out + i - k0, vf_mul(scale, vf_lookup(format_e2m1, nibbles(codes + i / 2))));
    }
}

static void dequant_mxfp8p(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    const uint8_t *codes = w->data + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    for (int i = k0; i < k0 + kc; i += LANES) {
        const Vf scale = vf_set1(num_from_e8m0(scales[i / 32]));
        vf_store(out + i - k0, vf_mul(scale, vf_from_e4m3(load128(codes + i))));
    }
}

/* NVFP4P and NVFP4S. */
static void dequant_nvfp4p(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    const uint8_t *codes = w->data + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    const Vf factor = vf_set1(w->factor);
    for (int b = k0; b < k0 + kc; b += 16 * LANES) { /* as many scales as lanes */
        const int n = (k0 + kc - b) / 16 < LANES ? (k0 + kc - b) / 16 : LANES;
        const uint8_t *s = scales + b / 16;
        Vf v = vf_from_e4m3(n == LANES ? load128(s) : load_upto(s, n));
        if (w->format == FMT_NVFP4S)
            v = w->factor_divides ? vf_div(v, factor) : vf_mul(v, factor);
        float scale[LANES];
        vf_store(scale, v);
        for (int g = 0; g < n; g++) {
            const Vf q = vf_lookup(format_e2m1, nibbles(codes + b / 2 + g * 8));
            vf_store(out + b - k0 + g * 16, vf_mul(vf_set1(scale[g]), q));
        }
    }
}

/* FP8 and NF4: values times the number of their group, which has any multiple of 16. */
static ALWAYS_INLINE void scaled(FormatId format, const RowView *w, int64_t row, int k0, int kc,
                                 float *out)
{
    const uint8_t *codes = w->data + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    Spread swapped = spread_from(4, 0);
    swapped.shift = vi_sub(vi_set1(4), swapped.shift); /* the high nibble first */
    for (int i = k0; i < k0 + kc;) {
        const int g = i / w->group;
        const int64_t next = (int64_t)(g + 1) * w->group;
        const int end = next < k0 + kc ? (int)next : k0 + kc;
        const Vf scale = vf_set1(load_number(scales, w->scale_format, g));
        for (; i < end; i += LANES) {
            Vf v;
            if (format == FMT_FP8) {
                v = vf_from_e4m3(load128(codes + i));
            } else {
                const __m128i q = _mm_cvtsi64_si128((int64_t)load_u64(codes + i / 2));
                v = vf_lookup(format_nf4_values(), spread(swapped, q));
            }
            vf_store(out + i - k0, vf_mul(v, scale));
        }
    }
}

static void dequant_fp8(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    if (w->group % LANES == 0)
        scaled(FMT_FP8, w, row, k0, kc, out);
    else
        format_dequant_part(w, row, k0, kc, out);
}

static void dequant_nf4(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    if (w->group % LANES == 0)
        scaled(FMT_NF4, w, row, k0, kc, out);
    else
        format_dequant_part(w, row, k0, kc, out);
}

/* ---- plain numbers ---- */

static void dequant_plain(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    const int size = w->format == FMT_F32 ? 4 : 2;
    const uint8_t *p = w->data + row * w->row_bytes + (int64_t)k0 * size;
    int i = 0;
    for (; i + LANES <= kc; i += LANES)
        vf_store(out + i, plain_load(w->format, p + (int64_t)i * size));
    for (; i < kc; i++)
        out[i] = load_number(p, w->format, i);
}

/* ---- all ---- */

#define BLOCKS(id, elements, bytes)                                                                \
    static void rows_##id(const RowView *w, int64_t row, int k0, int kc, float *out)               \
    {                                                                                              \
        const uint8_t *p = w->data + row * w->row_bytes + (int64_t)k0 / (elements) * (bytes);      \
        for (int i = 0; i < kc; i += (elements), p += (bytes))                                     \
            dequant_##id(p, out + i);                                                              \
    }
BLOCKS(q4_0, 32, 18)
BLOCKS(q4_1, 32, 20)
BLOCKS(q5_0, 32, 22)
BLOCKS(q5_1, 32, 24)
BLOCKS(q8_0, 32, 34)
BLOCKS(iq4_nl, 32, 18)
BLOCKS(mxfp4, 32, 17)
BLOCKS(nvfp4, 64, 36)
BLOCKS(q1_0, 128, 18)
BLOCKS(q2_k, 256, 84)
BLOCKS(q3_k, 256, 110)
BLOCKS(q4_k, 256, 144)
BLOCKS(q5_k, 256, 176)
BLOCKS(q6_k, 256, 210)
BLOCKS(iq4_xs, 256, 136)
BLOCKS(iq3_s, 256, 110)
BLOCKS(iq3_xxs, 256, 98)
BLOCKS(iq2_s, 256, 82)
BLOCKS(iq2_xs, 256, 74)
BLOCKS(iq2_xxs, 256, 66)
BLOCKS(iq1_m, 256, 56)
BLOCKS(iq1_s, 256, 50)
BLOCKS(tq2_0, 256, 66)
BLOCKS(tq1_0, 256, 54)

static ALWAYS_INLINE void dequant(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    static void (*const of[FMT_COUNT])(const RowView *, int64_t, int, int, float *) = {
        [FMT_F32] = dequant_plain,       [FMT_F16] = dequant_plain,
        [FMT_BF16] = dequant_plain,      [FMT_Q4_0] = rows_q4_0,
        [FMT_Q4_1] = rows_q4_1,          [FMT_Q5_0] = rows_q5_0,
        [FMT_Q5_1] = rows_q5_1,          [FMT_Q8_0] = rows_q8_0,
        [FMT_Q2_K] = rows_q2_k,          [FMT_Q3_K] = rows_q3_k,
        [FMT_Q4_K] = rows_q4_k,          [FMT_Q5_K] = rows_q5_k,
        [FMT_Q6_K] = rows_q6_k,          [FMT_MXFP4] = rows_mxfp4,
        [FMT_NVFP4] = rows_nvfp4,        [FMT_Q1_0] = rows_q1_0,
        [FMT_IQ4_NL] = rows_iq4_nl,      [FMT_IQ4_XS] = rows_iq4_xs,
        [FMT_IQ3_S] = rows_iq3_s,        [FMT_IQ3_XXS] = rows_iq3_xxs,
        [FMT_IQ2_S] = rows_iq2_s,        [FMT_IQ2_XS] = rows_iq2_xs,
        [FMT_IQ2_XXS] = rows_iq2_xxs,    [FMT_IQ1_M] = rows_iq1_m,
        [FMT_IQ1_S] = rows_iq1_s,        [FMT_TQ2_0] = rows_tq2_0,
        [FMT_TQ1_0] = rows_tq1_0,        [FMT_AFFINE1] = dequant_affine1,
        [FMT_AFFINE2] = dequant_affine2, [FMT_AFFINE3] = dequant_affine3,
        [FMT_AFFINE4] = dequant_affine4, [FMT_AFFINE5] = dequant_affine5,
        [FMT_AFFINE6] = dequant_affine6, [FMT_AFFINE8] = dequant_affine8,
        [FMT_MXFP4P] = dequant_mxfp4p,   [FMT_MXFP8P] = dequant_mxfp8p,
        [FMT_NVFP4P] = dequant_nvfp4p,   [FMT_NVFP4S] = dequant_nvfp4p,
        [FMT_FP8] = dequant_fp8,         [FMT_NF4] = dequant_nf4,
    };
    for (int i = kc; i % LANES; i++)
        out[i] = 0;
    if (of[w->format])
        of[w->format](w, row, k0, kc, out);
    else /* a format that has no code of its own at this level */
        format_dequant_part(w, row, k0, kc, out);
}

#endif
