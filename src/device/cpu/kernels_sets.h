/* kernels_sets.h: the parts that kernels_init puts together. Each call overwrites the entries that
 * its file improves; to be called weakest first. Private to device/cpu. */
#ifndef MERE_DEVICE_CPU_KERNELS_SETS_H
#define MERE_DEVICE_CPU_KERNELS_SETS_H

#include "device/cpu/kernels.h"

/* Keys of a block of attention: its online softmax goes from multiple to multiple. */
enum { ATTN_BLOCK = 64 };

/* Rows that delta prepares together, and most columns of the state that it keeps close. */
enum { DELTA_BATCH = 32, DELTA_STRIPE = 64 };

void ops_ref_set(CpuKernels *k);
void attn_ref_set(CpuKernels *k);
void delta_ref_set(CpuKernels *k);
void ops_avx2_set(CpuKernels *k);
void attn_avx2_set(CpuKernels *k);
void delta_avx2_set(CpuKernels *k);
void ops_avx512_set(CpuKernels *k);
void attn_avx512_set(CpuKernels *k);
void delta_avx512_set(CpuKernels *k);

#endif
