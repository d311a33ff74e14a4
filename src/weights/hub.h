/* hub.h: from a MODEL name to files that are already here (nothing is fetched).
 *
 * A name is, in this order: a path to a directory or .gguf file; "owner/repo" (or a single word)
 * under the store; "owner/repo" in the Hugging Face cache; "owner/repo" in LM Studio's folders;
 * "name[:tag]" or "owner/name[:tag]" in Ollama's, whose manifests name the GGUF file among its
 * blobs. "name:quant" picks a GGUF file of a directory that has several. Folders of other programs
 * are read in place and never changed. Names are confined to their folder: no "..", no empty or
 * absolute piece. pull.h brings what is not here. */
#ifndef MERE_WEIGHTS_HUB_H
#define MERE_WEIGHTS_HUB_H

#include "base/arena.h"
#include "base/str.h"

typedef struct HubRoots {
    const char *store;  /* <store>/<owner>/<repo>/; NULL: none */
    const char *cache;  /* <cache>/models--<owner>--<repo>/snapshots/<rev>/; NULL: none */
    const char *ollama; /* <ollama>/manifests/<registry>/<owner>/<name>/<tag>, <ollama>/blobs/ */
    const char *lmstudio[2]; /* <lmstudio>/<owner>/<repo>/ */
} HubRoots;

typedef struct HubName {
    Str owner; /* empty for a single word */
    Str repo;
    Str quant; /* empty: none */
} HubName;

enum { HUB_NAME_MAX = 300, HUB_MANIFEST_MAX = 1 << 20 /* bytes */ };

/* Pieces of letters, digits, '-', '_' and '.' that do not begin with '.'. False: no model name. */
bool hub_parse(const char *name, HubName *out);

/* From the environment. Store: $MERE_HOME/models, else $XDG_DATA_HOME/mere/models, else
 * ~/.local/share/mere/models. Cache: $HF_HUB_CACHE, else $HF_HOME/hub, else
 * ~/.cache/huggingface/hub. Ollama: $OLLAMA_MODELS, else ~/.ollama/models. LM Studio:
 * ~/.lmstudio/models and ~/.cache/lm-studio/models. Strings in `a`. */
MUST_CHECK bool hub_roots(Arena *a, HubRoots *out, Error *err);

/* A path for checkpoint_open, in `a`: a directory with safetensors, or a .gguf file. ERR_USAGE: no
 * possible name, or several GGUF files (named). ERR_NOT_FOUND: says where it looked. */
MUST_CHECK bool hub_resolve(Arena *a, const HubRoots *roots, const char *name, const char **path,
                            Error *err);

/* The revision that refs/main of a repository in the Hugging Face cache names, as a directory;
 * NULL without an error when there is none. `repo_dir`: <cache>/models--<owner>--<repo>. */
MUST_CHECK bool hub_snapshot(Arena *a, const char *repo_dir, const char **dir, Error *err);
/* The model blob that an Ollama manifest names. ERR_FORMAT: none, or no digest. */
MUST_CHECK bool hub_manifest(Arena *a, const char *ollama, const char *manifest, const char **blob,
                             Error *err);

#endif
