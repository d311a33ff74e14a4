#include "device/gpu/gpu_weight.h"

#include "base/num.h"
#include "device/gpu/gpu_pack.h"
#include "device/gpu/gpu_words.h"

#include <string.h>

_Static_assert(GPU_F32 == GPU_LAYOUT_F32 && GPU_A4 == GPU_LAYOUT_A4 && GPU_E4 == GPU_LAYOUT_E4 &&
                   GPU_S8 == GPU_LAYOUT_S8 && GPU_K6 == GPU_LAYOUT_K6,
               "gpu_words.h numbers the layouts");
_Static_assert(GPU_SCALE_F16 == GPU_SCALE_KIND_F16 && GPU_SCALE_E8M0 == GPU_SCALE_KIND_E8M0 &&
                   GPU_SCALE_F16_PAIR == GPU_SCALE_KIND_F16_PAIR &&
                   GPU_SCALE_F32_PAIR == GPU_SCALE_KIND_F32_PAIR &&
                   GPU_SCALE_K6 == GPU_SCALE_KIND_K6,
               "gpu_words.h numbers the kinds of scales");

enum { ROW_ALIGN = 16, PART_ALIGN = 256, K6_SCALE_BYTES = GPU_K6_SCALE_BYTES };

/* ---- layouts ---- */

static GpuScale pair_of(FormatId scale_format)
{
    return scale_format == FMT_F32   ? GPU_SCALE_F32_PAIR
           : scale_format == FMT_F16 ? GPU_SCALE_F16_PAIR
                                     : GPU_SCALE_BF16_PAIR;
}

/* Formats that GPUs read; the others have no layout yet. Codes of other widths take the next wider
 * layout that holds their values exactly. */
typedef struct FormatLayout {
    bool known;
    GpuLayout layout;
    GpuScale scale; /* planes: by the scales' own format */
    int group;      /* planes: the tensor's */
} FormatLayout;

static const FormatLayout layouts[FMT_COUNT] = {
    [FMT_F32] = {true, GPU_F32, GPU_SCALE_NONE, 0},
    [FMT_F16] = {true, GPU_F16, GPU_SCALE_NONE, 0},
    [FMT_BF16] = {true, GPU_BF16, GPU_SCALE_NONE, 0},
    [FMT_Q4_0] = {true, GPU_S4, GPU_SCALE_F16, 32},
    [FMT_TQ1_0] = {true, GPU_S4, GPU_SCALE_F16, 32},
    [FMT_TQ2_0] = {true, GPU_S4, GPU_SCALE_F16, 32},
    [FMT_Q1_0] = {true, GPU_S4, GPU_SCALE_F16, 32},
    [FMT_Q4_1] = {true, GPU_A4, GPU_SCALE_F16_PAIR, 32},
    /* Products of f16 and 6 bits: only f32 holds them. */
    [FMT_Q4_K] = {true, GPU_A4, GPU_SCALE_F32_PAIR, 32},
    [FMT_Q5_K] = {true, GPU_A8, GPU_SCALE_F32_PAIR, 32},
    [FMT_Q5_1] = {true, GPU_A8, GPU_SCALE_F16_PAIR, 32},
    [FMT_Q8_0] = {true, GPU_S8, GPU_SCALE_F16, 32},
    [FMT_Q5_0] = {true, GPU_S8, GPU_SCALE_F16, 32},
    [FMT_IQ4_NL] = {true, GPU_S8, GPU_SCALE_F16, 32},
    [FMT_Q6_K] = {true, GPU_K6, GPU_SCALE_K6, 16},
    [FMT_Q3_K] = {true, GPU_K6, GPU_SCALE_K6, 16},
    [FMT_MXFP4] = {true, GPU_E4, GPU_SCALE_E8M0, 32},
    [FMT_MXFP4P] = {true, GPU_E4, GPU_SCALE_E8M0, 32},
    [FMT_AFFINE1] = {true, GPU_A4, GPU_SCALE_NONE, 0},
    [FMT_AFFINE2] = {true, GPU_A4, GPU_SCALE_NONE, 0},
    [FMT_AFFINE3] = {true, GPU_A4, GPU_SCALE_NONE, 0},
    [FMT_AFFINE4] = {true, GPU_A4, GPU_SCALE_NONE, 0},
    [FMT_AFFINE5] = {true, GPU_A8, GPU_SCALE_NONE, 0},
    [FMT_AFFINE6] = {true, GPU_A8, GPU_SCALE_NONE, 0},
    [FMT_AFFINE8] = {true, GPU_A8, GPU_SCALE_NONE, 0},
};

static bool layout(const RowView *v, GpuPart *p)
{
    const FormatLayout *l = &layouts[v->format];
    if (!l->known || v->columns)
        return false;
    *p = (GpuPart){.layout = l->layout,
                   .scale = v->biases ? pair_of(v->scale_format) : l->scale,
                   .group = v->biases ? v->group : l->group};
    return true;
}

static int64_t code_bytes(GpuLayout l, int64_t k)
{
    switch (l) {
    case GPU_F32:
        return k * 4;
    case GPU_F16:
    case GPU_BF16:
        return k * 2;
    case GPU_A4:
    case GPU_S4:
    case GPU_E4:
        return k / 2;
    case GPU_A8:
    case GPU_S8:
        return k;
    case GPU_K6:
        return k / 2 + k / 4;
    case GPU_LAYOUT_COUNT:
        break;
    }
    return 0;
}

static int64_t scale_bytes(GpuScale s, int64_t k, int group)
{
    switch (s) {
    case GPU_SCALE_NONE:
        return 0;
    case GPU_SCALE_F16:
        return k / group * 2;
    case GPU_SCALE_E8M0:
        return k / group;
    case GPU_SCALE_F16_PAIR:
    case GPU_SCALE_BF16_PAIR:
        return k / group * 4;
    case GPU_SCALE_F32_PAIR:
        return k / group * 8;
    case GPU_SCALE_K6:
        return k / 256 * K6_SCALE_BYTES;
    }
    return 0;
}

bool gpu_layout_of(const RowView *v, GpuPart *out)
{
    if (!layout(v, out))
        return false;
    out->code_stride = i64_round_up(code_bytes(out->layout, v->k), ROW_ALIGN);
    out->scale_stride = i64_round_up(scale_bytes(out->scale, v->k, out->group), ROW_ALIGN);
    return true;
}

/* ---- the plan of a weight ---- */

static bool same_layout(const GpuPart *a, const GpuPart *b)
{
    return a->layout == b->layout && a->scale == b->scale && a->group == b->group;
}

/* Whether the device's bytes are the file's, in the file's order. */
static bool as_in_file(const Weight *w, const GpuPart *p)
{
    return p->scale == GPU_SCALE_NONE && code_bytes(p->layout, w->k) == p->code_stride;
}

static bool check_segs(const Weight *w, Error *err)
{
    const int n_experts = w->n_experts > 0 ? w->n_experts : 1;
    for (int s = 0; s < n_experts * w->n_segs; s++)
        if (w->segs[s].columns)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: columns ordered by activation (GPTQ's act-order) are not supported "
                           "on GPUs",
                           w->name);
    for (int e = 1; e < n_experts; e++)
        for (int s = 0; s < w->n_segs; s++) {
            const RowView *a = &w->segs[s];
            const RowView *b = &w->segs[e * w->n_segs + s];
            if (a->format != b->format || a->scale_format != b->scale_format ||
                a->group != b->group || a->n != b->n)
                return err_set(err, ERR_UNSUPPORTED,
                               "%s: experts 0 and %d differ in format (%s, %s)", w->name, e,
                               format_info(a->format)->name, format_info(b->format)->name);
        }
    return true;
}

typedef struct PartList {
    GpuPart *parts; /* NULL: only counted */
    int n;
    GpuPart last;
    int64_t bytes;
    int n_experts;
} PartList;

/* Ends the part being collected: its place in the weight's memory. */
static void close_part(PartList *l)
{
    GpuPart *p = &l->last;
    if (p->rows == 0)
        return;
    p->code_bytes = p->rows * p->code_stride;
    p->scale_bytes = p->rows * p->scale_stride;
    p->code_offset = l->bytes;
    p->scale_offset = p->code_offset + i64_round_up(p->code_bytes * l->n_experts, PART_ALIGN);
    l->bytes = p->scale_offset + i64_round_up(p->scale_bytes * l->n_experts, PART_ALIGN);
    if (l->parts)
        l->parts[l->n] = *p;
    l->n++;
    *p = (GpuPart){.row0 = p->row0 + p->rows};
}

/* Rows of a part that its codes and scales stay within max_bytes for. */
static int64_t rows_within(const GpuPart *p, int n_experts, int64_t max_bytes)
{
    return max_bytes / i64_max(1, p->code_stride * n_experts);
}

static bool collect(const Weight *w, int64_t max_bytes, PartList *l, Error *err)
{
    *l = (PartList){.parts = l->parts, .n_experts = w->n_experts > 0 ? w->n_experts : 1};
    for (int s = 0; s < w->n_segs; s++) {
        GpuPart p;
        if (!gpu_layout_of(&w->segs[s], &p))
            return err_set(err, ERR_UNSUPPORTED, "%s: format %s has no layout for GPUs", w->name,
                           format_info(w->segs[s].format)->name);
        const int64_t most = rows_within(&p, l->n_experts, max_bytes);
        if (most == 0)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: a row of %lld bytes for %d experts, the device takes %lld at once",
                           w->name, (long long)p.code_stride, l->n_experts, (long long)max_bytes);
        if (l->last.rows > 0 && !same_layout(&l->last, &p))
            close_part(l);
        for (int64_t left = w->segs[s].n; left > 0;) {
            p.row0 = l->last.row0;
            p.rows = l->last.rows;
            const int64_t take = i64_min(left, most - p.rows);
            p.rows += take;
            left -= take;
            l->last = p;
            if (p.rows == most)
                close_part(l);
        }
    }
    close_part(l);
    return true;
}

bool gpu_weight_plan(Arena *a, const Weight *w, int64_t max_part_bytes, GpuWeight *out, Error *err)
{
    PartList list = {0};
    if (!check_segs(w, err) || !collect(w, max_part_bytes, &list, err))
        return false;
    *out = (GpuWeight){.weight = w,
                       .n_experts = list.n_experts,
                       .k = w->k,
                       .n_parts = list.n,
                       .bytes = list.bytes};
    GpuPart first;
    if (w->n_segs > 0 && gpu_layout_of(&w->segs[0], &first))
        out->repacked = list.n != 1 || !as_in_file(w, &first);
    if (!a)
        return true;
    list.parts = ARENA_ARRAY(a, list.n, GpuPart, err);
    if (!list.parts || !collect(w, max_part_bytes, &list, err))
        return false;
    out->parts = list.parts;
    return true;
}

/* ---- packing ---- */

void gpu_weight_pack(const GpuWeight *w, int part, int expert, int64_t from, int64_t n,
                     uint8_t *codes, uint8_t *scales)
{
    const GpuPart *p = &w->parts[part];
    const RowView *segs = w->weight->segs + (ptrdiff_t)expert * w->weight->n_segs;
    const int64_t code_pad = p->code_stride - code_bytes(p->layout, w->k);
    const int64_t scale_pad = p->scale_stride - scale_bytes(p->scale, w->k, p->group);
    int64_t row = p->row0 + from;
    int s = 0;
    while (row >= segs[s].n)
        row -= segs[s++].n;
    for (int64_t i = 0; i < n; i++, row++) {
        while (row >= segs[s].n) {
            s++;
            row = 0;
        }
        uint8_t *c = codes + i * p->code_stride;
        uint8_t *sc = scales ? scales + i * p->scale_stride : NULL;
        gpu_pack_row(&segs[s], row, c, sc);
        if (code_pad > 0)
            memset(c + p->code_stride - code_pad, 0, (size_t)code_pad);
        if (sc && scale_pad > 0)
            memset(sc + p->scale_stride - scale_pad, 0, (size_t)scale_pad);
    }
}

/* ---- the definition ---- */

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static float pair_value(const GpuPart *p, const uint8_t *scales, int g, int code)
{
    if (p->scale == GPU_SCALE_F32_PAIR) {
        float pair[2];
        memcpy(pair, scales + (size_t)g * sizeof pair, sizeof pair);
        return pair[0] * (float)code + pair[1];
    }
    const uint16_t s = load_u16(scales + (size_t)g * 4);
    const uint16_t b = load_u16(scales + (size_t)g * 4 + 2);
    if (p->scale == GPU_SCALE_F16_PAIR)
        return num_from_f16(s) * (float)code + num_from_f16(b);
    return num_from_bf16(s) * (float)code + num_from_bf16(b);
}

static float k6_value(const uint8_t *codes, const uint8_t *scales, int k, int i)
{
    const int lo = codes[i / 2] >> (i % 2 * 4) & 15;
    const int hi = codes[k / 2 + i / 4] >> (i % 4 * 2) & 3;
    const uint8_t *s = scales + (size_t)(i / 256) * K6_SCALE_BYTES;
    const float scale = num_from_f16(load_u16(s + 16)) * (float)(int8_t)s[i % 256 / 16];
    return scale * (float)((lo | hi << 4) - 32);
}

void gpu_weight_unpack_row(const GpuPart *p, int k, const uint8_t *codes, const uint8_t *scales,
                           float *out)
{
    static const float e2m1[16] = {0,     0.5F,  1,  1.5F,  2,  3,  4,  6,
                                   -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    for (int i = 0; i < k; i++) {
        const int nibble = p->layout == GPU_A4 || p->layout == GPU_S4 || p->layout == GPU_E4
                               ? codes[i / 2] >> (i % 2 * 4) & 15
                               : 0;
        switch (p->layout) {
        case GPU_F32:
            memcpy(&out[i], codes + (size_t)i * 4, 4);
            break;
        case GPU_F16:
            out[i] = num_from_f16(load_u16(codes + (size_t)i * 2));
            break;
        case GPU_BF16:
            out[i] = num_from_bf16(load_u16(codes + (size_t)i * 2));
            break;
        case GPU_A4:
            out[i] = pair_value(p, scales, i / p->group, nibble);
            break;
        case GPU_S4:
            out[i] = num_from_f16(load_u16(scales + (size_t)(i / 32) * 2)) * (float)(nibble - 8);
            break;
        case GPU_E4:
            out[i] = num_from_e8m0(scales[i / 32]) * e2m1[nibble];
            break;
        case GPU_A8:
            out[i] = pair_value(p, scales, i / p->group, codes[i]);
            break;
        case GPU_S8:
            out[i] =
                num_from_f16(load_u16(scales + (size_t)(i / 32) * 2)) * (float)(int8_t)codes[i];
            break;
        case GPU_K6:
            out[i] = k6_value(codes, scales, k, i);
            break;
        case GPU_LAYOUT_COUNT:
            break;
        }
    }
}
