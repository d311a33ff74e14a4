#include "gemm.h"

#define SHAPE(shape, mt, nt, wn, wk) GEMM_KERNEL(w8, GemmW8, shape, mt, nt, wn, wk)
GEMM_SHAPES(SHAPE)
