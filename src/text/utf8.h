/* utf8.h: UTF-8 as Unicode defines it (no surrogates, nothing above U+10FFFF, no overlong forms).
 * Pure functions. */
#ifndef MERE_TEXT_UTF8_H
#define MERE_TEXT_UTF8_H

#include "base/str.h"

/* Bytes of the valid character at s (1 to 4), or 0. `n` bytes are there; *cp is set when valid. */
static inline int utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0)
        return 0;
    const uint32_t a = p[0];
    if (a < 0x80) {
        *cp = a;
        return 1;
    }
    if (a < 0xC2 || a > 0xF4)
        return 0;
    if (n < 2 || (p[1] & 0xC0U) != 0x80)
        return 0;
    if (a < 0xE0) {
        *cp = (a & 0x1FU) << 6 | (p[1] & 0x3FU);
        return 2;
    }
    if (a < 0xF0) {
        if ((a == 0xE0 && p[1] < 0xA0) || (a == 0xED && p[1] > 0x9F))
            return 0;
        if (n < 3 || (p[2] & 0xC0U) != 0x80)
            return 0;
        *cp = (a & 0x0FU) << 12 | (p[1] & 0x3FU) << 6 | (p[2] & 0x3FU);
        return 3;
    }
    if ((a == 0xF0 && p[1] < 0x90) || (a == 0xF4 && p[1] > 0x8F))
        return 0;
    if (n < 4 || (p[2] & 0xC0U) != 0x80 || (p[3] & 0xC0U) != 0x80)
        return 0;
    *cp = (a & 0x07U) << 18 | (p[1] & 0x3FU) << 12 | (p[2] & 0x3FU) << 6 | (p[3] & 0x3FU);
    return 4;
}

/* Bytes written to out (1 to 4). cp must be a code point. */
int utf8_encode(uint32_t cp, char out[4]);
/* Length of the longest prefix of s that is valid. */
size_t utf8_valid_prefix(Str s);
/* Bytes of the maximal broken part at the start of s, which is not valid there: at least 1. When
 * *incomplete, s ends inside what may still become a character. */
size_t utf8_broken_part(Str s, bool *incomplete);
/* Characters in a valid string. */
size_t utf8_count(Str s);
/* White_Space of Unicode, as Rust and Oniguruma have it (no U+180E, no U+200B). */
bool utf8_is_space(uint32_t cp);

/* Byte length by lead byte, of valid text only. */
static inline size_t utf8_step(char lead)
{
    const unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

#endif
