#include "text/bytelevel.h"

/* U+0100 + i stands for: 0x00-0x20, 0x7F-0xA0, 0xAD. */
static bool is_shown(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

uint32_t bytelevel_char(uint8_t byte)
{
    if (is_shown(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100U + byte;
    if (byte == 0xAD)
        return 0x143;
    return 0x121U + (byte - 0x7FU);
}

/* The byte of a code point from 0x80 on; -1: none. */
static int byte_of(uint32_t cp)
{
    if (cp < 0x100)
        return is_shown(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)cp - 0x100;
    if (cp <= 0x142)
        return (int)cp - 0x121 + 0x7F;
    return cp == 0x143 ? 0xAD : -1;
}

/* Byte of the character at p, of two bytes in UTF-8; -1: none. */
static int two_bytes(const char *p)
{
    const uint32_t lead = (unsigned char)p[0];
    const uint32_t low = (unsigned char)p[1] ^ 0x80U;
    return lead >= 0xC2 && lead <= 0xC5 && low < 0x40 ? byte_of((lead & 0x1FU) << 6 | low) : -1;
}

int64_t bytelevel_decode(Str text, char *out)
{
    char *const start = out;
    for (size_t i = 0; i < text.len; i++) {
        const uint32_t c = (unsigned char)text.ptr[i];
        if (c - 0x21U <= 0x7EU - 0x21U) { /* most of every vocabulary */
            *out++ = (char)c;
            continue;
        }
        const int byte = text.len - i > 1 ? two_bytes(text.ptr + i) : -1;
        if (byte < 0)
            return -1;
        *out++ = (char)byte;
        i++;
    }
    return out - start;
}

/* The high bit of each byte that is no ASCII of the alphabet, or is '"' or '\\'; the lowest one set
 * is exact, those above it may be set without cause. */
static uint64_t stops(uint64_t w)
{
    const uint64_t ones = 0x0101010101010101U;
    const uint64_t quote = w ^ ones * '"';
    const uint64_t slash = w ^ ones * '\\';
    const uint64_t low = (w - ones * 0x21) & ~w;
    const uint64_t high = w | (w + ones); /* from 0x7F on */
    return (low | high | ((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & ones << 7;
}

/* Bytes before the first stop of the 16 at p; 16: there is none. */
static size_t run_length(const char *p)
{
    uint64_t w[2];
    memcpy(w, p, sizeof w);
    const uint64_t first = stops(w[0]);
    const uint64_t second = stops(w[1]);
    const size_t far = second ? 8 + ((size_t)__builtin_ctzll(second) >> 3) : 16;
    return first ? (size_t)__builtin_ctzll(first) >> 3 : far;
}

size_t bytelevel_scan(const char **p, const char *end, char *out, size_t max)
{
    enum { WINDOW = 16, ROOM = WINDOW + 2 };
    const char *at = *p;
    size_t n = 0;
    while (at < end && n < max) {
        if (end - at > ROOM && max - n >= ROOM) {
            const size_t space = memcmp(at, "\xC4\xA0", 2) == 0; /* most words begin with one */
            out[n] = ' ';
            n += space;
            at += 2 * space;
            memcpy(out + n, at, WINDOW);
            const size_t run = run_length(at);
            n += run;
            at += run;
            if (run < WINDOW && (*at == '"' || *at == ' '))
                break;
            if (run == WINDOW)
                continue;
        }
        const uint32_t c = (unsigned char)*at;
        const int byte = c >= 0x80 ? end - at > 1 ? two_bytes(at) : -1
                         : c < 0x21 || c == '"' || c == '\\' || c == 0x7F ? -1
                                                                          : (int)c;
        if (byte < 0)
            break;
        out[n++] = (char)byte;
        at += c >= 0x80 ? 2 : 1;
    }
    *p = at;
    return n;
}
