/* cuda_moe.c: which kernels run a layer of experts.
 *
 * Fast class, up to 8 tokens: moe_i8.h, two kernels for one token, three for several. Everything
 * else: moe_f32.h, five kernels (route, lists, up, down, combine), whose results for a token do not
 * depend on how many tokens there are: the deterministic class uses it for every number. Many
 * tokens in the fast class are cuda_gemm.c's. */
#include "device/cuda/cuda_lin.h"

#include "base/num.h"
#include "device/cuda/cuda_emit.h"

#include <stdio.h>

#define NAMES(name)                                                                                \
    {                                                                                              \
        "moe_up1_" #name "_full", "moe_up1_" #name "_wide", "moe_up8_" #name, "moe_down_" #name    \
    }
enum { UP1_FULL, UP1_WIDE, UP8, DOWN, N_I8_KERNELS };
static const char *const i8_kernels[LIN_I8_COUNT][N_I8_KERNELS] = {
    [LIN_I8_S4] = NAMES(s4),         [LIN_I8_A4F16] = NAMES(a4f16), [LIN_I8_A4BF16] = NAMES(a4bf16),
    [LIN_I8_A4F32] = NAMES(a4f32),   [LIN_I8_E4] = NAMES(e4),       [LIN_I8_A8F16] = NAMES(a8f16),
    [LIN_I8_A8BF16] = NAMES(a8bf16), [LIN_I8_A8F32] = NAMES(a8f32), [LIN_I8_S8] = NAMES(s8),
    [LIN_I8_K6] = NAMES(k6),
};

#define F32_NAMES(name)                                                                            \
    {                                                                                              \
        "moe_f32_" #name "_r1", "moe_f32_" #name "_r2", "moe_f32_" #name "_r4",                    \
            "moe_f32_" #name "_r8"                                                                 \
    }
static const char *const f32_kernels[GPU_LAYOUT_COUNT][4] = {
    [GPU_F32] = F32_NAMES(f32), [GPU_F16] = F32_NAMES(f16), [GPU_BF16] = F32_NAMES(bf16),
    [GPU_A4] = F32_NAMES(a4),   [GPU_S4] = F32_NAMES(s4),   [GPU_E4] = F32_NAMES(e4),
    [GPU_A8] = F32_NAMES(a8),   [GPU_S8] = F32_NAMES(s8),   [GPU_K6] = F32_NAMES(k6),
};

typedef struct Experts {
    const GpuOp *op;
    const MoeDesc *moe;
    const GpuWeight *up, *down;
    int tokens, pairs;
    MoeRoute route;
    CudaPtr mid; /* [pairs][ffn] f32 */
} Experts;

static void launch(CudaBuild *b, const char *kernel, int grid, int64_t smem, const MoeParams *p)
{
    cuda_launch(b, &(CudaLaunch){.kernel = kernel,
                                 .grid = {grid},
                                 .block = LIN_THREADS,
                                 .smem = (int)smem,
                                 .programmatic = true,
                                 .params = p,
                                 .params_bytes = sizeof *p});
}

static void launch_route(CudaBuild *b, const char *kernel, int grid, const MoeRoute *p)
{
    cuda_launch(b, &(CudaLaunch){.kernel = kernel,
                                 .grid = {grid},
                                 .block = LIN_THREADS,
                                 .programmatic = true,
                                 .params = p,
                                 .params_bytes = sizeof *p});
}

static MoeRoute route_of(CudaBuild *b, const Experts *x)
{
    const int64_t bytes = (int64_t)x->pairs * 4;
    return (MoeRoute){.logits = cuda_value(b, x->op->in[1]),
                      .step = cuda_step(b),
                      .ids = cuda_work(b, bytes),
                      .shares = cuda_work(b, bytes),
                      .items = cuda_work(b, 4 + 3 * bytes),
                      .pairs = cuda_work(b, bytes),
                      .ld_logits = cuda_value_ld(b, x->op->in[1]),
                      .n_tokens = x->tokens,
                      .n_experts = x->moe->n_experts,
                      .top_k = x->moe->top_k,
                      .renorm = x->moe->renorm,
                      .group = LIN_ROWS_MAX};
}

/* Gate and up (silu) or down of a part, without places that depend on the kernel. */
static bool params_of(CudaBuild *b, const Experts *x, const GpuWeight *w, const CudaPart *part,
                      bool silu, MoeParams *p)
{
    *p = (MoeParams){.route = x->route};
    if (!cuda_lin_weight(b, w, part, &p->w))
        return false;
    const CudaPtr bias = cuda_bias(b, w->weight);
    p->bias = bias ? bias + (CudaPtr)part->part->row0 * sizeof(float) : 0;
    p->bias_ld = (int32_t)w->weight->n;
    p->n = (int32_t)(silu ? part->part->rows / 2 : part->part->rows);
    p->half = silu ? p->n : 0;
    return true;
}

static LinInput mid_input(const Experts *x)
{
    return (LinInput){
        .x = x->mid, .ld = x->moe->ffn, .rows = x->pairs, .aligned = x->moe->ffn % 4 == 0};
}

static void set_out(const CudaBuild *b, const Experts *x, MoeParams *p)
{
    const int add = x->op->in[2];
    p->y = cuda_value(b, x->op->out);
    p->ld_y = cuda_value_ld(b, x->op->out);
    p->addend = cuda_value(b, add);
    p->ld_addend = add >= 0 ? cuda_value_ld(b, add) : 0;
}

/* ---- int8 ---- */

static int64_t up_smem(const Experts *x)
{
    return cuda_lin_x_bytes(x->up->k) * x->tokens + MOE_UP_SHARED;
}

static int64_t down_smem(const Experts *x)
{
    const int64_t k = (int64_t)x->moe->top_k * x->down->k;
    const int64_t units = k / cuda_lin_unit(x->down->parts[0].layout);
    return LIN_X_BYTES_OF(LIN_X_CHUNKS(k)) * x->tokens + MOE_DOWN_SHARED(units);
}

static bool i8_takes(const CudaBuild *b, const Experts *x)
{
    if (cuda_exact(b) || cuda_deterministic(b) || x->up->weight->precise ||
        x->down->weight->precise || x->tokens > LIN_ROWS_MAX)
        return false;
    if (x->up->n_parts != 1 || x->down->n_parts != 1 || cuda_lin_i8(&x->up->parts[0]) < 0 ||
        cuda_lin_i8(&x->down->parts[0]) < 0 || x->up->k % 32 != 0 || x->down->k % 32 != 0)
        return false;
    return cuda_lin_input(b, x->op, x->tokens).aligned && up_smem(x) <= cuda_smem_max(b) &&
           down_smem(x) <= cuda_smem_max(b);
}

/* The twin of a kernel for one token and a shape that many models have, where there is one. */
static const char *known_shape(const char *kernel, int layout, const char *shape, char name[64])
{
    if (!cuda_lin_has_known(layout))
        return kernel;
    snprintf(name, 64, "%s_%s", kernel, shape);
    return name;
}

static void emit_i8(CudaBuild *b, Experts *x)
{
    const CudaPart up = cuda_weight_part(b, x->up, 0);
    const CudaPart down = cuda_weight_part(b, x->down, 0);
    const int layout = cuda_lin_i8(up.part);
    MoeParams p;
    if (x->tokens > 1) {
        x->route.with_list = 1;
        launch_route(b, "moe_route", 1, &x->route);
    }
    if (!params_of(b, x, x->up, &up, true, &p))
        return;
    p.in = cuda_lin_input(b, x->op, x->tokens);
    p.y = x->mid;
    p.ld_y = x->moe->ffn;
    const int stage = 32 * cuda_lin_unit(up.part->layout);
    const int one = x->up->k <= 2 * stage ? UP1_WIDE : UP1_FULL;
    char name[64];
    const char *kernel = i8_kernels[layout][x->tokens > 1 ? UP8 : one];
    if (x->tokens == 1 && one == UP1_WIDE && x->up->k == 2048)
        kernel = known_shape(kernel, layout, "k2048", name);
    launch(b, kernel, cuda_sms(b), up_smem(x), &p);

    if (!params_of(b, x, x->down, &down, false, &p))
        return;
    p.in = mid_input(x);
    set_out(b, x, &p);
    const int down_layout = cuda_lin_i8(down.part);
    kernel = i8_kernels[down_layout][DOWN];
    if (x->tokens == 1 && x->down->k == 768 && x->moe->top_k == 8)
        kernel = known_shape(kernel, down_layout, "k768x8", name);
    launch(b, kernel, cuda_sms(b), down_smem(x), &p);
}

/* ---- f32 ---- */

/* CTAs that share an item: enough for all multiprocessors when few experts are chosen; each fills
 * its activations anew, so no more than that. */
static int splits_of(const CudaBuild *b, const Experts *x, int64_t n)
{
    const int64_t experts = i64_min(x->pairs, x->moe->n_experts);
    const int64_t want = experts * 4 <= cuda_sms(b) ? cuda_sms(b) / experts : 4;
    return (int)i64_max(1, i64_min(want, n / (2 * LIN_WARPS)));
}

static void launch_f32(CudaBuild *b, const GpuPart *part, int r, MoeParams *p)
{
    p->tile = cuda_lin_tile(b, part->layout, p->w.k, 1 << r);
    if (p->tile == 0) {
        cuda_build_fail(b, ERR_UNSUPPORTED, "experts: %d bytes of shared memory a block, too few",
                        cuda_smem_max(b));
        return;
    }
    const int64_t row = cuda_lin_f32_bytes(part->layout, p->tile) + LIN_WARPS * 4;
    launch(b, f32_kernels[part->layout][r], cuda_sms(b), row << r, p);
}

static void emit_up_f32(CudaBuild *b, const Experts *x, int r)
{
    const bool whole = x->up->n_parts == 1;
    const int n = 2 * x->moe->ffn;
    const CudaPtr both = whole ? 0 : cuda_work(b, (int64_t)x->pairs * n * 4);
    for (int i = 0; i < x->up->n_parts; i++) {
        const CudaPart part = cuda_weight_part(b, x->up, i);
        MoeParams p;
        if (!params_of(b, x, x->up, &part, whole, &p))
            return;
        p.in = cuda_lin_input(b, x->op, x->tokens);
        p.y = whole ? x->mid : both + (CudaPtr)part.part->row0 * sizeof(float);
        p.ld_y = whole ? x->moe->ffn : n;
        p.splits = splits_of(b, x, p.n);
        launch_f32(b, part.part, r, &p);
    }
    if (whole)
        return;
    const LinSiluHalves silu = {
        .x = both, .y = x->mid, .ld_x = n, .ld_y = x->moe->ffn, .n = x->moe->ffn};
    cuda_launch(b, &(CudaLaunch){.kernel = "lin_silu_halves",
                                 .grid = {(x->moe->ffn + 255) / 256, x->pairs},
                                 .block = 256,
                                 .programmatic = true,
                                 .params = &silu,
                                 .params_bytes = sizeof silu});
}

static void emit_down_f32(CudaBuild *b, const Experts *x, int r)
{
    const int n = (int)x->down->weight->n;
    const CudaPtr parts = cuda_work(b, (int64_t)x->pairs * n * 4);
    for (int i = 0; i < x->down->n_parts; i++) {
        const CudaPart part = cuda_weight_part(b, x->down, i);
        MoeParams p;
        if (!params_of(b, x, x->down, &part, false, &p))
            return;
        p.in = mid_input(x);
        p.per_pair = 1;
        p.y = parts + (CudaPtr)part.part->row0 * sizeof(float);
        p.ld_y = n;
        p.splits = splits_of(b, x, p.n);
        launch_f32(b, part.part, r, &p);
    }
    MoeParams out = {0};
    set_out(b, x, &out);
    const MoeCombineParams sum = {.parts = parts,
                                  .ids = x->route.ids,
                                  .shares = x->route.shares,
                                  .addend = out.addend,
                                  .y = out.y,
                                  .ld_parts = n,
                                  .ld_addend = out.ld_addend,
                                  .ld_y = out.ld_y,
                                  .n = n,
                                  .top_k = x->moe->top_k,
                                  .n_tokens = x->tokens};
    cuda_launch(b, &(CudaLaunch){.kernel = "moe_combine",
                                 .grid = {(n + 255) / 256, x->tokens},
                                 .block = 256,
                                 .programmatic = true,
                                 .params = &sum,
                                 .params_bytes = sizeof sum});
}

/* The most pairs of an item: what tokens there are, and what fits in f32. */
static int group_log2(const CudaBuild *b, const Experts *x)
{
    int r = x->tokens > 4 ? 3 : x->tokens > 2 ? 2 : x->tokens > 1 ? 1 : 0;
    for (int i = 0; i < x->up->n_parts; i++)
        while (r > 0 && cuda_lin_tile(b, x->up->parts[i].layout, x->up->k, 1 << r) == 0)
            r--;
    for (int i = 0; i < x->down->n_parts; i++)
        while (r > 0 && cuda_lin_tile(b, x->down->parts[i].layout, x->down->k, 1 << r) == 0)
            r--;
    return r;
}

static void emit_f32(CudaBuild *b, Experts *x)
{
    const int r = group_log2(b, x);
    x->route.group = 1 << r;
    launch_route(b, "moe_route", x->tokens, &x->route);
    launch_route(b, "moe_lists", 1, &x->route);
    emit_up_f32(b, x, r);
    emit_down_f32(b, x, r);
}

void cuda_emit_moe(CudaBuild *b, const GpuOp *op)
{
    const MoeDesc *moe = &op->op->u.moe;
    Experts x = {.op = op,
                 .moe = moe,
                 .up = cuda_weight(b, moe->gate_up),
                 .down = cuda_weight(b, moe->down),
                 .tokens = cuda_op_rows(b, op)};
    x.pairs = x.tokens * moe->top_k;
    if (moe->n_experts > MOE_EXPERTS_MAX || moe->top_k > MOE_TOP_MAX || x.pairs > 65535) {
        cuda_build_fail(b, ERR_UNSUPPORTED,
                        "%d experts of which %d are chosen for %d rows; kernels take %d, %d and "
                        "65535 chosen in all",
                        moe->n_experts, moe->top_k, x.tokens, MOE_EXPERTS_MAX, MOE_TOP_MAX);
        return;
    }
    x.route = route_of(b, &x);
    x.mid = cuda_work(b, (int64_t)x.pairs * moe->ffn * (int64_t)sizeof(float));
    if (i8_takes(b, &x))
        emit_i8(b, &x);
    else
        emit_f32(b, &x);
}
