/* Files: whole and mapped, and a map whose file is cut short. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[512];

static void write_bytes(const char *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static int make(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s/file-XXXXXX", TEST_TMP);
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int clean(void **state)
{
    (void)state;
    return unlink(path);
}

static void test_read(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    Str s;
    arena_init(&a, "test");
    write_bytes("hello\0there", 11);
    assert_true(file_read(&a, path, 11, &s, &err));
    assert_int_equal(s.len, 11);
    assert_memory_equal(s.ptr, "hello\0there", 12);
    assert_false(file_read(&a, path, 10, &s, &err));
    assert_int_equal(err.code, ERR_TOO_LONG);
    assert_false(file_read(&a, "/nowhere/at/all", 10, &s, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/nowhere/at/all"));
    assert_false(file_read(&a, TEST_TMP, 10, &s, &err)); /* a directory */
    assert_int_equal(err.code, ERR_IO);
    write_bytes("", 0);
    assert_true(file_read(&a, path, 10, &s, &err));
    assert_int_equal(s.len, 0);
    arena_free(&a);
}

static void test_map(void **state)
{
    (void)state;
    Error err = {0};
    FileMap m;
    write_bytes("abc", 3);
    assert_true(file_map(path, &m, &err));
    assert_int_equal(m.bytes, 3);
    assert_memory_equal(m.data, "abc", 3);
    assert_false(file_map_broken(&m));
    file_unmap(&m);
    file_unmap(&m); /* harmless */
    assert_false(file_map_broken(&m));
    write_bytes("", 0);
    assert_true(file_map(path, &m, &err));
    assert_null(m.data);
    file_unmap(&m);
    assert_false(file_map("/nowhere", &m, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_false(file_map(TEST_TMP, &m, &err));
    assert_true(file_is_dir(TEST_TMP) && !file_is_dir(path) && file_exists(path));
}

/* A pipe must not hang the caller. */
static void test_not_regular(void **state)
{
    (void)state;
    Error err = {0};
    FileMap m;
    char fifo[600];
    snprintf(fifo, sizeof fifo, "%s.fifo", path);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_false(file_map(fifo, &m, &err));
    assert_int_equal(err.code, ERR_IO);
    unlink(fifo);
}

static void test_cut_under_the_map(void **state)
{
    (void)state;
    Error err = {0};
    static char data[3 * 4096];
    memset(data, 7, sizeof data);
    write_bytes(data, sizeof data);
    FileMap m;
    FileMap other;
    assert_true(file_guard_install(&err));
    assert_true(file_map(path, &m, &err));
    assert_true(file_map(path, &other, &err));
    assert_int_equal(m.data[2 * 4096], 7);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(((const volatile uint8_t *)m.data)[2 * 4096], 0); /* zero, not a crash */
    assert_int_equal(m.data[0], 7);
    assert_true(file_map_broken(&m));
    assert_false(file_map_broken(&other)); /* it has not been read there */
    file_unmap(&m);
    file_unmap(&other);
}

static void test_table_of_maps_is_full(void **state)
{
    (void)state;
    static FileMap maps[FILE_MAPS_MAX + 1];
    Error err = {0};
    write_bytes("x", 1);
    for (int i = 0; i < FILE_MAPS_MAX; i++)
        assert_true(file_map(path, &maps[i], &err));
    assert_false(file_map(path, &maps[FILE_MAPS_MAX], &err));
    assert_int_equal(err.code, ERR_IO);
    for (int i = 0; i < FILE_MAPS_MAX; i++)
        file_unmap(&maps[i]);
    assert_true(file_map(path, &maps[0], &err));
    file_unmap(&maps[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_not_regular),
        cmocka_unit_test(test_cut_under_the_map),
        cmocka_unit_test(test_table_of_maps_is_full),
    };
    return cmocka_run_group_tests(tests, make, clean);
}
