/* Products with the packed tensors of tests/data/quant, in every format: five rows against sums in
 * f64 made with the formats' own libraries; the exact class gives one result at every level. */
#include "device/cpu/lin.h"
#include "support/quant_golden.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 5, MAX_N = 24 };

static void run(const RowView *v, const LinKernel *k, const uint8_t *x, float *y)
{
    const int64_t row_bytes = k->layout->row_bytes(v->k);
    float *rows = mem_map((size_t)(v->k * ROWS * 4));
    uint8_t *packed = mem_map((size_t)(row_bytes * ROWS));
    uint8_t *work = mem_map((size_t)k->work_bytes(v->k) + 64);
    assert_true(rows && packed && work);
    memcpy(rows, x, (size_t)v->k * ROWS * 4);
    k->layout->pack(rows, v->k, NULL, ROWS, v->k, packed);
    const LinOut out = {.y = y, .ldy = MAX_N};
    k->run(v, 0, v->n, packed, ROWS, &out, work);
    mem_unmap(rows, (size_t)(v->k * ROWS * 4));
    mem_unmap(packed, (size_t)(row_bytes * ROWS));
    mem_unmap(work, (size_t)k->work_bytes(v->k) + 64);
}

/* |y - want| / |want| over all results. */
static double error_of(const RowView *v, const float *y, const uint8_t *want)
{
    double num = 0;
    double den = 0;
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < v->n; j++) {
            float w;
            memcpy(&w, want + ((size_t)r * (size_t)v->n + (size_t)j) * 4, 4);
            const double d = (double)y[r * MAX_N + j] - (double)w;
            num += d * d;
            den += (double)w * (double)w;
        }
    return sqrt(num / den);
}

/* Largest |y - want| in units of what rounding activations may cost: int8 with a scale for 32 of
 * them, or bf16 (uniform errors, independent of each other). */
static double fast_error(const RowView *v, const float *y, const uint8_t *x, const uint8_t *want)
{
    float w[512];
    float xr[512];
    double worst = 0;
    assert_true(v->k <= 512);
    for (int j = 0; j < v->n; j++) {
        format_dequant_row(v, j, w);
        for (int r = 0; r < ROWS; r++) {
            memcpy(xr, x + (size_t)r * (size_t)v->k * 4, (size_t)v->k * 4);
            double variance = 1e-12;
            for (int b = 0; b < v->k; b += 32) {
                double most = 0;
                for (int i = b; i < b + 32; i++)
                    most = fmax(most, fabs((double)xr[i]));
                for (int i = b; i < b + 32; i++)
                    variance +=
                        pow(fmax(most / 127, fabs((double)xr[i]) / 128) * (double)w[i], 2) / 12;
            }
            float t;
            memcpy(&t, want + ((size_t)r * (size_t)v->n + (size_t)j) * 4, 4);
            worst = fmax(worst, fabs((double)y[r * MAX_N + j] - (double)t) / sqrt(variance));
        }
    }
    return worst;
}

static void test_golden(void **state)
{
    (void)state;
    static const char *const levels[] = {"scalar",     "avx2",       "avx512",
                                         "avx512vnni", "avx512bf16", "amx"};
    const unsigned machine = cpu_isa_detect();
    for (size_t c = 0; c < COUNT_OF(golden_cases); c++) {
        Golden g;
        const uint8_t *unused;
        int rows;
        int width;
        const RowView v = golden_view(&g, &golden_cases[c], &unused);
        const uint8_t *x = golden_get(&g, "x", &rows, &width);
        const uint8_t *want = golden_get(&g, "y_f64ref", &rows, &width);
        assert_true(x && want && rows == ROWS && width == v.n && v.n <= MAX_N);
        float first[ROWS * MAX_N];
        double fast = 0;
        for (size_t l = 0; l < COUNT_OF(levels); l++) {
            unsigned isa;
            assert_true(cpu_isa_from_name(levels[l], &isa));
            if ((isa & machine) != isa)
                continue;
            float y[ROWS * MAX_N] = {0};
            run(&v, lin_select(isa, v.format, v.group, LIN_EXACT, ROWS), x, y);
            if (l == 0)
                memcpy(first, y, sizeof first);
            for (int r = 0; r < ROWS; r++)
                for (int j = 0; j < v.n; j++)
                    if (num_bits(y[r * MAX_N + j]) != num_bits(first[r * MAX_N + j]))
                        fail_msg("%s at %s: row %d, column %d is %a, scalar %a",
                                 golden_cases[c].name, levels[l], r, j, (double)y[r * MAX_N + j],
                                 (double)first[r * MAX_N + j]);
            const double exact = error_of(&v, y, want);
            if (!(exact < 1e-6))
                fail_msg("%s at %s, exact: error %.3g", golden_cases[c].name, levels[l], exact);
            for (int cls = LIN_FAST; cls <= LIN_FAST_INVARIANT; cls++) {
                run(&v, lin_select(isa, v.format, v.group, (LinClass)cls, ROWS), x, y);
                fast = fmax(fast, fast_error(&v, y, x, want));
            }
        }
        if (!(fast < 6))
            fail_msg("%s, fast: error of %.3g standard deviations", golden_cases[c].name, fast);
        golden_close(&g);
    }
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
