/* cuda_lin.c: which kernels multiply.
 *
 * int8 kernels (lin_gemv.h, fast class): up to 8 rows of activations a CTA, more in passes (grid
 * y). f32 kernels (lin_general.h): everything else. Both give a row the same bits for any number of
 * rows, so the deterministic class uses them for every number; matrix instructions (cuda_gemm.c) do
 * not.
 *
 * cuda_emit_op asks
 * cuda_gemm_can first. */
#include "device/cuda/cuda_lin.h"

#include "base/num.h"
#include "device/cuda/cuda_emit.h"

#include <stdio.h>

enum {
    SSQ_BYTES = LIN_WARPS * 4, /* sums of squares of a row */
    TILE = 4096,               /* tiles of k are multiples of this: stages of every layout */
    /* More numbers than this are packed once by a kernel of their own: every CTA would read them
     * all (16 k x 8 rows in 132 CTAs: 60 MB). */
    PACK_ONCE = 65536,
    SMALL_BYTES = 8000000, /* of codes: half a multiprocessor a CTA serves them better */
    FORM_BASE = 64         /* cuda_packed's forms of this file */
};

#define SHAPES(name)                                                                               \
    {                                                                                              \
        {"lin_" #name "_r1_full", "lin_" #name "_r2_full", "lin_" #name "_r4_full",                \
         "lin_" #name "_r8_full"},                                                                 \
            {"lin_" #name "_r1_wide", "lin_" #name "_r2_wide", "lin_" #name "_r4_wide", NULL},     \
            {"lin_" #name "_r1_half", NULL, NULL, NULL},                                           \
    }
typedef enum Shape { SHAPE_FULL, SHAPE_WIDE, SHAPE_HALF, SHAPE_COUNT } Shape;

static const struct {
    int kind;
    const char *kernels[SHAPE_COUNT][4];
} i8_layouts[LIN_I8_COUNT] = {
    [LIN_I8_S4] = {LIN_X_S4, SHAPES(s4)},
    [LIN_I8_A4F16] = {LIN_X_A4, SHAPES(a4f16)},
    [LIN_I8_A4BF16] = {LIN_X_A4, SHAPES(a4bf16)},
    [LIN_I8_A4F32] = {LIN_X_A4, SHAPES(a4f32)},
    [LIN_I8_E4] = {LIN_X_BYTES, SHAPES(e4)},
    [LIN_I8_A8F16] = {LIN_X_BYTES, SHAPES(a8f16)},
    [LIN_I8_A8BF16] = {LIN_X_BYTES, SHAPES(a8bf16)},
    [LIN_I8_A8F32] = {LIN_X_BYTES, SHAPES(a8f32)},
    [LIN_I8_S8] = {LIN_X_BYTES, SHAPES(s8)},
    [LIN_I8_K6] = {LIN_X_K6, SHAPES(k6)},
};

/* By rows (1, 2, 4, 8), and for one row that a warp takes alone. */
typedef struct F32Kernels {
    const char *full[4];
    const char *thin;
} F32Kernels;
#define F32_KERNELS(name)                                                                          \
    {                                                                                              \
        {"lin_f32_" #name "_r1_full", "lin_f32_" #name "_r2_full", "lin_f32_" #name "_r4_full",    \
         "lin_f32_" #name "_r8_full"},                                                             \
            "lin_f32_" #name "_r1_thin"                                                            \
    }
static const F32Kernels f32_kernels[GPU_LAYOUT_COUNT] = {
    [GPU_F32] = F32_KERNELS(f32), [GPU_F16] = F32_KERNELS(f16), [GPU_BF16] = F32_KERNELS(bf16),
    [GPU_A4] = F32_KERNELS(a4),   [GPU_S4] = F32_KERNELS(s4),   [GPU_E4] = F32_KERNELS(e4),
    [GPU_A8] = F32_KERNELS(a8),   [GPU_S8] = F32_KERNELS(s8),   [GPU_K6] = F32_KERNELS(k6),
};

static const char *const pack_kernels[LIN_X_KINDS] = {
    [LIN_X_S4] = "lin_pack_s4",
    [LIN_X_A4] = "lin_pack_a4",
    [LIN_X_BYTES] = "lin_pack_bytes",
    [LIN_X_K6] = "lin_pack_k6",
};

/* ---- facts ---- */

static int with_pair(GpuScale s, int f16)
{
    switch (s) {
    case GPU_SCALE_F16_PAIR:
        return f16;
    case GPU_SCALE_BF16_PAIR:
        return f16 + 1;
    case GPU_SCALE_F32_PAIR:
        return f16 + 2;
    case GPU_SCALE_NONE:
    case GPU_SCALE_F16:
    case GPU_SCALE_E8M0:
    case GPU_SCALE_K6:
        break;
    }
    return -1;
}

int cuda_lin_i8(const GpuPart *p)
{
    switch (p->layout) {
    case GPU_S4:
        return LIN_I8_S4;
    case GPU_A4:
        return with_pair(p->scale, LIN_I8_A4F16);
    case GPU_E4:
        return LIN_I8_E4;
    case GPU_A8:
        return with_pair(p->scale, LIN_I8_A8F16);
    case GPU_S8:
        return LIN_I8_S8;
    case GPU_K6:
        return LIN_I8_K6;
    case GPU_F32:
    case GPU_F16:
    case GPU_BF16:
    case GPU_LAYOUT_COUNT:
        break;
    }
    return -1;
}

int cuda_lin_i8_kind(int i8)
{
    return i8_layouts[i8].kind;
}

int cuda_lin_unit(GpuLayout l)
{
    switch (l) {
    case GPU_F32:
        return 4;
    case GPU_F16:
    case GPU_BF16:
        return 8;
    case GPU_A8:
    case GPU_S8:
        return 16;
    case GPU_A4:
    case GPU_S4:
    case GPU_E4:
    case GPU_K6:
    case GPU_LAYOUT_COUNT:
        break;
    }
    return 32;
}

int64_t cuda_lin_x_bytes(int k)
{
    return LIN_X_BYTES_OF((int64_t)LIN_X_CHUNKS(k));
}

int64_t cuda_lin_f32_bytes(GpuLayout l, int tile) /* lin_f32_row of lin_x.h */
{
    const int unit = cuda_lin_unit(l);
    return (i64_round_up(tile, 32 * unit) / unit + 1) * unit * 4;
}

int cuda_lin_tile(const CudaBuild *b, GpuLayout l, int k, int rows)
{
    const int64_t room = cuda_smem_max(b) / rows - SSQ_BYTES;
    if (cuda_lin_f32_bytes(l, k) <= room)
        return k;
    int tile = 0;
    while (cuda_lin_f32_bytes(l, tile + TILE) <= room)
        tile += TILE;
    return tile;
}

static int log2_of(int v)
{
    int n = 0;
    while (v >>= 1)
        n++;
    return n;
}

bool cuda_lin_weight(CudaBuild *b, const GpuWeight *w, const CudaPart *part, LinWeight *out)
{
    const GpuPart *p = part->part;
    const int64_t codes = p->code_bytes * w->n_experts;
    const int64_t scales = p->scale_bytes * w->n_experts;
    if (codes / 16 > UINT32_MAX || scales > UINT32_MAX) {
        cuda_build_fail(b, ERR_UNSUPPORTED,
                        "%s: a part of %lld bytes of codes and %lld of scales, kernels address 64 "
                        "and 4 GiB",
                        w->weight->name, (long long)codes, (long long)scales);
        return false;
    }
    *out = (LinWeight){.codes = part->codes,
                       .scales = part->scales,
                       .code_stride16 = (uint32_t)(p->code_stride / 16),
                       .scale_stride = (uint32_t)p->scale_stride,
                       .expert16 = (uint32_t)(p->code_bytes / 16),
                       .expert_scale = (uint32_t)p->scale_bytes,
                       .k = w->k,
                       .group_shift = p->group >= 32 ? log2_of(p->group / 32) : 0,
                       .scale_kind = (int32_t)p->scale};
    return true;
}

LinInput cuda_lin_input(const CudaBuild *b, const GpuOp *op, int rows)
{
    const GpuValue *v = &cuda_plan(b)->values[op->in[0]];
    const CudaPtr out_rows =
        cuda_step(b) + (CudaPtr)cuda_step_layout(b)->out_rows * sizeof(int32_t);
    const int ld = cuda_value_ld(b, op->in[0]);
    return (LinInput){.x = cuda_value(b, op->in[0]),
                      .norm = op->norm.eps > 0 ? cuda_vec(b, op->norm.vec) : 0,
                      .gather = op->gather ? out_rows : 0,
                      .ld = ld,
                      .rows = rows,
                      .eps = op->norm.eps,
                      .aligned = v->offset % 16 == 0 && ld % 4 == 0};
}

/* ---- launches ---- */

/* Products of one weight into columns of one matrix. */
typedef struct Product {
    const GpuOp *op;
    const GpuWeight *w;
    LinInput in;
    CudaPtr bias, addend, y;
    int ld_addend, ld_y;
    bool silu;
    bool fast;
} Product;

static int rows_log2(int rows)
{
    return rows > 4 ? 3 : rows > 2 ? 2 : rows > 1 ? 1 : 0;
}

static LinParams params_of(const Product *p, const LinWeight *w, const GpuPart *part)
{
    const CudaPtr cols = (CudaPtr)part->row0 * sizeof(float);
    return (LinParams){.w = *w,
                       .in = p->in,
                       .bias = p->bias ? p->bias + cols : 0,
                       .addend = p->addend ? p->addend + cols : 0,
                       .y = p->y + cols,
                       .ld_addend = p->ld_addend,
                       .ld_y = p->ld_y,
                       .n = (int32_t)(p->silu ? part->rows / 2 : part->rows),
                       .half = (int32_t)(p->silu ? part->rows / 2 : 0)};
}

static void launch(CudaBuild *b, const char *kernel, int grid, int rows_a_cta, int64_t smem,
                   const LinParams *params)
{
    const int passes = (params->in.rows + rows_a_cta - 1) / rows_a_cta;
    cuda_launch(b, &(CudaLaunch){.kernel = kernel,
                                 .grid = {grid, passes},
                                 .block = LIN_THREADS,
                                 .smem = (int)smem,
                                 .programmatic = true,
                                 .params = params,
                                 .params_bytes = sizeof *params});
}

static void emit_f32(CudaBuild *b, const Product *p, const CudaPart *part)
{
    LinWeight w = {0};
    if (!cuda_lin_weight(b, p->w, part, &w))
        return;
    LinParams params = params_of(p, &w, part->part);
    int r = rows_log2(p->in.rows);
    while (r > 0 && cuda_lin_tile(b, part->part->layout, w.k, 1 << r) == 0)
        r--;
    params.tile = cuda_lin_tile(b, part->part->layout, w.k, 1 << r);
    if (params.tile == 0) {
        cuda_build_fail(b, ERR_UNSUPPORTED, "%s: %d bytes of shared memory a block, wanted %d",
                        p->w->weight->name, cuda_smem_max(b), TILE * 4 + 1024);
        return;
    }
    /* With fewer pairs of rows than warps a warp takes one row. */
    const bool thin = r == 0 && !p->silu && params.n < cuda_sms(b) * LIN_WARPS * 2;
    const int64_t row = cuda_lin_f32_bytes(part->part->layout, params.tile) + SSQ_BYTES;
    const F32Kernels *kernels = &f32_kernels[part->part->layout];
    launch(b, thin ? kernels->thin : kernels->full[r], cuda_sms(b), 1 << r, row << r, &params);
}

static Shape shape_of(const LinParams *p, int layout, const GpuPart *part, int r)
{
    const int unit = cuda_lin_unit(part->layout);
    const int stages = (p->w.k + 32 * unit - 1) / (32 * unit);
    if (r == 0 && !p->half && part->code_bytes < SMALL_BYTES)
        return SHAPE_HALF;
    if (stages <= 2 && i8_layouts[layout].kernels[SHAPE_WIDE][r])
        return SHAPE_WIDE;
    return SHAPE_FULL;
}

/* Rows of int8 activations in memory, packed by the first product that wants them. */
static CudaPtr packed_rows(CudaBuild *b, const Product *p, int kind)
{
    bool fresh;
    const CudaPtr out = cuda_packed(b, p->op->in[0], p->op->norm.vec,
                                    FORM_BASE + kind + (p->op->gather ? LIN_X_KINDS : 0),
                                    cuda_lin_x_bytes(p->w->k) * p->in.rows, &fresh);
    const LinPackParams params = {.in = p->in, .out = out, .k = p->w->k};
    if (fresh)
        cuda_launch(b, &(CudaLaunch){.kernel = pack_kernels[kind],
                                     .grid = {p->in.rows},
                                     .block = LIN_THREADS,
                                     .programmatic = true,
                                     .params = &params,
                                     .params_bytes = sizeof params});
    return out;
}

/* Whether the int8 kernels take this part; *r: log2 of the rows a CTA multiplies. */
static bool i8_takes(const CudaBuild *b, const Product *p, const GpuPart *part, int *r)
{
    if (!p->fast || cuda_lin_i8(part) < 0 || !p->in.aligned || p->w->k % 32 != 0)
        return false;
    const int64_t row = cuda_lin_x_bytes(p->w->k) + SSQ_BYTES;
    *r = rows_log2(p->in.rows);
    while (*r >= 0 && row << *r > cuda_smem_max(b))
        (*r)--;
    return *r >= 0;
}

bool cuda_lin_has_known(int layout)
{
    return layout == LIN_I8_S4 || layout == LIN_I8_A4F16 || layout == LIN_I8_A4BF16;
}

/* The kernel for a shape, or its twin for a k that many models have; `name` is room for that. */
static const char *i8_kernel(int layout, Shape shape, int r, int k, char name[64])
{
    static const struct {
        Shape shape;
        int k;
    } known[] = {{SHAPE_FULL, 4096},
                 {SHAPE_FULL, 14336},
                 {SHAPE_WIDE, 2048},
                 {SHAPE_HALF, 2048},
                 {SHAPE_HALF, 4096}};
    const char *kernel = i8_layouts[layout].kernels[shape][r];
    for (size_t i = 0; cuda_lin_has_known(layout) && r == 0 && i < COUNT_OF(known); i++)
        if (known[i].shape == shape && known[i].k == k) {
            snprintf(name, 64, "%s_k%d", kernel, k);
            return name;
        }
    return kernel;
}

static void emit_i8(CudaBuild *b, const Product *p, const CudaPart *part, int r)
{
    char name[64];
    const int layout = cuda_lin_i8(part->part);
    LinWeight w;
    if (!cuda_lin_weight(b, p->w, part, &w))
        return;
    LinParams params = params_of(p, &w, part->part);
    if (p->in.rows > LIN_ROWS_MAX || (int64_t)w.k * p->in.rows > PACK_ONCE)
        params.in.packed = packed_rows(b, p, i8_layouts[layout].kind);
    const Shape shape = shape_of(&params, layout, part->part, r);
    launch(b, i8_kernel(layout, shape, r, w.k, name), cuda_sms(b) * (shape == SHAPE_HALF ? 2 : 1),
           1 << r, (cuda_lin_x_bytes(w.k) + SSQ_BYTES) << r, &params);
}

/* A router's product of one row, in the fast class: sums in another order than lin_general's. */
static bool router_takes(const CudaBuild *b, const Product *p, const GpuPart *part)
{
    return !cuda_exact(b) && !cuda_deterministic(b) && p->in.rows == 1 && !p->silu &&
           !p->in.gather && p->in.aligned && part->layout == GPU_F32 &&
           (p->w->k == 2048 || p->w->k == 4096) && part->rows <= 1024;
}

static void emit_router(CudaBuild *b, const Product *p, const CudaPart *part)
{
    LinWeight w;
    if (!cuda_lin_weight(b, p->w, part, &w))
        return;
    const LinParams params = params_of(p, &w, part->part);
    cuda_launch(b, &(CudaLaunch){.kernel = w.k == 2048 ? "lin_router_k2048" : "lin_router_k4096",
                                 .grid = {(params.n + 3) / 4},
                                 .block = 128,
                                 .programmatic = true,
                                 .params = &params,
                                 .params_bytes = sizeof params});
}

static void emit_parts(CudaBuild *b, const Product *p)
{
    for (int i = 0; i < p->w->n_parts; i++) {
        const CudaPart part = cuda_weight_part(b, p->w, i);
        int r;
        if (router_takes(b, p, part.part))
            emit_router(b, p, &part);
        else if (i8_takes(b, p, part.part, &r))
            emit_i8(b, p, &part, r);
        else
            emit_f32(b, p, &part);
    }
}

/* Gate and up in different parts: both halves to memory, then silu. */
static void emit_silu_apart(CudaBuild *b, Product *p, int n)
{
    const CudaPtr y = p->y;
    const int ld_y = p->ld_y;
    p->silu = false;
    p->ld_y = n;
    p->y = cuda_work(b, (int64_t)p->in.rows * n * (int64_t)sizeof(float));
    emit_parts(b, p);
    const LinSiluHalves params = {.x = p->y, .y = y, .ld_x = n, .ld_y = ld_y, .n = n / 2};
    cuda_launch(b, &(CudaLaunch){.kernel = "lin_silu_halves",
                                 .grid = {(n / 2 + 255) / 256, p->in.rows},
                                 .block = 256,
                                 .programmatic = true,
                                 .params = &params,
                                 .params_bytes = sizeof params});
}

void cuda_emit_lin(CudaBuild *b, const GpuOp *op)
{
    const int rows = cuda_op_rows(b, op);
    const bool fast = !cuda_exact(b) && !op->weight->precise;
    Product p = {.op = op,
                 .w = cuda_weight(b, op->weight),
                 .in = cuda_lin_input(b, op, rows),
                 .bias = cuda_bias(b, op->weight),
                 .addend = cuda_value(b, op->in[1]),
                 .y = cuda_value(b, op->out),
                 .ld_addend = op->in[1] >= 0 ? cuda_value_ld(b, op->in[1]) : 0,
                 .ld_y = cuda_value_ld(b, op->out),
                 .silu = op->silu,
                 .fast = fast};
    if (op->silu && p.w->n_parts != 1)
        emit_silu_apart(b, &p, (int)op->weight->n);
    else
        emit_parts(b, &p);
}
