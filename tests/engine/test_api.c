/* mere.h on real (tiny) models on the CPU: answers of the reference, prefix reuse, several threads,
 * cancels, teacher forcing, allocation failures everywhere, a file cut while in use, and closing in
 * the middle of it all. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/tiny_fill.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "mere.h"
#include "weights/safetensors.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_TOKENS = 25, N_PREFILL = 17, N_GREEDY = 16, VOCAB = 320 };

typedef struct Tiny {
    Arena arena;
    const char *dir;
    int32_t ids[N_TOKENS];
    int32_t greedy[N_GREEDY];
    const uint8_t *logits; /* [N_TOKENS][VOCAB] f32, any alignment */
} Tiny;

static void read_list(const json_t *obj, const char *key, int32_t *out, int n)
{
    const json_t *list = json_object_get(obj, key);
    assert_int_equal(json_array_size(list), n);
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
}

static void tiny_open(Tiny *t, const char *name)
{
    Error err;
    Str text = {NULL, 0};
    Tensor *tensors = NULL;
    int64_t n = 0;
    *t = (Tiny){0};
    arena_init(&t->arena, "tiny");
    if (!tiny_fill(&t->arena, TEST_DATA, name, TEST_TMP, &t->dir, &err))
        fail_msg("%s", err.msg);
    const char *path = arena_printf(&t->arena, &err, "%s/tiny/%s/golden.json", TEST_DATA, name);
    if (!path || !file_read(&t->arena, path, 1 << 24, &text, &err))
        fail_msg("%s", err.msg);
    json_t *golden = json_parse("golden.json", text, &err);
    if (!golden)
        fail_msg("%s", err.msg);
    read_list(golden, "prefill_ids", t->ids, N_PREFILL);
    read_list(golden, "decode_ids", t->ids + N_PREFILL, N_TOKENS - N_PREFILL);
    read_list(golden, "greedy16_from_prefill", t->greedy, N_GREEDY);
    json_decref(golden);
    path = arena_printf(&t->arena, &err, "%s/tiny/%s/golden.safetensors", TEST_DATA, name);
    if (!path || !file_read(&t->arena, path, 1 << 24, &text, &err) ||
        !safetensors_parse(&t->arena, path, (const uint8_t *)text.ptr, text.len, &tensors, &n,
                           &err))
        fail_msg("%s", err.msg);
    for (int64_t i = 0; i < n; i++)
        if (str_is(tensors[i].name, "logits"))
            t->logits = tensors[i].data;
    assert_non_null(t->logits);
}

static MereOptions options(void)
{
    MereOptions o = MERE_OPTIONS_INIT;
    o.numerics = MERE_EXACT;
    o.deterministic = true;
    o.threads = 1; /* tiny models: more threads would only wait for each other */
    o.slots = 3;
    o.ctx = 64;
    o.page_tokens = 4;
    o.chunk = 8;
    return o;
}

typedef struct Live {
    MereEngine *engine;
    MereModel *model;
} Live;

static MereStr str_of(const char *s)
{
    return (MereStr){s, strlen(s)};
}

static Live live_open(const Tiny *t, const MereOptions *o)
{
    Live l;
    MereError err;
    if (!mere_engine_open(o, &l.engine, &err) ||
        !mere_model_open(l.engine, str_of(t->dir), o, &l.model, &err))
        fail_msg("%s", err.msg);
    return l;
}

static void live_close(Live *l)
{
    mere_model_close(l->model);
    mere_engine_close(l->engine);
}

static uint64_t submit(Live *l, const MereRequest *r)
{
    uint64_t id;
    MereError err;
    if (!mere_submit(l->model, r, &id, &err))
        fail_msg("%s", err.msg);
    return id;
}

static MereRequest ask(const int32_t *ids, int n, int max_tokens)
{
    MereRequest r = MERE_REQUEST_INIT;
    r.ids = ids;
    r.n_ids = n;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    return r;
}

/* Reads until the END of the request with this `user`. */
static MereEvent read_answer(Live *l, uint64_t user, int32_t *tokens)
{
    MereEvent ev;
    int n = 0;
    for (;;) {
        assert_true(mere_next(l->engine, &ev, 60000));
        assert_int_equal(ev.user, user);
        if (ev.type == MERE_EVENT_END)
            return ev;
        assert_int_equal(ev.index, n);
        tokens[n++] = ev.token;
    }
}

static const char *const models[] = {"llama", "mistral", "qwen3", "qwen3_moe", "qwen3_next"};

static void greedy_answers_are_the_references(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Tiny t;
        tiny_open(&t, models[i]);
        MereOptions o = options();
        o.threads = 2;
        Live l = live_open(&t, &o);
        int32_t got[64];
        const MereRequest r = ask(t.ids, N_PREFILL, N_GREEDY);
        for (int round = 0; round < 3; round++) { /* then from the cache */
            submit(&l, &r);
            const MereEvent end = read_answer(&l, 0, got);
            assert_int_equal(end.finish, MERE_FINISH_LENGTH);
            if (memcmp(got, t.greedy, sizeof t.greedy) != 0)
                fail_msg("%s, round %d: token 0 is %d, wanted %d", models[i], round, (int)got[0],
                         (int)t.greedy[0]);
            if (round > 0)
                assert_int_equal(end.usage.cached_tokens, N_PREFILL - 1);
        }
        live_close(&l);
        arena_free(&t.arena);
    }
}

static void echo_logits_are_the_references(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Tiny t;
        tiny_open(&t, models[i]);
        const MereOptions o = options();
        Live l = live_open(&t, &o);
        MereRequest r = ask(t.ids, N_TOKENS, 0);
        r.echo_logits = true;
        submit(&l, &r);
        MereEvent ev;
        int rows = 0;
        double worst = 0;
        while (mere_next(l.engine, &ev, 60000) && ev.type == MERE_EVENT_LOGITS) {
            assert_int_equal(ev.index, rows);
            assert_int_equal(ev.n_logits, VOCAB);
            for (int j = 0; j < VOCAB; j++) {
                float want;
                memcpy(&want, t.logits + ((size_t)rows * VOCAB + (size_t)j) * sizeof want,
                       sizeof want);
                worst = fmax(worst, fabs((double)ev.logits[j] - (double)want));
            }
            rows++;
        }
        assert_int_equal(ev.type, MERE_EVENT_END);
        assert_int_equal(rows, N_TOKENS);
        if (worst > 1e-4)
            fail_msg("%s: logits differ by %g", models[i], worst);
        live_close(&l);
        arena_free(&t.arena);
    }
}

/* ---- several threads ---- */

enum { CLIENTS = 4, PER_CLIENT = 30 };

typedef struct Client {
    Live *l;
    const Tiny *t;
    int index;
    pthread_t thread;
} Client;

static void *client_main(void *arg)
{
    Client *c = arg;
    unsigned seed = 77U + (unsigned)c->index;
    for (int i = 0; i < PER_CLIENT; i++) {
        const int from = rand_r(&seed) % 3;
        const int n = 1 + rand_r(&seed) % 14;
        MereRequest r = ask(c->t->ids + from, n, 1 + rand_r(&seed) % 12);
        r.user = (uint64_t)(c->index * 1000 + from * 100 + n);
        uint64_t id;
        MereError err;
        while (!mere_submit(c->l->model, &r, &id, &err)) {
            if (err.code != MERE_ERR_FULL)
                return err.msg[0] ? c : NULL;
            usleep(500);
        }
        if (rand_r(&seed) % 4 == 0)
            mere_cancel(c->l->engine, id);
        MereStats st;
        mere_stats(c->l->model, &st);
    }
    return NULL;
}

/* Each answer alone, for comparison: [from][n]. */
typedef struct Alone {
    int32_t tokens[3][16][12];
} Alone;

static void answers_alone(Live *l, const Tiny *t, Alone *out)
{
    for (int from = 0; from < 3; from++)
        for (int n = 1; n < 15; n++) {
            MereRequest r = ask(t->ids + from, n, 12);
            r.user = 5;
            submit(l, &r);
            read_answer(l, 5, out->tokens[from][n]);
        }
}

static void clients_get_what_they_would_get_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen3_next"};
    for (size_t m = 0; m < COUNT_OF(names); m++) {
        Tiny t;
        tiny_open(&t, names[m]);
        MereOptions o = options();
        o.queue = 8;
        Live l = live_open(&t, &o);
        static Alone alone;
        answers_alone(&l, &t, &alone);
        Client clients[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            clients[i] = (Client){.l = &l, .t = &t, .index = i};
            assert_int_equal(pthread_create(&clients[i].thread, NULL, client_main, &clients[i]), 0);
        }
        int ended = 0;
        int cancelled = 0;
        struct pollfd p = {mere_fd(l.engine), POLLIN, 0};
        while (ended < CLIENTS * PER_CLIENT) {
            MereEvent ev;
            if (!mere_next(l.engine, &ev, 0)) {
                assert_int_equal(poll(&p, 1, 60000), 1);
                continue;
            }
            const int from = (int)(ev.user / 100 % 10);
            const int n = (int)(ev.user % 100);
            if (ev.type == MERE_EVENT_TOKEN && ev.token != alone.tokens[from][n][ev.index])
                fail_msg("%s from %d n %d token %d: %d, alone %d", names[m], from, n, ev.index,
                         (int)ev.token, (int)alone.tokens[from][n][ev.index]);
            if (ev.type == MERE_EVENT_END) {
                assert_true(ev.finish == MERE_FINISH_LENGTH || ev.finish == MERE_FINISH_CANCELLED);
                cancelled += ev.finish == MERE_FINISH_CANCELLED;
                ended++;
            }
        }
        for (int i = 0; i < CLIENTS; i++) {
            void *bad;
            pthread_join(clients[i].thread, &bad);
            assert_null(bad);
        }
        MereStats st;
        mere_stats(l.model, &st);
        assert_int_equal(st.live, 0);
        assert_int_equal(st.queued, 0);
        assert_int_equal(st.pages_used, 0);
        print_message("%s: %d of %d were cancelled\n", names[m], cancelled, ended);
        live_close(&l);
        arena_free(&t.arena);
    }
}

static void two_models_share_an_engine(void **state)
{
    (void)state;
    Tiny a;
    Tiny b;
    tiny_open(&a, "llama");
    tiny_open(&b, "qwen3_next");
    const MereOptions o = options();
    Live l = live_open(&a, &o);
    MereModel *second;
    MereError err;
    if (!mere_model_open(l.engine, str_of(b.dir), &o, &second, &err))
        fail_msg("%s", err.msg);
    Live m = {l.engine, second};
    MereRequest r = ask(a.ids, N_PREFILL, N_GREEDY);
    submit(&l, &r);
    r = ask(b.ids, N_PREFILL, N_GREEDY);
    r.user = 1;
    submit(&m, &r);
    int left = 2;
    MereEvent ev;
    while (left > 0 && mere_next(l.engine, &ev, 60000)) {
        if (ev.type == MERE_EVENT_TOKEN)
            assert_int_equal(ev.token, (ev.user ? b.greedy : a.greedy)[ev.index]);
        left -= ev.type == MERE_EVENT_END;
    }
    assert_int_equal(left, 0);
    mere_model_close(second);
    live_close(&l);
    arena_free(&a.arena);
    arena_free(&b.arena);
}

/* ---- text ---- */

static int prompt_tokens(const Live *l, MereStr prompt, bool rendered)
{
    MereError err;
    MereRequest req = MERE_REQUEST_INIT;
    req.prompt = prompt;
    req.parse_special = rendered;
    req.max_tokens = 1;
    uint64_t id;
    if (!mere_submit(l->model, &req, &id, &err))
        fail_msg("%s", err.msg);
    MereEvent ev;
    while (mere_next(l->engine, &ev, -1))
        if (ev.type == MERE_EVENT_END)
            break;
    return ev.usage.prompt_tokens;
}

/* A template writes bos itself; plain text gets one where the tokenizer says so. */
static void a_rendered_prompt_has_one_bos(void **state)
{
    (void)state;
    static const char tmp[] = TEST_TMP "/bos";
    Tiny t = {0};
    Error err;
    arena_init(&t.arena, "bos");
    (void)mkdir(tmp, 0777);
    if (!tiny_fill(&t.arena, TEST_DATA, "llama", tmp, &t.dir, &err))
        fail_msg("%s", err.msg);
    char *path = arena_printf(&t.arena, &err, "%s/tokenizer_config.json", t.dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"bos_token\": \"<|endoftext|>\", \"add_bos_token\": true}", f);
    fclose(f);
    const MereOptions o = options();
    Live l = live_open(&t, &o);
    const int plain = prompt_tokens(&l, MERE_STR("Hello"), false);
    assert_int_equal(prompt_tokens(&l, MERE_STR("<|endoftext|>Hello"), true), plain);
    assert_int_equal(prompt_tokens(&l, MERE_STR("Hello"), true), plain - 1);
    live_close(&l);
    arena_free(&t.arena);
}

static void text_goes_in_and_out(void **state)
{
    (void)state;
    Tiny t;
    tiny_open(&t, "llama");
    const MereOptions o = options();
    Live l = live_open(&t, &o);
    MereError err;
    int32_t ids[64];
    int64_t n;
    const MereStr text = MERE_STR("Hello, caf\xc3\xa9!");
    assert_true(mere_tokenize(l.model, text, 0, ids, 64, &n, &err));
    char back[64];
    size_t len;
    assert_true(mere_detokenize(l.model, ids, n, back, sizeof back, &len, &err));
    assert_int_equal(len, text.len);
    assert_memory_equal(back, text.ptr, len);
    int64_t more;
    assert_true(mere_tokenize(l.model, text, 0, ids, 2, &more, &err));
    assert_int_equal(more, n);
    char prompt[256];
    const MereStr messages = MERE_STR("[{\"role\":\"user\",\"content\":\"Hi\"}]");
    if (!mere_chat_render(l.model, messages, (MereStr){0}, (MereStr){0}, prompt, sizeof prompt,
                          &len, &err))
        fail_msg("%s", err.msg);
    assert_in_range(len, 10, sizeof prompt);
    prompt[len] = '\0';
    assert_non_null(strstr(prompt, "Hi"));
    const MereStr bad[] = {MERE_STR("[{"), MERE_STR("{}"), MERE_STR("")};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(mere_chat_render(l.model, bad[i], (MereStr){0}, (MereStr){0}, prompt,
                                      sizeof prompt, &len, &err));
        assert_int_equal(err.code, MERE_ERR_REQUEST);
    }
    /* What the events give out is what the tokens say. */
    MereRequest r = MERE_REQUEST_INIT;
    r.prompt = text;
    r.max_tokens = 24;
    r.ignore_eos = true;
    submit(&l, &r);
    MereEvent ev;
    char said[1024];
    size_t n_said = 0;
    int n_tokens = 0;
    do {
        assert_true(mere_next(l.engine, &ev, 60000));
        assert_true(n_said + ev.text.len < sizeof said);
        memcpy(said + n_said, ev.text.ptr, ev.text.len);
        n_said += ev.text.len;
        if (ev.type == MERE_EVENT_TOKEN)
            ids[n_tokens++] = ev.token;
    } while (ev.type != MERE_EVENT_END);
    assert_int_equal(ev.usage.completion_tokens, 24);
    MereInfo info;
    mere_model_info(l.model, &info);
    assert_string_equal(info.family.ptr, "llama");
    assert_int_equal(info.vocab, VOCAB);
    assert_int_equal(info.ctx, 64);
    assert_true(info.n_groups >= 4 && info.n_params > 50000 && info.has_chat_template);
    live_close(&l);
    arena_free(&t.arena);
}

/* ---- what is wrong, and what is not there ---- */

static void mistakes_are_named(void **state)
{
    (void)state;
    Tiny t;
    tiny_open(&t, "llama");
    MereOptions o = options();
    MereError err;
    MereEngine *e;
    MereModel *m;
    MereOptions bad = o;
    bad.device = MERE_STR("cuda:99");
    assert_false(mere_engine_open(&bad, &e, &err));
    assert_int_equal(err.code, MERE_ERR_DEVICE);
    assert_non_null(strstr(err.msg, "cuda:99"));
    assert_non_null(strstr(strstr(err.msg, "there are: "), " cpu (")); /* GPUs before it */
    bad.device = MERE_STR("gpu");
    assert_false(mere_engine_open(&bad, &e, &err));
    assert_int_equal(err.code, MERE_ERR_USAGE);
    bad = o;
    bad.cpu_level = MERE_STR("sse9");
    assert_false(mere_engine_open(&bad, &e, &err));
    assert_int_equal(err.code, MERE_ERR_USAGE);
    bad = o;
    bad.size = 0;
    assert_false(mere_engine_open(&bad, &e, &err));
    assert_true(mere_engine_open(&o, &e, &err));
    assert_false(mere_model_open(e, MERE_STR("/nowhere/at/all"), &o, &m, &err));
    assert_int_equal(err.code, MERE_ERR_NOT_FOUND);
    assert_false(mere_model_open(e, MERE_STR(""), &o, &m, &err));
    bad = o;
    bad.page_tokens = 5;
    assert_false(mere_model_open(e, str_of(t.dir), &bad, &m, &err));
    assert_int_equal(err.code, MERE_ERR_USAGE);
    bad = o;
    bad.ctx = 1 << 20;
    assert_false(mere_model_open(e, str_of(t.dir), &bad, &m, &err));
    assert_int_equal(err.code, MERE_ERR_USAGE);
    bad = o;
    bad.limit_bytes = 1 << 20;
    assert_false(mere_model_open(e, str_of(t.dir), &bad, &m, &err));
    assert_int_equal(err.code, MERE_ERR_FIT);
    assert_int_equal(mere_err_exit_code(err.code), 4);
    assert_true(mere_model_open(e, str_of(t.dir), &o, &m, &err));
    uint64_t id;
    MereRequest r = ask(t.ids, N_PREFILL, 100);
    assert_false(mere_submit(m, &r, &id, &err));
    assert_int_equal(err.code, MERE_ERR_TOO_LONG);
    assert_non_null(strstr(err.msg, "17"));
    assert_non_null(strstr(err.msg, "64"));
    r.size = 0;
    assert_false(mere_submit(m, &r, &id, &err));
    r = ask(t.ids, 4, 1);
    r.prompt = MERE_STR("and a text");
    assert_false(mere_submit(m, &r, &id, &err));
    mere_cancel(e, 99);
    MereEvent ev;
    assert_false(mere_next(e, &ev, 0));
    assert_false(mere_next(e, &ev, 5));
    const MereFamily *families;
    assert_true(mere_families(&families) >= 4);
    assert_true(families[0].types[0] != NULL && families[0].file.len > 0);
    mere_model_close(m);
    mere_engine_close(e);
    MereInfo *info;
    if (!mere_info_read(str_of(t.dir), &info, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(info->hidden, 64);
    mere_info_free(info);
    assert_false(mere_info_read(MERE_STR("/nowhere"), &info, &err));
    arena_free(&t.arena);
}

static void measuring(void **state)
{
    (void)state;
    Tiny t;
    tiny_open(&t, "qwen3_next");
    const MereOptions o = options();
    Live l = live_open(&t, &o);
    MereError err;
    MereBenchResult res;
    MereBench b = {.prompt = 20, .gen = 10, .depth = 5, .reps = 3, .rows = 2};
    if (!mere_bench(l.model, &b, &res, &err))
        fail_msg("%s", err.msg);
    assert_true(res.prefill_tok_s > 0 && res.decode_tok_s > 0 && res.read_gb_s > 0 &&
                res.bytes_per_token > 0);
    b.rows = 4;
    assert_false(mere_bench(l.model, &b, &res, &err));
    assert_int_equal(err.code, MERE_ERR_USAGE);
    b = (MereBench){.prompt = 100};
    assert_false(mere_bench(l.model, &b, &res, &err));
    MereRequest r = ask(t.ids, 4, 50);
    submit(&l, &r);
    b = (MereBench){.gen = 4};
    const bool ran = mere_bench(l.model, &b, &res, &err);
    if (!ran)
        assert_int_equal(err.code, MERE_ERR_FAILED);
    int32_t got[64];
    read_answer(&l, 0, got);
    live_close(&l);
    arena_free(&t.arena);
}

/* ---- failure ---- */

static void closing_in_the_middle(void **state)
{
    (void)state;
    Tiny t;
    tiny_open(&t, "llama");
    const MereOptions o = options();
    const size_t before = mem_in_use();
    for (int how = 0; how < 4; how++) {
        Live l = live_open(&t, &o);
        for (int i = 0; i < 6; i++) {
            MereRequest r = ask(t.ids, N_PREFILL, 40);
            r.user = (uint64_t)i;
            submit(&l, &r);
        }
        MereEvent ev;
        if (how % 2)
            assert_true(mere_next(l.engine, &ev, 60000));
        if (how < 2) { /* the model goes: its requests end, the engine stays */
            mere_model_ref(l.model);
            mere_model_close(l.model);
            mere_model_close(l.model);
            for (int ended = 0; ended < 6; ended += ev.type == MERE_EVENT_END)
                assert_true(mere_next(l.engine, &ev, 60000));
            mere_engine_close(l.engine);
        } else { /* the engine goes first: a model closed late is only memory */
            mere_engine_close(l.engine);
            MereRequest r = ask(t.ids, 4, 1);
            uint64_t id;
            MereError err;
            assert_false(mere_submit(l.model, &r, &id, &err));
            mere_model_close(l.model);
        }
        assert_int_equal(mem_in_use(), before);
    }
    arena_free(&t.arena);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen3_next"};
    for (size_t c = 0; c < COUNT_OF(names); c++) {
        Tiny t;
        tiny_open(&t, names[c]);
        const MereOptions o = options();
        const size_t before = mem_in_use();
        MereError err;
        MereEngine *e;
        for (uint64_t n = 1;; n++) {
            mere_fail_alloc(n, false);
            const bool ok = mere_engine_open(&o, &e, &err);
            mere_fail_alloc(0, false);
            if (ok)
                break;
            assert_int_equal(err.code, MERE_ERR_NOMEM);
            assert_int_equal(mem_in_use(), before);
        }
        const size_t opened = mem_in_use();
        MereModel *m;
        uint64_t n = 1;
        for (;; n++) {
            mere_fail_alloc(n, n % 2);
            const bool ok = mere_model_open(e, str_of(t.dir), &o, &m, &err);
            mere_fail_alloc(0, false);
            if (ok)
                break;
            if (err.code != MERE_ERR_NOMEM)
                fail_msg("allocation %d of opening: %s", (int)n, err.msg);
            if (mem_in_use() != opened)
                fail_msg("allocation %d of opening: %zu bytes leak", (int)n, mem_in_use() - opened);
        }
        print_message("%s: %d allocations to open\n", names[c], (int)n - 1);
        Live l = {e, m};
        MereRequest r = MERE_REQUEST_INIT;
        r.prompt = MERE_STR("The quick brown fox");
        r.max_tokens = 8;
        r.ignore_eos = true;
        r.sampling.logprobs = 3;
        int failed = 0;
        for (n = 1; n < 1000; n++) {
            uint64_t id;
            mere_fail_alloc(n, n % 2);
            const bool ok = mere_submit(m, &r, &id, &err);
            MereEvent ev = {0};
            while (ok && mere_next(e, &ev, 60000) && ev.type != MERE_EVENT_END)
                ;
            const uint64_t used = mere_alloc_count();
            mere_fail_alloc(0, false);
            if (ok && used < n)
                break;
            failed++;
            if (!ok)
                assert_int_equal(err.code, MERE_ERR_NOMEM);
        }
        assert_in_range(failed, 3, 998);
        /* The engine goes on. */
        const MereRequest last = ask(t.ids, N_PREFILL, N_GREEDY);
        int32_t got[64];
        submit(&l, &last);
        read_answer(&l, 0, got);
        assert_memory_equal(got, t.greedy, sizeof t.greedy);
        live_close(&l);
        assert_int_equal(mem_in_use(), before);
        arena_free(&t.arena);
    }
}

static void copy_file(const char *from, const char *to)
{
    Arena a;
    arena_init(&a, "copy");
    Str text;
    Error err;
    if (!file_read(&a, from, 1 << 26, &text, &err))
        fail_msg("%s", err.msg);
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text.ptr, 1, text.len, f), text.len);
    fclose(f);
    arena_free(&a);
}

static void a_file_cut_while_in_use(void **state)
{
    (void)state;
    Tiny t;
    tiny_open(&t, "llama");
    char dir[] = TEST_TMP "/cutXXXXXX";
    assert_non_null(mkdtemp(dir));
    char from[4096];
    char to[4096];
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/%s", t.dir, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        copy_file(from, to);
    }
    Tiny copy = t;
    copy.dir = dir;
    const MereOptions o = options();
    Live l = live_open(&copy, &o);
    MereRequest r = ask(t.ids, N_PREFILL, N_GREEDY);
    int32_t got[64];
    submit(&l, &r);
    assert_int_equal(read_answer(&l, 0, got).finish, MERE_FINISH_LENGTH);
    assert_int_equal(truncate(to, 4096), 0);
    r.n_ids = 3;
    submit(&l, &r);
    const MereEvent end = read_answer(&l, 0, got);
    assert_int_equal(end.finish, MERE_FINISH_ERROR);
    assert_int_equal(end.error.code, MERE_ERR_IO);
    uint64_t id;
    MereError err;
    assert_false(mere_submit(l.model, &r, &id, &err));
    assert_int_equal(err.code, MERE_ERR_IO);
    live_close(&l);
    for (int i = 0; i < 2; i++) {
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        unlink(to);
    }
    rmdir(dir);
    arena_free(&t.arena);
}

int main(void)
{
    json_setup(); /* before the fixtures read theirs */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_the_references),
        cmocka_unit_test(echo_logits_are_the_references),
        cmocka_unit_test(clients_get_what_they_would_get_alone),
        cmocka_unit_test(two_models_share_an_engine),
        cmocka_unit_test(text_goes_in_and_out),
        cmocka_unit_test(a_rendered_prompt_has_one_bos),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(measuring),
        cmocka_unit_test(closing_in_the_middle),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_file_cut_while_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
