/* lin_params.h: arguments of the product and expert kernels, the same bytes in C and CUDA C. */
#ifndef MERE_LIN_PARAMS_H
#define MERE_LIN_PARAMS_H

#include <stdint.h>

#ifdef __cplusplus
#define LIN_PTR(type) type *
#else
#define LIN_PTR(type) uint64_t
#endif

enum {
    LIN_WARPS = 16,
    LIN_THREADS = 512, /* 512 threads of 128 registers are exactly one CTA a multiprocessor */
    LIN_ROWS_MAX = 8,  /* activation rows that one CTA multiplies */
    MOE_EXPERTS_MAX = 1024,
    MOE_TOP_MAX = 64,
    MOE_PAIRS_MAX = LIN_ROWS_MAX * MOE_TOP_MAX /* of the int8 kernels */
};
/* Shared memory of the int8 expert kernels behind the activations (moe_i8.h). */
#define MOE_UP_SHARED                                                                              \
    (LIN_ROWS_MAX * (LIN_WARPS + 1) * 4 + MOE_PAIRS_MAX * 16 + MOE_TOP_MAX * 4 +                   \
     MOE_EXPERTS_MAX * 4)
#define MOE_DOWN_SHARED(units) (MOE_PAIRS_MAX * 16 + MOE_EXPERTS_MAX * 4 + (units)*4)

/* Activations as int8 per 32 k with a scale (lin_x.h): which order and which side value. */
enum { LIN_X_S4, LIN_X_A4, LIN_X_BYTES, LIN_X_K6, LIN_X_KINDS };
/* Chunks of 32 k in shared memory, a multiple of 32, and bytes of a packed row of that many. */
#define LIN_X_CHUNKS(k) (((k) + 1023) / 1024 * 32)
#define LIN_X_PLANE(chunks) ((chunks)*16 + 64)
#define LIN_X_BYTES_OF(chunks) (2 * LIN_X_PLANE(chunks) + (chunks)*8)

/* A part of a weight, or the same part of all experts. */
typedef struct LinWeight {
    LIN_PTR(const uint8_t) codes;
    LIN_PTR(const uint8_t) scales;
    uint32_t code_stride16; /* of a row, in units of 16 bytes */
    uint32_t scale_stride;  /* bytes */
    uint32_t expert16;      /* of an expert, in units of 16 bytes */
    uint32_t expert_scale;  /* bytes */
    int32_t k;
    int32_t group_shift; /* k that share a pair: 32 << group_shift */
    int32_t scale_kind;  /* GPU_SCALE_KIND_*, read by the general kernels */
    int32_t row0;        /* first row to multiply */
} LinWeight;

/* Rows of f32 that go in: after an RMS norm where eps > 0, times norm where that is not NULL. */
typedef struct LinInput {
    LIN_PTR(const float) x;
    LIN_PTR(const float) norm;
    LIN_PTR(const int32_t) gather; /* row r is row gather[r]; NULL: row r */
    LIN_PTR(const uint8_t) packed; /* int8 kernels: rows packed by lin_pack_*; NULL: pack here */
    int32_t ld;
    int32_t rows;
    float eps;
    int32_t aligned; /* rows begin at multiples of 16 bytes */
} LinInput;

typedef struct LinParams {
    LinWeight w;
    LinInput in;
    LIN_PTR(const float) bias;   /* [n] or, with silu, gate's; up's are `half` further */
    LIN_PTR(const float) addend; /* may be y */
    LIN_PTR(float) y;
    int32_t ld_addend, ld_y;
    int32_t n;    /* columns of y that this launch computes */
    int32_t half; /* silu: rows from gate to up; 0: no silu */
    int32_t tile; /* general kernels: k in shared memory at once */
} LinParams;

typedef struct LinPackParams {
    LinInput in;
    LIN_PTR(uint8_t) out; /* [rows][LIN_X_BYTES_OF] */
    int32_t k;
} LinPackParams;

typedef struct LinSiluHalves {
    LIN_PTR(const float) x; /* [rows][2 n] */
    LIN_PTR(float) y;
    int32_t ld_x, ld_y, n;
} LinSiluHalves;

/* Who goes to which expert. Pair p = token * top_k + j is the token's j-th best expert. */
typedef struct MoeRoute {
    LIN_PTR(const float) logits; /* [tokens][n_experts] */
    LIN_PTR(const int32_t) step; /* step block: tokens from n_rows on go nowhere */
    LIN_PTR(int32_t) ids;        /* [pairs], -1: nowhere */
    LIN_PTR(float) shares;       /* [pairs] */
    LIN_PTR(int32_t) items;      /* [1 + 3 * items]: their number, then {expert, first, count} */
    LIN_PTR(int32_t) pairs;      /* [pairs] sorted by expert; an item is pairs[first ..] */
    int32_t ld_logits;
    int32_t n_tokens, n_experts, top_k;
    int32_t renorm;
    int32_t group;     /* most pairs of an item */
    int32_t with_list; /* moe_route: one CTA, writes items too */
} MoeRoute;

typedef struct MoeParams {
    LinWeight w;
    LinInput in; /* up: tokens; down: pairs */
    MoeRoute route;
    LIN_PTR(const float) bias; /* [experts][rows of w] or NULL */
    LIN_PTR(const float) addend;
    LIN_PTR(float) y; /* up: [pairs][ffn]; moe_f32 down: [pairs][n]; down: [tokens][n] */
    int32_t ld_addend, ld_y;
    int32_t n;        /* columns of y */
    int32_t bias_ld;  /* from expert to expert */
    int32_t half;     /* silu: rows from gate to up; 0: no silu */
    int32_t tile;     /* moe_f32 */
    int32_t splits;   /* moe_f32: CTAs that share an item's rows */
    int32_t per_pair; /* moe_f32: 1: in has a row for each pair; 0: for each token */
} MoeParams;

typedef struct MoeCombineParams {
    LIN_PTR(const float) parts; /* [pairs][n] */
    LIN_PTR(const int32_t) ids;
    LIN_PTR(const float) shares;
    LIN_PTR(const float) addend;
    LIN_PTR(float) y;
    int32_t ld_parts, ld_addend, ld_y;
    int32_t n, top_k, n_tokens;
} MoeCombineParams;

#endif
