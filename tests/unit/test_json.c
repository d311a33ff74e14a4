/* JSON: limits, and getters whose messages name document, key and value. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/json.h"
#include "base/mem.h"

static json_t *parse(const char *text)
{
    Error err = {0};
    json_t *v = json_parse("config.json", str_from(text), &err);
    if (!v)
        fail_msg("%s", err.msg);
    return v;
}

static void test_refuses(void **state)
{
    static const char *const bad[] = {
        "",         "{",     "{\"a\":1,}",   "{\"a\":1,\"a\":2}", "{\"a\":nan}",
        "\"\xff\"", "[1] 2", "{\"a\":1e999}"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        Error err = {0};
        json_t *v = json_parse("config.json", str_from(bad[i]), &err);
        if (v)
            fail_msg("accepted: %s", bad[i]);
        assert_int_equal(err.code, ERR_FORMAT);
        assert_non_null(strstr(err.msg, "config.json"));
    }
}

static void test_depth(void **state)
{
    (void)state;
    char text[400];
    Error err = {0};
    for (int depth = JSON_DEPTH; depth <= JSON_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        json_t *v = json_parse("deep", (Str){text, (size_t)depth * 2}, &err);
        assert_int_equal(v != NULL, depth <= JSON_DEPTH);
        json_decref(v);
    }
    assert_non_null(strstr(err.msg, "deeper"));
    json_t *v =
        parse("\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"");
    json_decref(v); /* brackets in a string do not count */
}

static void test_getters(void **state)
{
    (void)state;
    Error err = {0};
    json_t *obj =
        parse("{\"n\": 32, \"big\": 5e9, \"x\": 0.5, \"t\": true, \"s\": \"abc\", \"z\": null}");
    int n = 0;
    int64_t big = 0;
    double x = 0;
    bool t = false;
    Str s;
    assert_true(json_get_int(obj, "c", "n", 1, 100, &n, &err));
    assert_int_equal(n, 32);
    assert_true(json_get_i64(obj, "c", "big", 0, INT64_MAX, &big, &err)); /* whole-valued real */
    assert_int_equal(big, 5000000000);
    assert_true(json_get_f64(obj, "c", "x", &x, &err) && x == 0.5);
    assert_true(json_get_f64(obj, "c", "n", &x, &err) && x == 32.0);
    assert_true(json_get_bool_or(obj, "c", "t", false, &t, &err) && t);
    assert_true(json_get_str_or(obj, "c", "s", &s, &err) && str_is(s, "abc"));
    assert_true(json_get_str_or(obj, "c", "none", &s, &err) && !s.ptr);
    assert_true(json_get_int_or(obj, "c", "z", 0, 9, 5, &n, &err) && n == 5); /* null: missing */
    assert_true(json_get_f64_or(obj, "c", "none", 1.5, &x, &err) && x == 1.5);

    assert_false(json_get_int(obj, "c", "none", 0, 9, &n, &err));
    assert_non_null(strstr(err.msg, "c: key \"none\" is missing"));
    assert_false(json_get_int(obj, "c", "n", 0, 9, &n, &err));
    assert_non_null(strstr(err.msg, "\"n\" is 32, wanted 0 to 9"));
    assert_false(json_get_int(obj, "c", "x", 0, 9, &n, &err));
    assert_false(json_get_int(obj, "c", "s", 0, 9, &n, &err));
    assert_non_null(strstr(err.msg, "a string"));
    assert_false(json_get_bool_or(obj, "c", "n", false, &t, &err));
    assert_false(json_get_str_or(obj, "c", "n", &s, &err));
    assert_false(json_get_f64(obj, "c", "t", &x, &err));
    json_decref(obj);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const size_t before = mem_in_use();
    /* Long strings and many keys, so that jansson's buffers and tables grow while they are filled.
     */
    StrBuf doc;
    strbuf_init(&doc, 1 << 16);
    strbuf_add_cstr(&doc, "{\"a\": [1, 2.5, \"three\", {\"b\": null}], \"long\": \"");
    for (int i = 0; i < 100; i++)
        strbuf_add_cstr(&doc, "text \\u00e9\\n");
    strbuf_add_cstr(&doc, "\"");
    for (int i = 0; i < 40; i++)
        strbuf_printf(&doc, ", \"key %d with a long name\": [%d]", i, i);
    strbuf_add_cstr(&doc, "}");
    const Str text = strbuf_str(&doc);
    const size_t held = mem_in_use();
    uint64_t n = 0;
    for (;;) {
        Error err = {0};
        mem_fail_at(++n, false);
        json_t *v = json_parse("doc", text, &err);
        mem_fail_at(0, false);
        json_decref(v);
        assert_int_equal(mem_in_use(), held);
        if (v)
            break;
        assert_int_equal(err.code, ERR_NOMEM);
    }
    assert_true(n > 200);
    strbuf_free(&doc);
    assert_int_equal(mem_in_use(), before);
}

/* A string whose closing quote is the byte that the parser's buffer has no room for: jansson then
 * looks for the quote behind the buffer. */
static void test_out_of_memory_at_a_quote(void **state)
{
    (void)state;
    for (int len = 0; len < 300; len++) {
        char text[320];
        const int n = snprintf(text, sizeof text, "[\"%0*d\"]", len, 0);
        const size_t before = mem_in_use();
        for (uint64_t at = 1;; at++) {
            Error err = {0};
            mem_fail_at(at, at % 2 == 0);
            json_t *v = json_parse("doc", (Str){text, (size_t)n}, &err);
            mem_fail_at(0, false);
            json_decref(v);
            assert_int_equal(mem_in_use(), before);
            if (v)
                break;
            assert_int_equal(err.code, ERR_NOMEM);
        }
    }
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_getters),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_out_of_memory_at_a_quote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
