/* unisets.h: sets of characters as Hugging Face's `tokenizers` has them. Each of its parts was
 * built with the Unicode data of another year, and models learned from what they gave; the data of
 * PCRE2 and utf8proc is that of the machine. Pure functions over tables of a few kilobytes. */
#ifndef MERE_TEXT_UNISETS_H
#define MERE_TEXT_UNISETS_H

#include "base/str.h"

typedef enum UniSet {
    UNISETS_PUNCTUATION, /* Punctuation, BertPreTokenizer */
    UNISETS_NUMERIC,     /* Digits */
    UNISETS_MARK,        /* dropped by StripAccents */
    UNISETS_ACCENT,      /* dropped by BertNormalizer's strip_accents */
    UNISETS_CONTROL,     /* dropped by its clean_text */
    UNISETS_INERT, /* newer than the normal forms' data: no mark, never taken apart or composed */
    UNISETS_N
} UniSet;

typedef struct UniRange {
    uint32_t first, last;
} UniRange;

typedef struct UniTable {
    const UniRange *at; /* ascending */
    size_t n;
} UniTable;

typedef struct UniMapped {
    UniRange from;
    uint32_t to;
} UniMapped;

typedef struct UniMap {
    const UniMapped *at; /* ascending */
    size_t n;
} UniMap;

extern const UniTable unisets_tables[UNISETS_N];
extern const UniMap unisets_map_alike, unisets_map_lower;

bool unisets_has(UniSet set, uint32_t cp);
uint32_t unisets_lower(uint32_t cp);
/* \w of Rust's regular expressions. */
bool unisets_is_word(uint32_t cp);
/* Where the first character lies that regular expressions know and older data of PCRE2 does not, in
 * valid UTF-8; text.len: none. */
size_t unisets_newer(Str text);
/* A copy (text.len bytes) for matching only, where each such character is an older one of the same
 * category, script and length. */
void unisets_older(Str text, char *out);

#endif
