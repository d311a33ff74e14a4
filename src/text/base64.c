#include "text/base64.h"

static int digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int64_t base64_decode(Str text, char *out)
{
    size_t n = 0;
    uint32_t bits = 0;
    int have = 0;
    while (text.len > 0 && text.ptr[text.len - 1] == '=')
        text.len--;
    for (size_t i = 0; i < text.len; i++) {
        const int d = digit(text.ptr[i]);
        if (d < 0)
            return -1;
        bits = bits << 6 | (uint32_t)d;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (char)(unsigned char)(bits >> have & 0xFFU);
        }
    }
    return (int64_t)n;
}
