/* ATTN: head norm, rotation, cache write and attention over the pages.
 *
 *   one row        attn_split alone, which norms, rotates and writes the cache itself
 *   up to 8 rows   attn_prep, attn_split by rows
 *   more rows      attn_prep, attn_split for segments of one row, attn_tile for the others */
#include "base/num.h"
#include "device/vulkan/vk_emit.h"

enum { SPLIT_THREADS = 128, TILE_THREADS = 256, FEW_ROWS = 8, HEAD_MAX = 512 };
enum {
    FLAG_SOFTCAP = 1,
    FLAG_SINKS = 2,
    FLAG_BY_SEGMENT = 4,
    FLAG_FOLD = 8,
    FLAG_PAIRS = 256,
    FLAG_KV_F32 = 512
};

typedef struct AttnBuild {
    VkBuild *b;
    const GpuOp *op;
    const AttnDesc *desc;
    VkKv kv;
    VkPtr q; /* after attn_prep */
    int rows;
    uint32_t flags;
} AttnBuild;

static uint32_t norm_kind(const GpuNorm *n)
{
    return n->eps <= 0.0F ? 0 : n->vec ? 1 : 2;
}

static VkDispatch attn_dispatch(const AttnBuild *a, const char *shader, int threads, uint32_t flags)
{
    const AttnDesc *d = a->desc;
    const RopeDesc *rope = a->op->q_rope;
    const GpuStepLayout *l = vk_step_layout(a->b);
    return (VkDispatch){
        .shader = shader,
        .spec = {(uint32_t)threads, (uint32_t)vk_subgroup(a->b), (uint32_t)d->head_dim,
                 (uint32_t)d->v_dim, (uint32_t)d->n_heads, (uint32_t)d->n_kv_heads,
                 (uint32_t)a->kv.page_tokens, (uint32_t)i64_max(d->window, 0), a->flags | flags,
                 rope ? (uint32_t)rope->rot_dim : 0, (uint32_t)l->seg, (uint32_t)l->segs,
                 (uint32_t)l->slots[a->kv.group], (uint32_t)a->kv.group, 1, 32},
        .n_spec = 16,
    };
}

static VkPtr rope_of(const AttnBuild *a)
{
    return a->op->q_rope ? vk_rope_table(a->b, a->op->q_rope->table) : 0;
}

static void emit_prep(const AttnBuild *a)
{
    const GpuOp *op = a->op;
    VkBuild *b = a->b;
    const struct {
        VkPtr q, k, v, q_norm, k_norm, rope, step, kc, vc, out_q;
        uint32_t ldq, ldk, ldv;
        float q_eps, k_eps;
    } push = {vk_value(b, op->in[0]),
              vk_value(b, op->in[1]),
              vk_value(b, op->in[2]),
              vk_vec(b, op->q_norm.vec),
              vk_vec(b, op->k_norm.vec),
              rope_of(a),
              vk_step(b),
              a->kv.k,
              a->kv.v,
              a->q,
              (uint32_t)vk_value_ld(b, op->in[0]),
              (uint32_t)vk_value_ld(b, op->in[1]),
              (uint32_t)vk_value_ld(b, op->in[2]),
              op->q_norm.eps,
              op->k_norm.eps};
    const int heads = a->desc->n_heads + 2 * a->desc->n_kv_heads;
    const int per_group = SPLIT_THREADS / vk_subgroup(b);
    VkDispatch d = attn_dispatch(a, "attn_prep", SPLIT_THREADS, 0);
    d.groups[0] = (uint32_t)((heads + per_group - 1) / per_group);
    d.groups[1] = (uint32_t)a->rows;
    d.push = &push;
    d.push_bytes = sizeof push;
    vk_dispatch(b, &d);
}

/* n: rows, or segments at most. */
static void emit_split(const AttnBuild *a, int n, uint32_t flags)
{
    const GpuOp *op = a->op;
    VkBuild *b = a->b;
    const AttnDesc *desc = a->desc;
    const int64_t heads = (int64_t)n * desc->n_heads;
    /* eight groups a unit fill the device while each waits for its keys */
    const int64_t fill = i64_min(32, i64_max(4, (int64_t)vk_units(b) * 8 / heads));
    const int64_t splits = vk_deterministic(b) ? 1 : fill;
    const struct {
        VkPtr q, k, v, q_norm, k_norm, rope, step, kc, vc, part, sinks, y, tickets;
        uint32_t ldy;
        float scale, softcap, q_eps, k_eps;
    } push = {(flags & FLAG_FOLD) != 0 ? vk_value(b, op->in[0]) : a->q,
              vk_value(b, op->in[1]),
              vk_value(b, op->in[2]),
              vk_vec(b, op->q_norm.vec),
              vk_vec(b, op->k_norm.vec),
              rope_of(a),
              vk_step(b),
              a->kv.k,
              a->kv.v,
              vk_work(b, splits > 1 ? heads * splits * (desc->v_dim + 2) * 4 : 0),
              vk_vec(b, desc->sinks),
              vk_value(b, op->out),
              vk_counters(b, (int)heads),
              (uint32_t)vk_value_ld(b, op->out),
              desc->scale,
              desc->softcap,
              op->q_norm.eps,
              op->k_norm.eps};
    VkDispatch d = attn_dispatch(a, "attn_split", SPLIT_THREADS, flags);
    d.spec[14] = (uint32_t)splits;
    d.groups[0] = (uint32_t)desc->n_heads;
    d.groups[1] = (uint32_t)splits;
    d.groups[2] = (uint32_t)n;
    d.push = &push;
    d.push_bytes = sizeof push;
    vk_dispatch(b, &d);
}

static int pow2_below(int n)
{
    int p = 1;
    while (p * 2 <= n)
        p *= 2;
    return p;
}

static void emit_tile(const AttnBuild *a, int max_segs)
{
    const GpuOp *op = a->op;
    VkBuild *b = a->b;
    const struct {
        VkPtr q, step, kc, vc, sinks, y;
        uint32_t ldy;
        float scale, softcap;
    } push = {a->q,
              vk_step(b),
              a->kv.k,
              a->kv.v,
              vk_vec(b, a->desc->sinks),
              vk_value(b, op->out),
              (uint32_t)vk_value_ld(b, op->out),
              a->desc->scale,
              a->desc->softcap};
    /* 16 KiB of queries, 8 KiB of keys or values, 4 KiB of scores */
    const int wide = (int)i64_max(a->desc->head_dim, a->desc->v_dim);
    const int elem = vk_kv_format(b) == KV_FORMAT_F32 ? 4 : 2;
    const int q_rows = (int)i64_min(32, pow2_below(4096 / wide));
    const int keys = (int)i64_min(32, pow2_below(8192 / (wide * elem)));
    VkDispatch d = attn_dispatch(a, "attn_tile", TILE_THREADS, FLAG_BY_SEGMENT);
    d.spec[14] = (uint32_t)q_rows;
    d.spec[15] = (uint32_t)keys;
    d.groups[0] = (uint32_t)a->desc->n_heads;
    d.groups[1] = (uint32_t)(a->rows / q_rows + max_segs);
    d.overlap = true; /* beside attn_split, which has other rows */
    d.push = &push;
    d.push_bytes = sizeof push;
    vk_dispatch(b, &d);
}

static bool shapes_fit(VkBuild *b, const GpuOp *op)
{
    const AttnDesc *d = &op->op->u.attn;
    const RopeDesc *q = op->q_rope;
    const RopeDesc *k = op->k_rope;
    if (d->head_dim % 8 != 0 || d->v_dim % 8 != 0 || d->head_dim > HEAD_MAX ||
        d->v_dim > HEAD_MAX || d->head_dim < 8 || d->v_dim < 8) {
        vk_build_fail(b, ERR_UNSUPPORTED,
                      "heads of %d and %d, the Vulkan kernels take multiples of 8 up to %d",
                      d->head_dim, d->v_dim, HEAD_MAX);
        return false;
    }
    if ((q == NULL) != (k == NULL) || (q && q->table != k->table)) {
        vk_build_fail(
            b, ERR_UNSUPPORTED,
            "queries and keys that rotate differently, the Vulkan kernels take one table");
        return false;
    }
    if (vk_local_max(b) < TILE_THREADS) {
        vk_build_fail(b, ERR_UNSUPPORTED, "workgroups of %d invocations, wanted %d",
                      vk_local_max(b), TILE_THREADS);
        return false;
    }
    return true;
}

void vk_emit_attn(VkBuild *b, const GpuOp *op)
{
    if (!shapes_fit(b, op))
        return;
    const AttnDesc *d = &op->op->u.attn;
    const int max_segs = (int)i64_min(vk_step_layout(b)->max_segs, vk_op_rows(b, op));
    AttnBuild a = {
        .b = b,
        .op = op,
        .desc = d,
        .kv = vk_kv(b, d->kv_group, d->kv_layer),
        .rows = vk_op_rows(b, op),
        .flags = (d->softcap > 0.0F ? FLAG_SOFTCAP : 0U) | (d->sinks ? FLAG_SINKS : 0U) |
                 norm_kind(&op->q_norm) << 4 | norm_kind(&op->k_norm) << 6 |
                 (op->q_rope && op->q_rope->pairs ? FLAG_PAIRS : 0U) |
                 (vk_kv_format(b) == KV_FORMAT_F32 ? FLAG_KV_F32 : 0U),
    };
    if (a.rows == 1 && !vk_deterministic(b)) {
        emit_split(&a, 1, FLAG_FOLD);
        return;
    }
    a.q = vk_work(b, (int64_t)a.rows * d->n_heads * d->head_dim * 4);
    emit_prep(&a);
    if (a.rows <= FEW_ROWS || vk_deterministic(b)) {
        emit_split(&a, a.rows, 0);
        return;
    }
    emit_split(&a, max_segs, FLAG_BY_SEGMENT);
    emit_tile(&a, max_segs);
}
