/* The memory plan: what options and limits make of it, and that a process takes what was planned.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/tiny_fill.h"

#include "base/json.h"
#include "engine/osmem.h"
#include "mere.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

static MerePlan plan(MereEngine *e, const char *dir, const MereOptions *o)
{
    MerePlan p;
    MereError err;
    if (!mere_plan(e, str_of(dir), o, &p, &err))
        fail_msg("%s", err.msg);
    uint64_t sum = 0;
    for (int t = 0; t < MERE_TERM_COUNT; t++)
        sum += p.terms[t];
    assert_int_equal(sum, p.total_bytes);
    assert_int_equal(p.fits, p.total_bytes <= p.limit_bytes);
    return p;
}

static void terms_follow_the_options(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const char *dir = tiny_dir(&a, "llama");
    MereError err;
    MereEngine *e;
    MereOptions o = MERE_OPTIONS_INIT;
    o.threads = 1;
    assert_true(mere_engine_open(&o, &e, &err));
    const MerePlan p = plan(e, dir, &o);
    assert_in_range(p.text_bytes, 1 << 20, p.host_terms[MERE_TERM_RUNTIME]);
    assert_true(p.fits);
    assert_int_equal(p.slots, 1);
    assert_int_equal(p.kv, MERE_KV_F16);
    assert_int_equal(p.terms[MERE_TERM_WEIGHTS], 0);
    assert_true(p.placements[MERE_PLACE_MAP] > 100000);
    assert_true(p.terms[MERE_TERM_DERIVED] > 0);
    assert_true(strstr(p.device, "cpu") != NULL);
    o.ctx = 32;
    const MerePlan one = plan(e, dir, &o);
    o.slots = 4;
    const MerePlan four = plan(e, dir, &o);
    assert_int_equal(four.terms[MERE_TERM_KV], 4 * one.terms[MERE_TERM_KV]);
    o.kv = MERE_KV_F32;
    assert_int_equal(plan(e, dir, &o).terms[MERE_TERM_KV], 2 * four.terms[MERE_TERM_KV]);
    assert_int_equal(one.terms[MERE_TERM_STATE], 0);
    const char *hybrid = tiny_dir(&a, "qwen3_next");
    o = (MereOptions)MERE_OPTIONS_INIT;
    o.ctx = 32;
    const MerePlan five = plan(e, hybrid, &o); /* one sequence, four snapshots */
    o.snapshots = -1;
    const MerePlan none = plan(e, hybrid, &o);
    assert_true(five.terms[MERE_TERM_STATE] > 4 * none.terms[MERE_TERM_STATE] &&
                none.terms[MERE_TERM_STATE] > 0);
    mere_engine_close(e);
    arena_free(&a);
}

static void what_would_fit_is_said(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const char *dir = tiny_dir(&a, "llama");
    MereError err;
    MereEngine *e;
    MereOptions o = MERE_OPTIONS_INIT;
    o.threads = 1;
    o.page_tokens = 8;
    o.chunk = 8; /* the scratch is then the same for every context */
    assert_true(mere_engine_open(&o, &e, &err));
    MereInfo *info;
    assert_true(mere_info_read(str_of(dir), &info, &err));
    const int max_ctx = info->max_ctx;
    mere_info_free(info);
    o.slots = 64;
    o.ctx = max_ctx;
    const MerePlan all = plan(e, dir, &o);
    o.ctx = 8;
    const MerePlan least = plan(e, dir, &o);
    assert_true(all.total_bytes > least.total_bytes);
    for (int i = 0; i <= 8; i++) {
        o.ctx = max_ctx;
        o.limit_bytes = least.total_bytes + (all.total_bytes - least.total_bytes) / 8 * (uint64_t)i;
        const MerePlan p = plan(e, dir, &o);
        if (p.fits)
            continue;
        /* What is named fits, and one page more does not. */
        MereOptions near = o;
        assert_true(p.nearest_ctx > 0 && p.nearest_slots > 0);
        near.ctx = p.nearest_ctx;
        near.slots = p.nearest_slots;
        near.kv = p.nearest_kv;
        MereModel *m;
        assert_false(mere_model_open(e, str_of(dir), &o, &m, &err));
        assert_int_equal(err.code, MERE_ERR_FIT);
        if (!plan(e, dir, &near).fits)
            fail_msg("ctx %d slots %d was said to fit in %llu", (int)near.ctx, (int)near.slots,
                     (unsigned long long)o.limit_bytes);
    }
    /* Without a wish the context is what fits. */
    o.ctx = 0;
    o.limit_bytes = (all.total_bytes + least.total_bytes) / 2;
    const MerePlan p = plan(e, dir, &o);
    assert_true(p.fits && p.ctx < max_ctx && p.ctx > 0);
    o.limit_bytes = 1;
    assert_int_equal(plan(e, dir, &o).nearest_ctx, 0);
    mere_engine_close(e);
    arena_free(&a);
}

/* In a child, so that no other test's memory counts. Returns 0 when the peak met the plan. */
static int run_child(const char *dir, int slots)
{
    MereError err;
    MereEngine *e;
    MereModel *m;
    MereOptions o = MERE_OPTIONS_INIT;
    o.slots = slots;
    if (!mere_engine_open(&o, &e, &err) || !mere_model_open(e, str_of(dir), &o, &m, &err))
        return 2;
    MereInfo info;
    mere_model_info(m, &info);
    const int n = info.ctx - 4;
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    for (int i = 0; i < slots; i++) {
        MereRequest r = MERE_REQUEST_INIT;
        r.ids = ids;
        r.n_ids = n;
        r.max_tokens = 4;
        r.ignore_eos = true;
        r.cache_salt = (MereStr){(const char *)&i, sizeof i};
        r.echo_logits = i == 0;
        uint64_t id;
        if (!mere_submit(m, &r, &id, &err))
            return 3;
    }
    MereEvent ev;
    for (int left = slots; left > 0;) {
        if (!mere_next(e, &ev, 120000))
            return 4;
        left -= ev.type == MERE_EVENT_END;
        if (ev.finish == MERE_FINISH_ERROR)
            return 5;
    }
    MereStats st;
    mere_stats(m, &st);
    const double diff = fabs((double)st.peak_anon_bytes - (double)st.planned_bytes);
    const double allowed = fmax(32 << 20, 0.05 * (double)st.planned_bytes);
    free(ids);
    mere_model_close(m);
    mere_engine_close(e);
    return diff <= allowed ? 0 : 6;
}

static void a_process_takes_what_was_planned(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    static const char *const names[] = {"llama", "qwen3_next"};
    for (int i = 0; i < 2; i++) {
        const char *dir = tiny_dir(&a, names[i]);
        for (int slots = 1; slots <= 16; slots *= 4) {
            const pid_t pid = fork();
            if (pid == 0)
                _exit(run_child(dir, slots));
            int status = -1;
            assert_int_equal(waitpid(pid, &status, 0), pid);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                fail_msg("%s with %d slots: status %d", names[i], slots,
                         WIFEXITED(status) ? WEXITSTATUS(status) : -status);
        }
    }
    arena_free(&a);
}

static void the_system_is_asked(void **state)
{
    (void)state;
    assert_true(osmem_available() > 1 << 20);
    const uint64_t before = osmem_anon();
    assert_true(before > 0);
    volatile char *p = malloc(64 << 20);
    for (int i = 0; i < 64 << 20; i += 4096)
        p[i] = 1;
    const uint64_t after = osmem_anon();
    if (after < before + ((uint64_t)60 << 20))
        fail_msg("%llu bytes before, %llu after writing 64 MiB", (unsigned long long)before,
                 (unsigned long long)after);
    free((void *)(uintptr_t)p);
}

int main(void)
{
    json_setup(); /* before the fixtures read theirs */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_takes_what_was_planned),
        cmocka_unit_test(terms_follow_the_options),
        cmocka_unit_test(what_would_fit_is_said),
        cmocka_unit_test(the_system_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
