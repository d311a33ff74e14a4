#include "base/jsonout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bytes of the UTF-8 character at s (at least 1 byte left), 0 when it is none (overlong, surrogate,
 * above U+10FFFF, cut). RFC 3629 table. */
static size_t utf8_len(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80)
        return 1;
    size_t n;
    unsigned lo = 0x80;
    unsigned hi = 0xBF;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        n = 2;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        n = 3;
        lo = s[0] == 0xE0 ? 0xA0 : 0x80;
        hi = s[0] == 0xED ? 0x9F : 0xBF;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        n = 4;
        lo = s[0] == 0xF0 ? 0x90 : 0x80;
        hi = s[0] == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    if (left < n || s[1] < lo || s[1] > hi)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xC0U) != 0x80U)
            return 0;
    return n;
}

static void escape(StrBuf *b, unsigned char c)
{
    switch (c) {
    case '"':
        strbuf_add(b, "\\\"", 2);
        break;
    case '\\':
        strbuf_add(b, "\\\\", 2);
        break;
    case '\n':
        strbuf_add(b, "\\n", 2);
        break;
    case '\r':
        strbuf_add(b, "\\r", 2);
        break;
    case '\t':
        strbuf_add(b, "\\t", 2);
        break;
    default:
        strbuf_printf(b, "\\u%04x", c);
        break;
    }
}

void jsonout_str(StrBuf *b, Str s)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    strbuf_add(b, "\"", 1);
    size_t from = 0; /* start of the run that needs no change */
    for (size_t i = 0; i < s.len;) {
        const size_t n = utf8_len(p + i, s.len - i);
        const bool plain = n > 1 || (n == 1 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\');
        if (plain) {
            i += n;
            continue;
        }
        strbuf_add(b, s.ptr + from, i - from);
        if (n == 1)
            escape(b, p[i]);
        else
            strbuf_add(b, "\xEF\xBF\xBD", 3);
        from = ++i;
    }
    if (from < s.len)
        strbuf_add(b, s.ptr + from, s.len - from);
    strbuf_add(b, "\"", 1);
}

void jsonout_f64(StrBuf *b, double v)
{
    if (!isfinite(v)) {
        strbuf_add(b, "null", 4);
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    strbuf_add_cstr(b, text);
}

void jsonout_f32(StrBuf *b, float v)
{
    if (!isfinite(v)) {
        strbuf_add(b, "null", 4);
        return;
    }
    char text[40];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    strbuf_add_cstr(b, text);
}
