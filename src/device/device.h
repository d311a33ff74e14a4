/* device.h: what a backend is: one const table of functions. The engine calls a device from one
 * thread (the device's own step thread); `plan` functions are pure and may be called from anywhere.
 */
#ifndef MERE_DEVICE_DEVICE_H
#define MERE_DEVICE_DEVICE_H

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
    int threads;       /* CPU: 0 = one per physical core */
    const char *level; /* CPU: highest instruction set, NULL = what the machine has */
    Numerics numerics;
    bool deterministic; /* only kernels whose row results do not depend on the other rows */
} DeviceOptions;

/* Pages of the sequences' caches. Page id p of group g exists in each of the group's layers. */
typedef struct KvPoolDesc {
    KvFormat format;
    int n_groups;
    KvGroup groups[KV_GROUPS_MAX];
    int page_tokens[KV_GROUPS_MAX]; /* power of two */
    int n_pages[KV_GROUPS_MAX];
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
} Segment;

typedef struct Row {
    int32_t token;
    int32_t pos; /* rotary position */
} Row;

/* One step. Arrays are borrowed until `wait` returns. */
typedef struct StepBlock {
    int n_rows, n_segs, n_out;
    const Row *rows;
    const Segment *segs;     /* cover rows 0 .. n_rows - 1 in order */
    const int32_t *out_rows; /* [n_out] row numbers, ascending */
    float *logits;           /* [n_out][vocab], host memory */
} StepBlock;

typedef struct DeviceOps {
    const char *name;
    MUST_CHECK bool (*open)(const DeviceOptions *, Device **, Error *);
    void (*close)(Device *);
    /* One line for the user: "cpu: 2 threads, avx512bf16 amx". Borrowed. */
    const char *(*describe)(const Device *);
    /* How this device wants a weight: pure, the memory plan is made from it. */
    Placement (*place)(const Device *, const Weight *);
    /* What of the graph it cannot run: false and the list of ops and formats in err. */
    MUST_CHECK bool (*supports)(const Device *, const GraphPlan *, Error *);
    /* Bytes that lower will take besides the plan's scratch (packed activations, tables, thread
     * scratch). Pure. */
    int64_t (*lower_bytes)(const Device *, const GraphPlan *, const KvPoolDesc *);
    int64_t (*pool_bytes)(const KvPoolDesc *,
                          int64_t *state_bytes); /* returns the KV bytes alone */
    MUST_CHECK bool (*pool_open)(Device *, const KvPoolDesc *, KvPool **, Error *);
    void (*pool_close)(Device *, KvPool *);
    void (*page_copy)(Device *, KvPool *, int group, int from, int to,
                      int n_tokens); /* copy on write */
    void (*state_copy)(Device *, KvPool *, int from, int to);
    MUST_CHECK bool (*lower)(Device *, const GraphPlan *, const KvPoolDesc *, Program **, Error *);
    void (*program_close)(Device *, Program *);
    MUST_CHECK bool (*submit)(Device *, Program *, KvPool *, const StepBlock *, Error *);
    MUST_CHECK bool (*wait)(Device *, Program *, uint64_t deadline_ns, Error *);
} DeviceOps;

extern const DeviceOps device_cpu;

#endif
