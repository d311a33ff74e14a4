/* Every operation and weight format of a device against the CPU's exact scalar kernels: small
 * networks over awkward shapes and numbers of rows. See device_net.h. */
#include "device/device_net.h"

/* Relative error of a row of logits. Exact: f32 everywhere, sums in another order. Fast: int8
 * activations (of one scale per 32 k) or bf16 factors for each product on the way, keys and values
 * in f16. */
#define EXACT_BOUND 2e-5
#define PRODUCT_BOUND 1.5e-2
#define KV_BOUND 1e-3

static const int all_rows[] = {1, 2, 3, 5, 9, 17, 40};
static const NetClass exact = {NUM_EXACT, KV_FORMAT_F32, 16};
static const NetClass fast = {NUM_FAST, KV_FORMAT_F16, 16};

enum { MAX_ROWS = 42 };

typedef struct Session {
    NetRun cpu, exact, fast; /* devices, kept open: a network is loaded and closed on each */
} Session;

static int open_session(void **state)
{
    Session *s = test_calloc(1, sizeof *s);
    Error err;
    const char *name = net_device();
    net_must(net_open_device(&s->cpu, "cpu", NUM_EXACT, &err), &err);
    net_must(net_open_device(&s->exact, name, NUM_EXACT, &err), &err);
    net_must(net_open_device(&s->fast, name, NUM_FAST, &err), &err);
    print_message("%s\n", s->exact.ops->describe(s->exact.device));
    *state = s;
    return 0;
}

static int close_session(void **state)
{
    Session *s = *state;
    net_close(&s->cpu);
    net_close(&s->exact);
    net_close(&s->fast);
    test_free(s);
    return 0;
}

/* Weights, cache and program, not the device. */
static void unload(NetRun *r)
{
    Device *keep = r->device;
    r->device = NULL;
    if (r->program)
        r->ops->program_close(keep, r->program);
    if (r->pool)
        r->ops->pool_close(keep, r->pool);
    if (r->weights)
        r->ops->weights_close(keep, r->weights);
    r->program = NULL;
    r->pool = NULL;
    r->weights = NULL;
    r->device = keep;
}

static float *reference(Session *s, Net *n, int rows, int page_tokens)
{
    Error err;
    const NetClass c = {NUM_EXACT, KV_FORMAT_F32, page_tokens};
    float *want =
        net_take(n, (size_t)net_script_out(rows) * (size_t)n->plan->values[n->plan->out].width,
                 sizeof *want);
    net_must(net_load(&s->cpu, n, &c, &err), &err);
    net_run(&s->cpu, n, rows, want);
    unload(&s->cpu);
    return want;
}

static void run_class(NetRun *r, Net *n, const NetClass *c, const char *class_name,
                      const int *row_counts, int n_counts, float *const *want, double bound)
{
    Error err;
    const int width = n->plan->values[n->plan->out].width;
    if (!net_load(r, n, c, &err))
        fail_msg("%s, %s: %s", n->what, class_name, err.msg);
    for (int i = 0; i < n_counts; i++) {
        const int rows = row_counts[i];
        float *got = net_take(n, (size_t)net_script_out(rows) * (size_t)width, sizeof *got);
        for (int j = 0; j < net_script_out(rows) * width; j++)
            got[j] = NAN;
        memset(r->len, 0, sizeof r->len);
        net_run(r, n, rows, got);
        net_compare(n, class_name, rows, got, want[i], bound);
    }
    unload(r);
}

/* Both classes over some numbers of rows. Frees the network. */
static void check_rows(Session *s, Net *n, int page_tokens, const int *rows, int n_rows,
                       double fast_bound)
{
    float *want[COUNT_OF(all_rows)];
    NetClass e = exact;
    NetClass f = fast;
    e.page_tokens = f.page_tokens = page_tokens;
    for (int i = 0; i < n_rows; i++)
        want[i] = reference(s, n, rows[i], page_tokens);
    run_class(&s->exact, n, &e, "exact", rows, n_rows, want, EXACT_BOUND);
    run_class(&s->fast, n, &f, "fast", rows, n_rows, want, fast_bound);
    net_free(n);
}

static void check(Session *s, Net *n, double fast_bound)
{
    check_rows(s, n, 16, all_rows, COUNT_OF(all_rows), fast_bound);
}

/* ---- products ---- */

static void name_net(Net *n, const char *what, const char *format, int k, int rows)
{
    (void)snprintf(n->what, sizeof n->what, "%s %s [%d, %d]", what, format, rows, k);
}

static void test_formats(void **state)
{
    Session *s = *state;
    int n_formats = 0;
    for (int i = -1; i < (int)COUNT_OF(golden_cases); i++) {
        const GoldenCase *c = i < 0 ? &net_f32 : &golden_cases[i];
        const RowView v = {.format = c->format,
                           .k = 256,
                           .group = net_unit(c),
                           .biases = c->scale_bytes > 1 ? (const uint8_t *)c : NULL,
                           .scale_format = c->scale_format};
        GpuPart part;
        if (!gpu_layout_of(&v, &part))
            continue;
        n_formats++;
        for (int big = 0; big < 2; big++) {
            Net n;
            const int k = big ? 1024 : net_unit(c) > 64 ? net_unit(c) : 64;
            const int rows = big ? 160 : 37;
            net_begin(&n, 1 + (uint64_t)i);
            name_net(&n, "product", c->name, k, rows);
            T x = g_lin(n.graph, net_one(&n, "w", c, rows, k), net_embed(&n, k));
            net_end(&n, x, rows, MAX_ROWS, NET_SEQS);
            check(s, &n, PRODUCT_BOUND);
        }
    }
    assert_true(n_formats >= 19);
}

static const GoldenCase *format_of(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(golden_cases); i++)
        if (strcmp(golden_cases[i].name, name) == 0)
            return &golden_cases[i];
    fail_msg("no format is called %s", name);
    return NULL;
}

/* Shapes that no fast kernel divides evenly. */
static void test_shapes(void **state)
{
    Session *s = *state;
    static const struct {
        const char *format;
        int rows, k;
    } shapes[] = {
        {"gguf_Q4_0", 1, 32},    {"gguf_Q4_0", 3, 96},    {"gguf_Q4_0", 130, 2080},
        {"gguf_BF16", 17, 20},   {"gguf_BF16", 65, 1028}, {"mlx_affine_b4_g64", 66, 192},
        {"gguf_Q8_0", 129, 288}, {"gguf_Q6_K", 70, 768},  {"mlx_affine_b4_g32", 512, 2048},
        {"gguf_F16", 5, 68}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Net n;
        net_begin(&n, 100 + i);
        name_net(&n, "product", shapes[i].format, shapes[i].k, shapes[i].rows);
        T x = g_lin(n.graph,
                    net_one(&n, "w", format_of(shapes[i].format), shapes[i].rows, shapes[i].k),
                    net_embed(&n, shapes[i].k));
        net_end(&n, x, shapes[i].rows, MAX_ROWS, NET_SEQS);
        check(s, &n, PRODUCT_BOUND);
    }
}

/* What products are fused with: norm before, bias, addend, gate, several formats in one weight,
 * chosen rows, and rows precise in every class. */
static void test_fused(void **state)
{
    Session *s = *state;
    static const char *const formats[] = {"mlx_affine_b4_g64", "gguf_Q4_0", "gguf_BF16",
                                          "gguf_Q8_0"};
    for (size_t f = 0; f < COUNT_OF(formats); f++)
        for (int big = 0; big < 2; big++) {
            const GoldenCase *c = format_of(formats[f]);
            const int k = big ? 1024 : 128;
            Net n;
            net_begin(&n, 200 + f);
            name_net(&n, "fused", c->name, k, k);
            T x = net_embed(&n, k);
            T h = g_norm(n.graph, net_vec(&n, k, 0.3F, 1), x, 1e-5F);
            Weight *w =
                net_weight(&n, "gate_up", (const GoldenCase *[]){c, c}, (int[]){k, k}, 2, k, 0);
            T gu = g_lin(n.graph, w, h);
            T act = g_silu_mul(n.graph, g_slice(n.graph, gu, 0, k), g_slice(n.graph, gu, k, k));
            Weight *down = net_one(&n, "down", c, k, k);
            net_bias(&n, down);
            x = g_add(n.graph, x, g_lin(n.graph, down, act));
            net_end(&n, x, k, MAX_ROWS, NET_SEQS);
            check(s, &n, 2 * PRODUCT_BOUND);
        }
}

static void test_segments_of_formats(void **state)
{
    Session *s = *state;
    Net n;
    const int k = 256;
    net_begin(&n, 300);
    name_net(&n, "q, k, v in formats of their own", "Q4_0 Q8_0 Q6_K", k, 96 + 33 + 31);
    const GoldenCase *const c[] = {format_of("gguf_Q4_0"), format_of("gguf_Q8_0"),
                                   format_of("gguf_Q6_K")};
    Weight *w = net_weight(&n, "qkv", c, (int[]){96, 33, 31}, 3, k, 0);
    net_bias(&n, w);
    T h = g_norm(n.graph, net_vec(&n, k, 0.3F, 1), net_embed(&n, k), 1e-6F);
    net_end(&n, g_lin(n.graph, w, h), 160, MAX_ROWS, NET_SEQS);
    check(s, &n, PRODUCT_BOUND);
}

static void test_head(void **state)
{
    Session *s = *state;
    static const char *const formats[] = {"gguf_Q6_K", "gguf_F16", "mlx_affine_b8_g64"};
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        Net n;
        const int k = 512;
        net_begin(&n, 400 + f);
        name_net(&n, "head", formats[f], k, 333);
        T x = g_out_rows(n.graph, net_embed(&n, k));
        x = g_norm(n.graph, net_vec(&n, k, 0.3F, 1), x, 1e-6F);
        net_end_with(&n, g_lin(n.graph, net_one(&n, "head", format_of(formats[f]), 333, k), x),
                     MAX_ROWS, NET_SEQS);
        check(s, &n, PRODUCT_BOUND);
    }
}

static void test_precise(void **state)
{
    Session *s = *state;
    Net n;
    const int k = 512;
    net_begin(&n, 500);
    name_net(&n, "precise", "Q8_0", k, 96);
    Weight *w = net_one(&n, "router", format_of("gguf_Q8_0"), 96, k);
    w->precise = true;
    net_end(&n, g_lin(n.graph, w, net_embed(&n, k)), 96, MAX_ROWS, NET_SEQS);
    check(s, &n, EXACT_BOUND);
}

/* Tables in every format; the rows come back as they are. */
static void test_embed(void **state)
{
    Session *s = *state;
    for (int i = -1; i < (int)COUNT_OF(golden_cases); i++) {
        const GoldenCase *c = i < 0 ? &net_f32 : &golden_cases[i];
        const RowView v = {.format = c->format,
                           .k = 256,
                           .group = net_unit(c),
                           .biases = c->scale_bytes > 1 ? (const uint8_t *)c : NULL,
                           .scale_format = c->scale_format};
        GpuPart part;
        if (!gpu_layout_of(&v, &part))
            continue;
        Net n;
        const int k = net_unit(c) > 64 ? 2 * net_unit(c) : 128 + 64;
        net_begin(&n, 600);
        name_net(&n, "embed", c->name, k, NET_VOCAB);
        T x = g_embed(n.graph, net_one(&n, "embed", c, NET_VOCAB, k));
        net_end(&n, x, k, MAX_ROWS, NET_SEQS);
        check_rows(s, &n, 16, (int[]){1, 17}, 2, EXACT_BOUND);
    }
}

/* ---- row-wise operations ---- */

static void test_rows(void **state)
{
    Session *s = *state;
    static const int widths[] = {16, 96, 1000};
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        Net n;
        const int w = widths[i];
        net_begin(&n, 700 + i);
        name_net(&n, "row-wise", "", w, w);
        Graph *g = n.graph;
        T x = net_embed(&n, w);
        T a = g_lin(g, net_one(&n, "a", &net_f32, 2 * w + 1, w), x);
        T left = g_slice(g, a, 0, w);
        T right = g_slice(g, a, w, w);
        T one = g_slice(g, a, 2 * w, 1);
        T y = g_silu_mul(g, left, g_norm(g, net_vec(&n, w, 0.5F, 1), right, 1e-6F));
        y = g_add(g, g_sigmoid_mul(g, y, left), g_sigmoid_mul(g, x, one));
        y = g_add(g, y, g_head_norm(g, net_vec(&n, 8, 0.5F, 1), x, 8, 1e-6F));
        y = g_add(g, y, g_head_norm(g, NULL, right, w / 2, 1e-5F));
        y = g_norm_gated(g, net_vec(&n, w / 2, 0.5F, 1), y, right, w / 2, 1e-6F);
        net_end(&n, g_add(g, y, x), w, MAX_ROWS, NET_SEQS);
        check(s, &n, PRODUCT_BOUND);
    }
}

static float *frequencies(Net *n, int rot, float base)
{
    float *f = net_take(n, (size_t)rot / 2, sizeof *f);
    for (int i = 0; i < rot / 2; i++)
        f[i] = powf(base, -2.0F * (float)i / (float)rot);
    return f;
}

static void test_rope(void **state)
{
    Session *s = *state;
    for (int pairs = 0; pairs < 2; pairs++) {
        Net n;
        net_begin(&n, 800);
        name_net(&n, pairs ? "rope pairs" : "rope halves", "", 96, 96);
        const RopeDesc whole = {.n_heads = 3,
                                .head_dim = 32,
                                .rot_dim = 32,
                                .pairs = pairs,
                                .scale = 1,
                                .inv_freq = frequencies(&n, 32, 10000)};
        const RopeDesc part = {.n_heads = 2,
                               .head_dim = 48,
                               .rot_dim = 24,
                               .pairs = pairs,
                               .scale = 1.25F,
                               .inv_freq = frequencies(&n, 24, 500)};
        T x = net_embed(&n, 96);
        x = g_add(n.graph, g_rope(n.graph, x, &whole), g_rope(n.graph, x, &part));
        net_end(&n, x, 96, MAX_ROWS, NET_SEQS);
        check(s, &n, EXACT_BOUND);
    }
}

/* ---- attention ---- */

typedef struct AttnCase {
    int heads, kv_heads, head_dim, v_dim, window, page_tokens;
    float softcap;
    bool sinks, head_norm, rope, pairs;
} AttnCase;

static void attn_case(Session *s, const AttnCase *c, uint64_t seed, const int *rows, int n_rows)
{
    Net n;
    net_begin(&n, seed);
    (void)snprintf(n.what, sizeof n.what, "attention %d/%d heads of %d, %d, window %d, pages of %d",
                   c->heads, c->kv_heads, c->head_dim, c->v_dim, c->window, c->page_tokens);
    Graph *g = n.graph;
    const int q = c->heads * c->head_dim;
    const int k = c->kv_heads * c->head_dim;
    const int v = c->kv_heads * c->v_dim;
    const int hidden = 64;
    T x = net_embed(&n, hidden);
    Weight *w = net_one(&n, "qkv", &net_f32, q + k + v, hidden);
    w->precise = true;
    T qkv = g_lin(g, w, x);
    T tq = g_slice(g, qkv, 0, q);
    T tk = g_slice(g, qkv, q, k);
    T tv = g_slice(g, qkv, q + k, v);
    if (c->head_norm) {
        tq = g_head_norm(g, net_vec(&n, c->head_dim, 0.5F, 2), tq, c->head_dim, 1e-6F);
        tk = g_head_norm(g, net_vec(&n, c->head_dim, 0.5F, 2), tk, c->head_dim, 1e-6F);
    }
    if (c->rope) {
        RopeDesc r = {.n_heads = c->heads,
                      .head_dim = c->head_dim,
                      .rot_dim = c->head_dim,
                      .pairs = c->pairs,
                      .scale = 1,
                      .inv_freq = frequencies(&n, c->head_dim, 10000)};
        tq = g_rope(g, tq, &r);
        r.n_heads = c->kv_heads;
        tk = g_rope(g, tk, &r);
    }
    const AttnDesc a = {.n_heads = c->heads,
                        .n_kv_heads = c->kv_heads,
                        .head_dim = c->head_dim,
                        .v_dim = c->v_dim,
                        .scale = 1.5F / sqrtf((float)c->head_dim),
                        .softcap = c->softcap,
                        .window = c->window,
                        .sinks = c->sinks ? net_vec(&n, c->heads, 1, 0) : NULL};
    T y = g_attn(g, tq, tk, tv, &a);
    net_end(&n, y, c->heads * c->v_dim, MAX_ROWS, NET_SEQS);
    check_rows(s, &n, c->page_tokens, rows, n_rows, KV_BOUND * 4);
}

static void test_attention(void **state)
{
    Session *s = *state;
    static const AttnCase cases[] = {
        {.heads = 4, .kv_heads = 2, .head_dim = 16, .v_dim = 16, .page_tokens = 4},
        {.heads = 4, .kv_heads = 4, .head_dim = 16, .v_dim = 16, .page_tokens = 64, .rope = true},
        {.heads = 8,
         .kv_heads = 2,
         .head_dim = 64,
         .v_dim = 64,
         .page_tokens = 16,
         .rope = true,
         .head_norm = true},
        {.heads = 6,
         .kv_heads = 2,
         .head_dim = 64,
         .v_dim = 64,
         .page_tokens = 8,
         .window = 7,
         .rope = true,
         .sinks = true},
        {.heads = 4,
         .kv_heads = 1,
         .head_dim = 128,
         .v_dim = 128,
         .page_tokens = 32,
         .rope = true,
         .pairs = true,
         .softcap = 5},
        {.heads = 2,
         .kv_heads = 1,
         .head_dim = 256,
         .v_dim = 256,
         .page_tokens = 16,
         .rope = true,
         .head_norm = true},
        {.heads = 3, .kv_heads = 3, .head_dim = 24, .v_dim = 40, .page_tokens = 16},
        {.heads = 16, .kv_heads = 1, .head_dim = 32, .v_dim = 32, .page_tokens = 16, .window = 20},
    };
    static const int rows[] = {1, 2, 5, 17, 40};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        attn_case(s, &cases[i], 900 + i, rows, COUNT_OF(rows));
}

/* ---- experts ---- */

static void test_experts(void **state)
{
    Session *s = *state;
    static const struct {
        const char *format;
        int experts, top_k, hidden, ffn;
        bool renorm, bias;
    } cases[] = {
        {"gguf_BF16", 4, 2, 64, 48, true, false},
        {"mlx_affine_b4_g32", 8, 3, 64, 96, false, false},
        {"gguf_Q4_0", 16, 2, 256, 128, true, true},
        {"gguf_MXFP4", 6, 6, 64, 64, true, true},
        {"gguf_Q8_0", 5, 1, 96, 32, false, false},
        {"mlx_affine_b4_g64", 32, 8, 1024, 512, true, false},
        {"gguf_Q6_K", 4, 2, 256, 256, true, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Net n;
        const int h = cases[i].hidden;
        const int ffn = cases[i].ffn;
        const GoldenCase *c = format_of(cases[i].format);
        net_begin(&n, 1000 + i);
        name_net(&n, "experts", c->name, h, ffn);
        Graph *g = n.graph;
        T x = net_embed(&n, h);
        T y = g_norm(g, net_vec(&n, h, 0.3F, 1), x, 1e-6F);
        Weight *router = net_one(&n, "router", &net_f32, cases[i].experts, h);
        router->precise = true;
        Weight *up = net_weight(&n, "gate_up", (const GoldenCase *[]){c, c}, (int[]){ffn, ffn}, 2,
                                h, cases[i].experts);
        Weight *down = net_weight(&n, "down", &c, &h, 1, ffn, cases[i].experts);
        if (cases[i].bias) {
            net_bias(&n, up);
            net_bias(&n, down);
        }
        const MoeDesc m = {.n_experts = cases[i].experts,
                           .top_k = cases[i].top_k,
                           .ffn = ffn,
                           .renorm = cases[i].renorm,
                           .gate_up = up,
                           .down = down};
        x = g_add(g, x, g_moe(g, y, g_lin(g, router, y), &m));
        net_end(&n, x, h, MAX_ROWS, NET_SEQS);
        check(s, &n, 2 * PRODUCT_BOUND);
    }
}

/* ---- recurrent operations ---- */

static void test_recurrent(void **state)
{
    Session *s = *state;
    static const struct {
        int k_heads, v_heads, k_dim, v_dim, width;
    } cases[] = {{1, 1, 8, 8, 4},
                 {2, 4, 16, 16, 4},
                 {2, 2, 18, 10, 2},
                 {1, 3, 7, 33, 8},
                 {2, 4, 128, 128, 4}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Net n;
        const int k_all = cases[i].k_heads * cases[i].k_dim;
        const int channels = 2 * k_all + cases[i].v_heads * cases[i].v_dim;
        const int h = 64;
        net_begin(&n, 1100 + i);
        (void)snprintf(n.what, sizeof n.what, "delta of %d and %d heads, %d x %d, %d taps",
                       cases[i].k_heads, cases[i].v_heads, cases[i].k_dim, cases[i].v_dim,
                       cases[i].width);
        Graph *g = n.graph;
        T x = net_embed(&n, h);
        Weight *w = net_one(&n, "in", &net_f32, channels + 2 * cases[i].v_heads, h);
        w->precise = true;
        T all = g_lin(g, w, x);
        const ConvDesc conv = {.channels = channels,
                               .width = cases[i].width,
                               .w = net_vec(&n, channels * cases[i].width, 0.8F, 0)};
        T qkv = g_conv(g, g_slice(g, all, 0, channels), &conv);
        const DeltaDesc d = {.n_k_heads = cases[i].k_heads,
                             .n_v_heads = cases[i].v_heads,
                             .k_dim = cases[i].k_dim,
                             .v_dim = cases[i].v_dim,
                             .a_log = net_vec(&n, cases[i].v_heads, 1, 0),
                             .dt_bias = net_vec(&n, cases[i].v_heads, 1, 0)};
        T y = g_delta(g, qkv, g_slice(g, all, channels, cases[i].v_heads),
                      g_slice(g, all, channels + cases[i].v_heads, cases[i].v_heads), &d);
        net_end(&n, y, cases[i].v_heads * cases[i].v_dim, MAX_ROWS, NET_SEQS);
        check(s, &n, EXACT_BOUND * 4);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* "test_form*" */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_segments_of_formats),
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_precise),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_recurrent),
    };
    return cmocka_run_group_tests(tests, open_session, close_session);
}
