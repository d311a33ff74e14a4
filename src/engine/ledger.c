#include "engine/ledger.h"

#include "engine/osmem.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    SLOTS_MAX = 4096,
    QUEUE_MAX = 1 << 20,
    CHUNK_MAX = 1 << 16,
    PAGE_TOKENS_MAX = 4096,
    SNAPSHOTS_MAX = 4096,
    SNAPSHOT_TOKENS = 1024,
    ECHO_BYTES = 8 << 20, /* logits that an echo request may hold */
    ECHO_ROWS_MAX = 32,
    CTX_PLAIN = 8192 /* tokens of context that need no asking */
};

/* Event storage, request bodies, what the heap keeps of freed blocks. */
#define RESERVE_BYTES ((uint64_t)8 << 20)
/* Left to the rest of the machine: the larger of both. */
#define LEAVE_BYTES ((uint64_t)256 << 20)
#define LEAVE_PART 20

static bool option(const char *name, int value, int lo, int hi, int preset, int *out, Error *err)
{
    *out = value == 0 ? preset : value;
    if (value == 0 || (value >= lo && value <= hi))
        return true;
    return err_set(err, ERR_USAGE, "%s is %d, wanted %d to %d", name, value, lo, hi);
}

bool ledger_sizes(const MereOptions *opt, int max_ctx, int vocab, LedgerSizes *out, Error *err)
{
    LedgerSizes s;
    int ctx;
    if (!option("ctx", opt->ctx, 1, max_ctx, max_ctx, &ctx, err) ||
        !option("slots", opt->slots, 1, SLOTS_MAX, 1, &s.slots, err) ||
        !option("queue", opt->queue, 1, QUEUE_MAX, 64, &s.queue, err) ||
        !option("chunk", opt->chunk, 1, CHUNK_MAX, 512, &s.chunk, err) ||
        !option("page_tokens", opt->page_tokens, 1, PAGE_TOKENS_MAX, 64, &s.page_tokens, err) ||
        !option("snapshots", opt->snapshots, -1, SNAPSHOTS_MAX, 4, &s.snapshots, err))
        return false;
    if ((s.page_tokens & (s.page_tokens - 1)) != 0)
        return err_set(err, ERR_USAGE, "page_tokens is %d, wanted a power of two", s.page_tokens);
    if ((int)opt->kv < MERE_KV_AUTO || (int)opt->kv > MERE_KV_F32)
        return err_set(err, ERR_USAGE, "kv is %d, wanted 0 to %d", (int)opt->kv, MERE_KV_F32);
    s.chunk = (int)i64_min(s.chunk, ctx);
    s.echo_rows = (int)i64_max(1, i64_min(ECHO_ROWS_MAX, ECHO_BYTES / (4 * (int64_t)vocab)));
    s.echo_rows = (int)i64_min(s.echo_rows, s.chunk);
    s.limits.max_rows = (int)i64_max(s.chunk, s.slots);
    s.limits.max_out_rows = s.slots + s.echo_rows;
    s.limits.max_segs = s.slots;
    *out = s;
    return true;
}

/* What one choice of context, slots and cache format is. */
typedef struct Choice {
    int ctx, slots;
    MereKv kv;
} Choice;

/* Steps that the scheduler gives the device before it waits for the oldest. */
static int flights_of(const DeviceOps *ops)
{
    return (int)i64_max(1, i64_min(ops->in_flight, SCHED_FLIGHTS_MAX));
}

/* Of one sequence, reserved and not committed: a chunk, or a row for each flight (sched.h). */
static int uncommitted_rows(const LedgerSizes *s, int flights)
{
    return (int)i64_max(s->chunk, flights);
}

static KvPoolDesc pool_desc(const LedgerInput *in, Choice c)
{
    const GraphPlan *g = in->graph;
    KvPoolDesc d = {.format = c.kv == MERE_KV_F32 ? KV_FORMAT_F32 : KV_FORMAT_F16,
                    .n_groups = g->n_kv_groups,
                    .state_floats = g->state_floats};
    for (int i = 0; i < g->n_kv_groups; i++) {
        d.groups[i] = g->kv_groups[i];
        d.page_tokens[i] = in->sizes.page_tokens;
        d.seq_pages[i] = (c.ctx + in->sizes.page_tokens - 1) / in->sizes.page_tokens;
        d.n_pages[i] = kv_pool_pages(&g->kv_groups[i], in->sizes.page_tokens, c.ctx, c.slots,
                                     uncommitted_rows(&in->sizes, flights_of(in->ops)));
    }
    if (g->state_floats > 0) {
        const int kept =
            in->opt->no_prefix_cache || in->sizes.snapshots < 0 ? 0 : in->sizes.snapshots;
        d.n_states = c.slots + kept;
    }
    return d;
}

static SchedDesc sched_part(const LedgerSizes *s, const KvPoolDesc *pool, Choice c, int vocab,
                            int flights, bool share)
{
    return (SchedDesc){
        .kv = {.desc = *pool,
               .ctx = c.ctx,
               .slots = c.slots,
               .max_rows = uncommitted_rows(s, flights),
               .page_tokens = s->page_tokens,
               .share = share},
        .vocab = vocab,
        .flights = flights,
        .max_rows = s->limits.max_rows,
        .max_out = s->limits.max_out_rows,
        .chunk = s->chunk,
        .queue = s->queue,
        .snapshot_tokens = SNAPSHOT_TOKENS,
    };
}

static void place_weights(const LedgerInput *in, MerePlan *plan)
{
    const Model *m = in->model;
    for (int i = 0; i < m->n_weights; i++) {
        const Weight *w = m->weights[i];
        int64_t device_bytes;
        const Placement how = in->ops->place(in->device, w, &device_bytes);
        const int n = (w->n_experts > 0 ? w->n_experts : 1) * w->n_segs;
        int64_t bytes = 0;
        for (int s = 0; s < n; s++)
            bytes += rowview_bytes(&w->segs[s]);
        /* A tied head is the same bytes again: counted once. */
        bool again = false;
        for (int j = 0; j < i && !again; j++)
            again = n > 0 && m->weights[j]->n_segs > 0 &&
                    m->weights[j]->segs[0].data == w->segs[0].data;
        if (again)
            continue;
        plan->placements[how] += (uint64_t)bytes;
        plan->placed_bytes[how] += (uint64_t)device_bytes;
        plan->terms[MERE_TERM_WEIGHTS] += (uint64_t)device_bytes;
    }
}

static bool plan_fits(const MerePlan *p)
{
    const uint64_t host = p->own_memory ? p->host_bytes : p->total_bytes;
    const bool on_device = p->own_memory || p->device_limit_bytes > 0;
    return host <= p->host_limit_bytes && (!on_device || p->device_bytes <= p->device_limit_bytes);
}

/* The terms that follow from the choice, and the sums. */
static void plan_terms(const LedgerInput *in, Choice c, MerePlan *plan)
{
    const KvPoolDesc pool = pool_desc(in, c);
    int64_t state = 0;
    DeviceNeed need;
    plan->terms[MERE_TERM_KV] = (uint64_t)in->ops->pool_bytes(&pool, &state);
    plan->terms[MERE_TERM_STATE] = (uint64_t)state;
    in->ops->need(in->device, in->graph, &pool, &need);
    plan->terms[MERE_TERM_SCRATCH] = (uint64_t)need.scratch;
    const SchedDesc sched = sched_part(&in->sizes, &pool, c, in->model->vocab, flights_of(in->ops),
                                       !in->opt->no_prefix_cache);
    const uint64_t host_runtime =
        (uint64_t)need.host + (uint64_t)sched_bytes(&sched) +
        (uint64_t)in->sizes.echo_rows * (uint64_t)in->model->vocab * sizeof(float) +
        in->base_bytes + in->text_bytes + in->head_bytes;
    plan->terms[MERE_TERM_RUNTIME] = host_runtime + (uint64_t)need.runtime + in->device_base_bytes;
    plan->terms[MERE_TERM_RESERVE] = RESERVE_BYTES;
    plan->text_bytes = in->text_bytes;
    plan->total_bytes = plan->host_bytes = 0;
    for (int t = 0; t < MERE_TERM_COUNT; t++) {
        /* A device that keeps no books (the CPU) takes everything from the host. */
        const bool is_host =
            !in->memory.limit_bytes || t == MERE_TERM_DERIVED || t == MERE_TERM_RESERVE;
        plan->host_terms[t] = is_host ? plan->terms[t] : t == MERE_TERM_RUNTIME ? host_runtime : 0;
        plan->total_bytes += plan->terms[t];
        plan->host_bytes += plan->host_terms[t];
    }
    plan->device_bytes = plan->total_bytes - plan->host_bytes;
    plan->ctx = c.ctx;
    plan->slots = c.slots;
    plan->kv = c.kv;
}

static bool choice_fits(const LedgerInput *in, Choice c, const MerePlan *fixed)
{
    MerePlan p = *fixed;
    plan_terms(in, c, &p);
    return plan_fits(&p);
}

/* The largest context up to c.ctx that fits, a multiple of a page unless c.ctx itself; 0: none. */
static int largest_ctx(const LedgerInput *in, Choice c, const MerePlan *fixed)
{
    if (choice_fits(in, c, fixed))
        return c.ctx;
    const int page = in->sizes.page_tokens;
    int lo = 0;
    int hi = (c.ctx - 1) / page; /* in pages; hi + 1 does not fit */
    while (lo < hi) {
        const int mid = lo + (hi - lo + 1) / 2;
        const Choice try = {mid * page, c.slots, c.kv};
        if (choice_fits(in, try, fixed))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo * page;
}

/* What fits and is nearest to what was wanted: less context first, down to an eighth; then fewer
 * slots; then the smaller cache format, which costs precision. */
static void find_nearest(const LedgerInput *in, Choice want, MerePlan *plan)
{
    const int least = (int)i64_max(1, want.ctx / 8);
    for (int half = 0; half < 2; half++) {
        Choice c = want;
        if (half && want.kv == MERE_KV_F16)
            return;
        if (half)
            c.kv = MERE_KV_F16;
        for (; c.slots >= 1; c.slots = c.slots > 1 ? c.slots / 2 : 0) {
            const int ctx = largest_ctx(in, (Choice){want.ctx, c.slots, c.kv}, plan);
            if (ctx < least && !(half && c.slots == 1 && ctx > 0))
                continue;
            plan->nearest_ctx = ctx;
            plan->nearest_slots = c.slots;
            plan->nearest_kv = c.kv;
            return;
        }
    }
}

static uint64_t quarter_more(uint64_t need, uint64_t limit)
{
    return need <= limit ? need + (limit - need) / 4 : limit;
}

/* The context when none was asked for. A limit that the user set is used up; of what machine and
 * device have, the cache beyond CTX_PLAIN tokens takes a quarter: it is claimed whole at load, and
 * a context of 262,144 tokens would take the machine for a chat of a few hundred. */
static int default_ctx(const LedgerInput *in, Choice c, const MerePlan *fixed)
{
    MerePlan budget = *fixed;
    if (in->opt->limit_bytes == 0) {
        const Choice plain = {(int)i64_min(c.ctx, CTX_PLAIN), c.slots, c.kv};
        plan_terms(in, plain, &budget);
        budget.host_limit_bytes = quarter_more(
            budget.own_memory ? budget.host_bytes : budget.total_bytes, fixed->host_limit_bytes);
        budget.device_limit_bytes = quarter_more(budget.device_bytes, fixed->device_limit_bytes);
    }
    const int ctx = largest_ctx(in, c, &budget);
    return ctx > 0 ? ctx : c.ctx;
}

static uint64_t machine_limit(uint64_t mapped)
{
    const uint64_t have = osmem_available();
    if (have == 0)
        return UINT64_MAX / 2;
    uint64_t leave = have / LEAVE_PART;
    if (leave < LEAVE_BYTES)
        leave = LEAVE_BYTES;
    /* Mapped weights need room too, or every step reads them from the disk again. */
    leave += mapped;
    return have > leave ? have - leave : 0;
}

/* What may be used of the machine's memory and of the device's. */
static void set_limits(const LedgerInput *in, MerePlan *plan)
{
    const DeviceMemory *m = &in->memory;
    const uint64_t wish = in->opt->limit_bytes;
    /* The process's own bytes are taken already and are part of the sum. */
    const uint64_t machine = machine_limit(plan->placements[MERE_PLACE_MAP]) + in->base_bytes;
    /* What other models hold of the device is no part of this one's sum. */
    const uint64_t others =
        m->used_bytes > in->device_base_bytes ? m->used_bytes - in->device_base_bytes : 0;
    const uint64_t device = m->limit_bytes > others ? m->limit_bytes - others : 0;
    plan->own_memory = !m->shared;
    plan->host_limit_bytes = wish && m->shared ? wish : machine;
    plan->device_limit_bytes = wish && !m->shared && wish < device ? wish : device;
    plan->limit_bytes = plan->host_limit_bytes + (plan->own_memory ? plan->device_limit_bytes : 0);
}

bool ledger_make(const LedgerInput *in, Ledger *out, Error *err)
{
    const MereOptions *opt = in->opt;
    *out = (Ledger){.sizes = in->sizes, .flights = flights_of(in->ops)};
    MerePlan *plan = &out->plan;
    plan->size = sizeof *plan;
    snprintf(plan->device, sizeof plan->device, "%s", in->ops->describe(in->device));
    place_weights(in, plan);
    plan->terms[MERE_TERM_DERIVED] = (uint64_t)in->model->derived_bytes;
    plan->placements[MERE_PLACE_DERIVE] += (uint64_t)in->model->derived_bytes;
    plan->bytes_per_token = (uint64_t)in->graph->weight_bytes_per_row;
    set_limits(in, plan);
    Choice c = {.ctx = opt->ctx > 0 ? opt->ctx : in->model->max_ctx,
                .slots = in->sizes.slots,
                .kv = opt->kv != MERE_KV_AUTO     ? opt->kv
                      : in->numerics == NUM_EXACT ? MERE_KV_F32
                                                  : MERE_KV_F16};
    if (c.ctx < 1)
        return err_set(err, ERR_FORMAT, "%s: a context of %d tokens", in->model->doc, c.ctx);
    if (opt->ctx == 0)
        c.ctx = default_ctx(in, c, plan);
    plan_terms(in, c, plan);
    plan->fits = plan_fits(plan);
    if (plan->fits) {
        plan->nearest_ctx = c.ctx;
        plan->nearest_slots = c.slots;
        plan->nearest_kv = c.kv;
    } else {
        find_nearest(in, c, plan);
    }
    out->ctx = c.ctx;
    out->pool = pool_desc(in, c);
    out->share = !opt->no_prefix_cache;
    return true;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

bool ledger_refuse(const Ledger *l, const char *name, Error *err)
{
    const MerePlan *p = &l->plan;
    /* The side that is too small; of both, the device's, which holds the model. */
    const bool on_device =
        (p->own_memory || p->device_limit_bytes > 0) && p->device_bytes > p->device_limit_bytes;
    const uint64_t need = on_device       ? p->device_bytes
                          : p->own_memory ? p->host_bytes
                                          : p->total_bytes;
    const uint64_t limit = on_device ? p->device_limit_bytes : p->host_limit_bytes;
    const char *whose = on_device ? " of the device's memory" : p->own_memory ? " of memory" : "";
    if (p->nearest_ctx == 0)
        return err_set(
            err, ERR_FIT,
            "%s needs %.2f GiB%s with a context of %d and %d slots, %.2f GiB may be used; "
            "no context fits",
            name, gib(need), whose, (int)p->ctx, (int)p->slots, gib(limit));
    return err_set(err, ERR_FIT,
                   "%s needs %.2f GiB%s with a context of %d and %d slots, %.2f GiB may be used; "
                   "ctx %d, slots %d, kv %s would fit",
                   name, gib(need), whose, (int)p->ctx, (int)p->slots, gib(limit),
                   (int)p->nearest_ctx, (int)p->nearest_slots,
                   p->nearest_kv == MERE_KV_F32 ? "f32" : "f16");
}

SchedDesc ledger_sched(const Ledger *l, int vocab)
{
    const Choice c = {l->ctx, l->sizes.slots, l->plan.kv};
    return sched_part(&l->sizes, &l->pool, c, vocab, l->flights, l->share);
}
