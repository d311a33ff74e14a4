/* Experts with 8-bit and 6-bit weights, few tokens. */
#include "moe_i8.h"

MOE_I8_SET(a8f16, LinI8A8<LinPairF16>, 4, 2)
MOE_I8_SET(a8bf16, LinI8A8<LinPairBf16>, 4, 2)
MOE_I8_SET(a8f32, LinI8A8<LinPairF32>, 4, 2)
MOE_I8_SET(s8, LinI8S8, 4, 2)
MOE_I8_SET(k6, LinI8K6, 3, 1)
