/* A device beyond the numbers of single operations: steps in flight with tokens fed back on the
 * device, sampling against the engine's, copies of pages and states, memory against the plan, and
 * every call of the driver failing in turn. */
#include "device/device_net.h"

#include "engine/sample.h"

#include <stdio.h>

enum { HIDDEN = 64, SLOTS = 4 };

/* A network with a cache, recurrent state and a head over `vocab` tokens. */
static void build(Net *n, int vocab, int max_rows, int max_segs)
{
    Error err = {0};
    net_begin(n, 7);
    Graph *g = n->graph;
    T x = net_embed(n, HIDDEN);
    const AttnDesc a = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .v_dim = 16, .scale = 0.25F};
    Weight *qkv = net_one(n, "qkv", &net_f32, 64 + 32 + 32, HIDDEN);
    T y = g_lin(g, qkv, x);
    y = g_attn(g, g_slice(g, y, 0, 64), g_slice(g, y, 64, 32), g_slice(g, y, 96, 32), &a);
    x = g_add(g, x, y);
    const ConvDesc conv = {.channels = HIDDEN, .width = 4, .w = net_vec(n, HIDDEN * 4, 0.8F, 0)};
    x = g_add(g, x, g_conv(g, x, &conv));
    x = g_norm(g, net_vec(n, HIDDEN, 0.2F, 2), g_out_rows(g, x), 1e-6F);
    Weight *head = net_one(n, "head", &net_f32, vocab, HIDDEN);
    head->precise = true;
    g_out(g, 0, g_lin(g, head, x));
    const GraphLimits limits = {max_rows, max_rows, max_segs};
    net_must(graph_end(g, &limits, &n->plan, &err), &err);
}

static const NetClass exact_class = {NUM_EXACT, KV_FORMAT_F32, 4};

static void open_net(NetRun *r, Net *n, const char *device)
{
    Error err;
    net_must(net_open_device(r, device, NUM_EXACT, &err), &err);
    net_must(net_load(r, n, &exact_class, &err), &err);
}

/* One row of sequence s: `token`, or what slot -1 - token was given. */
static bool submit_row(NetRun *r, int s, int32_t token, const SampleDesc *sample,
                       SampleResult *result, float *logits, uint64_t *ticket, Error *err)
{
    const int pos = r->len[s]++;
    const Row row = {token, pos};
    const int32_t out = 0;
    Segment seg = {.n_rows = 1, .kv_len = pos + 1, .state_in = pos ? s : -1, .state_out = s};
    for (int g = 0; g < r->desc.n_groups; g++)
        seg.pages[g] = r->pages[s];
    const StepBlock step = {.n_rows = 1,
                            .n_segs = 1,
                            .n_out = 1,
                            .n_samples = sample != NULL,
                            .rows = &row,
                            .segs = &seg,
                            .out_rows = &out,
                            .samples = sample,
                            .results = result,
                            .logits = logits};
    return r->ops->submit(r->device, r->program, r->pool, &step, ticket, err);
}

static void wait_for(NetRun *r, uint64_t ticket)
{
    Error err;
    net_must(r->ops->wait(r->device, r->program, ticket, net_deadline(), &err), &err);
}

static int32_t largest(const float *x, int n)
{
    int32_t best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* Greedy tokens of one sequence, each row fed with the token that the step before, not yet waited
 * for, chooses; the CPU chooses from its own logits. */
static void test_in_flight(void **state)
{
    (void)state;
    enum { STEPS = 24 };
    Net n;
    NetRun cpu, dev;
    Error err;
    build(&n, NET_VOCAB, 4, 2);
    open_net(&cpu, &n, "cpu");
    open_net(&dev, &n, net_device());
    assert_true(dev.ops->samples);
    assert_int_equal(dev.ops->in_flight, 2);
    SampleResult results[STEPS];
    uint64_t tickets[STEPS];
    for (int i = 0; i < STEPS; i++) {
        const SampleDesc greedy = {.slot = i % SLOTS};
        const int32_t token = i == 0 ? 5 : -1 - (i - 1) % SLOTS;
        net_must(submit_row(&dev, 0, token, &greedy, &results[i], NULL, &tickets[i], &err), &err);
        if (i > 0)
            wait_for(&dev, tickets[i - 1]);
    }
    uint64_t more;
    wait_for(&dev, tickets[STEPS - 1]);
    int32_t token = 5;
    for (int i = 0; i < STEPS; i++) {
        float logits[NET_VOCAB];
        net_must(submit_row(&cpu, 0, token, NULL, NULL, logits, &more, &err), &err);
        wait_for(&cpu, more);
        token = largest(logits, NET_VOCAB);
        if (results[i].token != token)
            fail_msg("step %d: token %d, wanted %d", i, results[i].token, token);
        assert_true(fabsf(results[i].logit - logits[token]) < 1e-4F * (1 + fabsf(logits[token])));
    }
    net_close(&cpu);
    net_close(&dev);
    net_free(&n);
}

static void test_too_many_in_flight(void **state)
{
    (void)state;
    Net n;
    NetRun r;
    Error err;
    uint64_t tickets[3];
    float logits[2][NET_VOCAB];
    build(&n, NET_VOCAB, 4, 2);
    open_net(&r, &n, net_device());
    net_must(submit_row(&r, 0, 1, NULL, NULL, logits[0], &tickets[0], &err), &err);
    net_must(submit_row(&r, 0, 2, NULL, NULL, logits[1], &tickets[1], &err), &err);
    assert_false(submit_row(&r, 0, 3, NULL, NULL, logits[1], &tickets[2], &err));
    assert_int_equal(err.code, ERR_DEVICE);
    wait_for(&r, tickets[0]);
    wait_for(&r, tickets[1]);
    net_close(&r);
    net_free(&n);
}

/* ---- sampling ---- */

enum { BIG_VOCAB = 20011 };

/* Whether two tokens are neighbours in the order of logits: a random number within rounding of
 * their border may choose either. */
static bool are_neighbours(const float *logits, int vocab, int32_t a, int32_t b)
{
    const float hi = fmaxf(logits[a], logits[b]);
    const float lo = fminf(logits[a], logits[b]);
    int between = 0;
    for (int i = 0; i < vocab; i++)
        between += logits[i] > lo && logits[i] < hi;
    return between == 0;
}

static void test_sampling(void **state)
{
    (void)state;
    static const struct {
        float temperature, top_p, min_p;
        int top_k;
    } cases[] = {{0, 0, 0, 0},       {0.7F, 0, 0, 0},       {1.3F, 0.9F, 0, 0}, {1, 0, 0.05F, 0},
                 {0.8F, 0, 0, 40},   {2, 0.5F, 0.1F, 1000}, {1, 0.95F, 0, 20},  {5, 0.999F, 0, 0},
                 {1, 1, 0, 1},       {0.2F, 0.3F, 0, 0},    {100, 0, 0, 0},     {1, 0, 1, 0},
                 {0.00005F, 1, 0, 0}};
    enum { DRAWS = 12 };
    Net n;
    NetRun r;
    Error err;
    build(&n, BIG_VOCAB, 4, 2);
    open_net(&r, &n, net_device());
    Sampler sampler;
    net_must(sample_init(&n.arena, BIG_VOCAB, &sampler, &err), &err);
    float *logits = net_take(&n, BIG_VOCAB, sizeof *logits);
    int different = 0;
    int draws = 0;
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (int i = 0; i < DRAWS; i++) {
            const MereSampling p = {.temperature = cases[c].temperature,
                                    .top_p = cases[c].top_p,
                                    .min_p = cases[c].min_p,
                                    .top_k = cases[c].top_k,
                                    .logprobs = -1,
                                    .seed = c * 1000 + 3};
            const SampleHistory h = {.n_tokens = i};
            SampleDesc d = {.slot = 1,
                            .temperature = p.temperature,
                            .top_k = p.top_k,
                            .top_p = p.top_p,
                            .min_p = p.min_p,
                            .random = sample_random(p.seed, (uint64_t)i)};
            SampleResult got;
            Sampled want;
            uint64_t ticket;
            r.len[0] = 0;
            net_must(
                submit_row(&r, 0, (int32_t)(c * 3) % NET_VOCAB, &d, &got, logits, &ticket, &err),
                &err);
            wait_for(&r, ticket);
            assert_true(got.token >= 0 && got.token < BIG_VOCAB);
            assert_true(num_bits(got.logit) == num_bits(logits[got.token]));
            net_must(sample_next(&sampler, &p, &h, logits, &want, &err), &err);
            draws++;
            if (got.token == want.token)
                continue;
            different++;
            if (!are_neighbours(logits, BIG_VOCAB, got.token, want.token))
                fail_msg("case %d, draw %d (random %.9g): token %d (logit %.9g), wanted %d (%.9g)",
                         (int)c, i, d.random, got.token, (double)logits[got.token], want.token,
                         (double)logits[want.token]);
        }
    /* The device has 24 bits of the random number and sums in its own way. */
    if (different * 20 > draws)
        fail_msg("%d of %d draws differ from the engine's", different, draws);
    net_close(&r);
    net_free(&n);
}

/* A logit that is not finite gives token -1; a row fed with it is read as no token. */
static void test_not_finite(void **state)
{
    (void)state;
    Net n;
    NetRun r;
    Error err;
    build(&n, NET_VOCAB, 4, 2);
    float *embed = (float *)(uintptr_t)n.weights[0]->segs[0].data;
    embed[9 * HIDDEN + 3] = NAN;
    open_net(&r, &n, net_device());
    for (int hot = 0; hot < 2; hot++) {
        const SampleDesc d = {.slot = 2, .temperature = (float)hot, .random = 0.5};
        SampleResult result = {.token = 1};
        float logits[NET_VOCAB];
        uint64_t ticket;
        r.len[0] = 0;
        net_must(submit_row(&r, 0, 9, &d, &result, NULL, &ticket, &err), &err);
        wait_for(&r, ticket);
        assert_int_equal(result.token, -1);
        r.len[1] = 0;
        net_must(submit_row(&r, 1, -3, NULL, NULL, logits, &ticket, &err), &err);
        wait_for(&r, ticket);
        for (int i = 0; i < NET_VOCAB; i++)
            assert_true(isfinite(logits[i]));
    }
    net_close(&r);
    net_free(&n);
}

/* ---- copies ---- */

/* A sequence continued from copies of another's pages and state gives the other's logits. */
static void test_copies(void **state)
{
    (void)state;
    enum { FIRST = 6 }; /* one and a half pages of 4 */
    Net n;
    NetRun r;
    Error err;
    build(&n, NET_VOCAB, 16, 3);
    open_net(&r, &n, net_device());
    float logits[3 * NET_VOCAB * FIRST];
    const int first[NET_SEQS] = {FIRST, 0, 0};
    net_must(net_step(&r, first, logits, &err), &err);
    for (int i = 0; i < 2; i++)
        r.ops->page_copy(r.device, r.pool, 0, r.pages[0][i], r.pages[1][i], i == 0 ? 4 : 2);
    r.ops->state_copy(r.device, r.pool, 0, NET_SEQS); /* there and on: in order */
    r.ops->state_copy(r.device, r.pool, NET_SEQS, 1);
    r.len[1] = FIRST;
    float got[2][NET_VOCAB];
    uint64_t tickets[2];
    for (int s = 0; s < 2; s++)
        net_must(submit_row(&r, s, 11, NULL, NULL, got[s], &tickets[s], &err), &err);
    for (int s = 0; s < 2; s++)
        wait_for(&r, tickets[s]);
    for (int i = 0; i < NET_VOCAB; i++)
        if (num_bits(got[0][i]) != num_bits(got[1][i]))
            fail_msg("logit %d: %.9g from the copy, %.9g from the original", i, (double)got[1][i],
                     (double)got[0][i]);
    /* The original went on by itself: the copy is no window onto it. */
    net_must(submit_row(&r, 0, 12, NULL, NULL, got[0], &tickets[0], &err), &err);
    wait_for(&r, tickets[0]);
    net_must(submit_row(&r, 1, 13, NULL, NULL, got[1], &tickets[1], &err), &err);
    wait_for(&r, tickets[1]);
    assert_true(memcmp(got[0], got[1], sizeof got[0]) != 0);
    net_close(&r);
    net_free(&n);
}

/* More copies than the device keeps for the next step. */
static void test_many_copies(void **state)
{
    (void)state;
    Net n;
    NetRun r;
    Error err;
    build(&n, NET_VOCAB, 16, 3);
    open_net(&r, &n, net_device());
    float want[NET_VOCAB * 4];
    float got[NET_VOCAB];
    const int first[NET_SEQS] = {4, 0, 0};
    net_must(net_step(&r, first, want, &err), &err);
    for (int i = 0; i < 1001; i++) /* ends where it began */
        r.ops->state_copy(r.device, r.pool, i % 2 ? NET_SEQS : 0, i % 2 ? 0 : NET_SEQS);
    r.ops->page_copy(r.device, r.pool, 0, r.pages[0][0], r.pages[2][0], 4);
    r.ops->state_copy(r.device, r.pool, NET_SEQS, 2);
    r.len[2] = 4;
    uint64_t tickets[2];
    net_must(submit_row(&r, 0, 11, NULL, NULL, want, &tickets[0], &err), &err);
    net_must(submit_row(&r, 2, 11, NULL, NULL, got, &tickets[1], &err), &err);
    wait_for(&r, tickets[0]);
    wait_for(&r, tickets[1]);
    assert_memory_equal(want, got, sizeof got);
    net_close(&r);
    net_free(&n);
}

/* ---- memory ---- */

static uint64_t used(const NetRun *r)
{
    DeviceMemory m;
    r->ops->memory(r->device, &m);
    return m.used_bytes;
}

/* What weights, pool and program take is what was said beforehand: within 2 % and a page for each
 * of a few allocations. CUDA's pages are of 2 MiB, and its driver needs less than what is planned
 * for it where graphs are as small as these. */
static void test_memory(void **state)
{
    (void)state;
    const double slack = strncmp(net_device(), "cuda", 4) == 0 ? 3 * 2097152 : 64 * 1024;
    Net n;
    NetRun r;
    Error err;
    build(&n, BIG_VOCAB, 64, 3);
    net_must(net_open_device(&r, net_device(), NUM_EXACT, &err), &err);
    const uint64_t before = used(&r);
    net_must(net_load(&r, &n, &exact_class, &err), &err);
    int64_t weights = 0;
    int64_t state_bytes;
    DeviceNeed need;
    for (int i = 0; i < n.n_weights; i++) {
        int64_t bytes;
        (void)r.ops->place(r.device, n.weights[i], &bytes);
        weights += bytes;
    }
    const int64_t kv = r.ops->pool_bytes(&r.desc, &state_bytes);
    r.ops->need(r.device, n.plan, &r.desc, &need);
    const double planned = (double)(weights + kv + state_bytes + need.scratch + need.runtime);
    const double taken = (double)(used(&r) - before);
    const double host = (double)need.host; /* that a driver may count too */
    if (taken < planned * 0.98 - slack || taken > planned * 1.02 + host + slack)
        fail_msg("took %.0f bytes; planned weights %lld, kv %lld, state %lld, scratch %lld, "
                 "runtime %lld, host %lld",
                 taken, (long long)weights, (long long)kv, (long long)state_bytes,
                 (long long)need.scratch, (long long)need.runtime, (long long)need.host);
    net_close(&r);
    net_free(&n);
}

/* Steps take no memory, the first ones neither: of the host, where every allocation fails
 * meanwhile, and of the device. */
static void test_steps_take_nothing(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    const int prompt[NET_SEQS] = {3, 0, 1};
    float all[NET_VOCAB * 4];
    float logits[NET_VOCAB];
    Net n;
    NetRun r;
    Error err;
    build(&n, NET_VOCAB, 4, 2);
    open_net(&r, &n, net_device());
    const uint64_t before = used(&r);
    mem_fail_at(1, true);
    bool ok = net_step(&r, prompt, all, &err);
    for (int i = 0; ok && i < STEPS; i++) {
        const SampleDesc d = {
            .slot = 1, .temperature = 1, .top_k = 9, .top_p = 0.9F, .random = 0.3};
        SampleResult result;
        uint64_t ticket;
        ok = submit_row(&r, 0, i, &d, &result, logits, &ticket, &err) &&
             r.ops->wait(r.device, r.program, ticket, net_deadline(), &err);
    }
    const uint64_t allocations = mem_count_get();
    mem_fail_at(0, false);
    net_must(ok, &err);
    assert_int_equal(allocations, 0);
    assert_true(used(&r) == before);
    net_close(&r);
    net_free(&n);
}

/* ---- faults ---- */

/* Everything that a session does, once; false with the first error. */
static bool session(Net *n, const char *device, Error *err)
{
    NetRun r;
    const int counts[NET_SEQS] = {3, 1, 0};
    float logits[NET_VOCAB * 4];
    const bool ok = net_open_device(&r, device, NUM_EXACT, err) &&
                    net_load(&r, n, &exact_class, err) && net_step(&r, counts, logits, err);
    bool copied = ok;
    if (ok) {
        r.ops->state_copy(r.device, r.pool, 0, 2);
        copied = net_step(&r, counts, logits, err);
    }
    net_close(&r);
    return copied;
}

/* Fails the n-th call of the driver (MERE_FAULT) for every n that a session reaches: each gives an
 * error in time, and the next session works. */
static void test_faults(void **state)
{
    (void)state;
    const char *device = net_device();
    Net n;
    Error err;
    build(&n, NET_VOCAB, 4, 2);
    const char *colon = strchr(device, ':');
    const int len = colon ? (int)(colon - device) : (int)strlen(device);
    enum { NEVER_REACHED = 12 };
    int fine = 0;
    int at = 1;
    for (;; at++) {
        char fault[64];
        (void)snprintf(fault, sizeof fault, "%.*s:%d", len, device, at);
        assert_int_equal(setenv("MERE_FAULT", fault, 1), 0);
        const uint64_t from = clock_ns();
        err = (Error){0};
        const bool ok = session(&n, device, &err);
        const uint64_t ms = (clock_ns() - from) / 1000000;
        /* A call whose failure costs nothing but a fact to show is no failure; after some of those
         * in a row the session has no such call. */
        fine = ok ? fine + 1 : 0;
        if (fine == NEVER_REACHED)
            break;
        if (ok)
            continue;
        if (err.code == ERR_NONE || err.msg[0] == '\0')
            fail_msg("call %d failed without an error", at);
        if (ms > 120 * 1000) /* an error, not a wait; a busy machine is slow to compile */
            fail_msg("call %d: %d ms until \"%s\"", at, (int)ms, err.msg);
        if (at % 16 == 0) {
            assert_int_equal(unsetenv("MERE_FAULT"), 0);
            net_must(session(&n, device, &err), &err);
        }
    }
    assert_int_equal(unsetenv("MERE_FAULT"), 0);
    net_must(session(&n, device, &err), &err);
    assert_true(at > 20); /* the fault reached something */
    print_message("%d calls of a session failed in turn\n", at - NEVER_REACHED);
    net_free(&n);
}

/* A lost device says so, and every later call too. */
static void test_lost(void **state)
{
    (void)state;
    const char *device = net_device();
    Net n;
    NetRun r;
    Error err = {0};
    build(&n, NET_VOCAB, 4, 2);
    float logits[NET_VOCAB];
    uint64_t ticket;
    open_net(&r, &n, device);
    net_must(submit_row(&r, 0, 1, NULL, NULL, logits, &ticket, &err), &err);
    /* A deadline that has passed when the step has not ended is a lost device; one that a step
     * which has ended beats is not. */
    wait_for(&r, ticket);
    net_must(submit_row(&r, 0, 1, NULL, NULL, logits, &ticket, &err), &err);
    if (!r.ops->wait(r.device, r.program, ticket, clock_ns(), &err)) {
        assert_int_equal(err.code, ERR_LOST);
        assert_false(submit_row(&r, 0, 1, NULL, NULL, logits, &ticket, &err));
        assert_int_equal(err.code, ERR_LOST);
    }
    net_close(&r);
    open_net(&r, &n, device);
    net_must(submit_row(&r, 0, 1, NULL, NULL, logits, &ticket, &err), &err);
    wait_for(&r, ticket);
    net_close(&r);
    net_free(&n);
}

/* ---- loading ---- */

typedef struct Seen {
    int calls;
    uint64_t done, total;
} Seen;

static void see(void *ctx, uint64_t done, uint64_t total)
{
    Seen *s = ctx;
    assert_true(done >= s->done && done <= total);
    s->calls++;
    s->done = done;
    s->total = total;
}

static void test_progress(void **state)
{
    (void)state;
    Net n;
    NetRun r;
    Error err;
    bool cancel = false;
    Seen seen = {0};
    const LoadProgress p = {see, &seen, &cancel};
    build(&n, BIG_VOCAB, 4, 2);
    net_must(net_open_device(&r, net_device(), NUM_EXACT, &err), &err);
    const uint64_t before = used(&r);
    net_must(r.ops->weights_open(r.device, n.weights, n.n_weights, &p, &r.weights, &err), &err);
    assert_true(seen.calls > 0);
    assert_true(seen.done == seen.total);
    r.ops->weights_close(r.device, r.weights);
    r.weights = NULL;
    cancel = true;
    assert_false(r.ops->weights_open(r.device, n.weights, n.n_weights, &p, &r.weights, &err));
    assert_int_equal(err.code, ERR_CANCELLED);
    assert_true(used(&r) <= before + 65536);
    r.weights = NULL;
    net_close(&r);
    net_free(&n);
}

/* The same rows under two names are loaded once. */
static void test_shared_weights(void **state)
{
    (void)state;
    Net n;
    NetRun r;
    Error err;
    build(&n, BIG_VOCAB, 4, 2);
    const Weight twin = *n.weights[n.n_weights - 1];
    net_must(net_open_device(&r, net_device(), NUM_EXACT, &err), &err);
    const uint64_t before = used(&r);
    net_must(r.ops->weights_open(r.device, n.weights, n.n_weights, NULL, &r.weights, &err), &err);
    const uint64_t once = used(&r) - before;
    r.ops->weights_close(r.device, r.weights);
    n.weights[n.n_weights++] = &twin;
    const uint64_t again = used(&r);
    net_must(r.ops->weights_open(r.device, n.weights, n.n_weights, NULL, &r.weights, &err), &err);
    assert_true(used(&r) - again <= once + 65536);
    net_close(&r);
    net_free(&n);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_flight),      cmocka_unit_test(test_too_many_in_flight),
        cmocka_unit_test(test_sampling),       cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_copies),         cmocka_unit_test(test_many_copies),
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_progress),
        cmocka_unit_test(test_shared_weights), cmocka_unit_test(test_lost),
        cmocka_unit_test(test_faults),         cmocka_unit_test(test_steps_take_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
