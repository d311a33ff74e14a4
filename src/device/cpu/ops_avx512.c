#include "device/cpu/simd_avx512.h"

#include "device/cpu/ops_simd.h"

void ops_avx512_set(CpuKernels *k)
{
    ops_set(k);
}
