/* emit_run.h: cuda_build.h over the emulator, for tests of single emitters: what an emitter
 * launches runs at once, in host memory. Included by one file of a test program, which so takes the
 * place of cuda_build.c. */
#ifndef MERE_EMIT_RUN_H
#define MERE_EMIT_RUN_H

#include "device/cuda/cuda_emit.h"
#include "emu/emu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RUN_VALUES = 8, RUN_WORKS = 64, RUN_COUNTERS = 1 << 16 };

typedef struct RunValue {
    float *x; /* [rows][ld] */
    int ld, width;
} RunValue;

struct CudaBuild {
    int rows, max_out, kv_max, sms, arch;
    bool exact, deterministic;
    KvFormat format;
    GpuPlan plan;
    GpuStepLayout layout;
    int32_t *step;
    RunValue values[RUN_VALUES];
    float *rope;
    CudaKv kv;
    float *state;
    int64_t state_floats;
    GpuWeight weight;
    uint8_t *weight_memory;
    uint32_t counters[RUN_COUNTERS];
    int n_counters;
    void *works[RUN_WORKS];
    int n_works, n_launches;
    char kernels[256]; /* names of what ran */
};

static void *run_take(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 511) / 256 * 256);
    assert_non_null(p);
    return p;
}

/* [rows][ld] floats, NaN. */
static RunValue run_value(int rows, int width, int ld)
{
    RunValue v = {run_take((size_t)rows * (size_t)ld * sizeof(float)), ld, width};
    for (int64_t i = 0; i < (int64_t)rows * ld; i++)
        v.x[i] = NAN;
    return v;
}

/* After a run: its work memory goes, every counter must have been left zero. */
static void run_end(CudaBuild *b)
{
    for (int i = 0; i < RUN_COUNTERS; i++)
        if (b->counters[i] != 0)
            fail_msg("%s: counter %d is left at %u", b->kernels, i, (unsigned)b->counters[i]);
    for (int i = 0; i < b->n_works; i++)
        free(b->works[i]);
    b->n_works = b->n_launches = b->n_counters = 0;
    b->kernels[0] = 0;
}

static uint64_t run_random_state = 1;

static float run_random(void) /* in [-1, 1) */
{
    run_random_state = run_random_state * 6364136223846793005U + 1442695040888963407U;
    return (float)((double)(run_random_state >> 40) / (double)(1 << 23) - 1.0);
}

static int run_below(int n)
{
    const int i = (int)(((double)run_random() + 1.0) / 2.0 * (double)n);
    return i < n ? i : n - 1;
}

void cuda_launch(CudaBuild *b, const CudaLaunch *l)
{
    const size_t at = strlen(b->kernels);
    snprintf(b->kernels + at, sizeof b->kernels - at, "%s ", l->kernel);
    b->n_launches++;
    const int grid[3] = {l->grid[0] ? l->grid[0] : 1, l->grid[1] ? l->grid[1] : 1,
                         l->grid[2] ? l->grid[2] : 1};
    if (emu_launch(l->kernel, grid, l->block, l->smem, l->cluster, l->params, l->params_bytes))
        fail_msg("%s: %s", l->kernel, emu_error());
}

void cuda_build_fail(CudaBuild *b, ErrCode code, const char *fmt, ...)
{
    (void)b;
    char msg[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    fail_msg("error %d: %s", (int)code, msg);
}

int cuda_sms(const CudaBuild *b)
{
    return b->sms;
}

int cuda_arch(const CudaBuild *b)
{
    return b->arch;
}

int cuda_smem_max(const CudaBuild *b)
{
    (void)b;
    return 227 * 1024;
}

bool cuda_exact(const CudaBuild *b)
{
    return b->exact;
}

bool cuda_deterministic(const CudaBuild *b)
{
    return b->deterministic;
}

KvFormat cuda_kv_format(const CudaBuild *b)
{
    return b->format;
}

const GpuPlan *cuda_plan(const CudaBuild *b)
{
    return &b->plan;
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

CudaPtr cuda_value(const CudaBuild *b, int value)
{
    return value < 0 ? 0 : (CudaPtr)b->values[value].x;
}

int cuda_value_ld(const CudaBuild *b, int value)
{
    return b->values[value].ld;
}

int cuda_value_width(const CudaBuild *b, int value)
{
    return b->values[value].width;
}

CudaPtr cuda_vec(const CudaBuild *b, const Vec *v)
{
    (void)b;
    return v ? (CudaPtr)v->v : 0;
}

const GpuWeight *cuda_weight(CudaBuild *b, const Weight *w)
{
    (void)w;
    return &b->weight;
}

CudaPart cuda_weight_part(const CudaBuild *b, const GpuWeight *w, int part)
{
    const GpuPart *p = &w->parts[part];
    return (CudaPart){p, (CudaPtr)(b->weight_memory + p->code_offset),
                      (CudaPtr)(b->weight_memory + p->scale_offset)};
}

CudaPtr cuda_rope_table(const CudaBuild *b, int table)
{
    (void)table;
    return (CudaPtr)b->rope;
}

CudaPtr cuda_step(const CudaBuild *b)
{
    return (CudaPtr)b->step;
}

const GpuStepLayout *cuda_step_layout(const CudaBuild *b)
{
    return &b->layout;
}

CudaKv cuda_kv(const CudaBuild *b, int group, int layer)
{
    (void)group;
    (void)layer;
    return b->kv;
}

CudaPtr cuda_state(const CudaBuild *b)
{
    return (CudaPtr)b->state;
}

int64_t cuda_state_floats(const CudaBuild *b)
{
    return b->state_floats;
}

CudaPtr cuda_work(CudaBuild *b, int64_t bytes)
{
    if (b->n_works == RUN_WORKS)
        fail_msg("more than %d work memories", RUN_WORKS);
    void *p = run_take((size_t)bytes);
    memset(p, 0xff, (size_t)bytes); /* NaN */
    b->works[b->n_works++] = p;
    return (CudaPtr)p;
}

CudaPtr cuda_counters(CudaBuild *b, int n)
{
    if (b->n_counters + n > RUN_COUNTERS)
        fail_msg("more than %d counters", RUN_COUNTERS);
    b->n_counters += n;
    return (CudaPtr)(b->counters + b->n_counters - n);
}

#endif
