/* The server's behaviour over time, on fake_mere: streams, clients that leave, limits, stopping. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "serve/fake_mere.c"
#include "serve/http_client.c"

static StrBuf buffer(void)
{
    StrBuf b;
    strbuf_init(&b, ANSWER_MAX);
    return b;
}

static void rig_fake(Rig *rig, int slots, int queue, const ServerOptions *so)
{
    MereOptions mo = MERE_OPTIONS_INIT;
    mo.slots = slots;
    mo.queue = queue;
    mo.ctx = 1 << 20;
    rig_open(rig, "fake", &mo, so);
}

/* `value` of the first "key":"value" after `from`; NULL when there is none. */
static const char *find_string(const char *from, const char *key, char *out, size_t cap)
{
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\"%s\":\"", key);
    const char *p = strstr(from, pattern);
    if (!p)
        return NULL;
    p += strlen(pattern);
    size_t n = 0;
    while (*p && *p != '"' && n + 2 < cap) {
        if (*p == '\\')
            out[n++] = *p++;
        out[n++] = *p++;
    }
    out[n] = '\0';
    return p;
}

/* Text of all chunks of a stream put together, JSON escapes kept. */
static void join_stream(const char *stream, const char *key, StrBuf *out)
{
    char text[256];
    const char *p = stream;
    while ((p = find_string(p, key, text, sizeof text)))
        strbuf_add_cstr(out, text);
}

static void check_same_text(const char *path, const char *body, const char *stream_body,
                            const char *key)
{
    Rig rig;
    rig_fake(&rig, 2, 0, NULL);
    StrBuf whole = buffer();
    StrBuf stream = buffer();
    StrBuf joined = buffer();
    char text[1024] = "";
    char id_a[64] = "";
    char id_b[64] = "";
    assert_int_equal(http_call(&rig, path, body, &whole), 200);
    assert_int_equal(http_call(&rig, path, stream_body, &stream), 200);
    find_string(whole.ptr, key, text, sizeof text);
    assert_true(strlen(text) > 20);
    join_stream(stream.ptr, key, &joined);
    assert_string_equal(joined.ptr, text);
    find_string(whole.ptr, "id", id_a, sizeof id_a);
    find_string(stream.ptr, "id", id_b, sizeof id_b);
    assert_string_not_equal(id_a, id_b);
    assert_non_null(strstr(stream.ptr, "\"finish_reason\":\"stop\"}"));
    assert_non_null(strstr(stream.ptr, "\"usage\":null}\n\ndata: {"));
    assert_non_null(strstr(stream.ptr, "\"choices\":[],\"usage\":{\"prompt_tokens\":"));
    const char *done = "}\n\ndata: [DONE]\n\n";
    assert_string_equal(stream.ptr + stream.len - strlen(done), done);
    strbuf_free(&whole);
    strbuf_free(&stream);
    strbuf_free(&joined);
    rig_close(&rig);
}

static void test_chat_stream(void **state)
{
    (void)state;
    check_same_text("/v1/chat/completions",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"stream\":true,"
                    "\"stream_options\":{\"include_usage\":true}}",
                    "content");
}

static void test_completion_stream(void **state)
{
    (void)state;
    check_same_text("/v1/completions", "{\"prompt\":\"hello\"}",
                    "{\"prompt\":\"hello\",\"stream\":true,"
                    "\"stream_options\":{\"include_usage\":true}}",
                    "text");
}

static void test_first_chunk_has_role(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 0, NULL);
    StrBuf b = buffer();
    assert_int_equal(http_call(&rig, "/v1/chat/completions",
                               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                               "\"stream\":true}",
                               &b),
                     200);
    assert_memory_equal(b.ptr, "data: {\"id\":\"chatcmpl-", 22);
    const char *first_end = strstr(b.ptr, "\n\n");
    const char *role = strstr(b.ptr, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    assert_true(role && role < first_end);
    assert_null(strstr(b.ptr, "usage"));
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_keep_alive_after_stream(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 0, NULL);
    StrBuf b = buffer();
    const int fd = http_connect(&rig);
    for (int i = 0; i < 3; i++) {
        http_post(fd, "/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
        assert_int_equal(http_answer(fd, &b), 200);
        assert_non_null(strstr(b.ptr, "[DONE]"));
    }
    close(fd);
    strbuf_free(&b);
    rig_close(&rig);
}

/* Bytes that arrive during an answer wait for its end and harm nothing. */
static void test_pipelined_during_stream(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 0, NULL);
    StrBuf b = buffer();
    const int fd = http_connect(&rig);
    http_post(fd, "/v1/completions", "{\"prompt\":\"@slow\",\"stream\":true}");
    http_post(fd, "/v1/completions", "{\"prompt\":\"b\"}");
    assert_true(http_read(fd, &b, "[DONE]", 5000));
    assert_true(http_read(fd, &b, "\"object\":\"text_completion\",\"created\"", 5000));
    close(fd);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_disconnects(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 4, 64, NULL);
    static const char *const bodies[] = {
        "{\"prompt\":\"@stall\"}", "{\"prompt\":\"@stall\",\"stream\":true}",
        "{\"prompt\":\"@slow @long\",\"stream\":true,\"max_tokens\":100000}",
        "{\"prompt\":\"@slow @long\",\"max_tokens\":100000}",
        "{\"prompt\":\"@long\",\"stream\":true,\"max_tokens\":100000}"};
    uint32_t random = 12345;
    for (int i = 0; i < 200; i++) {
        random = random * 1664525U + 1013904223U;
        const int fd = http_connect(&rig);
        http_post(fd, "/v1/completions", bodies[(random >> 16) % COUNT_OF(bodies)]);
        if (random >> 28 & 1U)
            usleep(random >> 20 & 4095U);
        if (random >> 29 & 1U) { /* RST instead of FIN */
            const struct linger now = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        }
        close(fd);
    }
    assert_true(http_wait_idle(&rig, 10000));
    StrBuf b = buffer();
    assert_int_equal(http_call(&rig, "/v1/completions", "{\"prompt\":\"a\"}", &b), 200);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_half_close_cancels(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 0, NULL);
    const int fd = http_connect(&rig);
    http_post(fd, "/v1/completions", "{\"prompt\":\"@stall\"}");
    while (http_rows_in_use(&rig) == 0)
        usleep(1000);
    shutdown(fd, SHUT_WR);
    assert_true(http_wait_idle(&rig, 5000));
    close(fd);
    rig_close(&rig);
}

static void test_queue_full(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 2, NULL);
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = http_connect(&rig);
        http_post(fds[i], "/v1/completions", "{\"prompt\":\"@stall\"}");
        while (http_rows_in_use(&rig) != i + 1)
            usleep(1000);
    }
    const int fd = http_connect(&rig);
    http_post(fd, "/v1/completions", "{\"prompt\":\"a\"}");
    StrBuf b = buffer();
    assert_true(http_read(fd, &b, "queue_full", 5000));
    assert_memory_equal(b.ptr, "HTTP/1.1 503", 12);
    assert_non_null(strstr(b.ptr, "Retry-After: 1\r\n"));
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    assert_true(http_wait_idle(&rig, 5000));
    assert_int_equal(http_call(&rig, "/v1/completions", "{\"prompt\":\"a\"}", &b), 200);
    close(fd);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_slow_reader(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.max_pending_bytes = 256 * 1024};
    rig_fake(&rig, 1, 0, &so);
    const int fd = http_connect(&rig);
    http_post(fd, "/v1/completions",
              "{\"prompt\":\"@long\",\"stream\":true,\"max_tokens\":1000000}");
    StrBuf b = buffer();
    assert_true(http_read(fd, &b, "data: ", 5000));
    assert_true(http_wait_idle(&rig, 20000));
    close(fd);
    strbuf_free(&b);
    rig_close(&rig);
}

/* A client that takes nothing although little waits: the write timeout ends it. */
static void test_write_timeout(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.write_ms = 300, .max_pending_bytes = SIZE_MAX / 2};
    rig_fake(&rig, 1, 0, &so);
    const int fd = http_connect(&rig);
    http_post(fd, "/v1/completions", "{\"prompt\":\"@long\",\"stream\":true,\"max_tokens\":60000}");
    StrBuf b = buffer();
    assert_true(http_read(fd, &b, "data: ", 5000));
    assert_true(http_wait_idle(&rig, 20000));
    usleep(900000);
    assert_false(http_read(fd, &b, "[DONE]", 10000)); /* what the kernel holds, then a close */
    close(fd);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_slow_loris(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.request_ms = 400};
    rig_fake(&rig, 1, 0, &so);
    int fds[10];
    for (int i = 0; i < 10; i++)
        fds[i] = http_connect(&rig);
    const char *request = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n\r\n{";
    const uint64_t from = clock_ns();
    size_t at = 0;
    while (clock_ns() - from < UINT64_C(1500000000)) { /* a byte each 25 ms, whole for 1 s */
        for (int i = 0; i < 10; i++)
            http_send(fds[i], (Str){request + at, 1});
        at = at + 1 < strlen(request) ? at + 1 : at;
        usleep(25000);
    }
    for (int i = 0; i < 10; i++) {
        StrBuf b = buffer();
        assert_true(http_read(fds[i], &b, NULL, 10));
        assert_int_equal(b.len, 0);
        strbuf_free(&b);
        close(fds[i]);
    }
    /* Time to produce an answer is not the client's. */
    StrBuf b = buffer();
    assert_int_equal(http_call(&rig, "/v1/completions",
                               "{\"prompt\":\"@slow @long\",\"stream\":true,\"max_tokens\":60}",
                               &b),
                     200);
    assert_non_null(strstr(b.ptr, "[DONE]"));
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_connection_limit(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.max_connections = 3};
    rig_fake(&rig, 1, 0, &so);
    int fds[3];
    StrBuf b = buffer();
    for (int i = 0; i < 3; i++) {
        fds[i] = http_connect(&rig);
        http_send(fds[i], str_from("GET /health HTTP/1.1\r\n\r\n"));
        assert_int_equal(http_answer(fds[i], &b), 200);
    }
    const int fd = http_connect(&rig);
    http_send(fd, str_from("GET /health HTTP/1.1\r\n\r\n"));
    strbuf_clear(&b);
    assert_false(http_read(fd, &b, "ok", 200));
    close(fds[1]);
    assert_true(http_read(fd, &b, "\"status\":\"ok\"", 5000));
    close(fds[0]);
    close(fds[2]);
    close(fd);
    strbuf_free(&b);
    rig_close(&rig);
}

static int get_with(const Rig *rig, const char *path, const char *headers, StrBuf *body)
{
    StrBuf b = buffer();
    strbuf_printf(&b, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n", path, headers);
    const int fd = http_connect(rig);
    http_send(fd, strbuf_str(&b));
    const int status = http_answer(fd, body);
    close(fd);
    strbuf_free(&b);
    return status;
}

static void test_api_key(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.api_key = "sesame"};
    rig_fake(&rig, 1, 0, &so);
    StrBuf b = buffer();
    assert_int_equal(get_with(&rig, "/v1/models", "", &b), 401);
    assert_non_null(strstr(b.ptr, "invalid_api_key"));
    static const char *const wrong[] = {"Authorization: Bearer\r\n",
                                        "Authorization: Bearer \r\n",
                                        "Authorization: Bearer sesam\r\n",
                                        "Authorization: Bearer sesame2\r\n",
                                        "Authorization: Bearer sesamesesame\r\n",
                                        "Authorization: Basic sesame\r\n"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_int_equal(get_with(&rig, "/v1/models", wrong[i], &b), 401);
    assert_int_equal(get_with(&rig, "/v1/models", "Authorization: Bearer sesame\r\n", &b), 200);
    assert_int_equal(get_with(&rig, "/health", "", &b), 200);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_cors(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.cors = "http://page.example"};
    rig_fake(&rig, 1, 0, &so);
    StrBuf b = buffer();
    int fd = http_connect(&rig);
    http_send(fd, str_from("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: "
                           "http://page.example\r\n\r\n"));
    assert_true(http_read(fd, &b, "\r\n\r\n", 5000));
    assert_memory_equal(b.ptr, "HTTP/1.1 204", 12);
    assert_non_null(strstr(b.ptr, "Access-Control-Allow-Origin: http://page.example\r\n"));
    assert_non_null(strstr(b.ptr, "Access-Control-Allow-Headers: Authorization"));
    close(fd);
    assert_int_equal(get_with(&rig, "/v1/models", "Origin: http://page.example\r\n", &b), 200);
    assert_int_equal(get_with(&rig, "/v1/models", "Origin: http://other.example\r\n", &b), 403);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_device_lost(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 2, 0, NULL);
    const int fd = http_connect(&rig);
    http_post(fd, "/v1/completions", "{\"prompt\":\"@lost\",\"stream\":true}");
    StrBuf b = buffer();
    assert_true(http_read(fd, &b, "device_lost", 5000));
    assert_memory_equal(b.ptr, "HTTP/1.1 200", 12);
    assert_non_null(strstr(b.ptr, "data: {\"error\":{"));
    assert_null(strstr(b.ptr, "[DONE]"));
    rig_join(&rig);
    assert_int_equal(rig.exit_code, 70);
    close(fd);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_device_lost_before_answer(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 2, 0, NULL);
    StrBuf b = buffer();
    assert_int_equal(http_call(&rig, "/v1/completions", "{\"prompt\":\"@lost\"}", &b), 503);
    assert_non_null(strstr(b.ptr, "device_lost"));
    rig_join(&rig);
    assert_int_equal(rig.exit_code, 70);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_stop_lets_requests_end(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 0, NULL);
    const int idle = http_connect(&rig);
    const int fd = http_connect(&rig);
    http_post(fd, "/v1/completions", "{\"prompt\":\"@slow\",\"stream\":true}");
    StrBuf b = buffer();
    assert_true(http_read(fd, &b, "data: ", 5000));
    serve_stop(rig.server);
    assert_true(http_read(fd, &b, "[DONE]", 5000));
    rig_join(&rig);
    assert_int_equal(rig.exit_code, 0);
    close(fd);
    close(idle);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_stop_cancels_at_the_deadline(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.drain_ms = 200};
    rig_fake(&rig, 1, 4, &so);
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = http_connect(&rig);
        http_post(fds[i], "/v1/completions", "{\"prompt\":\"@stall\"}");
    }
    while (http_rows_in_use(&rig) < 3)
        usleep(1000);
    serve_stop(rig.server);
    StrBuf b = buffer();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(http_answer(fds[i], &b), 503);
        assert_non_null(strstr(b.ptr, "stopping"));
        close(fds[i]);
    }
    rig_join(&rig);
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_close_with_requests_running(void **state)
{
    (void)state;
    Rig rig;
    const ServerOptions so = {.drain_ms = 60000};
    rig_fake(&rig, 2, 8, &so);
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = http_connect(&rig);
        http_post(fds[i], "/v1/completions",
                  i & 1 ? "{\"prompt\":\"@stall\"}"
                        : "{\"prompt\":\"@slow @long\",\"stream\":true,"
                          "\"max_tokens\":10000}");
    }
    while (http_rows_in_use(&rig) < 6)
        usleep(1000);
    rig_close(&rig); /* stops twice: cancels at once */
    for (int i = 0; i < 6; i++)
        close(fds[i]);
}

/* Every allocation of a request fails once: an error or a dropped connection, never a stuck row,
 * and the next request is served. */
static void test_allocation_failures(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 4, NULL);
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],"
        "\"stop\":[\"x\"],\"logit_bias\":{\"5\":1},\"logprobs\":true,\"top_logprobs\":2}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":true,"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}"};
    StrBuf b = buffer();
    strbuf_add_cstr(&b, "room, so that this side allocates less");
    for (size_t k = 0; k < COUNT_OF(bodies); k++) {
        int n_failed = 0;
        for (uint64_t n = 1; n < 400; n++) {
            const int fd = http_connect(&rig);
            StrBuf request = buffer();
            strbuf_printf(&request,
                          "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: "
                          "close\r\nContent-Length: %zu\r\n\r\n%s",
                          strlen(bodies[k]), bodies[k]);
            mem_fail_at(n, false);
            http_send(fd, strbuf_str(&request));
            char buf[16384];
            size_t got = 0;
            ssize_t rc;
            while ((rc = recv(fd, buf + got, sizeof buf - 1 - got, 0)) > 0)
                got += (size_t)rc;
            buf[got] = '\0';
            const bool reached = mem_count_get() >= n;
            mem_fail_at(0, false);
            close(fd);
            strbuf_free(&request);
            n_failed += got == 0 || strncmp(buf, "HTTP/1.1 200", 12) != 0;
            assert_true(http_wait_idle(&rig, 5000));
            if (!reached)
                break;
        }
        assert_true(n_failed > 5);
        assert_int_equal(http_call(&rig, "/v1/chat/completions", bodies[k], &b), 200);
    }
    strbuf_free(&b);
    rig_close(&rig);
}

static void test_port_in_use(void **state)
{
    (void)state;
    Rig rig;
    rig_fake(&rig, 1, 0, NULL);
    int fd;
    int port;
    Error err = {0};
    assert_false(net_listen("127.0.0.1", rig.port, &fd, &port, &err));
    assert_int_equal(err.code, ERR_FAILED);
    assert_non_null(strstr(err.msg, "the port is in use"));
    assert_false(net_listen("host.invalid", 0, &fd, &port, &err));
    assert_non_null(strstr(err.msg, "host.invalid"));
    rig_close(&rig);
}

static void test_model_name(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"/a/b/smol.gguf", "smol"}, {"smol", "smol"}, {"/a/b/", "b"},
        {"./x.y", "x.y"},           {"/", "/"},       {".gguf", ".gguf"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Str name = serve_model_name(cases[i][0]);
        char got[64];
        snprintf(got, sizeof got, "%.*s", (int)name.len, name.ptr);
        assert_string_equal(got, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_stream),
        cmocka_unit_test(test_completion_stream),
        cmocka_unit_test(test_first_chunk_has_role),
        cmocka_unit_test(test_keep_alive_after_stream),
        cmocka_unit_test(test_pipelined_during_stream),
        cmocka_unit_test(test_disconnects),
        cmocka_unit_test(test_half_close_cancels),
        cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_write_timeout),
        cmocka_unit_test(test_slow_loris),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_api_key),
        cmocka_unit_test(test_cors),
        cmocka_unit_test(test_device_lost),
        cmocka_unit_test(test_device_lost_before_answer),
        cmocka_unit_test(test_stop_lets_requests_end),
        cmocka_unit_test(test_stop_cancels_at_the_deadline),
        cmocka_unit_test(test_close_with_requests_running),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_model_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
