#include "support/fake_cuda/fake_cuda.h"

#include "device/cuda/cuda_api.h"
#include "emu/emu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CUDA_FN(name, symbol, kind, params, args) int symbol params;
#include "device/cuda/cuda_api.def"
#undef CUDA_FN
int cuGetErrorName(int code, const char **name);
const FakeCuda *fake_cuda_table(void);

enum {
    INVALID_VALUE = 1,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    DEVICES = 4
};

/* What a context owns, newest first: all of it goes with the context. */
typedef enum Kind { MEMORY, HOST, MODULE, STREAM, EVENT, GRAPH, EXEC } Kind;
typedef struct Object {
    struct Object *next;
    Kind kind;
    int device;
    void *p; /* the handle */
    size_t bytes;
} Object;

struct CuContextOpaque {
    int refs, sticky;
    size_t used;
};

typedef struct Launch {
    char kernel[64];
    int grid[3], block, smem, cluster;
    size_t params_bytes;
    void *params;
} Launch;

struct CuGraphOpaque {
    int n, cap;
    Launch *launches;
};
struct CuGraphExecOpaque {
    struct CuGraphOpaque graph;
};
struct CuFunctionOpaque {
    struct CuFunctionOpaque *next;
    char name[64];
    int smem;
};
struct CuModuleOpaque {
    struct CuFunctionOpaque *functions;
};

typedef enum WorkKind { WORK_GRAPH, WORK_COPY, WORK_FILL, WORK_EVENT } WorkKind;
typedef struct Work {
    struct Work *next;
    WorkKind kind;
    CuGraphExec exec;
    CuEvent event;
    void *to;
    const void *from;
    size_t bytes;
    int value;
} Work;

struct CuEventOpaque {
    int pending;
};
struct CuStreamOpaque {
    int device;
    pthread_t thread;
    Work *first, *last;
    bool busy, stop;
    CuGraph capture;
    bool capture_broken;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct CuContextOpaque contexts[DEVICES];
    Object *objects;
    int64_t n_objects;
    uint64_t calls, fail_at, launches, memory;
    int fail_code, fail_launch;
    bool fail_sticky, hang, ends_only;
} fake = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .fail_launch = -1};

static _Thread_local CuContext current;

static int setting(const char *name, int otherwise)
{
    const char *v = getenv(name);
    return v && *v ? (int)strtol(v, NULL, 10) : otherwise;
}

static int n_devices(void)
{
    const int n = setting("FAKE_CUDA_DEVICES", 1);
    return n < DEVICES ? n : DEVICES;
}

static uint64_t memory_bytes(void)
{
    if (fake.memory == 0)
        fake.memory = (uint64_t)setting("FAKE_CUDA_MB", 2048) << 20;
    return fake.memory;
}

static int device_of(CuContext ctx)
{
    return (int)(ctx - fake.contexts);
}

/* Every entry point begins with it, the lock held from here to leave. A context that is lost
 * answers so to all but its release. */
static int enter(bool in_context)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.calls++;
    if (fake.calls == fake.fail_at) {
        if (fake.fail_sticky && current)
            current->sticky = fake.fail_code;
        return fake.fail_code;
    }
    if (!in_context)
        return CU_SUCCESS;
    if (!current || current->refs == 0)
        return INVALID_CONTEXT;
    return current->sticky;
}

static int leave(int code)
{
    (void)pthread_mutex_unlock(&fake.lock);
    return code;
}

static void *must(void *p)
{
    if (p)
        return p;
    fputs("fake_cuda: out of host memory\n", stderr);
    abort();
}

/* ---- objects ---- */

static void add_object(Kind kind, void *p, size_t bytes)
{
    Object *o = must(calloc(1, sizeof *o));
    *o = (Object){fake.objects, kind, device_of(current), p, bytes};
    fake.objects = o;
    fake.n_objects++;
}

static Object **find_object(Kind kind, const void *p)
{
    Object **link = &fake.objects;
    while (*link && !((*link)->kind == kind && (*link)->p == p))
        link = &(*link)->next;
    return *link ? link : NULL;
}

static void free_graph(struct CuGraphOpaque *g)
{
    for (int i = 0; i < g->n; i++)
        free(g->launches[i].params);
    free(g->launches);
}

static void stop_stream(CuStream s)
{
    s->stop = true;
    (void)pthread_cond_broadcast(&fake.changed);
    (void)pthread_mutex_unlock(&fake.lock);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_mutex_lock(&fake.lock);
    while (s->first) {
        Work *next = s->first->next;
        free(s->first);
        s->first = next;
    }
}

static void free_object(Object **link)
{
    Object *o = *link;
    *link = o->next;
    fake.n_objects--;
    switch (o->kind) {
    case MEMORY:
        fake.contexts[o->device].used -= o->bytes;
        free(o->p);
        break;
    case MODULE: {
        CuModule m = o->p;
        while (m->functions) {
            CuFunction next = m->functions->next;
            free(m->functions);
            m->functions = next;
        }
        free(m);
        break;
    }
    case STREAM: {
        CuStream s = o->p;
        stop_stream(s);
        if (s->capture) {
            free_graph(s->capture);
            free(s->capture);
        }
        free(s);
        break;
    }
    case GRAPH:
    case EXEC:
        free_graph(o->p);
        free(o->p);
        break;
    case HOST:
    case EVENT:
        free(o->p);
        break;
    }
    free(o);
}

static void free_objects(int device, bool streams)
{
    for (Object **link = &fake.objects; *link;)
        if ((*link)->device == device && ((*link)->kind == STREAM) == streams)
            free_object(link);
        else
            link = &(*link)->next;
}

static int drop(Kind kind, const void *p)
{
    Object **link = find_object(kind, p);
    if (!link)
        return INVALID_HANDLE;
    free_object(link);
    return CU_SUCCESS;
}

/* ---- streams: one thread each ---- */

static int run_graph(const struct CuGraphOpaque *g, int fail_launch, bool ends_only)
{
    for (int i = 0; i < g->n; i++) {
        const Launch *l = &g->launches[i];
        if (i == fail_launch)
            return LAUNCH_FAILED;
        if (ends_only && i > 0 && i + 1 < g->n)
            continue;
        if (emu_launch(l->kernel, l->grid, l->block, l->smem, l->cluster, l->params,
                       l->params_bytes) != 0) {
            fprintf(stderr, "fake_cuda: launch %d of %d: %s\n", i, g->n, emu_error());
            return LAUNCH_FAILED;
        }
        (void)pthread_mutex_lock(&fake.lock);
        fake.launches++;
        (void)pthread_mutex_unlock(&fake.lock);
    }
    return CU_SUCCESS;
}

static int run_work(const Work *w, int fail_launch, bool ends_only)
{
    switch (w->kind) {
    case WORK_GRAPH:
        return run_graph(&w->exec->graph, fail_launch, ends_only);
    case WORK_COPY:
        memmove(w->to, w->from, w->bytes);
        return CU_SUCCESS;
    case WORK_FILL:
        memset(w->to, w->value, w->bytes);
        return CU_SUCCESS;
    case WORK_EVENT:
        return CU_SUCCESS;
    }
    return INVALID_VALUE;
}

static void *stream_thread(void *arg)
{
    CuStream s = arg;
    CuContext ctx = &fake.contexts[s->device];
    (void)pthread_mutex_lock(&fake.lock);
    for (;;) {
        while (!s->stop && (!s->first || fake.hang))
            (void)pthread_cond_wait(&fake.changed, &fake.lock);
        if (s->stop)
            break;
        Work *w = s->first;
        int fail_launch = -1;
        if (w->kind == WORK_GRAPH) {
            fail_launch = fake.fail_launch;
            fake.fail_launch = -1;
        }
        s->busy = true;
        const bool lost = ctx->sticky != 0;
        const bool ends_only = fake.ends_only;
        (void)pthread_mutex_unlock(&fake.lock);
        const int code = lost ? CU_SUCCESS : run_work(w, fail_launch, ends_only);
        (void)pthread_mutex_lock(&fake.lock);
        if (code != CU_SUCCESS)
            ctx->sticky = code;
        if (w->kind == WORK_EVENT)
            w->event->pending--;
        s->first = w->next;
        s->busy = false;
        free(w);
        (void)pthread_cond_broadcast(&fake.changed);
    }
    (void)pthread_mutex_unlock(&fake.lock);
    return NULL;
}

static int queue(CuStream s, Work w)
{
    if (!find_object(STREAM, s))
        return INVALID_HANDLE;
    if (s->capture) { /* only launches are captured here */
        s->capture_broken = true;
        return CAPTURE_UNSUPPORTED;
    }
    Work *own = must(malloc(sizeof *own));
    *own = w;
    own->next = NULL;
    if (s->first)
        s->last->next = own;
    else
        s->first = own;
    s->last = own;
    (void)pthread_cond_broadcast(&fake.changed);
    return CU_SUCCESS;
}

/* As the driver's releases of memory do, which is why a device that hangs must not be asked. */
static void await_streams(void)
{
    const time_t start = time(NULL);
    for (Object *o = fake.objects; o; o = o->next) {
        const CuStream s = o->kind == STREAM ? o->p : NULL;
        while (s && s->first && !fake.contexts[o->device].sticky) {
            struct timespec t;
            (void)clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += 10000000;
            if (t.tv_nsec >= 1000000000) {
                t.tv_sec++;
                t.tv_nsec -= 1000000000;
            }
            (void)pthread_cond_timedwait(&fake.changed, &fake.lock, &t);
            if (time(NULL) - start > 20) {
                fputs("fake_cuda: a release waits for a device that hangs\n", stderr);
                abort();
            }
        }
    }
}

/* ---- entry points ---- */

int cuGetErrorName(int code, const char **name)
{
    *name = code == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == LAUNCH_FAILED  ? "CUDA_ERROR_LAUNCH_FAILED"
                                     : "CUDA_ERROR_FAKE";
    return CU_SUCCESS;
}

int cuInit(unsigned flags)
{
    const int e = enter(false);
    if (e == CU_SUCCESS && n_devices() == 0)
        return leave(CU_NO_DEVICE);
    return leave(e ? e : flags ? INVALID_VALUE : CU_SUCCESS);
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return leave(enter(false));
}

int cuDeviceGetCount(int *n)
{
    *n = n_devices();
    return leave(enter(false));
}

int cuDeviceGet(CuDevice *dev, int index)
{
    const int e = enter(false);
    *dev = index;
    return leave(e ? e : index < 0 || index >= n_devices() ? INVALID_DEVICE : CU_SUCCESS);
}

int cuDeviceGetName(char *name, int len, CuDevice dev)
{
    const int e = enter(false);
    if (!e)
        snprintf(name, (size_t)len, "Fake GPU %d", dev);
    return leave(e);
}

int cuDeviceGetAttribute(int *v, int attr, CuDevice dev)
{
    int e = enter(false);
    const int arch = setting("FAKE_CUDA_ARCH", 90);
    (void)dev;
    switch (attr) {
    case CU_ATTR_SMS:
        *v = setting("FAKE_CUDA_SMS", 4);
        break;
    case CU_ATTR_INTEGRATED:
        *v = setting("FAKE_CUDA_INTEGRATED", 0);
        break;
    case CU_ATTR_MAJOR:
        *v = arch / 10;
        break;
    case CU_ATTR_MINOR:
        *v = arch % 10;
        break;
    case CU_ATTR_SMEM_OPTIN:
        *v = arch >= 90 ? 227 * 1024 : arch >= 80 ? 163 * 1024 : 64 * 1024;
        break;
    default:
        e = e ? e : INVALID_VALUE;
    }
    return leave(e);
}

int cuDeviceTotalMem_v2(size_t *bytes, CuDevice dev)
{
    const int e = enter(false);
    (void)dev;
    *bytes = (size_t)memory_bytes();
    return leave(e);
}

int cuDeviceGetPCIBusId(char *id, int len, CuDevice dev)
{
    const int e = enter(false);
    if (!e)
        snprintf(id, (size_t)len, "0000:A%d:00.0", dev);
    return leave(e);
}

int cuDevicePrimaryCtxRetain(CuContext *ctx, CuDevice dev)
{
    const int e = enter(false);
    if (e)
        return leave(e);
    *ctx = &fake.contexts[dev];
    if ((*ctx)->refs++ == 0)
        (*ctx)->sticky = 0;
    fake.n_objects++;
    return leave((*ctx)->sticky);
}

/* With the last reference all that the context owns is gone, and so is what made it sick. Told to
 * fail, it is done all the same. */
int cuDevicePrimaryCtxRelease_v2(CuDevice dev)
{
    const int e = enter(false);
    CuContext ctx = &fake.contexts[dev];
    if (ctx->refs == 0)
        return leave(e ? e : INVALID_CONTEXT);
    fake.n_objects--;
    if (--ctx->refs > 0)
        return leave(e);
    await_streams();
    free_objects(dev, true); /* their threads end before what they work on goes */
    free_objects(dev, false);
    ctx->sticky = 0;
    return leave(e);
}

int cuCtxSetCurrent(CuContext ctx)
{
    const int e = enter(false);
    if (!e)
        current = ctx;
    return leave(e);
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    *total = (size_t)memory_bytes();
    *free_bytes = *total - current->used;
    return leave(CU_SUCCESS);
}

int cuMemAlloc_v2(uint64_t *p, size_t bytes)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (bytes == 0)
        return leave(INVALID_VALUE);
    if (current->used + bytes > memory_bytes())
        return leave(CU_OUT_OF_MEMORY);
    void *memory = NULL;
    if (posix_memalign(&memory, 512, bytes) != 0)
        return leave(CU_OUT_OF_MEMORY);
    memset(memory, 0xff, bytes);
    current->used += bytes;
    add_object(MEMORY, memory, bytes);
    *p = (uint64_t)(uintptr_t)memory;
    return leave(CU_SUCCESS);
}

int cuMemFree_v2(uint64_t p)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    await_streams();
    return leave(drop(MEMORY, (const void *)(uintptr_t)p));
}

int cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    const int e = enter(true);
    (void)flags;
    if (e)
        return leave(e);
    if (posix_memalign(p, 4096, bytes) != 0)
        return leave(CU_OUT_OF_MEMORY);
    memset(*p, 0xff, bytes);
    add_object(HOST, *p, bytes);
    return leave(CU_SUCCESS);
}

int cuMemFreeHost(void *p)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    await_streams();
    return leave(drop(HOST, p));
}

int cuMemHostGetDevicePointer_v2(uint64_t *p, void *host, unsigned flags)
{
    const int e = enter(true);
    *p = (uint64_t)(uintptr_t)host;
    return leave(e ? e : flags || !find_object(HOST, host) ? INVALID_VALUE : CU_SUCCESS);
}

static int queue_copy(void *to, const void *from, size_t bytes, CuStream s)
{
    const int e = enter(true);
    return leave(e ? e
                   : queue(s, (Work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes}));
}

int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t bytes, CuStream s)
{
    return queue_copy((void *)(uintptr_t)dst, src, bytes, s);
}

int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t bytes, CuStream s)
{
    return queue_copy(dst, (const void *)(uintptr_t)src, bytes, s);
}

int cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, size_t bytes, CuStream s)
{
    return queue_copy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, s);
}

int cuMemsetD8Async(uint64_t dst, unsigned char v, size_t bytes, CuStream s)
{
    const int e = enter(true);
    const Work w = {.kind = WORK_FILL, .to = (void *)(uintptr_t)dst, .bytes = bytes, .value = v};
    return leave(e ? e : queue(s, w));
}

int cuStreamCreate(CuStream *out, unsigned flags)
{
    const int e = enter(true);
    (void)flags;
    if (e)
        return leave(e);
    CuStream s = must(calloc(1, sizeof *s));
    s->device = device_of(current);
    if (pthread_create(&s->thread, NULL, stream_thread, s) != 0) {
        free(s);
        return leave(CU_OUT_OF_MEMORY);
    }
    add_object(STREAM, s, 0);
    *out = s;
    return leave(CU_SUCCESS);
}

int cuStreamDestroy_v2(CuStream s)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    await_streams();
    return leave(drop(STREAM, s));
}

int cuStreamQuery(CuStream s)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (!find_object(STREAM, s))
        return leave(INVALID_HANDLE);
    return leave(s->first ? CU_NOT_READY : CU_SUCCESS);
}

int cuStreamBeginCapture_v2(CuStream s, int mode)
{
    const int e = enter(true);
    (void)mode;
    if (e)
        return leave(e);
    if (!find_object(STREAM, s) || s->capture)
        return leave(INVALID_HANDLE);
    s->capture = must(calloc(1, sizeof *s->capture));
    s->capture_broken = false;
    return leave(CU_SUCCESS);
}

int cuStreamEndCapture(CuStream s, CuGraph *g)
{
    const int e = enter(true);
    *g = NULL;
    if (e)
        return leave(e);
    if (!find_object(STREAM, s) || !s->capture)
        return leave(INVALID_HANDLE);
    CuGraph graph = s->capture;
    s->capture = NULL;
    if (s->capture_broken) {
        free_graph(graph);
        free(graph);
        return leave(CAPTURE_INVALIDATED);
    }
    add_object(GRAPH, graph, 0);
    *g = graph;
    return leave(CU_SUCCESS);
}

int cuEventCreate(CuEvent *out, unsigned flags)
{
    const int e = enter(true);
    (void)flags;
    if (e)
        return leave(e);
    *out = must(calloc(1, sizeof **out));
    add_object(EVENT, *out, 0);
    return leave(CU_SUCCESS);
}

int cuEventDestroy_v2(CuEvent event)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    await_streams();
    return leave(drop(EVENT, event));
}

int cuEventRecord(CuEvent event, CuStream s)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (!find_object(EVENT, event))
        return leave(INVALID_HANDLE);
    const int code = queue(s, (Work){.kind = WORK_EVENT, .event = event});
    if (code == CU_SUCCESS)
        event->pending++;
    return leave(code);
}

int cuEventQuery(CuEvent event)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (!find_object(EVENT, event))
        return leave(INVALID_HANDLE);
    return leave(event->pending > 0 ? CU_NOT_READY : CU_SUCCESS);
}

int cuModuleLoadData(CuModule *m, const void *image)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (!image)
        return leave(INVALID_VALUE);
    *m = must(calloc(1, sizeof **m));
    add_object(MODULE, *m, 0);
    return leave(CU_SUCCESS);
}

int cuModuleUnload(CuModule m)
{
    const int e = enter(true);
    return leave(e ? e : drop(MODULE, m));
}

/* Images are not read: every module has every kernel of the emulator. */
int cuModuleGetFunction(CuFunction *f, CuModule m, const char *name)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (!find_object(MODULE, m))
        return leave(INVALID_HANDLE);
    if (!emu_has(name))
        return leave(CU_NOT_FOUND);
    CuFunction own = must(calloc(1, sizeof *own));
    snprintf(own->name, sizeof own->name, "%s", name);
    own->smem = 48 * 1024;
    own->next = m->functions;
    m->functions = own;
    *f = own;
    return leave(CU_SUCCESS);
}

int cuFuncSetAttribute(CuFunction f, int attr, int v)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (attr != CU_FUNCTION_MAX_DYNAMIC_SMEM)
        return leave(INVALID_VALUE);
    f->smem = v;
    return leave(CU_SUCCESS);
}

int cuLaunchKernelEx(const CuLaunchConfig *c, CuFunction f, void **params, void **extra)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    CuStream s = c->stream;
    if (!find_object(STREAM, s) || !s->capture || extra) /* launches outside graphs are not used */
        return leave(INVALID_HANDLE);
    if ((int)c->smem_bytes > f->smem || c->block_y != 1 || c->block_z != 1) {
        s->capture_broken = true;
        return leave(INVALID_VALUE);
    }
    struct CuGraphOpaque *g = s->capture;
    if (g->n == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 64;
        g->launches = must(realloc(g->launches, (size_t)g->cap * sizeof *g->launches));
    }
    Launch *l = &g->launches[g->n++];
    *l = (Launch){.grid = {(int)c->grid_x, (int)c->grid_y, (int)c->grid_z},
                  .block = (int)c->block_x,
                  .smem = (int)c->smem_bytes,
                  .params_bytes = emu_params_bytes(f->name)};
    memcpy(l->kernel, f->name, sizeof l->kernel);
    for (unsigned i = 0; i < c->n_attrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_CLUSTER)
            l->cluster = (int)c->attrs[i].value.cluster.x;
    l->params = must(malloc(l->params_bytes));
    memcpy(l->params, params[0], l->params_bytes);
    return leave(CU_SUCCESS);
}

int cuGraphDestroy(CuGraph g)
{
    const int e = enter(true);
    return leave(e ? e : drop(GRAPH, g));
}

int cuGraphInstantiateWithFlags(CuGraphExec *x, CuGraph g, unsigned long long flags)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (!find_object(GRAPH, g) || flags)
        return leave(INVALID_HANDLE);
    CuGraphExec own = must(calloc(1, sizeof *own));
    own->graph.n = own->graph.cap = g->n;
    own->graph.launches = must(calloc((size_t)g->n + 1, sizeof *g->launches));
    for (int i = 0; i < g->n; i++) {
        Launch *l = &own->graph.launches[i];
        *l = g->launches[i];
        l->params = must(malloc(l->params_bytes));
        memcpy(l->params, g->launches[i].params, l->params_bytes);
    }
    add_object(EXEC, own, 0);
    *x = own;
    return leave(CU_SUCCESS);
}

int cuGraphExecDestroy(CuGraphExec x)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    await_streams();
    return leave(drop(EXEC, x));
}

int cuGraphUpload(CuGraphExec x, CuStream s)
{
    const int e = enter(true);
    (void)s;
    return leave(e ? e : find_object(EXEC, x) ? CU_SUCCESS : INVALID_HANDLE);
}

int cuGraphLaunch(CuGraphExec x, CuStream s)
{
    const int e = enter(true);
    if (e)
        return leave(e);
    if (!find_object(EXEC, x))
        return leave(INVALID_HANDLE);
    return leave(queue(s, (Work){.kind = WORK_GRAPH, .exec = x}));
}

/* ---- what tests ask ---- */

static int64_t live(void)
{
    (void)pthread_mutex_lock(&fake.lock);
    const int64_t n = fake.n_objects;
    (void)pthread_mutex_unlock(&fake.lock);
    return n;
}

static uint64_t calls(void)
{
    (void)pthread_mutex_lock(&fake.lock);
    const uint64_t n = fake.calls;
    (void)pthread_mutex_unlock(&fake.lock);
    return n;
}

static void fail_at(uint64_t n, int code, bool sticky)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.fail_at = n ? fake.calls + n : 0;
    fake.fail_code = code;
    fake.fail_sticky = sticky;
    (void)pthread_mutex_unlock(&fake.lock);
}

static void hang(bool on)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.hang = on;
    (void)pthread_cond_broadcast(&fake.changed);
    (void)pthread_mutex_unlock(&fake.lock);
}

static void fail_launch(int k)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.fail_launch = k;
    (void)pthread_mutex_unlock(&fake.lock);
}

static uint64_t launches(void)
{
    (void)pthread_mutex_lock(&fake.lock);
    const uint64_t n = fake.launches;
    (void)pthread_mutex_unlock(&fake.lock);
    return n;
}

static void ends_only(bool on)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.ends_only = on;
    (void)pthread_mutex_unlock(&fake.lock);
}

static void set_memory(uint64_t bytes)
{
    (void)pthread_mutex_lock(&fake.lock);
    fake.memory = bytes;
    (void)pthread_mutex_unlock(&fake.lock);
}

const FakeCuda *fake_cuda_table(void)
{
    static const FakeCuda table = {.live = live,
                                   .calls = calls,
                                   .fail_at = fail_at,
                                   .hang = hang,
                                   .fail_launch = fail_launch,
                                   .launches = launches,
                                   .ends_only = ends_only,
                                   .set_memory = set_memory};
    return &table;
}
