/* encoder.h: what encoders, towers and their decoders share: layer norm, an MLP without gate, full
 * attention over the rows of one step, and cross-attention over an encoder's (families.md NORM.ln,
 * MLP.gelu, ATTN.full, ATTN.cross). Structs of weights do not move, as in decoder.h. */
#ifndef MERE_MODEL_BLOCKS_ENCODER_H
#define MERE_MODEL_BLOCKS_ENCODER_H

#include "model/model.h"

typedef struct EncoderNorm {
    Vec w, b;
} EncoderNorm;

/* "<prefix>.weight", "<prefix>.bias" */
MUST_CHECK bool encoder_norm_load(Model *m, EncoderNorm *norm, int width, Error *err,
                                  const char *fmt, ...) PRINTF(5, 6);
T encoder_norm(Graph *g, const EncoderNorm *norm, T x, float eps);

typedef struct EncoderMlp {
    Weight up, down; /* [ffn, hidden], [hidden, ffn], both with bias */
    ActKind act;
} EncoderMlp;

/* "<prefix>.fc1", "<prefix>.fc2" */
MUST_CHECK bool encoder_mlp_load(Model *m, EncoderMlp *mlp, int hidden, int ffn, ActKind act,
                                 const char *prefix, Error *err);
T encoder_mlp(Graph *g, const EncoderMlp *mlp, T x);

/* A group for layers that see whole segments of one step. */
KvGroup encoder_step_group(int n_heads, int head_dim);
/* A group for what `n_layers` layers of a decoder see of an encoder. */
KvGroup encoder_fixed_group(int n_layers, int n_heads, int head_dim);
/* Heads over `group`, layer `layer` of it; scale 1 / sqrt(head_dim). */
AttnDesc encoder_attn_desc(int n_heads, int head_dim, int group, int layer, bool full);
/* k and v into the group, then q over it -> [rows, n_heads * head_dim] */
T encoder_attend(Graph *g, T q, T k, T v, const AttnDesc *desc);

#endif
