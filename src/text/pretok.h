/* pretok.h: pre-tokenisation: the steps that cut text into the pieces which BPE then encodes one by
 * one. Nearly every published step is a split by a regular expression here.
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

typedef enum PretokKind {
    PRETOK_SPLIT,
    PRETOK_CLASS,        /* the same with one character of a class for the match */
    PRETOK_FIXED,        /* pieces of so many characters */
    PRETOK_PREFIX_SPACE, /* a space before a piece that has none */
    PRETOK_METASPACE,    /* U+2581 and a space are one, each starts a piece; maybe one before */
    PRETOK_ALPHABET,     /* to the byte alphabet, for the steps after it: pieces come out in it */
} PretokKind;

typedef enum PretokClass { PRETOK_SPACE, PRETOK_PUNCTUATION, PRETOK_NUMERIC } PretokClass;

/* Where PRETOK_METASPACE puts a space before a piece that has none. */
typedef enum PretokPrefix { PRETOK_NEVER, PRETOK_FIRST, PRETOK_ALWAYS } PretokPrefix;

typedef struct PretokStep {
    PretokKind kind;
    TextRe re; /* PRETOK_SPLIT */
    PretokClass class;
    PretokBehavior behavior; /* both */
    bool invert;
    int length;          /* PRETOK_FIXED */
    PretokPrefix prefix; /* PRETOK_METASPACE */
    bool split;
} PretokStep;

typedef struct Pretok {
    PretokStep steps[PRETOK_STEPS_MAX];
    int n;
    bool alphabet; /* pieces come out in the byte alphabet */
} Pretok;

/* GPT-2's expression, which ByteLevel with use_regex applies. */
extern const char pretok_gpt2[];

MUST_CHECK bool pretok_add_split(Pretok *p, const char *doc, Str pattern, TextReDialect dialect,
                                 PretokBehavior behavior, bool invert, Error *err);
MUST_CHECK bool pretok_add_class(Pretok *p, const char *doc, PretokClass class,
                                 PretokBehavior behavior, Error *err);
MUST_CHECK bool pretok_add_fixed(Pretok *p, const char *doc, int length, Error *err);
MUST_CHECK bool pretok_add_prefix_space(Pretok *p, const char *doc, Error *err);
MUST_CHECK bool pretok_add_metaspace(Pretok *p, const char *doc, PretokPrefix prefix, bool split,
                                     Error *err);
/* BertPreTokenizer: white space goes, each punctuation mark is a piece. */
MUST_CHECK bool pretok_add_bert(Pretok *p, const char *doc, Error *err);
MUST_CHECK bool pretok_add_alphabet(Pretok *p, const char *doc, Error *err);
void pretok_free(Pretok *p);

/* Takes each piece in turn; false stops with its error. The piece is borrowed for the call. */
typedef bool PretokSink(void *ctx, Str piece, Error *err);
/* `a` holds pieces that were changed, until the call returns. `start`: the whole text begins here.
 */
MUST_CHECK bool pretok_run(const Pretok *p, TextReWork *w, Arena *a, Str text, bool start,
                           PretokSink *sink, void *ctx, Error *err);

#endif
