/* device.h: what a backend is: one const table of functions. The engine calls a device from one
 * thread (the device's own step thread); `plan` functions are pure and may be called from anywhere.
 */
#ifndef MERE_DEVICE_DEVICE_H
#define MERE_DEVICE_DEVICE_H

#include "base/str.h"
#include "device/op.h"

typedef struct Device Device;
typedef struct Program Program;
typedef struct KvPool KvPool;

typedef enum Placement {
    PLACE_MAP,
    PLACE_IMPORT,
    PLACE_READ,
    PLACE_REPACK,
    PLACE_DERIVE,
    PLACE_COUNT
} Placement;
typedef enum Numerics { NUM_FAST, NUM_EXACT } Numerics;
typedef enum KvFormat { KV_FORMAT_F16, KV_FORMAT_F32 } KvFormat;

typedef struct DeviceOptions {
    int index;         /* of the backend's devices: N of "cuda:N" */
    int threads;       /* CPU: 0 = one per physical core */
    const char *level; /* CPU: highest instruction set, NULL = what the machine has */
    Numerics numerics;
    bool deterministic; /* only kernels whose row results do not depend on the other rows */
} DeviceOptions;

enum { DEVICES_MAX = 16 };

/* A device that was found, before it is opened: what `mere devices` tells and "auto" chooses by. */
typedef struct DeviceInfo {
    char id[16];        /* "cuda:0", what --device takes */
    char name[96];      /* the driver's */
    char driver[96];    /* "580.159 (CUDA 13.0)", "RADV 26.0.2" */
    char arch[32];      /* "sm_90", "gfx1151" */
    char pci[16];       /* "0000:c4:00.0"; "": none. Equal addresses are one chip seen through two
                           interfaces: its memory is counted once */
    char features[192]; /* words: "int8-dot coopmat-f16 subgroup-32" */
    char advice[240];   /* a sentence for the user: what would make more of this device; "": none */
    bool shared_memory; /* its memory is the host's */
    bool software;      /* a CPU that poses as a GPU: only used when named */
    uint64_t total_bytes, free_bytes; /* that the engine may use; heaps of one pool counted once */
} DeviceInfo;

/* What an open device has left for us. */
typedef struct DeviceMemory {
    uint64_t limit_bytes; /* that we may take in all, what we hold included */
    uint64_t used_bytes;  /* that we hold, as the driver tells (what it cannot tell: as we count) */
    bool shared;          /* taken from the host's memory: one pool, one sum */
} DeviceMemory;

/* Pages of the sequences' caches. Page id p of group g exists in each of the group's layers. */
typedef struct KvPoolDesc {
    KvFormat format;
    int n_groups;
    KvGroup groups[KV_GROUPS_MAX];
    int page_tokens[KV_GROUPS_MAX]; /* power of two */
    int n_pages[KV_GROUPS_MAX];
    int seq_pages[KV_GROUPS_MAX]; /* entries of one sequence's page table, at most */
    int64_t state_floats;
    int n_states; /* slots of recurrent state (live sequences and snapshots); 0 when state_floats is
                     0 */
} KvPoolDesc;

/* Consecutive rows of one sequence. */
typedef struct Segment {
    int row0, n_rows;
    int kv_len;                          /* positions in the cache with this step's rows */
    const int32_t *pages[KV_GROUPS_MAX]; /* page table per group: entry i holds positions i *
                                            page_tokens ...; -1: passed by the window */
    int state_in, state_out;             /* slots; state_in -1: a fresh sequence */
    int fixed_len[KV_GROUPS_MAX];        /* keys in the groups of KV_FIXED that are read */
} Segment;

/* token >= 0: an id. token < 0: the token that the device last sampled into sample slot -1 - token
 * (StepBlock.samples of an earlier step, which need not have been waited for). */
typedef struct Row {
    int32_t token;
    int32_t pos; /* rotary position */
} Row;

/* Rows of one of the plan's inputs, in host memory. */
typedef struct StepInput {
    const float *data; /* [n][width] */
    int n;
    const int32_t *index; /* [rows of the input's axis]: which row of data each one is; -1: left
                             out. NULL: row r is row r of data */
} StepInput;

/* A token to draw on the device from one row of logits (engine/sample.h steps 4 to 9). */
typedef struct SampleDesc {
    int32_t out;       /* row of logits, index into out_rows */
    int32_t slot;      /* where the token stays for later steps' rows, 0 .. SAMPLE_SLOTS_MAX - 1 */
    float temperature; /* below 1e-4: the largest logit, of equals the smallest id */
    int32_t top_k;     /* 0: all */
    float top_p;       /* 0 or 1: all */
    float min_p;       /* 0: none */
    double random;     /* in [0, 1): the draw */
} SampleDesc;

typedef struct SampleResult {
    int32_t token; /* -1: a logit was NaN or +infinity */
    float logit;   /* of the token */
} SampleResult;

enum { SAMPLE_SLOTS_MAX = 4096 };

/* One step. What the device reads is copied by submit; logits and results are written until wait
 * returns. */
typedef struct StepBlock {
    int n_rows, n_segs, n_out, n_samples;
    const Row *rows;
    const Segment *segs;       /* cover rows 0 .. n_rows - 1 in order */
    const int32_t *out_rows;   /* [n_out] row numbers, ascending */
    const SampleDesc *samples; /* [n_samples]; 0 for devices that do not sample */
    SampleResult *results;     /* [n_samples], host memory */
    float *logits;             /* [n_out][width of the plan's out], host memory; NULL: not wanted */
    const StepInput *inputs; /* [n_inputs], in the plan's order; trailing optional ones may be left
                                out */
    int n_inputs;
    const int32_t *pos; /* [n_rows][plan's pos_axes]; NULL: Row.pos on every axis */
} StepBlock;

/* What a program takes besides weights and caches. */
typedef struct DeviceNeed {
    int64_t scratch; /* values between operations */
    int64_t runtime; /* packed activations, tables, small vectors, step blocks */
    int64_t host;    /* of host memory, where that is not the device's own */
} DeviceNeed;

typedef struct LoadProgress { /* called on the loading thread, a few times a second */
    void (*fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *ctx;
    const bool *cancel; /* NULL, or read now and then: true ends the load with ERR_CANCELLED */
} LoadProgress;

/* The weights of a model on a device; opaque. */
typedef struct DeviceWeights DeviceWeights;

typedef struct DeviceOps {
    const char *name;
    const char *absent; /* what to say when `list` finds none: "no CUDA driver (libcuda.so.1)";
                           NULL: there always is one */
    bool samples;       /* StepBlock.samples and rows with token < 0 are understood */
    int in_flight;      /* steps that may be submitted before the oldest is waited for */
    /* Devices of this kind, *n of them up to DEVICES_MAX. No driver is no error: n = 0. False: a
     * driver is there and fails. */
    MUST_CHECK bool (*list)(DeviceInfo out[DEVICES_MAX], int *n, Error *);
    MUST_CHECK bool (*open)(const DeviceOptions *, Device **, Error *);
    void (*close)(Device *);
    /* One line for the user: "cpu: 2 threads, avx512bf16 amx". Borrowed. */
    const char *(*describe)(const Device *);
    void (*memory)(const Device *, DeviceMemory *);
    /* How this device wants a weight and the bytes it takes of the device's memory (0 for
     * PLACE_MAP): pure, the memory plan is made from it. */
    Placement (*place)(const Device *, const Weight *, int64_t *bytes);
    /* What of the graph it cannot run: false and the list of ops and formats in err. */
    MUST_CHECK bool (*supports)(const Device *, const GraphPlan *, Error *);
    /* What lower will take. Pure. */
    void (*need)(const Device *, const GraphPlan *, const KvPoolDesc *, DeviceNeed *);
    /* Brings weights to the device; equal data pointers are loaded once. `progress` may be NULL. */
    MUST_CHECK bool (*weights_open)(Device *, const Weight *const *, int n, const LoadProgress *,
                                    DeviceWeights **, Error *);
    void (*weights_close)(Device *, DeviceWeights *);
    int64_t (*pool_bytes)(const KvPoolDesc *,
                          int64_t *state_bytes); /* returns the KV bytes alone */
    MUST_CHECK bool (*pool_open)(Device *, const KvPoolDesc *, KvPool **, Error *);
    void (*pool_close)(Device *, KvPool *);
    /* Both in order with the steps submitted before and after. ERR_LOST, ERR_DEVICE come from the
     * next wait. */
    void (*page_copy)(Device *, KvPool *, int group, int from, int to,
                      int n_tokens); /* copy on write */
    void (*state_copy)(Device *, KvPool *, int from, int to);
    MUST_CHECK bool (*lower)(Device *, const GraphPlan *, const DeviceWeights *, const KvPoolDesc *,
                             Program **, Error *);
    void (*program_close)(Device *, Program *);
    /* Queues a step. ERR_DEVICE: the step was refused, nothing ran. ERR_LOST: the device is gone
     * and every later call fails so too. */
    MUST_CHECK bool (*submit)(Device *, Program *, KvPool *, const StepBlock *, uint64_t *ticket,
                              Error *);
    /* Steps end in the order of submission. ERR_LOST also when the deadline (clock_ns) passes. */
    MUST_CHECK bool (*wait)(Device *, Program *, uint64_t ticket, uint64_t deadline_ns, Error *);
} DeviceOps;

#define DEVICE(name) extern const DeviceOps device_##name;
#include "device/devices.def"
#undef DEVICE

/* Backends in the order in which "auto" tries them. */
const DeviceOps *const *device_backends(int *n);
/* "auto", "cpu", "cuda", "cuda:1", "vulkan:0" -> backend and index. "auto": the first device that
 * is not software, with the most memory of its backend; else the CPU. ERR_USAGE: no such name;
 * ERR_DEVICE: no such device, with what there is. */
MUST_CHECK bool device_find(Str name, const DeviceOps **ops, int *index, Error *err);

#endif
