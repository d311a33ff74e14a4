/* lin_gemv_set.h: the kernels of one layout: lin_<layout>_r<rows>_<shape>, shapes being
 *   full  RW 2, D stages, a CTA fills a multiprocessor
 *   wide  RW 4, WIDE stages: short rows (one or two stages), of which D would be more than there
 * are half  RW 1, two CTAs a multiprocessor: small matrices of one activation row; no silu BATCH:
 * units of activations under way at once, as many as registers are left for. */
#ifndef MERE_LIN_GEMV_SET_H
#define MERE_LIN_GEMV_SET_H

#include "lin_gemv.h"

#define LIN_GEMV(layout, L, shape, min_ctas, R, RW, D, BATCH, AHEAD)                               \
    KERNEL(LIN_THREADS, min_ctas) lin_##layout##_r##R##_##shape(const LinParams p)                 \
    {                                                                                              \
        SHARED_DYNAMIC(sm);                                                                        \
        lin_gemv<L, R, RW, D, BATCH, AHEAD, 0>(p, sm);                                             \
    }

#define LIN_GEMV_SET(layout, L, D, WIDE, BATCH)                                                    \
    LIN_GEMV(layout, L, full, 1, 1, 2, D, BATCH, 2)                                                \
    LIN_GEMV(layout, L, full, 1, 2, 2, D, BATCH, 2)                                                \
    LIN_GEMV(layout, L, full, 1, 4, 2, D, BATCH, 2)                                                \
    LIN_GEMV(layout, L, full, 1, 8, 2, 2, 4, 2)                                                    \
    LIN_GEMV(layout, L, wide, 1, 1, 4, WIDE, 2, 1)                                                 \
    LIN_GEMV(layout, L, wide, 1, 2, 4, WIDE, 2, 1)                                                 \
    LIN_GEMV(layout, L, wide, 1, 4, 4, WIDE, 1, 1)                                                 \
    LIN_GEMV(layout, L, half, 2, 1, 1, D, 1, 1)

/* One row, k known: lin_<layout>_r1_<shape>_k<k>. */
#define LIN_GEMV_K(layout, L, shape, min_ctas, RW, D, BATCH, AHEAD, K)                             \
    KERNEL(LIN_THREADS, min_ctas) lin_##layout##_r1_##shape##_k##K(const LinParams p)              \
    {                                                                                              \
        SHARED_DYNAMIC(sm);                                                                        \
        lin_gemv<L, 1, RW, D, BATCH, AHEAD, K>(p, sm);                                             \
    }
#define LIN_GEMV_K_SET(layout, L, D, WIDE, BATCH)                                                  \
    LIN_GEMV_K(layout, L, full, 1, 2, D, BATCH, 2, 4096)                                           \
    LIN_GEMV_K(layout, L, full, 1, 2, 2, BATCH, 2, 14336)                                          \
    LIN_GEMV_K(layout, L, wide, 1, 4, WIDE, 2, 1, 2048)                                            \
    LIN_GEMV_K(layout, L, half, 2, 1, 2, 1, 1, 2048)                                               \
    LIN_GEMV_K(layout, L, half, 2, 1, D, 1, 1, 4096)

#endif
