/* gpu_pack.h: one row of a weight from its format into the layout that gpu_weight.c names for it.
 * Not for other modules: gpu_weight.h. */
#ifndef MERE_DEVICE_GPU_PACK_H
#define MERE_DEVICE_GPU_PACK_H

#include "device/gpu/gpu_weight.h"

enum { GPU_K6_SCALE_BYTES = 20 }; /* of 256 k */

/* Row r of the view, without what pads rows. scales NULL: for layouts that have none. */
void gpu_pack_row(const RowView *v, int64_t r, uint8_t *codes, uint8_t *scales);

#endif
