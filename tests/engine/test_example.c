/* examples/generate.c is built and run: on a tiny model, and on none. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/tiny_fill.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Runs the example, its output into buf; returns its exit code. */
static int run(const char *args, char *buf, size_t size)
{
    char command[4096];
    const int n = snprintf(command, sizeof command, "%s/generate %s 2>&1", TEST_TMP, args);
    assert_true(n > 0 && (size_t)n < sizeof command);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    const size_t got = fread(buf, 1, size - 1, f);
    buf[got] = '\0';
    const int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void it_generates(void **state)
{
    (void)state;
    Arena a;
    Error err;
    const char *dir;
    arena_init(&a, "test");
    if (!tiny_fill(&a, TEST_DATA, "llama", TEST_TMP, &dir, &err))
        fail_msg("%s", err.msg);
    char args[4096];
    char out[8192];
    snprintf(args, sizeof args, "%s 'Once upon a time' 8 64", dir);
    const int code = run(args, out, sizeof out);
    if (code != 0 || !(strstr(out, "length: 8 tokens") || strstr(out, "stop: ")))
        fail_msg("exit code %d: %s", code, out);
    arena_free(&a);
}

static void it_says_what_is_wrong(void **state)
{
    (void)state;
    char out[8192];
    assert_int_equal(run("/nowhere/model hello", out, sizeof out), 3);
    assert_non_null(strstr(out, "/nowhere/model"));
    assert_int_equal(run("", out, sizeof out), 2);
}

int main(void)
{
    json_setup(); /* before the fixtures read theirs */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_generates),
        cmocka_unit_test(it_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
