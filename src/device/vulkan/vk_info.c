#include "device/vulkan/vk.h"

#include "base/log.h"
#include "device/gpu/gpu_apu.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PHYSICAL_MAX = 32, EXTENSIONS_MAX = 1024, VENDOR_AMD = 0x1002 };

/* Drivers are loaded with the first instance and unloaded with the last, and some lose what a
 * process has few of each time (NVIDIA's: thread-local storage; after some fifteen times it finds
 * no device). So there is one instance, made at first use and kept until the process ends. */
static pthread_mutex_t root_lock = PTHREAD_MUTEX_INITIALIZER;
static VkRoot shared_root; /* instance NULL: not made yet, or not so far */

static bool make_instance(VkRoot *r, bool *found, Error *err)
{
    uint32_t version = 0;
    const VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                   .pApplicationName = "mere",
                                   .apiVersion = VK_API_VERSION_1_3};
    const VkInstanceCreateInfo make = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &app};
    *found = false;
    if (!VK_TRY(&r->api, err, EnumerateInstanceVersion, &version))
        return false;
    if (version < VK_API_VERSION_1_3) {
        log_msg(LOG_WARN, "vulkan: the loader is version %u.%u, 1.3 is needed",
                VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
        return true;
    }
    VkInstance instance = VK_NULL_HANDLE;
    const VkResult result = VK_RESULT(&r->api, CreateInstance, &make, NULL, &instance);
    /* A loader without a driver, as a machine without a GPU has. */
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER)
        return true;
    if (!vk_api_check(&r->api, "vkCreateInstance", result, err))
        return false;
    if (!vk_api_instance(&r->api, instance, err)) {
        if (r->api.DestroyInstance)
            r->api.DestroyInstance(instance, NULL);
        return false;
    }
    r->instance = instance;
    *found = true;
    return true;
}

/* With root_lock held. Only what succeeds is kept. */
static bool make_root(bool *found, Error *err)
{
    if (!vk_api_fault(err))
        return false;
    *found = shared_root.instance != VK_NULL_HANDLE;
    if (*found)
        return true;
    VkRoot r = {.api.library = shared_root.api.library};
    bool ok = vk_api_load(&r.api, found, err);
    shared_root.api.library = r.api.library;
    ok = ok && (!*found || make_instance(&r, found, err));
    if (ok && *found)
        shared_root = r;
    return ok;
}

bool vk_root_open(VkRoot *r, bool *found, Error *err)
{
    *found = false;
    (void)pthread_mutex_lock(&root_lock);
    const bool ok = make_root(found, err);
    *r = shared_root;
    (void)pthread_mutex_unlock(&root_lock);
    return ok;
}

/* ---- extensions ---- */

typedef struct Extensions {
    VkExtensionProperties list[EXTENSIONS_MAX];
    uint32_t n;
} Extensions;

static bool has(const Extensions *e, const char *name)
{
    for (uint32_t i = 0; i < e->n; i++)
        if (strcmp(e->list[i].extensionName, name) == 0)
            return true;
    return false;
}

/* ---- features ---- */

typedef struct Features {
    VkPhysicalDeviceFeatures2 all;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceVulkan13Features v13;
} Features;

static void get_features(VkApi *api, VkPhysicalDevice physical, Features *f)
{
    *f = (Features){.all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                    .v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                    .v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                    .v13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
    f->all.pNext = &f->v11;
    f->v11.pNext = &f->v12;
    f->v12.pNext = &f->v13;
    api->GetPhysicalDeviceFeatures2(physical, &f->all);
}

static const char *first_lacking(const Features *f)
{
    const struct {
        VkBool32 there;
        const char *name;
    } needed[] = {
        {f->v12.bufferDeviceAddress, "bufferDeviceAddress"},
        {f->v12.timelineSemaphore, "timelineSemaphore"},
        {f->v12.vulkanMemoryModel, "vulkanMemoryModel"},
        {f->v12.vulkanMemoryModelDeviceScope, "vulkanMemoryModelDeviceScope"},
        {f->v12.storageBuffer8BitAccess, "storageBuffer8BitAccess"},
        {f->v12.scalarBlockLayout, "scalarBlockLayout"},
        {f->v11.storageBuffer16BitAccess, "storageBuffer16BitAccess"},
        {f->v13.subgroupSizeControl, "subgroupSizeControl"},
        {f->v13.computeFullSubgroups, "computeFullSubgroups"},
        {f->v13.shaderIntegerDotProduct, "shaderIntegerDotProduct"},
        {f->v13.maintenance4, "maintenance4"},
        {f->all.features.shaderInt64, "shaderInt64"},
    };
    for (size_t i = 0; i < COUNT_OF(needed); i++)
        if (!needed[i].there)
            return needed[i].name;
    return NULL;
}

/* ---- properties ---- */

typedef struct Properties {
    VkPhysicalDeviceProperties2 all;
    VkPhysicalDeviceVulkan11Properties v11;
    VkPhysicalDeviceVulkan12Properties v12;
    VkPhysicalDeviceVulkan13Properties v13;
    VkPhysicalDevicePCIBusInfoPropertiesEXT pci;
    VkPhysicalDeviceShaderCorePropertiesAMD amd;
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nv;
    bool has_pci, has_amd, has_nv;
} Properties;

static void get_properties(VkApi *api, VkPhysicalDevice physical, const Extensions *ext,
                           Properties *p)
{
    *p =
        (Properties){.all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                     .v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES,
                     .v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES,
                     .v13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES,
                     .pci.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT,
                     .amd.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD,
                     .nv.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV,
                     .has_pci = has(ext, VK_EXT_PCI_BUS_INFO_EXTENSION_NAME),
                     .has_amd = has(ext, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME),
                     .has_nv = has(ext, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME)};
    p->all.pNext = &p->v11;
    p->v11.pNext = &p->v12;
    p->v12.pNext = &p->v13;
    void **next = &p->v13.pNext;
    if (p->has_pci) {
        *next = &p->pci;
        next = &p->pci.pNext;
    }
    if (p->has_amd) {
        *next = &p->amd;
        next = &p->amd.pNext;
    }
    if (p->has_nv)
        *next = &p->nv;
    api->GetPhysicalDeviceProperties2(physical, &p->all);
}

/* 32 where it is offered, else what the driver prefers. */
static int choose_subgroup(const Properties *p)
{
    if (p->v13.minSubgroupSize <= 32 && 32 <= p->v13.maxSubgroupSize)
        return 32;
    return (int)p->v11.subgroupSize;
}

/* Compute units where the driver tells, else a guess that fills what there is. */
static int count_units(const Properties *p, bool software)
{
    if (p->has_amd)
        return (int)(p->amd.shaderEngineCount * p->amd.shaderArraysPerEngineCount *
                     p->amd.computeUnitsPerShaderArray);
    if (p->has_nv)
        return (int)p->nv.shaderSMCount;
    return software ? 8 : 32;
}

/* "gfx1151" of "AMD Radeon 8060S (RADV GFX1151)"; "" where the name has none. */
static void find_arch(const char *name, char out[32])
{
    out[0] = '\0';
    const char *at = strstr(name, "GFX");
    if (!at)
        at = strstr(name, "gfx");
    int n = 0;
    for (; at && isalnum((unsigned char)at[n]) && n < 31; n++)
        out[n] = (char)tolower((unsigned char)at[n]);
    out[n] = '\0';
}

static void add_word(DeviceInfo *i, const char *word)
{
    const size_t at = strlen(i->features);
    if (at + strlen(word) + 2 < sizeof i->features)
        (void)snprintf(i->features + at, sizeof i->features - at, "%s%s", at ? " " : "", word);
}

static void fill_info(VkFacts *f, const Properties *p, const Features *features,
                      const Extensions *ext)
{
    const VkPhysicalDeviceProperties *dev = &p->all.properties;
    DeviceInfo *i = &f->info;
    (void)snprintf(i->name, sizeof i->name, "%.95s", dev->deviceName);
    (void)snprintf(i->driver, sizeof i->driver, "%.40s %.50s", p->v12.driverName,
                   p->v12.driverInfo);
    find_arch(dev->deviceName, i->arch);
    if (p->has_pci)
        (void)snprintf(i->pci, sizeof i->pci, "%04x:%02x:%02x.%x", p->pci.pciDomain & 0xffffU,
                       p->pci.pciBus & 0xffU, p->pci.pciDevice & 0xffU, p->pci.pciFunction & 0xfU);
    i->software = dev->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    i->shared_memory = f->shared;
    char word[32];
    (void)snprintf(word, sizeof word, "subgroup-%d", f->subgroup);
    add_word(i, word);
    if (p->v13.minSubgroupSize != p->v13.maxSubgroupSize) {
        (void)snprintf(word, sizeof word, "of-%u-to-%u", p->v13.minSubgroupSize,
                       p->v13.maxSubgroupSize);
        add_word(i, word);
    }
    if (p->v13.integerDotProduct4x8BitPackedSignedAccelerated)
        add_word(i, "int8-dot");
    if (p->v13.integerDotProduct4x8BitPackedMixedSignednessAccelerated)
        add_word(i, "mixed-dot");
    if (features->v12.shaderFloat16)
        add_word(i, "f16");
    if (has(ext, "VK_KHR_cooperative_matrix"))
        add_word(i, "coopmat");
    if (has(ext, "VK_KHR_shader_bfloat16"))
        add_word(i, "bf16");
}

static bool find_family(VkApi *api, VkPhysicalDevice physical, uint32_t *out)
{
    VkQueueFamilyProperties families[16];
    uint32_t n = COUNT_OF(families);
    api->GetPhysicalDeviceQueueFamilyProperties(physical, &n, families);
    int best = -1;
    /* A queue without graphics leaves the desktop's alone. */
    for (uint32_t i = 0; i < n; i++) {
        if (!(families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) || families[i].queueCount == 0)
            continue;
        if (best < 0 || !(families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT)) {
            best = (int)i;
            if (!(families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT))
                break;
        }
    }
    *out = (uint32_t)best;
    return best >= 0;
}

static bool get_facts(VkApi *api, VkPhysicalDevice physical, Extensions *ext, VkFacts *f,
                      Error *err)
{
    *f = (VkFacts){.physical = physical};
    ext->n = EXTENSIONS_MAX;
    if (!VK_TRY(api, err, EnumerateDeviceExtensionProperties, physical, NULL, &ext->n, ext->list))
        return false;
    VkPhysicalDeviceProperties2 basic = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    api->GetPhysicalDeviceProperties2(physical, &basic);
    const uint32_t version = basic.properties.apiVersion;
    if (version < VK_API_VERSION_1_3) {
        (void)snprintf(f->info.name, sizeof f->info.name, "%.95s", basic.properties.deviceName);
        (void)snprintf(f->lacks, sizeof f->lacks, "Vulkan 1.3 (it has %u.%u)",
                       VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
        return true;
    }
    Features features;
    Properties p;
    get_features(api, physical, &features);
    get_properties(api, physical, ext, &p);
    const VkPhysicalDeviceLimits *limits = &p.all.properties.limits;
    f->vendor = p.all.properties.vendorID;
    f->shared = p.all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ||
                p.all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    f->has_budget = has(ext, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    f->float16 = features.v12.shaderFloat16;
    f->int8 = features.v12.shaderInt8;
    f->subgroup = choose_subgroup(&p);
    f->sizes_subgroup = p.v13.minSubgroupSize != p.v13.maxSubgroupSize &&
                        (p.v13.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT);
    f->shared_max = (int)limits->maxComputeSharedMemorySize;
    f->local_max = (int)limits->maxComputeWorkGroupInvocations;
    if (f->local_max > (int)limits->maxComputeWorkGroupSize[0])
        f->local_max = (int)limits->maxComputeWorkGroupSize[0];
    const bool software = p.all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    f->units = count_units(&p, software);
    /* A software device runs the dot products as well as anything else: tests reach them there. */
    f->int_dot = software || p.v13.integerDotProduct4x8BitPackedSignedAccelerated;
    f->mixed_dot = p.v13.integerDotProduct4x8BitPackedMixedSignednessAccelerated;
    f->max_bytes = i64_min((int64_t)p.v11.maxMemoryAllocationSize, (int64_t)p.v13.maxBufferSize);
    if (f->max_bytes <= 0)
        f->max_bytes = (int64_t)1 << 31;
    fill_info(f, &p, &features, ext);
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    api->GetPhysicalDeviceMemoryProperties2(physical, &memory);
    f->memory = memory.memoryProperties;
    const VkMemoryPropertyFlags both = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT |
                                       VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                       VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (uint32_t i = 0; f->shared && i < f->memory.memoryTypeCount; i++)
        f->direct = f->direct || (f->memory.memoryTypes[i].propertyFlags & both) == both;
    const char *lacking = first_lacking(&features);
    const VkSubgroupFeatureFlags ops = VK_SUBGROUP_FEATURE_BASIC_BIT |
                                       VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
                                       VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    if (!lacking && ((p.v11.subgroupSupportedOperations & ops) != ops ||
                     !(p.v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT)))
        lacking = "subgroup arithmetic and shuffle in compute";
    if (!lacking && (f->subgroup < 8 || f->subgroup > 64))
        lacking = "subgroups of 8 to 64";
    if (!lacking && (f->shared_max < 32768 || f->local_max < 256))
        lacking = "workgroups of 256 with 32 KiB";
    if (!lacking && limits->maxPushConstantsSize < VK_PUSH_MAX)
        lacking = "128 bytes of push constants";
    if (!lacking && !find_family(api, physical, &f->family))
        lacking = "a queue with compute";
    if (lacking)
        (void)snprintf(f->lacks, sizeof f->lacks, "%s", lacking);
    return true;
}

/* An AMD APU's budget from the kernel's numbers; heaps_free is the driver's. False: another device.
 */
static bool apu_budget(const VkFacts *f, uint64_t heaps_free, GpuApuBudget *out)
{
    GpuApuFacts apu;
    if (f->vendor != VENDOR_AMD || !f->shared || f->info.software ||
        !gpu_apu_read("", f->info.pci, &apu))
        return false;
    apu.heaps_free = heaps_free;
    apu.desktop = getenv("DISPLAY") || getenv("WAYLAND_DISPLAY");
    gpu_apu_budget(&apu, GPU_APU_VULKAN, 0, out);
    return true;
}

bool vk_root_list(VkRoot *r, VkFacts out[DEVICES_MAX], int *n, Error *err)
{
    VkPhysicalDevice physical[PHYSICAL_MAX] = {VK_NULL_HANDLE};
    uint32_t count = PHYSICAL_MAX;
    *n = 0;
    if (!VK_TRY(&r->api, err, EnumeratePhysicalDevices, r->instance, &count, physical))
        return false;
    Arena a;
    arena_init(&a, "vulkan list");
    Extensions *ext = ARENA_NEW(&a, Extensions, err);
    bool ok = ext != NULL;
    for (uint32_t i = 0; ok && i < count && *n < DEVICES_MAX; i++) {
        VkFacts *f = &out[*n];
        ok = get_facts(&r->api, physical[i], ext, f, err);
        if (!ok)
            break;
        if (f->lacks[0]) {
            log_msg(LOG_INFO, "vulkan: %s is not used: it lacks %s", f->info.name, f->lacks);
            continue;
        }
        (void)snprintf(f->info.id, sizeof f->info.id, "vulkan:%d", *n);
        DeviceMemory m;
        vk_facts_memory(&r->api, f, 0, &m);
        f->info.total_bytes = m.limit_bytes;
        f->info.free_bytes =
            m.limit_bytes - (m.used_bytes < m.limit_bytes ? m.used_bytes : m.limit_bytes);
        GpuApuBudget b;
        if (apu_budget(f, f->info.free_bytes, &b))
            (void)snprintf(f->info.advice, sizeof f->info.advice, "%s", b.advice);
        ++*n;
    }
    arena_free(&a);
    return ok;
}

/* ---- memory ---- */

/* Heaps of one pool are counted once: a device with shared memory has one pool, however its driver
 * deals it out; of a discrete device's heaps the largest local one (a smaller one is a window onto
 * it, or what the host sees of it). */
static bool is_counted(const VkFacts *f, uint32_t heap)
{
    if (f->shared)
        return true;
    uint32_t best = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; i < f->memory.memoryHeapCount; i++) {
        const VkMemoryHeap *h = &f->memory.memoryHeaps[i];
        if ((h->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) && h->size > most) {
            most = h->size;
            best = i;
        }
    }
    return heap == best;
}

void vk_facts_memory(VkApi *api, const VkFacts *f, uint64_t held, DeviceMemory *out)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
        .pNext = f->has_budget ? &budget : NULL};
    api->GetPhysicalDeviceMemoryProperties2(f->physical, &memory);
    uint64_t limit = 0;
    uint64_t used = 0;
    for (uint32_t i = 0; i < f->memory.memoryHeapCount; i++) {
        if (!is_counted(f, i))
            continue;
        limit += f->has_budget ? budget.heapBudget[i] : f->memory.memoryHeaps[i].size;
        used += budget.heapUsage[i];
    }
    *out = (DeviceMemory){
        .limit_bytes = limit, .used_bytes = f->has_budget ? used : held, .shared = f->shared};
    GpuApuBudget b;
    if (apu_budget(f, limit > used ? limit - used : 0, &b))
        out->limit_bytes = b.bytes + out->used_bytes;
}
