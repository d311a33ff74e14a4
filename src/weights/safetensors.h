/* safetensors.h: safetensors files as checked views: one file, or the shards of a directory.
 *
 * Layout: u64 header length, a JSON object {name: {dtype, shape, data_offsets [from, to)}}, then
 * the data that the offsets count from. Tensors may start at any address. Limits: header 100 MB,
 * TENSOR_DIMS_MAX dimensions. */
#ifndef MERE_WEIGHTS_SAFETENSORS_H
#define MERE_WEIGHTS_SAFETENSORS_H

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "weights/tensor.h"

enum { SAFETENSORS_HEADER_MAX = 100000000 };

/* The tensors of one file in memory, in the header's order. `bytes` must outlive them. */
MUST_CHECK bool safetensors_parse(Arena *a, const char *doc, const uint8_t *bytes, uint64_t len,
                                  Tensor **out, int64_t *n, Error *err);

/* model.safetensors.index.json: the shards it names (each once, in order of first mention), and its
 * object (for weight_map; the caller's to json_decref). Shard names must be plain file names. */
typedef struct SafetensorsIndex {
    json_t *json;
    const json_t *weight_map;
    const char **files;
    int n_files;
} SafetensorsIndex;
MUST_CHECK bool safetensors_index_parse(Arena *a, const char *doc, Str text, SafetensorsIndex *out,
                                        Error *err);

typedef struct SafetensorsSet {
    Tensor *tensors;
    int64_t n_tensors;
    TensorMap map;
    FileMap *maps;
    const char **paths;
    int n_files;
} SafetensorsSet;

/* The weights of a directory: the shards of model.safetensors.index.json, else model.safetensors,
 * else model-*-of-*.safetensors, else the only *.safetensors there is.
 *
 * The shards' own headers say what there is; the index only names the files and, for a tensor that
 * is in two of them, the one that counts. An index whose shards are gone beside a model.safetensors
 * is ignored (as quantised conversions leave it). ERR_NOT_FOUND: no weights, or a shard is missing
 * (named). */
MUST_CHECK bool safetensors_open(Arena *a, const char *dir, SafetensorsSet *out, Error *err);
void safetensors_close(SafetensorsSet *set);

#endif
