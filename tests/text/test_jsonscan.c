/* The pull scanner reads what json.h reads, and refuses with a place. */
#include "text/text_data.h"

#include "text/jsonscan.h"

static void test_walk(void **state)
{
    (void)state;
    static const char text[] =
        " { \"a\" : 1 , \"b\\n\\u00e9\\ud83d\\ude00\\u0000\": [\"x\", [\"\"], "
        "[] ,\"y\\\\\"],\"c\":{\"d\":[1,{\"]\":\"}\"}]}, \"e\":-1.5e3}\n";
    JsonScan s;
    Error err = {0};
    bool more;
    Str key;
    Str str;
    int64_t n;
    jsonscan_init(&s, "t", str_from(text));
    assert_true(jsonscan_open(&s, '{', &err));
    assert_true(jsonscan_key(&s, &more, &key, &err) && more);
    assert_text("key", key, str_from("a"));
    assert_true(jsonscan_uint(&s, 10, &n, &err));
    assert_int_equal(n, 1);
    assert_true(jsonscan_key(&s, &more, &key, &err) && more);
    assert_text("key", key, (Str){"b\n\xC3\xA9\xF0\x9F\x98\x80\0", 9});
    assert_true(jsonscan_open(&s, '[', &err));
    assert_true(jsonscan_item(&s, &more, &err) && more);
    assert_true(jsonscan_string(&s, &str, &err));
    assert_text("item", str, str_from("x"));
    assert_true(jsonscan_item(&s, &more, &err) && more);
    assert_true(jsonscan_open(&s, '[', &err));
    assert_true(jsonscan_item(&s, &more, &err) && more);
    assert_true(jsonscan_string(&s, &str, &err));
    assert_int_equal(str.len, 0);
    assert_true(jsonscan_item(&s, &more, &err) && !more);
    assert_true(jsonscan_item(&s, &more, &err) && more);
    assert_true(jsonscan_open(&s, '[', &err));
    assert_true(jsonscan_item(&s, &more, &err) && !more);
    assert_true(jsonscan_item(&s, &more, &err) && more);
    assert_true(jsonscan_string(&s, &str, &err));
    assert_text("item", str, str_from("y\\"));
    assert_true(jsonscan_item(&s, &more, &err) && !more);
    assert_true(jsonscan_key(&s, &more, &key, &err) && more);
    assert_true(jsonscan_skip(&s, &str, &err));
    assert_text("raw", str, str_from("{\"d\":[1,{\"]\":\"}\"}]}"));
    assert_true(jsonscan_key(&s, &more, &key, &err) && more);
    assert_true(jsonscan_skip(&s, &str, &err));
    assert_text("raw", str, str_from("-1.5e3"));
    assert_true(jsonscan_key(&s, &more, &key, &err) && !more);
    assert_int_equal(jsonscan_peek(&s), 0);
    jsonscan_free(&s);
}

/* Strings as jansson reads them, over random texts of the interesting characters. */
static void test_strings(void **state)
{
    (void)state;
    static const char *const bits[] = {"a",
                                       "\\n",
                                       "\\\"",
                                       "\\u00e9",
                                       "\\ud83d\\ude00",
                                       "\\/",
                                       "\\\\",
                                       "\xC3\xA9",
                                       "\"",
                                       "\\x",
                                       "\\u",
                                       "\xff",
                                       "\\ud83d",
                                       "\\u12",
                                       "\\t",
                                       "z",
                                       "\x7f",
                                       "\xF0\x9F\x98\x80"};
    uint64_t seed = 9;
    for (int round = 0; round < 20000; round++) {
        char text[128] = "\"";
        for (uint32_t i = next_random(&seed) % 6; i > 0; i--)
            strncat(text, bits[next_random(&seed) % COUNT_OF(bits)], 20);
        strncat(text, "\"", 2);
        json_error_t je;
        json_t *want = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
        JsonScan s;
        Error err = {0};
        Str got;
        jsonscan_init(&s, "t", str_from(text));
        const bool ok = jsonscan_string(&s, &got, &err) && jsonscan_peek(&s) == '\0';
        if (ok != (want != NULL))
            fail_msg("%s: %s", text, ok ? je.text : err.msg);
        if (ok)
            assert_text(text, got, json_text(want));
        json_decref(want);
        jsonscan_free(&s);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t max, want; /* -1: refused */
    } cases[] = {{"0", 5, 0},     {"5", 5, 5},
                 {"6", 5, -1},    {"-1", 5, -1},
                 {"", 5, -1},     {"1.0", 5, -1},
                 {"1e1", 50, -1}, {"x", 5, -1},
                 {"12,", 50, 12}, {"99999999999999999999999", INT64_MAX, -1}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        JsonScan s;
        Error err = {0};
        int64_t n = -1;
        jsonscan_init(&s, "t", str_from(cases[i].text));
        const bool ok = jsonscan_uint(&s, cases[i].max, &n, &err);
        assert_int_equal(ok, cases[i].want >= 0);
        if (ok)
            assert_int_equal(n, cases[i].want);
        jsonscan_free(&s);
    }
}

static void test_place(void **state)
{
    (void)state;
    JsonScan s;
    Error err = {0};
    bool more;
    Str key;
    jsonscan_init(&s, "doc", str_from("{\n\"a\"\n 1}"));
    assert_true(jsonscan_open(&s, '{', &err));
    assert_false(jsonscan_key(&s, &more, &key, &err));
    assert_string_equal(err.msg, "doc: line 3, byte 7: wanted ':' after a key");
    jsonscan_free(&s);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
