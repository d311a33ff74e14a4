/* tensor.h: one tensor of a file: its name, element type, shape and where its bytes lie. Every
 * reader fills this struct, checked: bytes follow from type and shape, and lie inside the file. */
#ifndef MERE_WEIGHTS_TENSOR_H
#define MERE_WEIGHTS_TENSOR_H

#include "base/arena.h"
#include "base/format.h"
#include "base/str.h"

typedef enum DType {
#define DTYPE(id, name, block, bytes, format, gguf, safetensors) id,
#include "weights/tensor.def"
#undef DTYPE
    DT_COUNT
} DType;

typedef struct DTypeInfo {
    const char *name;
    int block; /* elements along the last dimension that share `block_bytes` */
    int block_bytes;
    FormatId format;  /* FMT_COUNT: no weight format, cannot be multiplied */
    int gguf;         /* type id in GGUF, or -1 */
    bool safetensors; /* a safetensors header may name it */
} DTypeInfo;

enum { TENSOR_DIMS_MAX = 8 };

typedef struct Tensor {
    Str name;
    const uint8_t *data; /* any alignment */
    uint64_t bytes;
    uint64_t offset;               /* in its file */
    int64_t dims[TENSOR_DIMS_MAX]; /* slowest first; unused ones are 1 */
    int n_dims;                    /* 0: a scalar */
    int file;                      /* which of the checkpoint's files */
    DType dtype;
} Tensor;

const DTypeInfo *tensor_dtype(DType dtype);
/* DT_COUNT when there is none. */
DType tensor_dtype_named(Str safetensors_name);
DType tensor_dtype_gguf(uint32_t id);

int64_t tensor_elements(const Tensor *t);

/* Bytes of a tensor of this type and shape. `what` names it in the error: ERR_FORMAT when a
 * dimension is negative, the last one is no multiple of the block, or the product overflows
 * int64_t. */
MUST_CHECK bool tensor_size(DType dtype, const int64_t *dims, int n_dims, const char *what,
                            uint64_t *bytes, Error *err);

/* No two of the n tensors of one file may share a byte. Uses `scratch` (n pointers) only when the
 * list is not in file order. `doc` names the file in the error. */
MUST_CHECK bool tensor_check_overlap(const Tensor *t, int64_t n, const Tensor **scratch,
                                     const char *doc, Error *err);

/* Names to tensors: open addressing over an array that the caller owns. */
typedef struct TensorMap {
    const Tensor *tensors;
    uint32_t *slots; /* index + 1; 0: free */
    uint32_t mask;
} TensorMap;

/* Room for n tensors of the array at `tensors` (which is filled as tensors are put). */
MUST_CHECK bool tensor_map_init(TensorMap *m, Arena *a, const Tensor *tensors, int64_t n,
                                Error *err);
/* Adds tensors[i]; returns i, or the index of the tensor that already has its name. */
int64_t tensor_map_put(TensorMap *m, int64_t i);
const Tensor *tensor_map_find(const TensorMap *m, Str name); /* NULL: none */

#endif
