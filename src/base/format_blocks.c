#include "base/format_blocks.h"

#include "base/num.h"

#include <math.h>

const float format_e2m1[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                               -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

const int8_t format_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

float format_e4m3(uint8_t code)
{
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    float v = exponent == 0
                  ? (float)mantissa * 0x1p-9F
                  : num_float((uint32_t)(exponent + 120) << 23 | (uint32_t)mantissa << 20);
    if ((code & 0x7f) == 0x7f)
        v = NAN;
    return code & 0x80 ? -v : v;
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static float load_f16(const uint8_t *p)
{
    return num_from_f16(load_u16(p));
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* ---- blocks of 32 ---- */

static void q4_0(const uint8_t *p, float *y) /* 18 bytes to 32 */
{
    const float d = load_f16(p);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((p[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

static void q4_1(const uint8_t *p, float *y) /* 20 bytes to 32 */
{
    const float d = load_f16(p);
    const float m = load_f16(p + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(p[4 + i] & 15) + m;
        y[i + 16] = d * (float)(p[4 + i] >> 4) + m;
    }
}

static void q8_0(const uint8_t *p, float *y) /* 34 bytes to 32 */
{
    const float d = load_f16(p);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(int8_t)p[2 + i];
}

static void mxfp4(const uint8_t *p, float *y) /* 17 bytes to 32 */
{
    const float d = num_from_e8m0(p[0]);
    for (int i = 0; i < 16; i++) {
        y[i] = d * format_e2m1[p[1 + i] & 15];
        y[i + 16] = d * format_e2m1[p[1 + i] >> 4];
    }
}

static void q5_0(const uint8_t *p, float *y) /* d, 32 fifth bits, 16 bytes as Q4_0 */
{
    const float d = load_f16(p);
    const uint32_t high = load_u32(p + 2);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(((p[6 + i] & 15) | (int)(high >> i & 1) << 4) - 16);
        y[i + 16] = d * (float)((p[6 + i] >> 4 | (int)(high >> (i + 16) & 1) << 4) - 16);
    }
}

static void q5_1(const uint8_t *p, float *y) /* d, m, 32 fifth bits, 16 bytes as Q4_0 */
{
    const float d = load_f16(p);
    const float m = load_f16(p + 2);
    const uint32_t high = load_u32(p + 4);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((p[8 + i] & 15) | (int)(high >> i & 1) << 4) + m;
        y[i + 16] = d * (float)(p[8 + i] >> 4 | (int)(high >> (i + 16) & 1) << 4) + m;
    }
}

static void iq4_nl(const uint8_t *p, float *y)
{
    const float d = load_f16(p);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)format_iq4[p[2 + i] & 15];
        y[i + 16] = d * (float)format_iq4[p[2 + i] >> 4];
    }
}

/* Four e4m3 scales without sign (0x7f, their NaN, counts as 0), then 8 bytes for each 16 elements:
 * i low, i + 8 high. */
static void nvfp4(const uint8_t *p, float *y) /* 36 bytes to 64 */
{
    for (int s = 0; s < 4; s++) {
        const float d = p[s] == 0x7f ? 0.0F : format_e4m3(p[s] & 0x7f);
        for (int i = 0; i < 8; i++) {
            const uint8_t q = p[4 + s * 8 + i];
            y[s * 16 + i] = d * format_e2m1[q & 15];
            y[s * 16 + 8 + i] = d * format_e2m1[q >> 4];
        }
    }
}

static void q1_0(const uint8_t *p, float *y) /* 18 bytes to 128 */
{
    const float d = load_f16(p);
    for (int i = 0; i < 128; i++)
        y[i] = p[2 + i / 8] >> (i % 8) & 1 ? d : -d;
}

/* ---- blocks of 256 ---- */

/* Scales and mins are eight pairs of 6 bits in 12 bytes s: for j < 4 the low 6 bits of s[j] and
 * s[j + 4]; for j >= 4 a nibble each of s[j + 4], with the top two bits of s[j - 4] and s[j] above
 * it. */
static void scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}

static void q4_k(const uint8_t *p, float *y) /* 144 bytes to 256 */
{
    const float d = load_f16(p);
    const float dmin = load_f16(p + 2);
    const uint8_t *q = p + 16;
    for (int j = 0; j < 8; j++) {
        int sc;
        int mn;
        scale_min(p + 4, j, &sc, &mn);
        const float scale = d * (float)sc;
        const float min = dmin * (float)mn;
        const uint8_t *codes =
            q + (ptrdiff_t)(j / 2 * 32); /* sub-block j: low nibbles when even, else high */
        for (int i = 0; i < 32; i++)
            y[j * 32 + i] = scale * (float)(j % 2 ? codes[i] >> 4 : codes[i] & 15) - min;
    }
}

/* Each half (128 elements) has 64 bytes of nibbles, 32 bytes of bit pairs and 8 scales; its quarter
 * t takes the low (t < 2) or high nibbles of bytes t % 2 * 32 .. + 31 and bits 2t of the pairs. */
static void q6_k(const uint8_t *p, float *y) /* 210 bytes to 256 */
{
    const float d = load_f16(p + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *lo = p + (ptrdiff_t)half * 64;
        const uint8_t *hi = p + 128 + (ptrdiff_t)half * 32;
        const uint8_t *sc = p + 192 + (ptrdiff_t)half * 8;
        for (int t = 0; t < 4; t++) {
            for (int i = 0; i < 32; i++) {
                const int low = lo[t % 2 * 32 + i] >> (t / 2 * 4) & 15;
                const int q = (low | (hi[i] >> (2 * t) & 3) << 4) - 32;
                const float scale = d * (float)(int8_t)sc[2 * t + i / 16];
                y[half * 128 + t * 32 + i] = scale * (float)q;
            }
        }
    }
}

static void q5_k(const uint8_t *p,
                 float *y) /* as Q4_K, with 32 bytes of fifth bits before the codes */
{
    const float d = load_f16(p);
    const float dmin = load_f16(p + 2);
    const uint8_t *high = p + 16;
    for (int j = 0; j < 8; j++) {
        int sc;
        int mn;
        scale_min(p + 4, j, &sc, &mn);
        const float scale = d * (float)sc;
        const float min = dmin * (float)mn;
        const uint8_t *codes = p + 48 + (ptrdiff_t)(j / 2 * 32);
        for (int i = 0; i < 32; i++) {
            const int low = j % 2 ? codes[i] >> 4 : codes[i] & 15;
            y[j * 32 + i] = scale * (float)(low | (high[i] >> j & 1) << 4) - min;
        }
    }
}

/* 16 bytes of scale (low) and min (high), 64 bytes of codes, d, dmin. Quarter t of a half (128
 * elements) is bits 2t of its 32 bytes; so in Q3_K and TQ2_0. */
static void q2_k(const uint8_t *p, float *y) /* 84 bytes to 256 */
{
    const float d = load_f16(p + 80);
    const float dmin = load_f16(p + 82);
    for (int i = 0; i < 256; i++) {
        const float scale = d * (float)(p[i / 16] & 15);
        const float min = dmin * (float)(p[i / 16] >> 4);
        const int q = p[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        y[i] = scale * (float)q - min;
    }
}

/* 32 bytes of third bits (bit i / 32; set means nothing to subtract), 64 bytes of codes, 16 6-bit
 * scales in 12 bytes (low nibbles in 8, high pairs in 4), d. */
static void q3_k(const uint8_t *p, float *y) /* 110 bytes to 256 */
{
    const float d = load_f16(p + 108);
    const uint8_t *s = p + 96;
    for (int i = 0; i < 256; i++) {
        const int j = i / 16;
        const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
        const int sc = (low | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32;
        const int q = p[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
        const int third = p[i % 32] >> (i / 32) & 1;
        y[i] = d * (float)sc * (float)(q - (third ? 0 : 4));
    }
}

/* d, high pairs of eight scales, their low nibbles, 16 bytes of codes for each 32 elements. */
static void iq4_xs(const uint8_t *p, float *y) /* 136 bytes to 256 */
{
    const float d = load_f16(p);
    const int high = load_u16(p + 2);
    for (int b = 0; b < 8; b++) {
        const int sc = (p[4 + b / 2] >> (b % 2 * 4) & 15) | (high >> (2 * b) & 3) << 4;
        const float scale = d * (float)(sc - 32);
        for (int i = 0; i < 16; i++) {
            const uint8_t q = p[8 + b * 16 + i];
            y[b * 32 + i] = scale * (float)format_iq4[q & 15];
            y[b * 32 + 16 + i] = scale * (float)format_iq4[q >> 4];
        }
    }
}

/* Five digits of base 3 to a byte, scaled so that multiplying by a power of 3 (mod 256) brings the
 * digit to the top: 32 bytes for 160 elements, 16 for 80, four of four digits for 16. */
static void tq1_0(const uint8_t *p, float *y) /* 54 bytes to 256 */
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const float d = load_f16(p + 52);
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = i < 160   ? p[i % 32]
                             : i < 240 ? p[32 + (i - 160) % 16]
                                       : p[48 + (i - 240) % 4];
        const int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
        const uint8_t top = (uint8_t)(byte * power[digit]);
        y[i] = d * (float)((top * 3 >> 8) - 1);
    }
}

static void tq2_0(const uint8_t *p, float *y) /* 66 bytes to 256 */
{
    const float d = load_f16(p + 64);
    for (int i = 0; i < 256; i++)
        y[i] = d * (float)((p[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) - 1);
}

/* ---- codebooks ---- */

static float negate_if(float v, unsigned bit)
{
    return bit ? -v : v;
}

/* Eight signs in seven bits: the eighth makes their number even. */
static unsigned even_signs(unsigned seven)
{
    seven &= 127;
    return seven | (unsigned)(__builtin_popcount(seven) & 1) << 7;
}

static void book2(uint16_t entry, unsigned signs, float scale, float *y) /* eight values */
{
    static const float values[4] = {8, 25, 43, 0};
    for (int i = 0; i < 8; i++)
        y[i] = negate_if(scale * values[entry >> (2 * i) & 3], signs >> i & 1);
}

static void iq2_xxs(const uint8_t *p, float *y) /* 66 bytes to 256 */
{
    const float d = load_f16(p);
    for (int b = 0; b < 8; b++) {
        const uint8_t *entries = p + 2 + (ptrdiff_t)b * 8;
        const uint32_t signs = load_u32(entries + 4);
        const float scale = d * (0.5F + (float)(signs >> 28)) * 0.25F;
        for (int l = 0; l < 4; l++)
            book2(format_iq2_xxs[entries[l]], even_signs(signs >> (7 * l)), scale,
                  y + b * 32 + l * 8);
    }
}

static float nibble_scale(const uint8_t *scales, int i, float d)
{
    return d * (0.5F + (float)(scales[i / 2] >> (i % 2 * 4) & 15)) * 0.25F;
}

static void iq2_xs(const uint8_t *p, float *y) /* 74 bytes to 256 */
{
    const float d = load_f16(p);
    for (int l = 0; l < 32; l++) {
        const unsigned q = load_u16(p + 2 + (ptrdiff_t)l * 2);
        book2(format_iq2_xs[q & 511], even_signs(q >> 9), nibble_scale(p + 66, l / 2, d),
              y + l * 8);
    }
}

static void iq2_s(const uint8_t *p, float *y) /* 82 bytes to 256 */
{
    const float d = load_f16(p);
    for (int l = 0; l < 32; l++) {
        const int entry = p[2 + l] | (p[66 + l / 4] >> (l % 4 * 2) & 3) << 8;
        book2(format_iq2_s[entry], p[34 + l], nibble_scale(p + 74, l / 2, d), y + l * 8);
    }
}

static void iq3_xxs(const uint8_t *p, float *y) /* 98 bytes to 256 */
{
    static const float values[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    const float d = load_f16(p);
    for (int b = 0; b < 8; b++) {
        const uint32_t packed = load_u32(p + 66 + (ptrdiff_t)b * 4);
        const float scale = d * (0.5F + (float)(packed >> 28)) * 0.5F;
        for (int i = 0; i < 32; i++) {
            const uint16_t entry = format_iq3_xxs[p[2 + b * 8 + i / 4]];
            const unsigned signs = even_signs(packed >> (i / 8 * 7));
            y[b * 32 + i] =
                negate_if(scale * values[entry >> (i % 4 * 3) & 7], signs >> (i % 8) & 1);
        }
    }
}

static void iq3_s(const uint8_t *p, float *y) /* 110 bytes to 256 */
{
    const float d = load_f16(p);
    for (int i = 0; i < 256; i++) {
        const int l = i / 4;
        const int entry = p[2 + l] | (p[66 + l / 8] >> (l % 8) & 1) << 8;
        const float scale = d * (float)(1 + 2 * (p[106 + i / 64] >> (i / 32 % 2 * 4) & 15));
        const float value = (float)(1 + 2 * (format_iq3_s[entry] >> (i % 4 * 3) & 7));
        y[i] = negate_if(scale * value, p[74 + i / 8] >> (i % 8) & 1);
    }
}

static void book1(uint16_t entry, float delta, float scale, float *y)
{
    for (int i = 0; i < 8; i++)
        y[i] = scale * ((float)((entry >> (2 * i) & 3) - 1) + delta);
}

static void iq1_s(const uint8_t *p, float *y) /* 50 bytes to 256 */
{
    const float d = load_f16(p);
    for (int b = 0; b < 8; b++) {
        const int high = load_u16(p + 34 + (ptrdiff_t)b * 2);
        const float scale = d * (float)(2 * (high >> 12 & 7) + 1);
        for (int l = 0; l < 4; l++)
            book1(format_iq1[p[2 + b * 4 + l] | (high >> (3 * l) & 7) << 8],
                  high & 0x8000 ? -0.125F : 0.125F, scale, y + b * 32 + l * 8);
    }
}

/* The f16 scale is spread over the top nibbles of four 16-bit words, which hold four 3-bit scales
 * each. */
static void iq1_m(const uint8_t *p, float *y) /* 56 bytes to 256 */
{
    uint16_t words[4];
    unsigned bits = 0;
    for (int i = 0; i < 4; i++) {
        words[i] = load_u16(p + 48 + (ptrdiff_t)i * 2);
        bits |= (unsigned)(words[i] >> 12) << (4 * i);
    }
    const float d = num_from_f16((uint16_t)bits);
    for (int l = 0; l < 32; l++) {
        const int b = l / 2;
        const float scale = d * (float)(2 * (words[b / 4] >> (b % 4 * 3) & 7) + 1);
        const int high = p[32 + l / 2] >> (l % 2 * 4);
        book1(format_iq1[p[l] | (high & 7) << 8], high & 8 ? -0.125F : 0.125F, scale, y + l * 8);
    }
}

FormatUnpack format_unpack(FormatId id)
{
    static const FormatUnpack table[FMT_COUNT] = {
        [FMT_Q4_0] = q4_0,     [FMT_Q4_1] = q4_1,       [FMT_Q5_0] = q5_0,
        [FMT_Q5_1] = q5_1,     [FMT_Q8_0] = q8_0,       [FMT_Q2_K] = q2_k,
        [FMT_Q3_K] = q3_k,     [FMT_Q4_K] = q4_k,       [FMT_Q5_K] = q5_k,
        [FMT_Q6_K] = q6_k,     [FMT_MXFP4] = mxfp4,     [FMT_NVFP4] = nvfp4,
        [FMT_Q1_0] = q1_0,     [FMT_TQ1_0] = tq1_0,     [FMT_TQ2_0] = tq2_0,
        [FMT_IQ4_NL] = iq4_nl, [FMT_IQ4_XS] = iq4_xs,   [FMT_IQ1_S] = iq1_s,
        [FMT_IQ1_M] = iq1_m,   [FMT_IQ2_XXS] = iq2_xxs, [FMT_IQ2_XS] = iq2_xs,
        [FMT_IQ2_S] = iq2_s,   [FMT_IQ3_XXS] = iq3_xxs, [FMT_IQ3_S] = iq3_s,
    };
    return id < FMT_COUNT ? table[id] : NULL;
}
