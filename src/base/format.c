#include "base/format.h"

#include "base/num.h"

static const FormatInfo formats[FMT_COUNT] = {
#define FORMAT(id, name, block, bytes, bits, kind) [id] = {name, block, bytes, bits, kind},
#include "base/formats.def"
#undef FORMAT
};

/* e2m1: sign, two exponent bits, one mantissa bit (OCP MX v1.0, table 5). */
static const float e2m1[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                               -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

const FormatInfo *format_info(FormatId id)
{
    return &formats[id];
}

int64_t format_row_bytes(FormatId id, int64_t k)
{
    const FormatInfo *f = &formats[id];
    if (k < 0)
        return -1;
    if (f->kind == FMT_PLANE) {
        const int64_t unit = f->block ? f->block : 32; /* the smallest group, whole u32 words */
        return k % unit ? -1 : k / 8 * f->bits;
    }
    return k % f->block ? -1 : k / f->block * f->block_bytes;
}

/* Bytes of one entry of the scale (and bias) plane. */
static int64_t scale_bytes(const RowView *v)
{
    return v->format == FMT_MXFP4P ? 1 : formats[v->scale_format].block_bytes;
}

int64_t rowview_bytes(const RowView *v)
{
    int64_t row = format_row_bytes(v->format, v->k);
    if (formats[v->format].kind == FMT_PLANE)
        row += v->k / v->group * scale_bytes(v) * (v->biases ? 2 : 1);
    return row * v->n;
}

RowView rowview_slice(const RowView *v, int64_t from, int64_t n)
{
    RowView s = *v;
    s.data += from * v->row_bytes;
    if (s.scales)
        s.scales += from * v->scale_row_bytes;
    if (s.biases)
        s.biases += from * v->scale_row_bytes;
    s.n = n;
    return s;
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

static float load_f32(const uint8_t *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

/* Entry i of a plane of plain numbers. */
static float plain_at(const uint8_t *p, FormatId format, int i)
{
    if (format == FMT_F32)
        return load_f32(p + (size_t)i * 4);
    const uint16_t h = load_u16(p + (size_t)i * 2);
    return format == FMT_F16 ? num_from_f16(h) : num_from_bf16(h);
}

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

/* Scales and mins are eight pairs of 6 bits in 12 bytes s: for j < 4 the low 6 bits of s[j] and
 * s[j + 4]; for j >= 4 a nibble each of s[j + 4], with the top two bits of s[j - 4] and s[j] above
 * it. */
static void q4_k(const uint8_t *p, float *y) /* 144 bytes to 256 */
{
    const float d = load_f16(p);
    const float dmin = load_f16(p + 2);
    const uint8_t *s = p + 4;
    const uint8_t *q = p + 16;
    for (int j = 0; j < 8; j++) {
        const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        const int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
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

static void mxfp4(const uint8_t *p, float *y) /* 17 bytes to 32 */
{
    const float d = num_from_e8m0(p[0]);
    for (int i = 0; i < 16; i++) {
        y[i] = d * e2m1[p[1 + i] & 15];
        y[i + 16] = d * e2m1[p[1 + i] >> 4];
    }
}

static void affine(const RowView *v, int64_t r, float *out)
{
    const uint8_t *q = v->data + r * v->row_bytes;
    const uint8_t *scales = v->scales + r * v->scale_row_bytes;
    const uint8_t *biases = v->biases + r * v->scale_row_bytes;
    for (int i = 0; i < v->k; i++) {
        const int code = v->format == FMT_AFFINE8 ? q[i] : q[i / 2] >> (i % 2 * 4) & 15;
        const float scale = plain_at(scales, v->scale_format, i / v->group);
        const float bias = plain_at(biases, v->scale_format, i / v->group);
        out[i] = scale * (float)code + bias;
    }
}

static void mxfp4_planes(const RowView *v, int64_t r, float *out)
{
    const uint8_t *q = v->data + r * v->row_bytes;
    const uint8_t *scales = v->scales + r * v->scale_row_bytes;
    for (int i = 0; i < v->k; i++)
        out[i] = num_from_e8m0(scales[i / 32]) * e2m1[q[i / 2] >> (i % 2 * 4) & 15];
}

void format_dequant_row(const RowView *v, int64_t r, float *out)
{
    const uint8_t *p = v->data + r * v->row_bytes;
    const int block = formats[v->format].block;
    const int block_bytes = formats[v->format].block_bytes;
    void (*unpack)(const uint8_t *, float *) = NULL;
    switch (v->format) {
    case FMT_F32:
    case FMT_F16:
    case FMT_BF16:
        for (int i = 0; i < v->k; i++)
            out[i] = plain_at(p, v->format, i);
        return;
    case FMT_AFFINE4:
    case FMT_AFFINE8:
        affine(v, r, out);
        return;
    case FMT_MXFP4P:
        mxfp4_planes(v, r, out);
        return;
    case FMT_Q4_0:
        unpack = q4_0;
        break;
    case FMT_Q4_1:
        unpack = q4_1;
        break;
    case FMT_Q8_0:
        unpack = q8_0;
        break;
    case FMT_Q4_K:
        unpack = q4_k;
        break;
    case FMT_Q6_K:
        unpack = q6_k;
        break;
    case FMT_MXFP4:
        unpack = mxfp4;
        break;
    case FMT_COUNT:
        return;
    }
    for (int i = 0; i < v->k / block; i++)
        unpack(p + (int64_t)i * block_bytes, out + (int64_t)i * block);
}
