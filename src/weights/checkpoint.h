/* checkpoint.h: a model's files as one thing, whichever way they are stored: a directory with
 * config.json and safetensors (Hugging Face or MLX layout), or a GGUF file (or its first split),
 * with the vision projector beside it where the model has a vision tower.
 * Names and configuration keys are those of Hugging Face for both (gguf_names.h says how GGUF is
 * mapped).
 *
 * Nothing is converted or copied, unless the caller gives room for it (CheckpointSpace): tensors
 * are views of the mapped files, valid until checkpoint_close. Everything is checked when opened,
 * so that a view is always inside its file. Opening reads headers only. After open a checkpoint is
 * read-only and any thread may read it. */
#ifndef MERE_WEIGHTS_CHECKPOINT_H
#define MERE_WEIGHTS_CHECKPOINT_H

#include "base/arena.h"
#include "base/format.h"
#include "base/json.h"
#include "weights/gguf.h"
#include "weights/tensor.h"

typedef struct Checkpoint Checkpoint;

/* `path`: a directory or a .gguf file (hub.h finds one for a name). The checkpoint lives in `a` and
 * must be closed before it. ERR_NOT_FOUND, ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, ERR_NOMEM: nothing
 * stays open. */
MUST_CHECK bool checkpoint_open(Arena *a, const char *path, Checkpoint **out, Error *err);
void checkpoint_close(Checkpoint *ck); /* NULL is fine */

/* The configuration, as families read it: config.json's object (or one made from GGUF metadata), in
 * which "eos_token_id" is a list (generation_config.json's ids first, else the config's; missing
 * when neither has one) and "generation_config" is generation_config.json's object where there is
 * one. Extra keys for GGUF: "rope_interleaved" and others, see gguf_names.h. Borrowed. */
const json_t *checkpoint_config(const Checkpoint *ck);
const char *checkpoint_doc(const Checkpoint *ck);  /* the configuration's file, for messages */
const char *checkpoint_path(const Checkpoint *ck); /* as opened */
/* NULL for a directory of safetensors; else the metadata (tokens, merges, scores ...). */
const Gguf *checkpoint_gguf(const Checkpoint *ck);
static inline bool checkpoint_is_gguf(const Checkpoint *ck)
{
    return checkpoint_gguf(ck) != NULL;
}

/* A file beside config.json ("tokenizer.json"), read whole into `a`, at most 256 MiB. out->ptr is
 * NULL when there is none (always for GGUF). `name` is a plain file name. */
MUST_CHECK bool checkpoint_side_file(const Checkpoint *ck, Arena *a, const char *name, Str *out,
                                     Error *err);
/* The chat template called `name` (NULL: the default one): chat_template.jinja, else
 * tokenizer_config.json's "chat_template" (a string, or a list of {name, template}), else
 * chat_template.json; for GGUF tokenizer.chat_template[.name]. out->ptr is NULL when there is none.
 */
MUST_CHECK bool checkpoint_chat_template(const Checkpoint *ck, Arena *a, const char *name, Str *out,
                                         Error *err);
/* A metadata array of strings as views into the file ("tokenizer.ggml.tokens"). *out is NULL and *n
 * 0 when the key is missing. */
MUST_CHECK bool checkpoint_strings(const Checkpoint *ck, Arena *a, const char *key, Str **out,
                                   int64_t *n, Error *err);

/* Tensors. */
const Tensor *checkpoint_find(const Checkpoint *ck, const char *name); /* NULL: no such tensor */
bool checkpoint_has(const Checkpoint *ck, const char *name);
int64_t checkpoint_n_tensors(const Checkpoint *ck);
const Tensor *checkpoint_tensor(const Checkpoint *ck, int64_t i); /* in the order of the headers */
uint64_t checkpoint_bytes(const Checkpoint *ck);                  /* of all tensors */
int checkpoint_n_files(const Checkpoint *ck);
const char *checkpoint_file(const Checkpoint *ck, int file); /* its path */
bool checkpoint_broken(const Checkpoint *ck); /* a file was cut while mapped; data is zero there */

/* Room for matrices that are derived from the file's bytes. */
typedef struct CheckpointSpace {
    Arena *arena;
    int64_t bytes; /* written so far */
} CheckpointSpace;

/* The matrix `stem` ("model.layers.0.mlp.up_proj") as n rows of k, in whatever scheme it is stored:
 *   <stem>.weight                        plain numbers or GGUF blocks, [.., k] with n rows in all
 *   <stem>.qweight, .weight_packed, .weight + .weight_scale ...  the schemes of quant.h
 *   <stem>.weight + .scales (+ .biases)  MLX: affine 4 and 8 bits, group 32, 64, 128; mxfp4.
 * Bits and group come from the shapes, the mode from the configuration ("quantization", with its
 * overrides per module). ERR_FORMAT: a part is missing or has another shape. ERR_UNSUPPORTED: bits
 * or mode that mere does not read. */
MUST_CHECK bool checkpoint_rows(const Checkpoint *ck, const char *stem, int64_t n, int64_t k,
                                RowView *out, Error *err);
/* The same, and what cannot be used as it lies in the file is written into `space`, which must live
 * as long as the view. checkpoint_rows refuses such a matrix. */
MUST_CHECK bool checkpoint_rows_derived(const Checkpoint *ck, CheckpointSpace *space,
                                        const char *stem, int64_t n, int64_t k, RowView *out,
                                        Error *err);

/* Rows [n][k] of expert e of n_experts. `stem` is "<moe>.experts.<proj>"; looked for, in this
 * order:
 * - <moe>.experts.<proj>, stacked [n_experts, n, k] (GGUF)
 * - <moe>.switch_mlp.<proj>, stacked (MLX)
 * - <moe>.experts.<e>.<proj>, one tensor per expert (as published)
 * Errors as checkpoint_rows. */
MUST_CHECK bool checkpoint_expert_rows(const Checkpoint *ck, const char *stem, int e, int n_experts,
                                       int64_t n, int64_t k, RowView *out, Error *err);
MUST_CHECK bool checkpoint_expert_rows_derived(const Checkpoint *ck, CheckpointSpace *space,
                                               const char *stem, int e, int n_experts, int64_t n,
                                               int64_t k, RowView *out, Error *err);

/* The tensor `name` (with its ".weight" or ".bias"), of any shape and any weight format, as n f32
 * in out. ERR_FORMAT: missing, or not n elements. */
MUST_CHECK bool checkpoint_vector(const Checkpoint *ck, const char *name, int64_t n, float *out,
                                  Error *err);

/* What `mere info` prints: bytes per group of tensors and format. */
typedef struct CheckpointGroup {
    const char *name;   /* embedding attention mlp experts norms head other */
    const char *format; /* "Q4_1", "affine 4-bit" */
    int group_size;     /* elements that share a scale, 0 for plain numbers */
    uint64_t bytes;     /* scales and biases included */
    int64_t n_tensors;  /* matrices and vectors; scales and biases not counted */
} CheckpointGroup;

/* Groups in the order above, formats of a group by size; an array in `a`. */
MUST_CHECK bool checkpoint_groups(const Checkpoint *ck, Arena *a, CheckpointGroup **out, int *n,
                                  Error *err);

#endif
