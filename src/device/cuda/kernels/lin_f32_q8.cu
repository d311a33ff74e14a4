/* The general product with 8-bit and 6-bit weights. */
#include "lin_general.h"

LIN_F32_SET(a8, LinF32A8)
LIN_F32_SET(s8, LinF32S8)
LIN_F32_SET(k6, LinF32K6)
