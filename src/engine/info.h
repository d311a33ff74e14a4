/* info.h: what is known of a model without running it (MereInfo). */
#ifndef MERE_ENGINE_INFO_H
#define MERE_ENGINE_INFO_H

#include "base/arena.h"
#include "mere.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Strings and arrays in `a` or borrowed from the model. `tokenizer` may be NULL. ctx, slots and
 * load_ms are the caller's. */
MUST_CHECK bool info_fill(Arena *a, const Model *m, const Tokenizer *tokenizer, MereInfo *out,
                          Error *err);

#endif
