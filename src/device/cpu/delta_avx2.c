#include "device/cpu/simd_avx2.h"

#include "device/cpu/delta_simd.h"

void delta_avx2_set(CpuKernels *k)
{
    k->delta = delta;
}
