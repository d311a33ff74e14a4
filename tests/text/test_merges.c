/* test_merges.c: the ways a tokenizer.json may list its merges give the same tokenizer: strings,
 * which are read by comparing them with the spelling of the tokens, and pairs, which are not;
 * before the vocabulary and after it; in the order of their tokens and in any. */
#include "text_data.h"

enum { CHARS = 8, TOKENS_MAX = 3000, MERGES_MAX = 9000, TEXT_MAX = 64 };

/* The byte alphabet's characters as JSON writes them, and the bytes. U+0120 is a space, U+00E9 the
 * byte 0xE9. */
static const char *const chars[CHARS] = {"a",        "b",        "c",    "#",
                                         "\xC4\xA0", "\xC3\xA9", "\\\"", "\\\\"};
static const char bytes[CHARS] = {'a', 'b', 'c', '#', ' ', '\xE9', '"', '\\'};

typedef struct Token {
    uint8_t at[TEXT_MAX]; /* of chars */
    int n;
} Token;

typedef struct Merge {
    int token, left; /* characters of the left part */
} Merge;

typedef struct Language {
    Token tokens[TOKENS_MAX];
    Merge merges[MERGES_MAX];
    int n_tokens, n_merges;
} Language;

static int token_of(const Language *l, const uint8_t *at, int n)
{
    for (int i = 0; i < l->n_tokens; i++) {
        if (l->tokens[i].n == n && memcmp(l->tokens[i].at, at, (size_t)n) == 0)
            return i;
    }
    return -1;
}

/* Joins two tokens again and again; lists every pair of tokens that gives the new one, as some
 * converters do. */
static void grow_language(Language *l, int n_tokens, uint64_t *seed)
{
    for (; l->n_tokens < CHARS; l->n_tokens++)
        l->tokens[l->n_tokens] = (Token){{(uint8_t)l->n_tokens}, 1};
    while (l->n_tokens < n_tokens) {
        const Token *a = &l->tokens[next_random(seed) % (uint32_t)l->n_tokens];
        const Token *b = &l->tokens[next_random(seed) % (uint32_t)l->n_tokens];
        Token both = *a;
        if (a->n + b->n > TEXT_MAX)
            continue;
        memcpy(both.at + a->n, b->at, (size_t)b->n);
        both.n = a->n + b->n;
        if (token_of(l, both.at, both.n) >= 0)
            continue;
        for (int left = 1; left < both.n && l->n_merges < MERGES_MAX; left++) {
            if (token_of(l, both.at, left) >= 0 && token_of(l, both.at + left, both.n - left) >= 0)
                l->merges[l->n_merges++] = (Merge){l->n_tokens, left};
        }
        l->tokens[l->n_tokens++] = both;
    }
}

static void add_text(StrBuf *b, const uint8_t *at, int n)
{
    for (int i = 0; i < n; i++)
        strbuf_printf(b, "%s", chars[at[i]]);
}

static void add_vocab(StrBuf *b, const Language *l)
{
    strbuf_printf(b, "\"vocab\":{");
    for (int i = 0; i < l->n_tokens; i++) {
        strbuf_printf(b, i ? ",\"" : "\"");
        add_text(b, l->tokens[i].at, l->tokens[i].n);
        strbuf_printf(b, "\":%d", i);
    }
    strbuf_printf(b, "}");
}

static void add_merges(StrBuf *b, const Language *l, bool pairs)
{
    const char *open = pairs ? "[\"" : "\"";
    const char *gap = pairs ? "\",\"" : " ";
    const char *close = pairs ? "\"]" : "\"";
    strbuf_printf(b, "\"merges\":[");
    for (int i = 0; i < l->n_merges; i++) {
        const Token *t = &l->tokens[l->merges[i].token];
        const int left = l->merges[i].left;
        strbuf_printf(b, "%s%s", i ? ",\n      " : "\n      ", open);
        add_text(b, t->at, left);
        strbuf_printf(b, "%s", gap);
        add_text(b, t->at + left, t->n - left);
        strbuf_printf(b, "%s", close);
    }
    strbuf_printf(b, "\n    ]");
}

#define HEAD                                                                                       \
    "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"   \
    "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","       \
    "\"end_of_word_suffix\":\"\","

static Tokenizer *open_language(Arena *a, const Language *l, bool pairs, bool merges_first)
{
    StrBuf b;
    Error err = {0};
    Tokenizer *t = NULL;
    strbuf_init(&b, 64 << 20);
    strbuf_printf(&b, HEAD);
    if (merges_first)
        add_merges(&b, l, pairs);
    else
        add_vocab(&b, l);
    strbuf_printf(&b, ",\n    ");
    if (merges_first)
        add_vocab(&b, l);
    else
        add_merges(&b, l, pairs);
    strbuf_printf(&b, "}}");
    if (!strbuf_check(&b, "t", &err) ||
        !tokenizer_json_open(a, "t", strbuf_str(&b), (Str){0}, &t, &err))
        fail_msg("%s", err.msg);
    strbuf_free(&b);
    return t;
}

static void expect_alike(const Language *l, uint64_t *seed)
{
    Arena a;
    arena_init(&a, "test");
    Tokenizer *want = open_language(&a, l, true, false);
    Tokenizer *got[] = {open_language(&a, l, false, false), open_language(&a, l, false, true)};
    for (int round = 0; round < 300; round++) {
        char text[400];
        const size_t n = next_random(seed) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = bytes[next_random(seed) % CHARS];
        const ArenaMark mark = arena_mark(&a);
        const char *ids = encode_text(&a, want, (Str){text, n}, 0);
        for (size_t i = 0; i < COUNT_OF(got); i++)
            assert_string_equal(encode_text(&a, got[i], (Str){text, n}, 0), ids);
        arena_rewind(&a, mark);
    }
    tokenizer_close(want);
    for (size_t i = 0; i < COUNT_OF(got); i++)
        tokenizer_close(got[i]);
    arena_free(&a);
}

/* mem_free it. */
static Language *new_language(uint64_t *seed)
{
    Language *l = mem_zalloc(sizeof *l);
    assert_non_null(l);
    grow_language(l, TOKENS_MAX, seed);
    assert_true(l->n_merges > TOKENS_MAX);
    return l;
}

static void test_order_of_tokens(void **state)
{
    (void)state;
    uint64_t seed = 7;
    Language *l = new_language(&seed);
    expect_alike(l, &seed);
    mem_free(l);
}

static void swap_merges(Language *l, int times, uint64_t *seed)
{
    for (int i = 0; i < times; i++) {
        Merge *a = &l->merges[next_random(seed) % (uint32_t)l->n_merges];
        Merge *b = &l->merges[next_random(seed) % (uint32_t)l->n_merges];
        const Merge m = *a;
        *a = *b;
        *b = m;
    }
}

/* Mostly in the order of the tokens, with jumps; then in none. */
static void test_other_orders(void **state)
{
    (void)state;
    uint64_t seed = 8;
    Language *l = new_language(&seed);
    swap_merges(l, 20, &seed);
    expect_alike(l, &seed);
    swap_merges(l, 2 * MERGES_MAX, &seed);
    expect_alike(l, &seed);
    mem_free(l);
}

/* Merges that begin as the token that is expected does, and are something else. */
static void test_nearly_expected(void **state)
{
    (void)state;
    static const struct {
        const char *merge, *mentions; /* NULL: it is a merge */
    } cases[] = {
        {"\"a b\"", NULL},
        {"\"\xC3\xA9 a\"", NULL},
        {"\"\xC3 \xA9"
         "a\"",
         "byte alphabet"},
        {"\"\xC3\xA9  a\"", "byte alphabet"},
        {"\"\xC3\xA9"
         "a \"",
         "a part is empty"},
        {"\" \xC3\xA9"
         "a\"",
         "a part is empty"},
        {"\"\xC3\xA9"
         "a\"",
         "no space"},
        {"\"\xC3\xA9 a\xC3\xA9\"", "right part is no token"},
        {"\"\xC3\xA9 a", "wanted"},
        {"\"\xC3\xA9 a\\\"", "wanted"},
        {"\"\xC3\xA9xa\"", "no space"},
        {"\"\xC3\xA9 \\u0061\"", NULL},
        {"\"a b\":0", "comma"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Arena a;
        Error err = {0};
        Tokenizer *t = NULL;
        arena_init(&a, "test");
        const char *json = arena_printf(
            &a, &err,
            HEAD "\"vocab\":{\"a\":0,\"b\":1,\"\xC3\xA9\":2,\"ab\":3,\"\xC3\xA9"
                 "a\":4,\"aba\":5},\"merges\":"
                 "[\"a b\",%s,\"ab a\",\"ab a\",\"ab a\",\"ab a\",\"ab a\",\"ab a\"]}}",
            cases[i].merge);
        assert_non_null(json);
        const bool ok = tokenizer_json_open(&a, "t", str_from(json), (Str){0}, &t, &err);
        if (ok != !cases[i].mentions || (!ok && !strstr(err.msg, cases[i].mentions)))
            fail_msg("%s: \"%s\", wanted \"%s\"", cases[i].merge, err.msg,
                     cases[i].mentions ? cases[i].mentions : "none");
        if (ok) {
            assert_string_equal(encode_text(&a, t, str_from("aba"), 0), "5");
            tokenizer_close(t);
        }
        arena_free(&a);
    }
}

/* A first line of merges.txt in the list is none, even where a token begins so. */
static void test_version_line(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    Tokenizer *t = NULL;
    arena_init(&a, "test");
    if (!tokenizer_json_open(&a, "t",
                             str_from(HEAD
                                      "\"vocab\":{\"#versions\":0,\"#version\":1,\"s\":2,\"a\":3,"
                                      "\"aa\":4},\"merges\":[\"#version s\",\"a a\"]}}       "),
                             (Str){0}, &t, &err))
        fail_msg("%s", err.msg);
    assert_non_null(strstr(tokenizer_describe(t), " 1 merges"));
    tokenizer_close(t);
    arena_free(&a);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_tokens),
        cmocka_unit_test(test_other_orders),
        cmocka_unit_test(test_nearly_expected),
        cmocka_unit_test(test_version_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
