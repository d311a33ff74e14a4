/* tokenizer_build.h: what a Tokenizer is made of; only for the files that open one
 * (tokenizer_json.c, tokenizer_gguf.c) and tokenizer.c. */
#ifndef MERE_TEXT_TOKENIZER_BUILD_H
#define MERE_TEXT_TOKENIZER_BUILD_H

#include "text/addedtok.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pretok.h"
#include "text/tokenizer.h"

enum { TOKENIZER_AROUND_MAX = 16 };

/* A text goes: `raw` added tokens out; normalise; `normalized` added tokens out; cut into pieces;
 * BPE. */
struct Tokenizer {
    Vocab vocab;
    Bpe bpe;
    Pretok pretok;
    NormalizeForm form;
    AddedToks raw, normalized;
    int32_t prefix[TOKENIZER_AROUND_MAX], suffix[TOKENIZER_AROUND_MAX]; /* TOKENIZER_ADD_SPECIAL */
    int n_prefix, n_suffix;
    int bos, eos, eot;
    const char *describe;
    size_t bytes;
};

/* An empty tokenizer in `a`; tokenizer_close frees it at any stage. */
MUST_CHECK bool tokenizer_new(Arena *a, const char *doc, Tokenizer **out, Error *err);
/* A token of the model: its text in the byte alphabet, or outside it (then it stands for itself).
 */
MUST_CHECK bool tokenizer_add_token(Tokenizer *t, int64_t id, Str text, Error *err);
/* A merge whose parts are in the byte alphabet. */
MUST_CHECK bool tokenizer_add_merge(Tokenizer *t, Str left, Str right, uint32_t rank, Error *err);
/* BOS before (EOS after) as `add` says: 1 put it there unless it is, 0 take it away, -1 leave it.
 */
void tokenizer_set_around(Tokenizer *t, int add_bos, int add_eos);
/* Freezes the vocabulary, sorts the added tokens, writes the description. `kind` is "gpt-2",
 * "json". */
MUST_CHECK bool tokenizer_finish(Arena *a, Tokenizer *t, const char *kind, size_t bytes_before,
                                 Error *err);

#endif
