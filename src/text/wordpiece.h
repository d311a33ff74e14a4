/* wordpiece.h: BERT's cut of a word: the longest token at its start, then the longest continuing
 * one, and so on; a word that cannot be cut so, or is too long, is the unknown token.
 *
 * Tokens that start a word are stored with a space before them, the others ("##ing") bare: so the
 * bytes of the tokens in a row are text. Read-only once built: any thread. */
#ifndef MERE_TEXT_WORDPIECE_H
#define MERE_TEXT_WORDPIECE_H

#include "text/bpe.h"
#include "text/trie.h"

typedef struct WordPiece {
    Trie trie;
    int32_t unk;   /* -1: such a word is dropped */
    int max_chars; /* of a word; 0: no limit */
} WordPiece;

/* Appends the ids of one word: valid UTF-8, not empty. */
MUST_CHECK bool wordpiece_encode(const WordPiece *p, BpeWork *w, Str word, Error *err);

#endif
