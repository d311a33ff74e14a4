/* Graphs that GPUs have no kernels for, of models of several parts: each GPU backend refuses them
 * before anything is loaded, in one message that lists all that is missing. */
#include "device/device.h"
#include "model/model.h"
#include "support/tiny_fill.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

enum { MISSING_MAX = 12, GPUS_MAX = 4 };

typedef struct Part {
    const char *family, *name;
    const char *missing[MISSING_MAX]; /* NULL first: supported */
} Part;

static const Part parts[] = {
    {"llama", "text", {NULL}},
    {"qwen3_next", "text", {NULL}},
    {"qwen3_moe", "text", {NULL}},
    {"whisper",
     "encoder",
     {"layer_norm", "act", "input", "embed_pos", "window", "kv", "attend", "frames of a row",
      "caches of one step", "caches between parts"}},
    {"whisper", "decoder", {"layer_norm", "act", "embed_pos", "attend", "caches between parts"}},
    {"t5", "encoder", {"act", "kv", "attend", "caches of one step", "caches between parts"}},
    {"t5", "decoder", {"act", "kv", "attend", "caches between parts"}},
    {"t5_gated", "encoder", {"act", "kv", "attend", "caches of one step"}},
    {"qwen2_vl",
     "vision",
     {"layer_norm", "act", "input", "merge", "kv", "attend", "several positions of a row",
      "caches of one step"}},
    {"qwen2_vl", "text", {"input", "several positions of a row"}},
};

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

typedef struct Gpu {
    const DeviceOps *ops;
    Device *device;
} Gpu;

typedef struct Fixture {
    Gpu gpus[GPUS_MAX];
    int n;
    Gpu cpu;
} Fixture;

static void open_all(Fixture *f)
{
    int n;
    const DeviceOps *const *backends = device_backends(&n);
    *f = (Fixture){.n = 0};
    for (int i = 0; i < n; i++) {
        DeviceInfo infos[DEVICES_MAX];
        Gpu g = {.ops = backends[i]};
        int n_devices;
        Error err;
        const DeviceOptions opt = {.threads = 1, .numerics = NUM_FAST};
        must(g.ops->list(infos, &n_devices, &err), &err);
        if (n_devices == 0)
            continue;
        must(g.ops->open(&opt, &g.device, &err), &err);
        if (strcmp(g.ops->name, "cpu") == 0) {
            f->cpu = g;
        } else {
            assert_true(f->n < GPUS_MAX);
            print_message("%s\n", g.ops->describe(g.device));
            f->gpus[f->n++] = g;
        }
    }
    assert_non_null(f->cpu.device);
}

static void close_all(Fixture *f)
{
    for (int i = 0; i < f->n; i++)
        f->gpus[i].ops->close(f->gpus[i].device);
    f->cpu.ops->close(f->cpu.device);
}

static void ask(const Gpu *g, const Part *p, const GraphPlan *graph)
{
    Error err = {0};
    const bool ok = g->ops->supports(g->device, graph, &err);
    if (!p->missing[0]) {
        must(ok, &err);
        return;
    }
    if (ok)
        fail_msg("%s supports %s of %s", g->ops->name, p->name, p->family);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    if (strncmp(err.msg, g->ops->name, strlen(g->ops->name)) != 0)
        fail_msg("\"%s\" does not begin with %s", err.msg, g->ops->name);
    for (int i = 0; i < MISSING_MAX && p->missing[i]; i++)
        if (!strstr(err.msg, p->missing[i]))
            fail_msg("%s of %s: \"%s\" lacks \"%s\"", p->name, p->family, err.msg, p->missing[i]);
    print_message("%s\n", err.msg);
}

static void test_refusal(void **state)
{
    (void)state;
    Fixture f;
    open_all(&f);
    if (f.n == 0) {
        close_all(&f);
        skip();
    }
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const Part *p = &parts[i];
        const GraphLimits limits = {.max_rows = 32, .max_out_rows = 8, .max_segs = 4};
        const char *dir;
        Arena arena;
        Checkpoint *ck;
        Model *model;
        const GraphPlan *graph;
        Error err;
        arena_init(&arena, "test");
        must(tiny_fill(&arena, TEST_DATA, p->family, TEST_TMP, &dir, &err), &err);
        must(checkpoint_open(&arena, dir, &ck, &err), &err);
        must(model_open(&arena, ck, &model, &err), &err);
        must(model_build(model, &arena, p->name, &limits, &graph, &err), &err);
        must(f.cpu.ops->supports(f.cpu.device, graph, &err), &err);
        for (int j = 0; j < f.n; j++)
            ask(&f.gpus[j], p, graph);
        checkpoint_close(ck);
        arena_free(&arena);
    }
    close_all(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
