#include "device/vulkan/vk.h"

#include "base/mem.h"

enum { ALIGN = 256 };

/* More than any machine has; sums of a few such sizes still fit 63 bits. */
static const int64_t too_many_bytes = INT64_MAX / 4096;

/* a * b of sizes, at most too_many_bytes: what a hostile configuration asks for stays too much. */
static int64_t size_mul(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_mul_overflow(a, b, &c) || c > too_many_bytes ? too_many_bytes : c;
}

/* Bytes of the keys (or values) of one page of a layer. */
static int64_t page_bytes(const KvPoolDesc *d, int g, int width)
{
    const int64_t element = d->format == KV_FORMAT_F32 ? 4 : 2;
    return size_mul(size_mul(d->page_tokens[g], d->groups[g].n_kv_heads), width * element);
}

static int64_t layer_bytes(const KvPoolDesc *d, int g, int width)
{
    return i64_round_up(size_mul(page_bytes(d, g, width), d->n_pages[g]), ALIGN);
}

static int width_of(const KvPoolDesc *d, int g, int v)
{
    return v ? d->groups[g].v_dim : d->groups[g].head_dim;
}

int64_t vk_pool_bytes(const KvPoolDesc *d, int64_t *state_bytes)
{
    int64_t sum = 0;
    for (int g = 0; g < d->n_groups; g++)
        for (int v = 0; v < 2; v++)
            sum += size_mul(layer_bytes(d, g, width_of(d, g, v)), d->groups[g].n_layers);
    if (state_bytes)
        *state_bytes =
            i64_round_up(size_mul(size_mul(d->state_floats, d->n_states), sizeof(float)), ALIGN);
    return sum;
}

/* Gives every layer's keys and values a block and an offset; sizes[b] are the blocks' bytes, at
 * most `most` unless one layer alone has more. */
static void place_layers(KvPool *p, int64_t most, int64_t *sizes)
{
    p->n_blocks = 0;
    for (int g = 0; g < p->desc.n_groups; g++)
        for (int i = 0; i < 2 * p->desc.groups[g].n_layers; i++) {
            const int64_t bytes = layer_bytes(&p->desc, g, width_of(&p->desc, g, i % 2));
            if (p->n_blocks == 0 || sizes[p->n_blocks - 1] + bytes > most)
                sizes[p->n_blocks++] = 0;
            p->block_of[g][i] = p->n_blocks - 1;
            p->offset[g][i] = sizes[p->n_blocks - 1];
            sizes[p->n_blocks - 1] += bytes;
        }
}

static bool open_blocks(Device *d, KvPool *p, Error *err)
{
    int layers = 0;
    for (int g = 0; g < p->desc.n_groups; g++) {
        const int n = 2 * p->desc.groups[g].n_layers;
        p->block_of[g] = ARENA_ARRAY(&p->arena, n, int, err);
        p->offset[g] = ARENA_ARRAY(&p->arena, n, int64_t, err);
        if (!p->block_of[g] || !p->offset[g])
            return false;
        layers += n;
    }
    int64_t *sizes = ARENA_ARRAY(&p->arena, layers + 1, int64_t, err);
    p->blocks = ARENA_ARRAY(&p->arena, layers + 1, VkBlock, err);
    if (!sizes || !p->blocks)
        return false;
    place_layers(p, vk_block_most(&d->facts), sizes);
    for (int i = 0; i < p->n_blocks; i++)
        if (!vk_block_open(d, VK_USE_DEVICE, sizes[i], "kv cache", &p->blocks[i], err))
            return false;
    int64_t state;
    (void)vk_pool_bytes(&p->desc, &state);
    if (state > 0 && !vk_block_open(d, VK_USE_DEVICE, state, "recurrent state", &p->state, err))
        return false;
    /* Zeroed: pages are claimed now, and what attention reads past a sequence's end is finite. */
    return vk_block_zero(d, p->blocks, p->n_blocks, err) &&
           vk_block_zero(d, &p->state, state > 0, err);
}

bool vk_pool_open(Device *d, const KvPoolDesc *desc, KvPool **out, Error *err)
{
    for (int g = 0; g < desc->n_groups; g++)
        if (desc->page_tokens[g] < 1 || (desc->page_tokens[g] & (desc->page_tokens[g] - 1)) != 0)
            return err_set(err, ERR_USAGE, "kv: pages of %d tokens, wanted a power of two",
                           desc->page_tokens[g]);
    KvPool *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_nomem(err, "kv pool", sizeof *p);
    arena_init(&p->arena, "vulkan pool");
    p->desc = *desc;
    p->serial = ++d->pool_serial;
    p->next = d->pools;
    d->pools = p;
    if (!open_blocks(d, p, err)) {
        vk_pool_close(d, p);
        return false;
    }
    *out = p;
    return true;
}

void vk_pool_close(Device *d, KvPool *p)
{
    if (!p)
        return;
    for (KvPool **at = &d->pools; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    for (int i = 0; p->blocks && i < p->n_blocks; i++)
        vk_block_close(d, &p->blocks[i]);
    vk_block_close(d, &p->state);
    arena_free(&p->arena);
    mem_free(p);
}

VkKv vk_pool_layer(const KvPool *p, int group, int layer)
{
    const int *block = &p->block_of[group][(ptrdiff_t)layer * 2];
    const int64_t *offset = &p->offset[group][(ptrdiff_t)layer * 2];
    return (VkKv){.k = p->blocks[block[0]].at + (VkPtr)offset[0],
                  .v = p->blocks[block[1]].at + (VkPtr)offset[1],
                  .page_tokens = p->desc.page_tokens[group],
                  .group = group};
}

/* ---- copies ---- */

static void record_page(Device *d, const KvPool *p, const VkCopy *c, VkCommandBuffer cmd)
{
    const int g = c->group;
    for (int i = 0; i < 2 * p->desc.groups[g].n_layers; i++) {
        /* A page of a layer is one run, so all its tokens go along. */
        const int64_t bytes = page_bytes(&p->desc, g, width_of(&p->desc, g, i % 2));
        const VkBufferCopy copy = {.srcOffset = (VkDeviceSize)(p->offset[g][i] + bytes * c->from),
                                   .dstOffset = (VkDeviceSize)(p->offset[g][i] + bytes * c->to),
                                   .size = (VkDeviceSize)bytes};
        VkBuffer buffer = p->blocks[p->block_of[g][i]].buffer;
        d->root.api.CmdCopyBuffer(cmd, buffer, buffer, 1, &copy);
    }
}

static void record_state(Device *d, const KvPool *p, const VkCopy *c, VkCommandBuffer cmd)
{
    const int64_t bytes = p->desc.state_floats * (int64_t)sizeof(float);
    const VkBufferCopy copy = {.srcOffset = (VkDeviceSize)(bytes * c->from),
                               .dstOffset = (VkDeviceSize)(bytes * c->to),
                               .size = (VkDeviceSize)bytes};
    d->root.api.CmdCopyBuffer(cmd, p->state.buffer, p->state.buffer, 1, &copy);
}

void vk_pool_record(Device *d, KvPool *p, VkCommandBuffer cmd)
{
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT};
    for (int i = 0; i < p->n_copies; i++) {
        d->root.api.CmdPipelineBarrier(
            cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1, &barrier, 0, NULL, 0, NULL);
        if (p->copies[i].group >= 0)
            record_page(d, p, &p->copies[i], cmd);
        else
            record_state(d, p, &p->copies[i], cmd);
    }
}

/* When no step comes to take the copies along. */
static void flush(Device *d, KvPool *p)
{
    VkCommandBuffer cmd;
    Error err;
    if (vk_now_begin(d, &cmd, &err)) {
        vk_pool_record(d, p, cmd);
        if (vk_now_end(d, &err)) {
            p->n_copies = 0;
            return;
        }
    }
    d->root.api.lost = true; /* the next wait tells */
}

static void add_copy(Device *d, KvPool *p, VkCopy copy)
{
    if (copy.from == copy.to)
        return;
    if (p->n_copies == VK_COPIES_MAX)
        flush(d, p);
    if (p->n_copies < VK_COPIES_MAX)
        p->copies[p->n_copies++] = copy;
}

void vk_pool_page_copy(Device *d, KvPool *p, int group, int from, int to, int n_tokens)
{
    (void)n_tokens;
    add_copy(d, p, (VkCopy){group, from, to});
}

void vk_pool_state_copy(Device *d, KvPool *p, int from, int to)
{
    if (p->desc.state_floats > 0)
        add_copy(d, p, (VkCopy){-1, from, to});
}
