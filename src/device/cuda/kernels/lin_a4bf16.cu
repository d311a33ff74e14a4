/* Products with GPU_A4 weights with bf16 pairs (MLX), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(a4bf16, LinI8A4<LinPairBf16>, 4, 2, 4)
LIN_GEMV_K_SET(a4bf16, LinI8A4<LinPairBf16>, 4, 2, 4)
