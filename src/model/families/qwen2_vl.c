/* qwen2_vl.c: Qwen 2 VL: a vision tower over patches of any grid, whose rows stand in for image
 * tokens of a Qwen 2 text model with three positions a row (families.md VT.qwenvit2, PROJ.merge,
 * MERGE.replace). Positions of either part: blocks/mrope.h. */
#include "model/blocks/decoder.h"
#include "model/blocks/encoder.h"
#include "model/blocks/mrope.h"

#include <math.h>

/* Both are constants of the reference: the configuration has no key for them. */
static const float norm_eps = 1e-6F;
static const double vision_theta = 10000;

enum { GROUP_VISION };

typedef struct VisionLayer {
    EncoderNorm attn_norm, mlp_norm;
    Weight qkv, out;
    EncoderMlp mlp;
} VisionLayer;

typedef struct Vision {
    int n_layers, width, n_heads, ffn;
    int channels, frames, patch; /* a patch is [channels][frames][patch][patch] */
    int merge;                   /* merge x merge patches are one row of the text */
    RopeDesc rope; /* the first half of the frequencies by row, the second by column */
    Weight patches;
    VisionLayer *layers;
    EncoderNorm merge_norm;
    Weight merge_up, merge_down;
} Vision;

typedef struct Qwen2Vl {
    Decoder d;
    DecoderLayer *layers;
    Vision vision;
} Qwen2Vl;

/* Rows and columns turn half of the frequencies each, both from the highest. */
static bool vision_rope(Model *m, Vision *v, Error *err)
{
    const int dim = v->width / v->n_heads;
    const int n = dim / 2;
    float *freq = ARENA_ARRAY(m->arena, n, float, err);
    uint8_t *axis = ARENA_ARRAY(m->arena, n, uint8_t, err);
    if (!freq || !axis)
        return false;
    for (int i = 0; i < n; i++) {
        freq[i] = (float)pow(vision_theta, -2.0 * (i % (n / 2)) / n);
        axis[i] = i >= n / 2;
    }
    m->derived_bytes += n * (int64_t)(sizeof *freq + sizeof *axis);
    v->rope = (RopeDesc){.n_heads = v->n_heads,
                         .head_dim = dim,
                         .rot_dim = dim,
                         .scale = 1,
                         .inv_freq = freq,
                         .axis = axis};
    return true;
}

static bool vision_refuse(Model *m, const json_t *config, Error *err)
{
    Str act;
    if (!json_get_str_or(config, m->doc, "hidden_act", &act, err))
        return false;
    if (act.ptr && !str_is(act, "quick_gelu"))
        return err_set(err, ERR_UNSUPPORTED, "%s: \"hidden_act\" is \"%.40s\", known is quick_gelu",
                       m->doc, act.ptr);
    return true;
}

static bool vision_config(Model *m, const json_t *config, Qwen2Vl *c, Error *err)
{
    Vision *v = &c->vision;
    const char *doc = m->doc;
    const char *channels = json_object_get(config, "in_chans") ? "in_chans" : "in_channels";
    int ratio, out;
    if (!json_get_int(config, doc, "depth", 1, DECODER_LAYERS_MAX, &v->n_layers, err) ||
        !json_get_int(config, doc, "embed_dim", 1, DECODER_WIDTH_MAX / 16, &v->width, err) ||
        !json_get_int(config, doc, "num_heads", 1, DECODER_HEADS_MAX, &v->n_heads, err) ||
        !json_get_int_or(config, doc, "mlp_ratio", 1, 16, 4, &ratio, err) ||
        !json_get_int_or(config, doc, "hidden_size", 1, DECODER_WIDTH_MAX, m->hidden, &out, err) ||
        !json_get_int_or(config, doc, channels, 1, 16, 3, &v->channels, err) ||
        !json_get_int_or(config, doc, "patch_size", 1, 256, 14, &v->patch, err) ||
        !json_get_int_or(config, doc, "temporal_patch_size", 1, 16, 2, &v->frames, err) ||
        !json_get_int_or(config, doc, "spatial_merge_size", 1, 16, 2, &v->merge, err) ||
        !vision_refuse(m, config, err))
        return false;
    v->ffn = ratio * v->width;
    if (v->width % v->n_heads != 0 || v->width / v->n_heads % 4 != 0 ||
        v->width / v->n_heads > DECODER_HEAD_DIM_MAX)
        return err_set(err, ERR_FORMAT,
                       "%s: \"embed_dim\" is %d for %d heads, wanted a multiple of 4 to each", doc,
                       v->width, v->n_heads);
    if (out != m->hidden)
        return err_set(err, ERR_FORMAT, "%s: \"hidden_size\" is %d, the text's is %d", doc, out,
                       m->hidden);
    return vision_rope(m, v, err);
}

/* Qwen 2: no window unless "use_sliding_window", which this family does not have. */
static bool text_config(Model *m, const json_t *config, Qwen2Vl *c, Error *err)
{
    bool sliding;
    int *windows;
    if (!decoder_config(m, config, &c->d, 1, err) ||
        !json_get_bool_or(config, m->doc, "use_sliding_window", false, &sliding, err) ||
        !mrope_sections(m, config, &c->d.rope, err))
        return false;
    c->d.attn_bias = true; /* q, k and v always have one */
    if (sliding)
        return err_set(err, ERR_UNSUPPORTED, "%s: \"use_sliding_window\" is true, known is false",
                       m->doc);
    if (!decoder_windows(m, config, &c->d, c->d.n_layers, &windows, err))
        return false;
    for (int i = 0; i < c->d.n_layers; i++)
        if (windows[i])
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: \"layer_types\"[%d] is sliding_attention, known is full_attention",
                           m->doc, i);
    return true;
}

/* Reads a nested object with its name in errors. */
static bool nested(Model *m, const json_t *config, const char *key, Qwen2Vl *c,
                   bool (*read)(Model *, const json_t *, Qwen2Vl *, Error *), Error *err)
{
    const char *doc = m->doc;
    m->doc = model_name(m, err, "%.150s: %s", doc, key);
    const bool ok = m->doc && read(m, config, c, err);
    m->doc = doc;
    return ok;
}

static bool qwen2_vl_config(Model *m, const json_t *config, Error *err)
{
    Qwen2Vl *c = ARENA_NEW(m->arena, Qwen2Vl, err);
    if (!c)
        return false;
    m->config = c;
    /* Older files have the text's keys beside "vision_config". */
    const json_t *text = json_object_get(config, "text_config");
    const json_t *vision = json_object_get(config, "vision_config");
    if (!json_is_object(vision))
        return err_set(err, ERR_FORMAT, "%s: key \"vision_config\" is missing or no object",
                       m->doc);
    if (text && !json_is_object(text))
        return err_set(err, ERR_FORMAT, "%s: \"text_config\" is not an object", m->doc);
    if (!(text ? nested(m, text, "text_config", c, text_config, err)
               : text_config(m, config, c, err)))
        return false;
    return nested(m, vision, "vision_config", c, vision_config, err);
}

/* One tensor, or one for each of q, k and v (GGUF). */
static bool vision_qkv_load(Model *m, const Vision *v, Weight *out, const char *name, Error *err)
{
    const char *whole = model_name(m, err, "%s.attn.qkv", name);
    const ModelRows rows[] = {{model_name(m, err, "%s.attn.q", name), v->width},
                              {model_name(m, err, "%s.attn.k", name), v->width},
                              {model_name(m, err, "%s.attn.v", name), v->width}};
    const char *first = model_name(m, err, "%s.attn.q.weight", name);
    if (!whole || !first)
        return false;
    if (!checkpoint_has(m->ck, first))
        return model_matrix(m, out, 3 * (int64_t)v->width, v->width, true, SHARD_HEAD, err, "%s",
                            whole);
    if (!model_weight(m, out, whole, v->width, SHARD_HEAD, rows, COUNT_OF(rows), err))
        return false;
    return out->bias || err_set(err, ERR_FORMAT, "%s: tensor \"%s.bias\" is missing",
                                checkpoint_path(m->ck), rows[0].stem);
}

static bool vision_layer_load(Model *m, const Vision *v, VisionLayer *l, const char *name,
                              Error *err)
{
    const char *mlp = model_name(m, err, "%s.mlp", name);
    return mlp && encoder_norm_load(m, &l->attn_norm, v->width, err, "%s.norm1", name) &&
           encoder_norm_load(m, &l->mlp_norm, v->width, err, "%s.norm2", name) &&
           vision_qkv_load(m, v, &l->qkv, name, err) &&
           model_matrix(m, &l->out, v->width, v->width, true, SHARD_COL, err, "%s.attn.proj",
                        name) &&
           encoder_mlp_load(m, &l->mlp, v->width, v->ffn, ACT_QUICK_GELU, mlp, err);
}

static bool vision_weights(Model *m, Vision *v, Error *err)
{
    const int patch[] = {v->width, v->channels, v->frames, v->patch, v->patch};
    const int all = v->width * v->merge * v->merge;
    v->layers = ARENA_ARRAY(m->arena, v->n_layers, VisionLayer, err);
    if (!v->layers || !model_kernel_frames(m, &v->patches, patch, err, "visual.patch_embed.proj"))
        return false;
    for (int i = 0; i < v->n_layers; i++) {
        const char *name = model_name(m, err, "visual.blocks.%d", i);
        if (!name || !vision_layer_load(m, v, &v->layers[i], name, err))
            return false;
    }
    return encoder_norm_load(m, &v->merge_norm, v->width, err, "visual.merger.ln_q") &&
           model_matrix(m, &v->merge_up, all, all, true, SHARD_ROW, err, "visual.merger.mlp.0") &&
           model_matrix(m, &v->merge_down, m->hidden, all, true, SHARD_COL, err,
                        "visual.merger.mlp.2");
}

static bool qwen2_vl_weights(Model *m, Error *err)
{
    Qwen2Vl *c = m->config;
    const DecoderLayerOptions o = {.windows = NULL};
    return decoder_layers_load(m, &c->d, &o, &c->layers, err) && vision_weights(m, &c->vision, err);
}

static void declare_groups(Graph *g, const Vision *v)
{
    const KvGroup step = encoder_step_group(v->n_heads, v->width / v->n_heads);
    (void)g_kv_group(g, &step);
}

static void qwen2_vl_vision(Graph *g, const Model *m)
{
    const Vision *v = &((const Qwen2Vl *)m->config)->vision;
    const int n = v->width;
    const AttnDesc attn = encoder_attn_desc(v->n_heads, n / v->n_heads, GROUP_VISION, 0, true);
    declare_groups(g, v);
    g_name(g, "visual");
    T x = g_input(g, INPUT_PIXELS, 1, v->channels * v->frames * v->patch * v->patch);
    x = g_lin(g, &v->patches, x); /* [patches, width] */
    for (int i = 0; i < v->n_layers; i++) {
        const VisionLayer *l = &v->layers[i];
        g_name(g, "visual.blocks.%d", i);
        const T qkv = g_lin(g, &l->qkv, encoder_norm(g, &l->attn_norm, x, norm_eps));
        const T q = g_rope(g, g_slice(g, qkv, 0, n), &v->rope);
        const T k = g_rope(g, g_slice(g, qkv, n, n), &v->rope);
        const T o = encoder_attend(g, q, k, g_slice(g, qkv, 2 * n, n), &attn);
        x = g_add(g, x, g_lin(g, &l->out, o));
        x = g_add(g, x, encoder_mlp(g, &l->mlp, encoder_norm(g, &l->mlp_norm, x, norm_eps)));
    }
    g_name(g, "visual.merger");
    x = g_merge(g, encoder_norm(g, &v->merge_norm, x, norm_eps), v->merge * v->merge);
    x = g_act(g, ACT_GELU, g_lin(g, &v->merge_up, x), 0);
    g_out(g, 0, g_lin(g, &v->merge_down, x)); /* [patches / merge^2, hidden of the text] */
}

static void qwen2_vl_text(Graph *g, const Model *m)
{
    const Qwen2Vl *c = m->config;
    declare_groups(g, &c->vision);
    decoder_layers(g, &c->d, c->layers, g_input_over(g, INPUT_EMBEDS, g_embed(g, &c->d.embed)));
}

const ModelFamily qwen2_vl_family = {
    .name = "qwen2_vl",
    .types = (const char *const[]){"qwen2_vl", NULL},
    .blocks = (const char *const[]){"VT.qwenvit2", "NORM.ln", "ATTN.full", "MLP.gelu", "PROJ.merge",
                                    "MERGE.replace", "ROPE.mrope", "ATTN.bias", "MLP.swiglu",
                                    "HEAD.tie", NULL},
    .verified_by = "transformers 5.24.0, f32",
    .max_abs_diff = 1e-5,
    .config = qwen2_vl_config,
    .weights = qwen2_vl_weights,
    .parts =
        (const ModelPart[]){{"vision", qwen2_vl_vision}, {"text", qwen2_vl_text}, {NULL, NULL}},
    .pipeline = PIPELINE_VISION_DECODE,
};
