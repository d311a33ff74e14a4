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

bool device_find(Str name, const DeviceOps **ops, int *index, Error *err)
{
    if (name.len == 0 || str_is(name, "auto"))
        return find_auto(ops, index, err);
    const char *colon = memchr(name.ptr, ':', name.len);
    const Str backend = {name.ptr, colon ? (size_t)(colon - name.ptr) : name.len};
    int64_t at = 0;
    bool ok = true;
    if (colon)
        ok = str_to_int((Str){colon + 1, name.len - backend.len - 1}, 0, DEVICES_MAX, &at);
    for (size_t i = 0; ok && i < COUNT_OF(backends); i++) {
        if (!str_is(backend, backends[i]->name))
            continue;
        DeviceInfo infos[DEVICES_MAX];
        int n;
        if (!backends[i]->list(infos, &n, err))
            return false;
        if (at >= n)
            return err_set(err, ERR_DEVICE,
                           "device \"%.*s\": there %s %d %s device%s (mere devices)", (int)name.len,
                           name.ptr, n == 1 ? "is" : "are", n, backends[i]->name,
                           n == 1 ? "" : "s");
        *ops = backends[i];
        *index = (int)at;
        return true;
    }
    return err_set(err, ERR_USAGE, "device \"%.*s\" is unknown; devices: auto cpu cuda:N vulkan:N",
                   name.len > 40 ? 40 : (int)name.len, name.ptr);
}
