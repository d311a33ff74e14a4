/* gpu_weight.h: how GPUs keep weights: the few layouts that kernels read, and the packing into
 * them.
 *
 * A weight is a list of parts, each a run of rows in one layout: codes [rows][code_stride bytes]
 * and scales [rows][scale_stride bytes], experts one after another. Strides are multiples of 16
 * bytes; what pads a row is zero. Packing is exact: unpacking gives format_dequant_row's numbers,
 * bit for bit. Pure functions; any thread. */
#ifndef MERE_DEVICE_GPU_WEIGHT_H
#define MERE_DEVICE_GPU_WEIGHT_H

#include "base/arena.h"
#include "device/device.h"

/* 4-bit codes: word i (u32, little endian) of a row holds k = 8i .. 8i+7, low nibble first. */
typedef enum GpuLayout {
    GPU_F32,  /* k floats */
    GPU_F16,  /* k halves */
    GPU_BF16, /* k bf16 */
    GPU_A4,   /* u4 codes; value = scale * q + bias (MLX affine 4-bit, Q4_1) */
    GPU_S4,   /* u4 codes; value = scale * (q - 8) (Q4_0); scale f16 per 32 */
    GPU_E4,   /* e2m1 codes; value = 2^(e - 127) * code (MXFP4); e8m0 byte per 32 */
    GPU_A8,   /* u8 codes; value = scale * q + bias (MLX affine 8-bit) */
    GPU_S8,   /* int8 codes; value = scale * q (Q8_0); scale f16 per 32 */
    GPU_K6,   /* u6 codes: k/2 bytes of low nibbles as above, then k/4 bytes of high pairs (word i:
                 k = 16i .. 16i+15, low pair first); value = d * sc * (q - 32) (Q6_K): scales are 16
                 int8 sc, f16 d, 2 bytes of zero per 256: one for each 16 k */
    GPU_LAYOUT_COUNT
} GpuLayout;

/* Affine scales: one pair per group. */
typedef enum GpuScale {
    GPU_SCALE_NONE,
    GPU_SCALE_F16,       /* GPU_S4, GPU_S8: f16 */
    GPU_SCALE_E8M0,      /* GPU_E4: one byte */
    GPU_SCALE_F16_PAIR,  /* u32: f16 scale | f16 bias << 16 */
    GPU_SCALE_BF16_PAIR, /* u32: bf16 scale | bf16 bias << 16 */
    GPU_SCALE_F32_PAIR,  /* f32 scale, f32 bias */
    GPU_SCALE_K6
} GpuScale;

typedef struct GpuPart {
    GpuLayout layout;
    GpuScale scale;
    int group;                         /* k that share a scale; 0: none. GPU_K6: 16 */
    int64_t row0, rows;                /* of one expert: rows [row0, row0 + rows) of the weight */
    int64_t code_stride, scale_stride; /* bytes from row to row */
    int64_t code_bytes, scale_bytes;   /* of one expert: rows * stride */
    int64_t code_offset, scale_offset; /* of expert 0 in the weight's memory, multiples of 256 */
} GpuPart;

typedef struct GpuWeight {
    const Weight *weight;
    int n_experts; /* at least 1 */
    int k;
    int n_parts;
    const GpuPart *parts;
    int64_t bytes;
    bool repacked; /* bytes differ from the file's: PLACE_REPACK, else PLACE_READ */
} GpuWeight;

/* Adjacent segments in one layout become one part. No part of one expert is larger than
 * `max_part_bytes`; larger ones are split by rows. ERR_UNSUPPORTED names a format that has no
 * layout; `a` NULL: parts are counted but not kept. */
MUST_CHECK bool gpu_weight_plan(Arena *a, const Weight *w, int64_t max_part_bytes, GpuWeight *out,
                                Error *err);
/* Whether a view has a layout; its name for messages is format_info's. */
bool gpu_layout_of(const RowView *v, GpuPart *out);

/* Packs rows [from, from + n) of part `part` of expert `expert`: codes to [n][code_stride], scales
 * to [n][scale_stride] (not written for layouts without). Reads the weight's views, which may lie
 * in mapped files. */
void gpu_weight_pack(const GpuWeight *w, int part, int expert, int64_t from, int64_t n,
                     uint8_t *codes, uint8_t *scales);
/* out[k] = row r of a packed part: the layouts' definition in code, for tests. */
void gpu_weight_unpack_row(const GpuPart *p, int k, const uint8_t *codes, const uint8_t *scales,
                           float *out);

#endif
