#include "gemm.h"

#define SHAPE(shape, mt, nt, wn, wk) GEMM_KERNEL(e4, GemmE4, shape, mt, nt, wn, wk)
GEMM_SHAPES(SHAPE)
