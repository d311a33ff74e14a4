/* Strings: comparing, parsing numbers, buffers with a limit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"

static void test_compare(void **state)
{
    (void)state;
    const Str s = str_from("model.gguf");
    assert_true(str_is(s, "model.gguf"));
    assert_false(str_is(s, "model.ggu"));
    assert_true(str_starts(s, "model"));
    assert_true(str_ends(s, ".gguf"));
    assert_false(str_starts(s, "model.gguf2"));
    assert_false(str_ends(s, "a model.gguf"));
    assert_true(str_eq((Str){NULL, 0}, str_from("")));
    assert_true(str_starts(s, "") && str_ends(s, ""));
}

static void test_to_int(void **state)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } cases[] = {{"0", true, 0},
                 {"-5", true, -5},
                 {"100", true, 100},
                 {"101", false, 0}, /* above the limit */
                 {"-6", false, 0},
                 {"", false, 0},
                 {" 1", false, 0},
                 {"1 ", false, 0},
                 {"1x", false, 0},
                 {"0x1", false, 0},
                 {"99999999999999999999", false, 0},
                 {"000000000000000000000000001", false, 0}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t v = 0;
        const bool ok = str_to_int(str_from(cases[i].text), -5, 100, &v);
        if (ok != cases[i].ok || (ok && v != cases[i].value))
            fail_msg("\"%s\": %d %d, wanted %d %d", cases[i].text, ok, (int)v, cases[i].ok,
                     (int)cases[i].value);
    }
    int64_t v;
    assert_true(str_to_int((Str){"12345", 2}, 0, 100, &v)); /* not NUL-terminated */
    assert_int_equal(v, 12);
}

static void test_to_double(void **state)
{
    (void)state;
    double v = 0;
    assert_true(str_to_double(str_from("-1.5e3"), &v));
    assert_true(v == -1500.0);
    assert_false(str_to_double(str_from(""), &v));
    assert_false(str_to_double(str_from("1e999"), &v));
    assert_false(str_to_double(str_from("nan"), &v));
    assert_false(str_to_double(str_from("1.5 "), &v));
}

static void test_buffer_grows_to_its_limit(void **state)
{
    (void)state;
    Error err = {0};
    StrBuf b;
    strbuf_init(&b, 1000);
    for (int i = 0; i < 100; i++)
        assert_true(strbuf_add(&b, "0123456789", 10));
    assert_int_equal(b.len, 1000);
    assert_true(strbuf_check(&b, "text", &err));
    assert_false(strbuf_add(&b, "x", 1));
    assert_true(b.failed);
    assert_false(strbuf_check(&b, "text", &err));
    assert_int_equal(err.code, ERR_NOMEM);
    strbuf_clear(&b);
    assert_true(strbuf_printf(&b, "%d and %s", 7, "eight"));
    assert_string_equal(b.ptr, "7 and eight");
    assert_false(strbuf_printf(&b, "%01000d", 1));
    strbuf_free(&b);
    assert_true(str_is(strbuf_str(&b), ""));
}

static void test_buffer_out_of_memory(void **state)
{
    (void)state;
    StrBuf b;
    strbuf_init(&b, 1000);
    mem_fail_at(1, false);
    assert_false(strbuf_add_cstr(&b, "x"));
    mem_fail_at(0, false);
    assert_false(strbuf_add_cstr(&b, "x")); /* sticky */
    strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_to_int),
        cmocka_unit_test(test_to_double),
        cmocka_unit_test(test_buffer_grows_to_its_limit),
        cmocka_unit_test(test_buffer_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
