/* Products with GPU_S4 weights (Q4_0), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(s4, LinI8S4, 4, 2, 4)
LIN_GEMV_K_SET(s4, LinI8S4, 4, 2, 4)
