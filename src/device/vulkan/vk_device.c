#include "device/vulkan/vk.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>

static bool make_device(Device *d, Error *err)
{
    const VkFacts *f = &d->facts;
    const float priority = 1.0F;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = f->family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    VkPhysicalDeviceVulkan13Features v13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
        .subgroupSizeControl = VK_TRUE,
        .computeFullSubgroups = VK_TRUE,
        .shaderIntegerDotProduct = VK_TRUE,
        .maintenance4 = VK_TRUE};
    VkPhysicalDeviceVulkan12Features v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .pNext = &v13,
        .bufferDeviceAddress = VK_TRUE,
        .timelineSemaphore = VK_TRUE,
        .vulkanMemoryModel = VK_TRUE,
        .vulkanMemoryModelDeviceScope = VK_TRUE,
        .storageBuffer8BitAccess = VK_TRUE,
        .scalarBlockLayout = VK_TRUE,
        .shaderFloat16 = f->float16,
        .shaderInt8 = f->int8};
    VkPhysicalDeviceVulkan11Features v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .pNext = &v12,
        .storageBuffer16BitAccess = VK_TRUE};
    const VkPhysicalDeviceFeatures2 features = {.sType =
                                                    VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                                .pNext = &v11,
                                                .features.shaderInt64 = VK_TRUE};
    const char *const budget = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    const VkDeviceCreateInfo make = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &features,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = f->has_budget,
                                     .ppEnabledExtensionNames = &budget};
    if (!VK_TRY(&d->root.api, err, CreateDevice, f->physical, &make, NULL, &d->device)) {
        d->device = VK_NULL_HANDLE;
        return false;
    }
    if (!vk_api_device(&d->root.api, d->device, err))
        return false;
    d->root.api.GetDeviceQueue(d->device, f->family, 0, &d->queue);
    return true;
}

static bool make_objects(Device *d, Error *err)
{
    VkApi *api = &d->root.api;
    const VkCommandPoolCreateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                              .flags =
                                                  VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                              .queueFamilyIndex = d->facts.family};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo timeline = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                            .pNext = &type};
    const VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                      .size = VK_PUSH_MAX};
    const VkPipelineLayoutCreateInfo layout = {.sType =
                                                   VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .pushConstantRangeCount = 1,
                                               .pPushConstantRanges = &push};
    const VkPipelineCacheCreateInfo cache = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    return VK_TRY(api, err, CreateCommandPool, d->device, &commands, NULL, &d->commands) &&
           VK_TRY(api, err, CreateSemaphore, d->device, &timeline, NULL, &d->timeline) &&
           VK_TRY(api, err, CreatePipelineLayout, d->device, &layout, NULL, &d->layout) &&
           VK_TRY(api, err, CreatePipelineCache, d->device, &cache, NULL, &d->cache) &&
           vk_device_commands(d, 1, &d->now, err);
}

static bool choose(Device *d, int index, Error *err)
{
    bool found;
    int n = 0;
    if (!vk_root_open(&d->root, &found, err))
        return false;
    VkFacts facts[DEVICES_MAX];
    if (found && !vk_root_list(&d->root, facts, &n, err))
        return false;
    if (index < 0 || index >= n)
        return err_set(err, ERR_DEVICE, "vulkan:%d: there %s %d", index, n == 1 ? "is" : "are", n);
    d->facts = facts[index];
    return true;
}

bool vk_device_open(const DeviceOptions *opt, Device **out, Error *err)
{
    Device *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_nomem(err, "vulkan device", sizeof *d);
    d->numerics = opt->numerics;
    d->deterministic = opt->deterministic;
    if (!choose(d, opt->index, err) || !make_device(d, err) || !make_objects(d, err)) {
        vk_device_close(d);
        return false;
    }
    (void)snprintf(d->describe, sizeof d->describe, "%s: %.90s, %.90s", d->facts.info.id,
                   d->facts.info.name, d->facts.info.driver);
    *out = d;
    return true;
}

/* Not asked through the counted door, as a device that counts as lost may well still run. */
bool vk_device_idle(Device *d)
{
    if (d->ended >= d->submitted)
        return true;
    if (d->deaf) /* waited for in vain before */
        return false;
    const VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &d->timeline,
                                      .pValues = &d->submitted};
    const uint64_t two_s = 2ULL * 1000 * 1000 * 1000;
    if (d->root.api.WaitSemaphores(d->device, &wait, two_s) != VK_SUCCESS) {
        d->deaf = true;
        d->root.api.lost = true;
        return false;
    }
    d->ended = d->submitted;
    return true;
}

void vk_device_close(Device *d)
{
    if (!d)
        return;
    VkApi *api = &d->root.api;
    if (d->device && api->DestroyDevice) {
        if (d->timeline && !vk_device_idle(d)) {
            /* Destroying what a hung device still uses can hang or crash. */
            log_msg(LOG_WARN, "%s does not answer: its memory is given back at exit",
                    d->facts.info.id);
            mem_free(d->pipes);
            mem_free(d->modules);
            mem_free(d);
            return;
        }
        vk_pipe_close(d);
        api->DestroyPipelineCache(d->device, d->cache, NULL);
        api->DestroyPipelineLayout(d->device, d->layout, NULL);
        api->DestroySemaphore(d->device, d->timeline, NULL);
        api->DestroyCommandPool(d->device, d->commands, NULL);
        api->DestroyDevice(d->device, NULL);
    }
    mem_free(d);
}

bool vk_device_commands(Device *d, int n, VkCommandBuffer *out, Error *err)
{
    const VkCommandBufferAllocateInfo take = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = d->commands,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = (uint32_t)n};
    return VK_TRY(&d->root.api, err, AllocateCommandBuffers, d->device, &take, out);
}

bool vk_device_submit(Device *d, const VkCommandBuffer *cmds, int n, uint64_t *value, Error *err)
{
    const uint64_t next = d->submitted + 1;
    const VkTimelineSemaphoreSubmitInfo timeline = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &next};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &timeline,
                                 .commandBufferCount = (uint32_t)n,
                                 .pCommandBuffers = cmds,
                                 .signalSemaphoreCount = 1,
                                 .pSignalSemaphores = &d->timeline};
    if (!VK_TRY(&d->root.api, err, QueueSubmit, d->queue, 1, &submit, VK_NULL_HANDLE))
        return false;
    d->submitted = next;
    *value = next;
    return true;
}

/* A kernel's wait costs tens of microseconds more than looking: look for as long as a short step
 * may take, then let the processor go. */
static const uint64_t SPIN_NS = 300 * 1000;
static const uint64_t SLICE_NS = 20 * 1000 * 1000;

bool vk_device_wait(Device *d, uint64_t value, uint64_t deadline_ns, Error *err)
{
    VkApi *api = &d->root.api;
    if (api->lost)
        return err_set(err, ERR_LOST, "%s is lost", d->facts.info.id);
    /* Counted once, however often we look. */
    uint64_t at = 0;
    if (!VK_TRY(api, err, GetSemaphoreCounterValue, d->device, d->timeline, &at))
        return false;
    const uint64_t from = clock_ns();
    const VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &d->timeline,
                                      .pValues = &value};
    while (at < value) {
        const uint64_t now = clock_ns();
        if (now >= deadline_ns) {
            api->lost = true;
            return err_set(err, ERR_LOST,
                           "%s did not end a step in time (%" PRIu64 " of %" PRIu64 ")",
                           d->facts.info.id, at, value);
        }
        VkResult r;
        if (now - from < SPIN_NS && !d->facts.info.software) {
            r = api->GetSemaphoreCounterValue(d->device, d->timeline, &at);
        } else {
            r = api->WaitSemaphores(d->device, &wait,
                                    deadline_ns - now < SLICE_NS ? deadline_ns - now : SLICE_NS);
            if (r == VK_SUCCESS)
                at = value;
        }
        if (!vk_api_check(api, "vkWaitSemaphores", r, err))
            return false;
    }
    d->ended = at > d->ended ? at : d->ended;
    return true;
}
