#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/term.h"

#include <stdlib.h>

static void check(Str text, bool visible, const char *want)
{
    char *got = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&got, &len);
    assert_non_null(f);
    assert_true(term_write(f, text, visible));
    fclose(f);
    assert_string_equal(got, want);
    free(got);
}

static void test_control_characters(void **state)
{
    (void)state;
    check(str_from("a\tb\nc"), true, "a\tb\nc");
    check(str_from("\033[31mred\007\r\177"), true, "^[[31mred^G^M^?");
    check((Str){"a\0b", 3}, true, "a^@b");
    check(str_from("\xC2\x9B"
                   "31m\xC2\xA0"),
          true, "<9b>31m\xC2\xA0");
    check(str_from("caf\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x99\x82"), true,
          "caf\xC3\xA9 \xE4\xBD\xA0 \xF0\x9F\x99\x82");
    check(str_from("\xC2"), true, "\xC2");
    check(str_from("\033[31m"), false, "\033[31m");
    check((Str){NULL, 0}, false, "");
}

static void test_write_fails(void **state)
{
    (void)state;
    FILE *f = fopen("/dev/full", "w");
    if (!f)
        skip();
    setvbuf(f, NULL, _IONBF, 0);
    assert_false(term_write(f, str_from("a"), false));
    assert_false(term_write(f, str_from("a"), true));
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_control_characters),
                                       cmocka_unit_test(test_write_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
