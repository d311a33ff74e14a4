/* Every weight product of lin.h against f64, for each format, level, class, shape and input.
 *
 * The reference is sum x * w in double, w from format_dequant_row. A kernel's error may come from
 * three sources, each with its own bound; m is |w|, or |w| + 2 |bias| for formats with a bias or
 * minimum (code and bias products are summed apart and may cancel), and eps is 2^-24:
 *   sums     (2 k eps) sum |x| m: f32 additions in any order
 *   int8     a quantised activation is off by at most half a step, max |x| / 254 over its lane,
 * whose elements all lie in one aligned block of 32: sum over blocks of max |x| / 254 * sum |w|,
 *            times 1 + 2^-12 for the rounding of the step itself; lanes below 2^-120 count as zero
 *   bf16     both factors are rounded to 8 bits, 2^-8 each: (2^-7 + 2^-16) sum |x| |w|; and numbers
 *            below 2^-126 are flushed: 2^-126 (|x| + |w| + 1) each
 * All kernels of the exact class must give the bits of the scalar one. */
#include "base/mem.h"
#include "base/num.h"
#include "device/cpu/lin.h"
#include "device/cpu/lin_dequant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_N = 100, MAX_ROWS = 100, GUARD = 8, LDY = MAX_N + GUARD };

typedef struct Case {
    FormatId format;
    int group;
    FormatId scale_format;
} Case;

static const Case cases[] = {
    {FMT_F32, 1, FMT_F32},        {FMT_F16, 1, FMT_F32},       {FMT_BF16, 1, FMT_F32},
    {FMT_Q4_0, 32, FMT_F32},      {FMT_Q4_1, 32, FMT_F32},     {FMT_Q5_0, 32, FMT_F32},
    {FMT_Q5_1, 32, FMT_F32},      {FMT_Q8_0, 32, FMT_F32},     {FMT_Q2_K, 256, FMT_F32},
    {FMT_Q3_K, 256, FMT_F32},     {FMT_Q4_K, 256, FMT_F32},    {FMT_Q5_K, 256, FMT_F32},
    {FMT_Q6_K, 256, FMT_F32},     {FMT_IQ4_NL, 32, FMT_F32},   {FMT_IQ4_XS, 256, FMT_F32},
    {FMT_IQ3_S, 256, FMT_F32},    {FMT_IQ3_XXS, 256, FMT_F32}, {FMT_IQ2_S, 256, FMT_F32},
    {FMT_IQ2_XS, 256, FMT_F32},   {FMT_IQ2_XXS, 256, FMT_F32}, {FMT_IQ1_M, 256, FMT_F32},
    {FMT_IQ1_S, 256, FMT_F32},    {FMT_TQ2_0, 256, FMT_F32},   {FMT_TQ1_0, 256, FMT_F32},
    {FMT_Q1_0, 128, FMT_F32},     {FMT_NVFP4, 64, FMT_F32},    {FMT_MXFP4, 32, FMT_F32},
    {FMT_MXFP4P, 32, FMT_F32},    {FMT_MXFP8P, 32, FMT_F32},   {FMT_NVFP4P, 16, FMT_F32},
    {FMT_NVFP4S, 16, FMT_F32},    {FMT_FP8, 576, FMT_F32},     {FMT_FP8, 128, FMT_BF16},
    {FMT_FP8, 80, FMT_F32},       {FMT_FP8, 40, FMT_F32},      {FMT_NF4, 64, FMT_F32},
    {FMT_NF4, 16, FMT_F32},       {FMT_AFFINE1, 64, FMT_BF16}, {FMT_AFFINE2, 32, FMT_F32},
    {FMT_AFFINE2, 64, FMT_F16},   {FMT_AFFINE2, 128, FMT_F16}, {FMT_AFFINE2, 128, FMT_BF16},
    {FMT_AFFINE3, 32, FMT_F32},   {FMT_AFFINE3, 64, FMT_F32},  {FMT_AFFINE3, 64, FMT_F16},
    {FMT_AFFINE3, 128, FMT_BF16}, {FMT_AFFINE5, 32, FMT_F16},  {FMT_AFFINE5, 64, FMT_BF16},
    {FMT_AFFINE5, 128, FMT_F32},  {FMT_AFFINE6, 32, FMT_BF16}, {FMT_AFFINE6, 64, FMT_F32},
    {FMT_AFFINE6, 128, FMT_F16},  {FMT_AFFINE4, 32, FMT_F32},  {FMT_AFFINE4, 64, FMT_F32},
    {FMT_AFFINE4, 128, FMT_F32},  {FMT_AFFINE4, 32, FMT_F16},  {FMT_AFFINE4, 64, FMT_F16},
    {FMT_AFFINE4, 128, FMT_F16},  {FMT_AFFINE4, 32, FMT_BF16}, {FMT_AFFINE4, 64, FMT_BF16},
    {FMT_AFFINE4, 128, FMT_BF16}, {FMT_AFFINE8, 32, FMT_F32},  {FMT_AFFINE8, 64, FMT_F32},
    {FMT_AFFINE8, 128, FMT_F32},  {FMT_AFFINE8, 32, FMT_F16},  {FMT_AFFINE8, 64, FMT_F16},
    {FMT_AFFINE8, 128, FMT_F16},  {FMT_AFFINE8, 32, FMT_BF16}, {FMT_AFFINE8, 64, FMT_BF16},
    {FMT_AFFINE8, 128, FMT_BF16},
};

static const char *const level_names[] = {"scalar",     "avx2",       "avx512",
                                          "avx512vnni", "avx512bf16", "amx"};

typedef enum Input { RANDOM, ZEROS, ONE_HUGE, TINY, INPUT_COUNT } Input;
static const char *const input_names[] = {"random", "zeros", "one huge", "denormal"};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static float random_unit(uint64_t *state) /* -1 .. 1 */
{
    return (float)(int32_t)(next_random(state) >> 32) * 0x1p-31F;
}

static void store_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

/* One entry of a scale or bias plane. */
static void store_number(uint8_t *p, FormatId format, float v)
{
    if (format == FMT_F32)
        memcpy(p, &v, sizeof v);
    else
        store_u16(p, format == FMT_F16 ? num_to_f16(v) : num_to_bf16(v));
}

/* Bytes that end where memory does: a read past them stops the test. */
typedef struct Bytes {
    uint8_t *p;
    uint8_t *map;
    size_t map_bytes;
} Bytes;

/* slack: bytes between them and the end, so that addresses are odd, too. */
static Bytes open_bytes(size_t n, size_t slack)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t used = (n + slack + page - 1) / page * page;
    Bytes b = {.map_bytes = used + page};
    b.map = mmap(NULL, b.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b.map != MAP_FAILED);
    assert_int_equal(mprotect(b.map + used, page, PROT_NONE), 0);
    b.p = b.map + used - slack - n;
    return b;
}

static void close_bytes(Bytes *b)
{
    assert_int_equal(munmap(b->map, b->map_bytes), 0);
}

typedef struct Weights {
    RowView view;
    Bytes data, scales, biases;
    double *value;     /* [n][k] */
    double *magnitude; /* m of the head comment */
} Weights;

static bool is_affine(FormatId format)
{
    return format >= FMT_AFFINE4 && format <= FMT_AFFINE8;
}

/* Where a block has its f16 scale and minimum (-1: none), by what they multiply numbers near
 * `scale` and `min`, and where its codes are, if it has a minimum. */
typedef struct BlockNumbers {
    int scale_at;
    float scale;
    int min_at;
    float min;
    int codes_at, code_bytes;
} BlockNumbers;

static const BlockNumbers block_numbers[FMT_COUNT] = {
    [FMT_Q4_0] = {0, 1, -1, 0, 0, 0},
    [FMT_Q4_1] = {0, 1, 2, -7.5F, 4, 16},
    [FMT_Q5_0] = {0, 0.5F, -1, 0, 0, 0},
    [FMT_Q5_1] = {0, 0.5F, 2, -7.5F, 4, 20},
    [FMT_Q8_0] = {0, 1.0F / 16, -1, 0, 0, 0},
    [FMT_Q2_K] = {80, 0.25F, 82, 0.25F, 16, 64},
    [FMT_Q3_K] = {108, 1.0F / 16, -1, 0, 0, 0},
    [FMT_Q4_K] = {0, 1.0F / 32, 2, 0.25F, 16, 128},
    [FMT_Q5_K] = {0, 1.0F / 64, 2, 0.25F, 16, 160},
    [FMT_Q6_K] = {208, 1.0F / 512, -1, 0, 0, 0},
    [FMT_IQ4_NL] = {0, 1.0F / 16, -1, 0, 0, 0},
    [FMT_IQ4_XS] = {0, 1.0F / 512, -1, 0, 0, 0},
    [FMT_IQ3_S] = {0, 1.0F / 64, -1, 0, 0, 0},
    [FMT_IQ3_XXS] = {0, 1.0F / 128, -1, 0, 0, 0},
    [FMT_IQ2_S] = {0, 1.0F / 64, -1, 0, 0, 0},
    [FMT_IQ2_XS] = {0, 1.0F / 64, -1, 0, 0, 0},
    [FMT_IQ2_XXS] = {0, 1.0F / 64, -1, 0, 0, 0},
    [FMT_IQ1_S] = {0, 0.25F, -1, 0, 0, 0},
    [FMT_TQ2_0] = {64, 4, -1, 0, 0, 0},
    [FMT_TQ1_0] = {52, 4, -1, 0, 0, 0},
    [FMT_Q1_0] = {0, 4, -1, 0, 0, 0},
};

static uint8_t e4m3_scale(uint64_t *seed)
{
    return (uint8_t)(0x04 + (next_random(seed) >> 40) % 0x24); /* subnormals up to 1 */
}

/* Sets the scales and minima inside a block to plausible numbers; the codes are random already. */
static void set_block_scales(FormatId format, uint8_t *p, uint64_t *seed)
{
    const float s = 0.004F + 0.002F * random_unit(seed);
    const BlockNumbers *n = &block_numbers[format];
    if (format == FMT_MXFP4) {
        p[0] = (uint8_t)(118 + (next_random(seed) & 3));
    } else if (format == FMT_NVFP4) {
        for (int i = 0; i < 4; i++)
            p[i] = e4m3_scale(seed);
    } else if (format == FMT_IQ1_M) {
        for (int i = 0; i < 4; i++) /* a nibble on top of each word */
            p[49 + 2 * i] = (uint8_t)((p[49 + 2 * i] & 15) | (num_to_f16(s) >> 4 * i & 15) << 4);
    } else {
        store_u16(p + n->scale_at, num_to_f16(s * n->scale));
        if (n->min_at >= 0)
            store_u16(p + n->min_at, num_to_f16(s * n->min));
    }
}

/* Zeroes the codes of a block, so that what is left is its bias. False: the format has none. */
static bool zero_codes(FormatId format, uint8_t *p)
{
    const BlockNumbers *n = &block_numbers[format];
    memset(p + n->codes_at, 0, (size_t)n->code_bytes);
    return n->code_bytes > 0;
}

static void dequant_all(const RowView *v, double *out)
{
    float *row = mem_alloc((size_t)v->k * 4);
    assert_non_null(row);
    for (int64_t j = 0; j < v->n; j++) {
        format_dequant_row(v, j, row);
        for (int i = 0; i < v->k; i++)
            out[j * v->k + i] = (double)row[i];
    }
    mem_free(row);
}

/* Bytes of one entry of the scale plane. */
static int scale_entry(const Case *c)
{
    const bool numbers = is_affine(c->format) || c->format == FMT_FP8 || c->format == FMT_NF4;
    return numbers ? format_info(c->scale_format)->block_bytes : 1;
}

static void fill_random(const Bytes *b, size_t n, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++)
        b->p[i] = (uint8_t)(next_random(seed) >> 56);
}

/* A view of random bytes. */
static void open_view(Weights *w, const Case *c, int n, int k, uint64_t *seed)
{
    const FormatInfo *info = format_info(c->format);
    const int64_t row_bytes = format_row_bytes(c->format, k);
    const int groups = info->kind == FMT_PLANE ? (k + c->group - 1) / c->group : 0;
    const int64_t scale_bytes = (int64_t)groups * scale_entry(c);
    const size_t slack = (size_t)n % 2;
    w->data = open_bytes((size_t)(row_bytes * n), slack);
    w->scales = open_bytes((size_t)(scale_bytes * n), slack);
    w->biases = open_bytes((size_t)(scale_bytes * n), slack);
    fill_random(&w->data, (size_t)(row_bytes * n), seed);
    fill_random(&w->scales, (size_t)(scale_bytes * n), seed);
    fill_random(&w->biases, (size_t)(scale_bytes * n), seed);
    w->view = (RowView){.data = w->data.p,
                        .scales = groups ? w->scales.p : NULL,
                        .biases = is_affine(c->format) ? w->biases.p : NULL,
                        .row_bytes = row_bytes,
                        .scale_row_bytes = scale_bytes,
                        .n = n,
                        .k = k,
                        .group = c->group,
                        .format = c->format,
                        .scale_format = c->scale_format,
                        .factor = k % 64 ? 0.03F : 41.0F,
                        .factor_divides = k % 64 == 0};
}

static void close_view(Weights *w)
{
    close_bytes(&w->data);
    close_bytes(&w->scales);
    close_bytes(&w->biases);
}

/* Entry i of the planes. */
static void set_plane_scales(const Weights *w, int64_t i, uint64_t *seed)
{
    const FormatId format = w->view.format;
    const float s = 0.004F + 0.002F * random_unit(seed);
    if (format == FMT_MXFP4P || format == FMT_MXFP8P) {
        w->scales.p[i] = (uint8_t)((format == FMT_MXFP8P ? 110 : 118) + (next_random(seed) & 3));
    } else if (format == FMT_NVFP4P || format == FMT_NVFP4S) {
        w->scales.p[i] = e4m3_scale(seed);
    } else {
        const int number = format_info(w->view.scale_format)->block_bytes;
        store_number(w->scales.p + i * number, w->view.scale_format, s);
        if (w->view.biases)
            store_number(w->biases.p + i * number, w->view.scale_format, -7.5F * s);
    }
}

/* Plausible numbers. */
static Weights make_weights(const Case *c, int n, int k, uint64_t seed)
{
    Weights w = {0};
    open_view(&w, c, n, k, &seed);
    w.value = mem_alloc((size_t)n * (size_t)k * sizeof(double));
    w.magnitude = mem_alloc((size_t)n * (size_t)k * sizeof(double));
    assert_non_null(w.value);
    assert_non_null(w.magnitude);
    const FormatInfo *info = format_info(c->format);
    uint8_t *data = w.data.p;
    const int64_t data_size = w.view.row_bytes * n;
    if (info->kind == FMT_PLAIN)
        for (int64_t i = 0; i < (int64_t)n * k; i++)
            store_number(data + i * info->block_bytes, c->format, 0.05F * random_unit(&seed));
    if (info->kind == FMT_BLOCK)
        for (int64_t i = 0; i < data_size; i += info->block_bytes)
            set_block_scales(c->format, data + i, &seed);
    if (info->kind == FMT_PLANE)
        for (int64_t i = 0; i < w.view.scale_row_bytes * n / scale_entry(c); i++)
            set_plane_scales(&w, i, &seed);
    if (c->format == FMT_FP8 || c->format == FMT_MXFP8P)
        for (int64_t i = 0; i < data_size; i++)
            data[i] = (data[i] & 0x7f) == 0x7f ? 0 : data[i]; /* NaN */
    dequant_all(&w.view, w.value);
    for (int64_t i = 0; i < (int64_t)n * k; i++)
        w.magnitude[i] = fabs(w.value[i]);
    uint8_t *copy = mem_alloc((size_t)data_size);
    double *bias = mem_alloc((size_t)n * (size_t)k * sizeof(double));
    assert_non_null(copy);
    assert_non_null(bias);
    memcpy(copy, data, (size_t)data_size);
    RowView zeroed = w.view;
    zeroed.data = copy;
    bool has_bias = zeroed.biases != NULL;
    if (has_bias)
        memset(copy, 0, (size_t)data_size);
    else if (info->kind == FMT_BLOCK)
        for (int64_t i = 0; i < data_size; i += info->block_bytes)
            has_bias = zero_codes(c->format, copy + i);
    if (has_bias) {
        dequant_all(&zeroed, bias);
        for (int64_t i = 0; i < (int64_t)n * k; i++)
            w.magnitude[i] += 2 * fabs(bias[i]);
    }
    mem_free(copy);
    mem_free(bias);
    return w;
}

static void free_weights(Weights *w)
{
    close_view(w);
    mem_free(w->value);
    mem_free(w->magnitude);
}

static void fill_input(Input input, float *x, int rows, int k, uint64_t seed)
{
    for (int i = 0; i < rows * k; i++) {
        const float v = random_unit(&seed);
        x[i] = input == ZEROS ? 0 : input == TINY ? v * 0x1p-130F : v;
    }
    if (input == ONE_HUGE)
        for (int r = 0; r < rows; r++)
            x[r * k + (r * 37 + 5) % k] = 1e30F;
}

/* Reference and error sources of one product. */
typedef struct Expected {
    double dot;
    double sums; /* sum |x| m */
    double int8;
    double bf16;
} Expected;

static Expected expect(const float *x, const Weights *w, int64_t j)
{
    const int k = w->view.k;
    const double *value = w->value + j * k;
    const double *magnitude = w->magnitude + j * k;
    Expected e = {0};
    for (int b = 0; b < k; b += 32) {
        const int end = b + 32 < k ? b + 32 : k;
        double max = 0;
        double weights = 0;
        for (int i = b; i < end; i++) {
            const double xi = (double)x[i];
            e.dot += xi * value[i];
            e.sums += fabs(xi) * magnitude[i];
            e.bf16 += fabs(xi * value[i]) * (0x1p-7 + 0x1p-16) +
                      0x1p-126 * (fabs(xi) + fabs(value[i]) + 1);
            max = fabs(xi) > max ? fabs(xi) : max;
            weights += fabs(value[i]);
        }
        e.int8 += (max / 254 * (1 + 0x1p-12) + 0x1p-120) * weights;
    }
    return e;
}

static double bound(const LinKernel *kernel, const Expected *e, int k)
{
    const double sums = 2.0 * k * 0x1p-24 * e->sums + 0x1p-140;
    if (strncmp(kernel->layout->name, "i8", 2) == 0)
        return sums + e->int8;
    return strncmp(kernel->layout->name, "bf16", 4) == 0 ? sums + e->bf16 : sums;
}

typedef struct Call {
    const LinKernel *kernel;
    const RowView *w;
    const float *x;
    const int32_t *idx;
    int rows;
    const float *bias; /* NULL or [n] */
    const float *add;  /* NULL or [rows][LDY] */
    int split;         /* 0: one run; else runs of this many tiles */
} Call;

static uint8_t *aligned_alloc_64(size_t bytes, void **memory)
{
    *memory = mem_alloc(bytes + 64);
    assert_non_null(*memory);
    return (uint8_t *)*memory + (64 - (uintptr_t)*memory % 64) % 64;
}

/* y [rows][LDY], NaN around what the call has to write. */
static void multiply(const Call *c, float *y)
{
    for (int i = 0; i < MAX_ROWS * LDY; i++)
        y[i] = num_float(0x7fc0dead);
    void *m0;
    void *m1;
    const int k = c->w->k;
    uint8_t *x = aligned_alloc_64((size_t)(c->kernel->layout->row_bytes(k) * c->rows), &m0);
    uint8_t *work = aligned_alloc_64((size_t)c->kernel->work_bytes(k), &m1);
    c->kernel->layout->pack(c->x, k, c->idx, c->rows, k, x);
    const LinOut out = {.y = y, .ldy = LDY, .bias = c->bias, .add = c->add, .ld_add = LDY};
    const int64_t step = c->split ? (int64_t)c->split * c->kernel->tile_rows : c->w->n;
    for (int64_t j = 0; j < c->w->n; j += step)
        c->kernel->run(c->w, j, i64_min(j + step, c->w->n), x, c->rows, &out, work);
    mem_free(m0);
    mem_free(m1);
}

static bool is_untouched(float v)
{
    return num_bits(v) == 0x7fc0dead;
}

/* Runs a call and compares with the expected products [MAX_ROWS][MAX_N]. */
static void check(const Call *c, const Expected *expected, const char *what)
{
    static float y[MAX_ROWS * LDY];
    multiply(c, y);
    for (int r = 0; r < MAX_ROWS; r++) {
        for (int j = 0; j < LDY; j++) {
            const float got = y[r * LDY + j];
            if (r >= c->rows || j >= c->w->n) {
                if (!is_untouched(got))
                    fail_msg("%s, %s: wrote outside at row %d, %d: %g", c->kernel->name, what, r, j,
                             (double)got);
                continue;
            }
            Expected e = expected[(c->idx ? c->idx[r] : r) * MAX_N + j];
            double extra = 0;
            if (c->bias)
                extra += (double)c->bias[j];
            if (c->add)
                extra += (double)c->add[r * LDY + j];
            const double limit =
                bound(c->kernel, &e, c->w->k) + 0x1p-22 * (fabs(extra) + fabs(e.dot + extra));
            if (!(fabs((double)got - e.dot - extra) <= limit))
                fail_msg("%s, %s, n %d k %d rows %d: row %d, %d is %.9g, want %.9g within %.3g",
                         c->kernel->name, what, (int)c->w->n, c->w->k, c->rows, r, j, (double)got,
                         e.dot + extra, limit);
        }
    }
}

static int find(const LinKernel *const *list, int n, const LinKernel *k)
{
    for (int i = 0; i < n; i++)
        if (list[i] == k)
            return i;
    return -1;
}

/* Calls f once for each kernel that any level of this machine selects for c at some row count of
 * rows[], with that row count; the same kernel at different row counts counts as different. */
typedef void (*Visit)(const LinKernel *kernel, LinClass cls, int rows, void *arg);
static void each_kernel(const Case *c, const int *rows, int n_rows, Visit visit, void *arg)
{
    const unsigned have = cpu_isa_detect();
    for (int r = 0; r < n_rows; r++) {
        const LinKernel *seen[64];
        int n_seen = 0;
        for (size_t l = 0; l < COUNT_OF(level_names); l++) {
            unsigned isa;
            assert_true(cpu_isa_from_name(level_names[l], &isa));
            if ((isa & have) != isa)
                continue;
            for (int cls = 0; cls < LIN_CLASS_COUNT; cls++) {
                const LinKernel *k = lin_select(isa, c->format, c->group, (LinClass)cls, rows[r]);
                assert_non_null(k);
                assert_true(k->max_rows == 0 || rows[r] <= k->max_rows);
                if (cls != LIN_FAST)
                    assert_true(k->invariant);
                if (find(seen, n_seen, k) >= 0)
                    continue;
                seen[n_seen++] = k;
                visit(k, (LinClass)cls, rows[r], arg);
            }
        }
    }
}

typedef struct Context {
    const Case *c;
    Weights weights;
    float *x; /* [MAX_ROWS][k] */
    Expected *expected;
    const char *what;
    const int *n_list;
    int n_count;
} Context;

static void open_context(Context *t, const Case *c, int n, int rows, int k, Input input)
{
    t->c = c;
    t->weights = make_weights(c, n, k, 0x9e3779b97f4a7c15U + (uint64_t)k);
    t->x = mem_alloc((size_t)MAX_ROWS * (size_t)k * 4);
    t->expected = mem_zalloc((size_t)MAX_ROWS * MAX_N * sizeof(Expected));
    assert_non_null(t->x);
    assert_non_null(t->expected);
    fill_input(input, t->x, MAX_ROWS, k, 0xd1b54a32d192ed03U);
    t->what = input_names[input];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < n; j++)
            t->expected[r * MAX_N + j] = expect(t->x + (int64_t)r * k, &t->weights, j);
}

static void close_context(Context *t)
{
    free_weights(&t->weights);
    mem_free(t->x);
    mem_free(t->expected);
}

static void visit_shapes(const LinKernel *kernel, LinClass cls, int rows, void *arg)
{
    const Context *t = arg;
    /* The scalar kernel knows formats through their definition alone: many rows with plain numbers
     * are enough. */
    const bool is_scalar = kernel == lin_select(0, t->c->format, t->c->group, cls, rows);
    if (is_scalar && format_info(t->c->format)->kind != FMT_PLAIN && rows > 8)
        return;
    for (int i = 0; i < t->n_count; i++) {
        const RowView w = rowview_slice(&t->weights.view, 0, t->n_list[i]);
        const Call call = {.kernel = kernel, .w = &w, .x = t->x, .rows = rows};
        check(&call, t->expected, t->what);
    }
}

static const int k_list[] = {32, 64, 80, 96, 128, 256, 576, 1056, 2304};

static bool fits(const Case *c, int k)
{
    const int block = format_info(c->format)->block;
    const int unit = c->format == FMT_FP8 ? 32 : c->group > block ? c->group : block;
    return k % unit == 0 && format_row_bytes(c->format, k) > 0;
}

static void products_are_within_their_bounds(void **state)
{
    (void)state;
    static const int n_list[] = {1, 15, 16, 17, 33, 100};
    static const int rows[] = {1, 2, 3, 5, 8, 9, 16, 17, 31, 64, 100};
    static const int few_rows[] = {1, 3, 8, 33};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t ki = 0; ki < COUNT_OF(k_list); ki++) {
            if (!fits(&cases[i], k_list[ki]))
                continue;
            Context t = {.n_list = n_list, .n_count = COUNT_OF(n_list)};
            const bool large = k_list[ki] > 1000;
            open_context(&t, &cases[i], large ? 33 : MAX_N, large ? 33 : MAX_ROWS, k_list[ki],
                         RANDOM);
            if (large)
                t.n_count = 5;
            if (k_list[ki] == 256 || k_list[ki] == 64)
                each_kernel(&cases[i], rows, COUNT_OF(rows), visit_shapes, &t);
            else
                each_kernel(&cases[i], few_rows, COUNT_OF(few_rows), visit_shapes, &t);
            close_context(&t);
        }
    }
}

static void plain_rows_may_have_any_length(void **state)
{
    (void)state;
    static const int n_list[] = {1, 5, 17};
    static const int rows[] = {1, 4, 5, 17};
    static const int lengths[] = {1, 2, 15, 17, 31, 33, 255, 257, 273, 511, 1025};
    for (int i = 0; i < 3; i++) {
        for (size_t ki = 0; ki < COUNT_OF(lengths); ki++) {
            Context t = {.n_list = n_list, .n_count = COUNT_OF(n_list)};
            open_context(&t, &cases[i], 17, 17, lengths[ki], RANDOM);
            each_kernel(&cases[i], rows, COUNT_OF(rows), visit_shapes, &t);
            close_context(&t);
        }
    }
}

static void hostile_inputs_stay_within_the_bounds(void **state)
{
    (void)state;
    static const int n_list[] = {33};
    static const int rows[] = {1, 8, 33};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (int input = ZEROS; input < INPUT_COUNT; input++) {
            const int k = fits(&cases[i], 576) ? 576 : 768;
            Context t = {.n_list = n_list, .n_count = COUNT_OF(n_list)};
            open_context(&t, &cases[i], 33, 33, k, (Input)input);
            each_kernel(&cases[i], rows, COUNT_OF(rows), visit_shapes, &t);
            close_context(&t);
        }
    }
}

static void visit_outputs(const LinKernel *kernel, LinClass cls, int rows, void *arg)
{
    const Context *t = arg;
    (void)cls;
    static float bias[MAX_N];
    static float add[MAX_ROWS * LDY];
    int32_t idx[MAX_ROWS];
    uint64_t seed = 12345;
    for (int i = 0; i < MAX_N; i++)
        bias[i] = random_unit(&seed);
    for (int i = 0; i < MAX_ROWS * LDY; i++)
        add[i] = random_unit(&seed);
    for (int r = 0; r < rows; r++)
        idx[r] = (r * 7 + 3) % 33;
    const RowView *w = &t->weights.view;
    const Call plain = {.kernel = kernel, .w = w, .x = t->x, .rows = rows};
    Call c = plain;
    c.bias = bias;
    check(&c, t->expected, "bias");
    c.add = add;
    check(&c, t->expected, "bias and add");
    c.bias = NULL;
    c.idx = idx;
    check(&c, t->expected, "add and idx");
    c = plain;
    c.split = 1;
    check(&c, t->expected, "split");
    /* in place: y += x w */
    static float apart[MAX_ROWS * LDY];
    static float inplace[MAX_ROWS * LDY];
    c = plain;
    c.add = add;
    multiply(&c, apart);
    void *m0;
    void *m1;
    const int k = w->k;
    uint8_t *x = aligned_alloc_64((size_t)(kernel->layout->row_bytes(k) * rows), &m0);
    uint8_t *work = aligned_alloc_64((size_t)kernel->work_bytes(k), &m1);
    kernel->layout->pack(t->x, k, NULL, rows, k, x);
    memcpy(inplace, add, sizeof inplace);
    const LinOut out = {.y = inplace, .ldy = LDY, .add = inplace, .ld_add = LDY};
    kernel->run(w, 0, w->n, x, rows, &out, work);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < w->n; j++)
            if (num_bits(inplace[r * LDY + j]) != num_bits(apart[r * LDY + j]))
                fail_msg("%s: in place row %d, %d is %.9g, apart %.9g", kernel->name, r, j,
                         (double)inplace[r * LDY + j], (double)apart[r * LDY + j]);
    mem_free(m0);
    mem_free(m1);
}

static void outputs_take_bias_add_and_gathered_rows(void **state)
{
    (void)state;
    static const int rows[] = {1, 5, 33};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Context t = {0};
        open_context(&t, &cases[i], 83, 33, 256, RANDOM);
        each_kernel(&cases[i], rows, COUNT_OF(rows), visit_outputs, &t);
        close_context(&t);
    }
}

/* Bits of row r in a call of `rows` rows, against those in calls of other sizes and splits. */
static void rows_do_not_depend_on_each_other(void **state)
{
    (void)state;
    enum { N = 51 };
    const unsigned have = cpu_isa_detect();
    static const int counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33};
    static float first[MAX_ROWS * LDY];
    static float y[MAX_ROWS * LDY];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Context t = {0};
        open_context(&t, &cases[i], N, 0,
                     cases[i].group == 256   ? 512
                     : cases[i].group == 128 ? 640
                                             : 576,
                     RANDOM);
        for (size_t l = 0; l < COUNT_OF(level_names); l++) {
            unsigned isa;
            assert_true(cpu_isa_from_name(level_names[l], &isa));
            if ((isa & have) != isa)
                continue;
            for (int cls = 0; cls < LIN_CLASS_COUNT; cls++) {
                if (cls == LIN_FAST)
                    continue;
                Call c = {.w = &t.weights.view, .x = t.x, .rows = MAX_ROWS};
                c.kernel = lin_select(isa, cases[i].format, cases[i].group, (LinClass)cls, c.rows);
                multiply(&c, first);
                for (size_t n = 0; n < COUNT_OF(counts); n++) {
                    c.rows = counts[n];
                    c.split = (int)n % 3;
                    c.kernel =
                        lin_select(isa, cases[i].format, cases[i].group, (LinClass)cls, c.rows);
                    multiply(&c, y);
                    for (int r = 0; r < c.rows; r++)
                        for (int j = 0; j < N; j++)
                            if (num_bits(y[r * LDY + j]) != num_bits(first[r * LDY + j]))
                                fail_msg("%s %s, class %d: row %d of %d, %d is %.9g, of %d %.9g",
                                         level_names[l], format_info(cases[i].format)->name, cls, r,
                                         c.rows, j, (double)y[r * LDY + j], MAX_ROWS,
                                         (double)first[r * LDY + j]);
                }
            }
        }
        close_context(&t);
    }
}

static void exact_levels_give_the_same_bits(void **state)
{
    (void)state;
    const unsigned have = cpu_isa_detect();
    static const int counts[] = {1, 3, 9};
    static const int lengths[] = {32, 256, 576, 1152, 2304};
    static float want[MAX_ROWS * LDY];
    static float y[MAX_ROWS * LDY];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t ki = 0; ki < COUNT_OF(lengths); ki++) {
            if (!fits(&cases[i], lengths[ki]))
                continue;
            Context t = {0};
            open_context(&t, &cases[i], 21, 0, lengths[ki], RANDOM);
            for (size_t n = 0; n < COUNT_OF(counts); n++) {
                Call c = {.w = &t.weights.view, .x = t.x, .rows = counts[n]};
                c.kernel = lin_select(0, cases[i].format, cases[i].group, LIN_EXACT, c.rows);
                multiply(&c, want);
                for (size_t l = 1; l < COUNT_OF(level_names); l++) {
                    unsigned isa;
                    assert_true(cpu_isa_from_name(level_names[l], &isa));
                    if ((isa & have) != isa)
                        continue;
                    c.kernel = lin_select(isa, cases[i].format, cases[i].group, LIN_EXACT, c.rows);
                    multiply(&c, y);
                    for (int r = 0; r < c.rows; r++)
                        for (int j = 0; j < 21; j++)
                            if (num_bits(y[r * LDY + j]) != num_bits(want[r * LDY + j]))
                                fail_msg("%s, %s, k %d: row %d of %d, %d is %.9g, scalar %.9g",
                                         c.kernel->name, format_info(cases[i].format)->name,
                                         lengths[ki], r, c.rows, j, (double)y[r * LDY + j],
                                         (double)want[r * LDY + j]);
                }
            }
            close_context(&t);
        }
    }
}

/* Any bytes at all, so NaN and infinite scales too: any NaN equals any other. */
static void unpacking_gives_the_definitions_bits(void **state)
{
    (void)state;
    const unsigned have = cpu_isa_detect();
    const LinDequant levels[2] = {have & CPU_AVX2 ? lin_dequant_avx2 : NULL,
                                  have & CPU_AVX512 ? lin_dequant_avx512 : NULL};
    static const int lengths[] = {32, 224, 256, 608, 768, 1280};
    enum { N = 3 };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t ki = 0; ki < COUNT_OF(lengths); ki++) {
            const int k = lengths[ki];
            if (!fits(&cases[i], k))
                continue;
            Weights w;
            uint64_t seed = 0x2545f4914f6cdd1dU + (uint64_t)k;
            open_view(&w, &cases[i], N + k % 3, k, &seed);
            for (int64_t r = 0; r < w.view.n; r++) {
                float want[1280];
                float got[1280];
                format_dequant_row(&w.view, r, want);
                for (int l = 0; l < 2 && levels[l]; l++) {
                    for (int o = 0; o < k; o += 256)
                        levels[l](&w.view, r, o, k - o < 256 ? k - o : 256, got + o);
                    for (int e = 0; e < k; e++)
                        if (num_bits(got[e]) != num_bits(want[e]) &&
                            !(isnan(got[e]) && isnan(want[e])))
                            fail_msg("%s, %s, group %d, k %d: element %d of row %d is %a, want %a",
                                     l ? "avx512" : "avx2", format_info(cases[i].format)->name,
                                     cases[i].group, k, e, (int)r, (double)got[e], (double)want[e]);
                }
            }
            close_view(&w);
        }
    }
}

static void levels_have_names(void **state)
{
    (void)state;
    unsigned isa = 77;
    assert_false(cpu_isa_from_name("sse9", &isa));
    assert_int_equal(isa, 0);
    unsigned weaker = 0;
    for (size_t l = 0; l < COUNT_OF(level_names); l++) {
        assert_true(cpu_isa_from_name(level_names[l], &isa));
        assert_int_equal(isa & weaker, weaker);
        weaker = isa;
    }
    assert_int_equal(cpu_isa_detect(), cpu_isa_detect());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_have_names),
        cmocka_unit_test(unpacking_gives_the_definitions_bits),
        cmocka_unit_test(exact_levels_give_the_same_bits),
        cmocka_unit_test(products_are_within_their_bounds),
        cmocka_unit_test(plain_rows_may_have_any_length),
        cmocka_unit_test(hostile_inputs_stay_within_the_bounds),
        cmocka_unit_test(outputs_take_bias_add_and_gathered_rows),
        cmocka_unit_test(rows_do_not_depend_on_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
