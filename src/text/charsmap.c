#include "text/charsmap.h"

bool charsmap_open(Arena *a, const char *doc, Str blob, Charsmap *out, Error *err)
{
    *out = (Charsmap){0};
    if (blob.len == 0)
        return true;
    uint32_t bytes = 0;
    if (blob.len < 4)
        return err_set(err, ERR_FORMAT, "%s: the precompiled map of characters has %zu bytes", doc,
                       blob.len);
    for (int i = 3; i >= 0; i--)
        bytes = bytes << 8 | (unsigned char)blob.ptr[i];
    if (bytes % 4 != 0 || bytes < 4 || bytes > blob.len - 4)
        return err_set(err, ERR_FORMAT,
                       "%s: the precompiled map of characters says %u bytes of trie, it has %zu",
                       doc, bytes, blob.len - 4);
    uint32_t *units = ARENA_ARRAY(a, bytes / 4, uint32_t, err);
    if (!units)
        return false;
    for (uint32_t i = 0; i < bytes / 4; i++) {
        const unsigned char *p = (const unsigned char *)blob.ptr + 4 + (size_t)i * 4;
        units[i] =
            (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
    const Str texts = {blob.ptr + 4 + bytes, blob.len - 4 - bytes};
    const char *copy = arena_strdup(a, texts.ptr, texts.len, err);
    if (!copy)
        return false;
    *out = (Charsmap){units, bytes / 4, {copy, texts.len}};
    return true;
}

/* A unit of the double array: bit 31 marks a value; else bits 0-7 the label, bit 8 whether a value
 * hangs below, bits 10-30 the offset, times 256 with bit 9. */
static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200U) >> 6);
}

static Str find(const Charsmap *m, Str text, bool longest, size_t *used)
{
    Str best = {"", 0};
    *used = 0;
    if (m->n_units == 0)
        return best;
    uint32_t at = offset_of(m->units[0]);
    for (size_t i = 0; i < text.len; i++) {
        const uint32_t c = (unsigned char)text.ptr[i];
        at ^= c;
        if (c == 0 || at >= m->n_units)
            break;
        const uint32_t unit = m->units[at];
        if ((unit & 0x800000FFU) != c)
            break;
        at ^= offset_of(unit);
        if (at >= m->n_units)
            break;
        if (!(unit & 0x100U))
            continue;
        const uint32_t value = m->units[at] & 0x7FFFFFFFU;
        if (value >= m->texts.len)
            break;
        const char *to = m->texts.ptr + value;
        const char *nul = memchr(to, '\0', m->texts.len - value);
        best = (Str){to, nul ? (size_t)(nul - to) : m->texts.len - value};
        *used = i + 1;
        if (!longest)
            break;
    }
    return best;
}

Str charsmap_longest(const Charsmap *m, Str text, size_t *used)
{
    return find(m, text, true, used);
}

Str charsmap_shortest(const Charsmap *m, Str text, size_t *used)
{
    return find(m, text, false, used);
}
