/* Experts in f32 with 8-bit and 6-bit weights. */
#include "moe_f32.h"

MOE_F32_SET(a8, LinF32A8)
MOE_F32_SET(s8, LinF32S8)
MOE_F32_SET(k6, LinF32K6)
