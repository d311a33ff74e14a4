/* Every operation of a device but the products against the CPU's exact scalar kernels: small
 * networks over awkward shapes and numbers of rows. */
#include "device/device_check.h"

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
        check_many(s, &n, PRODUCT_BOUND);
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
        check_many(s, &n, EXACT_BOUND);
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
    net_end(&n, y, c->heads * c->v_dim, net_script_rows(rows[n_rows - 1]), NET_SEQS);
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
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        attn_case(s, &cases[i], 900 + i, many_rows,
                  i < 3 ? COUNT_OF(many_rows) : COUNT_OF(many_rows) - 1);
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
        {"gguf_Q4_0", 16, 2, 256, 128, true, false},
        {"gguf_MXFP4", 6, 6, 64, 64, true, false},
        {"gguf_BF16", 4, 2, 64, 32, true, true},
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
        net_end(&n, x, h, net_script_rows(17), NET_SEQS);
        Error err;
        if (cases[i].bias && !s->fast.ops->supports(s->fast.device, n.plan, &err)) {
            /* A device may refuse them, by name. */
            assert_int_equal(err.code, ERR_UNSUPPORTED);
            assert_non_null(strstr(err.msg, "bias"));
            print_message("%s: %s\n", n.what, err.msg);
            net_free(&n);
            continue;
        }
        check_rows(s, &n, 16, many_rows, COUNT_OF(many_rows) - 1, 3 * PRODUCT_BOUND);
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
        check_many(s, &n, EXACT_BOUND * 4);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* "test_form*" */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),   cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rope),    cmocka_unit_test(test_attention),
        cmocka_unit_test(test_experts), cmocka_unit_test(test_recurrent),
    };
    return cmocka_run_group_tests(tests, open_session, close_session);
}
