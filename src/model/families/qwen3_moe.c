/* qwen3_moe.c: Qwen 3 with experts in place of the MLP in most layers. */
#include "model/blocks/decoder.h"

typedef struct Qwen3MoeLayer {
    Vec attn_norm, mlp_norm;
    DecoderAttn attn;
    bool sparse;
    DecoderMoe moe; /* sparse */
    DecoderMlp mlp; /* else */
} Qwen3MoeLayer;

typedef struct Qwen3Moe {
    Decoder d;
    DecoderMoeConfig moe;
    Qwen3MoeLayer *layers;
} Qwen3Moe;

static bool qwen3_moe_config(Model *m, const json_t *config, Error *err)
{
    Qwen3Moe *c = ARENA_NEW(m->arena, Qwen3Moe, err);
    if (!c)
        return false;
    m->config = c;
    bool window;
    if (!decoder_config(m, config, &c->d, 1, err) ||
        !decoder_moe_config(m, config, &c->d, false, &c->moe, err) ||
        !json_get_bool_or(config, m->doc, "use_sliding_window", false, &window, err))
        return false;
    if (window)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: \"use_sliding_window\" is true, wanted false for qwen3_moe", m->doc);
    return true;
}

static bool qwen3_moe_weights(Model *m, Error *err)
{
    Qwen3Moe *c = m->config;
    c->layers = ARENA_ARRAY(m->arena, c->d.n_layers, Qwen3MoeLayer, err);
    if (!c->layers || !decoder_ends(m, &c->d, err))
        return false;
    for (int i = 0; i < c->d.n_layers; i++) {
        Qwen3MoeLayer *l = &c->layers[i];
        const char *name = model_name(m, err, "model.layers.%d", i);
        const char *attn = model_name(m, err, "model.layers.%d.self_attn", i);
        const char *mlp = model_name(m, err, "model.layers.%d.mlp", i);
        l->sparse = c->moe.sparse[i];
        if (!name || !attn || !mlp ||
            !model_vec(m, &l->attn_norm, c->d.hidden, err, "%s.input_layernorm.weight", name) ||
            !decoder_attn_load(m, &c->d, &l->attn, true, attn, err) ||
            !model_vec(m, &l->mlp_norm, c->d.hidden, err, "%s.post_attention_layernorm.weight",
                       name))
            return false;
        if (!(l->sparse ? decoder_moe_load(m, &c->d, &l->moe, &c->moe, mlp, err)
                        : decoder_mlp_load(m, &c->d, &l->mlp, c->d.ffn, mlp, err)))
            return false;
    }
    return true;
}

static void qwen3_moe_text(Graph *g, const Model *m)
{
    const Qwen3Moe *c = m->config;
    T x = g_embed(g, &c->d.embed); /* [rows, hidden] */
    for (int i = 0; i < c->d.n_layers; i++) {
        const Qwen3MoeLayer *l = &c->layers[i];
        g_name(g, "model.layers.%d", i);
        T h = g_norm(g, &l->attn_norm, x, c->d.eps);
        x = g_add(g, x, decoder_attn(g, &c->d, &l->attn, h));
        h = g_norm(g, &l->mlp_norm, x, c->d.eps);
        x = g_add(g, x, l->sparse ? decoder_moe(g, &l->moe, h) : decoder_mlp(g, &l->mlp, h));
    }
    decoder_out(g, &c->d, x);
}

const ModelFamily qwen3_moe_family = {
    .name = "qwen3_moe",
    .types = (const char *const[]){"qwen3_moe", NULL},
    .blocks = (const char *const[]){"ROPE.half", "ROPE.scal", "ATTN.qkn", "ATTN.bias", "MOE.sm",
                                    "MLP.swiglu", "HEAD.tie", NULL},
    .verified_by = "transformers 5.24.0, f32",
    .max_abs_diff = 1e-5,
    .config = qwen3_moe_config,
    .weights = qwen3_moe_weights,
    .parts = (const ModelPart[]){{"text", qwen3_moe_text}, {NULL, NULL}},
    .pipeline = PIPELINE_DECODE,
};
