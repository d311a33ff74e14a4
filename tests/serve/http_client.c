#include "serve/http_client.h"

#include "base/clock.h"
#include "base/json.h"
#include "serve/net.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MAX = 64 << 20 };

static void *loop(void *arg)
{
    Rig *rig = arg;
    rig->exit_code = serve_run(rig->server);
    return NULL;
}

void rig_open(Rig *rig, const char *model, const MereOptions *mo, const ServerOptions *so)
{
    *rig = (Rig){0};
    MereError merr = {0};
    if (!mere_engine_open(mo, &rig->engine, &merr) ||
        !mere_model_open(rig->engine, (MereStr){model, strlen(model)}, mo, &rig->model, &merr))
        fail_msg("%s: %s", model, merr.msg);
    ServerOptions opt = so ? *so : (ServerOptions){0};
    opt.engine = rig->engine;
    opt.model = rig->model;
    opt.model_name = model;
    Error err = {0};
    int fd;
    if (!net_listen("127.0.0.1", 0, &fd, &rig->port, &err) ||
        !serve_open(&opt, fd, &rig->server, &err))
        fail_msg("server: %s", err.msg);
    assert_int_equal(pthread_create(&rig->thread, NULL, loop, rig), 0);
}

void rig_join(Rig *rig)
{
    if (rig->thread)
        pthread_join(rig->thread, NULL);
    rig->thread = 0;
}

void rig_close(Rig *rig)
{
    serve_stop(rig->server);
    serve_stop(rig->server);
    rig_join(rig);
    serve_close(rig->server);
    mere_model_close(rig->model);
    mere_engine_close(rig->engine);
}

int http_connect(const Rig *rig)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    const struct sockaddr_in addr = {.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)rig->port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (const struct sockaddr *)&addr, sizeof addr) != 0)
        fail_msg("cannot connect to port %d", rig->port);
    return fd;
}

/* A server that refuses may close before it has read everything: no failure here. */
void http_send(int fd, Str bytes)
{
    size_t done = 0;
    while (done < bytes.len) {
        const ssize_t n = send(fd, bytes.ptr + done, bytes.len - done, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

void http_post(int fd, const char *path, const char *body)
{
    StrBuf b;
    strbuf_init(&b, ANSWER_MAX);
    strbuf_printf(&b, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", path,
                  strlen(body), body);
    http_send(fd, strbuf_str(&b));
    strbuf_free(&b);
}

/* One read. 1: bytes came, 0: closed, -1: the time is over. */
static int read_some(int fd, StrBuf *out, uint64_t deadline_ns)
{
    const uint64_t now = clock_ns();
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (now >= deadline_ns || poll(&p, 1, (int)((deadline_ns - now) / 1000000) + 1) <= 0)
        return -1;
    char buf[16384];
    const ssize_t n = recv(fd, buf, sizeof buf, 0);
    if (n <= 0)
        return 0;
    strbuf_add(out, buf, (size_t)n);
    return 1;
}

bool http_read(int fd, StrBuf *out, const char *until, int ms)
{
    const uint64_t deadline = clock_ns() + (uint64_t)ms * 1000000;
    for (;;) {
        if (until && out->ptr && strstr(out->ptr, until))
            return true;
        const int rc = read_some(fd, out, deadline);
        if (rc <= 0)
            return rc == 0 && !until;
    }
}

static bool read_exactly(int fd, StrBuf *in, size_t len, uint64_t deadline)
{
    while (in->len < len)
        if (read_some(fd, in, deadline) <= 0)
            return false;
    return true;
}

int http_answer(int fd, StrBuf *body)
{
    const uint64_t deadline = clock_ns() + UINT64_C(60000000000);
    StrBuf in;
    strbuf_init(&in, ANSWER_MAX);
    strbuf_clear(body);
    int status = 0;
    const char *head_end = NULL;
    while (!head_end) {
        if (read_some(fd, &in, deadline) <= 0)
            goto done;
        head_end = strstr(in.ptr, "\r\n\r\n");
    }
    int64_t code;
    if (in.len < 12 || !str_to_int((Str){in.ptr + 9, 3}, 100, 999, &code))
        goto done;
    size_t at = (size_t)(head_end - in.ptr) + 4;
    const char *field = strcasestr(in.ptr, "\r\nContent-Length:");
    const bool chunked = strcasestr(in.ptr, "\r\nTransfer-Encoding: chunked") != NULL;
    if (field && field < head_end) {
        const size_t len = (size_t)strtoull(field + 17, NULL, 10);
        if (!read_exactly(fd, &in, at + len, deadline))
            goto done;
        strbuf_add(body, in.ptr + at, len);
        status = (int)code;
    } else if (chunked) {
        for (;;) {
            const char *eol;
            while (!(eol = strstr(in.ptr + at, "\r\n")))
                if (read_some(fd, &in, deadline) <= 0)
                    goto done;
            const size_t len = (size_t)strtoull(in.ptr + at, NULL, 16);
            at = (size_t)(eol - in.ptr) + 2;
            if (!read_exactly(fd, &in, at + len + 2, deadline))
                goto done;
            strbuf_add(body, in.ptr + at, len);
            at += len + 2;
            if (len == 0)
                break;
        }
        status = (int)code;
    } else if (code == 204) {
        status = (int)code;
    }
done:
    strbuf_free(&in);
    return status;
}

int http_call(const Rig *rig, const char *path, const char *json, StrBuf *body)
{
    const int fd = http_connect(rig);
    http_post(fd, path, json);
    const int status = http_answer(fd, body);
    close(fd);
    return status;
}

int http_rows_in_use(const Rig *rig)
{
    StrBuf b;
    strbuf_init(&b, 1 << 16);
    const int fd = http_connect(rig);
    http_send(fd, str_from("GET /health HTTP/1.1\r\nHost: x\r\n\r\n"));
    const int status = http_answer(fd, &b);
    close(fd);
    assert_int_equal(status, 200);
    Error err = {0};
    json_t *v = json_parse("health", strbuf_str(&b), &err);
    int live = -1;
    int queued = -1;
    if (!v || !json_get_int(v, "health", "live", 0, 1 << 20, &live, &err) ||
        !json_get_int(v, "health", "queued", 0, 1 << 20, &queued, &err))
        fail_msg("%s", err.msg);
    json_decref(v);
    strbuf_free(&b);
    return live + queued;
}

bool http_wait_idle(const Rig *rig, int ms)
{
    const uint64_t deadline = clock_ns() + (uint64_t)ms * 1000000;
    while (http_rows_in_use(rig) > 0) {
        if (clock_ns() > deadline)
            return false;
        usleep(5000);
    }
    return true;
}
