/* Products with F32, F16 and BF16 weights: the general kernel is also their fast one. */
#include "lin_general.h"

LIN_F32_SET(f32, LinF32F32)
LIN_F32_SET(f16, LinF32F16)
LIN_F32_SET(bf16, LinF32Bf16)
