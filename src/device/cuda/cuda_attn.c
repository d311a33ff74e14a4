/* Attention: which kernels run for how many rows.
 *
 *   fast, at most 8 rows   attn_decode for every row
 *   fast, more rows        attn_decode for segments of one row; attn_prepare and attn_flash for the
 *                          others
 *   fast, deterministic    attn_prepare and attn_flash, the cache always cut alike
 *   exact, other shapes    attn_prepare and attn_general
 *
 * Deterministic: attn_flash and attn_general take blocks of keys at fixed positions, block j by CTA
 * j modulo the cluster, and join in a fixed order; with a cluster of fixed size a row's result
 * depends on nothing but its own query, position and keys. attn_decode cuts by the bucket and is
 * not used then. */
#include "device/cuda/cuda_emit.h"
#include "device/cuda/kernels/attn_params.h"

enum { CLUSTER = 8, HEAD_DIM_MAX = 512 };

static bool is_fast(const CudaBuild *b, const AttnParams *p)
{
    return !cuda_exact(b) && !p->f32_cache && cuda_arch(b) >= 80 && p->head_dim == p->v_dim &&
           (p->head_dim == 64 || p->head_dim == 128 || p->head_dim == 256);
}

static int shift_of(int page_tokens)
{
    int shift = 0;
    while (1 << shift < page_tokens)
        shift++;
    return shift;
}

static AttnParams params_of(CudaBuild *b, const GpuOp *op)
{
    const AttnDesc *a = &op->op->u.attn;
    const GpuStepLayout *l = cuda_step_layout(b);
    const CudaKv kv = cuda_kv(b, a->kv_group, a->kv_layer);
    const RopeDesc *rope = op->q_rope;
    return (AttnParams){
        .q = cuda_value(b, op->in[0]),
        .k = cuda_value(b, op->in[1]),
        .v = cuda_value(b, op->in[2]),
        .out = cuda_value(b, op->out),
        .cache_k = kv.k,
        .cache_v = kv.v,
        .q_norm = cuda_vec(b, op->q_norm.vec),
        .k_norm = cuda_vec(b, op->k_norm.vec),
        .sinks = cuda_vec(b, a->sinks),
        .rope = rope ? cuda_rope_table(b, rope->table) : 0,
        .step = cuda_step(b),
        .ldq = cuda_value_ld(b, op->in[0]),
        .ldk = cuda_value_ld(b, op->in[1]),
        .ldv = cuda_value_ld(b, op->in[2]),
        .ldo = cuda_value_ld(b, op->out),
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .v_dim = a->v_dim,
        .page_shift = shift_of(kv.page_tokens),
        .f32_cache = cuda_kv_format(b) == KV_FORMAT_F32,
        .window = a->window,
        .rot_dim = rope ? rope->rot_dim : 0,
        .rope_pairs = rope && rope->pairs,
        .scale = a->scale,
        .softcap = a->softcap,
        .q_eps = op->q_norm.eps,
        .k_eps = op->k_norm.eps,
        .seg_at = l->seg,
        .slots_at = l->slots[a->kv_group],
        .segs_at = l->segs,
        .pages_word = GPU_SEG_PAGES + a->kv_group,
        .rows = cuda_bucket_rows(b),
        .cluster = 1,
        .min_rows = 1,
    };
}

static bool check(CudaBuild *b, const GpuOp *op)
{
    const AttnDesc *a = &op->op->u.attn;
    if ((op->q_rope != NULL) != (op->k_rope != NULL)) {
        cuda_build_fail(b, ERR_UNSUPPORTED, "cuda: %s: only one of q and k is rotated", op->name);
        return false;
    }
    if (a->head_dim % 8 != 0 || a->v_dim % 8 != 0 || a->head_dim > HEAD_DIM_MAX ||
        a->v_dim > HEAD_DIM_MAX || a->head_dim < 8 || a->v_dim < 8) {
        cuda_build_fail(b, ERR_UNSUPPORTED,
                        "cuda: %s: heads of %d and %d, wanted multiples of 8 up to %d", op->name,
                        a->head_dim, a->v_dim, HEAD_DIM_MAX);
        return false;
    }
    return true;
}

static void launch(CudaBuild *b, const AttnParams *p, const char *kernel, int x, int y, int z,
                   int block, int64_t smem)
{
    cuda_launch(b, &(CudaLaunch){.kernel = kernel,
                                 .grid = {x, y, z},
                                 .block = block,
                                 .smem = (int)smem,
                                 .cluster = p->cluster > 1 ? p->cluster : 0,
                                 .programmatic = true,
                                 .params = p,
                                 .params_bytes = sizeof *p});
}

/* Tiles of `size` entries, at most: each segment may leave one that is not full. */
static int tiles(const CudaBuild *b, const AttnParams *p, int per_row, int size)
{
    const int64_t segs = i64_min(cuda_plan(b)->graph->max_segs, p->rows / p->min_rows);
    return (int)((int64_t)p->rows * per_row / size + i64_max(1, segs));
}

static void prepare(CudaBuild *b, AttnParams *p, bool half)
{
    const int heads = p->n_heads + 2 * p->n_kv_heads;
    AttnParams q = *p;
    q.cluster = 1;
    p->q_ready = q.q_ready =
        cuda_work(b, (int64_t)p->rows * p->n_heads * p->head_dim * (half ? 2 : 4));
    launch(b, &q, half ? "attn_prepare_f16" : "attn_prepare_f32", (heads + 7) / 8, p->rows, 1, 256,
           (int64_t)2 * 8 * 4 * (p->head_dim > p->v_dim ? p->head_dim : p->v_dim));
}

/* Bytes of struct Flash<head_dim>. */
static int64_t flash_smem(int head_dim)
{
    const int64_t keys = head_dim > 128 ? 32 : 64;
    const int64_t q_rows = head_dim > 128 ? ATTN_FLASH_ROWS : 1;
    const int64_t in = (4 * keys + q_rows) * head_dim * 2;
    return i64_max(in, (int64_t)ATTN_FLASH_ROWS * head_dim * 4) + 2 * ATTN_FLASH_ROWS * 4 +
           2 * keys * 8;
}

static void flash(CudaBuild *b, AttnParams *p)
{
    prepare(b, p, true);
    launch(b, p,
           p->head_dim == 64    ? "attn_flash_64"
           : p->head_dim == 128 ? "attn_flash_128"
                                : "attn_flash_256",
           p->cluster, p->n_heads, tiles(b, p, 1, ATTN_FLASH_ROWS), 128, flash_smem(p->head_dim));
}

/* Bytes of struct Decode<head_dim>. */
static int64_t decode_smem(int head_dim)
{
    enum { WARPS = 4, H = ATTN_DECODE_HEADS };
    const int64_t floats = (int64_t)WARPS * H * head_dim + 2 * H + 2 * WARPS * H + WARPS * head_dim;
    const int64_t halves = (int64_t)H * (head_dim + 32) + (int64_t)WARPS * H * 24 +
                           2 * (int64_t)ATTN_DECODE_ROWS * head_dim;
    return 4 * floats + 2 * halves;
}

/* How a row's cache is cut, by the longest there may be. H200, tok/s of Llama 8B at 64, 512 and
 * 8,192 tokens: clusters of 2 and 2 heads a CTA 606, 539, 375; 8 and 2 602, 580, 368; 4 and 4 600,
 * 562, 415. Few heads a CTA shorten what each does before the first score; K and V come from L2
 * again. */
static void cut(const CudaBuild *b, AttnParams *p, int share)
{
    const int kv = cuda_kv_max(b);
    p->heads = (int)i64_min(share, kv > CUDA_KV_MIDDLE ? ATTN_DECODE_HEADS : 2);
    p->cluster = 1;
    if (cuda_arch(b) >= 90)
        p->cluster = kv <= CUDA_KV_SHORT ? 2 : kv <= CUDA_KV_MIDDLE ? CLUSTER : 4;
}

/* n_z rows or segments. As many CTAs as the registers allow at once keep a long cache in flight; a
 * short one is left to the first cluster by the kernel. */
static void decode(CudaBuild *b, AttnParams p, int n_z)
{
    const int share = p.n_heads / p.n_kv_heads;
    cut(b, &p, share);
    const int n_y = p.n_kv_heads * ((share + p.heads - 1) / p.heads);
    const int64_t units = (int64_t)n_y * n_z;
    const int64_t want = (int64_t)cuda_sms(b) * (p.head_dim == 64 ? 4 : p.head_dim == 128 ? 3 : 2);
    while (p.cluster > 2 && units * p.cluster > 4 * want)
        p.cluster /= 2;
    const int64_t room = p.cluster > 4 ? 8 : 16;
    const int64_t groups = i64_max(1, i64_min(room, want / (units * p.cluster)));
    if (groups > 1) {
        p.partials = cuda_work(b, units * groups * ATTN_DECODE_HEADS * (p.head_dim + 2) * 4);
        p.counters = cuda_counters(b, (int)units);
    }
    launch(b, &p,
           p.head_dim == 64    ? "attn_decode_64"
           : p.head_dim == 128 ? "attn_decode_128"
                               : "attn_decode_256",
           (int)groups * p.cluster, n_y, n_z, 128, decode_smem(p.head_dim));
}

static void fast(CudaBuild *b, AttnParams *p)
{
    if (cuda_deterministic(b)) {
        p->cluster = cuda_arch(b) >= 90 ? CLUSTER : 1;
        flash(b, p);
        return;
    }
    if (p->rows <= ATTN_DECODE_ROWS) {
        decode(b, *p, p->rows);
        return;
    }
    /* One segment alone has more rows than the bucket below. */
    const int max_segs = cuda_plan(b)->graph->max_segs;
    if (max_segs > 1) {
        p->by_segment = 1;
        p->min_rows = 2;
        decode(b, *p, (int)i64_min(max_segs, p->rows));
    }
    /* Few tiles share a long cache in clusters. */
    const int64_t ctas = (int64_t)p->n_heads * ((p->rows + ATTN_FLASH_ROWS - 1) / ATTN_FLASH_ROWS);
    p->cluster = 1;
    while (cuda_arch(b) >= 90 && p->cluster < CLUSTER &&
           ctas * p->cluster * 2 <= 3 * (int64_t)cuda_sms(b))
        p->cluster *= 2;
    flash(b, p);
}

static void general(CudaBuild *b, AttnParams *p)
{
    const int dim = p->head_dim > p->v_dim ? p->head_dim : p->v_dim;
    const int entries = dim <= 128 ? 32 : dim <= 256 ? 16 : 8;
    const int64_t smem =
        4 * ((int64_t)entries * p->head_dim + 32 * ((int64_t)dim + 4) + 2 * (int64_t)entries);
    /* Few rows share a long cache; many fill the device and would only join more often. */
    if (cuda_arch(b) >= 90)
        p->cluster = cuda_deterministic(b) || p->rows <= 128 ? CLUSTER : 2;
    prepare(b, p, false);
    launch(b, p,
           dim <= 128   ? "attn_general_128"
           : dim <= 256 ? "attn_general_256"
                        : "attn_general_512",
           p->cluster, p->n_kv_heads, tiles(b, p, p->n_heads / p->n_kv_heads, entries), 256, smem);
}

void cuda_emit_attn(CudaBuild *b, const GpuOp *op)
{
    if (!check(b, op))
        return;
    AttnParams p = params_of(b, op);
    if (is_fast(b, &p))
        fast(b, &p);
    else
        general(b, &p);
}
