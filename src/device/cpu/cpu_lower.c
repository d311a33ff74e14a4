#include "device/cpu/cpu.h"

#include "base/mem.h"

#include <string.h>
#include <sys/mman.h>

/* ---- sizes ---- */

typedef struct Sizes {
    int64_t scratch, packs, ropes, work, row_buf_floats, row_buf_ld, cursors, ints, moe;
    int64_t pack_in_row, pack_mid_row, ld_up, ld_out;
    int moe_k, moe_experts;
    int64_t total;
} Sizes;

/* Largest packed row of k elements, and thread scratch, over every number of rows a step can have.
 * lin_select changes with the number of rows at few places, but asking for each is cheap and cannot
 * be wrong. */
static int64_t pack_row_max(const Device *d, LinWant want, int k, int max_rows, int64_t *work)
{
    int64_t row = 0;
    const LinKernel *last = NULL;
    for (int r = 1; r <= max_rows; r++) {
        const LinKernel *kernel = cpu_lin_kernel(d, want, r);
        if (kernel == last)
            continue;
        last = kernel;
        row = i64_max(row, kernel->layout->row_bytes(k));
        *work = i64_max(*work, kernel->work_bytes(k));
    }
    return row;
}

/* Scratch of cpu_pack: one row. */
static int64_t columns_work(const int32_t *columns, int k)
{
    return columns ? (int64_t)k * (int64_t)sizeof(float) : 0;
}

bool cpu_want_pack(PackSet *set, LinWant want)
{
    for (int i = 0; i < set->n; i++) {
        const LinWant *w = &set->want[i];
        if (w->format == want.format && w->group == want.group && w->cls == want.cls &&
            w->columns == want.columns)
            return true;
    }
    if (set->n == PACK_FORMATS_MAX)
        return false;
    set->want[set->n++] = want;
    return true;
}

/* Fills packs[n_values] (offsets included) and returns their bytes. Packed forms live as long as
 * their value: values that are not alive together share memory. */
static int64_t size_packs(const Device *d, const GraphPlan *plan, PackSet *packs, int64_t *work)
{
    for (int i = 0; i < plan->n_ops; i++) {
        const Op *op = &plan->ops[i];
        if (op->kind != OP_LIN)
            continue;
        for (int s = 0; s < op->weight->n_segs; s++)
            (void)cpu_want_pack(&packs[op->in[0]],
                                cpu_lin_want(d, op->weight, &op->weight->segs[s]));
    }
    int64_t end = 0;
    for (int i = 0; i < plan->n_values; i++) {
        PackSet *set = &packs[i];
        if (set->n == 0)
            continue;
        const Value *v = &plan->values[i];
        const int rows = v->axis == AXIS_OUT_ROWS ? plan->max_out_rows
                         : v->axis == AXIS_FRAMES ? plan->max_rows * plan->frames
                                                  : plan->max_rows;
        for (int w = 0; w < set->n; w++) {
            set->bytes += pack_row_max(d, set->want[w], v->width, rows, work) * rows;
            *work = i64_max(*work, columns_work(set->want[w].columns, v->width));
        }
        /* First fit among packed values alive at the same time. */
        const Value *base = &plan->values[v->base];
        int64_t at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int j = 0; j < i; j++) {
                const PackSet *o = &packs[j];
                const Value *ob = &plan->values[plan->values[j].base];
                if (o->n == 0 || ob->first_op > base->last_op || base->first_op > ob->last_op)
                    continue;
                if (at < o->offset + o->bytes && o->offset < at + set->bytes) {
                    at = o->offset + o->bytes;
                    moved = true;
                }
            }
        }
        set->offset = at;
        end = i64_max(end, at + set->bytes);
    }
    return end;
}

static void size_moe(const Device *d, const GraphPlan *plan, Sizes *s)
{
    for (int i = 0; i < plan->n_ops; i++) {
        const Op *op = &plan->ops[i];
        if (op->kind != OP_MOE)
            continue;
        const MoeDesc *m = &op->u.moe;
        const Weight *weights[2] = {m->gate_up, m->down};
        for (int w = 0; w < 2; w++) {
            int64_t row = 0;
            PackSet set = {0};
            bool ordered = false;
            for (int e = 0; e < m->n_experts * weights[w]->n_segs; e++) {
                LinWant want = cpu_lin_want(d, weights[w], &weights[w]->segs[e]);
                ordered = ordered || want.columns;
                s->work = i64_max(s->work, columns_work(want.columns, weights[w]->k));
                want.columns = NULL; /* each expert has its own: counted below */
                (void)cpu_want_pack(&set, want);
            }
            for (int f = 0; f < set.n; f++)
                row += pack_row_max(d, set.want[f], weights[w]->k, plan->max_rows, &s->work);
            row *= ordered ? weights[w]->n_segs : 1;
            int64_t *to = w == 0 ? &s->pack_in_row : &s->pack_mid_row;
            *to = i64_max(*to, row);
        }
        s->moe_k = (int)i64_max(s->moe_k, m->top_k);
        s->moe_experts = (int)i64_max(s->moe_experts, m->n_experts);
        s->ld_up = i64_max(s->ld_up, i64_round_up(2 * (int64_t)m->ffn, 16));
        s->ld_out = i64_max(s->ld_out, i64_round_up(m->down->n, 16));
    }
    const int64_t places = (int64_t)plan->max_rows * s->moe_k;
    s->moe = places *
             (s->pack_in_row + s->pack_mid_row + (s->ld_up + s->ld_out) * (int64_t)sizeof(float));
    if (s->moe_k > 0)
        s->moe += i64_round_up((places * 4 + 3 * (int64_t)s->moe_experts + 1) * 4, 64);
}

static void size_all(const Device *d, const GraphPlan *plan, const KvPoolDesc *pool, PackSet *packs,
                     Sizes *s)
{
    *s = (Sizes){.scratch = plan->scratch_bytes};
    s->packs = size_packs(d, plan, packs, &s->work);
    int widest = 1;
    for (int i = 0; i < plan->n_ops; i++) {
        const Op *op = &plan->ops[i];
        if (op->packed_only)
            widest = (int)i64_max(widest, plan->values[op->out].width);
        if (op->kind == OP_ATTN || op->kind == OP_ATTEND) {
            const AttnDesc *a = &op->u.attn;
            const KvLayer kv = {.n_kv_heads = a->n_kv_heads,
                                .head_dim = a->head_dim,
                                .v_dim = a->v_dim,
                                .page_tokens = pool->page_tokens[a->kv_group],
                                .type = pool->format == KV_FORMAT_F32 ? KV_F32 : KV_F16};
            const AttnArgs args = {.n_heads = a->n_heads};
            s->work = i64_max(s->work, attn_work_bytes(&kv, &args, plan->max_rows));
        }
        if (op->kind == OP_DELTA) {
            const DeltaArgs args = {op->u.delta.n_k_heads, op->u.delta.n_v_heads, op->u.delta.k_dim,
                                    op->u.delta.v_dim};
            s->work = i64_max(s->work, delta_work_bytes(&args));
        }
    }
    size_moe(d, plan, s);
    const int n_threads = team_size(d->team);
    s->row_buf_ld = i64_round_up(widest, 16) + 16;
    s->row_buf_floats = s->row_buf_ld * ROW_TILE_MAX;
    s->work = i64_round_up(s->work, 4096) + 64; /* threads' areas end on different cache sets */
    for (int i = 0; i < plan->n_rope_tables; i++)
        s->ropes += i64_round_up(
            (int64_t)plan->max_rows * plan->rope_tables[i].rot_dim * (int64_t)sizeof(float), 64);
    s->cursors = 2 * (int64_t)n_threads * (int64_t)sizeof(Cursor);
    s->ints =
        i64_round_up((int64_t)plan->max_rows * (plan->n_kv_groups + plan->pos_axes + 2) * 4, 64) +
        i64_round_up(((int64_t)plan->max_rows + plan->max_segs) * (int64_t)sizeof(AttnTile), 64);
    s->total = i64_round_up(s->scratch, 64) + i64_round_up(s->packs, 64) + s->ropes +
               n_threads * (s->work + s->row_buf_floats * (int64_t)sizeof(float)) + s->cursors +
               s->ints + s->moe + 4096;
}

void cpu_need(const Device *d, const GraphPlan *plan, const KvPoolDesc *pool, DeviceNeed *out)
{
    Sizes s;
    *out = (DeviceNeed){.scratch = plan->scratch_bytes};
    PackSet *packs = mem_zalloc((size_t)plan->n_values * sizeof *packs);
    if (!packs) {
        out->runtime = -1;
        return;
    }
    size_all(d, plan, pool, packs, &s);
    mem_free(packs);
    out->runtime = s.total - i64_round_up(s.scratch, 64);
}

/* ---- stages ---- */

typedef struct Lowering {
    Program *p;
    RowItem *items; /* the open chain */
    int n_items;
    Axis axis;
    bool *packed;     /* [n_values] */
    LinSeg *lin_segs; /* free ones */
} Lowering;

static void flush(Lowering *l)
{
    if (l->n_items == 0)
        return;
    l->p->stages[l->p->n_stages++] = (Stage){.tiles = cpu_rows_tiles,
                                             .run = cpu_rows_run,
                                             .items = l->items,
                                             .n_items = l->n_items,
                                             .axis = l->axis};
    l->items += l->n_items;
    l->n_items = 0;
}

static void add_item(Lowering *l, Axis axis, RowItem item)
{
    if (l->n_items > 0 && l->axis != axis)
        flush(l);
    l->axis = axis;
    l->items[l->n_items++] = item;
}

static void add_stage(Lowering *l, const Op *op, Axis axis,
                      int (*tiles)(const Program *, const Stage *),
                      void (*run)(Program *, const Stage *, int, int))
{
    flush(l);
    Stage *s = &l->p->stages[l->p->n_stages++];
    *s = (Stage){.tiles = tiles, .run = run, .op = op, .axis = axis};
    if (op->kind == OP_LIN) {
        s->lin = l->lin_segs;
        l->lin_segs += op->weight->n_segs;
    }
}

static void need_packed(Lowering *l, int value)
{
    if (l->packed[value])
        return;
    l->packed[value] = true;
    add_item(l, l->p->plan->values[value].axis, (RowItem){.kind = ROW_PACK, .index = value});
}

static void lower_op(Lowering *l, const Op *op)
{
    const Axis axis = op->out >= 0 ? l->p->plan->values[op->out].axis : AXIS_ROWS;
    switch (op->kind) {
    case OP_EMBED:
    case OP_NORM:
    case OP_NORM_GATED:
    case OP_ADD:
    case OP_SILU_MUL:
    case OP_SIGMOID_MUL:
    case OP_ROPE:
    case OP_LAYER_NORM:
    case OP_ACT:
    case OP_INPUT:
    case OP_EMBED_POS:
        add_item(l, axis, (RowItem){.kind = ROW_OP, .op = op});
        /* Packed at once, while the rows are in the thread's buffer. */
        if (op->packed_only)
            need_packed(l, op->out);
        break;
    case OP_OUT_ROWS:
    case OP_MERGE:
    case OP_WINDOW:
        flush(l); /* reads rows that other tiles of this chain may write */
        add_item(l, axis, (RowItem){.kind = ROW_OP, .op = op});
        if (op->packed_only)
            need_packed(l, op->out);
        break;
    case OP_LIN:
        need_packed(l, op->in[0]);
        add_stage(l, op, axis, cpu_lin_tiles, cpu_lin_run);
        break;
    case OP_ATTN:
        add_item(l, AXIS_ROWS, (RowItem){.kind = ROW_KV_WRITE, .op = op});
        add_stage(l, op, axis, cpu_attn_tiles, cpu_attn_run);
        break;
    case OP_KV:
        add_item(l, AXIS_ROWS, (RowItem){.kind = ROW_KV_WRITE, .op = op});
        break;
    case OP_ATTEND:
        add_stage(l, op, axis, cpu_attn_tiles, cpu_attn_run);
        break;
    case OP_MOE:
        add_stage(l, op, axis, cpu_moe_route_tiles, cpu_moe_route_run);
        add_stage(l, op, axis, cpu_moe_pack_tiles, cpu_moe_pack_run);
        add_stage(l, op, axis, cpu_moe_up_tiles, cpu_moe_up_run);
        add_stage(l, op, axis, cpu_moe_act_tiles, cpu_moe_act_run);
        add_stage(l, op, axis, cpu_moe_down_tiles, cpu_moe_down_run);
        add_item(l, axis, (RowItem){.kind = ROW_COMBINE, .op = op});
        break;
    case OP_CONV:
        add_stage(l, op, axis, cpu_conv_tiles, cpu_conv_run);
        break;
    case OP_DELTA:
        add_stage(l, op, axis, cpu_delta_tiles, cpu_delta_run);
        break;
    case OP_NONE:
    case OP_COUNT:
        break;
    }
}

static void build_stages(Program *p, RowItem *items, bool *packed, LinSeg *lin_segs)
{
    Lowering l = {
        .p = p, .items = items, .packed = packed, .lin_segs = lin_segs, .axis = AXIS_ROWS};
    for (int i = 0; i < p->plan->n_rope_tables; i++)
        add_item(&l, AXIS_ROWS, (RowItem){.kind = ROW_ROPE_TABLE, .index = i});
    for (int i = 0; i < p->plan->n_ops; i++)
        lower_op(&l, &p->plan->ops[i]);
    flush(&l);
}

/* ---- memory ---- */

static void *carve(uint8_t **at, int64_t bytes)
{
    void *p = *at;
    *at += i64_round_up(bytes, 64);
    return p;
}

static void carve_all(Program *p, const Sizes *s)
{
    const GraphPlan *plan = p->plan;
    const int n_threads = team_size(p->dev->team);
    uint8_t *at = p->memory;
    p->cursors = carve(&at, s->cursors);
    p->scratch = carve(&at, s->scratch);
    p->pack_base = carve(&at, s->packs);
    for (int i = 0; i < plan->n_rope_tables; i++)
        p->rope[i] = carve(&at, (int64_t)plan->max_rows * plan->rope_tables[i].rot_dim *
                                    (int64_t)sizeof(float));
    p->work_bytes = s->work;
    p->work = carve(&at, s->work * n_threads);
    p->row_buf_floats = s->row_buf_floats;
    p->row_buf_ld = s->row_buf_ld;
    p->row_buf = carve(&at, s->row_buf_floats * n_threads * (int64_t)sizeof(float));
    p->attn_tiles =
        carve(&at, ((int64_t)plan->max_rows + plan->max_segs) * (int64_t)sizeof(AttnTile));
    int32_t *ints =
        carve(&at, (int64_t)plan->max_rows * (plan->n_kv_groups + plan->pos_axes + 2) * 4);
    p->pos = ints;
    p->tokens = ints + plan->max_rows;
    for (int g = 0; g < plan->n_kv_groups; g++)
        p->slots[g] = ints + (int64_t)plan->max_rows * (g + 2);
    p->axes = ints + (int64_t)plan->max_rows * (plan->n_kv_groups + 2);
    if (s->moe_k > 0) {
        const int64_t places = (int64_t)plan->max_rows * s->moe_k;
        MoeWork *m = &p->moe;
        m->pack_in_row = s->pack_in_row;
        m->pack_mid_row = s->pack_mid_row;
        m->ld_up = s->ld_up;
        m->ld_out = s->ld_out;
        m->pack_in = carve(&at, places * s->pack_in_row);
        m->pack_mid = carve(&at, places * s->pack_mid_row);
        m->up = carve(&at, places * s->ld_up * (int64_t)sizeof(float));
        m->out = carve(&at, places * s->ld_out * (int64_t)sizeof(float));
        int32_t *w = carve(&at, (places * 4 + 3 * (int64_t)s->moe_experts + 1) * 4);
        m->ids = w;
        m->place = w + places;
        m->row = w + 2 * places;
        m->weights = (float *)(void *)(w + 3 * places);
        m->start = w + 4 * places;
        m->active = m->start + s->moe_experts + 1;
        m->fill = m->active + s->moe_experts;
    }
}

/* The plan's groups are the first of the pool's: the parts of a model share one. */
static bool check_pool(const GraphPlan *plan, const KvPoolDesc *pool, Error *err)
{
    if (plan->n_kv_groups > pool->n_groups)
        return err_set(err, ERR_DEVICE, "%s: pool of %d groups, graph of %d", plan->part,
                       pool->n_groups, plan->n_kv_groups);
    if (plan->state_floats > 0 && plan->state_floats != pool->state_floats)
        return err_set(err, ERR_DEVICE, "%s: pool of %lld state numbers, graph of %lld", plan->part,
                       (long long)pool->state_floats, (long long)plan->state_floats);
    for (int i = 0; i < plan->n_kv_groups; i++) {
        const KvGroup *g = &plan->kv_groups[i];
        const KvGroup *of = &pool->groups[i];
        if (g->n_layers > of->n_layers || g->n_kv_heads != of->n_kv_heads ||
            g->head_dim != of->head_dim || g->v_dim != of->v_dim || g->use != of->use)
            return err_set(err, ERR_DEVICE,
                           "%s: group %d has %d layers of %d heads of %d, the pool's %d, %d, %d",
                           plan->part, i, g->n_layers, g->n_kv_heads, g->head_dim, of->n_layers,
                           of->n_kv_heads, of->head_dim);
    }
    return true;
}

bool cpu_lower(Device *d, const GraphPlan *plan, const DeviceWeights *weights,
               const KvPoolDesc *pool, Program **out, Error *err)
{
    (void)weights; /* read where they are mapped */
    if (!check_pool(plan, pool, err))
        return false;
    Program *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(err, "program", sizeof *p);
    arena_init(&p->arena, "cpu program");
    p->dev = d;
    p->plan = plan;
    /* An op gives at most five stages and three chain items; a chain before it one stage more. */
    p->packs = ARENA_ARRAY(&p->arena, plan->n_values, PackSet, err);
    p->stages = ARENA_ARRAY(&p->arena, 6 * plan->n_ops + 8, Stage, err);
    RowItem *items = ARENA_ARRAY(&p->arena, 3 * plan->n_ops + ROPE_TABLES_MAX, RowItem, err);
    bool *packed = ARENA_ARRAY(&p->arena, plan->n_values, bool, err);
    int n_segs = 0;
    for (int i = 0; i < plan->n_ops; i++)
        n_segs += plan->ops[i].kind == OP_LIN ? plan->ops[i].weight->n_segs : 0;
    LinSeg *lin_segs = ARENA_ARRAY(&p->arena, n_segs, LinSeg, err);
    if (!p->packs || !p->stages || !items || !packed || !lin_segs) {
        cpu_program_close(d, p);
        return false;
    }
    Sizes s;
    size_all(d, plan, pool, p->packs, &s);
    p->memory_bytes = s.total;
    p->memory = mem_map((size_t)s.total);
    if (!p->memory) {
        cpu_program_close(d, p);
        return err_nomem(err, "scratch", (size_t)s.total);
    }
    carve_all(p, &s);
    build_stages(p, items, packed, lin_segs);
    *out = p;
    return true;
}

void cpu_program_close(Device *d, Program *p)
{
    (void)d;
    if (!p)
        return;
    mem_unmap(p->memory, (size_t)p->memory_bytes);
    arena_free(&p->arena);
    mem_free(p);
}
