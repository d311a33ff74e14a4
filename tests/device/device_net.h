/* device_net.h: small networks with synthetic weights, run on a device and on the CPU's exact
 * scalar kernels, and compared. Backend neutral: MERE_TEST_DEVICE names the device ("vulkan:0",
 * "cuda:0"); without it the first Vulkan device is taken, and where there is none the test is
 * skipped (exit 77). */
#ifndef MERE_TESTS_DEVICE_NET_H
#define MERE_TESTS_DEVICE_NET_H

#include "support/quant_golden.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "device/device.h"
#include "device/gpu/gpu_weight.h"
#include "graph/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NET_SEQS = 3, NET_VOCAB = 48, NET_WEIGHTS_MAX = 32, NET_TOKENS_MAX = 160 };

static inline void net_must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

static inline const char *net_device(void)
{
    const char *name = getenv("MERE_TEST_DEVICE");
    if (name && *name)
        return name;
    const DeviceOps *ops;
    int index;
    Error err;
    if (!device_find(str_from("vulkan:0"), &ops, &index, &err)) {
        print_message("no device to test on: %s\n", err.msg);
        exit(77);
    }
    return "vulkan:0";
}

/* ---- a network being built ---- */

typedef struct Net {
    Arena arena;
    uint64_t seed, state; /* of the random numbers: as given, now */
    Graph *graph;
    const Weight *weights[NET_WEIGHTS_MAX];
    int n_weights;
    const GraphPlan *plan;
    char what[96]; /* for messages */
} Net;

static inline void *net_take(Net *n, size_t count, size_t size)
{
    Error err;
    void *p = arena_take(&n->arena, count, size, &err);
    if (!p)
        fail_msg("%s", err.msg);
    return p;
}

/* (-1, 1) */
static inline float net_random(Net *n)
{
    n->state = n->state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (float)((double)(int64_t)(n->state >> 11) * 0x1p-52 - 1.0);
}

static inline int net_below(Net *n, int max)
{
    (void)net_random(n);
    return (int)((n->state >> 33) % (uint64_t)max);
}

static inline void net_begin(Net *n, uint64_t seed)
{
    Error err;
    *n = (Net){.seed = seed, .state = seed};
    arena_init(&n->arena, "net");
    n->graph = graph_begin(&n->arena, "test", &err);
    assert_non_null(n->graph);
}

static inline Vec *net_vec(Net *n, int len, float scale, float offset)
{
    Vec *v = net_take(n, 1, sizeof *v);
    *v = (Vec){.name = "vec", .n = len, .v = net_take(n, (size_t)len, sizeof(float))};
    for (int i = 0; i < len; i++)
        v->v[i] = offset + scale * net_random(n);
    return v;
}

/* Random rows in a format: PLAIN numbers of about 1 / sqrt(k), GGUF blocks drawn from the golden
 * files, planes of random codes with sane scales. */
static inline void net_plain(Net *n, RowView *v)
{
    uint8_t *data = net_take(n, (size_t)v->n * (size_t)v->row_bytes, 1);
    const float scale = 1.7F / sqrtf((float)v->k);
    for (int64_t i = 0; i < v->n * v->k; i++) {
        const float x = net_random(n) * scale;
        const uint16_t h = v->format == FMT_F16 ? num_to_f16(x) : num_to_bf16(x);
        if (v->format == FMT_F32)
            memcpy(data + i * 4, &x, 4);
        else
            memcpy(data + i * 2, &h, 2);
    }
    v->data = data;
}

static inline void net_blocks(Net *n, RowView *v, const GoldenCase *c)
{
    Golden g;
    const uint8_t *want;
    const RowView from = golden_view(&g, c, &want);
    const int bytes = format_info(v->format)->block_bytes;
    const int have = (int)(from.n * from.row_bytes / bytes);
    uint8_t *data = net_take(n, (size_t)v->n * (size_t)v->row_bytes, 1);
    for (int64_t at = 0; at < v->n * v->row_bytes; at += bytes)
        memcpy(data + at, from.data + (int64_t)net_below(n, have) * bytes, (size_t)bytes);
    v->data = data;
    golden_close(&g);
}

static inline void net_planes(Net *n, RowView *v, const GoldenCase *c)
{
    const int bits = format_info(v->format)->bits;
    const int64_t groups = v->k / c->group;
    const int64_t n_scales = v->n * groups;
    uint8_t *data = net_take(n, (size_t)v->n * (size_t)v->row_bytes, 1);
    uint8_t *scales = net_take(n, (size_t)(n_scales * c->scale_bytes), 1);
    uint8_t *biases = net_take(n, (size_t)(n_scales * c->scale_bytes), 1);
    for (int64_t i = 0; i < v->n * v->row_bytes; i++)
        data[i] = (uint8_t)net_below(n, 256);
    for (int64_t i = 0; i < n_scales; i++) {
        const float s = (1.5F + net_random(n)) / (sqrtf((float)v->k) * (float)(1 << bits));
        const float b = -s * (float)(1 << bits) * (0.5F + 0.05F * net_random(n));
        if (c->scale_bytes == 1) {
            /* e8m0 around 2^-4; e4m3 (nvfp4) around 1/16 */
            scales[i] =
                (uint8_t)(v->format == FMT_NVFP4P ? 24 + net_below(n, 16) : 121 + net_below(n, 4));
        } else if (c->scale_bytes == 4) {
            memcpy(scales + i * 4, &s, 4);
            memcpy(biases + i * 4, &b, 4);
        } else {
            const bool f16 = c->scale_format == FMT_F16;
            const uint16_t hs = f16 ? num_to_f16(s) : num_to_bf16(s);
            const uint16_t hb = f16 ? num_to_f16(b) : num_to_bf16(b);
            memcpy(scales + i * 2, &hs, 2);
            memcpy(biases + i * 2, &hb, 2);
        }
    }
    v->data = data;
    v->scales = scales;
    v->biases = c->scale_bytes > 1 ? biases : NULL;
    v->scale_row_bytes = groups * c->scale_bytes;
    v->group = c->group;
    v->scale_format = c->scale_format;
}

static const GoldenCase net_f32 = {"F32", FMT_F32, FMT_F32, 0, 0};

/* Smallest k that the format can have. */
static inline int net_unit(const GoldenCase *c)
{
    const int block = format_info(c->format)->block;
    return c->group ? c->group : block;
}

static inline RowView net_rows(Net *n, const GoldenCase *c, int64_t rows, int k)
{
    const FormatInfo *f = format_info(c->format);
    RowView v = {.n = rows,
                 .k = k,
                 .format = c->format,
                 .group = f->block,
                 .row_bytes = format_row_bytes(c->format, k)};
    if (f->kind == FMT_PLAIN)
        net_plain(n, &v);
    else if (f->kind == FMT_BLOCK)
        net_blocks(n, &v, c);
    else
        net_planes(n, &v, c);
    return v;
}

/* A weight of `n_segs` runs of rows, each in its own format; experts 0: none. */
static inline Weight *net_weight(Net *n, const char *name, const GoldenCase *const *formats,
                                 const int *rows, int n_segs, int k, int experts)
{
    const int all = (experts ? experts : 1) * n_segs;
    Weight *w = net_take(n, 1, sizeof *w);
    RowView *segs = net_take(n, (size_t)all, sizeof *segs);
    *w = (Weight){.name = name, .k = k, .n_segs = n_segs, .n_experts = experts, .segs = segs};
    for (int i = 0; i < all; i++)
        segs[i] = net_rows(n, formats[i % n_segs], rows[i % n_segs], k);
    for (int i = 0; i < n_segs; i++)
        w->n += rows[i];
    assert_true(n->n_weights < NET_WEIGHTS_MAX);
    n->weights[n->n_weights++] = w;
    return w;
}

static inline Weight *net_one(Net *n, const char *name, const GoldenCase *format, int rows, int k)
{
    return net_weight(n, name, &format, &rows, 1, k, 0);
}

static inline void net_bias(Net *n, Weight *w)
{
    w->bias = net_vec(n, (int)w->n * (w->n_experts ? w->n_experts : 1), 0.3F, 0)->v;
}

/* [ROWS, width] of numbers in (-1, 1), one row for each token. */
static inline T net_embed(Net *n, int width)
{
    Weight *w = net_one(n, "embed", &net_f32, NET_VOCAB, width);
    float *x = net_take(n, (size_t)NET_VOCAB * (size_t)width, sizeof *x);
    for (int i = 0; i < NET_VOCAB * width; i++)
        x[i] = net_random(n);
    w->segs[0].data = (const uint8_t *)x;
    return g_embed(n->graph, w);
}

/* Ends with logits that are the wanted rows of x times a random matrix in f32. */
static inline void net_end(Net *n, T x, int width, int max_rows, int max_segs)
{
    Error err = {0};
    Weight *head = net_one(n, "head", &net_f32, NET_VOCAB, width);
    head->precise = true;
    g_out(n->graph, 0, g_lin(n->graph, head, g_out_rows(n->graph, x)));
    const GraphLimits limits = {max_rows, max_rows, max_segs};
    net_must(graph_end(n->graph, &limits, &n->plan, &err), &err);
}

/* As net_end, with the wanted rows of x as the tested weight's input. */
static inline void net_end_with(Net *n, T logits, int max_rows, int max_segs)
{
    Error err = {0};
    g_out(n->graph, 0, logits);
    const GraphLimits limits = {max_rows, max_rows, max_segs};
    net_must(graph_end(n->graph, &limits, &n->plan, &err), &err);
}

static inline void net_free(Net *n)
{
    arena_free(&n->arena);
}

/* ---- running ---- */

typedef struct NetRun {
    const DeviceOps *ops;
    Device *device;
    DeviceWeights *weights;
    KvPool *pool;
    Program *program;
    KvPoolDesc desc;
    int len[NET_SEQS];
    int32_t *pages[NET_SEQS];
} NetRun;

typedef struct NetClass {
    Numerics numerics;
    KvFormat kv;
    int page_tokens;
} NetClass;

/* The device alone. */
static inline bool net_open_device(NetRun *r, const char *name, Numerics numerics, Error *err)
{
    int index;
    *r = (NetRun){0};
    if (!device_find(str_from(name), &r->ops, &index, err))
        return false;
    const DeviceOptions opt = {.index = index,
                               .threads = 1,
                               .level = strcmp(name, "cpu") == 0 ? "scalar" : NULL,
                               .numerics = numerics};
    return r->ops->open(&opt, &r->device, err);
}

static inline void net_close(NetRun *r)
{
    if (r->program)
        r->ops->program_close(r->device, r->program);
    if (r->pool)
        r->ops->pool_close(r->device, r->pool);
    if (r->weights)
        r->ops->weights_close(r->device, r->weights);
    if (r->device)
        r->ops->close(r->device);
    r->program = NULL;
    r->pool = NULL;
    r->weights = NULL;
    r->device = NULL;
}

/* Weights, caches and program of a network on an open device. Pages of sequences are interleaved,
 * last first, so that no table is the identity. */
static inline bool net_load(NetRun *r, Net *n, const NetClass *c, Error *err)
{
    const GraphPlan *g = n->plan;
    const int entries = (NET_TOKENS_MAX + c->page_tokens - 1) / c->page_tokens;
    r->desc = (KvPoolDesc){.format = c->kv,
                           .n_groups = g->n_kv_groups,
                           .state_floats = g->state_floats,
                           .n_states = g->state_floats ? 2 * NET_SEQS : 0};
    for (int i = 0; i < g->n_kv_groups; i++) {
        r->desc.groups[i] = g->kv_groups[i];
        r->desc.page_tokens[i] = c->page_tokens;
        r->desc.n_pages[i] = entries * NET_SEQS;
        r->desc.seq_pages[i] = entries;
    }
    for (int s = 0; s < NET_SEQS; s++) {
        r->len[s] = 0;
        r->pages[s] = net_take(n, (size_t)entries, sizeof **r->pages);
        for (int i = 0; i < entries; i++)
            r->pages[s][i] = (entries - 1 - i) * NET_SEQS + s;
    }
    return r->ops->supports(r->device, g, err) &&
           r->ops->weights_open(r->device, n->weights, n->n_weights, NULL, &r->weights, err) &&
           r->ops->pool_open(r->device, &r->desc, &r->pool, err) &&
           r->ops->lower(r->device, g, r->weights, &r->desc, &r->program, err);
}

static inline uint64_t net_deadline(void)
{
    return clock_ns() + 600ULL * 1000 * 1000 * 1000; /* a software device on a busy machine */
}

enum { NET_ROWS_MAX = 128 };

/* One step: counts[s] rows of each sequence, every row's output wanted. Tokens are a function of
 * sequence and position. */
static inline bool net_step(NetRun *r, const int counts[NET_SEQS], float *logits, Error *err)
{
    Row rows[NET_ROWS_MAX];
    int32_t out[NET_ROWS_MAX];
    Segment segs[NET_SEQS];
    StepBlock step = {.rows = rows, .segs = segs, .out_rows = out, .logits = logits};
    for (int s = 0; s < NET_SEQS; s++) {
        if (counts[s] == 0)
            continue;
        Segment *seg = &segs[step.n_segs++];
        *seg = (Segment){.row0 = step.n_rows,
                         .n_rows = counts[s],
                         .kv_len = r->len[s] + counts[s],
                         .state_in = r->len[s] ? s : -1,
                         .state_out = s};
        for (int g = 0; g < r->desc.n_groups; g++)
            seg->pages[g] = r->pages[s];
        for (int i = 0; i < counts[s]; i++) {
            const int pos = r->len[s]++;
            assert_true(step.n_rows < NET_ROWS_MAX && pos < NET_TOKENS_MAX);
            rows[step.n_rows] = (Row){(pos * 7 + s * 13 + 3) % NET_VOCAB, pos};
            out[step.n_out++] = step.n_rows++;
        }
    }
    uint64_t ticket;
    return r->ops->submit(r->device, r->program, r->pool, &step, &ticket, err) &&
           r->ops->wait(r->device, r->program, ticket, net_deadline(), err);
}

/* Prefill of one sequence, then a mixture: decode, prefill, a fresh sequence of one row; then
 * several rows on top of a cache. `rows` sets the sizes. */
enum { NET_STEPS = 4 };
static inline void net_script(int rows, int counts[NET_STEPS][NET_SEQS])
{
    const int script[NET_STEPS][NET_SEQS] = {
        {rows, 0, 0}, {1, rows > 1 ? rows - 1 : 1, 1}, {2, 1, 0}, {0, rows, 1}};
    memcpy(counts, script, sizeof script);
}

static inline int net_script_rows(int rows)
{
    return rows + 2 > 4 ? rows + 2 : 4;
}

static inline int net_script_out(int rows)
{
    int counts[NET_STEPS][NET_SEQS];
    int n = 0;
    net_script(rows, counts);
    for (int i = 0; i < NET_STEPS; i++)
        for (int s = 0; s < NET_SEQS; s++)
            n += counts[i][s];
    return n;
}

/* Runs the script; logits of all rows of all steps in order. */
static inline void net_run(NetRun *r, Net *n, int rows, float *logits)
{
    int counts[NET_STEPS][NET_SEQS];
    Error err;
    net_script(rows, counts);
    const int width = n->plan->values[n->plan->out].width;
    for (int i = 0; i < NET_STEPS; i++) {
        net_must(net_step(r, counts[i], logits, &err), &err);
        for (int s = 0; s < NET_SEQS; s++)
            logits += (ptrdiff_t)counts[i][s] * width;
    }
}

/* ---- comparing ---- */

/* Each row's error is at most `bound`, in the 2-norm relative to the row's own or to a row's on
 * average, whichever is larger (a row whose sums cancel is no harder than the others); no element
 * is off by more than 8 times that share of the root mean square. */
static inline void net_compare(const Net *n, const char *class_name, int rows, const float *got,
                               const float *want, double bound)
{
    const int width = n->plan->values[n->plan->out].width;
    const int n_out = net_script_out(rows);
    double all = 0;
    for (int i = 0; i < n_out * width; i++)
        all += (double)want[i] * (double)want[i];
    for (int r = 0; r < n_out; r++) {
        double diff = 0;
        double sum = 0;
        int worst = 0;
        double most = -1;
        for (int i = 0; i < width; i++) {
            const double w = (double)want[r * width + i];
            const double d = fabs((double)got[r * width + i] - w);
            diff += d * d;
            sum += w * w;
            if (!(d <= most)) {
                most = d;
                worst = i;
            }
        }
        sum = fmax(sum, all / n_out);
        if (!(sqrt(diff) <= bound * sqrt(sum)) || !(most <= 8 * bound * sqrt(sum / width)))
            fail_msg("%s, %s, seed %d, %d rows: row %d is off by %.3g of its norm (allowed %.3g); "
                     "[%d] is %.9g, wanted %.9g",
                     n->what, class_name, (int)n->seed, rows, r, sqrt(diff / sum), bound, worst,
                     (double)got[r * width + worst], (double)want[r * width + worst]);
    }
}

#endif
