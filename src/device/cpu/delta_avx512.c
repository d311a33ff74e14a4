#include "device/cpu/simd_avx512.h"

#include "device/cpu/delta_simd.h"

void delta_avx512_set(CpuKernels *k)
{
    k->delta = delta;
}
