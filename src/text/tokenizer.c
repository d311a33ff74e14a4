#include "text/tokenizer.h"

#include "base/mem.h"
#include "text/bytelevel.h"
#include "text/tokenizer_build.h"
#include "text/utf8.h"

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
    *out = t;
    return true;
}

bool tokenizer_add_token(Tokenizer *t, int64_t id, Str text, Error *err)
{
    char small[1024];
    char *bytes = text.len <= sizeof small ? small : mem_alloc(text.len);
    if (!bytes)
        return err_nomem(err, t->vocab.doc, text.len);
    const int64_t n = bytelevel_decode(text, bytes);
    if (n < 0 && utf8_valid_prefix(text) != text.len) {
        if (bytes != small)
            mem_free(bytes);
        return err_set(err, ERR_FORMAT, "%s: token %lld is no valid UTF-8", t->vocab.doc,
                       (long long)id);
    }
    const bool ok = n >= 0 ? vocab_add(&t->vocab, id, (Str){bytes, (size_t)n}, 0, err)
                           : vocab_add(&t->vocab, id, text, VOCAB_RAW, err);
    if (bytes != small)
        mem_free(bytes);
    return ok;
}

bool tokenizer_add_merge(Tokenizer *t, Str left, Str right, uint32_t rank, Error *err)
{
    char both[BPE_TOKEN_MAX];
    if (left.len > sizeof both || right.len > sizeof both - left.len)
        return err_set(err, ERR_FORMAT, "%s: merge %u has %zu bytes, at most %zu", t->vocab.doc,
                       rank, left.len + right.len, sizeof both);
    const int64_t l = bytelevel_decode(left, both);
    const int64_t r = l < 0 ? -1 : bytelevel_decode(right, both + l);
    if (l <= 0 || r <= 0)
        return err_set(err, ERR_FORMAT,
                       "%s: merge %u: a part is empty or not written in the byte alphabet",
                       t->vocab.doc, rank);
    return bpe_add_merge(&t->bpe, (Str){both, (size_t)(l + r)}, (size_t)l, rank, err);
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

bool tokenizer_finish(Arena *a, Tokenizer *t, const char *kind, size_t bytes_before, Error *err)
{
    if (!vocab_freeze(a, &t->vocab, err) || !addedtok_build(&t->raw, t->vocab.doc, err) ||
        !addedtok_build(&t->normalized, t->vocab.doc, err))
        return false;
    t->describe =
        arena_printf(a, err, "byte-level BPE (%s), %d tokens, %lld merges, %d added tokens", kind,
                     t->vocab.n, (long long)t->bpe.n_merges, t->raw.n + t->normalized.n);
    if (!t->describe)
        return false;
    t->bytes = arena_bytes(a) - bytes_before;
    for (int i = 0; i < t->pretok.n; i++)
        t->bytes += t->pretok.steps[i].re.bytes;
    return true;
}

void tokenizer_close(Tokenizer *t)
{
    if (!t)
        return;
    pretok_free(&t->pretok);
    bpe_free(&t->bpe);
    vocab_free(&t->vocab);
}

/* ---- encoding ---- */

typedef struct Encode {
    const Tokenizer *t;
    bool special;
    BpeWork bpe;
    TextReWork re;
    Arena scratch;
    StrBuf normal; /* the present segment, normalised */
} Encode;

static bool piece_sink(void *ctx, Str piece, Error *err)
{
    Encode *e = ctx;
    return bpe_encode(&e->t->bpe, &e->bpe, piece, err);
}

/* Valid UTF-8 without added tokens. */
static bool encode_plain(Encode *e, Str text, Error *err)
{
    return pretok_run(&e->t->pretok, &e->re, &e->scratch, text, piece_sink, e, err);
}

/* Normalised text: the added tokens that are looked for there. */
static bool encode_normal(Encode *e, Str text, Error *err)
{
    size_t pos = 0;
    size_t done = 0;
    size_t start;
    size_t end;
    const AddedTok *tok;
    while ((tok = addedtok_next(&e->t->normalized, text, e->special, &pos, done, &start, &end))) {
        if (!encode_plain(e, (Str){text.ptr + done, start - done}, err) ||
            !bpe_push(&e->bpe, tok->id, err))
            return false;
        done = end;
    }
    return encode_plain(e, (Str){text.ptr + done, text.len - done}, err);
}

static bool encode_valid(Encode *e, Str text, Error *err)
{
    if (normalize_is_plain(e->t->form, text))
        return encode_normal(e, text, err);
    strbuf_clear(&e->normal);
    if (!normalize_text(e->t->form, text, &e->normal, err))
        return false;
    return encode_normal(e, strbuf_str(&e->normal), err);
}

/* Any bytes: a run that is no UTF-8 is a piece of its own, cut into byte tokens. */
static bool encode_segment(Encode *e, Str text, Error *err)
{
    while (text.len > 0) {
        const size_t good = utf8_valid_prefix(text);
        if (good > 0 && !encode_valid(e, (Str){text.ptr, good}, err))
            return false;
        text = (Str){text.ptr + good, text.len - good};
        size_t bad = 0;
        uint32_t cp;
        while (bad < text.len && utf8_decode(text.ptr + bad, text.len - bad, &cp) == 0)
            bad++;
        if (!bpe_encode(&e->t->bpe, &e->bpe, (Str){text.ptr, bad}, err))
            return false;
        text = (Str){text.ptr + bad, text.len - bad};
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
    const AddedTok *tok;
    while ((tok = addedtok_next(&t->raw, text, e->special, &pos, done, &start, &end))) {
        if (!encode_segment(e, (Str){text.ptr + done, start - done}, err) ||
            !bpe_push(&e->bpe, tok->id, err))
            return false;
        done = end;
    }
    if (!encode_segment(e, (Str){text.ptr + done, text.len - done}, err))
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
    /* The longest normalisation, U+FDFA's, makes 3 bytes 33. */
    strbuf_init(&e.normal, text.len * 12 + 64);
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
    strbuf_free(&e.normal);
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
    for (int64_t i = 0; i < n; i++) {
        if ((flags & TOKENIZER_SKIP_SPECIAL) && tokenizer_is_special(t, ids[i]))
            continue;
        const Str piece = tokenizer_piece(t, ids[i]);
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
