/* The engine on a device with memory of its own and two steps in flight (poser.h): plans of both
 * sides, what is taken against what was planned, loads that tell how far they are and can be ended,
 * the answers of one step at a time, what a device lacks, a loss. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/poser.h"
#include "support/tiny_fill.h"

#include "base/json.h"

#include <stdio.h>

enum { GIB = 1 << 30, N_TEXT = 40, ANSWERS = 6 };

static const char *tiny_dir(Arena *a, const char *name)
{
    Error err;
    const char *dir;
    if (!tiny_fill(a, TEST_DATA, name, TEST_TMP, &dir, &err))
        fail_msg("%s", err.msg);
    return dir;
}

static MereStr str_of(const char *s)
{
    return (MereStr){s, strlen(s)};
}

static MereOptions options(void)
{
    MereOptions o = MERE_OPTIONS_INIT;
    o.numerics = MERE_EXACT;
    o.deterministic = true;
    o.threads = 1;
    o.slots = 3;
    o.ctx = 96;
    o.page_tokens = 4;
    o.chunk = 8;
    return o;
}

static MereEngine *open_poser(uint64_t limit_bytes, bool shared)
{
    memset(&poser, 0, sizeof poser);
    poser.limit_bytes = limit_bytes;
    poser.shared = shared;
    const EngineDesc d = {.ops = poser_ops(),
                          .device = {.threads = 1, .numerics = NUM_EXACT, .deterministic = true},
                          .max_requests = 64};
    MereEngine *e;
    Error err;
    if (!engine_open(&d, &e, &err))
        fail_msg("%s", err.msg);
    return e;
}

static MerePlan plan(MereEngine *e, const char *dir, const MereOptions *o)
{
    MerePlan p;
    MereError err;
    if (!mere_plan(e, str_of(dir), o, &p, &err))
        fail_msg("%s", err.msg);
    uint64_t sum = 0;
    uint64_t host = 0;
    for (int t = 0; t < MERE_TERM_COUNT; t++) {
        assert_true(p.host_terms[t] <= p.terms[t]);
        sum += p.terms[t];
        host += p.host_terms[t];
    }
    assert_int_equal(sum, p.total_bytes);
    assert_int_equal(host, p.host_bytes);
    assert_int_equal(sum - host, p.device_bytes);
    return p;
}

static void each_side_has_its_limit(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const char *dir = tiny_dir(&a, "llama");
    MereOptions o = options();
    MereError err;
    MereModel *m;
    MereEngine *e = open_poser(GIB, false);
    const MerePlan p = plan(e, dir, &o);
    assert_true(p.fits && p.own_memory);
    assert_int_equal(p.placements[MERE_PLACE_MAP], 0);
    assert_true(p.placements[MERE_PLACE_REPACK] > 0);
    assert_int_equal(p.placed_bytes[MERE_PLACE_REPACK], p.terms[MERE_TERM_WEIGHTS]);
    assert_int_equal(p.host_terms[MERE_TERM_KV] + p.host_terms[MERE_TERM_WEIGHTS] +
                         p.host_terms[MERE_TERM_SCRATCH],
                     0);
    assert_int_equal(p.host_terms[MERE_TERM_DERIVED], p.terms[MERE_TERM_DERIVED]);
    assert_true(p.terms[MERE_TERM_RUNTIME] - p.host_terms[MERE_TERM_RUNTIME] >= POSER_CONTEXT);
    assert_int_equal(p.device_limit_bytes, GIB);
    mere_engine_close(e);

    /* A byte less than it takes, and it does not fit; what is named then does. */
    e = open_poser(p.device_bytes, false);
    assert_true(plan(e, dir, &o).fits);
    poser.limit_bytes = p.device_bytes - 1;
    const MerePlan less = plan(e, dir, &o);
    assert_false(less.fits);
    assert_true(less.nearest_ctx > 0 && less.nearest_ctx < p.ctx);
    assert_false(mere_model_open(e, str_of(dir), &o, &m, &err));
    assert_int_equal(err.code, MERE_ERR_FIT);
    assert_non_null(strstr(err.msg, "of the device's memory"));
    MereOptions near = o;
    near.ctx = less.nearest_ctx;
    near.slots = less.nearest_slots;
    near.kv = less.nearest_kv;
    assert_true(plan(e, dir, &near).fits);
    poser.limit_bytes = POSER_CONTEXT / 2;
    assert_int_equal(plan(e, dir, &o).nearest_ctx, 0);
    /* What the user allows is the device's limit, as far as it has so much. */
    poser.limit_bytes = GIB;
    o.limit_bytes = p.device_bytes - 1;
    assert_false(plan(e, dir, &o).fits);
    o.limit_bytes = 4 * (uint64_t)GIB;
    assert_int_equal(plan(e, dir, &o).device_limit_bytes, GIB);
    mere_engine_close(e);

    /* One pool: the sum has the host's limit, the device's part the device's. */
    o = options();
    e = open_poser(GIB, true);
    const MerePlan one = plan(e, dir, &o);
    assert_true(one.fits && !one.own_memory);
    assert_int_equal(one.limit_bytes, one.host_limit_bytes);
    poser.limit_bytes = one.device_bytes - 1;
    assert_false(plan(e, dir, &o).fits);
    poser.limit_bytes = GIB;
    o.limit_bytes = one.total_bytes - 1;
    assert_false(plan(e, dir, &o).fits);
    mere_engine_close(e);
    arena_free(&a);
}

typedef struct Told {
    int calls, end_at;
    uint64_t done, total;
} Told;

static bool on_progress(void *ctx, uint64_t done, uint64_t total)
{
    Told *t = ctx;
    assert_true(done >= t->done && done <= total);
    t->done = done;
    t->total = total;
    return ++t->calls != t->end_at;
}

static void loads_tell_and_can_be_ended(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const char *dir = tiny_dir(&a, "llama");
    MereOptions o = options();
    MereError err;
    MereModel *m;
    Told t = {0};
    MereEngine *e = open_poser(GIB, false);
    o.progress = on_progress;
    o.progress_ctx = &t;
    poser.load_parts = 12;
    poser.part_ms = 50;
    if (!mere_model_open(e, str_of(dir), &o, &m, &err))
        fail_msg("%s", err.msg);
    const MerePlan p = plan(e, dir, &o);
    assert_true(t.calls >= 2);
    assert_int_equal(t.total, p.terms[MERE_TERM_WEIGHTS]);
    mere_model_close(m);
    assert_int_equal(poser.used_bytes, POSER_CONTEXT);

    t = (Told){.end_at = 2};
    poser.told = 0;
    poser.load_parts = 1000;
    poser.part_ms = 10;
    assert_false(mere_model_open(e, str_of(dir), &o, &m, &err));
    assert_int_equal(err.code, MERE_ERR_CANCELLED);
    assert_true(poser.told < 900);
    assert_int_equal(poser.used_bytes, POSER_CONTEXT);
    mere_engine_close(e);
    arena_free(&a);
}

typedef struct Answers {
    int32_t tokens[ANSWERS][N_TEXT];
    int n[ANSWERS];
} Answers;

/* Greedy answers to prompts that share beginnings; the last wants logprobs. */
static void ask(MereEngine *e, MereModel *m, Answers *out)
{
    int32_t ids[24];
    MereError err;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 24; i++)
        ids[i] = 3 + i * 11 % 300;
    for (int i = 0; i < ANSWERS; i++) {
        MereRequest r = MERE_REQUEST_INIT;
        r.ids = ids;
        r.n_ids = 9 + i * 3;
        r.max_tokens = 10 + i * 5;
        r.user = (uint64_t)i;
        r.sampling.logprobs = i == ANSWERS - 1 ? 1 : -1;
        uint64_t id;
        if (!mere_submit(m, &r, &id, &err))
            fail_msg("%s", err.msg);
    }
    MereEvent ev;
    for (int ended = 0; ended < ANSWERS;) {
        assert_true(mere_next(e, &ev, 60000));
        if (ev.type == MERE_EVENT_TOKEN)
            out->tokens[ev.user][out->n[ev.user]++] = ev.token;
        ended += ev.type == MERE_EVENT_END;
        if (ev.finish == MERE_FINISH_ERROR)
            fail_msg("%s", ev.error.msg);
    }
}

static void answers_and_bytes_are_as_planned(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const char *const names[] = {"llama", "qwen3_moe", "qwen3_next"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *dir = tiny_dir(&a, names[i]);
        MereOptions o = options();
        MereError err;
        MereEngine *e;
        MereModel *m = NULL;
        static Answers want;
        static Answers got;
        if (!mere_engine_open(&o, &e, &err) || !mere_model_open(e, str_of(dir), &o, &m, &err))
            fail_msg("%s", err.msg);
        ask(e, m, &want);
        MereStats st;
        mere_stats(m, &st);
        assert_int_equal(st.device_planned_bytes, 0);
        mere_model_close(m);
        mere_engine_close(e);

        e = open_poser(GIB, false);
        if (!mere_model_open(e, str_of(dir), &o, &m, &err))
            fail_msg("%s", err.msg);
        for (int round = 0; round < 2; round++) { /* the second finds prefixes */
            ask(e, m, &got);
            for (int r = 0; r < ANSWERS; r++) {
                if (got.n[r] != want.n[r])
                    fail_msg("%s: answer %d has %d tokens, wanted %d", names[i], r, got.n[r],
                             want.n[r]);
                for (int t = 0; t < got.n[r]; t++)
                    if (got.tokens[r][t] != want.tokens[r][t])
                        fail_msg("%s: answer %d token %d is %d, wanted %d", names[i], r, t,
                                 got.tokens[r][t], want.tokens[r][t]);
            }
        }
        assert_int_equal(poser.most_flights, 2);
        assert_true(poser.drawn_here > 100);
        mere_stats(m, &st);
        const MerePlan p = plan(e, dir, &o);
        assert_int_equal(st.device_planned_bytes, p.device_bytes);
        assert_int_equal(st.planned_bytes, p.host_bytes);
        assert_int_equal(st.device_peak_bytes, st.device_planned_bytes);

        MereBenchResult b;
        const MereBench q = {.prompt = 20, .gen = 12, .depth = 8, .reps = 2, .rows = 3};
        if (!mere_bench(m, &q, &b, &err))
            fail_msg("%s", err.msg);
        assert_true(b.prefill_tok_s > 0 && b.decode_tok_s > 0 && b.bytes_per_token > 0);
        assert_true(b.read_gb_s <= 0 && b.bandwidth_share <= 0);
        mere_model_close(m);
        assert_int_equal(poser.used_bytes, POSER_CONTEXT);
        mere_engine_close(e);
    }
    arena_free(&a);
}

static void two_models_share_the_flights(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const char *dir = tiny_dir(&a, "llama");
    const MereOptions o = options();
    MereError err;
    MereModel *m[2];
    static Answers got[2];
    MereEngine *e = open_poser(GIB, false);
    for (int i = 0; i < 2; i++)
        if (!mere_model_open(e, str_of(dir), &o, &m[i], &err))
            fail_msg("%s", err.msg);
    ask(e, m[0], &got[0]);
    ask(e, m[1], &got[1]);
    assert_memory_equal(got[0].tokens, got[1].tokens, sizeof got[0].tokens);
    assert_true(poser.most_flights <= 2);
    mere_model_close(m[0]);
    mere_model_close(m[1]);
    mere_engine_close(e);
    arena_free(&a);
}

static void what_it_lacks_and_loses_is_told(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const char *dir = tiny_dir(&a, "llama");
    const MereOptions o = options();
    MereError err;
    MereModel *m;
    MerePlan p;
    MereEngine *e = open_poser(GIB, false);
    assert_int_equal(mere_engine_device_id(e).len, strlen("poser:0"));
    poser.lacks = true;
    assert_false(mere_plan(e, str_of(dir), &o, &p, &err));
    assert_int_equal(err.code, MERE_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "poser:0"));
    assert_non_null(strstr(err.msg, "no attention, no experts"));
    assert_non_null(strstr(err.msg, "--device cpu"));
    poser.lacks = false;
    poser.lost_step = 9;
    if (!mere_model_open(e, str_of(dir), &o, &m, &err))
        fail_msg("%s", err.msg);
    MereRequest r = MERE_REQUEST_INIT;
    const int32_t ids[] = {4, 5, 6};
    uint64_t id;
    r.ids = ids;
    r.n_ids = 3;
    r.max_tokens = 40;
    r.ignore_eos = true;
    if (!mere_submit(m, &r, &id, &err))
        fail_msg("%s", err.msg);
    MereEvent ev = {0};
    while (mere_next(e, &ev, 60000) && ev.type != MERE_EVENT_END)
        ;
    assert_int_equal(ev.error.code, MERE_ERR_LOST);
    assert_false(mere_submit(m, &r, &id, &err));
    assert_int_equal(err.code, MERE_ERR_LOST);
    mere_model_close(m);
    mere_engine_close(e);
    arena_free(&a);
}

static void devices_are_listed(void **state)
{
    (void)state;
    MereDevices *d;
    MereError err;
    if (!mere_devices(&d, &err))
        fail_msg("%s", err.msg);
    int cpu = 0;
    int chosen = 0;
    for (int i = 0; i < d->n_devices; i++) {
        cpu += strcmp(d->devices[i].id, "cpu") == 0 && d->devices[i].total_bytes > 0;
        chosen += d->devices[i].is_auto;
    }
    assert_int_equal(cpu, 1);
    assert_int_equal(chosen, 1);
    int n = 0;
    for (int i = 0; i < d->n_backends; i++) {
        n += d->backends[i].n;
        /* Each has devices or says why not. */
        assert_true((d->backends[i].n > 0) != (*d->backends[i].note != '\0'));
    }
    assert_int_equal(n, d->n_devices);
    mere_devices_free(d);
}

int main(void)
{
    json_setup(); /* before the fixtures read theirs */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_side_has_its_limit),
        cmocka_unit_test(loads_tell_and_can_be_ended),
        cmocka_unit_test(answers_and_bytes_are_as_planned),
        cmocka_unit_test(two_models_share_the_flights),
        cmocka_unit_test(what_it_lacks_and_loses_is_told),
        cmocka_unit_test(devices_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
