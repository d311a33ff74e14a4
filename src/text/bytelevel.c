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

int64_t bytelevel_decode(Str text, char *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        const uint32_t c = (unsigned char)text.ptr[i];
        uint32_t cp = c;
        if (c >= 0x80) {
            if (c > 0xC5 || c < 0xC2 || i + 1 == text.len)
                return -1;
            cp = (c & 0x1FU) << 6 | ((unsigned char)text.ptr[++i] & 0x3FU);
        }
        if (cp < 0x100) {
            if (!is_shown(cp))
                return -1;
        } else if (cp <= 0x120) {
            cp -= 0x100;
        } else if (cp <= 0x142) {
            cp = cp - 0x121 + 0x7F;
        } else if (cp == 0x143) {
            cp = 0xAD;
        } else {
            return -1;
        }
        out[n++] = (char)cp;
    }
    return n;
}
