/* Products with GPU_S8 weights (Q8_0), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(s8, LinI8S8, 4, 2, 4)
