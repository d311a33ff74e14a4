/* Arenas: alignment, zeroing, scratch, overflow, failure. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/mem.h"

#include <string.h>

static void test_alignment_and_zero(void **state)
{
    (void)state;
    Arena a;
    Error err;
    arena_init(&a, "test");
    for (size_t size = 1; size < 20000; size = size * 3 / 2 + 1) {
        unsigned char *p = arena_take(&a, 1, size, &err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (size >= 64 ? 64 : 16), 0);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xa5, size); /* must not reach the next one */
    }
    arena_free(&a);
    assert_int_equal(arena_bytes(&a), 0);
    assert_non_null(ARENA_NEW(&a, uint64_t, &err)); /* usable again */
    arena_free(&a);
}

static void test_rewind_gives_back(void **state)
{
    (void)state;
    Arena a;
    Error err;
    arena_init(&a, "test");
    char *keep = arena_strdup(&a, "keep", 4, &err);
    const ArenaMark mark = arena_mark(&a);
    const size_t bytes = arena_bytes(&a);
    for (int i = 0; i < 100; i++)
        assert_non_null(arena_take(&a, 1, 5000, &err));
    assert_true(arena_bytes(&a) > bytes);
    arena_rewind(&a, mark);
    assert_int_equal(arena_bytes(&a), bytes);
    assert_string_equal(keep, "keep");
    const unsigned char *again = arena_take(&a, 1, 100, &err);
    for (int i = 0; i < 100; i++)
        assert_int_equal(again[i], 0);
    arena_free(&a);
}

static void test_rewind_of_an_empty_arena(void **state)
{
    (void)state;
    Arena a;
    Error err;
    arena_init(&a, "test");
    const ArenaMark mark = arena_mark(&a);
    assert_non_null(arena_take(&a, 3, 7, &err));
    arena_rewind(&a, mark);
    assert_int_equal(arena_bytes(&a), 0);
}

static void test_overflow_and_failure(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    arena_init(&a, "weights arena");
    assert_null(arena_take(&a, SIZE_MAX / 2, 3, &err));
    assert_int_equal(err.code, ERR_NOMEM);
    assert_non_null(strstr(err.msg, "weights arena"));
    mem_fail_at(1, false);
    err = (Error){0};
    assert_null(arena_take(&a, 1, 10, &err));
    assert_int_equal(err.code, ERR_NOMEM);
    mem_fail_at(0, false);
    assert_non_null(arena_take(&a, 1, 10, &err));
    arena_free(&a);
}

static void test_strings(void **state)
{
    (void)state;
    Arena a;
    Error err;
    arena_init(&a, "test");
    const char *s = arena_strdup(&a, "abc\0def", 7, &err);
    assert_memory_equal(s, "abc\0def", 8);
    assert_string_equal(arena_printf(&a, &err, "%s-%05d", "x", 42), "x-00042");
    assert_string_equal(arena_strdup(&a, NULL, 0, &err), "");
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment_and_zero),
        cmocka_unit_test(test_rewind_gives_back),
        cmocka_unit_test(test_rewind_of_an_empty_arena),
        cmocka_unit_test(test_overflow_and_failure),
        cmocka_unit_test(test_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
