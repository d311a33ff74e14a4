#include "device/cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <limits.h>
#include <string.h>

/* ---- errors and launches ---- */

void cuda_build_fail(CudaBuild *b, ErrCode code, const char *fmt, ...)
{
    if (b->failed)
        return;
    b->failed = true;
    char msg[sizeof b->error.msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    (void)err_set(&b->error, code, "%s", msg);
}

static void fail_with(CudaBuild *b, const Error *e)
{
    if (b->failed)
        return;
    b->failed = true;
    b->error = *e;
}

static bool grow_records(CudaBuild *b, Error *err)
{
    if (b->n_records < b->cap_records)
        return true;
    const int cap = b->cap_records ? 2 * b->cap_records : 256;
    CudaRecord *records = ARENA_ARRAY(b->arena, cap, CudaRecord, err);
    if (!records)
        return false;
    if (b->n_records > 0)
        memcpy(records, b->records, (size_t)b->n_records * sizeof *records);
    b->records = records;
    b->cap_records = cap;
    return true;
}

static void record(CudaBuild *b, const CudaLaunch *l)
{
    Error e;
    if (!grow_records(b, &e)) {
        fail_with(b, &e);
        return;
    }
    CudaRecord *r = &b->records[b->n_records];
    r->launch = *l;
    void *params = arena_take(b->arena, l->params_bytes, 1, &e);
    r->launch.kernel = arena_strdup(b->arena, l->kernel, strlen(l->kernel), &e);
    if (!params || !r->launch.kernel || !cuda_function(b->dev, l->kernel, l->smem, &r->f, &e)) {
        fail_with(b, &e);
        return;
    }
    memcpy(params, l->params, l->params_bytes);
    r->launch.params = params;
    b->n_records++;
}

void cuda_launch(CudaBuild *b, const CudaLaunch *l)
{
    if (b->failed)
        return;
    if (l->block < 1 || l->block > 1024 || l->smem > b->dev->smem_max ||
        (l->cluster > 0 && l->grid[0] % l->cluster != 0)) {
        cuda_build_fail(b, ERR_UNSUPPORTED,
                        "cuda: %s: %d threads, %d bytes of shared memory (at most %d), grid of %d, "
                        "clusters of %d",
                        l->kernel, l->block, l->smem, b->dev->smem_max, l->grid[0], l->cluster);
        return;
    }
    if (b->program)
        record(b, l);
    else
        b->n_records++;
}

/* ---- facts ---- */

int cuda_sms(const CudaBuild *b)
{
    return b->dev->sms;
}

int cuda_arch(const CudaBuild *b)
{
    return b->dev->arch;
}

int cuda_smem_max(const CudaBuild *b)
{
    return b->dev->smem_max;
}

bool cuda_exact(const CudaBuild *b)
{
    return b->dev->numerics == NUM_EXACT;
}

bool cuda_deterministic(const CudaBuild *b)
{
    return b->dev->deterministic;
}

KvFormat cuda_kv_format(const CudaBuild *b)
{
    return b->desc->format;
}

const GpuPlan *cuda_plan(const CudaBuild *b)
{
    return b->plan;
}

int cuda_kv_max(const CudaBuild *b)
{
    return b->kv_max;
}

int cuda_bucket_rows(const CudaBuild *b)
{
    return b->rows;
}

int cuda_max_out(const CudaBuild *b)
{
    return b->max_out;
}

int cuda_op_rows(const CudaBuild *b, const GpuOp *op)
{
    return op->axis == AXIS_ROWS ? b->rows : b->max_out;
}

/* ---- addresses ---- */

/* Of a place in the program's memory; 0 when measuring. */
static CudaPtr at(const CudaBuild *b, int64_t offset)
{
    return b->program ? b->program->memory + (CudaPtr)offset : 0;
}

static CudaPtr host_at(const CudaBuild *b, int64_t offset)
{
    return b->program ? b->program->host_address + (CudaPtr)offset : 0;
}

CudaPtr cuda_value(const CudaBuild *b, int value)
{
    if (value < 0 || !b->program)
        return 0;
    const GpuValue *v = &b->plan->values[value];
    if (v->is_logits)
        return at(b, b->program->spans.logits);
    return v->offset < 0 ? 0 : at(b, b->program->spans.scratch + v->offset);
}

int cuda_value_ld(const CudaBuild *b, int value)
{
    return b->plan->values[value].ld;
}

int cuda_value_width(const CudaBuild *b, int value)
{
    return b->plan->values[value].width;
}

/* Vectors, then biases, each rounded up: the order of lowering. */
static int64_t vec_bytes(int64_t n)
{
    return i64_round_up(n * (int64_t)sizeof(float), CUDA_ALIGN);
}

CudaPtr cuda_vec(const CudaBuild *b, const Vec *v)
{
    if (!v || !b->program)
        return 0;
    int64_t offset = b->program->spans.vecs;
    for (int i = 0; i < b->plan->n_vecs; i++) {
        if (b->plan->vecs[i] == v)
            return at(b, offset);
        offset += vec_bytes(b->plan->vecs[i]->n);
    }
    return 0;
}

CudaPtr cuda_bias(const CudaBuild *b, const Weight *w)
{
    if (!w || !w->bias || !b->program)
        return 0;
    int64_t offset = b->program->spans.vecs;
    for (int i = 0; i < b->plan->n_vecs; i++)
        offset += vec_bytes(b->plan->vecs[i]->n);
    for (int i = 0; i < b->plan->n_weights; i++) {
        const Weight *o = b->plan->weights[i];
        if (o == w)
            return at(b, offset);
        if (o->bias)
            offset += vec_bytes(cuda_bias_floats(o));
    }
    return 0;
}

static const CudaWeight *find_weight(const CudaBuild *b, const Weight *w)
{
    for (int i = 0; i < b->n_weights; i++)
        if (b->weights[i].weight == w)
            return &b->weights[i];
    return NULL;
}

const GpuWeight *cuda_weight(CudaBuild *b, const Weight *w)
{
    static const GpuWeight none;
    const CudaWeight *found = find_weight(b, w);
    if (found)
        return &found->plan;
    cuda_build_fail(b, ERR_DEVICE, "cuda: weight %s was not loaded", w->name);
    return &none;
}

CudaPart cuda_weight_part(const CudaBuild *b, const GpuWeight *w, int part)
{
    const GpuPart *p = &w->parts[part];
    const CudaWeight *found = find_weight(b, w->weight);
    if (!found || !b->program)
        return (CudaPart){.part = p};
    return (CudaPart){.part = p,
                      .codes = found->base + (CudaPtr)p->code_offset,
                      .scales =
                          p->scale == GPU_SCALE_NONE ? 0 : found->base + (CudaPtr)p->scale_offset};
}

CudaPtr cuda_rope_table(const CudaBuild *b, int table)
{
    return b->program ? at(b, b->program->spans.rope[table]) : 0;
}

CudaPtr cuda_inv_freq(const CudaBuild *b, int table)
{
    return b->program ? at(b, b->program->spans.inv_freq[table]) : 0;
}

CudaPtr cuda_step(const CudaBuild *b)
{
    return b->program ? at(b, b->program->spans.step) : 0;
}

const GpuStepLayout *cuda_step_layout(const CudaBuild *b)
{
    return b->layout;
}

CudaKv cuda_kv(const CudaBuild *b, int group, int layer)
{
    int64_t v;
    const int64_t offset = cuda_pool_layer(b->desc, group, layer, &v);
    const CudaPtr k = b->program ? b->program->pool->kv + (CudaPtr)offset : 0;
    return (CudaKv){.k = k,
                    .v = b->program ? k + (CudaPtr)v : 0,
                    .page_tokens = b->desc->page_tokens[group],
                    .group = group};
}

CudaPtr cuda_state(const CudaBuild *b)
{
    return b->program ? b->program->pool->state : 0;
}

int64_t cuda_state_floats(const CudaBuild *b)
{
    return b->desc->state_floats;
}

CudaPtr cuda_step_count(const CudaBuild *b)
{
    return b->program ? at(b, b->program->spans.count) : 0;
}

CudaPtr cuda_step_host(const CudaBuild *b)
{
    return b->program ? host_at(b, b->program->spans.host_step) : 0;
}

CudaPtr cuda_logits(const CudaBuild *b)
{
    return b->program ? at(b, b->program->spans.logits) : 0;
}

CudaPtr cuda_sampled(const CudaBuild *b)
{
    return b->program ? at(b, b->program->spans.sampled) : 0;
}

CudaPtr cuda_results_host(const CudaBuild *b)
{
    return b->program ? host_at(b, b->program->spans.host_results) : 0;
}

CudaPtr cuda_done_host(const CudaBuild *b)
{
    return b->program ? host_at(b, b->program->spans.host_done) : 0;
}

/* ---- memory of one operation ---- */

/* Operations run one after another, so all use the same work memory and counters. */
CudaPtr cuda_work(CudaBuild *b, int64_t bytes)
{
    const int64_t offset = b->work_at;
    b->work_at += i64_round_up(i64_max(bytes, 1), CUDA_ALIGN);
    b->need.work_bytes = i64_max(b->need.work_bytes, b->work_at);
    return b->program ? at(b, b->program->spans.work + offset) : 0;
}

CudaPtr cuda_counters(CudaBuild *b, int n)
{
    const int offset = b->counters_at;
    b->counters_at += n;
    if (b->counters_at > b->need.n_counters)
        b->need.n_counters = b->counters_at;
    return b->program
               ? at(b, b->program->spans.counters + (int64_t)offset * (int64_t)sizeof(uint32_t))
               : 0;
}

/* The last operation from here on that reads the value as its first input. */
static int last_use(const CudaBuild *b, int value)
{
    int last = b->op_index;
    for (int i = b->op_index; i < b->plan->n_ops; i++)
        if (b->plan->ops[i].in[0] == value)
            last = i;
    return last;
}

/* Lowest free offset among the live forms. */
static int64_t packed_fit(const CudaBuild *b, int64_t bytes)
{
    int64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < b->n_packed; i++) {
            const CudaPacked *p = &b->packed[i];
            if (offset >= p->offset + p->bytes || p->offset >= offset + bytes)
                continue;
            offset = p->offset + p->bytes;
            moved = true;
        }
    }
    return offset;
}

CudaPtr cuda_packed(CudaBuild *b, int value, const Vec *norm, int form, int64_t bytes, bool *fresh)
{
    for (int i = 0; i < b->n_packed; i++) {
        const CudaPacked *p = &b->packed[i];
        if (p->value != value || p->norm != norm || p->form != form)
            continue;
        *fresh = false;
        if (p->bytes < bytes)
            cuda_build_fail(b, ERR_FAILED, "cuda: form %d of value %d: %lld bytes, then %lld", form,
                            value, (long long)p->bytes, (long long)bytes);
        return b->program ? at(b, b->program->spans.packed + p->offset) : 0;
    }
    *fresh = true;
    if (b->n_packed == CUDA_PACKED_MAX) {
        cuda_build_fail(b, ERR_FAILED, "cuda: more than %d packed values at once", CUDA_PACKED_MAX);
        return 0;
    }
    const int64_t size = i64_round_up(i64_max(bytes, 1), CUDA_ALIGN);
    const int64_t offset = packed_fit(b, size);
    b->packed[b->n_packed++] = (CudaPacked){.value = value,
                                            .form = form,
                                            .norm = norm,
                                            .offset = offset,
                                            .bytes = size,
                                            .last_use = last_use(b, value)};
    b->need.packed_bytes = i64_max(b->need.packed_bytes, offset + size);
    return b->program ? at(b, b->program->spans.packed + offset) : 0;
}

/* ---- the walk ---- */

static void next_op(CudaBuild *b, int index)
{
    b->op_index = index;
    b->work_at = 0;
    b->counters_at = 0;
    int n = 0;
    for (int i = 0; i < b->n_packed; i++)
        if (b->packed[i].last_use >= index)
            b->packed[n++] = b->packed[i];
    b->n_packed = n;
}

int cuda_buckets(int max_rows, CudaBucket out[CUDA_BUCKETS_MAX])
{
    static const int lengths[] = {CUDA_KV_SHORT, CUDA_KV_MIDDLE, INT_MAX};
    int rows[GPU_BUCKETS_MAX];
    const int n_rows = gpu_buckets(max_rows, rows);
    int n = 0;
    for (int i = 0; i < n_rows; i++)
        for (size_t k = rows[i] <= CUDA_KV_ROWS ? 0 : COUNT_OF(lengths) - 1; k < COUNT_OF(lengths);
             k++)
            out[n++] = (CudaBucket){.rows = rows[i], .kv_max = lengths[k]};
    return n;
}

bool cuda_build_walk(CudaBuild *b, int rows, int kv_max, Error *err)
{
    b->rows = rows;
    b->kv_max = kv_max;
    b->max_out = (int)i64_min(rows, b->plan->graph->max_out_rows);
    b->n_packed = 0;
    b->n_records = 0;
    next_op(b, 0);
    cuda_emit_begin(b);
    for (int i = 0; i < b->plan->n_ops && !b->failed; i++) {
        next_op(b, i);
        cuda_emit_op(b, &b->plan->ops[i]);
        if (b->failed)
            (void)err_wrap(&b->error, "%s", b->plan->ops[i].name ? b->plan->ops[i].name : "?");
    }
    next_op(b, b->plan->n_ops);
    if (!b->failed)
        cuda_emit_sample(b);
    if (b->failed && err)
        *err = b->error;
    return !b->failed;
}
