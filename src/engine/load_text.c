#include "engine/load.h"

static bool gguf_id(const Gguf *g, const char *key, int *out, Error *err)
{
    int64_t v;
    if (!gguf_i64_or(g, key, -1, &v, err))
        return false;
    *out = v >= 0 && v < TOKENIZER_VOCAB_MAX ? (int)v : -1;
    return true;
}

static bool gguf_flag(const Gguf *g, const char *key, int *out, Error *err)
{
    bool v = false;
    if (!gguf_bool_or(g, key, false, &v, err))
        return false;
    *out = gguf_find(g, key) ? v : -1;
    return true;
}

static bool gguf_types(const Gguf *g, Arena *scratch, int64_t n_tokens, const int32_t **out,
                       Error *err)
{
    const char *key = "tokenizer.ggml.token_type";
    const GgufKv *kv = gguf_find(g, key);
    *out = NULL;
    if (!kv)
        return true;
    if (kv->type != GGUF_ARRAY || kv->item == GGUF_STR || kv->item == GGUF_ARRAY ||
        kv->n != (uint64_t)n_tokens)
        return err_set(err, ERR_FORMAT, "%s: %s does not have one number for each of %lld tokens",
                       g->doc, key, (long long)n_tokens);
    int32_t *types = ARENA_ARRAY(scratch, n_tokens, int32_t, err);
    if (!types)
        return false;
    for (int64_t i = 0; i < n_tokens; i++)
        types[i] = (int32_t)gguf_item_i64(kv, (uint64_t)i);
    *out = types;
    return true;
}

static bool gguf_scores(const Gguf *g, Arena *scratch, int64_t n_tokens, const float **out,
                        Error *err)
{
    const char *key = "tokenizer.ggml.scores";
    const GgufKv *kv = gguf_find(g, key);
    *out = NULL;
    if (!kv)
        return true;
    if (kv->type != GGUF_ARRAY || kv->item == GGUF_STR || kv->item == GGUF_ARRAY ||
        kv->n != (uint64_t)n_tokens)
        return err_set(err, ERR_FORMAT, "%s: %s does not have one number for each of %lld tokens",
                       g->doc, key, (long long)n_tokens);
    float *scores = ARENA_ARRAY(scratch, n_tokens, float, err);
    if (!scores)
        return false;
    for (int64_t i = 0; i < n_tokens; i++)
        scores[i] = (float)gguf_item_f64(kv, (uint64_t)i);
    *out = scores;
    return true;
}

static bool gguf_bytes(const Gguf *g, const char *key, Str *out, Error *err)
{
    const GgufKv *kv = gguf_find(g, key);
    *out = (Str){0};
    if (!kv)
        return true;
    if (kv->type != GGUF_ARRAY || kv->bytes != kv->n)
        return err_set(err, ERR_FORMAT, "%s: %s is no array of bytes", g->doc, key);
    *out = (Str){(const char *)kv->data, (size_t)kv->bytes};
    return true;
}

static bool gguf_ids(const Gguf *g, TokenizerGguf *t, Error *err)
{
    return gguf_id(g, "tokenizer.ggml.bos_token_id", &t->bos, err) &&
           gguf_id(g, "tokenizer.ggml.eos_token_id", &t->eos, err) &&
           gguf_id(g, "tokenizer.ggml.eot_token_id", &t->eot, err) &&
           gguf_id(g, "tokenizer.ggml.unknown_token_id", &t->unk, err) &&
           gguf_id(g, "tokenizer.ggml.seperator_token_id", &t->sep, err) &&
           gguf_id(g, "tokenizer.ggml.cls_token_id", &t->cls, err) &&
           gguf_flag(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err) &&
           gguf_flag(g, "tokenizer.ggml.add_eos_token", &t->add_eos, err) &&
           gguf_flag(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err) &&
           gguf_flag(g, "tokenizer.ggml.remove_extra_whitespaces", &t->remove_extra_whitespaces,
                     err) &&
           gguf_flag(g, "tokenizer.ggml.normalizer.lowercase", &t->lowercase, err) &&
           gguf_flag(g, "tokenizer.ggml.normalizer.strip_accents", &t->strip_accents, err);
}

static bool gguf_texts(const Gguf *g, Arena *a, const char *key, const Str **out, int64_t *n,
                       Error *err)
{
    const GgufKv *kv = gguf_find(g, key);
    *out = NULL;
    *n = 0;
    if (!kv)
        return true;
    if (kv->type != GGUF_ARRAY || kv->item != GGUF_STR)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is no array of strings", g->doc, key);
    Str *list = ARENA_ARRAY(a, kv->n, Str, err);
    if (!list)
        return false;
    const uint8_t *at = kv->data;
    for (uint64_t i = 0; i < kv->n; i++)
        list[i] = gguf_next_str(&at);
    *out = list;
    *n = (int64_t)kv->n;
    return true;
}

static bool open_gguf(const Gguf *g, Arena *a, Arena *scratch, Tokenizer **out, Error *err)
{
    TokenizerGguf t = {.doc = g->doc};
    const Str none = {NULL, 0};
    if (!gguf_texts(g, scratch, "tokenizer.ggml.tokens", &t.tokens, &t.n_tokens, err))
        return false;
    if (!t.tokens)
        return true;
    return gguf_texts(g, scratch, "tokenizer.ggml.merges", &t.merges, &t.n_merges, err) &&
           gguf_str_or(g, "tokenizer.ggml.model", none, &t.model, err) &&
           gguf_str_or(g, "tokenizer.ggml.pre", none, &t.pre, err) &&
           gguf_types(g, scratch, t.n_tokens, &t.types, err) &&
           gguf_scores(g, scratch, t.n_tokens, &t.scores, err) &&
           gguf_bytes(g, "tokenizer.ggml.precompiled_charsmap", &t.charsmap, err) &&
           gguf_ids(g, &t, err) && tokenizer_gguf_open(a, &t, out, err);
}

bool load_gguf_tokenizer(const Gguf *g, Arena *a, Tokenizer **out, Error *err)
{
    Arena scratch;
    arena_init(&scratch, "tokenizer's file");
    *out = NULL;
    const bool ok = open_gguf(g, a, &scratch, out, err);
    arena_free(&scratch);
    return ok;
}

/* ---- files beside a checkpoint ---- */

typedef bool OpenText(Arena *a, const char *doc, Str text, Str more, Str config, Tokenizer **out,
                      Error *err);

static bool open_json(Arena *a, const char *doc, Str text, Str more, Str config, Tokenizer **out,
                      Error *err)
{
    (void)more;
    return tokenizer_json_open(a, doc, text, config, out, err);
}

/* Llama 3 and 4 call a list of tiktoken's tokenizer.model too. */
static bool open_model(Arena *a, const char *doc, Str text, Str more, Str config, Tokenizer **out,
                       Error *err)
{
    (void)more;
    const bool proto = text.len > 0 && text.ptr[0] == '\n';
    return proto ? tokenizer_spm_open(a, doc, text, config, out, err)
                 : tokenizer_tiktoken_open(a, doc, text, config, out, err);
}

static bool open_tekken(Arena *a, const char *doc, Str text, Str more, Str config, Tokenizer **out,
                        Error *err)
{
    (void)more;
    (void)config;
    return tokenizer_tekken_open(a, doc, text, out, err);
}

static bool open_wordpiece(Arena *a, const char *doc, Str text, Str more, Str config,
                           Tokenizer **out, Error *err)
{
    (void)more;
    return tokenizer_wordpiece_open(a, doc, text, config, out, err);
}

/* In the order of trust: each says more than those after it. */
static const struct {
    const char *name, *with; /* a second file that must be there too */
    OpenText *open;
} kinds[] = {
    {"tokenizer.json", NULL, open_json},
    {"tekken.json", NULL, open_tekken},
    {"tokenizer.model", NULL, open_model},
    {"spiece.model", NULL, open_model},
    {"sentencepiece.bpe.model", NULL, open_model},
    {"spm.model", NULL, open_model},
    {"tiktoken.model", NULL, open_model},
    {"qwen.tiktoken", NULL, open_model},
    {"tokenizer.tiktoken", NULL, open_model},
    {"cl100k_base.tiktoken", NULL, open_model},
    {"o200k_base.tiktoken", NULL, open_model},
    {"vocab.json", "merges.txt", tokenizer_vocab_open},
    {"vocab.txt", NULL, open_wordpiece},
};

static bool open_side(const Checkpoint *ck, Arena *a, Arena *scratch, Tokenizer **out, Error *err)
{
    Str config;
    if (!checkpoint_side_file(ck, scratch, "tokenizer_config.json", &config, err))
        return false;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        Str text;
        Str more = {0};
        if (!checkpoint_side_file(ck, scratch, kinds[i].name, &text, err) ||
            (kinds[i].with && !checkpoint_side_file(ck, scratch, kinds[i].with, &more, err)))
            return false;
        if (!text.ptr || (kinds[i].with && !more.ptr))
            continue;
        const char *doc = arena_printf(scratch, err, "%s/%s", checkpoint_path(ck), kinds[i].name);
        return doc && kinds[i].open(a, doc, text, more, config, out, err);
    }
    return true;
}

bool load_tokenizer(const Checkpoint *ck, Arena *a, Tokenizer **out, Error *err)
{
    if (checkpoint_is_gguf(ck))
        return load_gguf_tokenizer(checkpoint_gguf(ck), a, out, err);
    Arena scratch;
    arena_init(&scratch, "tokenizer's file");
    *out = NULL;
    const bool ok = open_side(ck, a, &scratch, out, err);
    arena_free(&scratch);
    return ok;
}

bool load_no_tokenizer(const char *path, Error *err)
{
    return err_set(
        err, ERR_NOT_FOUND,
        "%.80s has no tokenizer: give token ids (looked for tokenizer.json, tekken.json, "
        "tokenizer.model, spiece.model, *.tiktoken, vocab.json, vocab.txt)",
        path);
}
