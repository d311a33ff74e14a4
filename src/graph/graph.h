/* graph.h: builds a model's forward pass as operations, then fuses and places them (graph_end),
 * giving the GraphPlan that a device lowers. A model is written once, straight down:
 *
 *     T x = g_embed(g, &m->embed);
 *     for each layer: h = g_norm(..., x); q = g_lin(..., h); ... x = g_add(g, x, g_lin(g, &l->down,
 * h)); g_out(g, g_lin(g, &m->head, g_norm(g, &m->norm, g_out_rows(g, x), eps)));
 *
 * Errors are sticky: an op on an invalid node, or with shapes that do not fit, is an invalid node
 * (0), and graph_end reports the first with its name. Single-threaded; all memory comes from the
 * arena given to graph_begin. */
#ifndef MERE_GRAPH_GRAPH_H
#define MERE_GRAPH_GRAPH_H

#include "base/arena.h"
#include "device/op.h"

typedef struct Graph Graph;
typedef int32_t T; /* a node; 0 is invalid */

/* NULL and err when out of memory. `part` is kept. */
Graph *graph_begin(Arena *a, const char *part, Error *err);

T g_embed(Graph *g, const Weight *table); /* token ids of the step's rows -> [ROWS, table->k] */
T g_lin(Graph *g, const Weight *w, T x);  /* the only way to multiply by a weight */
T g_slice(Graph *g, T x, int from, int width);    /* columns of x, no copy */
T g_norm(Graph *g, const Vec *w, T x, float eps); /* RMS over the whole row; w [width] */
T g_head_norm(Graph *g, const Vec *w, T x, int head_dim,
              float eps); /* RMS over each head; w [head_dim] */
T g_norm_gated(Graph *g, const Vec *w, T x, T gate, int group,
               float eps); /* rms(x per group) * w * silu(gate) */
T g_add(Graph *g, T a, T b);
T g_silu_mul(Graph *g, T gate, T up);
T g_sigmoid_mul(Graph *g, T x, T gate);        /* gate [rows, width of x] or [rows, 1] */
T g_rope(Graph *g, T x, const RopeDesc *rope); /* rope->table is filled here */
T g_attn(Graph *g, T q, T k, T v,
         const AttnDesc *attn); /* -> [ROWS, n_heads * v_dim]; kv_group, kv_layer are filled here */
T g_moe(Graph *g, T x, T router_logits, const MoeDesc *moe); /* -> [ROWS, width of x] */
T g_conv(
    Graph *g, T x,
    const ConvDesc *conv); /* causal convolution + SiLU; owns state_width - 1 inputs a channel */
T g_delta(Graph *g, T qkv, T a, T b, const DeltaDesc *delta); /* -> [ROWS, n_v_heads * v_dim] */
T g_out_rows(Graph *g, T x);              /* rows whose output is wanted -> [OUT_ROWS, width] */
void g_out(Graph *g, T hidden, T logits); /* hidden: what the head multiplies (0: none) */

/* What encoders and towers need besides. */
T g_layer_norm(Graph *g, const Vec *w, const Vec *b, T x,
               float eps);                 /* w, b [width]; b NULL: none */
T g_act(Graph *g, ActKind act, T x, T up); /* act(x) * up; up 0: act(x) */
/* Rows that the step brings (StepBlock.inputs), `frames` of `width` columns for each row of the
 * step: [ROWS, width], or for more than one [FRAMES, width]. */
T g_input(Graph *g, InputKind kind, int frames, int width);
T g_input_over(Graph *g, InputKind kind, T x);     /* x, but for the rows that the step brings */
T g_embed_pos(Graph *g, const Weight *table, T x); /* x + the table's row of each row's position */
/* Windows over a segment's rows, as convolutions multiply them: columns [width][taps], the order of
 * a kernel [out][width][taps]. Stride 1, or the frames of a row: [FRAMES, ..] -> [ROWS, ..]. */
T g_window(Graph *g, T x, const WindowDesc *window);
T g_merge(Graph *g, T x,
          int n); /* wanted rows with the n - 1 after each -> [OUT_ROWS, n * width] */
/* Declares a cache group; its number, for AttnDesc.kv_group. The parts of a model declare theirs in
 * one order, before anything else. */
int g_kv_group(Graph *g, const KvGroup *group);
void g_kv(Graph *g, T k, T v,
          const AttnDesc *attn);                 /* into pages, for g_attend here or elsewhere */
T g_attend(Graph *g, T q, const AttnDesc *attn); /* -> [ROWS, n_heads * v_dim] */

/* Names later ops that read no weight or vector "prefix.op" (those that do have its name); fmt as
 * printf. */
void g_name(Graph *g, const char *fmt, ...) PRINTF(2, 3);

typedef struct GraphLimits {
    int max_rows, max_out_rows, max_segs;
} GraphLimits;

/* Checks, fuses (fuse.h), computes lifetimes and offsets. ERR_FORMAT names the first op that
 * failed. The plan lives in the arena. */
MUST_CHECK bool graph_end(Graph *g, const GraphLimits *limits, const GraphPlan **plan, Error *err);

#endif
