/* hub.h: from a MODEL name to files that are already here (nothing is fetched).
 *
 * A name is, in this order: a path to a directory or .gguf file; "owner/repo" (or a single word)
 * under the store; "owner/repo" in the Hugging Face cache. "name:quant" picks a GGUF file of a
 * directory that has several. Names are confined to the store: no "..", no empty or absolute piece.
 */
#ifndef MERE_WEIGHTS_HUB_H
#define MERE_WEIGHTS_HUB_H

#include "base/arena.h"
#include "base/str.h"

typedef struct HubRoots {
    const char *store; /* <store>/<owner>/<repo>/; NULL: none */
    const char *cache; /* <cache>/models--<owner>--<repo>/snapshots/<rev>/; NULL: none */
} HubRoots;

/* From the environment. Store: $MERE_HOME/models, else $XDG_DATA_HOME/mere/models, else
 * ~/.local/share/mere/models. Cache: $HF_HUB_CACHE, else $HF_HOME/hub, else
 * ~/.cache/huggingface/hub. Strings in `a`. */
MUST_CHECK bool hub_roots(Arena *a, HubRoots *out, Error *err);

/* A path for checkpoint_open, in `a`: a directory with safetensors, or a .gguf file. ERR_USAGE: no
 * possible name, or several GGUF files (named). ERR_NOT_FOUND: says where it looked. */
MUST_CHECK bool hub_resolve(Arena *a, const HubRoots *roots, const char *name, const char **path,
                            Error *err);

#endif
