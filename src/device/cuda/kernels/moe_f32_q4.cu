/* Experts in f32 with 4-bit weights. */
#include "moe_f32.h"

MOE_F32_SET(a4, LinF32A4)
MOE_F32_SET(s4, LinF32S4)
MOE_F32_SET(e4, LinF32E4)
