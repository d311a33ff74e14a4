/* simd_avx512.h: one vector of f32 for the *_simd.h bodies, as AVX-512 (F, BW, VL, DQ). The same
 * names as simd_avx2.h; a file includes one of them, then the bodies. */
#ifndef MERE_DEVICE_CPU_SIMD_AVX512_H
#define MERE_DEVICE_CPU_SIMD_AVX512_H

#include "base/attr.h"

#include <immintrin.h>

typedef __m512 vf;

enum {
    V_WIDTH = 16,
    V_MANY = 4, /* vectors of a register tile: 6 rows x 4 are 24 of 32 registers */
};

static ALWAYS_INLINE vf v_load(const void *p)
{
    return _mm512_loadu_ps(p);
}

static ALWAYS_INLINE void v_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

static ALWAYS_INLINE __mmask16 v_first(int n)
{
    return (__mmask16)((1U << n) - 1U);
}

/* The first n (0..V_WIDTH) lanes; nothing else is touched, loads give 0 there. */
static ALWAYS_INLINE vf v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(v_first(n), p);
}

static ALWAYS_INLINE void v_store_n(float *p, vf v, int n)
{
    _mm512_mask_storeu_ps(p, v_first(n), v);
}

static ALWAYS_INLINE vf v_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

static ALWAYS_INLINE void v_store_f16(void *p, vf v)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Into L1; any address. */
static ALWAYS_INLINE void v_prefetch(const void *p)
{
    _mm_prefetch(p, _MM_HINT_T0);
}

static ALWAYS_INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}

static ALWAYS_INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static ALWAYS_INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static ALWAYS_INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static ALWAYS_INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once */
static ALWAYS_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* b where either is NaN */
static ALWAYS_INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static ALWAYS_INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static ALWAYS_INLINE float v_sum(vf v)
{
    return _mm512_reduce_add_ps(v);
}

static ALWAYS_INLINE float v_top(vf v)
{
    return _mm512_reduce_max_ps(v);
}

/* Lanes in [from, to) of v, `other` elsewhere; from and to may lie outside of the vector. */
static ALWAYS_INLINE vf v_keep(vf v, int from, int to, vf other)
{
    const unsigned below = from <= 0 ? 0U : from >= V_WIDTH ? 0xffffU : (1U << from) - 1U;
    const unsigned upto = to <= 0 ? 0U : to >= V_WIDTH ? 0xffffU : (1U << to) - 1U;
    return _mm512_mask_blend_ps((__mmask16)(upto & ~below), other, v);
}

/* v * 2^n for integral n, rounded once where the result is subnormal. */
static ALWAYS_INLINE vf v_scale(vf v, vf n)
{
    return _mm512_scalef_ps(v, n);
}

#endif
