#include "model/blocks/encoder.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

bool encoder_norm_load(Model *m, EncoderNorm *norm, int width, Error *err, const char *fmt, ...)
{
    char prefix[200];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof prefix)
        return err_set(err, ERR_FORMAT, "%s: a norm's name is too long", m->doc);
    return model_vec(m, &norm->w, width, err, "%s.weight", prefix) &&
           model_vec(m, &norm->b, width, err, "%s.bias", prefix);
}

T encoder_norm(Graph *g, const EncoderNorm *norm, T x, float eps)
{
    return g_layer_norm(g, &norm->w, &norm->b, x, eps);
}

bool encoder_mlp_load(Model *m, EncoderMlp *mlp, int hidden, int ffn, ActKind act,
                      const char *prefix, Error *err)
{
    mlp->act = act;
    return model_matrix(m, &mlp->up, ffn, hidden, true, SHARD_ROW, err, "%s.fc1", prefix) &&
           model_matrix(m, &mlp->down, hidden, ffn, true, SHARD_COL, err, "%s.fc2", prefix);
}

T encoder_mlp(Graph *g, const EncoderMlp *mlp, T x)
{
    return g_lin(g, &mlp->down, g_act(g, mlp->act, g_lin(g, &mlp->up, x), 0));
}

KvGroup encoder_step_group(int n_heads, int head_dim)
{
    return (KvGroup){.n_layers = 1, /* every layer reads what it has just written */
                     .n_kv_heads = n_heads,
                     .head_dim = head_dim,
                     .v_dim = head_dim,
                     .use = KV_STEP};
}

KvGroup encoder_fixed_group(int n_layers, int n_heads, int head_dim)
{
    return (KvGroup){.n_layers = n_layers,
                     .n_kv_heads = n_heads,
                     .head_dim = head_dim,
                     .v_dim = head_dim,
                     .use = KV_FIXED};
}

AttnDesc encoder_attn_desc(int n_heads, int head_dim, int group, int layer, bool full)
{
    return (AttnDesc){.n_heads = n_heads,
                      .n_kv_heads = n_heads,
                      .head_dim = head_dim,
                      .v_dim = head_dim,
                      .scale = 1.0F / sqrtf((float)head_dim),
                      .kv_group = group,
                      .kv_layer = layer,
                      .full = full};
}

T encoder_attend(Graph *g, T q, T k, T v, const AttnDesc *desc)
{
    g_kv(g, k, v, desc);
    return g_attend(g, q, desc);
}
