/* sample_params.h: the argument of `sample`, filled by cuda_sample.c. Addresses are numbers. */
#ifndef MERE_SAMPLE_PARAMS_H
#define MERE_SAMPLE_PARAMS_H

#include <stdint.h>

#define SAMPLE_THREADS 1024
/* Logits that one CTA scans. */
#define SAMPLE_PART 8192

typedef struct SamplePartial { /* of one sample and part */
    float max;                 /* largest logit */
    int32_t id;                /* its smallest token; -1: a logit is NaN or +infinity */
    double sum;                /* of e^((logit - max) / temperature); 0 where it is not needed */
} SamplePartial;

typedef struct SampleParams {
    uint64_t step;     /* the step block */
    uint64_t logits;   /* f32 [outputs][vocab] */
    uint64_t partials; /* SamplePartial [samples][parts] */
    uint64_t counters; /* u32 [1 + samples]: CTAs that ended, in all and of each sample */
    uint64_t count;    /* u32: the step's number, advanced here */
    uint64_t sampled;  /* int32, by slot */
    uint64_t results;  /* mapped: {int32 token, f32 logit} [ring][max_out] */
    uint64_t done;     /* mapped: u32, the ticket */
    int32_t vocab, n_parts;
    int32_t samples_at; /* word offset in the block */
    int32_t ring, max_out;
} SampleParams;

#endif
