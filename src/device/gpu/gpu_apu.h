/* gpu_apu.h: how much memory an AMD APU's GPU may take.
 *
 * One pool of DRAM has two ledgers: the carve-out, which the firmware took from the host for good,
 * and GTT, a right to map ordinary memory. Drivers add them up differently, over-commit, and know
 * nothing of what the host needs; so the budget is made from the kernel's numbers, with the
 * driver's own as an upper bound. Pure but for gpu_apu_read; numbers change while programs run, so
 * read them again before each model. */
#ifndef MERE_DEVICE_GPU_APU_H
#define MERE_DEVICE_GPU_APU_H

#include "base/attr.h"

/* Bytes. */
typedef struct GpuApuFacts {
    uint64_t vram_total, vram_used; /* the carve-out */
    uint64_t gtt_total, gtt_used;
    uint64_t pages_limit; /* ttm.pages_limit in bytes; 0: not readable */
    bool gttsize_set;     /* amdgpu.gttsize, deprecated */
    uint64_t mem_total, mem_available;
    uint64_t heaps_free; /* all Vulkan heaps' budget - usage; not read here; 0: unknown */
    uint64_t reserve;    /* that the host keeps; 0: 8 % of memory, 4 to 10 GiB */
    bool desktop;        /* a desktop session runs */
} GpuApuFacts;

typedef enum GpuApuApi { GPU_APU_VULKAN, GPU_APU_HIP } GpuApuApi;

typedef struct GpuApuBudget {
    uint64_t bytes;   /* that may be taken from now on: from the carve-out first */
    uint64_t carve;   /* free in the carve-out */
    uint64_t gtt;     /* free in GTT that the host can spare */
    uint64_t gtt_cap; /* GTT that can be had at all */
    uint64_t reserve;
    uint64_t host; /* left for the host's own use (bodies, staging, tokenizer), shared with gtt */
    char advice[240]; /* one line for the user when it would change the answer; "" */
} GpuApuBudget;

/* From sysfs and proc below `root` ("" for this machine's); pci "0000:c4:00.0". False: the device
 * has no such files: no amdgpu. heaps_free is left 0. */
MUST_CHECK bool gpu_apu_read(const char *root, const char *pci, GpuApuFacts *out);
/* `need`: bytes that a model wants, 0 when none is known: advice on GTT is given when it is more
 * than there is, or unknown. */
void gpu_apu_budget(const GpuApuFacts *f, GpuApuApi api, uint64_t need, GpuApuBudget *out);

#endif
