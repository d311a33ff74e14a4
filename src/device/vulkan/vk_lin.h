/* vk_lin.h: products as dispatches, for LIN and for the experts of MOE.
 *
 * Which shader runs follows from the numeric class, the layout and the number of rows:
 *   lin_gemv   up to 8 rows, quantised weights, int8 activations
 *   lin_itile  more rows of the same, in tiles
 *   lin_gen    up to 8 rows of everything else, and all of the exact and deterministic classes'
 *   lin_tile   more rows, f32 */
#ifndef MERE_DEVICE_VK_LIN_H
#define MERE_DEVICE_VK_LIN_H

#include "device/vulkan/vk_build.h"

enum { VK_LIN_FEW = 8 }; /* rows up to which weights are streamed row by row */

typedef enum VkExperts {
    VK_EXPERTS_NONE,
    VK_EXPERTS_UP,  /* row of y: a pair (token, choice); of x: its token */
    VK_EXPERTS_DOWN /* row of x: a pair. y: of few rows a token, summed over its choices by share;
                       of many a pair */
} VkExperts;

typedef struct VkProduct {
    const Weight *weight;
    VkPtr x;
    int value;  /* x as a value, so that its packed form is shared; -1: not one */
    int ldx, m; /* m: tokens, whatever the kind */
    bool vec4;  /* x's rows are 16-byte aligned */
    GpuNorm norm;
    bool has_gather, has_add; /* addresses tell nothing: they are 0 while measuring */
    VkPtr gather;             /* int32 rows of x */
    VkPtr limit;              /* int32: how many of the m rows are meant */
    VkPtr y, add;
    int ldy, lda;
    bool silu;
    /* Experts. */
    VkExperts experts;
    int top_k, n_experts;
    bool renorm;
    bool routed;       /* ids and shares are given; else the kernel ranks the logits itself */
    VkPtr ids, shares; /* [token][top_k] */
    VkPtr logits;
    int ldl;
    VkPtr list; /* many rows: what moe_list made */
    int list_pairs, max_tiles;
} VkProduct;

/* f32 arithmetic is due: exact class or a precise weight. */
bool vk_lin_exact(const VkBuild *b, const Weight *w);
/* The product is one of few rows (lin_gemv, lin_gen), not tiles. */
bool vk_lin_is_few(const VkBuild *b, int m);
/* All parts of the weight can be multiplied as int8. */
bool vk_lin_fast(VkBuild *b, const Weight *w, bool vec4);
/* lin_gemv has the shared memory to quantise rows of k itself. */
bool vk_lin_inside(const VkBuild *b, int64_t k, int rows);
/* Rows of this value are 16-byte aligned. */
bool vk_lin_vec4(const VkBuild *b, int value);
/* Rows of a tile for products of this weight; many rows only. */
int vk_lin_tile_rows(VkBuild *b, const Weight *w, int rows);
void vk_lin_product(VkBuild *b, const VkProduct *p);

#endif
