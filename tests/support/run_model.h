/* run_model.h: drives a model on a device straight through device.h: page tables, state slots and
 * steps for a few sequences, without the engine. For golden tests: pages are as small as asked
 * and never in order, and those that a window has passed are given back at once. */
#ifndef MERE_TESTS_RUN_MODEL_H
#define MERE_TESTS_RUN_MODEL_H

#include "device/device.h"
#include "model/model.h"

typedef struct RunModel RunModel;

typedef struct RunOptions {
    const char *device; /* NULL: "cpu" */
    Numerics numerics;
    KvFormat kv;
    bool deterministic;
    int threads;
    const char *level; /* NULL: what the machine has */
    int page_tokens;
    int max_tokens; /* of one sequence */
    int n_seqs;
    int max_rows; /* of one step */
} RunOptions;

/* `path` is a checkpoint. Everything lives in `a` or is closed by run_model_close. */
MUST_CHECK bool run_model_open(Arena *a, const char *path, const RunOptions *opt, RunModel **out,
                               Error *err);
void run_model_close(RunModel *r);
const Model *run_model_get(const RunModel *r);
const GraphPlan *run_model_plan(const RunModel *r);

/* Rows of one sequence in a step. */
typedef struct RunPart {
    int seq;
    const int32_t *tokens;
    int n;
    bool last_only; /* one row of logits instead of n */
} RunPart;

/* One step; logits [outputs of all parts in order][vocab]. A sequence occurs at most once. */
MUST_CHECK bool run_model_step(RunModel *r, const RunPart *parts, int n_parts, float *logits,
                               Error *err);

int run_model_len(const RunModel *r, int seq);
void run_model_reset(RunModel *r, int seq); /* an empty sequence, its snapshot forgotten */
/* Remembers where the sequence is: its recurrent state is copied, its pages are kept (one snapshot
 * a sequence). run_model_drop returns there: later positions are forgotten, the snapshot stays. */
void run_model_snapshot(RunModel *r, int seq);
void run_model_drop(RunModel *r, int seq);
int run_model_pages_in_use(const RunModel *r, int group);

#endif
