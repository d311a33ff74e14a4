#include "weights/quant.h"

#include "base/num.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { NAME_BYTES = 440, FP8_BLOCK = 128 };

/* One matrix on its way. */
typedef struct Job {
    const Checkpoint *ck;
    CheckpointSpace *space;
    const char *stem;
    const json_t *config; /* quantization_config, may be NULL */
    const char *method;   /* its quant_method, "" when it has none */
    int64_t n, k;
} Job;

/* ---- tensors ---- */

static const Tensor *part(const Checkpoint *ck, const char *stem, const char *suffix)
{
    char name[NAME_BYTES];
    const int n = snprintf(name, sizeof name, "%s%s", stem, suffix);
    return n < NAME_BYTES ? checkpoint_find(ck, name) : NULL;
}

static bool need(const Job *j, const char *suffix, const Tensor **t, Error *err)
{
    *t = part(j->ck, j->stem, suffix);
    return *t || err_set(err, ERR_FORMAT, "%.100s: tensor \"%.80s%s\" is missing",
                         checkpoint_path(j->ck), j->stem, suffix);
}

static bool refuse(const Job *j, Error *err, const char *what)
{
    return err_set(err, ERR_UNSUPPORTED, "%.100s: \"%.80s\" (%.24s): %s", checkpoint_doc(j->ck),
                   j->stem, j->method, what);
}

static bool bad_tensor(const Job *j, const Tensor *t, Error *err, const char *wanted)
{
    return err_set(err, ERR_FORMAT,
                   "%.90s: tensor \"%.80s\" is %s of %d dimensions, %" PRId64 " by %" PRId64
                   ", wanted %s",
                   checkpoint_file(j->ck, t->file), t->name.ptr, tensor_dtype(t->dtype)->name,
                   t->n_dims, t->dims[0], t->dims[1], wanted);
}

static bool is_2d(const Tensor *t, DType dtype, int64_t rows, int64_t cols)
{
    return t->dtype == dtype && t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols;
}

static bool is_number(const Tensor *t)
{
    return t->dtype == DT_F32 || t->dtype == DT_F16 || t->dtype == DT_BF16;
}

static int number_bytes(const Tensor *t)
{
    return tensor_dtype(t->dtype)->block_bytes;
}

static float number(const Tensor *t, int64_t i)
{
    uint16_t h;
    float f;
    if (t->dtype == DT_F32) {
        memcpy(&f, t->data + i * 4, sizeof f);
        return f;
    }
    memcpy(&h, t->data + i * 2, sizeof h);
    return t->dtype == DT_F16 ? num_from_f16(h) : num_from_bf16(h);
}

static uint32_t word(const Tensor *t, int64_t i)
{
    uint32_t w;
    memcpy(&w, t->data + i * 4, sizeof w);
    return w;
}

/* The one number of a tensor of one element: a factor, so neither zero nor infinite. */
static bool one_number(const Job *j, const char *suffix, float *out, Error *err)
{
    const Tensor *t;
    if (!need(j, suffix, &t, err))
        return false;
    if (!is_number(t) || tensor_elements(t) != 1)
        return bad_tensor(j, t, err, "one number");
    *out = number(t, 0);
    return (isfinite(*out) && *out != 0.0F) || bad_tensor(j, t, err, "a finite number, not zero");
}

/* ---- derived planes ---- */

static void *take(const Job *j, int64_t n, size_t size, Error *err)
{
    if (!j->space) {
        (void)refuse(j, err, "cannot be read in place, and no room was given to write it");
        return NULL;
    }
    void *p = arena_take(j->space->arena, (size_t)n, size, err);
    if (p)
        j->space->bytes += n * (int64_t)size;
    return p;
}

typedef struct Affine {
    uint8_t *codes; /* NULL: they are in the file */
    float *scales, *biases;
    int64_t row_bytes;
    int n_groups;
    int group;
} Affine;

static FormatId affine_format(int bits)
{
    switch (bits) {
    case 2:
        return FMT_AFFINE2;
    case 3:
        return FMT_AFFINE3;
    case 4:
        return FMT_AFFINE4;
    case 8:
        return FMT_AFFINE8;
    default:
        return FMT_COUNT;
    }
}

/* Planes of an affine matrix whose file has groups of file_group. Groups of mere are 128, 64 or 32:
 * longer ones are cut. codes NULL: they are written by the caller. */
static bool begin_affine(const Job *j, int bits, int64_t file_group, const uint8_t *codes,
                         Affine *p, RowView *out, Error *err)
{
    *p = (Affine){0};
    if (affine_format(bits) == FMT_COUNT)
        return refuse(j, err, "wanted codes of 2, 3, 4 or 8 bits");
    for (int g = 128; g >= 32 && !p->group; g /= 2)
        if (file_group % g == 0)
            p->group = g;
    if (!p->group || file_group < 1 || j->k % file_group != 0)
        return refuse(j, err, "wanted groups that are a multiple of 32 and divide the row");
    p->n_groups = (int)(j->k / p->group);
    p->row_bytes = j->k / 8 * bits;
    p->codes = codes ? NULL : take(j, j->n * p->row_bytes, 1, err);
    p->scales = codes || p->codes ? take(j, j->n * p->n_groups, sizeof(float), err) : NULL;
    p->biases = p->scales ? take(j, j->n * p->n_groups, sizeof(float), err) : NULL;
    *out = (RowView){.data = codes ? codes : p->codes,
                     .scales = (const uint8_t *)p->scales,
                     .biases = (const uint8_t *)p->biases,
                     .row_bytes = p->row_bytes,
                     .scale_row_bytes = p->n_groups * (int64_t)sizeof(float),
                     .n = j->n,
                     .k = (int)j->k,
                     .group = p->group,
                     .format = affine_format(bits),
                     .scale_format = FMT_F32};
    return p->biases != NULL;
}

/* value = scale * q - scale * zero, for the pieces of group g of the file in row r. */
static void set_group(const Affine *p, int64_t r, int64_t g, int64_t file_group, float scale,
                      float zero)
{
    const int64_t pieces = file_group / p->group;
    for (int64_t i = g * pieces; i < (g + 1) * pieces; i++) {
        p->scales[r * p->n_groups + i] = scale;
        p->biases[r * p->n_groups + i] = -(scale * zero);
    }
}

/* ---- columns by group ---- */

/* next[g]: where the columns of group g begin. Each group must have as many. */
static bool group_starts(const Job *j, const Tensor *t, int64_t group, int64_t *next, Error *err)
{
    const int64_t groups = j->k / group;
    for (int64_t i = 0; i < j->k; i++) {
        if (word(t, i) >= groups)
            return bad_tensor(j, t, err, "numbers of groups");
        next[word(t, i)]++;
    }
    for (int64_t g = 0; g < groups; g++) {
        if (next[g] != group)
            return refuse(j, err, "g_idx gives the groups different numbers of columns");
        next[g] = g * group;
    }
    return true;
}

/* The group of each column, where the quantiser took them in the order of their activations: codes
 * are then derived with the columns of a group side by side. *columns: which stands at each place;
 * NULL: they are in order. */
static bool column_order(const Job *j, const char *suffix, int64_t group, const int32_t **columns,
                         Error *err)
{
    const Tensor *t = part(j->ck, j->stem, suffix);
    *columns = NULL;
    if (!t)
        return true;
    if (t->dtype != DT_I32 || t->n_dims != 1 || t->dims[0] != j->k)
        return bad_tensor(j, t, err, "I32, one for each column");
    int64_t same = 0;
    while (same < j->k && (int64_t)word(t, same) == same / group)
        same++;
    if (same == j->k)
        return true;
    int32_t *to = take(j, j->k, sizeof *to, err);
    if (!to)
        return false;
    Arena *a = j->space->arena;
    const ArenaMark mark = arena_mark(a);
    int64_t *next = ARENA_ARRAY(a, j->k / group, int64_t, err);
    const bool ok = next && group_starts(j, t, group, next, err);
    for (int64_t i = 0; ok && i < j->k; i++)
        to[next[word(t, i)]++] = (int32_t)i;
    arena_rewind(a, mark);
    *columns = to;
    return ok;
}

/* Bits [at, at + bits) of a stream of words that are `stride` apart. */
static unsigned stream_bits(const Tensor *t, int64_t first, int64_t stride, int64_t at, int bits)
{
    const int64_t w = at / 32;
    uint64_t v = word(t, first + w * stride);
    if (at % 32 + bits > 32)
        v |= (uint64_t)word(t, first + (w + 1) * stride) << 32;
    return (unsigned)(v >> (at % 32) & (((uint64_t)1 << bits) - 1));
}

/* Codes with their columns in order. down: the words of a row are a column of q, else a row of it.
 */
static void order_codes(const Job *j, const Tensor *q, bool down, int bits, const int32_t *columns,
                        const Affine *p)
{
    enum { ROWS = 16 }; /* rows that lie in one cache line of q */
    const int64_t words = j->k * bits / 32;
    for (int64_t r0 = 0; r0 < j->n; r0 += ROWS)
        for (int64_t i = 0; i < j->k; i++)
            for (int64_t r = r0; r < j->n && r < r0 + ROWS; r++) {
                const int64_t first = down ? r : r * words;
                const int64_t from = (int64_t)columns[i] * bits;
                const unsigned code = stream_bits(q, first, down ? j->n : 1, from, bits);
                uint8_t *to = p->codes + r * p->row_bytes + i * bits / 8;
                const int at = (int)(i * bits % 8);
                to[0] |= (uint8_t)(code << at);
                if (at + bits > 8)
                    to[1] |= (uint8_t)(code >> (8 - at));
            }
}

/* ---- gptq ---- */

static bool gptq_v2(const Job *j)
{
    const char *v = json_string_value(json_object_get(j->config, "checkpoint_format"));
    return v && strcmp(v, "gptq_v2") == 0;
}

/* qweight [k * bits / 32][n]: down each column the words of an output row, a stream of codes as
 * ours. qzeros [groups][n * bits / 32], less one in the first version; scales [groups][n]. */
static bool gptq_rows(const Job *j, RowView *out, Error *err)
{
    const Tensor *q;
    const Tensor *zeros;
    const Tensor *scales;
    if (!need(j, ".qweight", &q, err) || !need(j, ".qzeros", &zeros, err) ||
        !need(j, ".scales", &scales, err))
        return false;
    const int64_t words = q->dims[0];
    if (q->dtype != DT_I32 || q->n_dims != 2 || q->dims[1] != j->n || words < 1 || words > j->k ||
        words * 32 % j->k != 0)
        return bad_tensor(j, q, err, "I32 words of codes by output rows");
    const int bits = (int)(words * 32 / j->k);
    const int64_t groups = scales->dims[0];
    if (!is_number(scales) || scales->n_dims != 2 || scales->dims[1] != j->n || groups < 1 ||
        j->k % groups != 0)
        return bad_tensor(j, scales, err, "numbers, groups by output rows");
    if (j->n * bits % 32 != 0 || !is_2d(zeros, DT_I32, groups, j->n * bits / 32))
        return bad_tensor(j, zeros, err, "I32, groups by words of zeros");
    const json_t *said = json_object_get(j->config, "bits");
    if (said && !json_object_get(j->config, "dynamic") && json_integer_value(said) != bits)
        return refuse(j, err, "the tensors have other bits than the configuration");
    const int64_t group = j->k / groups;
    const float first = gptq_v2(j) ? 0.0F : 1.0F;
    Affine p;
    const int32_t *columns;
    if (!column_order(j, ".g_idx", group, &columns, err) ||
        !begin_affine(j, bits, group, NULL, &p, out, err))
        return false;
    out->columns = columns;
    if (columns)
        order_codes(j, q, true, bits, columns, &p);
    for (int64_t r = 0; !columns && r < j->n; r++)
        for (int64_t w = 0; w < words; w++)
            memcpy(p.codes + r * p.row_bytes + w * 4, q->data + (w * j->n + r) * 4, 4);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < j->n; r++) {
            const unsigned zero = stream_bits(zeros, g * zeros->dims[1], 1, r * bits, bits);
            set_group(&p, r, g, group, number(scales, g * j->n + r), (float)zero + first);
        }
    return true;
}

/* ---- awq ---- */

/* Nibble i of a word is of column 8 * word + awq_order[i]. */
static const uint8_t awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/* qweight [k][n / 8], qzeros [groups][n / 8], scales [groups][n]. */
static bool awq_rows(const Job *j, RowView *out, Error *err)
{
    const Tensor *q;
    const Tensor *zeros;
    const Tensor *scales;
    if (!need(j, ".qweight", &q, err) || !need(j, ".qzeros", &zeros, err) ||
        !need(j, ".scales", &scales, err))
        return false;
    const char *version = json_string_value(json_object_get(j->config, "version"));
    if (version && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return refuse(j, err, "wanted \"version\": \"gemm\"");
    const json_t *said = json_object_get(j->config, "bits");
    if (said && json_integer_value(said) != 4)
        return refuse(j, err, "wanted 4 bits");
    const int64_t cols = j->n / 8;
    if (j->n % 8 != 0 || !is_2d(q, DT_I32, j->k, cols))
        return bad_tensor(j, q, err, "I32, columns by eighths of output rows");
    const int64_t groups = scales->dims[0];
    if (!is_number(scales) || scales->n_dims != 2 || scales->dims[1] != j->n || groups < 1 ||
        j->k % groups != 0)
        return bad_tensor(j, scales, err, "numbers, groups by output rows");
    if (!is_2d(zeros, DT_I32, groups, cols))
        return bad_tensor(j, zeros, err, "I32, groups by eighths of output rows");
    const int64_t group = j->k / groups;
    Affine p;
    if (!begin_affine(j, 4, group, NULL, &p, out, err))
        return false;
    for (int64_t c = 0; c < cols; c++)
        for (int64_t i = 0; i < j->k; i++) {
            const uint32_t w = word(q, i * cols + c);
            for (int b = 0; b < 8; b++)
                p.codes[(c * 8 + awq_order[b]) * p.row_bytes + i / 2] |=
                    (uint8_t)((w >> (4 * b) & 15) << (i % 2 * 4));
        }
    for (int64_t g = 0; g < groups; g++)
        for (int64_t c = 0; c < cols; c++) {
            const uint32_t w = word(zeros, g * cols + c);
            for (int b = 0; b < 8; b++) {
                const int64_t r = c * 8 + awq_order[b];
                set_group(&p, r, g, group, number(scales, g * j->n + r),
                          (float)(w >> (4 * b) & 15));
            }
        }
    return true;
}

/* ---- compressed-tensors, integers ---- */

/* Groups of a scale tensor: [n][groups], or one for a row or for all. *step: its stride by row. */
static bool row_groups(const Job *j, const Tensor *t, int64_t *groups, int64_t *step, Error *err)
{
    *groups = 1;
    *step = 0;
    if (is_number(t) && tensor_elements(t) == 1)
        return true;
    *groups = t->n_dims == 2 ? t->dims[1] : 1;
    *step = *groups;
    if (!is_number(t) || (t->n_dims != 2 && t->n_dims != 1) || t->dims[0] != j->n || *groups < 1 ||
        j->k % *groups != 0)
        return bad_tensor(j, t, err, "numbers, output rows by groups");
    return true;
}

/* Zero points as I8, or packed down the rows with 2^(bits - 1) added; here with it in both. */
typedef struct Zeros {
    const Tensor *t; /* NULL: symmetric */
    int bits;
    int64_t groups, step;
} Zeros;

static bool find_zeros(const Job *j, int bits, int64_t groups, int64_t step, Zeros *z, Error *err)
{
    *z = (Zeros){part(j->ck, j->stem, ".weight_zero_point"), bits, groups, step};
    if (!z->t)
        return true;
    if (z->t->dtype == DT_I8 && tensor_elements(z->t) == (step ? j->n * groups : 1))
        return true;
    if (!step || !is_2d(z->t, DT_I32, (j->n * bits + 31) / 32, groups))
        return bad_tensor(j, z->t, err, "I8, or I32 packed down the rows, as the scales");
    return true;
}

static float zero_at(const Zeros *z, int64_t r, int64_t g)
{
    const int half = 1 << (z->bits - 1);
    if (!z->t)
        return (float)half;
    if (z->t->dtype == DT_I8)
        return (float)(half + (int8_t)z->t->data[r * z->step + g]);
    return (float)stream_bits(z->t, g, z->groups, r * z->bits, z->bits);
}

/* codes: where they are in order already. */
static bool set_groups(const Job *j, const Tensor *scales, int bits, const uint8_t *codes,
                       Affine *p, RowView *out, Error *err)
{
    int64_t groups;
    int64_t step;
    Zeros z;
    const int32_t *columns;
    if (!row_groups(j, scales, &groups, &step, err) ||
        !find_zeros(j, bits, groups, step, &z, err) ||
        !column_order(j, ".weight_g_idx", j->k / groups, &columns, err) ||
        !begin_affine(j, bits, j->k / groups, columns ? NULL : codes, p, out, err))
        return false;
    out->columns = columns;
    for (int64_t r = 0; r < j->n; r++)
        for (int64_t g = 0; g < groups; g++)
            set_group(p, r, g, j->k / groups, number(scales, r * step + g), zero_at(&z, r, g));
    return true;
}

/* weight_shape, where there is one: the bits follow from the width, so it must be the right one. */
static bool same_shape(const Job *j, Error *err)
{
    const Tensor *t = part(j->ck, j->stem, ".weight_shape");
    if (!t)
        return true;
    int64_t dims[2] = {0, 0};
    if ((t->dtype == DT_I64 || t->dtype == DT_I32) && tensor_elements(t) == 2)
        for (int i = 0; i < 2; i++) {
            if (t->dtype == DT_I64)
                memcpy(&dims[i], t->data + (ptrdiff_t)i * 8, 8);
            else
                dims[i] = word(t, i);
        }
    return (dims[0] == j->n && dims[1] == j->k) ||
           bad_tensor(j, t, err, "the matrix's output rows and columns");
}

/* weight_packed [n][k * bits / 32] I32: codes with 2^(bits - 1) added, in place. */
static bool packed_int_rows(const Job *j, const Tensor *q, RowView *out, Error *err)
{
    const Tensor *scales;
    if (!need(j, ".weight_scale", &scales, err) || !same_shape(j, err))
        return false;
    const int bits = q->n_dims == 2 && q->dims[1] * 8 == j->k   ? 4
                     : q->n_dims == 2 && q->dims[1] * 4 == j->k ? 8
                                                                : 0;
    if (!bits || q->dtype != DT_I32 || q->dims[0] != j->n)
        return bad_tensor(j, q, err, "I32, output rows by words of 4 or 8 bit codes");
    Affine p;
    if (!set_groups(j, scales, bits, q->data, &p, out, err))
        return false;
    if (out->columns)
        order_codes(j, q, false, bits, out->columns, &p);
    return true;
}

/* weight [n][k] I8. Signed codes have no format: they are written with 128 added. */
static bool int8_rows(const Job *j, const Tensor *q, RowView *out, Error *err)
{
    const Tensor *scales;
    if (!need(j, ".weight_scale", &scales, err))
        return false;
    if (!is_2d(q, DT_I8, j->n, j->k))
        return bad_tensor(j, q, err, "I8, output rows by columns");
    Affine p;
    if (!set_groups(j, scales, 8, NULL, &p, out, err))
        return false;
    for (int64_t r = 0; r < j->n; r++)
        for (int64_t i = 0; i < j->k; i++)
            p.codes[r * j->k + i] = q->data[r * j->k + (out->columns ? out->columns[i] : i)] ^ 0x80;
    return true;
}

/* ---- fp8 ---- */

/* The block of "weight_block_size": rows, columns. */
static bool block_size(const Job *j, int64_t *rows, int64_t *cols, Error *err)
{
    const json_t *b = json_object_get(j->config, "weight_block_size");
    *rows = *cols = FP8_BLOCK;
    if (!b || json_is_null(b))
        return true;
    *rows = json_integer_value(json_array_get(b, 0));
    *cols = json_integer_value(json_array_get(b, 1));
    if (json_array_size(b) == 2 && *rows > 0 && *cols > 0 && *cols <= INT32_MAX &&
        *rows <= INT32_MAX)
        return true;
    return refuse(j, err, "\"weight_block_size\" is no pair of positive numbers");
}

/* One scale for a block: written out for every row. */
static bool fp8_blocks(const Job *j, const Tensor *scales, RowView *out, Error *err)
{
    int64_t rows;
    int64_t cols;
    if (!block_size(j, &rows, &cols, err))
        return false;
    const int64_t groups = (j->k + cols - 1) / cols;
    if (!is_number(scales) || scales->n_dims != 2 || scales->dims[0] != (j->n + rows - 1) / rows ||
        scales->dims[1] != groups)
        return bad_tensor(j, scales, err, "numbers, blocks of rows by blocks of columns");
    float *plane = take(j, j->n * groups, sizeof *plane, err);
    if (!plane)
        return false;
    for (int64_t r = 0; r < j->n; r++)
        for (int64_t g = 0; g < groups; g++)
            plane[r * groups + g] = number(scales, r / rows * groups + g);
    out->scales = (const uint8_t *)plane;
    out->scale_format = FMT_F32;
    out->scale_row_bytes = groups * (int64_t)sizeof *plane;
    out->group = (int)cols;
    return true;
}

/* Scales of activations (input_scale, input_global_scale) are not read in any scheme.
 *
 * weight [n][k] F8_E4M3 with weight_scale_inv (blocks) or weight_scale (a number, one a row, groups
 * of a row, blocks). */
static bool fp8_rows(const Job *j, const Tensor *q, RowView *out, Error *err)
{
    if (j->k % 32 != 0 || !is_2d(q, DT_F8_E4M3, j->n, j->k))
        return bad_tensor(j, q, err, "F8_E4M3, output rows by a multiple of 32 columns");
    *out = (RowView){.data = q->data,
                     .row_bytes = j->k,
                     .n = j->n,
                     .k = (int)j->k,
                     .group = (int)j->k,
                     .format = FMT_FP8};
    const Tensor *inverse = part(j->ck, j->stem, ".weight_scale_inv");
    if (inverse && tensor_elements(inverse) != 1)
        return fp8_blocks(j, inverse, out, err);
    const Tensor *scales = inverse;
    if (!scales && !need(j, ".weight_scale", &scales, err))
        return false;
    if (scales->n_dims == 2 && scales->dims[0] != j->n && tensor_elements(scales) != 1)
        return fp8_blocks(j, scales, out, err);
    int64_t groups;
    int64_t step;
    if (!row_groups(j, scales, &groups, &step, err))
        return false;
    out->scales = scales->data;
    out->scale_format = tensor_dtype(scales->dtype)->format;
    out->scale_row_bytes = step * number_bytes(scales);
    out->group = (int)(j->k / groups);
    return true;
}

/* ---- nvfp4 ---- */

/* Codes U8 [n][k / 2], weight_scale e4m3 [n][k / 16], and a number that multiplies the scales
 * (modelopt) or divides them (compressed-tensors). */
static bool nvfp4_rows(const Job *j, const Tensor *q, const char *factor, bool divides,
                       RowView *out, Error *err)
{
    const Tensor *scales;
    float number_of_all;
    if (!need(j, ".weight_scale", &scales, err) || !one_number(j, factor, &number_of_all, err))
        return false;
    if (j->k % 32 != 0 || !is_2d(q, DT_U8, j->n, j->k / 2))
        return bad_tensor(j, q, err, "U8, output rows by half of a multiple of 32 columns");
    if (!is_2d(scales, DT_F8_E4M3, j->n, j->k / 16))
        return bad_tensor(j, scales, err, "F8_E4M3, output rows by groups of 16");
    *out = (RowView){.data = q->data,
                     .scales = scales->data,
                     .row_bytes = j->k / 2,
                     .scale_row_bytes = j->k / 16,
                     .n = j->n,
                     .k = (int)j->k,
                     .group = 16,
                     .format = FMT_NVFP4S,
                     .scale_format = FMT_F32,
                     .factor = number_of_all,
                     .factor_divides = divides};
    return true;
}

/* ---- bitnet ---- */

/* weight U8 [n / 4][k]: bits 2i and 2i + 1 of row b are row b + i * n / 4, plus one. One scale:
 * a product is multiplied by it (autobitlinear) or divided. */
static bool bitnet_rows(const Job *j, const Tensor *q, RowView *out, Error *err)
{
    float scale;
    if (!one_number(j, ".weight_scale", &scale, err))
        return false;
    const int64_t quarter = j->n / 4;
    if (j->n % 4 != 0 || !is_2d(q, DT_U8, quarter, j->k))
        return bad_tensor(j, q, err, "U8, quarters of output rows by columns");
    const char *kind = json_string_value(json_object_get(j->config, "linear_class"));
    if (!kind || strcmp(kind, "autobitlinear") != 0)
        scale = 1.0F / scale;
    Affine p;
    if (!begin_affine(j, 2, j->k, NULL, &p, out, err))
        return false;
    for (int64_t b = 0; b < quarter; b++)
        for (int64_t i = 0; i < j->k; i++)
            for (int s = 0; s < 4; s++)
                p.codes[(b + s * quarter) * p.row_bytes + i / 4] |=
                    (uint8_t)((q->data[b * j->k + i] >> (2 * s) & 3) << (i % 4 * 2));
    for (int64_t r = 0; r < j->n; r++)
        set_group(&p, r, 0, j->k, scale, 1.0F);
    return true;
}

/* ---- bitsandbytes ---- */

/* The quantiser's own description, JSON in a U8 tensor. The caller's to json_decref. */
static json_t *bnb_state(const Job *j, Error *err)
{
    const Tensor *t;
    if (!need(j, ".weight.quant_state.bitsandbytes__nf4", &t, err))
        return NULL;
    if (t->dtype != DT_U8 || t->n_dims != 1) {
        (void)bad_tensor(j, t, err, "U8, a text");
        return NULL;
    }
    return json_parse(t->name.ptr, (Str){(const char *)t->data, (size_t)t->dims[0]}, err);
}

static bool bnb_values(const Job *j, Error *err)
{
    const Tensor *t;
    if (!need(j, ".weight.quant_map", &t, err))
        return false;
    if (t->dtype != DT_F32 || tensor_elements(t) != 16)
        return bad_tensor(j, t, err, "16 F32 values");
    for (int i = 0; i < 16; i++)
        if (number(t, i) != format_nf4_values()[i])
            return refuse(j, err, "\"quant_map\" has other values than nf4");
    return true;
}

/* Maxima that are codes themselves: map[code] * maximum + offset. */
static bool bnb_nested(const Job *j, const json_t *state, const Tensor *codes, const uint8_t **out,
                       Error *err)
{
    const Tensor *map;
    const Tensor *maxima;
    const int64_t n = tensor_elements(codes);
    const int64_t block = json_integer_value(json_object_get(state, "nested_blocksize"));
    const json_t *offset = json_object_get(state, "nested_offset");
    if (!need(j, ".weight.nested_quant_map", &map, err) ||
        !need(j, ".weight.nested_absmax", &maxima, err))
        return false;
    if (map->dtype != DT_F32 || tensor_elements(map) != 256)
        return bad_tensor(j, map, err, "256 F32 values");
    if (block < 1 || !json_is_number(offset))
        return refuse(j, err, "the quantiser's state has no nested block size or offset");
    if (maxima->dtype != DT_F32 || tensor_elements(maxima) != (n - 1) / block + 1)
        return bad_tensor(j, maxima, err, "F32, one for each nested block");
    float *plane = take(j, n, sizeof *plane, err);
    for (int64_t i = 0; plane && i < n; i++) {
        const float scaled = number(map, codes->data[i]) * number(maxima, i / block);
        plane[i] = scaled + (float)json_number_value(offset);
    }
    *out = (const uint8_t *)plane;
    return plane != NULL;
}

static bool bnb_state_rows(const Job *j, const Tensor *q, const json_t *state, RowView *out,
                           Error *err)
{
    const Tensor *maxima;
    const int64_t block = json_integer_value(json_object_get(state, "blocksize"));
    const json_t *shape = json_object_get(state, "shape");
    if (!need(j, ".weight.absmax", &maxima, err) || !bnb_values(j, err))
        return false;
    if (block < 16 || block > j->k || j->k % block != 0 || j->k % 32 != 0)
        return refuse(j, err, "wanted blocks of nf4 that divide the row");
    if (json_array_size(shape) != 2 || json_integer_value(json_array_get(shape, 0)) != j->n ||
        json_integer_value(json_array_get(shape, 1)) != j->k)
        return refuse(j, err, "the quantiser's state has another shape");
    if (q->dtype != DT_U8 || tensor_elements(q) != j->n * (j->k / 2))
        return bad_tensor(j, q, err, "U8, two codes a byte");
    const int64_t groups = j->k / block;
    const bool nested = maxima->dtype == DT_U8;
    if ((!nested && maxima->dtype != DT_F32) || tensor_elements(maxima) != j->n * groups)
        return bad_tensor(j, maxima, err, "F32 or U8, one for each block");
    *out = (RowView){.data = q->data,
                     .scales = maxima->data,
                     .row_bytes = j->k / 2,
                     .scale_row_bytes = groups * (int64_t)sizeof(float),
                     .n = j->n,
                     .k = (int)j->k,
                     .group = (int)block,
                     .format = FMT_NF4,
                     .scale_format = FMT_F32};
    return !nested || bnb_nested(j, state, maxima, &out->scales, err);
}

static bool bnb_rows(const Job *j, const Tensor *q, RowView *out, Error *err)
{
    json_t *state = bnb_state(j, err);
    const bool ok = state && bnb_state_rows(j, q, state, out, err);
    json_decref(state);
    return ok;
}

/* ---- which ---- */

static const json_t *quant_config(const Checkpoint *ck)
{
    const json_t *config = checkpoint_config(ck);
    const json_t *q = json_object_get(config, "quantization_config");
    if (!q)
        q = json_object_get(json_object_get(config, "text_config"), "quantization_config");
    return q ? q : json_object_get(config, "compression_config");
}

bool quant_has(const Checkpoint *ck, const char *stem)
{
    const Tensor *w = part(ck, stem, ".weight");
    if (!w)
        return part(ck, stem, ".qweight") || part(ck, stem, ".weight_packed");
    const bool coded = w->dtype == DT_F8_E4M3 || w->dtype == DT_I8 || w->dtype == DT_U8;
    return coded && (part(ck, stem, ".weight_scale") || part(ck, stem, ".weight_scale_inv") ||
                     part(ck, stem, ".weight.absmax"));
}

static bool is_method(const Job *j, const char *method)
{
    return strcmp(j->method, method) == 0;
}

static bool compressed_rows(const Job *j, const Tensor *w, RowView *out, Error *err)
{
    const Tensor *packed = part(j->ck, j->stem, ".weight_packed");
    if (packed && packed->dtype == DT_U8)
        return nvfp4_rows(j, packed, ".weight_global_scale", true, out, err);
    if (packed)
        return packed_int_rows(j, packed, out, err);
    if (w && w->dtype == DT_I8)
        return int8_rows(j, w, out, err);
    if (w && w->dtype == DT_F8_E4M3)
        return fp8_rows(j, w, out, err);
    return refuse(j, err, "wanted packed or plain integers, float8 or nvfp4");
}

bool quant_rows(const Checkpoint *ck, CheckpointSpace *space, const char *stem, int64_t n,
                int64_t k, RowView *out, Error *err)
{
    Job j = {.ck = ck, .space = space, .stem = stem, .config = quant_config(ck), .n = n, .k = k};
    const char *method = json_string_value(json_object_get(j.config, "quant_method"));
    j.method = method ? method : "";
    if (n < 1 || n > INT32_MAX)
        return refuse(&j, err, "a matrix without rows, or with more than 2^31");
    const Tensor *w = part(ck, stem, ".weight");
    if (is_method(&j, "gptq"))
        return gptq_rows(&j, out, err);
    if (is_method(&j, "awq"))
        return awq_rows(&j, out, err);
    if (is_method(&j, "compressed-tensors"))
        return compressed_rows(&j, w, out, err);
    if (w && is_method(&j, "bitnet"))
        return bitnet_rows(&j, w, out, err);
    if (w && is_method(&j, "bitsandbytes") && w->dtype == DT_U8)
        return bnb_rows(&j, w, out, err);
    if (w && is_method(&j, "modelopt") && w->dtype == DT_U8)
        return nvfp4_rows(&j, w, ".weight_scale_2", false, out, err);
    if (w && (is_method(&j, "fp8") || is_method(&j, "modelopt") || is_method(&j, "fbgemm_fp8")))
        return fp8_rows(&j, w, out, err);
    return refuse(&j, err,
                  "its \"quant_method\" is none that is read with these tensors: fp8, "
                  "compressed-tensors, modelopt, awq, gptq, bitnet, bitsandbytes");
}
