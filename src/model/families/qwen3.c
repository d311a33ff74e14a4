/* qwen3.c: Qwen 3, dense: Llama with an RMS norm on each head of q and k. */
#include "model/blocks/decoder.h"

typedef struct Qwen3Layer {
    Vec attn_norm, mlp_norm;
    DecoderAttn attn;
    DecoderMlp mlp;
} Qwen3Layer;

typedef struct Qwen3 {
    Decoder d;
    int *windows; /* [n_layers] */
    Qwen3Layer *layers;
} Qwen3;

static bool qwen3_config(Model *m, const json_t *config, Error *err)
{
    Qwen3 *c = ARENA_NEW(m->arena, Qwen3, err);
    if (!c)
        return false;
    m->config = c;
    /* "sliding_window" is often set and not used: "use_sliding_window" decides, then layer_types,
     * or the layers after the first max_window_layers. */
    bool use;
    int first;
    if (!decoder_config(m, config, &c->d, 1, err) ||
        !json_get_bool_or(config, m->doc, "use_sliding_window", false, &use, err) ||
        !json_get_int_or(config, m->doc, "max_window_layers", 0, INT32_MAX, 28, &first, err))
        return false;
    if (use)
        return decoder_windows(m, config, &c->d, first, &c->windows, err);
    c->windows = ARENA_ARRAY(m->arena, c->d.n_layers, int, err);
    return c->windows != NULL;
}

static bool qwen3_weights(Model *m, Error *err)
{
    Qwen3 *c = m->config;
    c->layers = ARENA_ARRAY(m->arena, c->d.n_layers, Qwen3Layer, err);
    if (!c->layers || !decoder_ends(m, &c->d, err))
        return false;
    for (int i = 0; i < c->d.n_layers; i++) {
        Qwen3Layer *l = &c->layers[i];
        const char *name = model_name(m, err, "model.layers.%d", i);
        const char *attn = model_name(m, err, "model.layers.%d.self_attn", i);
        const char *mlp = model_name(m, err, "model.layers.%d.mlp", i);
        l->attn.window = c->windows[i];
        if (!name || !attn || !mlp ||
            !model_vec(m, &l->attn_norm, c->d.hidden, err, "%s.input_layernorm.weight", name) ||
            !decoder_attn_load(m, &c->d, &l->attn, true, attn, err) ||
            !model_vec(m, &l->mlp_norm, c->d.hidden, err, "%s.post_attention_layernorm.weight",
                       name) ||
            !decoder_mlp_load(m, &c->d, &l->mlp, c->d.ffn, mlp, err))
            return false;
    }
    return true;
}

static void qwen3_text(Graph *g, const Model *m)
{
    const Qwen3 *c = m->config;
    T x = g_embed(g, &c->d.embed); /* [rows, hidden] */
    for (int i = 0; i < c->d.n_layers; i++) {
        const Qwen3Layer *l = &c->layers[i];
        g_name(g, "model.layers.%d", i);
        T h = g_norm(g, &l->attn_norm, x, c->d.eps);
        x = g_add(g, x, decoder_attn(g, &c->d, &l->attn, h));
        h = g_norm(g, &l->mlp_norm, x, c->d.eps);
        x = g_add(g, x, decoder_mlp(g, &l->mlp, h));
    }
    decoder_out(g, &c->d, x);
}

const ModelFamily qwen3_family = {
    .name = "qwen3",
    .types = (const char *const[]){"qwen3", NULL},
    .blocks = (const char *const[]){"ROPE.half", "ROPE.scal", "ATTN.qkn", "ATTN.bias", "ATTN.win",
                                    "MLP.swiglu", "HEAD.tie", NULL},
    .verified_by = "transformers 5.24.0, f32",
    .max_abs_diff = 1e-5,
    .config = qwen3_config,
    .weights = qwen3_weights,
    .parts = (const ModelPart[]){{"text", qwen3_text}, {NULL, NULL}},
    .pipeline = PIPELINE_DECODE,
};
