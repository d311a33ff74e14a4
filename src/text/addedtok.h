/* addedtok.h: finds added tokens ("<|im_end|>") in text, leftmost first and then the longest, as
 * the reference's Aho-Corasick does. The set is sorted by bytes and read-only once built: any
 * thread. */
#ifndef MERE_TEXT_ADDEDTOK_H
#define MERE_TEXT_ADDEDTOK_H

#include "base/arena.h"
#include "base/str.h"

enum { ADDEDTOK_BYTES_MAX = 1024 }; /* of one token: bounds the work at each place of a text */

typedef struct AddedTok {
    Str text; /* in an arena */
    int32_t id;
    bool special;     /* not matched when special tokens are plain text */
    bool lstrip;      /* takes white space before it along */
    bool rstrip;      /* and after it */
    bool single_word; /* only where no word character touches it */
} AddedTok;

typedef struct AddedToks {
    AddedTok *at; /* sorted by text */
    int n;
    uint8_t starts[256]; /* 1: some token starts with this byte */
    bool marks;          /* spaces stand for U+2581, and are not stripped */
} AddedToks;

/* Sorts, drops repeated texts (the first stays). ERR_FORMAT: an empty or overlong text. */
MUST_CHECK bool addedtok_build(AddedToks *set, const char *doc, Error *err);
int32_t addedtok_find(const AddedToks *set, Str text); /* id, -1: none */

/* The first match at or after *pos: text[*start, *end) with its stripped white space, and the
 * token. NULL: none. *pos moves on; `from` is the end of the match before, which stripping does not
 * cross. */
const AddedTok *addedtok_next(const AddedToks *set, Str text, bool special, size_t *pos,
                              size_t from, size_t *start, size_t *end);

#endif
