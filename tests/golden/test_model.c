/* The model layer's own contracts: what a family refuses and how it says so, rotary frequencies,
 * reordered rows, and every allocation failing in turn. */
#include "support/tiny_fill.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const GraphLimits limits = {.max_rows = 32, .max_out_rows = 4, .max_segs = 4};

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

/* A copy of a tiny model whose config.json has some keys replaced; `patch` is a JSON object, a null
 * in it deletes the key. An object with the key "+" is merged into the one that is there. */
static const char *patched(Arena *a, const char *name, const char *patch)
{
    Error err;
    const char *dir;
    Str text = {NULL, 0};
    must(tiny_fill(a, TEST_DATA, name, TEST_TMP, &dir, &err), &err);
    const char *from = arena_printf(a, &err, "%s/config.json", dir);
    const char *to = arena_printf(a, &err, "%s/tiny/patched-%s", TEST_TMP, name);
    must(from && to && file_read(a, from, 1 << 20, &text, &err), &err);
    json_t *config = json_parse(from, text, &err);
    json_t *changes = json_parse("patch", str_from(patch), &err);
    if (!config || !changes)
        fail_msg("%s", err.msg);
    const char *key;
    json_t *value;
    json_object_foreach (changes, key, value) {
        if (json_is_null(value))
            (void)json_object_del(config, key);
        else if (json_object_get(value, "+"))
            assert_int_equal(json_object_update(json_object_get(config, key), value), 0);
        else
            assert_int_equal(json_object_set(config, key, value), 0);
    }
    if (mkdir(to, 0777) != 0)
        assert_int_equal(errno, EEXIST);
    assert_int_equal(
        json_dump_file(config, arena_printf(a, &err, "%s/config.json", to), JSON_INDENT(1)), 0);
    const char *weights = arena_printf(a, &err, "%s/model.safetensors", dir);
    const char *link = arena_printf(a, &err, "%s/model.safetensors", to);
    if (symlink(weights, link) != 0)
        assert_int_equal(errno, EEXIST);
    json_decref(config);
    json_decref(changes);
    return to;
}

/* Every part. */
static bool build(const Model *m, Arena *a, Error *err)
{
    const GraphPlan *plan;
    for (const ModelPart *p = m->family->parts; p->name; p++)
        if (!model_build(m, a, p->name, &limits, &plan, err))
            return false;
    return true;
}

static bool load(Arena *a, const char *dir, Checkpoint **ck, Model **m, Error *err)
{
    *ck = NULL;
    return checkpoint_open(a, dir, ck, err) && model_open(a, *ck, m, err) && build(*m, a, err);
}

typedef struct Refusal {
    const char *model, *patch;
    ErrCode code;
    const char *says[2];
} Refusal;

/* Keys of a nested object; "+" keeps the others. */
#define QWEN2_VL_TEXT(keys, code, a, b)                                                            \
    {                                                                                              \
        "qwen2_vl", "{\"text_config\": {\"+\": 1, " keys "}}", code,                               \
        {                                                                                          \
            a, b                                                                                   \
        }                                                                                          \
    }
#define QWEN2_VL_VISION(keys, code, a, b)                                                          \
    {                                                                                              \
        "qwen2_vl", "{\"vision_config\": {\"+\": 1, " keys "}}", code,                             \
        {                                                                                          \
            a, b                                                                                   \
        }                                                                                          \
    }

static const Refusal refusals[] = {
    {"llama", "{\"model_type\": \"gpt5\"}", ERR_UNSUPPORTED, {"gpt5", "qwen3_next"}},
    {"llama", "{\"model_type\": null}", ERR_FORMAT, {"model_type", "missing"}},
    {"llama", "{\"model_type\": 7}", ERR_FORMAT, {"model_type", "string"}},
    {"llama", "{\"hidden_size\": null}", ERR_FORMAT, {"hidden_size", "missing"}},
    {"llama", "{\"hidden_size\": 48}", ERR_FORMAT, {"48", "64"}},
    {"llama", "{\"hidden_size\": -1}", ERR_FORMAT, {"hidden_size", "-1"}},
    {"llama", "{\"hidden_size\": 2000000000}", ERR_FORMAT, {"hidden_size", "2000000000"}},
    {"llama", "{\"num_hidden_layers\": 0}", ERR_FORMAT, {"num_hidden_layers", "0"}},
    {"llama", "{\"num_hidden_layers\": 1000000000}", ERR_FORMAT, {"num_hidden_layers", "1000"}},
    {"llama", "{\"num_hidden_layers\": 3}", ERR_FORMAT, {"layers.2", "missing"}},
    {"llama", "{\"num_hidden_layers\": \"two\"}", ERR_FORMAT, {"num_hidden_layers", "string"}},
    {"llama", "{\"num_attention_heads\": 5}", ERR_FORMAT, {"num_attention_heads", "5"}},
    {"llama",
     "{\"num_attention_heads\": 1024, \"head_dim\": 1024, \"num_key_value_heads\": 1024}",
     ERR_FORMAT,
     {"self_attn", "1048576"}},
    {"llama",
     "{\"head_dim\": 1024, \"num_attention_heads\": 1024, \"num_key_value_heads\": 1}",
     ERR_FORMAT,
     {"self_attn", "1048576"}},
    {"llama", "{\"head_dim\": 15}", ERR_FORMAT, {"15", "even"}},
    {"llama",
     "{\"head_dim\": null, \"num_attention_heads\": 3, \"num_key_value_heads\": 1}",
     ERR_FORMAT,
     {"hidden_size", "head_dim"}},
    {"llama", "{\"vocab_size\": 321}", ERR_FORMAT, {"model.embed_tokens", "321"}},
    {"llama", "{\"vocab_size\": 1e300}", ERR_FORMAT, {"vocab_size", ""}},
    {"llama", "{\"intermediate_size\": null}", ERR_FORMAT, {"intermediate_size", "missing"}},
    {"llama", "{\"intermediate_size\": 120}", ERR_FORMAT, {"gate_proj", "120"}},
    {"llama", "{\"rms_norm_eps\": 0}", ERR_FORMAT, {"rms_norm_eps", "0"}},
    {"llama", "{\"rms_norm_eps\": null}", ERR_FORMAT, {"rms_norm_eps", "missing"}},
    {"llama", "{\"hidden_act\": \"gelu\"}", ERR_UNSUPPORTED, {"hidden_act", "gelu"}},
    {"llama", "{\"attention_bias\": true}", ERR_FORMAT, {"attention_bias", "bias"}},
    {"llama", "{\"mlp_bias\": true}", ERR_FORMAT, {"mlp_bias", "bias"}},
    {"llama", "{\"partial_rotary_factor\": 1.5}", ERR_FORMAT, {"partial_rotary_factor", "1.5"}},
    {"llama", "{\"rope_parameters\": {\"rope_theta\": -3}}", ERR_FORMAT, {"rope_theta", "-3"}},
    {"llama",
     "{\"rope_parameters\": {\"rope_type\": \"longrope\"}}",
     ERR_UNSUPPORTED,
     {"rope_type", "longrope"}},
    {"llama",
     "{\"rope_parameters\": {\"full_attention\": {}}}",
     ERR_UNSUPPORTED,
     {"rope_parameters", "full_attention"}},
    {"llama", "{\"rope_parameters\": [1]}", ERR_FORMAT, {"rope_parameters", "object"}},
    {"llama",
     "{\"rope_parameters\": {\"rope_type\": \"linear\"}}",
     ERR_FORMAT,
     {"factor", "missing"}},
    {"llama",
     "{\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 0}}",
     ERR_FORMAT,
     {"factor", "0"}},
    {"llama_tied_rope3",
     "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4}}",
     ERR_FORMAT,
     {"high_freq_factor", "4"}},
    {"llama_yarn",
     "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"rope_theta\": 1}}",
     ERR_FORMAT,
     {"rope_theta", "1"}},
    {"llama_tied_rope3", "{\"tie_word_embeddings\": false}", ERR_FORMAT, {"lm_head", "missing"}},
    {"mistral", "{\"sliding_window\": 0}", ERR_FORMAT, {"sliding_window", "0"}},
    {"llama",
     "{\"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
     ERR_FORMAT,
     {"sliding_window", "missing"}},
    {"llama", "{\"layer_types\": [\"full_attention\"]}", ERR_FORMAT, {"layer_types", "2"}},
    {"llama",
     "{\"layer_types\": [\"full_attention\", 3]}",
     ERR_UNSUPPORTED,
     {"layer_types", "[1]"}},
    {"qwen3_moe", "{\"num_experts\": 9}", ERR_FORMAT, {"gate", "9"}},
    {"qwen3_moe", "{\"num_experts\": 1000000}", ERR_FORMAT, {"num_experts", "1000000"}},
    {"qwen3_moe", "{\"num_experts_per_tok\": 9}", ERR_FORMAT, {"num_experts_per_tok", "9"}},
    {"qwen3_moe", "{\"decoder_sparse_step\": 0}", ERR_FORMAT, {"decoder_sparse_step", "0"}},
    {"qwen3_moe", "{\"mlp_only_layers\": [\"a\"]}", ERR_FORMAT, {"mlp_only_layers", "[0]"}},
    {"qwen3_moe", "{\"mlp_only_layers\": [1]}", ERR_FORMAT, {"layers.1.mlp.gate_proj", "missing"}},
    {"qwen3_moe", "{\"use_sliding_window\": true}", ERR_UNSUPPORTED, {"use_sliding_window", ""}},
    {"qwen3_next", "{\"linear_num_value_heads\": 3}", ERR_FORMAT, {"linear_num_value_heads", "3"}},
    {"qwen3_next", "{\"linear_num_value_heads\": 8}", ERR_FORMAT, {"in_proj_qkvz", ""}},
    {"qwen3_next", "{\"linear_conv_kernel_dim\": 5}", ERR_FORMAT, {"conv1d", "640"}},
    {"qwen3_next", "{\"linear_conv_kernel_dim\": 1}", ERR_FORMAT, {"linear_conv_kernel_dim", "1"}},
    {"qwen3_next", "{\"linear_key_head_dim\": null}", ERR_FORMAT, {"linear_key_head_dim", ""}},
    {"qwen3_next", "{\"layer_types\": \"all\"}", ERR_FORMAT, {"layer_types", ""}},
    {"qwen3_next",
     "{\"layer_types\": null, \"full_attention_interval\": 2}",
     ERR_FORMAT,
     {"layers.1.self_attn", "missing"}},
    {"whisper", "{\"d_model\": null}", ERR_FORMAT, {"d_model", "missing"}},
    {"whisper", "{\"d_model\": 2000000000}", ERR_FORMAT, {"d_model", "2000000000"}},
    {"whisper", "{\"d_model\": 128}", ERR_FORMAT, {"conv1.weight", "128"}},
    {"whisper", "{\"num_mel_bins\": 128}", ERR_FORMAT, {"conv1.weight", "128"}},
    {"whisper", "{\"num_mel_bins\": 0}", ERR_FORMAT, {"num_mel_bins", "0"}},
    {"whisper", "{\"encoder_attention_heads\": 5}", ERR_FORMAT, {"encoder_attention_heads", "5"}},
    {"whisper", "{\"decoder_attention_heads\": -4}", ERR_FORMAT, {"decoder_attention_heads", "-4"}},
    {"whisper", "{\"encoder_layers\": 3}", ERR_FORMAT, {"encoder.layers.2", "missing"}},
    {"whisper", "{\"decoder_layers\": 1e9}", ERR_FORMAT, {"decoder_layers", "1000"}},
    {"whisper", "{\"decoder_ffn_dim\": 64}", ERR_FORMAT, {"decoder.layers.0.fc1", "64"}},
    {"whisper", "{\"encoder_ffn_dim\": \"big\"}", ERR_FORMAT, {"encoder_ffn_dim", "string"}},
    {"whisper", "{\"max_source_positions\": 65}", ERR_FORMAT, {"encoder.embed_positions", "65"}},
    {"whisper", "{\"max_target_positions\": 0}", ERR_FORMAT, {"max_target_positions", "0"}},
    {"whisper", "{\"vocab_size\": 321}", ERR_FORMAT, {"embed_tokens", "321"}},
    {"whisper", "{\"scale_embedding\": true}", ERR_UNSUPPORTED, {"scale_embedding", "true"}},
    {"whisper",
     "{\"activation_function\": \"relu\"}",
     ERR_UNSUPPORTED,
     {"activation_function", "relu"}},
    {"whisper",
     "{\"tie_word_embeddings\": false}",
     ERR_UNSUPPORTED,
     {"tie_word_embeddings", "false"}},
    {"t5", "{\"d_model\": 0}", ERR_FORMAT, {"d_model", "0"}},
    {"t5", "{\"d_kv\": 32}", ERR_FORMAT, {"SelfAttention.q", "128"}},
    {"t5", "{\"num_heads\": 1024}", ERR_FORMAT, {"relative_attention_bias", "8192"}},
    {"t5", "{\"d_kv\": 1000000}", ERR_FORMAT, {"d_kv", "1000000"}},
    {"t5", "{\"num_heads\": null}", ERR_FORMAT, {"num_heads", "missing"}},
    {"t5", "{\"d_ff\": 64}", ERR_FORMAT, {"DenseReluDense.wi", "64"}},
    {"t5", "{\"num_decoder_layers\": 3}", ERR_FORMAT, {"decoder.block.2", "missing"}},
    {"t5", "{\"layer_norm_epsilon\": 2}", ERR_FORMAT, {"layer_norm_epsilon", "2"}},
    {"t5", "{\"is_encoder_decoder\": false}", ERR_UNSUPPORTED, {"is_encoder_decoder", "false"}},
    {"t5",
     "{\"feed_forward_proj\": \"gated-silu\"}",
     ERR_UNSUPPORTED,
     {"feed_forward_proj", "gated-silu"}},
    {"t5", "{\"feed_forward_proj\": \"gated-gelu\"}", ERR_FORMAT, {"wi_0", "missing"}},
    {"t5", "{\"tie_word_embeddings\": false}", ERR_FORMAT, {"lm_head", "missing"}},
    {"t5",
     "{\"relative_attention_num_buckets\": 2000000}",
     ERR_FORMAT,
     {"relative_attention_num_buckets", "2000000"}},
    {"t5",
     "{\"relative_attention_num_buckets\": 6}",
     ERR_FORMAT,
     {"relative_attention_num_buckets", "6"}},
    {"t5",
     "{\"relative_attention_num_buckets\": 12}",
     ERR_FORMAT,
     {"relative_attention_bias", "48"}},
    {"t5",
     "{\"relative_attention_max_distance\": 4}",
     ERR_FORMAT,
     {"relative_attention_max_distance", "4"}},
    {"t5",
     "{\"relative_attention_max_distance\": 1000000}",
     ERR_FORMAT,
     {"relative_attention_max_distance", "1000000"}},
    {"qwen2_vl", "{\"vision_config\": null}", ERR_FORMAT, {"vision_config", "missing"}},
    {"qwen2_vl", "{\"text_config\": 3}", ERR_FORMAT, {"text_config", "object"}},
    {"qwen2_vl", "{\"text_config\": {}}", ERR_FORMAT, {"text_config: ", "hidden_size"}},
    QWEN2_VL_TEXT("\"use_sliding_window\": true", ERR_UNSUPPORTED, "use_sliding_window", "true"),
    QWEN2_VL_TEXT("\"num_key_value_heads\": 4", ERR_FORMAT, "k_proj", "64"),
    QWEN2_VL_TEXT("\"layer_types\": [\"sliding_attention\", \"full_attention\"], "
                  "\"sliding_window\": 4",
                  ERR_UNSUPPORTED, "layer_types", "sliding_attention"),
    QWEN2_VL_TEXT("\"rope_parameters\": {}", ERR_FORMAT, "mrope_section", "three"),
    QWEN2_VL_TEXT("\"rope_parameters\": {\"mrope_section\": [2, 3]}", ERR_FORMAT, "mrope_section",
                  "three"),
    QWEN2_VL_TEXT("\"rope_parameters\": {\"mrope_section\": [2, 3, 2]}", ERR_FORMAT,
                  "mrope_section", "7"),
    QWEN2_VL_TEXT("\"rope_parameters\": {\"mrope_section\": [9, -1, 0]}", ERR_FORMAT,
                  "mrope_section", "[0]"),
    QWEN2_VL_TEXT("\"rope_parameters\": {\"mrope_section\": [2, \"3\", 3]}", ERR_FORMAT,
                  "mrope_section", "[1]"),
    QWEN2_VL_VISION("\"depth\": 3", ERR_FORMAT, "visual.blocks.2", "missing"),
    QWEN2_VL_VISION("\"depth\": 1e9", ERR_FORMAT, "depth", "1000"),
    QWEN2_VL_VISION("\"num_heads\": 3", ERR_FORMAT, "embed_dim", "3 heads"),
    QWEN2_VL_VISION("\"num_heads\": 32", ERR_FORMAT, "embed_dim", "32 heads"),
    QWEN2_VL_VISION("\"embed_dim\": 1048576", ERR_FORMAT, "embed_dim", "1048576"),
    QWEN2_VL_VISION("\"mlp_ratio\": 4", ERR_FORMAT, "mlp.fc1", "256"),
    QWEN2_VL_VISION("\"hidden_size\": 32", ERR_FORMAT, "hidden_size", "64"),
    QWEN2_VL_VISION("\"in_chans\": 1", ERR_FORMAT, "patch_embed.proj", "dimensions"),
    QWEN2_VL_VISION("\"patch_size\": 16", ERR_FORMAT, "patch_embed.proj", "dimensions"),
    QWEN2_VL_VISION("\"patch_size\": -14", ERR_FORMAT, "patch_size", "-14"),
    QWEN2_VL_VISION("\"temporal_patch_size\": 0", ERR_FORMAT, "temporal_patch_size", "0"),
    QWEN2_VL_VISION("\"spatial_merge_size\": 3", ERR_FORMAT, "merger.mlp.0", "576"),
    QWEN2_VL_VISION("\"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "hidden_act", "gelu"),
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        const Refusal *r = &refusals[i];
        Arena a;
        Checkpoint *ck;
        Model *m;
        Error err = {ERR_NONE, ""};
        arena_init(&a, "test");
        const char *dir = patched(&a, r->model, r->patch);
        const bool ok = load(&a, dir, &ck, &m, &err);
        if (ok)
            fail_msg("%s with %s was accepted", r->model, r->patch);
        if (err.code != r->code || !strstr(err.msg, r->says[0]) || !strstr(err.msg, r->says[1]))
            fail_msg("%s with %s: %s \"%s\", wanted %s with \"%s\" and \"%s\"", r->model, r->patch,
                     err_name(err.code), err.msg, err_name(r->code), r->says[0], r->says[1]);
        checkpoint_close(ck);
        arena_free(&a);
    }
}

/* {"key": value}, or for a key of a nested object {"outer": {"+": 1, "key": value}}. */
static const char *one_key(Arena *a, const char *outer, const char *key, const char *value)
{
    Error err;
    const char *s =
        outer ? arena_printf(a, &err, "{\"%s\": {\"+\": 1, \"%s\": %s}}", outer, key, value)
              : arena_printf(a, &err, "{\"%s\": %s}", key, value);
    must(s != NULL, &err);
    return s;
}

static void try_hostile(const char *model, const char *outer, const char *key)
{
    static const char *const values[] = {"-1",         "0",        "1",         "7",  "65535",
                                         "2147483647", "1e300",    "-1e300",    "[]", "true",
                                         "4294967296", "\"many\"", "{\"a\": 1}"};
    for (size_t v = 0; v < COUNT_OF(values); v++) {
        Arena a;
        Checkpoint *ck;
        Model *m;
        Error err = {ERR_NONE, ""};
        arena_init(&a, "test");
        const char *patch = one_key(&a, outer, key, values[v]);
        const size_t before = mem_in_use();
        if (!load(&a, patched(&a, model, patch), &ck, &m, &err) && err.code != ERR_FORMAT &&
            err.code != ERR_UNSUPPORTED)
            fail_msg("%s with %s: %s, %s", model, patch, err_name(err.code), err.msg);
        if (mem_in_use() - before > (size_t)64 << 20)
            fail_msg("%s with %s took %zu bytes", model, patch, mem_in_use() - before);
        checkpoint_close(ck);
        arena_free(&a);
    }
}

/* Every number of a configuration, also of its nested objects, made hostile: refused, or read; in
 * bounded memory. */
static void test_hostile_numbers(void **state)
{
    (void)state;
    static const char *const models[] = {"whisper", "t5_gated", "qwen2_vl"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Arena a;
        Checkpoint *ck;
        Error err;
        const char *key, *inner;
        json_t *value, *number;
        arena_init(&a, "test");
        must(checkpoint_open(&a, patched(&a, models[i], "{}"), &ck, &err), &err);
        json_t *config = json_deep_copy(checkpoint_config(ck));
        assert_non_null(config);
        json_object_foreach (config, key, value) {
            if (json_is_number(value))
                try_hostile(models[i], NULL, key);
            json_object_foreach (value, inner, number)
                if (json_is_number(number))
                    try_hostile(models[i], key, inner);
        }
        json_decref(config);
        checkpoint_close(ck);
        arena_free(&a);
    }
}

static void test_accepted(void **state)
{
    static const char *const fine[][2] = {
        {"llama", "{\"model_type\": \"LLaMA\"}"},
        {"llama", "{\"rope_parameters\": null, \"max_position_embeddings\": null}"},
        {"llama", "{\"layer_types\": [\"full_attention\", \"sliding_attention\"], "
                  "\"sliding_window\": 8}"},
        {"llama", "{\"tie_word_embeddings\": null}"},
        {"llama", "{\"tie_word_embeddings\": true}"},
        {"mistral", "{\"sliding_window\": null}"},
        {"qwen3", "{\"use_sliding_window\": true, \"sliding_window\": 8, \"layer_types\": null, "
                  "\"max_window_layers\": 1}"},
        {"qwen3_moe", "{\"num_experts\": null, \"num_local_experts\": 8}"},
        {"whisper", "{\"activation_function\": null, \"tie_word_embeddings\": null}"},
        {"t5", "{\"num_decoder_layers\": null, \"scale_decoder_outputs\": null}"},
        {"t5_gated", "{\"relative_attention_max_distance\": 4096}"},
        {"qwen2_vl", "{\"vision_config\": {\"+\": 1, \"in_chans\": 3, \"hidden_act\": null}}"},
        /* As first published: the text's keys beside "vision_config". */
        {"qwen2_vl", "{\"text_config\": null, \"hidden_size\": 64, \"num_hidden_layers\": 2, "
                     "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                     "\"intermediate_size\": 128, \"vocab_size\": 320, \"rms_norm_eps\": 1e-5, "
                     "\"use_sliding_window\": false, \"sliding_window\": 32768, "
                     "\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [2, 3, 3]}}"},
        {"qwen3_next", "{\"layer_types\": null}"},
        {"qwen3_next", "{\"model_type\": \"qwen3-next\", \"intermediate_size\": null}"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(fine); i++) {
        Arena a;
        Checkpoint *ck;
        Model *m;
        Error err;
        arena_init(&a, "test");
        if (!load(&a, patched(&a, fine[i][0], fine[i][1]), &ck, &m, &err))
            fail_msg("%s with %s: %s", fine[i][0], fine[i][1], err.msg);
        assert_int_equal(m->vocab, 320);
        assert_int_equal(m->hidden, 64);
        assert_true(m->n_weights > 0 && m->derived_bytes > 0);
        checkpoint_close(ck);
        arena_free(&a);
    }
}

/* Frequencies of llama_yarn and llama_tied_rope3 by the published formulas, worked out by hand. */
static void test_rope(void **state)
{
    static const struct {
        const char *name;
        double scale;
        double freq[3]; /* of dimensions 0, 3 and 7 of 8 */
    } cases[] = {
        {"llama", 1, {1, 0.0316227766, 0.000316227766}},
        /* theta 5e5: 5e5^(-3/8) and ^(-7/8); wavelengths 6.3 (kept), 862 and 608,000 (a eighth) */
        {"llama_tied_rope3", 1, {1, 7.292665e-3 / 8, 1.0313486e-5 / 8}},
        /* factor 4: dimensions from floor(-0.4)=0 to ceil(2.6)=3 blend, later ones a quarter */
        {"llama_yarn", 1.1386294, {1, 0.0316227766 / 4, 0.000316227766 / 4}},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Arena a;
        Checkpoint *ck;
        Model *m;
        Error err;
        RopeDesc r;
        arena_init(&a, "test");
        must(load(&a, patched(&a, cases[i].name, "{}"), &ck, &m, &err), &err);
        must(model_rope(m, checkpoint_config(ck), 4, 16, 16, &r, &err), &err);
        assert_true(fabs((double)r.scale - cases[i].scale) < 1e-6);
        static const int at[3] = {0, 3, 7};
        for (int j = 0; j < 3; j++)
            if (fabs((double)r.inv_freq[at[j]] / cases[i].freq[j] - 1) > 1e-4)
                fail_msg("%s: frequency %d is %.8g, wanted %.8g", cases[i].name, at[j],
                         (double)r.inv_freq[at[j]], cases[i].freq[j]);
        checkpoint_close(ck);
        arena_free(&a);
    }
}

static void test_reorder(void **state)
{
    (void)state;
    Arena a;
    Checkpoint *ck;
    Model *m;
    Error err;
    Weight w;
    arena_init(&a, "test");
    must(load(&a, patched(&a, "llama", "{}"), &ck, &m, &err), &err);
    const ModelRows rows[] = {{"model.layers.0.self_attn.q_proj", 64},
                              {"model.layers.0.self_attn.k_proj", 32}};
    must(model_weight(m, &w, "both", 64, SHARD_HEAD, rows, 2, &err), &err);
    const RowView q = w.segs[0];
    const RowView k = w.segs[1];
    /* The second crosses the border between q and k. */
    const int64_t from[] = {90, 60, 0};
    const int64_t n[] = {6, 10, 1};
    must(model_reorder(m, &w, from, n, 3, &err), &err);
    assert_int_equal(w.n, 17);
    assert_int_equal(w.n_segs, 4);
    assert_ptr_equal(w.segs[0].data, k.data + 26 * k.row_bytes);
    assert_ptr_equal(w.segs[1].data, q.data + 60 * q.row_bytes);
    assert_int_equal(w.segs[1].n, 4);
    assert_ptr_equal(w.segs[2].data, k.data);
    assert_int_equal(w.segs[2].n, 6);
    assert_ptr_equal(w.segs[3].data, q.data);
    assert_false(model_reorder(m, &w, (int64_t[]){16}, (int64_t[]){2}, 1, &err));
    assert_false(model_reorder(m, &w, (int64_t[]){-1}, (int64_t[]){2}, 1, &err));
    assert_false(model_reorder(m, &w, (int64_t[]){0}, (int64_t[]){INT64_MAX}, 1, &err));
    checkpoint_close(ck);
    arena_free(&a);
}

static void test_families(void **state)
{
    (void)state;
    int n;
    const ModelFamily *const *all = model_families(&n);
    assert_int_equal(n, 7);
    for (int i = 0; i < n; i++) {
        assert_ptr_equal(model_family_find(all[i]->types[0]), all[i]);
        assert_non_null(all[i]->verified_by);
        assert_non_null(all[i]->blocks[0]);
        int parts = 0;
        while (all[i]->parts[parts].name)
            parts++;
        assert_int_equal(parts, all[i]->pipeline == PIPELINE_DECODE ? 1 : 2);
    }
    assert_string_equal(model_family_find("Mistral")->name, "llama");
    assert_string_equal(model_family_find("QWEN3-next")->name, "qwen3_next");
    assert_null(model_family_find("qwen3_nextt"));
    assert_null(model_family_find(""));
}

/* Every allocation of model_open and model_build fails once: ERR_NOMEM each time, nothing is lost.
 */
static void test_torture(void **state)
{
    (void)state;
    static const char *const models[] = {"llama_yarn", "qwen3_moe", "qwen3_next",
                                         "whisper",    "t5_gated",  "qwen2_vl"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        Arena outer;
        Checkpoint *ck;
        Error err;
        arena_init(&outer, "outer");
        must(checkpoint_open(&outer, patched(&outer, models[i], "{}"), &ck, &err), &err);
        const size_t before = mem_in_use();
        bool ok = false;
        for (uint64_t at = 1; !ok; at++) {
            Arena a;
            Model *m;
            arena_init(&a, "test");
            mem_fail_at(at, false);
            ok = model_open(&a, ck, &m, &err) && build(m, &a, &err);
            const bool reached = mem_count_get() >= at;
            mem_fail_at(0, false);
            if (ok && reached)
                fail_msg("%s: allocation %d failed without notice", models[i], (int)at);
            if (!ok && err.code != ERR_NOMEM)
                fail_msg("%s, allocation %d: %s, %s", models[i], (int)at, err_name(err.code),
                         err.msg);
            arena_free(&a);
            assert_int_equal(mem_in_use(), before);
        }
        checkpoint_close(ck);
        arena_free(&outer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_accepted), cmocka_unit_test(test_hostile_numbers),
        cmocka_unit_test(test_rope),     cmocka_unit_test(test_reorder),
        cmocka_unit_test(test_torture),
    };
    json_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
