/* op.h: what a graph hands to a device: operations over values, weights they read, and the memory
 * plan that places the values.
 *
 * A value is a matrix [rows of its axis, width] of f32 (wider or narrower types are a device's own
 * business) at a fixed offset of the scratch buffer, or a window of columns of another value.
 * Everything here is immutable once the plan is made and lives in the arena of the graph. */
#ifndef MERE_DEVICE_OP_H
#define MERE_DEVICE_OP_H

#include "base/format.h"

typedef enum OpKind {
    OP_NONE,
#define OP(kind, name, inputs, what) kind,
#include "device/ops.def"
#undef OP
    OP_COUNT
} OpKind;

/* How a weight splits over several devices. */
typedef enum ShardRole {
    SHARD_REPLICATED,
    SHARD_ROW,
    SHARD_COL,
    SHARD_HEAD,
    SHARD_EXPERT
} ShardRole;

/* A weight matrix [n, k] as row segments in checkpoint order of use (q, k, v or gate, up multiply
 * as one), for each expert. Segments may differ in format. The views point into mapped files. */
typedef struct Weight {
    const char *name;
    int64_t n; /* rows of all segments of one expert */
    int k;
    int n_segs;
    int n_experts; /* 0: no experts */
    RowView *segs; /* [max(1, n_experts)][n_segs] */
    float *bias;   /* [n] or NULL */
    ShardRole role;
    bool precise; /* multiplied as in the exact class whatever the numeric class: small weights
                     whose error decides between experts */
} Weight;

/* A small vector, always f32 (norm weights, biases, decay): a derived copy. */
typedef struct Vec {
    const char *name;
    int n;
    float *v;
} Vec;

typedef enum Axis { AXIS_ROWS, AXIS_OUT_ROWS } Axis;

typedef struct Value {
    Axis axis;
    int width;
    int base; /* value whose columns [col, col + width) this is; its own index when it owns memory
               */
    int col;
    int first_op; /* lifetime in phases of graph/plan.c, base values only; windows extend it */
    int last_op;
    int64_t offset; /* bytes in scratch, 64-aligned; base values only; -1: lives outside scratch
                       (logits) or never stored */
    int ld;         /* floats from row to row (of the base) */
} Value;

typedef struct RopeDesc {
    int n_heads, head_dim;
    int rot_dim;
    bool pairs;
    float scale;
    const float *inv_freq; /* [rot_dim / 2] */
    int table;             /* equal descriptors share a cos/sin table; filled by the builder */
} RopeDesc;

typedef struct AttnDesc {
    int n_heads, n_kv_heads, head_dim, v_dim;
    float scale;
    float softcap;
    int window; /* 0: all */
    const Vec *sinks;
    int kv_group, kv_layer; /* filled by the builder: layers of equal cache geometry form a group */
} AttnDesc;

typedef struct MoeDesc {
    int n_experts, top_k, ffn; /* ffn: width of an expert's MLP */
    bool renorm;
    const Weight *gate_up; /* experts, rows [gate | up], [2 * ffn, hidden] */
    const Weight *down;    /* experts, [hidden, ffn] */
} MoeDesc;

typedef struct ConvDesc {
    int channels, width;
    const Vec *w; /* [channels * width] */
    int state_layer, state_offset;
} ConvDesc;

typedef struct DeltaDesc {
    int n_k_heads, n_v_heads, k_dim, v_dim;
    const Vec *a_log, *dt_bias;
    int state_layer, state_offset;
} DeltaDesc;

enum { OP_MAX_IN = 3 };

typedef struct Op {
    OpKind kind;
    int in[OP_MAX_IN]; /* value indices, -1: none */
    int out;
    const char *name; /* the checkpoint's name of what it computes */
    /* Set by fusion (graph/fuse.c). */
    bool packed_only; /* the out value is read by weight products alone: the device may keep it in
                         their packed form only */
    const Weight *weight; /* LIN, EMBED */
    const Vec *vec;       /* NORM, NORM_GATED; NULL: no weight */
    float eps;
    int group;
    union {
        RopeDesc rope;
        AttnDesc attn;
        MoeDesc moe;
        ConvDesc conv;
        DeltaDesc delta;
    } u;
} Op;

/* Cache geometry shared by `n_layers` layers. */
typedef struct KvGroup {
    int n_layers;
    int n_kv_heads, head_dim, v_dim;
    int window; /* 0: all positions are kept */
} KvGroup;

enum { KV_GROUPS_MAX = 8, ROPE_TABLES_MAX = 8 };

typedef struct GraphPlan {
    const char *part; /* "text" */
    const Op *ops;
    int n_ops;
    const Value *values;
    int n_values;
    int out;        /* value of the logits, axis OUT_ROWS */
    int hidden_out; /* value of the final hidden rows (after the last norm, axis OUT_ROWS); -1: none
                     */
    int max_rows, max_out_rows, max_segs; /* the plan holds for steps up to these */
    int64_t scratch_bytes;
    KvGroup kv_groups[KV_GROUPS_MAX];
    int n_kv_groups;
    int64_t state_floats; /* recurrent state of one sequence, all layers */
    RopeDesc rope_tables[ROPE_TABLES_MAX];
    int n_rope_tables;
    int64_t weight_bytes_per_row; /* bytes of weights a one-row step reads: all of LIN, top_k
                                     experts, one EMBED row */
} GraphPlan;

const char *op_name(OpKind kind);

#endif
