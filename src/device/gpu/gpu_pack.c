/* Codes go eight at a time through a u64, code i in byte i: whatever a format's order of bits, it
 * is loaded, shifted and masked into that form, and written from it in the layout's. */
#include "device/gpu/gpu_pack.h"

#include "base/format_blocks.h"
#include "base/num.h"

#include <string.h>

enum { SUPER = 256 }; /* elements of the large blocks */

#define EACH_BYTE 0x0101010101010101U

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Eight bits -> eight bytes of 0 or 1, the lowest bit first. */
static uint64_t spread_bits(uint8_t bits)
{
    const uint64_t x = bits * EACH_BYTE & 0x8040201008040201U;
    return ((x + 0x7f7f7f7f7f7f7f7fU) & 0x8080808080808080U) >> 7;
}

/* Eight bytes with a code in their low nibbles -> four bytes, the first code lowest. */
static uint32_t join_nibbles(uint64_t x)
{
    x = (x | x >> 4) & 0x00ff00ff00ff00ffU;
    x = (x | x >> 8) & 0x0000ffff0000ffffU;
    return (uint32_t)(x | x >> 16);
}

/* Eight bytes with two bits each -> two bytes, the first pair lowest. */
static uint16_t join_pairs(uint64_t x)
{
    x = (x | x >> 6) & 0x000f000f000f000fU;
    x = (x | x >> 12) & 0x000000ff000000ffU;
    return (uint16_t)(x | x >> 24);
}

static void put4(uint8_t *codes, int64_t at, uint64_t x)
{
    const uint32_t word = join_nibbles(x);
    memcpy(codes + at / 2, &word, sizeof word);
}

static void put8(uint8_t *codes, int64_t at, uint64_t x)
{
    memcpy(codes + at, &x, sizeof x);
}

/* high: the plane of bit pairs, after k / 2 bytes of nibbles. */
static void put6(uint8_t *codes, uint8_t *high, int64_t at, uint64_t x)
{
    const uint16_t pairs = join_pairs(x >> 4 & 3 * EACH_BYTE);
    put4(codes, at, x & 15 * EACH_BYTE);
    memcpy(high + at / 4, &pairs, sizeof pairs);
}

/* ---- blocks of 32 ---- */

/* Codes 8 i .. 8 i + 7 of 32 in 16 bytes: element j low in byte j, j + 16 high. */
static uint64_t nibbles(const uint8_t *p, int i)
{
    return load_u64(p + (ptrdiff_t)(i % 2 * 8)) >> (i / 2 * 4) & 15 * EACH_BYTE;
}

/* Q4_0, Q4_1, MXFP4: blocks of `head` bytes of scales and 16 of codes. */
static void pack_blocks4(const uint8_t *src, int k, size_t head, uint8_t *codes, uint8_t *scales)
{
    for (int b = 0; b < k / 32; b++, src += head + 16) {
        memcpy(scales + (size_t)b * head, src, head);
        for (int i = 0; i < 4; i++)
            put4(codes, b * 32 + i * 8, nibbles(src + head, i));
    }
}

static void pack_q4_0(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    pack_blocks4(src, v->k, 2, codes, scales);
}

static void pack_q4_1(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    pack_blocks4(src, v->k, 4, codes, scales);
}

static void pack_mxfp4(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    pack_blocks4(src, v->k, 1, codes, scales);
}

/* Q5_0, Q5_1: `head` bytes of scales, 32 fifth bits, 16 bytes of nibbles. `less`: of each byte. */
static void pack_blocks5(const uint8_t *src, int k, size_t head, uint64_t less, uint8_t *codes,
                         uint8_t *scales)
{
    for (int b = 0; b < k / 32; b++, src += head + 20) {
        memcpy(scales + (size_t)b * head, src, head);
        for (int i = 0; i < 4; i++) {
            const uint64_t q = nibbles(src + head + 4, i) | spread_bits(src[head + (size_t)i]) << 4;
            /* (q - less) with no borrow between bytes */
            put8(codes, b * 32 + i * 8, (q + 0x80 * EACH_BYTE - less) ^ 0x80 * EACH_BYTE);
        }
    }
}

static void pack_q5_0(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    pack_blocks5(src, v->k, 2, 16 * EACH_BYTE, codes, scales);
}

static void pack_q5_1(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    pack_blocks5(src, v->k, 4, 0, codes, scales);
}

static void pack_q8_0(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    for (int b = 0; b < v->k / 32; b++, src += 34) {
        memcpy(scales + (size_t)b * 2, src, 2);
        memcpy(codes + (size_t)b * 32, src + 2, 32);
    }
}

static void pack_iq4_nl(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    for (int b = 0; b < v->k / 32; b++, src += 18, codes += 32) {
        memcpy(scales + (size_t)b * 2, src, 2);
        for (int i = 0; i < 16; i++) {
            codes[i] = (uint8_t)format_iq4[src[2 + i] & 15];
            codes[16 + i] = (uint8_t)format_iq4[src[2 + i] >> 4];
        }
    }
}

/* ---- large blocks of one scale: -d, 0, d as codes 7, 8, 9 ---- */

/* One scale for `n` elements, repeated for each 32 of them. */
static void repeat_scale(uint8_t *scales, int64_t from, int n, const uint8_t *d)
{
    for (int64_t g = from / 32; g < (from + n) / 32; g++)
        memcpy(scales + g * 2, d, 2);
}

static void pack_q1_0(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    for (int at = 0; at < v->k; at += 128, src += 18) {
        repeat_scale(scales, at, 128, src);
        for (int i = 0; i < 128; i += 8)
            put4(codes, at + i, 7 * EACH_BYTE + (spread_bits(src[2 + i / 8]) << 1));
    }
}

static void pack_tq1_0(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int at = 0; at < v->k; at += SUPER, src += 54) {
        repeat_scale(scales, at, SUPER, src + 52);
        for (int i = 0; i < SUPER; i += 8) {
            uint64_t x = 0;
            for (int j = i; j < i + 8; j++) {
                const uint8_t byte = j < 160   ? src[j % 32]
                                     : j < 240 ? src[32 + (j - 160) % 16]
                                               : src[48 + (j - 240) % 4];
                const int digit = j < 160 ? j / 32 : j < 240 ? (j - 160) / 16 : (j - 240) / 4;
                const uint8_t top = (uint8_t)(byte * power[digit]);
                x |= (uint64_t)(7 + (top * 3 >> 8)) << (j - i) * 8;
            }
            put4(codes, at + i, x);
        }
    }
}

/* Two bits of elements i .. i + 7 of a large block: quarter t of a half is bits 2 t of its 32. */
static uint64_t quarters(const uint8_t *p, int i)
{
    return load_u64(p + (ptrdiff_t)(i / 128 * 32 + i % 32)) >> (i / 32 % 4 * 2) & 3 * EACH_BYTE;
}

static void pack_tq2_0(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    for (int at = 0; at < v->k; at += SUPER, src += 66) {
        repeat_scale(scales, at, SUPER, src + 64);
        for (int i = 0; i < SUPER; i += 8)
            put4(codes, at + i, quarters(src, i) + 7 * EACH_BYTE);
    }
}

/* ---- K blocks ---- */

/* Q4_K and Q5_K begin alike: d, dmin, eight 6-bit scales and mins -> eight pairs of f32. */
static void k_pairs(const uint8_t *src, uint8_t *scales)
{
    const float d = num_from_f16(load_u16(src));
    const float dmin = num_from_f16(load_u16(src + 2));
    const uint8_t *s = src + 4;
    for (int j = 0; j < 8; j++) {
        const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        const int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        const float pair[2] = {d * (float)sc, -(dmin * (float)mn)};
        memcpy(scales + (size_t)j * sizeof pair, pair, sizeof pair);
    }
}

/* Sub-block j = i / 32 has the low (j even) or high nibbles of 32 bytes. */
static uint64_t k_nibbles(const uint8_t *p, int i)
{
    return load_u64(p + (ptrdiff_t)(i / 64 * 32 + i % 32)) >> (i / 32 % 2 * 4) & 15 * EACH_BYTE;
}

static void pack_q4_k(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    for (int at = 0; at < v->k; at += SUPER, src += 144, scales += 64) {
        k_pairs(src, scales);
        for (int i = 0; i < SUPER; i += 8)
            put4(codes, at + i, k_nibbles(src + 16, i));
    }
}

static void pack_q5_k(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    for (int at = 0; at < v->k; at += SUPER, src += 176, scales += 64) {
        k_pairs(src, scales);
        for (int i = 0; i < SUPER; i += 8) {
            const uint64_t fifth = load_u64(src + 16 + i % 32) >> (i / 32) & EACH_BYTE;
            put8(codes, at + i, k_nibbles(src + 48, i) | fifth << 4);
        }
    }
}

static void pack_q6_k(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    uint8_t *high = codes + v->k / 2;
    for (int at = 0; at < v->k; at += SUPER, src += 210, scales += GPU_K6_SCALE_BYTES) {
        memcpy(scales, src + 192, 18);
        memset(scales + 18, 0, 2);
        for (int i = 0; i < SUPER; i += 8) {
            const int t = i / 32 % 4;
            const uint8_t *low = src + (ptrdiff_t)(i / 128 * 64 + t % 2 * 32 + i % 32);
            const uint64_t lo = load_u64(low) >> (t / 2 * 4) & 15 * EACH_BYTE;
            put6(codes, high, at + i, lo | quarters(src + 128, i) << 4);
        }
    }
}

/* value = d * (sc - 32) * (q - 4), q of three bits: a code of Q6_K is 32 more than its number. */
static void pack_q3_k(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    uint8_t *high = codes + v->k / 2;
    for (int at = 0; at < v->k; at += SUPER, src += 110, scales += GPU_K6_SCALE_BYTES) {
        const uint8_t *s = src + 96;
        for (int j = 0; j < 16; j++) {
            const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
            scales[j] = (uint8_t)((low | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32);
        }
        memcpy(scales + 16, src + 108, 2);
        memset(scales + 18, 0, 2);
        for (int i = 0; i < SUPER; i += 8) {
            const uint64_t third = load_u64(src + i % 32) >> (i / 32) & EACH_BYTE;
            put6(codes, high, at + i, quarters(src + 32, i) + (third << 2) + 28 * EACH_BYTE);
        }
    }
}

/* ---- planes ---- */

/* Rows of `bits` bits, one little-endian stream -> nibbles, or bytes for more than four. */
static void pack_stream(const uint8_t *src, int k, int bits, uint8_t *codes)
{
    const uint64_t mask = (1U << bits) - 1;
    for (int at = 0; at < k; at += 8, src += bits) {
        uint64_t in = 0;
        uint64_t x = 0;
        memcpy(&in, src, (size_t)bits);
        for (int i = 0; i < 8; i++)
            x |= (in >> (i * bits) & mask) << (i * 8);
        if (bits <= 4)
            put4(codes, at, x);
        else
            put8(codes, at, x);
    }
}

static int stream_bits(FormatId format)
{
    switch ((int)format) {
    case FMT_AFFINE1:
        return 1;
    case FMT_AFFINE2:
        return 2;
    case FMT_AFFINE3:
        return 3;
    case FMT_AFFINE5:
        return 5;
    case FMT_AFFINE6:
        return 6;
    default:
        return 0; /* as in the file */
    }
}

/* Scale and bias planes -> pairs. */
static void pack_pairs(const uint8_t *scales, const uint8_t *biases, int n, size_t size,
                       uint8_t *out)
{
    for (int i = 0; i < n; i++) {
        memcpy(out + (size_t)i * 2 * size, scales + (size_t)i * size, size);
        memcpy(out + (size_t)i * 2 * size + size, biases + (size_t)i * size, size);
    }
}

static void pack_planes(const RowView *v, int64_t r, uint8_t *codes, uint8_t *scales)
{
    const uint8_t *src = v->data + r * v->row_bytes;
    const int bits = stream_bits(v->format);
    if (bits)
        pack_stream(src, v->k, bits, codes);
    else
        memcpy(codes, src, (size_t)format_row_bytes(v->format, v->k));
    if (!scales)
        return;
    const uint8_t *s = v->scales + r * v->scale_row_bytes;
    if (v->biases)
        pack_pairs(s, v->biases + r * v->scale_row_bytes, v->k / v->group,
                   v->scale_format == FMT_F32 ? 4 : 2, scales);
    else
        memcpy(scales, s, (size_t)(v->k / v->group));
}

static void pack_plain(const RowView *v, const uint8_t *src, uint8_t *codes, uint8_t *scales)
{
    (void)scales;
    memcpy(codes, src, (size_t)v->row_bytes);
}

void gpu_pack_row(const RowView *v, int64_t r, uint8_t *codes, uint8_t *scales)
{
    static void (*const packs[FMT_COUNT])(const RowView *, const uint8_t *, uint8_t *,
                                          uint8_t *) = {
        [FMT_F32] = pack_plain,     [FMT_F16] = pack_plain, [FMT_BF16] = pack_plain,
        [FMT_Q4_0] = pack_q4_0,     [FMT_Q4_1] = pack_q4_1, [FMT_MXFP4] = pack_mxfp4,
        [FMT_Q5_0] = pack_q5_0,     [FMT_Q5_1] = pack_q5_1, [FMT_Q8_0] = pack_q8_0,
        [FMT_IQ4_NL] = pack_iq4_nl, [FMT_Q1_0] = pack_q1_0, [FMT_TQ1_0] = pack_tq1_0,
        [FMT_TQ2_0] = pack_tq2_0,   [FMT_Q3_K] = pack_q3_k, [FMT_Q4_K] = pack_q4_k,
        [FMT_Q5_K] = pack_q5_k,     [FMT_Q6_K] = pack_q6_k,
    };
    if (packs[v->format])
        packs[v->format](v, v->data + r * v->row_bytes, codes, scales);
    else
        pack_planes(v, r, codes, scales);
}
