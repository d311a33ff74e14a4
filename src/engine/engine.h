/* engine.h: the engine's thread and what belongs to the whole process: the device, the events.
 *
 * One thread makes every call to the device. It runs the steps of all models in turn, and between
 * steps whatever other threads ask of it (engine_call): opening and closing pools and programs,
 * measuring. With nothing to do it sleeps on a condition.
 *
 * Reference-counted: open models keep the memory of a closed engine. */
#ifndef MERE_ENGINE_ENGINE_H
#define MERE_ENGINE_ENGINE_H

#include "engine/events.h"
#include "engine/sched.h"

/* A model as the engine's thread sees it. */
typedef struct EngineModel EngineModel;
struct EngineModel {
    EngineModel *next;
    Sched *sched;
    void (*release)(EngineModel *); /* ends its requests and gives its device memory back */
};

typedef struct EngineCall EngineCall;

struct MereEngine {
    const DeviceOps *ops;
    Device *device;     /* NULL once closed */
    char device_id[24]; /* "cuda:0" */
    Numerics numerics;
    int threads; /* that compute */
    Arena arena;
    Events events;
    uint64_t base_bytes;        /* anonymous bytes of the process before any model, device opened */
    uint64_t device_base_bytes; /* that the device held then */
    atomic_int refs;
    atomic_uint_fast64_t peak_bytes; /* highest RssAnon seen */

    pthread_t thread;
    pthread_mutex_t lock; /* for what follows */
    pthread_cond_t work;  /* for the thread: kick, calls, stop */
    pthread_cond_t done;  /* for callers */
    bool kick, stop, running;
    DeviceMemory memory; /* as last seen */
    uint64_t device_peak_bytes;
    EngineCall *calls, *last_call;

    EngineModel *models; /* the thread's own */
};

typedef struct EngineDesc {
    const DeviceOps *ops;
    DeviceOptions device;
    int max_requests; /* that wait, run, or have unread events */
} EngineDesc;

MUST_CHECK bool engine_open(const EngineDesc *d, MereEngine **out, Error *err);
/* Ends all requests, releases all models, closes the device, ends the thread; drops a reference. */
void engine_close(MereEngine *e);
void engine_ref(MereEngine *e);
void engine_unref(MereEngine *e);

/* Runs fn on the engine's thread between two steps and waits for it. After engine_close: false, fn
 * does not run. Not from fn itself. */
bool engine_call(MereEngine *e, void (*fn)(void *), void *arg);
/* The same, and calls tick(tick_arg) on this thread a few times a second while it waits. */
bool engine_call_ticking(MereEngine *e, void (*fn)(void *), void *arg, void (*tick)(void *),
                         void *tick_arg);
/* There may be work. */
void engine_kick(MereEngine *e);
/* On the engine's thread. */
void engine_attach(MereEngine *e, EngineModel *m);
void engine_detach(MereEngine *e, EngineModel *m);

/* Asks the system, and remembers the highest. */
uint64_t engine_anon_bytes(MereEngine *e);
/* On the engine's thread: asks the device for its memory and remembers it, and the highest. */
void engine_look(MereEngine *e);
/* What was last seen; any thread. */
void engine_memory(MereEngine *e, DeviceMemory *out, uint64_t *peak_bytes);

#endif
