/* model.h: a model family: how a checkpoint's configuration becomes a structure, its tensors become
 * weights, and its forward pass a graph. One file a family (families/), registered by one line of
 * models.def; no code outside a family's file asks which family runs.
 *
 * model_open reads the configuration and the tensors' headers; weights stay views of the mapped
 * checkpoint, only small vectors (norms, biases, decay) are copied, as f32. Everything lives in the
 * arena given; the checkpoint must outlive the model. One thread. */
#ifndef MERE_MODEL_MODEL_H
#define MERE_MODEL_MODEL_H

#include "base/json.h"
#include "graph/graph.h"
#include "weights/checkpoint.h"

/* Which driver runs the parts, and in which order. */
typedef enum Pipeline {
    PIPELINE_DECODE,          /* "text": rows in, logits out */
    PIPELINE_ENCODER_DECODER, /* "encoder" once a request: writes the keys and values of its rows
                                 into the KV_FIXED group; then "decoder" as text, with their number
                                 in Segment.fixed_len */
    PIPELINE_VISION_DECODE    /* "vision" once an image: its outputs stand in for image tokens as
                                 INPUT_EMBEDS of "text", which has three positions a row */
} Pipeline;

const char *model_pipeline_name(Pipeline p); /* "encoder-decoder" */

typedef struct Model Model;

typedef struct ModelPart {
    const char *name; /* "text", "encoder", "decoder", "vision" */
    /* Writes one forward pass. Errors are the graph's (sticky). */
    void (*build)(Graph *g, const Model *m);
} ModelPart;

typedef struct ModelFamily {
    const char *name;
    const char *const *
        types; /* config.json model_type, NULL-terminated; compared case-folded, '-' equal to '_' */
    const char *const *blocks; /* ids of families.md, for `mere families`, NULL-terminated */
    const char *verified_by;   /* the reference its golden test compares with */
    double max_abs_diff;       /* of the logits (f32, tiny models), what that test allows */
    /* config -> m->config (family's own struct from m->arena) and the facts below. Refuses what it
     * cannot run, naming the key. */
    bool (*config)(Model *m, const json_t *config, Error *err);
    /* tensors -> weights in m->config. */
    bool (*weights)(Model *m, Error *err);
    const ModelPart *parts; /* ends with a NULL name */
    Pipeline pipeline;
} ModelFamily;

struct Model {
    Arena *arena;
    const Checkpoint *ck;
    const ModelFamily *family;
    void *config;
    const char *doc; /* name of the configuration in errors */
    /* Facts the engine needs. */
    int vocab, hidden, n_layers;
    int max_ctx; /* max_position_embeddings */
    /* Ledger of what was derived (f32 copies), and every weight for `place`. */
    int64_t derived_bytes;
    int64_t derived_weight_bytes; /* of them, weights whose file's layout is no use */
    const Weight **weights;
    int n_weights, cap_weights;
};

const ModelFamily *const *model_families(int *n);
const ModelFamily *model_family_find(const char *model_type);

/* ERR_UNSUPPORTED: unknown model_type, with the list of known ones. */
MUST_CHECK bool model_open(Arena *a, const Checkpoint *ck, Model **out, Error *err);
/* ERR_UNSUPPORTED, with what the family needs: its parts are run by another driver than `p`. */
MUST_CHECK bool model_needs(const Model *m, Pipeline p, Error *err);
MUST_CHECK bool model_build(const Model *m, Arena *a, const char *part, const GraphLimits *limits,
                            const GraphPlan **plan, Error *err);

/* For family files (model_load.c). `stem` is a printf format naming tensors "stem.weight". */
MUST_CHECK bool model_vec(Model *m, Vec *out, int n, Error *err, const char *fmt, ...)
    PRINTF(5, 6); /* full tensor name */
/* Row segments of one weight: stems is a list of printf'ed stems, rows[i] rows each; optional
 * biases "<stem>.bias" are taken when all have one. */
typedef struct ModelRows {
    const char *stem;
    int64_t n;
} ModelRows;
MUST_CHECK bool model_weight(Model *m, Weight *out, const char *name, int k, ShardRole role,
                             const ModelRows *rows, int n_rows, Error *err);
/* A weight of one tensor, "<stem>.weight". `bias`: whether it has "<stem>.bias"; ERR_FORMAT when
 * the file disagrees. */
MUST_CHECK bool model_matrix(Model *m, Weight *out, int64_t n, int k, bool bias, ShardRole role,
                             Error *err, const char *fmt, ...) PRINTF(8, 9);
/* A convolution's kernel "<stem>.weight" of these dimensions, plain numbers, as a matrix of dims[0]
 * rows: what multiplies windows ([out][in][taps]) or flattened patches. Bias as in model_matrix. */
MUST_CHECK bool model_kernel(Model *m, Weight *out, const int *dims, int n_dims, bool bias,
                             Error *err, const char *fmt, ...) PRINTF(7, 8);
/* The same of [out][in][frames][rows][cols] without a bias, where the file may have a tensor
 * [out][in][rows][cols] for each frame ("<stem>.weight", "<stem>.weight.1" ...) instead of one:
 * then they are joined in the model's arena. */
MUST_CHECK bool model_kernel_frames(Model *m, Weight *out, const int *dims, Error *err,
                                    const char *stem);
/* Experts, either stacked tensors "<prefix>.<proj>" [E, n, k] or separate "<prefix>.<e>.<proj>". */
MUST_CHECK bool model_experts(Model *m, Weight *out, const char *prefix, int n_experts, int k,
                              const ModelRows *projs, int n_projs, Error *err);
/* Splits or reorders the rows of a loaded weight: segment i is rows [from[i], from[i] + n[i]) of
 * the old row order. */
MUST_CHECK bool model_reorder(Model *m, Weight *w, const int64_t *from, const int64_t *n,
                              int n_segs, Error *err);
const char *model_name(Model *m, Error *err, const char *fmt, ...)
    PRINTF(3, 4); /* string in the model's arena, NULL on failure */
/* rope_theta, rope_scaling / rope_parameters (default, linear, llama3, yarn ...) -> RopeDesc
 * without table; families.md ROPE. */
MUST_CHECK bool model_rope(Model *m, const json_t *config, int n_heads, int head_dim, int rot_dim,
                           RopeDesc *out, Error *err);

#endif
