/* Products with many rows (cuda_gemm.c and its kernels) in the emulator against plain double code:
 * the emitters run here with a CudaBuild that launches at once, device memory is host memory. */
#include "device/cuda/cuda_emit.h"
#include "emu/emu.h"

#include "base/num.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a CudaBuild that runs what it is given ---- */

enum { VALUES = 4, BLOCKS_MAX = 256, WEIGHTS = 2 };

struct CudaBuild {
    int rows, sms, arch, smem;
    bool exact, deterministic;
    struct {
        float *at;
        int ld, width;
    } values[VALUES];
    GpuWeight weights[WEIGHTS];
    uint8_t *memory[WEIGHTS];
    float *bias[WEIGHTS];
    int32_t step[GPU_STEP_HEAD + 4096];
    GpuStepLayout layout;
    void *blocks[BLOCKS_MAX];
    int n_blocks;
    uint32_t *counters;
    int n_counters, n_launches;
    char kernels[512]; /* names of what was launched */
    struct {
        int value, form;
        const Vec *norm;
        CudaPtr at;
    } packed[8];
    int n_packed;
};

static CudaPtr address(const void *p)
{
    return (CudaPtr)(uintptr_t)p;
}

static void *block(CudaBuild *b, size_t bytes)
{
    assert_true(b->n_blocks < BLOCKS_MAX);
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(p);
    memset(p, 0xff, (bytes + 255) / 256 * 256); /* NaN */
    b->blocks[b->n_blocks++] = p;
    return p;
}

void cuda_launch(CudaBuild *b, const CudaLaunch *l)
{
    b->n_launches++;
    const size_t at = strlen(b->kernels);
    (void)snprintf(b->kernels + at, sizeof b->kernels - at, "%s(%d,%d,%d) ", l->kernel, l->grid[0],
                   l->grid[1], l->grid[2]);
    if (emu_launch(l->kernel, l->grid, l->block, l->smem, l->cluster, l->params, l->params_bytes))
        fail_msg("%s", emu_error());
}
void cuda_build_fail(CudaBuild *b, ErrCode code, const char *fmt, ...)
{
    (void)b;
    (void)code;
    fail_msg("cuda_build_fail: %s", fmt);
}
int cuda_sms(const CudaBuild *b)
{
    return b->sms;
}
int cuda_arch(const CudaBuild *b)
{
    return b->arch;
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
int cuda_op_rows(const CudaBuild *b, const GpuOp *op)
{
    (void)op;
    return b->rows;
}
CudaPtr cuda_value(const CudaBuild *b, int value)
{
    return value < 0 ? 0 : address(b->values[value].at);
}
int cuda_value_ld(const CudaBuild *b, int value)
{
    return b->values[value].ld;
}
int cuda_value_width(const CudaBuild *b, int value)
{
    return b->values[value].width;
}
CudaPtr cuda_vec(const CudaBuild *b, const Vec *v)
{
    (void)b;
    return v ? address(v->v) : 0;
}
static int weight_index(const CudaBuild *b, const Weight *w)
{
    for (int i = 0; i < WEIGHTS; i++) {
        if (b->weights[i].weight == w)
            return i;
    }
    fail_msg("unknown weight");
    return 0;
}
CudaPtr cuda_bias(const CudaBuild *b, const Weight *w)
{
    return address(b->bias[weight_index(b, w)]);
}
const GpuWeight *cuda_weight(CudaBuild *b, const Weight *w)
{
    return &b->weights[weight_index(b, w)];
}
CudaPart cuda_weight_part(const CudaBuild *b, const GpuWeight *w, int part)
{
    const GpuPart *p = &w->parts[part];
    const uint8_t *m = b->memory[w - b->weights];
    return (CudaPart){
        .part = p, .codes = address(m + p->code_offset), .scales = address(m + p->scale_offset)};
}
CudaPtr cuda_step(const CudaBuild *b)
{
    return address(b->step);
}
const GpuStepLayout *cuda_step_layout(const CudaBuild *b)
{
    return &b->layout;
}
CudaPtr cuda_work(CudaBuild *b, int64_t bytes)
{
    return address(block(b, (size_t)bytes));
}
CudaPtr cuda_counters(CudaBuild *b, int n)
{
    assert_int_equal(b->n_counters, 0);
    b->counters = block(b, (size_t)n * 4);
    b->n_counters = n;
    memset(b->counters, 0, (size_t)n * 4);
    return address(b->counters);
}
CudaPtr cuda_packed(CudaBuild *b, int value, const Vec *norm, int form, int64_t bytes, bool *fresh)
{
    *fresh = false;
    for (int i = 0; i < b->n_packed; i++) {
        if (b->packed[i].value == value && b->packed[i].norm == norm && b->packed[i].form == form)
            return b->packed[i].at;
    }
    *fresh = true;
    b->packed[b->n_packed].value = value;
    b->packed[b->n_packed].norm = norm;
    b->packed[b->n_packed].form = form;
    return b->packed[b->n_packed++].at = cuda_work(b, bytes);
}

static CudaBuild *build_new(int rows)
{
    CudaBuild *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->rows = rows;
    b->sms = 132;
    b->arch = 90;
    b->smem = 232448;
    b->layout.out_rows = GPU_STEP_HEAD;
    b->step[GPU_STEP_N_ROWS] = rows;
    b->step[GPU_STEP_N_OUT] = rows;
    return b;
}
static void build_free(CudaBuild *b)
{
    for (int i = 0; i < b->n_counters; i++)
        assert_int_equal(b->counters[i], 0);
    for (int i = 0; i < b->n_blocks; i++)
        free(b->blocks[i]);
    free(b);
}

/* ---- data ---- */

static uint64_t seed;

static float uniform(void) /* (-1, 1) */
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (float)(int32_t)(seed >> 32) * 0x1p-31F;
}

static float *floats(CudaBuild *b, int64_t n, float scale)
{
    float *x = block(b, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        x[i] = uniform() * scale;
    return x;
}

static void set_value(CudaBuild *b, int i, int rows, int width, int ld)
{
    b->values[i].at = floats(b, (int64_t)rows * ld, 1.0F);
    b->values[i].ld = ld;
    b->values[i].width = width;
}

typedef struct Layout {
    const char *name;
    GpuLayout layout;
    GpuScale scale;
    int group;
    int k_step;
    bool bf16;
} Layout;

static const Layout layouts[] = {
    {"s4", GPU_S4, GPU_SCALE_F16, 32, 32, false},
    {"a4 f16", GPU_A4, GPU_SCALE_F16_PAIR, 32, 32, false},
    {"a4 bf16", GPU_A4, GPU_SCALE_BF16_PAIR, 64, 64, false},
    {"a4 f32", GPU_A4, GPU_SCALE_F32_PAIR, 32, 32, false},
    {"e4", GPU_E4, GPU_SCALE_E8M0, 32, 32, true},
    {"a8 f16", GPU_A8, GPU_SCALE_F16_PAIR, 64, 64, false},
    {"a8 bf16", GPU_A8, GPU_SCALE_BF16_PAIR, 128, 128, false},
    {"s8", GPU_S8, GPU_SCALE_F16, 32, 32, false},
    {"k6", GPU_K6, GPU_SCALE_K6, 16, 256, false},
    {"f16", GPU_F16, GPU_SCALE_NONE, 0, 16, false},
    {"bf16", GPU_BF16, GPU_SCALE_NONE, 0, 16, true},
};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

static int64_t code_bytes(GpuLayout l, int k)
{
    return l == GPU_F16 || l == GPU_BF16 ? 2 * k
           : l == GPU_A8 || l == GPU_S8  ? k
           : l == GPU_K6                 ? k / 4 * 3
                                         : k / 2;
}

static int64_t scale_bytes(GpuScale s, int k, int group)
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
        return k / 256 * 20;
    }
    return 0;
}

static void put_u16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static uint32_t bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (u + 0x8000U) >> 16;
}

static void fill_codes(const Layout *l, int k, uint8_t *row)
{
    if (l->layout == GPU_F16 || l->layout == GPU_BF16) {
        for (int i = 0; i < k; i++)
            put_u16(row + 2 * i, l->layout == GPU_F16 ? num_to_f16(uniform()) : bf16(uniform()));
        return;
    }
    for (int64_t i = 0; i < code_bytes(l->layout, k); i++) {
        (void)uniform();
        row[i] = (uint8_t)(seed >> 40);
    }
}

static void fill_scales(const Layout *l, int k, uint8_t *row)
{
    for (int g = 0; l->group && l->scale != GPU_SCALE_K6 && g < k / l->group; g++) {
        const float s = uniform() * 0.1F;
        const float b = uniform();
        if (l->scale == GPU_SCALE_F16) {
            put_u16(row + 2 * g, num_to_f16(s));
        } else if (l->scale == GPU_SCALE_E8M0) {
            row[g] = (uint8_t)(124 + (int)(s * 40.0F));
        } else if (l->scale == GPU_SCALE_F32_PAIR) {
            memcpy(row + 8 * g, &s, 4);
            memcpy(row + 8 * g + 4, &b, 4);
        } else {
            const bool f16 = l->scale == GPU_SCALE_F16_PAIR;
            put_u16(row + 4 * g, f16 ? num_to_f16(s) : bf16(s));
            put_u16(row + 4 * g + 2, f16 ? num_to_f16(b) : bf16(b));
        }
    }
    for (int g = 0; l->scale == GPU_SCALE_K6 && g < k / 256; g++) {
        for (int i = 0; i < 16; i++)
            row[g * 20 + i] = (uint8_t)(int8_t)(uniform() * 100.0F);
        put_u16(row + g * 20 + 16, num_to_f16(uniform() * 1e-3F));
    }
}

/* Weight i of the build: parts of `rows[p]` rows in layout `l[p]`. */
static void set_weight(CudaBuild *b, int i, Weight *w, int k, int n_experts, int n_parts,
                       const Layout *const *l, const int *rows)
{
    GpuPart *parts = block(b, (size_t)n_parts * sizeof *parts);
    int64_t bytes = 0;
    const int experts = n_experts > 0 ? n_experts : 1;
    int64_t row0 = 0;
    for (int p = 0; p < n_parts; p++) {
        parts[p] = (GpuPart){.layout = l[p]->layout,
                             .scale = l[p]->scale,
                             .group = l[p]->group,
                             .row0 = row0,
                             .rows = rows[p]};
        parts[p].code_stride = i64_round_up(code_bytes(l[p]->layout, k), 16);
        parts[p].scale_stride = i64_round_up(scale_bytes(l[p]->scale, k, l[p]->group), 16);
        parts[p].code_bytes = parts[p].code_stride * rows[p];
        parts[p].scale_bytes = parts[p].scale_stride * rows[p];
        parts[p].code_offset = bytes;
        parts[p].scale_offset = bytes + i64_round_up(parts[p].code_bytes * experts, 256);
        bytes = parts[p].scale_offset + i64_round_up(parts[p].scale_bytes * experts, 256);
        row0 += rows[p];
    }
    b->memory[i] = block(b, (size_t)bytes);
    memset(b->memory[i], 0, (size_t)bytes);
    for (int p = 0; p < n_parts; p++) {
        for (int64_t r = 0; r < rows[p] * (int64_t)experts; r++) {
            fill_codes(l[p], k, b->memory[i] + parts[p].code_offset + r * parts[p].code_stride);
            fill_scales(l[p], k, b->memory[i] + parts[p].scale_offset + r * parts[p].scale_stride);
        }
    }
    *w = (Weight){.name = "w", .n = row0, .k = k, .n_experts = n_experts};
    b->weights[i] = (GpuWeight){.weight = w,
                                .n_experts = experts,
                                .k = k,
                                .n_parts = n_parts,
                                .parts = parts,
                                .bytes = bytes};
}

/* out[k]: row r of expert e. */
static void weight_row(const CudaBuild *b, int i, int e, int64_t r, float *out)
{
    const GpuWeight *w = &b->weights[i];
    for (int p = 0; p < w->n_parts; p++) {
        const GpuPart *part = &w->parts[p];
        if (r < part->row0 || r >= part->row0 + part->rows)
            continue;
        const int64_t at = e * part->rows + r - part->row0;
        gpu_weight_unpack_row(part, w->k, b->memory[i] + part->code_offset + at * part->code_stride,
                              b->memory[i] + part->scale_offset + at * part->scale_stride, out);
    }
}

/* y[rows][n] = x[rows][k] of weight i, expert e, plus bias. */
static void multiply(const CudaBuild *b, int i, int e, const double *x, int rows, double *y)
{
    const int k = b->weights[i].k;
    const int64_t n = b->weights[i].weight->n;
    float *w = malloc((size_t)k * sizeof *w);
    for (int64_t c = 0; c < n; c++) {
        weight_row(b, i, e, c, w);
        for (int r = 0; r < rows; r++) {
            double sum = b->bias[i] ? (double)b->bias[i][e * n + c] : 0.0;
            for (int j = 0; j < k; j++)
                sum += x[(int64_t)r * k + j] * (double)w[j];
            y[r * n + c] = sum;
        }
    }
    free(w);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static void norm_row(const float *x, const GpuNorm *norm, int k, double *out)
{
    double sum = 0.0;
    for (int i = 0; i < k; i++)
        sum += (double)x[i] * (double)x[i];
    const double s = norm->eps > 0.0F ? 1.0 / sqrt(sum / k + (double)norm->eps) : 1.0;
    for (int i = 0; i < k; i++)
        out[i] = (double)x[i] * s * (norm->vec ? (double)norm->vec->v[i] : 1.0);
}

/* Errors are held against the size of a whole row: bound * rms on average, six times that at most.
 */
static void check(const char *what, const CudaBuild *b, const double *want, int64_t ld_want,
                  const float *y, int ldy, int rows, int n, double bound)
{
    for (int r = 0; r < rows; r++) {
        double size = 0.0;
        double off = 0.0;
        for (int c = 0; c < n; c++) {
            const double w = want[r * ld_want + c];
            const double d = (double)y[(int64_t)r * ldy + c] - w;
            size += w * w;
            off += d * d;
        }
        const double rms = sqrt(size / n);
        for (int c = 0; c < n; c++) {
            const double w = want[r * ld_want + c];
            const double d = fabs((double)y[(int64_t)r * ldy + c] - w);
            if (!(d <= 6.0 * bound * (rms + fabs(w))))
                fail_msg("%s: row %d, column %d: %g, wanted %g (rms %g) [%s]", what, r, c,
                         (double)y[(int64_t)r * ldy + c], w, rms, b->kernels);
        }
        if (!(sqrt(off / n) <= bound * rms))
            fail_msg("%s: row %d: error %g of %g [%s]", what, r, sqrt(off / n) / rms, rms,
                     b->kernels);
    }
}

/* ---- LIN ---- */

typedef struct Case {
    int rows, wanted; /* of the bucket, of the step */
    int k, n;         /* n: of y */
    int ld_extra;     /* of x and y: their rows are not aligned */
    bool norm, norm_vec, bias, add, silu, gather;
    int n_parts;
    const Layout *l[3];
    int sms;
} Case;

static void run_case(const Case *c, uint64_t with)
{
    seed = with;
    char what[160];
    (void)snprintf(what, sizeof what, "seed %llu, %s%s%s, rows %d of %d, k %d, n %d, parts %d",
                   (unsigned long long)with, c->l[0]->name, c->silu ? ", silu" : "",
                   c->gather ? ", gather" : "", c->wanted, c->rows, c->k, c->n, c->n_parts);
    CudaBuild *b = build_new(c->rows);
    b->sms = c->sms;
    Weight w;
    const int all = c->silu ? 2 * c->n : c->n;
    const int n_parts = c->n_parts;
    const int rows[3] = {n_parts == 1   ? all
                         : n_parts == 2 ? all / 2
                                        : all / 3,
                         n_parts == 2 ? all - all / 2 : all / 3, all - all / 3 * 2};
    set_weight(b, 0, &w, c->k, 0, n_parts, c->l, rows);
    if (c->bias)
        b->bias[0] = floats(b, all, 2.0F);
    const int in_rows = c->gather ? c->rows + 3 : c->rows;
    set_value(b, 0, in_rows, c->k, c->k + c->ld_extra);
    set_value(b, 1, c->rows, c->n, c->n + c->ld_extra);
    set_value(b, 2, c->rows, c->n, c->n + c->ld_extra);
    b->step[c->gather ? GPU_STEP_N_OUT : GPU_STEP_N_ROWS] = c->wanted;
    for (int i = 0; i < c->rows; i++)
        b->step[GPU_STEP_HEAD + i] = i < c->wanted ? (i * 7 + 2) % in_rows : 0;
    Vec vec = {.n = c->k, .v = floats(b, c->k, 3.0F)};
    const GpuOp op = {.kind = OP_LIN,
                      .in = {0, c->add ? 2 : -1, -1},
                      .out = 1,
                      .axis = c->gather ? AXIS_OUT_ROWS : AXIS_ROWS,
                      .norm = {c->norm_vec ? &vec : NULL, c->norm ? 1e-5F : 0.0F},
                      .gather = c->gather,
                      .silu = c->silu,
                      .weight = &w};
    const float *y = b->values[1].at;
    const float untouched = y[(int64_t)(c->rows - 1) * b->values[1].ld];
    cuda_emit_gemm(b, &op);

    double *x = malloc((size_t)c->wanted * (size_t)c->k * sizeof *x);
    double *want = malloc((size_t)c->wanted * (size_t)all * sizeof *want);
    for (int r = 0; r < c->wanted; r++) {
        const int from = c->gather ? b->step[GPU_STEP_HEAD + r] : r;
        norm_row(b->values[0].at + (int64_t)from * b->values[0].ld, &op.norm, c->k,
                 x + (int64_t)r * c->k);
    }
    multiply(b, 0, 0, x, c->wanted, want);
    for (int r = 0; r < c->wanted; r++) {
        for (int i = 0; i < c->n; i++) {
            double *v = &want[(int64_t)r * all + i];
            if (c->silu)
                *v = silu(*v) * want[(int64_t)r * all + c->n + i];
            if (c->add)
                *v += (double)b->values[2].at[(int64_t)r * b->values[2].ld + i];
        }
    }
    bool bf = false;
    for (int i = 0; i < n_parts; i++)
        bf |= c->l[i]->bf16;
    check(what, b, want, all, y, b->values[1].ld, c->wanted, c->n,
          (bf ? 4e-3 : 1e-3) * (c->silu ? 2.0 : 1.0));
    if (c->wanted < c->rows && y[(int64_t)(c->rows - 1) * b->values[1].ld] != untouched)
        fail_msg("%s: a row that nobody wants was written", what);
    free(x);
    free(want);
    build_free(b);
}

/* Every layout in every shape: k with a rest of a chunk, n with a rest of a tile. */
static void lin_layouts(void **state)
{
    (void)state;
    static const int rows[] = {1, 5, 17, 33, 130};
    for (int l = 0; l < N_LAYOUTS; l++) {
        for (int r = 0; r < 5; r++) {
            const int step = layouts[l].k_step;
            run_case(&(Case){.rows = rows[r],
                             .wanted = rows[r],
                             .k = step * (256 / step) + (step < 256 ? step * (1 + r % 2) : 0),
                             .n = 70 + 3 * r,
                             .ld_extra = r % 3,
                             .norm = r % 2 == 0,
                             .norm_vec = r % 2 == 0,
                             .n_parts = 1,
                             .l = {&layouts[l]},
                             .sms = 1},
                     (uint64_t)(l * 10 + r + 1));
        }
    }
}

/* Long k in few tiles: splits, with what comes after the sum. */
static void lin_splits(void **state)
{
    (void)state;
    static const int rows[] = {8, 32, 64, 128};
    for (int r = 0; r < 4; r++) {
        run_case(&(Case){.rows = rows[r],
                         .wanted = rows[r] - r,
                         .k = 4096 + 32,
                         .n = 66,
                         .bias = true,
                         .add = true,
                         .n_parts = 1,
                         .l = {&layouts[0]},
                         .sms = 132},
                 (uint64_t)(100 + r));
    }
}

static void lin_silu(void **state)
{
    (void)state;
    static const int rows[] = {12, 20, 40, 100};
    for (int l = 0; l < N_LAYOUTS; l += 2) {
        for (int r = 0; r < 4; r++) {
            run_case(&(Case){.rows = rows[r],
                             .wanted = rows[r],
                             .k = 256,
                             .n = 45 + 16 * r,
                             .norm = true,
                             .bias = r % 2,
                             .silu = true,
                             .n_parts = 1 + r % 3, /* halves in one part, in two, cut elsewhere */
                             .l = {&layouts[l], &layouts[l], &layouts[l]},
                             .sms = r % 2 ? 132 : 1},
                     (uint64_t)(200 + l * 10 + r));
        }
    }
}

static void lin_parts_and_gather(void **state)
{
    (void)state;
    for (int r = 0; r < 3; r++) {
        run_case(&(Case){.rows = 24,
                         .wanted = 19 - r,
                         .k = 512,
                         .n = 96 + r,
                         .norm = true,
                         .norm_vec = r != 1,
                         .bias = r == 2,
                         .add = r == 0,
                         .gather = r != 2,
                         .n_parts = 3,
                         .l = {&layouts[r], &layouts[4], &layouts[8]},
                         .sms = 132},
                 (uint64_t)(300 + r));
    }
    run_case(&(Case){.rows = 9,
                     .wanted = 9,
                     .k = 256,
                     .n = 64,
                     .silu = true,
                     .n_parts = 2,
                     .l = {&layouts[0], &layouts[4]},
                     .sms = 1},
             310);
}

/* Numbers that f16 has not: rows of very large and very small activations side by side, one of
 * zeros. */
static void lin_range(void **state)
{
    (void)state;
    seed = 400;
    enum { ROWS = 6, K = 256, N = 40 };
    CudaBuild *b = build_new(ROWS);
    Weight w;
    set_weight(b, 0, &w, K, 0, 1, (const Layout *const[]){&layouts[0]}, (const int[]){N});
    set_value(b, 0, ROWS, K, K);
    set_value(b, 1, ROWS, N, N);
    static const float scale[ROWS] = {1e30F, 1e-30F, 0.0F, 1e6F, 1.0F, 3e-6F};
    for (int i = 0; i < ROWS * K; i++)
        b->values[0].at[i] *= scale[i / K];
    const GpuOp op = {.kind = OP_LIN, .in = {0, -1, -1}, .out = 1, .weight = &w};
    cuda_emit_gemm(b, &op);
    double x[ROWS * K];
    double want[ROWS * N];
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (double)b->values[0].at[i];
    multiply(b, 0, 0, x, ROWS, want);
    check("range", b, want, N, b->values[1].at, N, ROWS, N, 1e-3);
    for (int i = 0; i < N; i++)
        assert_true(b->values[1].at[2 * N + i] == 0.0F);
    build_free(b);
}

/* ---- MOE ---- */

typedef struct MoeCase {
    int rows, wanted, experts, top_k, hidden, ffn;
    bool renorm, add, bias, same_logits;
    int n_parts; /* of gate_up */
    const Layout *up, *down;
} MoeCase;

static void moe_reference(const CudaBuild *b, const MoeCase *c, const double *x,
                          const float *logits, int ld, double *out)
{
    const int e = c->experts;
    bool *taken = malloc((size_t)e * sizeof *taken);
    double *up = malloc((size_t)c->ffn * 2 * sizeof *up);
    double *down = malloc((size_t)c->hidden * sizeof *down);
    for (int r = 0; r < c->wanted; r++) {
        const float *l = logits + (int64_t)r * ld;
        double all = 0.0;
        double best = 0.0;
        int ids[16];
        memset(taken, 0, (size_t)e * sizeof *taken);
        for (int i = 0; i < e; i++)
            all += exp((double)l[i]);
        for (int j = 0; j < c->top_k; j++) {
            int top = -1;
            for (int i = 0; i < e; i++) {
                if (!taken[i] && (top < 0 || l[i] > l[top]))
                    top = i;
            }
            taken[ids[j] = top] = true;
            best += exp((double)l[top]);
        }
        double *y = out + (int64_t)r * c->hidden;
        for (int i = 0; i < c->hidden; i++)
            y[i] = c->add ? (double)b->values[3].at[(int64_t)r * b->values[3].ld + i] : 0.0;
        for (int j = 0; j < c->top_k; j++) {
            multiply(b, 0, ids[j], x + (int64_t)r * c->hidden, 1, up);
            for (int i = 0; i < c->ffn; i++)
                up[i] = silu(up[i]) * up[c->ffn + i];
            multiply(b, 1, ids[j], up, 1, down);
            for (int i = 0; i < c->hidden; i++)
                y[i] += down[i] * exp((double)l[ids[j]]) / (c->renorm ? best : all);
        }
    }
    free(taken);
    free(up);
    free(down);
}

static void run_moe(const MoeCase *c, uint64_t with)
{
    seed = with;
    char what[160];
    (void)snprintf(what, sizeof what,
                   "seed %llu, moe %s, %s, rows %d of %d, %d of %d experts, %d x %d",
                   (unsigned long long)with, c->up->name, c->down->name, c->wanted, c->rows,
                   c->top_k, c->experts, c->hidden, c->ffn);
    CudaBuild *b = build_new(c->rows);
    Weight up;
    Weight down;
    const int n = 2 * c->ffn;
    set_weight(b, 0, &up, c->hidden, c->experts, c->n_parts,
               (const Layout *const[]){c->up, c->up, c->down},
               c->n_parts == 1   ? (const int[]){n}
               : c->n_parts == 2 ? (const int[]){n / 2, n / 2}
                                 : (const int[]){n / 4, n / 4, n - n / 4 * 2});
    set_weight(b, 1, &down, c->ffn, c->experts, 1, &c->down, &c->hidden);
    if (c->bias) {
        b->bias[0] = floats(b, (int64_t)n * c->experts, 1.0F);
        b->bias[1] = floats(b, (int64_t)c->hidden * c->experts, 1.0F);
    }
    set_value(b, 0, c->rows, c->hidden, c->hidden);
    set_value(b, 1, c->rows, c->hidden, c->hidden + 4);
    set_value(b, 2, c->rows, c->experts, c->experts + 1);
    set_value(b, 3, c->rows, c->hidden, c->hidden + 1);
    for (int i = 0; c->same_logits && i < c->rows * (c->experts + 1); i++)
        b->values[2].at[i] = 0.5F;
    b->step[GPU_STEP_N_ROWS] = c->wanted;
    Vec vec = {.n = c->hidden, .v = floats(b, c->hidden, 1.0F)};
    Op desc = {.kind = OP_MOE,
               .u.moe = {.n_experts = c->experts,
                         .top_k = c->top_k,
                         .ffn = c->ffn,
                         .renorm = c->renorm,
                         .gate_up = &up,
                         .down = &down}};
    const GpuOp op = {.kind = OP_MOE,
                      .op = &desc,
                      .in = {0, 2, c->add ? 3 : -1},
                      .out = 1,
                      .axis = AXIS_ROWS,
                      .norm = {&vec, 1e-6F}};
    assert_int_equal(cuda_gemm_can(b, &op), c->rows > 8);
    double *x = malloc((size_t)c->wanted * (size_t)c->hidden * sizeof *x);
    double *want = malloc((size_t)c->wanted * (size_t)c->hidden * sizeof *want);
    for (int r = 0; r < c->wanted; r++)
        norm_row(b->values[0].at + (int64_t)r * b->values[0].ld, &op.norm, c->hidden,
                 x + (int64_t)r * c->hidden);
    moe_reference(b, c, x, b->values[2].at, b->values[2].ld, want);
    cuda_emit_moe_gemm(b, &op);
    check(what, b, want, c->hidden, b->values[1].at, b->values[1].ld, c->wanted, c->hidden,
          c->up->bf16 || c->down->bf16 ? 8e-3 : 2e-3);
    free(x);
    free(want);
    build_free(b);
}

static void moe(void **state)
{
    (void)state;
    const Layout *s4 = &layouts[0];
    run_moe(&(MoeCase){.rows = 9,
                       .wanted = 9,
                       .experts = 6,
                       .top_k = 2,
                       .hidden = 96,
                       .ffn = 64,
                       .renorm = true,
                       .n_parts = 1,
                       .up = s4,
                       .down = s4},
            500);
    run_moe(&(MoeCase){.rows = 16,
                       .wanted = 11,
                       .experts = 40,
                       .top_k = 3,
                       .hidden = 160,
                       .ffn = 96,
                       .add = true,
                       .n_parts = 2,
                       .up = &layouts[2 - 1],
                       .down = &layouts[4]},
            501);
    run_moe(&(MoeCase){.rows = 64,
                       .wanted = 61,
                       .experts = 4,
                       .top_k = 2,
                       .hidden = 128,
                       .ffn = 64,
                       .renorm = true,
                       .add = true,
                       .bias = true,
                       .n_parts = 1,
                       .up = &layouts[7],
                       .down = s4},
            502);
    run_moe(&(MoeCase){.rows = 128,
                       .wanted = 128,
                       .experts = 3,
                       .top_k = 3,
                       .hidden = 64,
                       .ffn = 32,
                       .n_parts = 3,
                       .up = &layouts[4],
                       .down = s4},
            503);
    run_moe(&(MoeCase){.rows = 70,
                       .wanted = 70,
                       .experts = 512,
                       .top_k = 16,
                       .hidden = 32,
                       .ffn = 32,
                       .renorm = true,
                       .n_parts = 1,
                       .up = s4,
                       .down = &layouts[9]},
            504);
    /* all equal: the first experts take every row */
    run_moe(&(MoeCase){.rows = 40,
                       .wanted = 37,
                       .experts = 33,
                       .top_k = 2,
                       .hidden = 64,
                       .ffn = 64,
                       .renorm = true,
                       .same_logits = true,
                       .n_parts = 1,
                       .up = s4,
                       .down = s4},
            505);
}

/* Every layout in the tiles of experts with a middle number of rows. */
static void moe_layouts(void **state)
{
    (void)state;
    for (int l = 0; l < N_LAYOUTS; l++)
        run_moe(&(MoeCase){.rows = 20,
                           .wanted = 20,
                           .experts = 3,
                           .top_k = 2,
                           .hidden = 256,
                           .ffn = 256 / layouts[l].k_step * layouts[l].k_step,
                           .add = l % 2,
                           .n_parts = 1,
                           .up = &layouts[l],
                           .down = &layouts[l]},
                (uint64_t)(520 + l));
}

/* ---- what is refused ---- */

static void can(void **state)
{
    (void)state;
    seed = 600;
    CudaBuild *b = build_new(16);
    Weight w;
    set_weight(b, 0, &w, 256, 0, 1, (const Layout *const[]){&layouts[0]}, (const int[]){32});
    const GpuOp op = {.kind = OP_LIN, .in = {0, -1, -1}, .out = 1, .weight = &w};
    assert_true(cuda_gemm_can(b, &op));
    b->rows = 4;
    assert_false(cuda_gemm_can(b, &op));
    b->rows = 5;
    assert_true(cuda_gemm_can(b, &op));
    b->exact = true;
    assert_false(cuda_gemm_can(b, &op));
    b->exact = false;
    b->deterministic = true;
    assert_false(cuda_gemm_can(b, &op));
    b->deterministic = false;
    b->arch = 75;
    assert_false(cuda_gemm_can(b, &op));
    b->arch = 80;
    w.precise = true;
    assert_false(cuda_gemm_can(b, &op));
    w.precise = false;
    b->weights[0].k = 272;
    assert_false(cuda_gemm_can(b, &op));
    build_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lin_layouts), cmocka_unit_test(lin_splits),
        cmocka_unit_test(lin_silu),    cmocka_unit_test(lin_parts_and_gather),
        cmocka_unit_test(lin_range),   cmocka_unit_test(moe),
        cmocka_unit_test(moe_layouts), cmocka_unit_test(can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
