#include "device/vulkan/vk.h"

#include <string.h>

static bool begin(Device *d, VkCommandBuffer cmd, Error *err)
{
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    return VK_TRY(&d->root.api, err, BeginCommandBuffer, cmd, &info);
}

/* The copies of pages and states that wait. The bucket's first barrier makes them seen. */
static bool record_before(Device *d, KvPool *pool, VkCommandBuffer cmd, Error *err)
{
    if (!begin(d, cmd, err))
        return false;
    vk_pool_record(d, pool, cmd);
    return VK_TRY(&d->root.api, err, EndCommandBuffer, cmd);
}

/* Logits to memory that the host reads fast. The bucket ends with a barrier that makes them seen
 * here. */
static bool record_after(Device *d, const Program *p, int entry, int n_out, VkCommandBuffer cmd,
                         Error *err)
{
    const VkLayout *l = &p->layout;
    const VkBufferCopy copy = {.srcOffset = (VkDeviceSize)l->logits,
                               .dstOffset =
                                   (VkDeviceSize)(l->logits_host + entry * l->logits_stride),
                               .size = (VkDeviceSize)n_out * (VkDeviceSize)l->vocab * 4};
    const VkMemoryBarrier to_host = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    if (!begin(d, cmd, err))
        return false;
    VkApi *api = &d->root.api;
    api->CmdCopyBuffer(cmd, p->runtime.buffer, p->readback.buffer, 1, &copy);
    api->CmdPipelineBarrier(cmd, VK_PIPELINE_STAGE_TRANSFER_BIT,
                            VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1,
                            &to_host, 0, NULL, 0, NULL);
    return VK_TRY(api, err, EndCommandBuffer, cmd);
}

/* Submits a bucket's parts, each on its own so that none runs long, with what goes before the first
 * and after the last. A failure after the first leaves half a step: the device counts as lost. */
static bool submit_parts(Device *d, const VkBucket *b, VkCommandBuffer before,
                         VkCommandBuffer after, uint64_t *value, Error *err)
{
    for (int i = 0; i < b->n_cmds; i++) {
        VkCommandBuffer cmds[3];
        int n = 0;
        if (i == 0 && before)
            cmds[n++] = before;
        cmds[n++] = b->cmds[i];
        if (i == b->n_cmds - 1 && after)
            cmds[n++] = after;
        if (!vk_device_submit(d, cmds, n, value, err)) {
            d->root.api.lost = d->root.api.lost || i > 0;
            return false;
        }
    }
    return true;
}

static const VkBucket *bucket_for(const Program *p, int rows)
{
    int i = 0;
    while (i < p->n_buckets - 1 && p->buckets[i].rows < rows)
        i++;
    return &p->buckets[i];
}

static bool in_flight(const Program *p)
{
    for (int i = 0; i < VK_RING; i++)
        if (p->ring[i].value != 0)
            return true;
    return false;
}

/* Ready to take a step with this pool. */
static bool check(Device *d, Program *p, const KvPool *pool, int entry, Error *err)
{
    if (d->root.api.lost)
        return err_set(err, ERR_LOST, "%s is lost", d->facts.info.id);
    if (p->ring[entry].value != 0)
        return err_set(err, ERR_DEVICE, "%s: %d steps are in flight already", d->facts.info.id,
                       VK_RING);
    if (p->pool_serial == pool->serial)
        return true;
    if (in_flight(p))
        return err_set(err, ERR_DEVICE, "%s: another cache while a step is in flight",
                       d->facts.info.id);
    return vk_lower_record(d, p, pool, err);
}

bool vk_step_submit(Device *d, Program *p, KvPool *pool, const StepBlock *s, uint64_t *ticket,
                    Error *err)
{
    const int entry = (int)(p->step % VK_RING);
    VkInFlight *f = &p->ring[entry];
    *ticket = 0;
    if (!check(d, p, pool, entry, err))
        return false;
    int32_t *block = (int32_t *)(void *)(p->upload.host + entry * p->layout.step_stride);
    if (!gpu_step_write(&p->layout.step, p->plan.graph, &p->kv, s, p->step, block, err))
        return false;
    const bool copies = pool->n_copies > 0;
    const bool logits = s->logits && s->n_out > 0;
    if ((copies && !record_before(d, pool, f->before, err)) ||
        (logits && !record_after(d, p, entry, s->n_out, f->after, err)))
        return false;
    uint64_t value = 0;
    if (!submit_parts(d, bucket_for(p, s->n_rows), copies ? f->before : NULL,
                      logits ? f->after : NULL, &value, err))
        return false;
    pool->n_copies = 0;
    p->step++;
    f->value = value;
    f->n_samples = s->n_samples;
    f->n_out = s->n_out;
    f->results = s->results;
    f->logits = s->logits;
    *ticket = value;
    return true;
}

bool vk_step_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    int entry = 0;
    while (entry < VK_RING && p->ring[entry].value != ticket)
        entry++;
    if (ticket == 0 || entry == VK_RING)
        return err_set(err, ERR_DEVICE, "%s: no such step is in flight", d->facts.info.id);
    if (!vk_device_wait(d, ticket, deadline_ns, err))
        return false;
    VkInFlight *f = &p->ring[entry];
    const VkLayout *l = &p->layout;
    const uint8_t *host = p->readback.host;
    if (f->n_samples > 0)
        memcpy(f->results, host + entry * l->results_stride,
               (size_t)f->n_samples * sizeof *f->results);
    if (f->logits && f->n_out > 0)
        memcpy(f->logits, host + l->logits_host + entry * l->logits_stride,
               (size_t)f->n_out * (size_t)l->vocab * sizeof(float));
    f->value = 0;
    return true;
}
