#include "device/vulkan/vk.h"

#include "base/log.h"

static bool list(DeviceInfo out[DEVICES_MAX], int *n, Error *err)
{
    VkRoot root;
    VkFacts facts[DEVICES_MAX];
    bool found;
    *n = 0;
    if (!vk_root_open(&root, &found, err))
        return false;
    if (!found) {
        log_msg(LOG_INFO, "vulkan: no libvulkan.so.1, or it knows no driver");
        return true;
    }
    const bool ok = vk_root_list(&root, facts, n, err);
    for (int i = 0; ok && i < *n; i++)
        out[i] = facts[i].info;
    return ok;
}

static const char *describe(const Device *d)
{
    return d->describe;
}

static void memory(const Device *d, DeviceMemory *out)
{
    VkApi api = d->root.api;
    vk_facts_memory(&api, &d->facts, d->held, out);
}

const DeviceOps device_vulkan = {
    .name = "vulkan",
    .absent = "no Vulkan driver (libvulkan.so.1)",
    .samples = true,
    .in_flight = VK_RING,
    .list = list,
    .open = vk_device_open,
    .close = vk_device_close,
    .describe = describe,
    .memory = memory,
    .place = vk_weights_place,
    .supports = vk_lower_supports,
    .need = vk_lower_need,
    .weights_open = vk_weights_open,
    .weights_close = vk_weights_close,
    .pool_bytes = vk_pool_bytes,
    .pool_open = vk_pool_open,
    .pool_close = vk_pool_close,
    .page_copy = vk_pool_page_copy,
    .state_copy = vk_pool_state_copy,
    .lower = vk_lower_open,
    .program_close = vk_lower_close,
    .submit = vk_step_submit,
    .wait = vk_step_wait,
};
