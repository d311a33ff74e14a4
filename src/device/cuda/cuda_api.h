/* cuda_api.h: the CUDA driver, loaded at run time (libcuda.so.1), and the few of its types and
 * constants that are used. Nothing is linked and nothing of NVIDIA's headers is included.
 *
 * For each line of cuda_api.def there is  bool cuda_api_<name>(parameters, Error *err).  Every call
 * is counted and can be made to fail: by cuda_api_fail_at, or by MERE_FAULT=cuda:N[:CODE]
 * (fault.h; CODE is a CUresult, 999 if not given).
 *
 * Errors name the entry point and the driver's name of the result. ERR_NOMEM: out of memory;
 * ERR_LOST: the context is gone and every later call in it would fail too (launch failure, illegal
 * address, ECC and the like); ERR_DEVICE: all else. Any thread. */
#ifndef MERE_DEVICE_CUDA_CUDA_API_H
#define MERE_DEVICE_CUDA_CUDA_API_H

#include "base/err.h"

typedef int CuDevice;
typedef struct CuContextOpaque *CuContext;
typedef struct CuStreamOpaque *CuStream;
typedef struct CuEventOpaque *CuEvent;
typedef struct CuModuleOpaque *CuModule;
typedef struct CuFunctionOpaque *CuFunction;
typedef struct CuGraphOpaque *CuGraph;
typedef struct CuGraphExecOpaque *CuGraphExec;

typedef union CuLaunchAttrValue {
    char pad[64];
    struct {
        unsigned x, y, z;
    } cluster;
    int programmatic;
} CuLaunchAttrValue;

typedef struct CuLaunchAttr {
    int id;
    char pad[4];
    CuLaunchAttrValue value;
} CuLaunchAttr;

typedef struct CuLaunchConfig {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned smem_bytes;
    CuStream stream;
    CuLaunchAttr *attrs;
    unsigned n_attrs;
} CuLaunchConfig;

enum { /* CUresult */
       CU_SUCCESS = 0,
       CU_OUT_OF_MEMORY = 2,
       CU_NO_DEVICE = 100,
       CU_NOT_FOUND = 500,
       CU_NOT_READY = 600
};
enum { /* CUdevice_attribute */
       CU_ATTR_SMS = 16,
       CU_ATTR_INTEGRATED = 18,
       CU_ATTR_MAJOR = 75,
       CU_ATTR_MINOR = 76,
       CU_ATTR_SMEM_OPTIN = 97
};
enum {
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_NO_TIMING = 2,
    CU_HOST_MAPPED = 2,               /* CU_MEMHOSTALLOC_DEVICEMAP */
    CU_CAPTURE_THREAD = 1,            /* other threads may call what they like meanwhile */
    CU_FUNCTION_MAX_DYNAMIC_SMEM = 8, /* function attribute */
    CU_LAUNCH_CLUSTER = 4,            /* launch attributes */
    CU_LAUNCH_PROGRAMMATIC = 6
};

/* Loads the driver and starts it, once a process. *present false: there is none, or it has no
 * device; no error. ERR_DEVICE: an entry point is missing (the driver is too old), or it fails. */
MUST_CHECK bool cuda_api_load(bool *present, Error *err);

#define CUDA_FN(name, symbol, kind, params, args)                                                  \
    MUST_CHECK bool cuda_api_##name(CUDA_API_LIST params, Error *err);
#define CUDA_API_LIST(...) __VA_ARGS__
#include "device/cuda/cuda_api.def"
#undef CUDA_FN

/* For stream_query and event_query: *ready false while work goes on, which is no error. */
MUST_CHECK bool cuda_api_stream_ready(CuStream s, bool *ready, Error *err);
MUST_CHECK bool cuda_api_event_ready(CuEvent e, bool *ready, Error *err);
/* For module_function: *f NULL when the module has none of that name, which is no error. */
MUST_CHECK bool cuda_api_find_function(CuModule m, const char *name, CuFunction *f, Error *err);

/* Fault injection: the n-th call from now (1: the next) returns `code`; 0: none. */
void cuda_api_fail_at(uint64_t n, int code);
uint64_t cuda_api_calls(void); /* since the process began, or as fault.h says */

#endif
