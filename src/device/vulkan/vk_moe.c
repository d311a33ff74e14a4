/* MOE: router logits to experts and shares, the experts' gated MLP, the weighted sum. */
#include "base/num.h"
#include "device/vulkan/vk_emit.h"
#include "device/vulkan/vk_lin.h"

/* Up to this many experts each workgroup ranks the logits itself, which costs less than a dispatch
 * of its own (3 us). */
enum { RANK_INSIDE_MAX = 128, TOP_K_MAX = 16, EXPERTS_MAX = 512 };

static void emit_route(VkBuild *b, const GpuOp *op, VkPtr ids, VkPtr shares, int m)
{
    const MoeDesc *moe = &op->op->u.moe;
    const struct {
        VkPtr logits, ids, shares;
        uint32_t ldl;
    } push = {vk_value(b, op->in[1]), ids, shares, (uint32_t)vk_value_ld(b, op->in[1])};
    const VkDispatch d = {
        .shader = "moe_route",
        .spec = {256, (uint32_t)vk_subgroup(b), (uint32_t)moe->n_experts, (uint32_t)moe->top_k,
                 moe->renorm},
        .n_spec = 5,
        .groups = {(uint32_t)m, 1, 1},
        .push = &push,
        .push_bytes = sizeof push,
    };
    vk_dispatch(b, &d);
}

static void emit_list(VkBuild *b, const VkProduct *p, int tile_rows)
{
    const struct {
        VkPtr ids, limit, list;
        uint32_t m, list_pairs;
    } push = {p->ids, p->limit, p->list, (uint32_t)p->m, (uint32_t)p->list_pairs};
    const uint32_t threads = vk_local_max(b) >= 1024 ? 1024 : 256;
    const VkDispatch d = {
        .shader = "moe_list",
        .spec = {threads, (uint32_t)vk_subgroup(b), (uint32_t)p->n_experts, (uint32_t)p->top_k,
                 (uint32_t)tile_rows},
        .n_spec = 5,
        .push = &push,
        .push_bytes = sizeof push,
    };
    vk_dispatch(b, &d);
}

static void emit_sum(VkBuild *b, const GpuOp *op, const VkProduct *down)
{
    const int n = (int)down->weight->n;
    const struct {
        VkPtr x, share, add, y;
        uint32_t n, ldx, lda, ldy;
    } push = {down->y,
              down->shares,
              vk_value(b, op->in[2]),
              vk_value(b, op->out),
              (uint32_t)n,
              (uint32_t)down->ldy,
              op->in[2] >= 0 ? (uint32_t)vk_value_ld(b, op->in[2]) : 0,
              (uint32_t)vk_value_ld(b, op->out)};
    const VkDispatch d = {
        .shader = "moe_sum",
        .spec = {256, (uint32_t)vk_subgroup(b), (uint32_t)down->top_k, op->in[2] >= 0},
        .n_spec = 4,
        .groups = {(uint32_t)((n + 255) / 256), (uint32_t)down->m, 1},
        .push = &push,
        .push_bytes = sizeof push,
    };
    vk_dispatch(b, &d);
}

static void emit_few(VkBuild *b, const GpuOp *op, VkProduct *up, VkProduct *down)
{
    const int64_t k = (int64_t)down->weight->k * down->top_k;
    const bool inside = up->n_experts <= RANK_INSIDE_MAX && !vk_deterministic(b) &&
                        vk_lin_fast(b, up->weight, up->vec4) &&
                        vk_lin_fast(b, down->weight, down->vec4) && vk_lin_inside(b, k, 1);
    if (!inside) {
        const int64_t pairs = (int64_t)up->m * up->top_k;
        up->ids = down->ids = vk_work(b, pairs * 4);
        up->shares = down->shares = vk_work(b, pairs * 4);
        up->routed = down->routed = true;
        emit_route(b, op, up->ids, up->shares, up->m);
    }
    vk_lin_product(b, up);
    down->y = vk_value(b, op->out);
    down->ldy = vk_value_ld(b, op->out);
    down->has_add = op->in[2] >= 0;
    down->add = vk_value(b, op->in[2]);
    down->lda = op->in[2] >= 0 ? vk_value_ld(b, op->in[2]) : 0;
    vk_lin_product(b, down);
}

static void emit_many(VkBuild *b, const GpuOp *op, VkProduct *up, VkProduct *down)
{
    const int64_t pairs = (int64_t)up->m * up->top_k;
    const int per = (int)i64_max(1, pairs / up->n_experts);
    VkProduct *const both[2] = {up, down};
    up->ids = down->ids = vk_work(b, pairs * 4);
    up->shares = down->shares = vk_work(b, pairs * 4);
    up->routed = down->routed = true;
    emit_route(b, op, up->ids, up->shares, up->m);
    for (int i = 0; i < 2; i++) {
        VkProduct *p = both[i];
        const int rows = vk_lin_tile_rows(b, p->weight, per);
        p->max_tiles = (int)(pairs / rows + i64_min(pairs, p->n_experts));
        p->list_pairs = 4 + p->max_tiles * 4;
        if (i > 0 && rows == vk_lin_tile_rows(b, up->weight, per)) {
            p->list = up->list;
            continue;
        }
        p->list = vk_work(b, (p->list_pairs + pairs) * 4);
        emit_list(b, p, rows);
    }
    vk_lin_product(b, up);
    down->y = vk_work(b, pairs * down->weight->n * 4);
    down->ldy = (int)down->weight->n;
    vk_lin_product(b, down);
    emit_sum(b, op, down);
}

void vk_emit_moe(VkBuild *b, const GpuOp *op)
{
    const MoeDesc *moe = &op->op->u.moe;
    if (moe->top_k > TOP_K_MAX || moe->n_experts > EXPERTS_MAX) {
        vk_build_fail(b, ERR_UNSUPPORTED,
                      "%s: top %d of %d experts, the Vulkan kernels take up to %d of %d", op->name,
                      moe->top_k, moe->n_experts, TOP_K_MAX, EXPERTS_MAX);
        return;
    }
    const int m = vk_op_rows(b, op);
    const VkPtr step = vk_step(b);
    VkProduct up = {
        .weight = moe->gate_up,
        .x = vk_value(b, op->in[0]),
        .value = op->in[0],
        .ldx = vk_value_ld(b, op->in[0]),
        .m = m,
        .vec4 = vk_lin_vec4(b, op->in[0]),
        .norm = op->norm,
        .limit = step + (VkPtr)(op->axis == AXIS_OUT_ROWS ? GPU_STEP_N_OUT : GPU_STEP_N_ROWS) * 4,
        .y = vk_work(b, (int64_t)m * moe->top_k * moe->ffn * 4),
        .ldy = moe->ffn,
        .silu = true,
        .experts = VK_EXPERTS_UP,
        .top_k = moe->top_k,
        .n_experts = moe->n_experts,
        .renorm = moe->renorm,
        .logits = vk_value(b, op->in[1]),
        .ldl = vk_value_ld(b, op->in[1]),
    };
    VkProduct down = up;
    down.weight = moe->down;
    down.x = up.y;
    down.value = -1;
    down.ldx = moe->ffn;
    down.vec4 = moe->ffn % 4 == 0;
    down.norm = (GpuNorm){0};
    down.silu = false;
    down.experts = VK_EXPERTS_DOWN;
    if (vk_lin_is_few(b, m))
        emit_few(b, op, &up, &down);
    else
        emit_many(b, op, &up, &down);
}
