/* trie.h: the tokens of a vocabulary by their leading bytes: one walk along a text finds every
 * token that starts there. Read-only once built: any thread. */
#ifndef MERE_TEXT_TRIE_H
#define MERE_TEXT_TRIE_H

#include "base/arena.h"
#include "text/vocab.h"

typedef struct TrieNode {
    uint32_t first; /* children are nodes first .. first + n - 1, in the order of their bytes */
    uint16_t n;
    int32_t id; /* token that ends here; -1: none */
} TrieNode;

typedef struct Trie {
    const TrieNode *nodes; /* 0 is the root; in an arena */
    const uint8_t *byte;   /* [n_nodes] the byte that leads to each */
    uint32_t n_nodes;
} Trie;

/* Of all tokens that have none of the flags `without`, nor VOCAB_RAW. Of two with equal bytes the
 * smaller id wins. `a` holds the trie; scratch memory is freed before the return. */
MUST_CHECK bool trie_build(Arena *a, const Vocab *v, unsigned without, Trie *out, Error *err);

/* The child of `node` along byte c; 0: none. */
static inline uint32_t trie_step(const Trie *t, uint32_t node, uint8_t c)
{
    const TrieNode *at = &t->nodes[node];
    if (at->n == 1)
        return t->byte[at->first] == c ? at->first : 0;
    if (at->n == 0)
        return 0;
    if (at->n == 256)
        return at->first + c;
    const uint8_t *from = t->byte + at->first;
    const uint8_t *hit = memchr(from, c, at->n);
    return hit ? at->first + (uint32_t)(hit - from) : 0;
}

#endif
