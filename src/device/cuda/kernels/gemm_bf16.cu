#include "gemm.h"

#define SHAPE(shape, mt, nt, wn, wk) GEMM_KERNEL(bf16, GemmPlain<1>, shape, mt, nt, wn, wk)
GEMM_SHAPES(SHAPE)
