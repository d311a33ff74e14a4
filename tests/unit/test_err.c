/* Errors: messages that fit, prefixes, the table of codes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"

#include <string.h>

static void test_set_and_wrap(void **state)
{
    (void)state;
    Error err;
    assert_false(err_set(&err, ERR_FORMAT, "tensor %s: %d", "a", 3));
    assert_int_equal(err.code, ERR_FORMAT);
    assert_string_equal(err.msg, "tensor a: 3");
    assert_false(err_wrap(&err, "layer %d", 7));
    assert_int_equal(err.code, ERR_FORMAT);
    assert_string_equal(err.msg, "layer 7: tensor a: 3");
    assert_false(err_set(NULL, ERR_FORMAT, "nobody listens"));
    assert_false(err_wrap(NULL, "nobody"));
    assert_false(err_nomem(&err, "arena", 12));
    assert_int_equal(err.code, ERR_NOMEM);
}

/* A message that is cut ends on a whole character, whatever the length of what came before. */
static void test_cut_on_a_character(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
    } chars[] = {{"x", 1}, {"\xc3\xa9", 2}, {"\xe2\x82\xac", 3}, {"\xf0\x9f\x98\x80", 4}};
    (void)state;
    for (size_t c = 0; c < COUNT_OF(chars); c++) {
        for (int pad = 0; pad < 8; pad++) {
            char long_text[400] = "";
            size_t n = (size_t)pad;
            memset(long_text, 'a', n);
            while (n + chars[c].bytes < sizeof long_text) {
                memcpy(long_text + n, chars[c].text, chars[c].bytes);
                n += chars[c].bytes;
            }
            Error err;
            err_set(&err, ERR_IO, "%s", long_text);
            const size_t len = strlen(err.msg);
            assert_true(len < sizeof err.msg && len + 4 >= sizeof err.msg - 1);
            assert_int_equal((len - (size_t)pad) % chars[c].bytes, 0);
            err_wrap(&err, "prefix");
            assert_true(strlen(err.msg) < sizeof err.msg);
            assert_memory_equal(err.msg, "prefix: ", 8);
        }
    }
}

static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < ERR_COUNT; i++) {
        assert_non_null(err_name((ErrCode)i));
        assert_in_range(err_http_status((ErrCode)i), 200, 599);
    }
    assert_int_equal(err_exit_code(ERR_FORMAT), 3);
    assert_int_equal(err_exit_code(ERR_FIT), 4);
    assert_int_equal(err_exit_code(ERR_LOST), 70);
    assert_string_equal(err_name(ERR_COUNT), "unknown");
    assert_int_equal(err_exit_code(ERR_COUNT), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_and_wrap),
        cmocka_unit_test(test_cut_on_a_character),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
