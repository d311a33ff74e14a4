/* The functions of mere.h: arguments checked and copied, errors put into their public form. */
#include "mere.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/bench.h"
#include "engine/devices.h"
#include "engine/info.h"
#include "engine/load.h"

#include <stdio.h>

_Static_assert((int)MERE_ERR_CANCELLED == (int)ERR_CANCELLED && (int)MERE_OK == (int)ERR_NONE &&
                   (int)MERE_ERR_FIT == (int)ERR_FIT && (int)MERE_ERR_LOST == (int)ERR_LOST &&
                   (int)ERR_COUNT == (int)MERE_ERR_CANCELLED + 1,
               "codes of mere.h are those of err.def");
_Static_assert(sizeof(MereError) == sizeof(Error), "one layout, two names");

enum {
    MESSAGES_MAX = 64 << 20, /* bytes of a conversation's JSON, and of a rendered prompt */
    UNREAD_MAX = 4096        /* requests beyond queue and slots whose events nobody has read */
};

static bool give_error(const Error *from, MereError *to)
{
    if (to) {
        to->code = (int32_t)from->code;
        snprintf(to->msg, sizeof to->msg, "%s", from->msg);
    }
    return false;
}

static Str str_in(MereStr s)
{
    return (Str){s.ptr ? s.ptr : "", s.ptr ? s.len : 0};
}

/* ---- names and codes ---- */

static ErrCode code_in(int32_t code)
{
    return code >= 0 && code < ERR_COUNT ? (ErrCode)code : ERR_FAILED;
}

int mere_err_exit_code(int32_t code)
{
    return err_exit_code(code_in(code));
}

int mere_err_http_status(int32_t code)
{
    return err_http_status(code_in(code));
}

const char *mere_err_name(int32_t code)
{
    return err_name(code_in(code));
}

const char *mere_version(void)
{
    return MERE_VERSION;
}

MereError *mere_error_clear(MereError *err)
{
    if (err)
        *err = (MereError){0};
    return err;
}

const char *mere_term_name(MereTerm t)
{
    static const char *const names[MERE_TERM_COUNT] = {"weights", "derived", "kv",      "state",
                                                       "scratch", "draft",   "runtime", "reserve"};
    return (int)t >= 0 && t < MERE_TERM_COUNT ? names[t] : "unknown";
}

const char *mere_place_name(MerePlace p)
{
    static const char *const names[MERE_PLACE_COUNT] = {"map", "import", "read", "repack",
                                                        "derive"};
    return (int)p >= 0 && p < MERE_PLACE_COUNT ? names[p] : "unknown";
}

const char *mere_finish_name(MereFinish f)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error"};
    return (int)f >= 0 && (size_t)f < COUNT_OF(names) ? names[f] : "unknown";
}

/* ---- engine ---- */

/* The caller's struct may be older (shorter) or newer than ours: what it lacks is zero. */
static bool options_in(const MereOptions *opt, MereOptions *own, Error *err)
{
    *own = (MereOptions)MERE_OPTIONS_INIT;
    if (!opt)
        return true;
    if (opt->size < sizeof opt->size + sizeof opt->device)
        return err_set(err, ERR_USAGE, "MereOptions.size is %zu: use MERE_OPTIONS_INIT", opt->size);
    memcpy(own, opt, opt->size < sizeof *own ? opt->size : sizeof *own);
    return true;
}

static bool open_engine(const MereOptions *opt, MereEngine **out, Error *err)
{
    MereOptions own;
    if (!options_in(opt, &own, err))
        return false;
    const Str device = str_in(own.device);
    const Str level = str_in(own.cpu_level);
    char level_name[32];
    if (level.len >= sizeof level_name)
        return err_set(err, ERR_USAGE, "cpu level of %zu characters is unknown", level.len);
    memcpy(level_name, level.ptr, level.len);
    level_name[level.len] = '\0';
    if (own.threads < 0 || own.threads > 4096)
        return err_set(err, ERR_USAGE, "threads is %d, wanted 0 to 4096", (int)own.threads);
    if (own.slots < 0 || own.queue < 0)
        return err_set(err, ERR_USAGE, "slots is %d and queue %d, wanted 0 or more", (int)own.slots,
                       (int)own.queue);
    if (!file_guard_install(err))
        return false;
    json_setup();
    const DeviceOps *ops;
    int index;
    if (!device_find(device, &ops, &index, err))
        return false;
    const EngineDesc d = {.ops = ops,
                          .device = {.index = index,
                                     .threads = own.threads,
                                     .level = level.len > 0 ? level_name : NULL,
                                     .numerics = own.numerics == MERE_EXACT ? NUM_EXACT : NUM_FAST,
                                     .deterministic = own.deterministic},
                          .max_requests = UNREAD_MAX + (int)i64_min(own.slots, 1 << 20) +
                                          (int)i64_min(own.queue, 1 << 20)};
    return engine_open(&d, out, err);
}

bool mere_engine_open(const MereOptions *opt, MereEngine **out, MereError *err)
{
    Error e;
    return open_engine(opt, out, &e) || give_error(&e, err);
}

void mere_engine_close(MereEngine *e)
{
    engine_close(e);
}

MereStr mere_engine_device(const MereEngine *e)
{
    const char *s = e->ops->describe(e->device);
    return (MereStr){s, strlen(s)};
}

MereStr mere_engine_device_id(const MereEngine *e)
{
    return (MereStr){e->device_id, strlen(e->device_id)};
}

bool mere_devices(MereDevices **out, MereError *err)
{
    Error own;
    return devices_list(out, &own) || give_error(&own, err);
}

void mere_devices_free(MereDevices *d)
{
    devices_free(d);
}

/* ---- plan, model ---- */

bool mere_plan(MereEngine *e, MereStr model, const MereOptions *opt, MerePlan *plan, MereError *err)
{
    Error own;
    MereOptions o;
    LoadHeaders h;
    if (!options_in(opt, &o, &own) || !load_headers(e, model, &o, &h, &own))
        return give_error(&own, err);
    *plan = h.ledger.plan;
    load_headers_free(&h);
    return true;
}

bool mere_model_open(MereEngine *e, MereStr model, const MereOptions *opt, MereModel **out,
                     MereError *err)
{
    Error own;
    MereOptions o;
    return (options_in(opt, &o, &own) && load_open(e, model, &o, out, &own)) ||
           give_error(&own, err);
}

MereModel *mere_model_ref(MereModel *m)
{
    atomic_fetch_add(&m->refs, 1);
    return m;
}

/* What mere_text_open opened. */
static void close_text(MereModel *m)
{
    tokenizer_close(m->tokenizer);
    load_headers_free(&m->h);
    mem_free(m);
}

void mere_model_close(MereModel *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    if (m->engine)
        load_close(m);
    else
        close_text(m);
}

void mere_model_info(const MereModel *m, MereInfo *info)
{
    *info = m->info;
}

void mere_model_plan(const MereModel *m, MerePlan *plan)
{
    *plan = m->h.ledger.plan;
}

/* What mere_info_read gives out begins with the info, so that the pointer finds its owner. */
typedef struct InfoOwner {
    MereInfo info;
    LoadHeaders h;
    Tokenizer *tokenizer;
} InfoOwner;

bool mere_info_read(MereStr model, MereInfo **info, MereError *err)
{
    Error own;
    json_setup();
    InfoOwner *o = mem_zalloc(sizeof *o);
    if (!o) {
        err_nomem(&own, "info", sizeof *o);
        return give_error(&own, err);
    }
    const double start = clock_ms();
    /* The files may be cut while they are read. */
    const bool ok = file_guard_install(&own) && load_headers(NULL, model, NULL, &o->h, &own) &&
                    load_tokenizer(o->h.ck, &o->h.arena, &o->tokenizer, &own) &&
                    info_fill(&o->h.arena, o->h.model, o->tokenizer, &o->info, &own);
    if (!ok) {
        mere_info_free(&o->info);
        return give_error(&own, err);
    }
    o->info.load_ms = clock_ms() - start;
    *info = &o->info;
    return true;
}

void mere_info_free(MereInfo *info)
{
    if (!info)
        return;
    InfoOwner *o = (InfoOwner *)(void *)info;
    tokenizer_close(o->tokenizer);
    load_headers_free(&o->h);
    mem_free(o);
}

/* ---- text ---- */

static bool need_tokenizer(const MereModel *m, Error *err)
{
    return m->tokenizer || load_no_tokenizer(m->h.path, err);
}

bool mere_text_open(MereStr model, MereModel **out, MereError *err)
{
    Error own;
    json_setup();
    MereModel *m = mem_zalloc(sizeof *m);
    if (!m) {
        err_nomem(&own, "model", sizeof *m);
        return give_error(&own, err);
    }
    atomic_init(&m->refs, 1);
    (void)err_set(&m->chat_error, ERR_UNSUPPORTED, "the model was opened for its tokenizer alone");
    const bool ok = file_guard_install(&own) && load_headers(NULL, model, NULL, &m->h, &own) &&
                    load_tokenizer(m->h.ck, &m->h.arena, &m->tokenizer, &own) &&
                    need_tokenizer(m, &own) &&
                    info_fill(&m->h.arena, m->h.model, m->tokenizer, &m->info, &own);
    if (!ok) {
        mere_model_close(m);
        return give_error(&own, err);
    }
    *out = m;
    return true;
}

static bool encode(const MereModel *m, Arena *a, Str text, uint32_t flags, TokenIds *out,
                   Error *err)
{
    const unsigned own = (flags & MERE_TOK_SPECIAL ? TOKENIZER_ADD_SPECIAL : 0U) |
                         (flags & MERE_TOK_PARSE ? TOKENIZER_PARSE_SPECIAL : 0U);
    return need_tokenizer(m, err) && tokenizer_encode(a, m->tokenizer, text, own, out, err);
}

bool mere_tokenize(const MereModel *m, MereStr text, uint32_t flags, int32_t *ids, int64_t cap,
                   int64_t *n, MereError *err)
{
    Error own;
    Arena a;
    arena_init(&a, "tokens");
    TokenIds t;
    const bool ok = encode(m, &a, str_in(text), flags, &t, &own);
    if (ok) {
        const int64_t count = t.n < cap ? t.n : cap;
        if (count > 0)
            memcpy(ids, t.ids, (size_t)count * sizeof *ids);
        *n = t.n;
    }
    arena_free(&a);
    return ok || give_error(&own, err);
}

static size_t copy_out(const StrBuf *b, char *out, size_t cap)
{
    const size_t n = b->len < cap ? b->len : cap;
    if (n > 0)
        memcpy(out, b->ptr, n);
    return b->len;
}

bool mere_detokenize(const MereModel *m, const int32_t *ids, int64_t n_ids, char *out, size_t cap,
                     size_t *n, MereError *err)
{
    Error own;
    StrBuf b;
    strbuf_init(&b, (size_t)1 << 30);
    const bool ok =
        need_tokenizer(m, &own) && tokenizer_decode(m->tokenizer, ids, n_ids, 0, &b, &own);
    if (ok)
        *n = copy_out(&b, out, cap);
    strbuf_free(&b);
    return ok || give_error(&own, err);
}

/* *out NULL for an empty text. */
static bool parse_part(const char *what, MereStr text, bool array, json_t **out, Error *err)
{
    *out = NULL;
    const Str s = str_in(text);
    if (s.len == 0)
        return true;
    if (s.len > MESSAGES_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: %zu bytes, at most %d", what, s.len, MESSAGES_MAX);
    *out = json_parse(what, s, err);
    if (!*out) {
        if (err->code == ERR_FORMAT)
            err->code = ERR_REQUEST;
        return false;
    }
    if (array ? json_is_array(*out) : json_is_object(*out))
        return true;
    return err_set(err, ERR_REQUEST, "%s: wanted %s", what, array ? "an array" : "an object");
}

static bool render(const MereModel *m, const json_t *messages, const json_t *tools,
                   const json_t *vars, StrBuf *out, Error *err)
{
    if (!messages)
        return err_set(err, ERR_REQUEST, "messages: wanted an array, found nothing");
    if (!m->chat) {
        *err = m->chat_error;
        return false;
    }
    const ChatInput in = {
        .messages = messages, .tools = tools, .vars = vars, .add_generation_prompt = true};
    return chat_render(m->chat, &in, out, err);
}

bool mere_chat_render(const MereModel *m, MereStr messages, MereStr tools, MereStr vars, char *out,
                      size_t cap, size_t *n, MereError *err)
{
    Error own;
    json_t *parts[3] = {NULL, NULL, NULL};
    StrBuf b;
    strbuf_init(&b, MESSAGES_MAX);
    const bool ok = parse_part("messages", messages, true, &parts[0], &own) &&
                    parse_part("tools", tools, true, &parts[1], &own) &&
                    parse_part("template variables", vars, false, &parts[2], &own) &&
                    render(m, parts[0], parts[1], parts[2], &b, &own);
    if (ok)
        *n = copy_out(&b, out, cap);
    strbuf_free(&b);
    for (int i = 0; i < 3; i++)
        json_decref(parts[i]);
    return ok || give_error(&own, err);
}

/* ---- requests ---- */

static bool prompt_ids(const MereModel *m, Arena *a, const MereRequest *r, TokenIds *out,
                       Error *err)
{
    if (r->n_ids != 0 || r->ids) {
        if (r->n_ids < 0 || (r->n_ids > 0 && !r->ids))
            return err_set(err, ERR_REQUEST, "%lld token ids", (long long)r->n_ids);
        if (r->prompt.len > 0)
            return err_set(err, ERR_REQUEST, "both a text and token ids were given");
        /* request_new only reads them. */
        out->ids = ARENA_ARRAY(a, r->n_ids, int32_t, err);
        out->n = r->n_ids;
        if (out->ids && r->n_ids > 0)
            memcpy(out->ids, r->ids, (size_t)r->n_ids * sizeof *r->ids);
        return out->ids != NULL;
    }
    /* A rendered template has written its own bos: adding one would give two. */
    return encode(m, a, str_in(r->prompt), r->parse_special ? MERE_TOK_PARSE : MERE_TOK_SPECIAL,
                  out, err);
}

static bool submit(MereModel *m, const MereRequest *req, uint64_t *id, Error *err)
{
    MereRequest own = MERE_REQUEST_INIT;
    if (!req || req->size < sizeof req->size + sizeof req->prompt)
        return err_set(err, ERR_USAGE, "MereRequest.size is %zu: use MERE_REQUEST_INIT",
                       req ? req->size : 0);
    memcpy(&own, req, req->size < sizeof own ? req->size : sizeof own);
    if (!m->engine)
        return err_set(err, ERR_USAGE, "the model was opened for its tokenizer alone");
    Arena a;
    arena_init(&a, "prompt");
    TokenIds ids;
    Request *r = NULL;
    bool ok = prompt_ids(m, &a, &own, &ids, err) &&
              request_new(&own, ids.ids, ids.n, &m->limits, &r, err);
    arena_free(&a);
    if (!ok)
        return false;
    if (!events_add(&m->engine->events, r, err)) {
        request_free(r);
        return false;
    }
    *id = r->id; /* once submitted, the request may be gone at any time */
    ok = m->attached.sched ? sched_submit(m->attached.sched, r, err)
                           : err_set(err, ERR_CANCELLED, "the engine was closed");
    if (!ok) {
        events_remove(&m->engine->events, r);
        request_free(r);
        return false;
    }
    engine_kick(m->engine);
    return true;
}

bool mere_submit(MereModel *m, const MereRequest *req, uint64_t *id, MereError *err)
{
    Error own;
    return submit(m, req, id, &own) || give_error(&own, err);
}

void mere_cancel(MereEngine *e, uint64_t id)
{
    if (events_cancel(&e->events, id))
        engine_kick(e);
}

bool mere_next(MereEngine *e, MereEvent *ev, int timeout_ms)
{
    return events_next(&e->events, ev, timeout_ms);
}

int mere_fd(const MereEngine *e)
{
    return e->events.fd;
}

void mere_stats(MereModel *m, MereStats *s)
{
    SchedStats st = {0};
    if (m->attached.sched)
        sched_stats(m->attached.sched, &st);
    const MerePlan *p = &m->h.ledger.plan;
    DeviceMemory memory;
    uint64_t peak;
    engine_memory(m->engine, &memory, &peak);
    *s = (MereStats){.queued = st.queued,
                     .live = st.live,
                     .slots = m->info.slots,
                     .pages_used = st.pages_used,
                     .pages_total = st.pages_total,
                     .states_used = st.states_used,
                     .steps = st.steps,
                     .rows = st.rows,
                     .requests = st.requests,
                     .planned_bytes = p->host_bytes,
                     .anon_bytes = engine_anon_bytes(m->engine),
                     .mapped_bytes = p->placements[MERE_PLACE_MAP],
                     .device_planned_bytes = p->device_bytes,
                     .device_bytes = memory.used_bytes,
                     .device_peak_bytes = peak};
    s->peak_anon_bytes = atomic_load(&m->engine->peak_bytes);
}

/* ---- families, measuring, testing ---- */

enum {
#define MODEL(family) FAMILY_##family,
#include "model/models.def"
#undef MODEL
    FAMILY_COUNT
};

/* Written once, by whoever asks first: the lengths of strings are no constants in C. */
static struct {
    pthread_once_t once;
    MereFamily list[FAMILY_COUNT];
    char files[FAMILY_COUNT][64];
} families = {.once = PTHREAD_ONCE_INIT};

static MereStr str_of(const char *s)
{
    return (MereStr){s, strlen(s)};
}

static void fill_families(void)
{
    int n;
    const ModelFamily *const *all = model_families(&n);
    for (int i = 0; i < n && i < FAMILY_COUNT; i++) {
        snprintf(families.files[i], sizeof families.files[i], "families/%s.c", all[i]->name);
        families.list[i] = (MereFamily){.name = str_of(all[i]->name),
                                        .verified_by = str_of(all[i]->verified_by),
                                        .types = all[i]->types,
                                        .blocks = all[i]->blocks,
                                        .file = str_of(families.files[i]),
                                        .max_abs_diff = all[i]->max_abs_diff};
    }
}

int32_t mere_families(const MereFamily **out)
{
    pthread_once(&families.once, fill_families);
    *out = families.list;
    return FAMILY_COUNT;
}

bool mere_bench(MereModel *m, const MereBench *b, MereBenchResult *out, MereError *err)
{
    Error own;
    return bench_run(m, b, out, &own) || give_error(&own, err);
}

void mere_fail_alloc(uint64_t n, bool sticky)
{
    mem_fail_at(n, sticky);
}

uint64_t mere_alloc_count(void)
{
    return mem_count_get();
}
