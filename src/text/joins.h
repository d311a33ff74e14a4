/* joins.h: where text may be cut without changing its tokens: between two characters whose border
 * bytes stand side by side in no token of the vocabulary, nothing can ever join them. Vocabularies
 * without a pre-tokenizer (SentencePiece) thus fall into words, which are short and repeat.
 * Read-only once built: any thread. */
#ifndef MERE_TEXT_JOINS_H
#define MERE_TEXT_JOINS_H

#include "text/vocab.h"

typedef struct Joins {
    uint8_t bits[256][32]; /* [last byte of a character][first byte of the next one] */
} Joins;

/* Of all tokens that are not VOCAB_RAW. */
void joins_build(Joins *j, const Vocab *v);

/* Bytes of the first part of valid UTF-8 that may stand alone; at least one character. */
static inline size_t joins_part(const Joins *j, Str text)
{
    const unsigned char *p = (const unsigned char *)text.ptr;
    size_t i = 1;
    for (; i < text.len; i++) {
        if ((p[i] & 0xC0U) != 0x80 && !(j->bits[p[i - 1]][p[i] >> 3] >> (p[i] & 7U) & 1U))
            break;
    }
    return i < text.len ? i : text.len;
}

#endif
