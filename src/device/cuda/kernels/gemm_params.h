/* gemm_params.h: shapes and arguments of the products with many rows, the same bytes in C and CUDA
 * C.
 *
 * Activations are packed to 16-bit numbers (f16 under a power of two per row, or bf16) in blocks of
 * 128 k, so that one thread's 32 consecutive k of a weight row, eight at a time, are what matrix
 * instructions want of it (gemm.h): number (q, j, t, e) of a block, at 32 q + 8 j + 2 t + e, is
 * k = 32 t + 8 q + j + 4 e. */
#ifndef MERE_GEMM_PARAMS_H
#define MERE_GEMM_PARAMS_H

#include <stdint.h>

#ifdef __cplusplus
#define GEMM_PTR(type) type *
#else
#define GEMM_PTR(type) uint64_t
#endif

#define GEMM_CHUNK 128         /* k of a packed block, and of one step of a warp */
#define GEMM_A_CHUNK_BYTES 256 /* of one row */

/* GEMM_SHAPE(name, m16 tiles, n8 tiles of a warp, warps along n, warps along k). A CTA multiplies
 * 16 * m rows by 8 * nt * wn rows of the weight; warps along k take turns with chunks. 128 threads
 * always: with up to 255 registers two CTAs share a multiprocessor.
 *   k16 k32  few rows, where weights are what is read: no barriers, warps share k
 *   n32 n64  experts with few rows each; a middle number of rows
 *   n128     many rows: each weight is unpacked once for 128 rows */
#define GEMM_SHAPES(SHAPE)                                                                         \
    SHAPE(k16, 1, 8, 1, 4)                                                                         \
    SHAPE(k32, 2, 8, 1, 4)                                                                         \
    SHAPE(n32, 2, 4, 4, 1)                                                                         \
    SHAPE(n64, 4, 4, 4, 1)                                                                         \
    SHAPE(n128, 8, 4, 4, 1)
#define GEMM_THREADS 128

/* Bytes of one chunk of one weight row in shared memory. */
#define GEMM_BYTES_W4 64
#define GEMM_BYTES_E4 64
#define GEMM_BYTES_W8 128
#define GEMM_BYTES_K6 96
#define GEMM_BYTES_16 256

#define GEMM_STAGE_BYTES(mt, nt, wn, wk, chunk_bytes)                                              \
    ((wk) * ((mt)*16 * GEMM_A_CHUNK_BYTES + (wn) * (nt)*8 * (chunk_bytes)))
/* Stages of the pipeline: as many as leave room for two CTAs a multiprocessor, at least two. */
#define GEMM_STAGES(stage) ((stage)*4 <= 98304 ? 4 : (stage)*3 <= 98304 ? 3 : 2)
/* Addresses of weight rows, numbers of rows of a and y, the ticket. */
#define GEMM_HEAD_BYTES(mt, nt, wn) ((nt)*8 * (wn)*12 + (mt)*16 * 8 + 64)
#define GEMM_SMEM_BYTES(mt, nt, wn, wk, chunk_bytes)                                               \
    (GEMM_HEAD_BYTES(mt, nt, wn) + GEMM_STAGES(GEMM_STAGE_BYTES(mt, nt, wn, wk, chunk_bytes)) *    \
                                       GEMM_STAGE_BYTES(mt, nt, wn, wk, chunk_bytes))

/* Of experts: rows [first, first + count) of the list of expert `expert`. */
typedef struct GemmTile {
    int32_t expert, first, count, unused;
} GemmTile;

/* y[r][c] = row_scale[r] * sum_k a[r][k] w[c][k], and what comes after. Grid: tiles of rows, tiles
 * of columns, splits of k. */
typedef struct GemmParams {
    GEMM_PTR(const uint8_t) a;       /* [rows][kp] 16-bit */
    GEMM_PTR(const float) row_scale; /* [rows] */
    GEMM_PTR(const uint8_t) codes;   /* silu: gate's rows, else all */
    GEMM_PTR(const uint8_t) scales;
    GEMM_PTR(const uint8_t) codes_up; /* silu: up's rows */
    GEMM_PTR(const uint8_t) scales_up;
    GEMM_PTR(float) y;
    GEMM_PTR(const float) bias; /* [n] or NULL; experts: of each, bias_ld apart */
    GEMM_PTR(const float) bias_up;
    GEMM_PTR(const float) add;      /* [rows][ld_add] or NULL; may be y */
    GEMM_PTR(const int32_t) limit;  /* rows from *limit * limit_times on are not wanted; NULL */
    GEMM_PTR(const GemmTile) tiles; /* experts: [*n_tiles], else NULL */
    GEMM_PTR(const int32_t) n_tiles;
    GEMM_PTR(const int32_t) list;      /* experts: [experts][list_ld] rows of y, by expert */
    GEMM_PTR(float) partial;           /* splits > 1: accumulators */
    GEMM_PTR(uint32_t) tickets;        /* splits > 1: one a tile, zero */
    int64_t code_stride, scale_stride; /* bytes from row to row */
    int64_t code_bytes, scale_bytes;   /* from expert to expert */
    int32_t limit_times;
    int32_t rows, n; /* n: columns of y */
    int32_t k, kp;   /* kp: k rounded up to chunks */
    int32_t ld_y, ld_add, bias_ld;
    int32_t group_shift; /* log2 of k that share a scale */
    int32_t scale_kind;  /* GPU_SCALE_KIND_* */
    int32_t list_ld;
    int32_t list_div; /* row i of y is made of row i / list_div of a */
    int32_t silu;
    int32_t quads; /* n, y, add and bias allow access four columns at a time */
    int32_t splits;
} GemmParams;

/* Rows of f32 -> packed rows. Grid: rows. */
typedef struct GemmPackParams {
    GEMM_PTR(const float) x;
    GEMM_PTR(const float) up;       /* NULL, or x = silu(x) * up, alike laid out */
    GEMM_PTR(const float) norm;     /* [k] or NULL */
    GEMM_PTR(const int32_t) gather; /* row r is row gather[r]; NULL: row r */
    GEMM_PTR(const int32_t) limit;
    GEMM_PTR(uint32_t) out;    /* [rows][kp / 2] */
    GEMM_PTR(float) row_scale; /* [rows] */
    int32_t limit_times;
    int32_t ldx, k, kp;
    float eps; /* 0: no norm */
    int32_t bf16;
    int32_t quads; /* x may be read four columns at a time */
} GemmPackParams;

/* y = silu(x) * up. Grid: rows, columns in 1024s. */
typedef struct GemmSiluParams {
    GEMM_PTR(const float) x;
    GEMM_PTR(const float) up;
    GEMM_PTR(float) y;
    int32_t ldx, ldy, n, rows;
} GemmSiluParams;

#define GEMM_EXPERTS_MAX 512
#define GEMM_TOP_MAX 16

/* Assignment a = row * top_k + j: the row's j-th best expert. */
typedef struct GemmRouteParams {
    GEMM_PTR(const float) logits;  /* [rows][ld] */
    GEMM_PTR(const int32_t) limit; /* rows of the step */
    GEMM_PTR(int32_t) ids;         /* [rows * top_k] */
    GEMM_PTR(float) shares;        /* [rows * top_k] */
    int32_t ld, rows, n_experts, top_k, renorm;
} GemmRouteParams;

/* Grid: experts. */
typedef struct GemmListParams {
    GEMM_PTR(const int32_t) ids;
    GEMM_PTR(const int32_t) limit;
    GEMM_PTR(int32_t) list;   /* [experts][rows], ascending */
    GEMM_PTR(int32_t) counts; /* [experts] */
    GEMM_PTR(GemmTile) tiles;
    GEMM_PTR(int32_t) n_tiles;
    GEMM_PTR(uint32_t) ticket; /* zero */
    int32_t rows, n_experts, top_k;
    int32_t tile_rows;
} GemmListParams;

/* Grid: rows, columns in 512s. */
typedef struct GemmCombineParams {
    GEMM_PTR(const float) x;      /* [rows * top_k][n] */
    GEMM_PTR(const float) shares; /* [rows * top_k] */
    GEMM_PTR(const float) add;    /* or NULL; may be y */
    GEMM_PTR(const int32_t) limit;
    GEMM_PTR(float) y;
    int32_t ld_add, ldy, n, top_k;
} GemmCombineParams;

#endif
