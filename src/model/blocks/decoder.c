#include "model/blocks/decoder.h"

#include <inttypes.h>
#include <math.h>

/* A list in the configuration of n_layers items. NULL: no such key. */
static bool get_list(Model *m, const json_t *config, const char *key, int n, const json_t **out,
                     Error *err)
{
    const json_t *v = json_object_get(config, key);
    *out = NULL;
    if (!v || json_is_null(v))
        return true;
    if (!json_is_array(v))
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is not a list", m->doc, key);
    if (n >= 0 && json_array_size(v) != (size_t)n)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" has %zu items, wanted %d (num_hidden_layers)",
                       m->doc, key, json_array_size(v), n);
    *out = v;
    return true;
}

static bool check_act(Model *m, const json_t *config, Error *err)
{
    Str act;
    if (!json_get_str_or(config, m->doc, "hidden_act", &act, err))
        return false;
    if (act.ptr && !str_is(act, "silu") && !str_is(act, "swish"))
        return err_set(err, ERR_UNSUPPORTED, "%s: \"hidden_act\" is \"%.40s\", known is silu",
                       m->doc, act.ptr);
    return true;
}

static bool check_width(Model *m, const char *what, int n, int width, Error *err)
{
    if (n > DECODER_WIDTH_MAX / width)
        return err_set(err, ERR_FORMAT, "%s: %d %s of %d make more than %d columns", m->doc, n,
                       what, width, DECODER_WIDTH_MAX);
    return true;
}

static bool heads_config(Model *m, const json_t *config, Decoder *d, Error *err)
{
    const char *doc = m->doc;
    if (!json_get_int(config, doc, "num_attention_heads", 1, DECODER_HEADS_MAX, &d->n_heads, err) ||
        !json_get_int_or(config, doc, "num_key_value_heads", 1, DECODER_HEADS_MAX, d->n_heads,
                         &d->n_kv_heads, err) ||
        !json_get_int_or(config, doc, "head_dim", 2, DECODER_HEAD_DIM_MAX, 0, &d->head_dim, err))
        return false;
    if (d->n_heads % d->n_kv_heads != 0)
        return err_set(err, ERR_FORMAT,
                       "%s: \"num_attention_heads\" is %d, wanted a multiple of "
                       "\"num_key_value_heads\", %d",
                       doc, d->n_heads, d->n_kv_heads);
    if (d->head_dim == 0) {
        d->head_dim = d->hidden / d->n_heads;
        if (d->hidden % d->n_heads != 0 || d->head_dim < 2 || d->head_dim > DECODER_HEAD_DIM_MAX)
            return err_set(err, ERR_FORMAT,
                           "%s: \"hidden_size\" is %d for %d heads and there is no \"head_dim\"",
                           doc, d->hidden, d->n_heads);
    }
    return check_width(m, "heads", d->n_heads, d->head_dim, err);
}

bool decoder_config(Model *m, const json_t *config, Decoder *d, double rotary, Error *err)
{
    const char *doc = m->doc;
    double eps;
    if (!json_get_int(config, doc, "hidden_size", 1, DECODER_WIDTH_MAX, &d->hidden, err) ||
        !json_get_int(config, doc, "num_hidden_layers", 1, DECODER_LAYERS_MAX, &d->n_layers, err) ||
        !json_get_int(config, doc, "vocab_size", 1, DECODER_VOCAB_MAX, &m->vocab, err) ||
        !json_get_int_or(config, doc, "intermediate_size", 0, DECODER_WIDTH_MAX / 2, 0, &d->ffn,
                         err) ||
        !json_get_int_or(config, doc, "max_position_embeddings", 1, INT32_MAX, 2048, &m->max_ctx,
                         err) ||
        !json_get_f64(config, doc, "rms_norm_eps", &eps, err) ||
        !json_get_bool_or(config, doc, "attention_bias", false, &d->attn_bias, err) ||
        !json_get_bool_or(config, doc, "mlp_bias", false, &d->mlp_bias, err))
        return false;
    if (!(eps > 0 && eps < 1))
        return err_set(err, ERR_FORMAT, "%s: \"rms_norm_eps\" is %g, wanted between 0 and 1", doc,
                       eps);
    d->eps = (float)eps;
    m->hidden = d->hidden;
    m->n_layers = d->n_layers;
    /* A file without a head ties it, unless the configuration denies that: then it is cut. */
    bool tie;
    if (!json_get_bool_or(config, doc, "tie_word_embeddings",
                          !checkpoint_has(m->ck, "lm_head.weight"), &tie, err))
        return false;
    d->tied = tie;
    const json_t *params = json_object_get(config, "rope_parameters");
    if (!json_get_f64_or(config, doc, "partial_rotary_factor", rotary, &rotary, err) ||
        (json_is_object(params) &&
         !json_get_f64_or(params, doc, "partial_rotary_factor", rotary, &rotary, err)))
        return false;
    if (!(rotary > 0 && rotary <= 1))
        return err_set(err, ERR_FORMAT, "%s: \"partial_rotary_factor\" is %g, wanted 0 to 1", doc,
                       rotary);
    if (!check_act(m, config, err) || !heads_config(m, config, d, err))
        return false;
    /* GGUF's factor is a quotient: 64 / 192 of 192 must be 64 again. */
    const int rot_dim = (int)(d->head_dim * rotary + 1e-6);
    return model_rope(m, config, d->n_heads, d->head_dim, rot_dim, &d->rope, err);
}

bool decoder_windows(Model *m, const json_t *config, const Decoder *d, int first, int **windows,
                     Error *err)
{
    const json_t *types;
    int window;
    int *w = ARENA_ARRAY(m->arena, d->n_layers, int, err);
    if (!w || !json_get_int_or(config, m->doc, "sliding_window", 1, INT32_MAX, 0, &window, err) ||
        !get_list(m, config, "layer_types", d->n_layers, &types, err))
        return false;
    for (int i = 0; i < d->n_layers; i++) {
        const json_t *item = types ? json_array_get(types, (size_t)i) : NULL;
        const char *type = json_string_value(item);
        bool sliding = i >= first;
        if (types) {
            sliding = type && strcmp(type, "sliding_attention") == 0;
            if (!sliding && !(type && strcmp(type, "full_attention") == 0))
                return err_set(err, ERR_UNSUPPORTED,
                               "%s: \"layer_types\"[%d] is \"%.40s\", known are full_attention, "
                               "sliding_attention",
                               m->doc, i, type ? type : "no string");
            if (sliding && window == 0)
                return err_set(
                    err, ERR_FORMAT,
                    "%s: key \"sliding_window\" is missing, \"layer_types\"[%d] needs it", m->doc,
                    i);
        }
        w[i] = sliding ? window : 0;
    }
    *windows = w;
    return true;
}

/* Weight of one stem, "<prefix>.<proj>". */
static bool load_one(Model *m, Weight *out, const char *prefix, const char *proj, int64_t n, int k,
                     ShardRole role, Error *err)
{
    const char *stem = model_name(m, err, "%s.%s", prefix, proj);
    return model_weight(m, out, stem, k, role, &(ModelRows){stem, n}, 1, err);
}

static bool need_bias(Model *m, const Weight *w, bool wanted, const char *key, Error *err)
{
    if (wanted && !w->bias)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is true and \"%s.bias\" is missing", m->doc,
                       key, w->name);
    return true;
}

bool decoder_ends(Model *m, Decoder *d, Error *err)
{
    static const char embed[] = "model.embed_tokens";
    static const char head[] = "lm_head";
    return model_weight(m, &d->embed, embed, d->hidden, SHARD_REPLICATED,
                        &(ModelRows){embed, m->vocab}, 1, err) &&
           model_vec(m, &d->norm, d->hidden, err, "model.norm.weight") &&
           (d->tied || model_weight(m, &d->head, head, d->hidden, SHARD_ROW,
                                    &(ModelRows){head, m->vocab}, 1, err));
}

/* From [q gate | q gate | ... | k | v] to [q | k | v | gate]. */
static bool gate_last(Model *m, const Decoder *d, Weight *w, Error *err)
{
    const int h = d->n_heads;
    const int64_t dim = d->head_dim;
    const int64_t kv = 2 * d->n_kv_heads * dim;
    int64_t *from = ARENA_ARRAY(m->arena, 2 * h + 1, int64_t, err);
    int64_t *n = ARENA_ARRAY(m->arena, 2 * h + 1, int64_t, err);
    if (!from || !n)
        return false;
    for (int i = 0; i < h; i++) {
        from[i] = 2 * i * dim;
        from[h + 1 + i] = (2 * i + 1) * dim;
        n[i] = n[h + 1 + i] = dim;
    }
    from[h] = 2 * h * dim;
    n[h] = kv;
    return model_reorder(m, w, from, n, 2 * h + 1, err);
}

bool decoder_attn_load(Model *m, const Decoder *d, DecoderAttn *attn, bool qk_norm,
                       const char *prefix, Error *err)
{
    const int64_t q = (int64_t)d->n_heads * d->head_dim;
    const int64_t kv = (int64_t)d->n_kv_heads * d->head_dim;
    const ModelRows rows[] = {
        {model_name(m, err, "%s.q_proj", prefix), attn->gated ? 2 * q : q},
        {model_name(m, err, "%s.k_proj", prefix), kv},
        {model_name(m, err, "%s.v_proj", prefix), kv},
    };
    if (!model_weight(m, &attn->qkv, model_name(m, err, "%s.qkv_proj", prefix), d->hidden,
                      SHARD_HEAD, rows, 3, err) ||
        !load_one(m, &attn->out, prefix, "o_proj", d->hidden, (int)q, SHARD_COL, err) ||
        !need_bias(m, &attn->qkv, d->attn_bias, "attention_bias", err) ||
        (attn->gated && !gate_last(m, d, &attn->qkv, err)))
        return false;
    return !qk_norm || (model_vec(m, &attn->q_norm, d->head_dim, err, "%s.q_norm.weight", prefix) &&
                        model_vec(m, &attn->k_norm, d->head_dim, err, "%s.k_norm.weight", prefix));
}

T decoder_attn(Graph *g, const Decoder *d, const DecoderAttn *attn, T x)
{
    const int dim = d->head_dim;
    const int nq = d->n_heads * dim;
    const int nkv = d->n_kv_heads * dim;
    RopeDesc kv_rope = d->rope;
    kv_rope.n_heads = d->n_kv_heads;
    const AttnDesc desc = {.n_heads = d->n_heads,
                           .n_kv_heads = d->n_kv_heads,
                           .head_dim = dim,
                           .v_dim = dim,
                           .scale = 1.0F / sqrtf((float)dim),
                           .window = attn->window};

    const T qkv = g_lin(g, &attn->qkv, x); /* [rows, nq + 2 * nkv (+ nq)] */
    T q = g_slice(g, qkv, 0, nq);
    T k = g_slice(g, qkv, nq, nkv);
    const T v = g_slice(g, qkv, nq + nkv, nkv);
    if (attn->q_norm.n)
        q = g_head_norm(g, &attn->q_norm, q, dim, d->eps);
    if (attn->k_norm.n)
        k = g_head_norm(g, &attn->k_norm, k, dim, d->eps);
    T o = g_attn(g, g_rope(g, q, &d->rope), g_rope(g, k, &kv_rope), v, &desc); /* [rows, nq] */
    if (attn->gated)
        o = g_sigmoid_mul(g, o, g_slice(g, qkv, nq + 2 * nkv, nq));
    return g_lin(g, &attn->out, o);
}

bool decoder_mlp_load(Model *m, const Decoder *d, DecoderMlp *mlp, int ffn, const char *prefix,
                      Error *err)
{
    if (ffn <= 0)
        return err_set(err, ERR_FORMAT, "%s: key \"intermediate_size\" is missing, %s needs it",
                       m->doc, prefix);
    mlp->ffn = ffn;
    const ModelRows rows[] = {
        {model_name(m, err, "%s.gate_proj", prefix), ffn},
        {model_name(m, err, "%s.up_proj", prefix), ffn},
    };
    return model_weight(m, &mlp->gate_up, model_name(m, err, "%s.gate_up_proj", prefix), d->hidden,
                        SHARD_ROW, rows, 2, err) &&
           load_one(m, &mlp->down, prefix, "down_proj", d->hidden, ffn, SHARD_COL, err) &&
           need_bias(m, &mlp->gate_up, d->mlp_bias, "mlp_bias", err);
}

T decoder_mlp(Graph *g, const DecoderMlp *mlp, T x)
{
    const T both = g_lin(g, &mlp->gate_up, x); /* [rows, 2 * ffn] */
    const T gate = g_slice(g, both, 0, mlp->ffn);
    const T up = g_slice(g, both, mlp->ffn, mlp->ffn);
    return g_lin(g, &mlp->down, g_silu_mul(g, gate, up));
}

/* sparse[i]: not in mlp_only_layers, and every decoder_sparse_step-th layer. */
static bool sparse_layers(Model *m, const json_t *config, const Decoder *d, bool *sparse,
                          Error *err)
{
    int step;
    const json_t *dense;
    if (!json_get_int_or(config, m->doc, "decoder_sparse_step", 1, DECODER_LAYERS_MAX, 1, &step,
                         err) ||
        !get_list(m, config, "mlp_only_layers", -1, &dense, err))
        return false;
    for (int i = 0; i < d->n_layers; i++)
        sparse[i] = (i + 1) % step == 0;
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *item = json_array_get(dense, i);
        const json_int_t layer = json_integer_value(item);
        if (!json_is_integer(item) || layer < 0)
            return err_set(err, ERR_FORMAT, "%s: \"mlp_only_layers\"[%zu] is no layer number",
                           m->doc, i);
        if (layer < d->n_layers)
            sparse[layer] = false;
    }
    return true;
}

bool decoder_moe_config(Model *m, const json_t *config, const Decoder *d, bool shared,
                        DecoderMoeConfig *c, Error *err)
{
    const char *doc = m->doc;
    const json_t *named = json_object_get(config, "num_experts");
    const bool renamed =
        (!named || json_is_null(named)) && json_object_get(config, "num_local_experts");
    const char *n_experts = renamed ? "num_local_experts" : "num_experts";
    if (!json_get_int(config, doc, n_experts, 1, DECODER_EXPERTS_MAX, &c->n_experts, err) ||
        !json_get_int(config, doc, "num_experts_per_tok", 1, c->n_experts, &c->top_k, err) ||
        !json_get_int(config, doc, "moe_intermediate_size", 1, DECODER_WIDTH_MAX / 2, &c->ffn,
                      err) ||
        (shared && !json_get_int(config, doc, "shared_expert_intermediate_size", 1,
                                 DECODER_WIDTH_MAX / 2, &c->shared_ffn, err)) ||
        !json_get_bool_or(config, doc, "norm_topk_prob", false, &c->renorm, err))
        return false;
    c->sparse = ARENA_ARRAY(m->arena, d->n_layers, bool, err);
    return c->sparse && sparse_layers(m, config, d, c->sparse, err);
}

bool decoder_moe_load(Model *m, const Decoder *d, DecoderMoe *moe, const DecoderMoeConfig *c,
                      const char *prefix, Error *err)
{
    const ModelRows gates[] = {
        {model_name(m, err, "%s.gate", prefix), c->n_experts},
        {model_name(m, err, "%s.shared_expert_gate", prefix), 1},
    };
    const ModelRows gate_up[] = {{"gate_proj", c->ffn}, {"up_proj", c->ffn}};
    const ModelRows down[] = {{"down_proj", d->hidden}};
    const char *experts = model_name(m, err, "%s.experts", prefix);
    moe->has_shared = c->shared_ffn > 0;
    if (!experts ||
        !model_weight(m, &moe->router, gates[0].stem, d->hidden, SHARD_REPLICATED, gates,
                      moe->has_shared ? 2 : 1, err) ||
        !model_experts(m, &moe->gate_up, experts, c->n_experts, d->hidden, gate_up, 2, err) ||
        !model_experts(m, &moe->down, experts, c->n_experts, c->ffn, down, 1, err))
        return false;
    moe->router.precise = true;
    moe->desc = (MoeDesc){.n_experts = c->n_experts,
                          .top_k = c->top_k,
                          .ffn = c->ffn,
                          .renorm = c->renorm,
                          .gate_up = &moe->gate_up,
                          .down = &moe->down};
    if (!moe->has_shared)
        return true;
    const char *stem = model_name(m, err, "%s.shared_expert", prefix);
    return stem && decoder_mlp_load(m, d, &moe->shared, c->shared_ffn, stem, err);
}

T decoder_moe(Graph *g, const DecoderMoe *moe, T x)
{
    const int n = moe->desc.n_experts;
    const T gates = g_lin(g, &moe->router, x); /* [rows, n_experts (+ 1)] */
    if (!moe->has_shared)
        return g_moe(g, x, gates, &moe->desc);
    const T shared = g_sigmoid_mul(g, decoder_mlp(g, &moe->shared, x), g_slice(g, gates, n, 1));
    return g_add(g, g_moe(g, x, g_slice(g, gates, 0, n), &moe->desc), shared);
}

void decoder_out(Graph *g, const Decoder *d, T x)
{
    g_name(g, "out");
    const T hidden = g_norm(g, &d->norm, g_out_rows(g, x), d->eps);
    g_out(g, hidden, g_lin(g, d->tied ? &d->embed : &d->head, hidden));
}

/* ---- whole layers ---- */

static bool load_layer(Model *m, const Decoder *d, const DecoderLayerOptions *o, int i,
                       DecoderLayer *l, Error *err)
{
    const char *name = model_name(m, err, "model.layers.%d", i);
    const char *attn = model_name(m, err, "model.layers.%d.self_attn", i);
    const char *mlp = model_name(m, err, "model.layers.%d.mlp", i);
    l->attn.window = o->windows ? o->windows[i] : 0;
    const DecoderMoeConfig *moe = o->moe && o->moe->sparse[i] ? o->moe : NULL;
    l->sparse = moe != NULL;
    if (!name || !attn || !mlp ||
        !model_vec(m, &l->attn_norm, d->hidden, err, "%s.input_layernorm.weight", name) ||
        !decoder_attn_load(m, d, &l->attn, o->qk_norm, attn, err) ||
        !model_vec(m, &l->mlp_norm, d->hidden, err, "%s.post_attention_layernorm.weight", name))
        return false;
    return moe ? decoder_moe_load(m, d, &l->moe, moe, mlp, err)
               : decoder_mlp_load(m, d, &l->mlp, d->ffn, mlp, err);
}

bool decoder_layers_load(Model *m, Decoder *d, const DecoderLayerOptions *o, DecoderLayer **layers,
                         Error *err)
{
    *layers = ARENA_ARRAY(m->arena, d->n_layers, DecoderLayer, err);
    if (!*layers || !decoder_ends(m, d, err))
        return false;
    for (int i = 0; i < d->n_layers; i++)
        if (!load_layer(m, d, o, i, &(*layers)[i], err))
            return false;
    return true;
}

void decoder_layers(Graph *g, const Decoder *d, const DecoderLayer *layers, T x)
{
    for (int i = 0; i < d->n_layers; i++) {
        const DecoderLayer *l = &layers[i];
        g_name(g, "model.layers.%d", i);
        T h = g_norm(g, &l->attn_norm, x, d->eps);
        x = g_add(g, x, decoder_attn(g, d, &l->attn, h));
        h = g_norm(g, &l->mlp_norm, x, d->eps);
        x = g_add(g, x, l->sparse ? decoder_moe(g, &l->moe, h) : decoder_mlp(g, &l->mlp, h));
    }
    decoder_out(g, d, x);
}
