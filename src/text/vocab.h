/* vocab.h: the tokens of a tokenizer by id and by bytes.
 *
 * Built in three steps: vocab_add for the model's own tokens, vocab_index once, then
 * vocab_set_added for added tokens, which are found by addedtok.h and not by vocab_find.
 * vocab_freeze gives back what is not needed; afterwards nothing changes and any thread may read.
 * Short tokens are compared inside the table: a look-up is one line of the cache. */
#ifndef MERE_TEXT_VOCAB_H
#define MERE_TEXT_VOCAB_H

#include "base/arena.h"
#include "base/str.h"

enum {
    VOCAB_SET = 1,     /* the id has a token */
    VOCAB_ADDED = 2,   /* an added token: found in text before it is cut into pieces */
    VOCAB_SPECIAL = 4, /* a control token */
    VOCAB_RAW = 8,     /* no piece or merge ever makes it: its text is outside the byte alphabet, or
                          it is an added token that the model lacks */
};

enum { VOCAB_INLINE = 11 /* bytes of a token that fit into its slot */ };

typedef struct VocabToken {
    uint32_t off, len; /* bytes in blob */
} VocabToken;

/* What is compared of a string: its length (255: or more) and first 7 bytes in lo; in hi the next
 * 4, or for a string that is longer than that the high half of the hash. */
typedef struct VocabKey {
    uint64_t lo;
    uint32_t hi;
    uint64_t hash;
} VocabKey;

typedef struct VocabSlot {
    uint64_t lo; /* of the token's key */
    uint32_t hi;
    uint32_t id; /* + 1; 0: free */
} VocabSlot;

typedef struct Vocab {
    const char *doc;
    char *blob; /* the tokens' bytes */
    size_t blob_len, blob_cap;
    VocabToken *tokens; /* [n] */
    uint8_t *flags;     /* [n] VOCAB_ */
    int n, cap;         /* n: largest id + 1 */
    VocabSlot *slots;   /* open addressing */
    uint32_t n_slots;
    size_t bytes; /* memory held, once frozen */
} Vocab;

void vocab_init(Vocab *v, const char *doc);
void vocab_free(Vocab *v);

/* About how many tokens will come: what grows is copied, again and again. */
MUST_CHECK bool vocab_reserve(Vocab *v, int64_t n, Error *err);
/* Copies `bytes`. ERR_FORMAT: id outside [0, TOKENIZER_VOCAB_MAX) or taken. */
MUST_CHECK bool vocab_add(Vocab *v, int64_t id, Str bytes, unsigned flags, Error *err);
/* The same in two steps: room for up to `len` bytes (NULL: none), which are written there, and the
 * `len` that were. */
char *vocab_begin(Vocab *v, size_t len, Error *err);
MUST_CHECK bool vocab_end(Vocab *v, int64_t id, size_t len, unsigned flags, Error *err);
/* The table of all tokens that are not VOCAB_RAW. Of two with equal bytes the smaller id wins. */
MUST_CHECK bool vocab_index(Vocab *v, Error *err);
/* Makes id an added token with these bytes, new or not. */
MUST_CHECK bool vocab_set_added(Vocab *v, int64_t id, Str bytes, bool special, Error *err);
MUST_CHECK bool vocab_freeze(Vocab *v, Error *err);

enum { VOCAB_PAD = 16 };
VocabKey vocab_key(const char *s, size_t len);
/* The same of bytes with VOCAB_PAD readable ones from their start on. */
VocabKey vocab_key_padded(const char *s, size_t len);
uint64_t vocab_hash(const char *s, size_t len); /* of its key */
/* -1: none. */
int32_t vocab_find(const Vocab *v, Str bytes);
/* The same with vocab_key of the bytes. */
int32_t vocab_find_key(const Vocab *v, const char *s, size_t len, VocabKey key);
/* Where the search for a key begins. */
static inline uint32_t vocab_slot(const Vocab *v, VocabKey key)
{
    return (uint32_t)((key.hash & 0xFFFFFFFFU) * v->n_slots >> 32);
}
/* Many look-ups at a time go faster when their slots are on their way before. */
static inline void vocab_prefetch(const Vocab *v, VocabKey key)
{
    __builtin_prefetch(&v->slots[vocab_slot(v, key)]);
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
