/* fallback.h: what becomes of a character that the vocabulary lacks: the tokens of its bytes, or
 * the unknown token. */
#ifndef MERE_TEXT_FALLBACK_H
#define MERE_TEXT_FALLBACK_H

#include "text/bpe.h"

typedef struct Fallback {
    int32_t byte_id[256]; /* "<0x0A>"; -1: none */
    bool bytes;           /* every byte has a token, and they are used */
    int32_t unk;          /* -1: the character is dropped */
    bool fuse;            /* a run of unknown characters is one unknown token */
} Fallback;

/* No byte tokens, no unknown token. */
void fallback_init(Fallback *f);
/* The value of "<0x0A>"; -1: it is no such token. */
int fallback_byte_of(Str token);
/* Appends what stands for these bytes, which are one character or no UTF-8 at all. */
MUST_CHECK bool fallback_push(const Fallback *f, BpeWork *w, Str bytes, Error *err);

#endif
