#include "gemm.h"

#define SHAPE(shape, mt, nt, wn, wk) GEMM_KERNEL(w4, GemmW4, shape, mt, nt, wn, wk)
GEMM_SHAPES(SHAPE)
