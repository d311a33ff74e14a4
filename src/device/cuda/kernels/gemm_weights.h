/* gemm_weights.h: weight rows of each layout as matrix instructions take them. A thread owns 32
 * consecutive k of a row in a chunk of 128 (thread t of four: k 32 t ..), unpacked eight at a time
 * (q): pair j of them is (k j, k j + 4), low half first.
 *
 * Small unsigned codes become f16 without a conversion: 0x6400 | code is 1024 + code. S4 and S8 are
 * read as affine with bias -8 d or -128 d: exact, since q d - 8 d is rounded once. */
#ifndef MERE_GEMM_WEIGHTS_H
#define MERE_GEMM_WEIGHTS_H

#include "gemm_params.h"
#include "gpu_compat.h"
#include "gpu_words.h"

enum { W_16_BYTES = 16 };

/* What a chunk's scale is before it is used: loaded a step ahead. */
struct GemmScaleRaw {
    uint32_t x, y;
};
/* Pairs of equal f16: value = code * s + b. K6 has two of each, for 16 k each. */
struct GemmScale {
    uint32_t s[2], b[2];
};

DEVICE uint32_t twice(uint32_t half)
{
    return byte_perm(half, half, 0x1010);
}

/* For NT rows: one scale, or scale and bias, for the 32 k from k0 on. */
template <int NT>
DEVICE void affine_load(GemmScaleRaw r[NT], const GemmParams &p, const uint8_t *const rows[NT],
                        int k0)
{
    const int i = k0 >> p.group_shift;
    const bool is_in = k0 < p.k;
    if (p.scale_kind == GPU_SCALE_KIND_F16) {
        UNROLL
        for (int n = 0; n < NT; n++)
            r[n].x = is_in ? load_stream_u16(rows[n] + i * 2) : 0u;
    } else if (p.scale_kind == GPU_SCALE_KIND_F32_PAIR) {
        UNROLL
        for (int n = 0; n < NT; n++) {
            const u32x2 v = is_in ? load_stream_u32x2(rows[n] + i * 8) : u32x2{0, 0};
            r[n].x = v.x;
            r[n].y = v.y;
        }
    } else {
        UNROLL
        for (int n = 0; n < NT; n++)
            r[n].x = is_in ? load_stream_u32(rows[n] + i * 4) : 0u;
    }
}

/* minus_zero: -8 or -128 as two f16. */
template <int NT>
DEVICE void affine_make(GemmScale m[NT], const GemmParams &p, const GemmScaleRaw r[NT],
                        uint32_t minus_zero)
{
    if (p.scale_kind == GPU_SCALE_KIND_F16) {
        UNROLL
        for (int n = 0; n < NT; n++) {
            m[n].s[0] = twice(r[n].x);
            m[n].b[0] = f16x2_mul(m[n].s[0], minus_zero);
        }
    } else if (p.scale_kind == GPU_SCALE_KIND_F16_PAIR) {
        UNROLL
        for (int n = 0; n < NT; n++) {
            m[n].s[0] = twice(r[n].x);
            m[n].b[0] = byte_perm(r[n].x, r[n].x, 0x3232);
        }
    } else {
        const bool wide = p.scale_kind == GPU_SCALE_KIND_F32_PAIR;
        UNROLL
        for (int n = 0; n < NT; n++) {
            const uint32_t s = wide ? r[n].x : r[n].x << 16;
            const uint32_t b = wide ? r[n].y : r[n].x & 0xffff0000u;
            m[n].s[0] = twice(f16_of_f32(f32_of_bits(s)));
            m[n].b[0] = twice(f16_of_f32(f32_of_bits(b)));
        }
    }
}

/* Codes of 1024 + c in f16 -> c * s + b. */
DEVICE uint32_t affine_pair(uint32_t v, uint32_t s, uint32_t b)
{
    return f16x2_fma(f16x2_add(v, 0xe400e400u), s, b);
}

/* S4, A4. */
struct GemmW4 {
    enum { BYTES = GEMM_BYTES_W4, UNITS = 4, QS = 4, BF16 = 0, EXTRA = 0 };
    struct Raw {
        u32x4 v;
    };
    /* Where 16-byte unit u of a row's chunk lies. */
    static DEVICE int place(int, int u)
    {
        return u * W_16_BYTES;
    }
    static DEVICE Raw load(const uint8_t *row, int, int t, int)
    {
        return Raw{*(const u32x4 *)(row + t * W_16_BYTES)};
    }
    template <int NT>
    static DEVICE void scale_load(GemmScaleRaw r[NT], const GemmParams &p,
                                  const uint8_t *const rows[NT], int k0)
    {
        affine_load<NT>(r, p, rows, k0);
    }
    template <int NT>
    static DEVICE void scale_make(GemmScale m[NT], const GemmParams &p, const GemmScaleRaw r[NT])
    {
        affine_make<NT>(m, p, r, 0xc800c800u);
    }
    static DEVICE void unpack(uint32_t f[4], const Raw &r, int q, const GemmScale &m,
                              const GemmParams &)
    {
        const uint32_t w = q == 0 ? r.v.x : q == 1 ? r.v.y : q == 2 ? r.v.z : r.v.w;
        const uint32_t h = w >> 8;
        /* the high nibbles are 16-fold: (1024 + 16 c) / 16 - 64 */
        f[0] = affine_pair((w & 0x000f000fu) | 0x64006400u, m.s[0], m.b[0]);
        f[1] = f16x2_fma(f16x2_fma((w & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd400d400u),
                         m.s[0], m.b[0]);
        f[2] = affine_pair((h & 0x000f000fu) | 0x64006400u, m.s[0], m.b[0]);
        f[3] = f16x2_fma(f16x2_fma((h & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd400d400u),
                         m.s[0], m.b[0]);
    }
};

/* E4: sign, exponent and mantissa of a code put where bf16 has them are the value times 2^-126. */
struct GemmE4 {
    enum { BYTES = GEMM_BYTES_E4, UNITS = 4, QS = 4, BF16 = 1, EXTRA = 0 };
    typedef GemmW4::Raw Raw;
    static DEVICE int place(int, int u)
    {
        return u * W_16_BYTES;
    }
    static DEVICE Raw load(const uint8_t *row, int, int t, int)
    {
        return Raw{*(const u32x4 *)(row + t * W_16_BYTES)};
    }
    template <int NT>
    static DEVICE void scale_load(GemmScaleRaw r[NT], const GemmParams &p,
                                  const uint8_t *const rows[NT], int k0)
    {
        UNROLL
        for (int n = 0; n < NT; n++)
            r[n].x = k0 < p.k ? load_stream_u8(rows[n] + (k0 >> p.group_shift)) : 0u;
    }
    template <int NT>
    static DEVICE void scale_make(GemmScale m[NT], const GemmParams &, const GemmScaleRaw r[NT])
    {
        UNROLL
        for (int n = 0; n < NT; n++) /* 2^(e - 127) */
            m[n].s[0] = twice(r[n].x ? r[n].x << 7 : 0x40u);
    }
    static DEVICE uint32_t pair(uint32_t sign, uint32_t rest, const GemmScale &m)
    {
        const uint32_t v = (sign & 0x80008000u) | (rest & 0x01c001c0u);
        return bf16x2_mul(bf16x2_mul(v, 0x7e807e80u), m.s[0]);
    }
    static DEVICE void unpack(uint32_t f[4], const Raw &r, int q, const GemmScale &m,
                              const GemmParams &)
    {
        const uint32_t w = q == 0 ? r.v.x : q == 1 ? r.v.y : q == 2 ? r.v.z : r.v.w;
        f[0] = pair(w << 12, w << 6, m);
        f[1] = pair(w << 8, w << 2, m);
        f[2] = pair(w << 4, w >> 2, m);
        f[3] = pair(w, w >> 6, m);
    }
};

/* S8, A8. A thread's two units of 16 bytes lie four units apart, every other row swapped, so that
 * eight threads that read at once meet all banks. */
struct GemmW8 {
    enum { BYTES = GEMM_BYTES_W8, UNITS = 8, QS = 2, BF16 = 0, EXTRA = 0 };
    struct Raw {
        u32x4 v;
    };
    static DEVICE int place(int row, int u)
    {
        return ((u % 2 * 4 + u / 2) ^ (row & 1) << 2) * W_16_BYTES;
    }
    static DEVICE Raw load(const uint8_t *base, int row, int t, int q)
    {
        return Raw{*(const u32x4 *)(base + place(row, t * 2 + q / 2))};
    }
    template <int NT>
    static DEVICE void scale_load(GemmScaleRaw r[NT], const GemmParams &p,
                                  const uint8_t *const rows[NT], int k0)
    {
        affine_load<NT>(r, p, rows, k0);
    }
    template <int NT>
    static DEVICE void scale_make(GemmScale m[NT], const GemmParams &p, const GemmScaleRaw r[NT])
    {
        affine_make<NT>(m, p, r, 0xd800d800u);
    }
    static DEVICE void unpack(uint32_t f[4], const Raw &r, int q, const GemmScale &m,
                              const GemmParams &p)
    {
        const uint32_t sign = p.scale_kind == GPU_SCALE_KIND_F16 ? 0x80808080u : 0u; /* + 128 */
        const uint32_t w0 = (q % 2 ? r.v.z : r.v.x) ^ sign;
        const uint32_t w1 = (q % 2 ? r.v.w : r.v.y) ^ sign;
        UNROLL
        for (int j = 0; j < 4; j++) {
            const uint32_t v = byte_perm(w0, w1, (uint32_t)(j | (4 + j) << 8));
            f[j] = affine_pair((v & 0x00ff00ffu) | 0x64006400u, m.s[0], m.b[0]);
        }
    }
};

/* K6: a chunk is 64 bytes of nibbles, then 32 of high pairs. */
struct GemmK6 {
    enum { BYTES = GEMM_BYTES_K6, UNITS = 4, QS = 4, BF16 = 0, EXTRA = 1 };
    struct Raw {
        u32x4 low;
        u32x2 high;
    };
    static DEVICE int place(int, int u)
    {
        return u * W_16_BYTES;
    }
    static DEVICE Raw load(const uint8_t *row, int, int t, int)
    {
        return Raw{*(const u32x4 *)(row + t * W_16_BYTES), *(const u32x2 *)(row + 64 + t * 8)};
    }
    template <int NT>
    static DEVICE void scale_load(GemmScaleRaw r[NT], const GemmParams &p,
                                  const uint8_t *const rows[NT], int k0)
    {
        UNROLL
        for (int n = 0; n < NT; n++) {
            const uint8_t *at = rows[n] + k0 / 256 * 20;
            r[n].x = k0 < p.k ? load_stream_u16(at + k0 % 256 / 16) : 0u;
            r[n].y = k0 < p.k ? load_stream_u16(at + 16) : 0u;
        }
    }
    template <int NT>
    static DEVICE void scale_make(GemmScale m[NT], const GemmParams &, const GemmScaleRaw r[NT])
    {
        UNROLL
        for (int n = 0; n < NT; n++) {
            const float d = f32_of_f16(r[n].y);
            m[n].s[0] = twice(f16_of_f32(d * (float)(int8_t)(r[n].x & 255)));
            m[n].s[1] = twice(f16_of_f32(d * (float)(int8_t)(r[n].x >> 8)));
            m[n].b[0] = f16x2_mul(m[n].s[0], 0xd000d000u); /* -32 */
            m[n].b[1] = f16x2_mul(m[n].s[1], 0xd000d000u);
        }
    }
    static DEVICE void unpack(uint32_t f[4], const Raw &r, int q, const GemmScale &m,
                              const GemmParams &)
    {
        const uint32_t w = q == 0 ? r.low.x : q == 1 ? r.low.y : q == 2 ? r.low.z : r.low.w;
        const uint32_t both = q < 2 ? r.high.x : r.high.y;
        /* two bytes of pairs, one in each half, four bits up: pair j at bits 4 + 2 j */
        const uint32_t h = byte_perm(both, 0, q % 2 ? 0x4342u : 0x4140u) << 4;
        UNROLL
        for (int j = 0; j < 4; j++) {
            const uint32_t v = (w >> 4 * j & 0x000f000fu) | (h >> 2 * j & 0x00300030u);
            f[j] = affine_pair(v | 0x64006400u, m.s[q / 2], m.b[q / 2]);
        }
    }
};

/* F16, BF16: only put in order. */
template <int is_bf16> struct GemmPlain {
    enum { BYTES = GEMM_BYTES_16, UNITS = 16, QS = 1, BF16 = is_bf16, EXTRA = 0 };
    struct Raw {
        u32x4 v;
    };
    static DEVICE int place(int row, int u)
    {
        return ((u % 4 * 4 + u / 4) ^ (row & 1) << 2) * W_16_BYTES;
    }
    static DEVICE Raw load(const uint8_t *base, int row, int t, int q)
    {
        return Raw{*(const u32x4 *)(base + place(row, t * 4 + q))};
    }
    template <int NT>
    static DEVICE void scale_load(GemmScaleRaw[NT], const GemmParams &, const uint8_t *const[NT],
                                  int)
    {
    }
    template <int NT>
    static DEVICE void scale_make(GemmScale[NT], const GemmParams &, const GemmScaleRaw[NT])
    {
    }
    static DEVICE void unpack(uint32_t f[4], const Raw &r, int, const GemmScale &,
                              const GemmParams &)
    {
        f[0] = byte_perm(r.v.x, r.v.z, 0x5410);
        f[1] = byte_perm(r.v.x, r.v.z, 0x7632);
        f[2] = byte_perm(r.v.y, r.v.w, 0x5410);
        f[3] = byte_perm(r.v.y, r.v.w, 0x7632);
    }
};

#endif
