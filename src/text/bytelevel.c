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

int64_t bytelevel_decode(Str text, char *out)
{
    char *const start = out;
    for (size_t i = 0; i < text.len; i++) {
        const uint32_t c = (unsigned char)text.ptr[i];
        if (c - 0x21U <= 0x7EU - 0x21U) { /* most of every vocabulary */
            *out++ = (char)c;
            continue;
        }
        if (c < 0xC2 || c > 0xC5 || ++i == text.len)
            return -1;
        const uint32_t low = (unsigned char)text.ptr[i] ^ 0x80U;
        const int byte = low < 0x40 ? byte_of((c & 0x1FU) << 6 | low) : -1;
        if (byte < 0)
            return -1;
        *out++ = (char)byte;
    }
    return out - start;
}
