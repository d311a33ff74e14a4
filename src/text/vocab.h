/* vocab.h: the tokens of a tokenizer by id and by bytes.
 *
 * Built in three steps: vocab_add for the model's own tokens, vocab_index once, then
 * vocab_set_added for added tokens, which are found by addedtok.h and not by vocab_find.
 * vocab_freeze moves everything into an arena; afterwards nothing changes and any thread may read.
 */
#ifndef MERE_TEXT_VOCAB_H
#define MERE_TEXT_VOCAB_H

#include "base/arena.h"
#include "base/str.h"

enum {
    VOCAB_SET = 1,     /* the id has a token */
    VOCAB_ADDED = 2,   /* an added token: found in text before it is cut into pieces */
    VOCAB_SPECIAL = 4, /* a control token */
    VOCAB_RAW = 8,     /* its text is outside the byte alphabet: no piece or merge ever makes it */
};

typedef struct VocabToken {
    uint32_t off, len; /* bytes in blob */
} VocabToken;

typedef struct Vocab {
    const char *doc;
    char *blob; /* the tokens' bytes */
    size_t blob_len, blob_cap;
    VocabToken *tokens; /* [n] */
    uint8_t *flags;     /* [n] VOCAB_ */
    int n, cap;         /* n: largest id + 1 */
    uint64_t *slots;    /* open addressing: high half of the hash << 32 | id + 1; 0: free */
    uint64_t mask;
    bool frozen;
} Vocab;

void vocab_init(Vocab *v, const char *doc);
void vocab_free(Vocab *v); /* what is not in an arena */

/* Copies `bytes`. ERR_FORMAT: id outside [0, TOKENIZER_VOCAB_MAX) or taken. */
MUST_CHECK bool vocab_add(Vocab *v, int64_t id, Str bytes, unsigned flags, Error *err);
/* The table of all tokens that are not VOCAB_RAW, in `a`. Of two with equal bytes the smaller id
 * wins. */
MUST_CHECK bool vocab_index(Arena *a, Vocab *v, Error *err);
/* Makes id an added token with these bytes, new or not. */
MUST_CHECK bool vocab_set_added(Vocab *v, int64_t id, Str bytes, bool special, Error *err);
MUST_CHECK bool vocab_freeze(Arena *a, Vocab *v, Error *err);

uint64_t vocab_hash(const char *s, size_t len);
/* -1: none. `hash` is vocab_hash of the bytes. */
int32_t vocab_find_hashed(const Vocab *v, const char *s, size_t len, uint64_t hash);
int32_t vocab_find(const Vocab *v, Str bytes);
/* Many look-ups at a time go faster when their memory is on its way before: step 0 the slot, then 1
 * the token, then 2 its bytes. */
static inline void vocab_prefetch(const Vocab *v, uint64_t hash, int step)
{
    const uint64_t *slot = &v->slots[hash & v->mask];
    if (step == 0) {
        __builtin_prefetch(slot);
    } else if (*slot) {
        const VocabToken *t = &v->tokens[(uint32_t)*slot - 1];
        __builtin_prefetch(step == 1 ? (const void *)t : (const void *)(v->blob + t->off));
    }
}
static inline Str vocab_bytes(const Vocab *v, int32_t id)
{
    return (Str){v->blob + v->tokens[id].off, v->tokens[id].len};
}
static inline bool vocab_has(const Vocab *v, int64_t id)
{
    return id >= 0 && id < v->n && (v->flags[id] & VOCAB_SET);
}

#endif
