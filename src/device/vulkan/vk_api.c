#include "device/vulkan/vk_api.h"

#include "device/fault.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Of the process: a device and the list of devices before it have a VkApi each. */
static Fault fault = {.name = "vulkan", .code = VK_ERROR_UNKNOWN, .min = INT32_MIN, .max = -1};

bool vk_api_fault(Error *err)
{
    return fault_read(&fault, err);
}

typedef void (*Symbol)(void);

/* ISO C has no cast from an object pointer to a function pointer; POSIX has the bits alike. */
static Symbol symbol_of(void *p)
{
    Symbol s;
    memcpy(&s, &p, sizeof s);
    return s;
}

static bool missing(const char *name, Error *err)
{
    return err_set(err, ERR_DEVICE, "libvulkan has no %s", name);
}

bool vk_api_load(VkApi *api, bool *found, Error *err)
{
    if (!api->library)
        api->library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    *found = api->library != NULL;
    if (!*found)
        return true;
    api->GetInstanceProcAddr =
        (PFN_vkGetInstanceProcAddr)symbol_of(dlsym(api->library, "vkGetInstanceProcAddr"));
    if (!api->GetInstanceProcAddr)
        return missing("vkGetInstanceProcAddr", err);
#define VK_GLOBAL(name)                                                                            \
    api->name = (PFN_vk##name)api->GetInstanceProcAddr(NULL, "vk" #name);                          \
    if (!api->name)                                                                                \
        return missing("vk" #name, err);
#define VK_INSTANCE(name)
#define VK_DEVICE(name)
#include "device/vulkan/vk_api.def"
#undef VK_GLOBAL
#undef VK_INSTANCE
#undef VK_DEVICE
    return true;
}

bool vk_api_instance(VkApi *api, VkInstance instance, Error *err)
{
#define VK_GLOBAL(name)
#define VK_INSTANCE(name)                                                                          \
    api->name = (PFN_vk##name)api->GetInstanceProcAddr(instance, "vk" #name);                      \
    if (!api->name)                                                                                \
        return missing("vk" #name, err);
#define VK_DEVICE(name)
#include "device/vulkan/vk_api.def"
#undef VK_GLOBAL
#undef VK_INSTANCE
#undef VK_DEVICE
    return true;
}

bool vk_api_device(VkApi *api, VkDevice device, Error *err)
{
#define VK_GLOBAL(name)
#define VK_INSTANCE(name)
#define VK_DEVICE(name)                                                                            \
    api->name = (PFN_vk##name)api->GetDeviceProcAddr(device, "vk" #name);                          \
    if (!api->name)                                                                                \
        return missing("vk" #name, err);
#include "device/vulkan/vk_api.def"
#undef VK_GLOBAL
#undef VK_INSTANCE
#undef VK_DEVICE
    return true;
}

bool vk_api_fails(VkApi *api)
{
    if (api->lost) {
        api->injected = VK_ERROR_DEVICE_LOST;
        return true;
    }
    api->injected = (VkResult)fault_next(&fault);
    return api->injected != VK_SUCCESS;
}

static const char *result_name(VkResult r)
{
    static const struct {
        VkResult result;
        const char *name;
    } names[] = {
        {VK_ERROR_OUT_OF_HOST_MEMORY, "out of host memory"},
        {VK_ERROR_OUT_OF_DEVICE_MEMORY, "out of device memory"},
        {VK_ERROR_INITIALIZATION_FAILED, "initialization failed"},
        {VK_ERROR_DEVICE_LOST, "device lost"},
        {VK_ERROR_MEMORY_MAP_FAILED, "memory map failed"},
        {VK_ERROR_LAYER_NOT_PRESENT, "layer not present"},
        {VK_ERROR_EXTENSION_NOT_PRESENT, "extension not present"},
        {VK_ERROR_FEATURE_NOT_PRESENT, "feature not present"},
        {VK_ERROR_INCOMPATIBLE_DRIVER, "incompatible driver"},
        {VK_ERROR_TOO_MANY_OBJECTS, "too many objects"},
        {VK_ERROR_UNKNOWN, "unknown error"},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (names[i].result == r)
            return names[i].name;
    return "error";
}

bool vk_api_check(VkApi *api, const char *call, VkResult r, Error *err)
{
    if (r >= 0)
        return true;
    ErrCode code = ERR_DEVICE;
    if (r == VK_ERROR_DEVICE_LOST) {
        api->lost = true;
        code = ERR_LOST;
    } else if (r == VK_ERROR_OUT_OF_DEVICE_MEMORY || r == VK_ERROR_OUT_OF_HOST_MEMORY) {
        code = ERR_NOMEM;
    }
    return err_set(err, code, "%s: %s (%d)", call, result_name(r), (int)r);
}
