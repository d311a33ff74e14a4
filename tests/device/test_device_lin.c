/* Products in every weight format of a device, over awkward shapes and numbers of rows, fused with
 * what stands around them, against the CPU's exact scalar kernels. */
#include "device/device_check.h"

/* Kernels know a part's layout, kind of scales and group: formats that agree in them differ in how
 * they are packed alone. */
typedef struct Kinds {
    GpuPart parts[COUNT_OF(golden_cases) + 1];
    int n;
} Kinds;

/* True the first time. */
static bool is_new_kind(Kinds *kinds, const GpuPart *p)
{
    for (int i = 0; i < kinds->n; i++)
        if (kinds->parts[i].layout == p->layout && kinds->parts[i].scale == p->scale &&
            kinds->parts[i].group == p->group)
            return false;
    kinds->parts[kinds->n++] = *p;
    return true;
}

/* Every format: a few rows on a small shape. One format of each kind: many rows on a large one. */
static void test_formats(void **state)
{
    Session *s = *state;
    Kinds kinds = {.n = 0};
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
        const int n_shapes = is_new_kind(&kinds, &part) ? 2 : 1;
        for (int big = 0; big < n_shapes; big++) {
            Net n;
            const int k = big ? 1024 : net_unit(c) > 64 ? net_unit(c) : 64;
            const int rows = big ? 160 : 37;
            net_begin(&n, 1 + (uint64_t)i);
            name_net(&n, "product", c->name, k, rows);
            T x = g_lin(n.graph, net_one(&n, "w", c, rows, k), net_embed(&n, k));
            net_end(&n, x, rows, big ? MAX_ROWS : FEW_MAX_ROWS, NET_SEQS);
            (big ? check_many : check_few)(s, &n, PRODUCT_BOUND);
        }
    }
    print_message("%d formats, %d kinds of parts\n", n_formats, kinds.n);
    assert_true(n_formats >= 40);
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
        const bool is_small = shapes[i].rows < 16;
        net_end(&n, x, shapes[i].rows, is_small ? FEW_MAX_ROWS : MAX_ROWS, NET_SEQS);
        (is_small ? check_few : check_many)(s, &n, PRODUCT_BOUND);
    }
}

/* What products are fused with: norm before, bias, addend, gate, several formats in one weight,
 * chosen rows, and rows precise in every class. */
static void test_fused(void **state)
{
    Session *s = *state;
    static const char *const formats[] = {"mlx_affine_b4_g64", "gguf_BF16", "gguf_Q8_0",
                                          "gguf_Q4_0"};
    for (size_t f = 0; f < COUNT_OF(formats); f++)
        for (int big = 0; big < (f < 3 ? 2 : 1); big++) { /* Q4_0: kernels of the first */
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
            net_end(&n, x, k, big ? MAX_ROWS : FEW_MAX_ROWS, NET_SEQS);
            (big ? check_many : check_few)(s, &n, 3 * PRODUCT_BOUND);
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
    check_many(s, &n, PRODUCT_BOUND);
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
        check_many(s, &n, PRODUCT_BOUND);
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
    check_many(s, &n, EXACT_BOUND);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* "test_form*" */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_fused),   cmocka_unit_test(test_segments_of_formats),
        cmocka_unit_test(test_head),    cmocka_unit_test(test_precise),
    };
    return cmocka_run_group_tests(tests, open_session, close_session);
}
