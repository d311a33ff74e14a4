#include "device/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

/* "580.159.03 (CUDA 13.0)"; the kernel module's version where the system tells it. */
static void driver_name(int cuda, char *out, size_t cap)
{
    char module[48] = "";
    FILE *f = fopen("/sys/module/nvidia/version", "r");
    if (f) {
        if (!fgets(module, (int)sizeof module, f))
            module[0] = '\0';
        (void)fclose(f);
    }
    module[strcspn(module, "\r\n ")] = '\0';
    if (module[0])
        snprintf(out, cap, "%s (CUDA %d.%d)", module, cuda / 1000, cuda % 1000 / 10);
    else
        snprintf(out, cap, "CUDA %d.%d", cuda / 1000, cuda % 1000 / 10);
}

static void feature_words(int arch, char *out, size_t cap)
{
    snprintf(out, cap, "int8-dot tensor-f16%s%s", arch >= 80 ? " tensor-bf16 async-copy" : "",
             arch >= 90 ? " clusters programmatic-launch" : "");
}

/* Free memory is known inside a context only: the primary one, for a moment. */
static bool free_memory(CuDevice dev, uint64_t *out, Error *err)
{
    CuContext ctx;
    if (!cuda_api_ctx_retain(&ctx, dev, err))
        return false;
    size_t free_bytes = 0;
    size_t total;
    const bool ok = cuda_api_ctx_set(ctx, err) && cuda_api_mem_info(&free_bytes, &total, err);
    cuda_ignore(cuda_api_ctx_set(NULL, NULL));
    cuda_ignore(cuda_api_ctx_release(dev, NULL));
    *out = free_bytes;
    return ok;
}

static bool describe(int index, int driver, DeviceInfo *out, Error *err)
{
    CuDevice dev;
    int major;
    int minor;
    int integrated;
    size_t total;
    *out = (DeviceInfo){0};
    if (!cuda_api_device_get(&dev, index, err) ||
        !cuda_api_device_name(out->name, (int)sizeof out->name, dev, err) ||
        !cuda_api_device_attr(&major, CU_ATTR_MAJOR, dev, err) ||
        !cuda_api_device_attr(&minor, CU_ATTR_MINOR, dev, err) ||
        !cuda_api_device_attr(&integrated, CU_ATTR_INTEGRATED, dev, err) ||
        !cuda_api_device_total(&total, dev, err) ||
        !cuda_api_device_pci(out->pci, (int)sizeof out->pci, dev, err) ||
        !free_memory(dev, &out->free_bytes, err))
        return false;
    snprintf(out->id, sizeof out->id, "cuda:%d", index % DEVICES_MAX);
    snprintf(out->arch, sizeof out->arch, "sm_%d", major * 10 + minor);
    driver_name(driver, out->driver, sizeof out->driver);
    feature_words(major * 10 + minor, out->features, sizeof out->features);
    out->name[sizeof out->name - 1] = '\0';
    for (char *c = out->pci; *c; c++) /* as the system writes addresses */
        if (*c >= 'A' && *c <= 'F')
            *c = (char)(*c + ('a' - 'A'));
    out->shared_memory = integrated != 0;
    out->total_bytes = total;
    return true;
}

bool cuda_list(DeviceInfo out[DEVICES_MAX], int *n, Error *err)
{
    bool present;
    int driver;
    int count;
    *n = 0;
    if (!cuda_has_kernels()) /* nothing that could run there */
        return true;
    if (!cuda_api_load(&present, err))
        return false;
    if (!present)
        return true;
    if (!cuda_api_driver_version(&driver, err) || !cuda_api_device_count(&count, err))
        return false;
    for (int i = 0; i < count && *n < DEVICES_MAX; i++, ++*n)
        if (!describe(i, driver, &out[*n], err))
            return false;
    return true;
}
