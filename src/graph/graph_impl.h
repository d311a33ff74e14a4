/* graph_impl.h: the graph while it is built; for graph.c, fuse.c and plan.c alone. */
#ifndef MERE_GRAPH_GRAPH_IMPL_H
#define MERE_GRAPH_GRAPH_IMPL_H

#include "graph/graph.h"

struct Graph {
    Arena *arena;
    const char *part;
    const char *prefix; /* of the next ops' names */
    Op *ops;
    int n_ops, cap_ops;
    Value *values;
    int n_values, cap_values;
    int out, hidden_out;
    KvGroup kv_groups[KV_GROUPS_MAX];
    int n_kv_groups;
    int n_declared; /* the first groups: their numbers of layers are the family's */
    unsigned kv_writes, kv_reads;
    GraphInput inputs[GRAPH_INPUTS_MAX];
    int n_inputs;
    int frames, pos_axes, merge, max_pos;
    RopeDesc ropes[ROPE_TABLES_MAX];
    int n_ropes;
    int64_t state_floats;
    bool failed;
    Error first; /* the first failure */
};

#endif
