/* vk_api.h: libvulkan, loaded at run time: nothing is linked, and a program without a driver runs.
 *
 * Every call that can fail goes through VK_TRY, which counts it, can make it fail, and turns a
 * VkResult into an Error that names the call. MERE_FAULT=vulkan:N[:CODE] makes the N-th call fail
 * (fault.h; CODE is a VkResult, -13, VK_ERROR_UNKNOWN, if not given). A lost device stays lost:
 * every later call through the same VkApi fails with ERR_LOST. One thread per VkApi. */
#ifndef MERE_DEVICE_VULKAN_VK_API_H
#define MERE_DEVICE_VULKAN_VK_API_H

#include "base/err.h"

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

typedef struct VkApi {
    void *library;
    bool lost;
    VkResult injected; /* of the call that vk_api_fails stopped */
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
#define VK_GLOBAL(name) PFN_vk##name name;
#define VK_INSTANCE(name) PFN_vk##name name;
#define VK_DEVICE(name) PFN_vk##name name;
#include "device/vulkan/vk_api.def"
#undef VK_GLOBAL
#undef VK_INSTANCE
#undef VK_DEVICE
} VkApi;

/* Loads the library, unless api->library is there already; it is never unloaded. *found false (and
 * true returned): there is no libvulkan. */
MUST_CHECK bool vk_api_load(VkApi *api, bool *found, Error *err);
MUST_CHECK bool vk_api_instance(VkApi *api, VkInstance instance, Error *err);
MUST_CHECK bool vk_api_device(VkApi *api, VkDevice device, Error *err);

/* Reads MERE_FAULT. One thread at a time. */
MUST_CHECK bool vk_api_fault(Error *err);
/* Counts a call; true: it must not be made and counts as failed with api->injected. */
bool vk_api_fails(VkApi *api);
/* A VkResult as an error; VK_INCOMPLETE and the like are none. */
bool vk_api_check(VkApi *api, const char *call, VkResult result, Error *err);
#define VK_RESULT(api, name, ...) (vk_api_fails(api) ? (api)->injected : (api)->name(__VA_ARGS__))
#define VK_TRY(api, err, name, ...)                                                                \
    vk_api_check((api), "vk" #name, VK_RESULT(api, name, __VA_ARGS__), (err))

#endif
