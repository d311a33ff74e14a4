/* fake_cuda.h: a CUDA driver without a GPU, built as libcuda.so.1 in a directory of its own, for
 * tests that are run with that directory in LD_LIBRARY_PATH. It has the entry points of
 * cuda_api.def. Memory is the host's (filled with NaN when it is given out), a stream is a thread,
 * graphs are recorded launches, and kernels run in the emulator (tests/emu).
 *
 * Environment: FAKE_CUDA_DEVICES (1), FAKE_CUDA_ARCH (90), FAKE_CUDA_SMS (4), FAKE_CUDA_MB (2048,
 * of device memory), FAKE_CUDA_INTEGRATED (0).
 *
 * A test reaches the functions below in the library that the program has loaded, by
 * fake_cuda_find. */
#ifndef MERE_TESTS_FAKE_CUDA_H
#define MERE_TESTS_FAKE_CUDA_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct FakeCuda {
    /* What the program holds: memory, host memory, modules, streams, events, graphs, contexts. */
    int64_t (*live)(void);
    uint64_t (*calls)(void); /* of entry points, since the library was loaded */
    /* The n-th call from now (1: the next) returns `code`; 0: none. Sticky: every later call in the
     * context too, until it is released. */
    void (*fail_at)(uint64_t n, int code, bool sticky);
    /* From now on graphs do not run: their stream stays busy. false: lets them go on. */
    void (*hang)(bool on);
    /* The next graph's k-th launch (from 0) fails: the stream and all later calls answer 719. */
    void (*fail_launch)(int k);
    uint64_t (*launches)(void); /* of kernels that ran */
    /* Of a graph only the first and the last launch run, which bring a step in and end it: for
     * tests that do not look at logits. */
    void (*ends_only)(bool on);
    void (*set_memory)(uint64_t bytes);
} FakeCuda;

/* NULL: another libcuda.so.1, or none, is in use. Loads it if nobody has. */
static inline const FakeCuda *fake_cuda_find(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = lib ? dlsym(lib, "fake_cuda_table") : NULL;
    const FakeCuda *(*table)(void);
    if (!symbol)
        return NULL;
    memcpy(&table, &symbol, sizeof table);
    return table();
}

#endif
