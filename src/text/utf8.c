#include "text/utf8.h"

int utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0U | cp >> 6);
        out[1] = (char)(0x80U | (cp & 0x3FU));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0U | cp >> 12);
        out[1] = (char)(0x80U | (cp >> 6 & 0x3FU));
        out[2] = (char)(0x80U | (cp & 0x3FU));
        return 3;
    }
    out[0] = (char)(0xF0U | cp >> 18);
    out[1] = (char)(0x80U | (cp >> 12 & 0x3FU));
    out[2] = (char)(0x80U | (cp >> 6 & 0x3FU));
    out[3] = (char)(0x80U | (cp & 0x3FU));
    return 4;
}

size_t utf8_valid_prefix(Str s)
{
    size_t i = 0;
    while (i < s.len) {
        uint64_t word; /* eight ASCII bytes at a time */
        while (s.len - i >= 8) {
            memcpy(&word, s.ptr + i, 8);
            if (word & 0x8080808080808080U)
                break;
            i += 8;
        }
        if (i == s.len)
            break;
        uint32_t cp;
        const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        if (n == 0)
            break;
        i += (size_t)n;
    }
    return i;
}

size_t utf8_broken_part(Str s, bool *incomplete)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    *incomplete = false;
    const unsigned a = p[0];
    if (a < 0xC2 || a > 0xF4)
        return 1;
    const size_t want = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    const unsigned lo = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    const unsigned hi = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    size_t n = 1;
    while (n < want && n < s.len) {
        const bool ok = n == 1 ? p[1] >= lo && p[1] <= hi : (p[n] & 0xC0U) == 0x80;
        if (!ok)
            return n;
        n++;
    }
    *incomplete = n < want;
    return n;
}

size_t utf8_count(Str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.ptr[i] & 0xC0U) != 0x80;
    return n;
}

bool utf8_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}
