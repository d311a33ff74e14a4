#include "serve/fake_mere.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS_MAX = 16, LIVE_MAX = 128, EVENTS_MAX = 4096 };

typedef struct Job {
    bool used, running, cancelled, stall, lost, error, is_slow, is_long, is_short;
    bool echo;
    uint64_t id, user;
    char prompt[512];
    int n_prompt, max_tokens, made, logprobs;
    uint64_t seed;
} Job;

typedef struct Item {
    MereEvent ev;
    char text[16];
    char top_text[16];
    MereLogprob top[2];
} Item;

struct MereEngine {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t thread;
    bool quit;
    int fd;
    uint64_t next_id, done;
    Job jobs[LIVE_MAX];
    Item queue[EVENTS_MAX];
    int head, n_items;
    Item current;
    float logits[FAKE_VOCAB];
    int slots, queue_max, ctx;
    bool no_template;
};
struct MereModel {
    MereEngine *engine;
};

static bool refuse(MereError *err, int code, const char *msg)
{
    err->code = code;
    snprintf(err->msg, sizeof err->msg, "%s", msg);
    return false;
}

static bool has(MereStr s, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.len; i++)
        if (memcmp(s.ptr + i, word, n) == 0)
            return true;
    return false;
}

void fake_token_text(MereStr prompt, int n, char out[16])
{
    static const char *const words[] = {" the", " caf\xC3\xA9", " \xE4\xBD\xA0",     " a\"b",
                                        "\n",   " x",           " \xF0\x9F\x99\x82", " end"};
    uint32_t h = 2166136261U;
    for (size_t i = 0; i < prompt.len; i++)
        h = (h ^ (unsigned char)prompt.ptr[i]) * 16777619U;
    h = (h ^ (uint32_t)n) * 2654435761U;
    h = (h ^ h >> 15) * 2246822519U;
    snprintf(out, 16, "%s", words[h >> 16 & 7U]);
}

/* ---- names and codes: as the library's ---- */
int mere_err_exit_code(int32_t code)
{
    return err_exit_code((ErrCode)code);
}
int mere_err_http_status(int32_t code)
{
    return err_http_status((ErrCode)code);
}
const char *mere_err_name(int32_t code)
{
    return err_name((ErrCode)code);
}
const char *mere_version(void)
{
    return "0.0.0-fake";
}
MereError *mere_error_clear(MereError *err)
{
    *err = (MereError){0};
    return err;
}
const char *mere_finish_name(MereFinish f)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error"};
    return names[f];
}
const char *mere_term_name(MereTerm t)
{
    static const char *const names[] = {"weights", "derived", "kv",      "state",
                                        "scratch", "draft",   "runtime", "reserve"};
    return names[t];
}
const char *mere_place_name(MerePlace p)
{
    static const char *const names[] = {"map", "import", "read", "repack", "derive"};
    return names[p];
}
void mere_fail_alloc(uint64_t n, bool sticky)
{
    mem_fail_at(n, sticky);
}
uint64_t mere_alloc_count(void)
{
    return mem_count_get();
}

/* ---- engine thread ---- */

/* Keeps the descriptor readable exactly while events wait; lock held. */
static void push(MereEngine *e, const Item *it)
{
    if (e->n_items == EVENTS_MAX)
        return;
    e->queue[(e->head + e->n_items++) % EVENTS_MAX] = *it;
    if (e->n_items == 1)
        eventfd_write(e->fd, 1);
}

static void end(MereEngine *e, Job *j, MereFinish f, int code)
{
    Item it = {.ev = {.request = j->id,
                      .user = j->user,
                      .type = MERE_EVENT_END,
                      .finish = f,
                      .seed = j->seed,
                      .usage = {.prompt_tokens = j->n_prompt,
                                .cached_tokens = j->n_prompt / 2,
                                .completion_tokens = j->made,
                                .prefill_ms = 2,
                                .decode_ms = 4,
                                .ttft_ms = 3}}};
    it.ev.error.code = code;
    if (code)
        snprintf(it.ev.error.msg, sizeof it.ev.error.msg, "fake: %s", err_name((ErrCode)code));
    push(e, &it);
    *j = (Job){0};
    e->done++;
}

static void step(MereEngine *e, Job *j)
{
    if (j->cancelled) {
        end(e, j, MERE_FINISH_CANCELLED, 0);
        return;
    }
    if (j->stall)
        return;
    if (j->echo) {
        if (j->made == j->n_prompt - (j->is_short ? 1 : 0)) {
            end(e, j, MERE_FINISH_LENGTH, 0);
            return;
        }
        const Item it = {.ev = {.request = j->id,
                                .type = MERE_EVENT_LOGITS,
                                .index = j->made++,
                                .n_logits = FAKE_VOCAB}};
        push(e, &it);
        return;
    }
    if ((j->lost || j->error) && j->made == 2) {
        end(e, j, MERE_FINISH_ERROR, j->lost ? ERR_LOST : ERR_FAILED);
        return;
    }
    if (j->made >= FAKE_TOKENS && !j->is_long) {
        end(e, j, MERE_FINISH_STOP, 0);
        return;
    }
    if (j->made >= j->max_tokens) {
        end(e, j, MERE_FINISH_LENGTH, 0);
        return;
    }
    Item it = {.ev = {.request = j->id, .user = j->user, .type = MERE_EVENT_TOKEN}};
    fake_token_text((MereStr){j->prompt, strlen(j->prompt)}, j->made, it.text);
    snprintf(it.top_text, sizeof it.top_text, "%s", it.text);
    it.ev.index = j->made++;
    it.ev.token = 256 + it.ev.index % 40;
    it.ev.logprob = -0.5F;
    it.ev.n_top = j->logprobs > 0 ? 1 : 0;
    push(e, &it);
}

static void *run(void *arg)
{
    MereEngine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->quit) {
        int n_run = 0;
        bool busy = false;
        bool slow = false;
        for (int i = 0; i < LIVE_MAX; i++) {
            Job *j = &e->jobs[i];
            if (!j->used)
                continue;
            if (!j->running && n_run < e->slots)
                j->running = true;
            if (!j->running && !j->cancelled)
                continue;
            n_run++;
            busy = busy || !j->stall || j->cancelled;
            slow = slow || j->is_slow;
            for (int k = 0; k < (j->is_long && !j->is_slow ? 32 : 1); k++)
                if (j->used && e->n_items < EVENTS_MAX / 2)
                    step(e, j);
        }
        if (!busy) {
            pthread_cond_wait(&e->work, &e->lock);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        const struct timespec pause = {0, slow ? 20000000 : 100000};
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

bool mere_engine_open(const MereOptions *opt, MereEngine **out, MereError *err)
{
    if (has(opt->device, "cuda") || has(opt->device, "vulkan"))
        return refuse(err, MERE_ERR_DEVICE, "there is no such device here; there are: cpu");
    json_setup();
    MereEngine *e = mem_zalloc(sizeof *e);
    if (!e)
        return refuse(err, MERE_ERR_NOMEM, "out of memory: engine");
    e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->slots = 1;
    e->queue_max = 64;
    e->ctx = FAKE_CTX;
    e->next_id = 1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_create(&e->thread, NULL, run, e);
    *out = e;
    return true;
}

void mere_engine_close(MereEngine *e)
{
    pthread_mutex_lock(&e->lock);
    e->quit = true;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->lock);
    close(e->fd);
    mem_free(e);
}

MereStr mere_engine_device(const MereEngine *e)
{
    (void)e;
    return MERE_STR("cpu: 2 threads, fake");
}

MereStr mere_engine_device_id(const MereEngine *e)
{
    (void)e;
    return MERE_STR("cpu");
}

bool mere_devices(MereDevices **out, MereError *err)
{
    static const MereDevice devices[] = {
        {.id = "cuda:0",
         .name = "Fake GPU",
         .driver = "1.2",
         .arch = "sm_1",
         .pci = "0000:01:00.0",
         .features = "int8-dot",
         .is_auto = true,
         .total_bytes = 8000000000,
         .free_bytes = 7000000000},
        {.id = "vulkan:0",
         .name = "Fake GPU",
         .pci = "0000:01:00.0",
         .same_as = "cuda:0",
         .advice = "more of \033[31mit",
         .total_bytes = 8000000000},
        {.id = "vulkan:1", .name = "pipe", .software = true, .shared_memory = true},
        {.id = "cpu", .name = "this CPU", .shared_memory = true, .total_bytes = 4000000000}};
    static const MereBackend backends[] = {
        {.name = "cuda", .n = 1}, {.name = "hip", .note = "no driver"}, {.name = "cpu", .n = 1}};
    static MereDevices all = {sizeof all, devices, COUNT_OF(devices), backends, COUNT_OF(backends)};
    (void)err;
    *out = &all;
    return true;
}

void mere_devices_free(MereDevices *d)
{
    (void)d;
}

/* ---- model ---- */

static bool check_name(MereStr name, MereError *err)
{
    const Str s = {name.ptr, name.len};
    if (has(name, "fake-broken"))
        return refuse(err, MERE_ERR_FORMAT, "fake-broken: header of 9 bytes, wanted 8");
    if (!str_ends(s, "fake") && !str_ends(s, "fake.gguf") && !has(name, "fake-n"))
        return refuse(err, MERE_ERR_NOT_FOUND, "no such model: it is no directory, file or name");
    return true;
}

bool mere_plan(MereEngine *e, MereStr model, const MereOptions *opt, MerePlan *plan, MereError *err)
{
    (void)e;
    if (!check_name(model, err))
        return false;
    const bool fits = !has(model, "fake-nofit");
    *plan = (MerePlan){.size = sizeof *plan,
                       .fits = fits,
                       .device = "cpu: 2 threads, fake",
                       .terms = {1000, 2000, 3000000, 0, 5000000, 0, 7000000, 8000000},
                       .text_bytes = 4200000,
                       .placements = {90000000, 0, 0, 1000, 2000},
                       .total_bytes = 23003000,
                       .limit_bytes = fits ? UINT64_C(8000000000) : 1000000,
                       .ctx = opt->ctx ? opt->ctx : FAKE_CTX,
                       .slots = opt->slots ? opt->slots : 1,
                       .kv = MERE_KV_F16,
                       .bytes_per_token = 90000000,
                       .host_bytes = 23003000,
                       .host_limit_bytes = fits ? UINT64_C(8000000000) : 1000000};
    if (has(model, "fake-n-gpu")) {
        *plan = (MerePlan){.size = sizeof *plan,
                           .fits = true,
                           .device = "cuda:0: fake",
                           .terms = {90100000, 2000, 3000000, 0, 5000000, 0, 9000000, 8000000},
                           .placements = {0, 0, 0, 90000000, 2000},
                           .placed_bytes = {0, 0, 0, 90100000, 0},
                           .total_bytes = 115102000,
                           .limit_bytes = 9000000000,
                           .own_memory = true,
                           .host_terms = {0, 2000, 0, 0, 0, 0, 2000000, 8000000},
                           .host_bytes = 10002000,
                           .host_limit_bytes = 1000000000,
                           .device_bytes = 105100000,
                           .device_limit_bytes = 8000000000,
                           .ctx = FAKE_CTX,
                           .slots = 1,
                           .kv = MERE_KV_F16,
                           .bytes_per_token = 90000000};
    }
    if (!fits) {
        plan->nearest_ctx = 128;
        plan->nearest_slots = 1;
        plan->nearest_kv = MERE_KV_F16;
    }
    return true;
}

bool mere_model_open(MereEngine *e, MereStr model, const MereOptions *opt, MereModel **out,
                     MereError *err)
{
    if (!check_name(model, err))
        return false;
    if (has(model, "fake-nofit"))
        return refuse(err, MERE_ERR_FIT, "needs 23 MB, has 1 MB; context 128 would fit");
    /* A load of 20 s, as long as nobody ends it. */
    const uint64_t total = has(model, "fake-n-slow") ? 4200000000 : 0;
    for (uint64_t done = 0; done < total; done += total / 200) {
        const struct timespec pause = {0, 100000000};
        nanosleep(&pause, NULL);
        if (!opt->progress(opt->progress_ctx, done, total))
            return refuse(err, MERE_ERR_CANCELLED, "the load was ended");
    }
    MereModel *m = mem_zalloc(sizeof *m);
    if (!m)
        return refuse(err, MERE_ERR_NOMEM, "out of memory: model");
    m->engine = e;
    e->no_template = has(model, "fake-notemplate");
    if (opt->slots > 0 && opt->slots <= SLOTS_MAX)
        e->slots = opt->slots;
    if (opt->queue > 0)
        e->queue_max = opt->queue;
    if (opt->ctx > 0)
        e->ctx = opt->ctx;
    *out = m;
    return true;
}

MereModel *mere_model_ref(MereModel *m)
{
    return m;
}

void mere_model_close(MereModel *m)
{
    mem_free(m);
}

static const MereGroup groups[] = {
    {{"attention", sizeof "attention" - 1}, {"Q4_1", sizeof "Q4_1" - 1}, 8, 40000},
    {{"norm", sizeof "norm" - 1}, {"F32", sizeof "F32" - 1}, 3, 600}};
static const int32_t eos[] = {2};

static void fill_info(MereInfo *info)
{
    *info = (MereInfo){.size = sizeof *info,
                       .path = MERE_STR("/models/fake"),
                       .family = MERE_STR("llama"),
                       .model_type = MERE_STR("llama"),
                       .container = MERE_STR("gguf"),
                       .vocab = FAKE_VOCAB,
                       .hidden = 64,
                       .n_layers = 2,
                       .max_ctx = 2048,
                       .ctx = FAKE_CTX,
                       .slots = 1,
                       .n_params = 134515008,
                       .tokenizer = MERE_STR("bytes"),
                       .has_chat_template = true,
                       .groups = groups,
                       .n_groups = 2,
                       .bos_id = 1,
                       .eos_ids = eos,
                       .n_eos = 1,
                       .load_ms = 1.5};
}

void mere_model_info(const MereModel *m, MereInfo *info)
{
    fill_info(info);
    info->has_chat_template = !m->engine->no_template;
    info->ctx = m->engine->ctx;
    info->slots = m->engine->slots;
}

void mere_model_plan(const MereModel *m, MerePlan *plan)
{
    MereError ignored;
    const MereOptions opt = MERE_OPTIONS_INIT;
    if (!mere_plan(m->engine, MERE_STR("fake"), &opt, plan, &ignored))
        plan->fits = false;
}

bool mere_info_read(MereStr model, MereInfo **info, MereError *err)
{
    if (!check_name(model, err))
        return false;
    *info = mem_zalloc(sizeof **info);
    if (!*info)
        return refuse(err, MERE_ERR_NOMEM, "out of memory: info");
    fill_info(*info);
    return true;
}

void mere_info_free(MereInfo *info)
{
    mem_free(info);
}

int32_t mere_families(const MereFamily **out)
{
    static const char *const types[] = {"llama", "mistral", NULL};
    static const char *const blocks[] = {"attn", "mlp", NULL};
    static const MereFamily list[] = {{{"llama", sizeof "llama" - 1},
                                       {"tests/golden", sizeof "tests/golden" - 1},
                                       types,
                                       blocks,
                                       {"families/llama.c", sizeof "families/llama.c" - 1},
                                       1e-5}};
    *out = list;
    return 1;
}

/* ---- text ---- */

bool mere_text_open(MereStr model, MereModel **out, MereError *err)
{
    static MereEngine engine; /* mere_model_info looks there */
    if (!check_name(model, err))
        return false;
    *out = mem_zalloc(sizeof **out);
    if (!*out)
        return refuse(err, MERE_ERR_NOMEM, "out of memory: model");
    (*out)->engine = &engine;
    return true;
}

bool mere_tokenize(const MereModel *m, MereStr text, uint32_t flags, int32_t *ids, int64_t cap,
                   int64_t *n, MereError *err)
{
    (void)m;
    (void)flags;
    (void)err;
    for (size_t i = 0; i < text.len && (int64_t)i < cap; i++)
        ids[i] = (unsigned char)text.ptr[i];
    *n = (int64_t)text.len;
    return true;
}

bool mere_detokenize(const MereModel *m, const int32_t *ids, int64_t n_ids, char *out, size_t cap,
                     size_t *n, MereError *err)
{
    (void)m;
    if (n_ids != 1)
        return refuse(err, MERE_ERR_REQUEST, "fake: one id at a time");
    char text[16];
    snprintf(text, sizeof text, "<%d>", ids[0]);
    *n = strlen(text);
    if (cap > 0)
        memcpy(out, text, *n < cap ? *n : cap);
    return true;
}

bool mere_chat_render(const MereModel *m, MereStr messages, MereStr tools, MereStr vars, char *out,
                      size_t cap, size_t *n, MereError *err)
{
    if (m->engine->no_template)
        return refuse(err, MERE_ERR_UNSUPPORTED, "the model has no chat template");
    if (has(messages, "@refuse"))
        return refuse(err, MERE_ERR_REQUEST, "template: roles must alternate");
    const int len = snprintf(out, cap, "%.*s%.*s%.*s", (int)messages.len,
                             messages.ptr ? messages.ptr : "", (int)tools.len,
                             tools.ptr ? tools.ptr : "", (int)vars.len, vars.ptr ? vars.ptr : "");
    *n = (size_t)len;
    return true;
}

/* ---- requests ---- */

bool mere_submit(MereModel *m, const MereRequest *req, uint64_t *id, MereError *err)
{
    MereEngine *e = m->engine;
    const int64_t n = req->n_ids ? req->n_ids : (int64_t)req->prompt.len;
    if (n + req->max_tokens > e->ctx) {
        err->code = MERE_ERR_TOO_LONG;
        snprintf(err->msg, sizeof err->msg,
                 "prompt of %lld tokens and %d to generate, context has %d", (long long)n,
                 req->max_tokens, e->ctx);
        return false;
    }
    char *copy = mem_alloc(16); /* so that fault injection has something here */
    if (!copy)
        return refuse(err, MERE_ERR_NOMEM, "out of memory: request");
    mem_free(copy);
    pthread_mutex_lock(&e->lock);
    Job *free_job = NULL;
    int n_used = 0;
    for (int i = 0; i < LIVE_MAX; i++) {
        if (e->jobs[i].used)
            n_used++;
        else if (!free_job)
            free_job = &e->jobs[i];
    }
    const bool ok = free_job && n_used < e->slots + e->queue_max;
    if (ok) {
        /* The words that tell what to do may come as ids, which are bytes here. */
        char told[512];
        MereStr words = req->prompt;
        if (req->n_ids > 0) {
            words = (MereStr){told, 0};
            for (int64_t i = 0; i < req->n_ids && words.len < sizeof told; i++)
                told[words.len++] = (char)req->ids[i];
        }
        const MereStr p = req->prompt;
        *free_job = (Job){.used = true,
                          .id = e->next_id++,
                          .user = req->user,
                          .n_prompt = (int)n,
                          .max_tokens = req->max_tokens ? req->max_tokens : e->ctx - (int)n,
                          .logprobs = req->sampling.logprobs,
                          .seed = req->sampling.seed ? req->sampling.seed : 7,
                          .echo = req->echo_logits,
                          .stall = has(words, "@stall"),
                          .lost = has(words, "@lost"),
                          .error = has(words, "@error"),
                          .is_slow = has(words, "@slow"),
                          .is_long = has(words, "@long"),
                          .is_short = req->n_ids > 0 && req->ids[0] == FAKE_VOCAB - 1};
        snprintf(free_job->prompt, sizeof free_job->prompt, "%.*s", (int)p.len, p.ptr ? p.ptr : "");
        *id = free_job->id;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    return ok || refuse(err, MERE_ERR_FULL, "the queue is full");
}

void mere_cancel(MereEngine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < LIVE_MAX; i++)
        if (e->jobs[i].used && e->jobs[i].id == id)
            e->jobs[i].cancelled = true;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

bool mere_next(MereEngine *e, MereEvent *ev, int timeout_ms)
{
    struct pollfd p = {.fd = e->fd, .events = POLLIN};
    if (timeout_ms != 0)
        poll(&p, 1, timeout_ms);
    pthread_mutex_lock(&e->lock);
    const bool any = e->n_items > 0;
    if (any) {
        e->current = e->queue[e->head];
        e->head = (e->head + 1) % EVENTS_MAX;
        e->n_items--;
        if (e->n_items == 0) {
            eventfd_t n;
            eventfd_read(e->fd, &n);
        }
        Item *it = &e->current;
        it->ev.text = (MereStr){it->text, strlen(it->text)};
        it->top[0] = (MereLogprob){9, -0.25F, {it->top_text, strlen(it->top_text)}};
        it->ev.top = it->ev.n_top ? it->top : NULL;
        if (it->ev.type == MERE_EVENT_LOGITS) {
            for (int i = 0; i < FAKE_VOCAB; i++)
                e->logits[i] = (float)it->ev.index + (float)i * 0.001F;
            it->ev.logits = e->logits;
        }
        *ev = it->ev;
    }
    pthread_mutex_unlock(&e->lock);
    return any;
}

int mere_fd(const MereEngine *e)
{
    return e->fd;
}

void mere_stats(MereModel *m, MereStats *s)
{
    MereEngine *e = m->engine;
    *s = (MereStats){.slots = e->slots,
                     .planned_bytes = 23003000,
                     .anon_bytes = 20000000,
                     .peak_anon_bytes = 21000000,
                     .mapped_bytes = 90000000};
    pthread_mutex_lock(&e->lock);
    for (int i = 0; i < LIVE_MAX; i++) {
        s->live += e->jobs[i].used && e->jobs[i].running;
        s->queued += e->jobs[i].used && !e->jobs[i].running;
    }
    s->requests = e->done;
    pthread_mutex_unlock(&e->lock);
}

bool mere_bench(MereModel *m, const MereBench *b, MereBenchResult *out, MereError *err)
{
    (void)m;
    (void)err;
    *out = (MereBenchResult){.prefill_tok_s = b->prompt ? 1000 : 0,
                             .decode_tok_s = b->gen ? 100 : 0,
                             .prefill_spread = 0.02,
                             .decode_spread = 0.01,
                             .bytes_per_token = 90000000,
                             .read_gb_s = 20,
                             .bandwidth_share = 0.45};
    return true;
}
