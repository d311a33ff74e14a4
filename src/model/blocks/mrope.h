/* mrope.h: positions of images: three a row in the text (time, height, width: families.md
 * ROPE.mrope), two a patch in a vision tower. */
#ifndef MERE_MODEL_BLOCKS_MROPE_H
#define MERE_MODEL_BLOCKS_MROPE_H

#include "model/model.h"

/* An image as a vision tower cuts it: frames of rows of columns of patches; `merge` x `merge`
 * patches become one row of the text. rows and cols are multiples of merge. */
typedef struct MropeGrid {
    int frames, rows, cols, merge;
} MropeGrid;

/* Patches of a grid; 0 when a number is below 1, does not divide, or there are more than 2^24. */
int mrope_n_patches(const MropeGrid *grid);
/* [patches][2]: row and column of each patch, in the order in which patches that will be merged are
 * neighbours (that of the processors' pixel_values). */
void mrope_patches(const MropeGrid *grid, int32_t *out);
/* [n][3] for a sequence in which runs of `image_token` are the rows of `grids` in turn: text counts
 * all three up; an image's rows begin at the next position, and text goes on past the largest of
 * them. *next: the position after the last row (what generation goes on with). ERR_REQUEST: runs
 * and grids do not fit. */
MUST_CHECK bool mrope_positions(const int32_t *tokens, int n, int32_t image_token,
                                const MropeGrid *grids, int n_grids, int32_t *out, int32_t *next,
                                Error *err);

/* "mrope_section" of the configuration's rope object: which of three positions turns each frequency
 * of `rope`, in sections one after another. */
MUST_CHECK bool mrope_sections(Model *m, const json_t *config, RopeDesc *rope, Error *err);

#endif
