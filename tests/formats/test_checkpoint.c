/* Checkpoints: both kinds of files through one interface, every scheme of a matrix, side files,
 * damage. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/num.h"
#include "formats/build_files.h"
#include "weights/checkpoint.h"

static Arena arena;
static TempDir dir;

static int make(void **state)
{
    (void)state;
    arena_init(&arena, "test");
    temp_open(&dir);
    temp_text(&dir, "config.json", "{\"model_type\":\"llama\",\"eos_token_id\":2}");
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

static void open_bad(const char *path, ErrCode code, const char *says)
{
    Checkpoint *ck;
    Error err = {0};
    if (checkpoint_open(&arena, path, &ck, &err))
        fail_msg("accepted: %s", path);
    expect_error(path, &err, code, &says, 1);
}

static void rows_bad(const Checkpoint *ck, const char *stem, int64_t n, int64_t k, ErrCode code,
                     const char *says)
{
    RowView v;
    Error err = {0};
    if (checkpoint_rows(ck, stem, n, k, &v, &err))
        fail_msg("accepted: %s", stem);
    const char *const parts[] = {stem, says};
    expect_error(stem, &err, code, parts, 2);
}

/* ---- plain tensors ---- */

static void test_plain_rows(void **state)
{
    (void)state;
    temp_safetensors(
        &dir, "model.safetensors",
        "{\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[1,13]},"
        "\"conv.weight\":{\"dtype\":\"F32\",\"shape\":[2,1,2],\"data_offsets\":[13,29]},"
        "\"one.weight\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[29,37]},"
        "\"ids.weight\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[37,45]},"
        "\"none.weight\":{\"dtype\":\"F32\",\"shape\":[0,2],\"data_offsets\":[45,45]}}",
        45, 0);
    const Checkpoint *ck = open_good(dir.path);
    Error err = {0};
    RowView v;
    assert_false(checkpoint_is_gguf(ck));
    assert_true(checkpoint_has(ck, "a.weight") && !checkpoint_has(ck, "a"));
    assert_int_equal(checkpoint_n_tensors(ck), 5);
    assert_int_equal(checkpoint_bytes(ck), 44);

    assert_true(checkpoint_rows(ck, "a", 2, 3, &v, &err));
    assert_int_equal(v.format, FMT_BF16);
    assert_int_equal(v.row_bytes, 6);
    float y[3];
    format_dequant_row(&v, 1, y);
    for (unsigned i = 0; i < 3; i++) { /* bytes 7 and 8 of the data, and so on */
        const unsigned lo = 7 * (7 + 2 * i) % 251;
        const unsigned hi = 7 * (8 + 2 * i) % 251;
        assert_int_equal(num_bits(y[i]), (hi << 8 | lo) << 16);
    }
    assert_true(checkpoint_rows(ck, "conv", 2, 2, &v, &err)); /* [C, 1, K] is C rows of K */
    assert_true(checkpoint_rows(ck, "one", 1, 4, &v, &err));
    assert_true(checkpoint_rows(ck, "none", 0, 2, &v, &err));
    assert_int_equal(v.n, 0);

    rows_bad(ck, "a", 3, 2, ERR_FORMAT, "is [2, 3], wanted 3 rows of 2");
    rows_bad(ck, "a", 1, 6, ERR_FORMAT, "is [2, 3], wanted 1 rows of 6");
    rows_bad(ck, "a", 2, 0, ERR_FORMAT, "rows of 0");
    rows_bad(ck, "a", -2, -3, ERR_FORMAT, "as -2 rows");
    rows_bad(ck, "a", 2, 1LL << 40, ERR_FORMAT, "rows of 1099511627776");
    rows_bad(ck, "ids", 1, 2, ERR_UNSUPPORTED, "is I32, which cannot be used");
    rows_bad(ck, "b", 1, 2, ERR_FORMAT, "tensor \"b.weight\" is missing");

    float x[4];
    assert_true(checkpoint_vector(ck, "one.weight", 4, x, &err));
    assert_int_equal(num_bits(x[0]), num_bits(num_from_f16((7 * 29 % 251) | 7 * 30 % 251 << 8)));
    assert_true(checkpoint_vector(ck, "conv.weight", 4, x, &err)); /* any shape */
    assert_true(checkpoint_vector(ck, "none.weight", 0, x, &err));
    assert_false(checkpoint_vector(ck, "one.weight", 3, x, &err));
    assert_non_null(strstr(err.msg, "\"one.weight\" is [4], wanted 3 values"));
    assert_false(checkpoint_vector(ck, "ids.weight", 2, x, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_false(checkpoint_vector(ck, "one", 4, x, &err));
    assert_non_null(strstr(err.msg, "\"one\" is missing"));
    char stem[600];
    memset(stem, 's', sizeof stem);
    stem[sizeof stem - 1] = '\0';
    assert_false(checkpoint_rows(ck, stem, 1, 1, &v, &err)); /* a name too long to exist */
    checkpoint_close((Checkpoint *)(uintptr_t)ck);
}

/* ---- MLX ---- */

/* tests/data/quant/<name> as a model directory, its tensors called "q.<tensor>". */
static void write_quant(const char *name)
{
    char path[900];
    Error err = {0};
    Str all;
    snprintf(path, sizeof path, "%s/quant/%s.safetensors", TEST_DATA, name);
    if (!file_read(&arena, path, 1 << 20, &all, &err))
        fail_msg("%s", err.msg);
    uint64_t n;
    memcpy(&n, all.ptr, 8);
    json_t *header = json_parse(path, (Str){all.ptr + 8, n}, &err);
    json_t *renamed = json_object();
    const char *key;
    json_t *v;
    json_object_foreach (header, key, v)
        if (key[0] != '_')
            json_object_set(renamed, arena_printf(&arena, &err, "q.%s", key), v);
    char *text = json_dumps(renamed, JSON_COMPACT);
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    put_int(&b, strlen(text), 8);
    put(&b, text, strlen(text));
    put(&b, all.ptr + 8 + n, all.len - 8 - n);
    temp_write(&dir, "model.safetensors", b.ptr, b.len);
    strbuf_free(&b);
    json_text_free(text);
    json_decref(renamed);
    json_decref(header);
}

static void test_mlx_rows(void **state)
{
    static const struct {
        const char *name, *config;
        FormatId format, scale_format;
        int group;
    } cases[] = {
        {"mlx_affine_b4_g32", "{\"quantization\":{\"bits\":4,\"group_size\":32}}", FMT_AFFINE4,
         FMT_BF16, 32},
        /* shapes tell, whatever the configuration says */
        {"mlx_affine_b4_g128", "{\"quantization\":{\"bits\":8,\"group_size\":64}}", FMT_AFFINE4,
         FMT_BF16, 128},
        {"mlx_affine_b8_g64", "{}", FMT_AFFINE8, FMT_BF16, 64},
        {"mlx_affine_b8_g64_f16",
         "{\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\","
         "\"q\":{\"bits\":8,\"group_size\":64}}}",
         FMT_AFFINE8, FMT_F16, 64},
        {"mlx_affine_b4_g64_f32", "{\"quantization\":{\"q\":false}}", FMT_AFFINE4, FMT_F32, 64},
        {"mlx_mxfp4_b4_g32", "{\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}}",
         FMT_MXFP4P, FMT_F32, 32},
        {"mlx_mxfp4_b4_g32",
         "{\"quantization_config\":{\"mode\":\"affine\",\"q\":{\"mode\":\"mxfp4\"}}}", FMT_MXFP4P,
         FMT_F32, 32},
        {"mlx_mxfp4_b4_g32", "{}", FMT_MXFP4P, FMT_F32, 32},
    };
    (void)state;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        temp_text(&dir, "config.json", cases[c].config);
        write_quant(cases[c].name);
        Checkpoint *ck = open_good(dir.path);
        RowView v;
        Error err = {0};
        if (!checkpoint_rows(ck, "q", 24, 256, &v, &err))
            fail_msg("%s: %s", cases[c].name, err.msg);
        assert_int_equal(v.format, cases[c].format);
        assert_int_equal(v.scale_format, cases[c].scale_format);
        assert_int_equal(v.group, cases[c].group);
        float want[24 * 256];
        float got[256];
        assert_true(checkpoint_vector(ck, "q.dequant_f32", 24 * 256, want, &err));
        for (int r = 0; r < 24; r++) {
            format_dequant_row(&v, r, got);
            assert_memory_equal(got, want + r * 256, sizeof got);
        }
        rows_bad(ck, "q", 12, 512, ERR_FORMAT, "wanted 12 rows of 512");
        rows_bad(ck, "q", 24, 250, ERR_FORMAT, "wanted 24 rows of 250");
        rows_bad(ck, "q", 24, 16, ERR_FORMAT, "wanted 24 rows of 16");
        checkpoint_close(ck);
    }
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

static void test_mlx_errors(void **state)
{
    static const struct {
        const char *header;
        int64_t k;
        ErrCode code;
        const char *says;
    } cases[] = {
        {T("q.weight", "U32", "[2,14]", "0", "112") "," T("q.scales", "BF16", "[2,1]", "112",
                                                          "116") "," T("q.biases", "BF16", "[2,1]",
                                                                       "116", "120"),
         64, ERR_UNSUPPORTED, "affine with 7 bits"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T("q.scales", "BF16", "[2,4]", "64",
                                                        "80") "," T("q.biases", "BF16", "[2,4]",
                                                                    "80", "96"),
         64, ERR_UNSUPPORTED, "groups of 16"},
        {T("q.weight", "F16", "[2,64]", "0", "256") "," T("q.scales", "BF16", "[2,1]", "256",
                                                          "260"),
         64, ERR_FORMAT, "is F16 beside scales, wanted U32"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T("q.scales", "BF16", "[2,1]", "64", "68"),
         64, ERR_FORMAT, "\"q.biases\" is missing"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T("q.scales", "BF16", "[3,1]", "64",
                                                        "70") "," T("q.biases", "BF16", "[2,1]",
                                                                    "70", "74"),
         64, ERR_FORMAT, "\"q.scales\" is [3, 1], wanted 2 rows"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T("q.scales", "BF16", "[2,0]", "64",
                                                        "64") "," T("q.biases", "BF16", "[2,1]",
                                                                    "64", "68"),
         64, ERR_FORMAT, "\"q.scales\" is [2, 0]"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T("q.scales", "BF16", "[2,1]", "64",
                                                        "68") "," T("q.biases", "BF16", "[2,2]",
                                                                    "68", "76"),
         64, ERR_FORMAT, "\"q.biases\" is [2, 2]"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T(
             "q.scales", "BF16", "[2,1]", "64", "68") "," T("q.biases", "F16", "[2,1]", "68", "72"),
         64, ERR_FORMAT, "\"q.biases\" is F16, its scales are BF16"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T(
             "q.scales", "U8", "[2,1]", "64", "66") "," T("q.biases", "U8", "[2,1]", "66", "68"),
         64, ERR_UNSUPPORTED, "\"q.scales\" is U8"},
        {T("q.weight", "U32", "[2,8]", "0", "64") "," T("q.scales", "U8", "[2,4]", "64", "72"), 64,
         ERR_UNSUPPORTED, "4 bits in groups of 16"},
        {T("q.weight", "U32", "[2,16]", "0", "128") "," T("q.scales", "U8", "[2,2]", "128", "132"),
         64, ERR_UNSUPPORTED, "8 bits in groups of 32"},
    };
    (void)state;
    temp_text(&dir, "config.json", "{\"quantization\":{\"bits\":4,\"group_size\":64}}");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char header[600];
        snprintf(header, sizeof header, "{%s}", cases[i].header);
        temp_safetensors(&dir, "model.safetensors", header, 300, 0);
        Checkpoint *ck = open_good(dir.path);
        rows_bad(ck, "q", 2, cases[i].k, cases[i].code, cases[i].says);
        checkpoint_close(ck);
    }
}

/* mxfp4 codes as bytes instead of words. */
static void test_mxfp4_bytes(void **state)
{
    (void)state;
    temp_text(&dir, "config.json", "{\"quantization\":{\"mode\":\"mxfp4\"}}");
    temp_safetensors(&dir, "model.safetensors",
                     "{" T("q.weight", "U8", "[1,32]", "0", "32") "," T("q.scales", "U8", "[1,2]",
                                                                        "32", "34") "}",
                     34, 0);
    Checkpoint *ck = open_good(dir.path);
    RowView v;
    Error err = {0};
    float y[64];
    assert_true(checkpoint_rows(ck, "q", 1, 64, &v, &err));
    assert_int_equal(v.format, FMT_MXFP4P);
    format_dequant_row(&v, 0, y); /* byte 1 is 7: 6 (code 7), then 0; the scale is byte 32 */
    assert_true((double)y[2] == 6.0 * (double)num_from_e8m0(7 * 32 % 251));
    assert_true(y[3] == 0.0F);
    checkpoint_close(ck);
}

/* ---- experts ---- */

static void test_experts(void **state)
{
    (void)state;
    static const char header[] = "{" T("m.experts.up.weight", "U8", "[3]", "0", "3") "," T(
        "x.experts.gate.weight", "F32", "[3,2,4]", "3",
        "99") "," T("y.switch_mlp.gate.weight", "U32", "[3,2,4]", "99",
                    "195") "," T("y.switch_mlp.gate.scales", "F16", "[3,2,1]", "195",
                                 "207") "," T("y.switch_mlp.gate.biases", "F16", "[3,2,1]", "207",
                                              "219") "," T("z.experts.0.gate.weight", "F32",
                                                           "[2,4]", "219",
                                                           "251") "," T("z.experts.1.gate.weight",
                                                                        "F32", "[2,4]", "251",
                                                                        "283") "," T("w.experts."
                                                                                     "gate.weight",
                                                                                     "F32",
                                                                                     "[2,3,4]",
                                                                                     "283",
                                                                                     "379") "}";
    temp_safetensors(&dir, "model.safetensors", header, 379, 0);
    Checkpoint *ck = open_good(dir.path);
    Error err = {0};
    RowView v;
    assert_true(checkpoint_expert_rows(ck, "x.experts.gate", 2, 3, 2, 4, &v, &err));
    assert_int_equal(v.n, 2);
    assert_ptr_equal(v.data, checkpoint_find(ck, "x.experts.gate.weight")->data + 2 * 2 * 16);
    assert_true(checkpoint_expert_rows(ck, "y.experts.gate", 1, 3, 2, 32, &v, &err));
    assert_int_equal(v.format, FMT_AFFINE4);
    assert_ptr_equal(v.data, checkpoint_find(ck, "y.switch_mlp.gate.weight")->data + 2 * 16);
    assert_ptr_equal(v.scales, checkpoint_find(ck, "y.switch_mlp.gate.scales")->data + 2 * 2);
    assert_ptr_equal(v.biases, checkpoint_find(ck, "y.switch_mlp.gate.biases")->data + 2 * 2);
    assert_true(checkpoint_expert_rows(ck, "z.experts.gate", 1, 3, 2, 4, &v, &err));
    assert_ptr_equal(v.data, checkpoint_find(ck, "z.experts.1.gate.weight")->data);

    assert_false(checkpoint_expert_rows(ck, "z.experts.gate", 2, 3, 2, 4, &v, &err));
    assert_non_null(strstr(err.msg, "\"z.experts.2.gate.weight\" is missing"));
    assert_false(checkpoint_expert_rows(ck, "x.experts.gate", 0, 2, 3, 4, &v, &err));
    assert_non_null(strstr(err.msg, "is [3, 2, 4], wanted a stack of 2 [3, 4]"));
    assert_false(checkpoint_expert_rows(ck, "w.experts.gate", 0, 3, 2, 4, &v, &err));
    assert_non_null(strstr(err.msg, "is [2, 3, 4], wanted a stack of 3 [2, 4]"));
    assert_false(checkpoint_expert_rows(ck, "x.experts.gate", 0, 4, 2, 4, &v, &err));
    assert_non_null(strstr(err.msg, "wanted 8 rows of 4"));
    assert_false(checkpoint_expert_rows(ck, "x.experts.gate", 0, 3, INT64_MAX, 4, &v, &err));
    assert_false(checkpoint_expert_rows(ck, "nothing", 0, 3, 2, 4, &v, &err));
    assert_non_null(strstr(err.msg, "\"nothing.weight\" is missing"));
    checkpoint_close(ck);
}

/* ---- GGUF ---- */

static void build_gguf(GgufBuilder *g)
{
    static const char *const keys[] = {"block_count", "embedding_length", "context_length",
                                       "attention.head_count", "feed_forward_length"};
    gguf_start(g);
    gguf_text(g, "general.architecture", "qwen3moe");
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        char key[80];
        snprintf(key, sizeof key, "qwen3moe.%s", keys[i]);
        gguf_u32(g, key, 4);
    }
    gguf_f32(g, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6F);
    gguf_u32(g, "tokenizer.ggml.eos_token_id", 1);
    gguf_text(g, "tokenizer.chat_template", "default template");
    gguf_text(g, "tokenizer.chat_template.tool_use", "tools template");
    gguf_array(g, "tokenizer.ggml.tokens", GGUF_STR, 2);
    put_gguf_str(&g->kv, "a"), put_gguf_str(&g->kv, "bc");
    gguf_tensor(g, "token_embd.weight", 2, (uint64_t[]){64, 2}, 8, 2 * 68);
    gguf_tensor(g, "blk.0.ffn_up_exps.weight", 3, (uint64_t[]){32, 2, 3}, 2, 3 * 2 * 18);
    gguf_tensor(g, "blk.0.attn_norm.weight", 1, (uint64_t[]){4}, 0, 16);
    gguf_tensor(g, "blk.0.attn_q.weight", 2, (uint64_t[]){256, 1}, 15,
                292); /* Q8_K: of activations */
}

static void test_gguf(void **state)
{
    (void)state;
    GgufBuilder g;
    char path[900];
    build_gguf(&g);
    temp_gguf(&dir, "m.gguf", &g);
    temp_path(&dir, "m.gguf", path, sizeof path);
    /* The file, or its directory: config.json beside it does not count. */
    for (int i = 0; i < 2; i++) {
        Checkpoint *ck = open_good(i ? dir.path : path);
        Error err = {0};
        RowView v;
        assert_true(checkpoint_is_gguf(ck));
        assert_string_equal(checkpoint_doc(ck), path);
        assert_int_equal(checkpoint_n_files(ck), 1);
        assert_string_equal(json_string_value(json_object_get(checkpoint_config(ck), "model_type")),
                            "qwen3_moe");
        assert_true(checkpoint_rows(ck, "model.embed_tokens", 2, 64, &v, &err));
        assert_int_equal(v.format, FMT_Q8_0);
        assert_true(checkpoint_expert_rows(ck, "model.layers.0.mlp.experts.up_proj", 1, 3, 2, 32,
                                           &v, &err));
        assert_int_equal(v.format, FMT_Q4_0);
        assert_int_equal(v.data[2], (2 + 7 * 38) % 251);
        float norm[4];
        assert_true(checkpoint_vector(ck, "model.layers.0.input_layernorm.weight", 4, norm, &err));
        float embd[128];
        assert_true(checkpoint_vector(ck, "model.embed_tokens.weight", 128, embd, &err));
        rows_bad(ck, "model.layers.0.self_attn.q_proj", 1, 256, ERR_UNSUPPORTED, "is Q8_K");
        rows_bad(ck, "model.embed_tokens", 2, 32, ERR_FORMAT, "is [2, 64]");

        Str *tokens;
        int64_t n;
        assert_true(checkpoint_strings(ck, &arena, "tokenizer.ggml.tokens", &tokens, &n, &err));
        assert_int_equal(n, 2);
        assert_true(str_is(tokens[1], "bc"));
        assert_true(checkpoint_strings(ck, &arena, "tokenizer.ggml.merges", &tokens, &n, &err));
        assert_true(!tokens && n == 0);
        assert_false(checkpoint_strings(ck, &arena, "general.architecture", &tokens, &n, &err));

        Str text;
        assert_true(checkpoint_chat_template(ck, &arena, NULL, &text, &err));
        assert_true(str_is(text, "default template"));
        assert_true(checkpoint_chat_template(ck, &arena, "tool_use", &text, &err));
        assert_true(str_is(text, "tools template"));
        assert_true(checkpoint_chat_template(ck, &arena, "rag", &text, &err) && !text.ptr);
        assert_true(checkpoint_side_file(ck, &arena, "config.json", &text, &err) && !text.ptr);
        checkpoint_close(ck);
    }
}

static void test_gguf_names_collide(void **state)
{
    (void)state;
    GgufBuilder g;
    build_gguf(&g);
    gguf_tensor(&g, "model.embed_tokens.weight", 1, (uint64_t[]){1}, 0, 4);
    temp_gguf(&dir, "m.gguf", &g);
    open_bad(dir.path, ERR_FORMAT, "\"model.embed_tokens.weight\" appears twice");
}

/* ---- GGUF with a vision tower ---- */

static void build_text(GgufBuilder *g)
{
    static const char *const keys[] = {"block_count", "embedding_length", "context_length",
                                       "attention.head_count", "feed_forward_length"};
    gguf_start(g);
    gguf_text(g, "general.architecture", "qwen2vl");
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        char key[80];
        snprintf(key, sizeof key, "qwen2vl.%s", keys[i]);
        gguf_u32(g, key, 4);
    }
    gguf_f32(g, "qwen2vl.attention.layer_norm_rms_epsilon", 1e-6F);
    gguf_array(g, "qwen2vl.rope.dimension_sections", GGUF_I32, 3);
    put_int(&g->kv, 2, 4), put_int(&g->kv, 0, 4), put_int(&g->kv, 0, 4);
    gguf_tensor(g, "token_embd.weight", 2, (uint64_t[]){64, 2}, 8, 2 * 68);
}

static void build_vision(GgufBuilder *g)
{
    static const char *const keys[] = {"block_count", "embedding_length", "patch_size",
                                       "projection_dim", "attention.head_count"};
    gguf_start(g);
    gguf_text(g, "general.architecture", "clip");
    gguf_text(g, "clip.projector_type", "qwen2vl_merger");
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        char key[80];
        snprintf(key, sizeof key, "clip.vision.%s", keys[i]);
        gguf_u32(g, key, 4);
    }
    gguf_tensor(g, "mm.0.bias", 1, (uint64_t[]){4}, 0, 16);
    gguf_tensor(g, "v.blk.0.ffn_up.weight", 2, (uint64_t[]){4, 8}, 0, 128);
}

static void test_vision_beside(void **state)
{
    (void)state;
    GgufBuilder g;
    char text[900], vision[900];
    build_text(&g);
    temp_gguf(&dir, "m-Q8_0.gguf", &g);
    build_vision(&g);
    temp_gguf(&dir, "MMPROJ-m-F16.gguf", &g);
    temp_path(&dir, "m-Q8_0.gguf", text, sizeof text);
    temp_path(&dir, "MMPROJ-m-F16.gguf", vision, sizeof vision);
    for (int i = 0; i < 2; i++) {
        Checkpoint *ck = open_good(i ? dir.path : text);
        Error err = {0};
        RowView v;
        assert_string_equal(checkpoint_doc(ck), text);
        assert_int_equal(checkpoint_n_files(ck), 2);
        assert_string_equal(checkpoint_file(ck, 1), vision);
        assert_int_equal(checkpoint_n_tensors(ck), 3);
        assert_int_equal(checkpoint_bytes(ck), 2 * 68 + 16 + 128);
        assert_int_equal(checkpoint_find(ck, "model.embed_tokens.weight")->file, 0);
        assert_int_equal(checkpoint_find(ck, "visual.merger.mlp.0.bias")->file, 1);
        assert_true(checkpoint_rows(ck, "visual.blocks.0.mlp.fc1", 8, 4, &v, &err));
        assert_int_equal(v.data[0], 2); /* the second tensor of its file */
        const json_t *config = json_object_get(checkpoint_config(ck), "vision_config");
        assert_int_equal(json_integer_value(json_object_get(config, "mlp_ratio")), 2);
        checkpoint_close(ck);
    }
}

static void test_vision_damaged(void **state)
{
    (void)state;
    GgufBuilder g;
    char path[900];
    build_text(&g);
    temp_gguf(&dir, "m.gguf", &g);
    open_bad(dir.path, ERR_NOT_FOUND, "m.gguf: no vision projector (mmproj*.gguf) beside it");
    temp_text(&dir, "mmproj-a.gguf", "");
    open_bad(dir.path, ERR_FORMAT, "mmproj-a.gguf: magic");
    build_text(&g);
    temp_gguf(&dir, "mmproj-a.gguf", &g);
    open_bad(dir.path, ERR_UNSUPPORTED, "mmproj-a.gguf: architecture \"qwen2vl\"");
    build_vision(&g);
    gguf_tensor(&g, "token_embd.weight", 1, (uint64_t[]){1}, 0, 4);
    temp_gguf(&dir, "mmproj-a.gguf", &g);
    open_bad(dir.path, ERR_FORMAT, "\"token_embd.weight\" appears twice");
    temp_text(&dir, "mmproj-b.gguf", "");
    open_bad(dir.path, ERR_USAGE,
             "2 vision projectors beside it, wanted one: mmproj-a.gguf, mmproj-b");
    open_bad(temp_path(&dir, "mmproj-a.gguf", path, sizeof path), ERR_UNSUPPORTED,
             "architecture \"clip\"");
}

/* Whatever it is: a model without a vision tower does not look at it. */
static void test_vision_ignored(void **state)
{
    (void)state;
    GgufBuilder g;
    build_gguf(&g);
    temp_gguf(&dir, "m.gguf", &g);
    temp_text(&dir, "mmproj-a.gguf", "no file of GGUF");
    temp_text(&dir, "mmproj-b.gguf", "");
    Checkpoint *ck = open_good(dir.path);
    assert_int_equal(checkpoint_n_files(ck), 1);
    assert_null(json_object_get(checkpoint_config(ck), "vision_config"));
    checkpoint_close(ck);
}

/* ---- side files ---- */

#define ONE_TENSOR "{\"a.weight\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"

static Str template_of(const char *name)
{
    Checkpoint *ck = open_good(dir.path);
    Str s;
    Error err = {0};
    if (!checkpoint_chat_template(ck, &arena, name, &s, &err))
        fail_msg("%s", err.msg);
    checkpoint_close(ck);
    return s;
}

static void test_chat_templates(void **state)
{
    (void)state;
    temp_safetensors(&dir, "model.safetensors", ONE_TENSOR, 2, 0);
    assert_null(template_of(NULL).ptr);
    temp_text(&dir, "chat_template.json", "{\"chat_template\":\"from json\"}");
    assert_true(str_is(template_of(NULL), "from json"));
    temp_text(&dir, "tokenizer_config.json", "{\"chat_template\":\"from config\"}");
    assert_true(str_is(template_of(NULL), "from config"));
    assert_null(template_of("tool_use").ptr);
    temp_text(&dir, "tokenizer_config.json",
              "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},"
              "{\"name\":\"default\",\"template\":\"d\"}]}");
    assert_true(str_is(template_of(NULL), "d"));
    assert_true(str_is(template_of("tool_use"), "t"));
    temp_text(&dir, "chat_template.jinja", "from jinja");
    assert_true(str_is(template_of(NULL), "from jinja"));
    assert_true(str_is(template_of("tool_use"), "t"));

    static const char *const bad[] = {"{\"chat_template\":7}", "{\"chat_template\":[7]}",
                                      "{\"chat_template\":[{\"name\":\"default\"}]}", "{"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        temp_text(&dir, "tokenizer_config.json", bad[i]);
        Checkpoint *ck = open_good(dir.path);
        Str s;
        Error err = {0};
        assert_false(checkpoint_chat_template(ck, &arena, "tool_use", &s, &err));
        assert_non_null(strstr(err.msg, "tokenizer_config.json"));
        checkpoint_close(ck);
    }
}

static void test_side_files(void **state)
{
    (void)state;
    temp_safetensors(&dir, "model.safetensors", ONE_TENSOR, 2, 0);
    temp_text(&dir, "tokenizer.json", "{}");
    Checkpoint *ck = open_good(dir.path);
    Str s;
    Str *list;
    int64_t n;
    Error err = {0};
    assert_true(checkpoint_side_file(ck, &arena, "tokenizer.json", &s, &err) && str_is(s, "{}"));
    assert_true(checkpoint_side_file(ck, &arena, "vocab.txt", &s, &err) && !s.ptr);
    assert_true(checkpoint_strings(ck, &arena, "tokenizer.ggml.tokens", &list, &n, &err) && !list);
    assert_string_equal(checkpoint_path(ck), dir.path);
    assert_true(str_ends(str_from(checkpoint_doc(ck)), "/config.json"));
    assert_true(str_ends(str_from(checkpoint_file(ck, 0)), "/model.safetensors"));
    checkpoint_close(ck);
    checkpoint_close(NULL);
}

/* ---- groups ---- */

static void test_groups(void **state)
{
    (void)state;
    temp_text(&dir, "config.json", "{\"quantization\":{\"bits\":4,\"group_size\":32}}");
    temp_safetensors(
        &dir, "model.safetensors",
        "{" T("lm_head.weight", "BF16", "[2,4]", "0", "16") "," T("model.embed_tokens.weight", "BF16", "[2,4]", "16", "32") "," T(
            "model.layers.0.mlp.up_proj.weight", "U32", "[2,4]", "32",
            "64") "," T("model.layers.0.mlp.up_proj.scales", "F16", "[2,1]", "64",
                        "68") "," T("model.layers.0.mlp.up_proj.biases", "F16", "[2,1]", "68",
                                    "72") "," T("model.layers.1.mlp.up_proj.weight", "F16", "[2,4]",
                                                "72",
                                                "88") "," T("model.layers.0.self_attn.q_norm."
                                                            "weight",
                                                            "F32", "[2]", "88",
                                                            "96") "," T("model.layers.0.self_attn."
                                                                        "q_proj.weight",
                                                                        "BF16", "[2]", "96",
                                                                        "100") "," T("model.layers."
                                                                                     "1.self_attn."
                                                                                     "q_proj."
                                                                                     "weight",
                                                                                     "BF16", "[2]",
                                                                                     "100",
                                                                                     "104") "," T("model.layers.0.mlp.experts.0.up_proj.weight",
                                                                                                  "BF16",
                                                                                                  "[2]",
                                                                                                  "104",
                                                                                                  "108") "," T("rotary.inv_freq",
                                                                                                               "F32",
                                                                                                               "[1]",
                                                                                                               "108",
                                                                                                               "112") "}",
        112, 0);
    static const CheckpointGroup want[] = {
        {"embedding", "BF16", 0, 16, 1},    {"attention", "BF16", 0, 8, 2},
        {"mlp", "affine 4-bit", 32, 40, 1}, {"mlp", "F16", 0, 16, 1},
        {"experts", "BF16", 0, 4, 1},       {"norms", "F32", 0, 8, 1},
        {"head", "BF16", 0, 16, 1},         {"other", "F32", 0, 4, 1}};
    Checkpoint *ck = open_good(dir.path);
    CheckpointGroup *got;
    int n;
    Error err = {0};
    assert_true(checkpoint_groups(ck, &arena, &got, &n, &err));
    assert_int_equal(n, COUNT_OF(want));
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        assert_string_equal(got[i].name, want[i].name);
        assert_string_equal(got[i].format, want[i].format);
        assert_int_equal(got[i].group_size, want[i].group_size);
        assert_int_equal(got[i].bytes, want[i].bytes);
        assert_int_equal(got[i].n_tensors, want[i].n_tensors);
        sum += got[i].bytes;
    }
    assert_int_equal(sum, checkpoint_bytes(ck));
    checkpoint_close(ck);
}

/* ---- damage ---- */

static void test_cannot_open(void **state)
{
    (void)state;
    char path[900];
    open_bad("/nowhere/at/all", ERR_NOT_FOUND, "/nowhere/at/all");
    open_bad(temp_path(&dir, "config.json", path, sizeof path), ERR_FORMAT,
             "neither a directory nor a .gguf file");
    open_bad(dir.path, ERR_NOT_FOUND, "no model.safetensors");
    temp_text(&dir, "config.json", "[]");
    open_bad(dir.path, ERR_FORMAT, "config.json: not a JSON object");
    unlink(path);
    temp_safetensors(&dir, "model.safetensors", ONE_TENSOR, 2, 0);
    open_bad(dir.path, ERR_NOT_FOUND, "config.json");
    temp_text(&dir, "one.gguf", "not GGUF at all");
    open_bad(temp_path(&dir, "one.gguf", path, sizeof path), ERR_FORMAT, "no GGUF file");
    temp_path(&dir, "model.safetensors", path, sizeof path);
    unlink(path);
    temp_text(&dir, "two.gguf", "not GGUF either");
    open_bad(dir.path, ERR_USAGE, "one.gguf, two.gguf");
}

static void test_cut_while_open(void **state)
{
    (void)state;
    Error err = {0};
    char path[900];
    temp_safetensors(&dir, "model.safetensors",
                     "{" T("a.weight", "F32", "[10000]", "0", "40000") "}", 40000, 1);
    Checkpoint *ck = open_good(dir.path);
    float *x = arena_take(&arena, 10000, sizeof *x, &err);
    assert_true(file_guard_install(&err));
    assert_true(checkpoint_vector(ck, "a.weight", 10000, x, &err));
    assert_false(checkpoint_broken(ck));
    assert_int_equal(truncate(temp_path(&dir, "model.safetensors", path, sizeof path), 4096), 0);
    assert_true(checkpoint_vector(ck, "a.weight", 10000, x, &err));
    assert_true(x[9999] == 0.0F);
    assert_true(checkpoint_broken(ck));
    checkpoint_close(ck);
}

/* Every allocation of open, groups and a template fails in turn. */
static void torture(const char *path)
{
    const size_t before = mem_in_use();
    uint64_t n = 0;
    for (bool ok = false; !ok;) {
        Arena a;
        Error err = {0};
        Checkpoint *ck = NULL;
        CheckpointGroup *groups;
        Str s;
        int n_groups;
        arena_init(&a, "weights");
        mem_fail_at(++n, false);
        ok = checkpoint_open(&a, path, &ck, &err) &&
             checkpoint_groups(ck, &a, &groups, &n_groups, &err) &&
             checkpoint_chat_template(ck, &a, NULL, &s, &err);
        mem_fail_at(0, false);
        if (!ok)
            expect_error(path, &err, ERR_NOMEM, NULL, 0);
        checkpoint_close(ck);
        arena_free(&a);
        assert_int_equal(mem_in_use(), before);
    }
    assert_true(n > 30);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    GgufBuilder g;
    char path[900];
    build_gguf(&g);
    temp_gguf(&dir, "m.gguf", &g);
    torture(temp_path(&dir, "m.gguf", path, sizeof path));
    build_text(&g);
    temp_gguf(&dir, "m.gguf", &g);
    build_vision(&g);
    temp_gguf(&dir, "mmproj.gguf", &g);
    torture(path);
    temp_text(&dir, "generation_config.json", "{\"eos_token_id\":[1,2],\"temperature\":0.5}");
    temp_text(&dir, "tokenizer_config.json", "{\"chat_template\":\"from config\"}");
    temp_safetensors(&dir, "model.safetensors", ONE_TENSOR, 2, 0);
    torture(dir.path);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clean)

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        TEST(test_plain_rows),
        TEST(test_mlx_rows),
        TEST(test_mlx_errors),
        TEST(test_mxfp4_bytes),
        TEST(test_experts),
        TEST(test_gguf),
        TEST(test_gguf_names_collide),
        TEST(test_vision_beside),
        TEST(test_vision_damaged),
        TEST(test_vision_ignored),
        TEST(test_chat_templates),
        TEST(test_side_files),
        TEST(test_groups),
        TEST(test_cannot_open),
        TEST(test_cut_while_open),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
