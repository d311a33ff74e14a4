/* qwen3.c: Qwen 3, dense: Llama with an RMS norm on each head of q and k. */
#include "model/blocks/decoder.h"

typedef struct Qwen3 {
    Decoder d;
    int *windows; /* [n_layers], or NULL: none */
    DecoderLayer *layers;
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
    return !use || decoder_windows(m, config, &c->d, first, &c->windows, err);
}

static bool qwen3_weights(Model *m, Error *err)
{
    Qwen3 *c = m->config;
    const DecoderLayerOptions o = {.qk_norm = true, .windows = c->windows};
    return decoder_layers_load(m, &c->d, &o, &c->layers, err);
}

static void qwen3_text(Graph *g, const Model *m)
{
    const Qwen3 *c = m->config;
    decoder_layers(g, &c->d, c->layers, g_embed(g, &c->d.embed));
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
