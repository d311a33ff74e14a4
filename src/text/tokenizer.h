/* tokenizer.h: text to token ids and back: BPE over bytes or characters, Unigram and WordPiece,
 * from every kind of file that checkpoints come with (docs/tokenizers.md); a component outside that
 * set is ERR_UNSUPPORTED with its name.
 *
 * Any bytes are text: what is not UTF-8 becomes byte tokens where the vocabulary has them, and
 * decoding the ids gives the same bytes back (with a normaliser such as NFC: the normalised ones).
 * An opened tokenizer never changes, so any thread may use it. Its memory lies in the arena given
 * to open, except the compiled regular expressions, which tokenizer_close frees. */
#ifndef MERE_TEXT_TOKENIZER_H
#define MERE_TEXT_TOKENIZER_H

#include "base/arena.h"
#include "base/str.h"

typedef struct Tokenizer Tokenizer;

enum {
    TOKENIZER_VOCAB_MAX = 1 << 22,  /* largest id + 1 */
    TOKENIZER_FILE_MAX = 256 << 20, /* bytes of a tokenizer.json */
    TOKENIZER_TEXT_MAX = 256 << 20  /* bytes of one text to encode */
};

/* Flags of tokenizer_encode. */
enum {
    TOKENIZER_ADD_SPECIAL = 1,  /* put the model's BOS (and EOS) around the text, as its own
                                   post-processor does */
    TOKENIZER_PARSE_SPECIAL = 2 /* "<|im_end|>" in the text is that token. Without it special tokens
                                   in the text are plain characters: use that for text from outside.
                                   Added tokens that are not special are found either way. */
};

/* Flags of tokenizer_decode and detok_init. */
enum { TOKENIZER_SKIP_SPECIAL = 1 /* special tokens give no bytes */ };

/* The tokenizer of a GGUF file, as its metadata has it. Everything is borrowed during open only. */
typedef struct TokenizerGguf {
    const char *doc; /* file name, for messages */
    Str model;       /* tokenizer.ggml.model: "gpt2", "llama", "gemma4", "t5", "bert" */
    Str pre;         /* tokenizer.ggml.pre; empty: "default" */
    const Str *tokens;
    int64_t n_tokens;
    const Str *merges; /* "left right" */
    int64_t n_merges;
    const int32_t *types; /* [n_tokens] tokenizer.ggml.token_type, or NULL: all normal */
    const float *scores;  /* [n_tokens] or NULL */
    Str charsmap;         /* tokenizer.ggml.precompiled_charsmap */
    int bos, eos, eot, unk, sep, cls; /* token ids, -1: none */
    /* 0, 1, or -1: the file does not say */
    int add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
    int lowercase, strip_accents; /* tokenizer.ggml.normalizer. of "bert" */
} TokenizerGguf;

typedef struct TokenIds {
    int32_t *ids;
    int64_t n;
} TokenIds;

/* `json` is the text of a tokenizer.json, borrowed during the call only; `config` that of
 * tokenizer_config.json (ptr NULL: none), which names BOS and EOS and may add or drop them. `doc`
 * names the file in messages. ERR_FORMAT: damaged. ERR_UNSUPPORTED: a component that is not ours.
 */
MUST_CHECK bool tokenizer_json_open(Arena *a, const char *doc, Str json, Str config,
                                    Tokenizer **out, Error *err);
/* The bytes of a SentencePiece model (tokenizer.model): BPE or Unigram. */
MUST_CHECK bool tokenizer_spm_open(Arena *a, const char *doc, Str model, Str config,
                                   Tokenizer **out, Error *err);
/* A list of tiktoken's: a token in base64 and its id on each line. The pattern that cuts text is
 * the configuration's "pat_str", or that of the published list with as many tokens; special tokens
 * are the configuration's "added_tokens_decoder", or those of that list. ERR_UNSUPPORTED: no such
 * list. */
MUST_CHECK bool tokenizer_tiktoken_open(Arena *a, const char *doc, Str list, Str config,
                                        Tokenizer **out, Error *err);
/* Mistral's tekken.json. */
MUST_CHECK bool tokenizer_tekken_open(Arena *a, const char *doc, Str json, Tokenizer **out,
                                      Error *err);
/* GPT-2's vocab.json and merges.txt. */
MUST_CHECK bool tokenizer_vocab_open(Arena *a, const char *doc, Str vocab, Str merges, Str config,
                                     Tokenizer **out, Error *err);
/* BERT's vocab.txt: a token on each line. */
MUST_CHECK bool tokenizer_wordpiece_open(Arena *a, const char *doc, Str vocab, Str config,
                                         Tokenizer **out, Error *err);
MUST_CHECK bool tokenizer_gguf_open(Arena *a, const TokenizerGguf *g, Tokenizer **out, Error *err);
/* NULL is fine. Call before the arena is freed. */
void tokenizer_close(Tokenizer *t);

/* out->ids in `a`; temporaries are freed before the return. ERR_TOO_LONG: over TOKENIZER_TEXT_MAX
 * bytes. ERR_FORMAT: the tokenizer's regular expression gave up on this text. */
MUST_CHECK bool tokenizer_encode(Arena *a, const Tokenizer *t, Str text, unsigned flags,
                                 TokenIds *out, Error *err);

/* The exact bytes of one token, often no whole character. Empty for an id outside [0, n_vocab) or
 * one that the vocabulary leaves out. Lives as long as the tokenizer. */
Str tokenizer_piece(const Tokenizer *t, int32_t id);
/* Appends the bytes of n ids, raw: they may be no valid UTF-8 (detok.h gives characters).
 * ERR_NOMEM: `out` is full. */
MUST_CHECK bool tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t n, unsigned flags,
                                 StrBuf *out, Error *err);

int tokenizer_n_vocab(const Tokenizer *t); /* largest id + 1; a model's head may have more rows */
/* Control tokens: never shown to a user. False for ids outside the vocabulary. */
bool tokenizer_is_special(const Tokenizer *t, int32_t id);
/* The token with exactly these bytes, added tokens first; -1: none. */
int tokenizer_find(const Tokenizer *t, Str bytes);
int tokenizer_bos(const Tokenizer *t); /* -1: none */
int tokenizer_eos(const Tokenizer *t); /* -1: none */
/* End of turn, where the file names one apart from EOS; else -1. */
int tokenizer_eot(const Tokenizer *t);
/* TOKENIZER_ADD_SPECIAL puts BOS (EOS) there. */
bool tokenizer_adds_bos(const Tokenizer *t);
bool tokenizer_adds_eos(const Tokenizer *t);
/* "bpe (smollm), 49152 tokens, 48900 merges": one line for people. Lives as the tokenizer. */
const char *tokenizer_describe(const Tokenizer *t);
size_t tokenizer_bytes(const Tokenizer *t); /* memory held */
/* At most what a tokenizer of so many ids will hold, for a plan before it is opened. */
uint64_t tokenizer_bytes_for(int64_t n_vocab);

#endif
