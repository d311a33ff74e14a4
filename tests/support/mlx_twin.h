/* mlx_twin.h: a GGUF checkpoint once more as an MLX one with the same weights, bit for bit.
 *
 * A Q4_1 block is an affine group of 32 with 4 bits: scale d, bias m. A Q8_0 block is one with 8
 * bits: codes q + 128, scale d, bias -128 d. Rows of q_proj and k_proj that GGUF stores for
 * pairwise rotation go back to the order of halves. There is no tokenizer in the twin. */
#ifndef MERE_TESTS_MLX_TWIN_H
#define MERE_TESTS_MLX_TWIN_H

#include "base/arena.h"

/* Writes <dir>/config.json and <dir>/model.safetensors; dir is made when it is missing, files there
 * are replaced. `gguf` is a path. `a` is scratch, as it was on return. ERR_UNSUPPORTED names a
 * tensor that is neither a matrix of Q4_1 or Q8_0 nor a vector of F32, or whose bias is no f16. */
MUST_CHECK bool mlx_twin(Arena *a, const char *gguf, const char *dir, Error *err);

#endif
