/* Embedding, norms, elementwise operations, gathering, convolution, delta rule. */
#include "device/cuda/cuda_emit.h"
#include "device/cuda/kernels/ops_params.h"

enum { EMBED_THREADS = 128, CONV_THREADS = 128, DELTA_THREADS = 128, DELTA_K_MAX = 256 };

static int ceil_div(int64_t a, int64_t b)
{
    return (int)((a + b - 1) / b);
}

static void launch(CudaBuild *b, const char *kernel, int x, int y, int z, int block,
                   const void *params, size_t bytes)
{
    cuda_launch(b, &(CudaLaunch){.kernel = kernel,
                                 .grid = {x, y, z},
                                 .block = block,
                                 .programmatic = true,
                                 .params = params,
                                 .params_bytes = bytes});
}

/* Operands, rows and width of an operation on rows. */
static OpsParams params_of(const CudaBuild *b, const GpuOp *op)
{
    OpsParams p = {
        .a = cuda_value(b, op->in[0]),
        .b = cuda_value(b, op->in[1]),
        .out = cuda_value(b, op->out),
        .step = cuda_step(b),
        .lda = cuda_value_ld(b, op->in[0]),
        .ldo = cuda_value_ld(b, op->out),
        .width = cuda_value_width(b, op->out),
        .rows = cuda_op_rows(b, op),
        .b_step = 1,
    };
    if (op->in[1] >= 0)
        p.ldb = cuda_value_ld(b, op->in[1]);
    return p;
}

void cuda_emit_embed(CudaBuild *b, const GpuOp *op)
{
    const GpuWeight *w = cuda_weight(b, op->weight);
    for (int i = 0; i < w->n_parts; i++) {
        const CudaPart part = cuda_weight_part(b, w, i);
        const OpsEmbedParams p = {
            .codes = part.codes,
            .scales = part.scales,
            .out = cuda_value(b, op->out),
            .step = cuda_step(b),
            .row0 = part.part->row0,
            .rows = part.part->rows,
            .code_stride = part.part->code_stride,
            .scale_stride = part.part->scale_stride,
            .n = op->weight->n,
            .layout = (int32_t)part.part->layout,
            .scale = (int32_t)part.part->scale,
            .group = part.part->group,
            .k = w->k,
            .ldo = cuda_value_ld(b, op->out),
            .tokens_at = cuda_step_layout(b)->tokens,
            .first = i == 0,
        };
        launch(b, "ops_embed", ceil_div(w->k, 8 * EMBED_THREADS), cuda_op_rows(b, op), 1,
               EMBED_THREADS, &p, sizeof p);
    }
}

void cuda_emit_norm(CudaBuild *b, const GpuOp *op)
{
    OpsParams p = params_of(b, op);
    p.vec = cuda_vec(b, op->op->vec);
    p.eps = op->op->eps;
    p.group = op->op->group;
    const int groups = p.width / p.group;
    if (p.group <= OPS_WARP_GROUP)
        launch(b, "ops_norm_group", ceil_div(groups, 8), p.rows, 1, 256, &p, sizeof p);
    else
        launch(b, "ops_norm_row", groups, p.rows, 1, 512, &p, sizeof p);
}

static void emit_rope(CudaBuild *b, const GpuOp *op)
{
    const RopeDesc *r = &op->op->u.rope;
    OpsParams p = params_of(b, op);
    p.rope = cuda_rope_table(b, r->table);
    p.head_dim = r->head_dim;
    p.rot_dim = r->rot_dim;
    p.rope_pairs = r->pairs;
    launch(b, "ops_rope", ceil_div(p.width / 2, 256), p.rows, 1, 256, &p, sizeof p);
}

void cuda_emit_elementwise(CudaBuild *b, const GpuOp *op)
{
    if (op->kind == OP_ROPE) {
        emit_rope(b, op);
        return;
    }
    OpsParams p = params_of(b, op);
    const char *kernel = op->kind == OP_ADD        ? "ops_add"
                         : op->kind == OP_SILU_MUL ? "ops_silu_mul"
                                                   : "ops_sigmoid_mul";
    if (op->kind == OP_SIGMOID_MUL && cuda_value_width(b, op->in[1]) == 1)
        p.b_step = 0;
    launch(b, kernel, ceil_div(p.width, OPS_BLOCK), p.rows, 1, OPS_BLOCK / 4, &p, sizeof p);
}

void cuda_emit_out_rows(CudaBuild *b, const GpuOp *op)
{
    OpsParams p = params_of(b, op);
    p.out_rows_at = cuda_step_layout(b)->out_rows;
    launch(b, "ops_out_rows", ceil_div(p.width, OPS_BLOCK), p.rows, 1, OPS_BLOCK / 4, &p, sizeof p);
}

/* Segments of a step of the bucket, at most. */
static int max_segs(const CudaBuild *b)
{
    return (int)i64_min(cuda_plan(b)->graph->max_segs, cuda_bucket_rows(b));
}

void cuda_emit_conv(CudaBuild *b, const GpuOp *op)
{
    const ConvDesc *c = &op->op->u.conv;
    if (c->width > OPS_CONV_WIDTH) {
        cuda_build_fail(b, ERR_UNSUPPORTED, "cuda: %s: convolution of width %d, at most %d",
                        op->name, c->width, OPS_CONV_WIDTH);
        return;
    }
    const OpsConvParams p = {
        .x = cuda_value(b, op->in[0]),
        .w = cuda_vec(b, c->w),
        .out = cuda_value(b, op->out),
        .state = cuda_state(b),
        .step = cuda_step(b),
        .state_floats = cuda_state_floats(b),
        .state_offset = c->state_offset,
        .ldx = cuda_value_ld(b, op->in[0]),
        .ldo = cuda_value_ld(b, op->out),
        .channels = c->channels,
        .width = c->width,
        .segs_at = cuda_step_layout(b)->segs,
    };
    launch(b, "ops_conv", ceil_div(c->channels, CONV_THREADS),
           cuda_bucket_rows(b) / OPS_CONV_ROWS + max_segs(b), 1, CONV_THREADS, &p, sizeof p);
}

void cuda_emit_delta(CudaBuild *b, const GpuOp *op)
{
    const DeltaDesc *d = &op->op->u.delta;
    if (d->k_dim > DELTA_K_MAX) {
        cuda_build_fail(b, ERR_UNSUPPORTED, "cuda: %s: keys of %d, at most %d", op->name, d->k_dim,
                        DELTA_K_MAX);
        return;
    }
    const OpsDeltaParams p = {
        .x = cuda_value(b, op->in[0]),
        .a = cuda_value(b, op->in[1]),
        .b = cuda_value(b, op->in[2]),
        .a_log = cuda_vec(b, d->a_log),
        .dt_bias = cuda_vec(b, d->dt_bias),
        .out = cuda_value(b, op->out),
        .state = cuda_state(b),
        .step = cuda_step(b),
        .state_floats = cuda_state_floats(b),
        .state_offset = d->state_offset,
        .ldx = cuda_value_ld(b, op->in[0]),
        .lda = cuda_value_ld(b, op->in[1]),
        .ldb = cuda_value_ld(b, op->in[2]),
        .ldo = cuda_value_ld(b, op->out),
        .n_k_heads = d->n_k_heads,
        .n_v_heads = d->n_v_heads,
        .k_dim = d->k_dim,
        .v_dim = d->v_dim,
        .segs_at = cuda_step_layout(b)->segs,
    };
    const char *kernel = d->k_dim <= 32    ? "ops_delta_32"
                         : d->k_dim <= 64  ? "ops_delta_64"
                         : d->k_dim <= 128 ? "ops_delta_128"
                                           : "ops_delta_256";
    launch(b, kernel, ceil_div(d->v_dim, OPS_DELTA_COLS), d->n_v_heads, max_segs(b), DELTA_THREADS,
           &p, sizeof p);
}
