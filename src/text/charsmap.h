/* charsmap.h: SentencePiece's compiled normalisation: a double array from character sequences to
 * the texts that replace them. The map comes from a file: each step is checked against its bounds.
 *
 * Read-only once opened: any thread. */
#ifndef MERE_TEXT_CHARSMAP_H
#define MERE_TEXT_CHARSMAP_H

#include "base/arena.h"
#include "base/str.h"

typedef struct Charsmap {
    const uint32_t *units; /* in an arena; NULL: no map */
    uint32_t n_units;
    Str texts; /* the replacements, each ended by a NUL */
} Charsmap;

/* Copies the map out of `blob`. ERR_FORMAT: its sizes do not agree. */
MUST_CHECK bool charsmap_open(Arena *a, const char *doc, Str blob, Charsmap *out, Error *err);
/* What a sequence at the start of `text` becomes: the longest one in the map, or the shortest.
 * *used is its length; 0: none. */
Str charsmap_longest(const Charsmap *m, Str text, size_t *used);
Str charsmap_shortest(const Charsmap *m, Str text, size_t *used);

#endif
