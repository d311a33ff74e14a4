/* Whole models in every quantisation scheme of Hugging Face checkpoints: a tiny llama with random
 * codes against its twin, whose weights are the same numbers as F32. Both in the exact class: the
 * logits may differ by what f32 sums in another order cost. (That the numbers are the schemes' own
 * is formats.quant.) */
#include "support/run_model.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "weights/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    VOCAB = 320,
    HIDDEN = 64,
    FFN = 128,
    KV = 32,
    HEAD_DIM = 16,
    LAYERS = 2,
    N_TOKENS = 9,
    PARTS_MAX = 5
};

/* A tensor of a quantised matrix [n][k]. */
typedef struct PartShape {
    const char *suffix, *dtype;
    int n_num, n_div, k_num, k_div; /* its dimensions: n * n_num / n_div and k * k_num / k_div, one
                                       where the first is 0 */
    bool transposed;
    char fill; /* r: random bytes; e: e4m3 that is no NaN; p: positive e4m3; s: small numbers, d:
                  smaller; g: groups of 32 columns, the columns shuffled */
} PartShape;

typedef struct Scheme {
    const char *name, *config;
    PartShape parts[PARTS_MAX];
    bool derives, moe;
} Scheme;

/* Groups are of 32 columns. */
static const Scheme schemes[] = {
    {"fp8_block",
     "{\"quant_method\":\"fp8\",\"weight_block_size\":[16,32]}",
     {{".weight", "F8_E4M3", 1, 1, 1, 1, false, 'e'},
      {".weight_scale_inv", "F32", 1, 16, 1, 32, false, 's'}},
     true,
     false},
    {"fp8_channel",
     "{\"quant_method\":\"compressed-tensors\"}",
     {{".weight", "F8_E4M3", 1, 1, 1, 1, false, 'e'},
      {".weight_scale", "F32", 1, 1, 0, 1, false, 's'}},
     false,
     false},
    {"fp8_tensor",
     "{\"quant_method\":\"modelopt\"}",
     {{".weight", "F8_E4M3", 1, 1, 1, 1, false, 'e'},
      {".weight_scale", "F32", 0, 1, 0, 1, false, 's'}},
     false,
     false},
    {"nvfp4",
     "{\"quant_method\":\"modelopt\"}",
     {{".weight", "U8", 1, 1, 1, 2, false, 'r'},
      {".weight_scale", "F8_E4M3", 1, 1, 1, 16, false, 'p'},
      {".weight_scale_2", "F32", 0, 1, 0, 1, false, 's'}},
     false,
     false},
    {"int4",
     "{\"quant_method\":\"compressed-tensors\"}",
     {{".weight_packed", "I32", 1, 1, 1, 8, false, 'r'},
      {".weight_scale", "F32", 1, 1, 1, 32, false, 's'},
      {".weight_zero_point", "I32", 1, 8, 1, 32, false, 'r'}},
     true,
     false},
    {"int8",
     "{\"quant_method\":\"compressed-tensors\"}",
     {{".weight", "I8", 1, 1, 1, 1, false, 'r'}, {".weight_scale", "F32", 1, 1, 0, 1, false, 'd'}},
     true,
     false},
    {"gptq",
     "{\"quant_method\":\"gptq\",\"bits\":4}",
     {{".qweight", "I32", 1, 1, 1, 8, true, 'r'},
      {".qzeros", "I32", 1, 8, 1, 32, true, 'r'},
      {".scales", "F32", 1, 1, 1, 32, true, 's'}},
     true,
     false},
    {"gptq_act",
     "{\"quant_method\":\"gptq\",\"bits\":3}",
     {{".qweight", "I32", 1, 1, 3, 32, true, 'r'},
      {".qzeros", "I32", 3, 32, 1, 32, true, 'r'},
      {".scales", "F32", 1, 1, 1, 32, true, 's'},
      {".g_idx", "I32", 0, 1, 1, 1, false, 'g'}},
     true,
     false},
    {"gptq_act_moe",
     "{\"quant_method\":\"gptq\",\"bits\":4}",
     {{".qweight", "I32", 1, 1, 1, 8, true, 'r'},
      {".qzeros", "I32", 1, 8, 1, 32, true, 'r'},
      {".scales", "F32", 1, 1, 1, 32, true, 'd'},
      {".g_idx", "I32", 0, 1, 1, 1, false, 'g'}},
     true,
     true},
    {"awq",
     "{\"quant_method\":\"awq\",\"bits\":4}",
     {{".qweight", "I32", 1, 8, 1, 1, true, 'r'},
      {".qzeros", "I32", 1, 8, 1, 32, true, 'r'},
      {".scales", "F32", 1, 1, 1, 32, true, 's'}},
     true,
     false},
    {"bitnet",
     "{\"quant_method\":\"bitnet\",\"linear_class\":\"autobitlinear\"}",
     {{".weight", "U8", 1, 4, 1, 1, false, 'r'}, {".weight_scale", "F32", 0, 1, 0, 1, false, 's'}},
     true,
     false},
};

typedef struct Writer {
    StrBuf header, data;
    uint64_t seed;
} Writer;

static uint32_t next_random(Writer *w)
{
    w->seed = w->seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(w->seed >> 33);
}

static void add(StrBuf *b, const void *data, size_t n)
{
    if (!strbuf_add(b, data, n))
        fail_msg("test buffer is full");
}

static void add_header(Writer *w, const char *name, const char *dtype, int64_t rows, int64_t cols,
                       int64_t bytes)
{
    char text[400];
    const int n =
        snprintf(text, sizeof text,
                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d%s%.0d],\"data_offsets\":[%d,%d]}",
                 w->header.len ? "," : "", name, dtype, (int)rows, cols ? "," : "", (int)cols,
                 (int)w->data.len, (int)(w->data.len + (size_t)bytes));
    add(&w->header, text, (size_t)n);
}

static void add_f32(Writer *w, const char *name, int64_t rows, int64_t cols, const float *values)
{
    const int64_t n = rows * (cols ? cols : 1);
    add_header(w, name, "F32", rows, cols, n * 4);
    for (int64_t i = 0; i < n; i++) {
        const float f = values ? values[i] : (float)(next_random(w) % 2001) / 1000.0F - 1.0F;
        add(&w->data, &f, sizeof f);
    }
}

static void add_part(Writer *w, const char *stem, const PartShape *p, int64_t n, int64_t k)
{
    char name[200];
    int64_t rows = p->n_num ? n * p->n_num / p->n_div : 1;
    int64_t cols = p->k_num ? k * p->k_num / p->k_div : 1;
    if (p->transposed) {
        const int64_t r = rows;
        rows = cols;
        cols = r;
    }
    const bool wide = p->dtype[1] == '3';
    const int64_t bytes = rows * cols * (wide ? 4 : 1);
    snprintf(name, sizeof name, "%s%s", stem, p->suffix);
    if (p->fill == 'g') {
        const int32_t odd = (int32_t)(next_random(w) % 32 * 2 + 3);
        add_header(w, name, p->dtype, k, 0, k * 4);
        for (int32_t i = 0; i < k; i++) /* k is a power of 2 */
            add(&w->data, &(int32_t){i * odd % (int32_t)k / 32}, 4);
        return;
    }
    add_header(w, name, p->dtype, rows, cols, bytes);
    for (int64_t i = 0; i < bytes; i += wide ? 4 : 1) {
        const uint32_t h = next_random(w);
        const float small = (p->fill == 'd' ? 0.001F : 0.01F) * (float)(1 + h % 7);
        const uint8_t byte = p->fill == 'e'   ? (uint8_t)(h % 0x50 | (h >> 20 & 0x80))
                             : p->fill == 'p' ? (uint8_t)(0x30 + h % 0x18)
                                              : (uint8_t)h;
        /* bitnet has no code of 3 */
        const uint8_t code = strstr(p->suffix, ".weight") && p->n_div == 4 ? byte & 0x55 : byte;
        if (!wide)
            add(&w->data, &code, 1);
        else if (p->fill == 'r')
            add(&w->data, &(uint32_t){h << 8 ^ next_random(w)}, 4);
        else
            add(&w->data, &small, 4);
    }
}

typedef struct Matrix {
    const char *name;
    int n, k;
} Matrix;

static const Matrix matrices[] = {
    {"self_attn.q_proj", HIDDEN, HIDDEN}, {"self_attn.k_proj", KV, HIDDEN},
    {"self_attn.v_proj", KV, HIDDEN},     {"self_attn.o_proj", HIDDEN, HIDDEN},
    {"mlp.gate_proj", FFN, HIDDEN},       {"mlp.up_proj", FFN, HIDDEN},
    {"mlp.down_proj", HIDDEN, FFN}};
static const Matrix expert_matrices[] = {
    {"gate_proj", FFN, HIDDEN}, {"up_proj", FFN, HIDDEN}, {"down_proj", HIDDEN, FFN}};
enum { ATTN_MATRICES = 4, EXPERTS = 4 };

static void write_file(const char *dir, const char *name, const char *head, size_t n_head,
                       const StrBuf *a, const StrBuf *b)
{
    char path[900];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(head, 1, n_head, f) == n_head;
    ok = ok && (!a || (fputc('{', f) == '{' && fwrite(a->ptr, 1, a->len, f) == a->len &&
                       fputc('}', f) == '}' && fwrite(b->ptr, 1, b->len, f) == b->len));
    if (!f || fclose(f) != 0 || !ok)
        fail_msg("cannot write %s", path);
}

static void write_matrix(Writer *w, const Scheme *s, const Checkpoint *from, CheckpointSpace *space,
                         const char *name, const Matrix *m)
{
    static float value[FFN * FFN];
    float row[FFN];
    char full[210];
    RowView v;
    Error err = {0};
    if (!from) {
        for (int p = 0; p < PARTS_MAX && s->parts[p].suffix; p++)
            add_part(w, name, &s->parts[p], m->n, m->k);
        return;
    }
    if (!checkpoint_rows_derived(from, space, name, m->n, m->k, &v, &err))
        fail_msg("%s: %s", s->name, err.msg);
    for (int r = 0; r < m->n; r++) {
        format_dequant_row(&v, r, row);
        for (int i = 0; i < m->k; i++)
            value[r * m->k + (v.columns ? v.columns[i] : i)] = row[i];
    }
    snprintf(full, sizeof full, "%s.weight", name);
    add_f32(w, full, m->n, m->k, value);
}

/* The model as quantised, or with `from` its twin of F32 weights. */
static void write_model(const char *dir, const Scheme *s, const Checkpoint *from,
                        CheckpointSpace *space)
{
    Writer w = {.seed = 42};
    char name[200];
    char config[900];
    (void)mkdir(dir, 0777);
    strbuf_init(&w.header, 1 << 20);
    strbuf_init(&w.data, 1 << 24);
    add_f32(&w, "model.embed_tokens.weight", VOCAB, HIDDEN, NULL);
    add_f32(&w, "lm_head.weight", VOCAB, HIDDEN, NULL);
    add_f32(&w, "model.norm.weight", HIDDEN, 0, NULL);
    for (int l = 0; l < LAYERS; l++) {
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        add_f32(&w, name, HIDDEN, 0, NULL);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        add_f32(&w, name, HIDDEN, 0, NULL);
        if (!s->moe)
            continue;
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        add_f32(&w, name, EXPERTS, HIDDEN, NULL);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.q_norm.weight", l);
        add_f32(&w, name, HEAD_DIM, 0, NULL);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_norm.weight", l);
        add_f32(&w, name, HEAD_DIM, 0, NULL);
    }
    for (size_t i = 0; i < (s->moe ? ATTN_MATRICES : COUNT_OF(matrices)) * LAYERS; i++) {
        const Matrix *m = &matrices[i / LAYERS];
        snprintf(name, sizeof name, "model.layers.%d.%s", (int)(i % LAYERS), m->name);
        write_matrix(&w, s, from, space, name, m);
    }
    for (int l = 0; s->moe && l < LAYERS; l++)
        for (int e = 0; e < EXPERTS; e++)
            for (size_t i = 0; i < COUNT_OF(expert_matrices); i++) {
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s", l, e,
                         expert_matrices[i].name);
                write_matrix(&w, s, from, space, name, &expert_matrices[i]);
            }
    const int n = snprintf(config, sizeof config,
                           "{\"model_type\":\"%s\",\"hidden_size\":64,\"intermediate_size\":128,"
                           "\"num_hidden_layers\":2,\"num_attention_heads\":4,"
                           "\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":320,"
                           "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,"
                           "\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
                           "\"tie_word_embeddings\":false,\"eos_token_id\":2,"
                           "\"num_experts\":4,\"num_experts_per_tok\":2,"
                           "\"moe_intermediate_size\":128,\"decoder_sparse_step\":1,"
                           "\"norm_topk_prob\":true%s%s}",
                           s->moe ? "qwen3_moe" : "llama",
                           from ? "" : ",\"quantization_config\":", from ? "" : s->config);
    write_file(dir, "config.json", config, (size_t)n, NULL, NULL);
    const uint64_t header = w.header.len + 2;
    write_file(dir, "model.safetensors", (const char *)&header, 8, &w.header, &w.data);
    strbuf_free(&w.header);
    strbuf_free(&w.data);
}

static void run(Arena *a, const char *dir, bool derives, int64_t derived, float *logits)
{
    static const int32_t tokens[N_TOKENS] = {5, 310, 17, 99, 4, 250, 1, 63, 128};
    const RunOptions opt = {.numerics = NUM_EXACT,
                            .kv = KV_FORMAT_F32,
                            .threads = 1,
                            .page_tokens = 4,
                            .max_tokens = 32,
                            .n_seqs = 1,
                            .max_rows = 16};
    RunModel *r;
    Error err = {0};
    if (!run_model_open(a, dir, &opt, &r, &err))
        fail_msg("%s", err.msg);
    const Model *m = run_model_get(r);
    assert_int_equal(m->derived_weight_bytes > 0, derives);
    assert_int_equal(m->derived_weight_bytes, derived);
    assert_true(m->derived_bytes > m->derived_weight_bytes);
    const RunPart part = {.tokens = tokens, .n = N_TOKENS};
    if (!run_model_step(r, &part, 1, logits, &err))
        fail_msg("%s", err.msg);
    run_model_close(r);
}

static void test_twins(void **state)
{
    static float got[N_TOKENS][VOCAB];
    static float want[N_TOKENS][VOCAB];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        const Scheme *s = &schemes[i];
        char dir[500];
        char twin[520];
        Arena arena;
        Checkpoint *ck;
        Error err = {0};
        arena_init(&arena, "test");
        CheckpointSpace space = {.arena = &arena};
        snprintf(dir, sizeof dir, "%s/quant-%d-%s", TEST_TMP, (int)getpid(), s->name);
        snprintf(twin, sizeof twin, "%s-f32", dir);
        write_model(dir, s, NULL, NULL);
        if (!checkpoint_open(&arena, dir, &ck, &err))
            fail_msg("%s: %s", s->name, err.msg);
        write_model(twin, s, ck, &space);
        run(&arena, dir, s->derives, space.bytes, got[0]);
        run(&arena, twin, false, 0, want[0]);
        double largest = 0;
        for (int r = 0; r < N_TOKENS; r++)
            for (int j = 0; j < VOCAB; j++) {
                const double d = fabs((double)got[r][j] - (double)want[r][j]);
                largest = fmax(largest, fabs((double)want[r][j]));
                if (!(d <= 1e-4))
                    fail_msg("%s: row %d logit %d is %.7g, wanted %.7g", s->name, r, j,
                             (double)got[r][j], (double)want[r][j]);
            }
        assert_true(largest > 0.5 && largest < 1000);
        checkpoint_close(ck);
        arena_free(&arena);
        for (int t = 0; t < 2; t++) {
            char path[900];
            snprintf(path, sizeof path, "%s/config.json", t ? twin : dir);
            (void)unlink(path);
            snprintf(path, sizeof path, "%s/model.safetensors", t ? twin : dir);
            (void)unlink(path);
            (void)rmdir(t ? twin : dir);
        }
    }
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_twins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
