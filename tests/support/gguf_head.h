/* gguf_head.h: the files of tests/data/tiny-gguf: GGUF files of llama.cpp's converter that are
 * stored without their weights: NAME.head is the file up to its data, NAME.sum the sha256 and size
 * of the whole. */
#ifndef MERE_TESTS_GGUF_HEAD_H
#define MERE_TESTS_GGUF_HEAD_H

#include "weights/gguf.h"

typedef struct GgufHead {
    uint8_t *file; /* whole, the data zero until put */
    int64_t bytes;
    char sha256[65];
    Gguf gguf;
} GgufHead;

/* Everything in `a`. */
MUST_CHECK bool gguf_head_open(Arena *a, const char *data, const char *name, GgufHead *out,
                               Error *err);
/* The weights of a tensor of out->gguf, from as many f32 numbers. */
void gguf_head_put(const GgufHead *h, const Tensor *t, const float *x);
/* ERR_FORMAT: the bytes are not those of the converter's file. */
MUST_CHECK bool gguf_head_write(const GgufHead *h, const char *path, Error *err);

#endif
