/* cuda_build.h: how operations become kernel launches of a program.
 *
 * cuda.c walks the GpuPlan once per row bucket and calls the emitter of each operation
 * (cuda_emit.h), which appends launches here; the list becomes one CUDA graph. The same walk with
 * `measure` set only adds up what is needed (work bytes, launches): addresses are 0 then, and
 * emitters must not depend on their values. Errors are sticky, as in the graph builder. */
#ifndef MERE_DEVICE_CUDA_BUILD_H
#define MERE_DEVICE_CUDA_BUILD_H

#include "device/gpu/gpu_plan.h"
#include "device/gpu/gpu_step.h"
#include "device/gpu/gpu_weight.h"

typedef struct CudaBuild CudaBuild;
typedef uint64_t CudaPtr; /* a device address */

typedef struct CudaLaunch {
    const char *kernel; /* extern "C" name; copied */
    int grid[3];        /* zeros count as 1 */
    int block;          /* threads */
    int smem;           /* dynamic shared memory, bytes; over 48 KiB is raised for the kernel */
    int cluster;        /* CTAs along x; 0: none */
    bool programmatic;  /* may start while the launch before still runs: the kernel calls
                           griddep_wait() before it reads what that one wrote, and every kernel calls
                           griddep_launch() early */
    const void *params; /* the kernel's one argument, a struct passed by value; copied */
    size_t params_bytes;
} CudaLaunch;

void cuda_launch(CudaBuild *b, const CudaLaunch *l);
void cuda_build_fail(CudaBuild *b, ErrCode code, const char *fmt, ...) PRINTF(3, 4);

/* Facts. */
int cuda_sms(const CudaBuild *b);      /* multiprocessors */
int cuda_arch(const CudaBuild *b);     /* 75, 80, 90, 120 ... compute capability * 10 */
int cuda_smem_max(const CudaBuild *b); /* opt-in bytes a block */
bool cuda_exact(const CudaBuild *b);   /* the exact numeric class */
bool cuda_deterministic(const CudaBuild *b);
KvFormat cuda_kv_format(const CudaBuild *b);
const GpuPlan *cuda_plan(const CudaBuild *b);
int cuda_bucket_rows(const CudaBuild *b);            /* of the program being built */
int cuda_kv_max(const CudaBuild *b);                 /* no segment of it has a longer cache */
enum { CUDA_KV_SHORT = 256, CUDA_KV_MIDDLE = 2048 }; /* tokens: where decoding changes its ways */
int cuda_max_out(const CudaBuild *b);                /* output rows of this program, at most */
/* Rows of an operation: the bucket's rows or the output rows. What is past n_rows or n_out of the
 * step is padding: it may be computed, it must not be stored outside scratch. */
int cuda_op_rows(const CudaBuild *b, const GpuOp *op);

/* Addresses. */
CudaPtr cuda_value(const CudaBuild *b, int value); /* f32, row 0; 0 for -1 */
int cuda_value_ld(const CudaBuild *b, int value);  /* floats */
int cuda_value_width(const CudaBuild *b, int value);
CudaPtr cuda_vec(const CudaBuild *b, const Vec *v);     /* f32; 0 for NULL */
CudaPtr cuda_bias(const CudaBuild *b, const Weight *w); /* f32 [n]; 0: none */
/* Part i of a weight: addresses of expert 0; expert e is e * code_bytes (scale_bytes) further. */
typedef struct CudaPart {
    const GpuPart *part;
    CudaPtr codes, scales;
} CudaPart;
const GpuWeight *cuda_weight(CudaBuild *b, const Weight *w);
CudaPart cuda_weight_part(const CudaBuild *b, const GpuWeight *w, int part);
/* Cosine and sine of every row of the step, filled once a step (cuda_ops): f32 [rows][rot_dim / 2]
 * pairs (cos, sin) of the plan's rope table t. */
CudaPtr cuda_rope_table(const CudaBuild *b, int table);
CudaPtr cuda_step(const CudaBuild *b); /* the step block in device memory, int32 words */
const GpuStepLayout *cuda_step_layout(const CudaBuild *b);
/* Cache of one layer: K [page][kv_head][page_tokens][head_dim], V alike with v_dim, of the KV
 * format. */
typedef struct CudaKv {
    CudaPtr k, v;
    int page_tokens;
    int group;
} CudaKv;
CudaKv cuda_kv(const CudaBuild *b, int group, int layer);
/* Recurrent state, f32: slot s of a layer's state at base + s * state_floats + state_offset. */
CudaPtr cuda_state(const CudaBuild *b);
int64_t cuda_state_floats(const CudaBuild *b);
/* Work memory for the operation being emitted (contents are lost after it), 256-byte aligned. A
 * second call in the same operation gives other memory. */
CudaPtr cuda_work(CudaBuild *b, int64_t bytes);
/* Counters, zero when the program is made and left zero by every kernel that uses them: tickets. */
CudaPtr cuda_counters(CudaBuild *b, int n);
/* Activations in another form (bf16 rows, int8 blocks) that later operations on the same input and
 * norm can use again: NULL-safe key {value, norm vec, form}. *fresh: nobody has filled it yet in
 * this program since the value was last written, and the caller must. */
CudaPtr cuda_packed(CudaBuild *b, int value, const Vec *norm, int form, int64_t bytes, bool *fresh);

#endif
