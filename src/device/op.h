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

/* AXIS_FRAMES: GraphPlan.frames consecutive frames for each row of the step (the mel frames before
 * a strided convolution); row r's are frames r * frames and on. */
typedef enum Axis { AXIS_ROWS, AXIS_OUT_ROWS, AXIS_FRAMES } Axis;

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
    const uint8_t *axis;   /* [rot_dim / 2]: which of a row's positions turns each frequency
                              (StepBlock.pos); NULL: Row.pos turns all */
    int table;             /* equal descriptors share a cos/sin table; filled by the builder */
} RopeDesc;

typedef struct AttnDesc {
    int n_heads, n_kv_heads, head_dim, v_dim;
    float scale;
    float softcap;
    int window; /* 0: all */
    const Vec *sinks;
    int kv_group, kv_layer; /* ATTN: filled by the builder: layers of equal cache geometry form a
                               group. KV, ATTEND: the family's */
    /* ATTEND alone. */
    bool full;       /* every key of the segment is visible, not only those up to the query */
    const Vec *bias; /* [n_heads][2 * span + 1]: added to the scaled score of the key at position j
                        and the query at i: entry span + (j - i), the distance cut to +-span; or
                        NULL */
    int span;
} AttnDesc;

typedef enum ActKind {
    ACT_RELU,
    ACT_GELU,      /* x * Phi(x), by erf */
    ACT_GELU_TANH, /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
    ACT_QUICK_GELU /* x * sigmoid(1.702 x) */
} ActKind;

typedef struct WindowDesc {
    int taps, stride;
    int pad; /* taps before the first row */
} WindowDesc;

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
    const Weight *weight; /* LIN, EMBED, EMBED_POS */
    const Vec *vec;       /* NORM, NORM_GATED, LAYER_NORM; NULL: no weight */
    const Vec *bias;      /* LAYER_NORM; NULL: none */
    float eps;
    int group; /* NORM, NORM_GATED: columns; MERGE: rows */
    union {
        RopeDesc rope;
        AttnDesc attn;
        MoeDesc moe;
        ConvDesc conv;
        DeltaDesc delta;
        ActKind act;
        WindowDesc window;
        int input; /* INPUT: index into GraphPlan.inputs */
    } u;
} Op;

typedef enum KvUse {
    KV_GROW, /* a sequence's rows are added step by step */
    KV_STEP, /* holds the rows of one step, for layers that see whole segments: the layers of a part
                may share one, as nothing is kept. Segments begin at position 0 (kv_len is n_rows)
              */
    KV_FIXED, /* written by one part (an encoder), then only read by another: Segment.fixed_len keys
               */
} KvUse;

/* Cache geometry shared by `n_layers` layers. The parts of a model have one list of groups: what a
 * part declares is the beginning of the longest. */
typedef struct KvGroup {
    int n_layers;
    int n_kv_heads, head_dim, v_dim;
    int window; /* 0: all positions are kept */
    KvUse use;
} KvGroup;

/* What a step brings besides tokens (StepBlock.inputs). */
typedef enum InputKind { INPUT_EMBEDS, INPUT_MEL, INPUT_PIXELS } InputKind;

typedef struct GraphInput {
    InputKind kind;
    Axis axis; /* ROWS or FRAMES */
    int width;
    bool optional; /* rows, or all of it, may be left out */
} GraphInput;

enum { KV_GROUPS_MAX = 8, ROPE_TABLES_MAX = 8, GRAPH_INPUTS_MAX = 4, POS_AXES_MAX = 4 };

typedef struct GraphPlan {
    const char *part; /* "text", "encoder" */
    const Op *ops;
    int n_ops;
    const Value *values;
    int n_values;
    int out;        /* value of the logits (of parts that end before a head: their rows), axis
                       OUT_ROWS */
    int hidden_out; /* value of the final hidden rows (after the last norm, axis OUT_ROWS); -1: none
                     */
    int max_rows, max_out_rows, max_segs; /* the plan holds for steps up to these */
    int64_t scratch_bytes;
    KvGroup kv_groups[KV_GROUPS_MAX];
    int n_kv_groups;
    unsigned kv_writes, kv_reads; /* bit g: the part writes to, attends to group g */
    int64_t state_floats;         /* recurrent state of one sequence, all layers */
    RopeDesc rope_tables[ROPE_TABLES_MAX];
    int n_rope_tables;
    int64_t weight_bytes_per_row; /* bytes of weights a one-row step reads: all of LIN, top_k
                                     experts, one EMBED row */
    GraphInput inputs[GRAPH_INPUTS_MAX];
    int n_inputs;
    int frames;   /* of a row, on AXIS_FRAMES; 0: no value is on that axis */
    int pos_axes; /* positions of a row in StepBlock.pos; 0: Row.pos alone */
    int merge;    /* rows from each wanted one on that outputs read: 1 without MERGE */
    int max_pos;  /* rows of the smallest table of positions: Row.pos stays below; 0: any */
} GraphPlan;

const char *op_name(OpKind kind);

#endif
