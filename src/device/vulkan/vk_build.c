#include "device/vulkan/vk.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ALIGN = 256, GROUPS_YZ_MAX = 65535 };

void vk_build_fail(VkBuild *b, ErrCode code, const char *fmt, ...)
{
    if (b->failed)
        return;
    char what[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    b->failed = true;
    if (b->op >= 0 && b->op < b->plan->n_ops)
        err_set(&b->err, code, "%s: %s", b->plan->ops[b->op].name, what);
    else
        err_set(&b->err, code, "%s", what);
}

static void fail_as(VkBuild *b, const Error *err)
{
    if (!b->failed) {
        b->failed = true;
        b->err = *err;
    }
}

/* ---- facts ---- */

int vk_subgroup(const VkBuild *b)
{
    return b->facts->facts.subgroup;
}

int vk_shared_max(const VkBuild *b)
{
    return b->facts->facts.shared_max;
}

int vk_local_max(const VkBuild *b)
{
    return b->facts->facts.local_max;
}

int vk_units(const VkBuild *b)
{
    return b->facts->facts.units;
}

bool vk_has_int_dot(const VkBuild *b)
{
    return b->facts->facts.int_dot;
}

bool vk_has_mixed_dot(const VkBuild *b)
{
    return b->facts->facts.mixed_dot;
}

bool vk_exact(const VkBuild *b)
{
    return b->facts->numerics == NUM_EXACT;
}

bool vk_deterministic(const VkBuild *b)
{
    return b->facts->deterministic;
}

KvFormat vk_kv_format(const VkBuild *b)
{
    return b->kv->format;
}

const GpuPlan *vk_plan(const VkBuild *b)
{
    return b->plan;
}

int vk_bucket_rows(const VkBuild *b)
{
    return b->rows;
}

int vk_max_out(const VkBuild *b)
{
    return (int)i64_min(b->layout->step.max_out, b->rows);
}

int vk_op_rows(const VkBuild *b, const GpuOp *op)
{
    return op->axis == AXIS_ROWS ? b->rows : vk_max_out(b);
}

const GpuStepLayout *vk_step_layout(const VkBuild *b)
{
    return &b->layout->step;
}

/* ---- addresses ---- */

static VkPtr runtime(const VkBuild *b, int64_t offset)
{
    return b->program ? b->program->runtime.at + (VkPtr)offset : 0;
}

VkPtr vk_value(const VkBuild *b, int value)
{
    if (value < 0 || !b->program)
        return 0;
    const GpuValue *v = &b->plan->values[value];
    if (v->is_logits)
        return vk_logits(b);
    return v->offset < 0 ? 0 : b->program->scratch.at + (VkPtr)v->offset;
}

int vk_value_ld(const VkBuild *b, int value)
{
    return value < 0 ? 0 : b->plan->values[value].ld;
}

int vk_value_width(const VkBuild *b, int value)
{
    return value < 0 ? 0 : b->plan->values[value].width;
}

VkPtr vk_vec(const VkBuild *b, const Vec *v)
{
    for (int i = 0; v && i < b->plan->n_vecs; i++)
        if (b->plan->vecs[i] == v)
            return runtime(b, b->layout->vecs ? b->layout->vecs[i] : 0);
    return 0;
}

VkPtr vk_bias(const VkBuild *b, const Weight *w)
{
    for (int i = 0; w->bias && i < b->plan->n_weights; i++)
        if (b->plan->weights[i] == w)
            return runtime(b, b->layout->biases ? b->layout->biases[i] : 0);
    return 0;
}

const GpuWeight *vk_weight(VkBuild *b, const Weight *w)
{
    if (b->program) {
        const VkWeightPlace *p = vk_weights_find(b->program->weights, w);
        if (p)
            return &p->gpu;
    }
    for (int i = 0; !b->program && i < b->plan->n_weights; i++) {
        if (b->plan->weights[i] != w)
            continue;
        Error err;
        if (!b->gpu[i]) {
            GpuWeight *g = ARENA_NEW(b->arena, GpuWeight, &err);
            if (!g || !gpu_weight_plan(b->arena, w, vk_weights_part_max(&b->facts->facts), g, &err))
                fail_as(b, &err);
            else
                b->gpu[i] = g;
        }
        if (b->gpu[i])
            return b->gpu[i];
    }
    static const GpuWeight none = {0};
    vk_build_fail(b, ERR_DEVICE, "weight %s was not loaded", w->name);
    return &none;
}

VkPart vk_weight_part(const VkBuild *b, const GpuWeight *w, int part)
{
    const VkWeightPlace *p = b->program ? vk_weights_find(b->program->weights, w->weight) : NULL;
    return p ? p->parts[part] : (VkPart){.part = &w->parts[part]};
}

VkPtr vk_rope_table(const VkBuild *b, int table)
{
    return runtime(b, b->layout->rope[table]);
}

VkPtr vk_rope_turns(const VkBuild *b, int table)
{
    return runtime(b, b->layout->turns[table]);
}

VkPtr vk_step(const VkBuild *b)
{
    return runtime(b, b->layout->step_words);
}

VkKv vk_kv(const VkBuild *b, int group, int layer)
{
    return b->pool ? vk_pool_layer(b->pool, group, layer)
                   : (VkKv){.page_tokens = b->kv->page_tokens[group], .group = group};
}

VkPtr vk_state(const VkBuild *b)
{
    return b->pool ? b->pool->state.at : 0;
}

int64_t vk_state_floats(const VkBuild *b)
{
    return b->kv->state_floats;
}

VkPtr vk_step_count(const VkBuild *b)
{
    return runtime(b, b->layout->step_count);
}

VkPtr vk_step_host(const VkBuild *b)
{
    return b->program ? b->program->upload.at : 0;
}

VkPtr vk_logits(const VkBuild *b)
{
    return runtime(b, b->layout->logits);
}

VkPtr vk_sampled(const VkBuild *b)
{
    return runtime(b, b->layout->sampled);
}

VkPtr vk_results_host(const VkBuild *b)
{
    return b->program ? b->program->readback.at : 0;
}

/* ---- memory of operations ---- */

VkPtr vk_work(VkBuild *b, int64_t bytes)
{
    const int64_t at = b->work;
    b->work += i64_round_up(i64_max(bytes, 1), ALIGN);
    b->work_most = i64_max(b->work_most, b->work);
    b->uses_work = true;
    return runtime(b, b->layout->work + at);
}

VkPtr vk_counters(VkBuild *b, int n)
{
    const int64_t at = b->n_counters;
    b->n_counters += n;
    return runtime(b, b->layout->counters + at * (int64_t)sizeof(uint32_t));
}

static int last_reader(const VkBuild *b, int value)
{
    int last = b->op;
    for (int i = b->op; i < b->plan->n_ops; i++)
        for (int j = 0; j < 3; j++)
            if (b->plan->ops[i].in[j] == value)
                last = i;
    return last;
}

/* Forgets forms of values that nobody reads any more. */
static void drop_packed(VkBuild *b)
{
    int n = 0;
    for (int i = 0; i < b->n_packed; i++)
        if (b->packed[i].last_op >= b->op)
            b->packed[n++] = b->packed[i];
    b->n_packed = n;
}

/* Lowest offset that none of the kept forms holds. */
static int64_t free_packed(const VkBuild *b, int64_t bytes)
{
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < b->n_packed; i++) {
            const VkPacked *o = &b->packed[i];
            if (at < o->offset + o->bytes && o->offset < at + bytes) {
                at = o->offset + o->bytes;
                moved = true;
            }
        }
    }
    return at;
}

VkPtr vk_packed(VkBuild *b, int value, const Vec *norm, int form, int64_t bytes, bool *fresh)
{
    *fresh = true;
    for (int i = 0; i < b->n_packed; i++) {
        const VkPacked *o = &b->packed[i];
        if (o->value == value && o->norm == norm && o->form == form && o->bytes >= bytes) {
            *fresh = false;
            return runtime(b, b->layout->packed + o->offset);
        }
    }
    drop_packed(b);
    if (b->n_packed == VK_PACKED_MAX) {
        vk_build_fail(b, ERR_UNSUPPORTED, "more than %d packed values at a time", VK_PACKED_MAX);
        return 0;
    }
    const VkPacked p = {.value = value,
                        .form = form,
                        .norm = norm,
                        .bytes = i64_round_up(i64_max(bytes, 1), ALIGN),
                        .last_op = last_reader(b, value)};
    VkPacked *o = &b->packed[b->n_packed];
    *o = p;
    o->offset = free_packed(b, p.bytes);
    b->n_packed++;
    b->packed_most = i64_max(b->packed_most, o->offset + o->bytes);
    b->uses_work = true; /* what an earlier operation still reads may have lain there */
    return runtime(b, b->layout->packed + o->offset);
}

/* ---- barriers ---- */

typedef struct Range {
    int64_t from, to;
} Range;

/* Bytes of scratch that a value's rows span. */
static Range range_of(const VkBuild *b, int value)
{
    if (value < 0)
        return (Range){0, 0};
    const GpuValue *v = &b->plan->values[value];
    const int64_t rows = v->axis == AXIS_ROWS ? b->rows : vk_max_out(b);
    if (v->offset < 0 || v->is_logits)
        return (Range){0, 0};
    return (Range){v->offset, v->offset + rows * v->ld * (int64_t)sizeof(float)};
}

static bool meet(Range a, Range b)
{
    return a.from < b.to && b.from < a.to;
}

/* Columns of one value interleave with those of another window of it without touching them. */
static bool same_columns(const VkBuild *b, int v, int w)
{
    const GpuValue *x = &b->plan->values[v];
    const GpuValue *y = &b->plan->values[w];
    const int64_t row = x->ld * (int64_t)sizeof(float);
    const int64_t d = y->offset - x->offset;
    if (x->ld != y->ld || d <= -row || d >= row)
        return true; /* different matrices: whether their bytes meet decides */
    return d < x->width * (int64_t)sizeof(float) && -d < y->width * (int64_t)sizeof(float);
}

static bool clash(const VkBuild *b, int v, int w)
{
    return v >= 0 && w >= 0 && meet(range_of(b, v), range_of(b, w)) && same_columns(b, v, w);
}

/* Whether the operation reads or overwrites what those since the last barrier wrote, or overwrites
 * what they read. */
static bool depends(const VkBuild *b, const GpuOp *op)
{
    if (b->n_since == VK_SINCE_MAX)
        return true;
    for (int i = 0; i < b->n_since; i++) {
        if (b->since[i] < 0)
            return true;
        const GpuOp *o = &b->plan->ops[b->since[i]];
        if (clash(b, op->out, o->out) || op->out == o->out)
            return true;
        for (int j = 0; j < 3; j++)
            if (clash(b, op->in[j], o->out) || clash(b, op->out, o->in[j]))
                return true;
    }
    return false;
}

static void begin_op(VkBuild *b, int op)
{
    b->op = op;
    b->work = 0;
    b->uses_work = false;
    b->must_wait = op < 0 || op >= b->plan->n_ops || depends(b, &b->plan->ops[op]);
}

static void barrier(VkBuild *b)
{
    const VkMemoryBarrier m = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                               .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                               .dstAccessMask =
                                   VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
    b->d->root.api.CmdPipelineBarrier(b->cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                      VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &m, 0, NULL, 0,
                                      NULL);
    b->n_since = 0;
    b->work_by = -1;
}

/* ---- parts: command buffers that are each short ---- */

/* Reckoned low, as for a small integrated GPU, so that a part stays far below what drivers allow
 * one submit (2 s). */
static const double FLOPS_PER_UNIT = 1e11;
static const double BYTES_PER_S = 4e10;
static const double PART_S = 0.2;

static double weight_bytes(const Weight *w, double share)
{
    const int n = w->n_segs * (w->n_experts ? w->n_experts : 1);
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)rowview_bytes(&w->segs[i]);
    return sum * share;
}

static double op_seconds(const VkBuild *b, const GpuOp *op)
{
    const double rows = vk_op_rows(b, op);
    double flops = 0;
    double bytes = 0;
    if (op->kind == OP_LIN) {
        flops = 2 * rows * (double)op->weight->n * op->weight->k;
        bytes = weight_bytes(op->weight, 1);
    } else if (op->kind == OP_MOE) {
        const MoeDesc *m = &op->op->u.moe;
        const double used = rows * m->top_k;
        const double share = used < m->n_experts ? used / m->n_experts : 1;
        flops =
            2 * used * ((double)m->gate_up->n * m->gate_up->k + (double)m->down->n * m->down->k);
        bytes = weight_bytes(m->gate_up, share) + weight_bytes(m->down, share);
    } else if (op->kind == OP_ATTN) {
        const AttnDesc *a = &op->op->u.attn;
        const double keys = (double)b->kv->seq_pages[a->kv_group] * b->kv->page_tokens[a->kv_group];
        flops = 2 * rows * keys * a->n_heads * (a->head_dim + a->v_dim);
    } else if (op->kind == OP_DELTA) {
        const DeltaDesc *x = &op->op->u.delta;
        flops = 8 * rows * x->n_v_heads * (double)x->k_dim * x->v_dim;
    }
    return flops / (FLOPS_PER_UNIT * b->facts->facts.units) + bytes / BYTES_PER_S;
}

static bool begin_part(VkBuild *b, Error *err)
{
    VkBucket *k = b->bucket;
    if (k->n_cmds == k->n_made) {
        if (!vk_device_commands(b->d, 1, &k->cmds[k->n_cmds], err))
            return false;
        k->n_made++;
    }
    b->cmd = k->cmds[k->n_cmds++];
    b->part_s = 0;
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};
    if (!VK_TRY(&b->d->root.api, err, BeginCommandBuffer, b->cmd, &begin))
        return false;
    /* After the step before, copies of pages, uploads. */
    const VkMemoryBarrier m = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
    b->d->root.api.CmdPipelineBarrier(
        b->cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &m, 0, NULL, 0, NULL);
    b->n_since = 0;
    b->work_by = -1;
    return true;
}

static bool end_part(VkBuild *b, Error *err)
{
    const VkMemoryBarrier m = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                               .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                               .dstAccessMask =
                                   VK_ACCESS_HOST_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT};
    b->d->root.api.CmdPipelineBarrier(b->cmd, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                      VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                                      0, 1, &m, 0, NULL, 0, NULL);
    return VK_TRY(&b->d->root.api, err, EndCommandBuffer, b->cmd);
}

/* A new part when this operation would make the present one long. */
static void split(VkBuild *b, const GpuOp *op)
{
    const double s = op_seconds(b, op);
    Error err;
    if (b->walk == VK_WALK_RECORD && b->part_s > 0 && b->part_s + s > PART_S &&
        b->bucket->n_cmds < VK_PARTS_MAX && (!end_part(b, &err) || !begin_part(b, &err)))
        fail_as(b, &err);
    b->part_s += s;
}

/* ---- dispatches ---- */

static bool check(VkBuild *b, const VkDispatch *x, uint32_t groups[3])
{
    for (int i = 0; i < 3; i++)
        groups[i] = x->groups[i] ? x->groups[i] : 1;
    if (x->n_spec < 2 || x->n_spec > VK_SPEC_MAX || x->push_bytes > VK_PUSH_MAX ||
        x->push_bytes % 4 != 0)
        vk_build_fail(b, ERR_DEVICE, "%s: %d constants, %zu bytes of parameters", x->shader,
                      x->n_spec, x->push_bytes);
    else if (x->spec[0] == 0 || x->spec[0] > (uint32_t)vk_local_max(b) ||
             x->spec[0] % (uint32_t)vk_subgroup(b) != 0 || x->spec[1] != (uint32_t)vk_subgroup(b))
        vk_build_fail(b, ERR_DEVICE, "%s: groups of %u in subgroups of %u", x->shader, x->spec[0],
                      x->spec[1]);
    else if (groups[1] > GROUPS_YZ_MAX || groups[2] > GROUPS_YZ_MAX)
        vk_build_fail(b, ERR_DEVICE, "%s: %u x %u x %u groups", x->shader, groups[0], groups[1],
                      groups[2]);
    return !b->failed;
}

static void note_dispatch(VkBuild *b, bool overlap)
{
    const bool work_clash = b->uses_work && b->work_by >= 0 && b->work_by != b->op;
    if (!overlap || b->must_wait || work_clash)
        barrier(b);
    b->must_wait = false;
    if (b->uses_work)
        b->work_by = b->op;
    if (b->n_since == 0 || b->since[b->n_since - 1] != b->op)
        b->since[b->n_since++] = b->op;
}

void vk_dispatch(VkBuild *b, const VkDispatch *x)
{
    uint32_t groups[3];
    if (b->failed || !check(b, x, groups) || b->walk == VK_WALK_MEASURE)
        return;
    VkPipeline pipe;
    Error err;
    if (!vk_pipe_get(b->d, x, &pipe, &err)) {
        fail_as(b, &err);
        return;
    }
    if (b->walk == VK_WALK_PREPARE)
        return;
    note_dispatch(b, x->overlap);
    VkApi *api = &b->d->root.api;
    api->CmdBindPipeline(b->cmd, VK_PIPELINE_BIND_POINT_COMPUTE, pipe);
    if (x->push_bytes > 0)
        api->CmdPushConstants(b->cmd, b->d->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                              (uint32_t)x->push_bytes, x->push);
    api->CmdDispatch(b->cmd, groups[0], groups[1], groups[2]);
}

bool vk_build_walk(VkBuild *b, Error *err)
{
    const bool record = b->walk == VK_WALK_RECORD;
    b->failed = false;
    b->n_counters = b->work_most = b->packed_most = 0;
    b->n_packed = b->n_since = 0;
    b->work_by = -1;
    if (record) {
        b->bucket->n_cmds = 0;
        if (!begin_part(b, err))
            return false;
    }
    begin_op(b, -1);
    vk_emit_begin(b);
    for (int i = 0; i < b->plan->n_ops && !b->failed; i++) {
        split(b, &b->plan->ops[i]);
        begin_op(b, i);
        vk_emit_op(b, &b->plan->ops[i]);
    }
    begin_op(b, b->plan->n_ops);
    if (!b->failed)
        vk_emit_sample(b);
    if (record && !b->failed && !end_part(b, err))
        return false;
    if (b->failed && err)
        *err = b->err;
    return !b->failed;
}
