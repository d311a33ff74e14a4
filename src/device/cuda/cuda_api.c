#include "device/cuda/cuda_api.h"

#include "device/fault.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* One driver a process, never unloaded: it has threads and exit handlers of its own. */
static struct {
    pthread_mutex_t lock;
    bool present, ok;
    int (*error_name)(int code, const char **name);
#define CUDA_FN(name, symbol, kind, params, args) int(*name) params;
#include "device/cuda/cuda_api.def"
#undef CUDA_FN
    Fault fault;
} api = {.lock = PTHREAD_MUTEX_INITIALIZER,
         .fault = {.name = "cuda", .code = 999, .min = 1, .max = 999}};

/* ---- results ---- */

/* After these the driver refuses everything in the context (sticky errors), or the device itself is
 * gone. */
static bool is_lost(int code)
{
    switch (code) {
    case 4:   /* deinitialised */
    case 201: /* invalid context: ours was destroyed under us */
    case 214: /* ECC uncorrectable */
    case 220: /* NVLink uncorrectable */
    case 226: /* contained error */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 709: /* context is destroyed */
    case 710: /* assert */
    case 714: /* hardware stack error */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid pc */
    case 719: /* launch failed */
    case 721: /* tensor memory leak */
    case 807: /* MPS client terminated and its like */
    case 809:
    case 911: /* external device */
    case 999: /* unknown: the driver itself does not know; nothing can be trusted after it */
        return true;
    default:
        return false;
    }
}

static bool check(int code, const char *call, Error *err)
{
    if (code == CU_SUCCESS)
        return true;
    const char *name = NULL;
    if (!api.error_name || api.error_name(code, &name) != CU_SUCCESS || !name)
        name = "unknown result";
    const ErrCode as = is_lost(code) ? ERR_LOST : code == CU_OUT_OF_MEMORY ? ERR_NOMEM : ERR_DEVICE;
    return err_set(err, as, "cuda: %s failed: %s (%d)", call, name, code);
}

void cuda_api_fail_at(uint64_t n, int code)
{
    fault_at(&api.fault, n, code);
}

uint64_t cuda_api_calls(void)
{
    return atomic_load(&api.fault.calls);
}

/* ---- calls ---- */

enum { DO, UNDO };

#define CUDA_FN(name, symbol, kind, params, args)                                                  \
    static int name##_code params                                                                  \
    {                                                                                              \
        const int pretend = fault_next(&api.fault);                                                \
        if (pretend == CU_SUCCESS)                                                                 \
            return api.name args;                                                                  \
        if ((kind) == UNDO)                                                                        \
            (void)api.name args;                                                                   \
        return pretend;                                                                            \
    }                                                                                              \
    bool cuda_api_##name(CUDA_API_LIST params, Error *err)                                         \
    {                                                                                              \
        return check(name##_code args, #symbol, err);                                              \
    }
#include "device/cuda/cuda_api.def"
#undef CUDA_FN

static bool check_ready(int code, const char *call, bool *ready, Error *err)
{
    *ready = code == CU_SUCCESS;
    return code == CU_NOT_READY || check(code, call, err);
}

bool cuda_api_stream_ready(CuStream s, bool *ready, Error *err)
{
    return check_ready(stream_query_code(s), "cuStreamQuery", ready, err);
}

bool cuda_api_event_ready(CuEvent e, bool *ready, Error *err)
{
    return check_ready(event_query_code(e), "cuEventQuery", ready, err);
}

bool cuda_api_find_function(CuModule m, const char *name, CuFunction *f, Error *err)
{
    *f = NULL;
    const int code = module_function_code(f, m, name);
    if (code == CU_NOT_FOUND)
        *f = NULL;
    return code == CU_NOT_FOUND || check(code, "cuModuleGetFunction", err);
}

/* ---- loading ---- */

static bool find_symbols(void *lib, Error *err)
{
    /* A data pointer is copied into a function pointer: C has no cast for it. */
#define CUDA_FN(name, symbol, kind, params, args)                                                  \
    {                                                                                              \
        void *p = dlsym(lib, #symbol);                                                             \
        if (!p)                                                                                    \
            return err_set(err, ERR_DEVICE,                                                        \
                           "cuda: the driver has no " #symbol ": it is older than CUDA 12.3");     \
        memcpy(&api.name, &p, sizeof p);                                                           \
    }
#include "device/cuda/cuda_api.def"
#undef CUDA_FN
    void *p = dlsym(lib, "cuGetErrorName");
    memcpy(&api.error_name, &p, sizeof p);
    return true;
}

static bool load(bool *present, Error *err)
{
    *present = false;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return true;
    if (!find_symbols(lib, err))
        return false;
    const int code = init_code(0);
    if (code == CU_NO_DEVICE)
        return true;
    *present = true;
    return check(code, "cuInit", err);
}

bool cuda_api_load(bool *present, Error *err)
{
    (void)pthread_mutex_lock(&api.lock);
    bool ok = fault_read(&api.fault, err);
    if (ok && !api.ok) /* a driver that failed to start may start the next time */
        ok = api.ok = load(&api.present, err);
    *present = api.present;
    (void)pthread_mutex_unlock(&api.lock);
    return ok;
}
