/* cuda_emit.h: one emitter per operation: which kernels run for it at this number of rows. A new
 * operation is its emitter, its kernels (kernels/<name>.cu) and one line in cuda_emit.c. */
#ifndef MERE_DEVICE_CUDA_EMIT_H
#define MERE_DEVICE_CUDA_EMIT_H

#include "device/cuda/cuda_build.h"

void cuda_emit_op(CudaBuild *b, const GpuOp *op); /* cuda_emit.c: calls one of those below */
bool cuda_emit_has(OpKind kind);                  /* whether there is one */

/* cuda_begin.c: first in every program: copies the step block to device memory, fills the rope
 * tables, replaces tokens below 0 by those last sampled. */
void cuda_emit_begin(CudaBuild *b);
/* cuda_ops.c: elementwise and reducing operations, embedding, gathering. */
void cuda_emit_embed(CudaBuild *b, const GpuOp *op);
void cuda_emit_norm(CudaBuild *b, const GpuOp *op);        /* NORM, NORM_GATED */
void cuda_emit_elementwise(CudaBuild *b, const GpuOp *op); /* ADD, SILU_MUL, SIGMOID_MUL, ROPE */
void cuda_emit_out_rows(CudaBuild *b, const GpuOp *op);
void cuda_emit_conv(CudaBuild *b, const GpuOp *op);
void cuda_emit_delta(CudaBuild *b, const GpuOp *op);
/* cuda_attn.c */
void cuda_emit_attn(CudaBuild *b, const GpuOp *op);
/* cuda_lin.c: few rows, every row count in the exact class, odd shapes. */
void cuda_emit_lin(CudaBuild *b, const GpuOp *op);
void cuda_emit_moe(CudaBuild *b, const GpuOp *op);
/* cuda_gemm.c: many rows, by matrix instructions. cuda_gemm_can: false sends the operation back to
 * cuda_lin.c. */
bool cuda_gemm_can(const CudaBuild *b, const GpuOp *op);
void cuda_emit_gemm(CudaBuild *b, const GpuOp *op);
void cuda_emit_moe_gemm(CudaBuild *b, const GpuOp *op);
/* cuda_sample.c: draws the step's samples from the logits; after the last operation. */
void cuda_emit_sample(CudaBuild *b);

/* Steps in flight: step t uses entry t % CUDA_RING of what follows. The device counts its steps
 * itself: cuda_step_count is the number t of the step being run, advanced by the last kernel. */
enum { CUDA_RING = 2 };
CudaPtr cuda_step_count(const CudaBuild *b);   /* u32 in device memory */
CudaPtr cuda_step_host(const CudaBuild *b);    /* mapped: [CUDA_RING][max_words] */
CudaPtr cuda_logits(const CudaBuild *b);       /* [max_out][vocab] in device memory */
CudaPtr cuda_sampled(const CudaBuild *b);      /* int32 [SAMPLE_SLOTS_MAX], last token by slot */
CudaPtr cuda_results_host(const CudaBuild *b); /* mapped: SampleResult [CUDA_RING][max_out] */
CudaPtr cuda_done_host(const CudaBuild *b);    /* mapped: u32, ticket of the last step that ended */
CudaPtr cuda_inv_freq(const CudaBuild *b, int table); /* f32 [rot_dim / 2] of rope table t */

#endif
