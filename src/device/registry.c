#include "device/device.h"

#include <stdio.h>

static const DeviceOps *const backends[] = {
#define DEVICE(name) &device_##name,
#include "device/devices.def"
#undef DEVICE
};

const DeviceOps *const *device_backends(int *n)
{
    *n = (int)COUNT_OF(backends);
    return backends;
}

/* The device with the most memory of those that are no software; -1: none. */
static int largest(const DeviceInfo *infos, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!infos[i].software && (best < 0 || infos[i].total_bytes > infos[best].total_bytes))
            best = i;
    return best;
}

static bool find_auto(const DeviceOps **ops, int *index, Error *err)
{
    for (size_t i = 0; i < COUNT_OF(backends); i++) {
        DeviceInfo infos[DEVICES_MAX];
        int n;
        if (!backends[i]->list(infos, &n, err))
            return err_wrap(err, "%s (--device cpu does without)", backends[i]->name);
        const int at = largest(infos, n);
        if (at < 0)
            continue;
        *ops = backends[i];
        *index = at;
        return true;
    }
    return err_set(err, ERR_DEVICE, "no device was found");
}

/* "cpu cuda:0 vulkan:0" into out. */
static void list_all(char *out, size_t cap)
{
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; i < COUNT_OF(backends); i++) {
        DeviceInfo infos[DEVICES_MAX];
        int n;
        Error err;
        if (!backends[i]->list(infos, &n, &err))
            continue;
        for (int j = 0; j < n && len < cap; j++)
            len += (size_t)snprintf(out + len, cap - len, "%s%s", len ? " " : "", infos[j].id);
    }
}

/* Names of backends, whether this program was built with them or not. */
static bool is_backend(Str name)
{
    return str_is(name, "cpu") || str_is(name, "cuda") || str_is(name, "vulkan");
}

bool device_find(Str name, const DeviceOps **ops, int *index, Error *err)
{
    if (name.len == 0 || str_is(name, "auto"))
        return find_auto(ops, index, err);
    const int shown = name.len > 40 ? 40 : (int)name.len;
    const char *colon = memchr(name.ptr, ':', name.len);
    const Str backend = {name.ptr, colon ? (size_t)(colon - name.ptr) : name.len};
    int64_t at = 0;
    if (!is_backend(backend) ||
        (colon && !str_to_int((Str){colon + 1, name.len - backend.len - 1}, 0, INT32_MAX, &at)))
        return err_set(err, ERR_USAGE,
                       "device \"%.*s\" is unknown; devices: auto cpu cuda:N vulkan:N", shown,
                       name.ptr);
    for (size_t i = 0; i < COUNT_OF(backends); i++) {
        if (!str_is(backend, backends[i]->name))
            continue;
        DeviceInfo infos[DEVICES_MAX];
        int n;
        if (!backends[i]->list(infos, &n, err))
            return false;
        if (at >= n)
            break;
        *ops = backends[i];
        *index = (int)at;
        return true;
    }
    char all[160];
    list_all(all, sizeof all);
    return err_set(err, ERR_DEVICE, "there is no device %.*s here; there are: %s (mere devices)",
                   shown, name.ptr, all);
}
