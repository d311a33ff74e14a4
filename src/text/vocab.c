#include "text/vocab.h"

#include "base/mem.h"
#include "text/tokenizer.h"

void vocab_init(Vocab *v, const char *doc)
{
    *v = (Vocab){.doc = doc};
}

void vocab_free(Vocab *v)
{
    mem_free(v->blob);
    mem_free(v->tokens);
    mem_free(v->flags);
    mem_unmap(v->slots, (size_t)v->n_slots * sizeof *v->slots);
    *v = (Vocab){.doc = v->doc};
}

static bool set_cap(Vocab *v, int cap, Error *err)
{
    VocabToken *tokens = mem_realloc(v->tokens, (size_t)cap * sizeof *tokens);
    if (!tokens)
        return err_nomem(err, v->doc, (size_t)cap * sizeof *tokens);
    v->tokens = tokens;
    uint8_t *flags = mem_realloc(v->flags, (size_t)cap);
    if (!flags)
        return err_nomem(err, v->doc, (size_t)cap);
    v->flags = flags;
    v->cap = cap;
    return true;
}

static bool set_blob(Vocab *v, size_t cap, Error *err)
{
    char *blob = mem_realloc(v->blob, cap);
    if (!blob)
        return err_nomem(err, v->doc, cap);
    v->blob = blob;
    v->blob_cap = cap;
    return true;
}

bool vocab_reserve(Vocab *v, int64_t n, Error *err)
{
    const int cap = n < TOKENIZER_VOCAB_MAX ? (int)n : TOKENIZER_VOCAB_MAX;
    const size_t bytes = (size_t)cap * 8;
    return (cap <= v->cap || set_cap(v, cap, err)) &&
           (bytes <= v->blob_cap || set_blob(v, bytes, err));
}

static bool room(Vocab *v, int64_t id, Error *err)
{
    if (id < 0 || id >= TOKENIZER_VOCAB_MAX)
        return err_set(err, ERR_FORMAT, "%s: token id %lld, wanted 0 to %d", v->doc, (long long)id,
                       TOKENIZER_VOCAB_MAX - 1);
    if (id >= v->cap) {
        int cap = v->cap ? v->cap * 2 : 1024;
        if (cap <= id)
            cap = (int)id + 1;
        if (!set_cap(v, cap, err))
            return false;
    }
    for (; v->n <= id; v->n++) {
        v->tokens[v->n] = (VocabToken){0};
        v->flags[v->n] = 0;
    }
    return true;
}

char *vocab_begin(Vocab *v, size_t len, Error *err)
{
    len += VOCAB_PAD; /* vocab_key_padded */
    if (len > UINT32_MAX - v->blob_len) {
        err_set(err, ERR_FORMAT, "%s: the vocabulary has more than 4 GiB", v->doc);
        return NULL;
    }
    if ((!v->blob || v->blob_len + len > v->blob_cap) &&
        !set_blob(v, (v->blob_len + len) * 2 + 4096, err))
        return NULL;
    return v->blob + v->blob_len;
}

static void set_token(Vocab *v, int64_t id, size_t len)
{
    v->tokens[id] = (VocabToken){(uint32_t)v->blob_len, (uint32_t)len};
    v->blob_len += len;
}

bool vocab_end(Vocab *v, int64_t id, size_t len, unsigned flags, Error *err)
{
    if (!room(v, id, err))
        return false;
    if (v->flags[id] & VOCAB_SET)
        return err_set(err, ERR_FORMAT, "%s: token id %lld is given twice", v->doc, (long long)id);
    set_token(v, id, len);
    v->flags[id] = (uint8_t)(flags | VOCAB_SET);
    return true;
}

bool vocab_add(Vocab *v, int64_t id, Str bytes, unsigned flags, Error *err)
{
    char *to = vocab_begin(v, bytes.len, err);
    if (!to)
        return false;
    if (bytes.len)
        memcpy(to, bytes.ptr, bytes.len);
    return vocab_end(v, id, bytes.len, flags, err);
}

bool vocab_set_added(Vocab *v, int64_t id, Str bytes, bool special, Error *err)
{
    if (!room(v, id, err))
        return false;
    const bool same = (v->flags[id] & VOCAB_SET) && str_eq(vocab_bytes(v, (int32_t)id), bytes);
    if (!same) {
        char *to = vocab_begin(v, bytes.len, err);
        if (!to)
            return false;
        if (bytes.len)
            memcpy(to, bytes.ptr, bytes.len);
        set_token(v, id, bytes.len);
        v->flags[id] |= VOCAB_RAW;
    }
    v->flags[id] |= (uint8_t)(VOCAB_SET | VOCAB_ADDED | (special ? VOCAB_SPECIAL : 0));
    return true;
}

/* Multiply and fold. Not secret: vocab_index bounds its probes instead, and caches of pieces
 * replace rather than chain. */
static uint64_t fold(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93U;
    return h ^ h >> 29;
}

/* Of a longer string: its bytes eight at a time, the last eight overlapping. */
static uint64_t hash_long(const char *s, size_t len)
{
    const uint64_t k = 0x9E3779B97F4A7C15U;
    uint64_t h = len * 0xD6E8FEB86659FD93U;
    uint64_t w;
    for (size_t i = 0; i + 8 < len; i += 8) {
        memcpy(&w, s + i, 8);
        h = (h ^ w) * k;
        h ^= h >> 29;
    }
    memcpy(&w, s + len - 8, 8);
    return fold((h ^ w) * k);
}

static VocabKey key_long(const char *s, size_t len)
{
    uint64_t w;
    const uint64_t hash = hash_long(s, len);
    memcpy(&w, s, 8);
    return (VocabKey){w << 8 | (len < 255 ? len : 255), (uint32_t)(hash >> 32), hash};
}

static VocabKey key_short(uint64_t lo, uint32_t hi)
{
    return (VocabKey){lo, hi, fold((lo ^ (uint64_t)hi << 27) * 0x9E3779B97F4A7C15U ^ hi)};
}

#define SEVEN 0xFFFFFFFFFFFFFFU /* bytes */

VocabKey vocab_key_padded(const char *s, size_t len)
{
    static const uint64_t lo_mask[] = {0,          0xFF,         0xFFFF,         0xFFFFFF,
                                       0xFFFFFFFF, 0xFFFFFFFFFF, 0xFFFFFFFFFFFF, SEVEN,
                                       SEVEN,      SEVEN,        SEVEN,          SEVEN};
    static const uint32_t hi_mask[] = {0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF};
    uint64_t w;
    uint32_t hi;
    if (len > VOCAB_INLINE)
        return key_long(s, len);
    memcpy(&w, s, 8);
    memcpy(&hi, s + 7, 4);
    return key_short((w & lo_mask[len]) << 8 | len, hi & hi_mask[len]);
}

VocabKey vocab_key(const char *s, size_t len)
{
    uint64_t w = 0;
    uint32_t hi = 0;
    uint32_t a;
    uint32_t b;
    if (len > VOCAB_INLINE)
        return key_long(s, len);
    if (len >= 8) {
        memcpy(&w, s, 8);
        memcpy(&b, s + len - 4, 4);
        hi = b >> 8 * (VOCAB_INLINE - len);
    } else if (len >= 4) {
        memcpy(&a, s, 4);
        memcpy(&b, s + len - 4, 4);
        w = (uint64_t)b << 8 * (len - 4) | a;
    } else if (len > 0) {
        w = (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[len / 2] << 8 * (len / 2) |
            (uint64_t)(unsigned char)s[len - 1] << 8 * (len - 1);
    }
    return key_short(w << 8 | len, hi);
}

uint64_t vocab_hash(const char *s, size_t len)
{
    return vocab_key(s, len).hash;
}

/* Slots that a token of this key may be in agree in both. */
static bool alike(const VocabSlot *slot, VocabKey key)
{
    return slot->lo == key.lo && slot->hi == key.hi;
}

static bool same_token(const Vocab *v, const VocabSlot *slot, VocabKey key, const char *s,
                       size_t len)
{
    if (!alike(slot, key))
        return false;
    if (len <= VOCAB_INLINE)
        return true;
    const VocabToken t = v->tokens[slot->id - 1];
    return t.len == len && memcmp(v->blob + t.off, s, len) == 0;
}

bool vocab_index(Vocab *v, Error *err)
{
    enum { AHEAD = 16 }; /* slots on their way to the cache */
    VocabKey keys[AHEAD];
    const size_t size = (size_t)v->n + (size_t)v->n / 2 + 16;
    v->slots = mem_map(size * sizeof *v->slots);
    if (!v->slots)
        return err_nomem(err, v->doc, size * sizeof *v->slots);
    v->n_slots = (uint32_t)size;
    /* A fair hash needs about two probes a token at this load. */
    uint64_t budget = (uint64_t)v->n * 32 + 1024;
    for (int next = 0; next < v->n + AHEAD; next++) {
        const int id = next - AHEAD;
        if (id >= 0 && (v->flags[id] & VOCAB_SET) && !(v->flags[id] & VOCAB_RAW)) {
            const VocabKey key = keys[id % AHEAD];
            const Str s = vocab_bytes(v, id);
            VocabSlot *slot = &v->slots[vocab_slot(v, key)];
            while (slot->id && !same_token(v, slot, key, s.ptr, s.len)) {
                if (budget-- == 0)
                    return err_set(err, ERR_FORMAT, "%s: the vocabulary's tokens all hash alike",
                                   v->doc);
                slot = slot + 1 == v->slots + v->n_slots ? v->slots : slot + 1;
            }
            if (!slot->id)
                *slot = (VocabSlot){key.lo, key.hi, (uint32_t)id + 1};
        }
        if (next < v->n) {
            const Str s = vocab_bytes(v, next);
            keys[next % AHEAD] = vocab_key_padded(s.ptr, s.len);
            vocab_prefetch(v, keys[next % AHEAD]);
        }
    }
    return true;
}

bool vocab_freeze(Vocab *v, Error *err)
{
    if (v->n > 0 && !set_cap(v, v->n, err))
        return false;
    if (v->blob_len > 0 && !set_blob(v, v->blob_len + VOCAB_PAD, err))
        return false;
    v->bytes = v->blob_cap + (size_t)v->cap * (sizeof *v->tokens + 1) +
               (size_t)v->n_slots * sizeof *v->slots;
    return true;
}

int32_t vocab_find_key(const Vocab *v, const char *s, size_t len, VocabKey key)
{
    if (!v->slots)
        return -1;
    for (uint32_t at = vocab_slot(v, key); v->slots[at].id; at = at + 1 < v->n_slots ? at + 1 : 0) {
        if (same_token(v, &v->slots[at], key, s, len))
            return (int32_t)v->slots[at].id - 1;
    }
    return -1;
}

int32_t vocab_find(const Vocab *v, Str bytes)
{
    return vocab_find_key(v, bytes.ptr, bytes.len, vocab_key(bytes.ptr, bytes.len));
}
