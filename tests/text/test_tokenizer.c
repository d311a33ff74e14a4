/* Tokenizers from tokenizer.json and from GGUF arrays: the ids of the reference library on the
 * golden strings, the parts that are refused, and what holds for any bytes. */
#include "text/text_data.h"

#include "base/clock.h"

static void test_golden_ids(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    json_t *data = data_json("text/tokenizers.json");
    const json_t *strings = json_object_get(data, "strings");
    const json_t *want = json_object_get(json_object_get(data, "tiny"), "ids");
    assert_int_equal(json_array_size(strings), 269);
    for (size_t i = 0; i < json_array_size(strings); i++) {
        const Str s = json_text(json_array_get(strings, i));
        const ArenaMark mark = arena_mark(&a);
        assert_string_equal(encode_text(&a, t, s, TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL),
                            json_ids_text(&a, json_array_get(want, i)));
        TokenIds ids;
        Error err = {0};
        StrBuf back;
        strbuf_init(&back, 1 << 20);
        assert_true(tokenizer_encode(&a, t, s, 0, &ids, &err));
        assert_true(tokenizer_decode(t, ids.ids, ids.n, 0, &back, &err));
        assert_text("decoded", strbuf_str(&back), s);
        strbuf_free(&back);
        arena_rewind(&a, mark);
    }
    json_decref(data);
    tokenizer_close(t);
    arena_free(&a);
}

static void test_facts(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    assert_int_equal(tokenizer_n_vocab(t), 320);
    assert_int_equal(tokenizer_bos(t), 308);
    assert_int_equal(tokenizer_eos(t), 310);
    assert_int_equal(tokenizer_eot(t), -1);
    assert_false(tokenizer_adds_bos(t));
    assert_true(tokenizer_is_special(t, 309));
    assert_false(tokenizer_is_special(t, 65));
    assert_false(tokenizer_is_special(t, -1));
    assert_false(tokenizer_is_special(t, 320));
    assert_int_equal(tokenizer_find(t, str_from("<|im_end|>")), 310);
    assert_int_equal(tokenizer_find(t, str_from("A")), 65);
    assert_int_equal(tokenizer_find(t, str_from("no such token")), -1);
    assert_text("piece", tokenizer_piece(t, 310), str_from("<|im_end|>"));
    assert_int_equal(tokenizer_piece(t, 320).len, 0);
    assert_int_equal(tokenizer_piece(t, -1).len, 0);
    assert_in_range(tokenizer_bytes(t), 8000, 200000);
    assert_non_null(strstr(tokenizer_describe(t), "320 tokens"));
    tokenizer_close(t);
    arena_free(&a);
}

/* Special tokens in text from outside are plain characters unless asked for. */
static void test_parse_special(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    const Str s = str_from("<|im_end|>");
    assert_string_equal(encode_text(&a, t, s, TOKENIZER_PARSE_SPECIAL), "310");
    TokenIds ids;
    Error err = {0};
    assert_true(tokenizer_encode(&a, t, s, 0, &ids, &err));
    assert_true(ids.n > 1);
    for (int64_t i = 0; i < ids.n; i++)
        assert_false(tokenizer_is_special(t, ids.ids[i]));
    StrBuf out;
    strbuf_init(&out, 100);
    const int32_t with_special[] = {65, 310, 66};
    assert_true(tokenizer_decode(t, with_special, 3, TOKENIZER_SKIP_SPECIAL, &out, &err));
    assert_text("skip special", strbuf_str(&out), str_from("AB"));
    strbuf_free(&out);
    tokenizer_close(t);
    arena_free(&a);
}

/* Whatever the bytes are, they come back. */
static void test_any_bytes(void **state)
{
    (void)state;
    static const char *const hex_cases[] = {"\x80",
                                            "\xff",
                                            "\xc3",
                                            "\xc3\x28",
                                            "\xe2\x82\x28",
                                            "a\xc3",
                                            "\xed\xa0\x80",
                                            "\xf4\x90\x80\x80",
                                            "\xf8\x88\x80\x80\x80",
                                            "\xc0\xaf",
                                            "Hello \xff world",
                                            "\xff<|im_end|>\xfe",
                                            "\xf0\x9f\x98"};
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    uint64_t seed = 11;
    for (int round = 0; round < 2000; round++) {
        char text[64];
        size_t n = 0;
        if (round < (int)COUNT_OF(hex_cases)) {
            n = strlen(hex_cases[round]);
            memcpy(text, hex_cases[round], n);
        } else {
            n = next_random(&seed) % sizeof text;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)(next_random(&seed) % 3 ? next_random(&seed) : 0x20 + i % 90);
        }
        const ArenaMark mark = arena_mark(&a);
        TokenIds ids;
        Error err = {0};
        StrBuf back;
        strbuf_init(&back, 1 << 16);
        assert_true(tokenizer_encode(&a, t, (Str){text, n}, (unsigned)round & 3U, &ids, &err));
        assert_true(tokenizer_decode(t, ids.ids, ids.n, 0, &back, &err));
        assert_text("bytes", strbuf_str(&back), (Str){text, n});
        strbuf_free(&back);
        arena_rewind(&a, mark);
    }
    assert_string_equal(encode_text(&a, t, (Str){NULL, 0}, 3), "");
    tokenizer_close(t);
    arena_free(&a);
}

/* A megabyte of one letter, of blanks, of digits, of marks: all in bounded time. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a",         " ",    "1", "\n",        "\xCC\x81",
                                        "e\xCC\x81", "\xff", "<", "<|im_end|>"};
    const size_t len = 1 << 20;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    char *text = mem_alloc(len);
    assert_non_null(text);
    for (size_t u = 0; u < COUNT_OF(units); u++) {
        const size_t step = strlen(units[u]);
        const size_t n = len / step * step;
        for (size_t i = 0; i < n; i += step)
            memcpy(text + i, units[u], step);
        const ArenaMark mark = arena_mark(&a);
        TokenIds ids;
        Error err = {0};
        const double start = clock_ms();
        if (!tokenizer_encode(&a, t, (Str){text, n}, TOKENIZER_PARSE_SPECIAL, &ids, &err))
            fail_msg("%s: %s", units[u], err.msg);
        const double ms = clock_ms() - start;
        assert_true(ids.n > 0);
        if (ms > 30000) /* about 100 ms; a quadratic step would take hours */
            fail_msg("\"%s\": %.0f ms", units[u], ms);
        arena_rewind(&a, mark);
    }
    mem_free(text);
    tokenizer_close(t);
    arena_free(&a);
}

/* ---- small vocabularies written here ---- */

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define VOCAB "\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"\\u0120a\":4,\"aba\":5,\"c\":6"
#define MERGES "[\"a b\",[\"\\u0120\",\"a\"],\"ab a\"]"

typedef struct Parts {
    const char *added, *normalizer, *pre, *post, *decoder, *model; /* model: keys before vocab */
} Parts;

static Str make_json(Arena *a, Parts p)
{
    Error err = {0};
    const char *s = arena_printf(
        a, &err,
        "{\"version\":\"1.0\",\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,"
        "\"post_processor\":%s,\"decoder\":%s,\"model\":{%s\"vocab\":{" VOCAB "},\"merges\":" MERGES
        "}}",
        p.added ? p.added : "", p.normalizer ? p.normalizer : "null", p.pre ? p.pre : BYTE_LEVEL,
        p.post ? p.post : "null", p.decoder ? p.decoder : "{\"type\":\"ByteLevel\"}",
        p.model ? p.model : "\"type\":\"BPE\",");
    assert_non_null(s);
    return str_from(s);
}

static Tokenizer *open_parts(Arena *a, Parts p, const char *config)
{
    Error err = {0};
    Tokenizer *t = NULL;
    if (!tokenizer_json_open(a, "t", make_json(a, p), config ? str_from(config) : (Str){0}, &t,
                             &err))
        fail_msg("%s", err.msg);
    return t;
}

static void test_added_tokens(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const struct {
        const char *added, *text, *want;
    } cases[] = {
        {"{\"id\":9,\"content\":\"<x>\",\"special\":true}", "a<x>b", "0 9 1"},
        {"{\"id\":9,\"content\":\"<x>\"},{\"id\":10,\"content\":\"<x>y\"}", "<x>y<x>", "10 9"},
        {"{\"id\":9,\"content\":\"<x>\",\"lstrip\":true}", "a  <x> b", "0 9 3 1"},
        {"{\"id\":9,\"content\":\"<x>\",\"rstrip\":true}", "a <x>  b", "0 3 9 1"},
        {"{\"id\":9,\"content\":\"<x>\",\"rstrip\":true,\"lstrip\":true}", "<x>  <x>", "9 9"},
        {"{\"id\":9,\"content\":\"c\",\"single_word\":true}", "c ac c", "9 4 6 3 9"},
        {"{\"id\":9,\"content\":\"aba\",\"normalized\":false}", "abab", "9 1"},
        {"{\"id\":2,\"content\":\"ab\",\"special\":true}", "ab", "2"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Tokenizer *t = open_parts(&a, (Parts){.added = cases[i].added}, NULL);
        assert_string_equal(encode_text(&a, t, str_from(cases[i].text), TOKENIZER_PARSE_SPECIAL),
                            cases[i].want);
        tokenizer_close(t);
    }
    arena_free(&a);
}

static void test_merges(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = open_parts(&a, (Parts){0}, NULL);
    assert_string_equal(encode_text(&a, t, str_from("ababa"), 0), "2 5");
    assert_string_equal(encode_text(&a, t, str_from(" ab a"), 0), "3 2 4");
    tokenizer_close(t);
    /* A piece that is a token is that token, whatever the merges say. */
    t = open_parts(&a, (Parts){.model = "\"ignore_merges\":true,"}, NULL);
    assert_string_equal(encode_text(&a, t, str_from("aba"), 0), "5");
    tokenizer_close(t);
    arena_free(&a);
}

static void test_around(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const char added[] = "{\"id\":8,\"content\":\"<s>\",\"special\":true},"
                                "{\"id\":9,\"content\":\"</s>\",\"special\":true}";
    static const char template[] =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
        "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
        "\"ids\":[8],\"tokens\":[\"<s>\"]}}}]}";
    static const struct {
        const char *post, *config, *want;
        bool bos, eos;
    } cases[] = {
        {NULL, NULL, "0", false, false},
        {template, NULL, "8 0", false, false},
        {template, "{\"bos_token\":\"<s>\"}", "8 0", true, false},
        {template, "{\"bos_token\":\"<s>\",\"add_bos_token\":false}", "0", false, false},
        {NULL, "{\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":true}", "8 0", true, false},
        {NULL,
         "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_bos_token\":true,"
         "\"add_eos_token\":true}",
         "8 0 9", true, true},
        {"{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",9],\"cls\":[\"<s>\",8]}", NULL, "8 0 9",
         false, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Tokenizer *t =
            open_parts(&a, (Parts){.added = added, .post = cases[i].post}, cases[i].config);
        assert_string_equal(encode_text(&a, t, str_from("a"), TOKENIZER_ADD_SPECIAL),
                            cases[i].want);
        assert_string_equal(encode_text(&a, t, str_from("a"), 0), "0");
        assert_int_equal(tokenizer_adds_bos(t), cases[i].bos);
        assert_int_equal(tokenizer_adds_eos(t), cases[i].eos);
        tokenizer_close(t);
    }
    arena_free(&a);
}

static void test_pre_tokenizers(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const struct {
        const char *pre, *text, *want;
    } cases[] = {
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "ab", "3 2"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", " a", "4"},
        {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "ab a", "2 4"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":"
         "\"b\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "]}",
         "aba", "0 1 0"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
         "\"b\"},\"behavior\":\"Removed\",\"invert\":false}," BYTE_LEVEL "]}",
         "aba", "0 0"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
         "\"b\"},\"behavior\":\"MergedWithPrevious\",\"invert\":false}," BYTE_LEVEL "]}",
         "aba", "2 0"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\"},{\"type\":"
         "\"Digits\",\"individual_digits\":true}," BYTE_LEVEL "]}",
         "ab", "2"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Tokenizer *t = open_parts(&a, (Parts){.pre = cases[i].pre}, NULL);
        assert_string_equal(encode_text(&a, t, str_from(cases[i].text), 0), cases[i].want);
        tokenizer_close(t);
    }
    arena_free(&a);
}

static void expect_error(Str json, const char *config, ErrCode code, const char *mentions)
{
    Arena a;
    Error err = {0};
    Tokenizer *t = NULL;
    arena_init(&a, "test");
    const bool ok =
        tokenizer_json_open(&a, "t", json, config ? str_from(config) : (Str){0}, &t, &err);
    if (ok)
        fail_msg("opened, wanted an error with \"%s\"", mentions);
    if (err.code != code || !strstr(err.msg, mentions))
        fail_msg("got %s \"%s\", wanted %s with \"%s\"", err_name(err.code), err.msg,
                 err_name(code), mentions);
    arena_free(&a);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        Parts parts;
        const char *config;
        ErrCode code;
        const char *mentions;
    } cases[] = {
        {{.normalizer = "{\"type\":\"Odd\"}"}, NULL, ERR_UNSUPPORTED, "Odd"},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
                        "\"Replace\"}]}"},
         NULL,
         ERR_FORMAT,
         "Replace"},
        {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\"}"},
         NULL,
         ERR_UNSUPPORTED,
         "replacement"},
        {{.pre = "{\"type\":\"UnicodeScripts\"}"}, NULL, ERR_UNSUPPORTED, "UnicodeScripts"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL "," BYTE_LEVEL "]}"},
         NULL,
         ERR_UNSUPPORTED,
         "second"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}"},
         NULL,
         ERR_FORMAT,
         "regular expression"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{}}"}, NULL, ERR_FORMAT, "pattern"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}"},
         NULL,
         ERR_UNSUPPORTED,
         "Odd"},
        {{.pre = "{}"}, NULL, ERR_FORMAT, "type"},
        {{.pre = "5"}, NULL, ERR_FORMAT, "no object"},
        {{.decoder = "{\"type\":\"CTC\"}"}, NULL, ERR_UNSUPPORTED, "CTC"},
        {{.post = "{\"type\":\"Odd\"}"}, NULL, ERR_UNSUPPORTED, "Odd"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\"}}]"
                  "}"},
         NULL,
         ERR_FORMAT,
         "special_tokens"},
        {{.post = "{\"type\":\"BertProcessing\",\"sep\":[\"x\",99],\"cls\":[\"y\",98]}"},
         NULL,
         ERR_FORMAT,
         "98"},
        {{.model = "\"type\":\"Unigram\","}, NULL, ERR_UNSUPPORTED, "Unigram"},
        {{.model = "\"dropout\":0.1,"}, NULL, ERR_UNSUPPORTED, "dropout"},
        {{.model = "\"new_option\":3,"}, NULL, ERR_UNSUPPORTED, "model.new_option is 3"},
        {{.model = "\"end_of_word_suffix\":1,"}, NULL, ERR_FORMAT, "end_of_word_suffix"},
        {{.model = "\"continuing_subword_prefix\":\"##\","},
         NULL,
         ERR_UNSUPPORTED,
         "continuing_subword_prefix"},
        {{.model = "\"vocab\":{\"a\":0},"}, NULL, ERR_FORMAT, "twice"},
        {{.added = "{\"id\":-1,\"content\":\"x\"}"}, NULL, ERR_FORMAT, "id"},
        {{.added = "{\"id\":99999999,\"content\":\"x\"}"}, NULL, ERR_FORMAT, "id"},
        {{.added = "{\"id\":9}"}, NULL, ERR_FORMAT, "content"},
        {{.added = "{\"id\":9,\"content\":\"\"}"}, NULL, ERR_FORMAT, "content"},
        {{0}, "{\"bos_token\":\"nowhere\"}", ERR_FORMAT, "bos_token"},
        {{0}, "{\"add_bos_token\":7}", ERR_FORMAT, "add_bos_token"},
        {{0}, "{", ERR_FORMAT, "tokenizer_config.json"},
    };
    Arena a;
    arena_init(&a, "test");
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_error(make_json(&a, cases[i].parts), cases[i].config, cases[i].code,
                     cases[i].mentions);
    arena_free(&a);
}

static void test_damaged(void **state)
{
    (void)state;
    static const struct {
        const char *json, *mentions;
    } cases[] = {
        {"", "wanted an object"},
        {"[]", "wanted an object"},
        {"{}", "\"model\" is missing"},
        {"{\"model\":{}}", "model.vocab is missing"},
        {"{\"model\":{\"vocab\":{}}}", "model.merges is missing"},
        {"{\"model\":{\"vocab\":{\"a\":0", "ends inside"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0 1}}}", "wanted a comma"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}", "given twice"},
        {"{\"model\":{\"vocab\":{\"a\":-1}}}", "not negative"},
        {"{\"model\":{\"vocab\":{\"a\":1.5}}}", "whole number"},
        {"{\"model\":{\"vocab\":{\"a\":4194304}}}", "too large"},
        {"{\"model\":{\"vocab\":{\"a\":\"x\"}}}", "whole number"},
        {"{\"model\":{\"vocab\":{\"\\q\":0}}}", "escape"},
        {"{\"model\":{\"vocab\":{\"\\ud800\":0}}}", "surrogate"},
        {"{\"model\":{\"vocab\":{\"\\u12g4\":0}}}", "hexadecimal"},
        {"{\"model\":{\"vocab\":{\"\xff\":0}}}", "UTF-8"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", "no space"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "no token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "pair"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}", "more than two"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[3]}}", "array"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}} x", "after the end"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"model\":{}}", "twice"},
        {"{\"a\":[{\"b\":\"\\\"", "ends inside a string"},
        {"{\"a\":[{\"b\":1", "ends inside a value"},
        {"{\"a\":]}", "wanted a value"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":[}", "wanted"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_error(str_from(cases[i].json), NULL, ERR_FORMAT, cases[i].mentions);
}

/* Every prefix of a good file, and every byte changed: an error or a tokenizer, never worse. */
static void test_mutated(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const Str good = make_json(
        &a, (Parts){.added = "{\"id\":9,\"content\":\"<x>\"}", .normalizer = "{\"type\":\"NFC\"}"});
    char *copy = mem_alloc(good.len);
    assert_non_null(copy);
    uint64_t seed = 3;
    for (size_t i = 0; i < good.len; i++) {
        memcpy(copy, good.ptr, good.len);
        copy[i] = (char)next_random(&seed);
        const Str tries[] = {{good.ptr, i}, {copy, good.len}};
        for (int k = 0; k < 2; k++) {
            const ArenaMark mark = arena_mark(&a);
            Error err = {0};
            Tokenizer *t = NULL;
            if (tokenizer_json_open(&a, "t", tries[k], (Str){0}, &t, &err))
                tokenizer_close(t);
            else
                assert_true(err.code != ERR_NONE && err.msg[0]);
            arena_rewind(&a, mark);
        }
    }
    mem_free(copy);
    arena_free(&a);
}

/* ---- GGUF ---- */

enum { GGUF_TOKENS = 261 };
static char gguf_chars[256][8];

/* The 256 bytes, then "ab", " a", "<s>" (control), "<u>" (user), "<z>" (control). */
static TokenizerGguf make_gguf(Str *tokens, int32_t *types, Str *merges)
{
    for (int i = 0; i < 256; i++) {
        const int cp = (i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i != 0xAD) ? i
                       : i <= 0x20                                          ? 0x100 + i
                       : i == 0xAD                                          ? 0x143
                                                                            : 0x121 + i - 0x7F;
        if (cp < 0x80)
            snprintf(gguf_chars[i], 8, "%c", cp);
        else
            snprintf(gguf_chars[i], 8, "%c%c", 0xC0 | cp >> 6, 0x80 | (cp & 0x3F));
        tokens[i] = str_from(gguf_chars[i]);
        types[i] = 1;
    }
    static const char *const more[] = {"ab",
                                       ("\xC4\xA0"
                                        "a"),
                                       "<s>", "<u>", "<z>"};
    static const int32_t kinds[] = {1, 1, 3, 4, 3};
    for (int i = 0; i < 5; i++) {
        tokens[256 + i] = str_from(more[i]);
        types[256 + i] = kinds[i];
    }
    merges[0] = str_from("a b");
    merges[1] = str_from("\xC4\xA0 a");
    return (TokenizerGguf){.doc = "f.gguf",
                           .model = str_from("gpt2"),
                           .pre = str_from("gpt-2"),
                           .tokens = tokens,
                           .n_tokens = GGUF_TOKENS,
                           .merges = merges,
                           .n_merges = 2,
                           .types = types,
                           .bos = 258,
                           .eos = 260,
                           .eot = -1,
                           .add_bos = -1,
                           .add_eos = -1};
}

static Tokenizer *open_gguf(Arena *a, const TokenizerGguf *g)
{
    Error err = {0};
    Tokenizer *t = NULL;
    if (!tokenizer_gguf_open(a, g, &t, &err))
        fail_msg("%s", err.msg);
    return t;
}

static void test_gguf(void **state)
{
    (void)state;
    Str tokens[GGUF_TOKENS];
    int32_t types[GGUF_TOKENS];
    Str merges[2];
    Arena a;
    arena_init(&a, "test");
    TokenizerGguf g = make_gguf(tokens, types, merges);
    Tokenizer *t = open_gguf(&a, &g);
    assert_int_equal(tokenizer_n_vocab(t), GGUF_TOKENS);
    assert_string_equal(encode_text(&a, t, str_from("ab a\xff<s><u>"), 1),
                        "256 257 255 60 115 62 259");
    assert_string_equal(encode_text(&a, t, str_from("<s>x"), TOKENIZER_PARSE_SPECIAL), "258 120");
    assert_int_equal(tokenizer_find(t, str_from("<z>")), 260);
    tokenizer_close(t);
    /* llama-bpe adds BOS unless the file says no. */
    g.pre = str_from("llama-bpe");
    t = open_gguf(&a, &g);
    assert_string_equal(encode_text(&a, t, str_from("ab"), 1), "258 256");
    tokenizer_close(t);
    g.add_bos = 0;
    g.add_eos = 1;
    t = open_gguf(&a, &g);
    assert_string_equal(encode_text(&a, t, str_from("ab"), 1), "256 260");
    tokenizer_close(t);
    arena_free(&a);
}

/* Every known name opens, cuts what it should, and loses nothing. */
static void test_gguf_pre(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",      "default", "gpt-2",       "smollm",         "falcon",  "llama-bpe",  "dbrx",
        "glm4",  "qwen2",   "qwen35",      "gpt-4o",         "tekken",  "seed-coder", "bailingmoe",
        "bloom", "viking",  "deepseek-v3", "deepseek-coder", "kimi-k2", "superbpe"};
    static const char text[] = "Don't STOP  at 1234567 \xE4\xB8\xAD\xE6\x96\x87 "
                               "caf\xC3\xA9\xCC\x81\n\n \xF0\x9F\x98\x80!? a_b\tz  ";
    Str tokens[GGUF_TOKENS];
    int32_t types[GGUF_TOKENS];
    Str merges[2];
    Arena a;
    arena_init(&a, "test");
    TokenizerGguf g = make_gguf(tokens, types, merges);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        g.pre = str_from(names[i]);
        Tokenizer *t = open_gguf(&a, &g);
        TokenIds ids;
        Error err = {0};
        StrBuf back;
        strbuf_init(&back, 1000);
        if (!tokenizer_encode(&a, t, str_from(text), 0, &ids, &err))
            fail_msg("%s: %s", names[i], err.msg);
        assert_true(tokenizer_decode(t, ids.ids, ids.n, 0, &back, &err));
        assert_text(names[i], strbuf_str(&back), str_from(text));
        strbuf_free(&back);
        tokenizer_close(t);
    }
    arena_free(&a);
}

static void test_gguf_errors(void **state)
{
    (void)state;
    for (int i = 0; i < 9; i++) {
        Str tokens[GGUF_TOKENS];
        int32_t types[GGUF_TOKENS];
        Str merges[2];
        Arena a;
        Error err = {0};
        Tokenizer *t = NULL;
        arena_init(&a, "test");
        TokenizerGguf g = make_gguf(tokens, types, merges);
        static const char *const want[] = {"tokenizer.ggml.model",
                                           "tokenizer.ggml.pre",
                                           "tokenizer.ggml.tokens",
                                           "merges[0]",
                                           "bos_token_id",
                                           "eos_token_id",
                                           "no token",
                                           "byte alphabet",
                                           "has 2000"};
        static char huge[2001];
        switch (i) {
        case 0:
            g.model = str_from("rwkv");
            break;
        case 1:
            g.pre = str_from("nobody-knows");
            break;
        case 2:
            g.n_tokens = 0;
            break;
        case 3:
            merges[0] = str_from("ab");
            break;
        case 4:
            g.bos = GGUF_TOKENS;
            break;
        case 5:
            g.eos = -2;
            break;
        case 6:
            merges[0] = str_from("a c");
            break;
        case 7:
            merges[0] = str_from("\xE4\xB8\xAD b");
            break;
        default: /* a control token longer than text is searched for */
            memset(huge, 'x', 2000);
            tokens[258] = str_from(huge);
            break;
        }
        if (tokenizer_gguf_open(&a, &g, &t, &err))
            fail_msg("case %d opened", i);
        if (!strstr(err.msg, want[i]) || !strstr(err.msg, "f.gguf"))
            fail_msg("case %d: \"%s\", wanted \"%s\"", i, err.msg, want[i]);
        arena_free(&a);
    }
}

static void test_text_too_long(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    TokenIds ids;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    /* Only the length is looked at. */
    assert_false(
        tokenizer_encode(&a, t, (Str){"x", (size_t)TOKENIZER_TEXT_MAX + 1}, 0, &ids, &err));
    assert_int_equal(err.code, ERR_TOO_LONG);
    tokenizer_close(t);
    arena_free(&a);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_ids),     cmocka_unit_test(test_facts),
        cmocka_unit_test(test_parse_special),  cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_long_runs),      cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_merges),         cmocka_unit_test(test_around),
        cmocka_unit_test(test_pre_tokenizers), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_damaged),        cmocka_unit_test(test_mutated),
        cmocka_unit_test(test_gguf),           cmocka_unit_test(test_gguf_pre),
        cmocka_unit_test(test_gguf_errors),    cmocka_unit_test(test_text_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
