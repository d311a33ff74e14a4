#include "weights/tensor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

static const DTypeInfo dtypes[DT_COUNT] = {
#define DTYPE(id, name, block, bytes, format, gguf, safetensors)                                   \
    [id] = {name, block, bytes, format, gguf, safetensors},
#include "weights/tensor.def"
#undef DTYPE
};

const DTypeInfo *tensor_dtype(DType dtype)
{
    return &dtypes[dtype];
}

DType tensor_dtype_named(Str safetensors_name)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (dtypes[i].safetensors && str_is(safetensors_name, dtypes[i].name))
            return (DType)i;
    return DT_COUNT;
}

DType tensor_dtype_gguf(uint32_t id)
{
    for (int i = 0; i < DT_COUNT; i++)
        if (dtypes[i].gguf >= 0 && (uint32_t)dtypes[i].gguf == id)
            return (DType)i;
    return DT_COUNT;
}

int64_t tensor_elements(const Tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

bool tensor_size(DType dtype, const int64_t *dims, int n_dims, const char *what, uint64_t *bytes,
                 Error *err)
{
    const DTypeInfo *d = &dtypes[dtype];
    for (int i = 0; i < n_dims; i++)
        if (dims[i] < 0)
            return err_set(err, ERR_FORMAT, "%s: dimension %d is %" PRIu64 ", too large", what, i,
                           (uint64_t)dims[i]);
    const int64_t last = n_dims ? dims[n_dims - 1] : 1;
    if (last % d->block)
        return err_set(err, ERR_FORMAT,
                       "%s: rows of %" PRId64 " elements, %s wants a multiple of %d", what, last,
                       d->name, d->block);
    int64_t size = d->block_bytes;
    bool over = __builtin_mul_overflow(size, last / d->block, &size);
    for (int i = 0; i + 1 < n_dims; i++)
        over = __builtin_mul_overflow(size, dims[i], &size) || over;
    /* Elements can overflow where bytes do not: blocks of 256 hold fewer bytes than elements. */
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++)
        over = __builtin_mul_overflow(n, dims[i], &n) || over;
    if (over)
        return err_set(err, ERR_FORMAT, "%s: the product of its dimensions overflows", what);
    *bytes = (uint64_t)size;
    return true;
}

static int by_offset(const void *a, const void *b)
{
    const Tensor *x = *(const Tensor *const *)a;
    const Tensor *y = *(const Tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static bool overlap_error(const Tensor *a, const Tensor *b, const char *doc, Error *err)
{
    return err_set(err, ERR_FORMAT,
                   "%.80s: tensors \"%.*s\" and \"%.*s\" overlap (at byte %" PRIu64 ")", doc,
                   (int)(a->name.len < 50 ? a->name.len : 50), a->name.ptr,
                   (int)(b->name.len < 50 ? b->name.len : 50), b->name.ptr, b->offset);
}

bool tensor_check_overlap(const Tensor *t, int64_t n, const Tensor **scratch, const char *doc,
                          Error *err)
{
    bool in_order = true;
    for (int64_t i = 1; i < n && in_order; i++)
        in_order = t[i].offset >= t[i - 1].offset + t[i - 1].bytes;
    if (in_order)
        return true;
    for (int64_t i = 0; i < n; i++)
        scratch[i] = &t[i];
    qsort(scratch, (size_t)n, sizeof(const Tensor *), by_offset);
    for (int64_t i = 1; i < n; i++)
        if (scratch[i]->offset < scratch[i - 1]->offset + scratch[i - 1]->bytes)
            return overlap_error(scratch[i - 1], scratch[i], doc, err);
    return true;
}

bool tensor_map_init(TensorMap *m, Arena *a, const Tensor *tensors, int64_t n, Error *err)
{
    uint32_t cap = 16;
    while (cap < (uint64_t)n * 2 && cap < 1U << 30)
        cap *= 2;
    if ((uint64_t)n >= cap)
        return err_set(err, ERR_FORMAT, "%" PRId64 " tensors, at most %" PRIu32, n, cap / 2);
    *m = (TensorMap){.tensors = tensors, .mask = cap - 1};
    m->slots = ARENA_ARRAY(a, cap, uint32_t, err);
    return m->slots != NULL;
}

/* The slot that holds `name`, or the free one where it belongs. */
static uint32_t *slot_of(const TensorMap *m, Str name)
{
    uint32_t at = (uint32_t)XXH3_64bits(name.ptr, name.len) & m->mask;
    while (m->slots[at] && !str_eq(m->tensors[m->slots[at] - 1].name, name))
        at = (at + 1) & m->mask;
    return &m->slots[at];
}

int64_t tensor_map_put(TensorMap *m, int64_t i)
{
    uint32_t *slot = slot_of(m, m->tensors[i].name);
    if (*slot)
        return (int64_t)*slot - 1;
    *slot = (uint32_t)i + 1;
    return i;
}

const Tensor *tensor_map_find(const TensorMap *m, Str name)
{
    const uint32_t slot = *slot_of(m, name);
    return slot ? &m->tensors[slot - 1] : NULL;
}
