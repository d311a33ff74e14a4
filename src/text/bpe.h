/* bpe.h: byte-pair encoding of one piece of text: start from bytes, always join the adjacent pair
 * of lowest rank, the leftmost first.
 *
 * Short pieces scan for the lowest rank; long ones keep a heap, so that a megabyte of one letter
 * takes O(n log n). Bpe is read-only after bpe_index: any thread. BpeWork is one encode's memory.
 */
#ifndef MERE_TEXT_BPE_H
#define MERE_TEXT_BPE_H

#include "text/vocab.h"

enum { BPE_TOKEN_MAX = 4096 /* bytes of a merge's result */ };

typedef struct BpeMerge {
    int32_t left, right;
    int32_t id; /* the joined token */
} BpeMerge;

typedef struct BpeQueue BpeQueue;

typedef struct Bpe {
    const Vocab *vocab;
    BpeMerge *merges; /* [n_merges] by rank */
    int64_t n_merges, merges_cap;
    uint32_t *slots; /* merges by their pair: open addressing */
    uint64_t mask;
    BpeQueue *queue[2]; /* merges whose tokens are still to be looked up, until bpe_index: those
                           that come in, and those before them */
    int32_t last; /* result of the merge before: files list merges in the order of their tokens */
    int64_t foreseen;     /* merges whose result was that one or the next */
    int32_t byte_id[256]; /* -1: the vocabulary lacks this byte */
    int32_t last_id[256]; /* with word_end: of a piece's last byte */
    bool word_end;        /* tokens that end a piece end in a space, which the piece has not */
    bool fuse;            /* a run of missing bytes is one unknown token */
    int32_t unk;          /* for bytes that it lacks; -1: they are dropped, as the reference does */
    bool ignore_merges;   /* a piece that is itself a token is that token */
} Bpe;

/* The vocabulary must be indexed. */
void bpe_init(Bpe *b, const Vocab *v);
/* Sets word_end. */
void bpe_end_words(Bpe *b);
void bpe_free(Bpe *b);
/* About how many merges will come. */
MUST_CHECK bool bpe_reserve(Bpe *b, int64_t n, Error *err);
/* The merge of the next rank: `both` is left and right in a row, as bytes. A pair given twice keeps
 * its last rank. ERR_FORMAT: a part or the result of this merge, or of one shortly before, is no
 * token. */
MUST_CHECK bool bpe_add_merge(Bpe *b, Str both, size_t left_len, Error *err);
/* The same in two steps: room for up to `len` bytes (NULL: none), which are written there, and the
 * merge that they are. */
char *bpe_begin(Bpe *b, size_t len, Error *err);
void bpe_end(Bpe *b, size_t left_len, size_t len);
/* The merge whose result is the token `id` and whose left part is the first left_len of its bytes,
 * which is less than all. Errors as bpe_add_merge. */
MUST_CHECK bool bpe_add_known(Bpe *b, int32_t id, size_t left_len, Error *err);
/* All merges are there: builds the table. Errors as bpe_add_merge. */
MUST_CHECK bool bpe_index(Bpe *b, Error *err);
size_t bpe_bytes(const Bpe *b); /* memory held */

typedef struct BpeSym {
    int32_t id; /* -1: joined into its left neighbour */
    int32_t prev, next;
    uint32_t start, end; /* its bytes in the piece; for charbpe.h only */
} BpeSym;

typedef struct BpeCand {
    uint32_t rank;
    int32_t at; /* left symbol */
    int32_t id; /* joined token */
} BpeCand;

typedef struct BpeCached BpeCached;

typedef struct UnigramCell UnigramCell;

typedef struct BpeWork {
    int32_t *ids; /* result */
    int64_t n, cap;
    BpeSym *syms;
    int64_t syms_cap;
    BpeCand *heap;
    int64_t heap_n, heap_cap;
    BpeCached *cache; /* recent pieces, direct mapped */
    uint64_t cache_mask;
    int64_t unk_end;    /* ids end in an unknown token when this is n: fallback.h */
    UnigramCell *cells; /* of unigram.h */
    int64_t cells_cap;
} BpeWork;

/* text_bytes sizes the piece cache: about one entry for 16 bytes, at most 16,384. */
MUST_CHECK bool bpe_work_init(BpeWork *w, size_t text_bytes, Error *err);
void bpe_work_free(BpeWork *w);
MUST_CHECK bool bpe_push(BpeWork *w, int32_t id, Error *err);
/* The joined token of a pair, if there is one: sets both. */
void bpe_pair(const Bpe *b, int32_t left, int32_t right, uint32_t *rank, int32_t *id);
MUST_CHECK bool bpe_heap_push(BpeWork *w, BpeCand c, Error *err);
BpeCand bpe_heap_pop(BpeWork *w); /* lowest rank, then leftmost; there is one */
/* The cache of short pieces: appends the ids of a piece that was seen before. `hash` is vocab_hash
 * of it. bpe_remember: its ids are those from `from` on. */
MUST_CHECK bool bpe_recall(BpeWork *w, Str piece, uint64_t hash, bool *hit, Error *err);
void bpe_remember(BpeWork *w, Str piece, uint64_t hash, int64_t from);
/* Appends the ids of one piece to w->ids. */
MUST_CHECK bool bpe_encode(const Bpe *b, BpeWork *w, Str piece, Error *err);

#endif
