#include "device/vulkan/vk.h"

#include "base/clock.h"

#include <inttypes.h>
#include <string.h>

/* ---- memory types ---- */

enum {
    /* Types that only special uses want: AMD's uncached twins, lazily backed and protected ones. */
    ODD_TYPES = VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD |
                VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD |
                VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT | VK_MEMORY_PROPERTY_PROTECTED_BIT
};

/* How well a memory type suits; 0: not at all. */
static int suits(const VkFacts *f, VkUse use, VkMemoryPropertyFlags p)
{
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkMemoryPropertyFlags host =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const bool cached = p & VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    if (p & ODD_TYPES)
        return 0;
    switch (use) {
    case VK_USE_DEVICE:
        if (!(p & local))
            return 0;
        /* Shared memory: the host packs weights straight into it. Discrete: the type that the host
         * does not see reaches the whole memory on every driver. */
        return ((p & host) == host) == f->direct ? 2 : 1;
    case VK_USE_UPLOAD:
        /* The host only writes: combining writes beats a cache; the device reads it once. */
        return (p & host) != host ? 0 : 1 + !cached + (((p & local) != 0) == f->shared);
    case VK_USE_READBACK:
        return (p & host) != host ? 0 : 1 + 4 * cached + !(p & local);
    }
    return 0;
}

static bool choose_type(const VkFacts *f, VkUse use, uint32_t allowed, uint32_t *out)
{
    int best = 0;
    for (uint32_t i = 0; i < f->memory.memoryTypeCount; i++) {
        const int s = allowed >> i & 1U ? suits(f, use, f->memory.memoryTypes[i].propertyFlags) : 0;
        if (s > best) {
            best = s;
            *out = i;
        }
    }
    return best > 0;
}

/* ---- blocks ---- */

static bool take_memory(Device *d, VkUse use, const char *what, VkBlock *b, Error *err)
{
    VkApi *api = &d->root.api;
    VkMemoryRequirements need;
    api->GetBufferMemoryRequirements(d->device, b->buffer, &need);
    uint32_t type = 0;
    if (!choose_type(&d->facts, use, need.memoryTypeBits, &type))
        return err_set(err, ERR_DEVICE, "%s: the device has no memory type for it", what);
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo take = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = &flags,
                                       .allocationSize = need.size,
                                       .memoryTypeIndex = type};
    if (!VK_TRY(api, err, AllocateMemory, d->device, &take, NULL, &b->memory)) {
        b->memory = VK_NULL_HANDLE;
        return err_wrap(err, "%s of %" PRId64 " bytes", what, b->bytes);
    }
    b->taken = (int64_t)need.size;
    d->held += need.size;
    if (!VK_TRY(api, err, BindBufferMemory, d->device, b->buffer, b->memory, 0))
        return false;
    const bool map = use != VK_USE_DEVICE || d->facts.direct;
    void *host = NULL;
    if (map && !VK_TRY(api, err, MapMemory, d->device, b->memory, 0, VK_WHOLE_SIZE, 0, &host))
        return false;
    b->host = map ? host : NULL;
    const VkBufferDeviceAddressInfo at = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                          .buffer = b->buffer};
    b->at = api->GetBufferDeviceAddress(d->device, &at);
    return true;
}

bool vk_block_open(Device *d, VkUse use, int64_t bytes, const char *what, VkBlock *out, Error *err)
{
    VkApi *api = &d->root.api;
    *out = (VkBlock){.bytes = i64_round_up(i64_max(bytes, 4), 256)};
    if (out->bytes > d->facts.max_bytes)
        return err_set(err, ERR_NOMEM, "%s of %" PRId64 " bytes: one allocation holds %" PRId64,
                       what, bytes, d->facts.max_bytes);
    const VkBufferCreateInfo make = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = (VkDeviceSize)out->bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
    if (!VK_TRY(api, err, CreateBuffer, d->device, &make, NULL, &out->buffer)) {
        *out = (VkBlock){0};
        return err_wrap(err, "%s", what);
    }
    if (!take_memory(d, use, what, out, err)) {
        vk_block_close(d, out);
        return false;
    }
    return true;
}

void vk_block_close(Device *d, VkBlock *b)
{
    VkApi *api = &d->root.api;
    /* What a device that does not answer may still use is left to it. */
    if (b->buffer && !vk_device_idle(d)) {
        *b = (VkBlock){0};
        return;
    }
    if (b->buffer)
        api->DestroyBuffer(d->device, b->buffer, NULL);
    if (b->memory)
        api->FreeMemory(d->device, b->memory, NULL);
    d->held -= (uint64_t)b->taken;
    *b = (VkBlock){0};
}

/* ---- commands at once ---- */

/* Far more than any of them takes. */
static const uint64_t NOW_NS = 60ULL * 1000 * 1000 * 1000;

static bool begin_once(Device *d, VkCommandBuffer cmd, Error *err)
{
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    return VK_TRY(&d->root.api, err, BeginCommandBuffer, cmd, &begin);
}

bool vk_now_begin(Device *d, VkCommandBuffer *cmd, Error *err)
{
    *cmd = d->now;
    /* A wait that failed left it with the device. */
    if (d->now_value > d->ended && !vk_device_idle(d))
        return err_set(err, ERR_LOST, "%s does not answer", d->facts.info.id);
    return begin_once(d, d->now, err);
}

bool vk_now_end(Device *d, Error *err)
{
    return VK_TRY(&d->root.api, err, EndCommandBuffer, d->now) &&
           vk_device_submit(d, &d->now, 1, &d->now_value, err) &&
           vk_device_wait(d, d->now_value, clock_ns() + NOW_NS, err);
}

bool vk_block_zero(Device *d, const VkBlock *blocks, int n, Error *err)
{
    VkCommandBuffer cmd;
    if (n == 0)
        return true;
    if (!vk_now_begin(d, &cmd, err))
        return false;
    for (int i = 0; i < n; i++)
        d->root.api.CmdFillBuffer(cmd, blocks[i].buffer, 0, VK_WHOLE_SIZE, 0);
    return vk_now_end(d, err);
}

/* ---- upload ---- */

bool vk_upload_open(Device *d, int64_t half_bytes, VkUpload *u, Error *err)
{
    *u = (VkUpload){.d = d, .half_bytes = i64_round_up(half_bytes, 256)};
    if (d->facts.direct)
        return true;
    if (!vk_device_commands(d, 2, u->cmd, err))
        return false;
    if (!vk_block_open(d, VK_USE_UPLOAD, 2 * u->half_bytes, "staging", &u->staging, err)) {
        d->root.api.FreeCommandBuffers(d->device, d->commands, 2, u->cmd);
        return false;
    }
    return true;
}

bool vk_upload_begin(VkUpload *u, VkUploadPiece *pieces, int n, Error *err)
{
    if (u->staging.buffer && !vk_device_wait(u->d, u->value[u->half], clock_ns() + NOW_NS, err))
        return false;
    int64_t at = u->half * u->half_bytes;
    for (int i = 0; i < n; i++) {
        VkUploadPiece *p = &pieces[i];
        if (!u->staging.buffer) {
            p->at = p->to->host + p->offset;
        } else {
            p->at = u->staging.host + at;
            at += i64_round_up(p->bytes, 16);
        }
    }
    return true;
}

bool vk_upload_end(VkUpload *u, const VkUploadPiece *pieces, int n, Error *err)
{
    if (!u->staging.buffer)
        return true;
    Device *d = u->d;
    VkCommandBuffer cmd = u->cmd[u->half];
    if (!begin_once(d, cmd, err))
        return false;
    for (int i = 0; i < n; i++) {
        const VkUploadPiece *p = &pieces[i];
        const VkBufferCopy copy = {.srcOffset = (VkDeviceSize)(p->at - u->staging.host),
                                   .dstOffset = (VkDeviceSize)p->offset,
                                   .size = (VkDeviceSize)p->bytes};
        if (p->bytes > 0)
            d->root.api.CmdCopyBuffer(cmd, u->staging.buffer, p->to->buffer, 1, &copy);
    }
    if (!VK_TRY(&d->root.api, err, EndCommandBuffer, cmd) ||
        !vk_device_submit(d, &cmd, 1, &u->value[u->half], err))
        return false;
    u->half ^= 1;
    return true;
}

bool vk_upload_close(VkUpload *u, Error *err)
{
    Device *d = u->d;
    if (!u->staging.buffer)
        return true;
    const uint64_t last = u->value[0] > u->value[1] ? u->value[0] : u->value[1];
    const bool ok = vk_device_wait(d, last, clock_ns() + NOW_NS, err);
    if (vk_device_idle(d))
        d->root.api.FreeCommandBuffers(d->device, d->commands, 2, u->cmd);
    vk_block_close(d, &u->staging);
    *u = (VkUpload){0};
    return ok;
}
