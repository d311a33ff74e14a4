#include "text/vocab.h"

#include "base/mem.h"
#include "text/tokenizer.h"

void vocab_init(Vocab *v, const char *doc)
{
    *v = (Vocab){.doc = doc};
}

void vocab_free(Vocab *v)
{
    if (!v->frozen) {
        mem_free(v->blob);
        mem_free(v->tokens);
        mem_free(v->flags);
    }
    *v = (Vocab){.doc = v->doc};
}

static bool grow_ids(Vocab *v, int n, Error *err)
{
    if (n <= v->cap)
        return true;
    int cap = v->cap ? v->cap * 2 : 1024;
    if (cap < n)
        cap = n;
    VocabToken *tokens = mem_realloc(v->tokens, (size_t)cap * sizeof *tokens);
    if (!tokens)
        return err_nomem(err, v->doc, (size_t)cap * sizeof *tokens);
    v->tokens = tokens;
    uint8_t *flags = mem_realloc(v->flags, (size_t)cap);
    if (!flags)
        return err_nomem(err, v->doc, (size_t)cap);
    v->flags = flags;
    memset(tokens + v->cap, 0, (size_t)(cap - v->cap) * sizeof *tokens);
    memset(flags + v->cap, 0, (size_t)(cap - v->cap));
    v->cap = cap;
    return true;
}

static bool set_bytes(Vocab *v, int id, Str bytes, Error *err)
{
    if (bytes.len > UINT32_MAX - v->blob_len)
        return err_set(err, ERR_FORMAT, "%s: the vocabulary has more than 4 GiB", v->doc);
    if (!v->blob || v->blob_len + bytes.len > v->blob_cap) {
        const size_t cap = (v->blob_len + bytes.len) * 2 + 4096;
        char *blob = mem_realloc(v->blob, cap);
        if (!blob)
            return err_nomem(err, v->doc, cap);
        v->blob = blob;
        v->blob_cap = cap;
    }
    if (bytes.len)
        memcpy(v->blob + v->blob_len, bytes.ptr, bytes.len);
    v->tokens[id] = (VocabToken){(uint32_t)v->blob_len, (uint32_t)bytes.len};
    v->blob_len += bytes.len;
    return true;
}

static bool room(Vocab *v, int64_t id, Error *err)
{
    if (id < 0 || id >= TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_FORMAT, "%s: token id %lld, wanted 0 to %d", v->doc, (long long)id,
                       TOKENIZER_VOCAB_MAX - 1);
    if (!grow_ids(v, (int)id + 1, err))
        return false;
    if (id >= v->n)
        v->n = (int)id + 1;
    return true;
}

bool vocab_add(Vocab *v, int64_t id, Str bytes, unsigned flags, Error *err)
{
    if (!room(v, id, err))
        return false;
    if (v->flags[id] & VOCAB_SET)
        return err_set(err, ERR_FORMAT, "%s: token id %lld is given twice", v->doc, (long long)id);
    if (!set_bytes(v, (int)id, bytes, err))
        return false;
    v->flags[id] = (uint8_t)(flags | VOCAB_SET);
    return true;
}

bool vocab_set_added(Vocab *v, int64_t id, Str bytes, bool special, Error *err)
{
    if (!room(v, id, err))
        return false;
    const bool same = (v->flags[id] & VOCAB_SET) && str_eq(vocab_bytes(v, (int32_t)id), bytes);
    if (!same && !set_bytes(v, (int)id, bytes, err))
        return false;
    v->flags[id] |= (uint8_t)(VOCAB_SET | VOCAB_ADDED | (special ? VOCAB_SPECIAL : 0));
    return true;
}

/* Multiply and fold, eight bytes at a time. Not secret: vocab_index bounds its probes instead, and
 * caches of pieces replace rather than chain. */
uint64_t vocab_hash(const char *s, size_t len)
{
    const uint64_t k = 0x9E3779B97F4A7C15U;
    uint64_t h = len * 0xD6E8FEB86659FD93U;
    uint64_t w;
    while (len >= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * k;
        h ^= h >> 29;
        s += 8;
        len -= 8;
    }
    w = 0;
    if (len >= 4) {
        uint32_t lo;
        uint32_t hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + len - 4, 4);
        w = (uint64_t)hi << 32 | lo;
    } else if (len > 0) {
        w = (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[len / 2] << 8 |
            (uint64_t)(unsigned char)s[len - 1] << 16;
    }
    h = (h ^ w) * k;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93U;
    return h ^ h >> 29;
}

bool vocab_index(Arena *a, Vocab *v, Error *err)
{
    uint64_t size = 512;
    while (size < (uint64_t)v->n * 2)
        size *= 2;
    v->slots = ARENA_ARRAY(a, size, uint64_t, err);
    if (!v->slots)
        return false;
    v->mask = size - 1;
    /* A fair hash needs under two probes a token at this load. */
    uint64_t budget = (uint64_t)v->n * 32 + 1024;
    for (int id = 0; id < v->n; id++) {
        if (!(v->flags[id] & VOCAB_SET) || (v->flags[id] & VOCAB_RAW))
            continue;
        const Str s = vocab_bytes(v, id);
        const uint64_t h = vocab_hash(s.ptr, s.len);
        const uint64_t tag = h >> 32 << 32;
        uint64_t at = h & v->mask;
        bool twice = false;
        for (; v->slots[at]; at = (at + 1) & v->mask) {
            if (budget-- == 0)
                return err_set(err, ERR_FORMAT, "%s: the vocabulary's tokens all hash alike",
                               v->doc);
            if ((v->slots[at] ^ tag) >> 32 == 0 &&
                str_eq(vocab_bytes(v, (int32_t)(uint32_t)v->slots[at] - 1), s)) {
                twice = true;
                break;
            }
        }
        if (!twice)
            v->slots[at] = tag | (uint32_t)(id + 1);
    }
    return true;
}

bool vocab_freeze(Arena *a, Vocab *v, Error *err)
{
    char *blob = arena_take(a, v->blob_len, 1, err);
    VocabToken *tokens = ARENA_ARRAY(a, v->n, VocabToken, err);
    uint8_t *flags = ARENA_ARRAY(a, v->n, uint8_t, err);
    if (!blob || !tokens || !flags)
        return false;
    if (v->blob_len)
        memcpy(blob, v->blob, v->blob_len);
    if (v->n) {
        memcpy(tokens, v->tokens, (size_t)v->n * sizeof *tokens);
        memcpy(flags, v->flags, (size_t)v->n);
    }
    mem_free(v->blob);
    mem_free(v->tokens);
    mem_free(v->flags);
    v->blob = blob;
    v->tokens = tokens;
    v->flags = flags;
    v->frozen = true;
    return true;
}

int32_t vocab_find_hashed(const Vocab *v, const char *s, size_t len, uint64_t hash)
{
    if (!v->slots)
        return -1;
    const uint64_t tag = hash >> 32 << 32;
    for (uint64_t at = hash & v->mask; v->slots[at]; at = (at + 1) & v->mask) {
        const int32_t id = (int32_t)(uint32_t)v->slots[at] - 1;
        if ((v->slots[at] ^ tag) >> 32 == 0 && v->tokens[id].len == len &&
            memcmp(v->blob + v->tokens[id].off, s, len) == 0)
            return id;
    }
    return -1;
}

int32_t vocab_find(const Vocab *v, Str bytes)
{
    return vocab_find_hashed(v, bytes.ptr, bytes.len, vocab_hash(bytes.ptr, bytes.len));
}
