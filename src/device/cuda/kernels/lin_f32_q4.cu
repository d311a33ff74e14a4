/* The general product with 4-bit weights. */
#include "lin_general.h"

LIN_F32_SET(a4, LinF32A4)
LIN_F32_SET(s4, LinF32S4)
LIN_F32_SET(e4, LinF32E4)
