#include "graph/graph_impl.h"

#include "graph/fuse.h"
#include "graph/plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GRAPH_OPS_MAX = 1 << 20 };

static T fail(Graph *g, const char *op, const char *fmt, ...) PRINTF(3, 4);

static T fail(Graph *g, const char *op, const char *fmt, ...)
{
    if (g->failed)
        return 0;
    char what[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    g->failed = true;
    err_set(&g->first, ERR_FORMAT, "%s: %s%s: %s", g->part, g->prefix, op, what);
    return 0;
}

static T fail_nomem(Graph *g, const Error *err)
{
    if (!g->failed) {
        g->failed = true;
        g->first = *err;
    }
    return 0;
}

Graph *graph_begin(Arena *a, const char *part, Error *err)
{
    Graph *g = ARENA_NEW(a, Graph, err);
    if (!g)
        return NULL;
    g->arena = a;
    g->part = part;
    g->prefix = "";
    g->out = g->hidden_out = -1;
    return g;
}

void g_name(Graph *g, const char *fmt, ...)
{
    if (g->failed)
        return;
    char name[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    Error err;
    const char *s = arena_printf(g->arena, &err, "%s.", name);
    if (s)
        g->prefix = s;
    else
        fail_nomem(g, &err);
}

/* Room for one more item in an arena array, doubling. */
static void *grow(Graph *g, void *items, int n, int *cap, size_t size)
{
    if (n < *cap)
        return items;
    const int more = *cap ? *cap * 2 : 256;
    Error err;
    void *p = more > GRAPH_OPS_MAX ? NULL : arena_take(g->arena, (size_t)more, size, &err);
    if (!p) {
        if (more > GRAPH_OPS_MAX)
            err_set(&err, ERR_UNSUPPORTED, "%s: more than %d operations", g->part, GRAPH_OPS_MAX);
        fail_nomem(g, &err);
        return NULL;
    }
    if (n)
        memcpy(p, items, (size_t)n * size);
    *cap = more;
    return p;
}

static int add_value(Graph *g, Axis axis, int width)
{
    Value *values = grow(g, g->values, g->n_values, &g->cap_values, sizeof *values);
    if (!values)
        return -1;
    g->values = values;
    const int at = g->n_values++;
    g->values[at] = (Value){.axis = axis,
                            .width = width,
                            .base = at,
                            .first_op = -1,
                            .last_op = -1,
                            .offset = -1,
                            .ld = width};
    return at;
}

/* Appends `op` (its in[] are already value indices) with a new value of the given shape; width 0:
 * an op without a value. */
static T add_op(Graph *g, Op op, Axis axis, int width)
{
    if (g->failed)
        return 0;
    Op *ops = grow(g, g->ops, g->n_ops, &g->cap_ops, sizeof *ops);
    if (!ops)
        return 0;
    g->ops = ops;
    op.out = width > 0 ? add_value(g, axis, width) : -1;
    if (op.out < 0 && width > 0)
        return 0;
    Error err;
    if (!op.name) /* a weight's or a norm's name is the checkpoint's, whole */
        op.name = arena_printf(g->arena, &err, "%s%s", g->prefix, op_name(op.kind));
    if (!op.name)
        return fail_nomem(g, &err);
    g->ops[g->n_ops++] = op;
    return op.out + 1;
}

/* The value behind a node; false (and a failure on record) when the node is invalid. */
static bool get(Graph *g, T x, const char *op, const char *which, Value *out)
{
    if (g->failed)
        return false;
    if (x <= 0 || x > g->n_values) {
        fail(g, op, "%s is an invalid node", which);
        return false;
    }
    *out = g->values[x - 1];
    return true;
}

static Op make_op(OpKind kind, T a, T b, T c)
{
    return (Op){.kind = kind, .in = {a - 1, b - 1, c - 1}};
}

T g_embed(Graph *g, const Weight *table)
{
    Op op = make_op(OP_EMBED, 0, 0, 0);
    op.weight = table;
    op.name = table->name;
    return add_op(g, op, AXIS_ROWS, table->k);
}

T g_lin(Graph *g, const Weight *w, T x)
{
    Value v;
    if (!get(g, x, w->name, "input", &v))
        return 0;
    if (v.width != w->k)
        return fail(g, w->name, "input has %d columns, the weight %d", v.width, w->k);
    if (w->n <= 0 || w->n > INT32_MAX / 4)
        return fail(g, w->name, "weight of %lld rows", (long long)w->n);
    Op op = make_op(OP_LIN, x, 0, 0);
    op.weight = w;
    op.name = w->name;
    return add_op(g, op, v.axis, (int)w->n);
}

T g_slice(Graph *g, T x, int from, int width)
{
    Value v;
    if (!get(g, x, "slice", "input", &v))
        return 0;
    if (from < 0 || width <= 0 || from > v.width - width)
        return fail(g, "slice", "columns %d to %d of %d", from, from + width, v.width);
    const int at = add_value(g, v.axis, width);
    if (at < 0)
        return 0;
    g->values[at].base = v.base;
    g->values[at].col = v.col + from;
    g->values[at].ld = v.ld;
    return at + 1;
}

static T norm(Graph *g, OpKind kind, const Vec *w, T x, T gate, int group, float eps)
{
    Value v;
    Value z = {0};
    if (!get(g, x, op_name(kind), "input", &v) ||
        (gate && !get(g, gate, op_name(kind), "gate", &z)))
        return 0;
    if (group <= 0)
        group = v.width;
    if (v.width % group != 0 || (w && w->n != group))
        return fail(g, w ? w->name : "norm", "%d columns in groups of %d, weight of %d", v.width,
                    group, w ? w->n : 0);
    if (gate && (z.width != v.width || z.axis != v.axis))
        return fail(g, "norm_gated", "gate has %d columns, input %d", z.width, v.width);
    Op op = make_op(kind, x, gate, 0);
    op.vec = w;
    op.eps = eps;
    op.group = group;
    op.name = w ? w->name : NULL;
    return add_op(g, op, v.axis, v.width);
}

T g_norm(Graph *g, const Vec *w, T x, float eps)
{
    return norm(g, OP_NORM, w, x, 0, 0, eps);
}

T g_head_norm(Graph *g, const Vec *w, T x, int head_dim, float eps)
{
    return norm(g, OP_NORM, w, x, 0, head_dim, eps);
}

T g_norm_gated(Graph *g, const Vec *w, T x, T gate, int group, float eps)
{
    if (gate == 0)
        return fail(g, "norm_gated", "gate is an invalid node");
    return norm(g, OP_NORM_GATED, w, x, gate, group, eps);
}

/* Two inputs of one shape (b may be one column wide where `column` allows it). */
static T binary(Graph *g, OpKind kind, T a, T b, bool column)
{
    Value va, vb;
    if (!get(g, a, op_name(kind), "first input", &va) ||
        !get(g, b, op_name(kind), "second input", &vb))
        return 0;
    if (va.axis != vb.axis || (va.width != vb.width && !(column && vb.width == 1)))
        return fail(g, op_name(kind), "inputs of %d and %d columns", va.width, vb.width);
    return add_op(g, make_op(kind, a, b, 0), va.axis, va.width);
}

T g_add(Graph *g, T a, T b)
{
    return binary(g, OP_ADD, a, b, false);
}

T g_silu_mul(Graph *g, T gate, T up)
{
    return binary(g, OP_SILU_MUL, gate, up, false);
}

T g_sigmoid_mul(Graph *g, T x, T gate)
{
    return binary(g, OP_SIGMOID_MUL, x, gate, true);
}

/* Rotary positions depend on everything but the number of heads, so layers share the table of
 * cosines and sines. */
static int rope_table(Graph *g, const RopeDesc *r)
{
    for (int i = 0; i < g->n_ropes; i++) {
        const RopeDesc *o = &g->ropes[i];
        const size_t n = (size_t)(r->rot_dim / 2);
        if (o->rot_dim == r->rot_dim && o->scale == r->scale && !o->axis == !r->axis &&
            (o->inv_freq == r->inv_freq ||
             memcmp(o->inv_freq, r->inv_freq, n * sizeof *r->inv_freq) == 0) &&
            (o->axis == r->axis || memcmp(o->axis, r->axis, n) == 0))
            return i;
    }
    if (g->n_ropes == ROPE_TABLES_MAX)
        return -1;
    g->ropes[g->n_ropes] = *r;
    return g->n_ropes++;
}

T g_rope(Graph *g, T x, const RopeDesc *rope)
{
    Value v;
    if (!get(g, x, "rope", "input", &v))
        return 0;
    if (v.axis != AXIS_ROWS || v.width != rope->n_heads * rope->head_dim)
        return fail(g, "rope", "%d columns for %d heads of %d", v.width, rope->n_heads,
                    rope->head_dim);
    if (rope->rot_dim <= 0 || rope->rot_dim % 2 != 0 || rope->rot_dim > rope->head_dim ||
        !rope->inv_freq)
        return fail(g, "rope", "rotates %d of %d dimensions", rope->rot_dim, rope->head_dim);
    Op op = make_op(OP_ROPE, x, 0, 0);
    op.u.rope = *rope;
    op.u.rope.table = rope_table(g, rope);
    if (op.u.rope.table < 0)
        return fail(g, "rope", "more than %d different rotary tables", ROPE_TABLES_MAX);
    for (int i = 0; rope->axis && i < rope->rot_dim / 2; i++) {
        if (rope->axis[i] >= POS_AXES_MAX)
            return fail(g, "rope", "frequency %d turns by axis %d", i, rope->axis[i]);
        g->pos_axes = (int)i64_max(g->pos_axes, rope->axis[i] + 1);
    }
    return add_op(g, op, AXIS_ROWS, v.width);
}

static int kv_group(Graph *g, const AttnDesc *a)
{
    for (int i = g->n_declared; i < g->n_kv_groups; i++) {
        const KvGroup *k = &g->kv_groups[i];
        if (k->n_kv_heads == a->n_kv_heads && k->head_dim == a->head_dim && k->v_dim == a->v_dim &&
            k->window == a->window)
            return i;
    }
    if (g->n_kv_groups == KV_GROUPS_MAX)
        return -1;
    g->kv_groups[g->n_kv_groups] = (KvGroup){.n_kv_heads = a->n_kv_heads,
                                             .head_dim = a->head_dim,
                                             .v_dim = a->v_dim,
                                             .window = a->window};
    return g->n_kv_groups++;
}

T g_attn(Graph *g, T q, T k, T v, const AttnDesc *attn)
{
    Value vq, vk, vv;
    if (!get(g, q, "attn", "q", &vq) || !get(g, k, "attn", "k", &vk) ||
        !get(g, v, "attn", "v", &vv))
        return 0;
    if (attn->n_kv_heads <= 0 || attn->n_heads <= 0 || attn->n_heads % attn->n_kv_heads != 0)
        return fail(g, "attn", "%d heads over %d kv heads", attn->n_heads, attn->n_kv_heads);
    if (vq.axis != AXIS_ROWS || vk.axis != AXIS_ROWS || vv.axis != AXIS_ROWS ||
        vq.width != attn->n_heads * attn->head_dim ||
        vk.width != attn->n_kv_heads * attn->head_dim || vv.width != attn->n_kv_heads * attn->v_dim)
        return fail(g, "attn", "q, k, v have %d, %d, %d columns for %d and %d heads of %d, %d",
                    vq.width, vk.width, vv.width, attn->n_heads, attn->n_kv_heads, attn->head_dim,
                    attn->v_dim);
    if (attn->sinks && attn->sinks->n != attn->n_heads)
        return fail(g, "attn", "%d sinks for %d heads", attn->sinks->n, attn->n_heads);
    if (attn->full || attn->bias)
        return fail(g, "attn", "full or biased attention is g_kv and g_attend");
    Op op = make_op(OP_ATTN, q, k, v);
    op.u.attn = *attn;
    op.u.attn.kv_group = kv_group(g, attn);
    if (op.u.attn.kv_group < 0)
        return fail(g, "attn", "more than %d cache geometries", KV_GROUPS_MAX);
    op.u.attn.kv_layer = g->kv_groups[op.u.attn.kv_group].n_layers++;
    g->kv_writes |= 1U << op.u.attn.kv_group;
    g->kv_reads |= 1U << op.u.attn.kv_group;
    return add_op(g, op, AXIS_ROWS, attn->n_heads * attn->v_dim);
}

T g_moe(Graph *g, T x, T router_logits, const MoeDesc *moe)
{
    Value vx, vr;
    if (!get(g, x, "moe", "input", &vx) || !get(g, router_logits, "moe", "router logits", &vr))
        return 0;
    if (vr.width != moe->n_experts || moe->top_k <= 0 || moe->top_k > moe->n_experts)
        return fail(g, "moe", "top %d of %d experts, router gives %d", moe->top_k, moe->n_experts,
                    vr.width);
    const Weight *up = moe->gate_up;
    const Weight *down = moe->down;
    if (vx.axis != AXIS_ROWS || vr.axis != AXIS_ROWS || up->n_experts != moe->n_experts ||
        down->n_experts != moe->n_experts || up->k != vx.width || up->n != 2 * (int64_t)moe->ffn ||
        down->k != moe->ffn || down->n != vx.width)
        return fail(g, "moe", "input %d, gate_up %lld x %d, down %lld x %d, ffn %d", vx.width,
                    (long long)up->n, up->k, (long long)down->n, down->k, moe->ffn);
    Op op = make_op(OP_MOE, x, router_logits, 0);
    op.u.moe = *moe;
    return add_op(g, op, AXIS_ROWS, vx.width);
}

T g_conv(Graph *g, T x, const ConvDesc *conv)
{
    Value v;
    if (!get(g, x, "conv", "input", &v))
        return 0;
    if (v.axis != AXIS_ROWS || v.width != conv->channels || conv->width < 2 ||
        conv->w->n != conv->channels * conv->width)
        return fail(g, "conv", "%d columns for %d channels of width %d", v.width, conv->channels,
                    conv->width);
    Op op = make_op(OP_CONV, x, 0, 0);
    op.u.conv = *conv;
    op.u.conv.state_offset = (int)g->state_floats;
    g->state_floats += i64_round_up((int64_t)conv->channels * (conv->width - 1), 16);
    if (g->state_floats > INT32_MAX)
        return fail(g, "conv", "state of %lld numbers", (long long)g->state_floats);
    return add_op(g, op, AXIS_ROWS, v.width);
}

T g_delta(Graph *g, T qkv, T a, T b, const DeltaDesc *d)
{
    Value vx, va, vb;
    if (!get(g, qkv, "delta", "qkv", &vx) || !get(g, a, "delta", "a", &va) ||
        !get(g, b, "delta", "b", &vb))
        return 0;
    const int64_t want = 2 * (int64_t)d->n_k_heads * d->k_dim + (int64_t)d->n_v_heads * d->v_dim;
    if (d->n_k_heads <= 0 || d->n_v_heads % d->n_k_heads != 0 || vx.axis != AXIS_ROWS ||
        vx.width != want || va.width != d->n_v_heads || vb.width != d->n_v_heads ||
        d->a_log->n != d->n_v_heads || d->dt_bias->n != d->n_v_heads)
        return fail(g, "delta", "%d columns (wanted %lld), a %d, b %d for %d and %d heads",
                    vx.width, (long long)want, va.width, vb.width, d->n_k_heads, d->n_v_heads);
    Op op = make_op(OP_DELTA, qkv, a, b);
    op.u.delta = *d;
    op.u.delta.state_offset = (int)g->state_floats;
    g->state_floats += i64_round_up((int64_t)d->n_v_heads * d->k_dim * d->v_dim, 16);
    if (g->state_floats > INT32_MAX)
        return fail(g, "delta", "state of %lld numbers", (long long)g->state_floats);
    return add_op(g, op, AXIS_ROWS, d->n_v_heads * d->v_dim);
}

T g_out_rows(Graph *g, T x)
{
    Value v;
    if (!get(g, x, "out_rows", "input", &v))
        return 0;
    if (v.axis != AXIS_ROWS)
        return fail(g, "out_rows", "rows were selected before");
    return add_op(g, make_op(OP_OUT_ROWS, x, 0, 0), AXIS_OUT_ROWS, v.width);
}

void g_out(Graph *g, T hidden, T logits)
{
    Value v, h;
    if (!get(g, logits, "out", "logits", &v) || (hidden && !get(g, hidden, "out", "hidden", &h)))
        return;
    if (v.axis != AXIS_OUT_ROWS || v.base != logits - 1 || g->out >= 0) {
        fail(g, "out", "wants one matrix of selected rows");
        return;
    }
    g->out = logits - 1;
    g->hidden_out = hidden - 1;
}

T g_layer_norm(Graph *g, const Vec *w, const Vec *b, T x, float eps)
{
    Value v;
    if (!get(g, x, w->name, "input", &v))
        return 0;
    if (w->n != v.width || (b && b->n != v.width))
        return fail(g, w->name, "%d columns, weight of %d, bias of %d", v.width, w->n,
                    b ? b->n : 0);
    Op op = make_op(OP_LAYER_NORM, x, 0, 0);
    op.vec = w;
    op.bias = b;
    op.eps = eps;
    op.name = w->name;
    return add_op(g, op, v.axis, v.width);
}

T g_act(Graph *g, ActKind act, T x, T up)
{
    Value v, u;
    if (!get(g, x, "act", "input", &v) || (up && !get(g, up, "act", "second input", &u)))
        return 0;
    if (up && (u.axis != v.axis || u.width != v.width))
        return fail(g, "act", "inputs of %d and %d columns", v.width, u.width);
    Op op = make_op(OP_ACT, x, up, 0);
    op.u.act = act;
    return add_op(g, op, v.axis, v.width);
}

static T add_input(Graph *g, const GraphInput *input, T over)
{
    if (g->failed)
        return 0;
    if (g->n_inputs == GRAPH_INPUTS_MAX)
        return fail(g, "input", "more than %d inputs", GRAPH_INPUTS_MAX);
    for (int i = 0; i < g->n_inputs; i++)
        if (!input->optional && g->inputs[i].optional)
            return fail(g, "input", "one that may be left out is not the last");
    g->inputs[g->n_inputs] = *input;
    Op op = make_op(OP_INPUT, over, 0, 0);
    op.u.input = g->n_inputs++;
    return add_op(g, op, input->axis, input->width);
}

T g_input(Graph *g, InputKind kind, int frames, int width)
{
    if (frames < 1 || width < 1)
        return fail(g, "input", "%d frames of %d columns", frames, width);
    if (frames > 1 && g->frames && g->frames != frames)
        return fail(g, "input", "%d frames a row, and %d elsewhere", frames, g->frames);
    if (frames > 1)
        g->frames = frames;
    const GraphInput input = {kind, frames > 1 ? AXIS_FRAMES : AXIS_ROWS, width, false};
    return add_input(g, &input, 0);
}

T g_input_over(Graph *g, InputKind kind, T x)
{
    Value v;
    if (!get(g, x, "input", "input", &v))
        return 0;
    if (v.axis != AXIS_ROWS)
        return fail(g, "input", "wants rows of the step to stand in for");
    const GraphInput input = {kind, v.axis, v.width, true};
    return add_input(g, &input, x);
}

T g_embed_pos(Graph *g, const Weight *table, T x)
{
    Value v;
    if (!get(g, x, table->name, "input", &v))
        return 0;
    if (v.axis != AXIS_ROWS || v.width != table->k || table->n < 1 || table->n > INT32_MAX)
        return fail(g, table->name, "input has %d columns, the table %d", v.width, table->k);
    Op op = make_op(OP_EMBED_POS, x, 0, 0);
    op.weight = table;
    op.name = table->name;
    g->max_pos = (int)(g->max_pos ? i64_min(g->max_pos, table->n) : table->n);
    return add_op(g, op, AXIS_ROWS, v.width);
}

T g_window(Graph *g, T x, const WindowDesc *w)
{
    Value v;
    if (!get(g, x, "window", "input", &v))
        return 0;
    const bool strided = v.axis == AXIS_FRAMES && w->stride == g->frames;
    if (v.axis == AXIS_OUT_ROWS || !(w->stride == 1 || strided))
        return fail(g, "window", "stride of %d over %d frames a row", w->stride, g->frames);
    if (w->taps < 1 || w->pad < 0 || w->pad >= w->taps || w->taps > INT32_MAX / v.width)
        return fail(g, "window", "%d taps, %d of them before the first row", w->taps, w->pad);
    Op op = make_op(OP_WINDOW, x, 0, 0);
    op.u.window = *w;
    return add_op(g, op, strided ? AXIS_ROWS : v.axis, v.width * w->taps);
}

T g_merge(Graph *g, T x, int n)
{
    Value v;
    if (!get(g, x, "merge", "input", &v))
        return 0;
    if (v.axis != AXIS_ROWS || n < 1 || n > INT32_MAX / v.width)
        return fail(g, "merge", "%d rows of %d columns", n, v.width);
    Op op = make_op(OP_MERGE, x, 0, 0);
    op.group = n;
    g->merge = (int)i64_max(g->merge, n);
    return add_op(g, op, AXIS_OUT_ROWS, n * v.width);
}

int g_kv_group(Graph *g, const KvGroup *group)
{
    if (g->failed)
        return -1;
    if (g->n_kv_groups == KV_GROUPS_MAX || g->n_declared != g->n_kv_groups) {
        fail(g, "kv",
             g->n_kv_groups == KV_GROUPS_MAX ? "more than %d cache geometries"
                                             : "a group after attention (of %d at most)",
             KV_GROUPS_MAX);
        return -1;
    }
    if (group->n_layers < 1 || group->n_kv_heads < 1 || group->head_dim < 1 || group->v_dim < 1) {
        fail(g, "kv", "%d layers of %d heads of %d, %d", group->n_layers, group->n_kv_heads,
             group->head_dim, group->v_dim);
        return -1;
    }
    g->kv_groups[g->n_kv_groups++] = *group;
    return g->n_declared++;
}

/* The group that `attn` names, with its geometry; NULL and a failure otherwise. */
static const KvGroup *declared_group(Graph *g, const char *op, const AttnDesc *a)
{
    const bool there = a->kv_group >= 0 && a->kv_group < g->n_declared;
    const KvGroup *k = there ? &g->kv_groups[a->kv_group] : NULL;
    if (!k || a->kv_layer < 0 || a->kv_layer >= k->n_layers || k->n_kv_heads != a->n_kv_heads ||
        k->head_dim != a->head_dim || k->v_dim != a->v_dim) {
        fail(g, op, "no layer %d of %d heads of %d, %d in group %d", a->kv_layer, a->n_kv_heads,
             a->head_dim, a->v_dim, a->kv_group);
        return NULL;
    }
    return k;
}

void g_kv(Graph *g, T k, T v, const AttnDesc *attn)
{
    Value vk, vv;
    if (!get(g, k, "kv", "k", &vk) || !get(g, v, "kv", "v", &vv) || !declared_group(g, "kv", attn))
        return;
    if (vk.axis != AXIS_ROWS || vv.axis != AXIS_ROWS ||
        vk.width != attn->n_kv_heads * attn->head_dim ||
        vv.width != attn->n_kv_heads * attn->v_dim) {
        fail(g, "kv", "k, v have %d, %d columns for %d heads of %d, %d", vk.width, vv.width,
             attn->n_kv_heads, attn->head_dim, attn->v_dim);
        return;
    }
    Op op = make_op(OP_KV, k, v, 0);
    op.u.attn = *attn;
    g->kv_writes |= 1U << attn->kv_group;
    (void)add_op(g, op, AXIS_ROWS, 0);
}

T g_attend(Graph *g, T q, const AttnDesc *attn)
{
    Value v;
    const KvGroup *group;
    if (!get(g, q, "attend", "q", &v) || !(group = declared_group(g, "attend", attn)))
        return 0;
    if (attn->n_heads < 1 || attn->n_heads % attn->n_kv_heads != 0 || v.axis != AXIS_ROWS ||
        v.width != attn->n_heads * attn->head_dim)
        return fail(g, "attend", "%d columns for %d heads of %d over %d", v.width, attn->n_heads,
                    attn->head_dim, attn->n_kv_heads);
    /* All keys are there at once only where a step brings them or nothing is added. */
    if (attn->full && group->use == KV_GROW)
        return fail(g, "attend", "full attention over a cache that grows");
    if (group->use == KV_FIXED && (!attn->full || attn->bias || attn->window))
        return fail(g, "attend", "positions of queries in a cache of other rows");
    if (attn->window != group->window || (attn->full && attn->window))
        return fail(g, "attend", "window of %d over a group with %d", attn->window, group->window);
    if (attn->bias && (attn->span < 1 || attn->span > (1 << 20) ||
                       attn->bias->n != (int64_t)attn->n_heads * (2 * (int64_t)attn->span + 1)))
        return fail(g, "attend", "bias of %d for %d heads and distances to %d", attn->bias->n,
                    attn->n_heads, attn->span);
    if (attn->sinks && attn->sinks->n != attn->n_heads)
        return fail(g, "attend", "%d sinks for %d heads", attn->sinks->n, attn->n_heads);
    Op op = make_op(OP_ATTEND, q, 0, 0);
    op.u.attn = *attn;
    g->kv_reads |= 1U << attn->kv_group;
    return add_op(g, op, AXIS_ROWS, attn->n_heads * attn->v_dim);
}

bool graph_end(Graph *g, const GraphLimits *limits, const GraphPlan **out, Error *err)
{
    if (!g->failed && g->out < 0)
        fail(g, "out", "the graph has no output");
    if (!g->failed && g->frames > INT32_MAX / i64_max(1, limits->max_rows))
        fail(g, "limits", "%d rows of %d frames", limits->max_rows, g->frames);
    if (!g->failed && (limits->max_rows < 1 || limits->max_out_rows < 1 || limits->max_segs < 1))
        fail(g, "limits", "%d rows, %d outputs, %d segments", limits->max_rows,
             limits->max_out_rows, limits->max_segs);
    if (g->failed) {
        if (err)
            *err = g->first;
        return false;
    }
    GraphPlan *p = ARENA_NEW(g->arena, GraphPlan, err);
    if (!p)
        return false;
    fuse_graph(g);
    plan_scratch(g, limits, &p->scratch_bytes);
    p->part = g->part;
    p->ops = g->ops;
    p->n_ops = g->n_ops;
    p->values = g->values;
    p->n_values = g->n_values;
    p->out = g->out;
    p->hidden_out = g->hidden_out;
    p->max_rows = limits->max_rows;
    p->max_out_rows = limits->max_out_rows;
    p->max_segs = limits->max_segs;
    memcpy(p->kv_groups, g->kv_groups, sizeof p->kv_groups);
    p->n_kv_groups = g->n_kv_groups;
    p->state_floats = g->state_floats;
    memcpy(p->rope_tables, g->ropes, sizeof p->rope_tables);
    p->n_rope_tables = g->n_ropes;
    p->weight_bytes_per_row = plan_weight_bytes(g);
    memcpy(p->inputs, g->inputs, sizeof p->inputs);
    p->n_inputs = g->n_inputs;
    p->frames = g->frames;
    p->pos_axes = g->pos_axes;
    p->merge = (int)i64_max(1, g->merge);
    p->max_pos = g->max_pos;
    p->kv_writes = g->kv_writes;
    p->kv_reads = g->kv_reads;
    *out = p;
    return true;
}
