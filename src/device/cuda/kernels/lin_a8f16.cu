/* Products with GPU_A8 weights with f16 pairs (MLX), few rows. */
#include "lin_gemv_set.h"

LIN_GEMV_SET(a8f16, LinI8A8<LinPairF16>, 4, 2, 4)
