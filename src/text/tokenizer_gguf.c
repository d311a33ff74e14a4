#include "text/tokenizer_build.h"

#include <stdio.h>

/* GGUF says only the name of a pre-tokenizer. The expressions are those of the tokenizer.json files
 * that the names stand for; text between matches is a piece of its own, so a final "|\s+" is not
 * needed. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS_CASED(tail)                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"     \
    "+" tail "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}"  \
    "\\p{M}]*" tail

static const char re_llama3[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                                             "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char re_qwen2[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                                            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char re_qwen35[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                                             "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES;
static const char re_o200k[] =
    WORDS_CASED(CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char re_tekken[] = WORDS_CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char re_seed[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                                           "| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES;
static const char re_bailing[] = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}"
                                 "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char re_bloom[] =
    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+";
static const char re_deepseek3[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES;
static const char re_kimi[] =
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])*"
    "(?:(?!\\p{Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])+" CONTRACTIONS "?"
    "|[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])+"
    "(?:(?!\\p{Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])*" CONTRACTIONS "?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char re_digit3[] = "\\p{N}{1,3}";
static const char re_cjk[] = "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+";

enum { STEPS_MAX = 5 };

typedef struct PreScheme {
    const char *names[12];
    const char *steps[STEPS_MAX];
    bool ignore_merges;
    bool add_bos; /* when the file does not say */
} PreScheme;

static const PreScheme schemes[] = {
    {{"default"},
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", pretok_gpt2, "\\p{N}+", "[0-9][0-9][0-9]"},
     false,
     false},
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "jina-es", "jina-de", "gigachat", "mellum",
      "modern-bert", "exaone4", "trillion"},
     {pretok_gpt2},
     false,
     false},
    {{"a.x-4.0", "jina-v2-es", "jina-v2-de", "granite-docling"}, {pretok_gpt2}, false, false},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     {"\\p{N}", pretok_gpt2},
     false,
     false},
    {{"falcon"}, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", pretok_gpt2, "[0-9][0-9][0-9]"}, false, false},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
      "jina-v5-nano"},
     {re_llama3},
     true,
     true},
    {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {re_llama3}, false, false},
    {{"glm4", "glm5"}, {re_llama3}, true, false},
    {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "megrez", "hunyuan",
      "solar-open", "grok-2"},
     {re_qwen2},
     false,
     false},
    {{"qwen35"}, {re_qwen35}, false, false},
    {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {re_o200k}, false, false},
    {{"tekken"}, {re_tekken}, true, true},
    {{"seed-coder"}, {re_seed}, false, false},
    {{"bailingmoe", "bailingmoe2", "llada-moe"}, {re_bailing}, false, false},
    {{"bloom", "poro-chat", "gpt3-finnish"}, {re_bloom}, false, false},
    {{"viking"}, {re_bloom, "\\p{N}"}, false, false},
    {{"deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"},
     {re_digit3, re_cjk, re_deepseek3},
     false,
     false},
    {{"deepseek-coder"},
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
      "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", "\\p{N}"},
     false,
     false},
    {{"kimi-k2"}, {re_kimi}, false, false},
    {{"superbpe"}, {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}, false, false},
};

static const PreScheme *scheme_find(Str name)
{
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        for (size_t k = 0; k < COUNT_OF(schemes[i].names) && schemes[i].names[k]; k++) {
            if (str_is(name, schemes[i].names[k]))
                return &schemes[i];
        }
    }
    return NULL;
}

/* tokenizer.ggml.token_type */
enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };

static bool is_added(const TokenizerGguf *g, int64_t i)
{
    return g->types &&
           (g->types[i] == TYPE_UNKNOWN || g->types[i] == TYPE_CONTROL || g->types[i] == TYPE_USER);
}

static bool add_added(Arena *a, Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    int n = 0;
    for (int64_t i = 0; i < g->n_tokens; i++)
        n += is_added(g, i) && g->tokens[i].len > 0;
    t->raw.at = ARENA_ARRAY(a, n, AddedTok, err);
    if (!t->raw.at)
        return false;
    for (int64_t i = 0; i < g->n_tokens; i++) {
        const Str s = g->tokens[i];
        if (!is_added(g, i) || s.len == 0)
            continue;
        const bool special = g->types[i] != TYPE_USER;
        const char *text = arena_strdup(a, s.ptr, s.len, err);
        if (!text || !vocab_set_added(&t->vocab, i, s, special, err))
            return false;
        t->raw.at[t->raw.n++] =
            (AddedTok){.text = {text, s.len}, .id = (int32_t)i, .special = special};
    }
    return true;
}

static bool add_merges(Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    for (int64_t i = 0; i < g->n_merges; i++) {
        const Str m = g->merges[i];
        /* A part may itself begin with a space in vocabularies that escape nothing: the first byte
         * is never the separator. */
        const char *gap = m.len > 1 ? memchr(m.ptr + 1, ' ', m.len - 1) : NULL;
        if (!gap)
            return err_set(err, ERR_FORMAT,
                           "%s: tokenizer.ggml.merges[%lld] has no space between two parts", g->doc,
                           (long long)i);
        const size_t l = (size_t)(gap - m.ptr);
        if (!tokenizer_add_merge(t, (Str){m.ptr, l}, (Str){gap + 1, m.len - l - 1}, (uint32_t)i,
                                 err))
            return false;
    }
    return true;
}

static bool check_id(const TokenizerGguf *g, const char *key, int id, Error *err)
{
    if (id >= -1 && id < g->n_tokens)
        return true;
    return err_set(err, ERR_FORMAT, "%s: tokenizer.ggml.%s is %d, the vocabulary has %lld tokens",
                   g->doc, key, id, (long long)g->n_tokens);
}

static bool build(Arena *a, const TokenizerGguf *g, const PreScheme *scheme, Tokenizer *t,
                  Error *err)
{
    for (int64_t i = 0; i < g->n_tokens; i++) {
        if (!tokenizer_add_token(t, i, g->tokens[i], err))
            return false;
    }
    if (!vocab_index(a, &t->vocab, err))
        return false;
    bpe_init(&t->bpe, &t->vocab);
    if (!add_merges(t, g, err) || !bpe_index(a, &t->bpe, err) || !add_added(a, t, g, err))
        return false;
    t->bpe.ignore_merges = scheme->ignore_merges;
    for (int i = 0; i < STEPS_MAX && scheme->steps[i]; i++) {
        if (!pretok_add_split(&t->pretok, g->doc, str_from(scheme->steps[i]), TEXTRE_RUST,
                              PRETOK_ISOLATED, false, err))
            return false;
    }
    t->bos = g->bos;
    t->eos = g->eos;
    t->eot = g->eot;
    tokenizer_set_around(t, g->add_bos >= 0 ? g->add_bos : scheme->add_bos ? 1 : -1, g->add_eos);
    return true;
}

bool tokenizer_gguf_open(Arena *a, const TokenizerGguf *g, Tokenizer **out, Error *err)
{
    if (!str_is(g->model, "gpt2"))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.model is \"%.*s\", wanted \"gpt2\" (byte-level BPE)",
                       g->doc, g->model.len < 60 ? (int)g->model.len : 60, g->model.ptr);
    const Str pre = g->pre.len ? g->pre : str_from("default");
    const PreScheme *scheme = scheme_find(pre);
    const int shown = pre.len < 60 ? (int)pre.len : 60;
    if (!scheme)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.pre is \"%.*s\", which is not a known pre-tokenizer",
                       g->doc, shown, pre.ptr);
    if (g->n_tokens < 1 || g->n_tokens > TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_FORMAT,
                       "%s: tokenizer.ggml.tokens has %lld entries, wanted 1 to %d", g->doc,
                       (long long)g->n_tokens, TOKENIZER_VOCAB_MAX);
    if (g->n_merges < 0 || g->n_merges > TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_FORMAT, "%s: tokenizer.ggml.merges has %lld entries, at most %d",
                       g->doc, (long long)g->n_merges, TOKENIZER_VOCAB_MAX);
    if (!check_id(g, "bos_token_id", g->bos, err) || !check_id(g, "eos_token_id", g->eos, err) ||
        !check_id(g, "eot_token_id", g->eot, err))
        return false;
    const size_t before = arena_bytes(a);
    char kind[64];
    snprintf(kind, sizeof kind, "%.*s", shown, pre.ptr);
    Tokenizer *t;
    if (!tokenizer_new(a, g->doc, &t, err))
        return false;
    const bool ok = build(a, g, scheme, t, err) && tokenizer_finish(a, t, kind, before, err);
    if (!ok) {
        tokenizer_close(t);
        return false;
    }
    *out = t;
    return true;
}
