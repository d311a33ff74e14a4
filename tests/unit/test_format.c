/* Every weight format against packed tensors made by its own libraries (tests/data/quant), bit for
 * bit. F32 is the identity and is checked on odd addresses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/num.h"
#include "support/quant_golden.h"

#include <stdio.h>
#include <stdlib.h>

static void check_rows(const char *name, const RowView *v, const uint8_t *want)
{
    float *got = test_malloc((size_t)v->k * sizeof *got);
    for (int64_t r = 0; r < v->n; r++) {
        format_dequant_row(v, r, got);
        for (int i = 0; i < v->k; i++) {
            float w;
            memcpy(&w, want + ((size_t)r * (size_t)v->k + (size_t)i) * 4, 4);
            if (num_bits(got[i]) != num_bits(w))
                fail_msg("%s[%d][%d]: %a, wanted %a", name, (int)r, i, (double)got[i], (double)w);
        }
    }
    test_free(got);
}

static void test_files(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_OF(golden_cases); c++) {
        Golden g;
        const uint8_t *want;
        const RowView v = golden_view(&g, &golden_cases[c], &want);
        assert_int_equal(format_row_bytes(v.format, v.k), v.row_bytes);
        assert_int_equal(rowview_bytes(&v),
                         v.n * (v.row_bytes + v.scale_row_bytes * (v.scales != NULL) +
                                v.scale_row_bytes * (v.biases != NULL)));
        check_rows(golden_cases[c].name, &v, want);
        const RowView tail = rowview_slice(&v, 5, v.n - 5);
        check_rows(golden_cases[c].name, &tail, want + (size_t)v.k * 5 * 4);
        golden_close(&g);
    }
}

static void test_f32_odd_address(void **state)
{
    (void)state;
    const float x[6] = {1.5F, -0.0F, 3e-40F, 1e30F, -7.0F, 0.1F};
    uint8_t bytes[sizeof x + 1];
    memcpy(bytes + 1, x, sizeof x);
    const RowView v = {
        .data = bytes + 1, .row_bytes = 12, .n = 2, .k = 3, .group = 1, .format = FMT_F32};
    check_rows("F32", &v, (const uint8_t *)x);
}

/* e8m0 at its ends: 0 is the subnormal 2^-127, 255 NaN. */
static void test_mxfp4_extreme_scales(void **state)
{
    (void)state;
    uint8_t block[17] = {0, 0x71}; /* elements 0 and 16: 0.5 and 6 */
    RowView v = {.data = block, .row_bytes = 17, .n = 1, .k = 32, .group = 32, .format = FMT_MXFP4};
    float y[32];
    format_dequant_row(&v, 0, y);
    assert_int_equal(num_bits(y[0]), num_bits(0x1p-128F));
    assert_int_equal(num_bits(y[16]), num_bits(0x1.8p-125F));
    block[0] = 255;
    format_dequant_row(&v, 0, y);
    assert_true(y[0] != y[0]);
}

static void test_row_bytes(void **state)
{
    (void)state;
    assert_int_equal(format_row_bytes(FMT_Q4_0, 64), 36);
    assert_int_equal(format_row_bytes(FMT_Q4_0, 33), -1);
    assert_int_equal(format_row_bytes(FMT_Q4_K, 128), -1);
    assert_int_equal(format_row_bytes(FMT_BF16, 3), 6);
    assert_int_equal(format_row_bytes(FMT_F32, 0), 0);
    assert_int_equal(format_row_bytes(FMT_F32, -1), -1);
    assert_int_equal(format_row_bytes(FMT_AFFINE4, 32), 16);
    assert_int_equal(format_row_bytes(FMT_AFFINE4, 48), -1);
    assert_int_equal(format_row_bytes(FMT_AFFINE8, 1LL << 40), 1LL << 40);
    for (int f = 0; f < FMT_COUNT; f++)
        assert_non_null(format_info((FormatId)f)->name);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_f32_odd_address),
        cmocka_unit_test(test_mxfp4_extreme_scales),
        cmocka_unit_test(test_row_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
