/* lin_dequant.h: weight rows to f32, sixteen elements at a time, bit for bit as format_dequant_row
 * gives them (which is where each layout is explained). Private to lin*.c; empty for a file
 * compiled without AVX2. */
#ifndef MERE_DEVICE_CPU_LIN_DEQUANT_H
#define MERE_DEVICE_CPU_LIN_DEQUANT_H

#include "device/cpu/lin_vec.h"
#include "base/format.h"

#if defined(__AVX2__)

static ALWAYS_INLINE uint16_t load_u16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static ALWAYS_INLINE float load_f16(const uint8_t *p)
{
    return _cvtsh_ss(load_u16(p));
}

/* Entry i of a plane of numbers. */
static ALWAYS_INLINE float load_number(const uint8_t *p, FormatId format, int64_t i)
{
    if (format == FMT_F32) {
        float f;
        memcpy(&f, p + i * 4, sizeof f);
        return f;
    }
    return format == FMT_F16 ? load_f16(p + i * 2) : num_from_bf16(load_u16(p + i * 2));
}

static ALWAYS_INLINE void dequant_q4_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    const Vi codes = vi_from_u8(p + 2);
    const Vi eight = vi_set1(8);
    vf_store(out, vf_mul(d, vf_from_int(vi_sub(vi_and(codes, vi_set1(15)), eight))));
    vf_store(out + 16, vf_mul(d, vf_from_int(vi_sub(vi_shr(codes, 4), eight))));
}

static ALWAYS_INLINE void dequant_q4_1(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    const Vf m = vf_set1(load_f16(p + 2));
    const Vi codes = vi_from_u8(p + 4);
    vf_store(out, vf_add(vf_mul(d, vf_from_int(vi_and(codes, vi_set1(15)))), m));
    vf_store(out + 16, vf_add(vf_mul(d, vf_from_int(vi_shr(codes, 4))), m));
}

static ALWAYS_INLINE void dequant_q8_0(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(load_f16(p));
    vf_store(out, vf_mul(d, vf_from_int(vi_from_s8(p + 2))));
    vf_store(out + 16, vf_mul(d, vf_from_int(vi_from_s8(p + 18))));
}

static ALWAYS_INLINE void dequant_mxfp4(const uint8_t *p, float *out)
{
    const Vf d = vf_set1(num_from_e8m0(p[0]));
    const Vi codes = vi_from_u8(p + 1);
    vf_store(out, vf_mul(d, vf_from_e2m1(codes)));
    vf_store(out + 16, vf_mul(d, vf_from_e2m1(vi_shr(codes, 4))));
}

static ALWAYS_INLINE void dequant_q4_k(const uint8_t *p, float *out)
{
    const float d = load_f16(p);
    const float dmin = load_f16(p + 2);
    const uint8_t *s = p + 4;
    for (int j = 0; j < 8; j++) {
        const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        const int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        const Vf scale = vf_set1(d * (float)sc);
        const Vf min = vf_set1(dmin * (float)mn);
        for (int i = 0; i < 32; i += LANES) {
            const Vi codes = vi_shr(vi_from_u8(p + 16 + j / 2 * 32 + i), j % 2 * 4);
            const Vf q = vf_from_int(vi_and(codes, vi_set1(15)));
            vf_store(out + j * 32 + i, vf_sub(vf_mul(scale, q), min));
        }
    }
}

static ALWAYS_INLINE void dequant_q6_k(const uint8_t *p, float *out)
{
    const float d = load_f16(p + 208);
    for (int g = 0; g < 16; g++) { /* groups of 16 elements, each with a scale */
        const int half = g / 8;
        const int quarter = g % 8 / 2;
        const int at = g % 2 * LANES;
        const Vi lo = vi_shr(vi_from_u8(p + half * 64 + quarter % 2 * 32 + at), quarter / 2 * 4);
        const Vi hi = vi_shr(vi_from_u8(p + 128 + half * 32 + at), 2 * quarter);
        const Vi q = vi_or(vi_and(lo, vi_set1(15)), vi_shl(vi_and(hi, vi_set1(3)), 4));
        const Vf scale = vf_set1(d * (float)(int8_t)p[192 + g]);
        vf_store(out + g * LANES, vf_mul(scale, vf_from_int(vi_sub(q, vi_set1(32)))));
    }
}

static ALWAYS_INLINE void dequant_affine(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    const uint8_t *codes = w->data + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    const uint8_t *biases = w->biases + row * w->scale_row_bytes;
    for (int i = k0; i < k0 + kc; i += 32) { /* 32: the smallest group */
        const Vf scale = vf_set1(load_number(scales, w->scale_format, i / w->group));
        const Vf bias = vf_set1(load_number(biases, w->scale_format, i / w->group));
        for (int h = 0; h < 32; h += LANES) {
            const Vi q = w->format == FMT_AFFINE8
                             ? vi_from_u8(codes + i + h)
                             : vi_and(vi_from_nibbles(codes + (i + h) / 2), vi_set1(15));
            vf_store(out + i - k0 + h, vf_add(vf_mul(scale, vf_from_int(q)), bias));
        }
    }
}

static ALWAYS_INLINE void dequant_mxfp4p(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    const uint8_t *codes = w->data + row * w->row_bytes;
    const uint8_t *scales = w->scales + row * w->scale_row_bytes;
    for (int i = k0; i < k0 + kc; i += LANES) {
        const Vf scale = vf_set1(num_from_e8m0(scales[i / 32]));
        vf_store(out + i - k0, vf_mul(scale, vf_from_e2m1(vi_from_nibbles(codes + i / 2))));
    }
}

/* Sixteen numbers of a PLAIN format. */
static ALWAYS_INLINE Vf plain_load(FormatId format, const uint8_t *p)
{
    if (format == FMT_F16)
        return vf_from_f16(p);
    if (format == FMT_BF16)
        return vf_from_bf16(p);
    Vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static ALWAYS_INLINE void dequant_plain(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    const int size = w->format == FMT_F32 ? 4 : 2;
    const uint8_t *p = w->data + row * w->row_bytes + (int64_t)k0 * size;
    int i = 0;
    for (; i + LANES <= kc; i += LANES)
        vf_store(out + i, plain_load(w->format, p + (int64_t)i * size));
    for (; i < kc; i++)
        out[i] = load_number(p, w->format, i);
}

/* out[kc] = elements [k0, k0 + kc) of a row, then zeros up to a multiple of 16. k0 is a multiple
 * of 256; kc too, unless it reaches the end of the row. */
static inline void dequant_part(const RowView *w, int64_t row, int k0, int kc, float *out)
{
    for (int i = kc; i % LANES; i++)
        out[i] = 0;
    const uint8_t *p = w->data + row * w->row_bytes;
    void (*block)(const uint8_t *, float *) = NULL;
    int64_t bytes = 0;
    int elements = 32;
    if (w->format == FMT_F32 || w->format == FMT_F16 || w->format == FMT_BF16) {
        dequant_plain(w, row, k0, kc, out);
        return;
    }
    if (w->format == FMT_AFFINE4 || w->format == FMT_AFFINE8) {
        dequant_affine(w, row, k0, kc, out);
        return;
    }
    if (w->format == FMT_MXFP4P) {
        dequant_mxfp4p(w, row, k0, kc, out);
        return;
    }
    if (w->format == FMT_Q4_0)
        block = dequant_q4_0, bytes = 18;
    else if (w->format == FMT_Q4_1)
        block = dequant_q4_1, bytes = 20;
    else if (w->format == FMT_Q8_0)
        block = dequant_q8_0, bytes = 34;
    else if (w->format == FMT_MXFP4)
        block = dequant_mxfp4, bytes = 17;
    else if (w->format == FMT_Q4_K)
        block = dequant_q4_k, bytes = 144, elements = 256;
    else if (w->format == FMT_Q6_K)
        block = dequant_q6_k, bytes = 210, elements = 256;
    if (block)
        for (int i = 0; i < kc; i += elements)
            block(p + (k0 + i) / elements * bytes, out + i);
    else /* formats that have no code of their own at this level */
        format_dequant_part(w, row, k0, kc, out);
}

#endif
#endif
