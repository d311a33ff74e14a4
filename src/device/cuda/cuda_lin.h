/* cuda_lin.h: what the emitters of products (cuda_lin.c) and of experts (cuda_moe.c) share: facts
 * of layouts and the kernels' argument structs. */
#ifndef MERE_DEVICE_CUDA_LIN_H
#define MERE_DEVICE_CUDA_LIN_H

#include "device/cuda/cuda_build.h"
#include "device/cuda/kernels/lin_params.h"

/* How the int8 kernels name a layout; -1: they do not take it. */
typedef enum LinI8 {
    LIN_I8_S4,
    LIN_I8_A4F16,
    LIN_I8_A4BF16,
    LIN_I8_A4F32,
    LIN_I8_E4,
    LIN_I8_A8F16,
    LIN_I8_A8BF16,
    LIN_I8_A8F32,
    LIN_I8_S8,
    LIN_I8_K6,
    LIN_I8_COUNT
} LinI8;

int cuda_lin_i8(const GpuPart *p);                 /* LinI8 or -1 */
int cuda_lin_i8_kind(int i8);                      /* LIN_X_* */
int cuda_lin_unit(GpuLayout l);                    /* k of a lane's unit */
int64_t cuda_lin_x_bytes(int k);                   /* of one row of int8 activations */
int64_t cuda_lin_f32_bytes(GpuLayout l, int tile); /* of one row of f32 activations */
/* The largest tile of k with which `rows` rows of f32 activations fit a CTA; 0: none does. */
int cuda_lin_tile(const CudaBuild *b, GpuLayout l, int k, int rows);

/* Argument structs from the plan. False: the part is too large for 32-bit row offsets, and the
 * build has failed with a message. */
bool cuda_lin_weight(CudaBuild *b, const GpuWeight *w, const CudaPart *part, LinWeight *out);
LinInput cuda_lin_input(const CudaBuild *b, const GpuOp *op, int rows);

/* Layouts (LIN_I8_...) whose kernels of one row have twins for the shapes of many models. */
bool cuda_lin_has_known(int layout);

#endif
