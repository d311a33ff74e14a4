#include "text/tokenizer_build.h"

#include <stdio.h>

static const char punctuation[] = "[!-/:-@\\[-`{-~\\p{P}]";

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

static const char re_cased[] =
    "\\s?[A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-"
    "\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}"
    "\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-"
    "\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}"
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}"
    "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-"
    "\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}"
    "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-"
    "\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}"
    "-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-"
    "\\x{118DF}\\x{1E900}-\\x{1E943}]+";
static const char re_marks[] =
    "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]"
    "+";
static const char re_youtu[] =
    "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}"
    "\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|["
    "\\x{3105}-\\x{312F}]+|[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+";
static const char re_afmoe_cjk[] =
    "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{309F}\\x{30A0}-"
    "\\x{30FF}\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}\\x{E80}-\\x{EFF}"
    "\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}\\x{A9E0}-\\x{A9FF}\\x{AC00}-"
    "\\x{D7AF}\\x{1100}-\\x{11FF}]+";
/* A run of digits in threes from its end; the look-behind and \\G keep it linear in the run. */
static const char re_threes[] = "(?<!\\p{N})\\p{N}{1,2}(?=(?:\\p{N}{3})++(?!\\p{N}))|\\p{N}{1,3}";
static const char re_threes_word[] = "(?<!\\d)\\d{1,3}(?=(?:\\d{3})*+\\b)|\\G(?<=\\d)\\d{3}";
static const char re_jais2[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                 "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)"
                 "|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s";
static const char re_youtu_words[] =
    WORDS_CASED(CONTRACTIONS "?") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char re_spark[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char re_exaone_moe[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"
                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
static const char re_minicpm5[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+"
                                               "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char re_ufakzeka[] =
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char re_lines[] = "[^\\n]+|\\n+";

enum { STEPS_MAX = 6 };

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
    {{"deepseek-llm"},
     {"[\\r\\n]", re_cased, re_marks, "\\s+$",
      "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", "\\p{N}+"},
     false,
     false},
    {{"youtu"}, {re_youtu, re_youtu_words}, true, false},
    {{"chameleon"},
     {"<sentinel:[0-9]+>", "(?:IMGIMG)[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", punctuation,
      pretok_gpt2},
     false,
     true},
    {{"spark2_5"}, {re_digit3, re_cjk, re_spark, "\\p{N}"}, false, false},
    {{"jais-2"}, {re_jais2}, false, false},
    {{"tiny_aya", "cohere2moe"}, {re_threes_word, re_o200k}, false, false},
    {{"afmoe"}, {re_threes, re_afmoe_cjk, re_deepseek3}, false, false},
    {{"laguna"}, {re_lines, re_qwen2}, false, false},
    {{"exaone-moe"}, {re_exaone_moe}, false, false},
    {{"minicpm5"}, {re_digit3, re_minicpm5}, true, false},
    {{"ufakzeka"}, {re_ufakzeka}, false, false},
    {{"granite-embed-multi-97m"}, {re_o200k}, true, false},
    {{"jina-v1-en", "jina-v2-code", "roberta-bpe"}, {pretok_gpt2}, false, false},
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
enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 };

static int type_of(const TokenizerGguf *g, int64_t i)
{
    return g->types ? g->types[i] : 1;
}

static bool is_added(const TokenizerGguf *g, int64_t i)
{
    const int type = type_of(g, i);
    /* Old files call the tokens that end a text normal. */
    if (type == 1 && str_is(g->model, "gpt2") && (i == g->bos || i == g->eos || i == g->eot))
        return true;
    return type == TYPE_UNKNOWN || type == TYPE_CONTROL || type == TYPE_USER;
}

/* Tokens that end a turn are control tokens whatever the file says: text from outside must not. */
static bool ends_turn(Str text)
{
    static const char *const names[] = {"</s>",          "<|endoftext|>", "<|end_of_text|>",
                                        "<|im_end|>",    "<|eot_id|>",    "<|eom_id|>",
                                        "<end_of_turn>", "<|end|>",       "<|return|>",
                                        "<turn|>",       "<|eot|>"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (str_is(text, names[i]))
            return true;
    }
    return false;
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
        if (!is_added(g, i) || g->tokens[i].len == 0)
            continue;
        const AddedTok tok = {.text = g->tokens[i],
                              .id = (int32_t)i,
                              .special = type_of(g, i) != TYPE_USER || ends_turn(g->tokens[i])};
        if (!tokenizer_add_added(a, t, &t->raw, tok, err))
            return false;
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
        if (!tokenizer_add_merge(t, (Str){m.ptr, l}, (Str){gap + 1, m.len - l - 1}, i, err))
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

static bool add_tokens(Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    for (int64_t i = 0; i < g->n_tokens; i++) {
        const Str text = g->tokens[i];
        const int byte = type_of(g, i) == TYPE_BYTE ? fallback_byte_of(text) : -1;
        const char c = (char)byte;
        if (byte >= 0)
            t->unknown.byte_id[byte] = (int32_t)i;
        if (byte >= 0 ? !tokenizer_add_bytes(t, i, (Str){&c, 1}, VOCAB_RAW, err)
                      : !tokenizer_add_token(t, i, text, err))
            return false;
        const double score = type_of(g, i) == TYPE_USER ? 0.0
                             : g->scores                ? (double)g->scores[i]
                                                        : 0.0;
        if (g->scores && !tokenizer_set_score(t, i, score, err))
            return false;
    }
    return vocab_index(&t->vocab, err);
}

static int valid_id(const TokenizerGguf *g, int id, int missing)
{
    return id >= 0 ? id : missing < g->n_tokens ? missing : -1;
}

/* "gpt2": byte-level BPE with the pre-tokenizer that the file names. */
static bool set_gpt2(Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    const Str pre = g->pre.len ? g->pre : str_from("default");
    const PreScheme *scheme = scheme_find(pre);
    if (!scheme)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.pre is \"%.*s\", which is not a known pre-tokenizer",
                       g->doc, pre.len < 60 ? (int)pre.len : 60, pre.ptr);
    t->bpe.ignore_merges = scheme->ignore_merges;
    for (int i = 0; i < STEPS_MAX && scheme->steps[i]; i++) {
        if (!pretok_add_split(&t->pretok, g->doc, str_from(scheme->steps[i]), TEXTRE_RUST,
                              PRETOK_ISOLATED, false, err))
            return false;
    }
    tokenizer_set_around(t, g->add_bos >= 0 ? g->add_bos : scheme->add_bos ? 1 : -1, g->add_eos);
    return true;
}

static bool set_spaces(Tokenizer *t, const TokenizerGguf *g, bool prefix, Error *err)
{
    NormStep *step = normchain_add(&t->norm, g->doc, NORM_SENTENCEPIECE, err);
    if (!step)
        return false;
    step->map = t->charsmap.n_units ? &t->charsmap : NULL;
    step->prefix = g->add_space_prefix >= 0 ? g->add_space_prefix == 1 : prefix;
    step->merge_spaces = t->kind == TOKENIZER_UNIGRAM && g->remove_extra_whitespaces == 1;
    t->strip = step->prefix;
    return true;
}

/* "llama": SentencePiece's BPE, by the tokens' scores. "gemma4": the same from merges. */
static bool set_llama(Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    const bool gemma4 = !t->by_score;
    if (!gemma4 && !g->scores)
        return err_set(err, ERR_FORMAT, "%s: tokenizer.ggml.scores is missing", g->doc);
    t->unknown.bytes = true;
    t->unknown.unk = valid_id(g, g->unk, gemma4 ? -1 : 0);
    if (!gemma4) {
        t->bos = valid_id(g, g->bos, 1);
        t->eos = valid_id(g, g->eos, 2);
    }
    if (!set_spaces(t, g, !gemma4, err))
        return false;
    tokenizer_set_around(t, g->add_bos >= 0 ? g->add_bos : !gemma4, g->add_eos);
    return true;
}

/* "t5": SentencePiece's Unigram. */
static bool set_t5(Arena *a, Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    if (!g->scores)
        return err_set(err, ERR_FORMAT, "%s: tokenizer.ggml.scores is missing", g->doc);
    t->unknown.unk = valid_id(g, g->unk, 2);
    t->unknown.fuse = true;
    t->eos = valid_id(g, g->eos, 1);
    if (!charsmap_open(a, g->doc, g->charsmap, &t->charsmap, err) || !set_spaces(t, g, false, err))
        return false;
    tokenizer_set_around(t, g->add_bos, g->add_eos >= 0 ? g->add_eos : 1);
    return true;
}

/* "bert": WordPiece, normalised as BERT's uncased models are. */
static bool set_bert(Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    NormStep *step = normchain_add(&t->norm, g->doc, NORM_BERT, err);
    if (!step)
        return false;
    step->clean = step->chinese = true;
    step->lower = g->lowercase != 0;
    step->accents = g->strip_accents >= 0 ? g->strip_accents == 1 : step->lower;
    t->strip = true;
    t->unknown.unk = valid_id(g, g->unk, 100);
    t->bos = valid_id(g, g->bos >= 0 ? g->bos : g->cls, 101);
    const int sep = valid_id(g, g->sep, 102);
    if (t->bos >= 0)
        t->prefix[t->n_prefix++] = t->bos;
    if (sep >= 0)
        t->suffix[t->n_suffix++] = sep;
    return pretok_add_bert(&t->pretok, g->doc, err);
}

/* How the tokens are written, from tokenizer.ggml.model. */
static bool set_kind(Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    static const struct {
        const char *model;
        TokenizerKind kind;
        TokenizerSpelling spelling;
        bool by_score;
    } kinds[] = {
        {"gpt2", TOKENIZER_BYTE_BPE, TOKENIZER_ALPHABET, false},
        {"llama", TOKENIZER_CHAR_BPE, TOKENIZER_SPACES, true},
        {"gemma4", TOKENIZER_CHAR_BPE, TOKENIZER_SPACES, false},
        {"t5", TOKENIZER_UNIGRAM, TOKENIZER_SPACES, true},
        {"bert", TOKENIZER_WORDPIECE, TOKENIZER_PHANTOM, true},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (!str_is(g->model, kinds[i].model))
            continue;
        t->kind = kinds[i].kind;
        t->spelling = kinds[i].spelling;
        t->by_score = kinds[i].by_score;
        /* These two write merges over U+2581 though they call themselves gpt2. */
        if (i == 0 && (str_is(g->pre, "gemma4") || str_is(g->pre, "granite-embed-multi-311m") ||
                       str_is(g->pre, "sarvam-moe"))) {
            t->kind = TOKENIZER_CHAR_BPE;
            t->spelling = TOKENIZER_SPACES;
        }
        return true;
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "%s: tokenizer.ggml.model is \"%.*s\", wanted \"gpt2\", \"llama\", \"gemma4\", "
                   "\"t5\" or \"bert\"",
                   g->doc, g->model.len < 60 ? (int)g->model.len : 60, g->model.ptr);
}

static bool set_model(Arena *a, Tokenizer *t, const TokenizerGguf *g, Error *err)
{
    switch (t->kind) {
    case TOKENIZER_BYTE_BPE:
        return set_gpt2(t, g, err);
    case TOKENIZER_CHAR_BPE:
        return set_llama(t, g, err);
    case TOKENIZER_UNIGRAM:
        return set_t5(a, t, g, err);
    case TOKENIZER_WORDPIECE:
        return set_bert(t, g, err);
    }
    return true;
}

static bool build(Arena *a, const TokenizerGguf *g, Tokenizer *t, Error *err)
{
    t->bos = g->bos;
    t->eos = g->eos;
    t->eot = g->eot;
    if (!set_kind(t, g, err) || !vocab_reserve(&t->vocab, g->n_tokens, err) ||
        !add_tokens(t, g, err))
        return false;
    if (!t->by_score) {
        bpe_init(&t->bpe, &t->vocab);
        if (!bpe_reserve(&t->bpe, g->n_merges, err) || !add_merges(t, g, err) ||
            !bpe_index(&t->bpe, err))
            return false;
    }
    return set_model(a, t, g, err) && add_added(a, t, g, err);
}

bool tokenizer_gguf_open(Arena *a, const TokenizerGguf *g, Tokenizer **out, Error *err)
{
    if (g->n_tokens < 1 || g->n_tokens > TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_FORMAT,
                       "%s: tokenizer.ggml.tokens has %lld entries, wanted 1 to %d", g->doc,
                       (long long)g->n_tokens, TOKENIZER_VOCAB_MAX);
    if (g->n_merges < 0 || g->n_merges > TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_FORMAT, "%s: tokenizer.ggml.merges has %lld entries, at most %d",
                       g->doc, (long long)g->n_merges, TOKENIZER_VOCAB_MAX);
    const struct {
        const char *key;
        int id;
    } ids[] = {{"bos_token_id", g->bos},       {"eos_token_id", g->eos},
               {"eot_token_id", g->eot},       {"unknown_token_id", g->unk},
               {"seperator_token_id", g->sep}, {"cls_token_id", g->cls}};
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        if (!check_id(g, ids[i].key, ids[i].id, err))
            return false;
    }
    const size_t before = arena_bytes(a);
    const Str name =
        str_is(g->model, "gpt2") ? g->pre.len ? g->pre : str_from("default") : g->model;
    char kind[64];
    snprintf(kind, sizeof kind, "%.*s", name.len < 60 ? (int)name.len : 60, name.ptr);
    Tokenizer *t;
    if (!tokenizer_new(a, g->doc, &t, err))
        return false;
    if (!build(a, g, t, err) || !tokenizer_finish(a, t, kind, before, err)) {
        tokenizer_close(t);
        return false;
    }
    *out = t;
    return true;
}
