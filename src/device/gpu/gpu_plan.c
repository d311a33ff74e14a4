#include "device/gpu/gpu_plan.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- buckets ---- */

int gpu_bucket(int rows)
{
    int b = 1;
    while (b < rows)
        b *= 2;
    return b;
}

int gpu_buckets(int max_rows, int out[GPU_BUCKETS_MAX])
{
    int n = 0;
    for (int b = 1; n < GPU_BUCKETS_MAX; b *= 2) {
        out[n++] = b;
        if (b >= max_rows)
            break;
    }
    return n;
}

/* ---- who reads what ---- */

typedef struct Fusing {
    Arena *a;
    const GraphPlan *g;
    GpuPlan *out;
    GpuOp *ops;
    int *producer; /* [n_values] op that writes the base value, -1: none */
    bool *folded;  /* [n_ops] done inside another operation */
} Fusing;

static const Value *value(const Fusing *f, int v)
{
    return &f->g->values[v];
}

/* Whether every reader of base value v reads exactly v itself (no window) as in[0] of a product or
 * of experts; the hidden rows are read by nobody here. */
static bool only_products_read(const Fusing *f, int v)
{
    int n = 0;
    for (int i = 0; i < f->g->n_ops; i++) {
        const Op *op = &f->g->ops[i];
        for (int j = 0; j < OP_MAX_IN; j++) {
            if (op->in[j] < 0 || value(f, op->in[j])->base != v)
                continue;
            if (j != 0 || op->in[j] != v || (op->kind != OP_LIN && op->kind != OP_MOE))
                return false;
            n++;
        }
    }
    return n > 0 && f->g->out != v;
}

/* How often any op reads base value v or a window of it. */
static int n_reads(const Fusing *f, int v)
{
    int n = f->g->out == v;
    for (int i = 0; i < f->g->n_ops; i++)
        for (int j = 0; j < OP_MAX_IN; j++) {
            const int in = f->g->ops[i].in[j];
            n += in >= 0 && value(f, in)->base == v;
        }
    return n;
}

/* The op that writes all of v, when v is a whole value; NULL: none, or a window. */
static const Op *whole_producer(const Fusing *f, int v)
{
    if (v < 0 || value(f, v)->base != v || f->producer[v] < 0)
        return NULL;
    return &f->g->ops[f->producer[v]];
}

static void fold(Fusing *f, const Op *op)
{
    f->folded[op - f->g->ops] = true;
}

static bool is_row_norm(const Fusing *f, const Op *op)
{
    return op->kind == OP_NORM && (op->group <= 0 || op->group == value(f, op->in[0])->width);
}

/* ---- rules ---- */

/* norm or choice of rows, read by products alone: they do it themselves. */
static void fold_into_products(Fusing *f)
{
    for (int i = 0; i < f->g->n_ops; i++) {
        const Op *op = &f->g->ops[i];
        if (is_row_norm(f, op) && only_products_read(f, op->out))
            fold(f, op);
    }
    for (int i = 0; i < f->g->n_ops; i++) {
        const Op *op = &f->g->ops[i];
        if (op->kind != OP_OUT_ROWS || f->g->out == op->out)
            continue;
        bool all = true;
        int n = 0;
        for (int j = 0; j < f->g->n_ops && all; j++) {
            const Op *r = &f->g->ops[j];
            for (int s = 0; s < OP_MAX_IN && all; s++) {
                if (r->in[s] < 0 || value(f, r->in[s])->base != op->out)
                    continue;
                n++;
                all = s == 0 && r->in[s] == op->out &&
                      (r->kind == OP_LIN || (r->kind == OP_NORM && f->folded[j]));
            }
        }
        /* A folded norm's other reader may be experts, which do not gather. */
        for (int j = 0; j < f->g->n_ops && all; j++) {
            const Op *by =
                f->g->ops[j].kind == OP_MOE ? whole_producer(f, f->g->ops[j].in[0]) : NULL;
            all = !(by && by->kind == OP_NORM && by->in[0] == op->out);
        }
        if (all && n > 0)
            fold(f, op);
    }
}

/* What the product's input goes through first. */
static void take_input(const Fusing *f, const Op *op, GpuOp *out)
{
    const Op *by = whole_producer(f, op->in[0]);
    out->in[0] = op->in[0];
    if (by && by->kind == OP_NORM && f->folded[by - f->g->ops]) {
        out->norm = (GpuNorm){by->vec, by->eps};
        out->in[0] = by->in[0];
        by = whole_producer(f, out->in[0]);
    }
    if (by && by->kind == OP_OUT_ROWS && f->folded[by - f->g->ops]) {
        out->gather = true;
        out->in[0] = by->in[0];
    }
}

/* silu(gate) * up of the two halves of one product that nothing else reads. */
static const Op *silu_of(const Fusing *f, const Op *lin)
{
    const Value *both = value(f, lin->out);
    if (lin->in[1] >= 0 || both->width % 2 != 0 || n_reads(f, lin->out) != 2)
        return NULL;
    for (int i = 0; i < f->g->n_ops; i++) {
        const Op *op = &f->g->ops[i];
        if (op->kind != OP_SILU_MUL)
            continue;
        const Value *gate = value(f, op->in[0]);
        const Value *up = value(f, op->in[1]);
        if (gate->base == lin->out && up->base == lin->out && gate->col == 0 &&
            gate->width == both->width / 2 && up->width == gate->width && up->col == gate->width)
            return op;
    }
    return NULL;
}

/* Rotation and head norm of an attention's q or k that only it reads. Returns the value before. */
static int fold_heads(Fusing *f, int v, GpuNorm *norm, const RopeDesc **rope)
{
    const Op *by = whole_producer(f, v);
    if (by && by->kind == OP_ROPE && n_reads(f, v) == 1) {
        *rope = &by->u.rope;
        fold(f, by);
        v = by->in[0];
        by = whole_producer(f, v);
    }
    const int head_dim = *rope ? (*rope)->head_dim : 0;
    if (by && by->kind == OP_NORM && head_dim > 0 && by->group == head_dim && n_reads(f, v) == 1) {
        *norm = (GpuNorm){by->vec, by->eps};
        fold(f, by);
        v = by->in[0];
    }
    return v;
}

static void add_op(Fusing *f, const Op *op)
{
    GpuOp *o = &f->ops[f->out->n_ops++];
    *o = (GpuOp){.kind = op->kind,
                 .name = op->name,
                 .op = op,
                 .in = {op->in[0], op->in[1], op->in[2]},
                 .out = op->out,
                 .axis = value(f, op->out)->axis,
                 .weight = op->weight};
    if (op->kind == OP_LIN || op->kind == OP_MOE)
        take_input(f, op, o);
    if (op->kind == OP_LIN) {
        const Op *silu = silu_of(f, op);
        if (silu) {
            o->silu = true;
            o->out = silu->out;
            fold(f, silu);
        }
    }
    if (op->kind == OP_ATTN) {
        o->in[0] = fold_heads(f, op->in[0], &o->q_norm, &o->q_rope);
        o->in[1] = fold_heads(f, op->in[1], &o->k_norm, &o->k_rope);
    }
}

/* Attention is met after the ops it takes in: those are marked first. */
static void fold_attention(Fusing *f)
{
    for (int i = 0; i < f->g->n_ops; i++) {
        const Op *op = &f->g->ops[i];
        GpuNorm norm;
        const RopeDesc *rope = NULL;
        if (op->kind != OP_ATTN)
            continue;
        (void)fold_heads(f, op->in[0], &norm, &rope);
        rope = NULL;
        (void)fold_heads(f, op->in[1], &norm, &rope);
    }
}

static void fuse(Fusing *f)
{
    fold_into_products(f);
    fold_attention(f);
    for (int i = 0; i < f->g->n_ops; i++)
        if (!f->folded[i])
            add_op(f, &f->g->ops[i]);
}

/* ---- memory of values ---- */

typedef struct Life {
    int first, last; /* operations; first -1: no memory */
    int64_t offset, bytes;
} Life;

static void touch(const Fusing *f, Life *lives, int v, int at)
{
    if (v < 0)
        return;
    Life *l = &lives[value(f, v)->base];
    if (l->first < 0)
        l->first = at;
    l->last = at;
}

/* Lowest offset that is free during the value's life. Values are placed by birth. */
static int64_t first_fit(const Life *lives, const int *placed, int n_placed, const Life *v)
{
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < n_placed; i++) {
            const Life *o = &lives[placed[i]];
            if (v->first > o->last || o->first > v->last || at >= o->offset + o->bytes ||
                o->offset >= at + v->bytes)
                continue;
            at = o->offset + o->bytes;
            moved = true;
        }
    }
    return at;
}

static bool place_values(Fusing *f, Error *err)
{
    const GraphPlan *g = f->g;
    GpuPlan *p = f->out;
    GpuValue *values = ARENA_ARRAY(f->a, g->n_values, GpuValue, err);
    Life *lives = ARENA_ARRAY(f->a, g->n_values, Life, err);
    int *placed = ARENA_ARRAY(f->a, g->n_values, int, err);
    if (!values || !lives || !placed)
        return false;
    for (int i = 0; i < g->n_values; i++)
        lives[i].first = -1;
    for (int i = 0; i < p->n_ops; i++) {
        for (int j = 0; j < 3; j++)
            touch(f, lives, f->ops[i].in[j], i);
        touch(f, lives, f->ops[i].out, i);
    }
    int n_placed = 0;
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = &g->values[i];
        const int base_width = g->values[v->base].width;
        GpuValue *o = &values[i];
        *o = (GpuValue){.width = v->width,
                        .ld = (int)i64_round_up(base_width, 32), /* rows start on 128 bytes */
                        .offset = -1,
                        .is_logits = v->base == g->out,
                        .axis = v->axis};
        if (o->is_logits)
            o->ld = base_width;
        Life *l = &lives[i];
        if (v->base == i && !o->is_logits && l->first >= 0) {
            const int rows = gpu_bucket(v->axis == AXIS_ROWS ? g->max_rows : g->max_out_rows);
            l->bytes = i64_round_up((int64_t)rows * o->ld * (int64_t)sizeof(float), 256);
            l->offset = first_fit(lives, placed, n_placed, l);
            placed[n_placed++] = i;
            o->offset = l->offset;
            p->scratch_bytes = i64_max(p->scratch_bytes, l->offset + l->bytes);
        } else if (v->base != i && values[v->base].offset >= 0) {
            o->offset = values[v->base].offset + v->col * (int64_t)sizeof(float);
        }
    }
    p->values = values;
    p->n_values = g->n_values;
    return true;
}

/* ---- what ops read ---- */

static void add_weight(GpuPlan *p, const Weight **list, const Weight *w)
{
    if (!w)
        return;
    for (int i = 0; i < p->n_weights; i++)
        if (list[i] == w)
            return;
    list[p->n_weights++] = w;
}

static void add_vec(GpuPlan *p, const Vec **list, const Vec *v)
{
    if (!v || v->n == 0)
        return;
    for (int i = 0; i < p->n_vecs; i++)
        if (list[i] == v)
            return;
    list[p->n_vecs++] = v;
}

static bool collect_reads(Fusing *f, Error *err)
{
    enum { VECS_OF_OP = 6 };
    GpuPlan *p = f->out;
    const Weight **weights = ARENA_ARRAY(f->a, 2 * p->n_ops, const Weight *, err);
    const Vec **vecs = ARENA_ARRAY(f->a, VECS_OF_OP * p->n_ops, const Vec *, err);
    if (!weights || !vecs)
        return false;
    for (int i = 0; i < p->n_ops; i++) {
        const GpuOp *o = &f->ops[i];
        add_weight(p, weights, o->weight);
        add_vec(p, vecs, o->op->vec);
        add_vec(p, vecs, o->norm.vec);
        add_vec(p, vecs, o->q_norm.vec);
        add_vec(p, vecs, o->k_norm.vec);
        if (o->kind == OP_LIN || o->kind == OP_MOE)
            p->max_in_width = (int)i64_max(p->max_in_width, value(f, o->in[0])->width);
        if (o->kind == OP_MOE) {
            add_weight(p, weights, o->op->u.moe.gate_up);
            add_weight(p, weights, o->op->u.moe.down);
            p->max_in_width = (int)i64_max(p->max_in_width, o->op->u.moe.ffn);
        }
        if (o->kind == OP_ATTN)
            add_vec(p, vecs, o->op->u.attn.sinks);
        if (o->kind == OP_CONV)
            add_vec(p, vecs, o->op->u.conv.w);
        if (o->kind == OP_DELTA) {
            add_vec(p, vecs, o->op->u.delta.a_log);
            add_vec(p, vecs, o->op->u.delta.dt_bias);
        }
    }
    p->weights = weights;
    p->vecs = vecs;
    return true;
}

/* ---- what GPUs lack ---- */

typedef struct Lacks {
    char text[256];
    size_t len;
} Lacks;

/* Once each. */
static void add_lack(Lacks *l, const char *what)
{
    if (strstr(l->text, what) || l->len + strlen(what) + 3 > sizeof l->text)
        return;
    l->len += (size_t)snprintf(l->text + l->len, sizeof l->text - l->len, "%s%s",
                               l->len > 0 ? ", " : "", what);
}

static const bool has_kernels[OP_COUNT] = {
    [OP_EMBED] = true,    [OP_NORM] = true, [OP_LIN] = true,   [OP_ADD] = true,
    [OP_SILU_MUL] = true, [OP_ROPE] = true, [OP_ATTN] = true,  [OP_SIGMOID_MUL] = true,
    [OP_MOE] = true,      [OP_CONV] = true, [OP_DELTA] = true, [OP_NORM_GATED] = true,
    [OP_OUT_ROWS] = true,
};

static bool check_graph(const GraphPlan *g, Error *err)
{
    Lacks l = {.len = 0};
    for (int i = 0; i < g->n_ops; i++)
        if (!has_kernels[g->ops[i].kind])
            add_lack(&l, op_name(g->ops[i].kind));
    if (g->frames > 0)
        add_lack(&l, "frames of a row");
    if (g->pos_axes > 0)
        add_lack(&l, "several positions of a row");
    for (int i = 0; i < g->n_kv_groups; i++) {
        if (!((g->kv_writes | g->kv_reads) & 1U << i))
            continue;
        if (g->kv_groups[i].use == KV_STEP)
            add_lack(&l, "caches of one step");
        else if (g->kv_groups[i].use == KV_FIXED)
            add_lack(&l, "caches between parts");
    }
    return l.len == 0 ||
           err_set(err, ERR_UNSUPPORTED, "part \"%.40s\": GPUs have no kernels for %s",
                   g->part ? g->part : "", l.text);
}

bool gpu_plan_make(Arena *a, const GraphPlan *graph, GpuPlan *out, Error *err)
{
    *out = (GpuPlan){.graph = graph};
    if (!check_graph(graph, err))
        return false;
    Fusing f = {.a = a, .g = graph, .out = out};
    f.ops = ARENA_ARRAY(a, graph->n_ops + 1, GpuOp, err);
    f.producer = ARENA_ARRAY(a, graph->n_values + 1, int, err);
    f.folded = ARENA_ARRAY(a, graph->n_ops + 1, bool, err);
    if (!f.ops || !f.producer || !f.folded)
        return false;
    for (int i = 0; i < graph->n_values; i++)
        f.producer[i] = -1;
    for (int i = 0; i < graph->n_ops; i++)
        f.producer[graph->ops[i].out] = i;
    out->ops = f.ops;
    fuse(&f);
    return place_values(&f, err) && collect_reads(&f, err);
}
