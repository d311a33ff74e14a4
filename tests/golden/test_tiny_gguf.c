/* The tiny models as GGUF, written from the same weights as the usual converter would: other names,
 * rows of llama's q and k permuted for rotation of neighbours, llama3 frequencies as a tensor,
 * stacked experts, the delta net's projections split. F32, F16 and BF16 files must give the golden
 * logits; Q8_0 files those of a F32 file with the same (dequantised) numbers.
 *
 * Then the files that llama.cpp's converter makes of the same models (scripts/make-gguf-heads.py):
 * its metadata and tensor infos are stored, the weights are filled in, and the whole must have the
 * sha256 of the converter's file. */
#include "support/gguf_head.h"
#include "support/gguf_write.h"
#include "support/run_model.h"
#include "support/tiny_fill.h"

#include "base/file.h"
#include "base/json.h"
#include "base/num.h"
#include "weights/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_TOKENS = 25, VOCAB = 320 };

static const double bound = 1e-4;

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

/* What is written and how. */
typedef struct Twin {
    Arena arena;
    Checkpoint *ck;
    const json_t *config;
    const char *arch;
    GgufWrite w;
    DType type;   /* of matrices */
    bool rounded; /* F32 holding what Q8_0 would */
} Twin;

static int64_t number(const Twin *t, const char *key)
{
    return json_integer_value(json_object_get(t->config, key));
}

static float *values(Twin *t, const char *name, int64_t *n)
{
    Error err;
    const Tensor *tensor = checkpoint_find(t->ck, name);
    if (!tensor)
        fail_msg("no tensor %s", name);
    *n = tensor_elements(tensor);
    float *x = ARENA_ARRAY(&t->arena, *n, float, &err);
    must(x && checkpoint_vector(t->ck, name, *n, x, &err), &err);
    return x;
}

static void put(Twin *t, const char *name, const int64_t *dims, int n_dims, float *x)
{
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++)
        n *= dims[i];
    /* Vectors, convolutions and routers stay F32. */
    const bool matrix = n_dims > 1 && dims[n_dims - 1] % 32 == 0 && !strstr(name, "_inp");
    if (matrix && t->rounded)
        for (int64_t i = 0; i < n; i += 32) {
            uint8_t block[34];
            gguf_write_q8_0(x + i, block);
            const RowView row = {
                .data = block, .row_bytes = 34, .n = 1, .k = 32, .group = 32, .format = FMT_Q8_0};
            format_dequant_row(&row, 0, x + i);
        }
    gguf_write_tensor(&t->w, name, matrix ? t->type : DT_F32, dims, n_dims, x);
}

/* Row 2i + j of a head is row j * d / 2 + i of the published one. */
static void permute_rows(Twin *t, float *x, int64_t heads, int64_t d, int64_t k)
{
    Error err;
    float *old = ARENA_ARRAY(&t->arena, heads * d * k, float, &err);
    must(old != NULL, &err);
    memcpy(old, x, (size_t)(heads * d * k) * sizeof *x);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t r = 0; r < d; r++)
            memcpy(x + (h * d + r) * k, old + (h * d + r % 2 * (d / 2) + r / 2) * k,
                   (size_t)k * sizeof *x);
}

typedef struct Name {
    const char *hf, *gguf;
} Name;

static const Name names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
};

static bool next_model(const Twin *t)
{
    return strcmp(t->arch, "qwen3next") == 0;
}

static void put_plain(Twin *t, int layer, const Name *name)
{
    char hf[128], gguf[128];
    (void)snprintf(hf, sizeof hf, "model.layers.%d.%s", layer, name->hf);
    (void)snprintf(gguf, sizeof gguf, "blk.%d.%s", layer, name->gguf);
    const Tensor *tensor = checkpoint_find(t->ck, hf);
    int64_t n;
    if (!tensor)
        return; /* another kind of layer */
    float *x = values(t, hf, &n);
    int64_t dims[TENSOR_DIMS_MAX];
    int n_dims = 0;
    for (int i = 0; i < tensor->n_dims; i++) /* dimensions of 1 are dropped */
        if (tensor->dims[i] != 1)
            dims[n_dims++] = tensor->dims[i];
    const int64_t d = number(t, "head_dim");
    if (strcmp(t->arch, "llama") == 0 && strstr(hf, "q_proj"))
        permute_rows(t, x, number(t, "num_attention_heads"), d, dims[1]);
    if (strcmp(t->arch, "llama") == 0 && strstr(hf, "k_proj"))
        permute_rows(t, x, number(t, "num_key_value_heads"), d, dims[1]);
    if (next_model(t) && strstr(hf, "norm.weight") && !strstr(hf, "linear_attn"))
        for (int64_t i = 0; i < n; i++)
            x[i] += 1;
    put(t, gguf, dims, n_dims, x);
}

static void put_experts(Twin *t, int layer, const char *proj, const char *gguf_proj)
{
    Error err;
    const int64_t n_experts = number(t, "num_experts");
    float *all = NULL;
    char name[128];
    int64_t dims[3] = {n_experts, 0, 0};
    for (int64_t e = 0; e < n_experts; e++) {
        int64_t n;
        (void)snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, (int)e,
                       proj);
        const Tensor *tensor = checkpoint_find(t->ck, name);
        if (!tensor)
            return;
        const float *x = values(t, name, &n);
        dims[1] = tensor->dims[0];
        dims[2] = tensor->dims[1];
        if (!all)
            all = ARENA_ARRAY(&t->arena, n_experts * n, float, &err);
        must(all != NULL, &err);
        memcpy(all + e * n, x, (size_t)n * sizeof *x);
    }
    (void)snprintf(name, sizeof name, "blk.%d.%s.weight", layer, gguf_proj);
    if (all)
        put(t, name, dims, 3, all);
}

/* [q | k | v.. | z..] for each key head -> attn_qkv [all q | all k | all v], attn_gate [all z]. */
static void put_delta_net(Twin *t, int layer)
{
    Error err;
    char name[128];
    int64_t n;
    (void)snprintf(name, sizeof name, "model.layers.%d.linear_attn.in_proj_qkvz.weight", layer);
    if (!checkpoint_has(t->ck, name))
        return;
    const float *x = values(t, name, &n);
    const int64_t nk = number(t, "linear_num_key_heads");
    const int64_t dk = number(t, "linear_key_head_dim");
    const int64_t v = number(t, "linear_num_value_heads") * number(t, "linear_value_head_dim") / nk;
    const int64_t k = number(t, "hidden_size");
    const int64_t group = 2 * dk + 2 * v;
    const int64_t part_from[4] = {0, dk, 2 * dk, 2 * dk + v};
    const int64_t part_rows[4] = {dk, dk, v, v};
    float *y = ARENA_ARRAY(&t->arena, n, float, &err);
    must(y != NULL, &err);
    float *to = y;
    for (int p = 0; p < 4; p++)
        for (int64_t h = 0; h < nk; h++) {
            const int64_t count = part_rows[p] * k;
            memcpy(to, x + (h * group + part_from[p]) * k, (size_t)count * sizeof *x);
            to += count;
        }
    const int64_t qkv[2] = {nk * (2 * dk + v), k};
    const int64_t z[2] = {nk * v, k};
    (void)snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
    put(t, name, qkv, 2, y);
    (void)snprintf(name, sizeof name, "blk.%d.attn_gate.weight", layer);
    put(t, name, z, 2, y + qkv[0] * k);

    (void)snprintf(name, sizeof name, "model.layers.%d.linear_attn.A_log", layer);
    float *a = values(t, name, &n);
    for (int64_t i = 0; i < n; i++)
        a[i] = -expf(a[i]);
    (void)snprintf(name, sizeof name, "blk.%d.ssm_a", layer);
    put(t, name, &n, 1, a);
}

static void put_top(Twin *t, const char *hf, const char *gguf, bool plus_one)
{
    const Tensor *tensor = checkpoint_find(t->ck, hf);
    int64_t n;
    if (!tensor)
        return;
    float *x = values(t, hf, &n);
    for (int64_t i = 0; plus_one && i < n; i++)
        x[i] += 1;
    put(t, gguf, tensor->dims, tensor->n_dims, x);
}

static void key_u32(Twin *t, const char *key, int64_t v)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s.%s", t->arch, key);
    gguf_write_u32(&t->w, name, (uint32_t)v);
}

static void key_f32(Twin *t, const char *key, double v)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s.%s", t->arch, key);
    gguf_write_f32(&t->w, name, (float)v);
}

static const json_t *scaling(const Twin *t, const char *kind)
{
    const json_t *s = json_object_get(t->config, "rope_scaling");
    const char *type = json_string_value(json_object_get(s, "rope_type"));
    return type && strcmp(type, kind) == 0 ? s : NULL;
}

static double real(const json_t *obj, const char *key)
{
    return json_number_value(json_object_get(obj, key));
}

static void put_rope(Twin *t)
{
    const int64_t d = number(t, "head_dim");
    const double theta = real(t->config, "rope_theta");
    key_f32(t, "rope.freq_base", theta);
    key_u32(t, "rope.dimension_count", next_model(t) ? d / 4 : d);
    const json_t *yarn = scaling(t, "yarn");
    if (yarn) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s.rope.scaling.type", t->arch);
        gguf_write_str(&t->w, name, "yarn");
        key_f32(t, "rope.scaling.factor", real(yarn, "factor"));
        key_u32(t, "rope.scaling.original_context_length",
                json_integer_value(json_object_get(yarn, "original_max_position_embeddings")));
    }
    const json_t *llama3 = scaling(t, "llama3");
    if (!llama3)
        return;
    /* In f32, as the converter does. */
    const float factor = (float)real(llama3, "factor");
    const float low = (float)real(llama3, "low_freq_factor");
    const float high = (float)real(llama3, "high_freq_factor");
    const float original = (float)real(llama3, "original_max_position_embeddings");
    float factors[64];
    const int64_t n = d / 2;
    for (int64_t i = 0; i < n; i++) {
        const float freq = 1 / powf((float)theta, (float)(2 * i) / (float)d);
        const float length = (float)(2 * acos(-1.0)) / freq;
        const float smooth = (original / length - low) / (high - low);
        factors[i] = length < original / high  ? 1
                     : length > original / low ? factor
                                               : 1 / ((1 - smooth) / factor + smooth);
    }
    put(t, "rope_freqs.weight", &n, 1, factors);
}

static void put_config(Twin *t)
{
    gguf_write_str(&t->w, "general.architecture", t->arch);
    key_u32(t, "block_count", number(t, "num_hidden_layers"));
    key_u32(t, "context_length", number(t, "max_position_embeddings"));
    key_u32(t, "embedding_length", number(t, "hidden_size"));
    key_u32(t, "feed_forward_length", number(t, "intermediate_size"));
    key_u32(t, "attention.head_count", number(t, "num_attention_heads"));
    key_u32(t, "attention.head_count_kv", number(t, "num_key_value_heads"));
    key_u32(t, "attention.key_length", number(t, "head_dim"));
    key_u32(t, "attention.value_length", number(t, "head_dim"));
    key_f32(t, "attention.layer_norm_rms_epsilon", real(t->config, "rms_norm_eps"));
    if (number(t, "num_experts")) {
        key_u32(t, "expert_count", number(t, "num_experts"));
        key_u32(t, "expert_used_count", number(t, "num_experts_per_tok"));
        key_u32(t, "expert_feed_forward_length", number(t, "moe_intermediate_size"));
    }
    if (next_model(t)) {
        key_u32(t, "expert_shared_feed_forward_length",
                number(t, "shared_expert_intermediate_size"));
        key_u32(t, "ssm.conv_kernel", number(t, "linear_conv_kernel_dim"));
        key_u32(t, "ssm.state_size", number(t, "linear_key_head_dim"));
        key_u32(t, "ssm.group_count", number(t, "linear_num_key_heads"));
        key_u32(t, "ssm.time_step_rank", number(t, "linear_num_value_heads"));
        key_u32(t, "ssm.inner_size",
                number(t, "linear_num_value_heads") * number(t, "linear_value_head_dim"));
    }
}

static const char *write_twin(Arena *a, const char *dir, const char *name, const char *arch,
                              DType type, bool rounded)
{
    Error err;
    Twin t = {.arch = arch, .type = type, .rounded = rounded};
    arena_init(&t.arena, "twin");
    must(checkpoint_open(&t.arena, dir, &t.ck, &err), &err);
    t.config = checkpoint_config(t.ck);
    gguf_write_begin(&t.w);
    put_config(&t);
    put_rope(&t);
    put_top(&t, "model.embed_tokens.weight", "token_embd.weight", false);
    put_top(&t, "model.norm.weight", "output_norm.weight", next_model(&t));
    put_top(&t, "lm_head.weight", "output.weight", false);
    const Name mlp_norm = {"post_attention_layernorm.weight",
                           next_model(&t) ? "post_attention_norm.weight" : "ffn_norm.weight"};
    for (int i = 0; i < number(&t, "num_hidden_layers"); i++) {
        for (size_t j = 0; j < COUNT_OF(names); j++)
            put_plain(&t, i, &names[j]);
        put_plain(&t, i, &mlp_norm);
        put_experts(&t, i, "gate_proj", "ffn_gate_exps");
        put_experts(&t, i, "up_proj", "ffn_up_exps");
        put_experts(&t, i, "down_proj", "ffn_down_exps");
        put_delta_net(&t, i);
    }
    const char *path =
        arena_printf(a, &err, "%s/tiny/%s-%s%s-%d.gguf", TEST_TMP, name, tensor_dtype(type)->name,
                     rounded ? "-rounded" : "", (int)getpid());
    must(path && gguf_write_end(&t.w, path, &err), &err);
    checkpoint_close(t.ck);
    arena_free(&t.arena);
    return path;
}

/* Logits of all rows: 17 at once, then one by one. */
static void run(const char *path, const int32_t *ids, float logits[N_TOKENS][VOCAB])
{
    Error err;
    Arena a;
    RunModel *r;
    const RunOptions opt = {.numerics = NUM_EXACT,
                            .kv = KV_FORMAT_F32,
                            .threads = 2,
                            .page_tokens = 4,
                            .max_tokens = 32,
                            .n_seqs = 1,
                            .max_rows = 17};
    arena_init(&a, "run");
    must(run_model_open(&a, path, &opt, &r, &err), &err);
    assert_int_equal(run_model_get(r)->vocab, VOCAB);
    for (int at = 0; at < N_TOKENS;) {
        const RunPart part = {.seq = 0, .tokens = ids + at, .n = at ? 1 : 17};
        must(run_model_step(r, &part, 1, logits[at], &err), &err);
        at += part.n;
    }
    run_model_close(r);
    arena_free(&a);
}

static double compare(const char *what, int rows, float got[N_TOKENS][VOCAB],
                      float want[N_TOKENS][VOCAB])
{
    double worst = 0;
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < VOCAB; i++) {
            const double d = fabs((double)got[row][i] - (double)want[row][i]);
            if (!(d <= bound))
                fail_msg("%s: row %d, logit %d is %.7g, wanted %.7g", what, row, i,
                         (double)got[row][i], (double)want[row][i]);
            worst = fmax(worst, d);
        }
    return worst;
}

typedef struct Case {
    const char *name, *arch;
    int rows; /* of the golden logits that must come out; 0: all */
} Case;

static void read_golden(Arena *a, const char *name, int32_t ids[N_TOKENS],
                        float logits[N_TOKENS][VOCAB])
{
    Error err;
    Str bytes;
    Tensor *tensors;
    int64_t n;
    const char *path = arena_printf(a, &err, "%s/tiny/%s/golden.safetensors", TEST_DATA, name);
    must(path && file_read(a, path, 1 << 20, &bytes, &err), &err);
    must(safetensors_parse(a, path, (const uint8_t *)bytes.ptr, bytes.len, &tensors, &n, &err),
         &err);
    for (int64_t i = 0; i < n; i++) {
        if (str_is(tensors[i].name, "ids"))
            memcpy(ids, tensors[i].data, N_TOKENS * sizeof *ids);
        if (str_is(tensors[i].name, "logits"))
            memcpy(logits, tensors[i].data, N_TOKENS * sizeof *logits);
    }
}

static void test_twins(void **state)
{
    static float golden[N_TOKENS][VOCAB], got[N_TOKENS][VOCAB], want[N_TOKENS][VOCAB];
    static const DType types[] = {DT_F32, DT_F16, DT_BF16};
    int32_t ids[N_TOKENS] = {0};
    const Case *c = *state;
    Error err;
    Arena a;
    const char *dir;
    arena_init(&a, "test");
    must(tiny_fill(&a, TEST_DATA, c->name, TEST_TMP, &dir, &err), &err);
    read_golden(&a, c->name, ids, golden);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        const char *path = write_twin(&a, dir, c->name, c->arch, types[i], false);
        run(path, ids, got);
        print_message("%-17s GGUF %s: max |logit difference| %.2g\n", c->name,
                      tensor_dtype(types[i])->name, compare(path, N_TOKENS, got, golden));
        assert_int_equal(unlink(path), 0);
    }
    const char *q8 = write_twin(&a, dir, c->name, c->arch, DT_Q8_0, false);
    const char *f32 = write_twin(&a, dir, c->name, c->arch, DT_F32, true);
    run(q8, ids, got);
    run(f32, ids, want);
    print_message("%-17s GGUF Q8_0 against its numbers as F32: %.2g\n", c->name,
                  compare(q8, N_TOKENS, got, want));
    assert_int_equal(unlink(q8), 0);
    assert_int_equal(unlink(f32), 0);
    arena_free(&a);
}

/* ---- the converter's files ---- */

/* Writes the file that the converter made, with the numbers of ours. */
static const char *write_converted(Arena *a, const char *dir, const Case *c)
{
    Error err;
    GgufHead h;
    Gguf ours;
    must(gguf_head_open(a, TEST_DATA, c->name, &h, &err), &err);
    const char *twin = write_twin(a, dir, c->name, c->arch, DT_F32, false);
    must(gguf_open(a, twin, &ours, &err), &err);
    for (int64_t i = 0; i < h.gguf.n_tensors; i++) {
        const Tensor *t = &h.gguf.tensors[i];
        const Tensor *from = NULL;
        for (int64_t j = 0; j < ours.n_tensors && !from; j++)
            if (str_eq(ours.tensors[j].name, t->name))
                from = &ours.tensors[j];
        if (!from || from->dtype != DT_F32 || tensor_elements(from) != tensor_elements(t))
            fail_msg("no F32 twin of %.*s", (int)t->name.len, t->name.ptr);
        gguf_head_put(&h, t, (const float *)(const void *)from->data);
    }
    gguf_close(&ours);
    assert_int_equal(unlink(twin), 0);
    const char *path =
        arena_printf(a, &err, "%s/tiny/converted-%s-%d.gguf", TEST_TMP, c->name, (int)getpid());
    must(path && gguf_head_write(&h, path, &err), &err);
    return path;
}

static void test_converted(void **state)
{
    static float want[N_TOKENS][VOCAB], got[N_TOKENS][VOCAB];
    int32_t ids[N_TOKENS] = {0};
    const Case *c = *state;
    char model[40];
    Error err;
    Arena a;
    const char *dir;
    const char *type = strchr(c->name, '-');
    (void)snprintf(model, sizeof model, "%.*s", (int)strcspn(c->name, "-"), c->name);
    arena_init(&a, "test");
    must(tiny_fill(&a, TEST_DATA, model, TEST_TMP, &dir, &err), &err);
    read_golden(&a, model, ids, want);
    const char *path = write_converted(&a, dir, c);
    if (type) {
        const char *rounded = write_twin(&a, dir, model, c->arch, DT_F32, true);
        run(rounded, ids, want);
        assert_int_equal(unlink(rounded), 0);
    }
    run(path, ids, got);
    print_message("%-17s by the converter: max |logit difference| %.2g\n", c->name,
                  compare(path, c->rows ? c->rows : N_TOKENS, got, want));
    assert_int_equal(unlink(path), 0);
    arena_free(&a);
}

int main(void)
{
    static Case cases[] = {{"llama", "llama", 0},        {"llama_tied_rope3", "llama", 0},
                           {"llama_yarn", "llama", 0},   {"qwen3", "qwen3", 0},
                           {"qwen3_moe", "qwen3moe", 0}, {"qwen3_next", "qwen3next", 0}};
    static Case converted[] = {{"llama", "llama", 0},
                               {"llama_tied_rope3", "llama", 0},
                               {"llama_yarn", "llama", 0},
                               {"mistral", "llama", 8}, /* its window of 8 is not written */
                               {"qwen3", "qwen3", 0},
                               {"qwen3_moe", "qwen3moe", 0},
                               {"qwen3_next", "qwen3next", 0},
                               {"llama-q8_0", "llama", 0},
                               {"qwen3_moe-q8_0", "qwen3moe", 0}};
    struct CMUnitTest tests[COUNT_OF(cases) + COUNT_OF(converted)];
    size_t n = 0;
    json_setup();
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        tests[n++] = (struct CMUnitTest){cases[i].name, test_twins, NULL, NULL, &cases[i]};
    for (size_t i = 0; i < COUNT_OF(converted); i++)
        tests[n++] =
            (struct CMUnitTest){converted[i].name, test_converted, NULL, NULL, &converted[i]};
    return _cmocka_run_group_tests("tiny_gguf", tests, COUNT_OF(tests), NULL, NULL);
}
