#include "text/pretok.h"

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

bool pretok_add_prefix_space(Pretok *p, const char *doc, Error *err)
{
    PretokStep *step = NULL;
    if (!new_step(p, doc, &step, err))
        return false;
    step->prefix_space = true;
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
    Joiner j = {.run = r, .next = at + 1, .base = piece.ptr, .behavior = step->behavior};
    size_t done = 0; /* all before is passed on */
    size_t from = 0;
    while (from <= piece.len) {
        bool found;
        size_t start;
        size_t end;
        if (!textre_next(&step->re, r->work, piece, from, &found, &start, &end, err))
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

static bool run_step(const Run *r, int at, Str piece, Error *err)
{
    if (at == r->p->n)
        return r->sink(r->ctx, piece, err);
    if (!r->p->steps[at].prefix_space)
        return split(r, at, piece, err);
    if (piece.ptr[0] == ' ')
        return run_step(r, at + 1, piece, err);
    const ArenaMark mark = arena_mark(r->arena);
    char *copy = arena_take(r->arena, piece.len + 1, 1, err);
    if (!copy)
        return false;
    copy[0] = ' ';
    memcpy(copy + 1, piece.ptr, piece.len);
    const bool ok = run_step(r, at + 1, (Str){copy, piece.len + 1}, err);
    arena_rewind(r->arena, mark);
    return ok;
}

bool pretok_run(const Pretok *p, TextReWork *w, Arena *a, Str text, PretokSink *sink, void *ctx,
                Error *err)
{
    const Run r = {p, w, a, sink, ctx};
    return text.len == 0 || run_step(&r, 0, text, err);
}
