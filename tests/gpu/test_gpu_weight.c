/* Packed weights against the formats' own values, bit for bit: every format, rows of two segments,
 * experts, parts split by a device's limit. */
#include "support/quant_golden.h"

#include "base/num.h"
#include "device/gpu/gpu_weight.h"

#include <stdlib.h>
#include <string.h>

enum { N_EXPERTS = 3 };

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

/* Expert e is the rows of the file from row e on, in two segments; row r of it is file row e + r.
 */
static void check_weight(const char *name, const RowView *v, const uint8_t *want, int n_experts,
                         int64_t max_part)
{
    Error err;
    Arena a;
    RowView segs[N_EXPERTS * 2];
    const int64_t n = v->n - N_EXPERTS;
    arena_init(&a, "test");
    for (int e = 0; e < N_EXPERTS; e++) {
        segs[2 * e] = rowview_slice(v, e, n / 3);
        segs[2 * e + 1] = rowview_slice(v, e + n / 3, n - n / 3);
    }
    const Weight w = {
        .name = name, .n = n, .k = v->k, .n_segs = 2, .n_experts = n_experts, .segs = segs};
    GpuWeight g;
    GpuWeight counted;
    must(gpu_weight_plan(&a, &w, max_part, &g, &err), &err);
    must(gpu_weight_plan(NULL, &w, max_part, &counted, &err), &err);
    assert_int_equal(counted.bytes, g.bytes);
    assert_int_equal(counted.n_parts, g.n_parts);
    int64_t rows = 0;
    float *got = test_malloc((size_t)v->k * sizeof *got);
    for (int p = 0; p < g.n_parts; p++) {
        const GpuPart *part = &g.parts[p];
        assert_int_equal(part->row0, rows);
        assert_true(part->code_bytes * g.n_experts <= max_part);
        assert_true(part->scale_offset + part->scale_bytes * g.n_experts <= g.bytes);
        rows += part->rows;
        uint8_t *codes = test_malloc((size_t)part->code_bytes);
        uint8_t *scales = test_malloc((size_t)part->scale_bytes + 1);
        for (int e = 0; e < g.n_experts; e++) {
            memset(codes, 0xa5, (size_t)part->code_bytes);
            memset(scales, 0xa5, (size_t)part->scale_bytes + 1);
            const int64_t half = part->rows / 2;
            gpu_weight_pack(&g, p, e, 0, half, codes, scales);
            gpu_weight_pack(&g, p, e, half, part->rows - half, codes + half * part->code_stride,
                            scales + half * part->scale_stride);
            assert_int_equal(scales[part->scale_bytes], 0xa5);
            for (int64_t r = 0; r < part->rows; r++) {
                gpu_weight_unpack_row(part, v->k, codes + r * part->code_stride,
                                      scales + r * part->scale_stride, got);
                const uint8_t *row = want + (size_t)(e + part->row0 + r) * (size_t)v->k * 4;
                for (int i = 0; i < v->k; i++) {
                    float x;
                    memcpy(&x, row + (size_t)i * 4, 4);
                    if (num_bits(x) != num_bits(got[i]))
                        fail_msg("%s expert %d part %d row %d [%d]: %a, wanted %a", name, e, p,
                                 (int)r, i, (double)got[i], (double)x);
                }
            }
        }
        test_free(codes);
        test_free(scales);
    }
    assert_int_equal(rows, n);
    test_free(got);
    arena_free(&a);
}

static void test_formats(void **state)
{
    (void)state;
    int n = 0;
    for (size_t c = 0; c < COUNT_OF(golden_cases); c++) {
        Golden g;
        const uint8_t *want;
        GpuPart part;
        const RowView v = golden_view(&g, &golden_cases[c], &want);
        if (!gpu_layout_of(&v, &part)) { /* refused by name, see test_refused */
            golden_close(&g);
            continue;
        }
        n++;
        check_weight(golden_cases[c].name, &v, want, 0, INT64_MAX);
        check_weight(golden_cases[c].name, &v, want, N_EXPERTS, INT64_MAX);
        check_weight(golden_cases[c].name, &v, want, N_EXPERTS, 40 * (int64_t)v.k);
        golden_close(&g);
    }
    assert_int_equal(n, 39); /* formats that GPUs read; F32 has no file */
}

static void test_refused(void **state)
{
    (void)state;
    static uint8_t bytes[110];
    RowView seg = {
        .data = bytes, .row_bytes = 110, .n = 1, .k = 256, .group = 256, .format = FMT_IQ3_S};
    const Weight w = {.name = "blk.0.ffn_up", .n = 1, .k = 256, .n_segs = 1, .segs = &seg};
    GpuWeight g;
    Error err;
    assert_false(gpu_weight_plan(NULL, &w, INT64_MAX, &g, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "blk.0.ffn_up"));
    assert_non_null(strstr(err.msg, "IQ3_S"));

    /* Columns in another order, of the second expert. */
    static const int32_t columns[32] = {1, 0};
    RowView experts[2];
    experts[0] =
        (RowView){.data = bytes, .row_bytes = 64, .n = 1, .k = 32, .group = 1, .format = FMT_F16};
    experts[1] = experts[0];
    const Weight moe = {
        .name = "blk.1.ffn_up", .n = 1, .k = 32, .n_segs = 1, .n_experts = 2, .segs = experts};
    assert_true(gpu_weight_plan(NULL, &moe, INT64_MAX, &g, &err));
    experts[1].columns = columns;
    assert_false(gpu_weight_plan(NULL, &moe, INT64_MAX, &g, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "blk.1.ffn_up"));
    assert_non_null(strstr(err.msg, "act-order"));
}

/* Rows that are no multiple of 16 bytes are padded with zeros. */
static void test_odd_width(void **state)
{
    (void)state;
    uint16_t data[3 * 5];
    for (int i = 0; i < 15; i++)
        data[i] = (uint16_t)(0x3c00 + i);
    RowView seg = {.data = (const uint8_t *)data,
                   .row_bytes = 10,
                   .n = 3,
                   .k = 5,
                   .group = 1,
                   .format = FMT_F16};
    const Weight w = {.name = "odd", .n = 3, .k = 5, .n_segs = 1, .segs = &seg};
    Arena a;
    Error err;
    GpuWeight g;
    uint8_t codes[48];
    arena_init(&a, "test");
    must(gpu_weight_plan(&a, &w, INT64_MAX, &g, &err), &err);
    assert_int_equal(g.n_parts, 1);
    assert_int_equal(g.parts[0].code_stride, 16);
    assert_true(g.repacked);
    memset(codes, 0xff, sizeof codes);
    gpu_weight_pack(&g, 0, 0, 0, 3, codes, NULL);
    for (int r = 0; r < 3; r++) {
        assert_memory_equal(codes + r * 16, data + (ptrdiff_t)r * 5, 10);
        for (int i = 10; i < 16; i++)
            assert_int_equal(codes[r * 16 + i], 0);
    }
    assert_false(gpu_weight_plan(&a, &w, 8, &g, &err));
    assert_non_null(strstr(err.msg, "odd"));
    arena_free(&a);
}

/* Segments of unlike formats are parts of their own; neighbours in one layout become one. */
static void test_mixed(void **state)
{
    (void)state;
    static uint8_t bytes[4096];
    RowView segs[4] = {
        {.data = bytes, .row_bytes = 36, .n = 2, .k = 64, .group = 32, .format = FMT_Q4_0},
        {.data = bytes + 100, .row_bytes = 36, .n = 3, .k = 64, .group = 32, .format = FMT_Q4_0},
        {.data = bytes + 300, .row_bytes = 68, .n = 1, .k = 64, .group = 32, .format = FMT_Q8_0},
        {.data = bytes + 500, .row_bytes = 36, .n = 4, .k = 64, .group = 32, .format = FMT_Q4_0}};
    const Weight w = {.name = "mixed", .n = 10, .k = 64, .n_segs = 4, .segs = segs};
    Arena a;
    Error err;
    GpuWeight g;
    arena_init(&a, "test");
    must(gpu_weight_plan(&a, &w, INT64_MAX, &g, &err), &err);
    assert_int_equal(g.n_parts, 3);
    assert_int_equal(g.parts[0].rows, 5);
    assert_int_equal(g.parts[1].row0, 5);
    assert_int_equal(g.parts[1].layout, GPU_S8);
    assert_int_equal(g.parts[2].row0, 6);
    assert_int_equal(g.parts[2].rows, 4);
    for (int p = 0; p < 3; p++) {
        assert_int_equal(g.parts[p].code_offset % 256, 0);
        assert_int_equal(g.parts[p].scale_offset % 256, 0);
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_odd_width),
        cmocka_unit_test(test_mixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
