/* gguf_write.h: writes small GGUF files (version 3, little-endian, alignment 32) for tests. Errors
 * are sticky in the buffers and reported by gguf_write_end. */
#ifndef MERE_TESTS_GGUF_WRITE_H
#define MERE_TESTS_GGUF_WRITE_H

#include "base/str.h"
#include "weights/tensor.h"

typedef struct GgufWrite {
    StrBuf kv, infos, data;
    uint64_t n_kv, n_tensors;
} GgufWrite;

void gguf_write_begin(GgufWrite *w);
void gguf_write_u32(GgufWrite *w, const char *name, uint32_t v);
void gguf_write_f32(GgufWrite *w, const char *name, float v);
void gguf_write_str(GgufWrite *w, const char *name, const char *v);
/* Dimensions slowest first. `type` is DT_F32, DT_F16, DT_BF16 or DT_Q8_0 (the last dimension a
 * multiple of 32). */
void gguf_write_tensor(GgufWrite *w, const char *name, DType type, const int64_t *dims, int n_dims,
                       const float *x);
/* Writes the file and frees the buffers. */
MUST_CHECK bool gguf_write_end(GgufWrite *w, const char *path, Error *err);

/* One Q8_0 block of 32: scale as f16 (absmax / 127), then codes; as gguf-py rounds them. */
void gguf_write_q8_0(const float *x, uint8_t block[34]);

#endif
