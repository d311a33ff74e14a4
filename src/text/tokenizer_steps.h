/* tokenizer_steps.h: the small sections of a tokenizer.json, "normalizer", "pre_tokenizer",
 * "decoder" and "post_processor", read into a Tokenizer; only for tokenizer_json.c. */
#ifndef MERE_TEXT_TOKENIZER_STEPS_H
#define MERE_TEXT_TOKENIZER_STEPS_H

#include "base/json.h"
#include "text/tokenizer_build.h"

typedef struct TokenizerSteps {
    Arena *arena;
    const char *doc;
    Tokenizer *t;
    bool byte_level;     /* some section works in the byte alphabet */
    bool pre_byte_level; /* the pre_tokenizer has reached ByteLevel */
    bool metaspace;      /* U+2581 for spaces, by the pre_tokenizer */
    int replaces_space;  /* 1 + the normaliser's step that puts U+2581 for a space; 0: none */
    bool has_split;      /* the pre_tokenizer looks at the text */
    Str suffix;          /* that the decoder makes a space; ptr NULL: none */
} TokenizerSteps;

MUST_CHECK bool tokenizer_read_normalizer(TokenizerSteps *o, const json_t *obj, Error *err);
MUST_CHECK bool tokenizer_read_pre_tokenizer(TokenizerSteps *o, const json_t *obj, Error *err);
MUST_CHECK bool tokenizer_read_decoder(TokenizerSteps *o, const json_t *obj, Error *err);
/* The tokens must be there. */
MUST_CHECK bool tokenizer_read_post_processor(TokenizerSteps *o, const json_t *obj, Error *err);
/* After the first three: how tokens are spelt, and what need not be done. */
void tokenizer_settle_steps(TokenizerSteps *o);

#endif
