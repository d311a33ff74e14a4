#include "device/vulkan/vk.h"

/* Invocations of a workgroup where each has one element: a multiple of every subgroup size. */
enum { WG = 128 };

static uint32_t groups_for(int64_t n, int64_t each)
{
    return (uint32_t)((n + each - 1) / each);
}

static uint32_t ld(const VkBuild *b, int value)
{
    return (uint32_t)vk_value_ld(b, value);
}

static uint32_t width(const VkBuild *b, int value)
{
    return (uint32_t)vk_value_width(b, value);
}

/* Segments of a step of this bucket, at most. */
static uint32_t max_segs(const VkBuild *b)
{
    return (uint32_t)i64_min(vk_step_layout(b)->max_segs, vk_bucket_rows(b));
}

void vk_emit_embed(VkBuild *b, const GpuOp *op)
{
    const GpuWeight *w = vk_weight(b, op->weight);
    for (int i = 0; i < w->n_parts; i++) {
        const VkPart p = vk_weight_part(b, w, i);
        const GpuPart *g = p.part;
        const struct {
            VkPtr codes, scales, words, y;
            uint32_t tokens, k, ld, row0, rows, n;
        } push = {p.codes,
                  p.scales,
                  vk_step(b),
                  vk_value(b, op->out),
                  (uint32_t)vk_step_layout(b)->tokens,
                  (uint32_t)w->k,
                  ld(b, op->out),
                  (uint32_t)g->row0,
                  (uint32_t)g->rows,
                  (uint32_t)op->weight->n};
        vk_dispatch(b,
                    &(VkDispatch){
                        .shader = "embed",
                        .spec = {WG, (uint32_t)vk_subgroup(b), 0, (uint32_t)g->layout,
                                 (uint32_t)g->scale, (uint32_t)g->group,
                                 (uint32_t)(g->code_stride / 4), (uint32_t)(g->scale_stride / 4)},
                        .n_spec = 8,
                        .groups = {groups_for(w->k, (int64_t)WG * 8), (uint32_t)vk_op_rows(b, op)},
                        .overlap = i > 0,
                        .push = &push,
                        .push_bytes = sizeof push});
    }
}

/* Invocations that share a norm: each has a few elements. */
static uint32_t norm_group(const VkBuild *b, int group)
{
    uint32_t wg = (uint32_t)i64_max(vk_subgroup(b), 32);
    while (wg < 256 && wg * 4 < (uint32_t)group)
        wg *= 2;
    return wg;
}

void vk_emit_norm(VkBuild *b, const GpuOp *op)
{
    const bool gated = op->kind == OP_NORM_GATED;
    const Vec *vec = op->op->vec;
    const uint32_t group = (uint32_t)op->op->group;
    const struct {
        VkPtr x, w, z, y;
        uint32_t ldx, ldz, ldy, group;
        float eps;
    } push = {vk_value(b, op->in[0]),
              vk_vec(b, vec),
              gated ? vk_value(b, op->in[1]) : 0,
              vk_value(b, op->out),
              ld(b, op->in[0]),
              gated ? ld(b, op->in[1]) : 0,
              ld(b, op->out),
              group,
              op->op->eps};
    vk_dispatch(b, &(VkDispatch){.shader = "norm",
                                 .spec = {norm_group(b, op->op->group), (uint32_t)vk_subgroup(b),
                                          vec != NULL, gated},
                                 .n_spec = 4,
                                 .groups = {width(b, op->out) / group, (uint32_t)vk_op_rows(b, op)},
                                 .push = &push,
                                 .push_bytes = sizeof push});
}

static void emit_rope(VkBuild *b, const GpuOp *op)
{
    const RopeDesc *r = &op->op->u.rope;
    const struct {
        VkPtr x, table, y;
        uint32_t ldx, ldy, width, head_dim, half;
    } push = {vk_value(b, op->in[0]), vk_rope_table(b, r->table),
              vk_value(b, op->out),   ld(b, op->in[0]),
              ld(b, op->out),         width(b, op->out),
              (uint32_t)r->head_dim,  (uint32_t)r->rot_dim / 2};
    vk_dispatch(
        b, &(VkDispatch){.shader = "rope",
                         .spec = {WG, (uint32_t)vk_subgroup(b), r->pairs},
                         .n_spec = 3,
                         .groups = {groups_for(width(b, op->out), WG), (uint32_t)vk_op_rows(b, op)},
                         .push = &push,
                         .push_bytes = sizeof push});
}

void vk_emit_elementwise(VkBuild *b, const GpuOp *op)
{
    if (op->kind == OP_ROPE) {
        emit_rope(b, op);
        return;
    }
    const uint32_t kind = op->kind == OP_ADD ? 0 : op->kind == OP_SILU_MUL ? 1 : 2;
    const bool column = kind == 2 && width(b, op->in[1]) == 1 && width(b, op->out) != 1;
    const struct {
        VkPtr a, b, y;
        uint32_t lda, ldb, ldy, width;
    } push = {vk_value(b, op->in[0]), vk_value(b, op->in[1]), vk_value(b, op->out),
              ld(b, op->in[0]),       ld(b, op->in[1]),       ld(b, op->out),
              width(b, op->out)};
    vk_dispatch(
        b, &(VkDispatch){.shader = "elementwise",
                         .spec = {WG, (uint32_t)vk_subgroup(b), kind, column},
                         .n_spec = 4,
                         .groups = {groups_for(width(b, op->out), WG), (uint32_t)vk_op_rows(b, op)},
                         .push = &push,
                         .push_bytes = sizeof push});
}

void vk_emit_out_rows(VkBuild *b, const GpuOp *op)
{
    const struct {
        VkPtr x, words, y;
        uint32_t ldx, ldy, width, out_rows;
    } push = {vk_value(b, op->in[0]),
              vk_step(b),
              vk_value(b, op->out),
              ld(b, op->in[0]),
              ld(b, op->out),
              width(b, op->out),
              (uint32_t)vk_step_layout(b)->out_rows};
    vk_dispatch(
        b, &(VkDispatch){.shader = "out_rows",
                         .spec = {WG, (uint32_t)vk_subgroup(b)},
                         .n_spec = 2,
                         .groups = {groups_for(width(b, op->out), WG), (uint32_t)vk_op_rows(b, op)},
                         .push = &push,
                         .push_bytes = sizeof push});
}

void vk_emit_conv(VkBuild *b, const GpuOp *op)
{
    const ConvDesc *c = &op->op->u.conv;
    const GpuStepLayout *l = vk_step_layout(b);
    const uint32_t sg = (uint32_t)vk_subgroup(b);
    const uint32_t taps = (uint32_t)c->width;
    const uint32_t groups = groups_for(c->channels, WG);
    const struct {
        VkPtr x, w, words, state, y;
        uint32_t ldx, ldy, channels, seg, segs, floats, offset;
    } rows = {vk_value(b, op->in[0]),
              vk_vec(b, c->w),
              vk_step(b),
              vk_state(b),
              vk_value(b, op->out),
              ld(b, op->in[0]),
              ld(b, op->out),
              (uint32_t)c->channels,
              (uint32_t)l->seg,
              (uint32_t)l->segs,
              (uint32_t)vk_state_floats(b),
              (uint32_t)c->state_offset};
    vk_dispatch(b, &(VkDispatch){.shader = "conv",
                                 .spec = {WG, sg, taps},
                                 .n_spec = 3,
                                 .groups = {groups, (uint32_t)vk_op_rows(b, op)},
                                 .push = &rows,
                                 .push_bytes = sizeof rows});
    const struct {
        VkPtr x, words, state;
        uint32_t ldx, channels, segs, floats, offset;
    } state = {rows.x,        rows.words, rows.state,  rows.ldx,
               rows.channels, rows.segs,  rows.floats, rows.offset};
    vk_dispatch(b, &(VkDispatch){.shader = "conv_state",
                                 .spec = {WG, sg, taps},
                                 .n_spec = 3,
                                 .groups = {groups, max_segs(b)},
                                 .push = &state,
                                 .push_bytes = sizeof state});
}

void vk_emit_delta(VkBuild *b, const GpuOp *op)
{
    const DeltaDesc *d = &op->op->u.delta;
    /* A state column stays in the registers of its lanes. */
    const uint32_t lanes = d->k_dim % 4 == 0 ? 4 : d->k_dim % 2 == 0 ? 2 : 1;
    const uint32_t blocks = groups_for(d->v_dim, WG / lanes);
    const struct {
        VkPtr qkv, a, b, a_log, dt_bias, words, state, y;
        uint32_t ldx, lda, ldb, ldy, k_heads, share, segs, floats, offset;
    } push = {vk_value(b, op->in[0]),
              vk_value(b, op->in[1]),
              vk_value(b, op->in[2]),
              vk_vec(b, d->a_log),
              vk_vec(b, d->dt_bias),
              vk_step(b),
              vk_state(b),
              vk_value(b, op->out),
              ld(b, op->in[0]),
              ld(b, op->in[1]),
              ld(b, op->in[2]),
              ld(b, op->out),
              (uint32_t)d->n_k_heads,
              (uint32_t)(d->n_v_heads / d->n_k_heads),
              (uint32_t)vk_step_layout(b)->segs,
              (uint32_t)vk_state_floats(b),
              (uint32_t)d->state_offset};
    vk_dispatch(b, &(VkDispatch){.shader = "delta",
                                 .spec = {WG, (uint32_t)vk_subgroup(b), (uint32_t)d->k_dim, lanes,
                                          (uint32_t)d->v_dim},
                                 .n_spec = 5,
                                 .groups = {(uint32_t)d->n_v_heads * blocks, max_segs(b)},
                                 .push = &push,
                                 .push_bytes = sizeof push});
}
