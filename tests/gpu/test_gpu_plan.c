/* The list of operations that GPUs run, for the families there are: how many a layer, what was
 * taken into what, and that no two values that live together share memory. */
#include "device/gpu/gpu_plan.h"
#include "model/model.h"
#include "support/tiny_fill.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

typedef struct Fixture {
    Arena arena;
    Checkpoint *ck;
    Model *model;
    const GraphPlan *graph;
    GpuPlan plan;
} Fixture;

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

static void open_family(Fixture *f, const char *name)
{
    Error err;
    const char *dir;
    const GraphLimits limits = {.max_rows = 48, .max_out_rows = 5, .max_segs = 4};
    *f = (Fixture){0};
    arena_init(&f->arena, "test");
    must(tiny_fill(&f->arena, TEST_DATA, name, TEST_TMP, &dir, &err), &err);
    must(checkpoint_open(&f->arena, dir, &f->ck, &err), &err);
    must(model_open(&f->arena, f->ck, &f->model, &err), &err);
    must(model_build(f->model, &f->arena, "text", &limits, &f->graph, &err), &err);
    must(gpu_plan_make(&f->arena, f->graph, &f->plan, &err), &err);
}

static void close_family(Fixture *f)
{
    checkpoint_close(f->ck);
    arena_free(&f->arena);
}

/* Every value an op reads was written by an earlier one and has not been written over since. */
static void check_memory(const Fixture *f)
{
    const GpuPlan *p = &f->plan;
    int *owner = test_calloc((size_t)(p->scratch_bytes / 256) + 1, sizeof *owner);
    for (int i = 0; i < p->n_ops; i++) {
        const GpuOp *op = &p->ops[i];
        for (int j = 0; j < 3; j++) {
            if (op->in[j] < 0)
                continue;
            const int base = f->graph->values[op->in[j]].base;
            const GpuValue *v = &p->values[base];
            assert_true(v->offset >= 0 && v->offset % 256 == 0);
            assert_true(p->values[op->in[j]].ld == v->ld && v->ld >= v->width);
            const int64_t bytes = (v->axis == AXIS_ROWS ? 64 : 8) * (int64_t)v->ld * 4;
            for (int64_t b = v->offset / 256; b < (v->offset + bytes + 255) / 256; b++)
                if (owner[b] != base + 1)
                    fail_msg("op %d (%s) reads value %d, whose memory holds %d", i, op->name, base,
                             owner[b] - 1);
        }
        const int out = f->graph->values[op->out].base;
        const GpuValue *v = &p->values[out];
        if (v->is_logits)
            continue;
        assert_true(v->offset >= 0);
        const int64_t bytes = (v->axis == AXIS_ROWS ? 64 : 8) * (int64_t)v->ld * 4;
        assert_true(v->offset + bytes <= p->scratch_bytes);
        for (int64_t b = v->offset / 256; b < (v->offset + bytes + 255) / 256; b++)
            owner[b] = out + 1;
    }
    test_free(owner);
}

static int count(const GpuPlan *p, OpKind kind)
{
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].kind == kind;
    return n;
}

/* Five operations a dense layer: qkv, attention, o, gate and up, down; then the embedding and the
 * head. */
static void check_dense(const char *name)
{
    Fixture f;
    open_family(&f, name);
    const GpuPlan *p = &f.plan;
    assert_int_equal(p->n_ops, 5 * f.model->n_layers + 2);
    assert_int_equal(p->ops[0].kind, OP_EMBED);
    for (int l = 0; l < f.model->n_layers; l++) {
        const GpuOp *op = &p->ops[1 + 5 * l];
        assert_int_equal(op[0].kind, OP_LIN);
        assert_true(op[0].norm.vec && op[0].norm.eps > 0);
        assert_int_equal(op[1].kind, OP_ATTN);
        assert_true(op[1].q_rope && op[1].k_rope);
        assert_int_equal(op[2].kind, OP_LIN);
        assert_true(op[2].in[1] >= 0 && !op[2].norm.vec);
        assert_true(op[3].silu && op[3].norm.vec);
        assert_true(op[4].in[1] == op[2].out && op[4].in[0] == op[3].out);
    }
    const GpuOp *head = &p->ops[p->n_ops - 1];
    assert_true(head->gather && head->norm.vec && p->values[head->out].is_logits);
    assert_int_equal(head->axis, AXIS_OUT_ROWS);
    check_memory(&f);
    close_family(&f);
}

static void test_dense(void **state)
{
    (void)state;
    check_dense("llama");
    check_dense("qwen3");
}

static void test_head_norms(void **state)
{
    (void)state;
    Fixture f;
    open_family(&f, "qwen3");
    assert_int_equal(f.plan.ops[2].kind, OP_ATTN);
    assert_true(f.plan.ops[2].q_norm.vec && f.plan.ops[2].k_norm.vec);
    assert_int_equal(count(&f.plan, OP_NORM) + count(&f.plan, OP_ROPE), 0);
    close_family(&f);
}

/* Experts: qkv, attention, o, router, experts; norm folded into router and experts alike. */
static void test_experts(void **state)
{
    (void)state;
    Fixture f;
    open_family(&f, "qwen3_moe");
    const GpuPlan *p = &f.plan;
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != OP_MOE)
            continue;
        n++;
        assert_int_equal(p->ops[i - 1].kind, OP_LIN);
        assert_true(p->ops[i - 1].weight->precise);
        assert_true(p->ops[i].norm.vec && p->ops[i].norm.vec == p->ops[i - 1].norm.vec);
        assert_int_equal(p->ops[i].in[0], p->ops[i - 1].in[0]);
        assert_int_equal(p->ops[i].in[1], p->ops[i - 1].out);
        assert_true(p->ops[i].in[2] >= 0);
    }
    assert_true(n > 0);
    assert_int_equal(count(p, OP_NORM) + count(p, OP_ROPE) + count(p, OP_ADD), 0);
    check_memory(&f);
    close_family(&f);
}

static void test_delta(void **state)
{
    (void)state;
    Fixture f;
    open_family(&f, "qwen3_next");
    assert_true(count(&f.plan, OP_DELTA) > 0 && count(&f.plan, OP_CONV) > 0);
    assert_int_equal(count(&f.plan, OP_NORM), 0);
    assert_int_equal(count(&f.plan, OP_SILU_MUL), 0);
    check_memory(&f);
    close_family(&f);
}

static void test_buckets(void **state)
{
    (void)state;
    int b[GPU_BUCKETS_MAX];
    assert_int_equal(gpu_buckets(1, b), 1);
    assert_int_equal(gpu_buckets(512, b), 10);
    assert_int_equal(b[9], 512);
    assert_int_equal(gpu_buckets(513, b), 11);
    assert_int_equal(gpu_bucket(3), 4);
    assert_int_equal(gpu_bucket(1), 1);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),   cmocka_unit_test(test_head_norms),
        cmocka_unit_test(test_experts), cmocka_unit_test(test_delta),
        cmocka_unit_test(test_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
