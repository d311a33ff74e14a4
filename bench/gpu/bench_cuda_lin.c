/* Time of products and experts on a GPU as a model runs them: a graph of L layers of one operation,
 * each with its own weights, lowered and submitted as a step; (time of many layers - time of few) /
 * the difference is an operation's time in a chain, launches between operations included, the
 * host's share not.
 *
 *   bench_cuda_lin [-d cuda:0] [-f format: q4_0, affine4, ...] [-c case] [-r rows] [-x]
 *     -x: the exact class. Without -f, -c, -r: everything, rows 1, 2, 4, 8.
 *   bench_cuda_lin -c tiny: a small one, to see that it works (emulators).
 *
 * Targets are those for an H200, one row, 4-bit weights, fast class (sketches' figures). "experts"
 * is router, gate + up and down; "router" alone shows what to take off. */
#include "base/clock.h"
#include "base/num.h"
#include "device/device.h"
#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 20, STEPS = 200, LAYERS_MAX = 40, POOL_BYTES = 340000000, ROWS_MAX = 64 };

typedef enum CaseKind { CASE_LIN, CASE_SILU, CASE_ROUTER, CASE_EXPERTS } CaseKind;

typedef struct Case {
    const char *name;
    CaseKind kind;
    int n, k; /* of the product; experts: hidden is k, ffn is n */
    bool norm, add;
    int few, many; /* layers */
    double target; /* us, 0: none */
} Case;

static const Case cases[] = {
    {"tiny", CASE_LIN, 64, 256, true, false, 1, 2, 0},
    {"qkv", CASE_LIN, 6144, 4096, true, false, 4, 36, 5.5},
    {"o", CASE_LIN, 4096, 4096, false, true, 4, 36, 4.5},
    {"gate_up", CASE_SILU, 28672, 4096, true, false, 4, 36, 17.7},
    {"down", CASE_LIN, 4096, 14336, false, true, 4, 36, 11.9},
    {"head", CASE_LIN, 128256, 4096, true, false, 2, 10, 72},
    {"moe_qkv", CASE_LIN, 5120, 2048, true, false, 4, 36, 3.7},
    {"moe_o", CASE_LIN, 2048, 4096, false, true, 4, 36, 3.4},
    {"router", CASE_ROUTER, 128, 2048, true, false, 4, 36, 2.7},
    {"experts", CASE_EXPERTS, 768, 2048, true, true, 2, 18, 14.7},
};
enum { CASES = sizeof cases / sizeof *cases, EXPERTS = 128, TOP_K = 8 };

static const struct {
    const char *name;
    FormatId format;
    int group;
    FormatId scales;
} formats[] = {
    {"q4_0", FMT_Q4_0, 32, FMT_F32},        {"affine4", FMT_AFFINE4, 64, FMT_BF16},
    {"q4_k", FMT_Q4_K, 256, FMT_F32},       {"mxfp4", FMT_MXFP4, 32, FMT_F32},
    {"q6_k", FMT_Q6_K, 256, FMT_F32},       {"q8_0", FMT_Q8_0, 32, FMT_F32},
    {"affine8", FMT_AFFINE8, 64, FMT_BF16}, {"f16", FMT_F16, 1, FMT_F32},
    {"bf16", FMT_BF16, 1, FMT_F32},
};
enum { FORMATS = sizeof formats / sizeof *formats };

typedef struct Bench {
    const DeviceOps *ops;
    Device *device;
    uint8_t *pool; /* weights are windows of it, each at its own address */
    Arena arena;
    Weight embed, head;
    Weight layer[LAYERS_MAX][3];
    const Weight *all[LAYERS_MAX * 3 + 2];
    int n_all;
} Bench;

static void must(bool ok, const Error *err)
{
    if (ok)
        return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static void *take(Bench *b, size_t n, size_t size)
{
    Error err;
    void *p = arena_take(&b->arena, n, size, &err);
    must(p, &err);
    return p;
}

static void make_weight(Bench *b, Weight *w, const char *name, int f, int n, int k, int n_experts,
                        int layer)
{
    *w = (Weight){.name = name, .n = n, .k = k, .n_segs = 1, .n_experts = n_experts};
    const int count = n_experts ? n_experts : 1;
    w->segs = take(b, (size_t)count, sizeof *w->segs);
    const FormatId format = f < 0 ? FMT_F32 : formats[f].format;
    const bool affine = format == FMT_AFFINE4 || format == FMT_AFFINE8;
    const int64_t row = format_row_bytes(format, k);
    const int64_t scale_row = affine ? k / formats[f].group * 2 : 0;
    for (int e = 0; e < count; e++) {
        const int64_t at = (int64_t)layer * 64 + (int64_t)e * n * row;
        if (at + n * (row + 2 * scale_row) > POOL_BYTES) {
            fprintf(stderr, "%s: %lld bytes do not fit the pool\n", name,
                    (long long)(at + n * (row + 2 * scale_row)));
            exit(1);
        }
        w->segs[e] = (RowView){.data = b->pool + at,
                               .row_bytes = row,
                               .n = n,
                               .k = k,
                               .group = f < 0 ? 1 : formats[f].group,
                               .format = format};
        if (affine) {
            w->segs[e].scales = b->pool + at + n * row;
            w->segs[e].biases = b->pool + at + n * (row + scale_row);
            w->segs[e].scale_row_bytes = scale_row;
            w->segs[e].scale_format = formats[f].scales;
        }
    }
    b->all[b->n_all++] = w;
}

static double case_bytes(const Case *c, int f)
{
    const bool affine = formats[f].format == FMT_AFFINE4 || formats[f].format == FMT_AFFINE8;
    const double per_k = ((double)format_row_bytes(formats[f].format, c->k) +
                          (affine ? c->k / formats[f].group * 4 : 0)) /
                         c->k;
    if (c->kind == CASE_EXPERTS)
        return per_k * TOP_K * 3.0 * c->n * c->k + 4.0 * EXPERTS * c->k;
    return (c->kind == CASE_ROUTER ? 4.0 : per_k) * c->n * c->k;
}

static void make_weights(Bench *b, const Case *c, int f)
{
    static const char *const names[3] = {"first", "second", "router"};
    b->n_all = 0;
    make_weight(b, &b->embed, "embed", -1, 64, c->k, 0, LAYERS_MAX);
    make_weight(b, &b->head, "head", -1, 64, c->k, 0, LAYERS_MAX + 1);
    for (int i = 0; i < c->many; i++) {
        if (c->kind == CASE_EXPERTS) {
            make_weight(b, &b->layer[i][0], names[0], f, 2 * c->n, c->k, EXPERTS, i);
            make_weight(b, &b->layer[i][1], names[1], f, c->k, c->n, EXPERTS, i + LAYERS_MAX);
        }
        if (c->kind == CASE_EXPERTS || c->kind == CASE_ROUTER) {
            make_weight(b, &b->layer[i][2], names[2], -1, EXPERTS, c->k, 0, i + 2 * LAYERS_MAX);
            b->layer[i][2].precise = true;
        } else {
            make_weight(b, &b->layer[i][0], names[0], f, c->n, c->k, 0, i);
        }
    }
}

/* One layer on x; `sum` is the residual that products with an addend go on with. */
static T add_layer(Graph *g, Bench *b, const Case *c, int i, const Vec *norm, T x, T sum)
{
    const T in = c->norm ? g_norm(g, norm, x, 1e-5F) : x;
    if (c->kind == CASE_LIN) {
        const T y = g_lin(g, &b->layer[i][0], in);
        return c->add ? g_add(g, sum, y) : sum;
    }
    if (c->kind == CASE_SILU) {
        const T y = g_lin(g, &b->layer[i][0], in);
        (void)g_silu_mul(g, g_slice(g, y, 0, c->n / 2), g_slice(g, y, c->n / 2, c->n / 2));
        return sum;
    }
    const T logits = g_lin(g, &b->layer[i][2], in);
    if (c->kind == CASE_ROUTER)
        return sum;
    const MoeDesc moe = {.n_experts = EXPERTS,
                         .top_k = TOP_K,
                         .ffn = c->n,
                         .renorm = true,
                         .gate_up = &b->layer[i][0],
                         .down = &b->layer[i][1]};
    return g_add(g, sum, g_moe(g, in, logits, &moe));
}

static const GraphPlan *make_graph(Bench *b, const Case *c, int layers, int rows)
{
    Error err;
    Vec *norm = take(b, 1, sizeof *norm);
    *norm = (Vec){.name = "norm", .n = c->k, .v = take(b, (size_t)c->k, sizeof(float))};
    for (int i = 0; i < c->k; i++)
        norm->v[i] = 1.0F;
    Graph *g = graph_begin(&b->arena, "text", &err);
    must(g, &err);
    const T x = g_embed(g, &b->embed);
    T sum = x;
    if (c->kind == CASE_LIN && c->add && c->n != c->k) /* a residual of the product's width */
        sum = g_lin(g, &b->layer[0][0], x);
    for (int i = 0; i < layers; i++)
        sum = add_layer(g, b, c, i, norm, x, sum);
    g_out(g, 0, g_lin(g, &b->head, g_out_rows(g, x)));
    const GraphPlan *plan;
    must(graph_end(g, &(GraphLimits){rows, rows, 1}, &plan, &err), &err);
    return plan;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* us of a step, lower quartile. */
static double time_steps(Bench *b, const GraphPlan *plan, const DeviceWeights *weights, int rows,
                         int steps)
{
    Error err;
    const KvPoolDesc kv = {.format = KV_FORMAT_F16};
    KvPool *pool;
    Program *program;
    must(b->ops->pool_open(b->device, &kv, &pool, &err), &err);
    must(b->ops->lower(b->device, plan, weights, &kv, &program, &err), &err);
    Row row[ROWS_MAX];
    int32_t out[ROWS_MAX];
    for (int i = 0; i < rows; i++) {
        row[i] = (Row){.token = i, .pos = i};
        out[i] = i;
    }
    const Segment seg = {.n_rows = rows, .kv_len = rows, .state_in = -1};
    const StepBlock step = {
        .n_rows = rows, .n_segs = 1, .n_out = rows, .rows = row, .segs = &seg, .out_rows = out};
    static double us[WARM + STEPS];
    for (int i = 0; i < steps; i++) {
        uint64_t ticket;
        const uint64_t t0 = clock_ns();
        must(b->ops->submit(b->device, program, pool, &step, &ticket, &err), &err);
        must(b->ops->wait(b->device, program, ticket, t0 + 60000000000U, &err), &err);
        us[i] = (double)(clock_ns() - t0) * 1e-3;
    }
    b->ops->program_close(b->device, program);
    b->ops->pool_close(b->device, pool);
    const int warm = steps > WARM ? WARM : 0;
    qsort(us + warm, (size_t)(steps - warm), sizeof *us, by_size);
    return us[warm + (steps - warm) / 4];
}

static void run_case(Bench *b, const Case *c, int f, int only_rows)
{
    Error err;
    DeviceWeights *weights;
    arena_init(&b->arena, "bench");
    make_weights(b, c, f);
    must(b->ops->weights_open(b->device, b->all, b->n_all, NULL, &weights, &err), &err);
    const int all_rows[] = {1, 2, 4, 8};
    const int steps = strcmp(c->name, "tiny") == 0 ? 2 : WARM + STEPS;
    for (int i = 0; i < (only_rows ? 1 : 4); i++) {
        const int rows = only_rows ? only_rows : all_rows[i];
        const double few = time_steps(b, make_graph(b, c, c->few, rows), weights, rows, steps);
        const double many = time_steps(b, make_graph(b, c, c->many, rows), weights, rows, steps);
        const double us = (many - few) / (c->many - c->few);
        printf("%-8s %-8s rows %2d  %8.2f us  %6.0f GB/s", formats[f].name, c->name, rows, us,
               case_bytes(c, f) / us * 1e-3);
        if (c->target > 0 && rows == 1)
            printf("  (4-bit target %.1f us)", c->target);
        printf("  step of %d: %.0f us\n", c->many, many);
        fflush(stdout);
    }
    b->ops->weights_close(b->device, weights);
    arena_free(&b->arena);
}

static bool takes(const Case *c, int f)
{
    const int unit = formats[f].format == FMT_Q4_K || formats[f].format == FMT_Q6_K ? 256 : 128;
    /* The pool holds one weight, experts' or the head's, of 4-bit codes. */
    return c->k % unit == 0 && ((c->kind != CASE_EXPERTS && strcmp(c->name, "head") != 0) ||
                                format_row_bytes(formats[f].format, 256) <= 160);
}

int main(int argc, char **argv)
{
    const char *device = "cuda:0";
    const char *format = NULL;
    const char *only = NULL;
    int rows = 0;
    DeviceOptions options = {.numerics = NUM_FAST};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "-x") == 0) {
            options.numerics = NUM_EXACT;
            continue;
        }
        if (strcmp(argv[i], "-d") == 0)
            device = value;
        else if (strcmp(argv[i], "-f") == 0)
            format = value;
        else if (strcmp(argv[i], "-c") == 0)
            only = value;
        else if (strcmp(argv[i], "-r") == 0)
            rows = (int)strtol(value, NULL, 10);
        else {
            fprintf(stderr, "%s: not an option; see the head of bench_cuda_lin.c\n", argv[i]);
            return 2;
        }
        i++;
    }
    if (rows < 0 || rows > ROWS_MAX) {
        fprintf(stderr, "rows: 1 to %d\n", ROWS_MAX);
        return 2;
    }
    Error err;
    static Bench b;
    must(device_find(str_from(device), &b.ops, &options.index, &err), &err);
    must(b.ops->open(&options, &b.device, &err), &err);
    printf("%s, %s\n", b.ops->describe(b.device), options.numerics == NUM_EXACT ? "exact" : "fast");
    /* Bytes from 0x20 to 0x3f: scales of every format are small positive numbers. */
    Arena pool;
    arena_init(&pool, "weights");
    b.pool = arena_take(&pool, POOL_BYTES, 1, &err);
    must(b.pool, &err);
    uint32_t seed = 1;
    for (size_t i = 0; i < POOL_BYTES; i++) {
        seed = seed * 1664525U + 1013904223U;
        b.pool[i] = (uint8_t)(0x20 + (seed >> 27));
    }
    for (int f = 0; f < FORMATS; f++)
        for (int c = 0; c < CASES; c++) {
            if ((format && strcmp(format, formats[f].name) != 0) ||
                (only ? strcmp(only, cases[c].name) != 0 : c == 0) || !takes(&cases[c], f))
                continue;
            run_case(&b, &cases[c], f, rows);
        }
    b.ops->close(b.device);
    arena_free(&pool);
    return 0;
}
