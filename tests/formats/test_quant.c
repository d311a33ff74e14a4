/* Quantised Hugging Face checkpoints: every scheme bit for bit against tests/data/hfquant
 * (scripts/make-hf-quant.py), what is derived and what is a view, and damage. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/num.h"
#include "formats/build_files.h"
#include "weights/checkpoint.h"

enum { N = 16, K = 128 };

static Arena arena;
static TempDir dir;

static int make(void **state)
{
    (void)state;
    arena_init(&arena, "test");
    temp_open(&dir);
    return 0;
}

static int clean(void **state)
{
    (void)state;
    arena_free(&arena);
    temp_remove(dir.path);
    return 0;
}

static Checkpoint *open_good(const char *path)
{
    Checkpoint *ck;
    Error err = {0};
    if (!checkpoint_open(&arena, path, &ck, &err))
        fail_msg("%s", err.msg);
    return ck;
}

typedef struct Case {
    const char *dir, *stem;
    FormatId format;
    int group;
    int64_t derived; /* bytes */
    int n;           /* 0: N */
} Case;

#define AFFINE(bits, n, codes, group)                                                              \
    ((codes) ? (n)*K * (bits) / 8 : 0) + (n)*K / (group)*2 * (int)sizeof(float)

static const Case cases[] = {
    {"fp8_block", "q", FMT_FP8, 64, N * 2 * 4, 0},
    {"fp8_channel", "q", FMT_FP8, K, 0, 0},
    {"fp8_channel", "t", FMT_FP8, K, 0, 0},
    {"modelopt_nvfp4", "q", FMT_NVFP4S, 16, 0, 0},
    {"ct_nvfp4", "q", FMT_NVFP4S, 16, 0, 0},
    {"ct_int", "a", FMT_AFFINE4, 64, AFFINE(4, N, 0, 64), 0},
    {"ct_int", "b", FMT_AFFINE4, 32, AFFINE(4, N, 0, 32), 0},
    {"ct_int", "c", FMT_AFFINE8, 128, AFFINE(8, N, 0, 128), 0},
    {"ct_int", "d", FMT_AFFINE4, 128, AFFINE(4, N, 0, 128), 0},
    {"ct_int8", "q", FMT_AFFINE8, 128, AFFINE(8, N, 1, 128), 0},
    {"gptq", "q2", FMT_AFFINE2, 64, AFFINE(2, N, 1, 64), 0},
    {"gptq", "q3", FMT_AFFINE3, 64, AFFINE(3, 32, 1, 64), 32},
    {"gptq", "q4", FMT_AFFINE4, 64, AFFINE(4, N, 1, 64), 0},
    {"gptq", "q8", FMT_AFFINE8, 64, AFFINE(8, N, 1, 64), 0},
    {"gptq_v2", "q4", FMT_AFFINE4, 64, AFFINE(4, N, 1, 64), 0},
    {"awq", "q", FMT_AFFINE4, 64, AFFINE(4, N, 1, 64), 0},
    {"bitnet", "q", FMT_AFFINE2, 128, AFFINE(2, N, 1, 128), 0},
    {"bitnet_div", "q", FMT_AFFINE2, 128, AFFINE(2, N, 1, 128), 0},
    {"bnb_nf4", "p", FMT_NF4, 64, 0, 0},
    {"bnb_nf4", "n", FMT_NF4, 64, N * 2 * 4, 0},
};

static void check_values(const Case *c, const RowView *v, const RowView *want)
{
    float x[K];
    float y[K];
    for (int r = 0; r < v->n; r++) {
        const RowView row = rowview_slice(v, r, 1);
        format_dequant_part(&row, 0, 0, K / 2, x);
        format_dequant_part(&row, 0, K / 2, K / 2, x + K / 2);
        format_dequant_row(want, r, y);
        for (int i = 0; i < K; i++)
            if (num_bits(x[i]) != num_bits(y[i]))
                fail_msg("%s %s: row %d element %d is %.9g, wanted %.9g", c->dir, c->stem, r, i,
                         (double)x[i], (double)y[i]);
    }
}

static void test_schemes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const Case *c = &cases[i];
        char path[800];
        char stem[40];
        snprintf(path, sizeof path, "%s/hfquant/%s", TEST_DATA, c->dir);
        snprintf(stem, sizeof stem, "%s.want", c->stem);
        Checkpoint *ck = open_good(path);
        CheckpointSpace space = {.arena = &arena};
        RowView v;
        RowView want;
        Error err = {0};
        const int n = c->n ? c->n : N;
        if (!checkpoint_rows_derived(ck, &space, c->stem, n, K, &v, &err) ||
            !checkpoint_rows(ck, stem, n, K, &want, &err))
            fail_msg("%s %s: %s", c->dir, c->stem, err.msg);
        if (v.format != c->format || v.group != c->group || space.bytes != c->derived)
            fail_msg("%s %s: %s in groups of %d, %d bytes derived, wanted %d", c->dir, c->stem,
                     format_info(v.format)->name, v.group, (int)space.bytes, (int)c->derived);
        check_values(c, &v, &want);
        /* Without room only views are given. */
        assert_int_equal(checkpoint_rows(ck, c->stem, n, K, &v, &err), c->derived == 0);
        if (c->derived)
            assert_int_equal(err.code, ERR_UNSUPPORTED);
        /* Any other shape is refused. */
        assert_false(checkpoint_rows_derived(ck, &space, c->stem, n + 8, K, &v, &err));
        assert_false(checkpoint_rows_derived(ck, &space, c->stem, n, K * 2, &v, &err));
        assert_false(checkpoint_rows_derived(ck, &space, c->stem, n, K - 8, &v, &err));
        assert_false(checkpoint_rows_derived(ck, &space, c->stem, INT64_MAX, K, &v, &err));
        assert_int_equal(space.bytes, c->derived);
        checkpoint_close(ck);
    }
}

/* ---- damage ---- */

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"
#define GPTQ "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}"
#define AWQ "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}"
#define CT "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}"
#define BITNET "{\"quantization_config\":{\"quant_method\":\"bitnet\"}}"
#define BNB "{\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}}"
#define FP8 "{\"quantization_config\":{\"quant_method\":\"fp8\"}}"
#define W8 T("q.weight", "F8_E4M3", "[8,32]", "0", "256") ","

/* "q" as 8 rows of 32. */
static const struct {
    const char *config, *header;
    ErrCode code;
    const char *says;
} damage[] = {
    {"{}", W8 T("q.weight_scale", "F32", "[1]", "256", "260"), ERR_UNSUPPORTED, "quant_method"},
    {"{\"quantization_config\":{\"quant_method\":\"hqq\"}}",
     W8 T("q.weight_scale", "F32", "[1]", "256", "260"), ERR_UNSUPPORTED, "hqq"},
    {FP8, W8 T("q.weight_scale", "F32", "[8,0]", "256", "256"), ERR_FORMAT,
     "output rows by groups"},
    {FP8, W8 T("q.weight_scale", "F32", "[8,3]", "256", "352"), ERR_FORMAT,
     "output rows by groups"},
    {FP8, W8 T("q.weight_scale", "U8", "[8,1]", "256", "264"), ERR_FORMAT, "is U8"},
    {FP8, W8 T("q.weight_scale_inv", "F32", "[1,2]", "256", "264"), ERR_FORMAT, "blocks of rows"},
    {FP8, W8 T("q.weight_scale_inv", "F32", "[0,1]", "256", "256"), ERR_FORMAT, "blocks of rows"},
    {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}}",
     W8 T("q.weight_scale_inv", "F32", "[1,2]", "256", "264"), ERR_UNSUPPORTED,
     "weight_block_size"},
    {GPTQ, T("q.qweight", "I32", "[4,8]", "0", "128"), ERR_FORMAT, "\"q.qzeros\" is missing"},
    {GPTQ,
     T("q.qweight", "I32", "[4,8]", "0",
       "128") "," T("q.qzeros", "I32", "[1,1]", "128",
                    "132") "," T("q.g_idx", "I32", "[31]", "132",
                                 "256") "," T("q.scales", "F16", "[1,8]", "256", "272"),
     ERR_FORMAT, "one for each column"},
    {GPTQ,
     T("q.qweight", "I32", "[4,8]", "0",
       "128") "," T("q.qzeros", "I32", "[1,1]", "128",
                    "132") "," T("q.g_idx", "F32", "[32]", "132",
                                 "260") "," T("q.scales", "F16", "[1,8]", "260", "276"),
     ERR_FORMAT, "q.g_idx"},
    {GPTQ,
     T("q.qweight", "F32", "[4,8]", "0", "128") "," T(
         "q.qzeros", "I32", "[1,1]", "128", "132") "," T("q.scales", "F16", "[1,8]", "132", "148"),
     ERR_FORMAT, "is F32"},
    {GPTQ,
     T("q.qweight", "I32", "[0,8]", "0", "0") "," T("q.qzeros", "I32", "[1,1]", "128", "132") "," T(
         "q.scales", "F16", "[1,8]", "132", "148"),
     ERR_FORMAT, "q.qweight"},
    {GPTQ,
     T("q.qweight", "I32", "[4,8]", "0", "128") "," T(
         "q.qzeros", "I32", "[1,1]", "128", "132") "," T("q.scales", "F16", "[0,8]", "132", "132"),
     ERR_FORMAT, "q.scales"},
    {GPTQ,
     T("q.qweight", "I32", "[4,8]", "0", "128") "," T(
         "q.qzeros", "I32", "[2,1]", "128", "136") "," T("q.scales", "F16", "[2,8]", "136", "168"),
     ERR_UNSUPPORTED, "multiple of 32"},
    {GPTQ,
     T("q.qweight", "I32", "[8,8]", "0", "256") "," T(
         "q.qzeros", "I32", "[1,2]", "256", "264") "," T("q.scales", "F16", "[1,8]", "264", "280"),
     ERR_UNSUPPORTED, "other bits"},
    {AWQ,
     T("q.qweight", "I32", "[32,1]", "0", "128") "," T(
         "q.qzeros", "I32", "[1,2]", "128", "136") "," T("q.scales", "F16", "[1,8]", "136", "152"),
     ERR_FORMAT, "q.qzeros"},
    {CT, T("q.weight_packed", "I32", "[8,4]", "0", "128"), ERR_FORMAT, "\"q.weight_scale\""},
    {CT,
     T("q.weight_packed", "I32", "[8,5]", "0", "160") "," T("q.weight_scale", "F32", "[8,1]", "160",
                                                            "192"),
     ERR_FORMAT, "4 or 8 bit"},
    {CT,
     T("q.weight_packed", "I32", "[8,4]", "0",
       "128") "," T("q.weight_scale", "F32", "[8,1]", "128",
                    "160") "," T("q.weight_zero_point", "I32", "[2,1]", "160", "168"),
     ERR_FORMAT, "q.weight_zero_point"},
    {CT,
     T("q.weight_packed", "U8", "[8,16]", "0",
       "128") "," T("q.weight_scale", "F8_E4M3", "[8,1]", "128",
                    "136") "," T("q.weight_global_scale", "F32", "[1]", "136", "140"),
     ERR_FORMAT, "groups of 16"},
    {CT,
     T("q.weight_packed", "U8", "[8,16]", "0",
       "128") "," T("q.weight_scale", "F8_E4M3", "[8,2]", "128",
                    "144") "," T("q.weight_global_scale", "F32", "[0]", "144", "144"),
     ERR_FORMAT, "one number"},
    {BITNET,
     T("q.weight", "U8", "[3,32]", "0", "96") "," T("q.weight_scale", "F32", "[1]", "96", "100"),
     ERR_FORMAT, "quarters"},
    {BITNET,
     T("q.weight", "U8", "[2,32]", "0", "64") "," T("q.weight_scale", "F32", "[2]", "64", "72"),
     ERR_FORMAT, "one number"},
    {BNB,
     T("q.weight", "U8", "[128,1]", "0", "128") "," T("q.weight.absmax", "F32", "[4]", "128",
                                                      "144"),
     ERR_FORMAT, "quant_state.bitsandbytes__nf4\" is missing"},
    {BNB,
     T("q.weight", "U8", "[128,1]", "0", "128") "," T(
         "q.weight.absmax", "F32", "[4]", "128",
         "144") "," T("q.weight.quant_state.bitsandbytes__nf4", "U8", "[20]", "144", "164"),
     ERR_FORMAT, "q.weight.quant_state"},
};

static void test_damage(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(damage); i++) {
        char header[900];
        snprintf(header, sizeof header, "{%s}", damage[i].header);
        temp_text(&dir, "config.json", damage[i].config);
        /* The data must end where the last tensor does. */
        const char *end = strrchr(header, ',');
        temp_safetensors(&dir, "model.safetensors", header, strtoul(end + 1, NULL, 10), 0);
        Checkpoint *ck = open_good(dir.path);
        CheckpointSpace space = {.arena = &arena};
        RowView v;
        Error err = {0};
        if (checkpoint_rows_derived(ck, &space, "q", 8, 32, &v, &err))
            fail_msg("accepted: %s", header);
        expect_error(header, &err, damage[i].code, &damage[i].says, 1);
        checkpoint_close(ck);
    }
}

/* ---- columns by group ---- */

#define G(name, n) T("q." name, "I32", "[" n "]", "0", "256") ","
static const struct {
    const char *config, *header;
} ordered[] = {
    {GPTQ,
     G("g_idx", "64") T("q.qweight", "I32", "[8,8]", "256", "512") "," T(
         "q.scales", "F16", "[2,8]", "512", "544") "," T("q.qzeros", "I32", "[2,1]", "544", "552")},
    {CT, G("weight_g_idx", "64") T("q.weight_packed", "I32", "[8,8]", "256",
                                   "512") "," T("q.weight_scale", "F16", "[8,2]", "512", "544")},
    {CT, G("weight_g_idx", "64") T("q.weight", "I8", "[8,64]", "256",
                                   "768") "," T("q.weight_scale", "F16", "[8,2]", "768", "800")},
};

/* 8 rows of 64 in two groups of 32, with the groups in g_idx. */
static bool read_ordered(size_t which, const int32_t *g_idx, RowView *v, Error *err)
{
    StrBuf b;
    char header[900];
    snprintf(header, sizeof header, "{%s}", ordered[which].header);
    temp_text(&dir, "config.json", ordered[which].config);
    strbuf_init(&b, 1 << 16);
    put_safetensors(&b, header, 0, 0);
    put(&b, g_idx, 256);
    put_pattern(&b, strtoul(strrchr(header, ',') + 1, NULL, 10) - 256, 1);
    temp_write(&dir, "model.safetensors", b.ptr, b.len);
    strbuf_free(&b);
    Checkpoint *ck = open_good(dir.path);
    CheckpointSpace space = {.arena = &arena};
    const bool ok = checkpoint_rows_derived(ck, &space, "q", 8, 64, v, err);
    assert_false(checkpoint_rows(ck, "q", 8, 64, &(RowView){0}, &(Error){0}));
    checkpoint_close(ck); /* codes that need another order are derived, so they outlive it */
    return ok;
}

static void test_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(ordered); i++) {
        static const char *const says[][1] = {{"numbers of groups"}, {"different numbers"}};
        int32_t g_idx[64];
        RowView v;
        Error err = {0};
        for (int c = 0; c < 64; c++)
            g_idx[c] = (c + 1) % 2; /* odd columns first */
        if (!read_ordered(i, g_idx, &v, &err))
            fail_msg("%s", err.msg);
        assert_non_null(v.columns);
        for (int c = 0; c < 64; c++)
            assert_int_equal(v.columns[c], c < 32 ? 2 * c + 1 : 2 * (c - 32));
        g_idx[40] = 2;
        assert_false(read_ordered(i, g_idx, &v, &err));
        expect_error("too large", &err, ERR_FORMAT, says[0], 1);
        g_idx[40] = -1;
        assert_false(read_ordered(i, g_idx, &v, &err));
        expect_error("negative", &err, ERR_FORMAT, says[0], 1);
        g_idx[40] = 0;
        assert_false(read_ordered(i, g_idx, &v, &err));
        expect_error("uneven", &err, ERR_UNSUPPORTED, says[1], 1);
    }
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_schemes, make, clean),
        cmocka_unit_test_setup_teardown(test_order, make, clean),
        cmocka_unit_test_setup_teardown(test_damage, make, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
