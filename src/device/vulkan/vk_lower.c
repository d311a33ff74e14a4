#include "device/vulkan/vk.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { ALIGN = 256, LINE = 128 };

/* ---- layout ---- */

static int64_t take(int64_t *at, int64_t bytes)
{
    const int64_t from = *at;
    *at = i64_round_up(from + i64_max(bytes, 0), ALIGN);
    return from;
}

static int64_t bias_floats(const Weight *w)
{
    return w->bias ? w->n * (w->n_experts > 0 ? w->n_experts : 1) : 0;
}

static bool lay_tables(Arena *a, const GpuPlan *plan, int64_t *at, VkLayout *l, Error *err)
{
    l->tables = *at;
    l->vecs = ARENA_ARRAY(a, plan->n_vecs + 1, int64_t, err);
    l->biases = ARENA_ARRAY(a, plan->n_weights + 1, int64_t, err);
    if (!l->vecs || !l->biases)
        return false;
    for (int i = 0; i < plan->n_vecs; i++)
        l->vecs[i] = take(at, plan->vecs[i]->n * (int64_t)sizeof(float));
    for (int i = 0; i < plan->n_weights; i++) {
        const int64_t n = bias_floats(plan->weights[i]);
        l->biases[i] = n > 0 ? take(at, n * (int64_t)sizeof(float)) : -1;
    }
    for (int t = 0; t < plan->graph->n_rope_tables; t++)
        l->turns[t] = take(at, plan->graph->rope_tables[t].rot_dim / 2 * (int64_t)sizeof(uint64_t));
    l->table_bytes = *at - l->tables;
    return true;
}

static bool lay_out(Arena *a, const GpuPlan *plan, VkLayout *l, Error *err)
{
    const GraphPlan *g = plan->graph;
    const int64_t words = l->step.max_words * (int64_t)sizeof(int32_t);
    const int64_t logits = l->step.max_out * (int64_t)l->vocab * (int64_t)sizeof(float);
    int64_t at = 0;
    l->step_words = take(&at, words);
    l->step_count = take(&at, sizeof(uint32_t));
    l->sampled = take(&at, SAMPLE_SLOTS_MAX * (int64_t)sizeof(int32_t));
    l->logits = take(&at, logits);
    l->counters = take(&at, l->n_counters * (int64_t)sizeof(uint32_t));
    l->work = take(&at, l->work_bytes);
    l->packed = take(&at, l->packed_bytes);
    for (int t = 0; t < g->n_rope_tables; t++)
        l->rope[t] = take(&at, (int64_t)l->step.max_rows * g->rope_tables[t].rot_dim *
                                   (int64_t)sizeof(float));
    if (!lay_tables(a, plan, &at, l, err))
        return false;
    l->runtime_bytes = at;
    /* What crosses lies on lines of its own. */
    l->step_stride = i64_round_up(words, LINE);
    l->upload_bytes = VK_RING * l->step_stride;
    l->results_stride = i64_round_up(l->step.max_out * (int64_t)sizeof(SampleResult), LINE);
    l->logits_host = i64_round_up(VK_RING * l->results_stride, ALIGN);
    l->logits_stride = i64_round_up(logits, ALIGN);
    l->readback_bytes = l->logits_host + VK_RING * l->logits_stride;
    return true;
}

/* ---- measuring ---- */

/* Walks over all buckets and adds up; pipelines are made when `prepare`. */
static bool measure(const Device *facts, Device *prepare, Arena *a, const GpuPlan *plan,
                    const KvPoolDesc *kv, VkLayout *l, Error *err)
{
    int rows[GPU_BUCKETS_MAX];
    const int n = gpu_buckets(plan->graph->max_rows, rows);
    *l = (VkLayout){.vocab = plan->values[plan->graph->out].width};
    gpu_step_layout(plan->graph, kv, &l->step);
    VkBuild b = {.facts = facts,
                 .d = prepare,
                 .walk = prepare ? VK_WALK_PREPARE : VK_WALK_MEASURE,
                 .plan = plan,
                 .kv = kv,
                 .layout = l,
                 .arena = a};
    b.gpu = ARENA_ARRAY(a, plan->n_weights + 1, const GpuWeight *, err);
    if (!b.gpu)
        return false;
    for (int i = 0; i < n; i++) {
        b.rows = rows[i];
        if (!vk_build_walk(&b, err))
            return false;
        l->work_bytes = i64_max(l->work_bytes, b.work_most);
        l->packed_bytes = i64_max(l->packed_bytes, b.packed_most);
        l->n_counters = i64_max(l->n_counters, b.n_counters);
    }
    return lay_out(a, plan, l, err);
}

/* Smallest pages that there can be, where no pool is known yet. */
static KvPoolDesc any_pool(const GraphPlan *g)
{
    KvPoolDesc kv = {.n_groups = g->n_kv_groups,
                     .state_floats = g->state_floats,
                     .n_states = g->state_floats > 0};
    for (int i = 0; i < g->n_kv_groups; i++) {
        kv.groups[i] = g->kv_groups[i];
        kv.page_tokens[i] = 16;
        kv.n_pages[i] = kv.seq_pages[i] = 1;
    }
    return kv;
}

bool vk_lower_supports(const Device *d, const GraphPlan *g, Error *err)
{
    Arena a;
    arena_init(&a, "vulkan supports");
    const KvPoolDesc kv = any_pool(g);
    GpuPlan plan;
    VkLayout l;
    const bool ok = gpu_plan_make(&a, g, &plan, err) && measure(d, NULL, &a, &plan, &kv, &l, err);
    arena_free(&a);
    return ok || err_wrap(err, "vulkan");
}

void vk_lower_need(const Device *d, const GraphPlan *g, const KvPoolDesc *kv, DeviceNeed *out)
{
    Arena a;
    arena_init(&a, "vulkan need");
    GpuPlan plan;
    VkLayout l;
    *out = (DeviceNeed){0};
    /* What cannot be planned is refused by `supports` and `lower`, with the reason. */
    if (gpu_plan_make(&a, g, &plan, NULL) && measure(d, NULL, &a, &plan, kv, &l, NULL)) {
        const int64_t host =
            i64_round_up(l.upload_bytes, ALIGN) + i64_round_up(l.readback_bytes, ALIGN);
        out->scratch = i64_round_up(plan.scratch_bytes, ALIGN);
        out->runtime = l.runtime_bytes + (d->facts.shared ? host : 0);
        out->host = d->facts.shared ? 0 : host;
    }
    arena_free(&a);
}

/* ---- programs ---- */

static bool upload_floats(VkUpload *u, const VkBlock *to, int64_t offset, const float *from,
                          int64_t n, Error *err)
{
    const int64_t most = u->half_bytes / (int64_t)sizeof(float);
    for (int64_t i = 0; i < n; i += most) {
        const int64_t take_n = i64_min(most, n - i);
        VkUploadPiece piece = {to, offset + i * (int64_t)sizeof(float),
                               take_n * (int64_t)sizeof(float), NULL};
        if (!vk_upload_begin(u, &piece, 1, err))
            return false;
        memcpy(piece.at, from + i, (size_t)piece.bytes);
        if (!vk_upload_end(u, &piece, 1, err))
            return false;
    }
    return true;
}

/* Frequencies of a rope table as turns per position, 64-bit fixed point (rope_table.comp). */
static bool upload_turns(VkUpload *u, const Program *p, int table, Error *err)
{
    const RopeDesc *r = &p->plan.graph->rope_tables[table];
    const int n = r->rot_dim / 2;
    VkUploadPiece piece = {&p->runtime, p->layout.turns[table], n * (int64_t)sizeof(uint64_t),
                           NULL};
    if (!vk_upload_begin(u, &piece, 1, err))
        return false;
    for (int i = 0; i < n; i++) {
        const double turns = (double)r->inv_freq[i] / (2 * 3.14159265358979323846);
        const uint64_t t = (uint64_t)ldexp(turns - floor(turns), 64);
        memcpy(piece.at + (size_t)i * sizeof t, &t, sizeof t);
    }
    return vk_upload_end(u, &piece, 1, err);
}

static bool upload_tables(Device *d, const Program *p, Error *err)
{
    const VkLayout *l = &p->layout;
    const GpuPlan *plan = &p->plan;
    VkUpload u;
    /* At least a table of 16,384 frequencies. */
    if (!vk_upload_open(d, i64_min(i64_max(l->table_bytes, 128 << 10), 4 << 20), &u, err))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < plan->n_vecs; i++)
        ok = upload_floats(&u, &p->runtime, l->vecs[i], plan->vecs[i]->v, plan->vecs[i]->n, err);
    for (int i = 0; ok && i < plan->n_weights; i++)
        ok = upload_floats(&u, &p->runtime, l->biases[i], plan->weights[i]->bias,
                           bias_floats(plan->weights[i]), err);
    for (int t = 0; ok && t < plan->graph->n_rope_tables; t++) {
        ok = upload_turns(&u, p, t, err);
    }
    return vk_upload_close(&u, ok ? err : NULL) && ok;
}

static bool open_blocks(Device *d, Program *p, Error *err)
{
    const VkLayout *l = &p->layout;
    return vk_block_open(d, VK_USE_DEVICE, p->plan.scratch_bytes, "scratch", &p->scratch, err) &&
           vk_block_open(d, VK_USE_DEVICE, l->runtime_bytes, "runtime", &p->runtime, err) &&
           vk_block_open(d, VK_USE_UPLOAD, l->upload_bytes, "step blocks", &p->upload, err) &&
           vk_block_open(d, VK_USE_READBACK, l->readback_bytes, "results", &p->readback, err) &&
           vk_block_zero(d, (const VkBlock[]){p->scratch, p->runtime}, 2, err);
}

static bool open_commands(Device *d, Program *p, Error *err)
{
    int rows[GPU_BUCKETS_MAX];
    p->n_buckets = gpu_buckets(p->plan.graph->max_rows, rows);
    for (int i = 0; i < p->n_buckets; i++) {
        p->buckets[i].rows = rows[i];
        p->buckets[i].cmds = ARENA_ARRAY(&p->arena, VK_PARTS_MAX, VkCommandBuffer, err);
        if (!p->buckets[i].cmds)
            return false;
    }
    for (int i = 0; i < VK_RING; i++)
        if (!vk_device_commands(d, 1, &p->ring[i].before, err) ||
            !vk_device_commands(d, 1, &p->ring[i].after, err))
            return false;
    return true;
}

static bool same_pool(const KvPoolDesc *a, const KvPoolDesc *b)
{
    bool same = a->format == b->format && a->n_groups == b->n_groups &&
                a->state_floats == b->state_floats && a->n_states == b->n_states;
    for (int g = 0; same && g < a->n_groups; g++)
        same = memcmp(&a->groups[g], &b->groups[g], sizeof a->groups[g]) == 0 &&
               a->page_tokens[g] == b->page_tokens[g] && a->n_pages[g] == b->n_pages[g] &&
               a->seq_pages[g] == b->seq_pages[g];
    return same;
}

/* The pool that the program will most likely run with: recorded for it now, the first step is as
 * quick as the others. */
static bool record_likely(Device *d, Program *p, Error *err)
{
    for (const KvPool *pool = d->pools; pool; pool = pool->next)
        if (same_pool(&pool->desc, &p->kv))
            return vk_lower_record(d, p, pool, err);
    return true;
}

bool vk_lower_open(Device *d, const GraphPlan *g, const DeviceWeights *w, const KvPoolDesc *kv,
                   Program **out, Error *err)
{
    Program *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(err, "vulkan program", sizeof *p);
    arena_init(&p->arena, "vulkan program");
    p->kv = *kv;
    p->weights = w;
    if (!gpu_plan_make(&p->arena, g, &p->plan, err) ||
        !measure(d, d, &p->arena, &p->plan, kv, &p->layout, err) || !open_blocks(d, p, err) ||
        !upload_tables(d, p, err) || !open_commands(d, p, err) || !record_likely(d, p, err)) {
        vk_lower_close(d, p);
        return false;
    }
    *out = p;
    return true;
}

bool vk_lower_record(Device *d, Program *p, const KvPool *pool, Error *err)
{
    VkBuild b = {.facts = d,
                 .d = d,
                 .walk = VK_WALK_RECORD,
                 .plan = &p->plan,
                 .kv = &p->kv,
                 .layout = &p->layout,
                 .program = p,
                 .pool = pool};
    p->pool_serial = 0;
    for (int i = 0; i < p->n_buckets; i++) {
        b.bucket = &p->buckets[i];
        b.rows = p->buckets[i].rows;
        if (!vk_build_walk(&b, err))
            return false;
    }
    p->pool_serial = pool->serial;
    return true;
}

static void free_commands(Device *d, VkCommandBuffer *cmds, int n)
{
    if (cmds && n > 0 && cmds[0])
        d->root.api.FreeCommandBuffers(d->device, d->commands, (uint32_t)n, cmds);
}

void vk_lower_close(Device *d, Program *p)
{
    if (!p)
        return;
    /* Steps that were not waited for may still run. */
    if (vk_device_idle(d)) {
        for (int i = 0; i < p->n_buckets; i++)
            free_commands(d, p->buckets[i].cmds, p->buckets[i].n_made);
        for (int i = 0; i < VK_RING; i++) {
            free_commands(d, &p->ring[i].before, 1);
            free_commands(d, &p->ring[i].after, 1);
        }
    }
    vk_block_close(d, &p->scratch);
    vk_block_close(d, &p->runtime);
    vk_block_close(d, &p->upload);
    vk_block_close(d, &p->readback);
    arena_free(&p->arena);
    mem_free(p);
}
