/* Experts with 4-bit weights, few tokens. */
#include "moe_i8.h"

MOE_I8_SET(a4f16, LinI8A4<LinPairF16>, 4, 2)
MOE_I8_SET(a4bf16, LinI8A4<LinPairBf16>, 4, 2)
MOE_I8_SET(a4f32, LinI8A4<LinPairF32>, 4, 2)
MOE_I8_SET(e4, LinI8E4, 4, 2)
MOE_I8_SET(s4, LinI8S4, 4, 2)
MOE_I8_K_SET(a4f16, LinI8A4<LinPairF16>, 2)
MOE_I8_K_SET(a4bf16, LinI8A4<LinPairBf16>, 2)
MOE_I8_K_SET(s4, LinI8S4, 2)
