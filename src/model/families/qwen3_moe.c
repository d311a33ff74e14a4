/* qwen3_moe.c: Qwen 3 with experts in place of the MLP in most layers. */
#include "model/blocks/decoder.h"

typedef struct Qwen3Moe {
    Decoder d;
    DecoderMoeConfig moe;
    DecoderLayer *layers;
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
    const DecoderLayerOptions o = {.qk_norm = true, .moe = &c->moe};
    return decoder_layers_load(m, &c->d, &o, &c->layers, err);
}

static void qwen3_moe_text(Graph *g, const Model *m)
{
    const Qwen3Moe *c = m->config;
    decoder_layers(g, &c->d, c->layers, g_embed(g, &c->d.embed));
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
