#include "gemm.h"

#define SHAPE(shape, mt, nt, wn, wk) GEMM_KERNEL(k6, GemmK6, shape, mt, nt, wn, wk)
GEMM_SHAPES(SHAPE)
