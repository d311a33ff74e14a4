#include "engine/load.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/info.h"
#include "weights/hub.h"

_Static_assert((int)MERE_PLACE_COUNT == (int)PLACE_COUNT && (int)MERE_PLACE_DERIVE == PLACE_DERIVE,
               "placements of mere.h are those of the devices");

/* ---- headers ---- */

static bool find_path(Arena *a, MereStr name, const char **path, Error *err)
{
    if (!name.ptr || name.len == 0 || memchr(name.ptr, '\0', name.len))
        return err_set(err, ERR_USAGE, "no model was named");
    const char *own = arena_strdup(a, name.ptr, name.len, err);
    HubRoots roots;
    return own && hub_roots(a, &roots, err) && hub_resolve(a, &roots, own, path, err);
}

/* Bytes that the tokenizer and the template will take. */
static uint64_t text_bytes(int vocab)
{
    enum { TEMPLATE = 1 << 19 };
    return tokenizer_bytes_for(vocab) + TEMPLATE;
}

static void look(void *engine)
{
    engine_look(engine);
}

/* What a device lacks is told whole; the way out with it. */
static bool check_device(MereEngine *e, const GraphPlan *graph, Error *err)
{
    Error own;
    if (e->ops->supports(e->device, graph, &own))
        return true;
    if (strcmp(e->device_id, "cpu") == 0)
        return err_set(err, own.code, "%s", own.msg);
    return err_set(err, own.code, "%s cannot run this model (--device cpu may): %.150s",
                   e->device_id, own.msg);
}

static bool plan_model(MereEngine *e, const MereOptions *opt, LoadHeaders *h, Error *err)
{
    LedgerInput in = {.ops = e->ops,
                      .device = e->device,
                      .numerics = e->numerics,
                      .model = h->model,
                      .opt = opt,
                      .base_bytes = e->base_bytes,
                      .device_base_bytes = e->device_base_bytes};
    if (!model_needs(h->model, PIPELINE_DECODE, err) ||
        !ledger_sizes(opt, h->model->max_ctx, h->model->vocab, &in.sizes, err) ||
        !model_build(h->model, &h->arena, "text", &in.sizes.limits, &h->graph, err) ||
        !check_device(e, h->graph, err))
        return false;
    if (!engine_call(e, look, e))
        return err_set(err, ERR_USAGE, "the engine was closed");
    engine_memory(e, &in.memory, NULL);
    in.graph = h->graph;
    in.text_bytes = text_bytes(h->model->vocab);
    /* The derived vectors lie in the same arena and have a term of their own. */
    const uint64_t held = arena_bytes(&h->arena);
    const uint64_t derived = (uint64_t)h->model->derived_bytes;
    in.head_bytes = held > derived ? held - derived : 0;
    return ledger_make(&in, &h->ledger, err);
}

bool load_headers(MereEngine *engine, MereStr name, const MereOptions *opt, LoadHeaders *out,
                  Error *err)
{
    *out = (LoadHeaders){0};
    arena_init(&out->arena, "model");
    if (find_path(&out->arena, name, &out->path, err) &&
        checkpoint_open(&out->arena, out->path, &out->ck, err) &&
        model_open(&out->arena, out->ck, &out->model, err) &&
        (!engine || plan_model(engine, opt, out, err)))
        return true;
    load_headers_free(out);
    return false;
}

void load_headers_free(LoadHeaders *h)
{
    checkpoint_close(h->ck);
    arena_free(&h->arena);
    *h = (LoadHeaders){0};
}

/* ---- text ---- */

/* A template that cannot be had is no reason not to load: chat_error tells who asks for it. */
static bool open_chat(MereModel *m, Error *err)
{
    Arena scratch;
    arena_init(&scratch, "chat template");
    const Checkpoint *ck = m->h.ck;
    ChatSource source = {.doc = checkpoint_path(ck), .tokenizer = m->tokenizer};
    bool ok = checkpoint_is_gguf(ck) ||
              (checkpoint_side_file(ck, &scratch, "chat_template.jinja", &source.jinja, err) &&
               checkpoint_side_file(ck, &scratch, "tokenizer_config.json", &source.tokenizer_config,
                                    err));
    ok = ok &&
         (source.jinja.ptr || checkpoint_chat_template(ck, &scratch, NULL, &source.jinja, err));
    if (ok && !chat_open(&m->h.arena, &source, &m->chat, &m->chat_error)) {
        m->chat = NULL;
        ok = m->chat_error.code != ERR_NOMEM;
        if (!ok)
            *err = m->chat_error;
    }
    arena_free(&scratch);
    return ok;
}

/* ---- the device's part, on the engine's thread ---- */

static Str text_of(const void *ctx, int32_t id)
{
    const Tokenizer *t = ctx;
    return !t || tokenizer_is_special(t, id) ? (Str){"", 0} : tokenizer_piece(t, id);
}

static Str piece_of(const void *ctx, int32_t id)
{
    return ctx ? tokenizer_piece(ctx, id) : (Str){"", 0};
}

static Str model_text(const void *ctx, int32_t id)
{
    return text_of(((const MereModel *)ctx)->tokenizer, id);
}

static Str model_piece(const void *ctx, int32_t id)
{
    return piece_of(((const MereModel *)ctx)->tokenizer, id);
}

static bool model_broken(const void *ctx)
{
    return checkpoint_broken(((const MereModel *)ctx)->h.ck);
}

static void release(EngineModel *attached)
{
    MereModel *m = (MereModel *)(void *)attached;
    const DeviceOps *ops = m->engine->ops;
    sched_close(m->attached.sched);
    m->attached.sched = NULL;
    if (m->program)
        ops->program_close(m->engine->device, m->program);
    if (m->pool)
        ops->pool_close(m->engine->device, m->pool);
    if (m->weights)
        ops->weights_close(m->engine->device, m->weights);
    m->program = NULL;
    m->pool = NULL;
    m->weights = NULL;
}

typedef struct DeviceJob {
    MereModel *m;
    const MereOptions *opt;
    bool ok;
    Error err;
    /* From the engine's thread to the caller's, which has the callback; and back. */
    atomic_uint_fast64_t done_bytes, total_bytes;
    atomic_bool stop;
    bool cancel; /* `stop` as the device sees it: on its own thread */
} DeviceJob;

static void on_progress(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    DeviceJob *job = ctx;
    atomic_store_explicit(&job->done_bytes, done_bytes, memory_order_relaxed);
    atomic_store_explicit(&job->total_bytes, total_bytes, memory_order_relaxed);
    job->cancel = atomic_load_explicit(&job->stop, memory_order_relaxed);
}

static void tell_progress(void *ctx)
{
    DeviceJob *job = ctx;
    const uint64_t total = atomic_load_explicit(&job->total_bytes, memory_order_relaxed);
    const uint64_t done = atomic_load_explicit(&job->done_bytes, memory_order_relaxed);
    if (total > 0 && !job->opt->progress(job->opt->progress_ctx, done, total))
        atomic_store_explicit(&job->stop, true, memory_order_relaxed);
}

static void take_device(void *arg)
{
    DeviceJob *job = arg;
    MereModel *m = job->m;
    MereEngine *e = m->engine;
    const Ledger *l = &m->h.ledger;
    SchedDesc d = ledger_sched(l, m->h.model->vocab);
    const Model *model = m->h.model;
    const LoadProgress progress = {on_progress, job, &job->cancel};
    if (!e->ops->weights_open(e->device, model->weights, model->n_weights, &progress, &m->weights,
                              &job->err) ||
        !e->ops->pool_open(e->device, &l->pool, &m->pool, &job->err) ||
        !e->ops->lower(e->device, m->h.graph, m->weights, &l->pool, &m->program, &job->err)) {
        release(&m->attached);
        return;
    }
    d.kv.ops = e->ops;
    d.kv.device = e->device;
    d.kv.pool = m->pool;
    d.program = m->program;
    d.events = &e->events;
    d.eos = m->info.eos_ids;
    d.n_eos = m->info.n_eos;
    d.text = model_text;
    d.piece = model_piece;
    d.broken = model_broken;
    d.ctx = m;
    if (!sched_open(&m->h.arena, &d, &m->attached.sched, &job->err)) {
        m->attached.sched = NULL;
        release(&m->attached);
        return;
    }
    m->attached.release = release;
    engine_attach(e, &m->attached);
    engine_look(e);
    job->ok = true;
}

static void leave_device(void *arg)
{
    MereModel *m = arg;
    if (!m->attached.sched)
        return;
    engine_detach(m->engine, &m->attached);
    release(&m->attached);
    engine_look(m->engine);
}

/* ---- open and close ---- */

static bool open_parts(MereModel *m, const MereOptions *opt, Error *err)
{
    const LoadHeaders *h = &m->h;
    if (!h->ledger.plan.fits)
        return ledger_refuse(&h->ledger, h->path, err);
    if (!load_tokenizer(h->ck, &m->h.arena, &m->tokenizer, err) || !open_chat(m, err) ||
        !info_fill(&m->h.arena, h->model, m->tokenizer, &m->info, err))
        return false;
    m->info.ctx = h->ledger.ctx;
    m->info.slots = h->ledger.sizes.slots;
    m->limits = (RequestLimits){
        .vocab = h->model->vocab, .ctx = h->ledger.ctx, .echo_rows = h->ledger.sizes.echo_rows};
    DeviceJob job = {.m = m, .opt = opt};
    if (!engine_call_ticking(m->engine, take_device, &job, opt->progress ? tell_progress : NULL,
                             &job))
        return err_set(err, ERR_USAGE, "the engine was closed");
    if (!job.ok && err)
        *err = job.err;
    return job.ok;
}

bool load_open(MereEngine *e, MereStr name, const MereOptions *opt, MereModel **out, Error *err)
{
    const double start = clock_ms();
    MereModel *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_nomem(err, "model", sizeof *m);
    atomic_init(&m->refs, 1);
    m->engine = e;
    engine_ref(e);
    if (!load_headers(e, name, opt, &m->h, err) || !open_parts(m, opt, err)) {
        load_close(m);
        return false;
    }
    m->info.load_ms = clock_ms() - start;
    (void)engine_anon_bytes(e);
    *out = m;
    return true;
}

void load_close(MereModel *m)
{
    if (m->attached.sched)
        (void)engine_call(m->engine, leave_device, m); /* a closed engine has done it already */
    tokenizer_close(m->tokenizer);
    load_headers_free(&m->h);
    engine_unref(m->engine);
    mem_free(m);
}
