/* gguf_names.h: GGUF metadata and tensor names in Hugging Face's words, so that a family reads one
 * configuration and one set of names (tables in gguf_names.def).
 *
 * What differs from a Hugging Face checkpoint, and the keys that say so:
 *   "rope_interleaved": true    llama, mistral3: the rows of q_proj and k_proj are permuted within
 * each head so that rotation pairs elements 2i and 2i + 1 (not i and i + d/2). "norms_plus_one":
 * true      qwen3next: the 1 of zero-centred norms is already added to their weights.
 *   "rope_freqs.weight"         a tensor [rot_dim / 2], where there is one: frequencies are divided
 * by it (llama3 scaling, already worked out; no "rope_scaling" then). experts stacked,
 * "model.layers.<i>.mlp.experts.<proj>.weight" [E, n, k]. qwen3next, linear layers
 * linear_attn.in_proj_qkv (rows: all q, all k, all v) and .in_proj_z, not packed by head (older
 * files: .in_proj_qkvz, packed); .in_proj_ba as published; .conv1d.weight is [C, K];
 * linear_attn.A_neg_exp (no ".weight") is -exp(A_log). Tensors without a Hugging Face name keep
 * their own. */
#ifndef MERE_WEIGHTS_GGUF_NAMES_H
#define MERE_WEIGHTS_GGUF_NAMES_H

#include "base/json.h"
#include "weights/gguf.h"

/* The name of a tensor, in `a` when it changes. out->ptr is NUL-terminated. */
MUST_CHECK bool gguf_names_tensor(Arena *a, Str gguf, Str *out, Error *err);

/* The configuration: the caller's to json_decref. "eos_token_id" is a list. ERR_UNSUPPORTED: an
 * architecture that is not in the table. ERR_FORMAT names the metadata key that is missing or
 * wrong. */
MUST_CHECK bool gguf_names_config(const Gguf *g, json_t **out, Error *err);

#endif
