#include "support/run_parts.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

enum { PARTS_MAX = 4, DEADLINE_S = 60 };

struct RunParts {
    RunOptions opt;
    Checkpoint *ck;
    Model *model;
    int n_parts;
    const GraphPlan *plans[PARTS_MAX];
    Program *programs[PARTS_MAX];
    const DeviceOps *dev;
    Device *device;
    DeviceWeights *weights;
    KvPoolDesc desc;
    KvPool *pool;
    int32_t *pages; /* [n_seqs][entries] */
    int n_entries;  /* of a page table */
    Row *rows;
    Segment *segs;
    int32_t *out_rows;
};

static bool build(Arena *a, RunParts *r, Error *err)
{
    const RunOptions *o = &r->opt;
    const GraphLimits limits = {
        .max_rows = o->max_rows, .max_out_rows = o->max_rows, .max_segs = o->n_seqs};
    for (const ModelPart *p = r->model->family->parts; p->name; p++, r->n_parts++) {
        if (r->n_parts == PARTS_MAX)
            return err_set(err, ERR_UNSUPPORTED, "more than %d parts", PARTS_MAX);
        if (!model_build(r->model, a, p->name, &limits, &r->plans[r->n_parts], err))
            return false;
    }
    return true;
}

/* The pool has the longest list of groups. */
static void describe_pool(RunParts *r)
{
    const GraphPlan *longest = r->plans[0];
    for (int i = 1; i < r->n_parts; i++)
        if (r->plans[i]->n_kv_groups > longest->n_kv_groups)
            longest = r->plans[i];
    r->desc = (KvPoolDesc){.format = r->opt.kv, .n_groups = longest->n_kv_groups};
    for (int g = 0; g < longest->n_kv_groups; g++) {
        r->desc.groups[g] = longest->kv_groups[g];
        r->desc.page_tokens[g] = r->opt.page_tokens;
        r->desc.n_pages[g] = r->n_entries * r->opt.n_seqs;
        r->desc.seq_pages[g] = r->n_entries;
    }
}

static bool open_device(RunParts *r, Error *err)
{
    const RunOptions *o = &r->opt;
    const DeviceOptions d = {.threads = o->threads,
                             .level = o->level,
                             .numerics = o->numerics,
                             .deterministic = o->deterministic};
    DeviceOptions at = d;
    if (!device_find(str_from(o->device ? o->device : "cpu"), &r->dev, &at.index, err) ||
        !r->dev->open(&at, &r->device, err))
        return false;
    const DeviceOps *dev = r->dev;
    for (int i = 0; i < r->n_parts; i++)
        if (!dev->supports(r->device, r->plans[i], err))
            return false;
    if (!dev->weights_open(r->device, r->model->weights, r->model->n_weights, NULL, &r->weights,
                           err) ||
        !dev->pool_open(r->device, &r->desc, &r->pool, err))
        return false;
    for (int i = 0; i < r->n_parts; i++)
        if (!dev->lower(r->device, r->plans[i], r->weights, &r->desc, &r->programs[i], err))
            return false;
    return true;
}

/* Pages from the last one down, so that tables are never the identity. */
static bool take_tables(Arena *a, RunParts *r, Error *err)
{
    const RunOptions *o = &r->opt;
    const int n_pages = r->n_entries * o->n_seqs;
    r->pages = ARENA_ARRAY(a, n_pages, int32_t, err);
    r->rows = ARENA_ARRAY(a, o->max_rows, Row, err);
    r->segs = ARENA_ARRAY(a, o->n_seqs, Segment, err);
    r->out_rows = ARENA_ARRAY(a, o->max_rows, int32_t, err);
    if (!r->pages || !r->rows || !r->segs || !r->out_rows)
        return false;
    for (int i = 0; i < n_pages; i++)
        r->pages[i] = n_pages - 1 - i;
    return true;
}

bool run_parts_open(Arena *a, const char *path, const RunOptions *opt, RunParts **out, Error *err)
{
    RunParts *r = ARENA_NEW(a, RunParts, err);
    if (!r)
        return false;
    r->opt = *opt;
    r->n_entries = (opt->max_tokens + opt->page_tokens - 1) / opt->page_tokens;
    bool ok = checkpoint_open(a, path, &r->ck, err) && model_open(a, r->ck, &r->model, err) &&
              build(a, r, err) && take_tables(a, r, err);
    if (ok) {
        describe_pool(r);
        ok = open_device(r, err);
    }
    if (!ok) {
        run_parts_close(r);
        return false;
    }
    *out = r;
    return true;
}

void run_parts_close(RunParts *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_parts; i++)
        if (r->programs[i])
            r->dev->program_close(r->device, r->programs[i]);
    if (r->pool)
        r->dev->pool_close(r->device, r->pool);
    if (r->weights)
        r->dev->weights_close(r->device, r->weights);
    if (r->device)
        r->dev->close(r->device);
    checkpoint_close(r->ck);
}

const Model *run_parts_model(const RunParts *r)
{
    return r->model;
}

static int part_index(const RunParts *r, const char *part)
{
    for (int i = 0; i < r->n_parts; i++)
        if (strcmp(r->plans[i]->part, part) == 0)
            return i;
    return -1;
}

const GraphPlan *run_parts_plan(const RunParts *r, const char *part)
{
    const int i = part_index(r, part);
    return i < 0 ? NULL : r->plans[i];
}

bool run_parts_step(RunParts *r, const char *part, const RunRows *rows, int n_segs,
                    const StepInput *inputs, int n_inputs, const int32_t *pos, float *out,
                    Error *err)
{
    const int at = part_index(r, part);
    if (at < 0)
        return err_set(err, ERR_USAGE, "no part \"%s\"", part);
    const GraphPlan *plan = r->plans[at];
    StepBlock step = {.n_segs = n_segs,
                      .rows = r->rows,
                      .segs = r->segs,
                      .out_rows = r->out_rows,
                      .logits = out,
                      .inputs = inputs,
                      .n_inputs = n_inputs,
                      .pos = pos};
    for (int s = 0; s < n_segs; s++) {
        const RunRows *part_rows = &rows[s];
        assert(step.n_rows + part_rows->n <= r->opt.max_rows);
        assert(part_rows->from + part_rows->n <= r->opt.max_tokens);
        Segment *seg = &r->segs[s];
        *seg = (Segment){.row0 = step.n_rows,
                         .n_rows = part_rows->n,
                         .kv_len = part_rows->from + part_rows->n,
                         .state_in = -1};
        for (int g = 0; g < plan->n_kv_groups; g++) {
            seg->pages[g] = r->pages + (int64_t)part_rows->seq * r->n_entries;
            seg->fixed_len[g] = part_rows->fixed_len;
        }
        for (int i = 0; i < part_rows->n; i++, step.n_rows++) {
            r->rows[step.n_rows] = (Row){.token = part_rows->tokens ? part_rows->tokens[i] : 0,
                                         .pos = part_rows->from + i};
            if (i % plan->merge == 0)
                r->out_rows[step.n_out++] = step.n_rows;
        }
    }
    uint64_t ticket;
    return r->dev->submit(r->device, r->programs[at], r->pool, &step, &ticket, err) &&
           r->dev->wait(r->device, r->programs[at], ticket,
                        clock_ns() + (uint64_t)DEADLINE_S * 1000000000U, err);
}
