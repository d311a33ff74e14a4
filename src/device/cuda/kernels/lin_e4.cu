/* Products with GPU_E4 weights (MXFP4), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(e4, LinI8E4, 4, 2, 4)
