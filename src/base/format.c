#include "base/format.h"

#include "base/format_blocks.h"
#include "base/num.h"

static const FormatInfo formats[FMT_COUNT] = {
#define FORMAT(id, name, block, bytes, bits, kind) [id] = {name, block, bytes, bits, kind},
#include "base/formats.def"
#undef FORMAT
};

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
    const bool numbers = v->biases || v->format == FMT_FP8 || v->format == FMT_NF4;
    return numbers ? formats[v->scale_format].block_bytes : 1;
}

int64_t rowview_bytes(const RowView *v)
{
    int64_t row = format_row_bytes(v->format, v->k);
    if (formats[v->format].kind == FMT_PLANE)
        row += ((int64_t)v->k + v->group - 1) / v->group * scale_bytes(v) * (v->biases ? 2 : 1);
    return row * v->n + (v->columns ? (int64_t)v->k * (int64_t)sizeof *v->columns : 0);
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

/* Code i of a little-endian bit stream of `bits` bits each; the row has whole u32 words. */
static int stream_code(const uint8_t *q, int bits, int i)
{
    const int at = i * bits;
    unsigned v = q[at / 8];
    if (at % 8 + bits > 8)
        v |= (unsigned)q[at / 8 + 1] << 8;
    return (int)(v >> (at % 8) & ((1U << bits) - 1));
}

static void affine(const RowView *v, int64_t r, int from, int n, float *out)
{
    const int bits = formats[v->format].bits;
    const uint8_t *q = v->data + r * v->row_bytes;
    const uint8_t *scales = v->scales + r * v->scale_row_bytes;
    const uint8_t *biases = v->biases + r * v->scale_row_bytes;
    for (int i = from; i < from + n; i++) {
        const float scale = plain_at(scales, v->scale_format, i / v->group);
        const float bias = plain_at(biases, v->scale_format, i / v->group);
        out[i - from] = scale * (float)stream_code(q, bits, i) + bias;
    }
}

/* Quantiles of the normal distribution, as bitsandbytes writes them (create_normal_map). */
static const float nf4_values[16] = {-1.0F,
                                     -0.6961928009986877F,
                                     -0.5250730514526367F,
                                     -0.39491748809814453F,
                                     -0.28444138169288635F,
                                     -0.18477343022823334F,
                                     -0.09105003625154495F,
                                     0.0F,
                                     0.07958029955625534F,
                                     0.16093020141124725F,
                                     0.24611230194568634F,
                                     0.33791524171829224F,
                                     0.44070982933044434F,
                                     0.5626170039176941F,
                                     0.7229568362236023F,
                                     1.0F};

const float *format_nf4_values(void)
{
    return nf4_values;
}

/* Codes times the number of their group. */
static void scaled(const RowView *v, int64_t r, int from, int n, float *out)
{
    const uint8_t *q = v->data + r * v->row_bytes;
    const uint8_t *scales = v->scales + r * v->scale_row_bytes;
    for (int i = from; i < from + n; i++) {
        const float scale = plain_at(scales, v->scale_format, i / v->group);
        const float code =
            v->format == FMT_FP8 ? format_e4m3(q[i]) : nf4_values[q[i / 2] >> (i % 2 ? 0 : 4) & 15];
        out[i - from] = code * scale;
    }
}

/* Scale of a byte plane. */
static float micro_scale(const RowView *v, uint8_t s)
{
    if (v->format == FMT_NVFP4P)
        return format_e4m3(s);
    if (v->format != FMT_NVFP4S)
        return num_from_e8m0(s);
    return v->factor_divides ? format_e4m3(s) / v->factor : format_e4m3(s) * v->factor;
}

/* Microscaling planes: e2m1 or e4m3 codes, e8m0 or e4m3 scales. */
static void micro(const RowView *v, int64_t r, int from, int n, float *out)
{
    const uint8_t *q = v->data + r * v->row_bytes;
    const uint8_t *scales = v->scales + r * v->scale_row_bytes;
    for (int i = from; i < from + n; i++) {
        const float scale = micro_scale(v, scales[i / v->group]);
        out[i - from] =
            scale * (v->format == FMT_MXFP8P ? format_e4m3(q[i])
                                             : format_e2m1[q[i / 2] >> (i % 2 * 4) & 15]);
    }
}

void format_dequant_part(const RowView *v, int64_t r, int from, int n, float *out)
{
    const FormatInfo *f = &formats[v->format];
    const uint8_t *p = v->data + r * v->row_bytes;
    const FormatUnpack unpack = format_unpack(v->format);
    if (unpack) {
        p += (int64_t)(from / f->block) * f->block_bytes;
        for (int i = 0; i < n / f->block; i++)
            unpack(p + (int64_t)i * f->block_bytes, out + (int64_t)i * f->block);
    } else if (f->kind == FMT_PLAIN) {
        for (int i = 0; i < n; i++)
            out[i] = plain_at(p, v->format, from + i);
    } else if (v->biases) {
        affine(v, r, from, n, out);
    } else if (v->format == FMT_FP8 || v->format == FMT_NF4) {
        scaled(v, r, from, n, out);
    } else {
        micro(v, r, from, n, out);
    }
}

void format_dequant_row(const RowView *v, int64_t r, float *out)
{
    format_dequant_part(v, r, 0, v->k, out);
}
