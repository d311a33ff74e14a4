/* unigram.h: the cut of a text into tokens whose scores (log probabilities) add up best. One pass
 * along the text with a trie, then back along the best path: linear, but for the longest token.
 *
 * Read-only once built: any thread. */
#ifndef MERE_TEXT_UNIGRAM_H
#define MERE_TEXT_UNIGRAM_H

#include "text/fallback.h"
#include "text/joins.h"
#include "text/trie.h"

typedef struct Unigram {
    const Vocab *vocab;
    Trie trie;
    const double *score; /* [n_vocab] */
    double unk_score;    /* of a character that is no token */
    Fallback unknown;
    Joins joins;
} Unigram;

/* `score` has a number for each id; it is kept. VOCAB_RAW tokens and those `without` flags name are
 * never produced. unk_score becomes the lowest score minus 10, as the references have it. */
MUST_CHECK bool unigram_build(Arena *a, Unigram *u, const Vocab *v, const double *score,
                              unsigned without, Error *err);
/* Appends the ids of valid UTF-8. */
MUST_CHECK bool unigram_encode(const Unigram *u, BpeWork *w, Str text, Error *err);

#endif
