#include "text/pretok.h"

#include "text/bytelevel.h"
#include "text/unisets.h"
#include "text/utf8.h"

const char pretok_gpt2[] =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static bool new_step(Pretok *p, const char *doc, PretokStep **step, Error *err)
{
    if (p->n == PRETOK_STEPS_MAX)
        return err_set(err, ERR_UNSUPPORTED, "%s: pre_tokenizer has more than %d steps", doc,
                       PRETOK_STEPS_MAX);
    *step = &p->steps[p->n];
    **step = (PretokStep){0};
    return true;
}

bool pretok_add_split(Pretok *p, const char *doc, Str pattern, TextReDialect dialect,
                      PretokBehavior behavior, bool invert, Error *err)
{
    PretokStep *step = NULL;
    if (!new_step(p, doc, &step, err) || !textre_compile(&step->re, doc, pattern, dialect, err))
        return false;
    step->behavior = behavior;
    step->invert = invert;
    p->n++;
    return true;
}

bool pretok_add_class(Pretok *p, const char *doc, PretokClass class, PretokBehavior behavior,
                      Error *err)
{
    PretokStep *step = NULL;
    if (!new_step(p, doc, &step, err))
        return false;
    step->kind = PRETOK_CLASS;
    step->class = class;
    step->behavior = behavior;
    p->n++;
    return true;
}

bool pretok_add_fixed(Pretok *p, const char *doc, int length, Error *err)
{
    PretokStep *step = NULL;
    if (!new_step(p, doc, &step, err))
        return false;
    step->kind = PRETOK_FIXED;
    step->length = length;
    p->n++;
    return true;
}

bool pretok_add_prefix_space(Pretok *p, const char *doc, Error *err)
{
    PretokStep *step = NULL;
    if (!new_step(p, doc, &step, err))
        return false;
    step->kind = PRETOK_PREFIX_SPACE;
    p->n++;
    return true;
}

bool pretok_add_metaspace(Pretok *p, const char *doc, PretokPrefix prefix, bool split, Error *err)
{
    PretokStep *step = NULL;
    if (!new_step(p, doc, &step, err))
        return false;
    step->kind = PRETOK_METASPACE;
    step->prefix = prefix;
    step->split = split;
    p->n++;
    return true;
}

bool pretok_add_bert(Pretok *p, const char *doc, Error *err)
{
    return pretok_add_class(p, doc, PRETOK_SPACE, PRETOK_REMOVED, err) &&
           pretok_add_class(p, doc, PRETOK_PUNCTUATION, PRETOK_ISOLATED, err);
}

bool pretok_add_alphabet(Pretok *p, const char *doc, Error *err)
{
    PretokStep *step = NULL;
    if (!new_step(p, doc, &step, err))
        return false;
    step->kind = PRETOK_ALPHABET;
    p->alphabet = true;
    p->n++;
    return true;
}

void pretok_free(Pretok *p)
{
    for (int i = 0; i < p->n; i++)
        textre_free(&p->steps[i].re);
    p->n = 0;
}

typedef struct Run {
    const Pretok *p;
    TextReWork *work;
    Arena *arena;
    PretokSink *sink;
    void *ctx;
    const char *start; /* where the whole text begins; the end of this call's text: not in it */
} Run;

static bool run_step(const Run *r, int at, Str piece, Error *err);

/* Collects ranges of one piece and passes them on. */
typedef struct Joiner {
    const Run *run;
    int next; /* step that the ranges go to */
    const char *base;
    PretokBehavior behavior;
    bool held, held_match; /* a range waits to be joined to its neighbour */
    size_t from, to;
} Joiner;

static bool pass(const Joiner *j, size_t from, size_t to, Error *err)
{
    return from == to || run_step(j->run, j->next, (Str){j->base + from, to - from}, err);
}

static bool join_flush(Joiner *j, Error *err)
{
    const bool held = j->held;
    j->held = false;
    return !held || pass(j, j->from, j->to, err);
}

static bool join(Joiner *j, size_t from, size_t to, bool match, Error *err)
{
    bool extend = false;
    switch (j->behavior) {
    case PRETOK_ISOLATED:
        return pass(j, from, to, err);
    case PRETOK_REMOVED:
        return match || pass(j, from, to, err);
    case PRETOK_CONTIGUOUS:
        extend = match == j->held_match;
        break;
    case PRETOK_MERGED_PREV:
        extend = match && !j->held_match;
        break;
    case PRETOK_MERGED_NEXT:
        extend = !match && j->held_match;
        break;
    }
    if (j->held && extend) {
        j->to = to;
    } else {
        if (!join_flush(j, err))
            return false;
        j->from = from;
        j->to = to;
        j->held = true;
    }
    j->held_match = match;
    return true;
}

static bool split(const Run *r, int at, Str piece, Error *err)
{
    const PretokStep *step = &r->p->steps[at];
    Str seen = piece; /* what the expression looks at */
    if (!step->re.literal && unisets_newer(piece) < piece.len) {
        char *older = arena_take(r->arena, piece.len, 1, err);
        if (!older)
            return false;
        unisets_older(piece, older);
        seen.ptr = older;
    }
    Joiner j = {.run = r, .next = at + 1, .base = piece.ptr, .behavior = step->behavior};
    size_t done = 0; /* all before is passed on */
    size_t from = 0;
    while (from <= piece.len) {
        bool found;
        size_t start;
        size_t end;
        if (!textre_next(&step->re, r->work, seen, from, &found, &start, &end, err))
            return false;
        if (!found)
            break;
        if (start > done && !join(&j, done, start, step->invert, err))
            return false;
        if (!join(&j, start, end, !step->invert, err))
            return false;
        done = end;
        from = end;
        if (start == end) /* an empty match is a border; look on from the next character */
            from += end < piece.len ? utf8_step(piece.ptr[end]) : 1;
    }
    if (done < piece.len && !join(&j, done, piece.len, step->invert, err))
        return false;
    return join_flush(&j, err);
}

static bool in_class(PretokClass class, uint32_t cp)
{
    if (cp < 0x80 && class == PRETOK_NUMERIC)
        return cp >= '0' && cp <= '9';
    switch (class) {
    case PRETOK_SPACE:
        return utf8_is_space(cp);
    case PRETOK_PUNCTUATION:
        return unisets_has(UNISETS_PUNCTUATION, cp);
    case PRETOK_NUMERIC:
        return unisets_has(UNISETS_NUMERIC, cp);
    }
    return false;
}

static bool split_class(const Run *r, int at, Str piece, Error *err)
{
    const PretokStep *step = &r->p->steps[at];
    Joiner j = {.run = r, .next = at + 1, .base = piece.ptr, .behavior = step->behavior};
    size_t done = 0;
    for (size_t i = 0; i < piece.len;) {
        uint32_t cp = 0;
        const size_t end = i + (size_t)utf8_decode(piece.ptr + i, piece.len - i, &cp);
        if (in_class(step->class, cp)) {
            if ((i > done && !join(&j, done, i, false, err)) || !join(&j, i, end, true, err))
                return false;
            done = end;
        }
        i = end;
    }
    if (done < piece.len && !join(&j, done, piece.len, false, err))
        return false;
    return join_flush(&j, err);
}

static bool fixed(const Run *r, int at, Str piece, Error *err)
{
    for (size_t from = 0; from < piece.len;) {
        size_t to = from;
        for (int n = 0; n < r->p->steps[at].length && to < piece.len; n++)
            to += utf8_step(piece.ptr[to]);
        if (!run_step(r, at + 1, (Str){piece.ptr + from, to - from}, err))
            return false;
        from = to;
    }
    return true;
}

static bool prefix_space(const Run *r, int at, Str piece, Error *err)
{
    if (piece.ptr[0] == ' ')
        return run_step(r, at + 1, piece, err);
    char *copy = arena_take(r->arena, piece.len + 1, 1, err);
    if (!copy)
        return false;
    copy[0] = ' ';
    memcpy(copy + 1, piece.ptr, piece.len);
    return run_step(r, at + 1, (Str){copy, piece.len + 1}, err);
}

/* Each space begins a piece. */
static bool metaspace(const Run *r, int at, Str piece, Error *err)
{
    const PretokStep *step = &r->p->steps[at];
    const bool prefix =
        step->prefix == PRETOK_ALWAYS || (step->prefix == PRETOK_FIRST && piece.ptr == r->start);
    char *copy = arena_take(r->arena, piece.len + 1, 1, err);
    if (!copy)
        return false;
    size_t n = 0;
    for (size_t i = 0; i < piece.len;) {
        const bool mark = piece.len - i >= 3 && memcmp(piece.ptr + i, "\xE2\x96\x81", 3) == 0;
        const char c = mark ? ' ' : piece.ptr[i];
        if (i == 0 && prefix && c != ' ')
            copy[n++] = ' ';
        copy[n++] = c;
        i += mark ? 3 : 1;
    }
    for (size_t from = 0; from < n;) {
        const char *next = step->split ? memchr(copy + from + 1, ' ', n - from - 1) : NULL;
        const size_t to = next ? (size_t)(next - copy) : n;
        if (!run_step(r, at + 1, (Str){copy + from, to - from}, err))
            return false;
        from = to;
    }
    return true;
}

static bool alphabet(const Run *r, int at, Str piece, Error *err)
{
    char *copy = arena_take(r->arena, piece.len * 2, 1, err);
    if (!copy)
        return false;
    size_t n = 0;
    for (size_t i = 0; i < piece.len; i++) {
        char utf8[4];
        const size_t len =
            (size_t)utf8_encode(bytelevel_char((uint8_t)(unsigned char)piece.ptr[i]), utf8);
        memcpy(copy + n, utf8, len);
        n += len;
    }
    return run_step(r, at + 1, (Str){copy, n}, err);
}

static bool run_step(const Run *r, int at, Str piece, Error *err)
{
    if (at == r->p->n)
        return r->sink(r->ctx, piece, err);
    const ArenaMark mark = arena_mark(r->arena);
    bool ok = false;
    switch (r->p->steps[at].kind) {
    case PRETOK_SPLIT:
        ok = split(r, at, piece, err);
        break;
    case PRETOK_CLASS:
        ok = split_class(r, at, piece, err);
        break;
    case PRETOK_FIXED:
        ok = fixed(r, at, piece, err);
        break;
    case PRETOK_PREFIX_SPACE:
        ok = prefix_space(r, at, piece, err);
        break;
    case PRETOK_METASPACE:
        ok = metaspace(r, at, piece, err);
        break;
    case PRETOK_ALPHABET:
        ok = alphabet(r, at, piece, err);
        break;
    }
    arena_rewind(r->arena, mark);
    return ok;
}

bool pretok_run(const Pretok *p, TextReWork *w, Arena *a, Str text, bool start, PretokSink *sink,
                void *ctx, Error *err)
{
    const Run r = {p, w, a, sink, ctx, start ? text.ptr : text.ptr + text.len};
    return text.len == 0 || run_step(&r, 0, text, err);
}
