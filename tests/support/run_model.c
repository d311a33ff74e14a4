#include "support/run_model.h"

#include "base/clock.h"

#include <assert.h>

typedef struct RunSeq {
    int len;
    int snap_len;                  /* -1: no snapshot */
    int32_t *pages[KV_GROUPS_MAX]; /* [max_tokens / page_tokens] */
} RunSeq;

struct RunModel {
    RunOptions opt;
    Checkpoint *ck;
    Model *model;
    const GraphPlan *plan;
    const DeviceOps *dev;
    Device *device;
    DeviceWeights *weights;
    KvPool *pool;
    Program *program;
    int n_entries; /* of a page table */
    RunSeq *seqs;
    bool *used[KV_GROUPS_MAX]; /* pages */
    int n_pages;               /* of a group */
    Row *rows;
    Segment *segs;
    int32_t *out_rows;
};

enum { DEADLINE_S = 600 }; /* a software device on a busy machine is slow, not lost */

static bool open_device(RunModel *r, Error *err)
{
    const RunOptions *o = &r->opt;
    int index;
    if (!device_find(str_from(o->device ? o->device : "cpu"), &r->dev, &index, err))
        return false;
    const DeviceOps *dev = r->dev;
    const DeviceOptions d = {.index = index,
                             .threads = o->threads,
                             .level = o->level,
                             .numerics = o->numerics,
                             .deterministic = o->deterministic};
    KvPoolDesc pool = {.format = o->kv,
                       .n_groups = r->plan->n_kv_groups,
                       .state_floats = r->plan->state_floats,
                       .n_states = r->plan->state_floats ? 2 * o->n_seqs : 0};
    for (int g = 0; g < pool.n_groups; g++) {
        pool.groups[g] = r->plan->kv_groups[g];
        pool.page_tokens[g] = o->page_tokens;
        pool.n_pages[g] = r->n_pages;
        pool.seq_pages[g] = r->n_entries;
    }
    return dev->open(&d, &r->device, err) && dev->supports(r->device, r->plan, err) &&
           dev->weights_open(r->device, r->model->weights, r->model->n_weights, NULL, &r->weights,
                             err) &&
           dev->pool_open(r->device, &pool, &r->pool, err) &&
           dev->lower(r->device, r->plan, r->weights, &pool, &r->program, err);
}

static bool take_tables(Arena *a, RunModel *r, Error *err)
{
    const RunOptions *o = &r->opt;
    r->seqs = ARENA_ARRAY(a, o->n_seqs, RunSeq, err);
    r->rows = ARENA_ARRAY(a, o->max_rows, Row, err);
    r->segs = ARENA_ARRAY(a, o->n_seqs, Segment, err);
    r->out_rows = ARENA_ARRAY(a, o->max_rows, int32_t, err);
    if (!r->seqs || !r->rows || !r->segs || !r->out_rows)
        return false;
    for (int g = 0; g < r->plan->n_kv_groups; g++) {
        r->used[g] = ARENA_ARRAY(a, r->n_pages, bool, err);
        if (!r->used[g])
            return false;
        for (int s = 0; s < o->n_seqs; s++) {
            r->seqs[s].pages[g] = ARENA_ARRAY(a, r->n_entries, int32_t, err);
            if (!r->seqs[s].pages[g])
                return false;
        }
    }
    for (int s = 0; s < o->n_seqs; s++)
        run_model_reset(r, s);
    return true;
}

bool run_model_open(Arena *a, const char *path, const RunOptions *opt, RunModel **out, Error *err)
{
    RunModel *r = ARENA_NEW(a, RunModel, err);
    if (!r)
        return false;
    r->opt = *opt;
    r->n_entries = (opt->max_tokens + opt->page_tokens - 1) / opt->page_tokens;
    r->n_pages = r->n_entries * opt->n_seqs;
    const GraphLimits limits = {
        .max_rows = opt->max_rows, .max_out_rows = opt->max_rows, .max_segs = opt->n_seqs};
    if (!checkpoint_open(a, path, &r->ck, err) || !model_open(a, r->ck, &r->model, err) ||
        !model_build(r->model, a, "text", &limits, &r->plan, err) || !take_tables(a, r, err) ||
        !open_device(r, err)) {
        run_model_close(r);
        return false;
    }
    *out = r;
    return true;
}

void run_model_close(RunModel *r)
{
    if (!r)
        return;
    if (r->program)
        r->dev->program_close(r->device, r->program);
    if (r->pool)
        r->dev->pool_close(r->device, r->pool);
    if (r->weights)
        r->dev->weights_close(r->device, r->weights);
    if (r->device)
        r->dev->close(r->device);
    checkpoint_close(r->ck);
}

const Model *run_model_get(const RunModel *r)
{
    return r->model;
}

const GraphPlan *run_model_plan(const RunModel *r)
{
    return r->plan;
}

int run_model_len(const RunModel *r, int seq)
{
    return r->seqs[seq].len;
}

static void give_back(RunModel *r, int g, int32_t *page)
{
    if (*page >= 0)
        r->used[g][*page] = false;
    *page = -1;
}

void run_model_reset(RunModel *r, int seq)
{
    RunSeq *s = &r->seqs[seq];
    for (int g = 0; g < r->plan->n_kv_groups; g++)
        for (int i = 0; i < r->n_entries; i++) {
            if (s->len > 0) /* else a fresh table of zeros */
                give_back(r, g, &s->pages[g][i]);
            s->pages[g][i] = -1;
        }
    s->len = 0;
    s->snap_len = -1;
}

static int snap_slot(const RunModel *r, int seq)
{
    return r->opt.n_seqs + seq;
}

void run_model_snapshot(RunModel *r, int seq)
{
    r->seqs[seq].snap_len = r->seqs[seq].len;
    if (r->plan->state_floats)
        r->dev->state_copy(r->device, r->pool, seq, snap_slot(r, seq));
}

void run_model_drop(RunModel *r, int seq)
{
    RunSeq *s = &r->seqs[seq];
    assert(s->snap_len >= 0);
    if (r->plan->state_floats)
        r->dev->state_copy(r->device, r->pool, snap_slot(r, seq), seq);
    const int keep = (s->snap_len + r->opt.page_tokens - 1) / r->opt.page_tokens;
    for (int g = 0; g < r->plan->n_kv_groups; g++)
        for (int i = keep; i < r->n_entries; i++)
            give_back(r, g, &s->pages[g][i]);
    s->len = s->snap_len;
}

int run_model_pages_in_use(const RunModel *r, int group)
{
    int n = 0;
    for (int i = 0; i < r->n_pages; i++)
        n += r->used[group][i];
    return n;
}

/* The highest free page first, so that tables are never the identity. */
static int32_t take_page(RunModel *r, int g)
{
    for (int32_t p = r->n_pages - 1; p >= 0; p--)
        if (!r->used[g][p]) {
            r->used[g][p] = true;
            return p;
        }
    return -1; /* not reached: there are pages for max_tokens of every sequence */
}

/* Gives back pages whose last key no query from here on (or from the snapshot on) can see. */
static void pass_window(RunModel *r, RunSeq *s)
{
    for (int g = 0; g < r->plan->n_kv_groups; g++) {
        const int window = r->plan->kv_groups[g].window;
        const int from = s->snap_len >= 0 && s->snap_len < s->len ? s->snap_len : s->len;
        for (int i = 0; window && (i + 1) * r->opt.page_tokens <= from + 1 - window; i++)
            give_back(r, g, &s->pages[g][i]);
    }
}

bool run_model_step(RunModel *r, const RunPart *parts, int n_parts, float *logits, Error *err)
{
    StepBlock step = {.n_segs = n_parts,
                      .rows = r->rows,
                      .segs = r->segs,
                      .out_rows = r->out_rows,
                      .logits = logits};
    for (int p = 0; p < n_parts; p++) {
        const RunPart *part = &parts[p];
        RunSeq *s = &r->seqs[part->seq];
        assert(s->len + part->n <= r->opt.max_tokens && step.n_rows + part->n <= r->opt.max_rows);
        pass_window(r, s);
        Segment *seg = &r->segs[p];
        *seg = (Segment){.row0 = step.n_rows,
                         .n_rows = part->n,
                         .kv_len = s->len + part->n,
                         .state_in = s->len ? part->seq : -1,
                         .state_out = part->seq};
        for (int g = 0; g < r->plan->n_kv_groups; g++) {
            for (int i = s->len / r->opt.page_tokens; i * r->opt.page_tokens < seg->kv_len; i++)
                if (s->pages[g][i] < 0)
                    s->pages[g][i] = take_page(r, g);
            seg->pages[g] = s->pages[g];
        }
        for (int i = 0; i < part->n; i++, step.n_rows++) {
            r->rows[step.n_rows] = (Row){.token = part->tokens[i], .pos = s->len + i};
            if (!part->last_only || i == part->n - 1)
                r->out_rows[step.n_out++] = step.n_rows;
        }
        s->len += part->n;
    }
    uint64_t ticket;
    return r->dev->submit(r->device, r->program, r->pool, &step, &ticket, err) &&
           r->dev->wait(r->device, r->program, ticket,
                        clock_ns() + (uint64_t)DEADLINE_S * 1000000000U, err);
}
