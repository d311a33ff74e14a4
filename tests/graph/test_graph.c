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
    const int rows = v->axis == AXIS_OUT_ROWS ? p->max_out_rows
                     : v->axis == AXIS_FRAMES ? p->max_rows * p->frames
                                              : p->max_rows;
    return (int64_t)rows * v->ld * 4;
}

static void check_scratch(const GraphPlan *p)
{
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
            if (a->offset < b->offset + bytes_of(p, b) && b->offset < a->offset + bytes_of(p, a))
                fail_msg("%s: values %d and %d overlap at %d rows", p->part, i, j, p->max_rows);
        }
    }
    assert_true(p->scratch_bytes < sum); /* memory is shared at all */
}

enum { MELS = 20, GROUP_STEP = 0, GROUP_FIXED = 1 };

static const KvGroup groups[] = {
    [GROUP_STEP] =
        {.n_layers = 1, .n_kv_heads = HEADS, .head_dim = DIM, .v_dim = DIM, .use = KV_STEP},
    [GROUP_FIXED] =
        {.n_layers = LAYERS, .n_kv_heads = HEADS, .head_dim = DIM, .v_dim = DIM, .use = KV_FIXED},
};

static void declare(Graph *g)
{
    assert_int_equal(g_kv_group(g, &groups[GROUP_STEP]), GROUP_STEP);
    assert_int_equal(g_kv_group(g, &groups[GROUP_FIXED]), GROUP_FIXED);
}

static AttnDesc over(int group, int layer)
{
    return (AttnDesc){.n_heads = HEADS,
                      .n_kv_heads = HEADS,
                      .head_dim = DIM,
                      .v_dim = DIM,
                      .scale = 0.25F,
                      .kv_group = group,
                      .kv_layer = layer,
                      .full = true};
}

/* Convolutions over frames, layers that see whole segments, keys and values for another part, and
 * merged output rows. */
static const GraphPlan *encoder(Fixture *f, const GraphLimits *limits)
{
    Graph *g = graph_begin(&f->arena, "encoder", &f->err);
    const AttnDesc self = over(GROUP_STEP, 0);
    declare(g);
    T x = g_window(g, g_input(g, INPUT_MEL, 2, MELS), &(WindowDesc){3, 1, 1});
    x = g_act(g, ACT_GELU, g_lin(g, weight(f, HIDDEN, 3 * MELS), x), 0);
    x = g_window(g, x, &(WindowDesc){3, 2, 1});
    x = g_embed_pos(g, weight(f, 50, HIDDEN), g_lin(g, weight(f, HIDDEN, 3 * HIDDEN), x));
    for (int l = 0; l < LAYERS; l++) {
        const T h = g_layer_norm(g, &f->norm, &f->norm, x, 1e-5F);
        g_kv(g, g_lin(g, weight(f, HIDDEN, HIDDEN), h), h, &self);
        x = g_add(g, x, g_attend(g, h, &self));
    }
    for (int l = 0; l < LAYERS; l++) {
        const AttnDesc cross = over(GROUP_FIXED, l);
        g_kv(g, x, g_lin(g, weight(f, HIDDEN, HIDDEN), x), &cross);
    }
    g_out(g, 0, g_lin(g, weight(f, 8, 4 * HIDDEN), g_merge(g, x, 4)));
    const GraphPlan *plan = NULL;
    if (!graph_end(g, limits, &plan, &f->err))
        fail_msg("graph_end: %s", f->err.msg);
    return plan;
}

static void test_scratch_never_overlaps(void **state)
{
    (void)state;
    static const int rows[] = {1, 7, 512};
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        Fixture f;
        setup(&f);
        check_scratch(decoder(&f, &(GraphLimits){rows[r], 3, 4}));
        arena_free(&f.arena);
        setup(&f);
        check_scratch(encoder(&f, &(GraphLimits){rows[r], 3, 4}));
        arena_free(&f.arena);
    }
}

/* What a plan says of an encoder, for devices to refuse by and drivers to feed. */
static void test_encoder_plan(void **state)
{
    (void)state;
    Fixture f;
    setup(&f);
    const GraphPlan *p = encoder(&f, &(GraphLimits){8, 2, 2});
    assert_int_equal(p->n_inputs, 1);
    assert_int_equal(p->inputs[0].axis, AXIS_FRAMES);
    assert_int_equal(p->inputs[0].width, MELS);
    assert_false(p->inputs[0].optional);
    assert_int_equal(p->frames, 2);
    assert_int_equal(p->merge, 4);
    assert_int_equal(p->max_pos, 50);
    assert_int_equal(p->n_kv_groups, 2);
    assert_int_equal(p->kv_writes, 1U << GROUP_STEP | 1U << GROUP_FIXED);
    assert_int_equal(p->kv_reads, 1U << GROUP_STEP);
    assert_int_equal(p->values[p->out].axis, AXIS_OUT_ROWS);
    for (int i = 0; i < p->n_ops; i++) {
        const Op *op = &p->ops[i];
        if (op->kind == OP_KV)
            assert_int_equal(op->out, -1);
        if (op->kind == OP_WINDOW) /* what only a product reads is never stored */
            assert_true(op->packed_only);
    }
    arena_free(&f.arena);

    setup(&f); /* a part that reads, with a group of its own after the declared ones */
    Graph *g = graph_begin(&f.arena, "decoder", &f.err);
    declare(g);
    const AttnDesc cross = over(GROUP_FIXED, 2);
    static const uint8_t axis[DIM / 2] = {0, 0, 1, 1, 2, 2, 2, 2};
    const RopeDesc rope = {.n_heads = HEADS,
                           .head_dim = DIM,
                           .rot_dim = DIM,
                           .scale = 1,
                           .inv_freq = f.numbers,
                           .axis = axis};
    RopeDesc plain = rope;
    plain.axis = NULL;
    const T x = g_input_over(g, INPUT_EMBEDS, g_embed(g, weight(&f, VOCAB, HIDDEN)));
    const T kv = g_slice(g, x, 0, KV_HEADS * DIM);
    const T h = g_attn(g, g_rope(g, g_rope(g, x, &rope), &plain), kv, kv, &attn);
    g_out(g, 0, g_out_rows(g, g_attend(g, h, &cross)));
    assert_true(graph_end(g, &(GraphLimits){8, 2, 2}, &p, &f.err));
    assert_int_equal(p->n_kv_groups, 3);
    assert_int_equal(p->kv_groups[2].n_layers, 1);
    assert_int_equal(p->kv_groups[GROUP_FIXED].n_layers, LAYERS);
    assert_int_equal(p->kv_writes, 1U << 2);
    assert_int_equal(p->kv_reads, 1U << 2 | 1U << GROUP_FIXED);
    assert_int_equal(p->pos_axes, 3);
    assert_int_equal(p->n_rope_tables, 2); /* equal frequencies, other positions */
    assert_true(p->inputs[0].optional);
    arena_free(&f.arena);
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

static T bad_layer_norm(Fixture *f, Graph *g, T x)
{
    return g_layer_norm(g, &f->norm, &f->head_norm, x, 1e-5F);
}

static T bad_act(Fixture *f, Graph *g, T x)
{
    (void)f;
    return g_act(g, ACT_GELU, x, g_slice(g, x, 0, 3));
}

static T bad_input(Fixture *f, Graph *g, T x)
{
    (void)f;
    (void)g_input_over(g, INPUT_EMBEDS, x);
    return g_input(g, INPUT_MEL, 1, 3);
}

static T bad_frames(Fixture *f, Graph *g, T x)
{
    (void)f;
    (void)x;
    (void)g_input(g, INPUT_MEL, 2, 3);
    return g_input(g, INPUT_MEL, 3, 3);
}

static T bad_positions(Fixture *f, Graph *g, T x)
{
    return g_embed_pos(g, weight(f, 50, HIDDEN + 1), x);
}

static T bad_window(Fixture *f, Graph *g, T x)
{
    (void)f;
    return g_window(g, x, &(WindowDesc){3, 2, 1});
}

static T bad_taps(Fixture *f, Graph *g, T x)
{
    (void)f;
    return g_window(g, x, &(WindowDesc){3, 1, 3});
}

static T bad_merge(Fixture *f, Graph *g, T x)
{
    (void)f;
    return g_merge(g, g_merge(g, x, 2), 2);
}

static T bad_axis(Fixture *f, Graph *g, T x)
{
    static const uint8_t axis[DIM / 2] = {0, 0, 0, POS_AXES_MAX};
    const RopeDesc r = {.n_heads = HEADS,
                        .head_dim = DIM,
                        .rot_dim = DIM,
                        .scale = 1,
                        .inv_freq = f->numbers,
                        .axis = axis};
    return g_rope(g, x, &r);
}

static T bad_group(Fixture *f, Graph *g, T x)
{
    (void)f;
    const AttnDesc a = over(0, 0);
    return g_attend(g, x, &a);
}

static T bad_layer(Fixture *f, Graph *g, T x)
{
    (void)f;
    const AttnDesc a = over(GROUP_STEP, 1);
    declare(g);
    return g_attend(g, x, &a);
}

static T bad_causal(Fixture *f, Graph *g, T x)
{
    (void)f;
    AttnDesc a = over(GROUP_FIXED, 0);
    a.full = false;
    declare(g);
    return g_attend(g, x, &a);
}

static T bad_growing(Fixture *f, Graph *g, T x)
{
    (void)f;
    KvGroup grow = groups[GROUP_FIXED];
    grow.use = KV_GROW;
    const AttnDesc a = over(g_kv_group(g, &grow), 0);
    return g_attend(g, x, &a);
}

static T bad_bias(Fixture *f, Graph *g, T x)
{
    AttnDesc a = over(GROUP_STEP, 0);
    a.bias = &f->norm;
    a.span = 8;
    declare(g);
    return g_attend(g, x, &a);
}

static T bad_kv(Fixture *f, Graph *g, T x)
{
    (void)f;
    const AttnDesc a = over(GROUP_STEP, 0);
    declare(g);
    g_kv(g, x, g_slice(g, x, 0, 3), &a);
    return g_slice(g, x, 0, 1);
}

static T bad_late_group(Fixture *f, Graph *g, T x)
{
    (void)f;
    const T kv = g_slice(g, x, 0, KV_HEADS * DIM);
    (void)g_attn(g, x, kv, kv, &attn);
    return g_kv_group(g, &groups[0]) + 1;
}

static T bad_full_attn(Fixture *f, Graph *g, T x)
{
    (void)f;
    const T kv = g_slice(g, x, 0, KV_HEADS * DIM);
    AttnDesc a = attn;
    a.full = true;
    return g_attn(g, x, kv, kv, &a);
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
               {bad_twice, "rows were selected before"},
               {bad_layer_norm, "64 columns, weight of 64, bias of 16"},
               {bad_act, "inputs of 64 and 3 columns"},
               {bad_input, "may be left out is not the last"},
               {bad_frames, "3 frames a row, and 2 elsewhere"},
               {bad_positions, "64 columns, the table 65"},
               {bad_window, "stride of 2 over 0 frames"},
               {bad_taps, "3 taps, 3 of them before"},
               {bad_merge, "2 rows of 128 columns"},
               {bad_axis, "turns by axis 4"},
               {bad_group, "no layer 0"},
               {bad_layer, "no layer 1"},
               {bad_causal, "positions of queries"},
               {bad_growing, "a cache that grows"},
               {bad_bias, "bias of 64 for 4 heads"},
               {bad_kv, "k, v have 64, 3 columns"},
               {bad_late_group, "a group after attention"},
               {bad_full_attn, "g_kv and g_attend"}};
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
        if (!strstr(f.err.msg, bad[i].says))
            fail_msg("\"%s\", wanted \"%s\"", f.err.msg, bad[i].says);
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
        cmocka_unit_test(test_encoder_plan),
        cmocka_unit_test(test_errors_are_sticky_and_named),
        cmocka_unit_test(test_no_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
