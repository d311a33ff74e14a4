#include "device/cuda/cuda.h"

#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#ifndef MERE_WITH_CUDA /* set by the build where there is a compiler for the kernels */
#define MERE_WITH_CUDA 0
#endif

#define KERNELS(name) extern const uint8_t mere_fatbin_##name[];
#if MERE_WITH_CUDA
#include "device/cuda/kernels/kernels.def"
#endif
#undef KERNELS

static const struct {
    const char *name;
    const uint8_t *image;
} images[] = {
#define KERNELS(name) {#name, mere_fatbin_##name},
#if MERE_WITH_CUDA
#include "device/cuda/kernels/kernels.def"
#endif
#undef KERNELS
    {NULL, NULL}};

_Static_assert(COUNT_OF(images) <= CUDA_MODULES_MAX + 1, "every image has its module");

/* ---- errors ---- */

void cuda_ignore(bool ok)
{
    (void)ok;
}

bool cuda_enter(Device *d, Error *e)
{
    if (d->lost) {
        *e = d->lost_error;
        return false;
    }
    return cuda_api_ctx_set(d->ctx, e);
}

bool cuda_leave(Device *d, bool ok, const Error *e, Error *err)
{
    if (ok)
        return true;
    if (e->code == ERR_LOST && !d->lost) {
        d->lost = true;
        d->lost_error = *e;
    }
    if (err)
        *err = *e;
    return false;
}

bool cuda_drain(Device *d, Error *err)
{
    const uint64_t deadline = clock_ns() + (uint64_t)CUDA_DRAIN_S * 1000000000U;
    for (;;) {
        bool ready;
        if (!cuda_api_stream_ready(d->stream, &ready, err))
            return false;
        if (ready)
            return true;
        if (clock_ns() > deadline) {
            d->hung = true;
            return err_set(err, ERR_LOST, "cuda:%d: no answer for %d s", d->index, CUDA_DRAIN_S);
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

void cuda_quiesce(Device *d)
{
    Error e;
    const bool ok = cuda_enter(d, &e) && cuda_drain(d, &e);
    cuda_ignore(cuda_leave(d, ok, &e, NULL));
}

/* ---- memory ---- */

bool cuda_take(Device *d, const char *what, int64_t bytes, CudaPtr *out, Error *err)
{
    *out = 0;
    if (bytes <= 0)
        return true;
    Error e;
    if (cuda_api_mem_alloc(out, (size_t)bytes, &e)) {
        d->held += bytes;
        return true;
    }
    *out = 0;
    if (e.code != ERR_NOMEM) {
        if (err)
            *err = e;
        return err_wrap(err, "%s", what);
    }
    size_t free_bytes = 0;
    size_t total = 0;
    cuda_ignore(cuda_api_mem_info(&free_bytes, &total, &e));
    return err_set(err, ERR_NOMEM, "cuda:%d: %s takes %lld bytes, %llu are free", d->index, what,
                   (long long)bytes, (unsigned long long)free_bytes);
}

void cuda_give(Device *d, CudaPtr p, int64_t bytes)
{
    if (!p)
        return;
    d->held -= bytes;
    if (!d->hung)
        cuda_ignore(cuda_api_mem_free(p, NULL));
}

bool cuda_take_host(Device *d, const char *what, int64_t bytes, void **out, Error *err)
{
    Error e;
    *out = NULL;
    if (bytes <= 0 || cuda_api_host_alloc(out, (size_t)bytes, CU_HOST_MAPPED, &e))
        return true;
    *out = NULL;
    if (e.code == ERR_NOMEM)
        return err_set(err, ERR_NOMEM, "cuda:%d: %s takes %lld bytes of page-locked host memory",
                       d->index, what, (long long)bytes);
    if (err)
        *err = e;
    return err_wrap(err, "%s", what);
}

void cuda_give_host(Device *d, void *p)
{
    if (p && !d->hung)
        cuda_ignore(cuda_api_host_free(p, NULL));
}

/* ---- kernels ---- */

bool cuda_has_kernels(void)
{
    return images[0].image != NULL;
}

static bool load_modules(Device *d, Error *err)
{
    for (int i = 0; images[i].image; i++) {
        if (!cuda_api_module_load(&d->modules[i], images[i].image, err))
            return err_wrap(err, "kernels \"%s\" for sm_%d", images[i].name, d->arch);
        d->n_modules++;
    }
    return true;
}

static bool find_function(Device *d, const char *name, CuFunction *out, Error *err)
{
    for (int i = 0; i < d->n_modules; i++)
        if (!cuda_api_find_function(d->modules[i], name, out, err))
            return false;
        else if (*out)
            return true;
    return err_set(err, ERR_UNSUPPORTED, "cuda: this program has no kernel %s", name);
}

static CudaFunction *function_entry(Device *d, const char *name, Error *err)
{
    if (strlen(name) >= CUDA_NAME_MAX) {
        (void)err_set(err, ERR_FAILED, "cuda: kernel %s has a name of more than %d characters",
                      name, CUDA_NAME_MAX - 1);
        return NULL;
    }
    for (int i = 0; i < d->n_functions; i++)
        if (strcmp(d->functions[i].name, name) == 0)
            return &d->functions[i];
    if (d->n_functions == d->cap_functions) {
        const int cap = d->cap_functions ? 2 * d->cap_functions : 64;
        CudaFunction *more = mem_realloc(d->functions, (size_t)cap * sizeof *more);
        if (!more) {
            (void)err_nomem(err, "kernels", (size_t)cap * sizeof *more);
            return NULL;
        }
        d->functions = more;
        d->cap_functions = cap;
    }
    CuFunction f;
    if (!find_function(d, name, &f, err))
        return NULL;
    CudaFunction *entry = &d->functions[d->n_functions++];
    *entry = (CudaFunction){.f = f, .smem = 48 * 1024};
    memcpy(entry->name, name, strlen(name) + 1);
    return entry;
}

bool cuda_function(Device *d, const char *name, int smem, CuFunction *out, Error *err)
{
    CudaFunction *entry = function_entry(d, name, err);
    if (!entry)
        return false;
    if (smem > entry->smem) {
        if (!cuda_api_function_set(entry->f, CU_FUNCTION_MAX_DYNAMIC_SMEM, smem, err))
            return err_wrap(err, "%s: %d bytes of shared memory", name, smem);
        entry->smem = smem;
    }
    *out = entry->f;
    return true;
}

/* ---- open and close ---- */

static bool read_facts(Device *d, Error *err)
{
    int major;
    int minor;
    int integrated;
    int driver;
    char name[64];
    if (!cuda_api_device_attr(&major, CU_ATTR_MAJOR, d->dev, err) ||
        !cuda_api_device_attr(&minor, CU_ATTR_MINOR, d->dev, err) ||
        !cuda_api_device_attr(&d->sms, CU_ATTR_SMS, d->dev, err) ||
        !cuda_api_device_attr(&d->smem_max, CU_ATTR_SMEM_OPTIN, d->dev, err) ||
        !cuda_api_device_attr(&integrated, CU_ATTR_INTEGRATED, d->dev, err) ||
        !cuda_api_device_name(name, (int)sizeof name, d->dev, err) ||
        !cuda_api_driver_version(&driver, err))
        return false;
    d->arch = major * 10 + minor;
    d->integrated = integrated != 0;
    d->programmatic = d->arch >= 90;
    name[sizeof name - 1] = '\0';
    if (driver < 12030) /* programmatic edges of captured graphs */
        return err_set(err, ERR_DEVICE, "cuda:%d: the driver supports CUDA %d.%d, wanted 12.3",
                       d->index, driver / 1000, driver % 1000 / 10);
    if (d->arch < 75)
        return err_set(err, ERR_DEVICE, "cuda:%d: %s is sm_%d, wanted sm_75 or newer", d->index,
                       name, d->arch);
    snprintf(d->describe, sizeof d->describe, "cuda:%d: %s, sm_%d, %d multiprocessors%s", d->index,
             name, d->arch, d->sms, d->numerics == NUM_EXACT ? ", exact" : "");
    return true;
}

static bool open_parts(Device *d, Error *err)
{
    bool present;
    if (!cuda_has_kernels())
        return err_set(err, ERR_DEVICE, "cuda: this program was built without CUDA kernels");
    if (!cuda_api_load(&present, err))
        return false;
    if (!present)
        return err_set(err, ERR_DEVICE, "cuda: there is no driver (libcuda.so.1) or no device");
    CuContext ctx;
    if (!cuda_api_device_get(&d->dev, d->index, err) || !read_facts(d, err) ||
        !cuda_api_ctx_retain(&ctx, d->dev, err))
        return false;
    d->ctx = ctx;
    size_t free_bytes;
    size_t total;
    if (!cuda_api_ctx_set(d->ctx, err) ||
        !cuda_api_stream_create(&d->stream, CU_STREAM_NON_BLOCKING, err) || !load_modules(d, err) ||
        !cuda_api_mem_info(&free_bytes, &total, err))
        return false;
    d->free_at_open = (int64_t)free_bytes;
    return true;
}

static void cuda_close(Device *d)
{
    if (!d)
        return;
    if (d->ctx)
        cuda_quiesce(d);
    if (d->ctx && !d->hung) {
        for (int i = 0; i < d->n_modules; i++)
            cuda_ignore(cuda_api_module_unload(d->modules[i], NULL));
        if (d->stream)
            cuda_ignore(cuda_api_stream_destroy(d->stream, NULL));
        cuda_ignore(cuda_api_ctx_set(NULL, NULL));
        cuda_ignore(cuda_api_ctx_release(d->dev, NULL));
    }
    mem_free(d->functions);
    mem_free(d);
}

static bool cuda_open(const DeviceOptions *opt, Device **out, Error *err)
{
    Device *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_nomem(err, "cuda device", sizeof *d);
    d->index = opt->index;
    d->numerics = opt->numerics;
    d->deterministic = opt->deterministic;
    Error e;
    if (!cuda_leave(d, open_parts(d, &e), &e, err)) {
        cuda_close(d);
        return false;
    }
    *out = d;
    return true;
}

static const char *cuda_describe(const Device *d)
{
    return d->describe;
}

static void cuda_memory(const Device *d, DeviceMemory *out)
{
    size_t free_bytes = 0;
    size_t total = 0;
    *out = (DeviceMemory){.shared = d->integrated, .used_bytes = (uint64_t)d->held};
    if (!cuda_api_ctx_set(d->ctx, NULL) || !cuda_api_mem_info(&free_bytes, &total, NULL))
        return;
    /* What others gave back since hides what we took: we hold at least what we count. */
    const int64_t taken = d->free_at_open - (int64_t)free_bytes;
    out->used_bytes = (uint64_t)i64_max(taken, d->held);
    out->limit_bytes = free_bytes + out->used_bytes;
}

static Placement cuda_place(const Device *d, const Weight *w, int64_t *bytes)
{
    (void)d;
    GpuWeight plan;
    *bytes = 0;
    if (!cuda_weights_plan(NULL, w, &plan, NULL)) /* supports names what has no layout */
        return PLACE_READ;
    *bytes = i64_round_up(plan.bytes, CUDA_ALIGN);
    return plan.repacked ? PLACE_REPACK : PLACE_READ;
}

const DeviceOps device_cuda = {
    .name = "cuda",
    .absent = MERE_WITH_CUDA ? "no CUDA driver (libcuda.so.1) or no device"
                             : "this program was built without CUDA kernels",
    .samples = true,
    .in_flight = CUDA_RING,
    .list = cuda_list,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .memory = cuda_memory,
    .place = cuda_place,
    .supports = cuda_lower_check,
    .need = cuda_lower_need,
    .weights_open = cuda_weights_open,
    .weights_close = cuda_weights_close,
    .pool_bytes = cuda_pool_bytes,
    .pool_open = cuda_pool_open,
    .pool_close = cuda_pool_close,
    .page_copy = cuda_pool_page_copy,
    .state_copy = cuda_pool_state_copy,
    .lower = cuda_lower,
    .program_close = cuda_lower_close,
    .submit = cuda_step_submit,
    .wait = cuda_step_wait,
};
