/* GGUF: every metadata type, a table of malformed files, splits, choosing in a directory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "formats/build_files.h"

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

/* A copy of exactly its size, so that ASan sees a byte too far. */
static bool parse(const StrBuf *b, Gguf *g, Error *err)
{
    uint8_t *copy = arena_take(&arena, 1, b->len, err);
    memcpy(copy, b->ptr, b->len);
    return gguf_parse(&arena, "the file", copy, b->len, g, err);
}

/* ---- good files ---- */

static void write_every_type(GgufBuilder *g)
{
    gguf_start(g);
    gguf_key(g, "u8", GGUF_U8), put_int(&g->kv, 200, 1);
    gguf_key(g, "i8", GGUF_I8), put_int(&g->kv, (uint64_t)-3, 1);
    gguf_key(g, "u16", GGUF_U16), put_int(&g->kv, 60000, 2);
    gguf_key(g, "i16", GGUF_I16), put_int(&g->kv, (uint64_t)-300, 2);
    gguf_u32(g, "u32", 4000000000);
    gguf_key(g, "i32", GGUF_I32), put_int(&g->kv, (uint64_t)-70000, 4);
    gguf_f32(g, "f32", 0.5F);
    gguf_key(g, "bool", GGUF_BOOL), put_int(&g->kv, 1, 1);
    gguf_text(g, "str", "text");
    gguf_key(g, "u64", GGUF_U64), put_int(&g->kv, UINT64_MAX, 8);
    gguf_key(g, "i64", GGUF_I64), put_int(&g->kv, (uint64_t)INT64_MIN, 8);
    gguf_key(g, "f64", GGUF_F64), put(&g->kv, &(double){2048.0}, 8);
    gguf_array(g, "ints", GGUF_I16, 3);
    for (int i = 0; i < 3; i++)
        put_int(&g->kv, (uint64_t)(i - 1), 2);
    gguf_array(g, "floats", GGUF_F32, 2);
    put(&g->kv, &(float){1.5F}, 4);
    put(&g->kv, &(float){-2.0F}, 4);
    gguf_array(g, "strings", GGUF_STR, 3);
    put_gguf_str(&g->kv, "one");
    put_gguf_str(&g->kv, "");
    put_gguf_str(&g->kv, "three");
    gguf_array(g, "nested", GGUF_ARRAY, 2); /* [[7], ["a", "b"]] */
    put_int(&g->kv, GGUF_U8, 4), put_int(&g->kv, 1, 8), put_int(&g->kv, 7, 1);
    put_int(&g->kv, GGUF_STR, 4), put_int(&g->kv, 2, 8);
    put_gguf_str(&g->kv, "a"), put_gguf_str(&g->kv, "b");
    gguf_array(g, "empty", GGUF_STR, 0);
    gguf_text(g, "last", "end");
    gguf_tensor(g, "m", 2, (uint64_t[]){64, 3}, 2, 108); /* Q4_0: 3 rows of 64 */
    gguf_tensor(g, "v", 1, (uint64_t[]){5}, 0, 20);
    gguf_tensor(g, "x", 2, (uint64_t[]){256, 1}, 23, 136); /* IQ4_XS: known, not usable */
}

static void check_every_type(const Gguf *g)
{
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"u8", 200},   {"i8", -3},           {"u16", 60000},
                {"i16", -300}, {"u32", 4000000000U}, {"i32", -70000},
                {"f64", 2048}, {"i64", INT64_MIN},   {"missing", 77}};
    Error err = {0};
    int64_t v;
    double d;
    bool b;
    Str s;
    for (size_t i = 0; i < COUNT_OF(ints); i++) {
        if (!gguf_i64_or(g, ints[i].key, 77, &v, &err))
            fail_msg("%s", err.msg);
        assert_int_equal(v, ints[i].value);
    }
    assert_true(gguf_f64_or(g, "f32", 0, &d, &err) && d == 0.5);
    assert_true(gguf_f64_or(g, "i8", 0, &d, &err) && d == -3.0);
    assert_true(gguf_f64_or(g, "u64", 0, &d, &err) && d == 0x1p64);
    assert_true(gguf_bool_or(g, "bool", false, &b, &err) && b);
    assert_true(gguf_str_or(g, "str", (Str){0}, &s, &err) && str_is(s, "text"));
    assert_true(gguf_str_or(g, "last", (Str){0}, &s, &err) && str_is(s, "end"));
    assert_true(gguf_str_or(g, "missing", (Str){0}, &s, &err) && !s.ptr);

    assert_false(gguf_i64_or(g, "u64", 0, &v, &err));
    assert_non_null(strstr(err.msg, "18446744073709551615, too large"));
    assert_false(gguf_i64_or(g, "f32", 0, &v, &err));
    assert_non_null(strstr(err.msg, "\"f32\" is 0.5, wanted an integer"));
    assert_false(gguf_i64_or(g, "str", 0, &v, &err));
    assert_non_null(strstr(err.msg, "\"str\" is of type string, wanted an integer"));
    assert_false(gguf_str_or(g, "u8", (Str){0}, &s, &err));
    assert_false(gguf_bool_or(g, "u8", false, &b, &err));
    assert_false(gguf_f64_or(g, "strings", 0, &d, &err));

    const GgufKv *kv = gguf_find(g, "ints");
    assert_int_equal(kv->n, 3);
    assert_int_equal(gguf_item_i64(kv, 0), -1);
    assert_int_equal(gguf_item_i64(kv, 2), 1);
    kv = gguf_find(g, "floats");
    assert_true(gguf_item_f64(kv, 0) == 1.5 && gguf_item_f64(kv, 1) == -2.0);
    kv = gguf_find(g, "strings");
    const uint8_t *at = kv->data;
    assert_int_equal(kv->n, 3);
    assert_true(str_is(gguf_next_str(&at), "one"));
    assert_true(str_is(gguf_next_str(&at), ""));
    assert_true(str_is(gguf_next_str(&at), "three"));
    assert_ptr_equal(at, kv->data + kv->bytes);
    assert_int_equal(gguf_find(g, "nested")->n, 2);
    assert_int_equal(gguf_find(g, "empty")->n, 0);
}

static void test_good_file(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        GgufBuilder builder;
        StrBuf b;
        Gguf g;
        Error err = {0};
        write_every_type(&builder);
        builder.version = version;
        gguf_finish(&builder, &b);
        if (!parse(&b, &g, &err))
            fail_msg("%s", err.msg);
        check_every_type(&g);
        assert_int_equal(g.n_tensors, 3);
        const Tensor *m = &g.tensors[0];
        assert_int_equal(m->dtype, DT_Q4_0);
        assert_int_equal(m->dims[0], 3); /* slowest first */
        assert_int_equal(m->dims[1], 64);
        assert_int_equal(m->bytes, 108);
        assert_int_equal(m->offset % 32, 0);
        assert_int_equal(m->data[2], (1 + 14) % 251);
        assert_int_equal(g.tensors[1].offset, m->offset + 128);
        assert_int_equal(g.tensors[2].dtype, DT_IQ4_XS);
        strbuf_free(&b);
    }
}

static void test_alignment_key(void **state)
{
    (void)state;
    for (uint32_t alignment = 1; alignment <= 4096; alignment *= 16) {
        GgufBuilder builder;
        StrBuf b;
        Gguf g;
        Error err = {0};
        gguf_start(&builder);
        builder.alignment = alignment;
        gguf_u32(&builder, "general.alignment", alignment);
        gguf_tensor(&builder, "v", 1, (uint64_t[]){3}, 0, 12);
        gguf_tensor(&builder, "w", 1, (uint64_t[]){1}, 1, 2);
        gguf_finish(&builder, &b);
        if (!parse(&b, &g, &err))
            fail_msg("alignment %u: %s", (unsigned)alignment, err.msg);
        assert_int_equal(g.tensors[0].offset % alignment, 0);
        assert_int_equal(g.tensors[0].data[1], 8);
        assert_int_equal(g.tensors[1].data[0], 2);
        strbuf_free(&b);
    }
}

static void test_no_tensors(void **state)
{
    (void)state;
    GgufBuilder builder;
    StrBuf b;
    Gguf g;
    Error err = {0};
    gguf_start(&builder);
    gguf_text(&builder, "k", "v"); /* the file ends before the data section would start */
    gguf_finish(&builder, &b);
    assert_true(parse(&b, &g, &err));
    strbuf_free(&b);
}

/* ---- malformed ---- */

static void m_version1(GgufBuilder *g)
{
    g->version = 1;
}
static void m_version4(GgufBuilder *g)
{
    g->version = 4;
}
static void m_big_endian(GgufBuilder *g)
{
    g->version = 0x03000000;
}
static void m_many_kv(GgufBuilder *g)
{
    g->n_kv = UINT64_MAX;
}
static void m_many_tensors(GgufBuilder *g)
{
    g->n_tensors = (uint64_t)1 << 40;
}
static void m_one_more_kv(GgufBuilder *g)
{
    gguf_text(g, "padding", "................................................................");
    g->n_kv++;
}
static void m_empty_key(GgufBuilder *g)
{
    gguf_u32(g, "", 1);
}
static void m_nul_key(GgufBuilder *g)
{
    put_int(&g->kv, 3, 8);
    put(&g->kv, "a\0b", 3);
    put_int(&g->kv, GGUF_U8, 4);
    put_int(&g->kv, 1, 1);
    g->n_kv++;
}
static void m_long_key(GgufBuilder *g)
{
    char key[1100];
    memset(key, 'k', sizeof key);
    key[sizeof key - 1] = '\0';
    gguf_u32(g, key, 1);
}
static void m_endless_key(GgufBuilder *g)
{
    put_int(&g->kv, UINT64_MAX - 7, 8);
    put_int(&g->kv, 0, 8);
    g->n_kv++;
}
static void m_twice(GgufBuilder *g)
{
    gguf_u32(g, "again", 1);
    gguf_u32(g, "again", 2);
}
static void m_type(GgufBuilder *g)
{
    gguf_key(g, "odd.type", (GgufType)13);
    put_int(&g->kv, 0, 8);
}
static void m_item_type(GgufBuilder *g)
{
    gguf_array(g, "odd.items", (GgufType)99, 1);
    put_int(&g->kv, 0, 8);
}
static void m_endless_string(GgufBuilder *g)
{
    gguf_key(g, "long.string", GGUF_STR);
    put_int(&g->kv, UINT64_MAX, 8);
    put_int(&g->kv, 0, 8);
}
static void m_endless_array(GgufBuilder *g)
{
    gguf_array(g, "long.array", GGUF_F64, (uint64_t)1 << 61); /* times 8 is 0 */
    put_int(&g->kv, 0, 8);
}
static void m_endless_strings(GgufBuilder *g)
{
    gguf_array(g, "long.strings", GGUF_STR, UINT64_MAX);
    put_gguf_str(&g->kv, "a");
}
static void m_deep(GgufBuilder *g)
{
    gguf_array(g, "deep", GGUF_ARRAY, 1);
    for (int i = 0; i < 100; i++) {
        put_int(&g->kv, GGUF_ARRAY, 4);
        put_int(&g->kv, 1, 8);
    }
}
static void m_alignment(GgufBuilder *g)
{
    gguf_u32(g, "general.alignment", 0);
}
static void m_alignment3(GgufBuilder *g)
{
    gguf_u32(g, "general.alignment", 24);
}
static void m_alignment_type(GgufBuilder *g)
{
    gguf_text(g, "general.alignment", "32");
}
static void m_dims(GgufBuilder *g)
{
    gguf_info(g, "odd.dims", 9, (uint64_t[9]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 0);
}
static void m_dims_many(GgufBuilder *g)
{
    put_gguf_str(&g->infos, "odd.dims");
    put_int(&g->infos, UINT32_MAX, 4);
    put_pattern(&g->infos, 64, 0);
    g->n_tensors++;
}
static void m_dim_size(GgufBuilder *g)
{
    gguf_info(g, "big.dim", 1, (uint64_t[]){UINT64_MAX}, 0, 0);
}
static void m_product(GgufBuilder *g)
{
    gguf_info(g, "big.product", 2, (uint64_t[]){1ULL << 32, 1ULL << 32}, 0, 0);
}
static void m_product_q(GgufBuilder *g)
{
    gguf_info(g, "big.blocks", 3, (uint64_t[]){256, 1ULL << 28, 1ULL << 28}, 12, 0);
}
static void m_dtype(GgufBuilder *g)
{
    gguf_info(g, "odd.dtype", 1, (uint64_t[]){32}, 77, 0);
}
static void m_block(GgufBuilder *g)
{
    gguf_info(g, "odd.row", 2, (uint64_t[]){48, 2}, 2, 0);
}
static void m_offset(GgufBuilder *g)
{
    gguf_info(g, "far.away", 1, (uint64_t[]){4}, 0, 1 << 20);
}
static void m_offset_wraps(GgufBuilder *g)
{
    gguf_info(g, "far.away", 1, (uint64_t[]){4}, 0, UINT64_MAX - 15);
}
static void m_overrun(GgufBuilder *g)
{
    gguf_tensor(g, "first", 1, (uint64_t[]){4}, 0, 16);
    gguf_info(g, "too.long", 1, (uint64_t[]){5}, 0, 0);
}
static void m_overlap(GgufBuilder *g)
{
    gguf_tensor(g, "first", 1, (uint64_t[]){16}, 0, 64);
    gguf_info(g, "second", 1, (uint64_t[]){4}, 0, 32);
}
static void m_tensor_name(GgufBuilder *g)
{
    gguf_info(g, "", 1, (uint64_t[]){4}, 0, 0);
}

static void test_malformed(void **state)
{
    static const struct {
        void (*make)(GgufBuilder *);
        const char *what;
        ErrCode code;
        const char *says;
    } cases[] = {
        {m_version1, "version 1", ERR_UNSUPPORTED, "version 1, wanted 2 or 3"},
        {m_version4, "version 4", ERR_UNSUPPORTED, "version 4"},
        {m_big_endian, "big-endian", ERR_UNSUPPORTED, "big-endian"},
        {m_many_kv, "2^64 - 1 keys", ERR_FORMAT, "metadata count 18446744073709551615"},
        {m_many_tensors, "2^40 tensors", ERR_FORMAT, "tensor count 1099511627776"},
        {m_one_more_kv, "a key too many", ERR_FORMAT, "metadata key"},
        {m_empty_key, "empty key", ERR_FORMAT, "metadata key of 0 bytes"},
        {m_nul_key, "NUL in a key", ERR_FORMAT, "metadata key of 3 bytes"},
        {m_long_key, "long key", ERR_FORMAT, "metadata key of 1099 bytes"},
        {m_endless_key, "endless key", ERR_FORMAT, "metadata key"},
        {m_twice, "key twice", ERR_FORMAT, "\"again\" appears twice"},
        {m_type, "type", ERR_FORMAT, "\"odd.type\" is of unknown type 13"},
        {m_item_type, "item type", ERR_FORMAT, "\"odd.items\" is an array of unknown type 99"},
        {m_endless_string, "endless string", ERR_FORMAT, "long.string"},
        {m_endless_array, "endless array", ERR_FORMAT, "\"long.array\" is an array of"},
        {m_endless_strings, "endless strings", ERR_FORMAT, "long.strings"},
        {m_deep, "deep arrays", ERR_FORMAT, "\"deep\" nests arrays deeper than 4"},
        {m_alignment, "alignment 0", ERR_FORMAT, "\"general.alignment\" is 0"},
        {m_alignment3, "alignment 24", ERR_FORMAT, "\"general.alignment\" is 24"},
        {m_alignment_type, "alignment text", ERR_FORMAT, "\"general.alignment\" is of type string"},
        {m_dims, "9 dimensions", ERR_FORMAT, "\"odd.dims\": 9 dimensions, at most 8"},
        {m_dims_many, "2^32 dimensions", ERR_FORMAT, "4294967295 dimensions"},
        {m_dim_size, "dimension", ERR_FORMAT, "\"big.dim\": dimension 0"},
        {m_product, "product", ERR_FORMAT, "\"big.product\": the product"},
        {m_product_q, "product of blocks", ERR_FORMAT, "\"big.blocks\": the product"},
        {m_dtype, "dtype", ERR_UNSUPPORTED, "\"odd.dtype\": GGUF type 77"},
        {m_block, "block", ERR_FORMAT, "\"odd.row\": rows of 48 elements, Q4_0 wants"},
        {m_offset, "offset", ERR_FORMAT, "\"far.away\" has 16 bytes at offset 1048576"},
        {m_offset_wraps, "offset wraps", ERR_FORMAT, "\"far.away\""},
        {m_overrun, "overrun", ERR_FORMAT, "\"too.long\" has 20 bytes at offset 0"},
        {m_overlap, "overlap", ERR_FORMAT, "\"first\" and \"second\" overlap"},
        {m_tensor_name, "tensor name", ERR_FORMAT, "tensor name of 0 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        GgufBuilder builder;
        StrBuf b;
        Gguf g;
        Error err = {0};
        gguf_start(&builder);
        cases[i].make(&builder);
        gguf_finish(&builder, &b);
        if (parse(&b, &g, &err))
            fail_msg("accepted: %s", cases[i].what);
        const char *const parts[] = {"the file", cases[i].says};
        expect_error(cases[i].what, &err, cases[i].code, parts, 2);
        strbuf_free(&b);
    }
}

static void test_magic(void **state)
{
    (void)state;
    Gguf g;
    Error err = {0};
    assert_false(
        gguf_parse(&arena, "f", (const uint8_t *)"GGML____________________", 24, &g, &err));
    assert_non_null(strstr(err.msg, "no GGUF file"));
    assert_false(gguf_parse(&arena, "f", NULL, 0, &g, &err));
}

static void test_every_truncation(void **state)
{
    (void)state;
    GgufBuilder builder;
    StrBuf b;
    write_every_type(&builder);
    gguf_finish(&builder, &b);
    for (size_t len = 0; len < b.len; len++) {
        Gguf g;
        Error err = {0};
        uint8_t *copy = test_malloc(len + 1);
        memcpy(copy, b.ptr, len);
        assert_false(gguf_parse(&arena, "f", copy, len, &g, &err));
        assert_int_equal(err.code, ERR_FORMAT);
        test_free(copy);
    }
    strbuf_free(&b);
}

/* ---- splits ---- */

static void write_split(int no, int named, uint32_t split_no, uint32_t count, uint32_t total)
{
    GgufBuilder g;
    char name[100];
    gguf_start(&g);
    gguf_key(&g, "split.no", GGUF_U16), put_int(&g.kv, split_no, 2);
    gguf_key(&g, "split.count", GGUF_U16), put_int(&g.kv, count, 2);
    gguf_key(&g, "split.tensors.count", GGUF_I32), put_int(&g.kv, total, 4);
    if (no == 0)
        gguf_text(&g, "general.architecture", "llama");
    for (int i = 0; i <= no; i++) {
        snprintf(name, sizeof name, "t%d.%d", no, i);
        gguf_tensor(&g, name, 1, (uint64_t[]){(uint64_t)(i + 1)}, 0, 4 * (size_t)(i + 1));
    }
    snprintf(name, sizeof name, "big-%05d-of-%05d.gguf", no + 1, named);
    temp_gguf(&dir, name, &g);
}

static void test_splits(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        write_split(i, 3, (uint32_t)i, 3, 6);
    for (int i = 1; i <= 3; i++) { /* opened by any of them */
        char path[900];
        Gguf g;
        Error err = {0};
        Str arch;
        snprintf(path, sizeof path, "%s/big-%05d-of-00003.gguf", dir.path, i);
        if (!gguf_open(&arena, path, &g, &err))
            fail_msg("%s", err.msg);
        assert_int_equal(g.n_files, 3);
        assert_int_equal(g.n_tensors, 6);
        assert_true(str_is(g.tensors[5].name, "t2.2"));
        assert_int_equal(g.tensors[5].file, 2);
        assert_int_equal(g.tensors[5].data[0], 3); /* the third tensor of its file */
        assert_true(gguf_str_or(&g, "general.architecture", (Str){0}, &arch, &err));
        assert_true(str_is(arch, "llama"));
        gguf_close(&g);
    }
}

static void open_bad_split(const char *name, ErrCode code, const char *says)
{
    char path[900];
    Gguf g;
    Error err = {0};
    assert_false(gguf_open(&arena, temp_path(&dir, name, path, sizeof path), &g, &err));
    expect_error(name, &err, code, &says, 1);
    assert_int_equal(g.n_files, 0);
}

static void test_bad_splits(void **state)
{
    (void)state;
    write_split(0, 2, 0, 2, 3);
    open_bad_split("big-00001-of-00002.gguf", ERR_NOT_FOUND, "big-00002-of-00002.gguf");
    write_split(1, 2, 0, 2, 3); /* says that it is the first */
    open_bad_split("big-00001-of-00002.gguf", ERR_FORMAT, "\"split.no\" 0");
    write_split(1, 2, 1, 4, 3);
    open_bad_split("big-00001-of-00002.gguf", ERR_FORMAT, "\"split.count\" 4");
    write_split(1, 2, 1, 2, 3);
    write_split(0, 2, 0, 2, 9);
    open_bad_split("big-00001-of-00002.gguf", ERR_FORMAT, "\"split.tensors.count\" is 9");
    write_split(0, 4, 0, 2, 3); /* another count in the name */
    open_bad_split("big-00001-of-00004.gguf", ERR_FORMAT, "its name does not end in");
    write_split(0, 2, 0, 2000, 3);
    open_bad_split("big-00001-of-00002.gguf", ERR_FORMAT, "\"split.count\" is 2000");
    open_bad_split("nothing.gguf", ERR_NOT_FOUND, "nothing.gguf");
    temp_text(&dir, "empty.gguf", "");
    open_bad_split("empty.gguf", ERR_FORMAT, "magic");
}

/* ---- a directory of models ---- */

static void test_in_dir(void **state)
{
    (void)state;
    const char *path;
    Error err = {0};
    assert_false(gguf_in_dir(&arena, dir.path, (Str){0}, &path, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
    temp_text(&dir, "m.Q4_K_M.gguf", "");
    temp_text(&dir, "mmproj-m-f16.gguf", "");
    assert_true(gguf_in_dir(&arena, dir.path, (Str){0}, &path, &err));
    assert_true(str_ends(str_from(path), "/m.Q4_K_M.gguf"));
    temp_text(&dir, "m-Q8_0-00001-of-00002.gguf", "");
    temp_text(&dir, "m-Q8_0-00002-of-00002.gguf", "");
    assert_false(gguf_in_dir(&arena, dir.path, (Str){0}, &path, &err));
    assert_int_equal(err.code, ERR_USAGE);
    assert_non_null(strstr(err.msg, "2 GGUF models"));
    assert_non_null(strstr(err.msg, "m.Q4_K_M.gguf"));
    assert_true(gguf_in_dir(&arena, dir.path, str_from("q8_0"), &path, &err));
    assert_true(str_ends(str_from(path), "/m-Q8_0-00001-of-00002.gguf"));
    assert_true(gguf_in_dir(&arena, dir.path, str_from("Q4_K_M"), &path, &err));
    assert_false(gguf_in_dir(&arena, dir.path, str_from("Q4"), &path, &err)); /* a whole word */
    assert_int_equal(err.code, ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "Q4"));
    /* the projector beside any of them */
    char model[900];
    temp_path(&dir, "m.Q4_K_M.gguf", model, sizeof model);
    assert_true(gguf_projector(&arena, model, &path, &err));
    assert_true(str_ends(str_from(path), "/mmproj-m-f16.gguf"));
    assert_true(file_exists(path));
    temp_text(&dir, "mmproj-m-f32-00001-of-00002.gguf", "");
    temp_text(&dir, "mmproj-m-f32-00002-of-00002.gguf", "");
    assert_false(gguf_projector(&arena, model, &path, &err));
    assert_int_equal(err.code, ERR_USAGE);
    assert_non_null(strstr(err.msg, "2 vision projectors"));
    assert_non_null(strstr(err.msg, "mmproj-m-f16.gguf, mmproj-m-f32-00001-of-00002.gguf"));
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        write_split(i, 3, (uint32_t)i, 3, 6);
    char path[900];
    temp_path(&dir, "big-00002-of-00003.gguf", path, sizeof path);
    const size_t before = mem_in_use();
    uint64_t n = 0;
    for (bool ok = false; !ok;) {
        Arena a;
        Error err = {0};
        Gguf g;
        arena_init(&a, "weights");
        mem_fail_at(++n, false);
        ok = gguf_open(&a, path, &g, &err);
        mem_fail_at(0, false);
        if (ok)
            gguf_close(&g);
        else
            expect_error("open", &err, ERR_NOMEM, NULL, 0);
        arena_free(&a);
        assert_int_equal(mem_in_use(), before);
    }
    assert_true(n > 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_good_file),     TEST(test_alignment_key), TEST(test_no_tensors),
        TEST(test_malformed),     TEST(test_magic),         TEST(test_every_truncation),
        TEST(test_splits),        TEST(test_bad_splits),    TEST(test_in_dir),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
