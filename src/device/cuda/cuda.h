/* cuda.h: the CUDA device's inside: device, weights, pools, and the program that a graph is lowered
 * to: one CUDA graph for each row bucket.
 *
 * Device memory is taken in few large blocks: one for a model's weights, two for a pool, one for a
 * program. A step fills one entry of a ring in host memory that the device reads, launches its
 * bucket's graph, and ends when the graph's last kernel has written the step's ticket into host
 * memory; the host looks at that word and calls the driver only now and then. */
#ifndef MERE_DEVICE_CUDA_CUDA_H
#define MERE_DEVICE_CUDA_CUDA_H

#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_emit.h"

/* What the driver takes for graphs and code: 10 to 12.3 MB on an H200. */
enum { CUDA_DRIVER_BYTES = 12 << 20 };

enum { CUDA_ALIGN = 256, CUDA_MODULES_MAX = 64 };

enum { CUDA_NAME_MAX = 64 };

typedef struct CudaFunction {
    char name[CUDA_NAME_MAX];
    CuFunction f;
    int smem; /* dynamic shared memory it may have */
} CudaFunction;

struct Device {
    int index;
    CuDevice dev;
    CuContext ctx;
    CuStream stream;
    int sms, arch, smem_max;
    bool integrated;   /* its memory is the host's */
    bool programmatic; /* launches may overlap by programmatic edges */
    Numerics numerics;
    bool deterministic;
    int64_t free_at_open; /* bytes, after the context was made */
    int64_t held;         /* bytes of device memory taken through cuda_take */
    int n_modules;
    CuModule modules[CUDA_MODULES_MAX];
    CudaFunction *functions;
    int n_functions, cap_functions;
    KvPool *pools; /* newest first */
    uint64_t n_pools_opened;
    bool lost;     /* sticky: every call answers lost_error */
    bool hung;     /* a deadline passed: calls that wait for the device may never return */
    bool deferred; /* an error of a call that returns none, for the next wait: deferred_error */
    Error lost_error, deferred_error;
    char describe[160];
};

typedef struct CudaWeight {
    const Weight *weight;
    GpuWeight plan;
    CudaPtr base; /* 0 when only measured */
} CudaWeight;

struct DeviceWeights {
    Arena arena;
    int n;
    CudaWeight *weights; /* [n], some with the same base */
    CudaPtr memory;
    int64_t bytes;
};

struct KvPool {
    KvPool *next;
    uint64_t number; /* tells pools apart even when one takes another's place in memory */
    KvPoolDesc desc;
    CudaPtr kv, state;
    int64_t kv_bytes, state_bytes;
};

/* Byte offsets in a program's memory, multiples of CUDA_ALIGN. */
typedef struct CudaSpans {
    int64_t scratch, logits, work, packed, counters, step, vecs, sampled, count, end;
    int64_t rope[ROPE_TABLES_MAX], inv_freq[ROPE_TABLES_MAX];
    int64_t logits_bytes, work_bytes, packed_bytes, vecs_bytes;
    int n_counters;
    /* in host memory that the device sees, each on lines of its own */
    int64_t host_step, host_results, host_done, host_end;
} CudaSpans;

/* Few rows have a graph for short caches, one for longer ones, and one for any. */
enum { CUDA_KV_ROWS = 8, CUDA_BUCKETS_MAX = GPU_BUCKETS_MAX + 2 * 4 };

typedef struct CudaBucket {
    int rows, n_launches;
    int kv_max; /* longest cache of a segment */
    CuGraphExec exec;
    uint64_t typical_ns;                  /* of a step, as last seen; 0: none yet */
    uint64_t n_steps, submit_ns, step_ns; /* sums, for the trace */
} CudaBucket;

typedef struct CudaStep { /* a step in flight */
    SampleResult *results;
    float *logits;
    int n_samples, n_out, bucket;
    uint64_t start_ns;
    CuEvent copied; /* logits are in the staging memory */
} CudaStep;

struct Program {
    Arena arena;
    GpuPlan plan;
    KvPoolDesc desc;
    GpuStepLayout layout;
    const KvPool *pool; /* its addresses are in the graphs */
    uint64_t pool_number;
    CudaSpans spans;
    CudaPtr memory;
    int64_t bytes;
    uint8_t *host; /* spans.host_* */
    CudaPtr host_address;
    float *staging; /* [CUDA_RING][max_out][vocab], pinned */
    int64_t vocab;
    int n_buckets;
    CudaBucket buckets[CUDA_BUCKETS_MAX]; /* by rows, then by kv_max */
    uint64_t submitted, waited;           /* tickets: step t has ticket t + 1 */
    uint64_t last_end_ns;
    CudaStep steps[CUDA_RING];
    bool trace;
};

/* ---- device (cuda.c) ---- */

/* First and last in every entry of DeviceOps that may fail: a device that was lost stays so. The
 * error of `e` goes to `err`. */
MUST_CHECK bool cuda_enter(Device *d, Error *e);
bool cuda_leave(Device *d, bool ok, const Error *e, Error *err);
/* Waits until the stream is idle, CUDA_DRAIN_S seconds at most: after them the device is lost
 * (ERR_LOST). The driver's own waits have no deadline and are not used. */
enum { CUDA_DRAIN_S = 4 };
MUST_CHECK bool cuda_drain(Device *d, Error *err);
/* Before something is released: nothing that was queued uses it any more, or the device is lost. */
void cuda_quiesce(Device *d);
/* Device memory in blocks. ERR_NOMEM names `what`, the bytes and what is free. */
MUST_CHECK bool cuda_take(Device *d, const char *what, int64_t bytes, CudaPtr *out, Error *err);
void cuda_give(Device *d, CudaPtr p, int64_t bytes);
MUST_CHECK bool cuda_take_host(Device *d, const char *what, int64_t bytes, void **out, Error *err);
void cuda_give_host(Device *d, void *p);
/* The kernel by its name, ready for `smem` bytes of dynamic shared memory. */
MUST_CHECK bool cuda_function(Device *d, const char *name, int smem, CuFunction *out, Error *err);
bool cuda_has_kernels(void); /* the program was built with them */
/* For calls whose failure leaves nothing to be done. */
void cuda_ignore(bool ok);

/* ---- list (cuda_list.c) ---- */
MUST_CHECK bool cuda_list(DeviceInfo out[DEVICES_MAX], int *n, Error *err);

/* ---- weights (cuda_weights.c) ---- */
/* `w` planned for this backend; `a` NULL as for gpu_weight_plan. */
MUST_CHECK bool cuda_weights_plan(Arena *a, const Weight *w, GpuWeight *out, Error *err);
MUST_CHECK bool cuda_weights_open(Device *d, const Weight *const *weights, int n,
                                  const LoadProgress *progress, DeviceWeights **out, Error *err);
void cuda_weights_close(Device *d, DeviceWeights *w);

/* ---- pools (cuda_pool.c) ---- */
int64_t cuda_pool_bytes(const KvPoolDesc *desc, int64_t *state_bytes);
MUST_CHECK bool cuda_pool_open(Device *d, const KvPoolDesc *desc, KvPool **out, Error *err);
void cuda_pool_close(Device *d, KvPool *pool);
void cuda_pool_page_copy(Device *d, KvPool *pool, int group, int from, int to, int n_tokens);
void cuda_pool_state_copy(Device *d, KvPool *pool, int from, int to);
/* Offset of a layer's K from the pool's start; its V lies *v bytes after it. */
int64_t cuda_pool_layer(const KvPoolDesc *desc, int group, int layer, int64_t *v);
/* The newest open pool of this geometry; NULL: none. */
const KvPool *cuda_pool_find(const Device *d, const KvPoolDesc *desc);

/* Numbers of a weight's bias: one row for each expert. */
static inline int64_t cuda_bias_floats(const Weight *w)
{
    return w->n * (w->n_experts > 0 ? w->n_experts : 1);
}

/* ---- building (cuda_build.c) ---- */

typedef struct CudaRecord {
    CuFunction f;
    CudaLaunch launch; /* params are the record's own copy */
} CudaRecord;

typedef struct CudaPacked { /* a packed form of a value that is still read */
    int value, form;
    const Vec *norm;
    int64_t offset, bytes;
    int last_use; /* operation */
} CudaPacked;

enum { CUDA_PACKED_MAX = 32 };

struct CudaBuild {
    Device *dev;
    const GpuPlan *plan;
    const KvPoolDesc *desc;
    const GpuStepLayout *layout;
    const CudaWeight *weights;
    int n_weights;
    const Program *program; /* NULL: measuring */
    Arena *arena;           /* of the records */
    int rows, max_out, kv_max, op_index;
    int64_t work_at;
    int counters_at;
    CudaPacked packed[CUDA_PACKED_MAX];
    int n_packed;
    CudaSpans need; /* work_bytes, packed_bytes, n_counters: the largest yet */
    CudaRecord *records;
    int n_records, cap_records;
    bool failed;
    Error error;
};

/* Calls the emitters for every operation of a bucket. */
MUST_CHECK bool cuda_build_walk(CudaBuild *b, int rows, int kv_max, Error *err);
/* Rows and kv_max of all buckets for steps up to max_rows; returns how many. */
int cuda_buckets(int max_rows, CudaBucket out[CUDA_BUCKETS_MAX]);

/* ---- programs (cuda_lower.c) ---- */
MUST_CHECK bool cuda_lower_check(const Device *d, const GraphPlan *graph, Error *err);
void cuda_lower_need(const Device *d, const GraphPlan *graph, const KvPoolDesc *desc,
                     DeviceNeed *out);
MUST_CHECK bool cuda_lower(Device *d, const GraphPlan *graph, const DeviceWeights *weights,
                           const KvPoolDesc *desc, Program **out, Error *err);
void cuda_lower_close(Device *d, Program *p);

/* ---- steps (cuda_step.c) ---- */
MUST_CHECK bool cuda_step_submit(Device *d, Program *p, KvPool *pool, const StepBlock *s,
                                 uint64_t *ticket, Error *err);
MUST_CHECK bool cuda_step_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns,
                               Error *err);

#endif
