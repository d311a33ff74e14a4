/* The server on real (tiny) models: in deterministic mode clients that are served together get what
 * each gets alone, and clients that leave at any moment leave nothing behind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "serve/http_client.c"
#include "support/tiny_fill.h"

enum { CLIENTS = 4, ROUNDS = 3, PAGE_TOKENS = 8 };

static const char *const bodies[CLIENTS] = {
    "{\"prompt\":[5,17,42,8,100,3,77],\"max_tokens\":24,\"temperature\":0,\"ignore_eos\":true,"
    "\"logprobs\":2}",
    "{\"prompt\":[5,17,42,8,100,3,77,200,201],\"max_tokens\":20,\"temperature\":0.9,\"seed\":7,"
    "\"ignore_eos\":true,\"logprobs\":2}",
    "{\"prompt\":[9],\"max_tokens\":30,\"temperature\":1,\"top_k\":20,\"top_p\":0.9,\"seed\":11,"
    "\"presence_penalty\":0.5,\"ignore_eos\":true,\"logprobs\":0}",
    "{\"prompt\":\"The quick brown fox jumps over the lazy dog\",\"max_tokens\":16,"
    "\"temperature\":0.5,\"seed\":3,\"ignore_eos\":true,\"logprobs\":1}"};

typedef struct Client {
    const Rig *rig;
    const char *body;
    int status;
    char choices[16384]; /* "choices" without id, time and usage, which may differ */
} Client;

static void *call(void *arg)
{
    Client *c = arg;
    StrBuf b;
    strbuf_init(&b, ANSWER_MAX);
    c->status = http_call(c->rig, "/v1/completions", c->body, &b);
    const char *from = b.ptr ? strstr(b.ptr, "\"choices\":") : NULL;
    const char *to = from ? strstr(from, ",\"usage\":") : NULL;
    snprintf(c->choices, sizeof c->choices, "%.*s", to ? (int)(to - from) : 200,
             to      ? from
             : b.ptr ? b.ptr
                     : "");
    strbuf_free(&b);
    return NULL;
}

static void rig_tiny(Rig *rig, Arena *a, const char *model)
{
    Error err = {0};
    const char *dir;
    if (!tiny_fill(a, TEST_DATA, model, TEST_TMP, &dir, &err))
        fail_msg("%s", err.msg);
    MereOptions mo = MERE_OPTIONS_INIT;
    mo.deterministic = true;
    mo.threads = 2;
    mo.slots = 3; /* one client waits */
    mo.ctx = 64;
    mo.chunk = 5;
    mo.page_tokens = PAGE_TOKENS;
    rig_open(rig, dir, &mo, NULL);
}

static void check_alone_and_together(const char *model)
{
    Arena a;
    arena_init(&a, "test");
    Rig rig;
    rig_tiny(&rig, &a, model);
    static Client alone[CLIENTS];
    static Client together[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        alone[i] = (Client){.rig = &rig, .body = bodies[i]};
        call(&alone[i]);
        if (alone[i].status != 200)
            fail_msg("%s: client %d: status %d: %s", model, i, alone[i].status, alone[i].choices);
    }
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            together[i] = (Client){.rig = &rig, .body = bodies[(i + round) % CLIENTS]};
            assert_int_equal(pthread_create(&threads[i], NULL, call, &together[i]), 0);
        }
        for (int i = 0; i < CLIENTS; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < CLIENTS; i++) {
            assert_int_equal(together[i].status, 200);
            assert_string_equal(together[i].choices, alone[(i + round) % CLIENTS].choices);
        }
    }
    assert_true(http_wait_idle(&rig, 5000));
    rig_close(&rig);
    arena_free(&a);
}

static void test_together_llama(void **state)
{
    (void)state;
    check_alone_and_together("llama");
}

static void test_together_qwen3_next(void **state)
{
    (void)state;
    check_alone_and_together("qwen3_next");
}

/* 200 clients leave before, in and after prefill and in the middle of a stream. */
static void test_disconnects(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Rig rig;
    rig_tiny(&rig, &a, "qwen3_next");
    static Client before;
    static Client after;
    before = (Client){.rig = &rig, .body = bodies[0]};
    call(&before);
    assert_int_equal(before.status, 200);
    uint32_t random = 1;
    for (int i = 0; i < 200; i++) {
        random = random * 1664525U + 1013904223U;
        char body[256];
        snprintf(body, sizeof body,
                 "{\"prompt\":[%u,17,42,8,100,3,77,1,2,3,4,5,6,7,8,9],\"max_tokens\":48,"
                 "\"ignore_eos\":true,\"stream\":%s}",
                 random >> 24, random >> 16 & 1U ? "true" : "false");
        const int fd = http_connect(&rig);
        http_post(fd, "/v1/completions", body);
        usleep((random >> 18 & 3U) * (random >> 8 & 2047U));
        if (random >> 17 & 1U) { /* RST instead of FIN */
            const struct linger now = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        }
        close(fd);
    }
    assert_true(http_wait_idle(&rig, 20000));
    after = (Client){.rig = &rig, .body = bodies[0]};
    call(&after);
    assert_int_equal(after.status, 200);
    assert_string_equal(after.choices, before.choices);
    rig_close(&rig);
    arena_free(&a);
}

static void test_too_long(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Rig rig;
    rig_tiny(&rig, &a, "llama");
    StrBuf b;
    strbuf_init(&b, ANSWER_MAX);
    assert_int_equal(
        http_call(&rig, "/v1/completions", "{\"prompt\":[1,2,3],\"max_tokens\":62}", &b), 400);
    assert_non_null(strstr(b.ptr, "context_length_exceeded"));
    assert_non_null(strstr(b.ptr, "62"));
    assert_non_null(strstr(b.ptr, "64"));
    assert_int_equal(http_call(&rig, "/v1/completions", "{\"prompt\":[1,999999]}", &b), 400);
    assert_non_null(strstr(b.ptr, "999999"));
    strbuf_free(&b);
    rig_close(&rig);
    arena_free(&a);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together_llama),
        cmocka_unit_test(test_together_qwen3_next),
        cmocka_unit_test(test_disconnects),
        cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
