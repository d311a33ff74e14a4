/* Experts in f32 with F32, F16 and BF16 weights. */
#include "moe_f32.h"

MOE_F32_SET(f32, LinF32F32)
MOE_F32_SET(f16, LinF32F16)
MOE_F32_SET(bf16, LinF32Bf16)
