#include "base/mem.h"
#include "text/bytelevel.h"
#include "text/jsonscan.h"
#include "text/tokenizer_steps.h"
#include "text/utf8.h"

#include <stdio.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* The sections of a tokenizer.json, as raw text but for the big tables, which are read where they
 * lie. */
typedef struct Sections {
    Str added, normalizer, pre_tokenizer, post_processor, decoder;
    Str model; /* set when it comes before the sections that say how its tokens are written */
    Str type, unk, unk_id, ignore_merges, byte_fallback, fuse_unk, prefix, max_chars, suffix;
    Str vocab, merges; /* set when they come before what they need */
    bool has_model, has_vocab, has_merges;
} Sections;

/* Where a token stands in the file, without its quotes; len 0: it is not known. */
typedef struct Spelled {
    uint32_t at, len; /* bytes */
} Spelled;

typedef struct Open {
    Arena *arena;
    const char *doc;
    Tokenizer *t;
    TokenizerSteps steps;
    Sections s;
    Str json;
    Spelled *spelled; /* [n_spelled] tokens as the file spells them, read the short way */
    int64_t n_spelled, spelled_cap;
} Open;

/* *out NULL when the section is missing or null. */
static bool parse_section(const Open *o, const char *name, Str raw, json_t **out, Error *err)
{
    *out = NULL;
    if (!raw.ptr || str_is(raw, "null"))
        return true;
    *out = json_parse(o->doc, raw, err);
    return *out || err_wrap(err, "%s", name);
}

typedef bool StepReader(TokenizerSteps *o, const json_t *obj, Error *err);

static bool read_steps(Open *o, const char *name, Str raw, StepReader *read, Error *err)
{
    json_t *obj;
    if (!parse_section(o, name, raw, &obj, err))
        return false;
    const bool ok = !obj || read(&o->steps, obj, err);
    json_decref(obj);
    return ok;
}

/* ---- model ---- */

static bool vocab_done(Open *o, Error *err)
{
    o->s.has_vocab = true;
    if (!vocab_index(&o->t->vocab, err))
        return false;
    bpe_init(&o->t->bpe, &o->t->vocab);
    if (o->t->word_end)
        bpe_end_words(&o->t->bpe);
    return true;
}

enum { SCAN_MAX = 256 /* bytes of a token that is read the short way */ };

/* Tokens may be read the short way. */
static bool quick(const Open *o)
{
    return o->t->spelling == TOKENIZER_ALPHABET && !o->t->word_end;
}

static bool spelled_reserve(Open *o, int64_t cap, Error *err)
{
    Spelled *spelled = mem_realloc(o->spelled, (size_t)cap * sizeof *spelled);
    if (!spelled)
        return err_nomem(err, o->doc, (size_t)cap * sizeof *spelled);
    o->spelled = spelled;
    o->spelled_cap = cap;
    return true;
}

static bool spelled_at(Open *o, int64_t id, Str text, Error *err)
{
    if (id >= o->spelled_cap && !spelled_reserve(o, id * 2 + 1, err))
        return false;
    while (o->n_spelled <= id)
        o->spelled[o->n_spelled++] = (Spelled){0};
    o->spelled[id] = (Spelled){(uint32_t)(text.ptr - o->json.ptr), (uint32_t)text.len};
    return true;
}

/* A key in the byte alphabet without escapes, and its id, as nearly all are. *done false: the
 * scanner is where it was. */
static bool scan_token(Open *o, JsonScan *s, bool *done, Error *err)
{
    const char *p = s->p;
    int64_t id;
    *done = false;
    if (s->end - p < 2 || *p != '"')
        return true;
    char *to = vocab_begin(&o->t->vocab, SCAN_MAX, err);
    if (!to)
        return false;
    p++;
    const size_t len = bytelevel_scan(&p, s->end, to, SCAN_MAX);
    if (s->end - p < 2 || p[0] != '"' || p[1] != ':')
        return true;
    const Str text = {s->p + 1, (size_t)(p - s->p - 1)};
    s->p = p + 2;
    *done = true;
    return jsonscan_uint(s, TOKENIZER_VOCAB_MAX - 1, &id, err) &&
           vocab_end(&o->t->vocab, id, len, 0, err) && spelled_at(o, id, text, err);
}

static bool read_table(Open *o, JsonScan *s, Error *err)
{
    /* Tokens that come with merges take 45 to 70 bytes of a file, merges themselves 20 or more. */
    const int64_t about = (s->end - s->p) / 48;
    if (!jsonscan_open(s, '{', err) || !vocab_reserve(&o->t->vocab, about, err) ||
        (quick(o) && !spelled_reserve(o, about + 1, err)))
        return false;
    s->loose = true; /* tokenizer_add_token tests them */
    for (;;) {
        bool more;
        bool done = false;
        Str token;
        if (!jsonscan_more(s, '}', &more, err))
            return false;
        if (!more)
            break;
        if (quick(o) && !scan_token(o, s, &done, err))
            return false;
        if (done)
            continue;
        if (!jsonscan_name(s, &token, err))
            return false;
        int64_t id; /* reading it leaves the borrowed key alone */
        if (!jsonscan_uint(s, TOKENIZER_VOCAB_MAX - 1, &id, err) ||
            !tokenizer_add_token(o->t, id, token, err))
            return false;
    }
    s->loose = false;
    return vocab_done(o, err);
}

/* A score as serde_json reads it, with the 17 digits of most in 64 bits and rounded twice: sums of
 * such scores decide between paths that are equal otherwise. */
static bool read_score(Str raw, double *out)
{
    static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                  1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const bool minus = raw.len > 0 && raw.ptr[0] == '-';
    uint64_t digits = 0;
    size_t point = 0; /* 1 + where it is */
    size_t i = minus;
    for (; i < raw.len; i++) {
        const char c = raw.ptr[i];
        if (c == '.' && !point) {
            point = i + 1;
            continue;
        }
        if (c < '0' || c > '9' || digits > (UINT64_MAX - 9) / 10)
            break;
        digits = digits * 10 + (uint64_t)(c - '0');
    }
    const size_t places = point ? i - point : 0;
    if (i < raw.len || places >= COUNT_OF(tens))
        return str_to_double(raw, out);
    const double v = (double)digits / tens[places];
    *out = minus ? -v : v;
    return raw.len > minus;
}

/* [["token", -3.5], ...]: ids are places in the list. */
static bool read_scored(Open *o, JsonScan *s, Error *err)
{
    if (!jsonscan_open(s, '[', err))
        return false;
    for (int64_t id = 0;; id++) {
        bool more;
        Str token;
        Str raw;
        double score;
        if (!jsonscan_item(s, &more, err))
            return false;
        if (!more)
            break;
        if (id >= TOKENIZER_VOCAB_MAX)
            return jsonscan_fail(s, "too many tokens", err);
        if (!jsonscan_open(s, '[', err) || !jsonscan_item(s, &more, err))
            return false;
        if (!more)
            return jsonscan_fail(s, "a token is no pair of text and score", err);
        if (!jsonscan_string(s, &token, err) || !tokenizer_add_token(o->t, id, token, err) ||
            !jsonscan_item(s, &more, err))
            return false;
        if (!more)
            return jsonscan_fail(s, "a token is no pair of text and score", err);
        if (!jsonscan_skip(s, &raw, err))
            return false;
        if (!read_score(raw, &score))
            return jsonscan_fail(s, "a score is no number", err);
        if (!tokenizer_set_score(o->t, id, score, err) || !jsonscan_item(s, &more, err))
            return false;
        if (more)
            return jsonscan_fail(s, "a token has more than text and score", err);
    }
    return vocab_done(o, err);
}

static bool read_vocab(Open *o, JsonScan *s, Error *err)
{
    if (o->t->kind == TOKENIZER_UNIGRAM)
        return read_scored(o, s, err);
    return read_table(o, s, err);
}

static bool add_merge(Open *o, const JsonScan *s, Str left, Str right, int64_t *rank, Error *err)
{
    if (*rank >= TOKENIZER_VOCAB_MAX)
        return jsonscan_fail(s, "too many merges", err);
    return tokenizer_add_merge(o->t, left, right, (*rank)++, err);
}

/* ["left", "right"] */
static bool read_pair(Open *o, JsonScan *s, Str *left, Str *right, Error *err)
{
    bool more;
    if (!jsonscan_open(s, '[', err) || !jsonscan_item(s, &more, err))
        return false;
    if (!more)
        return jsonscan_fail(s, "a merge is no pair of strings", err);
    if (!jsonscan_string(s, left, err))
        return false;
    if (left->ptr == s->text.ptr) { /* unescaped: the next string would overwrite it */
        left->ptr = arena_strdup(o->arena, left->ptr, left->len, err);
        if (!left->ptr)
            return false;
    }
    if (!jsonscan_item(s, &more, err))
        return false;
    if (!more)
        return jsonscan_fail(s, "a merge is no pair of strings", err);
    if (!jsonscan_string(s, right, err) || !jsonscan_item(s, &more, err))
        return false;
    return !more || jsonscan_fail(s, "a merge has more than two parts", err);
}

enum { BEYOND = 16 /* bytes that are read past a text's end */ };

/* How many bytes two texts begin with in common, up to max. */
static size_t common(const char *a, const char *b, size_t max)
{
    size_t n = 0;
    while (n < max) {
#ifdef __SSE2__
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(a + n));
        const __m128i y = _mm_loadu_si128((const __m128i *)(const void *)(b + n));
        const unsigned same = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(x, y));
        n += (size_t)__builtin_ctz(~same);
        if (same != 0xFFFF)
            break;
#else
        if (a[n] != b[n])
            break;
        n++;
#endif
    }
    return n < max ? n : max;
}

/* Bytes that the first `len` bytes of a token's text stand for: its characters. */
static size_t bytes_of(const char *text, size_t len, size_t all, size_t token_bytes)
{
    if (all == token_bytes) /* ASCII, and below a space before it */
        return len;
    if (all == token_bytes + 1 && (unsigned char)text[0] >= 0x80 && len > 1)
        return len - 1;
    return utf8_count((Str){text, len});
}

/* A merge spelled as the token `id` is, but for the space between its parts. */
static bool match_merge(Open *o, JsonScan *s, int64_t id, bool *done, Error *err)
{
    const Spelled t = id >= 0 && id < o->n_spelled ? o->spelled[id] : (Spelled){0};
    const char *text = o->json.ptr + t.at;
    const char *p = s->p + 1;
    const size_t need = (size_t)t.len + 2 + BEYOND;
    if (t.len < 2 || (size_t)(s->end - p) < need || o->json.len - t.at < need || *text == '#')
        return true;
    const size_t left = common(p, text, t.len);
    if (left == 0 || left == t.len || p[left] != ' ' || ((unsigned char)text[left] & 0xC0) == 0x80)
        return true;
    if (common(p + left + 1, text + left, t.len - left) < t.len - left || p[t.len + 1] != '"')
        return true;
    s->p = p + t.len + 2;
    *done = true;
    const size_t bytes = bytes_of(text, left, t.len, vocab_bytes(&o->t->vocab, (int32_t)id).len);
    return bpe_add_known(&o->t->bpe, (int32_t)id, bytes, err);
}

/* "left right" in the byte alphabet without escapes. *done false: the scanner is where it was. */
static bool scan_merge(Open *o, JsonScan *s, bool *done, Error *err)
{
    *done = false;
    if (s->p == s->end || *s->p != '"')
        return true;
    const int64_t last = o->t->bpe.last; /* files list merges in the order of their tokens */
    for (int64_t id = last; id <= last + 1; id++) {
        if (!match_merge(o, s, id, done, err))
            return false;
        if (*done)
            return true;
    }
    char *to = bpe_begin(&o->t->bpe, 2 * SCAN_MAX, err);
    if (!to)
        return false;
    const char *p = s->p + 1;
    const size_t left = bytelevel_scan(&p, s->end, to, SCAN_MAX);
    if (left == 0 || p == s->end || *p != ' ' || str_starts((Str){to, left}, "#version"))
        return true;
    p++;
    const size_t right = bytelevel_scan(&p, s->end, to + left, SCAN_MAX);
    if (right == 0 || p == s->end || *p != '"')
        return true;
    s->p = p + 1;
    *done = true;
    bpe_end(&o->t->bpe, left, left + right);
    return true;
}

/* "left right", or ["left", "right"]. */
static bool read_merges(Open *o, JsonScan *s, Error *err)
{
    if (!jsonscan_open(s, '[', err) || !bpe_reserve(&o->t->bpe, (s->end - s->p) / 20, err))
        return false;
    int64_t rank = 0;
    s->loose = true;
    for (;;) {
        bool more;
        bool done = false;
        if (!jsonscan_item(s, &more, err))
            return false;
        if (!more)
            break;
        if (quick(o) && rank < TOKENIZER_VOCAB_MAX && !scan_merge(o, s, &done, err))
            return false;
        if (done) {
            rank++;
            continue;
        }
        Str left = {0};
        Str right = {0};
        if (jsonscan_peek(s) == '"') {
            Str both;
            if (!jsonscan_string(s, &both, err))
                return false;
            if (str_starts(both, "#version"))
                continue;
            const char *gap = memchr(both.ptr, ' ', both.len);
            if (!gap)
                return jsonscan_fail(s, "a merge has no space between two parts", err);
            left = (Str){both.ptr, (size_t)(gap - both.ptr)};
            right = (Str){gap + 1, both.len - left.len - 1};
            if (!add_merge(o, s, left, right, &rank, err))
                return false;
            continue;
        }
        const ArenaMark mark = arena_mark(o->arena);
        if (!read_pair(o, s, &left, &right, err) || !add_merge(o, s, left, right, &rank, err))
            return false;
        arena_rewind(o->arena, mark);
    }
    s->loose = false;
    o->s.has_merges = true;
    return bpe_index(&o->t->bpe, err);
}

/* A key of "model" that changes the algorithm in a way that is not ours: only null, false, 0 or ""
 * will do. */
static bool refuse_set(const Open *o, const char *key, Str raw, Error *err)
{
    if (str_is(raw, "null") || str_is(raw, "false") || str_is(raw, "\"\"") || str_is(raw, "0") ||
        str_is(raw, "0.0"))
        return true;
    return err_set(err, ERR_UNSUPPORTED, "%s: model.%s is %.*s, which is not supported", o->doc,
                   key, raw.len < 40 ? (int)raw.len : 40, raw.ptr);
}

/* The algorithm, and how its tokens are written. */
static bool read_type(Open *o, Error *err)
{
    static const struct {
        const char *name;
        TokenizerKind kind;
    } types[] = {{"\"BPE\"", TOKENIZER_CHAR_BPE},
                 {"\"Unigram\"", TOKENIZER_UNIGRAM},
                 {"\"WordPiece\"", TOKENIZER_WORDPIECE}};
    Tokenizer *t = o->t;
    t->kind = TOKENIZER_CHAR_BPE;
    for (size_t i = 0; o->s.type.ptr && i <= COUNT_OF(types); i++) {
        if (i == COUNT_OF(types))
            return err_set(err, ERR_UNSUPPORTED, "%s: model.type %.*s is not supported", o->doc,
                           o->s.type.len < 40 ? (int)o->s.type.len : 40, o->s.type.ptr);
        if (str_is(o->s.type, types[i].name)) {
            t->kind = types[i].kind;
            break;
        }
    }
    if (t->kind == TOKENIZER_WORDPIECE) {
        if (o->steps.metaspace || o->steps.replaces_space)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: WordPiece with U+2581 for spaces is not supported", o->doc);
        t->spelling = TOKENIZER_WORDS;
        return true;
    }
    if (t->spelling == TOKENIZER_ALPHABET) {
        if (t->kind == TOKENIZER_UNIGRAM)
            return err_set(err, ERR_UNSUPPORTED, "%s: Unigram with ByteLevel is not supported",
                           o->doc);
        t->kind = TOKENIZER_BYTE_BPE;
        return true;
    }
    t->byte_tokens = true;
    return true;
}

static bool read_prefix(Open *o, Str raw, Error *err)
{
    if (o->t->kind != TOKENIZER_WORDPIECE)
        return refuse_set(o, "continuing_subword_prefix", raw, err);
    json_t *v = NULL;
    if (!parse_section(o, "model.continuing_subword_prefix", raw, &v, err))
        return false;
    bool ok = true;
    if (json_is_string(v)) {
        const Str text = {json_string_value(v), json_string_length(v)};
        o->t->continuing = arena_strdup(o->arena, text.ptr, text.len, err);
        ok = o->t->continuing != NULL;
    }
    json_decref(v);
    return ok;
}

/* Its place among the spaces of a token must be free. */
static bool read_suffix(Open *o, Error *err)
{
    json_t *v = NULL;
    Tokenizer *t = o->t;
    if (!parse_section(o, "model.end_of_word_suffix", o->s.suffix, &v, err))
        return false;
    bool ok = !v || json_is_string(v) ||
              err_set(err, ERR_FORMAT, "%s: model.end_of_word_suffix is no string", o->doc);
    const Str text = {ok && v ? json_string_value(v) : "", ok && v ? json_string_length(v) : 0};
    if (ok && text.len > 0) {
        const bool free = (t->kind == TOKENIZER_BYTE_BPE || t->kind == TOKENIZER_CHAR_BPE) &&
                          t->spelling != TOKENIZER_SPACES;
        ok = free ? (t->word_end = arena_strdup(o->arena, text.ptr, text.len, err)) != NULL
                  : refuse_set(o, "end_of_word_suffix", o->s.suffix, err);
    }
    json_decref(v);
    return ok;
}

static bool read_raw(Open *o, Str raw, bool (*read)(Open *o, JsonScan *s, Error *err), Error *err)
{
    JsonScan again;
    jsonscan_init(&again, o->doc, raw);
    const bool ok = read(o, &again, err);
    jsonscan_free(&again);
    return ok;
}

/* What the tables need was read: the type, the prefix of WordPiece and the suffix of BPE. */
static bool tables_known(const Sections *s)
{
    return s->type.ptr && (!str_is(s->type, "\"WordPiece\"") || s->prefix.ptr) &&
           (!str_is(s->type, "\"BPE\"") || s->suffix.ptr);
}

static bool start_tables(Open *o, Error *err)
{
    return read_type(o, err) && (!o->s.prefix.ptr || read_prefix(o, o->s.prefix, err)) &&
           read_suffix(o, err);
}

static bool model_key(Open *o, JsonScan *s, Str key, Error *err)
{
    Sections *at = &o->s;
    if (str_is(key, "vocab")) {
        if (at->has_vocab || at->vocab.ptr)
            return jsonscan_fail(s, "model.vocab is there twice", err);
        if (tables_known(at))
            return start_tables(o, err) && read_vocab(o, s, err);
        return jsonscan_skip(s, &at->vocab, err);
    }
    if (str_is(key, "merges")) {
        if (at->has_merges || at->merges.ptr)
            return jsonscan_fail(s, "model.merges is there twice", err);
        if (at->has_vocab)
            return read_merges(o, s, err);
        return jsonscan_skip(s, &at->merges, err);
    }
    const struct {
        const char *name;
        Str *keep;
    } keys[] = {{"type", &at->type},
                {"unk_token", &at->unk},
                {"unk_id", &at->unk_id},
                {"ignore_merges", &at->ignore_merges},
                {"byte_fallback", &at->byte_fallback},
                {"fuse_unk", &at->fuse_unk},
                {"continuing_subword_prefix", &at->prefix},
                {"max_input_chars_per_word", &at->max_chars},
                {"end_of_word_suffix", &at->suffix}};
    char name[40]; /* the key may lie in the scanner's buffer */
    snprintf(name, sizeof name, "%.*s", key.len < sizeof name ? (int)key.len : 0, key.ptr);
    Str raw;
    Str *keep = &raw;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (str_is(key, keys[i].name))
            keep = keys[i].keep;
    }
    if (!jsonscan_skip(s, keep, err))
        return false;
    return keep != &raw || refuse_set(o, name, raw, err); /* "dropout" */
}

static bool finish_tables(Open *o, Error *err)
{
    Sections *s = &o->s;
    if (s->vocab.ptr) {
        if (!start_tables(o, err) || !read_raw(o, s->vocab, read_vocab, err))
            return false;
    } else if (!s->has_vocab) {
        return read_type(o, err) && err_set(err, ERR_FORMAT, "%s: model.vocab is missing", o->doc);
    } else if (o->t->kind != TOKENIZER_WORDPIECE && s->prefix.ptr &&
               !read_prefix(o, s->prefix, err)) {
        return false;
    }
    if (o->t->kind != TOKENIZER_BYTE_BPE && o->t->kind != TOKENIZER_CHAR_BPE)
        return true;
    if (s->merges.ptr && !read_raw(o, s->merges, read_merges, err))
        return false;
    return s->has_merges || err_set(err, ERR_FORMAT, "%s: model.merges is missing", o->doc);
}

static bool read_model(Open *o, JsonScan *s, Error *err)
{
    if (!read_steps(o, "normalizer", o->s.normalizer, tokenizer_read_normalizer, err) ||
        !read_steps(o, "pre_tokenizer", o->s.pre_tokenizer, tokenizer_read_pre_tokenizer, err) ||
        !read_steps(o, "decoder", o->s.decoder, tokenizer_read_decoder, err))
        return false;
    tokenizer_settle_steps(&o->steps);
    if (!jsonscan_open(s, '{', err))
        return false;
    for (;;) {
        bool more;
        Str key;
        if (!jsonscan_key(s, &more, &key, err))
            return false;
        if (!more)
            return finish_tables(o, err);
        if (!model_key(o, s, key, err))
            return false;
    }
}

static bool read_file(Open *o, JsonScan *s, Error *err)
{
    if (!jsonscan_open(s, '{', err))
        return false;
    for (;;) {
        bool more;
        Str key;
        Str raw;
        Sections *at = &o->s;
        if (!jsonscan_key(s, &more, &key, err))
            return false;
        if (!more)
            break;
        Str *keep = str_is(key, "added_tokens")     ? &at->added
                    : str_is(key, "normalizer")     ? &at->normalizer
                    : str_is(key, "pre_tokenizer")  ? &at->pre_tokenizer
                    : str_is(key, "post_processor") ? &at->post_processor
                    : str_is(key, "decoder")        ? &at->decoder
                    : str_is(key, "model")          ? &at->model
                                                    : &raw;
        if (keep == &at->model) {
            if (at->has_model)
                return jsonscan_fail(s, "\"model\" is there twice", err);
            at->has_model = true;
            /* The three that say how tokens are written come first in every published file. */
            if (at->normalizer.ptr && at->pre_tokenizer.ptr && at->decoder.ptr) {
                if (!read_model(o, s, err))
                    return false;
                continue;
            }
        } else if (keep != &raw && keep->ptr) {
            return jsonscan_fail(s, "a section is there twice", err);
        }
        if (!jsonscan_skip(s, keep, err))
            return false;
    }
    if (jsonscan_peek(s) != '\0')
        return jsonscan_fail(s, "text after the end", err);
    if (!o->s.has_model)
        return err_set(err, ERR_FORMAT, "%s: \"model\" is missing", o->doc);
    return !o->s.model.ptr || read_raw(o, o->s.model, read_model, err);
}

/* ---- added tokens ---- */

/* As it reads after the normaliser. *out lies in the arena. */
static bool normal_text(Open *o, Str text, Str *out, Error *err)
{
    TextReWork re;
    NormWork work;
    if (!textre_work_init(&re, text.len, err))
        return false;
    normchain_work_init(&work, &re, text.len);
    Str normal;
    bool ok = normchain_run(&o->t->norm, &work, text, true, &normal, err);
    if (ok) {
        out->ptr = arena_strdup(o->arena, normal.ptr, normal.len, err);
        out->len = normal.len;
        ok = out->ptr != NULL;
    }
    normchain_work_free(&work);
    textre_work_free(&re);
    return ok;
}

static bool read_added(Open *o, const json_t *list, Error *err)
{
    Tokenizer *t = o->t;
    const size_t n = json_array_size(list);
    t->raw.at = ARENA_ARRAY(o->arena, n, AddedTok, err);
    t->normalized.at = ARENA_ARRAY(o->arena, n, AddedTok, err);
    if (!t->raw.at || !t->normalized.at)
        return false;
    t->normalized.marks = o->steps.replaces_space != 0;
    size_t i;
    json_t *item;
    json_array_foreach (list, i, item) {
        AddedTok tok = {0};
        bool normalized;
        Str text;
        int id;
        if (!json_get_int(item, o->doc, "id", 0, TOKENIZER_VOCAB_MAX - 1, &id, err) ||
            !json_get_str_or(item, o->doc, "content", &text, err) ||
            !json_get_bool_or(item, o->doc, "special", false, &tok.special, err) ||
            !json_get_bool_or(item, o->doc, "lstrip", false, &tok.lstrip, err) ||
            !json_get_bool_or(item, o->doc, "rstrip", false, &tok.rstrip, err) ||
            !json_get_bool_or(item, o->doc, "single_word", false, &tok.single_word, err) ||
            !json_get_bool_or(item, o->doc, "normalized", !tok.special, &normalized, err))
            return err_wrap(err, "added_tokens[%zu]", i);
        if (!text.ptr || text.len == 0)
            return err_set(err, ERR_FORMAT, "%s: added_tokens[%zu] has no \"content\"", o->doc, i);
        tok.id = id;
        tok.text = text;
        AddedToks *set = normalized ? &t->normalized : &t->raw;
        if (!tokenizer_add_added(o->arena, t, set, tok, err))
            return false;
        if (!normalized)
            continue;
        Str *found = &set->at[set->n - 1].text;
        if (!normal_text(o, text, found, err))
            return false;
        if (found->len == 0) /* it can never be found */
            set->n--;
    }
    return true;
}

/* ---- putting it together ---- */

typedef bool SectionReader(Open *o, const json_t *obj, Error *err);

static bool with_section(Open *o, const char *name, Str raw, SectionReader *read, Error *err)
{
    json_t *obj;
    if (!parse_section(o, name, raw, &obj, err))
        return false;
    const bool ok = !obj || read(o, obj, err);
    json_decref(obj);
    return ok;
}

static bool read_unk(Open *o, const json_t *unk, Error *err)
{
    if (!json_is_string(unk))
        return err_set(err, ERR_FORMAT, "%s: model.unk_token is no string", o->doc);
    const Str text = {json_string_value(unk), json_string_length(unk)};
    o->t->unknown.unk = tokenizer_find(o->t, text);
    if (o->t->unknown.unk < 0 && o->t->kind == TOKENIZER_WORDPIECE) { /* stored as " [UNK]" */
        const char *spaced = arena_printf(o->arena, err, " %s", text.ptr);
        if (!spaced)
            return false;
        o->t->unknown.unk = tokenizer_find(o->t, str_from(spaced));
    }
    return true;
}

static bool read_options(Open *o, Error *err)
{
    Tokenizer *t = o->t;
    const Sections *s = &o->s;
    int64_t n;
    t->bpe.ignore_merges = str_is(s->ignore_merges, "true");
    t->unknown.bytes = str_is(s->byte_fallback, "true");
    if (t->word_end && t->unknown.bytes)
        return refuse_set(o, "end_of_word_suffix", s->suffix, err);
    t->unknown.fuse = t->kind == TOKENIZER_UNIGRAM || str_is(s->fuse_unk, "true");
    t->bpe.fuse = t->unknown.fuse;
    if (t->kind == TOKENIZER_UNIGRAM) {
        if (s->unk_id.ptr && str_to_int(s->unk_id, 0, TOKENIZER_VOCAB_MAX - 1, &n)) {
            if (!vocab_has(&t->vocab, n))
                return err_set(err, ERR_FORMAT, "%s: model.unk_id %lld is no token", o->doc,
                               (long long)n);
            t->unknown.unk = (int32_t)n;
        }
        return true;
    }
    if (s->max_chars.ptr && str_to_int(s->max_chars, 1, INT32_MAX, &n))
        t->words.max_chars = (int)n;
    if (!with_section(o, "unk_token", s->unk, read_unk, err))
        return false;
    t->bpe.unk = t->unknown.unk;
    return true;
}

static bool build(Open *o, Str config, size_t before, Error *err)
{
    JsonScan scan;
    jsonscan_init(&scan, o->doc, o->json);
    bool ok = read_file(o, &scan, err);
    jsonscan_free(&scan);
    if (ok && o->steps.suffix.ptr && !(o->t->word_end && str_is(o->steps.suffix, o->t->word_end)))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: decoder BPEDecoder: suffix \"%.40s\" is not the model's", o->doc,
                       o->steps.suffix.ptr);
    return ok && with_section(o, "added_tokens", o->s.added, read_added, err) &&
           read_steps(o, "post_processor", o->s.post_processor, tokenizer_read_post_processor,
                      err) &&
           tokenizer_sort_added(o->t, err) && read_options(o, err) &&
           tokenizer_finish(o->arena, o->t, "tokenizer.json", before, err) &&
           tokenizer_read_config(o->t, config, err);
}

bool tokenizer_json_open(Arena *a, const char *doc, Str json, Str config, Tokenizer **out,
                         Error *err)
{
    if (json.len > TOKENIZER_FILE_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: %zu bytes, at most %d", doc, json.len,
                       TOKENIZER_FILE_MAX);
    if (!json.ptr)
        json = (Str){"", 0};
    const size_t before = arena_bytes(a);
    Open o = {.arena = a, .doc = doc, .json = json};
    if (!tokenizer_new(a, doc, &o.t, err))
        return false;
    o.steps = (TokenizerSteps){.arena = a, .doc = doc, .t = o.t};
    const bool ok = build(&o, config, before, err);
    mem_free(o.spelled);
    if (!ok) {
        tokenizer_close(o.t);
        return false;
    }
    *out = o.t;
    return true;
}
