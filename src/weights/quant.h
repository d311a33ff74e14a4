/* quant.h: matrices in the quantisation schemes of Hugging Face checkpoints: fp8,
 * compressed-tensors, modelopt, awq, gptq, bitnet and bitsandbytes. docs/formats.md says how each
 * is placed.
 *
 * The scheme is config.json's "quantization_config" (also inside "text_config"); which matrices are
 * quantised, their bits and their groups are what the tensors say, checked against it. Rows that
 * lie in the file in a usable order are views of it; the others are written once, in an affine
 * format, into the caller's arena. */
#ifndef MERE_WEIGHTS_QUANT_H
#define MERE_WEIGHTS_QUANT_H

#include "weights/checkpoint.h"

/* Whether the matrix `stem` has tensors of one of the schemes. */
bool quant_has(const Checkpoint *ck, const char *stem);

/* The matrix as n rows of k, 1 <= k <= INT_MAX / 8. What is derived goes to `space`.
 * ERR_FORMAT: a part is missing or has another shape or type, or the configuration names no scheme
 * for it. ERR_UNSUPPORTED: a variant that mere does not read, or one that must be derived without
 * `space`. */
MUST_CHECK bool quant_rows(const Checkpoint *ck, CheckpointSpace *space, const char *stem,
                           int64_t n, int64_t k, RowView *out, Error *err);

#endif
