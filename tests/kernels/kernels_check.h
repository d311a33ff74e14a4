/* kernels_check.h: what the tests of kernels.h share: levels, inputs, guarded outputs, comparison.
 * U is the unit roundoff of f32; every bound is written in it. */
#ifndef MERE_TESTS_KERNELS_CHECK_H
#define MERE_TESTS_KERNELS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/num.h"
#include "device/cpu/kernels.h"
#include "device/cpu/lin.h"

#include <math.h>

#define U 0x1p-24

enum { GUARD = 32, INPUTS = 4 }; /* random, zeros, subnormals, one huge value */

typedef struct Level {
    const char *name;
    unsigned isa;
    CpuKernels k;
} Level;

typedef struct Check {
    Arena arena;
    CpuKernels ref;
    Level level[2];
    int n_levels;
    uint64_t seed;
} Check;

static inline void check_open(Check *c)
{
    static const struct {
        const char *name;
        unsigned isa;
    } all[] = {{"avx2", CPU_AVX2}, {"avx512", CPU_AVX2 | CPU_AVX512}};
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has[] = {
        avx2, avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")};
    *c = (Check){.seed = 1};
    arena_init(&c->arena, "check");
    kernels_init(&c->ref, 0);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (!has[i]) {
            print_message("this machine has no %s: not tested\n", all[i].name);
            continue;
        }
        Level *l = &c->level[c->n_levels++];
        l->name = all[i].name;
        l->isa = all[i].isa;
        kernels_init(&l->k, l->isa);
    }
}

static inline void *check_take(Check *c, size_t n, size_t size)
{
    Error err;
    void *p = arena_take(&c->arena, n, size, &err);
    assert_non_null(p);
    return p;
}

/* (-1, 1) */
static inline float check_random(Check *c)
{
    c->seed = c->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (float)((double)(int64_t)(c->seed >> 11) * 0x1p-52 - 1.0);
}

static inline int check_below(Check *c, int n)
{
    check_random(c);
    return (int)((c->seed >> 33) % (uint64_t)n);
}

/* One of the INPUTS kinds. */
static inline float *check_input(Check *c, int n, int kind, float huge)
{
    float *x = (float *)check_take(c, (size_t)n + 16, sizeof *x); /* 16: >= 64 bytes, aligned */
    for (int i = 0; i < n; i++) {
        const float r = check_random(c);
        x[i] = kind == 1 ? 0.0F : kind == 2 ? r * 0x1p-130F : r * 4.0F;
    }
    if (kind == 3)
        x[check_below(c, n)] = huge;
    return x;
}

/* n floats of NaN between guards. */
static inline float *check_output(Check *c, int64_t n)
{
    float *x = (float *)check_take(c, (size_t)n + 2 * GUARD, sizeof *x);
    for (int64_t i = 0; i < n + 2 * GUARD; i++)
        x[i] = i < GUARD || i >= n + GUARD ? 12345.0F : NAN;
    return x + GUARD;
}

static inline void check_guards(const float *x, int64_t n, const char *what)
{
    for (int i = 0; i < GUARD; i++) {
        if (x[-1 - i] != 12345.0F || x[n + i] != 12345.0F)
            fail_msg("%s: wrote outside, %d floats from an end", what, i + 1);
    }
}

static inline void check_near(const char *what, int64_t at, float got, float want, double bound)
{
    if (fabs((double)got - (double)want) <= bound || num_bits(got) == num_bits(want))
        return;
    fail_msg("%s: element %lld is %.9g, want %.9g: off by %g, allowed %g", what, (long long)at,
             (double)got, (double)want, fabs((double)got - (double)want), bound);
}

static inline void check_equal(const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (num_bits(got[i]) != num_bits(want[i]))
            fail_msg("%s: element %lld is %.9g (%08x), want %.9g (%08x)", what, (long long)i,
                     (double)got[i], num_bits(got[i]), (double)want[i], num_bits(want[i]));
    }
}

#endif
