#include "text/unisets.h"

#include "text/utf8.h"

#include <utf8proc.h>

/* The element of ascending ranges that holds cp, or NULL; each element of `size` bytes begins with
 * its UniRange. */
static const void *find(const void *at, size_t n, size_t size, uint32_t cp)
{
    const char *low = at;
    while (n > 0) {
        const char *middle = low + n / 2 * size;
        const UniRange *r = (const UniRange *)(const void *)middle;
        if (r->first <= cp && cp <= r->last)
            return middle;
        if (r->last < cp) {
            low = middle + size;
            n -= n / 2 + 1;
        } else {
            n /= 2;
        }
    }
    return NULL;
}

bool unisets_has(UniSet set, uint32_t cp)
{
    const UniTable *t = &unisets_tables[set];
    return find(t->at, t->n, sizeof *t->at, cp) != NULL;
}

static const UniMapped *mapped(const UniMap *m, uint32_t cp)
{
    return find(m->at, m->n, sizeof *m->at, cp);
}

uint32_t unisets_lower(uint32_t cp)
{
    const UniMapped *m = mapped(&unisets_map_lower, cp);
    return m ? m->to + (cp - m->from.first) : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

bool unisets_is_word(uint32_t cp)
{
    const UniMapped *m = mapped(&unisets_map_alike, cp);
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)(m ? m->to : cp));
    const bool symbol = (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
                        (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ND) || c == UTF8PROC_CATEGORY_NL ||
           c == UTF8PROC_CATEGORY_PC || cp == 0x200C || cp == 0x200D || symbol;
}

size_t unisets_newer(Str text)
{
    const uint64_t high = 0x8080808080808080U;
    size_t i = 0;
    while (i < text.len) {
        uint64_t w;
        if (text.len - i >= sizeof w) {
            memcpy(&w, text.ptr + i, sizeof w);
            if (!(w & high)) {
                i += sizeof w;
                continue;
            }
        }
        const unsigned lead = (unsigned char)text.ptr[i];
        /* None has two bytes, or lies in U+4000 to U+9FFF or above U+B000 below U+10000. */
        const bool maybe = lead >= 0xE0 && (lead < 0xE4 || lead == 0xEA || lead >= 0xF0);
        uint32_t cp;
        if (maybe && utf8_decode(text.ptr + i, text.len - i, &cp) > 0 &&
            mapped(&unisets_map_alike, cp))
            return i;
        i += utf8_step(text.ptr[i]);
    }
    return text.len;
}

void unisets_older(Str text, char *out)
{
    memcpy(out, text.ptr, text.len);
    for (size_t i = unisets_newer(text); i < text.len;) {
        uint32_t cp;
        const int n = utf8_decode(text.ptr + i, text.len - i, &cp);
        const UniMapped *m = n > 0 ? mapped(&unisets_map_alike, cp) : NULL;
        char utf8[4];
        if (m && utf8_encode(m->to, utf8) == n)
            memcpy(out + i, utf8, (size_t)n);
        i += utf8_step(text.ptr[i]);
    }
}
