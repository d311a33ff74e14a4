/* LIN: y = x W^T with what the plan folded into it. */
#include "device/vulkan/vk_lin.h"

#include "base/num.h"
#include "device/vulkan/vk_emit.h"

enum { FLAG_ADD = 1, FLAG_BIAS = 2, FLAG_GATHER = 4, FLAG_VEC4 = 8 };
enum { ORDER_NIBBLES, ORDER_BYTES, FORM_F32 }; /* lin_quant.comp */
enum { CHUNK_BYTES = 40 };                     /* 32 quantised activations and their factors */
enum { TILE_COLS = 64, TILE_THREADS = 256 };

/* Kind of quantised codes, as lin_gemv.comp counts them; -1: plain numbers. */
static int code_class(GpuLayout layout)
{
    switch (layout) {
    case GPU_S4:
    case GPU_A4:
    case GPU_E4:
        return 0;
    case GPU_A8:
    case GPU_S8:
        return 1;
    case GPU_K6:
        return 2;
    case GPU_F32:
    case GPU_F16:
    case GPU_BF16:
    case GPU_LAYOUT_COUNT:
        break;
    }
    return -1;
}

bool vk_lin_exact(const VkBuild *b, const Weight *w)
{
    return vk_exact(b) || w->precise;
}

/* Deterministic: one kernel whose rows do not know of each other, whatever the bucket. */
bool vk_lin_is_few(const VkBuild *b, int m)
{
    return m <= VK_LIN_FEW || vk_deterministic(b);
}

bool vk_lin_vec4(const VkBuild *b, int value)
{
    const GpuValue *v = &vk_plan(b)->values[value];
    return v->offset % 16 == 0 && v->ld % 4 == 0;
}

bool vk_lin_inside(const VkBuild *b, int64_t k, int rows)
{
    return rows <= 2 && k / 32 * CHUNK_BYTES * rows + 2048 <= vk_shared_max(b);
}

static bool part_fast(const VkBuild *b, const GpuWeight *gw, int part, bool vec4)
{
    return !vk_lin_exact(b, gw->weight) && !vk_deterministic(b) &&
           code_class(gw->parts[part].layout) >= 0 && gw->k % 32 == 0 && vec4;
}

bool vk_lin_fast(VkBuild *b, const Weight *w, bool vec4)
{
    const GpuWeight *gw = vk_weight(b, w);
    for (int i = 0; gw && i < gw->n_parts; i++)
        if (!part_fast(b, gw, i, vec4))
            return false;
    return gw != NULL;
}

/* Tiles of int8 for many rows. All parts or none, since one list of tiles serves all. */
static bool int_tiles(VkBuild *b, const Weight *w)
{
    return vk_lin_fast(b, w, true);
}

int vk_lin_tile_rows(VkBuild *b, const Weight *w, int rows)
{
    return !int_tiles(b, w) ? 64 : rows > 48 ? 128 : 32;
}

static uint32_t norm_kind(const GpuNorm *n)
{
    return n->eps <= 0.0F ? 0 : n->vec ? 1 : 2;
}

static void part_spec(VkDispatch *d, const GpuPart *p)
{
    d->spec[3] = (uint32_t)p->layout;
    d->spec[4] = (uint32_t)p->scale;
    d->spec[5] = p->group > 0 ? (uint32_t)p->group : 32;
    d->spec[6] = (uint32_t)(p->code_stride / 4);
    d->spec[7] = (uint32_t)(p->scale_stride / 4);
}

/* x of the product in another form, [m][k] (k: floats of a row of the result). 0 when it failed. */
typedef struct PackPush {
    VkPtr x, nw, q, rows, share, limit;
    uint32_t ldx, m, has_limit;
    float eps;
} PackPush;

static VkPtr pack(VkBuild *b, const VkProduct *p, int form, int m, int64_t k, bool *overlap)
{
    const bool f32 = form == FORM_F32;
    const bool by_share = p->experts == VK_EXPERTS_DOWN && vk_lin_is_few(b, p->m);
    const int64_t bytes = f32 ? m * k * 4 : m * (k / 32) * CHUNK_BYTES;
    const uint32_t norm = norm_kind(&p->norm);
    bool fresh = true;
    /* an unweighted norm and a gather make other numbers of the same value */
    const int key = form + (norm == 2 ? 4 : 0) + (p->has_gather ? 8 : 0);
    const VkPtr q = p->value >= 0
                        ? vk_packed(b, p->value, norm == 1 ? p->norm.vec : NULL, key, bytes, &fresh)
                        : vk_work(b, bytes);
    if (!fresh)
        return q;
    const PackPush push = {
        .x = p->x,
        .nw = vk_vec(b, p->norm.vec),
        .q = q,
        .rows = p->gather,
        .share = p->shares,
        .limit = p->limit,
        .ldx = (uint32_t)p->ldx,
        .m = (uint32_t)m,
        .has_limit = p->experts == VK_EXPERTS_DOWN ? 0 : 1,
        .eps = p->norm.eps,
    };
    VkDispatch d = {
        .shader = "lin_quant",
        .n_spec = 8,
        .groups = {(uint32_t)m, 1, 1},
        .overlap = *overlap,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.spec[0] = k > 2048 && vk_local_max(b) >= 512 ? 512 : 256;
    d.spec[1] = (uint32_t)vk_subgroup(b);
    d.spec[2] = (uint32_t)k;
    d.spec[3] = (uint32_t)form;
    d.spec[4] = norm;
    d.spec[5] = (p->has_gather ? FLAG_GATHER : 0U) | (p->vec4 ? FLAG_VEC4 : 0U);
    d.spec[6] = by_share ? (uint32_t)p->top_k : 0;
    d.spec[7] = vk_has_mixed_dot(b);
    vk_dispatch(b, &d);
    *overlap = true;
    return q;
}

/* Rows of y: tokens, or pairs where each choice is a row of its own. */
static int product_rows(const VkBuild *b, const VkProduct *p)
{
    const bool pairs =
        p->experts == VK_EXPERTS_UP || (p->experts == VK_EXPERTS_DOWN && !vk_lin_is_few(b, p->m));
    return pairs ? p->m * p->top_k : p->m;
}

static uint32_t ending(const VkProduct *p)
{
    return (p->has_add ? FLAG_ADD : 0U) | (p->weight->bias ? FLAG_BIAS : 0U);
}

/* Modules of lin_gemv: the shapes that were best for these sizes (NVIDIA H200, 132 units). */
typedef struct GemvShape {
    int rows, weight_rows, ahead; /* R, RW, D */
    int threads, groups;
} GemvShape;

static GemvShape gemv_shape(const VkBuild *b, const VkProduct *p, int64_t n, int64_t k)
{
    const bool large = vk_units(b) >= 64;
    GemvShape s = {.rows = p->experts ? 1 : gpu_bucket(p->m)};
    s.weight_rows = s.rows > 1 || p->silu ? 2 : 1;
    s.threads = large ? 512 : 256;
    s.groups = vk_units(b) * (large ? 2 : 4);
    if (s.rows == 1) {
        s.ahead = p->silu || n > 16384 || n * k / 32 < 1 << 19 ? 4 : 2;
        if (k > 8192 && large)
            s.threads = 1024;
        else if (norm_kind(&p->norm) != 0 && n <= 16384 && !p->silu)
            s.threads = 256, s.ahead = 4;
    } else {
        s.ahead = s.rows == 8 ? 1 : 2;
        if (s.rows >= 4)
            s.threads = 256, s.groups = vk_units(b) * 4;
    }
    while (s.threads > vk_local_max(b))
        s.threads /= 2;
    return s;
}

static const char *gemv_module(int class, const GemvShape *s)
{
    static const char *const names[3][6] = {
        {"lin_nib_1_1_4", "lin_nib_1_1_2", "lin_nib_1_2_4", "lin_nib_2", "lin_nib_4", "lin_nib_8"},
        {"lin_byte_1_1_4", "lin_byte_1_1_2", "lin_byte_1_2_4", "lin_byte_2", "lin_byte_4",
         "lin_byte_8"},
        {"lin_k6_1_1_4", "lin_k6_1_1_2", "lin_k6_1_2_4", "lin_k6_2", "lin_k6_4", "lin_k6_8"},
    };
    if (s->rows == 1)
        return names[class][s->weight_rows == 2 ? 2 : s->ahead == 2 ? 1 : 0];
    return names[class][s->rows == 2 ? 3 : s->rows == 4 ? 4 : 5];
}

typedef struct GemvPush {
    VkPtr w, s, x, nw, xq, y, add, bias, rows, logits;
    uint32_t n, n0, ldx, ldy, lda, m, ldl;
    float eps;
} GemvPush;

static void emit_gemv(VkBuild *b, const VkProduct *p, const GpuWeight *gw, int part, bool inside,
                      VkPtr packed, bool overlap)
{
    const VkPart vp = vk_weight_part(b, gw, part);
    const int64_t n = vp.part->rows;
    const int64_t k = p->experts == VK_EXPERTS_DOWN ? (int64_t)gw->k * p->top_k : gw->k;
    const GemvShape s = gemv_shape(b, p, n, k);
    const int m = product_rows(b, p);
    const GemvPush push = {
        .w = vp.codes,
        .s = vp.scales,
        .x = p->x,
        .nw = vk_vec(b, p->norm.vec),
        .xq = packed,
        .y = p->y,
        .add = p->add,
        .bias = vk_bias(b, p->weight),
        .rows = p->experts ? p->ids : p->gather,
        .logits = p->routed ? p->shares : p->logits,
        .n = (uint32_t)n,
        .n0 = (uint32_t)vp.part->row0,
        .ldx = (uint32_t)p->ldx,
        .ldy = (uint32_t)p->ldy,
        .lda = (uint32_t)p->lda,
        .m = (uint32_t)m,
        .ldl = (uint32_t)p->ldl,
        .eps = p->norm.eps,
    };
    const int64_t cols = p->silu ? n / 2 : n;
    const int64_t blocks = (cols * (p->silu ? 2 : 1) + s.weight_rows - 1) / s.weight_rows;
    const int64_t per_group = s.threads / vk_subgroup(b);
    const int64_t down = p->experts ? m : 1;
    const int64_t most = i64_max(1, (s.groups + down - 1) / down);
    VkDispatch d = {
        .shader = gemv_module(code_class(vp.part->layout), &s),
        .n_spec = 16,
        .overlap = overlap,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.groups[0] = (uint32_t)i64_min(most, (blocks + per_group - 1) / per_group);
    d.groups[1] = (uint32_t)down;
    d.spec[0] = (uint32_t)s.threads;
    d.spec[1] = (uint32_t)vk_subgroup(b);
    d.spec[2] = (uint32_t)k;
    part_spec(&d, vp.part);
    d.spec[8] = inside ? 1 + norm_kind(&p->norm) : 0;
    d.spec[9] = p->silu;
    d.spec[10] = ending(p) | (p->has_gather && inside ? FLAG_GATHER : 0U);
    d.spec[11] = p->experts;
    d.spec[12] = p->experts ? (uint32_t)p->top_k : 1;
    d.spec[13] = p->experts && !p->routed ? (uint32_t)p->n_experts : 0;
    d.spec[14] = p->renorm;
    d.spec[15] = vk_has_mixed_dot(b);
    vk_dispatch(b, &d);
}

typedef struct GenPush {
    VkPtr w, s, x, nw, y, add, bias, rows, ids, weight;
    uint32_t n, n0, ldx, ldy, lda, m;
    float eps;
} GenPush;

static void emit_gen(VkBuild *b, const VkProduct *p, const GpuWeight *gw, int part, bool overlap)
{
    const VkPart vp = vk_weight_part(b, gw, part);
    const int m = product_rows(b, p);
    /* deterministic: the module must not follow from the number of rows */
    const bool four = !p->experts && (m > 1 || vk_deterministic(b));
    const GenPush push = {
        .w = vp.codes,
        .s = vp.scales,
        .x = p->x,
        .nw = vk_vec(b, p->norm.vec),
        .y = p->y,
        .add = p->add,
        .bias = vk_bias(b, p->weight),
        .rows = p->gather,
        .ids = p->ids,
        .weight = p->shares,
        .n = (uint32_t)vp.part->rows,
        .n0 = (uint32_t)vp.part->row0,
        .ldx = (uint32_t)p->ldx,
        .ldy = (uint32_t)p->ldy,
        .lda = (uint32_t)p->lda,
        .m = (uint32_t)m,
        .eps = p->norm.eps,
    };
    const int64_t down = four ? (m + 3) / 4 : m;
    const int64_t per_group = 256 / vk_subgroup(b);
    const int64_t blocks = (vp.part->rows + (four ? 1 : 3)) / (four ? 2 : 4);
    const int64_t most = i64_max(1, vk_units(b) * 8 / down);
    VkDispatch d = {
        .shader = four ? "lin_gen_4" : "lin_gen_1",
        .n_spec = 13,
        .overlap = overlap,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.groups[0] = (uint32_t)i64_min(most, (blocks + per_group - 1) / per_group);
    d.groups[1] = (uint32_t)down;
    d.spec[0] = 256;
    d.spec[1] = (uint32_t)vk_subgroup(b);
    d.spec[2] = (uint32_t)gw->k;
    part_spec(&d, vp.part);
    d.spec[8] = norm_kind(&p->norm);
    d.spec[9] = p->silu;
    d.spec[10] = ending(p) | (p->has_gather ? FLAG_GATHER : 0U) | (p->vec4 ? FLAG_VEC4 : 0U);
    d.spec[11] = p->experts;
    d.spec[12] = p->experts ? (uint32_t)p->top_k : 1;
    vk_dispatch(b, &d);
}

typedef struct TilePush {
    VkPtr w, s, x, y, add, bias, list, limit;
    uint32_t n, n0, ldx, ldy, lda, m, list_pairs;
} TilePush;

/* x: packed [source rows][k / 32 chunks] of int8, or f32 rows. */
static void emit_tile(VkBuild *b, const VkProduct *p, const GpuWeight *gw, int part, VkPtr x,
                      int ldx, bool vec4, int tile_rows, bool overlap)
{
    const VkPart vp = vk_weight_part(b, gw, part);
    const int64_t n = vp.part->rows;
    const bool ints = int_tiles(b, p->weight);
    const TilePush push = {
        .w = vp.codes,
        .s = vp.scales,
        .x = x,
        .y = p->y,
        .add = p->add,
        .bias = vk_bias(b, p->weight),
        .list = p->list,
        .limit = p->limit,
        .n = (uint32_t)n,
        .n0 = (uint32_t)vp.part->row0,
        .ldx = (uint32_t)ldx,
        .ldy = (uint32_t)p->ldy,
        .lda = (uint32_t)p->lda,
        .m = (uint32_t)p->m,
        .list_pairs = (uint32_t)p->list_pairs,
    };
    const int64_t cols = p->silu ? n / 2 : n;
    const int64_t width = p->silu ? TILE_COLS / 2 : TILE_COLS;
    VkDispatch d = {
        .shader = !ints              ? "lin_tile"
                  : tile_rows == 128 ? "lin_itile_128"
                                     : "lin_itile_32",
        .n_spec = 12,
        .overlap = overlap,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.groups[0] = (uint32_t)((cols + width - 1) / width);
    d.groups[1] = (uint32_t)(p->experts ? p->max_tiles : (p->m + tile_rows - 1) / tile_rows);
    d.spec[0] = TILE_THREADS;
    d.spec[1] = (uint32_t)vk_subgroup(b);
    d.spec[2] = (uint32_t)gw->k;
    part_spec(&d, vp.part);
    d.spec[8] = p->silu;
    d.spec[9] = ending(p) | (vec4 ? FLAG_VEC4 : 0U);
    d.spec[10] = p->experts;
    d.spec[11] = p->experts ? (uint32_t)p->top_k : 1;
    vk_dispatch(b, &d);
}

static void product_many(VkBuild *b, const VkProduct *p, const GpuWeight *gw)
{
    const int m = p->experts == VK_EXPERTS_DOWN ? p->m * p->top_k : p->m; /* rows of x */
    const bool ints = int_tiles(b, p->weight);
    const int per = p->experts ? (int)i64_max(1, (int64_t)p->m * p->top_k / p->n_experts) : m;
    const int tile_rows = vk_lin_tile_rows(b, p->weight, per);
    bool overlap = false;
    VkPtr x = p->x;
    int ldx = p->ldx;
    bool vec4 = p->vec4;
    if (ints) {
        x = pack(b, p, ORDER_BYTES, m, gw->k, &overlap);
        ldx = m; /* where the factors begin */
    } else if (p->has_gather || norm_kind(&p->norm) != 0) {
        x = pack(b, p, FORM_F32, m, gw->k, &overlap);
        ldx = gw->k;
        vec4 = ldx % 4 == 0;
    }
    for (int i = 0; i < gw->n_parts; i++)
        emit_tile(b, p, gw, i, x, ldx, vec4, tile_rows, i > 0);
}

static void product_few(VkBuild *b, const VkProduct *p, const GpuWeight *gw)
{
    const int rows = p->experts ? 1 : gpu_bucket(p->m);
    const int64_t k = p->experts == VK_EXPERTS_DOWN ? (int64_t)gw->k * p->top_k : gw->k;
    const bool inside = p->experts == VK_EXPERTS_UP || vk_lin_inside(b, k, rows);
    VkPtr packed[2] = {0, 0}; /* by order */
    bool is_packed[2] = {false, false};
    bool overlap = false;
    for (int i = 0; i < gw->n_parts; i++) {
        const int order = code_class(gw->parts[i].layout) == 1 ? ORDER_BYTES : ORDER_NIBBLES;
        if (inside || !part_fast(b, gw, i, p->vec4) || is_packed[order])
            continue;
        packed[order] = pack(b, p, order, p->m, k, &overlap);
        is_packed[order] = true;
    }
    for (int i = 0; i < gw->n_parts; i++) {
        const int order = code_class(gw->parts[i].layout) == 1 ? ORDER_BYTES : ORDER_NIBBLES;
        if (part_fast(b, gw, i, p->vec4))
            emit_gemv(b, p, gw, i, inside, packed[order], i > 0);
        else
            emit_gen(b, p, gw, i, i > 0);
    }
}

/* gate and up in different parts: both to work memory, then one more dispatch. */
static void product_split_silu(VkBuild *b, const VkProduct *p)
{
    const int n = (int)p->weight->n;
    const int m = product_rows(b, p);
    VkProduct q = *p;
    q.silu = false;
    q.y = vk_work(b, (int64_t)m * n * 4);
    q.ldy = n;
    vk_lin_product(b, &q);
    const struct {
        VkPtr x, y;
        uint32_t n, ldx, ldy;
    } push = {q.y, p->y, (uint32_t)n / 2, (uint32_t)n, (uint32_t)p->ldy};
    VkDispatch d = {
        .shader = "lin_silu",
        .spec = {256, (uint32_t)vk_subgroup(b)},
        .n_spec = 2,
        .groups = {(uint32_t)((n / 2 + 255) / 256), (uint32_t)m, 1},
        .push = &push,
        .push_bytes = sizeof push,
    };
    vk_dispatch(b, &d);
}

void vk_lin_product(VkBuild *b, const VkProduct *p)
{
    const GpuWeight *gw = vk_weight(b, p->weight);
    if (!gw)
        return;
    if (vk_local_max(b) < TILE_THREADS) {
        vk_build_fail(b, ERR_UNSUPPORTED, "vulkan: workgroups of %d invocations, wanted %d",
                      vk_local_max(b), TILE_THREADS);
        return;
    }
    if (p->silu && gw->n_parts > 1)
        product_split_silu(b, p);
    else if (vk_lin_is_few(b, p->m))
        product_few(b, p, gw);
    else
        product_many(b, p, gw);
}

void vk_emit_lin(VkBuild *b, const GpuOp *op)
{
    const VkPtr step = vk_step(b);
    const bool out_axis = op->axis == AXIS_OUT_ROWS;
    const VkProduct p = {
        .weight = op->weight,
        .x = vk_value(b, op->in[0]),
        .value = op->in[0],
        .ldx = vk_value_ld(b, op->in[0]),
        .m = vk_op_rows(b, op),
        .norm = op->norm,
        .vec4 = vk_lin_vec4(b, op->in[0]),
        .has_gather = op->gather,
        .gather = op->gather ? step + (VkPtr)vk_step_layout(b)->out_rows * 4 : 0,
        .limit = step + (VkPtr)(out_axis ? GPU_STEP_N_OUT : GPU_STEP_N_ROWS) * 4,
        .y = vk_value(b, op->out),
        .ldy = vk_value_ld(b, op->out),
        .has_add = op->in[1] >= 0,
        .add = vk_value(b, op->in[1]),
        .lda = op->in[1] >= 0 ? vk_value_ld(b, op->in[1]) : 0,
        .silu = op->silu,
    };
    vk_lin_product(b, &p);
}
