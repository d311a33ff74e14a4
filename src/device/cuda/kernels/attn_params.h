/* attn_params.h: the argument of every attention kernel, filled by cuda_attn.c. Addresses are
 * numbers, 0 for none. Lives apart from the kernels because C and CUDA read it. */
#ifndef MERE_ATTN_PARAMS_H
#define MERE_ATTN_PARAMS_H

#include <stdint.h>

/* Rows of one step, at most, that attn_decode takes from one segment. */
#define ATTN_DECODE_ROWS 8
/* Query heads of one kv head that a CTA of attn_decode takes: the n of one mma. */
#define ATTN_DECODE_HEADS 8
/* Query rows of one tile of attn_flash. */
#define ATTN_FLASH_ROWS 64

typedef struct AttnParams {
    uint64_t q, k, v;          /* f32 [rows][ld] */
    uint64_t out;              /* f32 [rows][ldo], ldo even */
    uint64_t q_ready;          /* normed, rotated q, [rows][n_heads * head_dim]: f32 for
                                  attn_general, scaled f16 for attn_flash */
    uint64_t cache_k, cache_v; /* [page][kv head][page tokens][head_dim or v_dim] */
    uint64_t q_norm, k_norm;   /* f32 [head_dim] */
    uint64_t sinks;            /* f32 [n_heads] */
    uint64_t rope;             /* f32 [rows][rot_dim / 2] pairs (cos, sin) */
    uint64_t step;             /* the step block */
    uint64_t partials;         /* f32, one unit of attn_join after another */
    uint64_t counters;         /* u32 for each unit */
    int32_t ldq, ldk, ldv, ldo;
    int32_t n_heads, n_kv_heads, head_dim, v_dim;
    int32_t page_shift; /* log2 of page tokens */
    int32_t f32_cache;  /* 0: f16 */
    int32_t window;     /* 0: all */
    int32_t rot_dim, rope_pairs;
    float scale, softcap;
    float q_eps, k_eps;                /* 0: no head norm */
    int32_t seg_at, slots_at, segs_at; /* word offsets in the step block; slots of our group */
    int32_t pages_word;                /* GPU_SEG_PAGES + group */
    int32_t rows;                      /* of the bucket */
    int32_t heads;                     /* attn_decode: query heads a CTA takes, at most
                                          ATTN_DECODE_HEADS */
    int32_t cluster;                   /* CTAs along x that share a cluster: 1, 2, 4, 8 */
    int32_t by_segment;                /* attn_decode: block z is a segment of one row (others
                                          are skipped), else a row */
    int32_t min_rows;                  /* attn_prepare, attn_flash, attn_general: segments with
                                          fewer rows are skipped */
} AttnParams;

#endif
