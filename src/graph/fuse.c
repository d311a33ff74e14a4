#include "graph/fuse.h"

#include "graph/graph_impl.h"

/* Readers of a base value: how often any of its windows is an input, and whether each reader is a
 * weight product reading all of it. */
typedef struct Uses {
    int n;
    int n_products;
} Uses;

static Uses count_uses(const Graph *g, int value)
{
    Uses u = {0};
    for (int i = 0; i < g->n_ops; i++) {
        const Op *op = &g->ops[i];
        for (int j = 0; j < OP_MAX_IN; j++) {
            const int in = op->in[j];
            if (in < 0 || g->values[in].base != value)
                continue;
            u.n++;
            if (j == 0 && in == value && op->kind == OP_LIN)
                u.n_products++;
        }
    }
    if (g->hidden_out >= 0 && g->values[g->hidden_out].base == value)
        u.n++;
    if (g->out == value)
        u.n++;
    return u;
}

static int producer(const Graph *g, int value)
{
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].out == g->values[value].base)
            return i;
    return -1;
}

static void remove_op(Graph *g, int at)
{
    g->n_ops--;
    for (int i = at; i < g->n_ops; i++)
        g->ops[i] = g->ops[i + 1];
}

/* The input slot that holds the addend of a product, -1 for other ops. */
static int addend_slot(const Op *op)
{
    return op->kind == OP_LIN ? 1 : op->kind == OP_MOE ? 2 : -1;
}

static bool fuse_residual(Graph *g, int at)
{
    const Op add = g->ops[at];
    for (int side = 0; side < 2; side++) {
        const int product = add.in[side];
        const int other = add.in[1 - side];
        const int by = producer(g, product);
        if (by < 0 || g->values[product].base != product)
            continue;
        const int slot = addend_slot(&g->ops[by]);
        if (slot < 0 || g->ops[by].in[slot] >= 0 || count_uses(g, product).n != 1)
            continue;
        if (producer(g, other) >= by)
            continue;
        g->ops[by].in[slot] = other;
        g->ops[by].out = add.out;
        remove_op(g, at);
        return true;
    }
    return false;
}

static bool is_row_wise(OpKind kind)
{
    return kind == OP_NORM || kind == OP_NORM_GATED || kind == OP_SILU_MUL ||
           kind == OP_SIGMOID_MUL || kind == OP_ADD || kind == OP_OUT_ROWS ||
           kind == OP_LAYER_NORM || kind == OP_ACT || kind == OP_INPUT || kind == OP_WINDOW ||
           kind == OP_MERGE;
}

void fuse_graph(Graph *g)
{
    for (int i = 0; i < g->n_ops;)
        if (g->ops[i].kind != OP_ADD || !fuse_residual(g, i))
            i++;
    for (int i = 0; i < g->n_ops; i++) {
        Op *op = &g->ops[i];
        const Uses u = count_uses(g, op->out);
        op->packed_only = is_row_wise(op->kind) && u.n > 0 && u.n == u.n_products;
    }
}
