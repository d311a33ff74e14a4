#include "device/cpu/simd_avx2.h"

#include "device/cpu/attn_simd.h"

void attn_avx2_set(CpuKernels *k)
{
    k->attn = attn;
}
