/* Stands in for the backend in a program that was built without glslc or the Vulkan headers. */
#include "device/device.h"

static bool list(DeviceInfo out[DEVICES_MAX], int *n, Error *err)
{
    (void)out;
    (void)err;
    *n = 0;
    return true;
}

const DeviceOps device_vulkan = {
    .name = "vulkan",
    .absent = "this program was built without Vulkan (glslc, libvulkan-dev)",
    .list = list,
};
