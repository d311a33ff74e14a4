/* Quantised Hugging Face checkpoints: every scheme bit for bit against tests/data/hfquant
 * (scripts/make-hf-quant.py), what is derived and what is a view, and damage. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "formats/build_files.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"

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
    const char *dir;
    FormatId format;
    int group;
    int derived;    /* bytes, of mlp.down_proj */
    bool ordered;   /* by activation */
    bool plus_zero; /* the library unpacks no negative zero */
} Case;

enum { DOWN_N = 64, DOWN_K = 128 };
#define AFFINE(bits, codes, group)                                                                 \
    (((codes) ? DOWN_N * DOWN_K * (bits) / 8 : 0) +                                                \
     DOWN_N * DOWN_K / (group)*2 * (int)sizeof(float))
#define ORDER (DOWN_K * (int)sizeof(int32_t))

static const Case cases[] = {
    {"fp8_block", FMT_FP8, 32, DOWN_N *DOWN_K / 32 * (int)sizeof(float), false, false},
    {"bitnet", FMT_AFFINE2, 128, AFFINE(2, 1, 128), false, false},
    {"bitnet_div", FMT_AFFINE2, 128, AFFINE(2, 1, 128), false, false},
    {"bnb_nf4", FMT_NF4, 64, 0, false, false},
    {"bnb_nf4_nested", FMT_NF4, 64, DOWN_N *DOWN_K / 64 * (int)sizeof(float), false, false},
    {"ct_fp8_channel", FMT_FP8, 128, 0, false, false},
    {"ct_fp8_tensor", FMT_FP8, 128, 0, false, false},
    {"ct_int4", FMT_AFFINE4, 64, AFFINE(4, 0, 64), false, false},
    {"ct_int4_asym", FMT_AFFINE4, 32, AFFINE(4, 0, 32), false, false},
    {"ct_int4_act", FMT_AFFINE4, 32, AFFINE(4, 1, 32) + ORDER, true, false},
    {"ct_int4_channel_asym", FMT_AFFINE4, 128, AFFINE(4, 0, 128), false, false},
    {"ct_int8_packed", FMT_AFFINE8, 128, AFFINE(8, 0, 128), false, false},
    {"ct_int8", FMT_AFFINE8, 128, AFFINE(8, 1, 128), false, false},
    {"ct_nvfp4", FMT_NVFP4S, 16, 0, false, false},
    {"gptq_2", FMT_AFFINE2, 32, AFFINE(2, 1, 32), false, false},
    {"gptq_3_act", FMT_AFFINE3, 64, AFFINE(3, 1, 64) + ORDER, true, false},
    {"gptq_4", FMT_AFFINE4, 32, AFFINE(4, 1, 32), false, false},
    {"gptq_4_act", FMT_AFFINE4, 32, AFFINE(4, 1, 32) + ORDER, true, false},
    {"gptq_v2_act", FMT_AFFINE4, 32, AFFINE(4, 1, 32) + ORDER, true, false},
    {"gptq_8", FMT_AFFINE8, 64, AFFINE(8, 1, 64), false, false},
    {"awq", FMT_AFFINE4, 64, AFFINE(4, 1, 64), false, false},
    {"modelopt_fp8", FMT_FP8, 128, 0, false, false},
    {"modelopt_nvfp4", FMT_NVFP4S, 16, 0, false, true},
};

static const struct {
    const char *stem;
    int n, k;
} matrices[] = {
    {"self_attn.q_proj", 64, 64},      {"self_attn.k_proj", 32, 64}, {"self_attn.v_proj", 32, 64},
    {"self_attn.o_proj", 64, 64},      {"mlp.gate_proj", 128, 64},   {"mlp.up_proj", 128, 64},
    {"mlp.down_proj", DOWN_N, DOWN_K},
};

/* FNV-1a, 32 bits: what golden.safetensors has of each row. */
static uint32_t row_hash(const float *x, int k)
{
    uint32_t h = 0x811C9DC5;
    for (int i = 0; i < k; i++)
        for (int b = 0; b < 32; b += 8)
            h = (h ^ (num_bits(x[i]) >> b & 255)) * 0x01000193;
    return h;
}

/* Row r with its columns where they belong. */
static void row_values(const RowView *v, int r, float *x)
{
    float y[DOWN_K];
    const RowView row = rowview_slice(v, r, 1);
    format_dequant_part(&row, 0, 0, v->k / 2, y);
    format_dequant_part(&row, 0, v->k / 2, v->k / 2, y + v->k / 2);
    for (int i = 0; i < v->k; i++)
        x[v->columns ? v->columns[i] : i] = y[i];
}

static const Tensor *golden_rows(const Case *c, const char *stem)
{
    Error err = {0};
    Str bytes;
    Tensor *t;
    int64_t n = 0;
    const char *path =
        arena_printf(&arena, &err, "%s/hfquant/%s/golden.safetensors", TEST_DATA, c->dir);
    if (!path || !file_read(&arena, path, 1 << 20, &bytes, &err) ||
        !safetensors_parse(&arena, path, (const uint8_t *)bytes.ptr, bytes.len, &t, &n, &err))
        fail_msg("%s", err.msg);
    for (int64_t i = 0; i < n; i++)
        if (str_starts(t[i].name, stem) && str_ends(t[i].name, ".rows"))
            return &t[i];
    fail_msg("%s: no %s", path, stem);
    return NULL;
}

static void check_values(const Case *c, const char *stem, const RowView *v)
{
    const Tensor *want = golden_rows(c, stem);
    assert_int_equal(tensor_elements(want), v->n);
    for (int r = 0; r < v->n; r++) {
        float x[DOWN_K];
        uint32_t hash;
        row_values(v, r, x);
        for (int i = 0; c->plus_zero && i < v->k; i++)
            x[i] += 0.0F;
        memcpy(&hash, want->data + (ptrdiff_t)r * 4, sizeof hash);
        if (row_hash(x, v->k) != hash)
            fail_msg("%s %s: row %d (%.9g, %.9g, ...) is not the library's", c->dir, stem, r,
                     (double)x[0], (double)x[1]);
    }
}

static void check_case(const Case *c)
{
    char path[800];
    snprintf(path, sizeof path, "%s/hfquant/%s", TEST_DATA, c->dir);
    Checkpoint *ck = open_good(path);
    for (size_t i = 0; i < COUNT_OF(matrices); i++) {
        char stem[80];
        const int n = matrices[i].n;
        const int k = matrices[i].k;
        CheckpointSpace space = {.arena = &arena};
        RowView v;
        Error err = {0};
        snprintf(stem, sizeof stem, "model.layers.0.%s", matrices[i].stem);
        if (!checkpoint_rows_derived(ck, &space, stem, n, k, &v, &err))
            fail_msg("%s: %s", c->dir, err.msg);
        const int64_t derived = space.bytes;
        if (v.format != c->format || (v.columns != NULL) != (c->ordered && k > c->group) ||
            (k == DOWN_K && (v.group != c->group || derived != c->derived)))
            fail_msg("%s %s: %s in groups of %d, %s, %d bytes derived, wanted %d", c->dir, stem,
                     format_info(v.format)->name, v.group, v.columns ? "ordered" : "as it is",
                     (int)derived, c->derived);
        check_values(c, stem, &v);
        /* Without room only views are given. */
        assert_int_equal(checkpoint_rows(ck, stem, n, k, &v, &err), derived == 0);
        if (derived)
            assert_int_equal(err.code, ERR_UNSUPPORTED);
        /* Any other shape is refused. */
        assert_false(checkpoint_rows_derived(ck, &space, stem, n + 8, k, &v, &err));
        assert_false(checkpoint_rows_derived(ck, &space, stem, n, k * 2, &v, &err));
        assert_false(checkpoint_rows_derived(ck, &space, stem, n, k - 8, &v, &err));
        assert_false(checkpoint_rows_derived(ck, &space, stem, INT64_MAX, k, &v, &err));
        assert_int_equal(space.bytes, derived);
    }
    checkpoint_close(ck);
}

static void test_schemes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_case(&cases[i]);
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
