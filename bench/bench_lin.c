/* Speed of the weight products: GB/s of weights for one activation row, Gop/s (2 m n k / time,
 * packing the activations included) for many.
 *
 *   bench_lin [-t threads] [-r rows] [-f format] [-s shape set: smol, 1b, down] [-l cpu level]
 *             [-c class: fast, exact, invariant] [-w MB walked]
 *
 * A sample is one matrix; its time is the processor time of the slowest thread, packing included,
 * waiting not, and the result is the lower quartile of the samples: a busy neighbour costs little.
 * Every shape walks copies of its matrix, 64 MB
 * together or what -w says, so that no weight is found in L2 (-w 0: one copy, the kernel's own
 * speed for small shapes); the last level cache is not emptied
 * (server parts share hundreds of MB), so memory's own speed takes -w 256. The read bandwidth is
 * measured first and after every format, with as many streams as the kernels have, in pieces of
 * 8 MiB of 256; the share is of the latter. */
#include "base/mem.h"
#include "device/cpu/lin.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_THREADS = 64,
    MIN_SAMPLES = 40,
    MAX_SAMPLES = 1024,
    STREAMS = 4, /* of the reader of memory, and what it fetches ahead, as the kernels do */
    AHEAD = 2048,
    PIECE = 8 << 20,
};

typedef struct ShapeSet {
    const char *name;
    struct {
        int n, k;
    } shapes[5];
} ShapeSet;

static const ShapeSet shape_sets[] = {
    {"smol", {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}, {49152, 576}}},
    {"down", {{2048, 8192}}},
    {"1b", {{2048, 2048}, {16384, 2048}, {2048, 8192}, {128256, 2048}}},
};

typedef struct BenchFormat {
    const char *name;
    FormatId format;
    int group;
    FormatId scales;
} BenchFormat;

static const BenchFormat formats[] = {
    {"q4_0", FMT_Q4_0, 32, FMT_F32},        {"q4_1", FMT_Q4_1, 32, FMT_F32},
    {"q5_0", FMT_Q5_0, 32, FMT_F32},        {"q5_1", FMT_Q5_1, 32, FMT_F32},
    {"q8_0", FMT_Q8_0, 32, FMT_F32},        {"f16", FMT_F16, 1, FMT_F32},
    {"bf16", FMT_BF16, 1, FMT_F32},         {"f32", FMT_F32, 1, FMT_F32},
    {"q2_k", FMT_Q2_K, 256, FMT_F32},       {"q3_k", FMT_Q3_K, 256, FMT_F32},
    {"q4_k", FMT_Q4_K, 256, FMT_F32},       {"q5_k", FMT_Q5_K, 256, FMT_F32},
    {"q6_k", FMT_Q6_K, 256, FMT_F32},       {"iq4_nl", FMT_IQ4_NL, 32, FMT_F32},
    {"iq4_xs", FMT_IQ4_XS, 256, FMT_F32},   {"iq3_s", FMT_IQ3_S, 256, FMT_F32},
    {"iq3_xxs", FMT_IQ3_XXS, 256, FMT_F32}, {"iq2_s", FMT_IQ2_S, 256, FMT_F32},
    {"iq2_xs", FMT_IQ2_XS, 256, FMT_F32},   {"iq2_xxs", FMT_IQ2_XXS, 256, FMT_F32},
    {"iq1_m", FMT_IQ1_M, 256, FMT_F32},     {"iq1_s", FMT_IQ1_S, 256, FMT_F32},
    {"tq2_0", FMT_TQ2_0, 256, FMT_F32},     {"tq1_0", FMT_TQ1_0, 256, FMT_F32},
    {"q1_0", FMT_Q1_0, 128, FMT_F32},       {"mxfp4", FMT_MXFP4, 32, FMT_F32},
    {"nvfp4", FMT_NVFP4, 64, FMT_F32},      {"affine1", FMT_AFFINE1, 64, FMT_BF16},
    {"affine2", FMT_AFFINE2, 64, FMT_BF16}, {"affine3", FMT_AFFINE3, 64, FMT_BF16},
    {"affine4", FMT_AFFINE4, 64, FMT_BF16}, {"affine5", FMT_AFFINE5, 64, FMT_BF16},
    {"affine6", FMT_AFFINE6, 64, FMT_BF16}, {"affine8", FMT_AFFINE8, 64, FMT_BF16},
    {"mxfp4p", FMT_MXFP4P, 32, FMT_F32},    {"mxfp8p", FMT_MXFP8P, 32, FMT_F32},
    {"nvfp4p", FMT_NVFP4P, 16, FMT_F32},    {"nvfp4s", FMT_NVFP4S, 16, FMT_F32},
    {"fp8", FMT_FP8, 128, FMT_F32},         {"nf4", FMT_NF4, 64, FMT_F32},
};

/* Threads that run the same function with their number, started anew for each measurement. */
typedef struct Job {
    void (*f)(struct Job *job, int id);
    int n_threads;
    atomic_int arrived; /* counts up for ever */
    const LinKernel *kernel;
    const RowView *w; /* [copies] */
    int copies;
    int rows;
    const float *x;
    uint8_t *packed;
    float *y;
    uint8_t *work[MAX_THREADS];
    atomic_uint_fast64_t sink;
    int n_samples;
    double seconds[MAX_THREADS][MAX_SAMPLES];
} Job;

typedef struct Member {
    Job *job;
    int id;
} Member;

/* All of `n` threads get here before any goes on; they spin, as an engine's would. */
static void meet(Job *job, int n)
{
    const int turn = atomic_fetch_add(&job->arrived, 1) / n;
    while (atomic_load(&job->arrived) < (turn + 1) * n)
        if (n > 2)
            sched_yield();
}

static void *member_main(void *arg)
{
    const Member *m = arg;
    meet(m->job, m->job->n_threads);
    m->job->f(m->job, m->id);
    return NULL;
}

/* Runs the job's samples; the caller is thread 0. */
static void run_job(Job *job)
{
    pthread_t threads[MAX_THREADS];
    Member members[MAX_THREADS];
    atomic_store(&job->arrived, 0);
    for (int i = 1; i < job->n_threads; i++) {
        members[i] = (Member){job, i};
        if (pthread_create(&threads[i], NULL, member_main, &members[i]) != 0)
            exit(1);
    }
    meet(job, job->n_threads);
    job->f(job, 0);
    for (int i = 1; i < job->n_threads; i++)
        pthread_join(threads[i], NULL);
}

static int compare(const void *a, const void *b)
{
    double x;
    double y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

/* Lower quartile over the samples of the slowest thread's seconds. */
static double lower_quartile(Job *job)
{
    double *all = job->seconds[0];
    for (int i = 0; i < job->n_samples; i++)
        for (int t = 1; t < job->n_threads; t++)
            all[i] = job->seconds[t][i] > all[i] ? job->seconds[t][i] : all[i];
    qsort(all, (size_t)job->n_samples, sizeof *all, compare);
    return all[job->n_samples / 4];
}

/* Seconds of processor time that the calling thread has used. */
static double used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* As the kernels read: STREAMS rows far apart, fetched ahead. */
static void read_all(Job *job, int id)
{
    for (int s = 0; s < job->n_samples; s++) {
        const int64_t stream = PIECE / job->n_threads / STREAMS & ~(int64_t)63;
        const uint8_t *p = job->w->data + (int64_t)(s % 32) * PIECE;
        p += stream * STREAMS * id;
        uint64_t sum[8] = {0};
        meet(job, job->n_threads);
        const double t0 = used();
        for (int64_t o = 0; o < stream; o += 64) {
            for (int r = 0; r < STREAMS; r++) {
                uint64_t v[8];
                __builtin_prefetch(p + r * stream + o + AHEAD);
                memcpy(v, p + r * stream + o, sizeof v);
                for (int i = 0; i < 8; i++)
                    sum[i] += v[i];
            }
        }
        job->seconds[id][s] = used() - t0;
        for (int i = 0; i < 8; i++)
            atomic_fetch_add(&job->sink, sum[i]);
    }
}

static void multiply(Job *job, int id)
{
    const LinKernel *k = job->kernel;
    const int64_t unit = k->tile_rows;
    for (int s = 0; s < job->n_samples; s++) {
        const RowView *w = &job->w[s % job->copies];
        const int64_t tiles = (w->n + unit - 1) / unit;
        const int64_t j0 = tiles * id / job->n_threads * unit;
        const int64_t j1 = i64_min(tiles * (id + 1) / job->n_threads * unit, w->n);
        const LinOut out = {.y = job->y, .ldy = w->n};
        /* As a plan would: every thread packs its share of the rows and takes a few tiles. */
        const int64_t row_bytes = k->layout->row_bytes(w->k);
        const int r0 = job->rows * id / job->n_threads;
        const int r1 = job->rows * (id + 1) / job->n_threads;
        meet(job, job->n_threads);
        const double t0 = used();
        k->layout->pack(job->x + (int64_t)r0 * w->k, w->k, NULL, r1 - r0, w->k,
                        job->packed + r0 * row_bytes);
        const double packing = used() - t0;
        meet(job, job->n_threads);
        const double t1 = used();
        const int64_t step = i64_round_up((j1 - j0 + 3) / 4, unit);
        for (int64_t j = j0; j < j1; j += step)
            k->run(w, j, i64_min(j + step, j1), job->packed, job->rows, &out, job->work[id]);
        job->seconds[id][s] = packing + used() - t1;
    }
}

typedef struct Options {
    int threads;
    int rows;
    const char *format;
    const char *set;
    unsigned isa;
    LinClass cls;
    int64_t walk_bytes;
} Options;

static void *take(size_t bytes)
{
    void *p = mem_map(bytes);
    if (!p) {
        fprintf(stderr, "bench_lin: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* Bytes that give numbers near 1 wherever a format keeps a scale: sums of denormal products would
 * take a hundred times as long. */
static void fill(uint8_t *p, size_t bytes)
{
    uint32_t s = 1;
    for (size_t i = 0; i < bytes; i++) {
        s = s * 1664525U + 1013904223U;
        p[i] = (uint8_t)(0x30U | (s >> 24 & 0x8fU));
    }
}

static bool is_affine(FormatId format)
{
    return format >= FMT_AFFINE4 && format <= FMT_AFFINE8;
}

/* Bytes of one entry of the scale plane. */
static int number(const BenchFormat *f)
{
    const bool numbers = is_affine(f->format) || f->format == FMT_FP8 || f->format == FMT_NF4;
    return numbers ? format_info(f->scales)->block_bytes : 1;
}

/* Gop/s for rows > 1, else GB/s. */
static double measure(const Options *o, const BenchFormat *f, int n, int k, uint8_t *pool,
                      size_t pool_bytes, Job *job)
{
    const FormatInfo *info = format_info(f->format);
    const int64_t row_bytes = format_row_bytes(f->format, k);
    const int64_t scale_bytes = info->kind == FMT_PLANE ? (int64_t)k / f->group * number(f) : 0;
    const bool biases = is_affine(f->format);
    const int64_t bytes = i64_round_up((row_bytes + (biases ? 2 : 1) * scale_bytes) * n, 64);
    static RowView views[512];
    int copies = o->rows > 1 ? 4 : (int)i64_max(1, o->walk_bytes / bytes);
    copies = (int)i64_min(copies, i64_min((int64_t)COUNT_OF(views), (int64_t)pool_bytes / bytes));
    for (int c = 0; c < copies; c++) {
        uint8_t *p = pool + c * bytes;
        views[c] = (RowView){.data = p,
                             .scales = scale_bytes ? p + row_bytes * n : NULL,
                             .biases = biases ? p + row_bytes * n + scale_bytes * n : NULL,
                             .row_bytes = row_bytes,
                             .scale_row_bytes = scale_bytes,
                             .n = n,
                             .k = k,
                             .group = f->group,
                             .format = f->format,
                             .scale_format = f->scales,
                             .factor = 1.5F};
    }
    job->f = multiply;
    job->kernel = lin_select(o->isa, f->format, f->group, o->cls, o->rows);
    job->w = views;
    job->copies = copies;
    job->rows = o->rows;
    job->n_threads = o->threads;
    job->n_samples = (int)i64_min(i64_max(copies, MIN_SAMPLES), MAX_SAMPLES);
    run_job(job);
    const double s = lower_quartile(job);
    if (o->rows > 1)
        return 2.0 * o->rows * n * k / s * 1e-9;
    return (double)rowview_bytes(views) / s * 1e-9;
}

/* GB/s that the threads read from the pool. */
static double read_speed(const Options *o, const uint8_t *pool, size_t pool_bytes, Job *job)
{
    const RowView all = {.data = pool, .row_bytes = 1, .n = (int64_t)pool_bytes};
    job->f = read_all;
    job->w = &all;
    job->n_threads = o->threads;
    job->n_samples = 64;
    run_job(job);
    return (double)PIECE / lower_quartile(job) * 1e-9;
}

static void run_set(const Options *o, const ShapeSet *set, uint8_t *pool, size_t pool_bytes,
                    Job *job)
{
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        const BenchFormat *f = &formats[i];
        if (o->format && strcmp(o->format, f->name) != 0)
            continue;
        double ops = 0;
        double time = 0;
        char line[256] = "";
        for (size_t s = 0; s < COUNT_OF(set->shapes) && set->shapes[s].n; s++) {
            const int n = set->shapes[s].n;
            const int k = set->shapes[s].k;
            const int64_t bytes = format_row_bytes(f->format, k) * n;
            if (bytes < 0 || (size_t)bytes * 5 / 4 > pool_bytes || (o->rows > 64 && n > 40000))
                continue;
            const double v = measure(o, f, n, k, pool, pool_bytes, job);
            const size_t at = strlen(line);
            snprintf(line + at, sizeof line - at, " %dx%d %.1f", n, k, v);
            const double work = o->rows > 1 ? 2.0 * o->rows * n * k : (double)bytes;
            ops += work;
            time += work / v;
        }
        char share[32] = "";
        if (o->rows == 1)
            snprintf(share, sizeof share, " %3.0f %%",
                     100 * ops / time / read_speed(o, pool, pool_bytes, job));
        if (time > 0)
            printf("%-8s %-24s %7.1f%s |%s\n", f->name,
                   lin_select(o->isa, f->format, f->group, o->cls, o->rows)->name, ops / time,
                   share, line);
        fflush(stdout);
    }
}

static Options parse(int argc, char **argv)
{
    Options o = {.threads = 1,
                 .rows = 1,
                 .isa = cpu_isa_detect(),
                 .cls = LIN_FAST,
                 .walk_bytes = (int64_t)64 << 20};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (strcmp(argv[i], "-t") == 0)
            o.threads = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i], "-r") == 0)
            o.rows = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i], "-w") == 0)
            o.walk_bytes = (int64_t)strtol(v, NULL, 10) << 20;
        else if (strcmp(argv[i], "-f") == 0)
            o.format = v;
        else if (strcmp(argv[i], "-s") == 0)
            o.set = v;
        else if (strcmp(argv[i], "-c") == 0)
            o.cls = v[0] == 'e' ? LIN_EXACT : v[0] == 'i' ? LIN_FAST_INVARIANT : LIN_FAST;
        else if (strcmp(argv[i], "-l") == 0 && cpu_isa_from_name(v, &o.isa))
            o.isa &= cpu_isa_detect();
        else {
            fprintf(stderr, "bench_lin: %s %s is not an option\n", argv[i], v);
            exit(2);
        }
    }
    if (o.threads < 1 || o.threads > MAX_THREADS || o.rows < 1 || o.rows > 4096) {
        fprintf(stderr, "bench_lin: threads 1 to %d, rows 1 to 4096\n", MAX_THREADS);
        exit(2);
    }
    return o;
}

int main(int argc, char **argv)
{
    const Options o = parse(argc, argv);
    const size_t pool_bytes = (size_t)300 << 20;
    uint8_t *pool = take(pool_bytes);
    fill(pool, pool_bytes);
    static Job job;
    const size_t max_k = 8192;
    float *x = take((size_t)o.rows * max_k * 4);
    for (size_t i = 0; i < (size_t)o.rows * max_k; i++)
        x[i] = (float)(i * 2654435761U % 1000) * 0.002F - 1.0F;
    job.x = x;
    job.packed = take((size_t)o.rows * max_k * 4 + 4096 * 64);
    job.y = take((size_t)o.rows * (o.rows > 64 ? 16384 : 128256) * 4);
    int64_t work_bytes = 64;
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        work_bytes = i64_max(work_bytes,
                             lin_select(o.isa, formats[i].format, formats[i].group, o.cls, o.rows)
                                 ->work_bytes((int)max_k));
    for (int i = 0; i < o.threads; i++)
        job.work[i] = take((size_t)work_bytes);
    printf("%d threads, %d rows, read bandwidth %.1f GB/s; %s\n", o.threads, o.rows,
           read_speed(&o, pool, pool_bytes, &job), o.rows > 1 ? "Gop/s" : "GB/s");
    for (size_t s = 0; s < COUNT_OF(shape_sets); s++)
        if (!o.set || strcmp(o.set, shape_sets[s].name) == 0)
            run_set(&o, &shape_sets[s], pool, pool_bytes, &job);
    return 0;
}
