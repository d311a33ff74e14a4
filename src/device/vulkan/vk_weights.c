#include "device/vulkan/vk.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>
#include <sys/mman.h>

enum { STAGING_BYTES = 32 << 20, ALIGN = 256, MAP_PAGE = 4096 };

int64_t vk_weights_part_max(const VkFacts *f)
{
    return i64_min(f->max_bytes / 2, VK_BLOCK_BYTES); /* a part has scales beside its codes */
}

Placement vk_weights_place(const Device *d, const Weight *w, int64_t *bytes)
{
    GpuWeight g;
    *bytes = 0;
    if (gpu_weight_plan(NULL, w, vk_weights_part_max(&d->facts), &g, NULL)) {
        *bytes = g.bytes;
        return g.repacked ? PLACE_REPACK : PLACE_READ;
    }
    return PLACE_READ; /* `supports` says what is wrong with it */
}

/* Bytes of a part with all its experts: codes, then scales. */
static int64_t part_bytes(const GpuWeight *g, const GpuPart *p)
{
    return i64_round_up(p->code_bytes * g->n_experts, ALIGN) +
           i64_round_up(p->scale_bytes * g->n_experts, ALIGN);
}

/* ---- what is the same is loaded once ---- */

static bool same_data(const Weight *a, const Weight *b)
{
    if (a->n != b->n || a->k != b->k || a->n_segs != b->n_segs || a->n_experts != b->n_experts)
        return false;
    const int n = a->n_segs * (a->n_experts ? a->n_experts : 1);
    for (int i = 0; i < n; i++)
        if (a->segs[i].data != b->segs[i].data || a->segs[i].scales != b->segs[i].scales ||
            a->segs[i].format != b->segs[i].format || a->segs[i].n != b->segs[i].n)
            return false;
    return true;
}

static VkWeightPlace *find_twin(DeviceWeights *w, int before)
{
    for (int i = 0; i < before; i++)
        if (same_data(w->places[i].weight, w->places[before].weight))
            return &w->places[i];
    return NULL;
}

/* ---- blocks ---- */

/* Where parts go: the block that is being filled, its bytes so far. */
typedef struct Fill {
    int64_t *sizes; /* [n_blocks] */
    int n_blocks, cap;
    int64_t most; /* of a block */
} Fill;

static bool fill_add(Arena *a, Fill *f, int64_t bytes, int *block, int64_t *offset, Error *err)
{
    if (f->n_blocks == 0 || f->sizes[f->n_blocks - 1] + bytes > f->most) {
        if (f->n_blocks == f->cap) {
            const int cap = f->cap ? 2 * f->cap : 64;
            int64_t *sizes = ARENA_ARRAY(a, cap, int64_t, err);
            if (!sizes)
                return false;
            if (f->n_blocks)
                memcpy(sizes, f->sizes, (size_t)f->n_blocks * sizeof *sizes);
            f->sizes = sizes;
            f->cap = cap;
        }
        f->sizes[f->n_blocks++] = 0;
    }
    *block = f->n_blocks - 1;
    *offset = f->sizes[*block];
    f->sizes[*block] += bytes;
    return true;
}

/* Where one part lies: until the blocks are there, parts[].codes holds the offset. */
static bool plan_places(DeviceWeights *w, const VkFacts *facts, Fill *fill, int **block_of,
                        Error *err)
{
    for (int i = 0; i < w->n; i++) {
        VkWeightPlace *p = &w->places[i];
        const VkWeightPlace *twin = find_twin(w, i);
        if (twin) {
            p->gpu = twin->gpu;
            p->parts = twin->parts;
            continue;
        }
        if (!gpu_weight_plan(&w->arena, p->weight, vk_weights_part_max(facts), &p->gpu, err))
            return false;
        p->parts = ARENA_ARRAY(&w->arena, p->gpu.n_parts, VkPart, err);
        block_of[i] = ARENA_ARRAY(&w->arena, p->gpu.n_parts, int, err);
        if (!p->parts || !block_of[i])
            return false;
        for (int j = 0; j < p->gpu.n_parts; j++) {
            const GpuPart *part = &p->gpu.parts[j];
            int64_t offset;
            if (!fill_add(&w->arena, fill, part_bytes(&p->gpu, part), &block_of[i][j], &offset,
                          err))
                return false;
            p->parts[j] = (VkPart){.part = part, .codes = (VkPtr)offset};
        }
    }
    return true;
}

/* ---- packing ---- */

typedef struct Load {
    VkUpload up;
    const LoadProgress *progress;
    uint64_t done, total;
    uint64_t told_ns;
} Load;

static bool tell(Load *l, Error *err)
{
    if (!l->progress)
        return true;
    if (l->progress->cancel && *l->progress->cancel)
        return err_set(err, ERR_CANCELLED, "loading was cancelled");
    const uint64_t now = clock_ns();
    if (l->progress->fn && (now - l->told_ns > 200ULL * 1000 * 1000 || l->done == l->total)) {
        l->progress->fn(l->progress->ctx, l->done, l->total);
        l->told_ns = now;
    }
    return true;
}

static bool load_part(Load *l, const GpuWeight *g, int part, const VkBlock *block, int64_t offset,
                      Error *err)
{
    const GpuPart *p = &g->parts[part];
    const int64_t scales = offset + i64_round_up(p->code_bytes * g->n_experts, ALIGN);
    const int64_t row = p->code_stride + p->scale_stride;
    const int64_t step = i64_max(1, (STAGING_BYTES - 64) / row);
    for (int e = 0; e < g->n_experts; e++)
        for (int64_t r = 0; r < p->rows; r += step) {
            const int64_t n = i64_min(step, p->rows - r);
            VkUploadPiece pieces[VK_UPLOAD_PIECES] = {
                {block, offset + e * p->code_bytes + r * p->code_stride, n * p->code_stride, NULL},
                {block, scales + e * p->scale_bytes + r * p->scale_stride, n * p->scale_stride,
                 NULL}};
            if (!vk_upload_begin(&l->up, pieces, 2, err))
                return false;
            gpu_weight_pack(g, part, e, r, n, pieces[0].at, pieces[1].at);
            if (!vk_upload_end(&l->up, pieces, 2, err))
                return false;
            l->done += (uint64_t)(n * row);
            if (!tell(l, err))
                return false;
        }
    return true;
}

/* Mapped pages of a view: read ahead in large pieces, or given back when the device's memory is
 * the host's and the file's pages would be a second copy. Advice only. */
static void advise(const uint8_t *data, int64_t bytes, int advice)
{
    const uintptr_t from = (uintptr_t)data / MAP_PAGE * MAP_PAGE;
    const uintptr_t to = (uintptr_t)data + (uintptr_t)bytes;
    if (data && bytes >= MAP_PAGE)
        (void)madvise((void *)from, to - from, advice);
}

static void advise_weight(const Weight *w, int advice)
{
    const int n = w->n_segs * (w->n_experts ? w->n_experts : 1);
    for (int i = 0; i < n; i++) {
        const RowView *v = &w->segs[i];
        advise(v->data, v->row_bytes * v->n, advice);
        if (v->scales)
            advise(v->scales, v->scale_row_bytes * v->n, advice);
    }
}

static bool load_all(Device *d, DeviceWeights *w, int *const *block_of, Load *l, Error *err)
{
    for (int i = 0; i < w->n; i++) {
        VkWeightPlace *p = &w->places[i];
        if (!block_of[i]) /* a twin */
            continue;
        advise_weight(p->weight, MADV_WILLNEED);
        for (int j = 0; j < p->gpu.n_parts; j++) {
            const VkBlock *block = &w->blocks[block_of[i][j]];
            const int64_t offset = (int64_t)p->parts[j].codes;
            if (!load_part(l, &p->gpu, j, block, offset, err))
                return err_wrap(err, "%s", p->weight->name);
            p->parts[j].codes = block->at + (VkPtr)offset;
            p->parts[j].scales =
                p->parts[j].codes +
                (VkPtr)i64_round_up(p->gpu.parts[j].code_bytes * p->gpu.n_experts, ALIGN);
        }
#ifdef MADV_PAGEOUT
        if (d->facts.shared && !d->facts.info.software)
            advise_weight(p->weight, MADV_PAGEOUT);
#endif
    }
    return true;
}

static bool open_blocks(Device *d, DeviceWeights *w, const Fill *fill, Error *err)
{
    w->blocks = ARENA_ARRAY(&w->arena, fill->n_blocks + 1, VkBlock, err);
    if (!w->blocks)
        return false;
    for (int i = 0; i < fill->n_blocks; i++) {
        if (!vk_block_open(d, VK_USE_DEVICE, fill->sizes[i], "weights", &w->blocks[i], err))
            return false;
        w->n_blocks++;
    }
    return true;
}

static bool open_all(Device *d, DeviceWeights *w, const LoadProgress *progress, Error *err)
{
    Fill fill = {.most = vk_block_most(&d->facts)};
    int **block_of = ARENA_ARRAY(&w->arena, w->n + 1, int *, err);
    if (!block_of || !plan_places(w, &d->facts, &fill, block_of, err) ||
        !open_blocks(d, w, &fill, err))
        return false;
    Load l = {.progress = progress};
    for (int i = 0; i < w->n; i++)
        for (int j = 0; block_of[i] && j < w->places[i].gpu.n_parts; j++) {
            const GpuPart *p = &w->places[i].gpu.parts[j];
            l.total += (uint64_t)((p->code_bytes + p->scale_bytes) * w->places[i].gpu.n_experts);
        }
    if (!vk_upload_open(d, STAGING_BYTES, &l.up, err))
        return false;
    const bool ok = load_all(d, w, block_of, &l, err);
    return vk_upload_close(&l.up, ok ? err : NULL) && ok;
}

bool vk_weights_open(Device *d, const Weight *const *weights, int n, const LoadProgress *progress,
                     DeviceWeights **out, Error *err)
{
    DeviceWeights *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_nomem(err, "device weights", sizeof *w);
    arena_init(&w->arena, "vulkan weights");
    w->places = ARENA_ARRAY(&w->arena, n + 1, VkWeightPlace, err);
    bool ok = w->places != NULL;
    for (int i = 0; ok && i < n; i++)
        w->places[w->n++].weight = weights[i];
    ok = ok && open_all(d, w, progress, err);
    if (!ok) {
        vk_weights_close(d, w);
        return false;
    }
    *out = w;
    return true;
}

void vk_weights_close(Device *d, DeviceWeights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_blocks; i++)
        vk_block_close(d, &w->blocks[i]);
    arena_free(&w->arena);
    mem_free(w);
}

const VkWeightPlace *vk_weights_find(const DeviceWeights *w, const Weight *weight)
{
    for (int i = 0; i < w->n; i++)
        if (w->places[i].weight == weight)
            return &w->places[i];
    return NULL;
}
