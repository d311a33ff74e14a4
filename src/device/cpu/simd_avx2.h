/* simd_avx2.h: one vector of f32 for the *_simd.h bodies, as AVX2 with FMA and F16C. See
 * simd_avx512.h. */
#ifndef MERE_DEVICE_CPU_SIMD_AVX2_H
#define MERE_DEVICE_CPU_SIMD_AVX2_H

#include "base/attr.h"

#include <immintrin.h>

typedef __m256 vf;

enum {
    V_WIDTH = 8,
    V_MANY = 2, /* 6 rows x 2 are 12 of 16 registers */
};

static ALWAYS_INLINE vf v_load(const void *p)
{
    return _mm256_loadu_ps(p);
}

static ALWAYS_INLINE void v_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

/* All bits in lanes [0, n); n may lie outside of the vector. */
static ALWAYS_INLINE __m256i v_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static ALWAYS_INLINE vf v_load_n(const float *p, int n)
{
    return _mm256_maskload_ps(p, v_first(n));
}

static ALWAYS_INLINE void v_store_n(float *p, vf v, int n)
{
    _mm256_maskstore_ps(p, v_first(n), v);
}

static ALWAYS_INLINE vf v_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

static ALWAYS_INLINE void v_store_f16(void *p, vf v)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Into L1; any address. */
static ALWAYS_INLINE void v_prefetch(const void *p)
{
    _mm_prefetch(p, _MM_HINT_T0);
}

static ALWAYS_INLINE vf v_set(float x)
{
    return _mm256_set1_ps(x);
}

static ALWAYS_INLINE vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static ALWAYS_INLINE vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static ALWAYS_INLINE vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static ALWAYS_INLINE vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static ALWAYS_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static ALWAYS_INLINE vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static ALWAYS_INLINE vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static ALWAYS_INLINE float v_sum(vf v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static ALWAYS_INLINE float v_top(vf v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static ALWAYS_INLINE vf v_keep(vf v, int from, int to, vf other)
{
    const __m256i in = _mm256_andnot_si256(v_first(from), v_first(to));
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(in));
}

/* In two steps, since 2^n itself may be out of range (|n| <= 252). */
static ALWAYS_INLINE vf v_scale(vf v, vf n)
{
    const __m256i e = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(e, 1);
    const __m256i rest = _mm256_sub_epi32(e, half);
    const __m256i bias = _mm256_set1_epi32(127);
    v = _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(v,
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

#endif
