#include "base/json.h"
#include "base/mem.h"
#include "text/base64.h"
#include "text/jsonscan.h"
#include "text/tokenizer_build.h"

/* ---- tiktoken ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"

static const char pat_cl100k[] =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+"
    "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s";
static const char pat_llama3[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                                              "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char pat_qwen[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                                            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char pat_qwen35[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                                              "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES;
static const char pat_o200k[] = "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" CONTRACTIONS "?"
                                "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" CONTRACTIONS "?"
                                "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char pat_kimi[] =
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{Han})[" UPPER "])*(?:(?!\\p{Han})[" LOWER
    "])+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?(?:(?!\\p{Han})[" UPPER "])+(?:(?!\\p{Han})[" LOWER
    "])*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;

typedef struct Known {
    int64_t n; /* tokens, as the file has them */
    const char *name, *pattern;
    struct {
        const char *text;
        int32_t id;
    } special[12];
    int32_t bos, eos;
} Known;

/* Published lists, told by their length. */
static const Known known[] = {
    {50256, "gpt-2", pretok_gpt2, {{"<|endoftext|>", 50256}}, -1, 50256},
    {50257, "gpt-2", pretok_gpt2, {{0}}, -1, -1},
    {100256,
     "cl100k",
     pat_cl100k,
     {{"<|endoftext|>", 100257},
      {"<|fim_prefix|>", 100258},
      {"<|fim_middle|>", 100259},
      {"<|fim_suffix|>", 100260},
      {"<|endofprompt|>", 100276}},
     -1,
     100257},
    {128000,
     "llama3",
     pat_llama3,
     {{"<|begin_of_text|>", 128000},
      {"<|end_of_text|>", 128001},
      {"<|finetune_right_pad_id|>", 128004},
      {"<|start_header_id|>", 128006},
      {"<|end_header_id|>", 128007},
      {"<|eom_id|>", 128008},
      {"<|eot_id|>", 128009},
      {"<|python_tag|>", 128010}},
     128000,
     128001},
    {151643,
     "qwen",
     pat_qwen,
     {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
     -1,
     151643},
    {163584,
     "kimi",
     pat_kimi,
     {{"[BOS]", 163584},
      {"[EOS]", 163585},
      {"<|im_end|>", 163586},
      {"<|im_user|>", 163587},
      {"<|im_assistant|>", 163588},
      {"<|start_header_id|>", 163590},
      {"<|end_header_id|>", 163591},
      {"[EOT]", 163593},
      {"<|im_system|>", 163594},
      {"<|im_middle|>", 163601}},
     163584,
     163585},
    {199998,
     "o200k",
     pat_o200k,
     {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}},
     -1,
     199999},
    {200000,
     "llama4",
     pat_o200k,
     {{"<|begin_of_text|>", 200000},
      {"<|end_of_text|>", 200001},
      {"<|header_start|>", 200005},
      {"<|header_end|>", 200006},
      {"<|eom|>", 200007},
      {"<|eot|>", 200008}},
     200000,
     200001},
    {248044,
     "qwen3.5",
     pat_qwen35,
     {{"<|endoftext|>", 248044}, {"<|im_start|>", 248045}, {"<|im_end|>", 248046}},
     -1,
     248044},
};

static void by_rank(Tokenizer *t)
{
    t->kind = TOKENIZER_CHAR_BPE;
    t->spelling = TOKENIZER_PLAIN;
    t->by_score = true;
    t->bpe.ignore_merges = true;
    t->chars.bytes = true;
}

static bool read_line(Tokenizer *t, Str line, int64_t number, Error *err)
{
    char bytes[BPE_TOKEN_MAX];
    int64_t id;
    const char *gap = memchr(line.ptr, ' ', line.len);
    const Str text = {line.ptr, gap ? (size_t)(gap - line.ptr) : 0};
    const Str rank = gap ? (Str){gap + 1, line.len - text.len - 1} : (Str){"", 0};
    if (text.len > sizeof bytes || !str_to_int(rank, 0, TOKENIZER_VOCAB_MAX - 1, &id))
        return err_set(err, ERR_FORMAT, "%s: line %lld: wanted a token in base64 and its id",
                       t->vocab.doc, (long long)number);
    if (str_is(text, "=")) /* a placeholder that some lists have for an empty token */
        return true;
    const int64_t n = base64_decode(text, bytes);
    if (n < 0)
        return err_set(err, ERR_FORMAT, "%s: line %lld: the token is no base64", t->vocab.doc,
                       (long long)number);
    return n == 0 || (tokenizer_add_bytes(t, id, (Str){bytes, (size_t)n}, 0, err) &&
                      tokenizer_set_score(t, id, -(double)id, err));
}

/* Calls for each line without its end. */
static bool each_line(Tokenizer *t, Str text, bool (*act)(Tokenizer *, Str, int64_t, Error *),
                      Error *err)
{
    for (int64_t number = 1; text.len > 0; number++) {
        const char *end = memchr(text.ptr, '\n', text.len);
        const size_t n = end ? (size_t)(end - text.ptr) : text.len;
        Str line = {text.ptr, n};
        if (line.len > 0 && line.ptr[line.len - 1] == '\r')
            line.len--;
        if (line.len > 0 && !act(t, line, number, err))
            return false;
        text = (Str){text.ptr + n + (end != NULL), text.len - n - (end != NULL)};
    }
    return true;
}

static const Known *find_known(const Tokenizer *t)
{
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if (known[i].n == t->vocab.n)
            return &known[i];
    }
    return NULL;
}

/* "pat_str" of the configuration; ptr NULL: none. */
static bool config_pattern(Arena *a, Str config, Str *out, Error *err)
{
    json_t *obj;
    *out = (Str){0};
    if (!tokenizer_parse_config(config, &obj, err))
        return false;
    Str text = {0};
    bool ok = !obj || json_get_str_or(obj, "tokenizer_config.json", "pat_str", &text, err);
    if (ok && text.ptr) {
        out->ptr = arena_strdup(a, text.ptr, text.len, err);
        out->len = text.len;
        ok = out->ptr != NULL;
    }
    json_decref(obj);
    return ok;
}

static bool known_special(Arena *a, Tokenizer *t, const Known *k, Error *err)
{
    for (size_t i = 0; i < COUNT_OF(k->special) && k->special[i].text; i++) {
        const AddedTok tok = {
            .text = str_from(k->special[i].text), .id = k->special[i].id, .special = true};
        if (!tokenizer_add_added(a, t, &t->raw, tok, err))
            return false;
    }
    t->bos = k->bos;
    t->eos = k->eos;
    return true;
}

static bool build_tiktoken(Arena *a, Tokenizer *t, Str list, Str config, size_t before, Error *err)
{
    Str pattern;
    by_rank(t);
    if (!each_line(t, list, read_line, err))
        return false;
    const Known *k = find_known(t);
    if (!vocab_index(&t->vocab, err) || !config_pattern(a, config, &pattern, err))
        return false;
    if (!pattern.ptr && !k)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: a list of %d tokens is none of the known ones, and "
                       "tokenizer_config.json has no \"pat_str\" that says how text is cut",
                       t->vocab.doc, t->vocab.n);
    if (!pretok_add_split(&t->pretok, t->vocab.doc, pattern.ptr ? pattern : str_from(k->pattern),
                          TEXTRE_RUST, PRETOK_ISOLATED, false, err) ||
        !tokenizer_config_added(a, t, config, (int)COUNT_OF(k->special), err))
        return false;
    if (t->raw.n == 0 && k && !known_special(a, t, k, err))
        return false;
    if (!tokenizer_finish(a, t, k ? k->name : "tiktoken", before, err))
        return false;
    tokenizer_set_around(t, t->bos >= 0, -1);
    return tokenizer_read_config(t, config, err);
}

static bool start(Arena *a, const char *doc, Str text, Tokenizer **t, Error *err)
{
    if (text.len > TOKENIZER_FILE_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: %zu bytes, at most %d", doc, text.len,
                       TOKENIZER_FILE_MAX);
    return tokenizer_new(a, doc, t, err);
}

static bool end(bool ok, Tokenizer *t, Tokenizer **out)
{
    if (ok)
        *out = t;
    else
        tokenizer_close(t);
    return ok;
}

bool tokenizer_tiktoken_open(Arena *a, const char *doc, Str list, Str config, Tokenizer **out,
                             Error *err)
{
    Tokenizer *t;
    const size_t before = arena_bytes(a);
    return start(a, doc, list, &t, err) &&
           end(build_tiktoken(a, t, list, config, before, err), t, out);
}

/* ---- tekken.json ---- */

typedef struct Tekken {
    Arena *arena;
    Tokenizer *t;
    Str config, vocab, special;
    int n_special, n_vocab;
} Tekken;

/* Of the versions whose file does not list them. */
static const char *const tekken_special[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};

static bool tekken_config(Tekken *k, Error *err)
{
    const char *doc = k->t->vocab.doc;
    json_t *obj = k->config.ptr ? json_parse(doc, k->config, err) : NULL;
    if (!obj)
        return err_wrap(err, "config") && false;
    Str pattern;
    bool ok =
        json_get_str_or(obj, doc, "pattern", &pattern, err) &&
        json_get_int(obj, doc, "default_vocab_size", 1, TOKENIZER_VOCAB_MAX, &k->n_vocab, err) &&
        json_get_int(obj, doc, "default_num_special_tokens", 0, k->n_vocab, &k->n_special, err);
    if (ok && !pattern.ptr)
        ok = err_set(err, ERR_FORMAT, "%s: config.pattern is missing", doc);
    ok = ok &&
         pretok_add_split(&k->t->pretok, doc, pattern, TEXTRE_RUST, PRETOK_ISOLATED, false, err);
    json_decref(obj);
    return ok;
}

static bool tekken_token(Tekken *k, JsonScan *s, int64_t *at, Error *err)
{
    char bytes[BPE_TOKEN_MAX];
    int64_t rank = (*at)++;
    int64_t n = -1;
    if (!jsonscan_open(s, '{', err))
        return false;
    for (;;) {
        bool more;
        Str key;
        Str raw;
        if (!jsonscan_key(s, &more, &key, err))
            return false;
        if (!more)
            break;
        if (str_is(key, "rank")) {
            if (!jsonscan_uint(s, TOKENIZER_VOCAB_MAX - 1, &rank, err))
                return false;
        } else if (str_is(key, "token_bytes")) {
            if (!jsonscan_string(s, &raw, err))
                return false;
            n = raw.len <= sizeof bytes ? base64_decode(raw, bytes) : -1;
            if (n < 0)
                return jsonscan_fail(s, "token_bytes is no base64, or too long", err);
        } else if (!jsonscan_skip(s, &raw, err)) {
            return false;
        }
    }
    if (n < 0)
        return jsonscan_fail(s, "a token has no token_bytes", err);
    const int64_t id = rank + k->n_special;
    if (id >= k->n_vocab || n == 0) /* the file has more than the model uses */
        return true;
    return tokenizer_add_bytes(k->t, id, (Str){bytes, (size_t)n}, 0, err) &&
           tokenizer_set_score(k->t, id, -(double)rank, err);
}

static bool tekken_vocab(Tekken *k, Error *err)
{
    JsonScan s;
    jsonscan_init(&s, k->t->vocab.doc, k->vocab);
    int64_t at = 0;
    bool more = true;
    bool ok = jsonscan_open(&s, '[', err);
    while (ok && (ok = jsonscan_item(&s, &more, err)) && more)
        ok = tekken_token(k, &s, &at, err);
    jsonscan_free(&s);
    return ok;
}

static bool tekken_added(Tekken *k, Error *err)
{
    Tokenizer *t = k->t;
    const char *doc = t->vocab.doc;
    json_t *list = NULL;
    if (k->special.ptr && !str_is(k->special, "null")) {
        list = json_parse(doc, k->special, err);
        if (!list)
            return err_wrap(err, "special_tokens") && false;
    }
    const size_t n = list ? json_array_size(list) : COUNT_OF(tekken_special);
    bool ok = true;
    t->raw.at = ARENA_ARRAY(k->arena, k->n_special, AddedTok, err);
    if (!t->raw.at)
        ok = false;
    for (int i = 0; ok && i < k->n_special; i++) {
        char name[32];
        Str text = {name, (size_t)snprintf(name, sizeof name, "<SPECIAL_%d>", i)};
        int id = i;
        if (!list && (size_t)i < n)
            text = str_from(tekken_special[i]);
        if (list && (size_t)i < n) {
            const json_t *item = json_array_get(list, (size_t)i);
            Str given;
            ok = json_get_int_or(item, doc, "rank", 0, k->n_special - 1, i, &id, err) &&
                 json_get_str_or(item, doc, "token_str", &given, err);
            if (ok && given.ptr && given.len > 0)
                text = given;
        }
        const AddedTok tok = {.text = text, .id = id, .special = true};
        ok = ok && tokenizer_add_added(k->arena, t, &t->raw, tok, err);
    }
    json_decref(list);
    return ok;
}

static bool build_tekken(Tekken *k, Str json, size_t before, Error *err)
{
    Tokenizer *t = k->t;
    JsonScan s;
    jsonscan_init(&s, t->vocab.doc, json);
    bool more = true;
    bool ok = jsonscan_open(&s, '{', err);
    Str key;
    while (ok && (ok = jsonscan_key(&s, &more, &key, err)) && more) {
        Str raw;
        Str *keep = str_is(key, "config")           ? &k->config
                    : str_is(key, "vocab")          ? &k->vocab
                    : str_is(key, "special_tokens") ? &k->special
                                                    : &raw;
        ok = jsonscan_skip(&s, keep, err);
    }
    jsonscan_free(&s);
    by_rank(t);
    if (!ok)
        return false;
    if (!k->config.ptr || !k->vocab.ptr)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is missing", t->vocab.doc,
                       k->config.ptr ? "vocab" : "config");
    if (!tekken_config(k, err) || !tekken_vocab(k, err) || !vocab_index(&t->vocab, err) ||
        !tekken_added(k, err))
        return false;
    t->bos = k->n_special > 1 ? 1 : -1;
    t->eos = k->n_special > 2 ? 2 : -1;
    if (!tokenizer_finish(k->arena, t, "tekken", before, err))
        return false;
    tokenizer_set_around(t, 1, -1);
    return true;
}

bool tokenizer_tekken_open(Arena *a, const char *doc, Str json, Tokenizer **out, Error *err)
{
    Tekken k = {.arena = a};
    const size_t before = arena_bytes(a);
    return start(a, doc, json, &k.t, err) && end(build_tekken(&k, json, before, err), k.t, out);
}

/* ---- vocab.json and merges.txt ---- */

static bool read_vocab(Tokenizer *t, Str json, Error *err)
{
    JsonScan s;
    jsonscan_init(&s, t->vocab.doc, json);
    bool more = true;
    Str key;
    bool ok = jsonscan_open(&s, '{', err);
    while (ok && (ok = jsonscan_key(&s, &more, &key, err)) && more) {
        int64_t id;
        ok = jsonscan_uint(&s, TOKENIZER_VOCAB_MAX - 1, &id, err) &&
             tokenizer_add_token(t, id, key, err);
    }
    jsonscan_free(&s);
    return ok;
}

static bool read_merge(Tokenizer *t, Str line, int64_t number, Error *err)
{
    if (number == 1 && str_starts(line, "#version"))
        return true;
    const char *gap = memchr(line.ptr, ' ', line.len);
    if (!gap)
        return err_set(err, ERR_FORMAT, "%s: merges.txt: line %lld has no space between two parts",
                       t->vocab.doc, (long long)number);
    const size_t l = (size_t)(gap - line.ptr);
    return tokenizer_add_merge(t, (Str){line.ptr, l}, (Str){gap + 1, line.len - l - 1}, number,
                               err);
}

/* What the class of the configuration does that the two files do not say. */
typedef struct Class {
    const char *name, *pattern;
    bool prefix_space, around;
    NormalizeForm form;
} Class;

static const Class classes[] = {
    {"GPT2Tokenizer", pretok_gpt2, false, false, NORMALIZE_NONE},
    {"GPTNeoXTokenizer", pretok_gpt2, false, false, NORMALIZE_NONE},
    {"CodeGenTokenizer", pretok_gpt2, false, false, NORMALIZE_NONE},
    {"WhisperTokenizer", pretok_gpt2, false, false, NORMALIZE_NONE},
    {"Qwen2Tokenizer", pat_qwen, false, false, NORMALIZE_NFC},
    {"RobertaTokenizer", pretok_gpt2, false, true, NORMALIZE_NONE},
    {"BartTokenizer", pretok_gpt2, false, true, NORMALIZE_NONE},
    {"LongformerTokenizer", pretok_gpt2, false, true, NORMALIZE_NONE},
};

static bool read_class(Arena *a, Tokenizer *t, Str config, const Class **out, Error *err)
{
    (void)a;
    json_t *obj;
    if (!tokenizer_parse_config(config, &obj, err))
        return false;
    Str name = {0};
    bool prefix = false;
    bool ok =
        !obj ||
        (json_get_str_or(obj, "tokenizer_config.json", "tokenizer_class", &name, err) &&
         json_get_bool_or(obj, "tokenizer_config.json", "add_prefix_space", false, &prefix, err));
    *out = &classes[0];
    if (ok && name.ptr) {
        if (name.len > 4 && str_ends(name, "Fast"))
            name.len -= 4;
        *out = NULL;
        for (size_t i = 0; i < COUNT_OF(classes); i++) {
            if (str_is(name, classes[i].name))
                *out = &classes[i];
        }
        if (!*out)
            ok = err_set(err, ERR_UNSUPPORTED,
                         "%s: tokenizer_class \"%.*s\" is not supported without a tokenizer.json",
                         t->vocab.doc, name.len < 60 ? (int)name.len : 60, name.ptr);
    }
    json_decref(obj);
    return ok && (!prefix || pretok_add_prefix_space(&t->pretok, t->vocab.doc, err));
}

/* A token of the vocabulary that is a special one, if it is there. */
static bool special(Arena *a, Tokenizer *t, const char *text, int *id, Error *err)
{
    *id = vocab_find(&t->vocab, str_from(text));
    if (*id < 0) /* outside the byte alphabet, or with WordPiece's space */
        for (int i = 0; i < t->vocab.n && *id < 0; i++) {
            const Str s = vocab_has(&t->vocab, i) ? vocab_bytes(&t->vocab, i) : (Str){"", 0};
            if (str_is(s, text) ||
                (s.len > 1 && s.ptr[0] == ' ' && str_is((Str){s.ptr + 1, s.len - 1}, text)))
                *id = i;
        }
    if (*id < 0)
        return true;
    const AddedTok tok = {.text = str_from(text), .id = *id, .special = true};
    return tokenizer_add_added(a, t, &t->raw, tok, err);
}

static bool build_vocab(Arena *a, Tokenizer *t, Str vocab, Str merges, Str config, size_t before,
                        Error *err)
{
    static const char *const names[] = {"<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"};
    const Class *c;
    t->kind = TOKENIZER_BYTE_BPE;
    t->spelling = TOKENIZER_ALPHABET;
    if (!read_vocab(t, vocab, err) || !vocab_index(&t->vocab, err))
        return false;
    bpe_init(&t->bpe, &t->vocab);
    if (!each_line(t, merges, read_merge, err) || !bpe_index(&t->bpe, err) ||
        !read_class(a, t, config, &c, err) ||
        !pretok_add_split(&t->pretok, t->vocab.doc, str_from(c->pattern), TEXTRE_RUST,
                          PRETOK_ISOLATED, false, err) ||
        !tokenizer_config_added(a, t, config, (int)COUNT_OF(names), err))
        return false;
    if (c->form != NORMALIZE_NONE) {
        NormStep *step = normchain_add(&t->norm, t->vocab.doc, NORM_FORM, err);
        if (!step)
            return false;
        step->form = c->form;
    }
    int ids[COUNT_OF(names)];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!special(a, t, names[i], &ids[i], err))
            return false;
    }
    if (c->around && ids[0] >= 0 && ids[1] >= 0) {
        t->prefix[t->n_prefix++] = t->bos = ids[0];
        t->suffix[t->n_suffix++] = t->eos = ids[1];
    } else {
        t->eos = ids[5];
    }
    return tokenizer_finish(a, t, "vocab.json", before, err) &&
           tokenizer_read_config(t, config, err);
}

bool tokenizer_vocab_open(Arena *a, const char *doc, Str vocab, Str merges, Str config,
                          Tokenizer **out, Error *err)
{
    Tokenizer *t;
    const size_t before = arena_bytes(a);
    return start(a, doc, vocab, &t, err) &&
           end(build_vocab(a, t, vocab, merges, config, before, err), t, out);
}

/* ---- vocab.txt ---- */

static bool read_word(Tokenizer *t, Str line, int64_t number, Error *err)
{
    return tokenizer_add_token(t, number - 1, line, err);
}

static bool bert_options(Tokenizer *t, Str config, NormStep *step, Error *err)
{
    static const char doc[] = "tokenizer_config.json";
    json_t *obj;
    if (!tokenizer_parse_config(config, &obj, err))
        return false;
    step->clean = true;
    const bool ok =
        json_get_bool_or(obj, doc, "do_lower_case", true, &step->lower, err) &&
        json_get_bool_or(obj, doc, "tokenize_chinese_chars", true, &step->chinese, err) &&
        (json_is_boolean(json_object_get(obj, "strip_accents"))
             ? json_get_bool_or(obj, doc, "strip_accents", false, &step->accents, err)
             : true);
    if (ok && !json_is_boolean(json_object_get(obj, "strip_accents")))
        step->accents = step->lower;
    json_decref(obj);
    (void)t;
    return ok;
}

static bool build_words(Arena *a, Tokenizer *t, Str vocab, Str config, size_t before, Error *err)
{
    static const char *const names[] = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};
    int ids[COUNT_OF(names)];
    t->kind = TOKENIZER_WORDPIECE;
    t->spelling = TOKENIZER_WORDS;
    t->strip = true;
    NormStep *step = normchain_add(&t->norm, t->vocab.doc, NORM_BERT, err);
    if (!step || !bert_options(t, config, step, err) || !each_line(t, vocab, read_word, err) ||
        !vocab_index(&t->vocab, err) ||
        !tokenizer_config_added(a, t, config, (int)COUNT_OF(names), err) ||
        !pretok_add_bert(&t->pretok, t->vocab.doc, err))
        return false;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (!special(a, t, names[i], &ids[i], err))
            return false;
    }
    t->unknown.unk = ids[0];
    if (ids[1] >= 0)
        t->prefix[t->n_prefix++] = t->bos = ids[1];
    if (ids[2] >= 0)
        t->suffix[t->n_suffix++] = ids[2];
    return tokenizer_finish(a, t, "vocab.txt", before, err) &&
           tokenizer_read_config(t, config, err);
}

bool tokenizer_wordpiece_open(Arena *a, const char *doc, Str vocab, Str config, Tokenizer **out,
                              Error *err)
{
    Tokenizer *t;
    const size_t before = arena_bytes(a);
    return start(a, doc, vocab, &t, err) &&
           end(build_words(a, t, vocab, config, before, err), t, out);
}
