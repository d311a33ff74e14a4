#include "device/cuda/cuda_emit.h"

static void emit_lin(CudaBuild *b, const GpuOp *op)
{
    if (cuda_gemm_can(b, op))
        cuda_emit_gemm(b, op);
    else
        cuda_emit_lin(b, op);
}

static void emit_moe(CudaBuild *b, const GpuOp *op)
{
    if (cuda_gemm_can(b, op))
        cuda_emit_moe_gemm(b, op);
    else
        cuda_emit_moe(b, op);
}

/* Operations without an entry have no kernels. */
static void (*const emitters[OP_COUNT])(CudaBuild *b, const GpuOp *op) = {
    [OP_EMBED] = cuda_emit_embed,
    [OP_NORM] = cuda_emit_norm,
    [OP_NORM_GATED] = cuda_emit_norm,
    [OP_LIN] = emit_lin,
    [OP_MOE] = emit_moe,
    [OP_ADD] = cuda_emit_elementwise,
    [OP_SILU_MUL] = cuda_emit_elementwise,
    [OP_SIGMOID_MUL] = cuda_emit_elementwise,
    [OP_ROPE] = cuda_emit_elementwise,
    [OP_ATTN] = cuda_emit_attn,
    [OP_CONV] = cuda_emit_conv,
    [OP_DELTA] = cuda_emit_delta,
    [OP_OUT_ROWS] = cuda_emit_out_rows,
};

bool cuda_emit_has(OpKind kind)
{
    return kind > OP_NONE && kind < OP_COUNT && emitters[kind];
}

void cuda_emit_op(CudaBuild *b, const GpuOp *op)
{
    if (cuda_emit_has(op->kind))
        emitters[op->kind](b, op);
    else
        cuda_build_fail(b, ERR_UNSUPPORTED, "cuda has no kernels for %s", op_name(op->kind));
}
