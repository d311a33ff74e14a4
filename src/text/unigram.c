#include "text/unigram.h"

#include "base/mem.h"
#include "text/utf8.h"

#include <math.h>

struct UnigramCell {
    double score;
    uint32_t from; /* where the last token of the best path starts */
    int32_t id;    /* that token; -1: an unknown character */
};

enum {
    TEXT_MAX = 0x7FFFFFFF,
    EXACT_MAX = 4096 /* bytes of a piece that is encoded again as a whole after a near tie */
};

/* Two paths this near may change places with the rounding of what was before them. */
static const double near_tie = 1e-7;

bool unigram_build(Arena *a, Unigram *u, const Vocab *v, const double *score, unsigned without,
                   Error *err)
{
    u->vocab = v;
    u->score = score;
    double lowest = HUGE_VAL;
    for (int id = 0; id < v->n; id++) {
        if (!vocab_has(v, id) || (v->flags[id] & (VOCAB_RAW | without)))
            continue;
        if (score[id] < lowest)
            lowest = score[id];
    }
    u->unk_score = (isfinite(lowest) ? lowest : 0.0) - 10.0;
    joins_build(&u->joins, v);
    return trie_build(a, v, without, &u->trie, err);
}

static bool reserve(BpeWork *w, size_t n, Error *err)
{
    if ((int64_t)n <= w->cells_cap)
        return true;
    const int64_t cap = (int64_t)n + (int64_t)n / 2 + 64;
    UnigramCell *cells = mem_realloc(w->cells, (size_t)cap * sizeof *cells);
    if (!cells)
        return err_nomem(err, "tokenizer", (size_t)cap * sizeof *cells);
    w->cells = cells;
    w->cells_cap = cap;
    return true;
}

/* Returns whether the two were nearly equal. */
static bool take(UnigramCell *to, double score, size_t from, int32_t id)
{
    const bool near = fabs(score - to->score) < near_tie;
    if (score > to->score)
        *to = (UnigramCell){score, (uint32_t)from, id};
    return near;
}

/* Returns whether there was a near tie. */
static bool forward(const Unigram *u, UnigramCell *cells, Str text)
{
    const TrieNode *nodes = u->trie.nodes;
    bool near = false;
    cells[0] = (UnigramCell){.id = -1};
    for (size_t i = 1; i <= text.len; i++)
        cells[i].score = -HUGE_VAL;
    for (size_t i = 0; i < text.len;) {
        const size_t len = utf8_step(text.ptr[i]);
        const double so_far = cells[i].score;
        bool single = false;
        uint32_t node = 0;
        for (size_t k = i; k < text.len; k++) {
            node = trie_step(&u->trie, node, (uint8_t)text.ptr[k]);
            if (!node)
                break;
            const int32_t id = nodes[node].id;
            if (id < 0)
                continue;
            /* A file may name an ordinary token as the unknown one; its runs are joined too. */
            near |= take(&cells[k + 1], so_far + u->score[id], i, id == u->unknown.unk ? -1 : id);
            single = single || k + 1 == i + len;
        }
        if (!single)
            near |= take(&cells[i + len], so_far + u->unk_score, i, -1);
        i += len;
    }
    return near;
}

/* A part that no token reaches out of. *near: it has a near tie. */
static bool encode_part(const Unigram *u, BpeWork *w, Str text, bool *near, Error *err)
{
    if (text.len > TEXT_MAX)
        return err_set(err, ERR_TOO_LONG, "a piece of %zu bytes", text.len);
    if (!reserve(w, text.len + 1, err))
        return false;
    UnigramCell *cells = w->cells;
    *near = forward(u, cells, text);
    /* Turn the path around: `from` becomes the end of the token that starts here. */
    uint32_t end = (uint32_t)text.len;
    uint32_t next = 0;
    int32_t next_id = -1;
    for (uint32_t at = end;;) {
        const UnigramCell c = cells[at];
        cells[at].from = next;
        cells[at].id = next_id;
        if (at == 0)
            break;
        next = at;
        next_id = c.id;
        at = c.from;
    }
    for (uint32_t at = 0; at < end;) {
        const UnigramCell c = cells[at];
        if (c.id >= 0 ? !bpe_push(w, c.id, err)
                      : !fallback_push(&u->unknown, w, (Str){text.ptr + at, c.from - at}, err))
            return false;
        at = c.from;
    }
    return true;
}

bool unigram_encode(const Unigram *u, BpeWork *w, Str text, Error *err)
{
    const Str whole = text;
    const int64_t whole_from = w->n;
    bool near;
    while (text.len > 0) {
        const Str part = {text.ptr, joins_part(&u->joins, text)};
        const uint64_t hash = vocab_hash(part.ptr, part.len);
        bool hit;
        if (!bpe_recall(w, part, hash, &hit, err))
            return false;
        const int64_t from = w->n;
        if (!hit) {
            if (!encode_part(u, w, part, &near, err))
                return false;
            if (near && part.len < whole.len && whole.len <= EXACT_MAX) {
                w->n = whole_from;
                w->unk_end = -1;
                return encode_part(u, w, whole, &near, err);
            }
            if (w->unk_end < from && !near)
                bpe_remember(w, part, hash, from);
        }
        text = (Str){text.ptr + part.len, text.len - part.len};
    }
    return true;
}
