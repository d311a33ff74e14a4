/* Products with GPU_A8 weights with bf16 pairs (MLX), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(a8bf16, LinI8A8<LinPairBf16>, 4, 2, 4)
