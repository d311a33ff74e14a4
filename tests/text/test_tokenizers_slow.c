/* Published tokenizers against the ids of the libraries they were made with: tests/data/tokenizers
 * has 269 strings and the ids; the vocabularies are not kept here. MERE_TOKENIZERS names a folder
 * with <name>/tokenizer.json (or what that checkpoint has) or <name>.gguf for each name, with what
 * is missing left out. Skips when there is none. docs/tokenizers.md says which package has which.
 */
#include "text/text_data.h"

#include "engine/load.h"
#include "text/utf8.h"
#include "weights/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Strings where ours differ on purpose, and why. */
typedef struct Apart {
    const char *name;
    int strings[24]; /* ended by -1 */
    const char *as;  /* there the ids are those of this one; NULL: see docs/tokenizers.md */
} Apart;

static const Apart aparts[] = {
    /* llama.cpp's WordPiece has no limit of 100 characters, does not take Hangul apart, and drops
     * every mark; the model learned from Hugging Face's. */
    {"gguf-bert-bge",
     {133, 134, 150, 151, 152, 168, 231, 232, 239, 241, 267, -1},
     "minilm-wordpiece"},
    /* "</s>" is an ordinary token of this vocabulary, which llama.cpp takes for an end. */
    {"gguf-qwen2", {190, -1}, "qwen2-tiktoken"},
    {"gguf-qwen35", {190, -1}, "qwen2-tiktoken"},
};

static const Apart *apart(const char *name, int i)
{
    for (size_t k = 0; k < COUNT_OF(aparts); k++) {
        for (int j = 0; strcmp(aparts[k].name, name) == 0 && aparts[k].strings[j] >= 0; j++) {
            if (aparts[k].strings[j] == i)
                return &aparts[k];
        }
    }
    return NULL;
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* A checkpoint without weights: links to the files of `dir`, and what opening one wants besides. */
static void make_checkpoint(const char *dir, const char *name, char *path, size_t size)
{
    static const char header[] = "\x02\0\0\0\0\0\0\0{}";
    char from[1100];
    char to[2100];
    snprintf(path, size, "%s/tokenizers", TEST_TMP);
    (void)mkdir(path, 0777);
    snprintf(path, size, "%s/tokenizers/%s", TEST_TMP, name);
    (void)mkdir(path, 0777);
    snprintf(from, sizeof from, "%s/%s", dir, name);
    DIR *d = opendir(from);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        assert_true(snprintf(from, sizeof from, "%s/%s/%s", dir, name, e->d_name) <
                    (int)sizeof from);
        assert_true(snprintf(to, sizeof to, "%s/%s", path, e->d_name) < (int)sizeof from);
        (void)unlink(to);
        assert_int_equal(symlink(from, to), 0);
    }
    closedir(d);
    snprintf(to, sizeof to, "%s/config.json", path);
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs("{\"model_type\":\"test\"}", f);
    fclose(f);
    snprintf(to, sizeof to, "%s/model.safetensors", path);
    f = fopen(to, "w");
    assert_non_null(f);
    fwrite(header, 1, 10, f);
    fclose(f);
}

/* What is open besides the tokenizer. */
typedef struct Source {
    Gguf gguf;
    Checkpoint *ck;
} Source;

/* NULL: not there. */
static Tokenizer *open_named(Arena *a, const char *dir, const char *name, Source *from)
{
    char path[1024];
    Error err = {0};
    Tokenizer *t = NULL;
    *from = (Source){0};
    snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
    if (exists(path)) {
        if (!gguf_open(a, path, &from->gguf, &err) ||
            !load_gguf_tokenizer(&from->gguf, a, &t, &err))
            fail_msg("%s", err.msg);
        return t;
    }
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!exists(path))
        return NULL;
    make_checkpoint(dir, name, path, sizeof path);
    if (!checkpoint_open(a, path, &from->ck, &err) || !load_tokenizer(from->ck, a, &t, &err))
        fail_msg("%s: %s", path, err.msg);
    assert_non_null(t);
    return t;
}

static json_t *golden(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "tokenizers/%.150s.json", name);
    return data_json(path);
}

typedef struct Check {
    const char *name;
    Tokenizer *t;
    const json_t *golden;
    unsigned plain, special; /* how `ids` and `ids_special` were made */
    int bad;
} Check;

/* The ids that string i must give; NULL: nothing says so. */
static const char *wanted(const Check *c, Arena *a, const char *key, int i, json_t **as)
{
    const json_t *from = c->golden;
    const Apart *other = apart(c->name, i);
    if (other) {
        if (!other->as)
            return NULL;
        from = *as = golden(other->as);
    }
    const json_t *ids = json_array_get(json_object_get(from, key), (size_t)i);
    /* null: as without special tokens, which says nothing where they are always recognised */
    return json_is_array(ids) ? json_ids_text(a, ids) : NULL;
}

/* The first n_keys of the two lists of ids. */
static void check_string(Check *c, Arena *a, int i, Str text, int n_keys)
{
    static const char *const keys[] = {"ids", "ids_special"};
    for (int k = 0; k < n_keys; k++) {
        json_t *as = NULL;
        const unsigned flags = k ? c->special : c->plain;
        const char *want = wanted(c, a, keys[k], i, &as);
        const char *got = encode_text(a, c->t, text, flags);
        if (want && strcmp(got, want) != 0) {
            c->bad++;
            print_message("%s: string %d \"%.*s\", %s\n  got  %s\n  want %s\n", c->name, i,
                          (int)text.len, text.ptr, keys[k], got, want);
        }
        json_decref(as);
    }
}

/* Libraries that write spaces, or something for an unknown token, that no text had:
 * docs/tokenizers.md. */
static bool decodes_otherwise(const char *name, int i)
{
    return strcmp(name, "bergamot-enpt-spm") == 0 || strcmp(name, "minilm-wordpiece") == 0 ||
           strcmp(name, "gguf-bert-bge") == 0 || (strncmp(name, "gguf-", 5) == 0 && i == 246);
}

/* What the library decodes the ids to. */
static void check_decoded(Check *c, Arena *a, int i, Str text)
{
    Error err = {0};
    TokenIds ids;
    StrBuf out;
    char key[16];
    strbuf_init(&out, 1 << 20);
    snprintf(key, sizeof key, "%d", i);
    const json_t *decoded = json_object_get(json_object_get(c->golden, "decoded"), key);
    assert_true(tokenizer_encode(a, c->t, text, c->plain, &ids, &err));
    assert_true(tokenizer_decode(c->t, ids.ids, ids.n, 0, &out, &err));
    const Str want = decoded ? json_text(decoded) : text;
    if (!str_eq(strbuf_str(&out), want)) {
        c->bad++;
        print_message("%s: string %d decoded\n  got  \"%.*s\"\n  want \"%.*s\"\n", c->name, i,
                      (int)out.len, strbuf_str(&out).ptr, (int)want.len, want.ptr);
    }
    strbuf_free(&out);
}

/* Bytes that are no UTF-8, in hexadecimal. */
static void check_bytes(Check *c, Arena *a)
{
    size_t i;
    json_t *pair;
    json_array_foreach (json_object_get(c->golden, "bytes"), i, pair) {
        const Str hex = json_text(json_array_get(pair, 0));
        char bytes[64];
        size_t n = 0;
        for (size_t k = 0; k + 1 < hex.len && n < sizeof bytes; k += 2) {
            const char two[3] = {hex.ptr[k], hex.ptr[k + 1], '\0'};
            bytes[n++] = (char)strtol(two, NULL, 16);
        }
        TokenIds ids;
        Error err = {0};
        StrBuf out;
        strbuf_init(&out, 256);
        assert_true(tokenizer_encode(a, c->t, (Str){bytes, n}, 0, &ids, &err));
        assert_true(tokenizer_decode(c->t, ids.ids, ids.n, 0, &out, &err));
        assert_text(c->name, strbuf_str(&out), (Str){bytes, n});
        strbuf_free(&out);
    }
}

/* How many results differ; -1: the vocabulary is not there. */
static int check_name(const char *name, const json_t *strings, const char *dir)
{
    Arena a;
    Source from;
    arena_init(&a, "test");
    Check c = {.name = name, .t = open_named(&a, dir, name, &from)};
    if (!c.t) {
        arena_free(&a);
        return -1;
    }
    json_t *g = golden(name);
    c.golden = g;
    const char *how = json_string_value(json_object_get(g, "special_in_text"));
    const bool always = strncmp(how, "always", 6) == 0;
    const bool tiktoken = strstr(how, "ids_special: recognised") != NULL;
    const bool never = strncmp(how, "never", 5) == 0;
    c.plain = always ? TOKENIZER_PARSE_SPECIAL : 0;
    c.special = TOKENIZER_PARSE_SPECIAL | (tiktoken ? 0 : TOKENIZER_ADD_SPECIAL);
    for (int i = 0; i < (int)json_array_size(strings); i++) {
        const Str text = json_text(json_array_get(strings, (size_t)i));
        const ArenaMark before = arena_mark(&a);
        check_string(&c, &a, i, text, never ? 1 : 2);
        if (!decodes_otherwise(name, i))
            check_decoded(&c, &a, i, text);
        arena_rewind(&a, before);
    }
    check_bytes(&c, &a);
    print_message("%s: %s: %d differ\n", name, tokenizer_describe(c.t), c.bad);
    json_decref(g);
    tokenizer_close(c.t);
    checkpoint_close(from.ck);
    gguf_close(&from.gguf);
    arena_free(&a);
    return c.bad;
}

static void test_published(void **state)
{
    (void)state;
    static const char *const names[] = {"anthropic-legacy",
                                        "bergamot-enpt-spm",
                                        "cl100k",
                                        "deepseek-v4",
                                        "gguf-aquila",
                                        "gguf-baichuan",
                                        "gguf-bert-bge",
                                        "gguf-command-r",
                                        "gguf-deepseek-coder",
                                        "gguf-falcon",
                                        "gguf-gemma-4",
                                        "gguf-gemma3",
                                        "gguf-gpt-2",
                                        "gguf-gpt-neox",
                                        "gguf-llama-bpe",
                                        "gguf-llama-spm",
                                        "gguf-mpt",
                                        "gguf-nomic-bert-moe",
                                        "gguf-phi-3",
                                        "gguf-qwen2",
                                        "gguf-qwen35",
                                        "gguf-refact",
                                        "gguf-smollm2",
                                        "llama3-tiktoken",
                                        "llama4-tiktoken",
                                        "minilm-wordpiece",
                                        "mistral-spm-v1",
                                        "mistral-spm-v3",
                                        "o200k",
                                        "qwen2-tiktoken",
                                        "qwen3.5-tiktoken",
                                        "tekken-240718",
                                        "unigram-276k-tokenlearn",
                                        "unigram-32k-bergamot-enpt",
                                        "whisper-en",
                                        "whisper-multilingual"};
    const char *dir = getenv("MERE_TOKENIZERS");
    const char *only = getenv("MERE_TOKENIZER");
    if (!dir || !exists(dir)) {
        print_message("MERE_TOKENIZERS names no folder of vocabularies\n");
        exit(77);
    }
    json_t *strings = data_json("tokenizers/strings.json");
    int found = 0;
    int bad = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (only && strcmp(only, names[i]) != 0)
            continue;
        const int n = check_name(names[i], strings, dir);
        found += n >= 0;
        bad += n > 0 ? n : 0;
    }
    json_decref(strings);
    print_message("%d of %zu vocabularies were there\n", found, COUNT_OF(names));
    assert_int_equal(bad, 0);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_published)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
