/* The emulator's scheduler. Fibers are run from one queue: a thread runs until it has to wait;
 * whoever completes a meeting (a barrier, a collective of a warp) puts the others back into the
 * queue. An empty queue with threads left is a deadlock. */
#include "emu/emu.h"
#include "emu/fiber.h"
#include "emu/gpu_emu.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    KERNELS_MAX = 4096,
    THREADS_MAX = 1024, /* of a CTA */
    CLUSTER_MAX = 16,
    SITES_MAX = 1024,
    STACK_BYTES = 128 << 10,
    SHARED_MAX = 227 << 10, /* dynamic, as on sm_90 */
    STATIC_MAX = 48 << 10,
    GUARD = 128, /* canaries around shared arrays */
    PARAMS_MAX = 4096
};
static const uint32_t POISON = 0x7fff7fffu; /* NaN as f32, as f16 and as bf16 */
static const uint8_t CANARY = 0xa7;

struct Kernel {
    char name[64];
    int max_threads;
    size_t params_bytes;
    void (*fn)();
    void (*call)(void (*)(), const void *);
};

struct Copy { /* asynchronous, not landed */
    uint8_t *to;
    const uint8_t *from;
    int bytes;
};

struct Cta;
struct Warp;
struct Thread {
    Fiber *fiber;
    Cta *cta;
    Warp *warp;
    Thread *next; /* in the queue */
    int index;
    bool ended;
    EmuKind waits;
    const char *file; /* where it waits */
    int line;
    Copy *copies;
    int n_copies, copies_cap;
    int group_end[64]; /* copies [0, group_end[i]) belong to groups up to i */
    int n_groups;
};
struct Warp {
    int live, arrived;
    EmuKind kind;
    uint32_t present;
    unsigned turn;
    EmuSlot slots[2][32]; /* by turn: nobody is two meetings ahead of a lane that still reads */
};
struct Cta {
    int index, live, arrived;
    const char *file; /* where those who arrived wait: barriers in two places of a kernel are two
                         barriers */
    int line;
    int block[3];
    Thread *threads;
    Warp *warps;
    uint8_t *dynamic_area; /* SHARED_MAX + guards, then a page without access */
    uint8_t *dynamic;      /* ends at that page */
    uint8_t *fixed;        /* STATIC_MAX + guards */
};
struct Site {
    const char *name;
    int bytes;
    int offset; /* in Cta.fixed in this launch, -1: not used in it yet */
};

EmuNow emu_now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Kernel kernels[KERNELS_MAX];
static int n_kernels;
static Site sites[SITES_MAX];
static int n_sites;
static Cta ctas[CLUSTER_MAX];
static char error[1024];

static struct Run {
    const Kernel *kernel;
    alignas(64) uint8_t params[PARAMS_MAX];
    int grid[3], threads, smem, n_ctas; /* CTAs that live together */
    int cluster_arrived, cluster_live;
    int fixed_used; /* bytes of Cta.fixed given to sites */
    Thread *current, *head, *tail;
    Fiber *main;
    bool failed;
} run;

/* ---- messages ---- */

static const char *kind_name(EmuKind k)
{
    switch (k) {
    case EMU_NONE:
        return "nothing";
    case EMU_BLOCK_SYNC:
        return "block_sync";
    case EMU_CLUSTER_SYNC:
        return "cluster_sync";
    case EMU_WARP_SYNC:
        return "warp_sync";
    case EMU_SHFL:
        return "shfl";
    case EMU_BALLOT:
        return "warp_ballot";
    case EMU_MMA_BF16:
        return "mma_bf16";
    case EMU_MMA_F16:
        return "mma_f16";
    case EMU_LOAD_MATRIX:
        return "load_matrix";
    case EMU_LOAD_MATRIX_TRANS:
        return "load_matrix_trans";
    case EMU_REDUCE:
        return "reduce";
    }
    return "?";
}

static const char *base_name(const char *file)
{
    const char *slash = file ? strrchr(file, '/') : NULL;
    return slash ? slash + 1 : file ? file : "?";
}

[[noreturn]] void emu_fail(const char *file, int line, const char *fmt, ...)
{
    const Thread *t = run.current;
    int at = snprintf(
        error, sizeof error, "%s, block (%d, %d, %d), thread %d, %s:%d: ", run.kernel->name,
        t->cta->block[0], t->cta->block[1], t->cta->block[2], t->index, base_name(file), line);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(error + at, sizeof error - (size_t)at, fmt, ap);
    va_end(ap);
    run.failed = true;
    for (;;)
        fiber_switch(t->fiber, run.main); /* never comes back */
}

static int launch_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int launch_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(error, sizeof error, fmt, ap);
    va_end(ap);
    return 1;
}

static void deadlock()
{
    int at = snprintf(error, sizeof error, "%s: threads wait for ever:", run.kernel->name);
    const char *file = NULL;
    int line = 0;
    for (int c = 0; c < run.n_ctas; c++) {
        for (int i = 0; i < run.threads && at < (int)sizeof error - 200; i++) {
            const Thread *t = &ctas[c].threads[i];
            if (t->ended || (t->file == file && t->line == line))
                continue;
            file = t->file;
            line = t->line;
            at += snprintf(error + at, sizeof error - (size_t)at,
                           " block (%d, %d, %d) thread %d in %s at %s:%d;", ctas[c].block[0],
                           ctas[c].block[1], ctas[c].block[2], t->index, kind_name(t->waits),
                           base_name(t->file), t->line);
        }
    }
    run.failed = true;
}

static void crashed(int sig)
{
    char text[256];
    const Thread *t = run.current;
    int n = t ? snprintf(text, sizeof text,
                         "emulator: signal %d in %s, block (%d, %d, %d), thread %d\n", sig,
                         run.kernel->name, t->cta->block[0], t->cta->block[1], t->cta->block[2],
                         t->index)
              : snprintf(text, sizeof text, "emulator: signal %d outside of kernels\n", sig);
    if (write(2, text, (size_t)n) < 0)
        _exit(139);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* ---- queue ---- */

static void queue_push(Thread *t)
{
    t->next = NULL;
    if (run.tail)
        run.tail->next = t;
    else
        run.head = t;
    run.tail = t;
}

static void set_now(Thread *t)
{
    run.current = t;
    emu_now.thread = t->index;
    memcpy(emu_now.block, t->cta->block, sizeof emu_now.block);
    emu_now.dynamic = t->cta->dynamic;
}

/* Goes on with the next thread that can run, or with main when there is none. */
static void run_next(Thread *from)
{
    Thread *t = run.head;
    if (!t) {
        fiber_switch(from->fiber, run.main);
    } else {
        run.head = t->next;
        if (!run.head)
            run.tail = NULL;
        set_now(t);
        fiber_switch(from->fiber, t->fiber);
    }
    /* whoever came back here has set emu_now */
}

static void wait_for_others(Thread *t, EmuKind kind, const char *file, int line)
{
    t->waits = kind;
    t->file = file;
    t->line = line;
    run_next(t);
}

static void wake(Thread *t, EmuKind kind)
{
    if (!t->ended && t != run.current && t->waits == kind) {
        t->waits = EMU_NONE;
        queue_push(t);
    }
}

/* ---- barriers ---- */

static void block_meet(Cta *c)
{
    c->arrived = 0;
    for (int i = 0; i < run.threads; i++)
        wake(&c->threads[i], EMU_BLOCK_SYNC);
}

static void cluster_meet()
{
    run.cluster_arrived = 0;
    for (int c = 0; c < run.n_ctas; c++)
        for (int i = 0; i < run.threads; i++)
            wake(&ctas[c].threads[i], EMU_CLUSTER_SYNC);
}

void emu_block_sync(EmuKind kind, const char *file, int line)
{
    Thread *t = run.current;
    Cta *c = t->cta;
    if (kind == EMU_BLOCK_SYNC) {
        if (c->arrived == 0) {
            c->file = file;
            c->line = line;
        } else if (c->line != line || strcmp(c->file, file) != 0) {
            emu_fail(file, line, "block_sync, while others wait in block_sync at %s:%d",
                     base_name(c->file), c->line);
        }
        if (++c->arrived == c->live)
            block_meet(c);
        else
            wait_for_others(t, kind, file, line);
    } else {
        if (++run.cluster_arrived == run.cluster_live)
            cluster_meet();
        else
            wait_for_others(t, kind, file, line);
    }
}

/* ---- collectives of a warp ---- */

static float f32_of_half(EmuKind kind, uint32_t bits)
{
    return kind == EMU_MMA_BF16 ? f32_of_bf16(bits) : emu_f32_of_f16(bits);
}

/* Fragments as PTX lays them out for mma.m16n8k16. Products are exact; their sum is rounded once to
 * f32, as close as the device's own (unspecified) order is. */
static void combine_mma(EmuKind kind, EmuSlot *s)
{
    float a[16][16], b[8][16]; /* b: [n][k] */
    for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = l % 4;
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
            a[row][k] = f32_of_half(kind, s[l].u[i] & 0xffffu);
            a[row][k + 1] = f32_of_half(kind, s[l].u[i] >> 16);
        }
        for (int i = 0; i < 2; i++) {
            b[g][2 * t + i * 8] = f32_of_half(kind, s[l].u[4 + i] & 0xffffu);
            b[g][2 * t + i * 8 + 1] = f32_of_half(kind, s[l].u[4 + i] >> 16);
        }
    }
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 4; i++) {
            const int row = l / 4 + i / 2 * 8, col = l % 4 * 2 + i % 2;
            double sum = (double)s[l].f[6 + i];
            for (int k = 0; k < 16; k++)
                sum += (double)a[row][k] * (double)b[col][k];
            s[l].f[6 + i] = (float)sum;
        }
    }
}

static bool in_shared(const Cta *c, const void *p, int bytes)
{
    const uint8_t *q = (const uint8_t *)p;
    return (q >= c->dynamic && q + bytes <= c->dynamic + run.smem) ||
           (q >= c->fixed && q + bytes <= c->fixed + run.fixed_used);
}

static void combine_matrix(EmuKind kind, EmuSlot *s, const char *file, int line)
{
    const uint8_t *row[32];
    for (int l = 0; l < 32; l++) {
        row[l] = (const uint8_t *)s[l].p;
        if (!in_shared(run.current->cta, row[l], 16) || (uintptr_t)row[l] % 16)
            emu_fail(file, line, "%s: address of lane %d is not 16 aligned bytes of shared memory",
                     kind_name(kind), l);
    }
    for (int l = 0; l < 32; l++) {
        for (int m = 0; m < 4; m++) {
            uint16_t v[2];
            for (int i = 0; i < 2; i++) {
                const int r = kind == EMU_LOAD_MATRIX ? l / 4 : l % 4 * 2 + i;
                const int col = kind == EMU_LOAD_MATRIX ? l % 4 * 2 + i : l / 4;
                memcpy(&v[i], row[m * 8 + r] + col * 2, 2);
            }
            s[l].u[6 + m] = v[0] | (uint32_t)v[1] << 16;
        }
    }
}

static void warp_meet(Warp *w, Thread *first, const char *file, int line)
{
    EmuSlot *s = w->slots[w->turn % 2];
    const bool all_lanes = w->kind == EMU_MMA_BF16 || w->kind == EMU_MMA_F16 ||
                           w->kind == EMU_LOAD_MATRIX || w->kind == EMU_LOAD_MATRIX_TRANS;
    if (all_lanes && w->present != ~0u)
        emu_fail(file, line, "%s needs all 32 lanes, lanes %08x came", kind_name(w->kind),
                 w->present);
    for (int l = 0; l < 32; l++) {
        if (!(w->present >> l & 1))
            for (int i = 0; i < 10; i++)
                s[l].u[i] = POISON;
    }
    if (w->kind == EMU_MMA_BF16 || w->kind == EMU_MMA_F16)
        combine_mma(w->kind, s);
    if (w->kind == EMU_LOAD_MATRIX || w->kind == EMU_LOAD_MATRIX_TRANS)
        combine_matrix(w->kind, s, file, line);
    const EmuKind kind = w->kind;
    w->arrived = 0;
    w->present = 0;
    w->kind = EMU_NONE;
    w->turn++;
    for (int l = 0; l < 32 && first->index + l < run.threads; l++)
        wake(first + l, kind);
}

const EmuSlot *emu_meet(EmuKind kind, const EmuSlot *mine, const char *file, int line)
{
    Thread *t = run.current;
    Warp *w = t->warp;
    const int lane = t->index % 32;
    EmuSlot *slots = w->slots[w->turn % 2];
    if (w->arrived == 0) {
        w->kind = kind;
    } else if (w->kind != kind) {
        int other = 0;
        while (!(w->present >> other & 1))
            other++;
        const Thread *o = t - lane + other;
        emu_fail(file, line, "%s, while lane %d waits in %s at %s:%d", kind_name(kind), other,
                 kind_name(w->kind), base_name(o->file), o->line);
    }
    slots[lane] = *mine;
    w->present |= 1u << lane;
    if (++w->arrived == w->live)
        warp_meet(w, t - lane, file, line);
    else
        wait_for_others(t, kind, file, line);
    return slots;
}

/* ---- shared memory ---- */

int emu_shared_site(int bytes, const char *name)
{
    if (n_sites == SITES_MAX)
        emu_fail(name, 0, "more than %d shared arrays", SITES_MAX);
    sites[n_sites].name = name;
    sites[n_sites].bytes = bytes;
    sites[n_sites].offset = -1;
    return n_sites++;
}

void *emu_shared(int site)
{
    Site *s = &sites[site];
    if (s->offset < 0) {
        s->offset = run.fixed_used;
        run.fixed_used += (s->bytes + GUARD + 127) / 128 * 128;
        if (run.fixed_used > STATIC_MAX)
            emu_fail(s->name, 0, "shared arrays of more than %d bytes", STATIC_MAX);
    }
    return run.current->cta->fixed + s->offset;
}

const float *emu_cluster_address(const float *shared, int rank, const char *file, int line)
{
    Cta *mine = run.current->cta;
    if (rank < 0 || rank >= run.n_ctas)
        emu_fail(file, line, "rank %d of a cluster of %d", rank, run.n_ctas);
    if (!in_shared(mine, shared, 4))
        emu_fail(file, line, "cluster_load_f32 of an address that is not shared memory");
    if (ctas[rank].live == 0)
        emu_fail(file, line, "CTA %d of the cluster has ended", rank);
    const uint8_t *p = (const uint8_t *)shared;
    const uint8_t *q = p >= mine->dynamic && p < mine->dynamic + run.smem
                           ? ctas[rank].dynamic + (p - mine->dynamic)
                           : ctas[rank].fixed + (p - mine->fixed);
    return (const float *)(const void *)q;
}

static void fill(uint8_t *p, int bytes)
{
    int i = 0;
    for (; i + 4 <= bytes; i += 4)
        memcpy(p + i, &POISON, 4);
    for (; i < bytes; i++)
        p[i] = (uint8_t)(POISON >> i % 4 * 8);
}

static void shared_start(Cta *c)
{
    c->dynamic = c->dynamic_area + GUARD + SHARED_MAX - (run.smem + 127) / 128 * 128;
    memset(c->dynamic - GUARD, CANARY, GUARD);
    fill(c->dynamic, run.smem);
    memset(c->dynamic + run.smem, CANARY, (size_t)(-run.smem & 127));
    fill(c->fixed, STATIC_MAX);
}

static bool has_canary(const uint8_t *p, int n)
{
    for (int i = 0; i < n; i++) {
        if (p[i] != CANARY)
            return false;
    }
    return true;
}

static bool shared_check(const Cta *c)
{
    const char *what = NULL;
    if (!has_canary(c->dynamic - GUARD, GUARD) ||
        !has_canary(c->dynamic + run.smem, -run.smem & 127))
        what = "dynamic shared memory";
    for (int i = 0; i < n_sites; i++) { /* behind an array lies what it was filled with */
        if (sites[i].offset < 0)
            continue;
        const uint8_t *end = c->fixed + sites[i].offset + sites[i].bytes;
        for (int j = 0; j < GUARD; j++) {
            if (end[j] != (uint8_t)(POISON >> (sites[i].bytes + j) % 4 * 8))
                what = sites[i].name;
        }
    }
    if (what)
        launch_fail("%s, block (%d, %d, %d): a write around %s", run.kernel->name, c->block[0],
                    c->block[1], c->block[2], what);
    return !what;
}

/* ---- asynchronous copies ---- */

void emu_copy(void *shared, const void *global, int bytes, const char *file, int line)
{
    Thread *t = run.current;
    if (!in_shared(t->cta, shared, 16) || (uintptr_t)shared % 16)
        emu_fail(file, line, "copy_async16 to %p, which is not 16 aligned bytes of shared memory",
                 shared);
    if ((bytes != 0 && bytes != 16) || (bytes && (uintptr_t)global % 16))
        emu_fail(file, line, "copy_async16 of %d bytes from %p", bytes, global);
    if (t->n_copies == t->copies_cap) {
        t->copies_cap = t->copies_cap ? 2 * t->copies_cap : 64;
        t->copies = (Copy *)realloc(t->copies, (size_t)t->copies_cap * sizeof *t->copies);
        if (!t->copies)
            abort();
    }
    t->copies[t->n_copies++] = {(uint8_t *)shared, (const uint8_t *)global, bytes};
    fill((uint8_t *)shared, 16); /* until it lands */
}

void emu_copy_commit()
{
    Thread *t = run.current;
    if (t->n_groups == (int)(sizeof t->group_end / sizeof *t->group_end))
        emu_fail(NULL, 0, "%d groups of copies without a copy_wait", t->n_groups);
    t->group_end[t->n_groups++] = t->n_copies;
}

void emu_copy_wait(int newest)
{
    Thread *t = run.current;
    const int groups = t->n_groups - newest;
    if (groups <= 0)
        return;
    const int n = t->group_end[groups - 1];
    for (int i = 0; i < n; i++) {
        const Copy *c = &t->copies[i];
        if (c->bytes)
            memcpy(c->to, c->from, 16);
        else
            memset(c->to, 0, 16);
    }
    if (n > 0)
        memmove(t->copies, t->copies + n, (size_t)(t->n_copies - n) * sizeof *t->copies);
    t->n_copies -= n;
    for (int i = groups; i < t->n_groups; i++)
        t->group_end[i - groups] = t->group_end[i] - n;
    t->n_groups -= groups;
}

/* ---- numbers ---- */

float emu_f32_of_f16(uint32_t h)
{
    const uint32_t sign = (h & 0x8000u) << 16;
    const uint32_t e = h >> 10 & 31, m = h & 1023;
    if (e == 0) {
        const float f = (float)m * 0x1p-24F;
        return sign ? -f : f;
    }
    return f32_of_bits(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}

uint32_t emu_f16_of_f32(float f)
{
    const uint32_t u = bits_of_f32(f);
    const uint32_t sign = u >> 16 & 0x8000u;
    const float a = fabsf(f);
    if (a != a)
        return 0x7fffu;
    if (a >= 65520.0F)
        return sign | 0x7c00u;
    if (a < 0x1p-14F)
        return sign | (uint32_t)lrintf(a * 0x1p24F);
    const uint32_t v = u & 0x7fffffffu;
    return sign | (((v + 0xfffu + (v >> 13 & 1u)) >> 13) - (112u << 10));
}

/* ---- launching ---- */

void emu_register(const char *name, int max_threads, size_t params_bytes, void (*fn)(),
                  void (*call)(void (*)(), const void *))
{
    if (n_kernels == KERNELS_MAX || strlen(name) >= sizeof kernels[0].name ||
        params_bytes > PARAMS_MAX)
        abort();
    Kernel *k = &kernels[n_kernels++];
    strcpy(k->name, name);
    k->max_threads = max_threads;
    k->params_bytes = params_bytes;
    k->fn = fn;
    k->call = call;
}

static const Kernel *find(const char *name)
{
    for (int i = 0; i < n_kernels; i++) {
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    }
    return NULL;
}

static void thread_end(Thread *t)
{
    Cta *c = t->cta;
    Warp *w = t->warp;
    t->ended = true;
    c->live--;
    w->live--;
    run.cluster_live--;
    if (w->live && w->arrived == w->live) {
        Thread *first = t - t->index % 32;
        int l = 0;
        while (!(w->present >> l & 1))
            l++;
        warp_meet(w, first, first[l].file, first[l].line);
    }
    if (c->live && c->arrived == c->live)
        block_meet(c);
    if (run.cluster_live && run.cluster_arrived == run.cluster_live)
        cluster_meet();
}

static void thread_main()
{
    run.kernel->call(run.kernel->fn, run.params);
    thread_end(run.current);
    run_next(run.current);
    abort(); /* an ended thread is never queued */
}

static void cta_start(Cta *c, int index, const int block[3])
{
    if (!c->threads) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        const size_t area = ((size_t)SHARED_MAX + GUARD + page - 1) / page * page;
        c->threads = (Thread *)calloc(THREADS_MAX, sizeof *c->threads);
        c->warps = (Warp *)calloc(THREADS_MAX / 32, sizeof *c->warps);
        c->fixed = (uint8_t *)aligned_alloc(128, STATIC_MAX);
        uint8_t *p = (uint8_t *)mmap(NULL, area + page, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (!c->threads || !c->warps || !c->fixed || p == MAP_FAILED ||
            mprotect(p + area, page, PROT_NONE) != 0)
            abort();
        c->dynamic_area = p + area - SHARED_MAX - GUARD;
    }
    c->index = index;
    memcpy(c->block, block, sizeof c->block);
    c->live = run.threads;
    c->arrived = 0;
    shared_start(c);
    for (int w = 0; w < (run.threads + 31) / 32; w++) {
        Warp *warp = &c->warps[w];
        warp->live = run.threads - w * 32 < 32 ? run.threads - w * 32 : 32;
        warp->arrived = 0;
        warp->present = 0;
        warp->kind = EMU_NONE;
    }
    for (int i = 0; i < run.threads; i++) {
        Thread *t = &c->threads[i];
        if (!t->fiber)
            t->fiber = fiber_new(STACK_BYTES);
        fiber_start(t->fiber, thread_main);
        t->cta = c;
        t->warp = &c->warps[i / 32];
        t->index = i;
        t->ended = false;
        t->waits = EMU_NONE;
        t->file = NULL;
        t->line = 0;
        t->n_copies = 0;
        t->n_groups = 0;
    }
}

struct Order {
    enum { FORWARD, REVERSE, RANDOM } how;
    uint64_t seed;
};

static bool order_get(Order *o)
{
    const char *s = getenv("EMU_ORDER");
    o->how = Order::FORWARD;
    o->seed = 1;
    if (!s || !*s || strcmp(s, "forward") == 0)
        return true;
    if (strcmp(s, "reverse") == 0) {
        o->how = Order::REVERSE;
        return true;
    }
    if (strncmp(s, "random:", 7) == 0) {
        o->how = Order::RANDOM;
        o->seed = strtoull(s + 7, NULL, 10) * 2 + 1;
        return true;
    }
    return false;
}

static void order_fill(Order *o, int *list, int n)
{
    for (int i = 0; i < n; i++)
        list[i] = o->how == Order::REVERSE ? n - 1 - i : i;
    if (o->how != Order::RANDOM)
        return;
    for (int i = n - 1; i > 0; i--) {
        o->seed = o->seed * 6364136223846793005u + 1442695040888963407u;
        const int j = (int)((o->seed >> 33) % (uint64_t)(i + 1));
        const int v = list[i];
        list[i] = list[j];
        list[j] = v;
    }
}

/* Runs the CTAs [first, first + n_ctas) along x; false: run.failed or a canary. */
static bool run_cluster(Order *order, int first)
{
    run.head = run.tail = NULL;
    run.cluster_arrived = 0;
    run.cluster_live = run.n_ctas * run.threads;
    int list[THREADS_MAX];
    for (int c = 0; c < run.n_ctas; c++) {
        const int x = first + c;
        const int block[3] = {x % run.grid[0], x / run.grid[0] % run.grid[1],
                              x / run.grid[0] / run.grid[1]};
        cta_start(&ctas[c], c, block);
        order_fill(order, list, run.threads);
        for (int i = 0; i < run.threads; i++)
            queue_push(&ctas[c].threads[list[i]]);
    }
    Thread *t = run.head;
    run.head = t->next;
    if (!run.head)
        run.tail = NULL;
    set_now(t);
    fiber_switch(run.main, t->fiber);
    if (!run.failed && run.cluster_live)
        deadlock();
    if (run.failed)
        return false;
    for (int c = 0; c < run.n_ctas; c++) {
        if (!shared_check(&ctas[c]))
            return false;
    }
    return true;
}

/* One for each file of kernels; register.awk writes them. */
#define KERNELS(file) extern "C" void emu_kernels_##file();
#include "kernels.def"
KERNELS(selftest)
#undef KERNELS

static void start_once()
{
    static bool done;
    if (done)
        return;
    done = true;
#define KERNELS(file) emu_kernels_##file();
#include "kernels.def"
    KERNELS(selftest)
#undef KERNELS
    run.main = fiber_new(0);
    static char handler_stack[64 << 10];
    stack_t alt = {};
    alt.ss_size = sizeof handler_stack;
    alt.ss_sp = handler_stack;
    struct sigaction sa = {};
    sa.sa_handler = crashed;
    sa.sa_flags = SA_ONSTACK | SA_RESETHAND;
    if (sigaltstack(&alt, NULL) != 0 || sigaction(SIGSEGV, &sa, NULL) != 0 ||
        sigaction(SIGBUS, &sa, NULL) != 0)
        abort();
}

static int launch(const char *name, const int grid[3], int block, int smem, int cluster,
                  const void *params, size_t params_bytes)
{
    const Kernel *k = find(name);
    if (!k)
        return launch_fail("no kernel %s", name);
    if (params_bytes != k->params_bytes)
        return launch_fail("%s: params of %zu bytes, wanted %zu", name, params_bytes,
                           k->params_bytes);
    if (block < 1 || block > k->max_threads || block > THREADS_MAX)
        return launch_fail("%s: %d threads, launch bound %d", name, block, k->max_threads);
    if (smem < 0 || smem > SHARED_MAX)
        return launch_fail("%s: %d bytes of dynamic shared memory, at most %d", name, smem,
                           SHARED_MAX);
    run.kernel = k;
    memcpy(run.params, params, params_bytes);
    int64_t ctas_all = 1;
    for (int i = 0; i < 3; i++) {
        run.grid[i] = grid[i] ? grid[i] : 1;
        if (run.grid[i] < 0 || (i && run.grid[i] > 65535))
            return launch_fail("%s: grid (%d, %d, %d)", name, grid[0], grid[1], grid[2]);
        ctas_all *= run.grid[i];
    }
    run.n_ctas = cluster ? cluster : 1;
    if (cluster < 0 || cluster > CLUSTER_MAX || run.grid[0] % run.n_ctas || ctas_all > 1 << 24)
        return launch_fail("%s: clusters of %d in a grid (%d, %d, %d)", name, cluster, grid[0],
                           grid[1], grid[2]);
    Order order;
    if (!order_get(&order))
        return launch_fail("EMU_ORDER is \"%s\", wanted forward, reverse or random:SEED",
                           getenv("EMU_ORDER"));
    run.threads = block;
    run.smem = smem;
    run.failed = false;
    run.fixed_used = 0;
    for (int i = 0; i < n_sites; i++)
        sites[i].offset = -1;
    emu_now.threads = block;
    memcpy(emu_now.grid, run.grid, sizeof emu_now.grid);
    const int n = (int)(ctas_all / run.n_ctas);
    int *list = (int *)malloc((size_t)n * sizeof *list);
    if (!list)
        abort();
    order_fill(&order, list, n);
    bool ok = true;
    for (int i = 0; i < n && ok; i++)
        ok = run_cluster(&order, list[i] * run.n_ctas);
    free(list);
    run.current = NULL;
    return ok ? 0 : 1;
}

int emu_launch(const char *kernel, const int grid[3], int block, int smem, int cluster,
               const void *params, size_t params_bytes)
{
    pthread_mutex_lock(&lock);
    start_once();
    const int rc = launch(kernel, grid, block, smem, cluster, params, params_bytes);
    pthread_mutex_unlock(&lock);
    return rc;
}

const char *emu_error(void)
{
    return error;
}

bool emu_has(const char *kernel)
{
    pthread_mutex_lock(&lock);
    start_once();
    const bool has = find(kernel) != NULL;
    pthread_mutex_unlock(&lock);
    return has;
}

size_t emu_params_bytes(const char *kernel)
{
    pthread_mutex_lock(&lock);
    start_once();
    const Kernel *k = find(kernel);
    const size_t bytes = k ? k->params_bytes : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}
