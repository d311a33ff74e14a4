#include "device/cpu/simd_avx2.h"

#include "device/cpu/ops_simd.h"

void ops_avx2_set(CpuKernels *k)
{
    ops_set(k);
}
