#include "text/tokenizer.h"

#include "base/mem.h"
#include "text/bytelevel.h"
#include "text/tokenizer_build.h"
#include "text/utf8.h"

#include <math.h>

/* ---- building ---- */

bool tokenizer_new(Arena *a, const char *doc, Tokenizer **out, Error *err)
{
    Tokenizer *t = ARENA_NEW(a, Tokenizer, err);
    if (!t)
        return false;
    const char *name = arena_strdup(a, doc, strlen(doc), err);
    if (!name)
        return false;
    vocab_init(&t->vocab, name);
    t->bos = t->eos = t->eot = -1;
    fallback_init(&t->unknown);
    t->bpe.unk = -1;
    t->continuing = "##";
    t->words.max_chars = 100;
    *out = t;
    return true;
}

static const char mark[] = "\xE2\x96\x81"; /* U+2581 */

/* U+2581 to a space; returns the length. `out` may be the text itself. */
static size_t unmark(Str text, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        const bool hit =
            text.ptr[i] == mark[0] && text.len - i >= 3 && memcmp(text.ptr + i, mark, 3) == 0;
        out[n++] = hit ? ' ' : text.ptr[i];
        i += hit ? 3 : 1;
    }
    return n;
}

/* The bytes of a token's text, into out (text.len + 1 bytes at least). -1: it cannot be spelt so,
 * and stands for itself without ever being made from text. */
static int64_t spell_plain(const Tokenizer *t, Str text, char *out)
{
    const size_t cont = t->spelling == TOKENIZER_WORDS ? strlen(t->continuing) : 0;
    switch (t->spelling) {
    case TOKENIZER_ALPHABET:
        return bytelevel_decode(text, out);
    case TOKENIZER_PLAIN:
        memcpy(out, text.ptr, text.len);
        return (int64_t)text.len;
    case TOKENIZER_SPACES:
        return memchr(text.ptr, ' ', text.len) ? -1 : (int64_t)unmark(text, out);
    case TOKENIZER_WORDS:
        if (text.len > cont && cont > 0 && memcmp(text.ptr, t->continuing, cont) == 0) {
            memcpy(out, text.ptr + cont, text.len - cont);
            return (int64_t)(text.len - cont);
        }
        out[0] = ' ';
        memcpy(out + 1, text.ptr, text.len);
        return (int64_t)text.len + 1;
    case TOKENIZER_PHANTOM:
        return (int64_t)unmark(text, out);
    }
    return -1;
}

static int64_t spell(const Tokenizer *t, Str text, char *out)
{
    const size_t end = t->word_end ? strlen(t->word_end) : 0;
    if (end == 0 || text.len <= end || !str_ends(text, t->word_end))
        return spell_plain(t, text, out);
    const int64_t n = spell_plain(t, (Str){text.ptr, text.len - end}, out);
    if (n >= 0)
        out[n] = ' ';
    return n < 0 ? n : n + 1;
}

bool tokenizer_add_bytes(Tokenizer *t, int64_t id, Str bytes, unsigned flags, Error *err)
{
    return vocab_add(&t->vocab, id, bytes, flags, err);
}

bool tokenizer_add_token(Tokenizer *t, int64_t id, Str text, Error *err)
{
    const int byte = t->byte_tokens ? fallback_byte_of(text) : -1;
    if (byte >= 0) {
        const char c = (char)byte;
        if (id >= 0 && id < TOKENIZER_VOCAB_MAX)
            t->unknown.byte_id[byte] = (int32_t)id;
        return vocab_add(&t->vocab, id, (Str){&c, 1}, VOCAB_RAW, err);
    }
    char *bytes = vocab_begin(&t->vocab, text.len + 1, err);
    if (!bytes)
        return false;
    const int64_t n = text.len ? spell(t, text, bytes) : 0;
    if ((n < 0 || t->spelling != TOKENIZER_ALPHABET) && utf8_valid_prefix(text) != text.len)
        return err_set(err, ERR_FORMAT, "%s: token %lld is no valid UTF-8", t->vocab.doc,
                       (long long)id);
    if (n >= 0)
        return vocab_end(&t->vocab, id, (size_t)n, 0, err);
    memcpy(bytes, text.ptr, text.len);
    return vocab_end(&t->vocab, id, text.len, VOCAB_RAW, err);
}

bool tokenizer_set_score(Tokenizer *t, int64_t id, double score, Error *err)
{
    if (id < 0 || id >= TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_FORMAT, "%s: token id %lld, wanted 0 to %d", t->vocab.doc,
                       (long long)id, TOKENIZER_VOCAB_MAX - 1);
    if (!isfinite(score))
        return err_set(err, ERR_FORMAT, "%s: the score of token %lld is no number", t->vocab.doc,
                       (long long)id);
    if (id >= t->scores_cap) {
        int cap = t->scores_cap ? t->scores_cap * 2 : 1024;
        if (cap <= id)
            cap = (int)id + 1;
        double *scores = mem_realloc(t->scores, (size_t)cap * sizeof *scores);
        if (!scores)
            return err_nomem(err, t->vocab.doc, (size_t)cap * sizeof *scores);
        memset(scores + t->scores_cap, 0, (size_t)(cap - t->scores_cap) * sizeof *scores);
        t->scores = scores;
        t->scores_cap = cap;
    }
    t->scores[id] = score;
    return true;
}

bool tokenizer_add_added(Arena *a, Tokenizer *t, AddedToks *in, AddedTok tok, Error *err)
{
    char *copy = arena_strdup(a, tok.text.ptr, tok.text.len, err);
    if (!copy)
        return false;
    tok.text.ptr = copy;
    in->at[in->n++] = tok;
    /* Decoders turn the mark of an added token into a space too. */
    const bool spaces = t->spelling == TOKENIZER_SPACES && !tok.special;
    char small[ADDEDTOK_BYTES_MAX];
    Str bytes = tok.text;
    if (spaces && bytes.len <= sizeof small) {
        bytes.len = unmark(bytes, small);
        bytes.ptr = small;
    }
    return vocab_set_added(&t->vocab, tok.id, bytes, tok.special, err);
}

bool tokenizer_add_merge(Tokenizer *t, Str left, Str right, int64_t number, Error *err)
{
    if (left.len > BPE_TOKEN_MAX || right.len > BPE_TOKEN_MAX - left.len)
        return err_set(err, ERR_FORMAT, "%s: merge %lld has %zu bytes, at most %d", t->vocab.doc,
                       (long long)number, left.len + right.len, BPE_TOKEN_MAX);
    char *both = bpe_begin(&t->bpe, left.len + right.len, err);
    if (!both)
        return false;
    const bool empty = left.len == 0 || right.len == 0;
    const int64_t l = empty ? -1 : spell(t, left, both);
    const int64_t r = l < 0 ? -1 : spell(t, right, both + l);
    if (l <= 0 || r <= 0)
        return err_set(err, ERR_FORMAT, "%s: merge %lld: a part is empty or not written in the %s",
                       t->vocab.doc, (long long)number,
                       t->spelling == TOKENIZER_ALPHABET ? "byte alphabet" : "way tokens are");
    bpe_end(&t->bpe, (size_t)l, (size_t)(l + r));
    return true;
}

void tokenizer_set_around(Tokenizer *t, int add_bos, int add_eos)
{
    const bool has_bos = t->bos >= 0 && t->n_prefix > 0 && t->prefix[0] == t->bos;
    const bool has_eos = t->eos >= 0 && t->n_suffix > 0 && t->suffix[t->n_suffix - 1] == t->eos;
    if (add_bos == 1 && !has_bos && t->bos >= 0 && t->n_prefix < TOKENIZER_AROUND_MAX) {
        memmove(t->prefix + 1, t->prefix, (size_t)t->n_prefix * sizeof t->prefix[0]);
        t->prefix[0] = t->bos;
        t->n_prefix++;
    } else if (add_bos == 0 && has_bos) {
        t->n_prefix--;
        memmove(t->prefix, t->prefix + 1, (size_t)t->n_prefix * sizeof t->prefix[0]);
    }
    if (add_eos == 1 && !has_eos && t->eos >= 0 && t->n_suffix < TOKENIZER_AROUND_MAX)
        t->suffix[t->n_suffix++] = t->eos;
    else if (add_eos == 0 && has_eos)
        t->n_suffix--;
}

/* Larger scores get smaller ranks, equal ones equal ranks: the bits of an IEEE number, as they
 * order. */
static uint32_t rank_of(double score)
{
    const float f = (float)score + 0.0F;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = bits & 0x80000000U ? ~bits : bits | 0x80000000U; /* ascending with the score */
    return bits ? ~bits : UINT32_MAX - 1;
}

static bool build_chars(Arena *a, Tokenizer *t, Error *err)
{
    CharBpe *c = &t->chars;
    c->vocab = &t->vocab;
    c->unknown = t->unknown;
    c->ignore_merges = t->bpe.ignore_merges;
    c->word_end = t->bpe.word_end;
    joins_build(&c->joins, &t->vocab);
    if (!t->by_score) {
        c->merges = &t->bpe;
        return true;
    }
    uint32_t *rank = ARENA_ARRAY(a, t->vocab.n, uint32_t, err);
    if (!rank)
        return false;
    for (int id = 0; id < t->vocab.n; id++) {
        const bool made =
            vocab_has(&t->vocab, id) && !(t->vocab.flags[id] & (VOCAB_SPECIAL | VOCAB_RAW));
        rank[id] = made ? rank_of(id < t->scores_cap ? t->scores[id] : 0.0) : UINT32_MAX;
        if (made && t->vocab.tokens[id].len > c->longest)
            c->longest = t->vocab.tokens[id].len;
    }
    c->rank = rank;
    return true;
}

static bool build_unigram(Arena *a, Tokenizer *t, Error *err)
{
    double *score = ARENA_ARRAY(a, t->vocab.n, double, err);
    if (!score)
        return false;
    for (int id = 0; id < t->vocab.n && id < t->scores_cap; id++)
        score[id] = t->scores[id];
    t->unigram.unknown = t->unknown;
    return unigram_build(a, &t->unigram, &t->vocab, score, VOCAB_SPECIAL, err);
}

static bool build_model(Arena *a, Tokenizer *t, Error *err)
{
    bool all = true;
    for (int i = 0; i < 256; i++)
        all = all && t->unknown.byte_id[i] >= 0;
    t->unknown.bytes = t->unknown.bytes && all;
    switch (t->kind) {
    case TOKENIZER_BYTE_BPE:
        return true;
    case TOKENIZER_CHAR_BPE:
        return build_chars(a, t, err);
    case TOKENIZER_UNIGRAM:
        return build_unigram(a, t, err);
    case TOKENIZER_WORDPIECE:
        t->words.unk = t->unknown.unk;
        return trie_build(a, &t->vocab, VOCAB_SPECIAL, &t->words.trie, err);
    }
    return true;
}

bool tokenizer_sort_added(Tokenizer *t, Error *err)
{
    return addedtok_build(&t->raw, t->vocab.doc, err) &&
           addedtok_build(&t->normalized, t->vocab.doc, err);
}

bool tokenizer_finish(Arena *a, Tokenizer *t, const char *kind, size_t bytes_before, Error *err)
{
    static const char *const names[] = {"byte-level BPE", "BPE", "Unigram", "WordPiece"};
    if (!build_model(a, t, err) || !vocab_freeze(&t->vocab, err) || !tokenizer_sort_added(t, err))
        return false;
    mem_free(t->scores);
    t->scores = NULL;
    t->scores_cap = 0;
    t->describe =
        arena_printf(a, err, "%s (%s), %d tokens, %lld merges, %d added tokens", names[t->kind],
                     kind, t->vocab.n, (long long)t->bpe.n_merges, t->raw.n + t->normalized.n);
    if (!t->describe)
        return false;
    t->bytes = arena_bytes(a) - bytes_before + t->vocab.bytes + bpe_bytes(&t->bpe);
    for (int i = 0; i < t->pretok.n; i++)
        t->bytes += t->pretok.steps[i].re.bytes;
    for (int i = 0; i < t->norm.n; i++)
        t->bytes += t->norm.steps[i].re.bytes;
    return true;
}

void tokenizer_close(Tokenizer *t)
{
    if (!t)
        return;
    pretok_free(&t->pretok);
    normchain_free(&t->norm);
    bpe_free(&t->bpe);
    vocab_free(&t->vocab);
    mem_free(t->scores);
    t->scores = NULL;
}

/* ---- encoding ---- */

typedef struct Encode {
    const Tokenizer *t;
    bool special;
    BpeWork bpe;
    TextReWork re;
    Arena scratch; /* pieces that differ from the text */
    NormWork norm;
} Encode;

static bool encode_piece(Encode *e, Str piece, Error *err)
{
    const Tokenizer *t = e->t;
    e->bpe.unk_end = -1; /* unknown characters of two pieces stay apart */
    switch (t->kind) {
    case TOKENIZER_BYTE_BPE:
        return bpe_encode(&t->bpe, &e->bpe, piece, err);
    case TOKENIZER_CHAR_BPE:
        return charbpe_encode(&t->chars, &e->bpe, piece, err);
    case TOKENIZER_UNIGRAM:
        return unigram_encode(&t->unigram, &e->bpe, piece, err);
    case TOKENIZER_WORDPIECE:
        return wordpiece_encode(&t->words, &e->bpe, piece, err);
    }
    return true;
}

static bool has_mark(Str s)
{
    const char *at = s.ptr;
    const char *end = s.ptr + s.len;
    while (end - at >= 3 && (at = memchr(at, mark[0], (size_t)(end - at) - 2))) {
        if (memcmp(at, mark, 3) == 0)
            return true;
        at++;
    }
    return false;
}

static bool piece_sink(void *ctx, Str piece, Error *err)
{
    Encode *e = ctx;
    const bool alphabet = e->t->pretok.alphabet;
    if (!alphabet && (e->t->spelling != TOKENIZER_SPACES || !has_mark(piece)))
        return encode_piece(e, piece, err);
    const ArenaMark before = arena_mark(&e->scratch);
    char *copy = arena_take(&e->scratch, piece.len, 1, err);
    if (!copy)
        return false;
    const int64_t n = alphabet ? bytelevel_decode(piece, copy) : (int64_t)unmark(piece, copy);
    const bool ok = encode_piece(e, (Str){copy, n > 0 ? (size_t)n : 0}, err);
    arena_rewind(&e->scratch, before);
    return ok;
}

/* Where a stretch of text lies. */
typedef struct Place {
    bool fresh; /* nothing between it and the start of the text or an added token */
    bool start; /* the text starts with it */
} Place;

/* Normalised text without added tokens. */
static bool encode_plain(Encode *e, Str text, bool start, Error *err)
{
    return pretok_run(&e->t->pretok, &e->re, &e->scratch, text, start, piece_sink, e, err);
}

/* Valid UTF-8: normalised, then without the added tokens that are looked for there. */
static bool encode_valid(Encode *e, Str text, Place place, Error *err)
{
    const Tokenizer *t = e->t;
    if (!normchain_run(&t->norm, &e->norm, text, place.fresh, &text, err))
        return false;
    size_t pos = 0;
    size_t done = 0;
    size_t start;
    size_t end;
    const AddedTok *tok;
    while ((tok = addedtok_next(&t->normalized, text, e->special, &pos, done, &start, &end))) {
        if (!encode_plain(e, (Str){text.ptr + done, start - done}, place.start && done == 0, err) ||
            !bpe_push(&e->bpe, tok->id, err))
            return false;
        done = end;
    }
    return encode_plain(e, (Str){text.ptr + done, text.len - done}, place.start && done == 0, err);
}

/* Bytes that are no UTF-8: byte tokens, or unknown. */
static bool encode_broken(Encode *e, Str bytes, Error *err)
{
    if (bytes.len == 0)
        return true;
    switch (e->t->kind) {
    case TOKENIZER_BYTE_BPE:
        return bpe_encode(&e->t->bpe, &e->bpe, bytes, err);
    case TOKENIZER_CHAR_BPE:
        if (e->t->chars.bytes)
            return charbpe_encode(&e->t->chars, &e->bpe, bytes, err);
        e->bpe.unk_end = -1;
        return fallback_push(&e->t->unknown, &e->bpe, bytes, err);
    case TOKENIZER_UNIGRAM:
        e->bpe.unk_end = -1;
        return fallback_push(&e->t->unknown, &e->bpe, bytes, err);
    case TOKENIZER_WORDPIECE:
        return true; /* its normaliser drops U+FFFD, which the reference would see here */
    }
    return true;
}

/* Any bytes without `raw` added tokens. */
static bool encode_segment(Encode *e, Str text, Place place, Error *err)
{
    while (text.len > 0) {
        const size_t good = utf8_valid_prefix(text);
        if (good > 0 && !encode_valid(e, (Str){text.ptr, good}, place, err))
            return false;
        text = (Str){text.ptr + good, text.len - good};
        size_t bad = 0;
        uint32_t cp;
        while (bad < text.len && utf8_decode(text.ptr + bad, text.len - bad, &cp) == 0)
            bad++;
        if (!encode_broken(e, (Str){text.ptr, bad}, err))
            return false;
        text = (Str){text.ptr + bad, text.len - bad};
        place = (Place){false, false};
    }
    return true;
}

static bool encode_all(Encode *e, Str text, bool around, Error *err)
{
    const Tokenizer *t = e->t;
    for (int i = 0; around && i < t->n_prefix; i++) {
        if (!bpe_push(&e->bpe, t->prefix[i], err))
            return false;
    }
    size_t pos = 0;
    size_t done = 0;
    size_t start;
    size_t end;
    Place place = {true, true};
    const AddedTok *tok;
    while ((tok = addedtok_next(&t->raw, text, e->special, &pos, done, &start, &end))) {
        if (!encode_segment(e, (Str){text.ptr + done, start - done}, place, err) ||
            !bpe_push(&e->bpe, tok->id, err))
            return false;
        place = (Place){tok->special || !t->prefix_once, false};
        done = end;
    }
    if (!encode_segment(e, (Str){text.ptr + done, text.len - done}, place, err))
        return false;
    for (int i = 0; around && i < t->n_suffix; i++) {
        if (!bpe_push(&e->bpe, t->suffix[i], err))
            return false;
    }
    return true;
}

bool tokenizer_encode(Arena *a, const Tokenizer *t, Str text, unsigned flags, TokenIds *out,
                      Error *err)
{
    if (text.len > TOKENIZER_TEXT_MAX)
        return err_set(err, ERR_TOO_LONG, "text of %zu bytes, at most %d", text.len,
                       TOKENIZER_TEXT_MAX);
    if (text.len == 0)
        text.ptr = "";
    Encode e = {.t = t, .special = (flags & TOKENIZER_PARSE_SPECIAL) != 0};
    arena_init(&e.scratch, "tokenizer");
    normchain_work_init(&e.norm, &e.re, text.len);
    bool ok = bpe_work_init(&e.bpe, text.len, err) && textre_work_init(&e.re, text.len, err) &&
              encode_all(&e, text, (flags & TOKENIZER_ADD_SPECIAL) != 0, err);
    if (ok) {
        out->n = e.bpe.n;
        out->ids = ARENA_ARRAY(a, e.bpe.n, int32_t, err);
        ok = out->ids != NULL;
        if (ok && e.bpe.n > 0)
            memcpy(out->ids, e.bpe.ids, (size_t)e.bpe.n * sizeof *out->ids);
    }
    bpe_work_free(&e.bpe);
    textre_work_free(&e.re);
    arena_free(&e.scratch);
    normchain_work_free(&e.norm);
    return ok;
}

/* ---- reading ---- */

Str tokenizer_piece(const Tokenizer *t, int32_t id)
{
    return vocab_has(&t->vocab, id) ? vocab_bytes(&t->vocab, id) : (Str){"", 0};
}

bool tokenizer_is_special(const Tokenizer *t, int32_t id)
{
    return vocab_has(&t->vocab, id) && (t->vocab.flags[id] & VOCAB_SPECIAL);
}

bool tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t n, unsigned flags,
                      StrBuf *out, Error *err)
{
    bool strip = t->strip;
    for (int64_t i = 0; i < n; i++) {
        if ((flags & TOKENIZER_SKIP_SPECIAL) && tokenizer_is_special(t, ids[i]))
            continue;
        Str piece = tokenizer_piece(t, ids[i]);
        if (piece.len == 0)
            continue;
        if (strip && piece.ptr[0] == ' ')
            piece = (Str){piece.ptr + 1, piece.len - 1};
        strip = false;
        strbuf_add(out, piece.ptr, piece.len);
    }
    return strbuf_check(out, "decoded text", err);
}

int tokenizer_n_vocab(const Tokenizer *t)
{
    return t->vocab.n;
}

int tokenizer_find(const Tokenizer *t, Str bytes)
{
    int32_t id = addedtok_find(&t->raw, bytes);
    if (id < 0)
        id = addedtok_find(&t->normalized, bytes);
    return id >= 0 ? id : vocab_find(&t->vocab, bytes);
}

int tokenizer_bos(const Tokenizer *t)
{
    return t->bos;
}

int tokenizer_eos(const Tokenizer *t)
{
    return t->eos;
}

int tokenizer_eot(const Tokenizer *t)
{
    return t->eot;
}

bool tokenizer_adds_bos(const Tokenizer *t)
{
    return t->bos >= 0 && t->n_prefix > 0 && t->prefix[0] == t->bos;
}

bool tokenizer_adds_eos(const Tokenizer *t)
{
    return t->eos >= 0 && t->n_suffix > 0 && t->suffix[t->n_suffix - 1] == t->eos;
}

const char *tokenizer_describe(const Tokenizer *t)
{
    return t->describe;
}

size_t tokenizer_bytes(const Tokenizer *t)
{
    return t->bytes;
}

/* Published ones hold 60 to 102 bytes an id; the rest is for small ones. */
uint64_t tokenizer_bytes_for(int64_t n_vocab)
{
    return (uint64_t)n_vocab * 120 + ((uint64_t)1 << 19);
}
