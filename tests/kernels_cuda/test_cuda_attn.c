/* Attention on the emulator against plain double code: several segments with caches in scattered
 * pages, windows, head norms, rotations, sinks, caps, every kernel and class. */
#include "kernels_cuda/emit_run.h"

#include "base/num.h"

enum { MAX_SEGS = 8 };

typedef struct Case {
    const char *what;
    int heads, kv_heads, head_dim, v_dim;
    int page_tokens, window;
    int n_segs;
    int old[MAX_SEGS], rows[MAX_SEGS]; /* positions before the step, rows in it */
    int rot_dim;                       /* 0: none */
    bool pairs, norm, sinks, exact, deterministic;
    float softcap;
    int arch, sms;
    const char *kernel; /* that must have run */
} Case;

typedef struct Setup {
    Case c;
    CudaBuild b;
    GraphPlan graph;
    GpuOp op;
    Op desc;
    KvPoolDesc pool;
    RopeDesc rope;
    Vec q_norm, k_norm, sinks;
    Segment segs[MAX_SEGS];
    int32_t *tables[MAX_SEGS];
    int n_rows, n_pages;
    float *qkv;   /* [rows][ld] */
    int ld, pos0; /* rotary position of a segment's first row, less `old` */
    uint8_t *k, *v, *k_before, *v_before;
    int64_t k_bytes, v_bytes;
} Setup;

static float *random_floats(int64_t n, float by)
{
    float *x = run_take((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = run_random() * by;
    return x;
}

static int elem(const Setup *s)
{
    return s->c.exact ? 4 : 2;
}

static double cache_get(const Setup *s, const uint8_t *cache, int64_t at)
{
    if (s->c.exact)
        return (double)((const float *)(const void *)cache)[at];
    return (double)num_from_f16(((const uint16_t *)(const void *)cache)[at]);
}

static void fill_cache(const Setup *s, uint8_t *cache, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = run_random();
        if (s->c.exact)
            ((float *)(void *)cache)[i] = x;
        else
            ((uint16_t *)(void *)cache)[i] = num_to_f16(x);
    }
}

static int64_t cache_at(const Setup *s, int seg, int pos, int h, int dim)
{
    const int pt = s->c.page_tokens;
    const int64_t page = s->tables[seg][pos / pt];
    return ((page * s->c.kv_heads + h) * pt + pos % pt) * dim;
}

/* Pages in random order; those that the window has passed are -1. */
static void make_pages(Setup *s)
{
    const Case *c = &s->c;
    s->n_pages = 0;
    for (int i = 0; i < c->n_segs; i++)
        s->n_pages += (c->old[i] + c->rows[i] + c->page_tokens - 1) / c->page_tokens;
    int *free_pages = run_take((size_t)s->n_pages * sizeof *free_pages);
    for (int i = 0; i < s->n_pages; i++)
        free_pages[i] = i;
    for (int i = s->n_pages - 1; i > 0; i--) {
        const int j = run_below(i + 1);
        const int t = free_pages[i];
        free_pages[i] = free_pages[j];
        free_pages[j] = t;
    }
    int next = 0;
    int row = 0;
    for (int i = 0; i < c->n_segs; i++) {
        const int len = c->old[i] + c->rows[i];
        const int n = (len + c->page_tokens - 1) / c->page_tokens;
        s->tables[i] = run_take((size_t)n * sizeof(int32_t));
        for (int j = 0; j < n; j++) {
            const bool passed =
                c->window > 0 && (j + 1) * c->page_tokens <= c->old[i] - c->window + 1;
            s->tables[i][j] = passed ? -1 : free_pages[next++];
        }
        s->segs[i] = (Segment){.row0 = row, .n_rows = c->rows[i], .kv_len = len};
        s->segs[i].pages[0] = s->tables[i];
        row += c->rows[i];
    }
    s->n_rows = row;
    free(free_pages);
}

static void make_step(Setup *s, int pos0)
{
    const Case *c = &s->c;
    Error err;
    Row *rows = run_take((size_t)s->n_rows * sizeof *rows);
    for (int i = 0; i < c->n_segs; i++)
        for (int r = 0; r < c->rows[i]; r++)
            rows[s->segs[i].row0 + r] = (Row){1, pos0 + c->old[i] + r};
    s->graph = (GraphPlan){.max_rows = s->b.rows, .max_out_rows = 1, .max_segs = MAX_SEGS};
    s->graph.n_kv_groups = 1;
    s->graph.kv_groups[0] = (KvGroup){.n_layers = 1,
                                      .n_kv_heads = c->kv_heads,
                                      .head_dim = c->head_dim,
                                      .v_dim = c->v_dim,
                                      .window = c->window};
    s->pool = (KvPoolDesc){.n_groups = 1, .format = s->b.format};
    s->pool.groups[0] = s->graph.kv_groups[0];
    s->pool.page_tokens[0] = c->page_tokens;
    s->pool.n_pages[0] = s->n_pages;
    s->pool.seq_pages[0] = s->n_pages;
    gpu_step_layout(&s->graph, &s->pool, &s->b.layout);
    s->b.step = run_take((size_t)s->b.layout.max_words * sizeof(int32_t));
    const StepBlock step = {
        .n_rows = s->n_rows, .n_segs = c->n_segs, .rows = rows, .segs = s->segs};
    if (!gpu_step_write(&s->b.layout, &s->graph, &s->pool, &step, 1, s->b.step, &err))
        fail_msg("%s", err.msg);
    free(rows);
}

static void make_rope(Setup *s)
{
    const int half = s->c.rot_dim / 2;
    float *freq = run_take((size_t)(half + 1) * sizeof *freq);
    s->b.rope = run_take((size_t)(s->b.rows * s->c.rot_dim + 1) * sizeof(float));
    for (int i = 0; i < half; i++)
        freq[i] = powf(100.0F, -(float)i / (float)half);
    s->rope = (RopeDesc){.rot_dim = s->c.rot_dim, .pairs = s->c.pairs, .scale = 1.0F};
    s->rope.inv_freq = freq;
    for (int r = 0; r < s->n_rows; r++) {
        for (int i = 0; i < half; i++) {
            const double angle = (double)s->b.step[s->b.layout.pos + r] * (double)freq[i];
            s->b.rope[(r * half + i) * 2] = (float)(cos(angle) * 1.25);
            s->b.rope[(r * half + i) * 2 + 1] = (float)(sin(angle) * 1.25);
        }
    }
}

static void setup(Setup *s, const Case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    make_pages(s);
    s->b.rows = gpu_bucket(s->n_rows);
    s->b.max_out = 1;
    s->b.sms = c->sms ? c->sms : 4;
    s->b.arch = c->arch ? c->arch : 90;
    s->b.exact = c->exact;
    s->b.deterministic = c->deterministic;
    s->b.format = c->exact ? KV_FORMAT_F32 : KV_FORMAT_F16;
    make_step(s, 3);
    make_rope(s);
    s->b.plan.graph = &s->graph;
    const int64_t tokens = (int64_t)s->n_pages * c->page_tokens * c->kv_heads;
    s->k_bytes = tokens * c->head_dim * elem(s);
    s->v_bytes = tokens * c->v_dim * elem(s);
    s->k = run_take((size_t)s->k_bytes);
    s->v = run_take((size_t)s->v_bytes);
    fill_cache(s, s->k, tokens * c->head_dim);
    fill_cache(s, s->v, tokens * c->v_dim);
    s->k_before = run_take((size_t)s->k_bytes);
    s->v_before = run_take((size_t)s->v_bytes);
    memcpy(s->k_before, s->k, (size_t)s->k_bytes);
    memcpy(s->v_before, s->v, (size_t)s->v_bytes);
    s->b.kv = (CudaKv){(CudaPtr)s->k, (CudaPtr)s->v, c->page_tokens, 0};
    const int q_width = c->heads * c->head_dim;
    const int k_width = c->kv_heads * c->head_dim;
    const int v_width = c->kv_heads * c->v_dim;
    s->ld = q_width + k_width + v_width + 3; /* unaligned rows; out is stored in pairs */
    s->qkv = random_floats((int64_t)s->b.rows * s->ld, 2.0F);
    s->b.values[0] = (RunValue){s->qkv, s->ld, q_width};
    s->b.values[1] = (RunValue){s->qkv + q_width, s->ld, k_width};
    s->b.values[2] = (RunValue){s->qkv + q_width + k_width, s->ld, v_width};
    s->b.values[3] = run_value(s->b.rows, c->heads * c->v_dim, c->heads * c->v_dim + 2);
    s->q_norm = (Vec){"q_norm", c->head_dim, random_floats(c->head_dim, 1.5F)};
    s->k_norm = (Vec){"k_norm", c->head_dim, random_floats(c->head_dim, 1.5F)};
    s->sinks = (Vec){"sinks", c->heads, random_floats(c->heads, 4.0F)};
    s->desc.u.attn = (AttnDesc){.n_heads = c->heads,
                                .n_kv_heads = c->kv_heads,
                                .head_dim = c->head_dim,
                                .v_dim = c->v_dim,
                                .scale = 1.0F / sqrtf((float)c->head_dim),
                                .softcap = c->softcap,
                                .window = c->window,
                                .sinks = c->sinks ? &s->sinks : NULL};
    s->op = (GpuOp){.kind = OP_ATTN, .name = c->what, .op = &s->desc, .in = {0, 1, 2}, .out = 3};
    if (c->norm) {
        s->op.q_norm = (GpuNorm){&s->q_norm, 1e-5F};
        s->op.k_norm = (GpuNorm){&s->k_norm, 1e-5F};
    }
    if (c->rot_dim > 0)
        s->op.q_rope = s->op.k_rope = &s->rope;
}

static void teardown(Setup *s)
{
    free(s->b.step);
    free(s->b.rope);
    free((void *)(uintptr_t)s->rope.inv_freq);
    for (int i = 0; i < s->c.n_segs; i++)
        free(s->tables[i]);
    free(s->k);
    free(s->v);
    free(s->k_before);
    free(s->v_before);
    free(s->qkv);
    free(s->b.values[3].x);
    free(s->q_norm.v);
    free(s->k_norm.v);
    free(s->sinks.v);
}

static void run(Setup *s)
{
    cuda_emit_attn(&s->b, &s->op);
    if (s->c.kernel && !strstr(s->b.kernels, s->c.kernel))
        fail_msg("%s: %s ran, wanted %s", s->c.what, s->b.kernels, s->c.kernel);
    run_end(&s->b);
}

/* Head `h` (from column `col`) of a row, normed and rotated. */
static void want_head(const Setup *s, int row, int col, const Vec *norm, double *y)
{
    const Case *c = &s->c;
    const float *x = s->qkv + (int64_t)row * s->ld + col;
    double sum = 0;
    for (int d = 0; d < c->head_dim; d++)
        sum += (double)x[d] * (double)x[d];
    const double f = c->norm ? 1.0 / sqrt(sum / c->head_dim + 1e-5) : 1.0;
    double t[512];
    for (int d = 0; d < c->head_dim; d++)
        y[d] = t[d] = (double)x[d] * f * (c->norm ? (double)norm->v[d] : 1.0);
    const int half = c->rot_dim / 2;
    for (int i = 0; i < half; i++) {
        const int a = c->pairs ? 2 * i : i;
        const int o = c->pairs ? 2 * i + 1 : i + half;
        const double cs = (double)s->b.rope[(row * half + i) * 2];
        const double sn = (double)s->b.rope[(row * half + i) * 2 + 1];
        y[a] = t[a] * cs - t[o] * sn;
        y[o] = t[o] * cs + t[a] * sn;
    }
}

/* One head of row r of segment g in double. */
static void want_row(const Setup *s, int g, int r, int h, double *out)
{
    const Case *c = &s->c;
    const int kvh = h / (c->heads / c->kv_heads);
    const int pos = c->old[g] + r;
    const int from = c->window > 0 && pos >= c->window ? pos - c->window + 1 : 0;
    double q[512], k[512];
    want_head(s, s->segs[g].row0 + r, h * c->head_dim, &s->q_norm, q);
    double *score = run_take((size_t)(pos + 1) * sizeof *score);
    double max = c->sinks ? (double)s->sinks.v[h] : -HUGE_VAL;
    for (int j = from; j <= pos; j++) {
        if (j < c->old[g]) {
            const int64_t at = cache_at(s, g, j, kvh, c->head_dim);
            for (int d = 0; d < c->head_dim; d++)
                k[d] = cache_get(s, s->k_before, at + d);
        } else {
            want_head(s, s->segs[g].row0 + j - c->old[g], (c->heads + kvh) * c->head_dim,
                      &s->k_norm, k);
        }
        double sum = 0;
        for (int d = 0; d < c->head_dim; d++)
            sum += q[d] * k[d];
        sum *= (double)s->desc.u.attn.scale;
        if (c->softcap > 0.0F)
            sum = (double)c->softcap * tanh(sum / (double)c->softcap);
        score[j] = sum;
        max = sum > max ? sum : max;
    }
    double all = c->sinks ? exp((double)s->sinks.v[h] - max) : 0.0;
    for (int d = 0; d < c->v_dim; d++)
        out[d] = 0;
    for (int j = from; j <= pos; j++) {
        const double w = exp(score[j] - max);
        all += w;
        const float *fresh = s->qkv + (s->segs[g].row0 + j - c->old[g]) * (int64_t)s->ld +
                             (c->heads + c->kv_heads) * c->head_dim + kvh * c->v_dim;
        const int64_t at = j < c->old[g] ? cache_at(s, g, j, kvh, c->v_dim) : 0;
        for (int d = 0; d < c->v_dim; d++)
            out[d] += w * (j < c->old[g] ? cache_get(s, s->v_before, at + d) : (double)fresh[d]);
    }
    for (int d = 0; d < c->v_dim; d++)
        out[d] /= all;
    free(score);
}

/* New positions hold the new keys and values, everything else is as before. */
static void check_cache(Setup *s)
{
    const Case *c = &s->c;
    const double tolerance = c->exact ? 1e-5 : 1e-3; /* of f16: 2^-11 of the value */
    for (int g = 0; g < c->n_segs; g++) {
        for (int r = 0; r < c->rows[g]; r++) {
            for (int h = 0; h < c->kv_heads; h++) {
                const int64_t ka = cache_at(s, g, c->old[g] + r, h, c->head_dim);
                const int64_t va = cache_at(s, g, c->old[g] + r, h, c->v_dim);
                const int row = s->segs[g].row0 + r;
                double k[512];
                want_head(s, row, (c->heads + h) * c->head_dim, &s->k_norm, k);
                const float *v = s->qkv + (int64_t)row * s->ld +
                                 (c->heads + c->kv_heads) * c->head_dim + h * c->v_dim;
                for (int d = 0; d < c->head_dim; d++) {
                    const double have = cache_get(s, s->k, ka + d);
                    if (!(fabs(have - k[d]) <= tolerance * (1.0 + fabs(k[d]))))
                        fail_msg("%s: row %d, key of head %d, dim %d: %g, wanted %g", c->what, row,
                                 h, d, have, k[d]);
                }
                for (int d = 0; d < c->v_dim; d++) {
                    const double have = cache_get(s, s->v, va + d);
                    if (!(fabs(have - (double)v[d]) <= tolerance * (1.0 + fabs((double)v[d]))))
                        fail_msg("%s: row %d, value of head %d, dim %d: %g, wanted %g", c->what,
                                 row, h, d, have, (double)v[d]);
                }
                const size_t e = (size_t)elem(s);
                memcpy(s->k + ka * (int64_t)e, s->k_before + ka * (int64_t)e,
                       e * (size_t)c->head_dim);
                memcpy(s->v + va * (int64_t)e, s->v_before + va * (int64_t)e, e * (size_t)c->v_dim);
            }
        }
    }
    if (memcmp(s->k, s->k_before, (size_t)s->k_bytes) != 0 ||
        memcmp(s->v, s->v_before, (size_t)s->v_bytes) != 0)
        fail_msg("%s: the cache changed where no row belongs", c->what);
}

static void check(Setup *s)
{
    const Case *c = &s->c;
    const RunValue *out = &s->b.values[3];
    double worst = 0;
    for (int g = 0; g < c->n_segs; g++) {
        for (int r = 0; r < c->rows[g]; r++) {
            for (int h = 0; h < c->heads; h++) {
                double want[512];
                want_row(s, g, r, h, want);
                double num = 0;
                double den = 1e-12;
                const float *have =
                    out->x + (int64_t)(s->segs[g].row0 + r) * out->ld + h * c->v_dim;
                for (int d = 0; d < c->v_dim; d++) {
                    num += ((double)have[d] - want[d]) * ((double)have[d] - want[d]);
                    den += want[d] * want[d];
                }
                const double error = sqrt(num / den);
                worst = error > worst ? error : worst;
                if (!(error <= (c->exact ? 1e-5 : 4e-3)))
                    fail_msg("%s: segment %d row %d head %d: relative error %g (%g, wanted %g)",
                             c->what, g, r, h, error, (double)have[0], want[0]);
            }
        }
    }
    for (int64_t i = (int64_t)s->n_rows * out->ld; i < (int64_t)s->b.rows * out->ld; i++)
        if (s->c.kernel && !isnan(out->x[i]))
            fail_msg("%s: padding row written at %lld", c->what, (long long)i);
    print_message("%s: relative error %.1e\n", c->what, worst);
}

static void run_cases(const Case *cases, int n)
{
    /* Every way to cut a cache is right for any cache. */
    static const int lengths[] = {CUDA_KV_SHORT, CUDA_KV_MIDDLE, INT32_MAX};
    for (int i = 0; i < n * (int)COUNT_OF(lengths); i++) {
        static Setup s;
        run_random_state = (uint64_t)i / COUNT_OF(lengths) + 17;
        setup(&s, &cases[i / (int)COUNT_OF(lengths)]);
        s.b.kv_max = lengths[i % (int)COUNT_OF(lengths)];
        run(&s);
        check(&s);
        check_cache(&s);
        teardown(&s);
    }
}

#define SHAPE(h, kvh, hd, vd, pt)                                                                  \
    .heads = h, .kv_heads = kvh, .head_dim = hd, .v_dim = vd, .page_tokens = pt

static void decode(void **state)
{
    (void)state;
    static const Case cases[] = {
        {"one row, 4 a group, 128", SHAPE(4, 1, 128, 128, 16), .n_segs = 1, .old = {511},
         .rows = {1}, .rot_dim = 128, .kernel = "attn_decode_128"},
        {"first token", SHAPE(2, 2, 64, 64, 16), .n_segs = 1, .old = {0}, .rows = {1},
         .rot_dim = 64, .norm = true, .kernel = "attn_decode_64"},
        {"three segments, pairs, part of the head, norms, tiny pages", SHAPE(8, 1, 64, 64, 4),
         .n_segs = 3, .old = {70, 3, 190}, .rows = {1, 1, 1}, .rot_dim = 32, .pairs = true,
         .norm = true, .kernel = "attn_decode_64"},
        {"drafts: rows of one segment across a chunk", SHAPE(4, 2, 64, 64, 8), .n_segs = 2,
         .old = {61, 20}, .rows = {5, 2}, .rot_dim = 64, .kernel = "attn_decode_64"},
        {"eight new rows", SHAPE(2, 1, 64, 64, 16), .n_segs = 1, .old = {0}, .rows = {8},
         .rot_dim = 64, .kernel = "attn_decode_64"},
        {"20 heads a group", SHAPE(20, 1, 64, 64, 32), .n_segs = 1, .old = {130}, .rows = {1},
         .rot_dim = 64, .kernel = "attn_decode_64"},
        {"window, sinks, cap", SHAPE(4, 2, 64, 64, 8), .window = 50, .n_segs = 2, .old = {200, 30},
         .rows = {1, 1}, .rot_dim = 64, .sinks = true, .softcap = 5.0F, .kernel = "attn_decode_64"},
        {"256, several groups of CTAs", SHAPE(2, 1, 256, 256, 64), .n_segs = 1, .old = {2300},
         .rows = {1}, .rot_dim = 128, .sms = 32, .sinks = true, .kernel = "attn_decode_256"},
        {"no clusters", SHAPE(4, 1, 128, 128, 16), .n_segs = 2, .old = {300, 90}, .rows = {1, 1},
         .rot_dim = 128, .arch = 80, .sms = 16, .kernel = "attn_decode_128"},
        {"no rotation", SHAPE(4, 1, 128, 128, 16), .n_segs = 1, .old = {30}, .rows = {1},
         .kernel = "attn_decode_128"},
    };
    run_cases(cases, (int)(sizeof cases / sizeof *cases));
}

static void prefill(void **state)
{
    (void)state;
    static const Case cases[] = {
        {"whole prompt, 64", SHAPE(2, 1, 64, 64, 16), .n_segs = 1, .old = {0}, .rows = {150},
         .rot_dim = 64, .kernel = "attn_flash_64"},
        {"mixed with decode rows", SHAPE(4, 2, 64, 64, 8), .n_segs = 4, .old = {90, 0, 33, 200},
         .rows = {1, 20, 70, 1}, .rot_dim = 48, .norm = true, .kernel = "attn_flash_64"},
        {"chunk over a cache, 128", SHAPE(2, 1, 128, 128, 32), .n_segs = 2, .old = {77, 0},
         .rows = {40, 2}, .rot_dim = 128, .pairs = true, .sms = 132, .kernel = "attn_flash_128"},
        {"window, sinks, cap", SHAPE(2, 2, 64, 64, 4), .window = 37, .n_segs = 2, .old = {150, 0},
         .rows = {80, 90}, .rot_dim = 64, .sinks = true, .softcap = 5.0F,
         .kernel = "attn_flash_64"},
        {"256", SHAPE(1, 1, 256, 256, 16), .n_segs = 1, .old = {21}, .rows = {30}, .rot_dim = 64,
         .kernel = "attn_flash_256"},
        {"deterministic", SHAPE(2, 1, 64, 64, 16), .n_segs = 3, .old = {700, 4, 0},
         .rows = {1, 30, 2}, .rot_dim = 64, .sinks = true, .deterministic = true,
         .kernel = "attn_flash_64"},
    };
    run_cases(cases, (int)(sizeof cases / sizeof *cases));
}

static void general(void **state)
{
    (void)state;
    static const Case cases[] = {
        {"exact, 16", SHAPE(4, 4, 16, 16, 4), .n_segs = 2, .old = {50, 0}, .rows = {1, 9},
         .rot_dim = 16, .exact = true, .kernel = "attn_general_128"},
        {"exact, 128, norms", SHAPE(8, 2, 128, 128, 16), .n_segs = 2, .old = {120, 0},
         .rows = {1, 5}, .rot_dim = 128, .norm = true, .exact = true, .kernel = "attn_general_128"},
        {"exact, 96, window, sinks, cap, pairs", SHAPE(8, 1, 96, 96, 8), .window = 20, .n_segs = 2,
         .old = {70, 3}, .rows = {40, 1}, .rot_dim = 64, .pairs = true, .sinks = true,
         .softcap = 4.0F, .exact = true, .kernel = "attn_general_128"},
        {"exact, 192 and 128", SHAPE(2, 1, 192, 128, 16), .n_segs = 1, .old = {40}, .rows = {11},
         .rot_dim = 64, .exact = true, .kernel = "attn_general_256"},
        {"exact, 512", SHAPE(1, 1, 512, 512, 64), .n_segs = 1, .old = {40}, .rows = {9},
         .rot_dim = 128, .exact = true, .kernel = "attn_general_512"},
        {"fast, 16", SHAPE(4, 1, 16, 16, 4), .n_segs = 2, .old = {9, 0}, .rows = {1, 30},
         .rot_dim = 16, .kernel = "attn_general_128"},
        {"fast, old device", SHAPE(4, 2, 64, 64, 16), .n_segs = 1, .old = {100}, .rows = {3},
         .rot_dim = 64, .arch = 75, .kernel = "attn_general_128"},
        {"exact, 256, 300 rows", SHAPE(1, 1, 32, 32, 16), .n_segs = 1, .old = {0}, .rows = {140},
         .rot_dim = 32, .exact = true, .kernel = "attn_general_128"},
    };
    run_cases(cases, (int)(sizeof cases / sizeof *cases));
}

/* A prompt in one step and in chunks gives the same numbers: bit for bit where the class says so.
 */
static void chunks_of(Case c, int total, const int *parts, int n_parts, bool same_bits)
{
    static Setup whole, part;
    run_random_state = 99;
    c.n_segs = 1;
    c.old[0] = 0;
    c.rows[0] = total;
    c.kernel = NULL;
    setup(&whole, &c);
    run(&whole);
    const RunValue *y = &whole.b.values[3];
    int at = 0;
    static uint8_t *k, *v;
    for (int i = 0; i < n_parts; i++) {
        c.old[0] = at;
        c.rows[0] = parts[i];
        setup(&part, &c);
        /* The same pages, numbered by the whole's table. */
        free(part.b.step);
        for (int j = 0; j < (at + parts[i] + c.page_tokens - 1) / c.page_tokens; j++)
            part.tables[0][j] = whole.tables[0][j];
        part.n_pages = whole.n_pages;
        make_step(&part, 3);
        free(part.b.rope);
        free((void *)(uintptr_t)part.rope.inv_freq);
        make_rope(&part);
        if (i == 0) {
            k = run_take((size_t)whole.k_bytes);
            v = run_take((size_t)whole.v_bytes);
            memset(k, 0xff, (size_t)whole.k_bytes);
            memset(v, 0xff, (size_t)whole.v_bytes);
        }
        part.b.kv = (CudaKv){(CudaPtr)k, (CudaPtr)v, c.page_tokens, 0};
        memcpy(part.qkv, whole.qkv + (int64_t)at * whole.ld,
               (size_t)parts[i] * (size_t)whole.ld * sizeof(float));
        if (c.norm) {
            part.op.q_norm.vec = &whole.q_norm;
            part.op.k_norm.vec = &whole.k_norm;
        }
        part.desc.u.attn.sinks = whole.desc.u.attn.sinks;
        run(&part);
        for (int r = 0; r < parts[i]; r++) {
            for (int d = 0; d < y->width; d++) {
                const float a = y->x[(int64_t)(at + r) * y->ld + d];
                const float p = part.b.values[3].x[(int64_t)r * y->ld + d];
                if (same_bits ? memcmp(&a, &p, sizeof a) != 0
                              : !(fabsf(a - p) <= 4e-3F * (1.0F + fabsf(a))))
                    fail_msg("%s: part %d row %d column %d: %.9g whole, %.9g in parts", c.what, i,
                             r, d, (double)a, (double)p);
            }
        }
        at += parts[i];
        teardown(&part);
    }
    free(k);
    free(v);
    teardown(&whole);
}

static void chunks(void **state)
{
    (void)state;
    const int parts[] = {64, 1, 7, 30, 1, 17};
    const Case fast = {"fast chunks", SHAPE(4, 2, 64, 64, 16), .rot_dim = 64, .norm = true};
    chunks_of(fast, 120, parts, 6, false);
    Case same = fast;
    same.what = "deterministic chunks";
    same.deterministic = true;
    same.window = 45;
    same.sinks = true;
    chunks_of(same, 120, parts, 6, true);
    same.what = "exact deterministic chunks";
    same.exact = true;
    chunks_of(same, 120, parts, 6, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode),
        cmocka_unit_test(prefill),
        cmocka_unit_test(general),
        cmocka_unit_test(chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
