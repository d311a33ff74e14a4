/* Steps: submit writes the next entry of the ring and launches; wait looks at a word of host
 * memory. The driver is asked now and then, since a failed kernel never writes that word. */
#include "base/clock.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* A sleep ends up to 60 us late, so the end of a step is met spinning; a step that takes far longer
 * than those before it is met asleep. */
enum { SPIN_MARGIN_US = 100, SLEEP_US = 50, QUERY_MS = 100 };

/* ---- submit ---- */

static int bucket_index(const Program *p, const StepBlock *s)
{
    int kv = 0;
    for (int i = 0; i < s->n_segs; i++)
        kv = (int)i64_max(kv, s->segs[i].kv_len);
    int i = 0;
    while (i + 1 < p->n_buckets && (p->buckets[i].rows < s->n_rows || p->buckets[i].kv_max < kv))
        i++;
    return i;
}

/* Behind the graph, on the same stream. */
static bool queue_logits(Device *d, const Program *p, const CudaStep *step, int entry, Error *err)
{
    const size_t row = (size_t)p->vocab * sizeof(float);
    float *to = p->staging + (size_t)entry * (size_t)p->plan.graph->max_out_rows * (size_t)p->vocab;
    return cuda_api_copy_out(to, p->memory + (CudaPtr)p->spans.logits, row * (size_t)step->n_out,
                             d->stream, err) &&
           cuda_api_event_record(step->copied, d->stream, err);
}

static bool submit(Device *d, Program *p, const KvPool *pool, const StepBlock *s, uint64_t *ticket,
                   Error *err)
{
    const uint64_t start = clock_ns();
    if (pool != p->pool || pool->number != p->pool_number)
        return err_set(err, ERR_DEVICE, "cuda: a step on another pool than its program's");
    if (p->submitted - p->waited >= CUDA_RING)
        return err_set(err, ERR_DEVICE, "cuda: %d steps in flight, at most %d",
                       (int)(p->submitted - p->waited) + 1, CUDA_RING);
    const int entry = (int)(p->submitted % CUDA_RING);
    int32_t *block =
        (int32_t *)(void *)(p->host + p->spans.host_step) + (ptrdiff_t)entry * p->layout.max_words;
    const uint64_t number = p->submitted + 1;
    if (!gpu_step_write(&p->layout, p->plan.graph, &p->desc, s, (uint32_t)number, block, err))
        return false;
    CudaStep *step = &p->steps[entry];
    step->results = s->results;
    step->logits = s->n_out > 0 ? s->logits : NULL;
    step->n_samples = s->n_samples;
    step->n_out = s->n_out;
    step->bucket = bucket_index(p, s);
    atomic_thread_fence(memory_order_seq_cst); /* the block before the launch */
    CudaBucket *bucket = &p->buckets[step->bucket];
    if (!cuda_api_exec_launch(bucket->exec, d->stream, err))
        return false;
    p->submitted = number;
    step->start_ns = clock_ns();
    bucket->n_steps++;
    bucket->submit_ns += step->start_ns - start;
    if (step->logits && !queue_logits(d, p, step, entry, err)) {
        /* The step runs and cannot be taken back: it is let end, and its results go nowhere. */
        Error end;
        if (!cuda_drain(d, &end)) {
            if (err)
                *err = end;
            return false;
        }
        p->waited = p->submitted;
        return false;
    }
    *ticket = number;
    return true;
}

bool cuda_step_submit(Device *d, Program *p, KvPool *pool, const StepBlock *s, uint64_t *ticket,
                      Error *err)
{
    Error e;
    const bool ok = cuda_enter(d, &e) && submit(d, p, pool, s, ticket, &e);
    return cuda_leave(d, ok, &e, err);
}

/* ---- wait ---- */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool has_ended(const Program *p, uint64_t ticket)
{
    /* Written by the device: 32 bits of the newest ticket that ended. */
    const _Atomic uint32_t *done =
        (const _Atomic uint32_t *)(const void *)(p->host + p->spans.host_done);
    const uint32_t now = atomic_load_explicit(done, memory_order_acquire);
    return (int32_t)(now - (uint32_t)ticket) >= 0;
}

/* *idle: everything queued has ended. */
static bool query(const Device *d, bool *idle, Error *err)
{
    return cuda_api_stream_ready(d->stream, idle, err);
}

static bool check_late(Device *d, const Program *p, uint64_t ticket, uint64_t now,
                       uint64_t deadline_ns, Error *err)
{
    bool idle;
    if (!query(d, &idle, err))
        return false;
    if (idle && !has_ended(p, ticket))
        return err_set(err, ERR_LOST, "cuda:%d: step %llu ended without a result", d->index,
                       (unsigned long long)ticket);
    if (!idle && now >= deadline_ns) {
        d->hung = true;
        return err_set(err, ERR_LOST, "cuda:%d: step %llu did not end in time", d->index,
                       (unsigned long long)ticket);
    }
    return true;
}

/* Until the graph of `ticket` has ended. */
static bool await_graph(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    const CudaStep *step = &p->steps[(ticket - 1) % CUDA_RING];
    const uint64_t typical = p->buckets[step->bucket].typical_ns;
    const uint64_t start = step->start_ns > p->last_end_ns ? step->start_ns : p->last_end_ns;
    const uint64_t spin_from = start + typical - typical / 4;
    const uint64_t spin_to = start + typical + typical / 2 + SPIN_MARGIN_US * 1000U;
    uint64_t next_query = clock_ns() + (uint64_t)QUERY_MS * 1000000U;
    while (!has_ended(p, ticket)) {
        const uint64_t now = clock_ns();
        if (now >= next_query || now >= deadline_ns) {
            if (!check_late(d, p, ticket, now, deadline_ns, err))
                return false;
            next_query = now + (uint64_t)QUERY_MS * 1000000U;
        } else if (now + (uint64_t)SPIN_MARGIN_US * 1000U < spin_from) {
            const uint64_t ns = spin_from - now - (uint64_t)SPIN_MARGIN_US * 1000U;
            const uint64_t most = (uint64_t)QUERY_MS * 1000000U;
            (void)nanosleep(&(struct timespec){.tv_nsec = (long)(ns < most ? ns : most)}, NULL);
        } else if (now > spin_to) {
            (void)nanosleep(&(struct timespec){.tv_nsec = SLEEP_US * 1000L}, NULL);
        } else {
            for (int i = 0; i < 16 && !has_ended(p, ticket); i++)
                relax();
        }
    }
    return true;
}

/* Until the logits of the step are in the staging memory. */
static bool await_logits(Device *d, const CudaStep *step, uint64_t deadline_ns, Error *err)
{
    for (int i = 0;; i++) {
        bool ready;
        if (!cuda_api_event_ready(step->copied, &ready, err))
            return false;
        if (ready)
            return true;
        if (clock_ns() >= deadline_ns) {
            d->hung = true;
            return err_set(err, ERR_LOST, "cuda:%d: logits did not arrive in time", d->index);
        }
        if (i > 100)
            (void)nanosleep(&(struct timespec){.tv_nsec = SLEEP_US * 1000L}, NULL);
    }
}

static void take_results(Program *p, const CudaStep *step, int entry)
{
    if (step->n_samples > 0)
        memcpy(step->results,
               p->host + p->spans.host_results +
                   (size_t)entry * (size_t)p->layout.max_out * sizeof(SampleResult),
               (size_t)step->n_samples * sizeof(SampleResult));
    if (step->logits)
        memcpy(step->logits,
               p->staging + (size_t)entry * (size_t)p->plan.graph->max_out_rows * (size_t)p->vocab,
               (size_t)step->n_out * (size_t)p->vocab * sizeof(float));
}

static void note_time(Program *p, const CudaStep *step)
{
    CudaBucket *b = &p->buckets[step->bucket];
    const uint64_t now = clock_ns();
    const uint64_t start = step->start_ns > p->last_end_ns ? step->start_ns : p->last_end_ns;
    const uint64_t took = now - start;
    p->last_end_ns = now;
    b->step_ns += took;
    /* Follows a faster step at once and a slower one by an eighth. */
    b->typical_ns = b->typical_ns == 0 || took < b->typical_ns
                        ? took
                        : b->typical_ns + (took - b->typical_ns) / 8;
}

static bool wait_next(Device *d, Program *p, uint64_t deadline_ns, Error *err)
{
    const uint64_t ticket = p->waited + 1;
    const int entry = (int)(p->waited % CUDA_RING);
    const CudaStep *step = &p->steps[entry];
    if (!await_graph(d, p, ticket, deadline_ns, err) ||
        (step->logits && !await_logits(d, step, deadline_ns, err)))
        return false;
    note_time(p, step);
    take_results(p, step, entry);
    p->waited = ticket;
    return true;
}

static bool wait_for(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    if (ticket == 0 || ticket > p->submitted)
        return err_set(err, ERR_DEVICE, "cuda: ticket %llu, %llu steps were submitted",
                       (unsigned long long)ticket, (unsigned long long)p->submitted);
    while (p->waited < ticket)
        if (!wait_next(d, p, deadline_ns, err))
            return false;
    if (d->deferred) {
        d->deferred = false;
        *err = d->deferred_error;
        return false;
    }
    return true;
}

bool cuda_step_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    Error e;
    const bool ok = cuda_enter(d, &e) && wait_for(d, p, ticket, deadline_ns, &e);
    return cuda_leave(d, ok, &e, err);
}
