#include "device/cpu/simd_avx512.h"

#include "device/cpu/attn_simd.h"

void attn_avx512_set(CpuKernels *k)
{
    k->attn = attn;
}
