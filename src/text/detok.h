/* detok.h: ids to text as they come, never splitting a character.
 *
 * A token may end inside a UTF-8 character: its bytes are held (at most three) until the character
 * is whole. Bytes that can never become one are given as U+FFFD, once for each maximal broken
 * part, as Python's and Rust's lossy decoders do. The raw bytes are those of tokenizer_piece.
 * One stream, one Detok; no memory of its own. */
#ifndef MERE_TEXT_DETOK_H
#define MERE_TEXT_DETOK_H

#include "text/tokenizer.h"

typedef struct Detok {
    const Tokenizer *tokenizer;
    unsigned flags; /* TOKENIZER_SKIP_SPECIAL */
    int n_held;
    uint8_t held[4];
} Detok;

void detok_init(Detok *d, const Tokenizer *t, unsigned flags);
/* Appends the text that became certain with this id. ERR_NOMEM: `out` is full; the stream is then
 * of no more use. */
MUST_CHECK bool detok_add(Detok *d, int32_t id, StrBuf *out, Error *err);
/* The same for bytes from elsewhere, for instance tokenizer_piece's. */
MUST_CHECK bool detok_add_bytes(Detok *d, Str bytes, StrBuf *out, Error *err);
/* The stream ended: held bytes come out as U+FFFD. The Detok may be used again. */
MUST_CHECK bool detok_end(Detok *d, StrBuf *out, Error *err);
/* Bytes held back by now, 0 to 3. */
static inline int detok_held(const Detok *d)
{
    return d->n_held;
}

#endif
