/* emu.h: runs CUDA kernels on the host, for tests: every thread of a CTA is a fiber, CTAs run one
 * after another (those of a cluster together). One launch at a time in the whole process, the
 * others wait. Device addresses are host addresses.
 *
 * Found: barriers and warp collectives that not all threads reach, collectives of different kinds
 * in one warp, threads beyond the launch bound, shared memory that is read before it is written (it
 * starts as NaN: 0x7fff7fff), copies read before copy_wait (they land there and not before),
 * misaligned vector accesses through gpu_compat.h, writes around shared arrays, accesses past the
 * dynamic part (the process ends with the kernel's and thread's name), CTAs of a cluster that ended
 * too early. Not found: races that the order of the fibers hides; EMU_ORDER changes that order:
 * "forward" (default), "reverse", "random:SEED". A kernel that spins until another CTA writes never
 * ends here. */
#ifndef MERE_EMU_H
#define MERE_EMU_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or not 0 with the reason in emu_error. `cluster` 0: none. A failed launch has run in part. */
int emu_launch(const char *kernel, const int grid[3], int block, int smem, int cluster,
               const void *params, size_t params_bytes);
/* Of the last launch that failed; borrowed until the next one. */
const char *emu_error(void);
bool emu_has(const char *kernel);
size_t emu_params_bytes(const char *kernel); /* of its argument; 0: no such kernel */

#ifdef __cplusplus
}
#endif

#endif
