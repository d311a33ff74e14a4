/* sample.h: one row of logits to one token.
 *
 * The order, which is part of the interface:
 *   1. logprobs, when asked for, are log-softmax of the logits as the model gave them;
 *   2. logit bias;
 *   3. repeat penalty over the last repeat_last tokens of prompt and answer (positive logits are
 *      divided, others multiplied); presence and frequency penalties over the answer's tokens;
 *   4. temperature below 1e-4: the largest logit, of equals the smallest id. Done;
 *   5. temperature;
 *   6. top-k; 7. top-p: the shortest prefix, most likely first, that holds top_p of what top-k
 * left;
 *   8. min-p: tokens at least min_p times as likely as the first one;
 *   9. a draw: the random number is a function of (seed, position) alone, so an answer depends
 *      neither on what else runs nor on how often a step was tried.
 *
 * Nothing sorts the vocabulary: candidates come out of a heap, which is filled in bands of falling
 * logits until enough have been seen. exp is our own, so a seed gives the same answer on every
 * machine that gives the same logits. One sampler, one thread; all memory is taken by sample_init.
 */
#ifndef MERE_ENGINE_SAMPLE_H
#define MERE_ENGINE_SAMPLE_H

#include "base/arena.h"
#include "mere.h"

enum { SAMPLE_TOP_MAX = 20, SAMPLE_BIAS_MAX = 4096 };

typedef struct SampleTop {
    int32_t id;
    float logprob;
} SampleTop;

typedef struct Sampled {
    int32_t token;
    float logprob; /* of the token; 0 when no logprobs were asked for */
    int n_top;
    SampleTop top[SAMPLE_TOP_MAX]; /* most likely first */
} Sampled;

typedef struct SampleCand {
    float logit;
    int32_t id;
} SampleCand;

typedef struct Sampler {
    int vocab;
    int32_t *counts;    /* [vocab] all zero between calls */
    SampleCand *heap;   /* [vocab] */
    SampleCand *sorted; /* [vocab] */
    double *mass;       /* [vocab] running sum of weights of `sorted` */
    float *raw;         /* [vocab] the logits as the model gave them */
} Sampler;

/* Bytes that sample_init takes. */
int64_t sample_bytes(int vocab);
MUST_CHECK bool sample_init(Arena *a, int vocab, Sampler *out, Error *err);

/* ERR_REQUEST names the field, its value and its range. */
MUST_CHECK bool sample_check(const MereSampling *p, int vocab, Error *err);

/* Whether steps 4 to 9 are all that is asked for: a device that samples can do those. */
bool sample_is_plain(const MereSampling *p);

/* What has been said so far: prompt and answer in one array; the next token's position is
 * n_tokens. */
typedef struct SampleHistory {
    const int32_t *tokens;
    int n_prompt, n_tokens;
} SampleHistory;

/* `logits` [vocab] are changed. p passed sample_check. ERR_FAILED: a logit is NaN or +infinity. */
MUST_CHECK bool sample_next(Sampler *s, const MereSampling *p, const SampleHistory *h,
                            float *logits, Sampled *out, Error *err);

/* Philox4x32-10 (Salmon et al. 2011) of counter `position` and key `seed`, as a number in [0, 1)
 * with 53 bits. */
double sample_random(uint64_t seed, uint64_t position);

#endif
