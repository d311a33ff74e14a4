#include "text/joins.h"

void joins_build(Joins *j, const Vocab *v)
{
    memset(j, 0, sizeof *j);
    for (int id = 0; id < v->n; id++) {
        if (!vocab_has(v, id) || (v->flags[id] & VOCAB_RAW))
            continue;
        const Str s = vocab_bytes(v, id);
        const unsigned char *p = (const unsigned char *)s.ptr;
        for (size_t i = 1; i < s.len; i++)
            j->bits[p[i - 1]][p[i] >> 3] |= (uint8_t)(1U << (p[i] & 7U));
    }
}
