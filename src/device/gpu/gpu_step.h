/* gpu_step.h: the block of 32-bit words that one step sends to a GPU. The host writes it into
 * mapped memory; the program's first kernel copies `words` of it to device memory, where all others
 * read it.
 *
 *   head  GPU_STEP_HEAD words, see gpu_words.h
 *   rows  [max_rows]   token (or -1 - sample slot)
 *         [max_rows]   position (rotary)
 *         [max_rows]   segment, -1 for padding rows
 *         [max_rows]   cache slot in each group: page * page_tokens + place in it; -1: none
 *   out   [max_out]    rows whose output is wanted; rows past n_out: 0
 *   samp  [max_out]    GPU_SAMPLE_WORDS words
 *   segs  [max_segs]   GPU_SEG_WORDS words
 *   pages              tables of all segments and groups, one after another (GpuSeg.pages)
 *
 * Offsets are fixed by the layout; only the length of the last part varies. Rows from n_rows up to
 * the bucket are padding: token 0, segment -1, slots -1: they touch nothing outside scratch. */
#ifndef MERE_DEVICE_GPU_STEP_H
#define MERE_DEVICE_GPU_STEP_H

#include "device/device.h"
#include "device/gpu/gpu_words.h"

typedef struct GpuStepLayout { /* word offsets */
    int32_t tokens, pos, seg, slots[KV_GROUPS_MAX], out_rows, samples, segs, pages;
    int32_t max_rows, max_out, max_segs, n_groups;
    int32_t max_words;
} GpuStepLayout;

/* max_rows is rounded up to its bucket. */
void gpu_step_layout(const GraphPlan *g, const KvPoolDesc *kv, GpuStepLayout *out);
/* Checks the step against the plan (ERR_DEVICE) and writes the block: GPU_STEP_WORDS words of
 * `block`, which has max_words. */
MUST_CHECK bool gpu_step_write(const GpuStepLayout *l, const GraphPlan *g, const KvPoolDesc *kv,
                               const StepBlock *s, uint32_t ticket, int32_t *block, Error *err);

#endif
