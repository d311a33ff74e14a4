/* kernels_sets.h: the parts that kernels_init puts together. Each call overwrites the entries that
 * its file improves; to be called weakest first. Private to device/cpu. */
#ifndef MERE_DEVICE_CPU_KERNELS_SETS_H
#define MERE_DEVICE_CPU_KERNELS_SETS_H

#include "device/cpu/kernels.h"

/* Rows that delta prepares together, and columns of the state that it keeps close. */
enum { DELTA_BATCH = 32, DELTA_PANEL = 64 };

void ops_ref_set(CpuKernels *k);
void attn_ref_set(CpuKernels *k);
void delta_ref_set(CpuKernels *k);

#endif
