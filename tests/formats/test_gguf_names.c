/* GGUF metadata and names in the words of Hugging Face. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "formats/build_files.h"
#include "weights/gguf_names.h"

static Arena arena;

static int make(void **state)
{
    (void)state;
    arena_init(&arena, "test");
    return 0;
}

static int clean(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

static void test_tensor_names(void **state)
{
    static const char *const cases[][2] = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output.weight", "lm_head.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
        {"blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"},
        {"blk.3.attn_v.weight", "model.layers.3.self_attn.v_proj.weight"},
        {"blk.3.attn_output.weight", "model.layers.3.self_attn.o_proj.weight"},
        {"blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight"},
        {"blk.3.attn_norm.weight", "model.layers.3.input_layernorm.weight"},
        {"blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"},
        {"blk.3.post_attention_norm.weight", "model.layers.3.post_attention_layernorm.weight"},
        {"blk.3.ffn_gate.weight", "model.layers.3.mlp.gate_proj.weight"},
        {"blk.3.ffn_down.weight", "model.layers.3.mlp.down_proj.weight"},
        {"blk.3.ffn_gate_inp.weight", "model.layers.3.mlp.gate.weight"},
        {"blk.3.ffn_up_exps.weight", "model.layers.3.mlp.experts.up_proj.weight"},
        {"blk.3.ffn_gate_inp_shexp.weight", "model.layers.3.mlp.shared_expert_gate.weight"},
        {"blk.3.ffn_down_shexp.weight", "model.layers.3.mlp.shared_expert.down_proj.weight"},
        {"blk.3.ssm_a", "model.layers.3.linear_attn.A_neg_exp"},
        {"blk.3.ssm_dt.bias", "model.layers.3.linear_attn.dt_bias"},
        {"blk.3.ssm_ba.weight", "model.layers.3.linear_attn.in_proj_ba.weight"},
        {"blk.3.attn_qkv.weight", "model.layers.3.linear_attn.in_proj_qkv.weight"},
        {"blk.3.attn_gate.weight", "model.layers.3.linear_attn.in_proj_z.weight"},
        {"v.blk.31.ln1.bias", "visual.blocks.31.norm1.bias"},
        {"v.blk.31.ln2.weight", "visual.blocks.31.norm2.weight"},
        {"v.blk.31.attn_k.weight", "visual.blocks.31.attn.k.weight"},
        {"v.blk.31.attn_out.bias", "visual.blocks.31.attn.proj.bias"},
        {"v.blk.31.ffn_up.weight", "visual.blocks.31.mlp.fc1.weight"},
        {"v.blk.31.ffn_down.weight", "visual.blocks.31.mlp.fc2.weight"},
        {"v.patch_embd.weight", "visual.patch_embed.proj.weight"},
        {"v.patch_embd.weight.1", "visual.patch_embed.proj.weight.1"},
        {"v.post_ln.weight", "visual.merger.ln_q.weight"},
        {"mm.0.bias", "visual.merger.mlp.0.bias"},
        {"mm.2.weight", "visual.merger.mlp.2.weight"},
        /* without a name over there */
        {"rope_freqs.weight", "rope_freqs.weight"},
        {"blk.3.nextn.eh_proj.weight", "blk.3.nextn.eh_proj.weight"},
        {"v.blk.3.attn_norm.weight", "v.blk.3.attn_norm.weight"},
        {"mm.1.weight", "mm.1.weight"},
        {"blk.3", "blk.3"},
        {"blk.", "blk."},
        {"blk.3.", "blk.3."},
        {"blk..attn_q.weight", "blk..attn_q.weight"},
        {"blk.x.attn_q.weight", "blk.x.attn_q.weight"},
        {"blk.3.attn_qx.weight", "blk.3.attn_qx.weight"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Str out;
        Error err;
        assert_true(gguf_names_tensor(&arena, NULL, str_from(cases[i][0]), &out, &err));
        assert_string_equal(out.ptr, cases[i][1]);
        assert_int_equal(out.len, strlen(cases[i][1]));
    }
}

/* ---- configuration ---- */

static void gguf_base(GgufBuilder *g, const char *arch)
{
    static const struct {
        const char *key;
        uint32_t value;
    } ints[] = {{"block_count", 4},
                {"embedding_length", 64},
                {"context_length", 512},
                {"attention.head_count", 8},
                {"feed_forward_length", 128}};
    gguf_start(g);
    gguf_text(g, "general.architecture", arch);
    for (size_t i = 0; i < COUNT_OF(ints); i++) {
        char key[80];
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].key);
        gguf_u32(g, key, ints[i].value);
    }
    char key[80];
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_f32(g, key, 1e-6F);
}

static bool parse_built(GgufBuilder *g, Gguf *out, Error *err)
{
    StrBuf b;
    gguf_finish(g, &b);
    uint8_t *copy = arena_take(&arena, 1, b.len, err);
    memcpy(copy, b.ptr, b.len);
    const size_t len = b.len;
    strbuf_free(&b);
    return gguf_parse(&arena, "the file", copy, len, out, err);
}

/* The configuration of what was built, or NULL and the error. */
static json_t *config_of(GgufBuilder *g, Error *err)
{
    Gguf parsed;
    json_t *config = NULL;
    return parse_built(g, &parsed, err) && gguf_names_config(&parsed, &config, err) ? config : NULL;
}

static void check_json(const json_t *config, const char *want)
{
    Error err = {0};
    json_t *w = json_parse("wanted", str_from(want), &err);
    if (!w)
        fail_msg("%s", err.msg);
    const char *key;
    json_t *v;
    json_object_foreach (w, key, v) {
        const json_t *got = json_object_get(config, key);
        if (json_is_null(v) ? got != NULL : !json_equal(got, v)) {
            char *text = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
            char *wanted = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
            fail_msg("%s is %s, wanted %s", key, text ? text : "missing", wanted);
        }
    }
    json_decref(w);
}

static void test_llama(void **state)
{
    (void)state;
    GgufBuilder g;
    Error err = {0};
    gguf_base(&g, "llama");
    gguf_u32(&g, "llama.attention.head_count_kv", 2);
    gguf_u32(&g, "llama.rope.dimension_count", 8);
    gguf_f32(&g, "llama.rope.freq_base", 500000.0F);
    gguf_u32(&g, "llama.vocab_size", 300);
    gguf_u32(&g, "tokenizer.ggml.bos_token_id", 0);
    gguf_u32(&g, "tokenizer.ggml.eos_token_id", 1);
    gguf_u32(&g, "tokenizer.ggml.eot_token_id", 3);
    gguf_array(&g, "tokenizer.ggml.tokens", GGUF_STR, 6);
    static const char *const texts[] = {"<s>",        "</s>",       "<|im_end|>",
                                        "<|eot_id|>", "<|im_end|>", "x"};
    for (int i = 0; i < 6; i++)
        put_gguf_str(&g.kv, texts[i]);
    gguf_array(&g, "tokenizer.ggml.token_type", GGUF_I32, 6);
    for (int i = 0; i < 6; i++) /* 4 is a plain token that only looks like one */
        put_int(&g.kv, i == 4 ? 1 : 3, 4);
    gguf_tensor(&g, "token_embd.weight", 2, (uint64_t[]){64, 320}, 1, 64 * 320 * 2);
    json_t *config = config_of(&g, &err);
    if (!config)
        fail_msg("%s", err.msg);
    check_json(config, "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":4,"
                       "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":8,"
                       "\"intermediate_size\":128,\"rope_theta\":500000.0,\"rope_scaling\":null,"
                       "\"partial_rotary_factor\":null,\"max_position_embeddings\":512,"
                       "\"vocab_size\":320,\"tie_word_embeddings\":true,\"rope_interleaved\":true,"
                       "\"num_experts\":null,\"bos_token_id\":0,"
                       "\"eos_token_id\":[1,3,2]}");
    const double eps = json_number_value(json_object_get(config, "rms_norm_eps"));
    assert_true((float)eps == 1e-6F);
    json_decref(config);
}

static void test_qwen3_moe(void **state)
{
    (void)state;
    GgufBuilder g;
    Error err = {0};
    gguf_base(&g, "qwen3moe");
    gguf_u32(&g, "qwen3moe.attention.key_length", 16);
    gguf_u32(&g, "qwen3moe.expert_count", 16);
    gguf_u32(&g, "qwen3moe.expert_used_count", 4);
    gguf_u32(&g, "qwen3moe.expert_feed_forward_length", 48);
    gguf_tensor(&g, "output.weight", 2, (uint64_t[]){64, 3}, 1, 64 * 3 * 2);
    json_t *config = config_of(&g, &err);
    if (!config)
        fail_msg("%s", err.msg);
    check_json(config, "{\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":8,\"head_dim\":16,"
                       "\"num_experts\":16,\"num_experts_per_tok\":4,"
                       "\"moe_intermediate_size\":48,\"norm_topk_prob\":true,"
                       "\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
                       "\"rope_theta\":10000.0,\"rope_interleaved\":null,"
                       "\"tie_word_embeddings\":false,\"eos_token_id\":[]}");
    json_decref(config);
}

static void test_qwen3_next(void **state)
{
    (void)state;
    GgufBuilder g;
    Error err = {0};
    gguf_base(&g, "qwen3next");
    gguf_u32(&g, "qwen3next.attention.key_length", 32);
    gguf_u32(&g, "qwen3next.rope.dimension_count", 8);
    gguf_u32(&g, "qwen3next.nextn_predict_layers", 1);
    gguf_u32(&g, "qwen3next.expert_count", 16);
    gguf_u32(&g, "qwen3next.expert_shared_feed_forward_length", 24);
    gguf_u32(&g, "qwen3next.ssm.conv_kernel", 4);
    gguf_u32(&g, "qwen3next.ssm.state_size", 16);
    gguf_u32(&g, "qwen3next.ssm.group_count", 2);
    gguf_u32(&g, "qwen3next.ssm.time_step_rank", 4);
    gguf_u32(&g, "qwen3next.ssm.inner_size", 96);
    gguf_u32(&g, "qwen3next.full_attention_interval", 3);
    gguf_array(&g, "qwen3next.attention.recurrent_layers", GGUF_BOOL, 4);
    put_int(&g.kv, 0x00000101, 4);
    json_t *config = config_of(&g, &err);
    if (!config)
        fail_msg("%s", err.msg);
    check_json(config,
               "{\"model_type\":\"qwen3_next\",\"num_hidden_layers\":3,"
               "\"partial_rotary_factor\":0.25,\"shared_expert_intermediate_size\":24,"
               "\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":16,"
               "\"linear_value_head_dim\":24,\"linear_num_key_heads\":2,"
               "\"linear_num_value_heads\":4,\"full_attention_interval\":3,"
               "\"layer_types\":[\"linear_attention\",\"linear_attention\",\"full_attention\"]}");
    json_decref(config);
}

static void test_t5(void **state)
{
    static const char *const names[][2] = {
        {"token_embd.weight", "shared.weight"},
        {"output.weight", "lm_head.weight"},
        {"enc.output_norm.weight", "encoder.final_layer_norm.weight"},
        {"dec.output_norm.weight", "decoder.final_layer_norm.weight"},
        {"enc.blk.11.attn_rel_b.weight",
         "encoder.block.11.layer.0.SelfAttention.relative_attention_bias.weight"},
        {"enc.blk.0.attn_o.weight", "encoder.block.0.layer.0.SelfAttention.o.weight"},
        {"enc.blk.0.ffn_norm.weight", "encoder.block.0.layer.1.layer_norm.weight"},
        {"dec.blk.3.cross_attn_norm.weight", "decoder.block.3.layer.1.layer_norm.weight"},
        {"dec.blk.3.cross_attn_k.weight", "decoder.block.3.layer.1.EncDecAttention.k.weight"},
        {"dec.blk.3.ffn_down.weight", "decoder.block.3.layer.2.DenseReluDense.wo.weight"},
        {"dec.blk.3.ffn_gate.weight", "decoder.block.3.layer.2.DenseReluDense.wi_0.weight"},
        /* without a name over there */
        {"dec.blk.x.ffn_down.weight", "dec.blk.x.ffn_down.weight"},
        {"dec.blk.3", "dec.blk.3"},
        {"blk.0.attn_q.weight", "blk.0.attn_q.weight"},
    };
    (void)state;
    for (int gated = 0; gated < 2; gated++) {
        GgufBuilder g;
        Error err = {0};
        Str out;
        gguf_base(&g, "t5");
        gguf_u32(&g, "t5.decoder_block_count", 3);
        gguf_u32(&g, "t5.attention.key_length", 16);
        gguf_u32(&g, "t5.attention.relative_buckets_count", 32);
        gguf_u32(&g, "t5.decoder_start_token_id", 0);
        gguf_tensor(&g, "token_embd.weight", 2, (uint64_t[]){64, 320}, 1, 64 * 320 * 2);
        if (gated) {
            gguf_tensor(&g, "enc.blk.0.ffn_gate.weight", 2, (uint64_t[]){64, 128}, 1, 64 * 256);
            gguf_tensor(&g, "output.weight", 2, (uint64_t[]){64, 320}, 1, 64 * 320 * 2);
        }
        json_t *config = config_of(&g, &err);
        if (!config)
            fail_msg("%s", err.msg);
        check_json(config, "{\"model_type\":\"t5\",\"d_model\":64,\"d_ff\":128,\"d_kv\":16,"
                           "\"num_layers\":4,\"num_decoder_layers\":3,\"num_heads\":8,"
                           "\"n_positions\":512,\"relative_attention_num_buckets\":32,"
                           "\"decoder_start_token_id\":0,\"vocab_size\":320}");
        check_json(config,
                   gated ? "{\"feed_forward_proj\":\"gated-gelu\",\"tie_word_embeddings\":false}"
                         : "{\"feed_forward_proj\":\"relu\",\"tie_word_embeddings\":true}");
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            assert_true(gguf_names_tensor(&arena, config, str_from(names[i][0]), &out, &err));
            assert_string_equal(out.ptr, names[i][1]);
        }
        assert_true(
            gguf_names_tensor(&arena, config, str_from("enc.blk.7.ffn_up.weight"), &out, &err));
        assert_string_equal(out.ptr, gated ? "encoder.block.7.layer.1.DenseReluDense.wi_1.weight"
                                           : "encoder.block.7.layer.1.DenseReluDense.wi.weight");
        json_decref(config);
    }
    GgufBuilder g;
    Error err = {0};
    const char *const says[] = {"is missing", "t5.attention.key_length"};
    gguf_base(&g, "t5");
    assert_null(config_of(&g, &err));
    expect_error("key_length", &err, ERR_FORMAT, says, 2);
}

/* ---- a vision tower ---- */

static void sections(GgufBuilder *g, GgufType item, const uint32_t *v, uint64_t n)
{
    gguf_array(g, "qwen2vl.rope.dimension_sections", item, n);
    for (uint64_t i = 0; i < n; i++)
        put_int(&g->kv, v[i], 4);
}

static void test_qwen2_vl(void **state)
{
    static const struct {
        GgufType item;
        uint64_t n;
        uint32_t v[5];
    } bad[] = {{GGUF_I32, 2, {2, 2}},
               {GGUF_I32, 4, {2, 1, 1, 1}},
               {GGUF_I32, 5, {2, 1, 1, 0, 0}},
               {GGUF_F32, 3, {0, 0, 0}}};
    (void)state;
    for (int yarn = 0; yarn < 2; yarn++) {
        GgufBuilder g;
        Error err = {0};
        gguf_base(&g, "qwen2vl");
        sections(&g, GGUF_I32, (uint32_t[]){2, 1, 1, 0}, 3 + (uint64_t)yarn);
        if (yarn) {
            gguf_text(&g, "qwen2vl.rope.scaling.type", "yarn");
            gguf_f32(&g, "qwen2vl.rope.scaling.factor", 4.0F);
        }
        json_t *config = config_of(&g, &err);
        if (!config)
            fail_msg("%s", err.msg);
        assert_true(gguf_names_has_vision(config));
        check_json(config, "{\"model_type\":\"qwen2_vl\",\"vision_config\":null}");
        check_json(json_object_get(config, "rope_scaling"),
                   yarn ? "{\"rope_type\":\"yarn\",\"factor\":4.0,\"mrope_section\":[2,1,1]}"
                        : "{\"rope_type\":\"default\",\"mrope_section\":[2,1,1]}");
        json_decref(config);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        GgufBuilder g;
        Error err = {0};
        const char *const says[] = {"dimension_sections\" is no array of three"};
        gguf_base(&g, "qwen2vl");
        sections(&g, bad[i].item, bad[i].v, bad[i].n);
        assert_null(config_of(&g, &err));
        expect_error("sections", &err, ERR_FORMAT, says, 1);
    }
    GgufBuilder g;
    Error err = {0};
    const char *const says[] = {"dimension_sections\" is missing"};
    gguf_base(&g, "qwen2vl");
    assert_null(config_of(&g, &err));
    expect_error("sections", &err, ERR_FORMAT, says, 1);
}

static const char *const vision_keys[] = {"block_count", "embedding_length", "patch_size",
                                          "projection_dim", "attention.head_count"};

/* A tower of width 4, but the key `without`. */
static void vision_base(GgufBuilder *g, const char *without)
{
    gguf_start(g);
    gguf_text(g, "general.architecture", "clip");
    for (size_t i = 0; i < COUNT_OF(vision_keys); i++) {
        char key[80];
        snprintf(key, sizeof key, "clip.vision.%s", vision_keys[i]);
        if (strcmp(vision_keys[i], without) != 0)
            gguf_u32(g, key, 4);
    }
}

/* The "vision_config" of what was built, or NULL and the error. */
static json_t *vision_of(GgufBuilder *g, Error *err)
{
    Gguf parsed;
    json_t *config = json_object();
    json_t *vision = NULL;
    if (parse_built(g, &parsed, err) && gguf_names_vision(&parsed, config, err))
        vision = json_incref(json_object_get(config, "vision_config"));
    json_decref(config);
    return vision;
}

static void test_vision(void **state)
{
    static const char *const flags[] = {NULL, "clip.use_gelu", "clip.use_silu"};
    static const char *const acts[] = {"{\"hidden_act\":\"quick_gelu\"}",
                                       "{\"hidden_act\":\"gelu\"}", "{\"hidden_act\":\"silu\"}"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        GgufBuilder g;
        Error err = {0};
        vision_base(&g, "");
        gguf_text(&g, "clip.projector_type", "qwen2vl_merger");
        gguf_u32(&g, "clip.vision.feed_forward_length", 1536); /* of no meaning */
        gguf_u32(&g, "clip.vision.spatial_merge_size", 3);
        if (flags[i])
            gguf_key(&g, flags[i], GGUF_BOOL), put_int(&g.kv, 1, 1);
        gguf_tensor(&g, "v.blk.0.ffn_up.weight", 2, (uint64_t[]){4, 12}, 0, (size_t)4 * 4 * 12);
        json_t *vision = vision_of(&g, &err);
        if (!vision)
            fail_msg("%s", err.msg);
        check_json(vision, "{\"depth\":4,\"embed_dim\":4,\"num_heads\":4,\"patch_size\":4,"
                           "\"hidden_size\":4,\"mlp_ratio\":3,\"spatial_merge_size\":3,"
                           "\"temporal_patch_size\":2}");
        check_json(vision, acts[i]);
        json_decref(vision);
    }
}

static void vision_bad(GgufBuilder *g, ErrCode code, const char *says)
{
    Error err = {0};
    const char *const parts[] = {"the file", says};
    if (vision_of(g, &err))
        fail_msg("accepted: %s", says);
    expect_error("vision", &err, code, parts, 2);
}

static void test_vision_errors(void **state)
{
    (void)state;
    GgufBuilder g;
    for (size_t i = 0; i < COUNT_OF(vision_keys); i++) {
        char says[80];
        snprintf(says, sizeof says, "key \"clip.vision.%s\" is missing", vision_keys[i]);
        vision_base(&g, vision_keys[i]);
        gguf_text(&g, "clip.projector_type", "qwen2vl_merger");
        vision_bad(&g, ERR_FORMAT, says);
    }
    vision_base(&g, "");
    vision_bad(&g, ERR_UNSUPPORTED, "\"clip\" with projector \"\", known is clip with");
    vision_base(&g, "");
    gguf_text(&g, "clip.projector_type", "qwen2.5vl_merger");
    vision_bad(&g, ERR_UNSUPPORTED, "projector \"qwen2.5vl_merger\"");
    vision_base(&g, "");
    gguf_u32(&g, "clip.projector_type", 1);
    vision_bad(&g, ERR_FORMAT, "\"clip.projector_type\" is of type u32");
    gguf_base(&g, "llama");
    vision_bad(&g, ERR_UNSUPPORTED, "architecture \"llama\"");
    vision_base(&g, "");
    gguf_text(&g, "clip.projector_type", "qwen2vl_merger");
    vision_bad(&g, ERR_FORMAT, "tensor \"v.blk.0.ffn_up.weight\" is missing");
    vision_base(&g, "");
    gguf_text(&g, "clip.projector_type", "qwen2vl_merger");
    gguf_tensor(&g, "v.blk.0.ffn_up.weight", 2, (uint64_t[]){4, 7}, 0, (size_t)4 * 4 * 7);
    vision_bad(&g, ERR_FORMAT, "has 7 rows, wanted a multiple of");
    vision_base(&g, "embedding_length");
    gguf_text(&g, "clip.projector_type", "qwen2vl_merger");
    gguf_u32(&g, "clip.vision.embedding_length", 0);
    gguf_tensor(&g, "v.blk.0.ffn_up.weight", 2, (uint64_t[]){4, 8}, 0, (size_t)4 * 4 * 8);
    vision_bad(&g, ERR_FORMAT, "wanted a multiple of");
    vision_base(&g, "");
    gguf_text(&g, "clip.projector_type", "qwen2vl_merger");
    gguf_text(&g, "clip.use_gelu", "yes");
    gguf_tensor(&g, "v.blk.0.ffn_up.weight", 2, (uint64_t[]){4, 8}, 0, (size_t)4 * 4 * 8);
    vision_bad(&g, ERR_FORMAT, "\"clip.use_gelu\" is of type string");
}

static void test_rope_scaling(void **state)
{
    (void)state;
    GgufBuilder g;
    Error err = {0};
    gguf_base(&g, "llama");
    gguf_text(&g, "llama.rope.scaling.type", "yarn");
    gguf_f32(&g, "llama.rope.scaling.factor", 4.0F);
    gguf_u32(&g, "llama.rope.scaling.original_context_length", 128);
    gguf_f32(&g, "llama.rope.scaling.yarn_beta_fast", 32.0F);
    json_t *config = config_of(&g, &err);
    check_json(config, "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
                       "\"original_max_position_embeddings\":128,\"beta_fast\":32.0}}");
    json_decref(config);

    gguf_base(&g, "qwen3");
    gguf_f32(&g, "qwen3.rope.scale_linear", 2.0F); /* an early file */
    config = config_of(&g, &err);
    check_json(config, "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0}}");
    json_decref(config);

    gguf_base(&g, "llama");
    gguf_text(&g, "llama.rope.scaling.type", "none");
    config = config_of(&g, &err);
    check_json(config, "{\"rope_scaling\":null}");
    json_decref(config);

    gguf_base(&g, "mistral3");
    gguf_text(&g, "mistral3.rope.scaling.type", "yarn");
    gguf_f32(&g, "mistral3.rope.scaling.factor", 16.0F);
    gguf_f32(&g, "mistral3.rope.scaling.yarn_log_multiplier", 1.0F);
    gguf_f32(&g, "mistral3.attention.temperature_scale", 0.5F);
    config = config_of(&g, &err);
    check_json(config, "{\"model_type\":\"ministral3\",\"rope_interleaved\":true,"
                       "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":16.0,\"mscale\":1.0,"
                       "\"mscale_all_dim\":1.0,\"llama_4_scaling_beta\":0.5}}");
    json_decref(config);
}

static void test_per_layer_arrays(void **state)
{
    (void)state;
    GgufBuilder g;
    Error err = {0};
    gguf_base(&g, "qwen3");
    gguf_array(&g, "qwen3.attention.head_count_kv", GGUF_I32, 3);
    put_int(&g.kv, 0, 4), put_int(&g.kv, 2, 4), put_int(&g.kv, 2, 4);
    json_t *config = config_of(&g, &err);
    check_json(config, "{\"num_key_value_heads\":2}");
    json_decref(config);
}

/* ---- errors ---- */

static void test_errors(void **state)
{
    enum { NOTHING, TEXT, NEGATIVE, NAN_F32, UNEQUAL, STRINGS, ZERO, SHORT };
    static const struct {
        const char *arch, *key;
        int value;
        ErrCode code;
        const char *says;
    } cases[] = {
        {"gpt-j", "gpt-j.x", ZERO, ERR_UNSUPPORTED, "architecture \"gpt-j\", known are llama"},
        {"llama", "llama.rope.freq_base", NAN_F32, ERR_FORMAT, "\"llama.rope.freq_base\" is not"},
        {"llama", "llama.rope.freq_base", TEXT, ERR_FORMAT, "is of type string, wanted a number"},
        {"llama", "llama.attention.head_count_kv", NEGATIVE, ERR_FORMAT, "is -1, wanted 0 to"},
        {"llama", "llama.attention.head_count_kv", UNEQUAL, ERR_UNSUPPORTED, "differs between"},
        {"llama", "llama.attention.head_count_kv", STRINGS, ERR_FORMAT, "no array of integers"},
        {"llama", "llama.attention.key_length", ZERO, ERR_FORMAT, "key_length\" is 0"},
        {"llama", "llama.rope.scaling.type", TEXT, ERR_UNSUPPORTED, "\"text\", wanted linear"},
        {"llama", "llama.nextn_predict_layers", UNEQUAL, ERR_UNSUPPORTED, "differs"},
        {"llama", "llama.expert_weights_norm", TEXT, ERR_FORMAT, "wanted a bool"},
        {"qwen3next", "qwen3next.attention.recurrent_layers", SHORT, ERR_FORMAT,
         "no array of 4 bools"},
        {"llama", "tokenizer.ggml.eos_token_id", TEXT, ERR_FORMAT, "eos_token_id"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        GgufBuilder g;
        Error err = {0};
        const char *key = cases[i].key;
        gguf_base(&g, cases[i].arch);
        switch (cases[i].value) {
        case TEXT:
            gguf_text(&g, key, "text");
            break;
        case NEGATIVE:
            gguf_key(&g, key, GGUF_I32), put_int(&g.kv, UINT32_MAX, 4);
            break;
        case NAN_F32:
            gguf_key(&g, key, GGUF_F32), put_int(&g.kv, 0x7fc00000, 4);
            break;
        case UNEQUAL:
            gguf_array(&g, key, GGUF_U8, 2), put_int(&g.kv, 0x0102, 2);
            break;
        case STRINGS:
            gguf_array(&g, key, GGUF_STR, 0);
            break;
        case SHORT:
            gguf_array(&g, key, GGUF_BOOL, 3), put_int(&g.kv, 0, 3);
            break;
        case ZERO:
            gguf_u32(&g, key, 0);
            break;
        default:
            break;
        }
        json_t *config = config_of(&g, &err);
        if (config)
            fail_msg("accepted: %s", cases[i].says);
        const char *const parts[] = {"the file", cases[i].says};
        expect_error(key, &err, cases[i].code, parts, 2);
    }
}

static void test_missing_keys(void **state)
{
    static const char *const required[] = {
        "block_count",          "embedding_length",    "context_length",
        "attention.head_count", "feed_forward_length", "attention.layer_norm_rms_epsilon"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(required); i++) {
        GgufBuilder g;
        Error err = {0};
        gguf_start(&g);
        gguf_text(&g, "general.architecture", "llama");
        for (size_t j = 0; j < COUNT_OF(required); j++) {
            char key[80];
            snprintf(key, sizeof key, "llama.%s", required[j]);
            if (j != i)
                gguf_u32(&g, key, 8);
        }
        assert_null(config_of(&g, &err));
        const char *const parts[] = {"is missing", required[i]};
        expect_error(required[i], &err, ERR_FORMAT, parts, 2);
    }
    GgufBuilder g;
    Error err = {0};
    gguf_start(&g);
    assert_null(config_of(&g, &err));
    assert_non_null(strstr(err.msg, "\"general.architecture\" is missing"));
}

static void test_out_of_memory(void **state)
{
    (void)state;
    GgufBuilder builder;
    StrBuf b;
    Gguf g;
    Error err = {0};
    gguf_base(&builder, "llama");
    gguf_text(&builder, "llama.rope.scaling.type", "yarn");
    gguf_f32(&builder, "llama.rope.scaling.factor", 4.0F);
    gguf_u32(&builder, "tokenizer.ggml.eos_token_id", 1);
    gguf_finish(&builder, &b);
    assert_true(gguf_parse(&arena, "f", (const uint8_t *)b.ptr, b.len, &g, &err));
    const size_t before = mem_in_use();
    uint64_t n = 0;
    for (bool ok = false; !ok;) {
        json_t *config;
        mem_fail_at(++n, false);
        ok = gguf_names_config(&g, &config, &err);
        mem_fail_at(0, false);
        if (ok)
            json_decref(config);
        else
            expect_error("config", &err, ERR_NOMEM, NULL, 0);
        assert_int_equal(mem_in_use(), before);
    }
    assert_true(n > 30);
    strbuf_free(&b);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, clean)

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        TEST(test_tensor_names),  TEST(test_llama),
        TEST(test_qwen3_moe),     TEST(test_qwen3_next),
        TEST(test_rope_scaling),  TEST(test_per_layer_arrays),
        TEST(test_qwen2_vl),      TEST(test_vision),
        TEST(test_vision_errors), TEST(test_t5),
        TEST(test_errors),        TEST(test_missing_keys),
        TEST(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
