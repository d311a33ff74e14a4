#include "gemm.h"

#define SHAPE(shape, mt, nt, wn, wk) GEMM_KERNEL(f16, GemmPlain<0>, shape, mt, nt, wn, wk)
GEMM_SHAPES(SHAPE)
