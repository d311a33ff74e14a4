/* Speed of the kernels of kernels.h, one thread: bench_ops [scalar|avx2|avx512], by default the
 * best that the machine has. */
#include "base/mem.h"
#include "device/cpu/kernels.h"
#include "device/cpu/lin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 7 };

/* Of this thread, so that other load costs caches and bandwidth but not its own time. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static float *fill(size_t n)
{
    float *x = (float *)mem_map(n * sizeof *x + 4096);
    uint32_t s = 1;
    for (size_t i = 0; x && i < n; i++) {
        s = s * 1664525U + 1013904223U;
        x[i] = (float)(s >> 8) * 0x1p-23F - 1.0F;
    }
    return x;
}

typedef struct Shape {
    const char *name;
    int heads, kv_heads, dim;
    int rows, kv_len;
    int layers; /* as many pools, so that decode does not read caches */
    KvType type;
} Shape;

static void bench_attn(const CpuKernels *k, const Shape *s, int q_tile)
{
    enum { PAGE = 64 };
    const int pages = (s->kv_len + PAGE - 1) / PAGE;
    const size_t pool = (size_t)pages * PAGE * (size_t)(s->kv_heads * s->dim);
    const size_t size = s->type == KV_F16 ? 2 : 4;
    uint8_t *kv_mem = (uint8_t *)mem_map(pool * size * 2 * (size_t)s->layers);
    float *x = fill((size_t)s->rows * (size_t)(s->heads * s->dim));
    float *row = fill((size_t)s->kv_heads * (size_t)s->dim * 2);
    float *y = fill((size_t)s->rows * (size_t)(s->heads * s->dim));
    int32_t table[4096];
    for (int i = 0; i < pages && i < 4096; i++)
        table[i] = (i * 7 + 3) % pages;
    if (pages % 7 == 0) {
        for (int i = 0; i < pages; i++)
            table[i] = i;
    }
    const AttnArgs a = {.n_heads = s->heads, .scale = 1.0F / sqrtf((float)s->dim)};
    const AttnSeg seg = {.n_rows = s->rows, .kv_len = s->kv_len, .pages = table};
    KvLayer kv = {.n_kv_heads = s->kv_heads,
                  .head_dim = s->dim,
                  .v_dim = s->dim,
                  .page_tokens = PAGE,
                  .type = s->type};
    for (int l = 0; l < s->layers; l++) {
        kv.k = kv_mem + (size_t)l * pool * size * 2;
        kv.v = kv.k + pool * size;
        for (int32_t i = 0; i < pages * PAGE; i++)
            k->kv_write(&kv, row, 0, row + i % (s->kv_heads * s->dim), 0, &i, 1);
    }
    const int64_t bytes = attn_work_bytes(&kv, &a, q_tile);
    uint8_t *work = (uint8_t *)mem_map((size_t)bytes);
    double best = 1e30;
    for (int rep = 0; rep < REPEATS; rep++) {
        const uint64_t t0 = cpu_ns();
        for (int l = 0; l < s->layers; l++) {
            kv.k = kv_mem + (size_t)l * pool * size * 2;
            kv.v = kv.k + pool * size;
            for (int h = 0; h < s->kv_heads; h++) {
                for (int q0 = 0; q0 < s->rows; q0 += q_tile) {
                    const int q1 = q0 + q_tile < s->rows ? q0 + q_tile : s->rows;
                    k->attn(&kv, &a, &seg, h, q0, q1, x, (int64_t)s->heads * s->dim, y,
                            (int64_t)s->heads * s->dim, work);
                }
            }
        }
        const double t = (double)(cpu_ns() - t0) * 1e-9;
        best = t < best ? t : best;
    }
    const double past = s->kv_len - s->rows;
    const double pairs = (double)s->rows * past + 0.5 * s->rows * (s->rows + 1.0);
    const double flop = pairs * 4.0 * s->dim * s->heads * s->layers;
    const double read = (double)s->kv_len * s->kv_heads * s->dim * 2.0 * (double)size * s->layers;
    printf("attn %-24s tile %3d  %8.3f ms  %7.1f GFLOP/s  %6.1f GB/s of keys and values\n", s->name,
           q_tile, best * 1e3, flop / best * 1e-9, read / best * 1e-9);
    mem_unmap(kv_mem, pool * size * 2 * (size_t)s->layers);
}

typedef void (*Run)(const CpuKernels *k, float *const *m);

enum { ROWS = 64, WIDTH = 1536, VOCAB = 49152 };

static void run_norm(const CpuKernels *k, float *const *m)
{
    k->rms_norm(m[0], WIDTH, m[1], 1e-5F, WIDTH, WIDTH, ROWS, m[2], WIDTH);
}

static void run_head_norm(const CpuKernels *k, float *const *m)
{
    k->rms_norm(m[0], WIDTH, m[1], 1e-5F, WIDTH, 64, ROWS, m[2], WIDTH);
}

static void run_silu(const CpuKernels *k, float *const *m)
{
    k->silu_mul(m[0], WIDTH, m[1], WIDTH, WIDTH, ROWS, m[2], WIDTH);
}

static void run_add(const CpuKernels *k, float *const *m)
{
    k->add(m[0], WIDTH, m[1], WIDTH, WIDTH, ROWS, m[2], WIDTH);
}

static void run_rope(const CpuKernels *k, float *const *m)
{
    const RopeArgs r = {.head_dim = 64, .rot_dim = 64};
    k->rope(m[0], WIDTH, WIDTH / 64, &r, m[1], ROWS);
}

static void run_rope_pairs(const CpuKernels *k, float *const *m)
{
    const RopeArgs r = {.head_dim = 64, .rot_dim = 64, .pairs = true};
    k->rope(m[0], WIDTH, WIDTH / 64, &r, m[1], ROWS);
}

static void run_kv_write(const CpuKernels *k, float *const *m)
{
    int32_t slots[ROWS];
    const KvLayer kv = {.k = (uint8_t *)m[2],
                        .v = (uint8_t *)m[3],
                        .n_kv_heads = WIDTH / 64,
                        .head_dim = 64,
                        .v_dim = 64,
                        .page_tokens = ROWS,
                        .type = KV_F16};
    for (int i = 0; i < ROWS; i++)
        slots[i] = i;
    k->kv_write(&kv, m[0], WIDTH, m[1], WIDTH, slots, ROWS);
}

static void run_conv(const CpuKernels *k, float *const *m)
{
    k->conv_silu(m[0], WIDTH, m[1], 4, NULL, m[3], 0, WIDTH, ROWS, m[2], WIDTH);
}

static void run_route(const CpuKernels *k, float *const *m)
{
    int32_t ids[ROWS * 8];
    k->route_softmax(m[0], WIDTH, 512, 8, true, ROWS, ids, m[2]);
}

static void run_argmax(const CpuKernels *k, float *const *m)
{
    (void)k->argmax(m[0], VOCAB, m[2]);
}

static void run_lse(const CpuKernels *k, float *const *m)
{
    m[2][0] = (float)k->log_sum_exp(m[0], VOCAB, 1.0F);
}

static void run_delta(const CpuKernels *k, float *const *m)
{
    const DeltaArgs d = {.n_k_heads = 1, .n_v_heads = 2, .k_dim = 128, .v_dim = 128};
    k->delta(&d, m[0], 768, m[1], 2, m[1] + 256, 2, m[1], m[1], m[3], m[3], 0, 2, ROWS, m[2], 256,
             (uint8_t *)m[4]);
}

static void run_delta_one(const CpuKernels *k, float *const *m)
{
    const DeltaArgs d = {.n_k_heads = 1, .n_v_heads = 2, .k_dim = 128, .v_dim = 128};
    for (int i = 0; i < ROWS; i++)
        k->delta(&d, m[0], 768, m[1], 2, m[1] + 256, 2, m[1], m[1], m[3], m[3], 0, 2, 1, m[2], 256,
                 (uint8_t *)m[4]);
}

static const struct {
    const char *name;
    Run run;
    int per; /* times are of this many units */
    const char *unit;
} ops[] = {
    {"rms_norm 1536", run_norm, ROWS, "row"},
    {"rms_norm 24 x 64", run_head_norm, ROWS, "row"},
    {"silu_mul 1536", run_silu, ROWS, "row"},
    {"add 1536", run_add, ROWS, "row"},
    {"rope 24 x 64", run_rope, ROWS, "row"},
    {"rope pairs 24 x 64", run_rope_pairs, ROWS, "row"},
    {"kv_write 24 x 64", run_kv_write, ROWS, "row"},
    {"conv_silu 1536", run_conv, ROWS, "row"},
    {"route 512 top 8", run_route, ROWS, "row"},
    {"delta 128 x 128, 64 rows", run_delta, ROWS * 2, "row and head"},
    {"delta 128 x 128, one row", run_delta_one, ROWS * 2, "row and head"},
    {"argmax 49152", run_argmax, 1, "row"},
    {"log_sum_exp 49152", run_lse, 1, "row"},
};

static unsigned best_isa(void)
{
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return CPU_AVX2 | CPU_AVX512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? CPU_AVX2 : 0U;
}

int main(int argc, char **argv)
{
    unsigned isa = best_isa();
    if (argc > 1)
        isa &= strcmp(argv[1], "scalar") == 0 ? 0U : strcmp(argv[1], "avx2") == 0 ? CPU_AVX2 : ~0U;
    CpuKernels k;
    kernels_init(&k, isa);
    printf("%s\n", isa & CPU_AVX512 ? "avx512" : isa & CPU_AVX2 ? "avx2" : "scalar");
    static const Shape shapes[] = {
        {"SmolLM2 512 rows f16", 9, 3, 64, 512, 512, 3, KV_F16},
        {"SmolLM2 512 rows f32", 9, 3, 64, 512, 512, 3, KV_F32},
        {"1B 512 of 4096 f16", 32, 8, 64, 512, 4096, 1, KV_F16},
        {"8B 512 rows f16", 32, 8, 128, 512, 512, 1, KV_F16},
        {"SmolLM2 decode 128", 9, 3, 64, 1, 128, 30, KV_F16},
        {"SmolLM2 decode 2048", 9, 3, 64, 1, 2048, 30, KV_F16},
        {"1B decode 8192", 32, 8, 64, 1, 8192, 16, KV_F16},
        {"8B decode 8192", 32, 8, 128, 1, 8192, 16, KV_F16},
        {"8B decode 8192 f32", 32, 8, 128, 1, 8192, 8, KV_F32},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && isa; i++) {
        for (int tile = 16; tile <= 128; tile *= 2) {
            if (shapes[i].rows > 1 || tile == 16)
                bench_attn(&k, &shapes[i], tile);
        }
    }
    float *m[5];
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        for (size_t j = 0; j < 5; j++) /* afresh: what one leaves may be subnormal */
            m[j] = fill((size_t)ROWS * WIDTH);
        double best = 1e30;
        for (int rep = 0; rep < REPEATS; rep++) {
            const uint64_t t0 = cpu_ns();
            enum { TIMES = 8 };
            for (int j = 0; j < TIMES; j++)
                ops[i].run(&k, m);
            const double t = (double)(cpu_ns() - t0) / TIMES;
            best = t < best ? t : best;
        }
        for (size_t j = 0; j < 5; j++)
            mem_unmap(m[j], sizeof(float) * ROWS * WIDTH + 4096);
        printf("%-26s %9.3f us a %s\n", ops[i].name, best * 1e-3 / ops[i].per, ops[i].unit);
    }
    return 0;
}
