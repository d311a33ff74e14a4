/* Products and experts of few rows: cuda_lin.c and cuda_moe.c emit into a builder of this file that
 * runs every launch in the emulator at once. The reference is double precision over
 * gpu_weight_unpack_row. */
#include "device/cuda/cuda_emit.h"

#include "base/arena.h"
#include "base/num.h"
#include "emu/emu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- the builder ---- */

enum { VALUES = 4, WEIGHTS = 2, PARTS = 3 };

struct CudaBuild {
    Arena *a;
    Error err;
    bool failed;
    int launches;
    const char *last; /* kernel */
    bool exact, deterministic;
    int rows, sms, smem;
    GpuPlan plan;
    GpuValue values[VALUES];
    float *value[VALUES];
    GpuWeight weight[WEIGHTS];
    GpuPart parts[WEIGHTS][PARTS];
    uint8_t *memory[WEIGHTS];
    float *bias[WEIGHTS];
    GpuStepLayout layout;
    int32_t *step;
};

static void *take(CudaBuild *b, int64_t bytes)
{
    Error err;
    void *p = arena_take(b->a, (size_t)bytes, 1, &err);
    assert_non_null(p);
    return p;
}

static CudaPtr ptr(const void *p)
{
    return (CudaPtr)(uintptr_t)p;
}

void cuda_build_fail(CudaBuild *b, ErrCode code, const char *fmt, ...)
{
    va_list ap;
    char msg[200];
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    b->failed = true;
    (void)err_set(&b->err, code, "%s", msg);
}

void cuda_launch(CudaBuild *b, const CudaLaunch *l)
{
    if (b->failed)
        return;
    const int grid[3] = {l->grid[0] ? l->grid[0] : 1, l->grid[1] ? l->grid[1] : 1,
                         l->grid[2] ? l->grid[2] : 1};
    assert_true(l->smem <= b->smem);
    b->launches++;
    b->last = l->kernel;
    if (emu_launch(l->kernel, grid, l->block, l->smem, l->cluster, l->params, l->params_bytes))
        cuda_build_fail(b, ERR_FAILED, "%s: %s", l->kernel, emu_error());
}

int cuda_sms(const CudaBuild *b)
{
    return b->sms;
}
int cuda_smem_max(const CudaBuild *b)
{
    return b->smem;
}
bool cuda_exact(const CudaBuild *b)
{
    return b->exact;
}
bool cuda_deterministic(const CudaBuild *b)
{
    return b->deterministic;
}
const GpuPlan *cuda_plan(const CudaBuild *b)
{
    return &b->plan;
}
int cuda_op_rows(const CudaBuild *b, const GpuOp *op)
{
    (void)op;
    return b->rows;
}
CudaPtr cuda_value(const CudaBuild *b, int value)
{
    return value < 0 ? 0 : ptr(b->value[value]);
}
int cuda_value_ld(const CudaBuild *b, int value)
{
    return b->values[value].ld;
}
CudaPtr cuda_vec(const CudaBuild *b, const Vec *v)
{
    (void)b;
    return v ? ptr(v->v) : 0;
}
static int weight_index(const CudaBuild *b, const Weight *w)
{
    for (int i = 0; i < WEIGHTS; i++)
        if (b->weight[i].weight == w)
            return i;
    fail_msg("a weight that is not there");
    return 0;
}
CudaPtr cuda_bias(const CudaBuild *b, const Weight *w)
{
    return ptr(b->bias[weight_index(b, w)]);
}
const GpuWeight *cuda_weight(CudaBuild *b, const Weight *w)
{
    return &b->weight[weight_index(b, w)];
}
CudaPart cuda_weight_part(const CudaBuild *b, const GpuWeight *w, int part)
{
    const uint8_t *base = b->memory[weight_index(b, w->weight)];
    const GpuPart *p = &w->parts[part];
    return (CudaPart){.part = p,
                      .codes = ptr(base + p->code_offset),
                      .scales = p->scale ? ptr(base + p->scale_offset) : 0};
}
CudaPtr cuda_step(const CudaBuild *b)
{
    return ptr(b->step);
}
const GpuStepLayout *cuda_step_layout(const CudaBuild *b)
{
    return &b->layout;
}
CudaPtr cuda_work(CudaBuild *b, int64_t bytes)
{
    uint8_t *p = take(b, bytes);
    memset(p, 0xff, (size_t)bytes);
    return ptr(p);
}
CudaPtr cuda_packed(CudaBuild *b, int value, const Vec *norm, int form, int64_t bytes, bool *fresh)
{
    (void)value, (void)norm, (void)form;
    *fresh = true;
    return cuda_work(b, bytes);
}

/* ---- inputs ---- */

static uint64_t seed;

static uint32_t next(void)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(seed >> 33);
}

static float uniform(float lo, float hi)
{
    return lo + (hi - lo) * (float)(next() & 0xffffff) / 16777216.0F;
}

typedef struct Form {
    const char *name;
    GpuLayout layout;
    GpuScale scale;
    int group;
    int k_step;
} Form;

static const Form forms[] = {
    {"f32", GPU_F32, GPU_SCALE_NONE, 0, 1},
    {"f16", GPU_F16, GPU_SCALE_NONE, 0, 1},
    {"bf16", GPU_BF16, GPU_SCALE_NONE, 0, 1},
    {"a4 f16 32", GPU_A4, GPU_SCALE_F16_PAIR, 32, 32},
    {"a4 bf16 64", GPU_A4, GPU_SCALE_BF16_PAIR, 64, 64},
    {"a4 bf16 128", GPU_A4, GPU_SCALE_BF16_PAIR, 128, 128},
    {"a4 f32 32", GPU_A4, GPU_SCALE_F32_PAIR, 32, 32},
    {"s4", GPU_S4, GPU_SCALE_F16, 32, 32},
    {"e4", GPU_E4, GPU_SCALE_E8M0, 32, 32},
    {"a8 f16 64", GPU_A8, GPU_SCALE_F16_PAIR, 64, 64},
    {"a8 bf16 128", GPU_A8, GPU_SCALE_BF16_PAIR, 128, 128},
    {"a8 f32 32", GPU_A8, GPU_SCALE_F32_PAIR, 32, 32},
    {"s8", GPU_S8, GPU_SCALE_F16, 32, 32},
    {"k6", GPU_K6, GPU_SCALE_K6, 16, 256},
};
enum { FORMS = sizeof forms / sizeof *forms };

static void put16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, 2);
}

static void fill_scales(const Form *f, int k, uint8_t *s)
{
    const int groups = f->group ? k / f->group : 0;
    for (int g = 0; g < groups; g++) {
        const float scale = uniform(-0.02F, 0.02F);
        const float bias = uniform(-0.1F, 0.1F);
        switch (f->scale) {
        case GPU_SCALE_F16:
            put16(s + (size_t)g * 2, num_to_f16(scale));
            break;
        case GPU_SCALE_E8M0:
            s[g] = (uint8_t)(118 + next() % 5);
            break;
        case GPU_SCALE_F16_PAIR:
            put16(s + (size_t)g * 4, num_to_f16(scale));
            put16(s + (size_t)g * 4 + 2, num_to_f16(bias));
            break;
        case GPU_SCALE_BF16_PAIR:
            put16(s + (size_t)g * 4, num_to_bf16(scale));
            put16(s + (size_t)g * 4 + 2, num_to_bf16(bias));
            break;
        case GPU_SCALE_F32_PAIR:
            memcpy(s + (size_t)g * 8, &scale, 4);
            memcpy(s + (size_t)g * 8 + 4, &bias, 4);
            break;
        case GPU_SCALE_K6: {
            uint8_t *at = s + (size_t)(g / 16) * 20;
            at[g % 16] = (uint8_t)next();
            if (g % 16 == 0) {
                put16(at + 16, num_to_f16(scale * 0.02F));
                put16(at + 18, 0);
            }
            break;
        }
        case GPU_SCALE_NONE:
            break;
        }
    }
}

static void fill_codes(const Form *f, int k, uint8_t *c, int64_t stride)
{
    if (f->layout > GPU_BF16) {
        for (int64_t i = 0; i < stride; i++)
            c[i] = (uint8_t)next();
        return;
    }
    for (int i = 0; i < k; i++) {
        const float v = uniform(-0.1F, 0.1F);
        if (f->layout == GPU_F32)
            memcpy(c + (size_t)i * 4, &v, 4);
        else
            put16(c + (size_t)i * 2, f->layout == GPU_F16 ? num_to_f16(v) : num_to_bf16(v));
    }
}

static int64_t code_bytes(const Form *f, int k)
{
    switch (f->layout) {
    case GPU_F32:
        return (int64_t)k * 4;
    case GPU_F16:
    case GPU_BF16:
        return (int64_t)k * 2;
    case GPU_A8:
    case GPU_S8:
        return k;
    case GPU_K6:
        return k / 2 + k / 4;
    case GPU_A4:
    case GPU_S4:
    case GPU_E4:
    case GPU_LAYOUT_COUNT:
        break;
    }
    return k / 2;
}

static int64_t scale_bytes(const Form *f, int k)
{
    switch (f->scale) {
    case GPU_SCALE_F16:
        return k / 32 * 2;
    case GPU_SCALE_E8M0:
        return k / 32;
    case GPU_SCALE_F16_PAIR:
    case GPU_SCALE_BF16_PAIR:
        return k / f->group * 4;
    case GPU_SCALE_F32_PAIR:
        return k / f->group * 8;
    case GPU_SCALE_K6:
        return k / 256 * 20;
    case GPU_SCALE_NONE:
        break;
    }
    return 0;
}

/* Weight i of the builder: parts of part_rows rows. Returns its numbers, [experts][n][k]. */
static float *make_weight(CudaBuild *b, int i, Weight *w, const Form *f, int n, int k, int experts,
                          int n_parts)
{
    *w = (Weight){.name = f->name, .n = n, .k = k, .n_experts = experts};
    GpuWeight *g = &b->weight[i];
    *g = (GpuWeight){.weight = w,
                     .n_experts = experts ? experts : 1,
                     .k = k,
                     .n_parts = n_parts,
                     .parts = b->parts[i]};
    for (int p = 0; p < n_parts; p++) {
        const int64_t row0 = (int64_t)n * p / n_parts;
        GpuPart part = {.layout = f->layout,
                        .scale = f->scale,
                        .group = f->group,
                        .row0 = row0,
                        .rows = (int64_t)n * (p + 1) / n_parts - row0,
                        .code_stride = i64_round_up(code_bytes(f, k), 16),
                        .scale_stride = i64_round_up(scale_bytes(f, k), 16)};
        part.code_bytes = part.rows * part.code_stride;
        part.scale_bytes = part.rows * part.scale_stride;
        part.code_offset = g->bytes;
        part.scale_offset = part.code_offset + i64_round_up(part.code_bytes * g->n_experts, 256);
        g->bytes = part.scale_offset + i64_round_up(part.scale_bytes * g->n_experts, 256);
        b->parts[i][p] = part;
    }
    uint8_t *memory = take(b, g->bytes + 16);
    b->memory[i] = memory;
    float *out = take(b, (int64_t)g->n_experts * n * k * 4);
    for (int e = 0; e < g->n_experts; e++)
        for (int p = 0; p < n_parts; p++) {
            const GpuPart *q = &b->parts[i][p];
            for (int64_t r = 0; r < q->rows; r++) {
                uint8_t *c = memory + q->code_offset + e * q->code_bytes + r * q->code_stride;
                uint8_t *s = memory + q->scale_offset + e * q->scale_bytes + r * q->scale_stride;
                memset(c, 0, (size_t)q->code_stride);
                fill_codes(f, k, c, code_bytes(f, k));
                fill_scales(f, k, s);
                gpu_weight_unpack_row(q, k, c, s, out + ((int64_t)e * n + q->row0 + r) * k);
            }
        }
    return out;
}

static float *make_value(CudaBuild *b, int v, int rows, int width, int ld, int64_t offset)
{
    float *p = take(b, ((int64_t)rows * ld + 8) * 4);
    p += offset / 4;
    for (int i = 0; i < rows * ld; i++)
        p[i] = uniform(-1.0F, 1.0F);
    b->value[v] = p;
    b->values[v] = (GpuValue){.width = width, .ld = ld, .offset = offset};
    return p;
}

static void begin(CudaBuild *b, Arena *a)
{
    *b = (CudaBuild){.a = a, .sms = 2, .smem = 232448};
    b->plan = (GpuPlan){.values = b->values, .n_values = VALUES};
    b->layout = (GpuStepLayout){.out_rows = GPU_STEP_HEAD};
    b->step = take(b, (GPU_STEP_HEAD + 64) * 4);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* ---- products ---- */

typedef struct LinCase {
    int form, n, k, rows;
    bool exact, norm, norm_weight, gather, silu, bias, addend;
    int parts;
    int ld_more; /* floats between rows of x; odd: rows are not aligned */
    int smem;    /* 0: much */
} LinCase;

static double dot(const float *w, const float *x, const float *norm, int k)
{
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += (double)w[i] * (double)x[i] * (norm ? (double)norm[i] : 1.0);
    return sum;
}

static double inv_rms(const float *x, int k, float eps)
{
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += (double)x[i] * (double)x[i];
    return 1.0 / sqrt(sum / k + (double)eps);
}

/* Relative to the size of all results: a single one may be small by cancellation. */
static void check(const char *what, const float *y, const double *want, int rows, int n, int ld,
                  double limit)
{
    double num = 0;
    double den = 0;
    for (int i = 0; i < rows * n; i++)
        den += want[i] * want[i];
    const double size = sqrt(den / (rows * n)) + 1e-30;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < ld; c++) {
            const float got = y[r * ld + c];
            if (c >= n) {
                if (got != 7.0F)
                    fail_msg("%s: row %d: %g written at column %d of %d", what, r, (double)got, c,
                             n);
                continue;
            }
            const double d = (double)got - want[r * n + c];
            if (!(fabs(d) <= 8 * limit * size))
                fail_msg("%s: row %d, column %d: %g, wanted %g", what, r, c, (double)got,
                         want[r * n + c]);
            num += d * d;
        }
    const double e = sqrt(num / (rows * n)) / size;
    if (!(e < limit))
        fail_msg("%s: relative error %g, at most %g", what, e, limit);
}

static void run_lin(const LinCase *c)
{
    Arena a;
    arena_init(&a, "test");
    CudaBuild b;
    begin(&b, &a);
    seed = (uint64_t)(c->form * 1000003 + c->k * 7 + c->n * 131 + c->rows);
    char what[200];
    snprintf(what, sizeof what, "%s n %d k %d rows %d%s%s%s%s%s%s parts %d seed %llu",
             forms[c->form].name, c->n, c->k, c->rows, c->exact ? " exact" : "",
             c->norm ? " norm" : "", c->gather ? " gather" : "", c->silu ? " silu" : "",
             c->bias ? " bias" : "", c->addend ? " addend" : "", c->parts,
             (unsigned long long)seed);
    b.exact = c->exact;
    b.rows = c->rows;
    if (c->smem)
        b.smem = c->smem;
    Weight w;
    const float *values = make_weight(&b, 0, &w, &forms[c->form], c->n, c->k, 0, c->parts);
    const int out_n = c->silu ? c->n / 2 : c->n;
    const int in_rows = c->rows + 3;
    const int ld = c->k + c->ld_more;
    const float *x = make_value(&b, 0, in_rows, c->k, ld, c->ld_more % 4 ? 4 : 0);
    const float *add = make_value(&b, 1, c->rows, out_n, out_n + 2, 0);
    float *y = make_value(&b, 2, c->rows, out_n, out_n + 5, 0);
    for (int i = 0; i < c->rows * (out_n + 5); i++)
        y[i] = 7.0F;
    Vec norm = {.name = "norm", .n = c->k, .v = take(&b, (int64_t)c->k * 4)};
    for (int i = 0; i < c->k; i++)
        norm.v[i] = uniform(0.5F, 1.5F);
    if (c->bias) {
        b.bias[0] = take(&b, (int64_t)c->n * 4);
        for (int i = 0; i < c->n; i++)
            b.bias[0][i] = uniform(-1.0F, 1.0F);
        w.bias = b.bias[0];
    }
    for (int r = 0; r < c->rows; r++)
        b.step[GPU_STEP_HEAD + r] = c->gather ? (r * 5 + 2) % in_rows : r;
    GpuOp op = {.kind = OP_LIN,
                .in = {0, c->addend ? 1 : -1, -1},
                .out = 2,
                .norm = {c->norm && c->norm_weight ? &norm : NULL, c->norm ? 1e-5F : 0.0F},
                .gather = c->gather,
                .silu = c->silu,
                .weight = &w};
    cuda_emit_lin(&b, &op);
    if (b.failed)
        fail_msg("%s: %s", what, b.err.msg);

    double *want = take(&b, (int64_t)c->rows * out_n * 8);
    for (int r = 0; r < c->rows; r++) {
        const float *xr = x + (int64_t)b.step[GPU_STEP_HEAD + r] * ld;
        const double inv = c->norm ? inv_rms(xr, c->k, 1e-5F) : 1.0;
        for (int i = 0; i < out_n; i++) {
            double v[2];
            for (int h = 0; h < 2; h++) {
                const int row = i + (h && c->silu ? out_n : 0);
                v[h] =
                    dot(values + (int64_t)row * c->k, xr, op.norm.vec ? norm.v : NULL, c->k) * inv +
                    (c->bias ? (double)b.bias[0][row] : 0.0);
            }
            want[r * out_n + i] = (c->silu ? silu(v[0]) * v[1] : v[0]) +
                                  (c->addend ? (double)add[r * (out_n + 2) + i] : 0.0);
        }
    }
    const bool i8 = !c->exact && forms[c->form].layout > GPU_BF16 && c->ld_more % 4 == 0;
    /* int8: 127 steps to the largest of 32; a product of two such numbers has both errors. */
    check(what, y, want, c->rows, out_n, out_n + 5, !i8 ? 2e-6 : c->silu ? 2e-2 : 1.2e-2);
    arena_free(&a);
}

static void lin_layouts(void **state)
{
    (void)state;
    for (int f = 0; f < FORMS; f++)
        for (int exact = 0; exact < 2; exact++) {
            const int step = forms[f].k_step;
            const int odd = step == 1 ? 67 : 3 * step;
            const LinCase cases[] = {
                {f, 37, odd, 1, .exact = exact, .parts = 1},
                {f, 70, (int)i64_round_up(1100, step) & ~3, 1, .exact = exact, .norm = true,
                 .norm_weight = true, .addend = true, .parts = 1},
                {f, 33, 2048 + 256, 3, .exact = exact, .bias = true, .gather = true, .norm = true,
                 .parts = 2},
                {f, 38, 768, 2, .exact = exact, .silu = true, .bias = true, .parts = 1},
                {f, 40, 256, 8, .exact = exact, .silu = true, .norm = true, .norm_weight = true,
                 .parts = 2},
                {f, 21, 5120, 5, .exact = exact, .addend = true, .parts = 1},
            };
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
                run_lin(&cases[i]);
        }
}

static void lin_shapes(void **state)
{
    (void)state;
    static const LinCase cases[] = {
        {7, 300, 4096, 1, .norm = true, .norm_weight = true, .parts = 1},
        {4, 80, 5120, 4, .norm = true, .norm_weight = true, .silu = true, .parts = 1},
        {7, 20, 14336, 8, .parts = 1},               /* packed once */
        {4, 20, 2048, 19, .norm = true, .parts = 1}, /* passes */
        {7, 20, 14336, 3, .exact = true, .norm = true, .norm_weight = true, .parts = 1},
        {7, 20, 14336, 8, .exact = true, .norm = true, .norm_weight = true, .parts = 1}, /* tiles */
        {1, 20, 9000, 8, .norm = true, .norm_weight = true, .parts = 1},
        {0, 130, 50, 17, .parts = 1},
        {4, 33, 192, 2, .ld_more = 3, .parts = 1}, /* rows not aligned */
        {8, 33, 192, 2, .ld_more = 4, .parts = 3},
        {7, 24, 8192, 8, .smem = 65536, .parts = 1}, /* a small multiprocessor */
        {7, 24, 8192, 8, .smem = 65536, .exact = true, .parts = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_lin(&cases[i]);
}

/* The same row, alone and among others: the same bits. */
static void lin_rows_alone(void **state)
{
    (void)state;
    enum { N = 19, ROWS = 11 };
    static const struct {
        int form, k;
        bool exact;
    } cases[] = {{7, 4096, false}, {4, 1088, false}, {13, 768, false},  {4, 1088, true},
                 {7, 14336, true}, {1, 5000, false}, {12, 14336, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena a;
        arena_init(&a, "test");
        CudaBuild b;
        begin(&b, &a);
        seed = i + 1;
        b.exact = cases[i].exact;
        b.deterministic = true;
        const int k = cases[i].k;
        Weight w;
        (void)make_weight(&b, 0, &w, &forms[cases[i].form], N, k, 0, 1);
        float *x = make_value(&b, 0, ROWS, k, k, 0);
        float *y = make_value(&b, 2, ROWS, N, N, 0);
        Vec norm = {.name = "norm", .n = k, .v = take(&b, (int64_t)k * 4)};
        for (int j = 0; j < k; j++)
            norm.v[j] = uniform(0.5F, 1.5F);
        const GpuOp op = {
            .kind = OP_LIN, .in = {0, -1, -1}, .out = 2, .norm = {&norm, 1e-5F}, .weight = &w};
        b.rows = ROWS;
        cuda_emit_lin(&b, &op);
        float all[ROWS * N];
        memcpy(all, y, sizeof all);
        for (int at = 0, rows = 1; at < ROWS; at += rows, rows = at % 3 + 1) {
            rows = rows < ROWS - at ? rows : ROWS - at;
            b.rows = rows;
            b.value[0] = x + (int64_t)at * k;
            cuda_emit_lin(&b, &op);
            for (int j = 0; j < rows * N; j++)
                if (num_bits(y[j]) != num_bits(all[at * N + j]))
                    fail_msg("%s k %d: row %d of %d, column %d: %.9g alone, %.9g among others",
                             forms[cases[i].form].name, k, at + j / N, ROWS, j % N, (double)y[j],
                             (double)all[at * N + j]);
        }
        assert_false(b.failed);
        arena_free(&a);
    }
}

static void lin_numbers_of_launches(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    CudaBuild b;
    begin(&b, &a);
    seed = 5;
    Weight w;
    (void)make_weight(&b, 0, &w, &forms[7], 32, 256, 0, 1);
    (void)make_value(&b, 0, 1, 256, 256, 0);
    (void)make_value(&b, 2, 1, 32, 32, 0);
    const GpuOp op = {.kind = OP_LIN,
                      .in = {0, -1, -1},
                      .out = 2,
                      .norm = {NULL, 1e-5F},
                      .silu = false,
                      .weight = &w};
    b.rows = 1;
    cuda_emit_lin(&b, &op);
    assert_false(b.failed);
    assert_int_equal(b.launches, 1);
    assert_string_equal(b.last, "lin_s4_r1_half");
    w.precise = true;
    cuda_emit_lin(&b, &op);
    assert_string_equal(b.last, "lin_f32_s4_r1_thin");
    arena_free(&a);
}

/* ---- experts ---- */

typedef struct MoeCase {
    int form_up, form_down, hidden, ffn, experts, top_k, tokens, live;
    bool exact, norm, renorm, addend, bias;
    int parts, launches;
    bool ties, nan;
} MoeCase;

/* route_softmax of ops_ref.c. */
static void route(const float *x, int n, int k, bool renorm, int *ids, double *shares)
{
    bool used[64] = {false};
    double all = 0;
    double best = 0;
    for (int j = 0; j < k; j++) {
        int at = -1;
        for (int i = 0; i < n; i++) {
            const float v = x[i] == x[i] ? x[i] : -INFINITY;
            if (!used[i] && (at < 0 || v > (x[at] == x[at] ? x[at] : -INFINITY)))
                at = i;
        }
        used[at] = true;
        ids[j] = at;
    }
    for (int i = 0; i < n; i++)
        all += exp((double)x[i] - (double)x[ids[0]]);
    for (int j = 0; j < k; j++)
        best += exp((double)x[ids[j]] - (double)x[ids[0]]);
    for (int j = 0; j < k; j++)
        shares[j] = exp((double)x[ids[j]] - (double)x[ids[0]]) / (renorm ? best : all);
}

static void run_moe(const MoeCase *c)
{
    Arena a;
    arena_init(&a, "test");
    CudaBuild b;
    begin(&b, &a);
    seed = (uint64_t)(c->hidden * 31 + c->ffn * 7 + c->tokens + c->form_up * 1009);
    char what[200];
    snprintf(what, sizeof what, "%s, %s hidden %d ffn %d, %d of %d experts, %d tokens%s seed %llu",
             forms[c->form_up].name, forms[c->form_down].name, c->hidden, c->ffn, c->top_k,
             c->experts, c->tokens, c->exact ? " exact" : "", (unsigned long long)seed);
    b.exact = c->exact;
    b.rows = c->tokens;
    b.sms = 3;
    Weight wu, wd;
    const float *up =
        make_weight(&b, 0, &wu, &forms[c->form_up], 2 * c->ffn, c->hidden, c->experts, c->parts);
    const float *down =
        make_weight(&b, 1, &wd, &forms[c->form_down], c->hidden, c->ffn, c->experts, c->parts);
    if (c->bias)
        for (int i = 0; i < 2; i++) {
            const int64_t n = c->experts * (i ? wd.n : wu.n);
            b.bias[i] = take(&b, n * 4);
            for (int64_t j = 0; j < n; j++)
                b.bias[i][j] = uniform(-0.5F, 0.5F);
        }
    const int ld = c->hidden + 4;
    const float *x = make_value(&b, 0, c->tokens, c->hidden, ld, 0);
    float *logits = make_value(&b, 1, c->tokens, c->experts, c->experts, 0);
    float *y = make_value(&b, 2, c->tokens, c->hidden, ld, 0);
    float *add = make_value(&b, 3, c->tokens, c->hidden, c->hidden, 0);
    for (int i = 0; i < c->tokens * c->experts; i++)
        logits[i] = c->ties ? (float)(int)(logits[i] * 2) : logits[i] * 3;
    if (c->nan)
        logits[1] = NAN;
    for (int i = 0; i < c->tokens * ld; i++)
        y[i] = 7.0F;
    b.step[GPU_STEP_N_ROWS] = c->live;
    Vec norm = {.name = "norm", .n = c->hidden, .v = take(&b, (int64_t)c->hidden * 4)};
    for (int i = 0; i < c->hidden; i++)
        norm.v[i] = uniform(0.5F, 1.5F);
    const Op desc = {.kind = OP_MOE,
                     .u.moe = {.n_experts = c->experts,
                               .top_k = c->top_k,
                               .ffn = c->ffn,
                               .renorm = c->renorm,
                               .gate_up = &wu,
                               .down = &wd}};
    const GpuOp op = {.kind = OP_MOE,
                      .op = &desc,
                      .in = {0, 1, c->addend ? 3 : -1},
                      .out = 2,
                      .norm = {c->norm ? &norm : NULL, c->norm ? 1e-6F : 0.0F}};
    cuda_emit_moe(&b, &op);
    if (b.failed)
        fail_msg("%s: %s", what, b.err.msg);
    if (b.launches != c->launches)
        fail_msg("%s: %d launches, wanted %d", what, b.launches, c->launches);

    double *want = take(&b, (int64_t)c->tokens * c->hidden * 8);
    double *mid = take(&b, (int64_t)c->ffn * 8);
    for (int t = 0; t < c->live; t++) {
        int ids[16];
        double shares[16];
        route(logits + (int64_t)t * c->experts, c->experts, c->top_k, c->renorm, ids, shares);
        const float *xt = x + (int64_t)t * ld;
        const double inv = c->norm ? inv_rms(xt, c->hidden, 1e-6F) : 1.0;
        double *out = want + (int64_t)t * c->hidden;
        for (int i = 0; i < c->hidden; i++)
            out[i] = c->addend ? (double)add[t * c->hidden + i] : 0.0;
        for (int j = 0; j < c->top_k; j++) {
            const int64_t e = ids[j];
            for (int i = 0; i < c->ffn; i++) {
                double v[2];
                for (int h = 0; h < 2; h++) {
                    const int64_t row = e * wu.n + i + h * c->ffn;
                    v[h] = dot(up + row * c->hidden, xt, c->norm ? norm.v : NULL, c->hidden) * inv +
                           (c->bias ? (double)b.bias[0][row] : 0.0);
                }
                mid[i] = silu(v[0]) * v[1];
            }
            for (int i = 0; i < c->hidden; i++) {
                const int64_t row = e * c->hidden + i;
                double sum = c->bias ? (double)b.bias[1][row] : 0.0;
                for (int q = 0; q < c->ffn; q++)
                    sum += mid[q] * (double)down[row * c->ffn + q];
                out[i] += shares[j] * sum;
            }
        }
    }
    const bool i8 = c->launches < 5;
    check(what, y, want, c->live, c->hidden, ld, i8 ? 2.5e-2 : 5e-6);
    arena_free(&a);
}

static void experts(void **state)
{
    (void)state;
    for (int f = 3; f < FORMS; f++) {
        const int step = forms[f].k_step;
        const int ffn = (int)i64_round_up(96, step);
        const int hidden = (int)i64_round_up(160, step);
        const MoeCase cases[] = {
            {f, f, hidden, ffn, 12, 3, 1, 1, .norm = true, .renorm = true, .addend = true,
             .parts = 1, .launches = 2},
            {f, f, hidden, ffn, 6, 2, 8, 7, .norm = true, .renorm = true, .parts = 1,
             .launches = 3},
            {f, f, hidden, ffn, 6, 2, 2, 2, .exact = true, .norm = true, .parts = 1, .launches = 5},
        };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            run_moe(&cases[i]);
    }
}

static void experts_shapes(void **state)
{
    (void)state;
    static const MoeCase cases[] = {
        {7, 7, 2048, 768, 9, 8, 1, 1, .norm = true, .renorm = true, .parts = 1, .launches = 2},
        {4, 12, 2304, 128, 33, 4, 5, 5, .bias = true, .addend = true, .parts = 1, .launches = 3},
        {4, 4, 64, 64, 40, 5, 1, 1, .ties = true, .bias = true, .parts = 1, .launches = 2},
        {4, 4, 64, 64, 40, 5, 3, 3, .ties = true, .nan = true, .renorm = true, .parts = 1,
         .launches = 3},
        {4, 4, 64, 64, 5, 5, 21, 19, .norm = true, .parts = 1, .launches = 5},
        {2, 0, 50, 31, 7, 2, 21, 20, .exact = true, .norm = true, .addend = true, .bias = true,
         .parts = 1, .launches = 5},
        {1, 1, 64, 48, 7, 2, 4, 4, .ties = true, .renorm = true, .parts = 1, .launches = 5},
        {7, 7, 64, 64, 7, 2, 3, 3, .exact = true, .bias = true, .parts = 2, .launches = 8},
        {7, 7, 12288, 64, 3, 2, 6, 6, .exact = true, .norm = true, .parts = 1, .launches = 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_moe(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lin_layouts),    cmocka_unit_test(lin_shapes),
        cmocka_unit_test(lin_rows_alone), cmocka_unit_test(lin_numbers_of_launches),
        cmocka_unit_test(experts),        cmocka_unit_test(experts_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
