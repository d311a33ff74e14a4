/* Every weight format against packed tensors made by its own libraries (tests/data/quant), bit for
 * bit. F32 is the identity and is checked on odd addresses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>

/* One file of tests/data/quant: a well-formed safetensors file, so nothing is checked here. */
typedef struct Golden {
    FileMap map;
    json_t *header;
    const uint8_t *data;
} Golden;

static void golden_open(Golden *g, const char *name)
{
    char path[512];
    Error err = {0};
    snprintf(path, sizeof path, "%s/quant/%s.safetensors", TEST_DATA, name);
    if (!file_map(path, &g->map, &err))
        fail_msg("%s", err.msg);
    uint64_t n;
    memcpy(&n, g->map.data, sizeof n);
    g->header = json_parse(path, (Str){(const char *)g->map.data + 8, n}, &err);
    if (!g->header)
        fail_msg("%s", err.msg);
    g->data = g->map.data + 8 + n;
}

static void golden_close(Golden *g)
{
    json_decref(g->header);
    file_unmap(&g->map);
}

static const uint8_t *golden_get(const Golden *g, const char *tensor, int *rows, int *cols)
{
    const json_t *t = json_object_get(g->header, tensor);
    const json_t *shape = json_object_get(t, "shape");
    if (!t)
        return NULL;
    *rows = (int)json_integer_value(json_array_get(shape, 0));
    *cols = (int)json_integer_value(json_array_get(shape, 1));
    return g->data + json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
}

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

static void test_gguf(void **state)
{
    static const struct {
        const char *name;
        FormatId format;
    } cases[] = {{"gguf_F16", FMT_F16},   {"gguf_BF16", FMT_BF16},  {"gguf_Q4_0", FMT_Q4_0},
                 {"gguf_Q4_1", FMT_Q4_1}, {"gguf_Q8_0", FMT_Q8_0},  {"gguf_Q4_K", FMT_Q4_K},
                 {"gguf_Q6_K", FMT_Q6_K}, {"gguf_MXFP4", FMT_MXFP4}};
    (void)state;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Golden g;
        int rows;
        int bytes;
        int k;
        golden_open(&g, cases[c].name);
        const uint8_t *blocks = golden_get(&g, "blocks", &rows, &bytes);
        const uint8_t *want = golden_get(&g, "dequant_f32", &rows, &k);
        const RowView v = {.data = blocks,
                           .row_bytes = bytes,
                           .n = rows,
                           .k = k,
                           .group = format_info(cases[c].format)->block,
                           .format = cases[c].format};
        assert_int_equal(format_row_bytes(cases[c].format, k), bytes);
        assert_int_equal(rowview_bytes(&v), (int64_t)rows * bytes);
        check_rows(cases[c].name, &v, want);
        golden_close(&g);
    }
}

static void test_mlx(void **state)
{
    static const struct {
        const char *name;
        FormatId format, scale_format;
        int group, scale_bytes;
    } cases[] = {{"mlx_affine_b4_g32", FMT_AFFINE4, FMT_BF16, 32, 2},
                 {"mlx_affine_b4_g64", FMT_AFFINE4, FMT_BF16, 64, 2},
                 {"mlx_affine_b4_g128", FMT_AFFINE4, FMT_BF16, 128, 2},
                 {"mlx_affine_b4_g64_f16", FMT_AFFINE4, FMT_F16, 64, 2},
                 {"mlx_affine_b4_g64_f32", FMT_AFFINE4, FMT_F32, 64, 4},
                 {"mlx_affine_b8_g32", FMT_AFFINE8, FMT_BF16, 32, 2},
                 {"mlx_affine_b8_g64", FMT_AFFINE8, FMT_BF16, 64, 2},
                 {"mlx_affine_b8_g128", FMT_AFFINE8, FMT_BF16, 128, 2},
                 {"mlx_affine_b8_g64_f16", FMT_AFFINE8, FMT_F16, 64, 2},
                 {"mlx_mxfp4_b4_g32", FMT_MXFP4P, FMT_F32, 32, 1}};
    (void)state;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Golden g;
        int rows;
        int words;
        int groups;
        int k;
        golden_open(&g, cases[c].name);
        const uint8_t *codes = golden_get(&g, "weight", &rows, &words);
        const uint8_t *scales = golden_get(&g, "scales", &rows, &groups);
        const uint8_t *biases = golden_get(&g, "biases", &rows, &groups);
        const uint8_t *want = golden_get(&g, "dequant_f32", &rows, &k);
        const RowView v = {.data = codes,
                           .scales = scales,
                           .biases = biases,
                           .row_bytes = (int64_t)words * 4,
                           .scale_row_bytes = (int64_t)groups * cases[c].scale_bytes,
                           .n = rows,
                           .k = k,
                           .group = cases[c].group,
                           .format = cases[c].format,
                           .scale_format = cases[c].scale_format};
        assert_int_equal(groups * v.group, k);
        assert_int_equal(format_row_bytes(v.format, k), v.row_bytes);
        assert_int_equal(rowview_bytes(&v),
                         rows * (v.row_bytes + v.scale_row_bytes * (biases ? 2 : 1)));
        check_rows(cases[c].name, &v, want);
        const RowView tail = rowview_slice(&v, 5, rows - 5);
        check_rows(cases[c].name, &tail, want + (size_t)k * 5 * 4);
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
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_mlx),
        cmocka_unit_test(test_f32_odd_address),
        cmocka_unit_test(test_mxfp4_extreme_scales),
        cmocka_unit_test(test_row_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
