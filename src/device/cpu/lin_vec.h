/* lin_vec.h: sixteen f32 or i32 lanes, as one AVX-512 register or two AVX2 registers, so that the
 * f32 kernels are written once and sum in the same order at both levels. Private to lin*.c; empty
 * for a file compiled for neither. */
#ifndef MERE_DEVICE_CPU_LIN_VEC_H
#define MERE_DEVICE_CPU_LIN_VEC_H

#include "base/num.h"

#if defined(__AVX2__)

#include <immintrin.h>

enum { LANES = 16 };

/* Loops over registers: only unrolled do the arrays stay in them. */
#define UNROLL _Pragma("GCC unroll 16")

static ALWAYS_INLINE __m128i load128(const uint8_t *p)
{
    __m128i v;
    memcpy(&v, p, sizeof v);
    return v;
}

#if defined(__AVX512F__)

typedef __m512 Vf;
typedef __m512i Vi;

static ALWAYS_INLINE Vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

static ALWAYS_INLINE Vf vf_set1(float f)
{
    return _mm512_set1_ps(f);
}

static ALWAYS_INLINE Vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static ALWAYS_INLINE void vf_store(float *p, Vf v)
{
    _mm512_storeu_ps(p, v);
}

static ALWAYS_INLINE Vf vf_add(Vf a, Vf b)
{
    return _mm512_add_ps(a, b);
}

static ALWAYS_INLINE Vf vf_sub(Vf a, Vf b)
{
    return _mm512_sub_ps(a, b);
}

static ALWAYS_INLINE Vf vf_mul(Vf a, Vf b)
{
    return _mm512_mul_ps(a, b);
}

static ALWAYS_INLINE Vf vf_div(Vf a, Vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once. */
static ALWAYS_INLINE Vf vf_fma(Vf a, Vf b, Vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static ALWAYS_INLINE Vf vf_from_int(Vi v)
{
    return _mm512_cvtepi32_ps(v);
}

/* Sixteen f16 at p. */
static ALWAYS_INLINE Vf vf_from_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(const void *)p));
}

static ALWAYS_INLINE Vf vf_from_bf16(const uint8_t *p)
{
    const __m256i h = _mm256_loadu_si256((const __m256i_u *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static ALWAYS_INLINE Vi vi_set1(int32_t i)
{
    return _mm512_set1_epi32(i);
}

/* Sixteen f16. */
static ALWAYS_INLINE Vf vf_widen_f16(__m256i h)
{
    return _mm512_cvtph_ps(h);
}

/* Sixteen bytes, unsigned and signed. */
static ALWAYS_INLINE Vi vi_widen_u8(__m128i v)
{
    return _mm512_cvtepu8_epi32(v);
}

static ALWAYS_INLINE Vi vi_widen_s8(__m128i v)
{
    return _mm512_cvtepi8_epi32(v);
}

/* Sixteen uint16 at p. */
static ALWAYS_INLINE Vi vi_from_u16(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)(const void *)p));
}

static ALWAYS_INLINE Vi vi_and(Vi a, Vi b)
{
    return _mm512_and_si512(a, b);
}

static ALWAYS_INLINE Vi vi_or(Vi a, Vi b)
{
    return _mm512_or_si512(a, b);
}

static ALWAYS_INLINE Vi vi_sub(Vi a, Vi b)
{
    return _mm512_sub_epi32(a, b);
}

static ALWAYS_INLINE Vi vi_shr(Vi a, int n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n));
}

static ALWAYS_INLINE Vi vi_shl(Vi a, int n)
{
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n));
}

/* Each lane by its own count. */
static ALWAYS_INLINE Vi vi_shrv(Vi a, Vi counts)
{
    return _mm512_srlv_epi32(a, counts);
}

static ALWAYS_INLINE Vi vi_mul(Vi a, Vi b)
{
    return _mm512_mullo_epi32(a, b);
}

static ALWAYS_INLINE Vi vi_lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* Lanes 0..7 a, 8..15 b. */
static ALWAYS_INLINE Vi vi_pair(int32_t a, int32_t b)
{
    return _mm512_inserti64x4(_mm512_set1_epi32(a), _mm256_set1_epi32(b), 1);
}

/* Each byte: that byte of v which `index` names, or 0 where its top bit is set. */
static ALWAYS_INLINE Vi vi_pick(__m128i v, Vi index)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(v), index);
}

/* The sign bits of `signs` flipped. */
static ALWAYS_INLINE Vf vf_flip(Vf v, Vi signs)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(
        _mm512_castps_si512(v), _mm512_and_si512(signs, _mm512_set1_epi32(INT32_MIN))));
}

/* Of 16 values, those named by the lowest four bits. */
static ALWAYS_INLINE Vf vf_lookup(const float *values, Vi index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(values));
}

/* l + (l + 8) for each l < 8. */
static ALWAYS_INLINE __m256 vf_halve(Vf v)
{
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

#else

typedef struct Vf {
    __m256 lo, hi;
} Vf;
typedef struct Vi {
    __m256i lo, hi;
} Vi;

static ALWAYS_INLINE Vf vf_zero(void)
{
    return (Vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

static ALWAYS_INLINE Vf vf_set1(float f)
{
    return (Vf){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}

static ALWAYS_INLINE Vf vf_load(const float *p)
{
    return (Vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static ALWAYS_INLINE void vf_store(float *p, Vf v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

static ALWAYS_INLINE Vf vf_add(Vf a, Vf b)
{
    return (Vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

static ALWAYS_INLINE Vf vf_sub(Vf a, Vf b)
{
    return (Vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

static ALWAYS_INLINE Vf vf_mul(Vf a, Vf b)
{
    return (Vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static ALWAYS_INLINE Vf vf_div(Vf a, Vf b)
{
    return (Vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

static ALWAYS_INLINE Vf vf_fma(Vf a, Vf b, Vf c)
{
    return (Vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static ALWAYS_INLINE Vf vf_from_int(Vi v)
{
    return (Vf){_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)};
}

static ALWAYS_INLINE Vf vf_from_f16(const uint8_t *p)
{
    return (Vf){_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 16))};
}

static ALWAYS_INLINE __m256 widen_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static ALWAYS_INLINE Vf vf_from_bf16(const uint8_t *p)
{
    return (Vf){widen_bf16(load128(p)), widen_bf16(load128(p + 16))};
}

static ALWAYS_INLINE Vi vi_set1(int32_t i)
{
    return (Vi){_mm256_set1_epi32(i), _mm256_set1_epi32(i)};
}

static ALWAYS_INLINE Vf vf_widen_f16(__m256i h)
{
    return (Vf){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

static ALWAYS_INLINE Vi vi_widen_u8(__m128i v)
{
    return (Vi){_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}

static ALWAYS_INLINE Vi vi_widen_s8(__m128i v)
{
    return (Vi){_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}

static ALWAYS_INLINE Vi vi_from_u16(const uint8_t *p)
{
    return (Vi){_mm256_cvtepu16_epi32(load128(p)), _mm256_cvtepu16_epi32(load128(p + 16))};
}

static ALWAYS_INLINE Vi vi_and(Vi a, Vi b)
{
    return (Vi){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}

static ALWAYS_INLINE Vi vi_or(Vi a, Vi b)
{
    return (Vi){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

static ALWAYS_INLINE Vi vi_sub(Vi a, Vi b)
{
    return (Vi){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}

static ALWAYS_INLINE Vi vi_shr(Vi a, int n)
{
    const __m128i count = _mm_cvtsi32_si128(n);
    return (Vi){_mm256_srl_epi32(a.lo, count), _mm256_srl_epi32(a.hi, count)};
}

static ALWAYS_INLINE Vi vi_shl(Vi a, int n)
{
    const __m128i count = _mm_cvtsi32_si128(n);
    return (Vi){_mm256_sll_epi32(a.lo, count), _mm256_sll_epi32(a.hi, count)};
}

static ALWAYS_INLINE Vi vi_shrv(Vi a, Vi counts)
{
    return (Vi){_mm256_srlv_epi32(a.lo, counts.lo), _mm256_srlv_epi32(a.hi, counts.hi)};
}

static ALWAYS_INLINE Vi vi_mul(Vi a, Vi b)
{
    return (Vi){_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}

static ALWAYS_INLINE Vi vi_lanes(void)
{
    return (Vi){_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

static ALWAYS_INLINE Vi vi_pair(int32_t a, int32_t b)
{
    return (Vi){_mm256_set1_epi32(a), _mm256_set1_epi32(b)};
}

static ALWAYS_INLINE Vi vi_pick(__m128i v, Vi index)
{
    const __m256i both = _mm256_broadcastsi128_si256(v);
    return (Vi){_mm256_shuffle_epi8(both, index.lo), _mm256_shuffle_epi8(both, index.hi)};
}

static ALWAYS_INLINE __m256 flip_half(__m256 v, __m256i signs)
{
    const __m256i sign = _mm256_and_si256(signs, _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(v, _mm256_castsi256_ps(sign));
}

static ALWAYS_INLINE Vf vf_flip(Vf v, Vi signs)
{
    return (Vf){flip_half(v.lo, signs.lo), flip_half(v.hi, signs.hi)};
}

/* The fourth bit chooses between the halves of the table. */
static ALWAYS_INLINE __m256 lookup_half(const float *values, __m256i index)
{
    const __m256 lo = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), index);
    const __m256 hi = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + 8), index);
    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

static ALWAYS_INLINE Vf vf_lookup(const float *values, Vi index)
{
    return (Vf){lookup_half(values, index.lo), lookup_half(values, index.hi)};
}

static ALWAYS_INLINE __m256 vf_halve(Vf v)
{
    return _mm256_add_ps(v.lo, v.hi);
}

#endif

/* Sixteen bytes at p, unsigned and signed. */
static ALWAYS_INLINE Vi vi_from_u8(const uint8_t *p)
{
    return vi_widen_u8(load128(p));
}

static ALWAYS_INLINE Vi vi_from_s8(const uint8_t *p)
{
    return vi_widen_s8(load128(p));
}

/* Sixteen e4m3 codes. Their exponent and mantissa are those of an f16 2^8 times smaller, subnormals
 * too; 0x7f and 0xff are NaN. */
static ALWAYS_INLINE Vf vf_from_e4m3(__m128i codes)
{
    const __m256i v = _mm256_cvtepu8_epi16(codes);
    const __m256i most = _mm256_set1_epi16(0x3f80);
    const __m256i number = _mm256_and_si256(_mm256_slli_epi16(v, 7), most);
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(v, 8), _mm256_set1_epi16(INT16_MIN));
    const __m256i is_nan = _mm256_cmpeq_epi16(number, most);
    const __m256i h = _mm256_blendv_epi8(number, _mm256_set1_epi16(0x7e00), is_nan);
    return vf_mul(vf_widen_f16(_mm256_or_si256(h, sign)), vf_set1(256.0F));
}

/* Sums of four vectors, each folded as l + (l + 8), 4, 2, 1 (lin_ref.c). */
static ALWAYS_INLINE __m128 vf_fold4(Vf a, Vf b, Vf c, Vf d)
{
    const __m256 a8 = vf_halve(a);
    const __m256 b8 = vf_halve(b);
    const __m256 c8 = vf_halve(c);
    const __m256 d8 = vf_halve(d);
    const __m256 ab =
        _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));
    const __m256 cd =
        _mm256_add_ps(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));
    /* a0 a1 c0 c1 | b0 b1 d0 d1 */
    const __m256 acbd =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    /* a c . . | b d . . */
    const __m256 s =
        _mm256_add_ps(_mm256_shuffle_ps(acbd, acbd, 0x88), _mm256_shuffle_ps(acbd, acbd, 0xdd));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

#endif
#endif
