/* Products with GPU_A4 weights with f16 pairs (MLX, Q4_1), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(a4f16, LinI8A4<LinPairF16>, 4, 2, 4)
LIN_GEMV_K_SET(a4f16, LinI8A4<LinPairF16>, 4, 2, 4)
