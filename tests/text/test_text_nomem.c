/* Every allocation of the text layer fails in turn: the call says ERR_NOMEM (or does without), and
 * nothing is left behind. */
#include "text/text_data.h"

#include "text/chat.h"

typedef struct Torture {
    Str json, config;
    Tokenizer *tokenizer; /* opened beforehand, for encode */
    Chat *chat;
    const json_t *messages, *vars;
} Torture;

typedef bool Action(const Torture *t, Arena *a, Error *err);

static bool open_json(const Torture *t, Arena *a, Error *err)
{
    Tokenizer *made = NULL;
    const bool ok = tokenizer_json_open(a, "t", t->json, t->config, &made, err);
    tokenizer_close(ok ? made : NULL);
    return ok;
}

static bool open_gguf(const Torture *t, Arena *a, Error *err)
{
    (void)t;
    static const int32_t types[] = {1, 1, 1, 3, 4};
    const Str tokens[] = {str_from("a"), str_from("b"), str_from("ab"), str_from("<s>"),
                          str_from("<u>")};
    const Str merges[] = {str_from("a b")};
    const TokenizerGguf g = {.doc = "g",
                             .model = str_from("gpt2"),
                             .pre = str_from("smollm"),
                             .tokens = tokens,
                             .n_tokens = 5,
                             .merges = merges,
                             .n_merges = 1,
                             .types = types,
                             .bos = 3,
                             .eos = 3,
                             .eot = -1,
                             .add_bos = 1,
                             .add_eos = -1};
    Tokenizer *made = NULL;
    const bool ok = tokenizer_gguf_open(a, &g, &made, err);
    tokenizer_close(ok ? made : NULL);
    return ok;
}

static bool encode(const Torture *t, Arena *a, Error *err)
{
    static const char text[] =
        "Hello, w\xC3\xB6rld 12345 <|im_start|>\xff\xfe e\xCC\x81 "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    TokenIds ids;
    return tokenizer_encode(a, t->tokenizer, str_from(text), 3, &ids, err);
}

/* Opens each, encodes with it, closes. */
static bool use(bool ok, Arena *a, Tokenizer **made, Error *err)
{
    TokenIds ids;
    const bool opened = ok;
    ok = ok &&
         tokenizer_encode(a, *made, str_from("Una ab <s>\xC3\xA9\xff zz aaaaaaaa"), 3, &ids, err);
    tokenizer_close(opened ? *made : NULL);
    return ok;
}

#define MARK "\xE2\x96\x81"

static bool use_unigram(const Torture *t, Arena *a, Error *err)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"normalized\":true}],\"normalizer\":{"
        "\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Replace\","
        "\"pattern\":"
        "{\"Regex\":\" +\"},\"content\":\" "
        "\"}]},\"pre_tokenizer\":{\"type\":\"Metaspace\"},\"decoder\":"
        "{\"type\":\"Metaspace\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>"
        "\","
        "0],[\"<s>\",0],[\"a\",-4],[\"" MARK "a\",-3]]}}";
    Tokenizer *made = NULL;
    (void)t;
    return use(tokenizer_json_open(a, "t", str_from(json), (Str){0}, &made, err), a, &made, err);
}

static bool use_words(const Torture *t, Arena *a, Error *err)
{
    Tokenizer *made = NULL;
    (void)t;
    return use(tokenizer_wordpiece_open(a, "t", str_from("[UNK]\n[CLS]\n[SEP]\nun\n##a\n"),
                                        str_from("{\"do_lower_case\":true}"), &made, err),
               a, &made, err);
}

static bool use_list(const Torture *t, Arena *a, Error *err)
{
    Tokenizer *made = NULL;
    (void)t;
    return use(
        tokenizer_tiktoken_open(a, "t", str_from("YQ== 0\nYWE= 1\n"),
                                str_from("{\"pat_str\":\"\\\\w+\",\"added_tokens_decoder\":{\"5\":"
                                         "{\"content\":\"<s>\"}}}"),
                                &made, err),
        a, &made, err);
}

static bool use_tekken(const Torture *t, Arena *a, Error *err)
{
    static const char json[] = "{\"config\":{\"pattern\":\"[a-z]+\",\"default_vocab_size\":6,"
                               "\"default_num_special_tokens\":"
                               "3},\"vocab\":[{\"rank\":0,\"token_bytes\":\"YQ==\"}]}";
    Tokenizer *made = NULL;
    (void)t;
    return use(tokenizer_tekken_open(a, "t", str_from(json), &made, err), a, &made, err);
}

static bool use_spm(const Torture *t, Arena *a, Error *err)
{
    /* "<unk>" unknown, "a" -1, MARK -2, "<s>" user-defined; BPE */
    static const char model[] = "\x0a\x0c\x0a\x05<unk>\x15\0\0\0\0\x0a\x0a\x0a\x01"
                                "a\x15\0\0\x80\xbf\x18\x01\x0a\x0c\x0a\x03" MARK
                                "\x15\0\0\0\xc0\x18\x01\x0a\x0c\x0a\x03<s>\x15\0\0\0\0\x18\x04"
                                "\x12\x02\x18\x02";
    Tokenizer *made = NULL;
    (void)t;
    return use(tokenizer_spm_open(a, "t", (Str){model, sizeof model - 1}, (Str){0}, &made, err), a,
               &made, err);
}

static const char template[] =
    "{% macro show(m, n=1) %}{{ m.role|upper }}{{ caller is defined }}{% endmacro %}"
    "{% set ns = namespace(s='', l=[]) %}{% for m in messages if m.content %}{% set ns.s = ns.s + "
    "m.content ~ '|' %}{% set ns.l = ns.l + [m] %}{{ show(m) }}{{ loop.index }}{% else %}-{% "
    "endfor "
    "%}{{ ns.s|replace('i', 'II')|indent(2, true)|title }}{{ messages|tojson(indent=1) }}{{ "
    "messages|map(attribute='role')|unique|sort|join(',') }}{{ vars|dictsort }}{{ "
    "'%s-%05d'|format('a', 3) }}{{ '{:>9}'.format('x') }}{{ 'a b c'.split()[::-1] }}{% set b %}{{ "
    "messages }}{% endset %}{{ b|length }}{{ {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6, 'g': "
    "7, "
    "'h': 8, 'i': 9}|items|list }}{{ strftime_now('%d') is string }}{{ range(20)|batch(3)|list }}"
    "{% filter upper %}x{% endfilter %}{{ messages|groupby('role') }}";

static bool open_chat(const Torture *t, Arena *a, Error *err)
{
    Chat *made;
    (void)t;
    const ChatSource source = {.doc = "c", .jinja = str_from(template)};
    return chat_open(a, &source, &made, err);
}

static bool open_chat_config(const Torture *t, Arena *a, Error *err)
{
    Chat *made;
    const ChatSource source = {.doc = "c", .tokenizer_config = t->config};
    return chat_open(a, &source, &made, err);
}

static bool render(const Torture *t, Arena *a, Error *err)
{
    (void)a;
    StrBuf out;
    strbuf_init(&out, 1 << 20);
    const ChatInput in = {.messages = t->messages, .vars = t->vars, .add_generation_prompt = true};
    const bool ok = chat_render(t->chat, &in, &out, err);
    strbuf_free(&out);
    return ok;
}

static void torture(const char *name, Action *action, const Torture *t)
{
    uint64_t n = 0;
    for (uint64_t at = 0;; at++) { /* 0: none fails, which tells how many there are */
        Arena a;
        Error err = {0};
        const size_t before = mem_in_use();
        arena_init(&a, "torture");
        mem_fail_at(at, false);
        const bool ok = action(t, &a, &err);
        const uint64_t count = mem_count_get();
        mem_fail_at(0, false);
        arena_free(&a);
        if (mem_in_use() != before)
            fail_msg("%s: allocation %d fails: %zu bytes are left", name, (int)at,
                     mem_in_use() - before);
        if (!ok && err.code != ERR_NOMEM)
            fail_msg("%s: allocation %d fails: %s \"%s\"", name, (int)at, err_name(err.code),
                     err.msg);
        if (at == 0) {
            if (!ok)
                fail_msg("%s: %s", name, err.msg);
            n = count;
        } else if (at >= n) {
            break;
        }
    }
    assert_true(n > 0);
}

static void test_all(void **state)
{
    (void)state;
    Arena a;
    Error err = {0};
    arena_init(&a, "test");
    Torture t = {.json = data_file(&a, "tiny/tokenizer.json"),
                 .config = data_file(&a, "tiny/tokenizer_config.json"),
                 .tokenizer = tiny_tokenizer(&a)};
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "Hi there",
                                 "role", "tool", "content", "\xC3\xA9 more");
    json_t *vars = json_pack("{s:{s:i,s:[f]}}", "vars", "b", 1, "a", 1.5);
    t.messages = messages;
    t.vars = vars;
    const ChatSource source = {.doc = "c", .jinja = str_from(template), .tokenizer = t.tokenizer};
    if (!chat_open(&a, &source, &t.chat, &err))
        fail_msg("%s", err.msg);
    torture("tokenizer.json", open_json, &t);
    torture("gguf", open_gguf, &t);
    torture("encode", encode, &t);
    torture("Unigram", use_unigram, &t);
    torture("vocab.txt", use_words, &t);
    torture("tiktoken", use_list, &t);
    torture("tekken.json", use_tekken, &t);
    torture("SentencePiece", use_spm, &t);
    torture("template", open_chat, &t);
    torture("template of a configuration", open_chat_config, &t);
    torture("render", render, &t);
    json_decref(messages);
    json_decref(vars);
    tokenizer_close(t.tokenizer);
    arena_free(&a);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
