/* step_segs.h: finding the part of a segment that a CTA works on, from the step block. */
#ifndef MERE_STEP_SEGS_H
#define MERE_STEP_SEGS_H

#include "gpu_compat.h"
#include "gpu_words.h"

/* Each segment with at least `min_rows` rows is cut into tiles of `size` of its `per_row` * n_rows
 * entries; the last tiles of a segment, which see most keys, come first. Finds tile number `tile`
 * of all: its segment and its first entry. False: there are not so many. All threads of a warp call
 * it. */
DEVICE bool step_find_tile(const int32_t *step, int segs_at, int min_rows, int per_row, int size,
                           int tile, int *seg, int *first)
{
    const int lane = thread_id() & 31;
    const int n_segs = load_i32(step + GPU_STEP_N_SEGS);
    for (int s0 = 0; s0 < n_segs; s0 += 32) {
        int mine = 0;
        if (s0 + lane < n_segs) {
            const int rows =
                load_i32(step + segs_at + (int64_t)(s0 + lane) * GPU_SEG_WORDS + GPU_SEG_N_ROWS);
            mine = rows >= min_rows ? (rows * per_row + size - 1) / size : 0;
        }
        int upto = mine; /* tiles of the segments up to this lane's */
        for (int o = 1; o < 32; o *= 2) {
            const int before = shfl_up(upto, o);
            upto += lane >= o ? before : 0;
        }
        const uint32_t later = warp_ballot(upto > tile);
        if (later) {
            int at = 0;
            while (!(later >> at & 1u))
                at++;
            *seg = s0 + at;
            *first = (shfl(upto, at) - tile - 1) * size;
            return true;
        }
        tile -= shfl(upto, 31);
    }
    return false;
}

#endif
