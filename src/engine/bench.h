/* bench.h: how fast a model computes and how fast this machine reads (mere_bench). Runs on the
 * engine's thread, with steps of its own and sequences that stay out of the prefix tree. What is
 * measured is what requests get: a device that samples draws the tokens, and the next step is
 * submitted before they are read (sched.h). */
#ifndef MERE_ENGINE_BENCH_H
#define MERE_ENGINE_BENCH_H

#include "engine/load.h"

/* ERR_USAGE: a count is out of range, or does not fit context and slots. ERR_FAILED: requests are
 * live. */
MUST_CHECK bool bench_run(MereModel *m, const MereBench *b, MereBenchResult *out, Error *err);

#endif
