/* begin_params.h: the argument of `begin`, filled by cuda_begin.c. Addresses are numbers. */
#ifndef MERE_BEGIN_PARAMS_H
#define MERE_BEGIN_PARAMS_H

#include <stdint.h>

#define BEGIN_RANGES 16
#define BEGIN_TABLES 8
#define BEGIN_THREADS 256
/* Rows whose rope tables one CTA fills. */
#define BEGIN_ROWS 16

typedef struct BeginRange { /* words [at, at + n) of the block */
    int32_t at, n;
} BeginRange;

typedef struct BeginTable {
    uint64_t inv_freq; /* f32 [half] */
    uint64_t out;      /* f32 [rows][half] pairs (cos, sin) */
    float scale;
    int32_t half;
} BeginTable;

typedef struct BeginParams {
    uint64_t host;    /* mapped: int32 [ring][max_words] */
    uint64_t step;    /* int32 [max_words] */
    uint64_t count;   /* u32: the step's number */
    uint64_t sampled; /* int32, by slot */
    int32_t ring, max_words;
    int32_t rows;          /* of the bucket */
    int32_t tokens, pos;   /* word offsets */
    int32_t pages, copied; /* page tables begin; the ranges hold so many of their words */
    int32_t n_ranges, n_tables;
    BeginRange ranges[BEGIN_RANGES];
    BeginTable tables[BEGIN_TABLES];
} BeginParams;

#endif
