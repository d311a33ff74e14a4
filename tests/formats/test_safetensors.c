/* safetensors: good files, a table of malformed ones, shards and stale indexes, the writer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "formats/build_files.h"
#include "weights/safetensors.h"
#include "weights/safetensors_write.h"

#include <signal.h>
#include <sys/resource.h>

static Arena arena;
static TempDir dir;

static int make(void **state)
{
    (void)state;
    arena_init(&arena, "test");
    temp_open(&dir);
    return 0;
}

static int clean(void **state)
{
    (void)state;
    arena_free(&arena);
    temp_remove(dir.path);
    return 0;
}

/* ---- one file ---- */

static void test_good_file(void **state)
{
    (void)state;
    /* The header is 1 byte longer than a multiple of 8, so all data lies at odd addresses; tensors
     * are not in order, one is empty, one is a scalar, and there is a hole before the last. */
    const char *header =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"empty\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[16,16]},"
        "\"caf\\u00e9\":{\"dtype\":\"U32\",\"shape\":[1,1,2],\"data_offsets\":[20,28]}}";
    StrBuf b;
    strbuf_init(&b, 1 << 16);
    put_safetensors(&b, header, 28, 5);
    Error err = {0};
    Tensor *t;
    int64_t n;
    if (!safetensors_parse(&arena, "f", (const uint8_t *)b.ptr, b.len, &t, &n, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(n, 4);
    assert_true(str_is(t[0].name, "b") && t[0].dtype == DT_BF16 && t[0].n_dims == 2);
    assert_int_equal(t[0].dims[1], 3);
    assert_int_equal(t[0].bytes, 12);
    assert_int_equal(t[0].offset, 8 + strlen(header) + 4);
    for (int i = 0; i < 12; i++)
        assert_int_equal(t[0].data[i], (5 + 7 * (4 + i)) % 251);
    assert_int_equal(t[1].n_dims, 0);
    assert_int_equal(tensor_elements(&t[1]), 1);
    assert_int_equal(t[2].bytes, 0);
    assert_true(str_is(t[3].name, "caf\xc3\xa9"));
    assert_int_equal(t[3].data[0], (5 + 7 * 20) % 251);
    strbuf_free(&b);
}

#define ONE(fields) "{\"t.x\":{" fields "}}"

static void test_malformed_headers(void **state)
{
    static const struct {
        const char *header;
        ErrCode code;
        const char *says;
    } cases[] = {
        {"[]", ERR_FORMAT, "no JSON object"},
        {"{", ERR_FORMAT, "line 1"},
        {"", ERR_FORMAT, "file"},
        {"{\"a\":1,\"a\":2}", ERR_FORMAT, "duplicate"},
        {"{\"t.x\":3}", ERR_FORMAT, "\"t.x\": not an object"},
        {ONE("\"shape\":[2],\"data_offsets\":[0,8]"), ERR_FORMAT, "\"t.x\": dtype \"\" is missing"},
        {ONE("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"), ERR_FORMAT, "\"dtype\""},
        {ONE("\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,8]"), ERR_UNSUPPORTED,
         "dtype \"F4\" is not known"},
        {ONE("\"dtype\":\"Q4_0\",\"shape\":[32],\"data_offsets\":[0,18]"), ERR_UNSUPPORTED, "Q4_0"},
        {ONE("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), ERR_FORMAT, "shape"},
        {ONE("\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,8]"), ERR_FORMAT, "shape"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), ERR_FORMAT,
         "at most 8"},
        {ONE("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), ERR_FORMAT, "shape[0]"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1,2.0],\"data_offsets\":[0,8]"), ERR_FORMAT, "shape[1]"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1,\"2\"],\"data_offsets\":[0,8]"), ERR_FORMAT,
         "shape[1]"},
        {ONE("\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],\"data_offsets\":[0,8]"),
         ERR_FORMAT, "overflows"},
        {ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"),
         ERR_FORMAT, "overflows"},
        {ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]"),
         ERR_FORMAT, "overflows"},
        {ONE("\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]"),
         ERR_FORMAT, "line 1"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2]"), ERR_FORMAT, "data_offsets"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), ERR_FORMAT, "data_offsets"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]"), ERR_FORMAT,
         "data_offsets"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), ERR_FORMAT,
         "data_offsets"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), ERR_FORMAT, "data_offsets"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.5]"), ERR_FORMAT,
         "data_offsets"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,12]"), ERR_FORMAT,
         "hold 12 bytes, dtype and shape want 8"},
        {ONE("\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]"), ERR_FORMAT,
         "end at 64, the file has 32 bytes"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[9223372036854775800,"
             "9223372036854775807]"),
         ERR_FORMAT, "end at 9223372036854775807"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}",
         ERR_FORMAT, "\"b\" and \"a\" overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
         ERR_FORMAT, "overlap"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        StrBuf b;
        strbuf_init(&b, 1 << 16);
        put_safetensors(&b, cases[i].header, 32, 0);
        Error err = {0};
        Tensor *t;
        int64_t n;
        if (safetensors_parse(&arena, "the file", (const uint8_t *)b.ptr, b.len, &t, &n, &err))
            fail_msg("accepted: %s", cases[i].header);
        const char *const parts[] = {"the file", cases[i].says};
        expect_error(cases[i].header, &err, cases[i].code, parts, 2);
        strbuf_free(&b);
    }
}

static void test_malformed_lengths(void **state)
{
    (void)state;
    static const uint8_t bytes[16] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const uint8_t huge[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    static const uint8_t above[8] = {0x01, 0xe1, 0xf5, 0x05}; /* the limit plus 1 */
    Error err = {0};
    Tensor *t;
    int64_t n;
    for (uint64_t len = 0; len < 16; len++) {
        assert_false(safetensors_parse(&arena, "f", len ? bytes : NULL, len, &t, &n, &err));
        assert_int_equal(err.code, ERR_FORMAT);
    }
    assert_false(safetensors_parse(&arena, "f", huge, 8, &t, &n, &err));
    assert_non_null(strstr(err.msg, "at most 100000000"));
    assert_false(safetensors_parse(&arena, "f", above, 8, &t, &n, &err));
    assert_non_null(strstr(err.msg, "at most 100000000"));
}

static void test_every_truncation(void **state)
{
    (void)state;
    StrBuf b;
    strbuf_init(&b, 1 << 16);
    put_safetensors(&b, ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, 0);
    for (size_t len = 0; len <= b.len; len++) {
        Error err = {0};
        Tensor *t;
        int64_t n;
        uint8_t *copy = test_malloc(len + 1); /* exact, so that ASan sees a byte too far */
        memcpy(copy, b.ptr, len);
        const bool ok = safetensors_parse(&arena, "f", copy, len, &t, &n, &err);
        assert_int_equal(ok, len == b.len);
        test_free(copy);
    }
    strbuf_free(&b);
}

/* ---- directories ---- */

#define TENSOR_A "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define TENSOR_B "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}"
#define TENSOR_C "\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define SHARD(i) "model-0000" #i "-of-00002.safetensors"

static void write_shards(void)
{
    temp_safetensors(&dir, SHARD(1), "{" TENSOR_A "," TENSOR_B "}", 8, 1);
    temp_safetensors(&dir, SHARD(2), "{" TENSOR_C "}", 4, 2);
}

static SafetensorsSet open_good(int64_t n_tensors, int n_files)
{
    SafetensorsSet s;
    Error err = {0};
    if (!safetensors_open(&arena, dir.path, &s, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(s.n_tensors, n_tensors);
    assert_int_equal(s.n_files, n_files);
    return s;
}

static void open_bad(const char *what, ErrCode code, const char *says)
{
    SafetensorsSet s;
    Error err = {0};
    if (safetensors_open(&arena, dir.path, &s, &err))
        fail_msg("accepted: %s", what);
    const char *const parts[] = {dir.path, says};
    expect_error(what, &err, code, parts, 2);
    assert_int_equal(s.n_files, 0);
}

static void test_shards(void **state)
{
    (void)state;
    write_shards();
    temp_text(&dir, "model.safetensors.index.json",
              "{\"metadata\":{},\"weight_map\":{\"a\":\"" SHARD(1) "\",\"b\":\"" SHARD(
                  1) "\",\"c\":\"" SHARD(2) "\"}}");
    /* Beside them, neither named nor read. */
    temp_safetensors(&dir, "golden.safetensors", "{" TENSOR_A "}", 4, 9);
    SafetensorsSet s = open_good(3, 2);
    const Tensor *c = tensor_map_find(&s.map, str_from("c"));
    assert_non_null(c);
    assert_int_equal(c->file, 1);
    assert_int_equal(c->data[1], 9);
    assert_null(tensor_map_find(&s.map, str_from("d")));
    safetensors_close(&s);
}

/* The index says where tensors were once. The shards' headers are the truth. */
static void test_stale_index(void **state)
{
    (void)state;
    write_shards();
    /* c in the wrong shard, b forgotten, d nowhere. */
    temp_text(
        &dir, "model.safetensors.index.json",
        "{\"weight_map\":{\"a\":\"" SHARD(1) "\",\"c\":\"" SHARD(1) "\",\"d\":\"" SHARD(2) "\"}}");
    SafetensorsSet s = open_good(3, 2);
    assert_int_equal(tensor_map_find(&s.map, str_from("c"))->file, 1);
    assert_non_null(tensor_map_find(&s.map, str_from("b")));
    assert_null(tensor_map_find(&s.map, str_from("d")));
    safetensors_close(&s);
}

static void test_missing_shard(void **state)
{
    (void)state;
    temp_safetensors(&dir, SHARD(1), "{" TENSOR_A "}", 4, 1);
    temp_text(&dir, "model.safetensors.index.json",
              "{\"weight_map\":{\"a\":\"" SHARD(1) "\",\"c\":\"" SHARD(2) "\"}}");
    open_bad("missing shard", ERR_NOT_FOUND, SHARD(2));
    /* A whole model beside it: the index is left over from before it was converted. */
    temp_safetensors(&dir, "model.safetensors", "{" TENSOR_C "}", 4, 1);
    SafetensorsSet s = open_good(1, 1);
    safetensors_close(&s);
}

static void test_twins(void **state)
{
    (void)state;
    temp_safetensors(&dir, SHARD(1), "{" TENSOR_A "}", 4, 1);
    temp_safetensors(&dir, SHARD(2), "{" TENSOR_A "}", 4, 2);
    open_bad("twins", ERR_FORMAT, "tensor \"a\" is also in");
    for (int i = 1; i <= 2; i++) {
        char index[200];
        snprintf(index, sizeof index,
                 "{\"weight_map\":{\"x\":\"" SHARD(1) "\",\"a\":\"model-0000%d-of-00002."
                                                      "safetensors\",\"y\":\"" SHARD(2) "\"}}",
                 i);
        temp_text(&dir, "model.safetensors.index.json", index);
        SafetensorsSet s = open_good(1, 2);
        assert_int_equal(tensor_map_find(&s.map, str_from("a"))->data[0], i);
        safetensors_close(&s);
    }
}

static void test_too_many_files(void **state)
{
    (void)state;
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    strbuf_add_cstr(&b, "{\"weight_map\":{\"x\":\"0.safetensors\"");
    for (int i = 0; i < 1001; i++)
        strbuf_printf(&b, ",\"%d\":\"%d.safetensors\"", i, i);
    strbuf_add_cstr(&b, "}}");
    temp_write(&dir, "model.safetensors.index.json", b.ptr, b.len);
    strbuf_free(&b);
    open_bad("1001 files", ERR_FORMAT, "more than 1000 files");
}

static void test_malformed_index(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"[", "index.json: line"},
        {"{}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{}}", "no file"},
        {"{\"weight_map\":{\"a\":1}}", "weight_map[\"a\"] is no string"},
        {"{\"weight_map\":{\"a\":\"\"}}", "no file name"},
        {"{\"weight_map\":{\"a\":\"../model.safetensors\"}}", "no file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "no file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no file name"},
        {"{\"weight_map\":{\"a\":\"sub/x.safetensors\"}}", "no file name"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        temp_text(&dir, "model.safetensors.index.json", cases[i].text);
        open_bad(cases[i].text, i == 3 ? ERR_NOT_FOUND : ERR_FORMAT, cases[i].says);
    }
}

static void test_without_index(void **state)
{
    (void)state;
    open_bad("empty directory", ERR_NOT_FOUND, "no model.safetensors");
    temp_safetensors(&dir, "weights.safetensors", "{" TENSOR_A "}", 4, 1);
    SafetensorsSet s = open_good(1, 1); /* the only one */
    safetensors_close(&s);
    temp_safetensors(&dir, "other.safetensors", "{" TENSOR_A "}", 4, 1);
    open_bad("two of them", ERR_NOT_FOUND, "2 other .safetensors files");
    write_shards();
    s = open_good(3, 2); /* names follow the pattern */
    safetensors_close(&s);
    temp_safetensors(&dir, "model.safetensors", "{" TENSOR_C "}", 4, 1);
    s = open_good(1, 1);
    safetensors_close(&s);
}

static void test_directory_that_is_not_there(void **state)
{
    (void)state;
    SafetensorsSet s;
    Error err = {0};
    assert_false(safetensors_open(&arena, "/nowhere", &s, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

/* ---- writer ---- */

static void test_writer(void **state)
{
    (void)state;
    char path[800];
    Error err = {0};
    const SafetensorsOut tensors[] = {{.name = "logits", .dims = {2, 3}, .n_dims = 2},
                                      {.name = "s \"quoted\"", .n_dims = 0}};
    const float x[7] = {1, 2, 3, 4, 5, 6, 7};
    SafetensorsWriter w;
    temp_path(&dir, "model.safetensors", path, sizeof path);
    assert_true(safetensors_write_begin(&arena, path, tensors, 2, &w, &err));
    assert_true(safetensors_write_f32(&w, x, 4, &err)); /* pieces need not be tensors */
    assert_false(file_exists(path));                    /* not before it is whole */
    assert_true(safetensors_write_f32(&w, x + 4, 3, &err));
    assert_false(safetensors_write_f32(&w, x, 1, &err));
    assert_int_equal(err.code, ERR_USAGE);
    if (!safetensors_write_end(&w, &err))
        fail_msg("%s", err.msg);
    safetensors_write_abort(&w);
    SafetensorsSet s = open_good(2, 1);
    const Tensor *t = tensor_map_find(&s.map, str_from("logits"));
    assert_non_null(t);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->offset % 8, 0);
    assert_memory_equal(t->data, x, 24);
    assert_memory_equal(tensor_map_find(&s.map, str_from("s \"quoted\""))->data, x + 6, 4);
    safetensors_close(&s);
}

static int entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    while (d && readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void test_writer_leaves_nothing_behind(void **state)
{
    (void)state;
    char path[800];
    Error err = {0};
    const SafetensorsOut tensor = {.name = "logits", .dims = {100, 1000}, .n_dims = 2};
    static const float x[100000];
    SafetensorsWriter w;
    temp_path(&dir, "out.safetensors", path, sizeof path);
    assert_true(safetensors_write_begin(&arena, path, &tensor, 1, &w, &err));
    assert_false(safetensors_write_end(&w, &err)); /* values are missing */
    assert_non_null(strstr(err.msg, "100000 values are missing"));
    assert_int_equal(entries(dir.path), 0);

    /* A full disk, by the limit on file size. */
    const struct rlimit small = {10000, RLIM_INFINITY};
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_true(safetensors_write_begin(&arena, path, &tensor, 1, &w, &err));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_false(safetensors_write_f32(&w, x, 100000, &err));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(err.code, ERR_IO);
    assert_int_equal(entries(dir.path), 0);

    assert_false(safetensors_write_begin(&arena, "/nowhere/x", &tensor, 1, &w, &err));
    assert_int_equal(err.code, ERR_IO);
    safetensors_write_abort(&w);
}

/* ---- out of memory ---- */

static void test_out_of_memory(void **state)
{
    (void)state;
    write_shards();
    temp_text(&dir, "model.safetensors.index.json",
              "{\"weight_map\":{\"a\":\"" SHARD(1) "\",\"c\":\"" SHARD(2) "\"}}");
    const size_t before = mem_in_use();
    uint64_t n = 0;
    for (bool ok = false; !ok;) {
        Arena a;
        Error err = {0};
        SafetensorsSet s;
        arena_init(&a, "weights");
        mem_fail_at(++n, false);
        ok = safetensors_open(&a, dir.path, &s, &err);
        mem_fail_at(0, false);
        if (ok)
            safetensors_close(&s);
        else
            expect_error("open", &err, ERR_NOMEM, NULL, 0);
        arena_free(&a);
        assert_int_equal(mem_in_use(), before);
    }
    assert_true(n > 20);

    /* The writer: an error leaves no file. */
    char path[800];
    const SafetensorsOut tensors[] = {{.name = "a", .dims = {2, 3}, .n_dims = 2},
                                      {.name = "b", .dims = {1}, .n_dims = 1}};
    temp_path(&dir, "out.safetensors", path, sizeof path);
    const int files = entries(dir.path);
    n = 0;
    for (bool ok = false; !ok;) {
        Arena a;
        Error err = {0};
        SafetensorsWriter w;
        arena_init(&a, "writer");
        mem_fail_at(++n, false);
        ok = safetensors_write_begin(&a, path, tensors, 2, &w, &err);
        mem_fail_at(0, false);
        if (ok)
            safetensors_write_abort(&w);
        else
            expect_error("write", &err, ERR_NOMEM, NULL, 0);
        arena_free(&a);
        assert_int_equal(mem_in_use(), before);
        assert_int_equal(entries(dir.path), files);
    }
    assert_true(n > 10);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clean)

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        TEST(test_good_file),
        TEST(test_malformed_headers),
        TEST(test_malformed_lengths),
        TEST(test_every_truncation),
        TEST(test_shards),
        TEST(test_stale_index),
        TEST(test_missing_shard),
        TEST(test_twins),
        TEST(test_malformed_index),
        TEST(test_too_many_files),
        TEST(test_without_index),
        TEST(test_directory_that_is_not_there),
        TEST(test_writer),
        TEST(test_writer_leaves_nothing_behind),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
