/* lin_layout.h: how a lane reads and multiplies each weight layout (gpu_weight.h).
 *
 * A lane takes one unit of a row: K numbers whose codes are 16 bytes (24 for K6). A layout is
 *   Geom    facts of a launch that addresses need
 *   Reg     a unit in registers
 *   load    unit u of the row whose codes begin at code16 * 16 and scales at `scale` bytes
 *   int8:   X, how a unit's activations are read; mul adds the unit's product to acc
 *   f32:    get4, numbers 4 q .. 4 q + 3 of the unit
 * Fused multiply-adds are written out, so that every kernel rounds alike whatever its number of
 * rows. */
#ifndef MERE_LIN_LAYOUT_H
#define MERE_LIN_LAYOUT_H

#include "gpu_compat.h"
#include "gpu_words.h"
#include "lin_params.h"
#include "lin_x.h"

struct LinGeom {
    const uint8_t *codes;
    const uint8_t *scales;
    int k;
    int group_shift;
    int scale_kind;
};

DEVICE LinGeom lin_geom(const LinWeight &w)
{
    return LinGeom{w.codes, w.scales, w.k, w.group_shift, w.scale_kind};
}

DEVICE const uint8_t *lin_code_at(const LinGeom &g, uint32_t code16)
{
    return g.codes + (uint64_t)code16 * 16;
}

/* ---- int8: what a unit's activations are ---- */

struct LinX32 { /* 32 k: nibble layouts */
    u32x4 a, b;
    f32x2 side;
    DEVICE void load(const uint8_t *row, int chunks, int u)
    {
        a = *(const u32x4 *)(row + u * 16);
        b = *(const u32x4 *)(row + LIN_X_PLANE(chunks) + u * 16);
        side = ((const f32x2 *)(row + 2 * LIN_X_PLANE(chunks)))[u];
    }
};
struct LinX16 { /* 16 k: half a chunk; the chunk's sum counts in its first half */
    u32x4 a;
    float d, off;
    DEVICE void load(const uint8_t *row, int chunks, int u)
    {
        const int half = u & 1;
        a = *(const u32x4 *)(row + half * LIN_X_PLANE(chunks) + (u >> 1) * 16);
        const f32x2 s = ((const f32x2 *)(row + 2 * LIN_X_PLANE(chunks)))[u >> 1];
        d = s.x;
        off = half ? 0.0F : s.y;
    }
};

/* 16 times the product of 32 codes with 32 bytes: the high nibbles stay where they are, 16-fold. */
DEVICE int lin_dot_nibbles(const u32x4 &w, const u32x4 &a, const u32x4 &b)
{
    const uint32_t low = 0x0f0f0f0fu;
    const uint32_t high = 0xf0f0f0f0u;
    int lo = 0;
    int hi = 0;
    lo = dot4_us(w.x & low, a.x, lo), hi = dot4_us(w.x & high, a.y, hi);
    lo = dot4_us(w.y & low, a.z, lo), hi = dot4_us(w.y & high, a.w, hi);
    lo = dot4_us(w.z & low, b.x, lo), hi = dot4_us(w.z & high, b.y, hi);
    lo = dot4_us(w.w & low, b.z, lo), hi = dot4_us(w.w & high, b.w, hi);
    return lo * 16 + hi;
}

struct LinI8S4 {
    enum { K = 32, KIND = LIN_X_S4, INT8 = 1 };
    typedef LinX32 X;
    struct Reg {
        u32x4 w;
        uint32_t s;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
        r.s = load_stream_u16(g.scales + (scale + (uint32_t)u * 2));
    }
    static DEVICE void mul(const Reg &r, const X &x, float &acc)
    {
        const int t = lin_dot_nibbles(r.w, x.a, x.b);
        acc = fmaf(f32_of_f16(r.s), fmaf((float)t, x.side.x, x.side.y), acc);
    }
};

/* ---- pairs of scale and bias ---- */

struct LinPairF16 {
    typedef uint32_t Reg;
    enum { BYTES = 4 };
    static DEVICE Reg load(const uint8_t *p)
    {
        return load_stream_u32(p);
    }
    static DEVICE float scale(Reg r)
    {
        return f32_of_f16(r & 0xffffu);
    }
    static DEVICE float bias(Reg r)
    {
        return f32_of_f16(r >> 16);
    }
};
struct LinPairBf16 {
    typedef uint32_t Reg;
    enum { BYTES = 4 };
    static DEVICE Reg load(const uint8_t *p)
    {
        return load_stream_u32(p);
    }
    static DEVICE float scale(Reg r)
    {
        return f32_of_bits(r << 16);
    }
    static DEVICE float bias(Reg r)
    {
        return f32_of_bits(r & 0xffff0000u);
    }
};
struct LinPairF32 {
    typedef u32x2 Reg;
    enum { BYTES = 8 };
    static DEVICE Reg load(const uint8_t *p)
    {
        return load_stream_u32x2(p);
    }
    static DEVICE float scale(Reg r)
    {
        return f32_of_bits(r.x);
    }
    static DEVICE float bias(Reg r)
    {
        return f32_of_bits(r.y);
    }
};

template <class P> struct LinI8A4 {
    enum { K = 32, KIND = LIN_X_A4, INT8 = 1 };
    typedef LinX32 X;
    struct Reg {
        u32x4 w;
        typename P::Reg s;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
        r.s = P::load(g.scales + (scale + ((uint32_t)u >> g.group_shift) * P::BYTES));
    }
    static DEVICE void mul(const Reg &r, const X &x, float &acc)
    {
        const int t = lin_dot_nibbles(r.w, x.a, x.b);
        acc = fmaf(P::scale(r.s), (float)t * x.side.x, acc);
        acc = fmaf(P::bias(r.s), x.side.y, acc);
    }
};

/* 2^(e - 127) */
DEVICE float lin_e8m0(uint32_t e)
{
    const float f = f32_of_bits(e ? e << 23 : 0x00400000u);
    return e == 255 ? f32_of_bits(0x7fc00000u) : f;
}

/* e2m1 through byte_perm: a selector of 4 bits takes one of eight bytes by its low three; with the
 * fourth set it gives that byte's sign, 0 in our table. So one look-up leaves the positive codes'
 * magnitudes (doubled, to be whole) and zeros, another the negative ones'. */
struct LinI8E4 {
    enum { K = 32, KIND = LIN_X_BYTES, INT8 = 1 };
    typedef LinX32 X;
    struct Reg {
        u32x4 w;
        uint32_t s;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
        r.s = load_stream_u8(g.scales + (scale + (uint32_t)u));
    }
    static DEVICE void word(uint32_t w, uint32_t x0, uint32_t x1, int &plus, int &minus)
    {
        const uint32_t t0 = 0x03020100u;
        const uint32_t t1 = 0x0c080604u;
        const uint32_t n = w ^ 0x88888888u;
        plus = dot4_us(byte_perm(t0, t1, w & 0xffffu), x0, plus);
        minus = dot4_us(byte_perm(t0, t1, n & 0xffffu), x0, minus);
        plus = dot4_us(byte_perm(t0, t1, w >> 16), x1, plus);
        minus = dot4_us(byte_perm(t0, t1, n >> 16), x1, minus);
    }
    static DEVICE void mul(const Reg &r, const X &x, float &acc)
    {
        int plus = 0;
        int minus = 0;
        word(r.w.x, x.a.x, x.a.y, plus, minus);
        word(r.w.y, x.a.z, x.a.w, plus, minus);
        word(r.w.z, x.b.x, x.b.y, plus, minus);
        word(r.w.w, x.b.z, x.b.w, plus, minus);
        acc = fmaf(lin_e8m0(r.s) * 0.5F, (float)(plus - minus) * x.side.x, acc);
    }
};

template <class P> struct LinI8A8 {
    enum { K = 16, KIND = LIN_X_BYTES, INT8 = 1 };
    typedef LinX16 X;
    struct Reg {
        u32x4 w;
        typename P::Reg s;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
        r.s = P::load(g.scales + (scale + ((uint32_t)u >> (g.group_shift + 1)) * P::BYTES));
    }
    static DEVICE void mul(const Reg &r, const X &x, float &acc)
    {
        int t = dot4_us(r.w.x, x.a.x, 0);
        t = dot4_us(r.w.y, x.a.y, t);
        t = dot4_us(r.w.z, x.a.z, t);
        t = dot4_us(r.w.w, x.a.w, t);
        acc = fmaf(P::scale(r.s), (float)t * x.d, acc);
        acc = fmaf(P::bias(r.s), x.off, acc);
    }
};

struct LinI8S8 {
    enum { K = 16, KIND = LIN_X_BYTES, INT8 = 1 };
    typedef LinX16 X;
    struct Reg {
        u32x4 w;
        uint32_t s;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
        r.s = load_stream_u16(g.scales + (scale + ((uint32_t)u >> 1) * 2));
    }
    static DEVICE void mul(const Reg &r, const X &x, float &acc)
    {
        int t = dot4_ss(r.w.x, x.a.x, 0);
        t = dot4_ss(r.w.y, x.a.y, t);
        t = dot4_ss(r.w.z, x.a.z, t);
        t = dot4_ss(r.w.w, x.a.w, t);
        acc = fmaf(f32_of_f16(r.s), (float)t * x.d, acc);
    }
};

/* Six bits: low nibbles as above, the upper two bits of 16 k in one word, joined to bytes here. */
struct LinK6Reg {
    u32x4 w;
    u32x2 h;
    uint32_t sc; /* int8 of the first 16 k, of the last 16 */
    uint32_t d;
};
DEVICE void lin_k6_load(LinK6Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
{
    r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
    r.h = load_stream_u32x2(lin_code_at(g, code16) + (g.k / 2 + u * 8));
    const uint8_t *s = g.scales + (scale + ((uint32_t)u >> 3) * 20);
    r.sc = load_stream_u16(s + (u & 7) * 2);
    r.d = load_stream_u16(s + 16);
}
DEVICE float lin_k6_scale(const LinK6Reg &r, int half) /* its int8 scale, as a number */
{
    return (float)(int8_t)(r.sc >> (8 * half));
}

struct LinI8K6 {
    enum { K = 32, KIND = LIN_X_K6, INT8 = 1 };
    typedef LinX32 X;
    typedef LinK6Reg Reg;
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        lin_k6_load(r, g, code16, scale, u);
    }
    static DEVICE int half(uint32_t w0, uint32_t w1, uint32_t h, const u32x4 &x)
    {
        const uint32_t low = 0x0f0f0f0fu;
        const uint32_t two = 0x03030303u;
        const uint32_t p0 = h & two; /* k 0 4 8 12 */
        const uint32_t p1 = h >> 2 & two;
        const uint32_t p2 = h >> 4 & two;
        const uint32_t p3 = h >> 6 & two;
        int t = dot4_us((w0 & low) + byte_perm(p0, p2, 0x5140) * 16, x.x, 0);
        t = dot4_us((w0 >> 4 & low) + byte_perm(p1, p3, 0x5140) * 16, x.y, t);
        t = dot4_us((w1 & low) + byte_perm(p0, p2, 0x7362) * 16, x.z, t);
        return dot4_us((w1 >> 4 & low) + byte_perm(p1, p3, 0x7362) * 16, x.w, t);
    }
    static DEVICE void mul(const Reg &r, const X &x, float &acc)
    {
        const uint32_t sums = bits_of_f32(x.side.y);
        const int a = half(r.w.x, r.w.y, r.h.x, x.a) - 32 * (int16_t)(sums & 0xffffu);
        const int b = half(r.w.z, r.w.w, r.h.y, x.b) - 32 * (int16_t)(sums >> 16);
        const int t = a * (int8_t)(r.sc & 255u) + b * (int8_t)(r.sc >> 8);
        acc = fmaf(f32_of_f16(r.d) * x.side.x, (float)t, acc);
    }
};

/* ---- f32 ---- */

/* Code 0 .. 255 of byte j of w as f32: put into the mantissa of 2^23, which is taken off again
 * together with `zero`. Conversions from integers run at a quarter of the rate. */
DEVICE float lin_f32_of_byte(uint32_t w, int j, float zero)
{
    return f32_of_bits(byte_perm(w, 0x4b000000u, 0x7540u + (uint32_t)j)) - (8388608.0F + zero);
}
DEVICE float lin_f32_of_nibble(uint32_t w, int j, float zero)
{
    return f32_of_bits((w >> (4 * j) & 15u) | 0x4b000000u) - (8388608.0F + zero);
}
DEVICE uint32_t lin_word(const u32x4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

struct LinPair {
    float scale, bias;
};
/* Group g's pair. */
DEVICE LinPair lin_pair(const LinGeom &geom, uint32_t scale, uint32_t g)
{
    const uint8_t *s = geom.scales + scale;
    if (geom.scale_kind == GPU_SCALE_KIND_F32_PAIR) {
        const u32x2 v = load_stream_u32x2(s + g * 8);
        return LinPair{f32_of_bits(v.x), f32_of_bits(v.y)};
    }
    const uint32_t v = load_stream_u32(s + g * 4);
    if (geom.scale_kind == GPU_SCALE_KIND_F16_PAIR)
        return LinPair{f32_of_f16(v & 0xffffu), f32_of_f16(v >> 16)};
    return LinPair{f32_of_bits(v << 16), f32_of_bits(v & 0xffff0000u)};
}

struct LinF32Plain {
    struct Reg {
        u32x4 w;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
    }
};
struct LinF32F32 : LinF32Plain {
    enum { K = 4, INT8 = 0 };
    static DEVICE void get4(const Reg &r, int, float v[4])
    {
        UNROLL for (int i = 0; i < 4; i++) v[i] = f32_of_bits(lin_word(r.w, i));
    }
};
struct LinF32F16 : LinF32Plain {
    enum { K = 8, INT8 = 0 };
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        UNROLL for (int i = 0; i < 4; i++) v[i] =
            f32_of_f16(lin_word(r.w, 2 * q + i / 2) >> (16 * (i % 2)) & 0xffffu);
    }
};
struct LinF32Bf16 : LinF32Plain {
    enum { K = 8, INT8 = 0 };
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        UNROLL for (int i = 0; i < 4; i++)
        {
            const uint32_t w = lin_word(r.w, 2 * q + i / 2);
            v[i] = f32_of_bits(i % 2 ? w & 0xffff0000u : w << 16);
        }
    }
};
struct LinF32A4 {
    enum { K = 32, INT8 = 0 };
    struct Reg {
        u32x4 w;
        LinPair s;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
        r.s = lin_pair(g, scale, (uint32_t)u >> g.group_shift);
    }
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        UNROLL for (int i = 0; i < 4; i++) v[i] =
            fmaf(r.s.scale, lin_f32_of_nibble(lin_word(r.w, q / 2), q % 2 * 4 + i, 0.0F), r.s.bias);
    }
};
struct LinF32S4 {
    enum { K = 32, INT8 = 0 };
    typedef LinI8S4::Reg Reg;
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        LinI8S4::load(r, g, code16, scale, u);
    }
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        const float s = f32_of_f16(r.s);
        UNROLL for (int i = 0; i < 4; i++) v[i] =
            s * lin_f32_of_nibble(lin_word(r.w, q / 2), q % 2 * 4 + i, 8.0F);
    }
};
/* The three low bits of e2m1 are the top of an f32's exponent and mantissa, 2^126 too small. */
struct LinF32E4 {
    enum { K = 32, INT8 = 0 };
    typedef LinI8E4::Reg Reg;
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        LinI8E4::load(r, g, code16, scale, u);
    }
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        const float s = lin_e8m0(r.s);
        UNROLL for (int i = 0; i < 4; i++)
        {
            const uint32_t n = lin_word(r.w, q / 2) >> (4 * (q % 2 * 4 + i));
            v[i] = f32_of_bits((n & 7u) << 22 | (n & 8u) << 28) * 0x1p126F * s;
        }
    }
};
struct LinF32A8 {
    enum { K = 16, INT8 = 0 };
    struct Reg {
        u32x4 w;
        LinPair s;
    };
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        r.w = load_stream(lin_code_at(g, code16 + (uint32_t)u));
        r.s = lin_pair(g, scale, (uint32_t)u >> (g.group_shift + 1));
    }
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        UNROLL for (int i = 0; i < 4; i++) v[i] =
            fmaf(r.s.scale, lin_f32_of_byte(lin_word(r.w, q), i, 0.0F), r.s.bias);
    }
};
struct LinF32S8 {
    enum { K = 16, INT8 = 0 };
    typedef LinI8S8::Reg Reg;
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        LinI8S8::load(r, g, code16, scale, u);
    }
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        const float s = f32_of_f16(r.s);
        const uint32_t w = lin_word(r.w, q) ^ 0x80808080u; /* + 128 */
        UNROLL for (int i = 0; i < 4; i++) v[i] = s * lin_f32_of_byte(w, i, 128.0F);
    }
};
struct LinF32K6 {
    enum { K = 32, INT8 = 0 };
    typedef LinK6Reg Reg;
    static DEVICE void load(Reg &r, const LinGeom &g, uint32_t code16, uint32_t scale, int u)
    {
        lin_k6_load(r, g, code16, scale, u);
    }
    static DEVICE void get4(const Reg &r, int q, float v[4])
    {
        const float s = f32_of_f16(r.d) * lin_k6_scale(r, q / 4);
        const uint32_t h = (q / 4 ? r.h.y : r.h.x) >> (q % 4 * 8);
        const uint32_t w = lin_word(r.w, q / 2) >> (q % 2 * 16);
        UNROLL for (int i = 0; i < 4; i++)
        {
            const uint32_t code = (w >> (4 * i) & 15u) | (h >> (2 * i) & 3u) << 4;
            v[i] = s * (f32_of_bits(code | 0x4b000000u) - (8388608.0F + 32.0F));
        }
    }
};

#endif
