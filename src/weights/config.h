/* config.h: a model directory's configuration: config.json with what generation_config.json adds,
 * and how each module is quantised (MLX's "quantization" object). */
#ifndef MERE_WEIGHTS_CONFIG_H
#define MERE_WEIGHTS_CONFIG_H

#include "base/arena.h"
#include "base/json.h"

enum { CONFIG_FILE_MAX = 16 << 20, CONFIG_EOS_MAX = 64 };

/* Reads <dir>/config.json and, where there is one, <dir>/generation_config.json. *out is the
 * caller's to json_decref; *doc (in `a`) is config.json's path. */
MUST_CHECK bool config_read(Arena *a, const char *dir, json_t **out, const char **doc, Error *err);

/* The same from texts: an object in which "eos_token_id" is a list of at most CONFIG_EOS_MAX ids
 * (generation_config's, else the config's, else its text_config's; missing when none has any), and
 * "generation_config" holds the second text's object. generation.ptr may be NULL. */
MUST_CHECK bool config_parse(const char *doc, Str text, const char *generation_doc, Str generation,
                             json_t **out, Error *err);

/* What "quantization" (or "quantization_config") says of a module: the global values, or the
 * override under the module's full path. An override without "mode" is affine. Zeros and an empty
 * mode where nothing is said. */
typedef struct ConfigQuant {
    int bits;
    int group;
    Str mode; /* "affine" "mxfp4" ...; borrowed from the configuration */
} ConfigQuant;
ConfigQuant config_quant(const json_t *config, const char *module);

#endif
