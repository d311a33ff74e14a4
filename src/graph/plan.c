#include "graph/plan.h"

#include "graph/graph_impl.h"

/* Time runs in phases, not in ops: a device may run neighbouring row-wise ops as one chain in which
 * different rows are at different ops, so what a chain touches must not share memory inside it. An
 * op that mixes rows, or multiplies by a weight, ends the chain. */
static bool is_row_wise(OpKind kind)
{
    return kind == OP_EMBED || kind == OP_NORM || kind == OP_NORM_GATED || kind == OP_ADD ||
           kind == OP_SILU_MUL || kind == OP_SIGMOID_MUL || kind == OP_ROPE ||
           kind == OP_LAYER_NORM || kind == OP_ACT || kind == OP_INPUT || kind == OP_EMBED_POS ||
           kind == OP_KV;
}

/* Reads rows that other tiles of the chain before it write, and begins a chain. */
static bool moves_rows(OpKind kind)
{
    return kind == OP_OUT_ROWS || kind == OP_MERGE || kind == OP_WINDOW;
}

static void touch(Graph *g, int value, int phase)
{
    if (value < 0)
        return;
    Value *v = &g->values[g->values[value].base];
    if (v->first_op < 0)
        v->first_op = phase;
    v->last_op = phase;
}

static void find_lifetimes(Graph *g)
{
    int phase = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const Op *op = &g->ops[i];
        const bool heavy = !is_row_wise(op->kind);
        phase += heavy;
        for (int j = 0; j < OP_MAX_IN; j++)
            touch(g, op->in[j], phase);
        touch(g, op->out, phase);
        /* What follows is a new chain; experts' outputs are gathered (and the addend read) at its
         * start. The choice of output rows begins a chain and does not end it: a tile may write the
         * next op's rows while another still reads the rows it chooses; so do windows. */
        phase += heavy && !moves_rows(op->kind);
        if (op->kind == OP_MOE) {
            touch(g, op->in[2], phase);
            touch(g, op->out, phase);
        }
    }
    touch(g, g->hidden_out, phase);
}

static int64_t value_bytes(const Graph *g, const Value *v, const GraphLimits *limits)
{
    const int64_t rows = v->axis == AXIS_OUT_ROWS ? limits->max_out_rows
                         : v->axis == AXIS_FRAMES ? (int64_t)limits->max_rows * g->frames
                                                  : limits->max_rows;
    return i64_round_up(rows * v->ld * (int64_t)sizeof(float), 64);
}

static bool overlap(const Value *a, const Value *b)
{
    return a->first_op <= b->last_op && b->first_op <= a->last_op;
}

/* Lowest offset at which v fits beside the already placed values that live at the same time. */
static int64_t first_fit(const Graph *g, int index, const GraphLimits *limits)
{
    const Value *v = &g->values[index];
    const int64_t bytes = value_bytes(g, v, limits);
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < index; i++) {
            const Value *o = &g->values[i];
            if (o->base != i || o->offset < 0 || !overlap(v, o))
                continue;
            if (at < o->offset + value_bytes(g, o, limits) && o->offset < at + bytes) {
                at = o->offset + value_bytes(g, o, limits);
                moved = true;
            }
        }
    }
    return at;
}

void plan_scratch(Graph *g, const GraphLimits *limits, int64_t *scratch_bytes)
{
    find_lifetimes(g);
    /* Packed-only values live in the device's packed form alone. */
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].packed_only)
            g->values[g->ops[i].out].offset = -2;
    int64_t end = 0;
    for (int i = 0; i < g->n_values; i++) {
        Value *v = &g->values[i];
        if (v->base != i) {
            v->ld = g->values[v->base].ld;
            continue;
        }
        /* A row stride that is no multiple of 4 KiB keeps the rows of a tile out of one cache set.
         */
        v->ld = (int)i64_round_up(v->width, 16);
        if (v->ld % 1024 == 0)
            v->ld += 16;
        if (i == g->out || v->first_op < 0 || v->offset == -2) {
            v->offset = -1;
            continue;
        }
        v->offset = first_fit(g, i, limits);
        end = i64_max(end, v->offset + value_bytes(g, v, limits));
    }
    for (int i = 0; i < g->n_values; i++)
        g->values[i].ld = g->values[g->values[i].base].ld;
    g->values[g->out].ld = g->values[g->out].width;
    *scratch_bytes = end;
}

static int64_t weight_bytes(const Weight *w, int n_experts)
{
    int64_t sum = 0;
    for (int i = 0; i < w->n_segs * (w->n_experts ? n_experts : 1); i++)
        sum += rowview_bytes(&w->segs[i]);
    return sum;
}

int64_t plan_weight_bytes(const Graph *g)
{
    int64_t sum = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const Op *op = &g->ops[i];
        if (op->kind == OP_LIN)
            sum += weight_bytes(op->weight, 0);
        if (op->kind == OP_EMBED || op->kind == OP_EMBED_POS)
            sum += rowview_bytes(&op->weight->segs[0]) / i64_max(1, op->weight->n);
        if (op->kind == OP_MOE)
            sum += weight_bytes(op->u.moe.gate_up, op->u.moe.top_k) +
                   weight_bytes(op->u.moe.down, op->u.moe.top_k);
    }
    return sum;
}
