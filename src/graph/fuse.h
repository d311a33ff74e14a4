/* fuse.h: rewrites a finished op list into fewer ops. Each rule keeps the values that others read.
 */
#ifndef MERE_GRAPH_FUSE_H
#define MERE_GRAPH_FUSE_H

#include "graph/graph.h"

/* Rules, in this order:
 *   residual  add(lin(x), r) or add(moe(x), r) -> the product with r as its addend, when nothing
 * else reads the product and r is computed before it; packed    a row-wise op whose result only
 * weight products read is marked packed_only. */
void fuse_graph(Graph *g);

#endif
