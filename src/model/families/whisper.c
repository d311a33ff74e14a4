/* whisper.c: Whisper: two convolutions and an encoder over mel frames, a decoder that attends to it
 * (families.md AUD.wenc). A row of the encoder is two frames. */
#include "model/blocks/decoder.h"
#include "model/blocks/encoder.h"

/* Groups, in this order; only the decoder declares the last by attending. */
enum { GROUP_ENCODER, GROUP_CROSS };

static const float norm_eps = 1e-5F; /* torch's default: the configuration has no key for it */

typedef struct WhisperAttn {
    Weight q, k, v, out; /* k has no bias */
} WhisperAttn;

typedef struct WhisperLayer {
    EncoderNorm attn_norm, cross_norm, mlp_norm;
    WhisperAttn attn, cross; /* cross: decoder only */
    EncoderMlp mlp;
} WhisperLayer;

/* An encoder or a decoder. */
typedef struct WhisperStack {
    int n_layers, n_heads, ffn;
    int max_pos;
    Weight pos;
    EncoderNorm norm;
    WhisperLayer *layers;
} WhisperStack;

typedef struct Whisper {
    int hidden, n_mels;
    Weight conv1, conv2, embed;
    WhisperStack encoder, decoder;
} Whisper;

static bool stack_config(Model *m, const json_t *config, const Whisper *c, WhisperStack *s,
                         const char *which, const char *positions, Error *err)
{
    const char *layers = model_name(m, err, "%s_layers", which);
    const char *heads = model_name(m, err, "%s_attention_heads", which);
    const char *ffn = model_name(m, err, "%s_ffn_dim", which);
    if (!layers || !heads || !ffn ||
        !json_get_int(config, m->doc, layers, 1, DECODER_LAYERS_MAX, &s->n_layers, err) ||
        !json_get_int(config, m->doc, heads, 1, DECODER_HEADS_MAX, &s->n_heads, err) ||
        !json_get_int(config, m->doc, ffn, 1, DECODER_WIDTH_MAX, &s->ffn, err) ||
        !json_get_int(config, m->doc, positions, 1, INT32_MAX / 2, &s->max_pos, err))
        return false;
    if (c->hidden % s->n_heads != 0 || c->hidden / s->n_heads > DECODER_HEAD_DIM_MAX)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is %d for a \"d_model\" of %d", m->doc, heads,
                       s->n_heads, c->hidden);
    return true;
}

/* What would change the result and is not here. */
static bool refuse(Model *m, const json_t *config, Error *err)
{
    Str act;
    bool scale, tied;
    if (!json_get_str_or(config, m->doc, "activation_function", &act, err) ||
        !json_get_bool_or(config, m->doc, "scale_embedding", false, &scale, err) ||
        !json_get_bool_or(config, m->doc, "tie_word_embeddings", true, &tied, err))
        return false;
    if (act.ptr && !str_is(act, "gelu"))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: \"activation_function\" is \"%.40s\", known is gelu", m->doc, act.ptr);
    if (scale)
        return err_set(err, ERR_UNSUPPORTED, "%s: \"scale_embedding\" is true, known is false",
                       m->doc);
    if (!tied)
        return err_set(err, ERR_UNSUPPORTED, "%s: \"tie_word_embeddings\" is false, known is true",
                       m->doc);
    return true;
}

static bool whisper_config(Model *m, const json_t *config, Error *err)
{
    Whisper *c = ARENA_NEW(m->arena, Whisper, err);
    if (!c)
        return false;
    m->config = c;
    if (!json_get_int(config, m->doc, "d_model", 1, DECODER_WIDTH_MAX, &c->hidden, err) ||
        !json_get_int(config, m->doc, "num_mel_bins", 1, 4096, &c->n_mels, err) ||
        !json_get_int(config, m->doc, "vocab_size", 1, DECODER_VOCAB_MAX, &m->vocab, err) ||
        !stack_config(m, config, c, &c->encoder, "encoder", "max_source_positions", err) ||
        !stack_config(m, config, c, &c->decoder, "decoder", "max_target_positions", err) ||
        !refuse(m, config, err))
        return false;
    m->hidden = c->hidden;
    m->n_layers = c->decoder.n_layers;
    m->max_ctx = c->decoder.max_pos;
    return true;
}

static bool attn_load(Model *m, const Whisper *c, WhisperAttn *a, const char *prefix, Error *err)
{
    const int n = c->hidden;
    return model_matrix(m, &a->q, n, n, true, SHARD_HEAD, err, "%s.q_proj", prefix) &&
           model_matrix(m, &a->k, n, n, false, SHARD_HEAD, err, "%s.k_proj", prefix) &&
           model_matrix(m, &a->v, n, n, true, SHARD_HEAD, err, "%s.v_proj", prefix) &&
           model_matrix(m, &a->out, n, n, true, SHARD_COL, err, "%s.out_proj", prefix);
}

static bool layer_load(Model *m, const Whisper *c, const WhisperStack *s, WhisperLayer *l,
                       bool cross, const char *name, Error *err)
{
    const char *attn = model_name(m, err, "%s.self_attn", name);
    const char *other = model_name(m, err, "%s.encoder_attn", name);
    if (!attn || !other || !attn_load(m, c, &l->attn, attn, err) ||
        !encoder_norm_load(m, &l->attn_norm, c->hidden, err, "%s.self_attn_layer_norm", name) ||
        !encoder_norm_load(m, &l->mlp_norm, c->hidden, err, "%s.final_layer_norm", name) ||
        !encoder_mlp_load(m, &l->mlp, c->hidden, s->ffn, ACT_GELU, name, err))
        return false;
    return !cross || (attn_load(m, c, &l->cross, other, err) &&
                      encoder_norm_load(m, &l->cross_norm, c->hidden, err,
                                        "%s.encoder_attn_layer_norm", name));
}

static bool stack_load(Model *m, const Whisper *c, WhisperStack *s, bool cross, const char *name,
                       Error *err)
{
    s->layers = ARENA_ARRAY(m->arena, s->n_layers, WhisperLayer, err);
    if (!s->layers ||
        !model_matrix(m, &s->pos, s->max_pos, c->hidden, false, SHARD_REPLICATED, err,
                      "%s.embed_positions", name) ||
        !encoder_norm_load(m, &s->norm, c->hidden, err, "%s.layer_norm", name))
        return false;
    for (int i = 0; i < s->n_layers; i++) {
        const char *layer = model_name(m, err, "%s.layers.%d", name, i);
        if (!layer || !layer_load(m, c, s, &s->layers[i], cross, layer, err))
            return false;
    }
    return true;
}

static bool whisper_weights(Model *m, Error *err)
{
    Whisper *c = m->config;
    const int conv1[] = {c->hidden, c->n_mels, 3};
    const int conv2[] = {c->hidden, c->hidden, 3};
    return model_kernel(m, &c->conv1, conv1, 3, true, err, "model.encoder.conv1") &&
           model_kernel(m, &c->conv2, conv2, 3, true, err, "model.encoder.conv2") &&
           model_matrix(m, &c->embed, m->vocab, c->hidden, false, SHARD_REPLICATED, err,
                        "model.decoder.embed_tokens") &&
           stack_load(m, c, &c->encoder, false, "model.encoder", err) &&
           stack_load(m, c, &c->decoder, true, "model.decoder", err);
}

static void declare_groups(Graph *g, const Whisper *c)
{
    const WhisperStack *e = &c->encoder;
    const WhisperStack *d = &c->decoder;
    const KvGroup step = encoder_step_group(e->n_heads, c->hidden / e->n_heads);
    const KvGroup cross = encoder_fixed_group(d->n_layers, d->n_heads, c->hidden / d->n_heads);
    (void)g_kv_group(g, &step);
    (void)g_kv_group(g, &cross);
}

static AttnDesc cross_desc(const Whisper *c, int layer)
{
    const int heads = c->decoder.n_heads;
    return encoder_attn_desc(heads, c->hidden / heads, GROUP_CROSS, layer, true);
}

static void whisper_encoder(Graph *g, const Model *m)
{
    const Whisper *c = m->config;
    const WhisperStack *s = &c->encoder;
    const AttnDesc attn =
        encoder_attn_desc(s->n_heads, c->hidden / s->n_heads, GROUP_ENCODER, 0, true);
    declare_groups(g, c);
    g_name(g, "model.encoder");
    T x = g_input(g, INPUT_MEL, 2, c->n_mels); /* [frames, n_mels] */
    x = g_window(g, x, &(WindowDesc){.taps = 3, .stride = 1, .pad = 1});
    x = g_act(g, ACT_GELU, g_lin(g, &c->conv1, x), 0); /* [frames, hidden] */
    x = g_window(g, x, &(WindowDesc){.taps = 3, .stride = 2, .pad = 1});
    x = g_act(g, ACT_GELU, g_lin(g, &c->conv2, x), 0); /* [rows, hidden] */
    x = g_embed_pos(g, &s->pos, x);
    for (int i = 0; i < s->n_layers; i++) {
        const WhisperLayer *l = &s->layers[i];
        g_name(g, "model.encoder.layers.%d", i);
        const T h = encoder_norm(g, &l->attn_norm, x, norm_eps);
        const T o = encoder_attend(g, g_lin(g, &l->attn.q, h), g_lin(g, &l->attn.k, h),
                                   g_lin(g, &l->attn.v, h), &attn);
        x = g_add(g, x, g_lin(g, &l->attn.out, o));
        x = g_add(g, x, encoder_mlp(g, &l->mlp, encoder_norm(g, &l->mlp_norm, x, norm_eps)));
    }
    x = encoder_norm(g, &s->norm, x, norm_eps);
    for (int i = 0; i < c->decoder.n_layers; i++) {
        const WhisperLayer *l = &c->decoder.layers[i];
        const AttnDesc cross = cross_desc(c, i);
        g_name(g, "model.decoder.layers.%d.encoder_attn", i);
        g_kv(g, g_lin(g, &l->cross.k, x), g_lin(g, &l->cross.v, x), &cross);
    }
    g_out(g, 0, g_out_rows(g, x));
}

static void whisper_decoder(Graph *g, const Model *m)
{
    const Whisper *c = m->config;
    const WhisperStack *s = &c->decoder;
    const AttnDesc attn = encoder_attn_desc(s->n_heads, c->hidden / s->n_heads, 0, 0, false);
    declare_groups(g, c);
    T x = g_embed_pos(g, &s->pos, g_embed(g, &c->embed)); /* [rows, hidden] */
    for (int i = 0; i < s->n_layers; i++) {
        const WhisperLayer *l = &s->layers[i];
        const AttnDesc cross = cross_desc(c, i);
        g_name(g, "model.decoder.layers.%d", i);
        T h = encoder_norm(g, &l->attn_norm, x, norm_eps);
        const T o = g_attn(g, g_lin(g, &l->attn.q, h), g_lin(g, &l->attn.k, h),
                           g_lin(g, &l->attn.v, h), &attn);
        x = g_add(g, x, g_lin(g, &l->attn.out, o));
        h = encoder_norm(g, &l->cross_norm, x, norm_eps);
        h = g_attend(g, g_lin(g, &l->cross.q, h), &cross);
        x = g_add(g, x, g_lin(g, &l->cross.out, h));
        x = g_add(g, x, encoder_mlp(g, &l->mlp, encoder_norm(g, &l->mlp_norm, x, norm_eps)));
    }
    g_name(g, "out");
    const T hidden = encoder_norm(g, &s->norm, g_out_rows(g, x), norm_eps);
    g_out(g, hidden, g_lin(g, &c->embed, hidden));
}

const ModelFamily whisper_family = {
    .name = "whisper",
    .types = (const char *const[]){"whisper", NULL},
    .blocks = (const char *const[]){"AUD.wenc", "NORM.ln", "EMB.pos", "ATTN.full", "ATTN.cross",
                                    "MLP.gelu", "HEAD.tie", NULL},
    .verified_by = "transformers 5.24.0, f32",
    .max_abs_diff = 1e-5,
    .config = whisper_config,
    .weights = whisper_weights,
    .parts = (const ModelPart[]){{"encoder", whisper_encoder},
                                 {"decoder", whisper_decoder},
                                 {NULL, NULL}},
    .pipeline = PIPELINE_ENCODER_DECODER,
};
