/* gpu_plan.h: a graph as GPUs run it: fewer, larger operations, and where values live.
 *
 * Both GPU backends lower from this list. Fusion happens here, once, by what the values' readers
 * allow; a backend may run an operation as one kernel or as several (many rows), never differently
 * in meaning. Operations run in order, each seeing all that earlier ones wrote.
 *
 *   LIN   [gather] [RMS norm] y = x W^T [+ bias] [+ addend]     or silu(gate) * up of W's two
 * halves ATTN  [head norm] [rope] of q and k, cache write, attention MOE   [RMS norm] top-k of
 * router logits, experts' gated MLP, weighted sum [+ addend] and EMBED NORM ADD SILU_MUL
 * SIGMOID_MUL ROPE CONV DELTA NORM_GATED OUT_ROWS as in ops.def
 *
 * Everything lives in the arena given. */
#ifndef MERE_DEVICE_GPU_PLAN_H
#define MERE_DEVICE_GPU_PLAN_H

#include "base/arena.h"
#include "device/op.h"

typedef struct GpuValue {
    int width;      /* columns that are meant */
    int ld;         /* floats from row to row */
    int64_t offset; /* bytes in scratch of row 0, column 0 of this value (of windows too), multiple
                       of 16 where the window's column is; -1: no memory (never stored) or the
                       logits */
    bool is_logits;
    Axis axis;
} GpuValue;

typedef struct GpuNorm { /* vec NULL and eps > 0: norm without weight; eps 0: no norm */
    const Vec *vec;
    float eps;
} GpuNorm;

typedef struct GpuOp {
    OpKind kind;
    const char *name; /* the checkpoint's */
    const Op *op;     /* descriptors: op->u, op->group, op->vec, op->eps */
    int in[3];        /* values; -1: none. LIN: x, addend. ATTN: q, k, v. MOE: x, router logits,
                         addend. Others as in the graph */
    int out;
    Axis axis; /* rows of out: the step's rows, or its output rows */
    /* LIN, MOE */
    GpuNorm norm;         /* of in[0], over its whole width */
    bool gather;          /* row r of in[0] is its row out_rows[r] */
    bool silu;            /* LIN: W's rows are [gate | up], out has half of them */
    const Weight *weight; /* LIN, EMBED */
    /* ATTN */
    GpuNorm q_norm, k_norm;          /* per head */
    const RopeDesc *q_rope, *k_rope; /* NULL: none; equal tables */
} GpuOp;

typedef struct GpuPlan {
    const GraphPlan *graph;
    const GpuOp *ops;
    int n_ops;
    const GpuValue *values; /* by the graph's value numbers */
    int n_values;
    int64_t scratch_bytes;
    const Weight **weights; /* each once */
    int n_weights;
    const Vec **vecs; /* every vector that ops read, each once */
    int n_vecs;
    int max_in_width; /* widest in[0] of LIN and MOE, and experts' ffn */
} GpuPlan;

/* ERR_UNSUPPORTED lists all that the graph has and GPUs have no kernels for: operations, frames,
 * several positions, kinds of caches. */
MUST_CHECK bool gpu_plan_make(Arena *a, const GraphPlan *graph, GpuPlan *out, Error *err);

/* Row counts for which programs are made: 1, 2, 4, 8, ... up to the first >= max_rows. Returns how
 * many. */
enum { GPU_BUCKETS_MAX = 16 };
int gpu_buckets(int max_rows, int out[GPU_BUCKETS_MAX]);
int gpu_bucket(int rows); /* the smallest power of two >= rows */

#endif
