/* model_load.c: what family files call to turn tensors into weights and vectors (model.h). */
#include "model/model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { NAME_MAX_BYTES = 256 };

PRINTF(3, 0)
static const char *name_v(Model *m, Error *err, const char *fmt, va_list args)
{
    char buf[NAME_MAX_BYTES];
    const int n = vsnprintf(buf, sizeof buf, fmt, args);
    if (n < 0 || n >= NAME_MAX_BYTES) {
        (void)err_set(err, ERR_FORMAT, "%s: a tensor name is longer than %d bytes", m->doc,
                      NAME_MAX_BYTES - 1);
        return NULL;
    }
    return arena_strdup(m->arena, buf, (size_t)n, err);
}

const char *model_name(Model *m, Error *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const char *name = name_v(m, err, fmt, args);
    va_end(args);
    return name;
}

/* Room for n derived floats, entered in the ledger. */
static float *take_floats(Model *m, int64_t n, Error *err)
{
    float *v = ARENA_ARRAY(m->arena, n, float, err);
    if (v)
        m->derived_bytes += n * (int64_t)sizeof *v;
    return v;
}

bool model_vec(Model *m, Vec *out, int n, Error *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const char *name = name_v(m, err, fmt, args);
    va_end(args);
    if (!name)
        return false;
    /* Before the memory is taken: a configuration may ask for any size. */
    const Tensor *t = checkpoint_find(m->ck, name);
    if (!t)
        return err_set(err, ERR_FORMAT, "%s: tensor \"%s\" is missing", checkpoint_path(m->ck),
                       name);
    if (tensor_elements(t) != n)
        return err_set(err, ERR_FORMAT, "%s: tensor \"%s\" has %" PRId64 " elements, wanted %d",
                       checkpoint_path(m->ck), name, tensor_elements(t), n);
    float *v = take_floats(m, n, err);
    if (!v || !checkpoint_vector(m->ck, name, n, v, err))
        return false;
    *out = (Vec){.name = name, .n = n, .v = v};
    return true;
}

/* Lists the weight for `place`. The pointer is kept: `w` lives as long as the model. */
static bool list_weight(Model *m, const Weight *w, Error *err)
{
    if (m->n_weights == m->cap_weights) {
        const int cap = m->cap_weights ? 2 * m->cap_weights : 64;
        const Weight **list = ARENA_ARRAY(m->arena, cap, const Weight *, err);
        if (!list)
            return false;
        for (int i = 0; i < m->n_weights; i++)
            list[i] = m->weights[i];
        m->weights = list;
        m->cap_weights = cap;
    }
    m->weights[m->n_weights++] = w;
    return true;
}

/* Biases of all segments, or of none. */
static bool load_bias(Model *m, Weight *out, const ModelRows *rows, int n_rows, Error *err)
{
    int n_bias = 0;
    const char *missing = NULL;
    for (int i = 0; i < n_rows; i++) {
        const char *name = model_name(m, err, "%s.bias", rows[i].stem);
        if (!name)
            return false;
        if (checkpoint_has(m->ck, name))
            n_bias++;
        else
            missing = name;
    }
    if (n_bias == 0)
        return true;
    if (n_bias < n_rows)
        return err_set(err, ERR_FORMAT, "%s: tensor \"%s\" is missing; %s has a bias elsewhere",
                       checkpoint_path(m->ck), missing, out->name);
    out->bias = take_floats(m, out->n, err);
    if (!out->bias)
        return false;
    int64_t at = 0;
    for (int i = 0; i < n_rows; i++) {
        const char *name = model_name(m, err, "%s.bias", rows[i].stem);
        if (!name || !checkpoint_vector(m->ck, name, rows[i].n, out->bias + at, err))
            return false;
        at += rows[i].n;
    }
    return true;
}

/* Fills what weights and experts have in common; the segments are the caller's. */
static bool begin_weight(Model *m, Weight *out, const char *name, int k, ShardRole role,
                         const ModelRows *rows, int n_rows, int n_experts, Error *err)
{
    if (!name)
        return false; /* model_name failed and said why */
    *out = (Weight){.name = name, .k = k, .n_segs = n_rows, .n_experts = n_experts, .role = role};
    for (int i = 0; i < n_rows; i++) {
        if (!rows[i].stem)
            return false;
        out->n += rows[i].n;
    }
    out->segs = ARENA_ARRAY(m->arena, (int64_t)n_rows * (n_experts ? n_experts : 1), RowView, err);
    return out->segs != NULL;
}

bool model_weight(Model *m, Weight *out, const char *name, int k, ShardRole role,
                  const ModelRows *rows, int n_rows, Error *err)
{
    if (!begin_weight(m, out, name, k, role, rows, n_rows, 0, err))
        return false;
    CheckpointSpace space = {.arena = m->arena};
    for (int i = 0; i < n_rows; i++)
        if (!checkpoint_rows_derived(m->ck, &space, rows[i].stem, rows[i].n, k, &out->segs[i], err))
            return false;
    m->derived_bytes += space.bytes;
    m->derived_weight_bytes += space.bytes;
    return load_bias(m, out, rows, n_rows, err) && list_weight(m, out, err);
}

static bool expect_bias(const Model *m, const Weight *w, bool bias, Error *err)
{
    if (bias == (w->bias != NULL))
        return true;
    return err_set(err, ERR_FORMAT,
                   bias ? "%s: tensor \"%s.bias\" is missing"
                        : "%s: tensor \"%s.bias\" is one too many",
                   checkpoint_path(m->ck), w->name);
}

bool model_matrix(Model *m, Weight *out, int64_t n, int k, bool bias, ShardRole role, Error *err,
                  const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const char *stem = name_v(m, err, fmt, args);
    va_end(args);
    return stem && model_weight(m, out, stem, k, role, &(ModelRows){stem, n}, 1, err) &&
           expect_bias(m, out, bias, err);
}

/* Whether the tensor has these dimensions and numbers that a product reads; *k: all but the first.
 */
static bool check_kernel(const Model *m, const Tensor *t, const int *dims, int n_dims, int64_t *k,
                         Error *err)
{
    bool same = t->n_dims == n_dims;
    *k = 1;
    for (int i = 0; i < n_dims; i++) {
        same = same && t->dims[i] == dims[i];
        *k *= i ? dims[i] : 1;
        if (*k > INT32_MAX)
            return err_set(err, ERR_FORMAT, "%s: a kernel of more than 2^31 numbers", m->doc);
    }
    if (!same)
        return err_set(err, ERR_FORMAT,
                       "%s: tensor \"%s\" has %d dimensions, the first %" PRId64 " and %" PRId64
                       ", wanted %d: %d, %d",
                       checkpoint_path(m->ck), t->name.ptr, t->n_dims, t->dims[0], t->dims[1],
                       n_dims, dims[0], dims[1]);
    const DTypeInfo *d = tensor_dtype(t->dtype);
    if (d->format == FMT_COUNT || d->block != 1)
        return err_set(err, ERR_UNSUPPORTED, "%s: tensor \"%s\" is %s, a kernel is plain numbers",
                       checkpoint_path(m->ck), t->name.ptr, d->name);
    return true;
}

/* A weight of one segment: the kernel's numbers at `data`. */
static bool kernel_weight(Model *m, Weight *out, const char *stem, const uint8_t *data,
                          FormatId format, int64_t n, int k, bool bias, Error *err)
{
    const ModelRows rows = {stem, n};
    if (!begin_weight(m, out, stem, k, SHARD_REPLICATED, &rows, 1, 0, err))
        return false;
    out->segs[0] = (RowView){.data = data,
                             .row_bytes = format_row_bytes(format, k),
                             .n = n,
                             .k = k,
                             .group = 1,
                             .format = format};
    return load_bias(m, out, &rows, 1, err) && expect_bias(m, out, bias, err) &&
           list_weight(m, out, err);
}

static const Tensor *find_kernel(const Model *m, const char *name, Error *err)
{
    const Tensor *t = checkpoint_find(m->ck, name);
    if (!t)
        (void)err_set(err, ERR_FORMAT, "%s: tensor \"%s\" is missing", checkpoint_path(m->ck),
                      name);
    return t;
}

bool model_kernel(Model *m, Weight *out, const int *dims, int n_dims, bool bias, Error *err,
                  const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const char *stem = name_v(m, err, fmt, args);
    va_end(args);
    const char *name = stem ? model_name(m, err, "%s.weight", stem) : NULL;
    int64_t k;
    const Tensor *t = name ? find_kernel(m, name, err) : NULL;
    return t && check_kernel(m, t, dims, n_dims, &k, err) &&
           kernel_weight(m, out, stem, t->data, tensor_dtype(t->dtype)->format, dims[0], (int)k,
                         bias, err);
}

/* A kernel whose frames are tensors of their own, as it becomes one. */
typedef struct Frames {
    const char *stem;
    const int *dims; /* [out][in][frames][rows][cols] */
    DType type;
    uint8_t *data;
} Frames;

/* Frame i of every [out][in] to its place; the first one takes the room. */
static bool copy_frame(Model *m, Frames *f, int i, Error *err)
{
    const int *d = f->dims;
    const int one[] = {d[0], d[1], d[3], d[4]};
    const char *name = i ? model_name(m, err, "%s.weight.%d", f->stem, i)
                         : model_name(m, err, "%s.weight", f->stem);
    int64_t k;
    const Tensor *t = name ? find_kernel(m, name, err) : NULL;
    if (!t || !check_kernel(m, t, one, COUNT_OF(one), &k, err))
        return false;
    if (k > INT32_MAX / d[2])
        return err_set(err, ERR_FORMAT, "%s: a kernel of more than 2^31 numbers", m->doc);
    if (i == 0) {
        const int64_t bytes = (int64_t)t->bytes * d[2];
        f->type = t->dtype;
        f->data = ARENA_ARRAY(m->arena, bytes, uint8_t, err);
        if (!f->data)
            return false;
        m->derived_bytes += bytes;
        m->derived_weight_bytes += bytes;
    }
    if (t->dtype != f->type)
        return err_set(err, ERR_FORMAT, "%s: tensor \"%s\" is %s, the first frame is %s",
                       checkpoint_path(m->ck), name, tensor_dtype(t->dtype)->name,
                       tensor_dtype(f->type)->name);
    const size_t n = (size_t)d[0] * (size_t)d[1];
    const size_t bytes = t->bytes / n;
    for (size_t j = 0; j < n; j++)
        memcpy(f->data + (j * (size_t)d[2] + (size_t)i) * bytes, t->data + j * bytes, bytes);
    return true;
}

bool model_kernel_frames(Model *m, Weight *out, const int *dims, Error *err, const char *stem)
{
    Frames f = {.stem = stem, .dims = dims};
    const char *second = model_name(m, err, "%s.weight.1", stem);
    if (!second)
        return false;
    if (!checkpoint_has(m->ck, second))
        return model_kernel(m, out, dims, 5, false, err, "%s", stem);
    for (int i = 0; i < dims[2]; i++)
        if (!copy_frame(m, &f, i, err))
            return false;
    return kernel_weight(m, out, stem, f.data, tensor_dtype(f.type)->format, dims[0],
                         dims[1] * dims[2] * dims[3] * dims[4], false, err);
}

bool model_experts(Model *m, Weight *out, const char *prefix, int n_experts, int k,
                   const ModelRows *projs, int n_projs, Error *err)
{
    if (!begin_weight(m, out, prefix, k, SHARD_EXPERT, projs, n_projs, n_experts, err))
        return false;
    CheckpointSpace space = {.arena = m->arena};
    for (int i = 0; i < n_projs; i++) {
        const char *stem = model_name(m, err, "%s.%s", prefix, projs[i].stem);
        if (!stem)
            return false;
        for (int e = 0; e < n_experts; e++)
            if (!checkpoint_expert_rows_derived(m->ck, &space, stem, e, n_experts, projs[i].n, k,
                                                &out->segs[(int64_t)e * n_projs + i], err))
                return false;
    }
    m->derived_bytes += space.bytes;
    m->derived_weight_bytes += space.bytes;
    return list_weight(m, out, err);
}

/* Appends rows [from, from + n) of the segments `old` to `to`, or with `to` NULL only counts the
 * pieces: a range may cross segments. */
static int copy_rows(const RowView *old, int n_old, int64_t from, int64_t n, RowView *to)
{
    int pieces = 0;
    int64_t base = 0;
    for (int i = 0; i < n_old; base += old[i++].n) {
        const int64_t lo = i64_max(from, base);
        const int64_t hi = i64_min(from + n, base + old[i].n);
        if (lo >= hi)
            continue;
        if (to)
            to[pieces] = rowview_slice(&old[i], lo - base, hi - lo);
        pieces++;
    }
    return pieces;
}

bool model_reorder(Model *m, Weight *w, const int64_t *from, const int64_t *n, int n_segs,
                   Error *err)
{
    int64_t total = 0;
    int pieces = 0;
    for (int i = 0; i < n_segs; i++) {
        if (from[i] < 0 || n[i] <= 0 || from[i] > w->n - n[i])
            return err_set(err, ERR_FORMAT,
                           "%s: %s has %" PRId64 " rows, wanted %" PRId64 " from row %" PRId64,
                           m->doc, w->name, w->n, n[i], from[i]);
        total += n[i];
        pieces += copy_rows(w->segs, w->n_segs, from[i], n[i], NULL);
    }
    const int n_experts = w->n_experts ? w->n_experts : 1;
    RowView *segs = ARENA_ARRAY(m->arena, (int64_t)pieces * n_experts, RowView, err);
    float *bias = w->bias ? ARENA_ARRAY(m->arena, total, float, err) : NULL;
    if (!segs || (w->bias && !bias))
        return false;
    RowView *to = segs;
    int64_t at = 0;
    for (int e = 0; e < n_experts; e++)
        for (int i = 0; i < n_segs; i++)
            to += copy_rows(w->segs + (int64_t)e * w->n_segs, w->n_segs, from[i], n[i], to);
    for (int i = 0; w->bias && i < n_segs; at += n[i++])
        memcpy(bias + at, w->bias + from[i], (size_t)n[i] * sizeof *bias);
    w->segs = segs;
    w->n_segs = pieces;
    w->n = total;
    w->bias = bias;
    return true;
}
