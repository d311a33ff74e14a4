/* vk_build.h: how operations become dispatches of a recorded command buffer.
 *
 * vk_lower.c walks the GpuPlan once per row bucket and calls the emitter of each operation
 * (vk_emit.h), which appends dispatches here. The same walk with `measure` set only adds up what is
 * needed (work bytes, dispatches, pipelines): addresses are 0 then. Errors are sticky.
 *
 * Shaders (shaders/<name>.comp) reach all memory through device addresses in their push constants,
 * at most VK_PUSH_MAX bytes: no descriptor sets, no limit of a binding's range. */
#ifndef MERE_DEVICE_VK_BUILD_H
#define MERE_DEVICE_VK_BUILD_H

#include "device/gpu/gpu_plan.h"
#include "device/gpu/gpu_step.h"
#include "device/gpu/gpu_weight.h"

typedef struct VkBuild VkBuild;
typedef uint64_t VkPtr; /* a device address */

enum { VK_PUSH_MAX = 128, VK_SPEC_MAX = 16 };

typedef struct VkDispatch {
    const char *shader;         /* "lin_gemv": the module's name */
    uint32_t spec[VK_SPEC_MAX]; /* specialisation constants 0 .. n_spec - 1. By convention constant
                                   0 is local_size_x and constant 1 the subgroup size */
    int n_spec;
    uint32_t groups[3]; /* zeros count as 1; y and z below 65,536 */
    bool overlap;       /* reads nothing that the dispatches since the last barrier wrote: no
                           barrier before it */
    const void *push;
    size_t push_bytes;
} VkDispatch;

/* A full compute-to-compute barrier goes before each dispatch that does not `overlap`. Pipelines
 * are made at load, one for each {shader, spec}. */
void vk_dispatch(VkBuild *b, const VkDispatch *x);
void vk_build_fail(VkBuild *b, ErrCode code, const char *fmt, ...) PRINTF(3, 4);

/* Facts. */
int vk_subgroup(const VkBuild *b);     /* size that pipelines are made for: 8 to 64 */
int vk_shared_max(const VkBuild *b);   /* bytes of shared memory */
int vk_local_max(const VkBuild *b);    /* invocations of a workgroup */
int vk_units(const VkBuild *b);        /* compute units, or a guess: groups that fill the device */
bool vk_has_int_dot(const VkBuild *b); /* 4x8 packed dot product, accelerated */
bool vk_has_mixed_dot(const VkBuild *b); /* also of mixed sign */
bool vk_exact(const VkBuild *b);
bool vk_deterministic(const VkBuild *b);
KvFormat vk_kv_format(const VkBuild *b);
const GpuPlan *vk_plan(const VkBuild *b);
int vk_bucket_rows(const VkBuild *b);
int vk_max_out(const VkBuild *b);
int vk_op_rows(const VkBuild *b, const GpuOp *op);

/* Addresses. */
VkPtr vk_value(const VkBuild *b, int value); /* f32, row 0; 0 for -1 */
int vk_value_ld(const VkBuild *b, int value);
int vk_value_width(const VkBuild *b, int value);
VkPtr vk_vec(const VkBuild *b, const Vec *v);
VkPtr vk_bias(const VkBuild *b, const Weight *w);
typedef struct VkPart {
    const GpuPart *part;
    VkPtr codes, scales;
} VkPart;
const GpuWeight *vk_weight(VkBuild *b, const Weight *w);
VkPart vk_weight_part(const VkBuild *b, const GpuWeight *w, int part);
VkPtr vk_rope_table(const VkBuild *b, int table); /* f32 pairs [rows][rot_dim / 2] (cos, sin) */
VkPtr vk_step(const VkBuild *b);                  /* the step block, int32 words */
const GpuStepLayout *vk_step_layout(const VkBuild *b);
typedef struct VkKv { /* K [page][kv_head][page_tokens][head_dim], V alike with v_dim */
    VkPtr k, v;
    int page_tokens;
    int group;
} VkKv;
VkKv vk_kv(const VkBuild *b, int group, int layer);
VkPtr vk_state(const VkBuild *b);
int64_t vk_state_floats(const VkBuild *b);
VkPtr vk_work(VkBuild *b, int64_t bytes); /* for the operation being emitted, 256-byte aligned */
VkPtr vk_counters(VkBuild *b, int n);     /* u32, zero at first and left zero by who uses them */
/* Activations in another form that later operations on the same input and norm can use again.
 * *fresh: the caller must fill it. */
VkPtr vk_packed(VkBuild *b, int value, const Vec *norm, int form, int64_t bytes, bool *fresh);

#endif
