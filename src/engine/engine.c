#include "engine/engine.h"

#include "base/mem.h"
#include "engine/osmem.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TICK_MS = 100 };

struct EngineCall {
    EngineCall *next;
    void (*fn)(void *);
    void *arg;
    bool done;
};

/* ---- the thread ---- */

static void run_calls(MereEngine *e)
{
    for (;;) {
        pthread_mutex_lock(&e->lock);
        EngineCall *c = e->calls;
        if (c)
            e->calls = c->next;
        pthread_mutex_unlock(&e->lock);
        if (!c)
            return;
        c->fn(c->arg);
        pthread_mutex_lock(&e->lock);
        c->done = true;
        pthread_cond_broadcast(&e->done);
        pthread_mutex_unlock(&e->lock);
    }
}

/* One step of every model. True: there may be more to do at once. How many steps a device takes
 * before the oldest is waited for is a number of the device: models that share it leave nothing
 * behind. */
static bool run_models(MereEngine *e)
{
    bool busy = false;
    for (EngineModel *m = e->models; m; m = m->next) {
        busy = sched_step(m->sched) || busy;
        if (e->models->next)
            sched_settle(m->sched);
    }
    return busy;
}

static void *engine_main(void *arg)
{
    MereEngine *e = arg;
    bool busy = false;
    for (;;) {
        pthread_mutex_lock(&e->lock);
        const bool idle = !busy && !e->kick && !e->calls && !e->stop;
        pthread_mutex_unlock(&e->lock);
        if (idle) {
            (void)engine_anon_bytes(e);
            engine_look(e);
        }
        pthread_mutex_lock(&e->lock);
        while (!busy && !e->kick && !e->calls && !e->stop)
            pthread_cond_wait(&e->work, &e->lock);
        e->kick = false;
        const bool stop = e->stop;
        pthread_mutex_unlock(&e->lock);
        run_calls(e);
        if (stop)
            break;
        busy = run_models(e);
    }
    while (e->models) {
        EngineModel *m = e->models;
        engine_detach(e, m);
        m->release(m);
    }
    return NULL;
}

/* Until `done` is signalled or TICK_MS passed; e->lock is held. */
static void wait_tick(MereEngine *e)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    (void)pthread_cond_timedwait(&e->done, &e->lock, &until);
}

bool engine_call_ticking(MereEngine *e, void (*fn)(void *), void *arg, void (*tick)(void *),
                         void *tick_arg)
{
    EngineCall c = {.fn = fn, .arg = arg};
    pthread_mutex_lock(&e->lock);
    const bool ok = e->running && !e->stop;
    if (ok) {
        *(e->calls ? &e->last_call->next : &e->calls) = &c;
        e->last_call = &c;
        pthread_cond_signal(&e->work);
    }
    while (ok && !c.done) {
        if (!tick) {
            pthread_cond_wait(&e->done, &e->lock);
            continue;
        }
        wait_tick(e);
        if (c.done)
            break;
        pthread_mutex_unlock(&e->lock);
        tick(tick_arg);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return ok;
}

bool engine_call(MereEngine *e, void (*fn)(void *), void *arg)
{
    return engine_call_ticking(e, fn, arg, NULL, NULL);
}

void engine_kick(MereEngine *e)
{
    pthread_mutex_lock(&e->lock);
    e->kick = true;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

static void kick_void(void *e)
{
    engine_kick(e);
}

void engine_attach(MereEngine *e, EngineModel *m)
{
    m->next = e->models;
    e->models = m;
}

void engine_detach(MereEngine *e, EngineModel *m)
{
    for (EngineModel **p = &e->models; *p; p = &(*p)->next)
        if (*p == m) {
            *p = m->next;
            return;
        }
}

uint64_t engine_anon_bytes(MereEngine *e)
{
    const uint64_t now = osmem_anon();
    uint64_t old = atomic_load_explicit(&e->peak_bytes, memory_order_relaxed);
    while (now > old && !atomic_compare_exchange_weak_explicit(
                            &e->peak_bytes, &old, now, memory_order_relaxed, memory_order_relaxed))
        ;
    return now;
}

void engine_look(MereEngine *e)
{
    DeviceMemory now;
    if (!e->device)
        return;
    e->ops->memory(e->device, &now);
    pthread_mutex_lock(&e->lock);
    e->memory = now;
    if (now.used_bytes > e->device_peak_bytes)
        e->device_peak_bytes = now.used_bytes;
    pthread_mutex_unlock(&e->lock);
}

void engine_memory(MereEngine *e, DeviceMemory *out, uint64_t *peak_bytes)
{
    pthread_mutex_lock(&e->lock);
    *out = e->memory;
    if (peak_bytes)
        *peak_bytes = e->device_peak_bytes;
    pthread_mutex_unlock(&e->lock);
}

/* ---- open and close ---- */

typedef struct OpenDevice {
    MereEngine *e;
    const DeviceOptions *opt;
    bool ok;
    Error err;
} OpenDevice;

static void open_device(void *arg)
{
    OpenDevice *o = arg;
    MereEngine *e = o->e;
    o->ok = e->ops->open(o->opt, &e->device, &o->err);
    if (!o->ok) {
        e->device = NULL;
        return;
    }
    engine_look(e);
    e->device_base_bytes = e->memory.used_bytes;
    e->base_bytes = osmem_anon(); /* a driver takes some, too */
}

static void close_device(void *arg)
{
    MereEngine *e = arg;
    e->ops->close(e->device);
    e->device = NULL;
}

static int count_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static bool start_thread(MereEngine *e, Error *err)
{
    const int rc = pthread_create(&e->thread, NULL, engine_main, e);
    if (rc != 0)
        return err_set(err, ERR_NOMEM, "engine thread: %s", strerror(rc));
    (void)pthread_setname_np(e->thread, "mere-engine");
    e->running = true;
    return true;
}

static void stop_thread(MereEngine *e)
{
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    e->running = false;
}

bool engine_open(const EngineDesc *d, MereEngine **out, Error *err)
{
    MereEngine *e = mem_zalloc(sizeof *e);
    if (!e)
        return err_nomem(err, "engine", sizeof *e);
    e->ops = d->ops;
    e->numerics = d->device.numerics;
    /* The one backend whose devices have no number. */
    if (strcmp(d->ops->name, "cpu") == 0)
        snprintf(e->device_id, sizeof e->device_id, "cpu");
    else
        snprintf(e->device_id, sizeof e->device_id, "%.12s:%d", d->ops->name, d->device.index);
    e->threads = d->device.threads > 0 ? d->device.threads : count_cores();
    arena_init(&e->arena, "engine");
    atomic_init(&e->refs, 1);
    atomic_init(&e->peak_bytes, 0);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->done, &attr);
    pthread_condattr_destroy(&attr);
    bool ok = events_open(&e->events, d->max_requests, err);
    if (ok) {
        e->events.wake = kick_void;
        e->events.wake_ctx = e;
        ok = start_thread(e, err);
    }
    if (ok) {
        OpenDevice o = {.e = e, .opt = &d->device};
        ok = engine_call(e, open_device, &o) && o.ok;
        if (!ok) {
            if (err)
                *err = o.err;
            stop_thread(e);
        }
    }
    if (!ok) {
        engine_unref(e);
        return false;
    }
    *out = e;
    return true;
}

void engine_close(MereEngine *e)
{
    if (!e)
        return;
    stop_thread(e);
    close_device(e); /* the thread has ended: nobody else calls the device */
    engine_unref(e);
}

void engine_ref(MereEngine *e)
{
    atomic_fetch_add(&e->refs, 1);
}

void engine_unref(MereEngine *e)
{
    if (atomic_fetch_sub(&e->refs, 1) != 1)
        return;
    events_close(&e->events);
    pthread_cond_destroy(&e->done);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->lock);
    arena_free(&e->arena);
    mem_free(e);
}
