#include "text/bytelevel.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

/* The byte of the characters U+0080 to U+017F: [first byte in UTF-8, from 0xC2 on][second one]. */
static const int16_t high_bytes[4][64] = {
    {-1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,
     -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,  -1,
     -1,  161, 162, 163, 164, 165, 166, 167, 168, 169, 170, 171, 172, -1,  174, 175,
     176, 177, 178, 179, 180, 181, 182, 183, 184, 185, 186, 187, 188, 189, 190, 191},
    {192, 193, 194, 195, 196, 197, 198, 199, 200, 201, 202, 203, 204, 205, 206, 207,
     208, 209, 210, 211, 212, 213, 214, 215, 216, 217, 218, 219, 220, 221, 222, 223,
     224, 225, 226, 227, 228, 229, 230, 231, 232, 233, 234, 235, 236, 237, 238, 239,
     240, 241, 242, 243, 244, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255},
    {0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,
     16,  17,  18,  19,  20,  21,  22,  23,  24,  25,  26,  27,  28,  29,  30,  31,
     32,  127, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141,
     142, 143, 144, 145, 146, 147, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157},
    {158, 159, 160, 173, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
     -1,  -1,  -1,  -1,  -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
     -1,  -1,  -1,  -1,  -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
};

/* Byte of the character at p, of two bytes in UTF-8; -1: none. */
static int two_bytes(const char *p)
{
    const uint32_t lead = (unsigned char)p[0] - 0xC2U;
    const uint32_t low = (unsigned char)p[1] ^ 0x80U;
    return lead < 4 && low < 64 ? high_bytes[lead][low] : -1;
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

#ifdef __SSE2__
/* Bytes before the first of the 16 at p that is no ASCII of the alphabet, or is '"' or '\\'; 16:
 * none is. */
static size_t run_length(const char *p)
{
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i low = _mm_cmplt_epi8(v, _mm_set1_epi8(0x21)); /* from 0x80 on too: signed */
    const __m128i del = _mm_cmpeq_epi8(v, _mm_set1_epi8(0x7F));
    const __m128i quote = _mm_cmpeq_epi8(v, _mm_set1_epi8('"'));
    const __m128i slash = _mm_cmpeq_epi8(v, _mm_set1_epi8('\\'));
    const __m128i stop = _mm_or_si128(_mm_or_si128(low, del), _mm_or_si128(quote, slash));
    return (size_t)__builtin_ctz((unsigned)_mm_movemask_epi8(stop) | 1U << 16);
}
#else
static size_t run_length(const char *p)
{
    size_t n = 0;
    while (n < 16 && p[n] >= 0x21 && p[n] < 0x7F && p[n] != '"' && p[n] != '\\')
        n++;
    return n;
}
#endif

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
        if (c < 0x80) {
            if (c < 0x21 || c == '"' || c == '\\' || c == 0x7F)
                break;
            out[n++] = (char)c;
            at++;
            continue;
        }
        /* Scripts other than Latin are nothing but these. */
        int byte;
        do {
            byte = end - at > 1 ? two_bytes(at) : -1;
            out[n] = (char)byte;
            n += byte >= 0;
            at += byte >= 0 ? 2 : 0;
        } while (byte >= 0 && at < end && n < max && (unsigned char)*at >= 0x80);
        if (byte < 0)
            break;
    }
    *p = at;
    return n;
}
