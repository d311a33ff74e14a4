#include "text/charbpe.h"

#include "base/mem.h"
#include "text/utf8.h"

enum {
    SCAN_MAX = 32,         /* symbols up to which scanning for the best rank beats a heap */
    TEXT_MAX = 0x7FFFFFFF, /* symbols and bytes are numbered by int32 */
    UNKNOWN = -2           /* id of a character that is no token; -1 is joined into its left */
};

/* What two neighbours would become; id -1: nothing. */
static BpeCand candidate(const CharBpe *b, const BpeWork *w, const char *text, int32_t left)
{
    const BpeSym *l = &w->syms[left];
    const BpeSym *r = &w->syms[l->next];
    BpeCand c = {.at = left, .id = -1};
    if (b->merges) {
        if (l->id >= 0 && r->id >= 0)
            bpe_pair(b->merges, l->id, r->id, &c.rank, &c.id);
        return c;
    }
    const uint32_t len = r->end - l->start;
    if (len > b->longest)
        return c;
    c.id = vocab_find(b->vocab, (Str){text + l->start, len});
    if (c.id >= 0) {
        c.rank = b->rank[c.id];
        if (c.rank == UINT32_MAX)
            c.id = -1;
    }
    return c;
}

static void join(BpeWork *w, BpeCand c)
{
    BpeSym *left = &w->syms[c.at];
    BpeSym *right = &w->syms[left->next];
    left->id = c.id;
    left->end = right->end;
    right->id = -1;
    left->next = right->next;
    if (left->next >= 0)
        w->syms[left->next].prev = c.at;
}

/* n symbols, at most SCAN_MAX. */
static void merge_scan(const CharBpe *b, BpeWork *w, const char *text, int32_t n)
{
    BpeCand cand[SCAN_MAX]; /* of the symbol and its right neighbour */
    for (int32_t i = 0; i + 1 < n; i++)
        cand[i] = candidate(b, w, text, i);
    cand[n - 1].id = -1;
    for (;;) {
        int32_t best = -1;
        for (int32_t i = 0; i >= 0; i = w->syms[i].next) {
            if (cand[i].id >= 0 && (best < 0 || cand[i].rank < cand[best].rank))
                best = i;
        }
        if (best < 0)
            return;
        join(w, cand[best]);
        const BpeSym *s = &w->syms[best];
        cand[best].id = -1;
        if (s->next >= 0)
            cand[best] = candidate(b, w, text, best);
        if (s->prev >= 0)
            cand[s->prev] = candidate(b, w, text, s->prev);
    }
}

static bool push_pair(const CharBpe *b, BpeWork *w, const char *text, int32_t at, Error *err)
{
    if (at < 0 || w->syms[at].next < 0)
        return true;
    const BpeCand c = candidate(b, w, text, at);
    return c.id < 0 || bpe_heap_push(w, c, err);
}

static bool merge_heap(const CharBpe *b, BpeWork *w, const char *text, int32_t n, Error *err)
{
    w->heap_n = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        if (!push_pair(b, w, text, i, err))
            return false;
    }
    while (w->heap_n > 0) {
        const BpeCand c = bpe_heap_pop(w);
        const BpeSym *left = &w->syms[c.at];
        if (left->id == -1 || left->next < 0)
            continue;
        const BpeCand now = candidate(b, w, text, c.at);
        if (now.id != c.id || now.rank != c.rank)
            continue; /* either side was joined meanwhile */
        join(w, c);
        if (!push_pair(b, w, text, left->prev, err) || !push_pair(b, w, text, c.at, err))
            return false;
    }
    return true;
}

static bool reserve(BpeWork *w, size_t n, Error *err)
{
    if ((int64_t)n <= w->syms_cap)
        return true;
    const int64_t cap = (int64_t)n + (int64_t)n / 2 + 64;
    BpeSym *syms = mem_realloc(w->syms, (size_t)cap * sizeof *syms);
    if (!syms)
        return err_nomem(err, "tokenizer", (size_t)cap * sizeof *syms);
    w->syms = syms;
    w->syms_cap = cap;
    return true;
}

static int32_t char_id(const CharBpe *b, Str c, bool last)
{
    char ended[5];
    if (last && b->word_end) {
        memcpy(ended, c.ptr, c.len);
        ended[c.len] = ' ';
        c = (Str){ended, c.len + 1};
    }
    const int32_t id = vocab_find(b->vocab, c);
    return id < 0 ? UNKNOWN : id;
}

/* Unknown characters give nothing, and those around them join. */
static bool drops(const CharBpe *b)
{
    return b->merges && b->unknown.unk < 0 && !b->unknown.bytes;
}

/* A part that nothing outside can join. */
static bool encode_part(const CharBpe *b, BpeWork *w, Str text, Error *err)
{
    if (text.len > TEXT_MAX)
        return err_set(err, ERR_TOO_LONG, "a piece of %zu bytes", text.len);
    if (!reserve(w, text.len, err))
        return false;
    int32_t n = 0;
    for (size_t i = 0; i < text.len;) {
        const size_t len = b->bytes ? 1 : utf8_step(text.ptr[i]);
        const int32_t id = char_id(b, (Str){text.ptr + i, len}, i + len == text.len);
        if (id == UNKNOWN && drops(b)) {
            i += len;
            continue;
        }
        w->syms[n] = (BpeSym){.id = id,
                              .prev = n - 1,
                              .next = n + 1,
                              .start = (uint32_t)i,
                              .end = (uint32_t)(i + len)};
        n++;
        i += len;
    }
    if (n == 0)
        return true;
    w->syms[n - 1].next = -1;
    if (n <= SCAN_MAX)
        merge_scan(b, w, text.ptr, n);
    else if (!merge_heap(b, w, text.ptr, n, err))
        return false;
    for (int32_t i = 0; i >= 0; i = w->syms[i].next) {
        const BpeSym *s = &w->syms[i];
        if (s->id >= 0 ? !bpe_push(w, s->id, err)
                       : !fallback_push(&b->unknown, w,
                                        (Str){text.ptr + s->start, s->end - s->start}, err))
            return false;
    }
    return true;
}

bool charbpe_encode(const CharBpe *b, BpeWork *w, Str text, Error *err)
{
    if (b->ignore_merges && text.len <= TEXT_MAX) {
        const int32_t whole = vocab_find(b->vocab, text);
        if (whole >= 0)
            return bpe_push(w, whole, err);
    }
    while (text.len > 0) {
        const bool all = b->bytes || b->word_end || drops(b);
        const Str part = {text.ptr, all ? text.len : joins_part(&b->joins, text)};
        const uint64_t hash = vocab_hash(part.ptr, part.len);
        bool hit;
        if (!bpe_recall(w, part, hash, &hit, err))
            return false;
        const int64_t from = w->n;
        if (!hit) {
            if (!encode_part(b, w, part, err))
                return false;
            if (w->unk_end < from) /* what an unknown gives depends on what was before */
                bpe_remember(w, part, hash, from);
        }
        text = (Str){text.ptr + part.len, text.len - part.len};
    }
    return true;
}
