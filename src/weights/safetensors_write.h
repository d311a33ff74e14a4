/* safetensors_write.h: writes a safetensors file of F32 tensors as a stream: shapes first, then
 * values in that order, in pieces of any size. The file has its name only when it is complete:
 * until safetensors_write_end it is "<path>.tmp.<pid>", and safetensors_write_abort takes it away.
 */
#ifndef MERE_WEIGHTS_SAFETENSORS_WRITE_H
#define MERE_WEIGHTS_SAFETENSORS_WRITE_H

#include "base/arena.h"

typedef struct SafetensorsOut {
    const char *name; /* UTF-8 */
    int64_t dims[4];  /* slowest first */
    int n_dims;
} SafetensorsOut;

typedef struct SafetensorsWriter {
    int fd;           /* -1: closed */
    const char *path; /* in the arena */
    const char *tmp;
    int64_t left; /* values still to come */
} SafetensorsWriter;

/* ERR_IO with the system's reason. After an error nothing is left on disk and the writer is closed.
 */
MUST_CHECK bool safetensors_write_begin(Arena *a, const char *path, const SafetensorsOut *tensors,
                                        int n, SafetensorsWriter *w, Error *err);
/* The next n values. ERR_USAGE: more than the shapes hold. */
MUST_CHECK bool safetensors_write_f32(SafetensorsWriter *w, const float *x, int64_t n, Error *err);
/* ERR_USAGE: values are missing. */
MUST_CHECK bool safetensors_write_end(SafetensorsWriter *w, Error *err);
void safetensors_write_abort(SafetensorsWriter *w); /* a closed writer is fine */

#endif
