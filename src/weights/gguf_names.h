/* gguf_names.h: GGUF metadata and tensor names in Hugging Face's words, so that a family reads one
 * configuration and one set of names (tables in gguf_names.def).
 *
 * What differs from a Hugging Face checkpoint, and what says so:
 * - "rope_interleaved": true (llama, mistral3). The rows of q_proj and k_proj are permuted within
 *   each head so that rotation pairs elements 2i and 2i + 1, not i and i + d/2.
 * - Tensor "rope_freqs.weight" [rot_dim / 2], where there is one: frequencies are divided by it
 *   (llama3 scaling, worked out already; there is no "rope_scaling" then).
 * - Experts are stacked: "model.layers.<i>.mlp.experts.<proj>.weight" [n_experts, n, k].
 * - qwen3next: norms hold w + 1, not the published w. In linear layers in_proj_qkv (rows: all q,
 *   all k, all v) and in_proj_z stand for the packed in_proj_qkvz (which older files have);
 *   conv1d.weight is [C, K]; "linear_attn.A_neg_exp" (no ".weight") holds -exp(A_log).
 * - qwen2vl: the vision tower is a second file (mmproj). "visual.blocks.<i>.attn.q", ".k" and ".v"
 *   stand for the rows of attn.qkv, "visual.patch_embed.proj.weight" and ".weight.1" are
 *   [width, channels, patch, patch], one for each of two frames. The norms' epsilon is not read: it
 *   is a constant over there.
 * - t5: the largest distance of the learned bias is in no key and takes its usual value, 128.
 * Tensors without a Hugging Face name keep their own. */
#ifndef MERE_WEIGHTS_GGUF_NAMES_H
#define MERE_WEIGHTS_GGUF_NAMES_H

#include "base/json.h"
#include "weights/gguf.h"

/* The name of a tensor, in `a` when it changes. out->ptr is NUL-terminated. config: what
 * gguf_names_config made of the file, which knows whose names these are; NULL: a decoder's. */
MUST_CHECK bool gguf_names_tensor(Arena *a, const json_t *config, Str gguf, Str *out, Error *err);

/* The configuration: the caller's to json_decref. "eos_token_id" is a list. ERR_UNSUPPORTED: an
 * architecture that is not in the table. ERR_FORMAT names the metadata key that is missing or
 * wrong. */
MUST_CHECK bool gguf_names_config(const Gguf *g, json_t **out, Error *err);

/* Whether the model of gguf_names_config has a vision tower, which lies in a file of its own. */
bool gguf_names_has_vision(const json_t *config);
/* Sets "vision_config" from that file. Errors as gguf_names_config; `config` may have half of it
 * then. */
MUST_CHECK bool gguf_names_vision(const Gguf *g, json_t *config, Error *err);

#endif
