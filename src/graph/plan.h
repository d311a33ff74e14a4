/* plan.h: where each value lives. */
#ifndef MERE_GRAPH_PLAN_H
#define MERE_GRAPH_PLAN_H

#include "graph/graph.h"

/* Lifetimes and scratch offsets for steps within `limits`: first fit over values sorted by birth.
 * Fills Value.first_op, last_op, ld and offset; *scratch_bytes is the end of the highest value. The
 * logits stay outside (offset -1). */
void plan_scratch(Graph *g, const GraphLimits *limits, int64_t *scratch_bytes);
/* Weight bytes a step of one row reads. */
int64_t plan_weight_bytes(const Graph *g);

#endif
