/* fake_mere.h: mere.h without models, for tests of the server and the command line: what a request
 * does is decided by words in its prompt, and what a model does by its name, so that every error
 * path can be had on demand. The text generated is a function of the prompt alone.
 *
 * Model names: "fake" or any path that ends in "fake" or "fake.gguf"; "fake-nofit", "fake-missing",
 * "fake-broken", "fake-notemplate" fail or lack what they say.
 * Prompt words: "@lost", "@error" end with that error after two tokens; "@stall" gives no event
 * until cancelled; "@long" goes on until max_tokens, without pause; "@slow" takes 20 ms a token;
 * "@logits-short" gives one row too few.
 *
 * A prompt is tokenised as one token a byte; the context is 512 tokens unless options say less. */
#ifndef TESTS_SERVE_FAKE_MERE_H
#define TESTS_SERVE_FAKE_MERE_H

#include "mere.h"

enum { FAKE_CTX = 512, FAKE_TOKENS = 12, FAKE_VOCAB = 300 };

/* Text of the n-th token of the answer to a prompt. */
void fake_token_text(MereStr prompt, int n, char out[16]);

#endif
