/* The builder's checks, each fusion rule, and the scratch plan's one promise: values that live
 * together never overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/graph.h"

#include <stdio.h>
#include <string.h>

enum { HIDDEN = 64, FFN = 96, VOCAB = 320, HEADS = 4, KV_HEADS = 2, DIM = 16, LAYERS = 3 };

typedef struct Fixture {
    Arena arena;
    Error err;
    RowView views[64];
    Weight weights[64];
    int n_weights;
    float numbers[512];
    Vec norm, head_norm;
} Fixture;

static void setup(Fixture *f)
{
    memset(f, 0, sizeof *f);
    arena_init(&f->arena, "test graph");
    f->norm = (Vec){.name = "norm", .n = HIDDEN, .v = f->numbers};
    f->head_norm = (Vec){.name = "q_norm", .n = DIM, .v = f->numbers};
}

static const Weight *weight(Fixture *f, int n, int k)
{
    Weight *w = &f->weights[f->n_weights];
    RowView *v = &f->views[f->n_weights++];
    *v = (RowView){.data = (const uint8_t *)f->numbers,
                   .row_bytes = 2 * (int64_t)k,
                   .n = n,
                   .k = k,
                   .group = 1,
                   .format = FMT_BF16};
    *w = (Weight){.name = "w", .n = n, .k = k, .n_segs = 1, .segs = v};
    return w;
}

static const AttnDesc attn = {
    .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .v_dim = DIM, .scale = 0.25F};

static T layer(Fixture *f, Graph *g, T x)
{
    const RopeDesc rope_q = {
        .n_heads = HEADS, .head_dim = DIM, .rot_dim = DIM, .scale = 1, .inv_freq = f->numbers};
    RopeDesc rope_k = rope_q;
    rope_k.n_heads = KV_HEADS;
    T h = g_norm(g, &f->norm, x, 1e-5F);
    const T qkv = g_lin(g, weight(f, (HEADS + 2 * KV_HEADS) * DIM, HIDDEN), h);
    T q = g_slice(g, qkv, 0, HEADS * DIM);
    T k = g_slice(g, qkv, HEADS * DIM, KV_HEADS * DIM);
    const T v = g_slice(g, qkv, (HEADS + KV_HEADS) * DIM, KV_HEADS * DIM);
    q = g_rope(g, g_head_norm(g, &f->head_norm, q, DIM, 1e-5F), &rope_q);
    k = g_rope(g, k, &rope_k);
    x = g_add(g, x, g_lin(g, weight(f, HIDDEN, HEADS * DIM), g_attn(g, q, k, v, &attn)));
    h = g_norm(g, &f->norm, x, 1e-5F);
    const T up = g_lin(g, weight(f, 2 * FFN, HIDDEN), h);
    h = g_silu_mul(g, g_slice(g, up, 0, FFN), g_slice(g, up, FFN, FFN));
    return g_add(g, x, g_lin(g, weight(f, HIDDEN, FFN), h));
}

static const GraphPlan *decoder(Fixture *f, const GraphLimits *limits)
{
    Graph *g = graph_begin(&f->arena, "text", &f->err);
    assert_non_null(g);
    T x = g_embed(g, weight(f, VOCAB, HIDDEN));
    for (int l = 0; l < LAYERS; l++) {
        g_name(g, "layers.%d", l);
        x = layer(f, g, x);
    }
    const T h = g_norm(g, &f->norm, g_out_rows(g, x), 1e-5F);
    g_out(g, h, g_lin(g, weight(f, VOCAB, HIDDEN), h));
    const GraphPlan *plan = NULL;
    if (!graph_end(g, limits, &plan, &f->err))
        fail_msg("graph_end: %s", f->err.msg);
    return plan;
}

static int count(const GraphPlan *p, OpKind kind)
{
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].kind == kind;
    return n;
}

static void test_residuals_fuse(void **state)
{
    (void)state;
    Fixture f;
    setup(&f);
    const GraphPlan *p = decoder(&f, &(GraphLimits){8, 2, 2});
    assert_int_equal(count(p, OP_ADD), 0);
    int addends = 0;
    for (int i = 0; i < p->n_ops; i++)
        addends += p->ops[i].kind == OP_LIN && p->ops[i].in[1] >= 0;
    assert_int_equal(addends, 2 * LAYERS);
    arena_free(&f.arena);
}

/* A product that something else reads too, or an addend computed after it, stays an add. */
static void test_residual_kept_when_shared(void **state)
{
    (void)state;
    Fixture f;
    setup(&f);
    Graph *g = graph_begin(&f.arena, "text", &f.err);
    const T x = g_embed(g, weight(&f, VOCAB, HIDDEN));
    const T a = g_lin(g, weight(&f, HIDDEN, HIDDEN), x);
    const T b = g_add(g, a, x);
    const T late = g_norm(g, &f.norm, b, 1e-5F);
    const T c = g_add(g, a, late); /* second reader of a, and its addend comes later */
    g_out(g, 0, g_lin(g, weight(&f, VOCAB, HIDDEN), g_out_rows(g, c)));
    const GraphPlan *p = NULL;
    assert_true(graph_end(g, &(GraphLimits){8, 2, 2}, &p, &f.err));
    assert_int_equal(count(p, OP_ADD), 2);
    arena_free(&f.arena);
}

static void test_packed_only(void **state)
{
    (void)state;
    Fixture f;
    setup(&f);
    const GraphPlan *p = decoder(&f, &(GraphLimits){8, 2, 2});
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        const bool whole_norm =
            op->kind == OP_NORM && op->group == HIDDEN && op->out != p->hidden_out;
        if (whole_norm || op->kind == OP_SILU_MUL)
            assert_true(op->packed_only);
        if (op->kind == OP_ROPE || (op->kind == OP_NORM && op->group == DIM) ||
            op->out == p->hidden_out)
            assert_false(op->packed_only);
    }
    arena_free(&f.arena);
}

static int64_t bytes_of(const GraphPlan *p, const Value *v)
{
    return (int64_t)(v->axis == AXIS_ROWS ? p->max_rows : p->max_out_rows) * v->ld * 4;
}

static void test_scratch_never_overlaps(void **state)
{
    (void)state;
    static const int rows[] = {1, 7, 512};
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        Fixture f;
        setup(&f);
        const GraphPlan *p = decoder(&f, &(GraphLimits){rows[r], 3, 4});
        int64_t sum = 0;
        for (int i = 0; i < p->n_values; i++) {
            const Value *a = &p->values[i];
            if (a->base != i || a->offset < 0)
                continue;
            assert_true(a->ld >= a->width && a->offset % 64 == 0);
            assert_true(a->offset + bytes_of(p, a) <= p->scratch_bytes);
            sum += bytes_of(p, a);
            for (int j = 0; j < i; j++) {
                const Value *b = &p->values[j];
                if (b->base != j || b->offset < 0 || b->first_op > a->last_op ||
                    a->first_op > b->last_op)
                    continue;
                if (a->offset < b->offset + bytes_of(p, b) &&
                    b->offset < a->offset + bytes_of(p, a))
                    fail_msg("values %d and %d overlap at %d rows", i, j, rows[r]);
            }
        }
        assert_true(p->scratch_bytes < sum); /* memory is shared at all */
        arena_free(&f.arena);
    }
}

static void test_groups_and_tables(void **state)
{
    (void)state;
    Fixture f;
    setup(&f);
    const GraphPlan *p = decoder(&f, &(GraphLimits){8, 2, 2});
    assert_int_equal(p->n_kv_groups, 1);
    assert_int_equal(p->kv_groups[0].n_layers, LAYERS);
    assert_int_equal(p->n_rope_tables, 1);
    const int64_t per_layer =
        2 * HIDDEN * ((HEADS + 2 * KV_HEADS) * DIM + HEADS * DIM + 2 * FFN + FFN);
    assert_int_equal(p->weight_bytes_per_row, LAYERS * per_layer + 2 * HIDDEN * VOCAB + 2 * HIDDEN);
    arena_free(&f.arena);
}

typedef T BadOp(Fixture *f, Graph *g, T x);

static T bad_lin(Fixture *f, Graph *g, T x)
{
    return g_lin(g, weight(f, 8, HIDDEN + 1), x);
}

static T bad_slice(Fixture *f, Graph *g, T x)
{
    (void)f;
    return g_slice(g, x, HIDDEN - 3, 4);
}

static T bad_norm(Fixture *f, Graph *g, T x)
{
    return g_head_norm(g, &f->head_norm, x, DIM - 1, 1e-5F);
}

static T bad_add(Fixture *f, Graph *g, T x)
{
    (void)f;
    return g_add(g, x, g_slice(g, x, 0, 3));
}

static T bad_attn(Fixture *f, Graph *g, T x)
{
    (void)f;
    AttnDesc a = attn;
    a.n_kv_heads = 3;
    return g_attn(g, x, x, x, &a);
}

static T bad_rope(Fixture *f, Graph *g, T x)
{
    const RopeDesc r = {
        .n_heads = HEADS, .head_dim = DIM, .rot_dim = 3, .scale = 1, .inv_freq = f->numbers};
    return g_rope(g, x, &r);
}

static T bad_twice(Fixture *f, Graph *g, T x)
{
    (void)f;
    return g_out_rows(g, g_out_rows(g, x));
}

static void test_errors_are_sticky_and_named(void **state)
{
    (void)state;
    static const struct {
        BadOp *op;
        const char *says;
    } bad[] = {{bad_lin, "input has 64 columns, the weight 65"},
               {bad_slice, "columns 61 to 65 of 64"},
               {bad_norm, "64 columns in groups of 15"},
               {bad_add, "inputs of 64 and 3 columns"},
               {bad_attn, "4 heads over 3 kv heads"},
               {bad_rope, "rotates 3 of 16 dimensions"},
               {bad_twice, "rows were selected before"}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        Fixture f;
        setup(&f);
        Graph *g = graph_begin(&f.arena, "text", &f.err);
        g_name(g, "layers.%d", 5);
        T x = bad[i].op(&f, g, g_embed(g, weight(&f, VOCAB, HIDDEN)));
        assert_int_equal(x, 0);
        x = g_norm(g, &f.norm, x, 1e-5F); /* goes on, stays invalid */
        assert_int_equal(x, 0);
        g_out(g, 0, x);
        const GraphPlan *p = NULL;
        assert_false(graph_end(g, &(GraphLimits){8, 2, 2}, &p, &f.err));
        assert_int_equal(f.err.code, ERR_FORMAT);
        assert_non_null(strstr(f.err.msg, bad[i].says));
        assert_non_null(strstr(f.err.msg, "layers.5"));
        arena_free(&f.arena);
    }
}

static void test_no_output(void **state)
{
    (void)state;
    Fixture f;
    setup(&f);
    Graph *g = graph_begin(&f.arena, "text", &f.err);
    (void)g_embed(g, weight(&f, VOCAB, HIDDEN));
    const GraphPlan *p = NULL;
    assert_false(graph_end(g, &(GraphLimits){8, 2, 2}, &p, &f.err));
    assert_non_null(strstr(f.err.msg, "no output"));
    arena_free(&f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residuals_fuse),
        cmocka_unit_test(test_residual_kept_when_shared),
        cmocka_unit_test(test_packed_only),
        cmocka_unit_test(test_scratch_never_overlaps),
        cmocka_unit_test(test_groups_and_tables),
        cmocka_unit_test(test_errors_are_sticky_and_named),
        cmocka_unit_test(test_no_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
