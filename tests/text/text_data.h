/* text_data.h: what the text tests share: cmocka, data files as JSON, results as readable text. */
#ifndef MERE_TESTS_TEXT_DATA_H
#define MERE_TESTS_TEXT_DATA_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"

#include <stdio.h>

static inline Str data_file(Arena *a, const char *name)
{
    char path[1024];
    Error err = {0};
    Str text;
    snprintf(path, sizeof path, "%s/%s", TEST_DATA, name);
    if (!file_read(a, path, 64 << 20, &text, &err))
        fail_msg("%s", err.msg);
    return text;
}

/* json_decref it. */
static inline json_t *data_json(const char *name)
{
    Arena a;
    Error err = {0};
    arena_init(&a, "data");
    json_t *v = json_parse(name, data_file(&a, name), &err);
    arena_free(&a);
    if (!v)
        fail_msg("%s", err.msg);
    return v;
}

static inline Str json_text(const json_t *v)
{
    return (Str){json_string_value(v), json_string_length(v)};
}

/* The golden tiny tokenizer: 320 byte-level tokens. */
static inline Tokenizer *tiny_tokenizer(Arena *a)
{
    Error err = {0};
    Tokenizer *t = NULL;
    const Str json = data_file(a, "tiny/tokenizer.json");
    const Str config = data_file(a, "tiny/tokenizer_config.json");
    if (!tokenizer_json_open(a, "tiny", json, config, &t, &err))
        fail_msg("%s", err.msg);
    return t;
}

/* "1 2 3" */
static inline const char *ids_text(Arena *a, const int32_t *ids, int64_t n)
{
    Error err = {0};
    StrBuf b;
    strbuf_init(&b, 1 << 24);
    for (int64_t i = 0; i < n; i++)
        strbuf_printf(&b, i ? " %d" : "%d", ids[i]);
    const Str s = strbuf_str(&b);
    const char *copy = arena_strdup(a, s.ptr, s.len, &err);
    strbuf_free(&b);
    assert_non_null(copy);
    return copy;
}

static inline const char *json_ids_text(Arena *a, const json_t *list)
{
    Error err = {0};
    const size_t n = json_array_size(list);
    int32_t *ids = ARENA_ARRAY(a, n, int32_t, &err);
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids_text(a, ids, (int64_t)n);
}

static inline const char *encode_text(Arena *a, const Tokenizer *t, Str text, unsigned flags)
{
    Error err = {0};
    TokenIds ids;
    if (!tokenizer_encode(a, t, text, flags, &ids, &err))
        fail_msg("%s", err.msg);
    return ids_text(a, ids.ids, ids.n);
}

/* A reproducible stream of numbers. */
static inline uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33);
}

/* Both texts on a mismatch, which assert_string_equal cuts. */
static inline void assert_text(const char *what, Str got, Str want)
{
    if (!str_eq(got, want))
        fail_msg("%s\n  got  \"%.*s\"\n  want \"%.*s\"", what, (int)got.len, got.ptr, (int)want.len,
                 want.ptr);
}

#endif
