#include "base/log.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- measuring ---- */

/* What a program needs, found by the same walk that builds it. Lives in `a`. */
typedef struct Measured {
    GpuPlan plan;
    GpuStepLayout layout;
    CudaSpans spans;
    CudaWeight *weights;
    int64_t bytes;
} Measured;

static int64_t take(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end = at + i64_round_up(bytes, CUDA_ALIGN);
    return at;
}

static int64_t vec_bytes(const GpuPlan *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->n_vecs; i++)
        sum += i64_round_up(p->vecs[i]->n * (int64_t)sizeof(float), CUDA_ALIGN);
    for (int i = 0; i < p->n_weights; i++)
        if (p->weights[i]->bias)
            sum +=
                i64_round_up(cuda_bias_floats(p->weights[i]) * (int64_t)sizeof(float), CUDA_ALIGN);
    return sum;
}

static int max_bucket(const GraphPlan *g)
{
    return gpu_bucket(g->max_rows);
}

/* Fills the offsets from the sizes that the walk found. */
static void place(Measured *m)
{
    const GraphPlan *g = m->plan.graph;
    CudaSpans *s = &m->spans;
    s->logits_bytes = (int64_t)g->max_out_rows * m->plan.values[g->out].ld * (int64_t)sizeof(float);
    s->vecs_bytes = vec_bytes(&m->plan);
    int64_t end = 0;
    s->scratch = take(&end, m->plan.scratch_bytes);
    s->logits = take(&end, s->logits_bytes);
    s->work = take(&end, s->work_bytes);
    s->packed = take(&end, s->packed_bytes);
    s->counters = take(&end, s->n_counters * (int64_t)sizeof(uint32_t));
    s->step = take(&end, m->layout.max_words * (int64_t)sizeof(int32_t));
    for (int t = 0; t < g->n_rope_tables; t++) {
        const int64_t row = g->rope_tables[t].rot_dim * (int64_t)sizeof(float);
        s->rope[t] = take(&end, max_bucket(g) * row);
        s->inv_freq[t] = take(&end, row / 2);
    }
    s->vecs = take(&end, s->vecs_bytes);
    s->sampled = take(&end, SAMPLE_SLOTS_MAX * (int64_t)sizeof(int32_t));
    s->count = take(&end, sizeof(uint32_t));
    s->end = end;
    end = 0;
    s->host_step = take(&end, CUDA_RING * (int64_t)m->layout.max_words * (int64_t)sizeof(int32_t));
    s->host_results =
        take(&end, CUDA_RING * (int64_t)m->layout.max_out * (int64_t)sizeof(SampleResult));
    s->host_done = take(&end, sizeof(uint32_t));
    s->host_end = end;
}

static bool walk_all(CudaBuild *b, Error *err)
{
    CudaBucket buckets[CUDA_BUCKETS_MAX];
    const int n = cuda_buckets(b->plan->graph->max_rows, buckets);
    for (int i = 0; i < n; i++)
        if (!cuda_build_walk(b, buckets[i].rows, buckets[i].kv_max, err))
            return false;
    return true;
}

static bool measure(Arena *a, const Device *d, const GraphPlan *graph, const KvPoolDesc *desc,
                    Measured *m, Error *err)
{
    *m = (Measured){0};
    if (!gpu_plan_make(a, graph, &m->plan, err))
        return false;
    gpu_step_layout(graph, desc, &m->layout);
    m->weights = ARENA_ARRAY(a, m->plan.n_weights + 1, CudaWeight, err);
    if (!m->weights)
        return false;
    for (int i = 0; i < m->plan.n_weights; i++) {
        m->weights[i].weight = m->plan.weights[i];
        if (!cuda_weights_plan(a, m->plan.weights[i], &m->weights[i].plan, err))
            return false;
    }
    /* Emitters only ask the device for facts; no kernel is looked up without a program. */
    Device facts = *d;
    CudaBuild b = {.dev = &facts,
                   .plan = &m->plan,
                   .desc = desc,
                   .layout = &m->layout,
                   .weights = m->weights,
                   .n_weights = m->plan.n_weights,
                   .arena = a};
    if (!walk_all(&b, err))
        return false;
    m->spans = b.need;
    place(m);
    return true;
}

/* ---- what the engine asks before it loads ---- */

static bool check_weight(const Weight *w, StrBuf *missing)
{
    const int n = w->n_segs * (w->n_experts > 0 ? w->n_experts : 1);
    bool ok = true;
    for (int s = 0; s < n; s++) {
        const RowView *seg = &w->segs[s];
        GpuPart part;
        if (!seg->columns && gpu_layout_of(seg, &part))
            continue;
        const char *name = seg->columns ? "columns ordered by activation (GPTQ's act-order)"
                                        : format_info(seg->format)->name;
        ok = false;
        /* each once */
        if (!missing->ptr || !strstr(missing->ptr, name))
            strbuf_printf(missing, "%s %s (%s)", missing->len ? "," : "", name, w->name);
    }
    return ok;
}

static bool check_op(const GpuOp *op, StrBuf *missing)
{
    const char *name = op_name(op->kind);
    if (cuda_emit_has(op->kind))
        return true;
    if (!missing->ptr || !strstr(missing->ptr, name))
        strbuf_printf(missing, "%s %s (%s)", missing->len ? "," : "", name,
                      op->name ? op->name : "");
    return false;
}

/* Operations and weight formats without kernels, all in one message. */
static bool check_kinds(const GpuPlan *plan, Error *err)
{
    StrBuf missing;
    strbuf_init(&missing, 4096);
    bool ok = true;
    for (int i = 0; i < plan->n_ops; i++)
        ok = check_op(&plan->ops[i], &missing) && ok;
    for (int i = 0; i < plan->n_weights; i++)
        ok = check_weight(plan->weights[i], &missing) && ok;
    if (!ok)
        (void)err_set(err, ERR_UNSUPPORTED, "cuda has no kernels for:%s",
                      missing.ptr ? missing.ptr : "");
    strbuf_free(&missing);
    return ok;
}

/* A cache of one page: emitters see its geometry, not its size. */
static KvPoolDesc sample_desc(const GraphPlan *g)
{
    KvPoolDesc desc = {.n_groups = g->n_kv_groups,
                       .state_floats = g->state_floats,
                       .n_states = g->state_floats > 0};
    for (int i = 0; i < g->n_kv_groups; i++) {
        desc.groups[i] = g->kv_groups[i];
        desc.page_tokens[i] = 16;
        desc.n_pages[i] = 1;
        desc.seq_pages[i] = 1;
    }
    return desc;
}

bool cuda_lower_check(const Device *d, const GraphPlan *graph, Error *err)
{
    Arena a;
    arena_init(&a, "cuda plan");
    const KvPoolDesc desc = sample_desc(graph);
    GpuPlan plan;
    Measured m;
    const bool ok = (gpu_plan_make(&a, graph, &plan, err) || err_wrap(err, "cuda")) &&
                    check_kinds(&plan, err) && measure(&a, d, graph, &desc, &m, err);
    arena_free(&a);
    return ok;
}

static int64_t staging_bytes(const GpuPlan *plan)
{
    const GraphPlan *g = plan->graph;
    return CUDA_RING * (int64_t)g->max_out_rows * plan->values[g->out].ld * (int64_t)sizeof(float);
}

void cuda_lower_need(const Device *d, const GraphPlan *graph, const KvPoolDesc *desc,
                     DeviceNeed *out)
{
    Arena a;
    arena_init(&a, "cuda plan");
    Measured m;
    Error err;
    *out = (DeviceNeed){.runtime = -1};
    if (measure(&a, d, graph, desc, &m, &err))
        *out = (DeviceNeed){.scratch = m.spans.work - m.spans.scratch,
                            .runtime = m.spans.end - m.spans.work + CUDA_DRIVER_BYTES,
                            .host = m.spans.host_end + staging_bytes(&m.plan)};
    else
        log_msg(LOG_WARN, "%s", err.msg);
    arena_free(&a);
}

/* ---- graphs ---- */

static bool capture_launch(const Device *d, const CudaRecord *r, bool programmatic, Error *err)
{
    const CudaLaunch *l = &r->launch;
    CuLaunchAttr attrs[2];
    unsigned n = 0;
    memset(attrs, 0, sizeof attrs);
    if (l->cluster > 0) {
        attrs[n].id = CU_LAUNCH_CLUSTER;
        attrs[n].value.cluster.x = (unsigned)l->cluster;
        attrs[n].value.cluster.y = 1;
        attrs[n++].value.cluster.z = 1;
    }
    if (programmatic && l->programmatic) {
        attrs[n].id = CU_LAUNCH_PROGRAMMATIC;
        attrs[n++].value.programmatic = 1;
    }
    const CuLaunchConfig c = {.grid_x = (unsigned)(l->grid[0] > 0 ? l->grid[0] : 1),
                              .grid_y = (unsigned)(l->grid[1] > 0 ? l->grid[1] : 1),
                              .grid_z = (unsigned)(l->grid[2] > 0 ? l->grid[2] : 1),
                              .block_x = (unsigned)l->block,
                              .block_y = 1,
                              .block_z = 1,
                              .smem_bytes = (unsigned)l->smem,
                              .stream = d->stream,
                              .attrs = attrs,
                              .n_attrs = n};
    /* The driver reads the parameter and does not write it. */
    void *param;
    memcpy(&param, &l->params, sizeof param);
    return cuda_api_launch(&c, r->f, &param, NULL, err) ||
           err_wrap(err, "%s (grid %d %d %d, %d threads, %d bytes of shared memory)", l->kernel,
                    l->grid[0], l->grid[1], l->grid[2], l->block, l->smem);
}

static bool capture(Device *d, const CudaBuild *b, CuGraph *graph, Error *err)
{
    *graph = NULL;
    if (!cuda_api_capture_begin(d->stream, CU_CAPTURE_THREAD, err))
        return false;
    bool ok = true;
    for (int i = 0; i < b->n_records && ok; i++)
        ok = capture_launch(d, &b->records[i], d->programmatic && i > 0, err);
    Error end;
    const bool ended = cuda_api_capture_end(d->stream, graph, &end);
    if (ok && !ended && err)
        *err = end;
    return ok && ended;
}

static bool build_bucket(Device *d, CudaBuild *b, CudaBucket *bucket, Error *err)
{
    CuGraph graph;
    const ArenaMark mark = arena_mark(b->arena);
    b->records = NULL;
    b->cap_records = 0;
    bool ok = cuda_build_walk(b, bucket->rows, bucket->kv_max, err);
    if (ok) {
        ok = capture(d, b, &graph, err) && cuda_api_exec_create(&bucket->exec, graph, 0, err);
        if (graph)
            cuda_ignore(cuda_api_graph_destroy(graph, NULL));
        if (!ok)
            bucket->exec = NULL;
    }
    bucket->n_launches = b->n_records;
    arena_rewind(b->arena, mark);
    return ok && (cuda_api_exec_upload(bucket->exec, d->stream, err) ||
                  err_wrap(err, "%d rows", bucket->rows));
}

/* Upload writes to the device, so that the first step of a bucket finds its graph there. */
static bool build_graphs(Device *d, Program *p, const DeviceWeights *w, Error *err)
{
    Arena records;
    arena_init(&records, "cuda graph");
    CudaBuild b = {.dev = d,
                   .plan = &p->plan,
                   .desc = &p->desc,
                   .layout = &p->layout,
                   .weights = w->weights,
                   .n_weights = w->n,
                   .program = p,
                   .arena = &records};
    bool ok = true;
    for (int i = 0; i < p->n_buckets && ok; i++)
        ok = build_bucket(d, &b, &p->buckets[i], err);
    const CudaSpans *s = &p->spans;
    if (ok && (b.need.work_bytes > s->work_bytes || b.need.packed_bytes > s->packed_bytes ||
               b.need.n_counters > s->n_counters))
        ok = err_set(err, ERR_FAILED, "cuda: lowering took more memory than was measured");
    arena_free(&records);
    return ok && cuda_drain(d, err);
}

/* ---- constants ---- */

static void put_floats(uint8_t *to, int64_t *at, const float *v, int64_t n)
{
    memcpy(to + *at, v, (size_t)n * sizeof(float));
    *at += i64_round_up(n * (int64_t)sizeof(float), CUDA_ALIGN);
}

/* The program's memory is cleared; vectors, biases and frequencies are copied from one page-locked
 * buffer. */
static bool fill_memory(Device *d, Program *p, uint8_t *buffer, Error *err)
{
    const CudaSpans *s = &p->spans;
    const GraphPlan *g = p->plan.graph;
    int64_t at = 0;
    for (int i = 0; i < p->plan.n_vecs; i++)
        put_floats(buffer, &at, p->plan.vecs[i]->v, p->plan.vecs[i]->n);
    for (int i = 0; i < p->plan.n_weights; i++)
        if (p->plan.weights[i]->bias)
            put_floats(buffer, &at, p->plan.weights[i]->bias, cuda_bias_floats(p->plan.weights[i]));
    if (!cuda_api_fill(p->memory, 0, (size_t)p->bytes, d->stream, err) ||
        (at > 0 &&
         !cuda_api_copy_in(p->memory + (CudaPtr)s->vecs, buffer, (size_t)at, d->stream, err)))
        return false;
    for (int t = 0; t < g->n_rope_tables; t++) {
        const RopeDesc *r = &g->rope_tables[t];
        const int64_t from = at;
        put_floats(buffer, &at, r->inv_freq, r->rot_dim / 2);
        if (!cuda_api_copy_in(p->memory + (CudaPtr)s->inv_freq[t], buffer + from,
                              (size_t)(r->rot_dim / 2) * sizeof(float), d->stream, err))
            return false;
    }
    return cuda_drain(d, err);
}

static bool upload_constants(Device *d, Program *p, Error *err)
{
    const GraphPlan *g = p->plan.graph;
    int64_t bytes = p->spans.vecs_bytes + CUDA_ALIGN;
    for (int t = 0; t < g->n_rope_tables; t++)
        bytes += i64_round_up(g->rope_tables[t].rot_dim * (int64_t)sizeof(float), CUDA_ALIGN);
    void *buffer;
    if (!cuda_take_host(d, "vectors", bytes, &buffer, err))
        return false;
    const bool ok = fill_memory(d, p, buffer, err);
    if (!ok) /* the copies may still read it */
        cuda_ignore(cuda_drain(d, NULL));
    cuda_give_host(d, buffer);
    return ok;
}

/* ---- programs ---- */

static bool take_memory(Device *d, Program *p, Error *err)
{
    void *host;
    void *staging;
    p->bytes = p->spans.end;
    if (!cuda_take(d, "scratch and tables", p->bytes, &p->memory, err) ||
        !cuda_take_host(d, "step blocks", p->spans.host_end, &host, err))
        return false;
    p->host = host;
    memset(p->host, 0, (size_t)p->spans.host_end);
    if (!cuda_api_host_address(&p->host_address, p->host, 0, err) ||
        !cuda_take_host(d, "logits", staging_bytes(&p->plan), &staging, err))
        return false;
    p->staging = staging;
    for (int i = 0; i < CUDA_RING; i++)
        if (!cuda_api_event_create(&p->steps[i].copied, CU_EVENT_NO_TIMING, err)) {
            p->steps[i].copied = NULL;
            return false;
        }
    return true;
}

static bool has_trace(void)
{
    const char *trace = getenv("MERE_TRACE");
    return trace && strstr(trace, "cuda");
}

static bool build_program(Device *d, Program *p, const GraphPlan *graph, const DeviceWeights *w,
                          const KvPoolDesc *desc, Error *err)
{
    Measured m;
    p->desc = *desc;
    if (!measure(&p->arena, d, graph, &p->desc, &m, err))
        return false;
    p->plan = m.plan;
    p->layout = m.layout;
    p->spans = m.spans;
    p->vocab = m.plan.values[graph->out].ld;
    p->trace = has_trace();
    p->pool = cuda_pool_find(d, desc);
    if (!p->pool)
        return err_set(err, ERR_DEVICE, "cuda: no pool of this program's geometry is open");
    p->pool_number = p->pool->number;
    p->n_buckets = cuda_buckets(graph->max_rows, p->buckets);
    return cuda_enter(d, err) && take_memory(d, p, err) && upload_constants(d, p, err) &&
           build_graphs(d, p, w, err);
}

bool cuda_lower(Device *d, const GraphPlan *graph, const DeviceWeights *weights,
                const KvPoolDesc *desc, Program **out, Error *err)
{
    if (graph->n_kv_groups > desc->n_groups ||
        (graph->state_floats > 0 && graph->state_floats != desc->state_floats))
        return err_set(err, ERR_DEVICE, "%s: pool of %d groups, graph of %d", graph->part,
                       desc->n_groups, graph->n_kv_groups);
    Program *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(err, "program", sizeof *p);
    arena_init(&p->arena, "cuda program");
    Error e;
    const bool ok = build_program(d, p, graph, weights, desc, &e);
    if (!cuda_leave(d, ok, &e, err)) {
        cuda_lower_close(d, p);
        return false;
    }
    *out = p;
    return true;
}

static void log_trace(const Device *d, const Program *p)
{
    for (int i = 0; i < p->n_buckets; i++) {
        const CudaBucket *b = &p->buckets[i];
        const double n = (double)(b->n_steps ? b->n_steps : 1);
        log_msg(LOG_INFO,
                "cuda:%d: %d rows, caches up to %d: %d kernels; %llu steps, of the host %.1f us "
                "each, of all %.3f ms",
                d->index, b->rows, b->kv_max, b->n_launches, (unsigned long long)b->n_steps,
                (double)b->submit_ns / n * 1e-3, (double)b->step_ns / n * 1e-6);
    }
}

void cuda_lower_close(Device *d, Program *p)
{
    if (!p)
        return;
    if (p->trace)
        log_trace(d, p);
    cuda_quiesce(d);
    for (int i = 0; i < p->n_buckets; i++)
        if (p->buckets[i].exec && !d->hung)
            cuda_ignore(cuda_api_exec_destroy(p->buckets[i].exec, NULL));
    for (int i = 0; i < CUDA_RING; i++)
        if (p->steps[i].copied && !d->hung)
            cuda_ignore(cuda_api_event_destroy(p->steps[i].copied, NULL));
    cuda_give_host(d, p->staging);
    cuda_give_host(d, p->host);
    cuda_give(d, p->memory, p->bytes);
    arena_free(&p->arena);
    mem_free(p);
}
