/* lin_numbers.h: what is not a code: plain numbers, entries of planes, and the packed scales of
 * blocks of 256 (format_blocks.c has the layouts), all those of a block at once. Private to lin*.c;
 * empty for a file compiled without AVX2. */
#ifndef MERE_DEVICE_CPU_LIN_NUMBERS_H
#define MERE_DEVICE_CPU_LIN_NUMBERS_H

#include "device/cpu/lin_vec.h"
#include "base/format.h"

#if defined(__AVX2__)

static ALWAYS_INLINE uint16_t load_u16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static ALWAYS_INLINE uint32_t load_u32(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static ALWAYS_INLINE uint64_t load_u64(const uint8_t *p)
{
    uint64_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static ALWAYS_INLINE float load_f16(const uint8_t *p)
{
    return _cvtsh_ss(load_u16(p));
}

/* Entry i of a plane of numbers. */
static ALWAYS_INLINE float load_number(const uint8_t *p, FormatId format, int64_t i)
{
    if (format == FMT_F32) {
        float f;
        memcpy(&f, p + i * 4, sizeof f);
        return f;
    }
    return format == FMT_F16 ? load_f16(p + i * 2) : num_from_bf16(load_u16(p + i * 2));
}

/* Sixteen numbers of a PLAIN format. */
static ALWAYS_INLINE Vf plain_load(FormatId format, const uint8_t *p)
{
    if (format == FMT_F16)
        return vf_from_f16(p);
    if (format == FMT_BF16)
        return vf_from_bf16(p);
    Vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static ALWAYS_INLINE __m128i two_u64(uint64_t lo, uint64_t hi)
{
    return _mm_set_epi64x((int64_t)hi, (int64_t)lo);
}

/* Q4_K, Q5_K: s 12 bytes; bytes 0..7 are the scales, 8..15 the mins. */
static ALWAYS_INLINE __m128i scales_q4_k(const uint8_t *s)
{
    const uint32_t u0 = load_u32(s);
    const uint32_t u1 = load_u32(s + 4);
    const uint32_t u2 = load_u32(s + 8);
    const uint32_t sc_hi = (u2 & 0x0f0f0f0fU) | (u0 >> 2 & 0x30303030U);
    const uint32_t mn_hi = (u2 >> 4 & 0x0f0f0f0fU) | (u1 >> 2 & 0x30303030U);
    return two_u64((u0 & 0x3f3f3f3fU) | (uint64_t)sc_hi << 32,
                   (u1 & 0x3f3f3f3fU) | (uint64_t)mn_hi << 32);
}

/* Q3_K: s 12 bytes; sixteen signed bytes. */
static ALWAYS_INLINE __m128i scales_q3_k(const uint8_t *s)
{
    const uint64_t low = load_u64(s);
    const uint32_t high = load_u32(s + 8);
    const uint32_t pairs = 0x03030303U;
    const __m128i lo = two_u64(low & 0x0f0f0f0f0f0f0f0fU, low >> 4 & 0x0f0f0f0f0f0f0f0fU);
    const __m128i hi = two_u64((high & pairs) | (uint64_t)(high >> 2 & pairs) << 32,
                               (high >> 4 & pairs) | (uint64_t)(high >> 6 & pairs) << 32);
    return _mm_sub_epi8(_mm_or_si128(lo, _mm_slli_epi16(hi, 4)), _mm_set1_epi8(32));
}

/* IQ4_XS: p the block; eight signed bytes. (PDEP takes some Zen cores a hundred cycles.) */
static ALWAYS_INLINE __m128i scales_iq4_xs(const uint8_t *p)
{
    uint64_t low = load_u32(p + 4); /* eight nibbles, then one in each byte */
    low = (low | low << 16) & 0x0000ffff0000ffffU;
    low = (low | low << 8) & 0x00ff00ff00ff00ffU;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0fU;
    uint64_t high = load_u16(p + 2); /* eight pairs of bits likewise */
    high = (high | high << 24) & 0x000000ff000000ffU;
    high = (high | high << 12) & 0x000f000f000f000fU;
    high = (high | high << 6) & 0x0303030303030303U;
    return _mm_sub_epi8(_mm_cvtsi64_si128((int64_t)(low | high << 4)), _mm_set1_epi8(32));
}

#endif
#endif
