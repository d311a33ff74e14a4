/* num.h: number formats in portable C: f16 and bf16 to and from f32, e8m0 scales. Bit-exact;
 * kernels have their own fast forms. */
#ifndef MERE_BASE_NUM_H
#define MERE_BASE_NUM_H

#include "base/attr.h"

#include <string.h>

static inline uint32_t num_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float num_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float num_from_bf16(uint16_t h)
{
    return num_float((uint32_t)h << 16);
}

/* Nearest, ties to even; NaN stays NaN. */
static inline uint16_t num_to_bf16(float f)
{
    const uint32_t u = num_bits(f);
    if ((u & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)(u >> 16 | 0x40U);
    return (uint16_t)((u + 0x7fffU + (u >> 16 & 1U)) >> 16);
}

static inline float num_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000U) << 16;
    const uint32_t exp = h >> 10 & 31U;
    const uint32_t man = h & 1023U;
    if (exp == 0) /* subnormal: man * 2^-24 */
        return num_float(sign | num_bits((float)man * 0x1p-24F));
    if (exp == 31)
        return num_float(sign | 0x7f800000U | man << 13);
    return num_float(sign | (exp + 112) << 23 | man << 13);
}

/* Nearest, ties to even; overflow gives infinity. */
static inline uint16_t num_to_f16(float f)
{
    const uint32_t u = num_bits(f);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000U);
    const uint32_t mag = u & 0x7fffffffU;
    if (mag > 0x7f800000U)
        return (uint16_t)(sign | 0x7e00U);
    if (mag >= 0x477ff000U) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00U);
    if (mag <
        0x38800000U) { /* below 2^-14: the sum leaves man in the low bits, rounded by the adder */
        const float r = num_float(mag) + 0.5F;
        return (uint16_t)(sign | (num_bits(r) - 0x3f000000U));
    }
    return (uint16_t)(sign | ((mag - 0x38000000U + 0xfffU + (mag >> 13 & 1U)) >> 13));
}

/* 2^(e - 127); e 0 is the subnormal 2^-127, e 255 NaN (OCP MX). */
static inline float num_from_e8m0(uint8_t e)
{
    if (e == 255)
        return num_float(0x7fc00000U);
    return e ? num_float((uint32_t)e << 23) : 0x1p-127F;
}

#endif
