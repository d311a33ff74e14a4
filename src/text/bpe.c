#include "text/bpe.h"

#include "base/mem.h"

enum {
    SCAN_MAX = 48,         /* symbols up to which scanning for the lowest rank beats a heap */
    CACHE_KEY = 30,        /* bytes: with the ids an entry is one cache line */
    CACHE_IDS = 8,         /* ids */
    CACHE_MAX = 1 << 14,   /* entries: 1 MiB */
    PIECE_MAX = 0x7FFFFFFF /* symbols are numbered by int32 */
};

struct BpeCached {
    uint8_t len, n; /* len 0: free */
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
};

/* A slot: the merge's index + 1, and a tag above it; 0: free. */
enum { INDEX_BITS = 23, TAG_BITS = 32 - INDEX_BITS, MERGES_MAX = (1 << INDEX_BITS) - 1 };

enum { QUEUE = 16, QUEUE_TEXT = 2 * BPE_TOKEN_MAX };

typedef struct BpeQueued {
    VocabKey left, right;
    const char *text; /* in the queue, or the vocabulary's */
    uint32_t left_len, len;
    int32_t id; /* the joined token; -1: to be looked up */
} BpeQueued;

struct BpeQueue {
    int n;
    uint32_t used;
    BpeQueued at[QUEUE];
    char text[QUEUE_TEXT + VOCAB_PAD];
};

static uint64_t pair_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15U;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93U;
    return h ^ h >> 32;
}

static void *grow(void *p, int64_t need, int64_t *cap, size_t item, Error *err)
{
    int64_t n = *cap ? *cap * 2 : 256;
    if (n < need)
        n = need;
    void *q = mem_realloc(p, (size_t)n * item);
    if (!q) {
        err_nomem(err, "tokenizer", (size_t)n * item);
        return NULL;
    }
    *cap = n;
    return q;
}

void bpe_init(Bpe *b, const Vocab *v)
{
    *b = (Bpe){.vocab = v, .unk = -1};
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        b->byte_id[i] = vocab_find(v, (Str){&byte, 1});
    }
}

void bpe_end_words(Bpe *b)
{
    b->word_end = true;
    for (int i = 0; i < 256; i++) {
        const char bytes[] = {(char)i, ' '};
        b->last_id[i] = vocab_find(b->vocab, (Str){bytes, 2});
    }
}

static size_t slots_bytes(const Bpe *b)
{
    return b->slots ? (size_t)(b->mask + 1) * sizeof *b->slots : 0;
}

static void free_queues(Bpe *b)
{
    for (int i = 0; i < 2; i++) {
        mem_free(b->queue[i]);
        b->queue[i] = NULL;
    }
}

void bpe_free(Bpe *b)
{
    mem_free(b->merges);
    free_queues(b);
    mem_unmap(b->slots, slots_bytes(b));
    b->merges = NULL;
    b->n_merges = b->merges_cap = 0;
    b->slots = NULL;
}

size_t bpe_bytes(const Bpe *b)
{
    return slots_bytes(b) + (size_t)b->merges_cap * sizeof *b->merges;
}

bool bpe_reserve(Bpe *b, int64_t n, Error *err)
{
    if (n == 0 || n == b->merges_cap)
        return true;
    BpeMerge *merges = mem_realloc(b->merges, (size_t)n * sizeof *merges);
    if (!merges)
        return err_nomem(err, b->vocab->doc, (size_t)n * sizeof *merges);
    b->merges = merges;
    b->merges_cap = n;
    return true;
}

static bool makes(const Vocab *v, int64_t id, Str both)
{
    return vocab_has(v, id) && !(v->flags[id] & VOCAB_RAW) &&
           str_eq(vocab_bytes(v, (int32_t)id), both);
}

/* The joined token: most often that of the merge before or the next one, which spares a look-up in
 * a table that is larger than the cache. In files of another order it is left to be looked up with
 * the parts (-1), when its memory was sent for. */
static int32_t result_id(Bpe *b, Str both)
{
    enum { SLACK = 1024 };
    for (int64_t id = b->last; id <= (int64_t)b->last + 1; id++) {
        if (makes(b->vocab, id, both)) {
            b->foreseen++;
            return (int32_t)id;
        }
    }
    if (b->foreseen + SLACK < b->n_merges / 2)
        return -1;
    return vocab_find(b->vocab, both);
}

static bool resolve(Bpe *b, const BpeQueued *q, Error *err)
{
    /* Parts of one byte too: to ask costs more than to look them up. */
    const int32_t l = vocab_find_key(b->vocab, q->text, q->left_len, q->left);
    const int32_t r =
        vocab_find_key(b->vocab, q->text + q->left_len, q->len - q->left_len, q->right);
    const int32_t id = q->id >= 0 ? q->id : vocab_find(b->vocab, (Str){q->text, q->len});
    if (l < 0 || r < 0 || id < 0)
        return err_set(err, ERR_FORMAT, "%s: merge %lld: its %s is no token of the vocabulary",
                       b->vocab->doc, (long long)b->n_merges,
                       l < 0   ? "left part"
                       : r < 0 ? "right part"
                               : "result");
    if (b->n_merges == MERGES_MAX)
        return err_set(err, ERR_FORMAT, "%s: too many merges", b->vocab->doc);
    if (b->n_merges == b->merges_cap && !bpe_reserve(b, b->n_merges * 2 + 256, err))
        return false;
    b->merges[b->n_merges++] = (BpeMerge){l, r, id};
    return true;
}

/* The older queue is worked off, and takes what comes in next. */
static bool turn(Bpe *b, Error *err)
{
    BpeQueue *old = b->queue[1];
    for (int i = 0; i < old->n; i++) {
        if (!resolve(b, &old->at[i], err))
            return false;
    }
    old->n = 0;
    old->used = 0;
    b->queue[1] = b->queue[0];
    b->queue[0] = old;
    return true;
}

static bool new_queues(Bpe *b, Error *err)
{
    for (int i = 0; i < 2; i++) {
        b->queue[i] = mem_alloc(sizeof *b->queue[i]);
        if (!b->queue[i])
            return err_nomem(err, b->vocab->doc, sizeof *b->queue[i]);
        b->queue[i]->n = 0;
        b->queue[i]->used = 0;
    }
    return true;
}

/* Room for one more merge, and `len` bytes. */
static bool queue_room(Bpe *b, size_t len, Error *err)
{
    if (!b->queue[0] && !new_queues(b, err))
        return false;
    const BpeQueue *q = b->queue[0];
    return (q->n < QUEUE && len <= QUEUE_TEXT - q->used) || turn(b, err);
}

/* A look-up waits for a table beyond the cache, so many wait at a time: its memory is sent for here
 * and used 16 or more merges later. */
static void queue_up(Bpe *b, const char *text, size_t left_len, size_t len, int32_t id)
{
    BpeQueue *q = b->queue[0];
    BpeQueued *m = &q->at[q->n++];
    *m = (BpeQueued){.left = vocab_key_padded(text, left_len),
                     .right = vocab_key_padded(text + left_len, len - left_len),
                     .text = text,
                     .left_len = (uint32_t)left_len,
                     .len = (uint32_t)len,
                     .id = id};
    if (id >= 0)
        b->last = id;
    vocab_prefetch(b->vocab, m->left);
    vocab_prefetch(b->vocab, m->right);
}

char *bpe_begin(Bpe *b, size_t len, Error *err)
{
    if (len > BPE_TOKEN_MAX) {
        err_set(err, ERR_FORMAT, "%s: a merge of %zu bytes, at most %d", b->vocab->doc, len,
                BPE_TOKEN_MAX);
        return NULL;
    }
    return queue_room(b, len, err) ? b->queue[0]->text + b->queue[0]->used : NULL;
}

void bpe_end(Bpe *b, size_t left_len, size_t len)
{
    BpeQueue *q = b->queue[0];
    const char *text = q->text + q->used;
    q->used += (uint32_t)len;
    queue_up(b, text, left_len, len, result_id(b, (Str){text, len}));
}

bool bpe_add_known(Bpe *b, int32_t id, size_t left_len, Error *err)
{
    if (!queue_room(b, 0, err))
        return false;
    const Str both = vocab_bytes(b->vocab, id);
    b->foreseen++;
    queue_up(b, both.ptr, left_len, both.len, id);
    return true;
}

bool bpe_add_merge(Bpe *b, Str both, size_t left_len, Error *err)
{
    char *to = bpe_begin(b, both.len, err);
    if (!to)
        return false;
    memcpy(to, both.ptr, both.len);
    bpe_end(b, left_len, both.len);
    return true;
}

/* A slot's tag is the top of the hash, which its place does not have. */
static uint32_t tag_of(uint64_t hash)
{
    return (uint32_t)(hash >> (64 - TAG_BITS)) << INDEX_BITS;
}

static bool joins_pair(const Bpe *b, uint32_t slot, uint32_t tag, int32_t left, int32_t right)
{
    if ((slot ^ tag) >> INDEX_BITS != 0)
        return false;
    const BpeMerge *m = &b->merges[(slot & MERGES_MAX) - 1];
    return m->left == left && m->right == right;
}

bool bpe_index(Bpe *b, Error *err)
{
    enum { AHEAD = 16 }; /* slots on their way to the cache */
    uint64_t hashes[AHEAD];
    for (int i = 0; b->queue[0] && i < 2; i++) {
        if (!turn(b, err))
            return false;
    }
    if (!bpe_reserve(b, b->n_merges, err))
        return false;
    free_queues(b);
    uint64_t size = 16;
    while (size < (uint64_t)b->n_merges + (uint64_t)b->n_merges / 2)
        size *= 2;
    b->slots = mem_map((size_t)size * sizeof *b->slots);
    if (!b->slots)
        return err_nomem(err, b->vocab->doc, (size_t)size * sizeof *b->slots);
    b->mask = size - 1;
    uint64_t probes = (uint64_t)b->n_merges * 32 + 1024; /* a fair hash needs two or three each */
    for (int64_t next = 0; next < b->n_merges + AHEAD; next++) {
        const int64_t i = next - AHEAD;
        if (i >= 0) {
            const uint64_t hash = hashes[i % AHEAD];
            const BpeMerge m = b->merges[i];
            const uint32_t tag = tag_of(hash);
            uint64_t at = hash & b->mask;
            while (b->slots[at] && !joins_pair(b, b->slots[at], tag, m.left, m.right)) {
                if (probes-- == 0)
                    return err_set(err, ERR_FORMAT, "%s: the merges all hash alike", b->vocab->doc);
                at = (at + 1) & b->mask;
            }
            b->slots[at] = tag | (uint32_t)(i + 1);
        }
        if (next < b->n_merges) {
            const uint64_t hash = pair_hash(b->merges[next].left, b->merges[next].right);
            hashes[next % AHEAD] = hash;
            __builtin_prefetch(&b->slots[hash & b->mask], 1);
        }
    }
    return true;
}

/* Its rank; -1: none. */
static int32_t pair_find(const Bpe *b, int32_t left, int32_t right)
{
    const uint64_t hash = pair_hash(left, right);
    const uint32_t tag = tag_of(hash);
    for (uint64_t at = hash & b->mask; b->slots[at]; at = (at + 1) & b->mask) {
        if (joins_pair(b, b->slots[at], tag, left, right))
            return (int32_t)(b->slots[at] & MERGES_MAX) - 1;
    }
    return -1;
}

void bpe_pair(const Bpe *b, int32_t left, int32_t right, uint32_t *rank, int32_t *id)
{
    const int32_t m = pair_find(b, left, right);
    if (m >= 0) {
        *rank = (uint32_t)m;
        *id = b->merges[m].id;
    }
}

bool bpe_work_init(BpeWork *w, size_t text_bytes, Error *err)
{
    *w = (BpeWork){0};
    uint64_t n = 16;
    while (n < CACHE_MAX && n < text_bytes / 16)
        n *= 2;
    w->cache = mem_zalloc(n * sizeof *w->cache);
    if (!w->cache)
        return err_nomem(err, "tokenizer cache", n * sizeof *w->cache);
    w->cache_mask = n - 1;
    return true;
}

void bpe_work_free(BpeWork *w)
{
    mem_free(w->ids);
    mem_free(w->syms);
    mem_free(w->heap);
    mem_free(w->cache);
    mem_free(w->cells);
    *w = (BpeWork){0};
}

bool bpe_push(BpeWork *w, int32_t id, Error *err)
{
    if (w->n == w->cap) {
        int32_t *ids = grow(w->ids, w->n + 1, &w->cap, sizeof *ids, err);
        if (!ids)
            return false;
        w->ids = ids;
    }
    w->ids[w->n++] = id;
    return true;
}

/* At most SCAN_MAX ids in place; returns how many remain. */
static int merge_scan(const Bpe *b, int32_t *ids, int n)
{
    int32_t rank[SCAN_MAX]; /* of each and its right neighbour; -1: none */
    for (int i = 0; i + 1 < n; i++)
        rank[i] = pair_find(b, ids[i], ids[i + 1]);
    while (n > 1) {
        int best = -1;
        uint32_t lowest = UINT32_MAX;
        for (int i = 0; i + 1 < n; i++) {
            if ((uint32_t)rank[i] < lowest) {
                lowest = (uint32_t)rank[i];
                best = i;
            }
        }
        if (best < 0)
            break;
        ids[best] = b->merges[rank[best]].id;
        n--;
        for (int i = best + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (int i = best + 1; i + 1 < n; i++)
            rank[i] = rank[i + 1];
        for (int i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++)
            rank[i] = pair_find(b, ids[i], ids[i + 1]);
    }
    return n;
}

static bool before(BpeCand a, BpeCand b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

bool bpe_heap_push(BpeWork *w, BpeCand c, Error *err)
{
    if (w->heap_n == w->heap_cap) {
        BpeCand *heap = grow(w->heap, w->heap_n + 1, &w->heap_cap, sizeof *heap, err);
        if (!heap)
            return false;
        w->heap = heap;
    }
    int64_t i = w->heap_n++;
    while (i > 0 && before(c, w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = c;
    return true;
}

BpeCand bpe_heap_pop(BpeWork *w)
{
    const BpeCand top = w->heap[0];
    const BpeCand last = w->heap[--w->heap_n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= w->heap_n)
            break;
        if (child + 1 < w->heap_n && before(w->heap[child + 1], w->heap[child]))
            child++;
        if (!before(w->heap[child], last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static bool push_pair(const Bpe *b, BpeWork *w, int32_t at, Error *err)
{
    const int32_t next = at < 0 ? -1 : w->syms[at].next;
    if (next < 0)
        return true;
    const int32_t m = pair_find(b, w->syms[at].id, w->syms[next].id);
    return m < 0 || bpe_heap_push(w, (BpeCand){(uint32_t)m, at, b->merges[m].id}, err);
}

/* A candidate goes stale when either side was joined meanwhile; it is then dropped, since the new
 * neighbours have put in their own. */
static bool merge_heap(const Bpe *b, BpeWork *w, int32_t n, Error *err)
{
    w->heap_n = 0;
    for (int32_t i = 0; i < n; i++) {
        w->syms[i].prev = i - 1;
        w->syms[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i + 1 < n; i++) {
        if (!push_pair(b, w, i, err))
            return false;
    }
    while (w->heap_n > 0) {
        const BpeCand c = bpe_heap_pop(w);
        BpeSym *left = &w->syms[c.at];
        if (left->id < 0 || left->next < 0)
            continue;
        BpeSym *right = &w->syms[left->next];
        if ((uint32_t)pair_find(b, left->id, right->id) != c.rank)
            continue;
        left->id = c.id;
        right->id = -1;
        left->next = right->next;
        if (left->next >= 0)
            w->syms[left->next].prev = c.at;
        if (!push_pair(b, w, left->prev, err) || !push_pair(b, w, c.at, err))
            return false;
    }
    for (int32_t i = 0; i >= 0; i = w->syms[i].next) {
        if (!bpe_push(w, w->syms[i].id, err))
            return false;
    }
    return true;
}

/* What byte i of a piece starts as. False: as nothing. *unknown: of the byte before, then of it. */
static bool symbol(const Bpe *b, Str piece, size_t i, bool *unknown, int32_t *id)
{
    const unsigned char c = (unsigned char)piece.ptr[i];
    const bool after_unknown = *unknown;
    *id = b->word_end && i + 1 == piece.len ? b->last_id[c] : b->byte_id[c];
    *unknown = *id < 0;
    if (*unknown)
        *id = b->fuse && after_unknown ? -1 : b->unk;
    return *id >= 0;
}

static bool encode_long(const Bpe *b, BpeWork *w, Str piece, Error *err)
{
    if (piece.len > PIECE_MAX)
        return err_set(err, ERR_TOO_LONG, "a piece of %zu bytes", piece.len);
    if ((int64_t)piece.len > w->syms_cap) {
        BpeSym *syms = grow(w->syms, (int64_t)piece.len, &w->syms_cap, sizeof *syms, err);
        if (!syms)
            return false;
        w->syms = syms;
    }
    int32_t n = 0;
    bool unknown = false;
    for (size_t i = 0; i < piece.len; i++) {
        int32_t id;
        if (symbol(b, piece, i, &unknown, &id))
            w->syms[n++].id = id;
    }
    return n == 0 || merge_heap(b, w, n, err);
}

bool bpe_recall(BpeWork *w, Str piece, uint64_t hash, bool *hit, Error *err)
{
    *hit = false;
    if (piece.len > CACHE_KEY)
        return true;
    const BpeCached *slot = &w->cache[hash >> 20 & w->cache_mask];
    if (slot->len != piece.len || memcmp(slot->key, piece.ptr, piece.len) != 0)
        return true;
    *hit = true;
    for (int i = 0; i < slot->n; i++) {
        if (!bpe_push(w, slot->ids[i], err))
            return false;
    }
    return true;
}

void bpe_remember(BpeWork *w, Str piece, uint64_t hash, int64_t from)
{
    if (piece.len > CACHE_KEY || w->n - from > CACHE_IDS)
        return;
    BpeCached *slot = &w->cache[hash >> 20 & w->cache_mask];
    slot->len = (uint8_t)piece.len;
    slot->n = (uint8_t)(w->n - from);
    memcpy(slot->key, piece.ptr, piece.len);
    if (slot->n > 0)
        memcpy(slot->ids, w->ids + from, (size_t)slot->n * sizeof slot->ids[0]);
}

bool bpe_encode(const Bpe *b, BpeWork *w, Str piece, Error *err)
{
    if (piece.len == 0)
        return true;
    if (piece.len == 1 && !b->word_end && b->byte_id[(unsigned char)piece.ptr[0]] >= 0)
        return bpe_push(w, b->byte_id[(unsigned char)piece.ptr[0]], err);
    const VocabKey key = vocab_key(piece.ptr, piece.len);
    bool hit;
    if (!bpe_recall(w, piece, key.hash, &hit, err))
        return false;
    if (hit)
        return true;
    const int64_t from = w->n;
    int32_t whole = -1;
    if (b->ignore_merges)
        whole = vocab_find_key(b->vocab, piece.ptr, piece.len, key);
    if (whole >= 0) {
        if (!bpe_push(w, whole, err))
            return false;
    } else if (piece.len > SCAN_MAX) {
        return encode_long(b, w, piece, err);
    } else {
        int32_t ids[SCAN_MAX];
        int n = 0;
        bool unknown = false;
        for (size_t i = 0; i < piece.len; i++) {
            int32_t id;
            if (symbol(b, piece, i, &unknown, &id))
                ids[n++] = id;
        }
        n = merge_scan(b, ids, n);
        for (int i = 0; i < n; i++) {
            if (!bpe_push(w, ids[i], err))
                return false;
        }
    }
    bpe_remember(w, piece, key.hash, from);
    return true;
}
