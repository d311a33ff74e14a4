/* Small vocabularies of every kind of file, written here: what they make of a text, that any bytes
 * and long runs are taken, and that no damaged file does worse than an error. */
#include "text/text_data.h"

#include "base/clock.h"
#include "text/bytelevel.h"
#include "text/utf8.h"

#define MARK "\xE2\x96\x81" /* U+2581 */

/* ---- a SentencePiece model ---- */

typedef struct Proto {
    char at[16384];
    size_t n;
} Proto;

static void put_varint(Proto *p, uint64_t v)
{
    do {
        p->at[p->n++] = (char)(unsigned char)((v & 0x7FU) | (v > 0x7F ? 0x80U : 0));
        v >>= 7;
    } while (v);
}

static void put_number(Proto *p, unsigned field, uint64_t v)
{
    put_varint(p, field << 3);
    put_varint(p, v);
}

static void put_bytes(Proto *p, unsigned field, const char *s, size_t n)
{
    put_varint(p, field << 3 | 2);
    put_varint(p, n);
    memcpy(p->at + p->n, s, n);
    p->n += n;
}

static void put_piece(Proto *p, const char *text, float score, int type)
{
    Proto in = {.n = 0};
    put_bytes(&in, 1, text, strlen(text));
    put_varint(&in, 2 << 3 | 5);
    memcpy(in.at + in.n, &score, 4);
    in.n += 4;
    put_number(&in, 3, (uint64_t)type);
    put_bytes(p, 1, in.at, in.n);
}

enum { UNIGRAM = 1, BPE = 2 };

/* <unk> <s> </s>, then "a" "b" "ab" MARK MARK"a" "ba" "<u>" (user-defined), then with bytes the
 * 256. */
static void make_spm(Proto *p, int model, bool bytes)
{
    p->n = 0;
    put_piece(p, "<unk>", 0, 2);
    put_piece(p, "<s>", 0, 3);
    put_piece(p, "</s>", 0, 3);
    put_piece(p, "a", -4, 1);
    put_piece(p, "b", -5, 1);
    put_piece(p, "ab", model == BPE ? -1 : -6, 1);
    put_piece(p, MARK, -3, 1);
    put_piece(p, MARK "a", model == BPE ? -2 : -5, 1);
    put_piece(p, "ba", model == BPE ? -3 : -12, 1);
    put_piece(p, "<u>", 0, 4);
    for (int i = 0; bytes && i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)i);
        put_piece(p, text, 0, 6);
    }
    Proto in = {.n = 0};
    put_number(&in, 3, (uint64_t)model);
    put_number(&in, 35, bytes);
    put_bytes(p, 2, in.at, in.n);
    in.n = 0;
    put_number(&in, 4, 0); /* keep extra spaces */
    put_bytes(p, 3, in.at, in.n);
}

static Tokenizer *open_spm(Arena *a, int model, bool bytes, const char *config)
{
    static Proto p;
    Error err = {0};
    Tokenizer *t = NULL;
    make_spm(&p, model, bytes);
    if (!tokenizer_spm_open(a, "spm", (Str){p.at, p.n}, config ? str_from(config) : (Str){0}, &t,
                            &err))
        fail_msg("%s", err.msg);
    return t;
}

typedef struct Case {
    const char *text, *want;
    unsigned flags;
} Case;

static void expect(Arena *a, Tokenizer *t, const char *what, const Case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *got = encode_text(a, t, str_from(cases[i].text), cases[i].flags);
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("%s: \"%s\": got %s, wanted %s", what, cases[i].text, got, cases[i].want);
    }
}

/* Decoding gives the text again, byte for byte. */
static void expect_back(Tokenizer *t, const char *what, Str text)
{
    Arena a;
    Error err = {0};
    TokenIds ids;
    StrBuf out;
    arena_init(&a, "back");
    strbuf_init(&out, 1 << 22);
    assert_true(tokenizer_encode(&a, t, text, 0, &ids, &err));
    assert_true(tokenizer_decode(t, ids.ids, ids.n, 0, &out, &err));
    assert_text(what, strbuf_str(&out), text);
    strbuf_free(&out);
    arena_free(&a);
}

static void random_bytes(Tokenizer *t, const char *what)
{
    uint64_t seed = 5;
    for (int round = 0; round < 500; round++) {
        char text[48];
        const size_t n = next_random(&seed) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = next_random(&seed) % 3 ? "ab  <u>\xC3\xA9"[next_random(&seed) % 9]
                                             : (char)next_random(&seed);
        expect_back(t, what, (Str){text, n});
    }
}

static void long_runs(Tokenizer *t, const char *what)
{
    static const char *const units[] = {"a", "ab", " ", "\xC3\xA9", "\xff", "<u>", MARK, "1"};
    const size_t len = 1 << 20;
    char *text = mem_alloc(len);
    assert_non_null(text);
    for (size_t u = 0; u < COUNT_OF(units); u++) {
        const size_t step = strlen(units[u]);
        const size_t n = len / step * step;
        for (size_t i = 0; i < n; i += step)
            memcpy(text + i, units[u], step);
        Arena a;
        Error err = {0};
        TokenIds ids;
        arena_init(&a, "run");
        const double start = clock_ms();
        if (!tokenizer_encode(&a, t, (Str){text, n}, 0, &ids, &err))
            fail_msg("%s: %s: %s", what, units[u], err.msg);
        if (clock_ms() - start > 30000) /* about 200 ms */
            fail_msg("%s: \"%s\": %.0f ms", what, units[u], clock_ms() - start);
        arena_free(&a);
    }
    mem_free(text);
}

static void test_spm_bpe(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const Case cases[] = {
        {"", "", 0},
        {"ab", "6 5", 0}, /* MARK "ab": joined by score, so not MARK"a" "b" */
        {"a", "7", 0},
        {"aba", "6 5 3", 0},
        {"b a", "6 4 7", 0},
        {"a  b", "7 6 6 4", 0},
        {"a" MARK "b", "7 6 4", 0},
        {"a<u>a", "7 9 3", 0}, /* no space after a user-defined token */
        {"<s>a", "1 7", TOKENIZER_PARSE_SPECIAL},
        {"a", "1 7", TOKENIZER_ADD_SPECIAL},
        {"\xC3\xA9", "6 205 179", 0},
        {"a\xff"
         "b",
         "7 265 4", 0},
        {"\xF4\x90\x80\x80", "254 154 138 138", 0}, /* above U+10FFFF */
    };
    Tokenizer *t = open_spm(&a, BPE, true, NULL);
    expect(&a, t, "spm", cases, COUNT_OF(cases));
    /* Without special tokens parsed, they are never made. */
    const char *got = encode_text(&a, t, str_from("</s>"), 0);
    assert_null(strstr(got, " 2 "));
    random_bytes(t, "spm");
    long_runs(t, "spm");
    tokenizer_close(t);
    t = open_spm(&a, BPE, true, "{\"add_bos_token\":false,\"add_eos_token\":true}");
    expect(&a, t, "config", &(Case){"a", "7 2", TOKENIZER_ADD_SPECIAL}, 1);
    tokenizer_close(t);
    arena_free(&a);
}

static void test_spm_unigram(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const Case cases[] = {
        {"a", "7", 0},
        {"ab", "6 5", 0}, /* -3 - 6 beats -5 - 5 */
        {"ba", "6 4 3", 0},
        {"\xC3\xA9\xC3\xA8"
         "a",
         "6 0 3", 0}, /* a run of unknown characters is one */
        {"a", "7 2", TOKENIZER_ADD_SPECIAL},
    };
    Tokenizer *t = open_spm(&a, UNIGRAM, false, NULL);
    expect(&a, t, "unigram", cases, COUNT_OF(cases));
    long_runs(t, "unigram");
    tokenizer_close(t);
    t = open_spm(&a, UNIGRAM, true, NULL);
    random_bytes(t, "unigram with bytes");
    tokenizer_close(t);
    arena_free(&a);
}

/* ---- tokenizer.json ---- */

static Tokenizer *open_json(Arena *a, const char *json)
{
    Error err = {0};
    Tokenizer *t = NULL;
    if (!tokenizer_json_open(a, "t", str_from(json), (Str){0}, &t, &err))
        fail_msg("%s", err.msg);
    return t;
}

#define CHARS                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"vocab\":{\"<unk>\":"  \
    "0,\"a\":1,"                                                                                   \
    "\"b\":2,\"" MARK "\":3,\"ab\":4,\"" MARK "a\":5},\"merges\":[\"a b\",\"" MARK " a\"]}}"

static void test_json_chars(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    /* LLaMA's way: a mark before, marks for spaces. */
    Tokenizer *t = open_json(
        &a,
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
        "\"prepend\":\"" MARK "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
        "\"content\":\"" MARK "\"}]},\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Sequence\","
        "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK "\"},\"content\":"
        "\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":"
        "\" \",\"start\":1,\"stop\":0}]}," CHARS);
    static const Case llama[] = {
        {"ab", "3 4", 0}, {"a b", "5 3 2", 0}, {"zzb", "3 0 2", 0}, {"azb", "5 0 2", 0}};
    expect(&a, t, "prepend", llama, COUNT_OF(llama));
    expect_back(t, "prepend", str_from("ab a  b"));
    tokenizer_close(t);
    /* Metaspace: each space starts a piece. */
    static const struct {
        const char *scheme, *want;
    } schemes[] = {{"always", "3 4 5"}, {"first", "3 4 5"}, {"never", "4 5"}};
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        Error err = {0};
        const char *json =
            arena_printf(&a, &err,
                         "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\","
                         "\"replacement\":\"" MARK "\",\"prepend_scheme\":\"%s\"},"
                         "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK
                         "\",\"prepend_scheme\":\"%s\"}," CHARS,
                         schemes[i].scheme, schemes[i].scheme);
        t = open_json(&a, json);
        expect(&a, t, schemes[i].scheme, &(Case){"ab a", schemes[i].want, 0}, 1);
        expect_back(t, schemes[i].scheme, str_from("ab a"));
        tokenizer_close(t);
    }
    /* The model before the sections that say how it is written. */
    t = open_json(&a, "{" CHARS);
    expect(&a, t, "plain", &(Case){"abzz", "4 0", 0}, 1);
    tokenizer_close(t);
    arena_free(&a);
}

static void test_json_unigram(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = open_json(
        &a, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Nmt\"},{\"type\":"
            "\"NFKC\"},"
            "{\"type\":\"Lowercase\"},{\"type\":\"StripAccents\"},{\"type\":\"Strip\"}]},"
            "\"pre_tokenizer\":{\"type\":\"Metaspace\"},\"decoder\":null,\"model\":{\"type\":"
            "\"Unigram\","
            "\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-4],[\"b\",-5],[\"" MARK "\",-3],"
            "[\"ab\",-6.5],[\"" MARK "a\",-5e0]]}}");
    static const Case cases[] = {{"AB", "3 4", 0}, /* -9.5 beats -10 */
                                 {"  a\tb ", "5 3 2", 0},
                                 {"zza", "3 0 1", 0}};
    expect(&a, t, "unigram", cases, COUNT_OF(cases));
    tokenizer_close(t);
    arena_free(&a);
}

#define WORDS                                                                                      \
    "\"[UNK]\":0,\"un\":1,\"##able\":2,\"##a\":3,\"hi\":4,\"!\":5,\"\xE4\xB8\xAD\":6,\"e\":7"

static void test_json_wordpiece(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = open_json(
        &a,
        "{\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":true},\"pre_tokenizer\":"
        "{\"type\":\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\"},"
        "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":"
        "\"##\","
        "\"max_input_chars_per_word\":10,\"vocab\":{" WORDS "}}}");
    static const Case cases[] = {{"Unable hi!", "1 2 4 5", 0},
                                 {"una unx", "1 3 0", 0},
                                 {"\xC3\x89", "7", 0},
                                 {"hi\xE4\xB8\xADhi", "4 6 4", 0},
                                 {"unaaaaaaaa", "1 3 3 3 3 3 3 3 3", 0},
                                 {"unaaaaaaaaa", "0", 0}};
    expect(&a, t, "wordpiece", cases, COUNT_OF(cases));
    expect_back(t, "wordpiece", str_from("unable hi"));
    tokenizer_close(t);
    arena_free(&a);
}

static void test_json_steps(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const struct {
        const char *pre, *text, *want;
    } cases[] = {
        {"{\"type\":\"Whitespace\"}", "ab  ab", "2 2"},
        {"{\"type\":\"WhitespaceSplit\"}", "a b", "0 1"},
        {"{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"x\"}", "axb", "0 1"},
        {"{\"type\":\"FixedLength\",\"length\":2}", "ababb", "2 2 1"},
        {"{\"type\":\"FixedLength\",\"length\":1}", "ab", "0 1"},
        {"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":"
         "false,"
         "\"use_regex\":false},{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"},\"behavior\":"
         "\"Isolated\",\"invert\":false}]}",
         "ab", "0 1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error err = {0};
        Tokenizer *t = open_json(
            &a, arena_printf(
                    &a, &err,
                    "{\"normalizer\":null,\"pre_tokenizer\":%s,\"decoder\":null,\"model\":{"
                    "\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}",
                    cases[i].pre));
        expect(&a, t, cases[i].pre, &(Case){cases[i].text, cases[i].want, 0}, 1);
        tokenizer_close(t);
    }
    arena_free(&a);
}

/* CLIP's way: the last token of a word says so. */
static void test_json_word_end(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
#define ENDED(suffix, pre, decoder)                                                                \
    "{\"normalizer\":null,\"pre_tokenizer\":" pre ",\"decoder\":" decoder ",\"model\":{\"type\":"  \
    "\"BPE\",\"unk_token\":\"?\",\"end_of_word_suffix\":" suffix ",\"fuse_unk\":false,\"vocab\":"  \
    "{\"?\":0,\"a\":1,\"b\":2,\"a</w>\":3,\"b</w>\":4,\"ab\":5,\"ab</w>\":6},\"merges\":"          \
    "[\"a b\",\"a b</w>\"]}}"
    static const char *const files[] = {
        ENDED("\"</w>\"",
              "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":"
              "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}",
              "{\"type\":\"ByteLevel\"}"),
        ENDED("\"</w>\"", "{\"type\":\"WhitespaceSplit\"}", "{\"type\":\"BPEDecoder\"}"),
    };
    static const Case cases[] = {{"ab", "6", 0},
                                 {"a", "3", 0},
                                 {"abab b", "5 6 4", 0},
                                 {"abx ba", "5 0 2 3", 0},
                                 {"x", "0", 0}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        Error err = {0};
        StrBuf out;
        Tokenizer *t = open_json(&a, files[i]);
        expect(&a, t, files[i], cases, COUNT_OF(cases));
        strbuf_init(&out, 100);
        assert_true(tokenizer_decode(t, (const int32_t[]){5, 6, 3, 2, 4}, 5, 0, &out, &err));
        assert_text("decoded", strbuf_str(&out), str_from("abab a bb "));
        strbuf_free(&out);
        tokenizer_close(t);
    }
    arena_free(&a);
}

/* Characters that PCRE2 or utf8proc may know otherwise than the library: each with its answer. */
static void test_json_unicode(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const struct {
        const char *normalizer, *pre, *text, *want;
    } cases[] = {
        {"null",
         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+\"},\"behavior\":\"Removed\"}",
         "b\xF0\xB1\x8D\x90"
         "1",
         "1"}, /* U+31350, a letter of Unicode 15 */
        {"null", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Removed\"}",
         "\xE2\x92\xB6\xC2\xB2"
         "1!\xE2\x82\x82",
         "2 7"}, /* circled letters and superscripts are words, subscripts are not */
        {"null", "{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}", "1!\xE2\xB9\x83", "1 7"},
        {"null", "{\"type\":\"Digits\",\"individual_digits\":true}", "11\xF0\x90\xB5\x80",
         "1 1 7"},                                            /* U+10D40 */
        {"{\"type\":\"NFKC\"}", "null", "\xE3\x8B\xBF", "7"}, /* U+32FF: newer than its table */
        {"{\"type\":\"NFC\"}", "null", "\xEA\xB0\x80\xE1\x86\xA7", "3 7"}, /* U+AC00 U+11A7 */
        {"{\"type\":\"StripAccents\"}", "null", "1\xE0\xA4\x83", "1"},     /* U+0903, Mc */
        {"{\"type\":\"Lowercase\"}", "null", "\xEA\x9F\x8B", "4"},         /* U+A7CB to U+0264 */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error err = {0};
        Tokenizer *t = open_json(
            &a, arena_printf(&a, &err,
                             "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":null,\"model\":{"
                             "\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"1\":1,\"!\":2,"
                             "\"\xEA\xB0\x80\":3,\"\xC9\xA4\":4,\"?\":7},\"merges\":[]}}",
                             cases[i].normalizer, cases[i].pre));
        expect(&a, t, cases[i].normalizer, &(Case){cases[i].text, cases[i].want, 0}, 1);
        tokenizer_close(t);
    }
    arena_free(&a);
}

/* ---- lists ---- */

static const char ranks[] = "YQ== 0\nYg== 1\nYWI= 2\nIA== 3\nIGE= 4\nw6k= 5\nww== 6\nqQ== 7\n";
static const char ranks_config[] =
    "{\"pat_str\":\" "
    "?\\\\w+|\\\\s+\",\"added_tokens_decoder\":{\"9\":{\"content\":\"<s>\",\"special\":"
    "true}},\"bos_token\":\"<s>\"}";

static void test_tiktoken(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    Tokenizer *t = NULL;
    arena_init(&a, "test");
    if (!tokenizer_tiktoken_open(&a, "list", str_from(ranks), str_from(ranks_config), &t, &err))
        fail_msg("%s", err.msg);
    static const Case cases[] = {
        {"ab", "2", 0},    {"ab ab", "2 3 2", 0}, /* "ab" has a lower rank than " a" */
        {"a a", "0 4", 0}, {"\xC3\xA9", "5", 0},
        {"\xC3", "6", 0},  {"a<s>", "0 9", TOKENIZER_PARSE_SPECIAL}};
    expect(&a, t, "tiktoken", cases, COUNT_OF(cases));
    tokenizer_close(t);
    assert_false(tokenizer_tiktoken_open(&a, "list", str_from(ranks), (Str){0}, &t, &err));
    assert_non_null(strstr(err.msg, "pat_str"));
    assert_false(tokenizer_tiktoken_open(&a, "list", str_from("YQ== x\n"), (Str){0}, &t, &err));
    assert_non_null(strstr(err.msg, "line 1"));
    arena_free(&a);
}

static const char tekken[] =
    "{\"config\":{\"pattern\":\"[a-z]+|[^a-z]\",\"default_vocab_size\":6,\"default_num_special_"
    "tokens\":"
    "3},\"vocab\":[{\"rank\":0,\"token_bytes\":\"YQ==\"},{\"rank\":1,\"token_bytes\":\"Yg==\"},"
    "{\"rank\":2,\"token_bytes\":\"YWI=\",\"token_str\":\"ab\"},{\"rank\":3,\"token_bytes\":\"YWE="
    "\"}]}";

static void test_tekken(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    Tokenizer *t = NULL;
    arena_init(&a, "test");
    if (!tokenizer_tekken_open(&a, "tekken", str_from(tekken), &t, &err))
        fail_msg("%s", err.msg);
    static const Case cases[] = {{"ab", "5", 0},
                                 {"aab", "3 5", 0}, /* "aa" lies beyond the model's vocabulary */
                                 {"a", "1 3", TOKENIZER_ADD_SPECIAL},
                                 {"</s>a", "2 3", TOKENIZER_PARSE_SPECIAL}};
    expect(&a, t, "tekken", cases, COUNT_OF(cases));
    tokenizer_close(t);
    arena_free(&a);
}

static void test_vocab_files(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    Tokenizer *t = NULL;
    arena_init(&a, "test");
    const Str vocab = str_from("{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"<s>\":4,\"</s>\":5}");
    const Str merges = str_from("#version: 0.2\na b\n");
    if (!tokenizer_vocab_open(&a, "v", vocab, merges,
                              str_from("{\"tokenizer_class\":\"RobertaTokenizer\"}"), &t, &err))
        fail_msg("%s", err.msg);
    expect(&a, t, "roberta", &(Case){"ab a", "4 2 3 0 5", TOKENIZER_ADD_SPECIAL}, 1);
    tokenizer_close(t);
    assert_false(tokenizer_vocab_open(
        &a, "v", vocab, merges, str_from("{\"tokenizer_class\":\"CLIPTokenizer\"}"), &t, &err));
    assert_non_null(strstr(err.msg, "CLIPTokenizer"));
    if (!tokenizer_wordpiece_open(&a, "w", str_from("[UNK]\n[CLS]\n[SEP]\nun\n##able\nhi\r\n!\n"),
                                  (Str){0}, &t, &err))
        fail_msg("%s", err.msg);
    static const Case words[] = {{"Unable hi!", "1 3 4 5 6 2", TOKENIZER_ADD_SPECIAL},
                                 {"what", "0", 0}};
    expect(&a, t, "vocab.txt", words, COUNT_OF(words));
    tokenizer_close(t);
    arena_free(&a);
}

/* ---- GGUF ---- */

static void test_gguf_kinds(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const int32_t types[] = {2, 3, 3, 1, 1, 1, 1, 1};
    static const float scores[] = {0, 0, 0, -4, -5, -1, -3, -2};
    static const float logs[] = {0, 0, 0, -4, -5, -6, -3, -5};
    const Str pieces[] = {str_from("<unk>"), str_from("<s>"), str_from("</s>"), str_from("a"),
                          str_from("b"),     str_from("ab"),  str_from(MARK),   str_from(MARK "a")};
    const Str words[] = {str_from("[UNK]"),  str_from("[CLS]"), str_from("[SEP]"),
                         str_from(MARK "a"), str_from("b"),     str_from(MARK "ab"),
                         str_from(MARK "!"), str_from("c")};
    const Str merges[] = {str_from("a b"), str_from(MARK " a")};
    const struct {
        const char *model;
        const Str *tokens, *merges;
        const float *scores;
        int n_merges;
        const char *text, *want;
    } cases[] = {
        {"llama", pieces, NULL, scores, 0, "ab a", "1 6 5 7"},
        {"gemma4", pieces, merges, NULL, 2, "ab a", "1 5 7"},
        {"t5", pieces, NULL, logs, 0, "ab a", "6 5 7 2"},
        {"bert", words, NULL, NULL, 0, "ABc a!z", "1 5 7 3 6 0 2"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error err = {0};
        Tokenizer *t = NULL;
        TokenizerGguf g = {.doc = "f.gguf",
                           .model = str_from(cases[i].model),
                           .tokens = cases[i].tokens,
                           .n_tokens = 8,
                           .merges = cases[i].merges,
                           .n_merges = cases[i].n_merges,
                           .types = types,
                           .scores = cases[i].scores,
                           .bos = 1,
                           .eos = 2,
                           .eot = -1,
                           .unk = 0,
                           .sep = 2,
                           .cls = -1,
                           .add_bos = i < 2 ? 1 : -1,
                           .add_eos = -1,
                           .add_space_prefix = i == 1 ? -1 : 1,
                           .remove_extra_whitespaces = -1,
                           .lowercase = -1,
                           .strip_accents = -1};
        if (!tokenizer_gguf_open(&a, &g, &t, &err))
            fail_msg("%s: %s", cases[i].model, err.msg);
        expect(&a, t, cases[i].model, &(Case){cases[i].text, cases[i].want, TOKENIZER_ADD_SPECIAL},
               1);
        tokenizer_close(t);
        if (cases[i].scores) {
            g.scores = NULL;
            assert_false(tokenizer_gguf_open(&a, &g, &t, &err));
            assert_non_null(strstr(err.msg, "scores"));
        }
    }
    arena_free(&a);
}

/* ---- every kind ---- */

/* A byte-level BPE of the 256 bytes and "ab"; `out` has room for it. */
static const char *byte_level_json(char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size,
                                "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                                "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
                                "\"model\":{\"type\":\"BPE\",\"vocab\":{\"ab\":256");
    for (int i = 0; i < 256; i++) {
        const uint32_t cp = bytelevel_char((uint8_t)i);
        const bool plain = cp >= 0x80 || (cp != '"' && cp != '\\');
        char text[8] = {0};
        if (plain)
            text[utf8_encode(cp, text)] = '\0';
        else
            snprintf(text, sizeof text, "\\%c", (char)cp);
        n += (size_t)snprintf(out + n, size - n, ",\"%s\":%d", text, i);
    }
    snprintf(out + n, size - n, "},\"merges\":[\"a b\"]}}");
    return out;
}

typedef struct Kind {
    const char *name;
    Tokenizer *t;
    bool whole; /* any bytes come back */
} Kind;

static Tokenizer *open_list(Arena *a, bool is_tekken)
{
    Error err = {0};
    Tokenizer *t = NULL;
    const bool ok = is_tekken ? tokenizer_tekken_open(a, "tekken", str_from(tekken), &t, &err)
                              : tokenizer_tiktoken_open(a, "list", str_from(ranks),
                                                        str_from(ranks_config), &t, &err);
    if (!ok)
        fail_msg("%s", err.msg);
    return t;
}

static int open_kinds(Arena *a, Kind *out)
{
    static char json[8192];
    int n = 0;
    out[n++] = (Kind){"byte-level BPE", open_json(a, byte_level_json(json, sizeof json)), true};
    out[n++] = (Kind){
        "BPE", open_json(a, "{\"normalizer\":null,\"pre_tokenizer\":null,\"decoder\":null," CHARS),
        false};
    out[n++] =
        (Kind){"WordPiece",
               open_json(a, "{\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{"
                            "\"type\":\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\"},"
                            "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
                            "\"continuing_subword_prefix\":\"##\",\"vocab\":{" WORDS "}}}"),
               false};
    out[n++] = (Kind){
        "Unigram",
        open_json(a, "{\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":{\"type\":"
                     "\"Metaspace\"},\"decoder\":{\"type\":\"Metaspace\"},\"model\":{\"type\":"
                     "\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-4],[\"b\",-5],[\"" MARK
                     "\",-3],[\"ab\",-6.5]]}}"),
        false};
    out[n++] = (Kind){"SentencePiece BPE", open_spm(a, BPE, true, NULL), true};
    out[n++] = (Kind){"SentencePiece Unigram", open_spm(a, UNIGRAM, true, NULL), true};
    out[n++] =
        (Kind){"SentencePiece Unigram without bytes", open_spm(a, UNIGRAM, false, NULL), false};
    out[n++] = (Kind){"tiktoken", open_list(a, false), false};
    out[n++] = (Kind){"tekken", open_list(a, true), false};
    return n;
}

/* Any ids: the bytes of their tokens in a row, but for a space that the decoder drops at the
 * start. */
static void any_ids(const Kind *k, uint64_t *seed)
{
    const int n_vocab = tokenizer_n_vocab(k->t);
    for (int round = 0; round < 300; round++) {
        Error err = {0};
        int32_t ids[40];
        StrBuf all;
        StrBuf one;
        const int64_t n = next_random(seed) % COUNT_OF(ids);
        strbuf_init(&all, 1 << 16);
        strbuf_init(&one, 1 << 16);
        for (int64_t i = 0; i < n; i++) {
            ids[i] = (int32_t)(next_random(seed) % (uint32_t)(n_vocab + 4)) - 2;
            const Str piece = tokenizer_piece(k->t, ids[i]);
            strbuf_add(&one, piece.ptr, piece.len);
        }
        assert_true(tokenizer_decode(k->t, ids, n, 0, &all, &err));
        const Str got = strbuf_str(&all);
        Str want = strbuf_str(&one);
        if (want.len == got.len + 1 && want.ptr[0] == ' ')
            want = (Str){want.ptr + 1, want.len - 1};
        assert_text(k->name, got, want);
        strbuf_free(&all);
        strbuf_free(&one);
    }
}

/* What is no UTF-8: above U+10FFFF, surrogates, overlong, cut short, stray. */
static void broken_text(const Kind *k, uint64_t *seed)
{
    static const char *const broken[] = {"\xF4\x90\x80\x80",
                                         "\xF7\xBF\xBF\xBF",
                                         "\xF8\x88\x80\x80\x80",
                                         "\xED\xA0\x80",
                                         "\xC0\xAF",
                                         "\xE0\x80\xAF",
                                         "\xF0\x9F\x98",
                                         "\xC3",
                                         "\x80",
                                         "\xFF",
                                         "\xFE\xFE",
                                         "a"};
    for (int round = 0; round < 400; round++) {
        char text[128];
        size_t n = 0;
        Arena a;
        Error err = {0};
        TokenIds ids;
        StrBuf out;
        for (int i = 0; i < 8; i++) {
            const char *part =
                broken[round < (int)COUNT_OF(broken) ? (size_t)round
                                                     : next_random(seed) % COUNT_OF(broken)];
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        }
        arena_init(&a, "broken");
        if (!tokenizer_encode(&a, k->t, (Str){text, n}, 0, &ids, &err))
            fail_msg("%s: %s", k->name, err.msg);
        for (int64_t i = 0; i < ids.n; i++)
            assert_in_range(ids.ids[i], 0, tokenizer_n_vocab(k->t) - 1);
        strbuf_init(&out, 1 << 16);
        assert_true(tokenizer_decode(k->t, ids.ids, ids.n, 0, &out, &err));
        if (k->whole)
            assert_text(k->name, strbuf_str(&out), (Str){text, n});
        strbuf_free(&out);
        arena_free(&a);
    }
}

static void test_every_kind(void **state)
{
    (void)state;
    Arena a;
    Kind kinds[16];
    uint64_t seed = 11;
    arena_init(&a, "kinds");
    const int n = open_kinds(&a, kinds);
    for (int i = 0; i < n; i++) {
        any_ids(&kinds[i], &seed);
        broken_text(&kinds[i], &seed);
        long_runs(kinds[i].t, kinds[i].name);
        tokenizer_close(kinds[i].t);
    }
    arena_free(&a);
}

/* ---- damage ---- */

static void test_mutated(void **state)
{
    (void)state;
    static Proto p;
    static char copy[sizeof p.at];
    make_spm(&p, UNIGRAM, false);
    const Str files[] = {{p.at, p.n}, str_from(ranks), str_from(tekken)};
    uint64_t seed = 9;
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        for (size_t i = 0; i < files[f].len * 4; i++) {
            Arena a;
            Error err = {0};
            Tokenizer *t = NULL;
            arena_init(&a, "test");
            memcpy(copy, files[f].ptr, files[f].len);
            copy[i / 4] = (char)next_random(&seed);
            const Str text = {copy, i % 4 ? files[f].len : i / 4};
            const bool ok =
                f == 0   ? tokenizer_spm_open(&a, "m", text, (Str){0}, &t, &err)
                : f == 1 ? tokenizer_tiktoken_open(&a, "m", text, str_from(ranks_config), &t, &err)
                         : tokenizer_tekken_open(&a, "m", text, &t, &err);
            if (ok) {
                (void)encode_text(&a, t, str_from("ab <s>\xC3\xA9\xff"), 3);
                tokenizer_close(t);
            } else {
                assert_true(err.code != ERR_NONE && err.msg[0]);
            }
            arena_free(&a);
        }
    }
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm_bpe),        cmocka_unit_test(test_spm_unigram),
        cmocka_unit_test(test_json_chars),     cmocka_unit_test(test_json_unigram),
        cmocka_unit_test(test_json_wordpiece), cmocka_unit_test(test_json_steps),
        cmocka_unit_test(test_json_word_end),  cmocka_unit_test(test_json_unicode),
        cmocka_unit_test(test_tiktoken),       cmocka_unit_test(test_tekken),
        cmocka_unit_test(test_vocab_files),    cmocka_unit_test(test_gguf_kinds),
        cmocka_unit_test(test_every_kind),     cmocka_unit_test(test_mutated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
