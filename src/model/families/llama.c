/* llama.c: Llama 1 to 3 and Mistral: grouped attention, SwiGLU, RMS norm before each. */
#include "model/blocks/decoder.h"

typedef struct LlamaLayer {
    Vec attn_norm, mlp_norm;
    DecoderAttn attn;
    DecoderMlp mlp;
} LlamaLayer;

typedef struct Llama {
    Decoder d;
    int *windows; /* [n_layers] */
    LlamaLayer *layers;
} Llama;

static bool llama_config(Model *m, const json_t *config, Error *err)
{
    Llama *c = ARENA_NEW(m->arena, Llama, err);
    if (!c)
        return false;
    m->config = c;
    /* Mistral's window is every layer's; Llama has one only where layer_types says so. */
    Str type;
    if (!decoder_config(m, config, &c->d, 1, err) ||
        !json_get_str_or(config, m->doc, "model_type", &type, err))
        return false;
    const int first = type.ptr && str_is(type, "mistral") ? 0 : c->d.n_layers;
    return decoder_windows(m, config, &c->d, first, &c->windows, err);
}

static bool llama_weights(Model *m, Error *err)
{
    Llama *c = m->config;
    c->layers = ARENA_ARRAY(m->arena, c->d.n_layers, LlamaLayer, err);
    if (!c->layers || !decoder_ends(m, &c->d, err))
        return false;
    for (int i = 0; i < c->d.n_layers; i++) {
        LlamaLayer *l = &c->layers[i];
        const char *name = model_name(m, err, "model.layers.%d", i);
        const char *attn = model_name(m, err, "model.layers.%d.self_attn", i);
        const char *mlp = model_name(m, err, "model.layers.%d.mlp", i);
        l->attn.window = c->windows[i];
        if (!name || !attn || !mlp ||
            !model_vec(m, &l->attn_norm, c->d.hidden, err, "%s.input_layernorm.weight", name) ||
            !decoder_attn_load(m, &c->d, &l->attn, false, attn, err) ||
            !model_vec(m, &l->mlp_norm, c->d.hidden, err, "%s.post_attention_layernorm.weight",
                       name) ||
            !decoder_mlp_load(m, &c->d, &l->mlp, c->d.ffn, mlp, err))
            return false;
    }
    return true;
}

static void llama_text(Graph *g, const Model *m)
{
    const Llama *c = m->config;
    T x = g_embed(g, &c->d.embed); /* [rows, hidden] */
    for (int i = 0; i < c->d.n_layers; i++) {
        const LlamaLayer *l = &c->layers[i];
        g_name(g, "model.layers.%d", i);
        T h = g_norm(g, &l->attn_norm, x, c->d.eps);
        x = g_add(g, x, decoder_attn(g, &c->d, &l->attn, h));
        h = g_norm(g, &l->mlp_norm, x, c->d.eps);
        x = g_add(g, x, decoder_mlp(g, &l->mlp, h));
    }
    decoder_out(g, &c->d, x);
}

const ModelFamily llama_family = {
    .name = "llama",
    .types = (const char *const[]){"llama", "mistral", NULL},
    .blocks = (const char *const[]){"ROPE.half", "ROPE.pair", "ROPE.scal", "ATTN.bias", "ATTN.win",
                                    "MLP.swiglu", "HEAD.tie", NULL},
    .verified_by = "transformers 5.24.0, f32",
    .max_abs_diff = 1e-5,
    .config = llama_config,
    .weights = llama_weights,
    .parts = (const ModelPart[]){{"text", llama_text}, {NULL, NULL}},
    .pipeline = PIPELINE_DECODE,
};
