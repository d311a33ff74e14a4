/* ledger.h: the memory plan: what a model takes with this context, these slots and this device,
 * before anything of it is loaded, and what would fit when that does not.
 *
 * Terms are bytes that no file backs (mere.h: MereTerm), the host's and the device's; what is
 * mapped from files is counted apart, as placements. Where the device has memory of its own, each
 * side has its limit; where it takes the host's, one sum has the host's limit, and the device's
 * part the device's, when it names one. The CPU names none: all of it is the host's. The same
 * function plans for `mere plan` and for loading, from the same inputs, so a model takes what was
 * said. Pure but for the question to the system how much is left. */
#ifndef MERE_ENGINE_LEDGER_H
#define MERE_ENGINE_LEDGER_H

#include "engine/sched.h"
#include "model/model.h"

typedef struct LedgerSizes { /* options with the defaults filled in */
    int slots, queue, chunk, page_tokens;
    int snapshots;      /* -1: none */
    int echo_rows;      /* rows of logits an echo request holds */
    GraphLimits limits; /* for model_build */
} LedgerSizes;

/* ERR_USAGE: an option is out of its range. `max_ctx` and `vocab` are the model's. */
MUST_CHECK bool ledger_sizes(const MereOptions *opt, int max_ctx, int vocab, LedgerSizes *out,
                             Error *err);

typedef struct LedgerInput {
    const DeviceOps *ops;
    const Device *device;
    Numerics numerics;
    const Model *model;
    const GraphPlan *graph; /* built with sizes.limits */
    const MereOptions *opt;
    LedgerSizes sizes;
    DeviceMemory memory;        /* as it is now */
    uint64_t device_base_bytes; /* that the device held before any model: its context */
    uint64_t base_bytes;        /* the process without the model */
    uint64_t text_bytes;        /* tokenizer and template */
    uint64_t head_bytes;        /* headers, model, graph: what the arenas hold */
} LedgerInput;

typedef struct Ledger {
    MerePlan plan;
    LedgerSizes sizes;
    KvPoolDesc pool;
    int ctx;
    int flights; /* steps at once, of the scheduler */
    bool share;  /* keep prefixes */
} Ledger;

/* ERR_USAGE: an option is out of its range. Not fitting is no error here: plan.fits. */
MUST_CHECK bool ledger_make(const LedgerInput *in, Ledger *out, Error *err);
/* "needs 5.1 GiB of 4.0 GiB; --ctx 4096 --slots 1 --kv f16 would fit". Sets ERR_FIT, returns
 * false. */
bool ledger_refuse(const Ledger *l, const char *name, Error *err);
/* The part of a SchedDesc that the ledger decides. */
SchedDesc ledger_sched(const Ledger *l, int vocab);

#endif
