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

enum { QUEUE = 16, QUEUE_TEXT = 2 * BPE_TOKEN_MAX };

typedef struct BpeQueued {
    uint64_t left_hash, right_hash;
    uint32_t rank;
    uint32_t at, left_len, len; /* in text */
} BpeQueued;

struct BpeQueue {
    int n;
    uint32_t used;
    BpeQueued at[QUEUE];
    char text[QUEUE_TEXT];
};

static uint64_t pair_hash(uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15U;
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

void bpe_free(Bpe *b)
{
    mem_free(b->merges);
    mem_free(b->queue);
    b->merges = NULL;
    b->queue = NULL;
}

static int32_t part_id(const Bpe *b, Str part, uint64_t hash)
{
    if (part.len == 1)
        return b->byte_id[(unsigned char)part.ptr[0]];
    return vocab_find_hashed(b->vocab, part.ptr, part.len, hash);
}

/* Most results are the token of the merge before or the next one: that spares a third of the
 * look-ups in a table that is larger than the cache. */
static int32_t result_id(const Bpe *b, Str both)
{
    for (int32_t id = b->last; id <= b->last + 1; id++) {
        if (vocab_has(b->vocab, id) && !(b->vocab->flags[id] & VOCAB_RAW) &&
            str_eq(vocab_bytes(b->vocab, id), both))
            return id;
    }
    return vocab_find(b->vocab, both);
}

static bool resolve(Bpe *b, const BpeQueued *q, Error *err)
{
    const char *text = b->queue->text + q->at;
    const int32_t l = part_id(b, (Str){text, q->left_len}, q->left_hash);
    const int32_t r = part_id(b, (Str){text + q->left_len, q->len - q->left_len}, q->right_hash);
    const int32_t id = result_id(b, (Str){text, q->len});
    if (l < 0 || r < 0 || id < 0)
        return err_set(err, ERR_FORMAT, "%s: merge %u: its %s is no token of the vocabulary",
                       b->vocab->doc, q->rank,
                       l < 0   ? "left part"
                       : r < 0 ? "right part"
                               : "result");
    if (b->n_merges == b->merges_cap) {
        BpePair *merges = grow(b->merges, b->n_merges + 1, &b->merges_cap, sizeof *merges, err);
        if (!merges)
            return false;
        b->merges = merges;
    }
    b->last = id;
    b->merges[b->n_merges++] = (BpePair){(uint32_t)l, (uint32_t)r, q->rank, (uint32_t)id + 1};
    return true;
}

/* The look-ups of a table beyond the cache overlap: without, they are 30 % of loading a vocabulary.
 */
static bool flush(Bpe *b, Error *err)
{
    BpeQueue *q = b->queue;
    for (int step = 1; q && step <= 2; step++) {
        for (int i = 0; i < q->n; i++) {
            vocab_prefetch(b->vocab, q->at[i].left_hash, step);
            vocab_prefetch(b->vocab, q->at[i].right_hash, step);
        }
    }
    for (int i = 0; q && i < q->n; i++) {
        if (!resolve(b, &q->at[i], err))
            return false;
    }
    if (q) {
        q->n = 0;
        q->used = 0;
    }
    return true;
}

bool bpe_add_merge(Bpe *b, Str both, size_t left_len, uint32_t rank, Error *err)
{
    if (both.len > BPE_TOKEN_MAX)
        return err_set(err, ERR_FORMAT, "%s: merge %u makes a token of %zu bytes, at most %d",
                       b->vocab->doc, rank, both.len, BPE_TOKEN_MAX);
    if (!b->queue) {
        b->queue = mem_alloc(sizeof *b->queue);
        if (!b->queue)
            return err_nomem(err, b->vocab->doc, sizeof *b->queue);
        b->queue->n = 0;
        b->queue->used = 0;
    }
    BpeQueue *q = b->queue;
    if ((q->n == QUEUE || both.len > QUEUE_TEXT - q->used) && !flush(b, err))
        return false;
    char *text = q->text + q->used;
    memcpy(text, both.ptr, both.len);
    BpeQueued *m = &q->at[q->n++];
    *m = (BpeQueued){.left_hash = vocab_hash(text, left_len),
                     .right_hash = vocab_hash(text + left_len, both.len - left_len),
                     .rank = rank,
                     .at = q->used,
                     .left_len = (uint32_t)left_len,
                     .len = (uint32_t)both.len};
    q->used += m->len;
    vocab_prefetch(b->vocab, m->left_hash, 0);
    vocab_prefetch(b->vocab, m->right_hash, 0);
    return true;
}

bool bpe_index(Arena *a, Bpe *b, Error *err)
{
    if (!flush(b, err))
        return false;
    uint64_t size = 16;
    while (size < (uint64_t)b->n_merges + (uint64_t)b->n_merges / 2)
        size *= 2;
    b->pairs = ARENA_ARRAY(a, size, BpePair, err);
    if (!b->pairs)
        return false;
    b->mask = size - 1;
    uint64_t probes = (uint64_t)b->n_merges * 32 + 1024; /* a fair hash needs two or three each */
    for (int64_t i = 0; i < b->n_merges; i++) {
        enum { AHEAD = 12 }; /* slots on their way to the cache */
        if (i + AHEAD < b->n_merges) {
            const BpePair next = b->merges[i + AHEAD];
            __builtin_prefetch(&b->pairs[pair_hash(next.left, next.right) & b->mask], 1);
        }
        const BpePair m = b->merges[i];
        uint64_t at = pair_hash(m.left, m.right) & b->mask;
        while (b->pairs[at].id && (b->pairs[at].left != m.left || b->pairs[at].right != m.right)) {
            if (probes-- == 0)
                return err_set(err, ERR_FORMAT, "%s: the merges all hash alike", b->vocab->doc);
            at = (at + 1) & b->mask;
        }
        b->pairs[at] = m;
    }
    bpe_free(b);
    return true;
}

static const BpePair *pair_find(const Bpe *b, int32_t left, int32_t right)
{
    uint64_t at = pair_hash((uint32_t)left, (uint32_t)right) & b->mask;
    while (b->pairs[at].id) {
        if (b->pairs[at].left == (uint32_t)left && b->pairs[at].right == (uint32_t)right)
            return &b->pairs[at];
        at = (at + 1) & b->mask;
    }
    return NULL;
}

void bpe_pair(const Bpe *b, int32_t left, int32_t right, uint32_t *rank, int32_t *id)
{
    const BpePair *p = pair_find(b, left, right);
    if (p) {
        *rank = p->rank;
        *id = (int32_t)p->id - 1;
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
    uint32_t rank[SCAN_MAX];
    int32_t joined[SCAN_MAX];
    for (int i = 0; i + 1 < n; i++) {
        const BpePair *p = pair_find(b, ids[i], ids[i + 1]);
        rank[i] = p ? p->rank : UINT32_MAX;
        joined[i] = p ? (int32_t)p->id - 1 : -1;
    }
    while (n > 1) {
        int best = -1;
        uint32_t lowest = UINT32_MAX;
        for (int i = 0; i + 1 < n; i++) {
            if (rank[i] < lowest) {
                lowest = rank[i];
                best = i;
            }
        }
        if (best < 0)
            break;
        ids[best] = joined[best];
        n--;
        for (int i = best + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (int i = best + 1; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            joined[i] = joined[i + 1];
        }
        for (int i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const BpePair *p = pair_find(b, ids[i], ids[i + 1]);
            rank[i] = p ? p->rank : UINT32_MAX;
            joined[i] = p ? (int32_t)p->id - 1 : -1;
        }
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
    const BpePair *p = pair_find(b, w->syms[at].id, w->syms[next].id);
    if (!p)
        return true;
    return bpe_heap_push(w, (BpeCand){p->rank, at, (int32_t)p->id - 1}, err);
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
        const BpePair *p = pair_find(b, left->id, right->id);
        if (!p || (int32_t)p->id - 1 != c.id || p->rank != c.rank)
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
    for (size_t i = 0; i < piece.len; i++) {
        int32_t id = b->byte_id[(unsigned char)piece.ptr[i]];
        if (id < 0)
            id = b->unk;
        if (id >= 0)
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
    if (piece.len == 1 && b->byte_id[(unsigned char)piece.ptr[0]] >= 0)
        return bpe_push(w, b->byte_id[(unsigned char)piece.ptr[0]], err);
    const uint64_t hash = vocab_hash(piece.ptr, piece.len);
    bool hit;
    if (!bpe_recall(w, piece, hash, &hit, err))
        return false;
    if (hit)
        return true;
    const int64_t from = w->n;
    int32_t whole = -1;
    if (b->ignore_merges)
        whole = vocab_find_hashed(b->vocab, piece.ptr, piece.len, hash);
    if (whole >= 0) {
        if (!bpe_push(w, whole, err))
            return false;
    } else if (piece.len > SCAN_MAX) {
        return encode_long(b, w, piece, err);
    } else {
        int32_t ids[SCAN_MAX];
        int n = 0;
        for (size_t i = 0; i < piece.len; i++) {
            int32_t id = b->byte_id[(unsigned char)piece.ptr[i]];
            if (id < 0)
                id = b->unk;
            if (id >= 0)
                ids[n++] = id;
        }
        n = merge_scan(b, ids, n);
        for (int i = 0; i < n; i++) {
            if (!bpe_push(w, ids[i], err))
                return false;
        }
    }
    bpe_remember(w, piece, hash, from);
    return true;
}
