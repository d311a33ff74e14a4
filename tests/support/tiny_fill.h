/* tiny_fill.h: the tiny reference models of tests/data/tiny, which are stored without their
 * weights: golden.json says how each tensor is generated, and its sha256.
 *
 * Element i of a tensor: h = splitmix64(fnv1a64(name) + i), u = (h >> 40) / 2^24, value = offset +
 * scale * (2u - 1) in f64, rounded to a multiple of 1 / grid where there is one, then to f32, then
 * to BF16; all to nearest, ties to even. */
#ifndef MERE_TESTS_TINY_FILL_H
#define MERE_TESTS_TINY_FILL_H

#include "base/arena.h"

/* A complete copy of <data>/tiny/<name> with model.safetensors and tokenizer files below `tmp`;
 * *dir is its path, in `a`. Several processes may do so at once: files get their names when they
 * are complete. ERR_FORMAT when the generated file has another hash than golden.json says. */
MUST_CHECK bool tiny_fill(Arena *a, const char *data, const char *name, const char *tmp,
                          const char **dir, Error *err);

#endif
