/* run_parts.h: drives a model of several parts on a device straight through device.h: a program for
 * each part, one pool, page tables of a few sequences. For golden tests; see run_model.h for models
 * of one part. */
#ifndef MERE_TESTS_RUN_PARTS_H
#define MERE_TESTS_RUN_PARTS_H

#include "device/device.h"
#include "model/model.h"
#include "support/run_model.h"

typedef struct RunParts RunParts;

/* opt->max_tokens: positions of one sequence in every group. */
MUST_CHECK bool run_parts_open(Arena *a, const char *path, const RunOptions *opt, RunParts **out,
                               Error *err);
void run_parts_close(RunParts *r);
const Model *run_parts_model(const RunParts *r);
const GraphPlan *run_parts_plan(const RunParts *r, const char *part);

/* Rows [from, from + n) of a sequence. */
typedef struct RunRows {
    int seq, from, n;
    const int32_t *tokens; /* [n], NULL: rows of an input */
    int fixed_len;         /* keys that an encoder has written for the sequence */
} RunRows;

/* One step of a part. Inputs and positions (StepBlock.pos, or NULL) are those of all rows of the
 * step. out: every row's, or for parts that merge one for each group, of all segments in order. */
MUST_CHECK bool run_parts_step(RunParts *r, const char *part, const RunRows *rows, int n_segs,
                               const StepInput *inputs, int n_inputs, const int32_t *pos,
                               float *out, Error *err);

#endif
