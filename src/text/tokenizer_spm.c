#include "text/tokenizer_build.h"

/* ---- protobuf: just what a SentencePiece model is written with ---- */

typedef struct Proto {
    const char *doc;
    const unsigned char *p, *end;
} Proto;

typedef struct Field {
    uint32_t number, wire;
    uint64_t value; /* varint, or the bits of a fixed number */
    Str bytes;
} Field;

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static bool damaged(const Proto *m, const char *what, Error *err)
{
    return err_set(err, ERR_FORMAT, "%s: no SentencePiece model: %s", m->doc, what);
}

static bool varint(Proto *m, uint64_t *out, Error *err)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (m->p == m->end)
            return damaged(m, "it ends inside a number", err);
        const uint64_t b = *m->p++;
        v |= (b & 0x7FU) << shift;
        if (b < 0x80) {
            *out = v;
            return true;
        }
    }
    return damaged(m, "a number has more than 10 bytes", err);
}

static bool fixed(Proto *m, size_t n, uint64_t *out, Error *err)
{
    if ((size_t)(m->end - m->p) < n)
        return damaged(m, "it ends inside a number", err);
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out |= (uint64_t)*m->p++ << (8 * i);
    return true;
}

/* The next field; *more false at the end. */
static bool next_field(Proto *m, Field *f, bool *more, Error *err)
{
    *f = (Field){0};
    *more = m->p < m->end;
    if (!*more)
        return true;
    uint64_t key = 0;
    if (!varint(m, &key, err))
        return false;
    f->wire = (uint32_t)(key & 7U);
    f->number = key >> 3 > UINT32_MAX ? 0 : (uint32_t)(key >> 3);
    switch (f->wire) {
    case WIRE_VARINT:
        return varint(m, &f->value, err);
    case WIRE_64:
        return fixed(m, 8, &f->value, err);
    case WIRE_32:
        return fixed(m, 4, &f->value, err);
    case WIRE_BYTES:
        if (!varint(m, &f->value, err))
            return false;
        if (f->value > (uint64_t)(m->end - m->p))
            return damaged(m, "a part is longer than the file", err);
        f->bytes = (Str){(const char *)m->p, (size_t)f->value};
        m->p += f->value;
        return true;
    default:
        return damaged(m, "a field of unknown kind", err);
    }
}

static Proto part(const Proto *m, Str bytes)
{
    const unsigned char *p = (const unsigned char *)bytes.ptr;
    return (Proto){m->doc, p, p + bytes.len};
}

/* ---- the model ---- */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

typedef struct Spec {
    int64_t model, unk, bos, eos;
    bool byte_fallback, suffix;        /* trainer_spec */
    bool prefix, merge_spaces, escape; /* normalizer_spec */
    Str charsmap;
    int64_t n_pieces, n_added;
} Spec;

typedef struct Piece {
    Str text;
    double score;
    int64_t type;
} Piece;

static bool read_trainer(Proto m, Spec *s, Error *err)
{
    Field f;
    bool more;
    while (next_field(&m, &f, &more, err) && more) {
        /* Negative numbers are written as 64 bits. */
        const int64_t v = (int64_t)f.value;
        if (f.wire != WIRE_VARINT)
            continue;
        if (f.number == 3)
            s->model = v;
        else if (f.number == 24)
            s->suffix = v != 0;
        else if (f.number == 35)
            s->byte_fallback = v != 0;
        else if (f.number == 40)
            s->unk = v;
        else if (f.number == 41)
            s->bos = v;
        else if (f.number == 42)
            s->eos = v;
    }
    return !more;
}

static bool read_normalizer(Proto m, Spec *s, Error *err)
{
    Field f;
    bool more;
    while (next_field(&m, &f, &more, err) && more) {
        if (f.number == 2 && f.wire == WIRE_BYTES)
            s->charsmap = f.bytes;
        if (f.wire != WIRE_VARINT)
            continue;
        if (f.number == 3)
            s->prefix = f.value != 0;
        else if (f.number == 4)
            s->merge_spaces = f.value != 0;
        else if (f.number == 5)
            s->escape = f.value != 0;
    }
    return !more;
}

static bool read_piece(Proto m, Piece *p, Error *err)
{
    Field f;
    bool more;
    *p = (Piece){.type = TYPE_NORMAL};
    while (next_field(&m, &f, &more, err) && more) {
        if (f.number == 1 && f.wire == WIRE_BYTES) {
            p->text = f.bytes;
        } else if (f.number == 2 && f.wire == WIRE_32) {
            const uint32_t bits = (uint32_t)f.value;
            float score;
            memcpy(&score, &bits, sizeof score);
            p->score = (double)score;
        } else if (f.number == 3 && f.wire == WIRE_VARINT) {
            p->type = (int64_t)f.value;
        }
    }
    return !more;
}

/* All but the pieces. */
static bool read_spec(Proto m, Spec *s, Error *err)
{
    Field f;
    bool more;
    *s = (Spec){.model = MODEL_UNIGRAM,
                .bos = 1,
                .eos = 2,
                .prefix = true,
                .merge_spaces = true,
                .escape = true};
    while (next_field(&m, &f, &more, err) && more) {
        if (f.wire != WIRE_BYTES)
            continue;
        if (f.number == 1)
            s->n_pieces++;
        else if (f.number == 2 && !read_trainer(part(&m, f.bytes), s, err))
            return false;
        else if (f.number == 3 && !read_normalizer(part(&m, f.bytes), s, err))
            return false;
    }
    if (more)
        return false;
    if (s->n_pieces == 0)
        return damaged(&m, "it has no pieces", err);
    if (s->n_pieces > TOKENIZER_VOCAB_MAX)
        return damaged(&m, "it has too many pieces", err);
    return true;
}

static bool add_piece(Tokenizer *t, const Piece *p, int64_t id, Error *err)
{
    unsigned flags = 0;
    switch (p->type) {
    case TYPE_NORMAL:
    case TYPE_USER:
        if (!tokenizer_add_token(t, id, p->text, err))
            return false;
        break;
    case TYPE_BYTE: {
        const int byte = fallback_byte_of(p->text);
        if (byte < 0)
            return err_set(err, ERR_FORMAT, "%s: byte token %lld is not written <0x00>",
                           t->vocab.doc, (long long)id);
        const char c = (char)byte;
        t->unknown.byte_id[byte] = (int32_t)id;
        if (!tokenizer_add_bytes(t, id, (Str){&c, 1}, VOCAB_RAW, err))
            return false;
        break;
    }
    default:
        flags =
            VOCAB_RAW | (p->type == TYPE_CONTROL || p->type == TYPE_UNKNOWN ? VOCAB_SPECIAL : 0);
        if (!tokenizer_add_bytes(t, id, p->text, flags, err))
            return false;
    }
    return tokenizer_set_score(t, id, p->score, err);
}

typedef bool PieceDo(Arena *a, Tokenizer *t, const Piece *p, int64_t id, Error *err);

static bool do_add(Arena *a, Tokenizer *t, const Piece *p, int64_t id, Error *err)
{
    (void)a;
    return add_piece(t, p, id, err);
}

/* Control tokens are found in text, and so are user-defined ones, before and after normalisation.
 */
static bool do_added(Arena *a, Tokenizer *t, const Piece *p, int64_t id, Error *err)
{
    const bool special = p->type == TYPE_CONTROL || p->type == TYPE_UNKNOWN;
    if ((!special && p->type != TYPE_USER) || p->text.len == 0)
        return true;
    const AddedTok tok = {.text = p->text, .id = (int32_t)id, .special = special};
    if (!tokenizer_add_added(a, t, &t->raw, tok, err))
        return false;
    if (special || t->spelling != TOKENIZER_SPACES)
        return true;
    const Str bytes = vocab_bytes(&t->vocab, (int32_t)id);
    const char *copy = arena_strdup(a, bytes.ptr, bytes.len, err);
    if (!copy)
        return false;
    t->normalized.at[t->normalized.n++] = (AddedTok){.text = {copy, bytes.len}, .id = (int32_t)id};
    return true;
}

static bool each_piece(Proto m, Arena *a, Tokenizer *t, PieceDo *act, Error *err)
{
    Field f;
    bool more;
    int64_t id = 0;
    while (next_field(&m, &f, &more, err) && more) {
        Piece p;
        if (f.number != 1 || f.wire != WIRE_BYTES)
            continue;
        if (!read_piece(part(&m, f.bytes), &p, err) || !act(a, t, &p, id, err))
            return false;
        id++;
    }
    return !more;
}

static bool set_up(Arena *a, const Spec *s, Tokenizer *t, Error *err)
{
    if (s->model != MODEL_UNIGRAM && s->model != MODEL_BPE)
        return err_set(err, ERR_UNSUPPORTED, "%s: model_type %lld, wanted 1 (Unigram) or 2 (BPE)",
                       t->vocab.doc, (long long)s->model);
    t->kind = s->model == MODEL_BPE ? TOKENIZER_CHAR_BPE : TOKENIZER_UNIGRAM;
    t->by_score = true;
    t->spelling = s->escape ? TOKENIZER_SPACES : TOKENIZER_PLAIN;
    t->unknown.bytes = s->byte_fallback;
    t->unknown.fuse = s->model == MODEL_UNIGRAM;
    t->prefix_once = true;
    t->strip = s->prefix && !s->suffix;
    if (!charsmap_open(a, t->vocab.doc, s->charsmap, &t->charsmap, err))
        return false;
    NormStep *step = normchain_add(&t->norm, t->vocab.doc, NORM_SENTENCEPIECE, err);
    if (!step)
        return false;
    step->map = t->charsmap.n_units ? &t->charsmap : NULL;
    step->prefix = s->prefix && !s->suffix;
    step->suffix = s->prefix && s->suffix;
    step->merge_spaces = s->merge_spaces;
    return true;
}

static int checked(const Tokenizer *t, int64_t id)
{
    return vocab_has(&t->vocab, id) ? (int)id : -1;
}

static bool build(Arena *a, Proto m, Tokenizer *t, Str config, size_t before, Error *err)
{
    Spec s;
    if (!read_spec(m, &s, err) || !set_up(a, &s, t, err) || !each_piece(m, a, t, do_add, err) ||
        !vocab_index(&t->vocab, err))
        return false;
    t->normalized.at = ARENA_ARRAY(a, s.n_pieces, AddedTok, err);
    if (!t->normalized.at || !tokenizer_config_added(a, t, config, (int)s.n_pieces, err) ||
        !each_piece(m, a, t, do_added, err))
        return false;
    t->unknown.unk = checked(t, s.unk);
    t->bos = checked(t, s.bos);
    t->eos = checked(t, s.eos);
    if (!tokenizer_finish(a, t, "sentencepiece", before, err))
        return false;
    /* What LLaMA's and T5's own code does, unless the configuration says otherwise. */
    tokenizer_set_around(t, s.model == MODEL_BPE, s.model == MODEL_UNIGRAM);
    return tokenizer_read_config(t, config, err);
}

bool tokenizer_spm_open(Arena *a, const char *doc, Str model, Str config, Tokenizer **out,
                        Error *err)
{
    if (model.len > TOKENIZER_FILE_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: %zu bytes, at most %d", doc, model.len,
                       TOKENIZER_FILE_MAX);
    const size_t before = arena_bytes(a);
    Tokenizer *t;
    if (!tokenizer_new(a, doc, &t, err))
        return false;
    const unsigned char *p = (const unsigned char *)(model.ptr ? model.ptr : "");
    if (!build(a, (Proto){doc, p, p + model.len}, t, config, before, err)) {
        tokenizer_close(t);
        return false;
    }
    *out = t;
    return true;
}
