/* store.h: the models that are here: the store's own, which may be changed, and those of other
 * programs (hub.h), which are only read. A model's directory in the store is <store>/<owner>/<repo>
 * with plain files and no folders; hidden files in it are the store's. */
#ifndef MERE_WEIGHTS_STORE_H
#define MERE_WEIGHTS_STORE_H

#include "weights/hub.h"

/* ---- what is there ---- */

typedef enum StoreOrigin { STORE_OWN, STORE_HF_CACHE, STORE_LMSTUDIO, STORE_OLLAMA } StoreOrigin;

typedef struct StoreModel {
    const char *name;   /* as hub_resolve takes it */
    const char *path;   /* what checkpoint_open takes */
    const char *format; /* "safetensors", "GGUF Q4_K_M", "unfinished" */
    StoreOrigin origin;
    uint64_t bytes;
    int64_t modified_s; /* since 1970, of the newest file */
} StoreModel;

typedef struct StoreFile {
    const char *path;
    uint64_t bytes;
} StoreFile;

enum { STORE_MODELS_MAX = 10000 };

const char *store_origin_name(StoreOrigin origin); /* "store", "Hugging Face cache" ... */
/* By origin, then name. Folders that cannot be read and manifests that are wrong are left out: they
 * belong to others. ERR_TOO_LONG: more than STORE_MODELS_MAX. */
MUST_CHECK bool store_list(Arena *a, const HubRoots *roots, StoreModel **out, int *n, Error *err);
/* Files of what hub_resolve has found: of a directory all that are not hidden, of a GGUF file it
 * and its splits. Links count as what they lead to. */
MUST_CHECK bool store_files(Arena *a, const char *path, StoreFile **out, int *n, Error *err);

/* ---- changing it ---- */

/* A model's directory, held against other pulls and removals (one process at a time). */
typedef struct StoreDir {
    int fd, lock_fd;
    const char *path;
} StoreDir;

/* Makes the directory where it is missing. While another process holds it `wait` is called ten
 * times a second; false: ERR_CANCELLED (wait NULL: ERR_FAILED at once). ERR_IO: <owner> or <repo>
 * is a link or no directory. */
MUST_CHECK bool store_dir_open(Arena *a, const char *store, const HubName *name,
                               bool (*wait)(void *ctx), void *ctx, StoreDir *out, Error *err);
/* Removes the directory when it holds nothing. */
void store_dir_close(StoreDir *d);

/* What `mere rm NAME` would delete: paths, all inside the store. ERR_NOT_FOUND: not in the store
 * (and where it is, when another program has it). */
MUST_CHECK bool store_find(Arena *a, const HubRoots *roots, const char *name, StoreFile **files,
                           int *n, Error *err);
/* Deletes those and the directories that are then empty. ERR_FAILED: being pulled. */
MUST_CHECK bool store_remove(Arena *a, const HubRoots *roots, const char *name, Error *err);

#endif
