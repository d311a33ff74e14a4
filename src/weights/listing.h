/* listing.h: what a hub says that a repository holds, and which of it a model needs.
 *
 * The text comes from outside. Limits: LISTING_PAGE_MAX bytes a page, LISTING_PAGES_MAX pages,
 * LISTING_FILES_MAX files, paths of LISTING_PATH_MAX bytes whose pieces are PART_NAME_MAX at most.
 * A path that could leave the store is an error, not skipped: such a hub is not to be trusted. */
#ifndef MERE_WEIGHTS_LISTING_H
#define MERE_WEIGHTS_LISTING_H

#include "base/arena.h"
#include "weights/part.h"

enum {
    LISTING_PAGE_MAX = 16 << 20,
    LISTING_PAGES_MAX = 100,
    LISTING_FILES_MAX = 20000,
    LISTING_PATH_MAX = 1000,
    LISTING_INDEX_MAX = 64 << 20 /* bytes of model.safetensors.index.json */
};

typedef struct ListedFile {
    const char *path; /* in the repository */
    PartWant want;    /* its name is the path's last piece */
} ListedFile;

typedef struct Listing {
    ListedFile *files;
    int n, cap;
} Listing;

/* Adds the files of one page (a list of {type, path, size, oid, lfs {oid, size}}). Hidden files and
 * folders are left out. ERR_FORMAT names what is wrong; out then holds what came before. */
MUST_CHECK bool listing_add(Arena *a, const char *doc, Str json, Listing *out, Error *err);

typedef struct ListingChoice {
    const ListedFile **files; /* sorted by path; names are unique */
    int n;
    const ListedFile *index; /* names the shards that are missing in files; NULL: none are */
    bool is_gguf;
    const char *quant;  /* of a GGUF model, "" when its name has none */
    const char *others; /* the other GGUF models, "Q4_0, Q8_0"; NULL: none, or one was asked for */
} ListingChoice;

/* The files of a model: of safetensors when there are some and no quant is named, else of GGUF.
 * Without a quant Q4_K_M is taken, else the first of a fixed order. ERR_NOT_FOUND: no weights, or
 * none of that quant (what there is is named). ERR_FORMAT: a split is missing. */
MUST_CHECK bool listing_choose(Arena *a, const char *doc, const Listing *all, Str quant,
                               ListingChoice *out, Error *err);
/* Adds the shards that the index (its text) names. ERR_FORMAT: one is not listed. */
MUST_CHECK bool listing_choose_shards(Arena *a, const Listing *all, Str index, ListingChoice *out,
                                      Error *err);

/* "Q4_K_M" in a file's name, in its own case; of no length when it has none. */
Str listing_quant(const char *name);
/* NAME-00001-of-00003.gguf: which of how many (from 1), and the length before "-00001"; false:
 * another name. */
bool listing_split(const char *name, size_t *stem, int *which, int *count);

#endif
