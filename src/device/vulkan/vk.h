/* vk.h: the Vulkan backend's own types: device, memory, weights, pools, programs. Inside this
 * folder only; emitters see vk_build.h and vk_emit.h.
 *
 * One thread per Device (the engine's step thread). All work goes through one queue and one
 * timeline semaphore, whose value says what has ended. */
#ifndef MERE_DEVICE_VULKAN_VK_H
#define MERE_DEVICE_VULKAN_VK_H

#include "device/vulkan/vk_api.h"
#include "device/vulkan/vk_emit.h"

/* ---- vk_info.c: what a physical device is and can ---- */

typedef struct VkFacts {
    DeviceInfo info; /* id is filled by the list */
    VkPhysicalDevice physical;
    char lacks[96]; /* what of the features we need is not there; "": usable */
    uint32_t vendor;
    bool shared;         /* memory is the host's */
    bool direct;         /* and the host writes straight into the device's blocks */
    bool has_budget;     /* VK_EXT_memory_budget */
    bool float16, int8;  /* optional features, enabled where they are */
    bool sizes_subgroup; /* the subgroup size can be asked for */
    int subgroup, shared_max, local_max, units;
    bool int_dot, mixed_dot;
    int64_t max_bytes; /* of one allocation and buffer */
    uint32_t family;   /* of the queue */
    VkPhysicalDeviceMemoryProperties memory;
} VkFacts;

/* The process's one instance, which outlives its users, through a VkApi of one's own. Nothing is to
 * be closed. */
typedef struct VkRoot {
    VkApi api;
    VkInstance instance;
} VkRoot;
/* Any thread. *found false (and true returned): there is no driver. The next call tries again after
 * that, and after an error. */
MUST_CHECK bool vk_root_open(VkRoot *r, bool *found, Error *err);
/* Facts of the devices that can be used, in the driver's order; the others are logged with what
 * they lack. */
MUST_CHECK bool vk_root_list(VkRoot *r, VkFacts out[DEVICES_MAX], int *n, Error *err);
/* Bytes that we may take in all and that we hold. `held`: what we count ourselves, for drivers
 * that do not tell. */
void vk_facts_memory(VkApi *api, const VkFacts *f, uint64_t held, DeviceMemory *out);

/* ---- vk_mem.c: memory ---- */

typedef enum VkUse {
    VK_USE_DEVICE,   /* read and written by the device; shared memory: also by the host, at load */
    VK_USE_UPLOAD,   /* written by the host, read by the device: coherent */
    VK_USE_READBACK, /* written by the device, read by the host: cached where there is such */
} VkUse;

/* One allocation with one buffer over it. */
typedef struct VkBlock {
    VkBuffer buffer;
    VkDeviceMemory memory;
    int64_t bytes;
    int64_t taken; /* as the driver rounds */
    VkPtr at;      /* device address */
    uint8_t *host; /* NULL: not mapped */
} VkBlock;

/* Blocks that hold several things: of this size they waste little of a fragmented memory and are
 * few. */
enum { VK_BLOCK_BYTES = 1 << 30 };
static inline int64_t vk_block_most(const VkFacts *f)
{
    return f->max_bytes < VK_BLOCK_BYTES ? f->max_bytes : VK_BLOCK_BYTES;
}
/* `what` names it in errors. ERR_NOMEM also when it is larger than one allocation may be. The
 * contents are undefined. */
MUST_CHECK bool vk_block_open(Device *d, VkUse use, int64_t bytes, const char *what, VkBlock *out,
                              Error *err);
void vk_block_close(Device *d, VkBlock *b);

/* Commands that are run at once and waited for. */
MUST_CHECK bool vk_now_begin(Device *d, VkCommandBuffer *cmd, Error *err);
MUST_CHECK bool vk_now_end(Device *d, Error *err);
/* Zeroes `n` blocks. */
MUST_CHECK bool vk_block_zero(Device *d, const VkBlock *blocks, int n, Error *err);

/* Brings bytes from the host to blocks: straight where the block is mapped, else through two
 * staging halves, one filled while the other is copied. */
typedef struct VkUpload {
    Device *d;
    VkBlock staging; /* empty on devices with shared memory */
    int64_t half_bytes;
    int half;
    VkCommandBuffer cmd[2];
    uint64_t value[2];
} VkUpload;
typedef struct VkUploadPiece {
    const VkBlock *to;
    int64_t offset, bytes; /* bytes: a multiple of 4 */
    uint8_t *at;           /* write here */
} VkUploadPiece;
enum { VK_UPLOAD_PIECES = 2 };
MUST_CHECK bool vk_upload_open(Device *d, int64_t half_bytes, VkUpload *u, Error *err);
/* Gives each piece its `at`; their bytes together are at most half_bytes. */
MUST_CHECK bool vk_upload_begin(VkUpload *u, VkUploadPiece *pieces, int n, Error *err);
MUST_CHECK bool vk_upload_end(VkUpload *u, const VkUploadPiece *pieces, int n, Error *err);
/* After it all bytes are there. */
MUST_CHECK bool vk_upload_close(VkUpload *u, Error *err);

/* ---- vk_device.c ---- */

typedef struct VkModule {
    const char *name;
    VkShaderModule module;
} VkModule;

typedef struct VkPipe {
    const char *shader;
    uint32_t spec[VK_SPEC_MAX];
    int n_spec;
    VkPipeline pipeline;
} VkPipe;

struct Device {
    VkRoot root;
    VkFacts facts;
    char describe[224];
    Numerics numerics;
    bool deterministic;
    VkDevice device;
    VkQueue queue;
    VkCommandPool commands;
    VkCommandBuffer now; /* of vk_now_begin */
    uint64_t now_value;
    VkSemaphore timeline;
    uint64_t submitted; /* the last value that will be signalled */
    uint64_t ended;     /* the last value seen */
    VkPipelineLayout layout;
    VkPipelineCache cache;
    VkModule *modules; /* [vk_shader_count] */
    VkPipe *pipes;
    int n_pipes, cap_pipes;
    uint64_t pool_serial;
    KvPool *pools; /* open ones, newest first */
    uint64_t held; /* bytes of all blocks */
    bool deaf;     /* did not end its work in time */
};

MUST_CHECK bool vk_device_open(const DeviceOptions *opt, Device **out, Error *err);
void vk_device_close(Device *d);
/* Waits until the timeline has reached `value`; deadline by clock_ns. ERR_LOST when it passes. */
MUST_CHECK bool vk_device_wait(Device *d, uint64_t value, uint64_t deadline_ns, Error *err);
/* Submits command buffers; the timeline's next value is signalled after them and returned. */
MUST_CHECK bool vk_device_submit(Device *d, const VkCommandBuffer *cmds, int n, uint64_t *value,
                                 Error *err);
/* Whether all that was submitted ends within two seconds. */
bool vk_device_idle(Device *d);
MUST_CHECK bool vk_device_commands(Device *d, int n, VkCommandBuffer *out, Error *err);

/* ---- vk_pipe.c ---- */

/* The pipeline of a shader with these constants, made when it is not there yet. */
MUST_CHECK bool vk_pipe_get(Device *d, const VkDispatch *x, VkPipeline *out, Error *err);
void vk_pipe_close(Device *d);

/* ---- vk_weights.c ---- */

typedef struct VkWeightPlace {
    const Weight *weight;
    GpuWeight gpu;
    VkPart *parts; /* [gpu.n_parts] */
} VkWeightPlace;

struct DeviceWeights {
    Arena arena;
    VkWeightPlace *places;
    int n;
    VkBlock *blocks;
    int n_blocks;
};
int64_t vk_weights_part_max(const VkFacts *f);
Placement vk_weights_place(const Device *d, const Weight *w, int64_t *bytes);
MUST_CHECK bool vk_weights_open(Device *d, const Weight *const *weights, int n,
                                const LoadProgress *progress, DeviceWeights **out, Error *err);
void vk_weights_close(Device *d, DeviceWeights *w);
const VkWeightPlace *vk_weights_find(const DeviceWeights *w, const Weight *weight);

/* ---- vk_pool.c ---- */

/* Copies that wait for the next step's submit. */
typedef struct VkCopy {
    int group; /* -1: state */
    int from, to;
} VkCopy;

enum { VK_COPIES_MAX = 256 };

struct KvPool {
    Arena arena;
    KvPoolDesc desc;
    uint64_t serial; /* differs for every pool of a device */
    KvPool *next;
    VkBlock *blocks;
    int n_blocks;
    int *block_of[KV_GROUPS_MAX];   /* [n_layers][2]: block of K, of V */
    int64_t *offset[KV_GROUPS_MAX]; /* [n_layers][2]: bytes in it */
    VkBlock state;
    VkCopy copies[VK_COPIES_MAX];
    int n_copies;
};
int64_t vk_pool_bytes(const KvPoolDesc *desc, int64_t *state_bytes);
MUST_CHECK bool vk_pool_open(Device *d, const KvPoolDesc *desc, KvPool **out, Error *err);
void vk_pool_close(Device *d, KvPool *pool);
void vk_pool_page_copy(Device *d, KvPool *pool, int group, int from, int to, int n_tokens);
void vk_pool_state_copy(Device *d, KvPool *pool, int from, int to);
/* Records the waiting copies, each seeing what was written before it. */
void vk_pool_record(Device *d, KvPool *pool, VkCommandBuffer cmd);
VkKv vk_pool_layer(const KvPool *pool, int group, int layer);

/* ---- vk_lower.c: programs ---- */

/* Offsets in a program's blocks, the same for all its buckets. */
typedef struct VkLayout {
    GpuStepLayout step;
    int vocab;
    /* runtime block */
    int64_t step_words, step_count, sampled, logits, counters, work, packed;
    int64_t rope[ROPE_TABLES_MAX], turns[ROPE_TABLES_MAX];
    int64_t *vecs;       /* [plan.n_vecs] */
    int64_t *biases;     /* [plan.n_weights], -1: none */
    int64_t tables;      /* from here on: vectors, biases, turns: uploaded once */
    int64_t table_bytes; /* of them */
    int64_t runtime_bytes;
    /* what emitters asked for, the most of any bucket */
    int64_t n_counters, work_bytes, packed_bytes;
    /* host blocks: ring entry i at i * stride */
    int64_t step_stride, upload_bytes;
    int64_t results_stride, logits_host, logits_stride, readback_bytes;
} VkLayout;

enum { VK_PARTS_MAX = 256 };

typedef struct VkBucket {
    int rows;
    VkCommandBuffer *cmds; /* run one after another, each short */
    int n_cmds, n_made;
} VkBucket;

/* A step in flight. */
typedef struct VkInFlight {
    VkCommandBuffer before, after; /* copies of pages; copy of logits */
    uint64_t value;                /* of the timeline when it has ended; 0: free */
    int n_samples, n_out;
    SampleResult *results;
    float *logits;
} VkInFlight;

struct Program {
    Arena arena;
    GpuPlan plan;
    KvPoolDesc kv;
    const DeviceWeights *weights;
    VkLayout layout;
    VkBlock scratch, runtime, upload, readback;
    VkBucket buckets[GPU_BUCKETS_MAX];
    int n_buckets;
    uint64_t pool_serial; /* that the buckets are recorded for; 0: none */
    uint32_t step;        /* steps submitted */
    VkInFlight ring[VK_RING];
};

MUST_CHECK bool vk_lower_supports(const Device *d, const GraphPlan *g, Error *err);
void vk_lower_need(const Device *d, const GraphPlan *g, const KvPoolDesc *kv, DeviceNeed *out);
MUST_CHECK bool vk_lower_open(Device *d, const GraphPlan *g, const DeviceWeights *w,
                              const KvPoolDesc *kv, Program **out, Error *err);
void vk_lower_close(Device *d, Program *p);
/* Records the buckets for this pool. No step is in flight. */
MUST_CHECK bool vk_lower_record(Device *d, Program *p, const KvPool *pool, Error *err);

/* ---- vk_build.c: the walk over a plan for one bucket ---- */

typedef enum VkWalk {
    VK_WALK_MEASURE, /* adds up */
    VK_WALK_PREPARE, /* and makes pipelines */
    VK_WALK_RECORD
} VkWalk;

enum { VK_SINCE_MAX = 16, VK_PACKED_MAX = 32 };

typedef struct VkPacked {
    int value, form;
    const Vec *norm;
    int64_t offset, bytes;
    int last_op; /* that reads the value */
} VkPacked;

struct VkBuild {
    const Device *facts; /* the device */
    Device *d;           /* the same, to make pipelines and record; NULL when measuring */
    VkWalk walk;
    const GpuPlan *plan;
    const KvPoolDesc *kv;
    const VkLayout *layout;
    const Program *program; /* NULL: addresses are 0 */
    const KvPool *pool;     /* NULL: addresses are 0 */
    Arena *arena;           /* of what a measuring walk plans */
    const GpuWeight **gpu;  /* [plan->n_weights] planned so far, without a program */
    int rows;
    int op; /* index of the operation being emitted, -1 before the first */
    bool failed;
    Error err;
    int64_t n_counters, work, work_most, packed_most;
    VkPacked packed[VK_PACKED_MAX];
    int n_packed;
    /* barriers */
    int since[VK_SINCE_MAX]; /* operations with dispatches since the last barrier */
    int n_since;
    bool must_wait; /* the operation's first dispatch may not overlap */
    bool uses_work; /* the operation has taken work memory */
    int work_by;    /* operation that used it since the last barrier, -1: none */
    /* recording */
    VkBucket *bucket;
    VkCommandBuffer cmd;
    double part_s; /* reckoned time of the commands so far */
};

/* u64 [rot_dim / 2] of a rope table: turns per position, 64-bit fixed point. */
VkPtr vk_rope_turns(const VkBuild *b, int table);
/* Emits the whole program for b->rows; the result is in the counts (and the bucket). */
MUST_CHECK bool vk_build_walk(VkBuild *b, Error *err);

/* ---- vk_step.c ---- */

MUST_CHECK bool vk_step_submit(Device *d, Program *p, KvPool *pool, const StepBlock *s,
                               uint64_t *ticket, Error *err);
MUST_CHECK bool vk_step_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns,
                             Error *err);

/* vk_shaders.c: the modules that were built in. */
typedef struct VkShader {
    const char *name;
    const uint8_t *code, *end;
} VkShader;
const VkShader *vk_shaders(int *n);

#endif
