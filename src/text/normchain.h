/* normchain.h: the steps that change a text before it is cut into pieces, in order: a normalizer of
 * tokenizer.json, or SentencePiece's own.
 *
 * Read-only once built: any thread. Texts are valid UTF-8. Linear in the text, but for the regular
 * expressions of a file, which have textre.h's budget. */
#ifndef MERE_TEXT_NORMCHAIN_H
#define MERE_TEXT_NORMCHAIN_H

#include "text/charsmap.h"
#include "text/normalize.h"
#include "text/textre.h"

enum {
    NORMCHAIN_STEPS_MAX = 16,
    NORMCHAIN_GROWTH_MAX = 64 /* times, of all steps together: a file's replacements may be long */
};

typedef enum NormKind {
    NORM_FORM,
    NORM_PREPEND, /* `to` before a text that is not empty */
    NORM_REPLACE, /* each `from` by `to` */
    NORM_REPLACE_RE,
    NORM_STRIP,
    NORM_LOWER,
    NORM_STRIP_ACCENTS, /* drops marks */
    NORM_NMT,           /* drops control characters, makes every space U+0020 */
    NORM_CHARSMAP,      /* as `tokenizers` applies it: by grapheme */
    NORM_BERT,
    NORM_SENTENCEPIECE, /* charsmap as SentencePiece applies it, and its treatment of spaces */
} NormKind;

typedef struct NormStep {
    NormKind kind;
    NormalizeForm form;
    Str from, to; /* in an arena */
    TextRe re;
    const Charsmap *map;
    bool left, right;                    /* NORM_STRIP */
    bool clean, chinese, accents, lower; /* NORM_BERT */
    bool prefix, suffix, merge_spaces;   /* NORM_SENTENCEPIECE */
} NormStep;

typedef struct NormChain {
    NormStep steps[NORMCHAIN_STEPS_MAX];
    int n;
} NormChain;

/* A step for the caller to fill; NULL: too many (ERR_UNSUPPORTED). */
NormStep *normchain_add(NormChain *c, const char *doc, NormKind kind, Error *err);
void normchain_free(NormChain *c);

typedef struct NormWork {
    StrBuf at[2];
    StrBuf older; /* a text for expressions to look at: unisets.h */
    TextReWork *re;
} NormWork;

void normchain_work_init(NormWork *w, TextReWork *re, size_t text_bytes);
void normchain_work_free(NormWork *w);
/* *out is `text` itself or lies in the work, until its next use. `start`: nothing of the same text
 * came before (what steps put before a text is put there only). ERR_NOMEM: also when it grows more
 * than NORMCHAIN_GROWTH_MAX times. */
MUST_CHECK bool normchain_run(const NormChain *c, NormWork *w, Str text, bool start, Str *out,
                              Error *err);

#endif
