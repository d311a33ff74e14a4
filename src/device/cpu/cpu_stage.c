#include "device/cpu/cpu.h"

#include <string.h>

int cpu_axis_rows(const Program *p, Axis axis)
{
    return axis == AXIS_OUT_ROWS ? p->step->n_out
           : axis == AXIS_FRAMES ? p->step->n_rows * p->plan->frames
                                 : p->step->n_rows;
}

float *cpu_value(const Program *p, int value)
{
    const Value *v = &p->plan->values[value];
    const Value *base = &p->plan->values[v->base];
    if (v->base == p->plan->out)
        return p->step->logits + v->col;
    return (float *)(void *)(p->scratch + base->offset) + v->col;
}

static int64_t ld(const Program *p, int value)
{
    return p->plan->values[value].ld;
}

/* ---- packed activations ---- */

LinWant cpu_lin_want(const Device *d, const Weight *w, const RowView *rows)
{
    return (LinWant){rows->format, rows->group, w->precise ? LIN_EXACT : d->lin_class,
                     rows->columns};
}

const LinKernel *cpu_lin_kernel(const Device *d, LinWant want, int rows)
{
    return lin_select(d->isa, want.format, want.group, want.cls, rows);
}

void cpu_pack(const Program *p, int thread, const LinLayout *layout, const int32_t *columns,
              const float *x, int64_t ldx, const int32_t *idx, int rows, int k, uint8_t *out)
{
    if (!columns) {
        layout->pack(x, ldx, idx, rows, k, out);
        return;
    }
    float *row = (float *)(void *)(p->work + p->work_bytes * thread);
    const int64_t bytes = layout->row_bytes(k);
    for (int r = 0; r < rows; r++) {
        const float *from = x + (idx ? idx[r] : r) * ldx;
        for (int i = 0; i < k; i++)
            row[i] = from[columns[i]];
        layout->pack(row, k, NULL, 1, k, out + bytes * r);
    }
}

static int find_form(const PackSet *set, const LinLayout *layout, const int32_t *columns)
{
    int j = 0;
    while (j < set->n_forms && (set->form[j].layout != layout || set->form[j].columns != columns))
        j++;
    return j;
}

static void resolve_pack(const Program *p, int value)
{
    PackSet *set = &p->packs[value];
    const Value *v = &p->plan->values[value];
    const int rows = cpu_axis_rows(p, v->axis);
    int64_t at = 0;
    set->n_forms = 0;
    for (int i = 0; i < set->n && rows > 0; i++) {
        const LinKernel *kernel = cpu_lin_kernel(p->dev, set->want[i], rows);
        const int j = find_form(set, kernel->layout, set->want[i].columns);
        if (j < set->n_forms)
            continue;
        set->form[j].layout = kernel->layout;
        set->form[j].columns = set->want[i].columns;
        set->form[j].row_bytes = kernel->layout->row_bytes(v->width);
        set->form[j].at = at;
        at += set->form[j].row_bytes * rows;
        set->n_forms++;
    }
}

static void pack_rows(const Program *p, int thread, int value, const float *x, int64_t ldx, int r0,
                      int n)
{
    const PackSet *set = &p->packs[value];
    uint8_t *base = p->pack_base + set->offset;
    for (int j = 0; j < set->n_forms; j++)
        cpu_pack(p, thread, set->form[j].layout, set->form[j].columns, x, ldx, NULL, n,
                 p->plan->values[value].width,
                 base + set->form[j].at + set->form[j].row_bytes * r0);
}

/* ---- rows stages ---- */

static int rows_tile(const Program *p, int rows)
{
    const int n_threads = team_size(p->dev->team);
    return (int)i64_max(1, i64_min(ROW_TILE_MAX, rows / (4 * n_threads)));
}

int cpu_rows_tiles(const Program *p, const Stage *s)
{
    const int rows = cpu_axis_rows(p, s->axis);
    const int tile = rows_tile(p, rows);
    return (rows + tile - 1) / tile;
}

/* Where the rows of a value are during a chain: scratch, or this thread's buffer for values that
 * are only ever packed. */
typedef struct RowSpan {
    float *x; /* row r0 */
    int64_t ld;
} RowSpan;

static RowSpan span_of(const Program *p, const Op *by, int value, int r0, int thread)
{
    if (by && by->packed_only && by->out == value)
        return (RowSpan){p->row_buf + p->row_buf_floats * thread, p->row_buf_ld};
    return (RowSpan){cpu_value(p, value) + ld(p, value) * r0, ld(p, value)};
}

static RopeArgs rope_args(const Program *p, const RopeDesc *r)
{
    return (RopeArgs){r->head_dim, r->rot_dim, r->pairs,         r->scale,
                      r->inv_freq, r->axis,    p->plan->pos_axes};
}

/* n rows from r0 of what the step brings; rows that it leaves out are those of `over`, or zeros. */
static void run_input(const Program *p, const Op *op, int r0, int n, const RowSpan *over, RowSpan y)
{
    const int at = op->u.input;
    const int width = p->plan->inputs[at].width;
    const StepInput *in = at < p->step->n_inputs ? &p->step->inputs[at] : NULL;
    for (int r = 0; r < n; r++) {
        const int from = !in ? -1 : in->index ? in->index[r0 + r] : r0 + r;
        const float *x = from >= 0 ? in->data + (int64_t)from * width
                         : over    ? over->x + over->ld * r
                                   : NULL;
        if (x)
            memcpy(y.x + y.ld * r, x, (size_t)width * sizeof *x);
        else
            memset(y.x + y.ld * r, 0, (size_t)width * sizeof *x);
    }
}

/* n rows from r0 of the windows over all segments. */
static void run_window(const Program *p, const Op *op, int r0, int n, RowSpan y)
{
    const Value *in = &p->plan->values[op->in[0]];
    const int in_rate = in->axis == AXIS_FRAMES ? p->plan->frames : 1;
    const int out_rate = in_rate / op->u.window.stride;
    for (int i = 0; i < p->step->n_segs; i++) {
        const Segment *seg = &p->step->segs[i];
        const int lo = seg->row0 * out_rate;
        const int from = (int)i64_max(r0, lo);
        const int to = (int)i64_min(r0 + n, lo + seg->n_rows * out_rate);
        if (from < to)
            p->dev->kernels.window(cpu_value(p, op->in[0]) + ld(p, op->in[0]) * seg->row0 * in_rate,
                                   ld(p, op->in[0]), seg->n_rows * in_rate, in->width,
                                   &op->u.window, from - lo, to - from, y.x + y.ld * (from - r0),
                                   y.ld);
    }
}

/* Wanted rows, each with the group - 1 after it. */
static void run_gather(const Program *p, const Op *op, int group, int r0, int n, RowSpan y)
{
    const int width = p->plan->values[op->in[0]].width;
    for (int i = 0; i < n * group; i++) {
        const int64_t row = p->step->out_rows[r0 + i / group] + i % group;
        memcpy(y.x + y.ld * (i / group) + (int64_t)(i % group) * width,
               cpu_value(p, op->in[0]) + ld(p, op->in[0]) * row, (size_t)width * sizeof(float));
    }
}

static void run_op(const Program *p, const Op *op, int r0, int n, int thread)
{
    const CpuKernels *k = &p->dev->kernels;
    const Value *out = &p->plan->values[op->out];
    const RowSpan y = span_of(p, op, op->out, r0, thread);
    /* Ops without these inputs do not look at them. */
    RowSpan a = y;
    RowSpan b = y;
    if (op->in[0] >= 0 && p->plan->values[op->in[0]].axis == out->axis)
        a = span_of(p, NULL, op->in[0], r0, thread);
    if (op->in[1] >= 0)
        b = span_of(p, NULL, op->in[1], r0, thread);
    switch (op->kind) {
    case OP_EMBED:
        k->embed(&op->weight->segs[0], p->tokens + r0, n, y.x, y.ld);
        break;
    case OP_NORM:
        k->rms_norm(a.x, a.ld, op->vec ? op->vec->v : NULL, op->eps, out->width, op->group, n, y.x,
                    y.ld);
        break;
    case OP_NORM_GATED:
        k->rms_norm_gated(a.x, a.ld, b.x, b.ld, op->vec->v, op->eps, out->width, op->group, n, y.x,
                          y.ld);
        break;
    case OP_ADD:
        k->add(a.x, a.ld, b.x, b.ld, out->width, n, y.x, y.ld);
        break;
    case OP_SILU_MUL:
        k->silu_mul(a.x, a.ld, b.x, b.ld, out->width, n, y.x, y.ld);
        break;
    case OP_SIGMOID_MUL:
        k->sigmoid_mul(a.x, a.ld, b.x, b.ld,
                       p->plan->values[op->in[1]].width == 1 && out->width != 1, out->width, n, y.x,
                       y.ld);
        break;
    case OP_ROPE: {
        const RopeDesc *r = &op->u.rope;
        const RopeArgs args = rope_args(p, r);
        for (int i = 0; i < n; i++)
            memcpy(y.x + y.ld * i, a.x + a.ld * i, (size_t)out->width * sizeof(float));
        k->rope(y.x, y.ld, r->n_heads, &args, p->rope[r->table] + (int64_t)r0 * r->rot_dim, n);
        break;
    }
    case OP_OUT_ROWS:
        run_gather(p, op, 1, r0, n, y);
        break;
    case OP_MERGE:
        run_gather(p, op, op->group, r0, n, y);
        break;
    case OP_WINDOW:
        run_window(p, op, r0, n, y);
        break;
    case OP_INPUT:
        run_input(p, op, r0, n, op->in[0] >= 0 ? &a : NULL, y);
        break;
    case OP_EMBED_POS:
        k->embed(&op->weight->segs[0], p->pos + r0, n, y.x, y.ld);
        k->add(y.x, y.ld, a.x, a.ld, out->width, n, y.x, y.ld);
        break;
    case OP_LAYER_NORM:
        k->layer_norm(a.x, a.ld, op->vec->v, op->bias ? op->bias->v : NULL, op->eps, out->width, n,
                      y.x, y.ld);
        break;
    case OP_ACT:
        k->act(op->u.act, a.x, a.ld, op->in[1] >= 0 ? b.x : NULL, b.ld, out->width, n, y.x, y.ld);
        break;
    case OP_NONE:
    case OP_LIN:
    case OP_ATTN:
    case OP_MOE:
    case OP_CONV:
    case OP_DELTA:
    case OP_KV:
    case OP_ATTEND:
    case OP_COUNT:
        break;
    }
}

static void write_kv(const Program *p, const Op *op, int r0, int n)
{
    const AttnDesc *a = &op->u.attn;
    const KvLayer kv = cpu_kv_layer(p->pool, a->kv_group, a->kv_layer);
    const int k = op->in[op->kind == OP_ATTN];
    const int v = op->in[op->kind == OP_ATTN ? 2 : 1];
    p->dev->kernels.kv_write(&kv, cpu_value(p, k) + ld(p, k) * r0, ld(p, k),
                             cpu_value(p, v) + ld(p, v) * r0, ld(p, v), p->slots[a->kv_group] + r0,
                             n);
}

void cpu_rows_run(Program *p, const Stage *s, int tile, int thread)
{
    const int rows = cpu_axis_rows(p, s->axis);
    const int size = rows_tile(p, rows);
    const int r0 = tile * size;
    const int n = (int)i64_min(size, rows - r0);
    const Op *last = NULL; /* its rows may be in the thread's buffer */
    for (int i = 0; i < s->n_items; i++) {
        const RowItem *item = &s->items[i];
        switch (item->kind) {
        case ROW_OP:
            run_op(p, item->op, r0, n, thread);
            last = item->op;
            break;
        case ROW_ROPE_TABLE: {
            const RopeDesc *r = &p->plan->rope_tables[item->index];
            const RopeArgs args = rope_args(p, r);
            p->dev->kernels.rope_table(&args,
                                       r->axis ? p->axes + (int64_t)r0 * args.n_axes : p->pos + r0,
                                       n, p->rope[item->index] + (int64_t)r0 * r->rot_dim);
            break;
        }
        case ROW_KV_WRITE:
            write_kv(p, item->op, r0, n);
            break;
        case ROW_PACK: {
            const RowSpan x = span_of(p, last, item->index, r0, thread);
            pack_rows(p, thread, item->index, x.x, x.ld, r0, n);
            break;
        }
        case ROW_COMBINE:
            cpu_moe_combine(p, item->op, r0, r0 + n);
            break;
        }
    }
}

/* ---- products ---- */

int64_t cpu_lin_tile(const Program *p, const LinKernel *k, int64_t n)
{
    /* Six tiles a thread even out threads of unequal speed; less than 32 rows a tile cost more in
     * call than they gain. */
    const int64_t share = n / (6 * (int64_t)team_size(p->dev->team));
    return i64_round_up(i64_max(i64_min(share, 2048), i64_max(32, k->tile_rows)), k->tile_rows);
}

static void resolve_lin(Program *p, Stage *s)
{
    const Op *op = s->op;
    const int rows = cpu_axis_rows(p, s->axis);
    s->lin_tiles = 0;
    for (int i = 0; i < op->weight->n_segs && rows > 0; i++) {
        const RowView *w = &op->weight->segs[i];
        LinSeg *seg = &s->lin[i];
        const PackSet *set = &p->packs[op->in[0]];
        seg->kernel = cpu_lin_kernel(p->dev, cpu_lin_want(p->dev, op->weight, w), rows);
        const int j = find_form(set, seg->kernel->layout, w->columns);
        seg->x = p->pack_base + set->offset + set->form[j].at;
        seg->tile = cpu_lin_tile(p, seg->kernel, op->weight->n);
        seg->n_tiles = (int)((w->n + seg->tile - 1) / seg->tile);
        s->lin_tiles += seg->n_tiles;
    }
}

void cpu_resolve(Program *p)
{
    if (p->step->n_rows == p->resolved_rows && p->step->n_out == p->resolved_out)
        return;
    p->resolved_rows = p->step->n_rows;
    p->resolved_out = p->step->n_out;
    for (int i = 0; i < p->plan->n_values; i++)
        if (p->packs[i].n > 0)
            resolve_pack(p, i);
    for (int i = 0; i < p->n_stages; i++)
        if (p->stages[i].lin)
            resolve_lin(p, &p->stages[i]);
}

int cpu_lin_tiles(const Program *p, const Stage *s)
{
    (void)p;
    return s->lin_tiles;
}

void cpu_lin_run(Program *p, const Stage *s, int tile, int thread)
{
    const Op *op = s->op;
    const Weight *w = op->weight;
    int64_t first = 0; /* row of the weight where the segment begins */
    int i = 0;
    for (; tile >= s->lin[i].n_tiles; i++) {
        tile -= s->lin[i].n_tiles;
        first += w->segs[i].n;
    }
    const LinSeg *seg = &s->lin[i];
    const int64_t j0 = tile * seg->tile;
    const LinOut out = {.y = cpu_value(p, op->out) + first,
                        .ldy = ld(p, op->out),
                        .bias = w->bias ? w->bias + first : NULL,
                        .add = op->in[1] >= 0 ? cpu_value(p, op->in[1]) + first : NULL,
                        .ld_add = op->in[1] >= 0 ? ld(p, op->in[1]) : 0};
    seg->kernel->run(&w->segs[i], j0, i64_min(j0 + seg->tile, w->segs[i].n), seg->x,
                     cpu_axis_rows(p, s->axis), &out, p->work + p->work_bytes * thread);
}

/* ---- attention ---- */

int cpu_attn_tiles(const Program *p, const Stage *s)
{
    return p->n_attn_tiles * s->op->u.attn.n_kv_heads;
}

void cpu_attn_run(Program *p, const Stage *s, int tile, int thread)
{
    const Op *op = s->op;
    const AttnDesc *a = &op->u.attn;
    /* The last tiles of a segment see the most keys: start with them, so that the short ones fill
     * the end. */
    const AttnTile *t = &p->attn_tiles[p->n_attn_tiles - 1 - tile / a->n_kv_heads];
    const Segment *seg = &p->step->segs[t->seg];
    const KvLayer kv = cpu_kv_layer(p->pool, a->kv_group, a->kv_layer);
    const AttnArgs args = {.n_heads = a->n_heads,
                           .scale = a->scale,
                           .softcap = a->softcap,
                           .window = a->window,
                           .sinks = a->sinks ? a->sinks->v : NULL,
                           .full = a->full,
                           .bias = a->bias ? a->bias->v : NULL,
                           .span = a->span};
    const bool fixed = p->plan->kv_groups[a->kv_group].use == KV_FIXED;
    const AttnSeg as = {seg->row0, seg->n_rows, fixed ? seg->fixed_len[a->kv_group] : seg->kv_len,
                        seg->pages[a->kv_group]};
    p->dev->kernels.attn(&kv, &args, &as, tile % a->n_kv_heads, t->q0, t->q1,
                         cpu_value(p, op->in[0]), ld(p, op->in[0]), cpu_value(p, op->out),
                         ld(p, op->out), p->work + p->work_bytes * thread);
}

/* ---- recurrent ops: a tile is a segment and a block of channels or heads ---- */

enum { CONV_BLOCK = 256 };

static const float *state_in(const Program *p, const Segment *seg, int offset)
{
    return seg->state_in < 0 ? NULL
                             : p->pool->state + p->plan->state_floats * seg->state_in + offset;
}

static float *state_out(const Program *p, const Segment *seg, int offset)
{
    return p->pool->state + p->plan->state_floats * seg->state_out + offset;
}

static int conv_blocks(const ConvDesc *c)
{
    return (c->channels + CONV_BLOCK - 1) / CONV_BLOCK;
}

int cpu_conv_tiles(const Program *p, const Stage *s)
{
    return p->step->n_segs * conv_blocks(&s->op->u.conv);
}

void cpu_conv_run(Program *p, const Stage *s, int tile, int thread)
{
    (void)thread;
    const Op *op = s->op;
    const ConvDesc *c = &op->u.conv;
    const Segment *seg = &p->step->segs[tile / conv_blocks(c)];
    const int c0 = tile % conv_blocks(c) * CONV_BLOCK;
    p->dev->kernels.conv_silu(cpu_value(p, op->in[0]) + ld(p, op->in[0]) * seg->row0,
                              ld(p, op->in[0]), c->w->v, c->width,
                              state_in(p, seg, c->state_offset), state_out(p, seg, c->state_offset),
                              c0, (int)i64_min(c0 + CONV_BLOCK, c->channels), seg->n_rows,
                              cpu_value(p, op->out) + ld(p, op->out) * seg->row0, ld(p, op->out));
}

int cpu_delta_tiles(const Program *p, const Stage *s)
{
    return p->step->n_segs * s->op->u.delta.n_v_heads;
}

void cpu_delta_run(Program *p, const Stage *s, int tile, int thread)
{
    const Op *op = s->op;
    const DeltaDesc *d = &op->u.delta;
    const DeltaArgs args = {d->n_k_heads, d->n_v_heads, d->k_dim, d->v_dim};
    const Segment *seg = &p->step->segs[tile / d->n_v_heads];
    const int h = tile % d->n_v_heads;
    const float *in[3];
    for (int i = 0; i < 3; i++)
        in[i] = cpu_value(p, op->in[i]) + ld(p, op->in[i]) * seg->row0;
    p->dev->kernels.delta(&args, in[0], ld(p, op->in[0]), in[1], ld(p, op->in[1]), in[2],
                          ld(p, op->in[2]), d->a_log->v, d->dt_bias->v,
                          state_in(p, seg, d->state_offset), state_out(p, seg, d->state_offset), h,
                          h + 1, seg->n_rows, cpu_value(p, op->out) + ld(p, op->out) * seg->row0,
                          ld(p, op->out), p->work + p->work_bytes * thread);
}
