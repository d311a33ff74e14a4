/* Products with many rows, on matrix instructions: which shapes run, and the steps around them.
 *
 *   LIN   pack x once (f16 under a scale per row, norm folded in; bf16 where weights are bf16 or
 *         MXFP4, whose range f16 has not) -> one product for each part of the weight
 *   MOE   pack x -> top-k -> lists by expert, cut into tiles -> gate, up and silu -> pack -> down
 *         -> weighted sum of each row's experts
 *
 * f16 carries 11 bits where bf16 carries 8: the error of a product is 3e-4 instead of 2e-3. Not
 * deterministic across numbers of rows: shape and splits of k follow from them. */
#include "base/num.h"
#include "device/cuda/cuda_emit.h"
#include "device/cuda/kernels/gemm_params.h"

#include <stdio.h>

enum {
    LIN_ROWS_MIN = 5,
    MOE_ROWS_MIN = 9,
    FORM_F16 = 16, /* cuda_packed's forms of this file: 16 .. 31 */
    FORM_BF16 = 1,
    FORM_GATHER = 2,
    FORM_NORM = 4,
    SPLITS_MAX = 16,
    PARTIAL_MAX = 64 << 20 /* bytes of accumulators between splits */
};

/* ---- layouts and shapes ---- */

typedef enum { CODE_W4, CODE_E4, CODE_W8, CODE_K6, CODE_F16, CODE_BF16, CODE_COUNT } Code;

static const struct {
    const char *name;
    int bytes; /* of a chunk of a row */
    int step;  /* k is a multiple of it */
    bool bf16;
} codes[CODE_COUNT] = {
    [CODE_W4] = {"w4", GEMM_BYTES_W4, 32, false},   [CODE_E4] = {"e4", GEMM_BYTES_E4, 32, true},
    [CODE_W8] = {"w8", GEMM_BYTES_W8, 32, false},   [CODE_K6] = {"k6", GEMM_BYTES_K6, 256, false},
    [CODE_F16] = {"f16", GEMM_BYTES_16, 16, false}, [CODE_BF16] = {"bf16", GEMM_BYTES_16, 16, true},
};

static Code code_of(GpuLayout l)
{
    switch (l) {
    case GPU_A4:
    case GPU_S4:
        return CODE_W4;
    case GPU_E4:
        return CODE_E4;
    case GPU_A8:
    case GPU_S8:
        return CODE_W8;
    case GPU_K6:
        return CODE_K6;
    case GPU_F16:
        return CODE_F16;
    case GPU_BF16:
        return CODE_BF16;
    case GPU_F32:
    case GPU_LAYOUT_COUNT:
        break;
    }
    return CODE_COUNT;
}

typedef struct Shape {
    const char *name;
    int mt, nt, wn, wk;
} Shape;

#define SHAPE(name, mt, nt, wn, wk) {#name, mt, nt, wn, wk},
static const Shape shapes[] = {GEMM_SHAPES(SHAPE)};
#undef SHAPE
enum { SHAPE_K16, SHAPE_K32, SHAPE_N32, SHAPE_N64, SHAPE_N128 };

static int shape_smem(const Shape *s, Code c)
{
    return GEMM_SMEM_BYTES(s->mt, s->nt, s->wn, s->wk, codes[c].bytes);
}

/* `first`, or where its shared memory is more than the device has (16-bit weights on chips with 99
 * KiB) one of fewer rows; all have n32. */
static const Shape *shape_that_fits(const CudaBuild *b, int first, Code c)
{
    const int max = cuda_smem_max(b);
    for (int i = first; i > SHAPE_N32; i--)
        if (shape_smem(&shapes[i], c) <= max)
            return &shapes[i];
    return shape_smem(&shapes[first], c) <= max ? &shapes[first] : &shapes[SHAPE_N32];
}

static const Shape *shape_for_rows(const CudaBuild *b, int rows, Code c)
{
    const int first = rows <= 16   ? SHAPE_K16
                      : rows <= 32 ? SHAPE_K32
                      : rows <= 64 ? SHAPE_N64
                                   : SHAPE_N128;
    return shape_that_fits(b, first, c);
}

/* Experts have a share of the rows each. Their tiles are half empty on average, so that smaller
 * ones pay earlier. */
static const Shape *shape_for_experts(const CudaBuild *b, int rows, const MoeDesc *m, Code c)
{
    const int64_t each = (int64_t)rows * m->top_k / m->n_experts;
    const int first = each <= 8    ? SHAPE_K16
                      : each <= 40 ? SHAPE_N32
                      : each <= 96 ? SHAPE_N64
                                   : SHAPE_N128;
    return shape_that_fits(b, first, c);
}

/* ---- what can run ---- */

static bool is_weight_ok(const GpuWeight *w)
{
    if (w->weight->precise)
        return false;
    for (int i = 0; i < w->n_parts; i++) {
        const GpuPart *p = &w->parts[i];
        const Code c = code_of(p->layout);
        if (c == CODE_COUNT || w->k % codes[c].step || p->row0 + p->rows > INT32_MAX ||
            p->scale_bytes > UINT32_MAX)
            return false;
        const bool is_pair = p->scale == GPU_SCALE_F16_PAIR || p->scale == GPU_SCALE_BF16_PAIR ||
                             p->scale == GPU_SCALE_F32_PAIR;
        if (is_pair && (p->group < 32 || (p->group & (p->group - 1))))
            return false;
    }
    return true;
}

bool cuda_gemm_can(const CudaBuild *cb, const GpuOp *op)
{
    CudaBuild *b = (CudaBuild *)(uintptr_t)cb;
    if (cuda_exact(b) || cuda_deterministic(b) || cuda_arch(b) < 80 ||
        cuda_smem_max(b) < shape_smem(&shapes[SHAPE_N32], CODE_BF16))
        return false;
    const int rows = cuda_op_rows(b, op);
    if (op->kind == OP_LIN)
        return rows >= LIN_ROWS_MIN && is_weight_ok(cuda_weight(b, op->weight));
    const MoeDesc *m = &op->op->u.moe;
    return op->kind == OP_MOE && rows >= MOE_ROWS_MIN && m->n_experts <= GEMM_EXPERTS_MAX &&
           m->top_k <= GEMM_TOP_MAX && is_weight_ok(cuda_weight(b, m->gate_up)) &&
           is_weight_ok(cuda_weight(b, m->down));
}

/* ---- activations ---- */

/* Rows packed for matrix instructions: what a product reads. */
typedef struct Packed {
    CudaPtr a, row_scale;
    int kp;
} Packed;

static int padded(int k)
{
    return (k + GEMM_CHUNK - 1) / GEMM_CHUNK * GEMM_CHUNK;
}

static int64_t packed_bytes(int rows, int k)
{
    return (int64_t)rows * padded(k) * 2 + (int64_t)rows * 4;
}

static Packed packed_at(CudaPtr at, int rows, int k)
{
    return (Packed){
        .a = at, .row_scale = at + (CudaPtr)((int64_t)rows * padded(k) * 2), .kp = padded(k)};
}

/* Word of the step that counts an operation's rows; 0: all rows of the bucket are wanted. */
static CudaPtr limit_of(const CudaBuild *b, Axis axis)
{
    if (axis == AXIS_ROWS)
        return cuda_step(b) + 4 * GPU_STEP_N_ROWS;
    if (axis == AXIS_OUT_ROWS)
        return cuda_step(b) + 4 * GPU_STEP_N_OUT;
    return 0;
}

static void launch(CudaBuild *b, const char *kernel, int x, int y, int z, int block, int smem,
                   const void *params, size_t bytes)
{
    cuda_launch(b, &(CudaLaunch){.kernel = kernel,
                                 .grid = {x, y, z},
                                 .block = block,
                                 .smem = smem,
                                 .programmatic = true,
                                 .params = params,
                                 .params_bytes = bytes});
}

static void pack(CudaBuild *b, GemmPackParams *p, int rows, int k, bool bf16, Packed to)
{
    p->out = to.a;
    p->row_scale = to.row_scale;
    p->k = k;
    p->kp = to.kp;
    p->bf16 = bf16;
    p->quads = p->x % 16 == 0 && p->ldx % 4 == 0;
    launch(b, "gemm_pack", rows, 1, 1, 256, 0, p, sizeof *p);
}

/* in[0] of LIN and MOE, its norm folded in. */
static Packed pack_input(CudaBuild *b, const GpuOp *op, int rows, int k, bool bf16)
{
    const bool is_normed = op->norm.eps > 0.0F;
    const int form = FORM_F16 | (bf16 ? FORM_BF16 : 0) | (op->gather ? FORM_GATHER : 0) |
                     (is_normed ? FORM_NORM : 0);
    bool fresh = false;
    const CudaPtr at = cuda_packed(b, op->in[0], op->norm.vec, form, packed_bytes(rows, k), &fresh);
    const Packed to = packed_at(at, rows, k);
    if (!fresh)
        return to;
    pack(b,
         &(GemmPackParams){
             .x = cuda_value(b, op->in[0]),
             .norm = is_normed ? cuda_vec(b, op->norm.vec) : 0,
             .gather = op->gather ? cuda_step(b) + 4 * (CudaPtr)cuda_step_layout(b)->out_rows : 0,
             .limit = limit_of(b, op->axis),
             .limit_times = 1,
             .ldx = cuda_value_ld(b, op->in[0]),
             .eps = op->norm.eps},
         rows, k, bf16, to);
    return to;
}

/* ---- products ---- */

/* Splits of k such that all multiprocessors have work. An estimate in chunks: a CTA alone on a
 * multiprocessor hides less of its waiting; each split costs its accumulators' way out and back. */
static int splits_for(const CudaBuild *b, const Shape *s, int64_t tiles, int n_chunks)
{
    const int64_t sms = cuda_sms(b);
    int best = 1;
    double best_cost = 0;
    for (int n = 1; n <= SPLITS_MAX && n * 2 * s->wk <= i64_max(n_chunks, 2 * s->wk); n++) {
        const int64_t bytes = tiles * n * s->mt * s->nt * s->wn * 512;
        if (n > 1 && bytes > PARTIAL_MAX)
            break;
        const int64_t ctas = (tiles * n + sms - 1) / sms;
        const int64_t steps = ((n_chunks + n - 1) / n + s->wk - 1) / s->wk + 2;
        const double cost =
            (double)(ctas * steps) * (ctas == 1 ? 1.5 : 1.0) + (n > 1 ? 1 + 0.25 * n : 0);
        if (n == 1 || cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

static int log2_of(int v)
{
    int shift = 0;
    while (1 << shift < v)
        shift++;
    return shift;
}

/* Rows [from, from + n) of a part as what a product multiplies by. */
static void weight_params(const CudaPart *c, int64_t from, GemmParams *p)
{
    const GpuPart *part = c->part;
    p->codes = c->codes + (CudaPtr)(from * part->code_stride);
    p->scales = c->scales + (CudaPtr)(from * part->scale_stride);
    p->code_stride = part->code_stride;
    p->scale_stride = part->scale_stride;
    p->code_bytes = part->code_bytes;
    p->scale_bytes = part->scale_bytes;
    p->group_shift = log2_of(part->group > 0 ? part->group : 32);
    p->scale_kind = (int32_t)part->scale;
}

/* p: all but k's splits. tiles_m: tiles of rows, or of experts at most. */
static void product(CudaBuild *b, GemmParams *p, Code code, const Shape *s, int64_t tiles_m)
{
    const int cols = s->nt * 8 * s->wn / (p->silu ? 2 : 1);
    const int64_t tiles_n = (p->n + cols - 1) / cols;
    p->splits = p->tiles ? 1 : splits_for(b, s, tiles_m * tiles_n, p->kp / GEMM_CHUNK);
    if (p->splits > 1) {
        const int64_t tiles = tiles_m * tiles_n;
        p->partial = cuda_work(b, tiles * p->splits * s->mt * s->nt * s->wn * 512);
        p->tickets = cuda_counters(b, (int)tiles);
    }
    const CudaPtr touched = p->y | p->add | p->bias | p->bias_up;
    p->quads = touched % 16 == 0 && (p->n | p->ld_y | p->ld_add | p->bias_ld) % 4 == 0;
    if (p->list_div == 0)
        p->list_div = 1;
    if (p->limit_times == 0)
        p->limit_times = 1;
    char name[48];
    (void)snprintf(name, sizeof name, "gemm_%s_%s", codes[code].name, s->name);
    launch(b, name, (int)tiles_m, (int)tiles_n, p->splits, GEMM_THREADS, shape_smem(s, code), p,
           sizeof *p);
}

static int64_t tiles_of(int64_t rows, const Shape *s)
{
    return (rows + s->mt * 16 - 1) / (s->mt * 16);
}

/* Whether W's halves [gate | up] can be multiplied together: each is one run of rows, both in one
 * layout. */
static bool find_halves(CudaBuild *b, const GpuWeight *w, int64_t half, GemmParams *p, Code *code)
{
    if (w->n_parts > 2 || (w->n_parts == 2 && w->parts[0].rows != half))
        return false;
    const CudaPart gate = cuda_weight_part(b, w, 0);
    const CudaPart up = cuda_weight_part(b, w, w->n_parts - 1);
    if (gate.part->layout != up.part->layout || gate.part->scale != up.part->scale ||
        gate.part->group != up.part->group)
        return false;
    weight_params(&up, w->n_parts == 1 ? half : 0, p);
    p->codes_up = p->codes;
    p->scales_up = p->scales;
    const int64_t code_bytes = p->code_bytes;
    weight_params(&gate, 0, p);
    *code = code_of(gate.part->layout);
    return code_bytes == p->code_bytes;
}

/* The parts of a weight one after another, each its columns of y. */
static void products_of_parts(CudaBuild *b, const GpuWeight *w, const GemmParams *all,
                              const GpuOp *op, int rows)
{
    for (int i = 0; i < w->n_parts; i++) {
        const CudaPart part = cuda_weight_part(b, w, i);
        const Code code = code_of(part.part->layout);
        const Shape *s = shape_for_rows(b, rows, code);
        const Packed x = pack_input(b, op, rows, w->k, codes[code].bf16);
        const CudaPtr skip = 4 * (CudaPtr)part.part->row0;
        GemmParams p = *all;
        weight_params(&part, 0, &p);
        p.a = x.a;
        p.row_scale = x.row_scale;
        p.kp = x.kp;
        p.n = (int32_t)part.part->rows;
        p.y += skip;
        p.bias += p.bias ? skip : 0;
        p.add += p.add ? skip : 0;
        product(b, &p, code, s, tiles_of(rows, s));
    }
}

static void emit_silu(CudaBuild *b, const GpuOp *op, const GpuWeight *w, GemmParams *p, int rows)
{
    const int half = (int)(op->weight->n / 2);
    Code code;
    if (find_halves(b, w, half, p, &code)) {
        const Shape *s = shape_for_rows(b, rows, code);
        const Packed x = pack_input(b, op, rows, w->k, codes[code].bf16);
        p->a = x.a;
        p->row_scale = x.row_scale;
        p->kp = x.kp;
        p->n = half;
        p->silu = 1;
        p->bias_up = p->bias ? p->bias + 4 * (CudaPtr)half : 0;
        product(b, p, code, s, tiles_of(rows, s));
        return;
    }
    const int n = half * 2;
    const CudaPtr both = cuda_work(b, (int64_t)rows * n * 4);
    const GemmSiluParams silu = {.x = both,
                                 .up = both + 4 * (CudaPtr)half,
                                 .y = p->y,
                                 .ldx = n,
                                 .ldy = p->ld_y,
                                 .n = half,
                                 .rows = rows};
    p->y = both;
    p->ld_y = n;
    products_of_parts(b, w, p, op, rows);
    launch(b, "gemm_silu", rows, (half + 1023) / 1024, 1, 256, 0, &silu, sizeof silu);
}

void cuda_emit_gemm(CudaBuild *b, const GpuOp *op)
{
    const GpuWeight *w = cuda_weight(b, op->weight);
    const int rows = cuda_op_rows(b, op);
    GemmParams p = {.y = cuda_value(b, op->out),
                    .ld_y = cuda_value_ld(b, op->out),
                    .bias = cuda_bias(b, op->weight),
                    .add = op->in[1] >= 0 ? cuda_value(b, op->in[1]) : 0,
                    .ld_add = op->in[1] >= 0 ? cuda_value_ld(b, op->in[1]) : 0,
                    .limit = limit_of(b, op->axis),
                    .rows = rows,
                    .k = w->k};
    if (op->silu)
        emit_silu(b, op, w, &p, rows);
    else
        products_of_parts(b, w, &p, op, rows);
}

/* ---- experts ---- */

/* Rows sorted by expert: what the experts' products run over. */
typedef struct Routes {
    CudaPtr shares, list, tiles, n_tiles;
    int64_t max_tiles;
} Routes;

static Routes route(CudaBuild *b, const GpuOp *op, int rows, const Shape *s)
{
    const MoeDesc *m = &op->op->u.moe;
    const int64_t pairs = (int64_t)rows * m->top_k;
    const int64_t tile_rows = s->mt * 16;
    /* every expert that has rows may have one tile that is not full */
    Routes r = {.max_tiles = i64_min(
                    pairs, (pairs + i64_min(pairs, m->n_experts) * (tile_rows - 1)) / tile_rows)};
    const CudaPtr ids = cuda_work(b, pairs * 4);
    const CudaPtr counts = cuda_work(b, (int64_t)m->n_experts * 4);
    r.shares = cuda_work(b, pairs * 4);
    r.list = cuda_work(b, (int64_t)m->n_experts * rows * 4);
    r.tiles = cuda_work(b, r.max_tiles * (int64_t)sizeof(GemmTile));
    r.n_tiles = cuda_work(b, 4);
    const CudaPtr limit = limit_of(b, op->axis);
    const GemmRouteParams top = {.logits = cuda_value(b, op->in[1]),
                                 .limit = limit,
                                 .ids = ids,
                                 .shares = r.shares,
                                 .ld = cuda_value_ld(b, op->in[1]),
                                 .rows = rows,
                                 .n_experts = m->n_experts,
                                 .top_k = m->top_k,
                                 .renorm = m->renorm};
    launch(b, "gemm_route", (rows + 3) / 4, 1, 1, 128, 0, &top, sizeof top);
    const GemmListParams list = {.ids = ids,
                                 .limit = limit,
                                 .list = r.list,
                                 .counts = counts,
                                 .tiles = r.tiles,
                                 .n_tiles = r.n_tiles,
                                 .ticket = cuda_counters(b, 1),
                                 .rows = rows,
                                 .n_experts = m->n_experts,
                                 .top_k = m->top_k,
                                 .tile_rows = (int32_t)tile_rows};
    launch(b, "gemm_list", m->n_experts, 1, 1, GEMM_THREADS, 0, &list, sizeof list);
    return r;
}

/* The code of a weight's parts that takes most of shared memory. */
static Code widest(const GpuWeight *w)
{
    Code most = code_of(w->parts[0].layout);
    for (int i = 1; i < w->n_parts; i++) {
        const Code c = code_of(w->parts[i].layout);
        if (codes[c].bytes > codes[most].bytes)
            most = c;
    }
    return most;
}

/* One part of all experts: rows of `a` by the lists, y a row for each assignment. */
static void experts_part(CudaBuild *b, const GpuWeight *w, int part, Packed x,
                         const GemmParams *all, const Shape *s, int64_t tiles)
{
    const CudaPart c = cuda_weight_part(b, w, part);
    const CudaPtr skip = 4 * (CudaPtr)c.part->row0;
    GemmParams p = *all;
    weight_params(&c, 0, &p);
    p.a = x.a;
    p.row_scale = x.row_scale;
    p.kp = x.kp;
    p.n = (int32_t)c.part->rows;
    p.y += skip;
    p.bias += p.bias ? skip : 0;
    product(b, &p, code_of(c.part->layout), s, tiles);
}

/* silu(gate) * up of each assignment, packed for `down` in the forms that its parts want. */
typedef struct Hidden {
    CudaPtr gate, up; /* up 0: gate is the product already */
    int ld;
} Hidden;

static Hidden emit_gate_up(CudaBuild *b, const GpuOp *op, int rows, const Routes *r,
                           const GemmParams *experts, const Shape *s)
{
    const MoeDesc *m = &op->op->u.moe;
    const GpuWeight *w = cuda_weight(b, m->gate_up);
    const int64_t pairs = (int64_t)rows * m->top_k;
    GemmParams p = *experts;
    Code code;
    p.k = w->k;
    p.list_div = m->top_k;
    p.bias = cuda_bias(b, m->gate_up);
    p.bias_ld = (int32_t)m->gate_up->n;
    if (find_halves(b, w, m->ffn, &p, &code)) {
        const Packed x = pack_input(b, op, rows, w->k, codes[code].bf16);
        p.a = x.a;
        p.row_scale = x.row_scale;
        p.kp = x.kp;
        p.n = m->ffn;
        p.silu = 1;
        p.bias_up = p.bias ? p.bias + 4 * (CudaPtr)m->ffn : 0;
        p.y = cuda_work(b, pairs * m->ffn * 4);
        p.ld_y = m->ffn;
        product(b, &p, code, s, r->max_tiles);
        return (Hidden){.gate = p.y, .ld = m->ffn};
    }
    p.y = cuda_work(b, pairs * m->ffn * 8);
    p.ld_y = 2 * m->ffn;
    for (int i = 0; i < w->n_parts; i++) {
        const bool bf16 = codes[code_of(w->parts[i].layout)].bf16;
        experts_part(b, w, i, pack_input(b, op, rows, w->k, bf16), &p, s, r->max_tiles);
    }
    return (Hidden){.gate = p.y, .up = p.y + 4 * (CudaPtr)m->ffn, .ld = 2 * m->ffn};
}

/* Returns [rows * top_k][hidden]. */
static CudaPtr emit_down(CudaBuild *b, const GpuOp *op, int rows, const Routes *r,
                         const GemmParams *experts, const Shape *s, Hidden h)
{
    const MoeDesc *m = &op->op->u.moe;
    const GpuWeight *w = cuda_weight(b, m->down);
    const int pairs = rows * m->top_k;
    GemmParams p = *experts;
    p.k = w->k;
    p.list_div = 1;
    p.bias = cuda_bias(b, m->down);
    p.bias_ld = (int32_t)m->down->n;
    p.y = cuda_work(b, (int64_t)pairs * m->down->n * 4);
    p.ld_y = (int32_t)m->down->n;
    Packed forms[2] = {{0}, {0}};
    bool is_packed[2] = {false, false};
    for (int i = 0; i < w->n_parts; i++) {
        const bool bf16 = codes[code_of(w->parts[i].layout)].bf16;
        if (!is_packed[bf16]) {
            is_packed[bf16] = true;
            forms[bf16] = packed_at(cuda_work(b, packed_bytes(pairs, w->k)), pairs, w->k);
            pack(b,
                 &(GemmPackParams){.x = h.gate,
                                   .up = h.up,
                                   .limit = p.limit,
                                   .limit_times = m->top_k,
                                   .ldx = h.ld},
                 pairs, w->k, bf16, forms[bf16]);
        }
        experts_part(b, w, i, forms[bf16], &p, s, r->max_tiles);
    }
    return p.y;
}

void cuda_emit_moe_gemm(CudaBuild *b, const GpuOp *op)
{
    const MoeDesc *m = &op->op->u.moe;
    const int rows = cuda_op_rows(b, op);
    const Code up_code = widest(cuda_weight(b, m->gate_up));
    const Code down_code = widest(cuda_weight(b, m->down));
    const Shape *s = shape_for_experts(
        b, rows, m, codes[up_code].bytes > codes[down_code].bytes ? up_code : down_code);
    const Routes r = route(b, op, rows, s);
    const GemmParams experts = {.limit = limit_of(b, op->axis),
                                .rows = rows * m->top_k,
                                .tiles = r.tiles,
                                .n_tiles = r.n_tiles,
                                .list = r.list,
                                .list_ld = rows};
    const Hidden h = emit_gate_up(b, op, rows, &r, &experts, s);
    const CudaPtr x = emit_down(b, op, rows, &r, &experts, s, h);
    const int n = (int)m->down->n;
    const GemmCombineParams sum = {.x = x,
                                   .shares = r.shares,
                                   .add = op->in[2] >= 0 ? cuda_value(b, op->in[2]) : 0,
                                   .limit = experts.limit,
                                   .y = cuda_value(b, op->out),
                                   .ld_add = op->in[2] >= 0 ? cuda_value_ld(b, op->in[2]) : 0,
                                   .ldy = cuda_value_ld(b, op->out),
                                   .n = n,
                                   .top_k = m->top_k};
    launch(b, "gemm_combine", rows, (n + 511) / 512, 1, 128, 0, &sum, sizeof sum);
}
