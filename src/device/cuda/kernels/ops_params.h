/* ops_params.h: arguments of the kernels in ops.cu and delta.cu, filled by cuda_ops.c. Addresses
 * are numbers, 0 for none; ld in floats; *_at are word offsets in the step block. */
#ifndef MERE_OPS_PARAMS_H
#define MERE_OPS_PARAMS_H

#include <stdint.h>

/* Elements of a row that a CTA of the elementwise kernels takes. */
#define OPS_BLOCK 1024
/* Rows of a segment that a CTA of ops_conv takes; at least the convolution's past. */
#define OPS_CONV_ROWS 16
/* Widest convolution. */
#define OPS_CONV_WIDTH 8
/* Groups up to this are normed by a warp, wider ones by a CTA. */
#define OPS_WARP_GROUP 512
/* Columns of a head that a CTA of ops_delta takes. */
#define OPS_DELTA_COLS 32

typedef struct OpsParams {
    uint64_t a, b, out; /* f32 [rows][ld] */
    uint64_t vec;       /* f32 [group] */
    uint64_t step;
    uint64_t rope; /* f32 [rows][rot_dim / 2] pairs (cos, sin) */
    int32_t lda, ldb, ldo;
    int32_t width, group, rows;
    int32_t b_step; /* 0: the second operand has one number a row; else 1 */
    float eps;
    int32_t out_rows_at;
    int32_t head_dim, rot_dim, rope_pairs;
} OpsParams;

typedef struct OpsEmbedParams { /* one part of the table */
    uint64_t codes, scales, out, step;
    int64_t row0, rows, code_stride, scale_stride;
    int64_t n; /* rows of the whole table */
    int32_t layout, scale, group, k, ldo;
    int32_t tokens_at;
    int32_t first; /* the part that writes zeros for tokens outside the table */
} OpsEmbedParams;

typedef struct OpsConvParams {
    uint64_t x, w, out, state, step;
    int64_t state_floats, state_offset;
    int32_t ldx, ldo, channels, width;
    int32_t segs_at;
} OpsConvParams;

typedef struct OpsDeltaParams {
    uint64_t x, a, b, a_log, dt_bias, out, state, step;
    int64_t state_floats, state_offset;
    int32_t ldx, lda, ldb, ldo;
    int32_t n_k_heads, n_v_heads, k_dim, v_dim;
    int32_t segs_at;
} OpsDeltaParams;

#endif
