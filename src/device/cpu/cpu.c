#include "device/cpu/cpu.h"

#include "base/mem.h"
#include "device/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static bool cpu_list(DeviceInfo out[DEVICES_MAX], int *n, Error *err)
{
    (void)err;
    out[0] = (DeviceInfo){.id = "cpu", .name = "this machine's CPU", .shared_memory = true};
    *n = 1;
    return true;
}

/* Counts steps: from the one that fails on the device is lost. */
static Fault fault = {.name = "cpu", .code = 1, .min = 1, .max = 1};

static bool cpu_open(const DeviceOptions *opt, Device **out, Error *err)
{
    unsigned isa = cpu_isa_detect();
    if (opt->level) {
        unsigned want;
        if (!cpu_isa_from_name(opt->level, &want))
            return err_set(
                err, ERR_USAGE,
                "cpu level \"%s\" is unknown; levels: scalar avx2 avx512 avx512vnni avx512bf16 amx",
                opt->level);
        isa &= want;
    }
    if (!fault_read(&fault, err))
        return false;
    Device *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_nomem(err, "cpu device", sizeof *d);
    if (!team_open(opt->threads > 0 ? opt->threads : team_cores(), &d->team, err)) {
        mem_free(d);
        return false;
    }
    d->isa = isa;
    d->numerics = opt->numerics;
    d->lin_class = opt->numerics == NUM_EXACT ? LIN_EXACT
                   : opt->deterministic       ? LIN_FAST_INVARIANT
                                              : LIN_FAST;
    kernels_init(&d->kernels, isa);
    const char *level = isa & CPU_AMX           ? "avx512bf16 amx"
                        : isa & CPU_AVX512_BF16 ? "avx512bf16"
                        : isa & CPU_AVX512_VNNI ? "avx512vnni"
                        : isa & CPU_AVX512      ? "avx512"
                        : isa & CPU_AVX2        ? "avx2"
                                                : "scalar";
    const int n = team_size(d->team);
    snprintf(d->describe, sizeof d->describe, "cpu: %d thread%s, %s", n, n == 1 ? "" : "s", level);
    *out = d;
    return true;
}

static void cpu_close(Device *d)
{
    if (!d)
        return;
    team_close(d->team);
    mem_free(d);
}

static const char *cpu_describe(const Device *d)
{
    return d->describe;
}

/* All of it is the host's memory, which the engine counts. */
static void cpu_memory(const Device *d, DeviceMemory *out)
{
    (void)d;
    *out = (DeviceMemory){.shared = true};
}

static Placement cpu_place(const Device *d, const Weight *w, int64_t *bytes)
{
    (void)d;
    (void)w;
    *bytes = 0;
    return PLACE_MAP; /* kernels read every format where it lies in the file */
}

/* Whether the formats of the weights that read one value fit its pack set. */
static bool check_formats(const Device *d, const GraphPlan *plan, const Op *by, const Weight *w,
                          Error *err)
{
    PackSet set = {0};
    for (int i = 0; i < plan->n_ops; i++) {
        const Op *op = &plan->ops[i];
        if (op->kind != OP_LIN || op->in[0] != by->in[0])
            continue;
        for (int s = 0; s < op->weight->n_segs; s++)
            if (!cpu_want_pack(&set, cpu_lin_want(d, op->weight, &op->weight->segs[s])))
                return err_set(err, ERR_UNSUPPORTED,
                               "%s: its input is read in more than %d weight formats", w->name,
                               PACK_FORMATS_MAX);
    }
    return true;
}

static bool cpu_supports(const Device *d, const GraphPlan *plan, Error *err)
{
    for (int i = 0; i < plan->n_ops; i++) {
        const Op *op = &plan->ops[i];
        if (op->kind == OP_NONE || op->kind >= OP_COUNT)
            return err_set(err, ERR_UNSUPPORTED, "cpu: operation %d (%s)", (int)op->kind, op->name);
        if (op->kind == OP_LIN && !check_formats(d, plan, op, op->weight, err))
            return false;
        if ((op->kind == OP_EMBED || op->kind == OP_EMBED_POS) && op->weight->segs[0].columns)
            return err_set(err, ERR_UNSUPPORTED, "%s: a table with columns in another order",
                           op->name);
    }
    return true;
}

/* Kernels read the files' pages: nothing to bring. */
static bool cpu_weights_open(Device *d, const Weight *const *weights, int n,
                             const LoadProgress *progress, DeviceWeights **out, Error *err)
{
    (void)d;
    (void)weights;
    (void)n;
    (void)progress;
    (void)err;
    *out = NULL;
    return true;
}

static void cpu_weights_close(Device *d, DeviceWeights *w)
{
    (void)d;
    (void)w;
}

static int64_t element_bytes(KvFormat f)
{
    return f == KV_FORMAT_F32 ? 4 : 2;
}

/* More than any machine has; sums of a few such sizes still fit 63 bits. */
static const int64_t too_many_bytes = INT64_MAX / 4096;

/* a * b of sizes, at most too_many_bytes: what a hostile configuration asks for must stay too much.
 */
static int64_t size_mul(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_mul_overflow(a, b, &c) || c > too_many_bytes ? too_many_bytes : c;
}

/* Bytes of one layer of a group: K pages, then V pages. */
static int64_t layer_bytes(const KvPoolDesc *d, int g, int64_t *v_offset)
{
    const KvGroup *k = &d->groups[g];
    const int64_t slots = size_mul(size_mul(d->n_pages[g], d->page_tokens[g]), k->n_kv_heads);
    const int64_t row = size_mul(slots, element_bytes(d->format));
    const int64_t kb = i64_round_up(size_mul(row, k->head_dim), 64);
    if (v_offset)
        *v_offset = kb;
    return kb + i64_round_up(size_mul(row, k->v_dim), 64);
}

static int64_t cpu_pool_bytes(const KvPoolDesc *d, int64_t *state_bytes)
{
    int64_t sum = 0;
    for (int g = 0; g < d->n_groups; g++)
        sum += size_mul(layer_bytes(d, g, NULL), d->groups[g].n_layers);
    if (state_bytes)
        *state_bytes =
            i64_round_up(size_mul(size_mul(d->state_floats, d->n_states), sizeof(float)), 64);
    return sum;
}

/* Takes the pages now, so that a plan that fits at load cannot fail later. */
static void claim(void *p, int64_t bytes)
{
    if (bytes > 0 && madvise(p, (size_t)i64_round_up(bytes, 4096), MADV_POPULATE_WRITE) != 0)
        memset(p, 0, (size_t)bytes);
}

static void cpu_pool_close(Device *d, KvPool *pool)
{
    (void)d;
    if (!pool)
        return;
    mem_unmap(pool->kv, (size_t)pool->kv_bytes);
    mem_unmap(pool->state, (size_t)pool->state_bytes);
    mem_free(pool);
}

static bool cpu_pool_open(Device *d, const KvPoolDesc *desc, KvPool **out, Error *err)
{
    for (int g = 0; g < desc->n_groups; g++)
        if (desc->page_tokens[g] < 1 || (desc->page_tokens[g] & (desc->page_tokens[g] - 1)) != 0)
            return err_set(err, ERR_USAGE, "kv: pages of %d tokens, wanted a power of two",
                           desc->page_tokens[g]);
    KvPool *pool = mem_zalloc(sizeof *pool);
    if (!pool)
        return err_nomem(err, "kv pool", sizeof *pool);
    pool->desc = *desc;
    pool->kv_bytes = cpu_pool_bytes(desc, &pool->state_bytes);
    int64_t at = 0;
    for (int g = 0; g < desc->n_groups; g++) {
        pool->group_offset[g] = at;
        at += layer_bytes(desc, g, NULL) * desc->groups[g].n_layers;
    }
    const char *what = NULL;
    if (pool->kv_bytes > 0 && !(pool->kv = mem_map((size_t)pool->kv_bytes)))
        what = "kv cache";
    else if (pool->state_bytes > 0 && !(pool->state = mem_map((size_t)pool->state_bytes)))
        what = "recurrent state";
    if (what) {
        err_nomem(err, what, (size_t)(pool->kv ? pool->state_bytes : pool->kv_bytes));
        cpu_pool_close(d, pool);
        return false;
    }
    claim(pool->kv, pool->kv_bytes);
    claim(pool->state, pool->state_bytes);
    *out = pool;
    return true;
}

KvLayer cpu_kv_layer(const KvPool *pool, int group, int layer)
{
    const KvPoolDesc *d = &pool->desc;
    const KvGroup *g = &d->groups[group];
    int64_t v_offset;
    const int64_t bytes = layer_bytes(d, group, &v_offset);
    uint8_t *k = pool->kv + pool->group_offset[group] + bytes * layer;
    return (KvLayer){.k = k,
                     .v = k + v_offset,
                     .n_kv_heads = g->n_kv_heads,
                     .head_dim = g->head_dim,
                     .v_dim = g->v_dim,
                     .page_tokens = d->page_tokens[group],
                     .type = d->format == KV_FORMAT_F32 ? KV_F32 : KV_F16};
}

static void cpu_page_copy(Device *d, KvPool *pool, int group, int from, int to, int n_tokens)
{
    (void)d;
    const int64_t eb = element_bytes(pool->desc.format);
    for (int l = 0; l < pool->desc.groups[group].n_layers; l++) {
        const KvLayer kv = cpu_kv_layer(pool, group, l);
        const int64_t k_run = kv.page_tokens * kv.head_dim * eb;
        const int64_t v_run = kv.page_tokens * kv.v_dim * eb;
        /* Keys lie transposed in tiles of slots: whole tiles. */
        const int64_t k_tokens = i64_round_up(n_tokens, i64_min(KV_TILE, kv.page_tokens));
        for (int h = 0; h < kv.n_kv_heads; h++) {
            const int64_t src = (int64_t)from * kv.n_kv_heads + h;
            const int64_t dst = (int64_t)to * kv.n_kv_heads + h;
            memcpy(kv.k + dst * k_run, kv.k + src * k_run, (size_t)(k_tokens * kv.head_dim * eb));
            memcpy(kv.v + dst * v_run, kv.v + src * v_run, (size_t)(n_tokens * kv.v_dim * eb));
        }
    }
}

static void cpu_state_copy(Device *d, KvPool *pool, int from, int to)
{
    (void)d;
    const int64_t n = pool->desc.state_floats;
    if (n > 0 && from != to)
        memcpy(pool->state + n * to, pool->state + n * from, (size_t)n * sizeof(float));
}

static bool check_inputs(const Program *p, const StepBlock *s, Error *err)
{
    const GraphPlan *g = p->plan;
    for (int i = 0; i < g->n_inputs; i++) {
        const GraphInput *in = &g->inputs[i];
        const StepInput *given = i < s->n_inputs ? &s->inputs[i] : NULL;
        const int rows = in->axis == AXIS_FRAMES ? s->n_rows * g->frames : s->n_rows;
        if (!given && !in->optional)
            return err_set(err, ERR_DEVICE, "%s: input %d is missing", g->part, i);
        if (given && !given->index && given->n < rows)
            return err_set(err, ERR_DEVICE, "%s: input %d has %d rows, wanted %d", g->part, i,
                           given->n, rows);
        for (int r = 0; given && given->index && r < rows; r++)
            if (given->index[r] >= given->n || given->index[r] < (in->optional ? -1 : 0))
                return err_set(err, ERR_DEVICE, "%s: input %d, row %d is row %d of %d", g->part, i,
                               r, given->index[r], given->n);
    }
    if (s->n_inputs > g->n_inputs)
        return err_set(err, ERR_DEVICE, "%s: %d inputs, the graph has %d", g->part, s->n_inputs,
                       g->n_inputs);
    for (int i = 0; i < s->n_out; i++)
        if (s->out_rows[i] < 0 || s->out_rows[i] > s->n_rows - g->merge)
            return err_set(err, ERR_DEVICE, "%s: output %d is of row %d of %d, and %d after it",
                           g->part, i, s->out_rows[i], s->n_rows, g->merge - 1);
    for (int r = 0; g->max_pos > 0 && r < s->n_rows; r++)
        if (s->rows[r].pos < 0 || s->rows[r].pos >= g->max_pos)
            return err_set(err, ERR_DEVICE, "%s: row %d is at position %d, the table has %d",
                           g->part, r, s->rows[r].pos, g->max_pos);
    return true;
}

/* What the groups' uses ask of a segment. */
static bool check_uses(const Program *p, const Segment *seg, int i, Error *err)
{
    const GraphPlan *g = p->plan;
    for (int k = 0; k < g->n_kv_groups; k++) {
        const KvUse use = g->kv_groups[k].use;
        const bool reads = g->kv_reads >> k & 1;
        if (use == KV_STEP && reads && seg->kv_len != seg->n_rows)
            return err_set(err, ERR_DEVICE, "%s: segment %d has %d of %d rows, wanted all of them",
                           g->part, i, seg->n_rows, seg->kv_len);
        if (use == KV_FIXED && reads && seg->fixed_len[k] < 1)
            return err_set(err, ERR_DEVICE, "%s: segment %d has %d keys in group %d", g->part, i,
                           seg->fixed_len[k], k);
    }
    return true;
}

static bool check_step(const Program *p, const KvPool *pool, const StepBlock *s, Error *err)
{
    const GraphPlan *g = p->plan;
    if (s->n_rows < 1 || s->n_rows > g->max_rows || s->n_segs < 1 || s->n_segs > g->max_segs ||
        s->n_out < 0 || s->n_out > g->max_out_rows || s->n_samples != 0)
        return err_set(err, ERR_DEVICE,
                       "step of %d rows, %d segments, %d outputs; planned for %d, %d, %d",
                       s->n_rows, s->n_segs, s->n_out, g->max_rows, g->max_segs, g->max_out_rows);
    int row = 0;
    for (int i = 0; i < s->n_segs; i++) {
        const Segment *seg = &s->segs[i];
        if (seg->row0 != row || seg->n_rows < 1 || seg->kv_len < seg->n_rows)
            return err_set(err, ERR_DEVICE, "segment %d: rows from %d (%d), cache of %d", i,
                           seg->row0, seg->n_rows, seg->kv_len);
        if (g->state_floats > 0 && (seg->state_out < 0 || seg->state_out >= pool->desc.n_states ||
                                    seg->state_in >= pool->desc.n_states))
            return err_set(err, ERR_DEVICE, "segment %d: state slots %d, %d of %d", i,
                           seg->state_in, seg->state_out, pool->desc.n_states);
        if (!check_uses(p, seg, i, err))
            return false;
        row += seg->n_rows;
    }
    if (row != s->n_rows)
        return err_set(err, ERR_DEVICE, "segments cover %d of %d rows", row, s->n_rows);
    return check_inputs(p, s, err);
}

/* Query rows of a tile: enough to read each block of keys for many queries, few enough to share
 * among the threads. */
enum { QUERY_TILE = 32 };

static void set_step(Program *p, KvPool *pool, const StepBlock *s)
{
    const int64_t n_axes = p->plan->pos_axes;
    p->step = s;
    p->pool = pool;
    for (int r = 0; r < s->n_rows; r++) {
        p->tokens[r] = s->rows[r].token;
        p->pos[r] = s->rows[r].pos;
        for (int i = 0; i < n_axes; i++)
            p->axes[r * n_axes + i] = s->pos ? s->pos[r * n_axes + i] : s->rows[r].pos;
    }
    p->n_attn_tiles = 0;
    for (int i = 0; i < s->n_segs; i++) {
        const Segment *seg = &s->segs[i];
        for (int g = 0; g < p->plan->n_kv_groups; g++) {
            if (!(p->plan->kv_writes >> g & 1))
                continue;
            const int pt = pool->desc.page_tokens[g];
            for (int r = 0; r < seg->n_rows; r++) {
                const int at = seg->kv_len - seg->n_rows + r;
                const int32_t page = seg->pages[g][at / pt];
                p->slots[g][seg->row0 + r] = page < 0 ? -1 : page * pt + at % pt;
            }
        }
        for (int q = 0; q < seg->n_rows; q += QUERY_TILE)
            p->attn_tiles[p->n_attn_tiles++] =
                (AttnTile){i, q, (int)i64_min(q + QUERY_TILE, seg->n_rows)};
    }
}

static void run_stage_tiles(Program *p, const Stage *s, Cursor *cursors, int thread)
{
    const int n_threads = team_size(p->dev->team);
    const int n = s->tiles(p, s);
    if (n == 0)
        return;
    for (int i = 0; i < n_threads; i++) {
        const int owner = (thread + i) % n_threads;
        const int from = (int)((int64_t)n * owner / n_threads);
        const int count = (int)((int64_t)n * (owner + 1) / n_threads) - from;
        for (;;) {
            const int at = atomic_fetch_add_explicit(&cursors[owner].next, 1, memory_order_relaxed);
            if (at >= count)
                break;
            s->run(p, s, from + at, thread);
        }
    }
}

static void run_program(void *ctx, int thread)
{
    Program *p = ctx;
    const int n_threads = team_size(p->dev->team);
    for (int i = 0; i < p->n_stages; i++) {
        /* The other set is idle until the barrier: ready it for the next stage. */
        atomic_store_explicit(&p->cursors[((i + 1) & 1) * n_threads + thread].next, 0,
                              memory_order_relaxed);
        run_stage_tiles(p, &p->stages[i], &p->cursors[(i & 1) * n_threads], thread);
        if (n_threads > 1 && i + 1 < p->n_stages)
            team_barrier(p->dev->team);
    }
}

static bool cpu_submit(Device *d, Program *p, KvPool *pool, const StepBlock *s, uint64_t *ticket,
                       Error *err)
{
    *ticket = 0;
    d->lost = d->lost || fault_next(&fault) != 0;
    if (d->lost)
        return err_set(err, ERR_LOST, "cpu: the device is lost, as MERE_FAULT says");
    if (!check_step(p, pool, s, err))
        return false;
    set_step(p, pool, s);
    cpu_resolve(p);
    for (int i = 0; i < 2 * team_size(d->team); i++)
        atomic_store_explicit(&p->cursors[i].next, 0, memory_order_relaxed);
    team_run(d->team, run_program, p);
    return true;
}

/* A step has ended when submit returns. */
static bool cpu_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    (void)ticket;
    (void)d;
    (void)p;
    (void)deadline_ns;
    (void)err;
    return true;
}

const DeviceOps device_cpu = {
    .name = "cpu",
    .in_flight = 1,
    .list = cpu_list,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .memory = cpu_memory,
    .place = cpu_place,
    .supports = cpu_supports,
    .need = cpu_need,
    .weights_open = cpu_weights_open,
    .weights_close = cpu_weights_close,
    .pool_bytes = cpu_pool_bytes,
    .pool_open = cpu_pool_open,
    .pool_close = cpu_pool_close,
    .page_copy = cpu_page_copy,
    .state_copy = cpu_state_copy,
    .lower = cpu_lower,
    .program_close = cpu_program_close,
    .submit = cpu_submit,
    .wait = cpu_wait,
};
