#include "device/cpu/team.h"

#include "base/clock.h"
#include "base/mem.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spinning longer than a stage of a large model only heats; parking earlier costs 20 to 40 us of
 * wake-up a stage. */
static const uint64_t spin_in_run_ns = 200000;
/* Between runs: sampling and scheduling of the next step take less than this. */
static const uint64_t spin_idle_ns = 300000;

typedef struct Gate {
    ALIGNED(64) atomic_int arrived;
    ALIGNED(64) atomic_int epoch;
    ALIGNED(64) atomic_int sleepers;
} Gate;

typedef struct Member {
    Team *team;
    pthread_t id;
    int index;
    bool started;
} Member;

struct Team {
    Gate gate;  /* barriers inside a run */
    Gate start; /* epoch counts runs */
    TeamFn *fn;
    void *ctx;
    atomic_bool stop;
    int n;
    Member members[TEAM_MAX];
};

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long futex(atomic_int *word, int op, int value)
{
    return syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

/* Returns once the epoch differs from `seen`. */
static void gate_await(Gate *g, int seen, uint64_t spin_ns)
{
    uint64_t until = 0;
    for (;;) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&g->epoch, memory_order_acquire) != seen)
                return;
            cpu_relax();
        }
        const uint64_t now = clock_ns();
        if (until == 0)
            until = now + spin_ns;
        else if (now > until)
            break;
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->epoch) == seen)
        futex(&g->epoch, FUTEX_WAIT_PRIVATE, seen);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void gate_open(Gate *g)
{
    atomic_fetch_add(&g->epoch, 1);
    if (atomic_load(&g->sleepers) > 0)
        futex(&g->epoch, FUTEX_WAKE_PRIVATE, TEAM_MAX);
}

void team_barrier(Team *t)
{
    Gate *g = &t->gate;
    const int seen = atomic_load_explicit(&g->epoch, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&g->arrived, 1, memory_order_acq_rel) == t->n - 1) {
        atomic_store_explicit(&g->arrived, 0, memory_order_relaxed);
        gate_open(g);
    } else {
        gate_await(g, seen, spin_in_run_ns);
    }
}

static void *member_main(void *arg)
{
    const Member *m = arg;
    Team *t = m->team;
    char name[16];
    snprintf(name, sizeof name, "mere-cpu-%d", m->index);
    pthread_setname_np(pthread_self(), name);
    for (int seen = 0;; seen++) {
        gate_await(&t->start, seen, spin_idle_ns);
        if (atomic_load(&t->stop))
            return NULL;
        t->fn(t->ctx, m->index);
        team_barrier(t);
    }
}

void team_run(Team *t, TeamFn *fn, void *ctx)
{
    if (t->n == 1) {
        fn(ctx, 0);
        return;
    }
    t->fn = fn;
    t->ctx = ctx;
    gate_open(&t->start);
    fn(ctx, 0);
    team_barrier(t);
}

int team_size(const Team *t)
{
    return t->n;
}

int team_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

bool team_open(int n_threads, Team **out, Error *err)
{
    if (n_threads < 1 || n_threads > TEAM_MAX)
        return err_set(err, ERR_USAGE, "threads: %d, wanted 1 to %d", n_threads, TEAM_MAX);
    /* Gates sit on cache lines of their own, so the block must be aligned. */
    Team *t = mem_map(sizeof *t);
    if (!t)
        return err_nomem(err, "thread team", sizeof *t);
    t->n = n_threads;
    for (int i = 1; i < n_threads; i++) {
        Member *m = &t->members[i];
        *m = (Member){.team = t, .index = i};
        const int rc = pthread_create(&m->id, NULL, member_main, m);
        if (rc != 0) {
            err_set(err, ERR_DEVICE, "thread %d of %d: %s", i + 1, n_threads, strerror(rc));
            team_close(t);
            return false;
        }
        m->started = true;
    }
    *out = t;
    return true;
}

void team_close(Team *t)
{
    if (!t)
        return;
    atomic_store(&t->stop, true);
    gate_open(&t->start);
    for (int i = 1; i < t->n; i++)
        if (t->members[i].started)
            pthread_join(t->members[i].id, NULL);
    mem_unmap(t, sizeof *t);
}
