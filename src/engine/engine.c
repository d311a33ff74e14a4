#include "engine/engine.h"

#include "base/mem.h"
#include "engine/osmem.h"

#include <sched.h>
#include <string.h>

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

/* One step of every model. True: there may be more to do at once. */
static bool run_models(MereEngine *e)
{
    bool busy = false;
    for (EngineModel *m = e->models; m; m = m->next)
        busy = sched_step(m->sched) || busy;
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
        if (idle)
            (void)engine_anon_bytes(e);
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

bool engine_call(MereEngine *e, void (*fn)(void *), void *arg)
{
    EngineCall c = {.fn = fn, .arg = arg};
    pthread_mutex_lock(&e->lock);
    const bool ok = e->running && !e->stop;
    if (ok) {
        *(e->calls ? &e->last_call->next : &e->calls) = &c;
        e->last_call = &c;
        pthread_cond_signal(&e->work);
        while (!c.done)
            pthread_cond_wait(&e->done, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return ok;
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
    o->ok = o->e->ops->open(o->opt, &o->e->device, &o->err);
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
    e->threads = d->device.threads > 0 ? d->device.threads : count_cores();
    e->base_bytes = osmem_anon();
    arena_init(&e->arena, "engine");
    atomic_init(&e->refs, 1);
    atomic_init(&e->peak_bytes, 0);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->done, NULL);
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
