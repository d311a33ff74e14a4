#include "text/wordpiece.h"

#include "text/utf8.h"

bool wordpiece_encode(const WordPiece *p, BpeWork *w, Str word, Error *err)
{
    const uint64_t hash = vocab_hash(word.ptr, word.len);
    bool hit;
    if (!bpe_recall(w, word, hash, &hit, err))
        return false;
    if (hit)
        return true;
    const int64_t from = w->n;
    bool known = p->max_chars == 0 || utf8_count(word) <= (size_t)p->max_chars;
    for (size_t at = 0; known && at < word.len;) {
        uint32_t node = at == 0 ? trie_step(&p->trie, 0, ' ') : 0;
        size_t end = at;
        int32_t best = -1;
        /* The root is 0 too. Tokens with a space before them only start words. */
        bool on = at > 0 ? word.ptr[at] != ' ' : node != 0;
        for (size_t i = at; on && i < word.len; i++) {
            node = trie_step(&p->trie, node, (uint8_t)word.ptr[i]);
            on = node != 0;
            if (!on)
                continue;
            if (p->trie.nodes[node].id >= 0) {
                best = p->trie.nodes[node].id;
                end = i + 1;
            }
        }
        known = best >= 0;
        if (known && !bpe_push(w, best, err))
            return false;
        at = end;
    }
    if (!known) {
        w->n = from;
        if (p->unk >= 0 && !bpe_push(w, p->unk, err))
            return false;
    }
    bpe_remember(w, word, hash, from);
    return true;
}
