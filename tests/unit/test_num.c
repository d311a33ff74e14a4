/* Number formats: every 16-bit pattern, and rounding at every border between two of them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/num.h"

#include <math.h>

static void test_f16_values(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const uint32_t exp = h >> 10 & 31U;
        const uint32_t man = h & 1023U;
        const float f = num_from_f16((uint16_t)h);
        if (exp == 31) {
            assert_true(man ? isnan(f) : isinf(f));
            continue;
        }
        double want = exp ? ldexp(1024.0 + man, (int)exp - 25) : ldexp(man, -24);
        want = h & 0x8000U ? -want : want;
        if ((double)f != want)
            fail_msg("f16 %04x: %a, wanted %a", (unsigned)h, (double)f, want);
        assert_int_equal(num_to_f16(f), h); /* there and back, -0 too */
    }
}

/* Between neighbours the middle goes to the even one, and one f32 step beside it to the nearer. */
static void test_f16_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float lo = num_from_f16((uint16_t)h);
        const float hi = num_from_f16((uint16_t)(h + 1));
        const float mid = (float)(((double)lo + (double)hi) / 2); /* exact: f32 has more bits */
        const uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_int_equal(num_to_f16(mid), even);
        assert_int_equal(num_to_f16(-mid), even | 0x8000);
        assert_int_equal(num_to_f16(nextafterf(mid, 0.0F)), h);
        assert_int_equal(num_to_f16(nextafterf(mid, INFINITY)), h + 1);
    }
    assert_int_equal(num_to_f16(65519.0F), 0x7bff);
    assert_int_equal(num_to_f16(65520.0F), 0x7c00);
    assert_int_equal(num_to_f16(INFINITY), 0x7c00);
    assert_int_equal(num_to_f16(-1e30F), 0xfc00);
    assert_true(isnan(num_from_f16(num_to_f16(NAN))));
    assert_int_equal(num_to_f16(1e-30F), 0);
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = num_from_bf16((uint16_t)h);
        assert_int_equal(num_bits(f), h << 16);
        if (isnan(f))
            assert_true(isnan(num_from_bf16(num_to_bf16(f))));
        else
            assert_int_equal(num_to_bf16(f), h);
    }
    assert_int_equal(num_to_bf16(num_float(0x3f808000)), 0x3f80); /* tie to even, down */
    assert_int_equal(num_to_bf16(num_float(0x3f818000)), 0x3f82); /* and up */
    assert_int_equal(num_to_bf16(num_float(0x3f808001)), 0x3f81);
    assert_int_equal(num_to_bf16(num_float(0x7f7fffff)), 0x7f80); /* largest f32: infinity */
    assert_true(isnan(num_from_bf16(num_to_bf16(num_float(0x7f800001)))));
}

static void test_e8m0(void **state)
{
    (void)state;
    for (int e = 0; e < 255; e++)
        assert_true((double)num_from_e8m0((uint8_t)e) == ldexp(1.0, e - 127));
    assert_true(isnan(num_from_e8m0(255)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_values),
        cmocka_unit_test(test_f16_rounding),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_e8m0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
