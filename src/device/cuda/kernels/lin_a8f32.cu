/* Products with GPU_A8 weights with f32 pairs (MLX), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(a8f32, LinI8A8<LinPairF32>, 4, 2, 2)
