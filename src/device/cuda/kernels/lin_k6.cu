/* Products with GPU_K6 weights (Q6_K), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(k6, LinI8K6, 3, 1, 2)
