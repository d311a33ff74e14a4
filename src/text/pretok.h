/* pretok.h: pre-tokenisation: the steps that cut text into the pieces which BPE then encodes one by
 * one. Every published step is one of two here: split by a regular expression, or put a space
 * before.
 *
 * Read-only once built: any thread. Text is valid UTF-8. */
#ifndef MERE_TEXT_PRETOK_H
#define MERE_TEXT_PRETOK_H

#include "base/arena.h"
#include "text/textre.h"

enum { PRETOK_STEPS_MAX = 16 };

/* What becomes of the matches; with invert, of the text between them. */
typedef enum PretokBehavior {
    PRETOK_ISOLATED, /* each is a piece */
    PRETOK_REMOVED,
    PRETOK_CONTIGUOUS,  /* neighbours of one kind are one piece */
    PRETOK_MERGED_PREV, /* joined to the piece before */
    PRETOK_MERGED_NEXT,
} PretokBehavior;

typedef struct PretokStep {
    bool prefix_space; /* puts a space before a piece that has none; the rest is unused then */
    TextRe re;
    PretokBehavior behavior;
    bool invert;
} PretokStep;

typedef struct Pretok {
    PretokStep steps[PRETOK_STEPS_MAX];
    int n;
} Pretok;

/* GPT-2's expression, which ByteLevel with use_regex applies. */
extern const char pretok_gpt2[];

MUST_CHECK bool pretok_add_split(Pretok *p, const char *doc, Str pattern, TextReDialect dialect,
                                 PretokBehavior behavior, bool invert, Error *err);
MUST_CHECK bool pretok_add_prefix_space(Pretok *p, const char *doc, Error *err);
void pretok_free(Pretok *p);

/* Takes each piece in turn; false stops with its error. The piece is borrowed for the call. */
typedef bool PretokSink(void *ctx, Str piece, Error *err);
/* `a` holds pieces that were changed, until the call returns. */
MUST_CHECK bool pretok_run(const Pretok *p, TextReWork *w, Arena *a, Str text, PretokSink *sink,
                           void *ctx, Error *err);

#endif
