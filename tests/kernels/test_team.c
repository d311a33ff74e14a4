/* The thread team: every thread runs, barriers order what was written, runs follow each other,
 * sleepers wake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cpu/team.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 200 };

typedef struct Work {
    Team *team;
    int cells[THREADS]; /* plain memory: only the barrier orders it */
    atomic_int errors;
    atomic_int visits;
} Work;

static void rounds(void *ctx, int thread)
{
    Work *w = ctx;
    atomic_fetch_add(&w->visits, 1);
    for (int i = 1; i <= ROUNDS; i++) {
        w->cells[thread] = i;
        team_barrier(w->team);
        for (int t = 0; t < THREADS; t++)
            if (w->cells[t] != i)
                atomic_fetch_add(&w->errors, 1);
        team_barrier(w->team);
    }
}

static void test_barriers(void **state)
{
    (void)state;
    Work w;
    memset(&w, 0, sizeof w);
    Error err;
    assert_true(team_open(THREADS, &w.team, &err));
    assert_int_equal(team_size(w.team), THREADS);
    for (int run = 0; run < 3; run++) {
        team_run(w.team, rounds, &w);
        usleep(2000); /* long enough for the others to sleep */
    }
    assert_int_equal(atomic_load(&w.errors), 0);
    assert_int_equal(atomic_load(&w.visits), 3 * THREADS);
    team_close(w.team);
}

static void test_one_thread(void **state)
{
    (void)state;
    Error err;
    Team *t = NULL;
    assert_true(team_open(1, &t, &err));
    team_close(t);
}

static void test_bad_sizes(void **state)
{
    (void)state;
    Error err;
    Team *t = NULL;
    assert_false(team_open(0, &t, &err));
    assert_int_equal(err.code, ERR_USAGE);
    assert_false(team_open(TEAM_MAX + 1, &t, &err));
    assert_non_null(strstr(err.msg, "257"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_bad_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
