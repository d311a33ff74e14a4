/* gguf.h: GGUF files (versions 2 and 3, little-endian), read as views.
 *
 * gguf_parse checks a file's metadata and tensor infos in memory; arrays (150,000 tokens) are not
 * copied but walked where they lie. gguf_open maps a file, and all of its splits
 * (NAME-00001-of-00003.gguf) when it is one of several. Limits: 8,192 keys, 2^20 tensors, key and
 * tensor names of 1 to 1,024 bytes, arrays nested at most 4 deep. */
#ifndef MERE_WEIGHTS_GGUF_H
#define MERE_WEIGHTS_GGUF_H

#include "base/arena.h"
#include "base/file.h"
#include "weights/tensor.h"

typedef enum GgufType {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
} GgufType;

typedef struct GgufKv {
    Str key;
    GgufType type;
    GgufType item;       /* of an array */
    uint64_t n;          /* items of an array, else 1 */
    const uint8_t *data; /* the value, or an array's first item; any alignment */
    uint64_t bytes;      /* all items */
} GgufKv;

typedef struct Gguf {
    const char *doc; /* the file's path */
    uint32_t version;
    uint64_t alignment;
    GgufKv *kv;
    int64_t n_kv;
    Tensor
        *tensors; /* dims slowest first (the file has them fastest first); file 0 from gguf_parse */
    int64_t n_tensors;
    FileMap *maps; /* one per split, from gguf_open */
    const char **paths;
    int n_files;
} Gguf;

/* `bytes` must outlive the result, as must `doc`. */
MUST_CHECK bool gguf_parse(Arena *a, const char *doc, const uint8_t *bytes, uint64_t len, Gguf *out,
                           Error *err);

/* Opening any split opens all: metadata is the first one's, tensors are those of all. ERR_NOT_FOUND
 * names the split that is missing. */
MUST_CHECK bool gguf_open(Arena *a, const char *path, Gguf *out, Error *err);
void gguf_close(Gguf *g);
/* Opens `path` and puts its files and tensors behind those of g; g keeps its own metadata. *added
 * is `path` alone: its metadata and tensors, closed with g. On failure g is as it was. */
MUST_CHECK bool gguf_add(Arena *a, Gguf *g, const char *path, Gguf *added, Error *err);

/* The one GGUF model (or first split) in a directory; vision projectors (mmproj) do not count. With
 * `quant`
 * ("Q4_K_M", any case) the one whose name contains it. ERR_NOT_FOUND: none; ERR_USAGE: several,
 * named. */
MUST_CHECK bool gguf_in_dir(Arena *a, const char *dir, Str quant, const char **path, Error *err);
/* The one vision projector ("mmproj*.gguf", any case) in the directory of the file `model`. Errors
 * as gguf_in_dir. */
MUST_CHECK bool gguf_projector(Arena *a, const char *model, const char **path, Error *err);

const GgufKv *gguf_find(const Gguf *g, const char *key); /* NULL: no such key */

/* Getters: the `_or` forms give the default when the key is missing; a value of another type is
 * ERR_FORMAT. Integers of every width are read (and floats with a whole value), f64 reads every
 * number. */
MUST_CHECK bool gguf_i64_or(const Gguf *g, const char *key, int64_t missing, int64_t *out,
                            Error *err);
MUST_CHECK bool gguf_f64_or(const Gguf *g, const char *key, double missing, double *out,
                            Error *err);
MUST_CHECK bool gguf_bool_or(const Gguf *g, const char *key, bool missing, bool *out, Error *err);
MUST_CHECK bool gguf_str_or(const Gguf *g, const char *key, Str missing, Str *out, Error *err);

/* Item i of an array of numbers or bools, 0 <= i < kv->n. */
int64_t gguf_item_i64(const GgufKv *kv, uint64_t i);
double gguf_item_f64(const GgufKv *kv, uint64_t i);

/* Strings of an array in order: start with *at = kv->data, call kv->n times. */
Str gguf_next_str(const uint8_t **at);

#endif
