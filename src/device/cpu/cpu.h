/* cpu.h: the CPU device's inside: device, pools, and the program a graph is lowered to.
 *
 * A program is a list of stages. The threads of the team run every stage together: a stage is cut
 * into tiles, each thread takes tiles of its own share first and then those left in other shares,
 * and a barrier ends the stage. Stages of three kinds: rows     a chain of row-wise items (norms,
 * rope, packing of activations ...) over a block of rows: no barrier between the items; lin      a
 * weight product, tiles over weight rows; others   attention (segment, kv head, query tile),
 * convolution and delta rule (segment, heads), experts (cpu_moe.c). Nothing is allocated in a step:
 * buffers are sized for the plan's limits in cpu_lower.c. */
#ifndef MERE_DEVICE_CPU_CPU_H
#define MERE_DEVICE_CPU_CPU_H

#include "base/arena.h"
#include "device/cpu/kernels.h"
#include "device/cpu/lin.h"
#include "device/cpu/team.h"
#include "device/device.h"

#include <stdatomic.h>

struct Device {
    Team *team;
    CpuKernels kernels;
    unsigned isa;
    LinClass lin_class;
    Numerics numerics;
    char describe[128];
    bool lost; /* by MERE_FAULT */
};

struct KvPool {
    KvPoolDesc desc;
    uint8_t *kv; /* groups, in each layers: K pages then V pages */
    int64_t kv_bytes;
    int64_t group_offset[KV_GROUPS_MAX];
    float *state; /* [n_states][state_floats] */
    int64_t state_bytes;
};

/* Cache of `layer` in `group`. */
KvLayer cpu_kv_layer(const KvPool *pool, int group, int layer);

enum { PACK_FORMATS_MAX = 16 };

/* What decides the kernel of a product, besides the number of rows. */
typedef struct LinWant {
    FormatId format;
    int group;
    LinClass cls;
    const int32_t *columns; /* RowView's: no part of the choice, but of what is packed */
} LinWant;

/* What a value must be packed into: the formats of the weights that will read it. */
typedef struct PackSet {
    int n;
    LinWant want[PACK_FORMATS_MAX];
    int64_t offset; /* bytes into the pack buffer */
    int64_t bytes;
    /* For the rows of the current step: distinct layouts and orders of columns, and where their
     * records begin behind `offset`. */
    int n_forms;
    struct {
        const LinLayout *layout;
        const int32_t *columns;
        int64_t at, row_bytes;
    } form[PACK_FORMATS_MAX];
} PackSet;

/* A segment of a product for the rows of the current step. */
typedef struct LinSeg {
    const LinKernel *kernel;
    const uint8_t *x;
    int64_t tile; /* weight rows */
    int n_tiles;
} LinSeg;

typedef enum RowItemKind {
    ROW_OP,         /* a row-wise op of the plan */
    ROW_ROPE_TABLE, /* cos and sin of one table for the rows */
    ROW_KV_WRITE,   /* keys and values of an ATTN or KV op into their slots */
    ROW_PACK,       /* a value into its packed forms */
    ROW_COMBINE,    /* expert outputs of a MOE op back into rows */
} RowItemKind;

typedef struct RowItem {
    RowItemKind kind;
    const Op *op;
    int index; /* rope table, or value to pack */
} RowItem;

typedef struct Stage Stage;
struct Stage {
    int (*tiles)(const Program *p, const Stage *s);
    void (*run)(Program *p, const Stage *s, int tile, int thread);
    const Op *op;
    const RowItem *items; /* rows stages */
    int n_items;
    Axis axis;   /* of the rows a rows or lin stage walks */
    LinSeg *lin; /* [segments] of a lin stage */
    int lin_tiles;
};

typedef struct AttnTile {
    int seg, q0, q1;
} AttnTile;

/* Experts of one step: rows sorted by expert. Shared by all MOE ops of the program, one at a time.
 */
typedef struct MoeWork {
    int32_t *ids;    /* [max_rows * top_k] */
    float *weights;  /* [max_rows * top_k] */
    int32_t *place;  /* where in expert order the (row, j) pair went */
    int32_t *row;    /* [max_rows * top_k] row of each place */
    int32_t *start;  /* [n_experts + 1] first place of each expert */
    int32_t *active; /* experts with rows */
    int32_t *fill;   /* [n_experts] */
    int n_active;
    uint8_t *pack_in; /* packed inputs in expert order */
    int64_t pack_in_row;
    float *up; /* [places][2 * ffn] */
    uint8_t *pack_mid;
    int64_t pack_mid_row;
    float *out; /* [places][hidden] */
    int64_t ld_up, ld_out;
} MoeWork;

/* A thread's share of a stage's tiles; its own cache line. */
typedef struct Cursor {
    ALIGNED(64) atomic_int next;
} Cursor;

struct Program {
    Device *dev;
    Arena arena;
    const GraphPlan *plan;
    Stage *stages;
    int n_stages;
    PackSet *packs;  /* [n_values]; n 0: never packed */
    uint8_t *memory; /* one mapping: scratch, packs, tables, thread work */
    int64_t memory_bytes;
    uint8_t *scratch;
    uint8_t *pack_base;
    float *rope[ROPE_TABLES_MAX]; /* [max_rows][rot_dim] */
    uint8_t *work;                /* [threads][work_bytes] */
    int64_t work_bytes;
    float *row_buf; /* [threads][row_buf_floats]: rows of packed-only values */
    int64_t row_buf_floats;
    int64_t row_buf_ld;
    MoeWork moe;
    Cursor *cursors; /* [2][threads] */
    /* The step. */
    const StepBlock *step;
    KvPool *pool;
    int32_t *slots[KV_GROUPS_MAX]; /* [max_rows] */
    int32_t *pos;                  /* [max_rows] */
    int32_t *axes;                 /* [max_rows][pos_axes] */
    int32_t *tokens;               /* [max_rows] */
    AttnTile *attn_tiles;
    int n_attn_tiles;
    int resolved_rows, resolved_out; /* what the stages are resolved for */
};

/* Rows of a row-wise chain that one tile takes. */
enum { ROW_TILE_MAX = 16 };

float *
cpu_value(const Program *p,
          int value); /* first row of a value (with its column offset); logits: the step's buffer */
int cpu_axis_rows(const Program *p, Axis axis);
/* Chooses kernels, packed forms and tiles for the step's number of rows. */
void cpu_resolve(Program *p);
/* For segment `rows` of w. */
LinWant cpu_lin_want(const Device *d, const Weight *w, const RowView *rows);
/* LinLayout.pack with the columns in the weight's order (NULL: as they are). */
void cpu_pack(const Program *p, int thread, const LinLayout *layout, const int32_t *columns,
              const float *x, int64_t ldx, const int32_t *idx, int rows, int k, uint8_t *out);
const LinKernel *cpu_lin_kernel(const Device *d, LinWant want, int rows);
/* Adds to a set; false when it is full. */
bool cpu_want_pack(PackSet *set, LinWant want);
/* Tile of weight rows for a product of n weight rows. */
int64_t cpu_lin_tile(const Program *p, const LinKernel *k, int64_t n);

/* Stage functions (cpu_stage.c, cpu_moe.c). */
int cpu_rows_tiles(const Program *p, const Stage *s);
void cpu_rows_run(Program *p, const Stage *s, int tile, int thread);
int cpu_lin_tiles(const Program *p, const Stage *s);
void cpu_lin_run(Program *p, const Stage *s, int tile, int thread);
int cpu_attn_tiles(const Program *p, const Stage *s);
void cpu_attn_run(Program *p, const Stage *s, int tile, int thread);
int cpu_conv_tiles(const Program *p, const Stage *s);
void cpu_conv_run(Program *p, const Stage *s, int tile, int thread);
int cpu_delta_tiles(const Program *p, const Stage *s);
void cpu_delta_run(Program *p, const Stage *s, int tile, int thread);
int cpu_moe_route_tiles(const Program *p, const Stage *s);
void cpu_moe_route_run(Program *p, const Stage *s, int tile, int thread);
int cpu_moe_pack_tiles(const Program *p, const Stage *s);
void cpu_moe_pack_run(Program *p, const Stage *s, int tile, int thread);
int cpu_moe_up_tiles(const Program *p, const Stage *s);
void cpu_moe_up_run(Program *p, const Stage *s, int tile, int thread);
int cpu_moe_act_tiles(const Program *p, const Stage *s);
void cpu_moe_act_run(Program *p, const Stage *s, int tile, int thread);
int cpu_moe_down_tiles(const Program *p, const Stage *s);
void cpu_moe_down_run(Program *p, const Stage *s, int tile, int thread);
void cpu_moe_combine(Program *p, const Op *op, int r0, int r1);

/* cpu_lower.c */
bool cpu_lower(Device *d, const GraphPlan *plan, const DeviceWeights *weights,
               const KvPoolDesc *pool, Program **out, Error *err);
void cpu_need(const Device *d, const GraphPlan *plan, const KvPoolDesc *pool, DeviceNeed *out);
void cpu_program_close(Device *d, Program *p);

#endif
