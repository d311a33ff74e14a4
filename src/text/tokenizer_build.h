/* tokenizer_build.h: what a Tokenizer is made of; only for tokenizer.c and the files that open one:
 * tokenizer_json.c, tokenizer_gguf.c, tokenizer_spm.c, tokenizer_files.c. */
#ifndef MERE_TEXT_TOKENIZER_BUILD_H
#define MERE_TEXT_TOKENIZER_BUILD_H

#include "base/json.h"
#include "text/addedtok.h"
#include "text/charbpe.h"
#include "text/normchain.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/wordpiece.h"

enum { TOKENIZER_AROUND_MAX = 16 };

typedef enum TokenizerKind {
    TOKENIZER_BYTE_BPE,
    TOKENIZER_CHAR_BPE,
    TOKENIZER_UNIGRAM,
    TOKENIZER_WORDPIECE
} TokenizerKind;

/* How the file writes a token's bytes. */
typedef enum TokenizerSpelling {
    TOKENIZER_ALPHABET, /* in the byte alphabet, or outside it (then it stands for itself) */
    TOKENIZER_PLAIN,
    TOKENIZER_SPACES,  /* U+2581 for a space */
    TOKENIZER_WORDS,   /* "##ing" goes on, "word" starts one: stored as "ing" and " word" */
    TOKENIZER_PHANTOM, /* the same as GGUF writes it: "ing" and U+2581 "word" */
} TokenizerSpelling;

/* A text goes: `raw` added tokens out; normalise; `normalized` added tokens out; cut into pieces;
 * the model's own algorithm.
 *
 * Where U+2581 stands for a space the stored tokens have the space itself, and so has the text when
 * it reaches the model: the two are one to such a tokenizer anyway, no text has to grow, and the
 * bytes of the tokens in a row are the decoded text. */
struct Tokenizer {
    Vocab vocab;
    TokenizerKind kind;
    TokenizerSpelling spelling;
    Bpe bpe;        /* merges; none: joined by score */
    double *scores; /* [scores_cap] until tokenizer_finish */
    int scores_cap;
    CharBpe chars;
    Unigram unigram;
    WordPiece words;
    Fallback unknown;
    const char *continuing; /* "##" */
    const char *word_end;   /* "</w>" ends the last token of a word, and is stored as a space */
    Charsmap charsmap;
    NormChain norm;
    Pretok pretok;
    AddedToks raw, normalized;
    bool by_score;    /* TOKENIZER_CHAR_BPE without merges */
    bool byte_tokens; /* "<0x0A>" is that byte */
    bool
        prefix_once; /* normalisation sees a new text only after special tokens, not after others */
    bool strip;      /* decoding drops the space that encoding put at the start */
    int32_t prefix[TOKENIZER_AROUND_MAX], suffix[TOKENIZER_AROUND_MAX]; /* TOKENIZER_ADD_SPECIAL */
    int n_prefix, n_suffix;
    int bos, eos, eot;
    const char *describe;
    size_t bytes;
};

/* An empty tokenizer in `a`; tokenizer_close frees it at any stage. */
MUST_CHECK bool tokenizer_new(Arena *a, const char *doc, Tokenizer **out, Error *err);
/* A token of the model, as t->spelling has it. */
MUST_CHECK bool tokenizer_add_token(Tokenizer *t, int64_t id, Str text, Error *err);
/* The same with its bytes as they are and VOCAB_ flags. */
MUST_CHECK bool tokenizer_add_bytes(Tokenizer *t, int64_t id, Str bytes, unsigned flags,
                                    Error *err);
/* Log probability, or for TOKENIZER_CHAR_BPE which joins come first: the highest. */
MUST_CHECK bool tokenizer_set_score(Tokenizer *t, int64_t id, double score, Error *err);
/* Makes `text` an added token; `in` is t->raw or t->normalized, with room for it. */
MUST_CHECK bool tokenizer_add_added(Arena *a, Tokenizer *t, AddedToks *in, AddedTok tok,
                                    Error *err);
/* The next merge: its parts are spelt as tokens are. `number` is for messages. */
MUST_CHECK bool tokenizer_add_merge(Tokenizer *t, Str left, Str right, int64_t number, Error *err);
/* BOS before (EOS after) as `add` says: 1 put it there unless it is, 0 take it away, -1 leave it.
 */
void tokenizer_set_around(Tokenizer *t, int add_bos, int add_eos);
/* tokenizer_config.json (ptr NULL: there is none): NULL, or the object, for the caller to decref.
 */
MUST_CHECK bool tokenizer_parse_config(Str config, json_t **out, Error *err);
/* Its "added_tokens_decoder" into t->raw, which gets room for `more` besides. */
MUST_CHECK bool tokenizer_config_added(Arena *a, Tokenizer *t, Str config, int more, Error *err);
/* BOS and EOS, and whether they are added. The tokenizer is finished. */
MUST_CHECK bool tokenizer_read_config(Tokenizer *t, Str config, Error *err);
/* Makes tokenizer_find work for the added tokens; all must be there. */
MUST_CHECK bool tokenizer_sort_added(Tokenizer *t, Error *err);
/* Builds the model from the vocabulary, freezes it, sorts the added tokens, writes the description.
 * `kind` is "gpt-2", "tokenizer.json". */
MUST_CHECK bool tokenizer_finish(Arena *a, Tokenizer *t, const char *kind, size_t bytes_before,
                                 Error *err);

#endif
