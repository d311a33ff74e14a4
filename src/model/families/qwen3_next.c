/* qwen3_next.c: Qwen3-Next: three gated delta nets to one gated attention, experts with a shared
 * one in every layer (families.md GDN, ATTN.gate, MOE.sm+shg). */
#include "model/blocks/decoder.h"

#include <math.h>
#include <stdio.h>

typedef struct DeltaNet {
    Weight in; /* rows [q | k | v | z | b | a] of all heads */
    Vec conv;  /* [channels][width] over q, k, v */
    Vec a_log, dt_bias;
    Vec norm;   /* [v_dim] */
    Weight out; /* [hidden, n_v_heads * v_dim] */
} DeltaNet;

typedef struct Qwen3NextLayer {
    Vec attn_norm, mlp_norm;
    bool linear;
    DeltaNet net;     /* linear */
    DecoderAttn attn; /* else */
    bool sparse;
    DecoderMoe moe; /* sparse */
    DecoderMlp mlp; /* else */
} Qwen3NextLayer;

typedef struct Qwen3Next {
    Decoder d;
    DecoderMoeConfig moe;
    int n_k, n_v, k_dim, v_dim; /* heads of a delta net */
    int conv_width;
    bool *linear; /* [n_layers] */
    Qwen3NextLayer *layers;
} Qwen3Next;

static bool layer_kinds(Model *m, const json_t *config, Qwen3Next *c, Error *err)
{
    const int n = c->d.n_layers;
    int interval;
    const json_t *types = json_object_get(config, "layer_types");
    c->linear = ARENA_ARRAY(m->arena, n, bool, err);
    if (!c->linear || !json_get_int_or(config, m->doc, "full_attention_interval", 1,
                                       DECODER_LAYERS_MAX, 4, &interval, err))
        return false;
    if (types && !json_is_null(types) && json_array_size(types) != (size_t)n)
        return err_set(err, ERR_FORMAT, "%s: \"layer_types\" has %zu items, wanted %d", m->doc,
                       json_array_size(types), n);
    for (int i = 0; i < n; i++) {
        c->linear[i] = (i + 1) % interval != 0;
        if (!types || json_is_null(types))
            continue;
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        c->linear[i] = type && strcmp(type, "linear_attention") == 0;
        if (!c->linear[i] && !(type && strcmp(type, "full_attention") == 0))
            return err_set(err, ERR_UNSUPPORTED,
                           "%s: \"layer_types\"[%d] is \"%.40s\", known are linear_attention, "
                           "full_attention",
                           m->doc, i, type ? type : "no string");
    }
    return true;
}

static bool qwen3_next_config(Model *m, const json_t *config, Error *err)
{
    Qwen3Next *c = ARENA_NEW(m->arena, Qwen3Next, err);
    if (!c)
        return false;
    m->config = c;
    const char *doc = m->doc;
    if (!decoder_config(m, config, &c->d, 0.25, err) ||
        !decoder_moe_config(m, config, &c->d, true, &c->moe, err) ||
        !json_get_int(config, doc, "linear_num_key_heads", 1, DECODER_HEADS_MAX, &c->n_k, err) ||
        !json_get_int(config, doc, "linear_num_value_heads", 1, DECODER_HEADS_MAX, &c->n_v, err) ||
        !json_get_int(config, doc, "linear_key_head_dim", 1, DECODER_HEAD_DIM_MAX, &c->k_dim,
                      err) ||
        !json_get_int(config, doc, "linear_value_head_dim", 1, DECODER_HEAD_DIM_MAX, &c->v_dim,
                      err) ||
        !json_get_int_or(config, doc, "linear_conv_kernel_dim", 2, 16, 4, &c->conv_width, err))
        return false;
    if (c->n_v % c->n_k != 0)
        return err_set(err, ERR_FORMAT,
                       "%s: \"linear_num_value_heads\" is %d, wanted a multiple of "
                       "\"linear_num_key_heads\", %d",
                       doc, c->n_v, c->n_k);
    return layer_kinds(m, config, c, err);
}

/* As published, in_proj_qkvz is one [q | k | v.. | z..] for each key head and in_proj_ba one
 * [b.. | a..]: the rows of all heads are put side by side. In GGUF the first is so already. */
static bool split_heads(Model *m, const Qwen3Next *c, Weight *in, bool packed, Error *err)
{
    const int64_t per_k = c->n_v / c->n_k; /* value heads of a key head */
    const int64_t v = per_k * c->v_dim;
    const int64_t group = 2 * c->k_dim + 2 * v;
    const int64_t ba = c->n_k * group;
    const struct {
        int64_t from, stride, n;
    } parts[] = {
        {0, group, c->k_dim},           /* q */
        {c->k_dim, group, c->k_dim},    /* k */
        {2 * c->k_dim, group, v},       /* v */
        {2 * c->k_dim + v, group, v},   /* z */
        {ba, 2 * per_k, per_k},         /* b */
        {ba + per_k, 2 * per_k, per_k}, /* a */
    };
    const int n_max = (int)COUNT_OF(parts) * c->n_k;
    int64_t *from = ARENA_ARRAY(m->arena, n_max, int64_t, err);
    int64_t *n = ARENA_ARRAY(m->arena, n_max, int64_t, err);
    if (!from || !n)
        return false;
    int at = 0;
    if (!packed)
        n[at++] = ba; /* from row 0 */
    for (size_t p = packed ? 0 : 4; p < COUNT_OF(parts); p++)
        for (int h = 0; h < c->n_k; h++, at++) {
            from[at] = parts[p].from + h * parts[p].stride;
            n[at] = parts[p].n;
        }
    return model_reorder(m, in, from, n, at, err);
}

/* A_log, or in GGUF A = -exp(A_log). */
static bool load_decay(Model *m, Vec *a_log, int n, const char *prefix, Error *err)
{
    const char *name = model_name(m, err, "%s.A_neg_exp", prefix);
    if (!name)
        return false;
    if (!checkpoint_has(m->ck, name))
        return model_vec(m, a_log, n, err, "%s.A_log", prefix);
    if (!model_vec(m, a_log, n, err, "%s", name))
        return false;
    for (int i = 0; i < n; i++) {
        if (!(a_log->v[i] < 0))
            return err_set(err, ERR_FORMAT, "%s: %s[%d] is %g, wanted less than 0",
                           checkpoint_path(m->ck), name, i, (double)a_log->v[i]);
        a_log->v[i] = logf(-a_log->v[i]);
    }
    return true;
}

static bool load_net(Model *m, const Qwen3Next *c, DeltaNet *net, const char *prefix, Error *err)
{
    const int v = c->n_v * c->v_dim;
    const int channels = 2 * c->n_k * c->k_dim + v;
    const char *out = model_name(m, err, "%s.out_proj", prefix);
    const char *split = model_name(m, err, "%s.in_proj_qkv", prefix);
    const char *split_weight = model_name(m, err, "%s.in_proj_qkv.weight", prefix);
    const ModelRows ba = {model_name(m, err, "%s.in_proj_ba", prefix), 2 * c->n_v};
    if (!split_weight)
        return false;
    const bool packed = !checkpoint_has(m->ck, split_weight);
    const ModelRows packed_in[] = {
        {model_name(m, err, "%s.in_proj_qkvz", prefix), channels + v},
        ba,
    };
    const ModelRows split_in[] = {
        {split, channels},
        {model_name(m, err, "%s.in_proj_z", prefix), v},
        ba,
    };
    return model_weight(m, &net->in, model_name(m, err, "%s.in_proj", prefix), c->d.hidden,
                        SHARD_HEAD, packed ? packed_in : split_in, packed ? 2 : 3, err) &&
           split_heads(m, c, &net->in, packed, err) &&
           model_vec(m, &net->conv, channels * c->conv_width, err, "%s.conv1d.weight", prefix) &&
           load_decay(m, &net->a_log, c->n_v, prefix, err) &&
           model_vec(m, &net->dt_bias, c->n_v, err, "%s.dt_bias", prefix) &&
           model_vec(m, &net->norm, c->v_dim, err, "%s.norm.weight", prefix) &&
           model_weight(m, &net->out, out, v, SHARD_COL, &(ModelRows){out, c->d.hidden}, 1, err);
}

/* As published, norm weights are stored as w - 1 (but not the delta net's own); converters add the
 * 1. Published files are known by their convolutions, [channels, 1, width]: converted ones are
 * [channels, width, 1], and in GGUF [channels, width]. */
static bool norms_lack_one(const Model *m, const Qwen3Next *c)
{
    for (int i = 0; i < c->d.n_layers; i++) {
        char name[80];
        (void)snprintf(name, sizeof name, "model.layers.%d.linear_attn.conv1d.weight", i);
        const Tensor *t = c->linear[i] ? checkpoint_find(m->ck, name) : NULL;
        if (t)
            return t->n_dims == 3 && t->dims[2] != 1;
    }
    return false;
}

static void add_one(Vec *w)
{
    for (int i = 0; i < w->n; i++)
        w->v[i] += 1;
}

static bool qwen3_next_weights(Model *m, Error *err)
{
    Qwen3Next *c = m->config;
    c->layers = ARENA_ARRAY(m->arena, c->d.n_layers, Qwen3NextLayer, err);
    if (!c->layers || !decoder_ends(m, &c->d, err))
        return false;
    for (int i = 0; i < c->d.n_layers; i++) {
        Qwen3NextLayer *l = &c->layers[i];
        const char *name = model_name(m, err, "model.layers.%d", i);
        const char *mixer =
            model_name(m, err, "model.layers.%d.%s", i, c->linear[i] ? "linear_attn" : "self_attn");
        const char *mlp = model_name(m, err, "model.layers.%d.mlp", i);
        l->linear = c->linear[i];
        l->sparse = c->moe.sparse[i];
        l->attn.gated = true;
        if (!name || !mixer || !mlp ||
            !model_vec(m, &l->attn_norm, c->d.hidden, err, "%s.input_layernorm.weight", name) ||
            !model_vec(m, &l->mlp_norm, c->d.hidden, err, "%s.post_attention_layernorm.weight",
                       name))
            return false;
        if (!(l->linear ? load_net(m, c, &l->net, mixer, err)
                        : decoder_attn_load(m, &c->d, &l->attn, true, mixer, err)) ||
            !(l->sparse ? decoder_moe_load(m, &c->d, &l->moe, &c->moe, mlp, err)
                        : decoder_mlp_load(m, &c->d, &l->mlp, c->d.ffn, mlp, err)))
            return false;
    }
    if (norms_lack_one(m, c)) {
        add_one(&c->d.norm);
        for (int i = 0; i < c->d.n_layers; i++) {
            Qwen3NextLayer *l = &c->layers[i];
            Vec *const norms[] = {&l->attn_norm, &l->mlp_norm, &l->attn.q_norm, &l->attn.k_norm};
            for (size_t v = 0; v < COUNT_OF(norms); v++)
                add_one(norms[v]); /* those of the other kind of layer are empty */
        }
    }
    return true;
}

static T delta_net(Graph *g, const Qwen3Next *c, const DeltaNet *net, T x)
{
    const int v = c->n_v * c->v_dim;
    const int channels = 2 * c->n_k * c->k_dim + v;
    const ConvDesc conv = {.channels = channels, .width = c->conv_width, .w = &net->conv};
    const DeltaDesc delta = {.n_k_heads = c->n_k,
                             .n_v_heads = c->n_v,
                             .k_dim = c->k_dim,
                             .v_dim = c->v_dim,
                             .a_log = &net->a_log,
                             .dt_bias = &net->dt_bias};

    const T in = g_lin(g, &net->in, x); /* [rows, channels + v + 2 * n_v] */
    const T z = g_slice(g, in, channels, v);
    const T b = g_slice(g, in, channels + v, c->n_v);
    const T a = g_slice(g, in, channels + v + c->n_v, c->n_v);
    const T qkv = g_conv(g, g_slice(g, in, 0, channels), &conv);
    const T y = g_delta(g, qkv, a, b, &delta); /* [rows, v] */
    return g_lin(g, &net->out, g_norm_gated(g, &net->norm, y, z, c->v_dim, c->d.eps));
}

static void qwen3_next_text(Graph *g, const Model *m)
{
    const Qwen3Next *c = m->config;
    T x = g_embed(g, &c->d.embed); /* [rows, hidden] */
    for (int i = 0; i < c->d.n_layers; i++) {
        const Qwen3NextLayer *l = &c->layers[i];
        g_name(g, "model.layers.%d", i);
        T h = g_norm(g, &l->attn_norm, x, c->d.eps);
        x = g_add(g, x,
                  l->linear ? delta_net(g, c, &l->net, h) : decoder_attn(g, &c->d, &l->attn, h));
        h = g_norm(g, &l->mlp_norm, x, c->d.eps);
        x = g_add(g, x, l->sparse ? decoder_moe(g, &l->moe, h) : decoder_mlp(g, &l->mlp, h));
    }
    decoder_out(g, &c->d, x);
}

const ModelFamily qwen3_next_family = {
    .name = "qwen3_next",
    .types = (const char *const[]){"qwen3_next", NULL},
    .blocks = (const char *const[]){"GDN", "ATTN.qkn", "ATTN.gate", "ROPE.half", "ROPE.part",
                                    "MOE.sm+shg", "NORM.gated", "HEAD.tie", NULL},
    .verified_by = "transformers 5.24.0, f32",
    .max_abs_diff = 1e-4,
    .config = qwen3_next_config,
    .weights = qwen3_next_weights,
    .parts = (const ModelPart[]){{"text", qwen3_next_text}, {NULL, NULL}},
    .pipeline = PIPELINE_DECODE,
};
