/* Loading: rows are packed by a few threads from the mapped files into a ring of page-locked
 * buffers, and copied from there in the order of the device's memory. The calling thread alone
 * talks to the driver. Half of the ring is being packed while the other half is being copied. */
#include "base/clock.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 8, SLOT_BYTES = 2 << 20, THREADS_MAX = 4, PROGRESS_MS = 200 };

typedef struct LoadJob { /* rows of one part of one expert that fit a slot */
    int weight, part, expert;
    int64_t from, n;
} LoadJob;

typedef struct Loader {
    Device *d;
    DeviceWeights *w;
    const LoadProgress *progress;
    LoadJob *jobs;
    int64_t n_jobs, cap_jobs;
    int64_t slot_bytes;
    uint8_t *slots; /* [SLOTS][slot_bytes] */
    CuEvent copied[SLOTS];
    int n_threads;
    pthread_t threads[THREADS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t freed, filled;
    int64_t next;     /* job that a thread takes next */
    int64_t released; /* jobs whose slot may be filled again: jobs before it are on the device */
    bool ready[SLOTS], stop;
    uint64_t done_bytes, told_ms;
} Loader;

bool cuda_weights_plan(Arena *a, const Weight *w, GpuWeight *out, Error *err)
{
    return gpu_weight_plan(a, w, INT64_MAX, out, err);
}

/* ---- what is loaded where ---- */

static bool same_rows(const RowView *a, const RowView *b)
{
    return a->data == b->data && a->scales == b->scales && a->biases == b->biases &&
           a->format == b->format && a->n == b->n && a->k == b->k && a->group == b->group;
}

static bool same_bytes(const Weight *a, const Weight *b)
{
    if (a->n_segs != b->n_segs || a->n_experts != b->n_experts)
        return false;
    const int n = a->n_segs * (a->n_experts > 0 ? a->n_experts : 1);
    for (int i = 0; i < n; i++)
        if (!same_rows(&a->segs[i], &b->segs[i]))
            return false;
    return n > 0;
}

static bool add_jobs(Loader *l, int weight, Error *err)
{
    const GpuWeight *g = &l->w->weights[weight].plan;
    for (int e = 0; e < g->n_experts; e++)
        for (int p = 0; p < g->n_parts; p++) {
            const GpuPart *part = &g->parts[p];
            const int64_t fit = l->slot_bytes / (part->code_stride + part->scale_stride);
            for (int64_t from = 0; from < part->rows; from += fit) {
                if (l->n_jobs == l->cap_jobs) {
                    const int64_t cap = l->cap_jobs ? 2 * l->cap_jobs : 1024;
                    LoadJob *more = mem_realloc(l->jobs, (size_t)cap * sizeof *more);
                    if (!more)
                        return err_nomem(err, "loading", (size_t)cap * sizeof *more);
                    l->jobs = more;
                    l->cap_jobs = cap;
                }
                l->jobs[l->n_jobs++] =
                    (LoadJob){weight, p, e, from, i64_min(fit, part->rows - from)};
            }
        }
    return true;
}

/* Places every weight; those with the bytes of an earlier one lie where it does. Bases are offsets
 * until the memory is there. */
static bool plan_all(Loader *l, const Weight *const *weights, Error *err)
{
    DeviceWeights *w = l->w;
    bool *again = ARENA_ARRAY(&w->arena, w->n + 1, bool, err);
    if (!again)
        return false;
    l->slot_bytes = SLOT_BYTES;
    for (int i = 0; i < w->n; i++) {
        CudaWeight *c = &w->weights[i];
        c->weight = weights[i];
        if (!cuda_weights_plan(&w->arena, weights[i], &c->plan, err))
            return false;
        for (int j = 0; j < i && !again[i]; j++)
            if (same_bytes(weights[j], weights[i])) {
                again[i] = true;
                c->base = w->weights[j].base;
            }
        if (again[i])
            continue;
        c->base = (CudaPtr)w->bytes;
        w->bytes += i64_round_up(c->plan.bytes, CUDA_ALIGN);
        for (int p = 0; p < c->plan.n_parts; p++)
            l->slot_bytes = i64_max(l->slot_bytes,
                                    c->plan.parts[p].code_stride + c->plan.parts[p].scale_stride);
    }
    for (int i = 0; i < w->n; i++)
        if (!again[i] && !add_jobs(l, i, err))
            return false;
    return true;
}

/* ---- packing ---- */

static void pack(Loader *l, int64_t index)
{
    const LoadJob *j = &l->jobs[index];
    const GpuWeight *g = &l->w->weights[j->weight].plan;
    uint8_t *codes = l->slots + index % SLOTS * l->slot_bytes;
    gpu_weight_pack(g, j->part, j->expert, j->from, j->n, codes,
                    codes + g->parts[j->part].code_stride * j->n);
}

static void *pack_thread(void *arg)
{
    Loader *l = arg;
    (void)pthread_mutex_lock(&l->lock);
    while (!l->stop && l->next < l->n_jobs) {
        if (l->next >= l->released + SLOTS) {
            (void)pthread_cond_wait(&l->freed, &l->lock);
            continue;
        }
        const int64_t index = l->next++;
        (void)pthread_mutex_unlock(&l->lock);
        pack(l, index);
        (void)pthread_mutex_lock(&l->lock);
        l->ready[index % SLOTS] = true;
        (void)pthread_cond_signal(&l->filled);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Without threads (one processor, or none could be started) the caller packs. */
static void start_threads(Loader *l)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int want = cores > 1 ? (int)i64_min(cores, THREADS_MAX) : 0;
    if (l->n_jobs < 2 * (int64_t)SLOTS)
        want = 0;
    while (l->n_threads < want &&
           pthread_create(&l->threads[l->n_threads], NULL, pack_thread, l) == 0)
        l->n_threads++;
}

static void stop_threads(Loader *l)
{
    (void)pthread_mutex_lock(&l->lock);
    l->stop = true;
    (void)pthread_cond_broadcast(&l->freed);
    (void)pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_threads; i++)
        (void)pthread_join(l->threads[i], NULL);
}

static void await_packed(Loader *l, int64_t index)
{
    if (l->n_threads == 0) {
        pack(l, index);
        return;
    }
    (void)pthread_mutex_lock(&l->lock);
    while (!l->ready[index % SLOTS])
        (void)pthread_cond_wait(&l->filled, &l->lock);
    l->ready[index % SLOTS] = false;
    (void)pthread_mutex_unlock(&l->lock);
}

/* ---- copying ---- */

static bool copy_job(Loader *l, int64_t index, Error *err)
{
    const LoadJob *j = &l->jobs[index];
    const CudaWeight *c = &l->w->weights[j->weight];
    const GpuPart *p = &c->plan.parts[j->part];
    const uint8_t *codes = l->slots + index % SLOTS * l->slot_bytes;
    const int64_t code_at = p->code_offset + p->code_bytes * j->expert + p->code_stride * j->from;
    const int64_t scale_at =
        p->scale_offset + p->scale_bytes * j->expert + p->scale_stride * j->from;
    const int64_t code_bytes = p->code_stride * j->n;
    const int64_t scale_bytes = p->scale_stride * j->n;
    l->done_bytes += (uint64_t)(code_bytes + scale_bytes);
    return cuda_api_copy_in(c->base + (CudaPtr)code_at, codes, (size_t)code_bytes, l->d->stream,
                            err) &&
           (scale_bytes == 0 || cuda_api_copy_in(c->base + (CudaPtr)scale_at, codes + code_bytes,
                                                 (size_t)scale_bytes, l->d->stream, err)) &&
           cuda_api_event_record(l->copied[index % SLOTS], l->d->stream, err);
}

static bool await_copied(Loader *l, int64_t index, Error *err)
{
    const uint64_t deadline = clock_ns() + (uint64_t)CUDA_DRAIN_S * 1000000000U;
    for (;;) {
        bool ready;
        if (!cuda_api_event_ready(l->copied[index % SLOTS], &ready, err))
            return false;
        if (ready)
            break;
        if (clock_ns() > deadline) {
            l->d->hung = true;
            return err_set(err, ERR_LOST, "cuda:%d: a copy of %lld bytes did not end in %d s",
                           l->d->index, (long long)l->slot_bytes, CUDA_DRAIN_S);
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    (void)pthread_mutex_lock(&l->lock);
    l->released = index + 1;
    (void)pthread_cond_broadcast(&l->freed);
    (void)pthread_mutex_unlock(&l->lock);
    return true;
}

static bool tell_progress(Loader *l, bool last, Error *err)
{
    const LoadProgress *p = l->progress;
    if (!p)
        return true;
    if (p->cancel && *(const volatile bool *)p->cancel)
        return err_set(err, ERR_CANCELLED, "loading was cancelled");
    const uint64_t now = (uint64_t)clock_ms();
    if (p->fn && (last || now - l->told_ms >= PROGRESS_MS)) {
        l->told_ms = now;
        p->fn(p->ctx, l->done_bytes, (uint64_t)l->w->bytes);
    }
    return true;
}

static bool copy_all(Loader *l, Error *err)
{
    for (int64_t i = 0; i < l->n_jobs; i++) {
        if (!tell_progress(l, false, err))
            return false;
        await_packed(l, i);
        if (!copy_job(l, i, err))
            return false;
        if (i + 1 >= SLOTS / 2 && !await_copied(l, i + 1 - SLOTS / 2, err))
            return false;
    }
    if (!cuda_drain(l->d, err))
        return false;
    l->done_bytes = (uint64_t)l->w->bytes;
    return tell_progress(l, true, err);
}

static bool load(Loader *l, Error *err)
{
    DeviceWeights *w = l->w;
    if (!cuda_take(l->d, "weights", w->bytes, &w->memory, err))
        return false;
    for (int i = 0; i < w->n; i++)
        w->weights[i].base += w->memory;
    void *slots;
    if (!cuda_take_host(l->d, "loading", l->n_jobs ? SLOTS * l->slot_bytes : 0, &slots, err))
        return false;
    l->slots = slots;
    for (int i = 0; i < SLOTS && l->n_jobs; i++)
        if (!cuda_api_event_create(&l->copied[i], CU_EVENT_NO_TIMING, err)) {
            l->copied[i] = NULL;
            return false;
        }
    start_threads(l);
    const bool ok = copy_all(l, err);
    stop_threads(l);
    return ok;
}

static void release(Loader *l)
{
    cuda_quiesce(l->d); /* copies that an error left behind read the slots */
    for (int i = 0; i < SLOTS; i++)
        if (l->copied[i] && !l->d->hung)
            cuda_ignore(cuda_api_event_destroy(l->copied[i], NULL));
    cuda_give_host(l->d, l->slots);
    (void)pthread_cond_destroy(&l->freed);
    (void)pthread_cond_destroy(&l->filled);
    (void)pthread_mutex_destroy(&l->lock);
    mem_free(l->jobs);
}

bool cuda_weights_open(Device *d, const Weight *const *weights, int n, const LoadProgress *progress,
                       DeviceWeights **out, Error *err)
{
    DeviceWeights *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_nomem(err, "weights", sizeof *w);
    arena_init(&w->arena, "cuda weights");
    Loader l = {.d = d, .w = w, .progress = progress};
    (void)pthread_mutex_init(&l.lock, NULL);
    (void)pthread_cond_init(&l.freed, NULL);
    (void)pthread_cond_init(&l.filled, NULL);
    Error e;
    w->n = n;
    w->weights = ARENA_ARRAY(&w->arena, n + 1, CudaWeight, &e);
    const bool ok = w->weights && plan_all(&l, weights, &e) && cuda_enter(d, &e) && load(&l, &e);
    const bool kept = cuda_leave(d, ok, &e, err);
    release(&l);
    if (!kept) {
        cuda_weights_close(d, w);
        return false;
    }
    *out = w;
    return true;
}

void cuda_weights_close(Device *d, DeviceWeights *w)
{
    if (!w)
        return;
    cuda_quiesce(d);
    cuda_give(d, w->memory, w->bytes);
    arena_free(&w->arena);
    mem_free(w);
}
