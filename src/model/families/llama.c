/* llama.c: Llama 1 to 3 and Mistral: grouped attention, SwiGLU, RMS norm before each. */
#include "model/blocks/decoder.h"

typedef struct Llama {
    Decoder d;
    int *windows; /* [n_layers] */
    DecoderLayer *layers;
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
    const DecoderLayerOptions o = {.windows = c->windows};
    return decoder_layers_load(m, &c->d, &o, &c->layers, err);
}

static void llama_text(Graph *g, const Model *m)
{
    const Llama *c = m->config;
    decoder_layers(g, &c->d, c->layers, g_embed(g, &c->d.embed));
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
