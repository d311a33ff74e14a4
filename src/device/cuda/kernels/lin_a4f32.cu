/* Products with GPU_A4 weights with f32 pairs (Q4_K, MLX), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(a4f32, LinI8A4<LinPairF32>, 4, 2, 2)
