/* Requests and what must come back, from cases/, against a server on fake_mere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "serve/fake_mere.c"
#include "serve/http_client.c"

enum { CASE_MAX = 4 << 20, BODY_LIMIT = 65536 };

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Text with \xHH and {x*N} written out and CR LF for each line end. */
static void expand(StrBuf *out, Str text)
{
    for (size_t i = 0; i < text.len; i++) {
        const char *p = text.ptr + i;
        const size_t left = text.len - i;
        if (left >= 4 && p[0] == '\\' && p[1] == 'x' && hex(p[2]) >= 0 && hex(p[3]) >= 0) {
            const char byte = (char)(hex(p[2]) * 16 + hex(p[3]));
            strbuf_add(out, &byte, 1);
            i += 3;
        } else if (left >= 5 && p[0] == '{' && p[2] == '*' && p[3] >= '0' && p[3] <= '9') {
            char *end;
            const long n = strtol(p + 3, &end, 10);
            for (long k = 0; k < n; k++)
                strbuf_add(out, p + 1, 1);
            i = (size_t)(end - text.ptr);
        } else {
            strbuf_add(out, *p == '\n' ? "\r\n" : p, *p == '\n' ? 2 : 1);
        }
    }
}

/* The bytes to send: no line end after the last line, unless that is empty. */
static void build(StrBuf *out, Str text)
{
    StrBuf all;
    strbuf_init(&all, CASE_MAX);
    const char *eol = memchr(text.ptr, '\n', text.len);
    const size_t first = eol ? (size_t)(eol - text.ptr) : text.len;
    if (str_starts(text, "POST ") && !memmem(text.ptr, first, "HTTP/", 5)) {
        strbuf_printf(&all, "%.*s HTTP/1.1\r\nHost: x\r\nContent-Length: {length}", (int)first,
                      text.ptr);
        text.ptr += first;
        text.len -= first;
    }
    expand(&all, text);
    if (text.len > 0 && text.ptr[text.len - 1] == '\n')
        strbuf_add_cstr(&all, "\r\n");
    char *at = strstr(all.ptr, "{length}");
    const char *body = strstr(all.ptr, "\r\n\r\n");
    if (at && body && at < body) {
        strbuf_add(out, all.ptr, (size_t)(at - all.ptr));
        strbuf_printf(out, "%zu", all.len - (size_t)(body + 4 - all.ptr));
        strbuf_add(out, at + 8, all.len - (size_t)(at + 8 - all.ptr));
    } else {
        strbuf_add(out, all.ptr, all.len);
    }
    strbuf_free(&all);
}

static int count(const char *in, const char *what)
{
    int n = 0;
    for (const char *p = in; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

/* True: all that is expected and not yet there could still come. */
static bool satisfied(Str expect, const StrBuf *got, char why[512])
{
    const char *text = got->ptr ? got->ptr : "";
    while (expect.len > 0) {
        const char *eol = memchr(expect.ptr, '\n', expect.len);
        const size_t len = eol ? (size_t)(eol - expect.ptr) : expect.len;
        char line[400];
        snprintf(line, sizeof line, "%.*s", (int)len, expect.ptr);
        expect.ptr += len + (eol ? 1 : 0);
        expect.len -= len + (eol ? 1 : 0);
        bool ok = true;
        if (strncmp(line, "status ", 7) == 0) {
            ok = strlen(text) > 12 && strncmp(text + 9, line + 7, 3) == 0;
        } else if (strncmp(line, "contains ", 9) == 0) {
            ok = strstr(text, line + 9) != NULL;
        } else if (strncmp(line, "lacks ", 6) == 0) {
            ok = strstr(text, line + 6) == NULL;
        } else if (strncmp(line, "answers ", 8) == 0) {
            ok = count(text, "HTTP/1.1 ") == line[8] - '0';
        } else if (strcmp(line, "idle") == 0) {
            ok = got->len == 0;
        } else if (line[0] && line[0] != '#') {
            ok = false;
        }
        if (!ok) {
            snprintf(why, 512, "%.300s", line);
            return false;
        }
    }
    return true;
}

static bool run_case(const Rig *rig, const char *file, const char *name, Str request, Str expect)
{
    StrBuf bytes, got;
    strbuf_init(&bytes, CASE_MAX);
    strbuf_init(&got, CASE_MAX);
    build(&bytes, request);
    const bool idle = memmem(expect.ptr, expect.len, "idle", 4) != NULL;
    const int fd = http_connect(rig);
    http_send(fd, strbuf_str(&bytes));
    char why[512];
    bool ok = false;
    const uint64_t deadline = clock_ns() + (idle ? UINT64_C(200000000) : UINT64_C(5000000000));
    int rc = 1;
    while (rc > 0 && !(ok && !idle)) {
        ok = satisfied(expect, &got, why);
        if (ok && !idle)
            break;
        rc = read_some(fd, &got, deadline);
    }
    ok = satisfied(expect, &got, why) && !(idle && rc == 0);
    close(fd);
    if (!ok)
        print_error("%s: %s: not met: %s\ngot (%zu bytes): %.1500s\n", file, name, why, got.len,
                    got.ptr ? got.ptr : "");
    strbuf_free(&bytes);
    strbuf_free(&got);
    return ok;
}

static int run_file(const Rig *rig, const char *path, int *n_cases)
{
    Arena a;
    arena_init(&a, "cases");
    Error err = {0};
    Str text;
    if (!file_read(&a, path, CASE_MAX, &text, &err))
        fail_msg("%s", err.msg);
    int bad = 0;
    const char *p = strstr(text.ptr, "\n== ");
    while (p) {
        p += 4;
        const char *eol = strchr(p, '\n');
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)(eol - p), p);
        const char *sep = strstr(eol, "\n---\n");
        const char *next = strstr(eol, "\n== ");
        assert_non_null(sep);
        const Str request = {eol + 1, sep > eol ? (size_t)(sep - eol - 1) : 0};
        const char *from = sep + 5;
        const Str expect = {from, next ? (size_t)(next - from) : strlen(from)};
        bad += !run_case(rig, path, name, request, expect);
        (*n_cases)++;
        p = next;
    }
    arena_free(&a);
    return bad;
}

static void test_cases(void **state)
{
    (void)state;
    Rig rig;
    MereOptions mo = MERE_OPTIONS_INIT;
    mo.slots = 4;
    const ServerOptions so = {.max_body_bytes = BODY_LIMIT, .max_header_bytes = 16384};
    rig_open(&rig, "/models/fake.gguf", &mo, &so);
    int bad = 0;
    int n = 0;
    bad += run_file(&rig, TEST_DATA "/../serve/cases/protocol.http", &n);
    bad += run_file(&rig, TEST_DATA "/../serve/cases/fields.http", &n);
    assert_true(http_wait_idle(&rig, 5000));
    rig_close(&rig);
    print_message("%d cases\n", n);
    if (bad)
        fail_msg("%d of %d cases", bad, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
