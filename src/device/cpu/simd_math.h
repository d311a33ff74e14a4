/* simd_math.h: exp and what follows from it, over the vectors of simd_*.h (include that first). A
 * lane's result does not depend on the other lanes. */
#ifndef MERE_DEVICE_CPU_SIMD_MATH_H
#define MERE_DEVICE_CPU_SIMD_MATH_H

#include "base/attr.h"

/* e^x for x <= 88. Error at most 1.08 ulp where the result is normal, 0.75 ulp where subnormal
 * (measured over every third f32 with both vectors); 0 below -104, NaN stays.
 * x = n ln2 + r with |r| <= ln2 / 2 (ln2 in two parts, so that n times the first is exact; adding
 * 1.5 * 2^23 rounds to an integer), then e^r = 1 + r + r^2 p(r); p is the Chebyshev fit of degree
 * 4: relative error 1.05e-8 = 2^-26.5. */
static ALWAYS_INLINE vf v_exp_negative(vf x)
{
    const vf magic = v_set(0x1.8p23F);
    x = v_max(v_set(-104.0F), x);
    const vf n = v_sub(v_fma(x, v_set(1.44269504F), magic), magic);
    vf r = v_fma(n, v_set(-0.693145752F), x);
    r = v_fma(n, v_set(-1.42860677e-6F), r);
    vf p = v_set(0.00139336882F);
    p = v_fma(p, r, v_set(0.00836320501F));
    p = v_fma(p, r, v_set(0.041666463F));
    p = v_fma(p, r, v_set(0.166665763F));
    p = v_fma(p, r, v_set(0.5F));
    p = v_fma(v_mul(r, r), p, r);
    return v_scale(v_add(p, v_set(1.0F)), n);
}

/* e^x for any x: infinity from 88.73. */
static ALWAYS_INLINE vf v_exp(vf x)
{
    return v_exp_negative(v_min(v_set(89.0F), x));
}

static ALWAYS_INLINE vf v_sigmoid(vf x)
{
    return v_div(v_set(1.0F), v_add(v_set(1.0F), v_exp(v_sub(v_set(0.0F), x))));
}

static ALWAYS_INLINE vf v_silu(vf x)
{
    return v_div(x, v_add(v_set(1.0F), v_exp(v_sub(v_set(0.0F), x))));
}

/* Absolute error at most 2^-22: 1 - 2 / (e^2x + 1) cancels near 0. */
static ALWAYS_INLINE vf v_tanh(vf x)
{
    const vf e = v_exp(v_add(x, x));
    return v_sub(v_set(1.0F), v_div(v_set(2.0F), v_add(e, v_set(1.0F))));
}

#endif
