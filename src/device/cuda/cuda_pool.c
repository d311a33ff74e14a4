#include "base/mem.h"
#include "device/cuda/cuda.h"

/* More than any machine has; sums of a few such sizes still fit 63 bits. */
static const int64_t too_many_bytes = INT64_MAX / 4096;

/* a * b of sizes, at most too_many_bytes: what a hostile configuration asks for must stay too much.
 */
static int64_t size_mul(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_mul_overflow(a, b, &c) || c > too_many_bytes ? too_many_bytes : c;
}

static int64_t element_bytes(KvFormat f)
{
    return f == KV_FORMAT_F32 ? 4 : 2;
}

/* Bytes of one layer of a group: its K pages, then its V pages. */
static int64_t layer_bytes(const KvPoolDesc *d, int g, int64_t *v_offset)
{
    const KvGroup *k = &d->groups[g];
    const int64_t slots = size_mul(size_mul(d->n_pages[g], d->page_tokens[g]), k->n_kv_heads);
    const int64_t row = size_mul(slots, element_bytes(d->format));
    const int64_t kb = i64_round_up(size_mul(row, k->head_dim), CUDA_ALIGN);
    if (v_offset)
        *v_offset = kb;
    return kb + i64_round_up(size_mul(row, k->v_dim), CUDA_ALIGN);
}

int64_t cuda_pool_bytes(const KvPoolDesc *d, int64_t *state_bytes)
{
    int64_t sum = 0;
    for (int g = 0; g < d->n_groups; g++)
        sum += size_mul(layer_bytes(d, g, NULL), d->groups[g].n_layers);
    if (state_bytes)
        *state_bytes = i64_round_up(size_mul(size_mul(d->state_floats, d->n_states), sizeof(float)),
                                    CUDA_ALIGN);
    return sum;
}

int64_t cuda_pool_layer(const KvPoolDesc *d, int group, int layer, int64_t *v)
{
    int64_t offset = 0;
    for (int g = 0; g < group; g++)
        offset += layer_bytes(d, g, NULL) * d->groups[g].n_layers;
    return offset + layer_bytes(d, group, v) * layer;
}

static bool same_geometry(const KvPoolDesc *a, const KvPoolDesc *b)
{
    bool same = a->format == b->format && a->n_groups == b->n_groups &&
                a->state_floats == b->state_floats && a->n_states == b->n_states;
    for (int g = 0; same && g < a->n_groups; g++) {
        const KvGroup *x = &a->groups[g];
        const KvGroup *y = &b->groups[g];
        same = x->n_layers == y->n_layers && x->n_kv_heads == y->n_kv_heads &&
               x->head_dim == y->head_dim && x->v_dim == y->v_dim && x->window == y->window &&
               a->page_tokens[g] == b->page_tokens[g] && a->n_pages[g] == b->n_pages[g] &&
               a->seq_pages[g] == b->seq_pages[g];
    }
    return same;
}

const KvPool *cuda_pool_find(const Device *d, const KvPoolDesc *desc)
{
    const KvPool *p = d->pools;
    while (p && !same_geometry(&p->desc, desc))
        p = p->next;
    return p;
}

/* Cleared: what a step may read past a sequence's end must be a number. */
static bool fill_pool(Device *d, KvPool *pool, Error *err)
{
    const struct {
        const char *what;
        int64_t bytes;
        CudaPtr *out;
    } parts[] = {{"kv cache", pool->kv_bytes, &pool->kv},
                 {"recurrent state", pool->state_bytes, &pool->state}};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (parts[i].bytes > 0 &&
            (!cuda_take(d, parts[i].what, parts[i].bytes, parts[i].out, err) ||
             !cuda_api_fill(*parts[i].out, 0, (size_t)parts[i].bytes, d->stream, err)))
            return false;
    return cuda_drain(d, err);
}

static void free_pool(Device *d, KvPool *pool)
{
    cuda_give(d, pool->kv, pool->kv_bytes);
    cuda_give(d, pool->state, pool->state_bytes);
    mem_free(pool);
}

bool cuda_pool_open(Device *d, const KvPoolDesc *desc, KvPool **out, Error *err)
{
    for (int g = 0; g < desc->n_groups; g++)
        if (desc->page_tokens[g] < 1 || (desc->page_tokens[g] & (desc->page_tokens[g] - 1)) != 0)
            return err_set(err, ERR_USAGE, "kv: pages of %d tokens, wanted a power of two",
                           desc->page_tokens[g]);
    KvPool *pool = mem_zalloc(sizeof *pool);
    if (!pool)
        return err_nomem(err, "kv pool", sizeof *pool);
    pool->desc = *desc;
    pool->kv_bytes = cuda_pool_bytes(desc, &pool->state_bytes);
    Error e;
    const bool ok = cuda_enter(d, &e) && fill_pool(d, pool, &e);
    if (!cuda_leave(d, ok, &e, err)) {
        free_pool(d, pool);
        return false;
    }
    pool->number = ++d->n_pools_opened;
    pool->next = d->pools;
    d->pools = pool;
    *out = pool;
    return true;
}

void cuda_pool_close(Device *d, KvPool *pool)
{
    if (!pool)
        return;
    KvPool **link = &d->pools;
    while (*link && *link != pool)
        link = &(*link)->next;
    if (*link)
        *link = pool->next;
    cuda_quiesce(d); /* steps and copies that were not waited for still use it */
    free_pool(d, pool);
}

/* ---- copies: queued; what fails is told by the next wait ---- */

static void defer(Device *d, bool ok, const Error *e)
{
    if (cuda_leave(d, ok, e, NULL) || d->deferred)
        return;
    d->deferred = true;
    d->deferred_error = *e;
}

/* Whole pages: a part of one would be a run for each head. */
void cuda_pool_page_copy(Device *d, KvPool *pool, int group, int from, int to, int n_tokens)
{
    (void)n_tokens;
    const KvPoolDesc *desc = &pool->desc;
    const KvGroup *g = &desc->groups[group];
    const int64_t slots = (int64_t)desc->page_tokens[group] * g->n_kv_heads;
    const CudaPtr k_bytes = (CudaPtr)(slots * g->head_dim * element_bytes(desc->format));
    const CudaPtr v_bytes = (CudaPtr)(slots * g->v_dim * element_bytes(desc->format));
    Error e;
    bool ok = cuda_enter(d, &e);
    for (int l = 0; ok && l < g->n_layers; l++) {
        int64_t v_offset;
        const CudaPtr k = pool->kv + (CudaPtr)cuda_pool_layer(desc, group, l, &v_offset);
        const CudaPtr v = k + (CudaPtr)v_offset;
        ok = cuda_api_copy(k + k_bytes * (CudaPtr)to, k + k_bytes * (CudaPtr)from, k_bytes,
                           d->stream, &e) &&
             cuda_api_copy(v + v_bytes * (CudaPtr)to, v + v_bytes * (CudaPtr)from, v_bytes,
                           d->stream, &e);
    }
    defer(d, ok, &e);
}

void cuda_pool_state_copy(Device *d, KvPool *pool, int from, int to)
{
    const CudaPtr bytes = (CudaPtr)pool->desc.state_floats * sizeof(float);
    if (bytes == 0 || from == to)
        return;
    Error e;
    const bool ok = cuda_enter(d, &e) &&
                    cuda_api_copy(pool->state + bytes * (CudaPtr)to,
                                  pool->state + bytes * (CudaPtr)from, bytes, d->stream, &e);
    defer(d, ok, &e);
}
