/* decoder.h: what decoder-only families share: configuration keys, the weights of attention, gated
 * MLP and mixture of experts, and the graph pieces over them (families.md ATTN, MLP, MOE, HEAD).
 *
 * A family owns a struct that begins with a Decoder and an array of its layers, both in the model's
 * arena: weights and vectors are pointed to by the graph and the ledger, so they never move. Names
 * of tensors are Hugging Face's. */
#ifndef MERE_MODEL_BLOCKS_DECODER_H
#define MERE_MODEL_BLOCKS_DECODER_H

#include "model/model.h"

enum {
    DECODER_WIDTH_MAX = 1 << 20, /* columns of any activation: hidden, ffn, heads * head_dim */
    DECODER_LAYERS_MAX = 1024,
    DECODER_HEADS_MAX = 1024,
    DECODER_HEAD_DIM_MAX = 1024,
    DECODER_VOCAB_MAX = 1 << 24,
    DECODER_EXPERTS_MAX = 4096
};

typedef struct Decoder {
    int n_layers, hidden, n_heads, n_kv_heads, head_dim;
    int ffn; /* intermediate_size; 0 when the configuration has none (all layers are experts) */
    float eps;
    bool tied;      /* the head multiplies by the embedding */
    bool attn_bias; /* "attention_bias": q, k, v and o must have one */
    bool mlp_bias;
    RopeDesc rope; /* of the q heads */
    Weight embed, head;
    Vec norm;
} Decoder;

/* Reads the keys every decoder has and sets the model's facts. `rotary`: the share of a head that
 * rotates when there is no "partial_rotary_factor". ERR_FORMAT, ERR_UNSUPPORTED name key and value.
 */
MUST_CHECK bool decoder_config(Model *m, const json_t *config, Decoder *d, double rotary,
                               Error *err);
/* windows[n_layers]: keys a layer's queries see, 0 for all. "sliding_window" counts in layers that
 * "layer_types" calls "sliding_attention"; without that list in layers from `first` on. */
MUST_CHECK bool decoder_windows(Model *m, const json_t *config, const Decoder *d, int first,
                                int **windows, Error *err);
/* Embedding, final norm and head: model.embed_tokens, model.norm, lm_head. */
MUST_CHECK bool decoder_ends(Model *m, Decoder *d, Error *err);

typedef struct DecoderAttn {
    Weight qkv;         /* rows [q | k | v], and [| gate] when gated */
    Weight out;         /* [hidden, n_heads * head_dim] */
    Vec q_norm, k_norm; /* [head_dim]; n 0: none */
    int window;
    bool gated; /* q_proj holds [q | gate] for each head; out multiplies attention * sigmoid(gate)
                 */
} DecoderAttn;

/* "<prefix>.{q,k,v,o}_proj", with qk_norm "<prefix>.{q,k}_norm". Window and gated are set before.
 */
MUST_CHECK bool decoder_attn_load(Model *m, const Decoder *d, DecoderAttn *attn, bool qk_norm,
                                  const char *prefix, Error *err);
/* x [rows, hidden] after its norm -> [rows, hidden] */
T decoder_attn(Graph *g, const Decoder *d, const DecoderAttn *attn, T x);

typedef struct DecoderMlp {
    Weight gate_up; /* rows [gate | up], [2 * ffn, hidden] */
    Weight down;    /* [hidden, ffn] */
    int ffn;
} DecoderMlp;

/* "<prefix>.{gate,up,down}_proj" */
MUST_CHECK bool decoder_mlp_load(Model *m, const Decoder *d, DecoderMlp *mlp, int ffn,
                                 const char *prefix, Error *err);
T decoder_mlp(Graph *g, const DecoderMlp *mlp, T x);

/* Keys of a mixture of experts, one for all layers. */
typedef struct DecoderMoeConfig {
    int n_experts, top_k;
    int ffn;        /* moe_intermediate_size: of one expert */
    int shared_ffn; /* shared_expert_intermediate_size; 0: no shared expert */
    bool renorm;    /* norm_topk_prob */
    bool *sparse;   /* [n_layers]: the layer has experts, not one MLP */
} DecoderMoeConfig;

/* num_experts, num_experts_per_tok, moe_intermediate_size, shared_expert_intermediate_size (when
 * `shared`), norm_topk_prob, and which layers: mlp_only_layers, decoder_sparse_step. */
MUST_CHECK bool decoder_moe_config(Model *m, const json_t *config, const Decoder *d, bool shared,
                                   DecoderMoeConfig *c, Error *err);

typedef struct DecoderMoe {
    Weight router; /* rows [experts], and [| 1] the shared expert's gate */
    Weight gate_up, down;
    DecoderMlp shared;
    MoeDesc desc;
    bool has_shared;
} DecoderMoe;

/* "<prefix>.gate", "<prefix>.experts", "<prefix>.shared_expert", "<prefix>.shared_expert_gate" */
MUST_CHECK bool decoder_moe_load(Model *m, const Decoder *d, DecoderMoe *moe,
                                 const DecoderMoeConfig *c, const char *prefix, Error *err);
T decoder_moe(Graph *g, const DecoderMoe *moe, T x);

/* A layer as most have it: x + attention(norm x), then x + MLP or experts(norm x). */
typedef struct DecoderLayer {
    Vec attn_norm, mlp_norm;
    DecoderAttn attn;
    bool sparse;
    DecoderMoe moe; /* sparse */
    DecoderMlp mlp; /* else */
} DecoderLayer;

/* What differs between the families whose layers are all DecoderLayers. */
typedef struct DecoderLayerOptions {
    bool qk_norm;
    const int *windows;          /* [n_layers], or NULL: none */
    const DecoderMoeConfig *moe; /* NULL: no experts */
} DecoderLayerOptions;

/* The ends and all layers: "model.layers.<i>.{input_layernorm, self_attn, post_attention_layernorm,
 * mlp}". */
MUST_CHECK bool decoder_layers_load(Model *m, Decoder *d, const DecoderLayerOptions *o,
                                    DecoderLayer **layers, Error *err);
/* x [rows, hidden] through all layers and out. */
void decoder_layers(Graph *g, const Decoder *d, const DecoderLayer *layers, T x);

/* Final norm of the wanted rows, head, and g_out. */
void decoder_out(Graph *g, const Decoder *d, T x);

#endif
