#include "device/vulkan/vk_emit.h"

void vk_emit_op(VkBuild *b, const GpuOp *op)
{
    switch (op->kind) {
    case OP_EMBED:
        vk_emit_embed(b, op);
        break;
    case OP_LIN:
        vk_emit_lin(b, op);
        break;
    case OP_NORM:
    case OP_NORM_GATED:
        vk_emit_norm(b, op);
        break;
    case OP_ADD:
    case OP_SILU_MUL:
    case OP_SIGMOID_MUL:
    case OP_ROPE:
        vk_emit_elementwise(b, op);
        break;
    case OP_ATTN:
        vk_emit_attn(b, op);
        break;
    case OP_MOE:
        if (op->op->u.moe.gate_up->bias || op->op->u.moe.down->bias)
            vk_build_fail(b, ERR_UNSUPPORTED, "the Vulkan kernels know no bias of experts");
        else
            vk_emit_moe(b, op);
        break;
    case OP_CONV:
        vk_emit_conv(b, op);
        break;
    case OP_DELTA:
        vk_emit_delta(b, op);
        break;
    case OP_OUT_ROWS:
        vk_emit_out_rows(b, op);
        break;
    case OP_NONE:
    case OP_LAYER_NORM:
    case OP_ACT:
    case OP_INPUT:
    case OP_EMBED_POS:
    case OP_WINDOW:
    case OP_MERGE:
    case OP_KV:
    case OP_ATTEND:
    case OP_COUNT:
        vk_build_fail(b, ERR_UNSUPPORTED, "operation %s", op_name(op->kind));
        break;
    }
}
