/* The emulator itself: what it computes and what it finds. */
#include "emu/emu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const orders[] = {"forward", "reverse", "random:3"};

static int go(const char *kernel, int grid, int block, int smem, int cluster, const void *params,
              size_t bytes)
{
    return emu_launch(kernel, (const int[3]){grid, 1, 1}, block, smem, cluster, params, bytes);
}

static void sums(void **state)
{
    (void)state;
    enum { GRID = 5, N = 160 };
    float x[GRID * N], y[GRID];
    for (int i = 0; i < GRID * N; i++)
        x[i] = (float)(i % 37);
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        setenv("EMU_ORDER", orders[o], 1);
        const struct {
            const float *x;
            float *y;
        } p = {x, y};
        if (go("emu_sum", GRID, N, 0, 0, &p, sizeof p))
            fail_msg("%s", emu_error());
        for (int g = 0; g < GRID; g++) {
            float want = 0;
            for (int i = 0; i < N; i++)
                want += x[g * N + i];
            if (y[g] != want)
                fail_msg("%s: block %d: %g, wanted %g", orders[o], g, (double)y[g], (double)want);
        }
    }
    unsetenv("EMU_ORDER");
}

static uint16_t bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

static void mma(void **state)
{
    (void)state;
    _Alignas(16) uint16_t a[16 * 16], b[8 * 16];
    float fa[16 * 16], fb[8 * 16], y[16 * 8];
    for (int i = 0; i < 256; i++)
        a[i] = bf16(fa[i] = (float)(i * 7 % 19 - 9));
    for (int i = 0; i < 128; i++)
        b[i] = bf16(fb[i] = (float)(i * 5 % 23 - 11) / 4.0F);
    struct {
        const uint16_t *a, *b;
        float *y;
        int wait;
    } p = {a, b, y, 1};
    if (go("emu_mma_tile", 1, 32, 1024, 0, &p, sizeof p))
        fail_msg("%s", emu_error());
    for (int m = 0; m < 16; m++) {
        for (int n = 0; n < 8; n++) {
            float want = 0;
            for (int k = 0; k < 16; k++)
                want += fa[m * 16 + k] * fb[n * 16 + k];
            if (y[m * 8 + n] != want)
                fail_msg("y[%d][%d] is %g, wanted %g", m, n, (double)y[m * 8 + n], (double)want);
        }
    }
    p.wait = 0;
    if (go("emu_mma_tile", 1, 32, 1024, 0, &p, sizeof p))
        fail_msg("%s", emu_error());
    assert_true(isnan(y[0]));
}

static void clusters(void **state)
{
    (void)state;
    float y[8];
    const struct {
        float *y;
    } p = {y};
    if (go("emu_cluster_sum", 8, 64, 100, 4, &p, sizeof p))
        fail_msg("%s", emu_error());
    for (int i = 0; i < 8; i++) {
        const float want = i < 4 ? 10.0F + 60.0F : 26.0F + 220.0F;
        if (y[i] != want)
            fail_msg("y[%d] is %g, wanted %g", i, (double)y[i], (double)want);
    }
}

static void faults(void **state)
{
    (void)state;
    static const char *const says[] = {NULL,
                                       "others wait in block_sync",
                                       "while lane",
                                       NULL,
                                       "write around mem",
                                       "write around dynamic",
                                       "multiple of 16",
                                       "wait for ever"};
    _Alignas(16) float y[128 + 4] = {0};
    for (int f = 0; f <= 7; f++) {
        const struct {
            int fault;
            float *y;
        } p = {f, y};
        const int rc = go("emu_fault", 1, 128, 64, 0, &p, sizeof p);
        if ((rc != 0) != (says[f] != NULL) || (rc && !strstr(emu_error(), says[f])))
            fail_msg("fault %d: %d, \"%s\"", f, rc, rc ? emu_error() : "");
        if (f == 0)
            assert_true(y[127] == 1.0F);
        if (f == 3)
            assert_true(isnan(y[5]));
    }
}

static void refusals(void **state)
{
    (void)state;
    float y = 0;
    const struct {
        float *y;
    } p = {&y};
    assert_true(emu_has("emu_sum"));
    assert_false(emu_has("emu_none"));
    assert_int_not_equal(go("emu_none", 1, 32, 0, 0, &p, sizeof p), 0);
    assert_int_not_equal(go("emu_sum", 1, 32, 0, 0, &p, sizeof p), 0); /* params too short */
    assert_int_not_equal(go("emu_cluster_sum", 4, 96, 0, 4, &p, sizeof p), 0); /* launch bound */
    assert_int_not_equal(go("emu_cluster_sum", 6, 64, 0, 4, &p, sizeof p),
                         0); /* grid and cluster */
    assert_int_not_equal(go("emu_cluster_sum", 4, 64, 1 << 18, 4, &p, sizeof p), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),   cmocka_unit_test(mma),      cmocka_unit_test(clusters),
        cmocka_unit_test(faults), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
