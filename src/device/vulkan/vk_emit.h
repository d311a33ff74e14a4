/* vk_emit.h: one emitter per operation: which dispatches run for it at this number of rows. */
#ifndef MERE_DEVICE_VK_EMIT_H
#define MERE_DEVICE_VK_EMIT_H

#include "device/vulkan/vk_build.h"

void vk_emit_op(VkBuild *b, const GpuOp *op); /* vk_emit.c: calls one of those below */

/* vk_begin.c: first in every program: copies the step block, fills the rope tables, replaces tokens
 * below 0 by those last sampled. */
void vk_emit_begin(VkBuild *b);
/* vk_ops.c */
void vk_emit_embed(VkBuild *b, const GpuOp *op);
void vk_emit_norm(VkBuild *b, const GpuOp *op);        /* NORM, NORM_GATED */
void vk_emit_elementwise(VkBuild *b, const GpuOp *op); /* ADD, SILU_MUL, SIGMOID_MUL, ROPE */
void vk_emit_out_rows(VkBuild *b, const GpuOp *op);
void vk_emit_conv(VkBuild *b, const GpuOp *op);
void vk_emit_delta(VkBuild *b, const GpuOp *op);
/* vk_attn.c */
void vk_emit_attn(VkBuild *b, const GpuOp *op);
/* vk_lin.c */
void vk_emit_lin(VkBuild *b, const GpuOp *op);
/* vk_moe.c */
void vk_emit_moe(VkBuild *b, const GpuOp *op);
/* vk_sample.c: after the last operation */
void vk_emit_sample(VkBuild *b);

/* Steps in flight: step t uses entry t % VK_RING. The device counts its steps itself. */
enum { VK_RING = 2 };
VkPtr vk_step_count(const VkBuild *b);   /* u32 */
VkPtr vk_step_host(const VkBuild *b);    /* host-visible: [VK_RING][max_words] */
VkPtr vk_logits(const VkBuild *b);       /* [max_out][vocab] */
VkPtr vk_sampled(const VkBuild *b);      /* int32 [SAMPLE_SLOTS_MAX] */
VkPtr vk_results_host(const VkBuild *b); /* host-cached: SampleResult [VK_RING][max_out] */

#endif
