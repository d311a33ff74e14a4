/* t5.c: T5 and T5 1.1: RMS norms, attention without scale whose scores have a learned bias by
 * distance, and a ReLU or gated GELU MLP (families.md ATTN.rel). */
#include "model/blocks/decoder.h"
#include "model/blocks/encoder.h"

#include <math.h>

/* Groups, in this order. */
enum { GROUP_ENCODER, GROUP_CROSS, GROUP_DECODER };
enum { BUCKETS_MAX = 1024, DISTANCE_MAX = 4096 };

typedef struct T5Layer {
    Vec attn_norm, cross_norm, mlp_norm;
    Weight qkv, out;
    Weight cross_q, cross_kv, cross_out; /* decoder only */
    Weight up, down;                     /* up: [| gate, up] when gated */
} T5Layer;

typedef struct T5Stack {
    int n_layers;
    Vec bias; /* [n_heads][2 * max_distance + 1] */
    Vec norm; /* of the decoder: times what the head's input is scaled by */
    T5Layer *layers;
} T5Stack;

typedef struct T5 {
    int hidden, ffn, n_heads, head_dim;
    int n_buckets, max_distance;
    float eps;
    bool gated, tied, scaled; /* scaled: the head's input is divided by sqrt(hidden) */
    Weight embed, head;
    T5Stack encoder, decoder;
} T5;

static bool mlp_config(Model *m, const json_t *config, T5 *c, Error *err)
{
    Str act;
    if (!json_get_str_or(config, m->doc, "feed_forward_proj", &act, err))
        return false;
    c->gated = act.ptr && str_is(act, "gated-gelu");
    if (act.ptr && !c->gated && !str_is(act, "relu"))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: \"feed_forward_proj\" is \"%.40s\", known are relu, gated-gelu", m->doc,
                       act.ptr);
    return true;
}

static bool bias_config(Model *m, const json_t *config, T5 *c, Error *err)
{
    if (!json_get_int_or(config, m->doc, "relative_attention_num_buckets", 4, BUCKETS_MAX, 32,
                         &c->n_buckets, err) ||
        !json_get_int_or(config, m->doc, "relative_attention_max_distance", 1, DISTANCE_MAX, 128,
                         &c->max_distance, err))
        return false;
    if (c->n_buckets % 4 != 0 || c->max_distance <= c->n_buckets / 2)
        return err_set(
            err, ERR_FORMAT,
            "%s: \"relative_attention_num_buckets\" is %d for a "
            "\"relative_attention_max_distance\" of %d, wanted a multiple of 4 less than "
            "twice that",
            m->doc, c->n_buckets, c->max_distance);
    return true;
}

static bool t5_config(Model *m, const json_t *config, Error *err)
{
    T5 *c = ARENA_NEW(m->arena, T5, err);
    if (!c)
        return false;
    m->config = c;
    const char *doc = m->doc;
    double eps;
    bool both;
    if (!json_get_int(config, doc, "d_model", 1, DECODER_WIDTH_MAX, &c->hidden, err) ||
        !json_get_int(config, doc, "d_ff", 1, DECODER_WIDTH_MAX / 2, &c->ffn, err) ||
        !json_get_int(config, doc, "d_kv", 1, DECODER_HEAD_DIM_MAX, &c->head_dim, err) ||
        !json_get_int(config, doc, "num_heads", 1, DECODER_HEADS_MAX, &c->n_heads, err) ||
        !json_get_int(config, doc, "num_layers", 1, DECODER_LAYERS_MAX, &c->encoder.n_layers,
                      err) ||
        !json_get_int_or(config, doc, "num_decoder_layers", 1, DECODER_LAYERS_MAX,
                         c->encoder.n_layers, &c->decoder.n_layers, err) ||
        !json_get_int(config, doc, "vocab_size", 1, DECODER_VOCAB_MAX, &m->vocab, err) ||
        !json_get_int_or(config, doc, "n_positions", 1, INT32_MAX, 512, &m->max_ctx, err) ||
        !json_get_f64_or(config, doc, "layer_norm_epsilon", 1e-6, &eps, err) ||
        !json_get_bool_or(config, doc, "tie_word_embeddings", true, &c->tied, err) ||
        !json_get_bool_or(config, doc, "scale_decoder_outputs", c->tied, &c->scaled, err) ||
        !json_get_bool_or(config, doc, "is_encoder_decoder", true, &both, err) ||
        !mlp_config(m, config, c, err) || !bias_config(m, config, c, err))
        return false;
    if (!(eps > 0 && eps < 1))
        return err_set(err, ERR_FORMAT, "%s: \"layer_norm_epsilon\" is %g, wanted between 0 and 1",
                       doc, eps);
    if (!both)
        return err_set(err, ERR_UNSUPPORTED, "%s: \"is_encoder_decoder\" is false, known is true",
                       doc);
    c->eps = (float)eps;
    m->hidden = c->hidden;
    m->n_layers = c->decoder.n_layers;
    return true;
}

/* The bucket of a key `distance` before its query: the first half of the buckets hold one distance
 * each, the others grow with its logarithm up to max_distance. In f32, as the models were trained:
 * borders between buckets are powers where rounding decides. */
static int bucket_of(int distance, int n_buckets, int max_distance)
{
    const int exact = n_buckets / 2;
    if (distance < exact)
        return distance;
    const float share =
        logf((float)distance / (float)exact) / (float)log((double)max_distance / (double)exact);
    const int at = exact + (int)(share * (float)(n_buckets - exact));
    return at < n_buckets ? at : n_buckets - 1;
}

/* The learned table [buckets][heads] as one by distance. Both ways: half of the buckets are for
 * keys after their query; one way: those see what distance 0 sees (they are masked). */
static bool bias_load(Model *m, const T5 *c, T5Stack *s, bool both_ways, const char *name,
                      Error *err)
{
    Vec table;
    const int span = c->max_distance;
    const int n = c->n_heads * (2 * span + 1);
    if (!model_vec(m, &table, c->n_buckets * c->n_heads, err,
                   "%s.block.0.layer.0.SelfAttention.relative_attention_bias.weight", name))
        return false;
    float *v = ARENA_ARRAY(m->arena, n, float, err);
    if (!v)
        return false;
    m->derived_bytes += n * (int64_t)sizeof *v;
    const int side = both_ways ? c->n_buckets / 2 : c->n_buckets;
    for (int d = -span; d <= span; d++) {
        const int before = d < 0 ? -d : 0;
        const int after = d > 0 ? d : 0;
        const int bucket = both_ways && after ? side + bucket_of(after, side, span)
                                              : bucket_of(before, side, span);
        for (int h = 0; h < c->n_heads; h++)
            v[h * (2 * span + 1) + span + d] = table.v[bucket * c->n_heads + h];
    }
    s->bias = (Vec){.name = table.name, .n = n, .v = v};
    return true;
}

static bool self_load(Model *m, const T5 *c, T5Layer *l, const char *name, Error *err)
{
    const int inner = c->n_heads * c->head_dim;
    const ModelRows rows[] = {{model_name(m, err, "%s.SelfAttention.q", name), inner},
                              {model_name(m, err, "%s.SelfAttention.k", name), inner},
                              {model_name(m, err, "%s.SelfAttention.v", name), inner}};
    return model_vec(m, &l->attn_norm, c->hidden, err, "%s.layer_norm.weight", name) &&
           model_weight(m, &l->qkv, model_name(m, err, "%s.SelfAttention.qkv", name), c->hidden,
                        SHARD_HEAD, rows, 3, err) &&
           model_matrix(m, &l->out, c->hidden, inner, false, SHARD_COL, err, "%s.SelfAttention.o",
                        name);
}

static bool cross_load(Model *m, const T5 *c, T5Layer *l, const char *name, Error *err)
{
    const int inner = c->n_heads * c->head_dim;
    const ModelRows rows[] = {{model_name(m, err, "%s.EncDecAttention.k", name), inner},
                              {model_name(m, err, "%s.EncDecAttention.v", name), inner}};
    return model_vec(m, &l->cross_norm, c->hidden, err, "%s.layer_norm.weight", name) &&
           model_matrix(m, &l->cross_q, inner, c->hidden, false, SHARD_HEAD, err,
                        "%s.EncDecAttention.q", name) &&
           model_weight(m, &l->cross_kv, model_name(m, err, "%s.EncDecAttention.kv", name),
                        c->hidden, SHARD_HEAD, rows, 2, err) &&
           model_matrix(m, &l->cross_out, c->hidden, inner, false, SHARD_COL, err,
                        "%s.EncDecAttention.o", name);
}

static bool mlp_load(Model *m, const T5 *c, T5Layer *l, const char *name, Error *err)
{
    const ModelRows rows[] = {
        {model_name(m, err, "%s.DenseReluDense.%s", name, c->gated ? "wi_0" : "wi"), c->ffn},
        {model_name(m, err, "%s.DenseReluDense.wi_1", name), c->ffn}};
    return model_vec(m, &l->mlp_norm, c->hidden, err, "%s.layer_norm.weight", name) &&
           model_weight(m, &l->up, rows[0].stem, c->hidden, SHARD_ROW, rows, c->gated ? 2 : 1,
                        err) &&
           model_matrix(m, &l->down, c->hidden, c->ffn, false, SHARD_COL, err,
                        "%s.DenseReluDense.wo", name);
}

static bool stack_load(Model *m, const T5 *c, T5Stack *s, bool decoder, const char *name,
                       Error *err)
{
    s->layers = ARENA_ARRAY(m->arena, s->n_layers, T5Layer, err);
    if (!s->layers || !bias_load(m, c, s, !decoder, name, err) ||
        !model_vec(m, &s->norm, c->hidden, err, "%s.final_layer_norm.weight", name))
        return false;
    for (int i = 0; i < s->n_layers; i++) {
        const char *sub[3]; /* self-attention, cross-attention (decoder), MLP */
        for (int j = 0; j < 3; j++)
            if (!(sub[j] = model_name(m, err, "%s.block.%d.layer.%d", name, i, j)))
                return false;
        if (!self_load(m, c, &s->layers[i], sub[0], err) ||
            (decoder && !cross_load(m, c, &s->layers[i], sub[1], err)) ||
            !mlp_load(m, c, &s->layers[i], sub[decoder ? 2 : 1], err))
            return false;
    }
    return true;
}

static bool t5_weights(Model *m, Error *err)
{
    T5 *c = m->config;
    if (!model_matrix(m, &c->embed, m->vocab, c->hidden, false, SHARD_REPLICATED, err, "shared") ||
        !stack_load(m, c, &c->encoder, false, "encoder", err) ||
        !stack_load(m, c, &c->decoder, true, "decoder", err))
        return false;
    for (int i = 0; c->scaled && i < c->hidden; i++)
        c->decoder.norm.v[i] /= sqrtf((float)c->hidden);
    return c->tied ||
           model_matrix(m, &c->head, m->vocab, c->hidden, false, SHARD_ROW, err, "lm_head");
}

static void declare_groups(Graph *g, const T5 *c)
{
    const KvGroup step = encoder_step_group(c->n_heads, c->head_dim);
    const KvGroup cross = encoder_fixed_group(c->decoder.n_layers, c->n_heads, c->head_dim);
    KvGroup grow = cross;
    grow.use = KV_GROW;
    (void)g_kv_group(g, &step);
    (void)g_kv_group(g, &cross);
    (void)g_kv_group(g, &grow);
}

static AttnDesc attn_desc(const T5 *c, int group, int layer, bool full, const Vec *bias)
{
    AttnDesc a = encoder_attn_desc(c->n_heads, c->head_dim, group, layer, full);
    a.scale = 1;
    a.bias = bias;
    a.span = bias ? c->max_distance : 0;
    return a;
}

static T self_attn(Graph *g, const T5 *c, const T5Layer *l, T x, const AttnDesc *desc)
{
    const int inner = c->n_heads * c->head_dim;
    const T qkv = g_lin(g, &l->qkv, g_norm(g, &l->attn_norm, x, c->eps)); /* [rows, 3 * inner] */
    const T o = encoder_attend(g, g_slice(g, qkv, 0, inner), g_slice(g, qkv, inner, inner),
                               g_slice(g, qkv, 2 * inner, inner), desc);
    return g_add(g, x, g_lin(g, &l->out, o));
}

static T mlp(Graph *g, const T5 *c, const T5Layer *l, T x)
{
    const T up = g_lin(g, &l->up, g_norm(g, &l->mlp_norm, x, c->eps));
    const T h = c->gated ? g_act(g, ACT_GELU_TANH, g_slice(g, up, 0, c->ffn),
                                 g_slice(g, up, c->ffn, c->ffn))
                         : g_act(g, ACT_RELU, up, 0);
    return g_add(g, x, g_lin(g, &l->down, h));
}

static void t5_encoder(Graph *g, const Model *m)
{
    const T5 *c = m->config;
    const int inner = c->n_heads * c->head_dim;
    declare_groups(g, c);
    T x = g_embed(g, &c->embed); /* [rows, hidden] */
    for (int i = 0; i < c->encoder.n_layers; i++) {
        const AttnDesc attn = attn_desc(c, GROUP_ENCODER, 0, true, &c->encoder.bias);
        g_name(g, "encoder.block.%d", i);
        x = self_attn(g, c, &c->encoder.layers[i], x, &attn);
        x = mlp(g, c, &c->encoder.layers[i], x);
    }
    x = g_norm(g, &c->encoder.norm, x, c->eps);
    for (int i = 0; i < c->decoder.n_layers; i++) {
        const AttnDesc cross = attn_desc(c, GROUP_CROSS, i, true, NULL);
        g_name(g, "decoder.block.%d.layer.1", i);
        const T kv = g_lin(g, &c->decoder.layers[i].cross_kv, x); /* [rows, 2 * inner] */
        g_kv(g, g_slice(g, kv, 0, inner), g_slice(g, kv, inner, inner), &cross);
    }
    g_out(g, 0, g_out_rows(g, x));
}

static void t5_decoder(Graph *g, const Model *m)
{
    const T5 *c = m->config;
    declare_groups(g, c);
    T x = g_embed(g, &c->embed); /* [rows, hidden] */
    for (int i = 0; i < c->decoder.n_layers; i++) {
        const T5Layer *l = &c->decoder.layers[i];
        const AttnDesc attn = attn_desc(c, GROUP_DECODER, i, false, &c->decoder.bias);
        const AttnDesc cross = attn_desc(c, GROUP_CROSS, i, true, NULL);
        g_name(g, "decoder.block.%d", i);
        x = self_attn(g, c, l, x, &attn);
        const T q = g_lin(g, &l->cross_q, g_norm(g, &l->cross_norm, x, c->eps));
        x = g_add(g, x, g_lin(g, &l->cross_out, g_attend(g, q, &cross)));
        x = mlp(g, c, l, x);
    }
    g_name(g, "out");
    const T hidden = g_norm(g, &c->decoder.norm, g_out_rows(g, x), c->eps);
    g_out(g, hidden, g_lin(g, c->tied ? &c->embed : &c->head, hidden));
}

const ModelFamily t5_family = {
    .name = "t5",
    .types = (const char *const[]){"t5", NULL},
    .blocks = (const char *const[]){"NORM", "ATTN.full", "ATTN.cross", "ATTN.rel", "MLP.relu",
                                    "MLP.geglu", "HEAD.tie", NULL},
    .verified_by = "transformers 5.24.0, f32",
    .max_abs_diff = 5e-5, /* no scale: sharp softmaxes amplify the order of sums */
    .config = t5_config,
    .weights = t5_weights,
    .parts = (const ModelPart[]){{"encoder", t5_encoder}, {"decoder", t5_decoder}, {NULL, NULL}},
    .pipeline = PIPELINE_ENCODER_DECODER,
};
