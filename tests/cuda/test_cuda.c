/* The CUDA backend on a driver without a GPU (support/fake_cuda): steps against the CPU, steps in
 * flight, memory as planned, and every driver call that can fail, failing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cuda/cuda_api.h"
#include "device/device.h"
#include "model/model.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/tiny_fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 4, PAGE_TOKENS = 4, N_PAGES = 8, N_STATES = 3, VOCAB = 320, LAUNCH_FAILED = 719 };

static const FakeCuda *fake;

/* A model and its graph, without a device. */
typedef struct Fix {
    Arena a;
    Checkpoint *ck;
    Model *model;
    const GraphPlan *plan;
    KvPoolDesc desc;
} Fix;

/* What a device holds of it. */
typedef struct Held {
    const DeviceOps *ops;
    Device *device;
    DeviceWeights *weights;
    KvPool *pool;
    Program *program;
} Held;

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

static void fix_open(Fix *f, const char *name)
{
    Error err;
    const char *dir;
    const GraphLimits limits = {.max_rows = MAX_ROWS, .max_out_rows = MAX_ROWS, .max_segs = 2};
    arena_init(&f->a, "test");
    must(tiny_fill(&f->a, TEST_DATA, name, TEST_TMP, &dir, &err), &err);
    must(checkpoint_open(&f->a, dir, &f->ck, &err), &err);
    must(model_open(&f->a, f->ck, &f->model, &err), &err);
    must(model_build(f->model, &f->a, "text", &limits, &f->plan, &err), &err);
    f->desc = (KvPoolDesc){.format = KV_FORMAT_F32,
                           .n_groups = f->plan->n_kv_groups,
                           .state_floats = f->plan->state_floats,
                           .n_states = f->plan->state_floats ? N_STATES : 0};
    for (int g = 0; g < f->desc.n_groups; g++) {
        f->desc.groups[g] = f->plan->kv_groups[g];
        f->desc.page_tokens[g] = PAGE_TOKENS;
        f->desc.n_pages[g] = N_PAGES;
        f->desc.seq_pages[g] = N_PAGES;
    }
}

static void fix_close(Fix *f)
{
    checkpoint_close(f->ck);
    arena_free(&f->a);
}

static bool held_open(Held *h, const Fix *f, const DeviceOps *ops, Error *err)
{
    const DeviceOptions opt = {.threads = 1, .numerics = NUM_EXACT};
    *h = (Held){.ops = ops};
    return ops->open(&opt, &h->device, err) && ops->supports(h->device, f->plan, err) &&
           ops->weights_open(h->device, f->model->weights, f->model->n_weights, NULL, &h->weights,
                             err) &&
           ops->pool_open(h->device, &f->desc, &h->pool, err) &&
           ops->lower(h->device, f->plan, h->weights, &f->desc, &h->program, err);
}

static void held_close(Held *h)
{
    if (h->program)
        h->ops->program_close(h->device, h->program);
    if (h->pool)
        h->ops->pool_close(h->device, h->pool);
    if (h->weights)
        h->ops->weights_close(h->device, h->weights);
    if (h->device)
        h->ops->close(h->device);
    *h = (Held){0};
}

/* One sequence: `n` tokens after `done` others. */
typedef struct Step {
    Row rows[MAX_ROWS];
    Segment seg;
    int32_t out, pages[N_PAGES];
    SampleDesc sample;
    SampleResult result;
    StepBlock block;
} Step;

static void step_fill(Step *s, const int32_t *tokens, int done, int n, float *logits)
{
    *s = (Step){.out = n - 1};
    s->seg = (Segment){.n_rows = n, .kv_len = done + n, .state_in = done ? 0 : -1};
    for (int i = 0; i < N_PAGES; i++)
        s->pages[i] = N_PAGES - 1 - i;
    for (int g = 0; g < KV_GROUPS_MAX; g++)
        s->seg.pages[g] = s->pages;
    for (int i = 0; i < n; i++)
        s->rows[i] = (Row){tokens[i], done + i};
    s->block = (StepBlock){.n_rows = n,
                           .n_segs = 1,
                           .n_out = 1,
                           .rows = s->rows,
                           .segs = &s->seg,
                           .out_rows = &s->out,
                           .samples = &s->sample,
                           .results = &s->result,
                           .logits = logits};
}

static bool step_run(const Held *h, const Step *s, Error *err)
{
    uint64_t ticket;
    return h->ops->submit(h->device, h->program, h->pool, &s->block, &ticket, err) &&
           h->ops->wait(h->device, h->program, ticket, clock_ns() + 30000000000U, err);
}

static const int32_t prompt[] = {5, 17, 200, 33, 7, 250, 90};

/* Three rows, then one after another, with a copy of pages and state between. */
static bool run_prompt(const Held *h, const Fix *f, float *logits, Error *err)
{
    Step s;
    int done = 0;
    for (int i = 0; done < (int)COUNT_OF(prompt); i++) {
        const int n = i == 0 ? 3 : 1;
        step_fill(&s, prompt + done, done, n, logits + (size_t)i * VOCAB);
        if (!step_run(h, &s, err))
            return false;
        done += n;
        for (int g = 0; g < f->desc.n_groups; g++)
            h->ops->page_copy(h->device, h->pool, g, N_PAGES - 1, 0, 2);
        h->ops->state_copy(h->device, h->pool, 0, 1);
        h->ops->state_copy(h->device, h->pool, 1, 0);
    }
    return true;
}

static void compare(const char *name, const float *got, const float *want, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-4F))
            fail_msg("%s: step %d, token %d: %.7g, the CPU's %.7g", name, i / VOCAB, i % VOCAB,
                     (double)got[i], (double)want[i]);
}

static void steps_are_the_cpus(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "qwen3_next"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        Fix f;
        Held h;
        Error err;
        static float got[8 * VOCAB], want[8 * VOCAB];
        fix_open(&f, names[i]);
        assert_int_equal(f.model->vocab, VOCAB);
        must(held_open(&h, &f, &device_cpu, &err) && run_prompt(&h, &f, want, &err), &err);
        held_close(&h);
        must(held_open(&h, &f, &device_cuda, &err) && run_prompt(&h, &f, got, &err), &err);
        held_close(&h);
        compare(names[i], got, want, 5 * VOCAB);
        assert_int_equal(fake->live(), 0);
        fix_close(&f);
    }
}

/* A step's token read by the next one, which is submitted before the first has ended. */
static void two_steps_in_flight(void **state)
{
    (void)state;
    Fix f;
    Held h;
    Error err;
    fix_open(&f, "llama");
    must(held_open(&h, &f, &device_cuda, &err), &err);
    enum { N = 6 };
    int32_t alone[N];
    int32_t piped[N];
    Step s[N];
    static float logits[VOCAB];
    for (int i = 0; i < N; i++) { /* one at a time, tokens through the host */
        step_fill(&s[i], i == 0 ? prompt : &alone[i - 1], i == 0 ? 0 : 2 + i, i == 0 ? 3 : 1,
                  logits);
        s[i].block.n_samples = 1;
        must(step_run(&h, &s[i], &err), &err);
        alone[i] = s[i].result.token;
        int best = 0;
        for (int t = 1; t < VOCAB; t++)
            best = logits[t] > logits[best] ? t : best;
        assert_int_equal(alone[i], best);
        assert_memory_equal(&s[i].result.logit, &logits[best], sizeof(float));
    }
    const int32_t last = -1 - 9; /* slot 9 */
    uint64_t tickets[N];
    for (int i = 0; i <= N; i++) {
        if (i < N) {
            step_fill(&s[i], i == 0 ? prompt : &last, i == 0 ? 0 : 2 + i, i == 0 ? 3 : 1, NULL);
            s[i].block.n_samples = 1;
            s[i].sample.slot = 9;
            must(h.ops->submit(h.device, h.program, h.pool, &s[i].block, &tickets[i], &err), &err);
        }
        if (i == 1) { /* a third is too many, and changes nothing */
            uint64_t ticket;
            assert_false(h.ops->submit(h.device, h.program, h.pool, &s[1].block, &ticket, &err));
            assert_int_equal(err.code, ERR_DEVICE);
        }
        if (i > 0) {
            must(h.ops->wait(h.device, h.program, tickets[i - 1], clock_ns() + 30000000000U, &err),
                 &err);
            piped[i - 1] = s[i - 1].result.token;
        }
    }
    assert_memory_equal(alone, piped, sizeof alone);
    held_close(&h);
    fix_close(&f);
}

static void a_step_that_does_not_fit_the_plan(void **state)
{
    (void)state;
    Fix f;
    Held h;
    Error err;
    Step s;
    uint64_t ticket;
    static float logits[VOCAB];
    fix_open(&f, "llama");
    must(held_open(&h, &f, &device_cuda, &err), &err);
    step_fill(&s, prompt, 0, 3, logits);
    s.pages[0] = N_PAGES;
    assert_false(h.ops->submit(h.device, h.program, h.pool, &s.block, &ticket, &err));
    assert_int_equal(err.code, ERR_DEVICE);
    s.pages[0] = 1;
    must(step_run(&h, &s, &err), &err);
    assert_false(h.ops->wait(h.device, h.program, 2, clock_ns() + 1000000, &err));
    assert_int_equal(err.code, ERR_DEVICE);
    held_close(&h);
    fix_close(&f);
}

/* ---- memory ---- */

static void memory_is_as_planned(void **state)
{
    (void)state;
    Fix f;
    Held h;
    Error err;
    const DeviceOptions opt = {.numerics = NUM_FAST};
    fix_open(&f, "qwen3_next");
    h = (Held){.ops = &device_cuda};
    must(h.ops->open(&opt, &h.device, &err), &err);
    int64_t weights = 0;
    for (int i = 0; i < f.model->n_weights; i++) {
        int64_t bytes;
        const Placement how = h.ops->place(h.device, f.model->weights[i], &bytes);
        assert_true(how == PLACE_READ || how == PLACE_REPACK);
        weights += bytes;
    }
    int64_t kv_state;
    const int64_t kv = h.ops->pool_bytes(&f.desc, &kv_state);
    DeviceNeed need;
    h.ops->need(h.device, f.plan, &f.desc, &need);
    assert_true(need.scratch > 0 && need.runtime > 0 && need.host > 0);
    DeviceMemory before;
    DeviceMemory after;
    h.ops->memory(h.device, &before);
    assert_int_equal(before.used_bytes, 0);
    must(h.ops->weights_open(h.device, f.model->weights, f.model->n_weights, NULL, &h.weights,
                             &err) &&
             h.ops->pool_open(h.device, &f.desc, &h.pool, &err) &&
             h.ops->lower(h.device, f.plan, h.weights, &f.desc, &h.program, &err),
         &err);
    h.ops->memory(h.device, &after);
    /* The plan allows for what a real driver takes beside us; this one takes nothing. */
    const uint64_t planned = (uint64_t)(weights + kv + kv_state + need.scratch + need.runtime);
    assert_int_equal(after.used_bytes, planned - (12 << 20));
    assert_int_equal(after.limit_bytes, before.limit_bytes);
    held_close(&h);
    fix_close(&f);
}

static void a_shortage_names_its_bytes(void **state)
{
    (void)state;
    Fix f;
    Held h;
    Error err;
    fix_open(&f, "llama");
    fake->set_memory(64 << 10);
    assert_false(held_open(&h, &f, &device_cuda, &err));
    held_close(&h);
    fake->set_memory((uint64_t)2 << 30);
    assert_int_equal(err.code, ERR_NOMEM);
    if (!strstr(err.msg, "bytes") || !strstr(err.msg, "65536"))
        fail_msg("the message is \"%s\"", err.msg);
    assert_int_equal(fake->live(), 0);
    fix_close(&f);
}

typedef struct Told {
    int n;
    uint64_t done, total;
    bool cancel;
} Told;

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    Told *t = ctx;
    assert_true(done >= t->done && done <= total);
    t->n++;
    t->done = done;
    t->total = total;
}

static void loading_tells_and_ends(void **state)
{
    (void)state;
    Fix f;
    Error err;
    Device *d;
    DeviceWeights *w;
    Told told = {0};
    const DeviceOptions opt = {.numerics = NUM_FAST};
    const LoadProgress progress = {on_progress, &told, &told.cancel};
    fix_open(&f, "llama");
    must(device_cuda.open(&opt, &d, &err), &err);
    const int n = f.model->n_weights;
    must(device_cuda.weights_open(d, f.model->weights, n, &progress, &w, &err), &err);
    assert_true(told.n > 0 && told.done == told.total && told.total > 0);
    device_cuda.weights_close(d, w);
    /* the same bytes again take no memory */
    const Weight **twice = ARENA_ARRAY(&f.a, 2 * n, const Weight *, &err);
    for (int i = 0; i < 2 * n; i++)
        twice[i] = f.model->weights[i % n];
    const uint64_t once = told.total;
    told = (Told){0};
    must(device_cuda.weights_open(d, twice, 2 * n, &progress, &w, &err), &err);
    assert_int_equal(told.total, once);
    device_cuda.weights_close(d, w);
    told.cancel = true;
    assert_false(device_cuda.weights_open(d, f.model->weights, n, &progress, &w, &err));
    assert_int_equal(err.code, ERR_CANCELLED);
    device_cuda.close(d);
    assert_int_equal(fake->live(), 0);
    fix_close(&f);
}

static void devices_are_listed(void **state)
{
    (void)state;
    DeviceInfo infos[DEVICES_MAX];
    int n;
    Error err;
    must(device_cuda.list(infos, &n, &err), &err);
    assert_int_equal(n, 1);
    assert_string_equal(infos[0].id, "cuda:0");
    assert_string_equal(infos[0].arch, "sm_90");
    assert_string_equal(infos[0].pci, "0000:a0:00.0");
    assert_int_equal(infos[0].total_bytes, (uint64_t)2 << 30);
    assert_true(infos[0].free_bytes <= infos[0].total_bytes && !infos[0].software);
    Device *d;
    assert_false(device_cuda.open(&(DeviceOptions){.index = 3}, &d, &err));
    assert_int_equal(err.code, ERR_DEVICE);
    assert_int_equal(fake->live(), 0);
}

/* ---- faults ---- */

/* All that a model's life does with the driver; what is held is given back in any case. */
static bool whole_life(const Fix *f, Error *err)
{
    Held h;
    Step s;
    static float logits[VOCAB];
    bool ok = held_open(&h, f, &device_cuda, err);
    for (int i = 0; i < 2 && ok; i++) {
        step_fill(&s, prompt + i, i, 1, logits);
        s.block.n_samples = 1;
        ok = step_run(&h, &s, err);
        h.ops->page_copy(h.device, h.pool, 0, N_PAGES - 1, 0, 2);
    }
    if (ok) {
        uint64_t ticket; /* left to itself */
        ok = h.ops->submit(h.device, h.program, h.pool, &s.block, &ticket, err);
    }
    held_close(&h);
    return ok;
}

/* The n-th driver call of a life fails, for every n. `inject` says how. */
static void every_call(const Fix *f, const char *how, void (*inject)(uint64_t n), ErrCode code)
{
    Error err;
    inject(0);
    fake->ends_only(true);
    const uint64_t first = cuda_api_calls();
    must(whole_life(f, &err), &err);
    const uint64_t n_calls = cuda_api_calls() - first;
    assert_true(n_calls > 100);
    const size_t held = mem_in_use();
    int n_errors = 0;
    for (uint64_t n = 1; n <= n_calls; n++) {
        err = (Error){0};
        inject(n);
        const uint64_t start = clock_ns();
        const bool ok = whole_life(f, &err);
        const double ms = (double)(clock_ns() - start) * 1e-6;
        inject(0);
        if (!ok && (err.code == ERR_NONE || !err.msg[0]))
            fail_msg("%s at call %d: failed without an error", how, (int)n);
        if (!ok && err.code != code)
            fail_msg("%s at call %d: %s: %s", how, (int)n, err_name(err.code), err.msg);
        if (ms > 5000)
            fail_msg("%s at call %d: %.0f ms", how, (int)n, ms);
        if (fake->live() != 0 || mem_in_use() != held)
            fail_msg("%s at call %d (%s): %d of the driver's objects and %d bytes are left", how,
                     (int)n, err.msg, (int)fake->live(), (int)(mem_in_use() - held));
        n_errors += !ok;
        if (n % 64 == 0) /* and the device can be opened again */
            must(whole_life(f, &err), &err);
    }
    must(whole_life(f, &err), &err);
    fake->ends_only(false);
    /* All but those of closing, and those that a wait makes a few times more or less often. */
    print_message("%s: %d calls, %d lives ended with an error\n", how, (int)n_calls, n_errors);
    assert_true(n_errors > (int)n_calls / 2);
}

static void inject_refusal(uint64_t n)
{
    cuda_api_fail_at(n, 1);
}

static void inject_shortage(uint64_t n)
{
    cuda_api_fail_at(n, CU_OUT_OF_MEMORY);
}

static void inject_loss(uint64_t n)
{
    fake->fail_at(n, LAUNCH_FAILED, true);
}

static void every_call_refused(void **state)
{
    (void)state;
    Fix f;
    fix_open(&f, "llama");
    every_call(&f, "a refusal", inject_refusal, ERR_DEVICE);
    every_call(&f, "a shortage", inject_shortage, ERR_NOMEM);
    fix_close(&f);
}

static void device_lost_at_every_call(void **state)
{
    (void)state;
    Fix f;
    fix_open(&f, "llama");
    every_call(&f, "a loss", inject_loss, ERR_LOST);
    fix_close(&f);
}

/* What a wait says first, all later calls say too. */
static void assert_lost(const Held *h, const Step *s, const Error *first)
{
    Error err;
    uint64_t ticket;
    assert_int_equal(first->code, ERR_LOST);
    for (int i = 0; i < 2; i++) {
        assert_false(h->ops->submit(h->device, h->program, h->pool, &s->block, &ticket, &err));
        assert_int_equal(err.code, ERR_LOST);
        assert_string_equal(err.msg, first->msg);
    }
    KvPool *pool;
    const KvPoolDesc desc = {.n_groups = 0};
    assert_false(h->ops->pool_open(h->device, &desc, &pool, &err));
    assert_int_equal(err.code, ERR_LOST);
}

static void a_kernel_fails(void **state)
{
    (void)state;
    Fix f;
    Held h;
    Step s;
    Error err;
    static float logits[VOCAB];
    fix_open(&f, "llama");
    must(held_open(&h, &f, &device_cuda, &err), &err);
    step_fill(&s, prompt, 0, 1, logits);
    fake->fail_launch(3);
    const uint64_t start = clock_ns();
    assert_false(step_run(&h, &s, &err));
    assert_true(clock_ns() - start < 5000000000U);
    assert_lost(&h, &s, &err);
    held_close(&h);
    assert_int_equal(fake->live(), 0);
    must(whole_life(&f, &err), &err);
    fix_close(&f);
}

/* ---- time ---- */

static void submit_costs_little(void **state)
{
    (void)state;
    Fix f;
    Held h;
    Step s;
    Error err;
    enum { N = 40 };
    fix_open(&f, "llama");
    must(held_open(&h, &f, &device_cuda, &err), &err);
    uint64_t least = UINT64_MAX;
    fake->ends_only(true);
    for (int i = 0; i < N; i++) {
        uint64_t ticket;
        step_fill(&s, prompt, 20, 1, NULL);
        const uint64_t start = clock_ns();
        must(h.ops->submit(h.device, h.program, h.pool, &s.block, &ticket, &err), &err);
        const uint64_t took = clock_ns() - start;
        least = took < least ? took : least;
        must(h.ops->wait(h.device, h.program, ticket, clock_ns() + 30000000000U, &err), &err);
    }
    fake->ends_only(false);
    print_message("submit: %.2f us of the host at best\n", (double)least * 1e-3);
    assert_true(least < 200000); /* far above, so that a busy machine passes */
    held_close(&h);
    fix_close(&f);
}

/* ---- a device that hangs; last, as what it holds cannot be given back ---- */

static void a_hang_ends_at_the_deadline(void **state)
{
    (void)state;
    Fix f;
    Held h;
    Step s;
    Error err;
    uint64_t ticket;
    static float logits[VOCAB];
    fix_open(&f, "llama");
    must(held_open(&h, &f, &device_cuda, &err), &err);
    step_fill(&s, prompt, 0, 1, logits);
    fake->hang(true);
    must(h.ops->submit(h.device, h.program, h.pool, &s.block, &ticket, &err), &err);
    const uint64_t start = clock_ns();
    assert_false(h.ops->wait(h.device, h.program, ticket, start + 300000000U, &err));
    assert_lost(&h, &s, &err);
    held_close(&h);
    assert_true(clock_ns() - start < 5000000000U);
    /* a device that hangs before anything was waited for */
    const uint64_t again = clock_ns();
    assert_false(held_open(&h, &f, &device_cuda, &err));
    assert_int_equal(err.code, ERR_LOST);
    held_close(&h);
    assert_true(clock_ns() - again < 5000000000U);
    fake->hang(false);
    fix_close(&f);
}

int main(void)
{
    fake = fake_cuda_find();
    if (!fake) {
        print_message("skipped: libcuda.so.1 is not support/fake_cuda's\n");
        return 77;
    }
    DeviceInfo infos[DEVICES_MAX];
    int n;
    Error err;
    if (device_cuda.list(infos, &n, &err) && n == 0) {
        print_message("skipped: built without CUDA kernels\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_listed),
        cmocka_unit_test(steps_are_the_cpus),
        cmocka_unit_test(two_steps_in_flight),
        cmocka_unit_test(a_step_that_does_not_fit_the_plan),
        cmocka_unit_test(memory_is_as_planned),
        cmocka_unit_test(a_shortage_names_its_bytes),
        cmocka_unit_test(loading_tells_and_ends),
        cmocka_unit_test(a_kernel_fails),
        cmocka_unit_test(submit_costs_little),
        cmocka_unit_test(every_call_refused),
        cmocka_unit_test(device_lost_at_every_call),
        cmocka_unit_test(a_hang_ends_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
