/* charbpe.h: byte-pair encoding that starts from characters, as SentencePiece's does. What to join
 * is given either by merges (bpe.h's table, tokenizer.json) or by scores: any two neighbours that
 * together are a token may join, the token of best rank first, the leftmost of equals.
 *
 * Read-only once built: any thread. */
#ifndef MERE_TEXT_CHARBPE_H
#define MERE_TEXT_CHARBPE_H

#include "text/bpe.h"
#include "text/fallback.h"
#include "text/joins.h"

typedef struct CharBpe {
    const Vocab *vocab;
    const Bpe *merges;    /* NULL: by rank */
    const uint32_t *rank; /* [n_vocab] of each token, the smallest first; UINT32_MAX: never made */
    uint32_t longest;     /* bytes of the longest token, with rank */
    Fallback unknown;
    Joins joins;
    bool ignore_merges;
    bool word_end; /* as in bpe.h */
    bool bytes;    /* starts from bytes, as tiktoken does: any text, and never cut */
} CharBpe;

/* Appends the ids of valid UTF-8 (any bytes with `bytes`). A run of unknown characters may have
 * begun before (fallback.h).
 */
MUST_CHECK bool charbpe_encode(const CharBpe *b, BpeWork *w, Str text, Error *err);

#endif
