/* MERE_FAULT: which call fails, with which code, and what is no value for it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "device/fault.h"

#include <stdlib.h>
#include <string.h>

static void set(const char *value)
{
    assert_int_equal(value ? setenv("MERE_FAULT", value, 1) : unsetenv("MERE_FAULT"), 0);
}

/* The results of five calls: "0 0 7 0 0". */
static void expect(Fault *f, const char *value, const int want[5])
{
    Error err;
    set(value);
    if (!fault_read(f, &err))
        fail_msg("%s: %s", value, err.msg);
    for (int i = 0; i < 5; i++) {
        const int got = fault_next(f);
        if (got != want[i])
            fail_msg("%s, call %d: %d, wanted %d", value, i + 1, got, want[i]);
    }
}

static void test_calls(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        int want[5];
    } cases[] = {
        {NULL, {0}},      {"gpu:3", {0, 0, 9, 0, 0}},
        {"gpu:3", {0}}, /* the same: it goes on */
        {"gpu:1:4", {4}}, {"gpu:3", {0, 0, 9, 0, 0}},
        {"gpu:6", {0}},   {"gpu:5:1", {0, 0, 0, 0, 1}},
        {"gpux:1", {0}},  {"gp:1", {0}},
        {"", {0}},        {"gpu:2", {0, 9, 0, 0, 0}},
    };
    Fault f = {.name = "gpu", .code = 9, .min = 1, .max = 99};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect(&f, cases[i].value, cases[i].want);
    fault_at(&f, 2, 5);
    assert_int_equal(fault_next(&f), 0);
    assert_int_equal(fault_next(&f), 5);
    assert_int_equal(fault_next(&f), 0);
    fault_at(&f, 1, 5);
    fault_at(&f, 0, 5);
    assert_int_equal(fault_next(&f), 0);
    set(NULL);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const values[] = {
        "gpu:",
        "gpu:0",
        "gpu:-1",
        "gpu:x",
        "gpu:1:",
        "gpu:1:0",
        "gpu:1:100",
        "gpu:1:x",
        "gpu:1:2:3",
        "gpu: 1",
        "gpu:00000000000000000000000000000000000000000000000000000000000001"};
    Error err;
    Fault f = {.name = "gpu", .code = 9, .min = 1, .max = 99};
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        set(values[i]);
        if (fault_read(&f, &err))
            fail_msg("%s was read", values[i]);
        assert_int_equal(err.code, ERR_USAGE);
        assert_non_null(strstr(err.msg, "wanted gpu:N[:CODE], CODE 1 to 99, N from 1"));
        assert_int_equal(fault_next(&f), 0);
    }
    Fault bare = {.name = "cpu", .code = 1, .min = 1, .max = 1};
    set("cpu:2:1");
    assert_false(fault_read(&bare, &err));
    assert_non_null(strstr(err.msg, "wanted cpu:N, N from 1"));
    set(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
