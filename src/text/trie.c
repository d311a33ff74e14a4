#include "text/trie.h"

#include "base/mem.h"

#include <stdlib.h>

/* A token and its first eight bytes, big-endian, which put most in their order. */
typedef struct Key {
    uint64_t head;
    const char *text;
    uint32_t len;
    int32_t id;
} Key;

static uint64_t head_of(Str s)
{
    uint64_t h = 0;
    for (size_t i = 0; i < 8; i++)
        h = h << 8 | (i < s.len ? (unsigned char)s.ptr[i] : 0);
    return h;
}

/* Of equal heads. */
static int by_bytes(const void *a, const void *b)
{
    const Key *x = a;
    const Key *y = b;
    const uint32_t n = x->len < y->len ? x->len : y->len;
    const int c = memcmp(x->text, y->text, n);
    if (c)
        return c;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Ascending by head, a byte at a time from the last; equal heads stay in their order. After eight
 * turns the keys are back in their own place. */
static void sort_by_head(Key *keys, Key *spare, int64_t n)
{
    int64_t count[8][256] = {{0}};
    for (int64_t i = 0; i < n; i++) {
        for (int b = 0; b < 8; b++)
            count[b][keys[i].head >> 8 * b & 255]++;
    }
    Key *from = keys;
    Key *to = spare;
    for (int b = 0; b < 8; b++) {
        int64_t next = 0;
        for (int v = 0; v < 256; v++) {
            const int64_t have = count[b][v];
            count[b][v] = next;
            next += have;
        }
        for (int64_t i = 0; i < n; i++)
            to[count[b][from[i].head >> 8 * b & 255]++] = from[i];
        Key *const t = from;
        from = to;
        to = t;
    }
}

/* Ascending by bytes, then by id. */
static void sort(Key *keys, Key *spare, int64_t n)
{
    sort_by_head(keys, spare, n);
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        while (end < n && keys[end].head == keys[i].head)
            end++;
        if (end - i > 1)
            qsort(&keys[i], (size_t)(end - i), sizeof *keys, by_bytes);
        i = end;
    }
}

static int64_t collect(const Vocab *v, unsigned without, Key *keys)
{
    int64_t n = 0;
    for (int id = 0; id < v->n; id++) {
        const Str s = vocab_has(v, id) ? vocab_bytes(v, id) : (Str){0};
        if (s.len == 0 || (v->flags[id] & (without | VOCAB_RAW)))
            continue;
        keys[n++] = (Key){head_of(s), s.ptr, (uint32_t)s.len, id};
    }
    return n;
}

/* Of tokens of the same bytes the first is kept; returns how many are. */
static int64_t drop_twins(Key *keys, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        const Key *last = kept ? &keys[kept - 1] : NULL;
        if (!last || last->len != keys[i].len || memcmp(last->text, keys[i].text, last->len) != 0)
            keys[kept++] = keys[i];
    }
    return kept;
}

/* Nodes: each byte of a sorted token that the one before does not share. */
static uint64_t count_nodes(const Key *keys, int64_t n)
{
    uint64_t nodes = 1;
    for (int64_t i = 0; i < n; i++) {
        uint32_t same = 0;
        while (i > 0 && same < keys[i - 1].len && same < keys[i].len &&
               keys[i - 1].text[same] == keys[i].text[same])
            same++;
        nodes += keys[i].len - same;
    }
    return nodes;
}

/* Tokens of a node that waits for its children: [lo, hi) share their first `depth` bytes. */
typedef struct Range {
    uint32_t lo, hi, depth;
} Range;

static uint32_t fill(const Key *keys, int64_t n, TrieNode *nodes, uint8_t *byte, Range *wait)
{
    uint32_t used = 1;
    wait[0] = (Range){0, (uint32_t)n, 0};
    for (uint32_t at = 0; at < used; at++) {
        Range r = wait[at];
        TrieNode *node = &nodes[at];
        *node = (TrieNode){.first = used, .id = -1};
        if (r.lo < r.hi && keys[r.lo].len == r.depth)
            node->id = keys[r.lo++].id;
        while (r.lo < r.hi) {
            const char c = keys[r.lo].text[r.depth];
            uint32_t end = r.lo + 1;
            while (end < r.hi && keys[end].text[r.depth] == c)
                end++;
            byte[used] = (uint8_t)c;
            wait[used++] = (Range){r.lo, end, r.depth + 1};
            node->n++;
            r.lo = end;
        }
    }
    return used;
}

bool trie_build(Arena *a, const Vocab *v, unsigned without, Trie *out, Error *err)
{
    *out = (Trie){0};
    Range *wait = NULL;
    bool ok = false;
    const size_t key_bytes = ((size_t)v->n + 1) * sizeof(Key);
    Key *keys = mem_alloc(key_bytes);
    Key *spare = mem_alloc(key_bytes);
    if (!keys || !spare) {
        mem_free(keys);
        mem_free(spare);
        return err_nomem(err, v->doc, key_bytes);
    }
    int64_t n = collect(v, without, keys);
    sort(keys, spare, n);
    mem_free(spare);
    n = drop_twins(keys, n);
    const uint64_t n_nodes = count_nodes(keys, n);
    if (n_nodes >= UINT32_MAX) {
        err_set(err, ERR_FORMAT, "%s: the vocabulary has more than 4 GiB", v->doc);
        goto done;
    }
    TrieNode *nodes = ARENA_ARRAY(a, n_nodes, TrieNode, err);
    uint8_t *byte = ARENA_ARRAY(a, n_nodes, uint8_t, err);
    if (!nodes || !byte)
        goto done;
    wait = mem_alloc(n_nodes * sizeof *wait);
    if (!wait) {
        err_nomem(err, v->doc, n_nodes * sizeof *wait);
        goto done;
    }
    out->n_nodes = fill(keys, n, nodes, byte, wait);
    out->nodes = nodes;
    out->byte = byte;
    ok = true;
done:
    mem_free(wait);
    mem_free(keys);
    return ok;
}
