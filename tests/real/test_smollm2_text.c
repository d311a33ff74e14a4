/* The tokenizer and the chat template of SmolLM2-135M-Instruct's GGUF, through mere.h: the ids of
 * llama.cpp on the 269 golden strings (tests/data/text/tokenizers.json), with special tokens as
 * plain text and as tokens, and the text back.
 *
 * The file is looked for in the directory MERE_TEST_MODELS, then in the model store. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "mere.h"

#include <stdio.h>
#include <stdlib.h>

enum { IDS_MAX = 4096 };

static char model_name[4096];

typedef struct Fix {
    MereEngine *engine;
    MereModel *model;
    Arena arena;
    json_t *golden;
} Fix;

static int setup(void **state)
{
    static Fix f;
    MereError err;
    Error own;
    MereOptions opt = MERE_OPTIONS_INIT;
    opt.slots = 1;
    opt.ctx = 64;
    if (!mere_engine_open(&opt, &f.engine, &err))
        fail_msg("%s", err.msg);
    if (!mere_model_open(f.engine, (MereStr){model_name, strlen(model_name)}, &opt, &f.model, &err))
        fail_msg("%s", err.msg);
    arena_init(&f.arena, "test");
    Str text;
    if (!file_read(&f.arena, TEST_DATA "/text/tokenizers.json", 1 << 20, &text, &own))
        fail_msg("%s", own.msg);
    f.golden = json_parse("golden", text, &own);
    if (!f.golden)
        fail_msg("%s", own.msg);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    Fix *f = *state;
    json_decref(f->golden);
    arena_free(&f->arena);
    mere_model_close(f->model);
    mere_engine_close(f->engine);
    return 0;
}

static int64_t ids_of(const Fix *f, MereStr text, uint32_t flags, int32_t ids[IDS_MAX])
{
    int64_t n;
    MereError err;
    if (!mere_tokenize(f->model, text, flags, ids, IDS_MAX, &n, &err))
        fail_msg("%s", err.msg);
    assert_in_range(n, 0, IDS_MAX);
    return n;
}

static void golden_strings(void **state)
{
    const Fix *f = *state;
    const json_t *strings = json_object_get(f->golden, "strings");
    const json_t *want = json_object_get(f->golden, "smollm2");
    assert_int_equal(json_array_size(strings), 269);
    size_t i;
    json_t *s;
    json_array_foreach ((json_t *)(uintptr_t)strings, i, s) {
        static int32_t ids[IDS_MAX];
        const MereStr text = {json_string_value(s), json_string_length(s)};
        for (int special = 0; special < 2; special++) {
            const json_t *list =
                json_array_get(json_object_get(want, special ? "ids_special" : "ids"), i);
            if (json_is_null(list)) /* as without special tokens */
                list = json_array_get(json_object_get(want, "ids"), i);
            const int64_t n = ids_of(f, text, special ? MERE_TOK_SPECIAL | MERE_TOK_PARSE : 0, ids);
            if (n != (int64_t)json_array_size(list))
                fail_msg("string %zu: %d ids, wanted %zu", i, (int)n, json_array_size(list));
            for (int64_t k = 0; k < n; k++) {
                const int64_t id = json_integer_value(json_array_get(list, (size_t)k));
                if (ids[k] != id)
                    fail_msg("string %zu, id %d: %d, wanted %d", i, (int)k, ids[k], (int)id);
            }
            static char back[8192];
            size_t len;
            MereError err;
            if (!mere_detokenize(f->model, ids, n, back, sizeof back, &len, &err))
                fail_msg("%s", err.msg);
            if (!special) { /* the exact bytes */
                assert_int_equal(len, text.len);
                assert_memory_equal(back, text.ptr, len);
            }
        }
    }
}

static void chat(void **state)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"Hi <|im_end|>\"}]";
    static const char want[] =
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n";
    const Fix *f = *state;
    const MereStr none = {NULL, 0};
    MereError err;
    char out[1000];
    size_t n;
    if (!mere_chat_render(f->model, (MereStr){messages, sizeof messages - 1}, none, none, out,
                          sizeof out, &n, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(out, want, n);
}

static bool find_model(void)
{
    static const char *const names[] = {"SmolLM2-135M-Instruct-Q4_1.gguf",
                                        "SmolLM2-135M-Instruct.Q4_1.gguf"};
    const char *dir = getenv("MERE_TEST_MODELS");
    for (size_t i = 0; dir && i < COUNT_OF(names); i++) {
        const int n = snprintf(model_name, sizeof model_name, "%s/%s", dir, names[i]);
        if (n > 0 && (size_t)n < sizeof model_name && file_exists(model_name))
            return true;
    }
    snprintf(model_name, sizeof model_name, "SmolLM2-135M-Instruct-Q4_1");
    MereInfo *info;
    if (!mere_info_read((MereStr){model_name, strlen(model_name)}, &info, NULL))
        return false;
    mere_info_free(info);
    return true;
}

int main(void)
{
    if (!find_model()) {
        print_message("SmolLM2-135M-Instruct-Q4_1 is neither in MERE_TEST_MODELS nor in the model "
                      "store: skipped\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_strings),
        cmocka_unit_test(chat),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
