/* poser.h: the CPU posing as a GPU, so that the engine can be tested with all that comes with one
 * where there is none: memory of its own with a limit, weights that take their time to arrive, two
 * steps in flight that run only when they are waited for, tokens drawn on the device (greedy ones).
 * One device at a time. */
#ifndef MERE_TESTS_ENGINE_POSER_H
#define MERE_TESTS_ENGINE_POSER_H

#include "device/device.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POSER_VOCAB = 320, POSER_SLOTS = 16, POSER_CONTEXT = 5000000, POSER_HOST = 70000 };

typedef struct PoserWork PoserWork;
struct PoserWork {
    PoserWork *next;
    uint64_t ticket; /* 0: a copy */
    KvPool *pool;
    Program *program;
    int group, from, to, n_tokens; /* group -1: of a state */
    StepBlock step;
    Row *rows;
    Segment *segs;
    int32_t *out_rows, *pages;
    SampleDesc *samples;
};

static struct {
    _Atomic uint64_t limit_bytes; /* the tests change it while the engine looks */
    uint64_t used_bytes;
    bool shared;
    bool lacks;      /* it cannot run the model */
    int lost_step;   /* 0: none */
    int load_parts;  /* a load tells so often how far it is, */
    int part_ms;     /* this far apart */
    int told, steps; /* seen */
    int most_flights, drawn_here;
    KvPoolDesc pool;
    PoserWork *work, *last;
    int32_t drawn[POSER_SLOTS];
} poser;

static bool poser_open(const DeviceOptions *opt, Device **out, Error *err)
{
    poser.used_bytes = POSER_CONTEXT;
    return device_cpu.open(opt, out, err);
}

static void poser_memory(const Device *d, DeviceMemory *out)
{
    (void)d;
    *out = (DeviceMemory){poser.limit_bytes, poser.used_bytes, poser.shared};
}

static Placement poser_place(const Device *d, const Weight *w, int64_t *bytes)
{
    (void)d;
    *bytes = w->n * w->k * (w->n_experts > 0 ? w->n_experts : 1); /* a byte each */
    return PLACE_REPACK;
}

static bool poser_supports(const Device *d, const GraphPlan *plan, Error *err)
{
    return poser.lacks ? err_set(err, ERR_UNSUPPORTED, "no attention, no experts")
                       : device_cpu.supports(d, plan, err);
}

static void poser_need(const Device *d, const GraphPlan *plan, const KvPoolDesc *pool,
                       DeviceNeed *out)
{
    device_cpu.need(d, plan, pool, out);
    out->host = POSER_HOST;
}

static int64_t poser_weight_bytes(const Weight *const *weights, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        int64_t bytes;
        bool again = false;
        (void)poser_place(NULL, weights[i], &bytes);
        for (int j = 0; j < i; j++)
            again = again || weights[j]->segs[0].data == weights[i]->segs[0].data;
        sum += again ? 0 : bytes;
    }
    return sum;
}

struct DeviceWeights {
    int64_t bytes;
};

static bool poser_weights_open(Device *d, const Weight *const *weights, int n,
                               const LoadProgress *progress, DeviceWeights **out, Error *err)
{
    (void)d;
    const int64_t total = poser_weight_bytes(weights, n);
    for (int i = 1; i <= poser.load_parts; i++) {
        const struct timespec pause = {0, poser.part_ms * 1000000L};
        nanosleep(&pause, NULL);
        progress->fn(progress->ctx, (uint64_t)(total * i / poser.load_parts), (uint64_t)total);
        poser.told++;
        if (progress->cancel && *progress->cancel)
            return err_set(err, ERR_CANCELLED, "the load was ended");
    }
    *out = malloc(sizeof **out);
    (*out)->bytes = total;
    poser.used_bytes += (uint64_t)total;
    return true;
}

static void poser_weights_close(Device *d, DeviceWeights *w)
{
    (void)d;
    poser.used_bytes -= (uint64_t)w->bytes;
    free(w);
}

static uint64_t poser_pool_bytes(const KvPoolDesc *desc)
{
    int64_t state;
    const int64_t kv = device_cpu.pool_bytes(desc, &state);
    return (uint64_t)(kv + state);
}

static bool poser_pool_open(Device *d, const KvPoolDesc *desc, KvPool **out, Error *err)
{
    poser.pool = *desc;
    poser.used_bytes += poser_pool_bytes(desc);
    return device_cpu.pool_open(d, desc, out, err);
}

static void poser_pool_close(Device *d, KvPool *pool)
{
    poser.used_bytes -= poser_pool_bytes(&poser.pool);
    device_cpu.pool_close(d, pool);
}

static int64_t poser_program_bytes;

static bool poser_lower(Device *d, const GraphPlan *plan, const DeviceWeights *w,
                        const KvPoolDesc *pool, Program **out, Error *err)
{
    DeviceNeed need;
    (void)w;
    poser_need(d, plan, pool, &need);
    poser_program_bytes = need.scratch + need.runtime;
    if (!device_cpu.lower(d, plan, NULL, pool, out, err))
        return false;
    poser.used_bytes += (uint64_t)poser_program_bytes;
    return true;
}

static void poser_program_close(Device *d, Program *p)
{
    poser.used_bytes -= (uint64_t)poser_program_bytes;
    device_cpu.program_close(d, p);
}

/* ---- the queue ---- */

static PoserWork *poser_push(KvPool *pool)
{
    PoserWork *w = calloc(1, sizeof *w);
    w->pool = pool;
    *(poser.work ? &poser.last->next : &poser.work) = w;
    poser.last = w;
    return w;
}

static void *poser_dup(const void *p, size_t bytes)
{
    void *own = malloc(bytes + 1);
    if (bytes > 0)
        memcpy(own, p, bytes);
    return own;
}

static void poser_page_copy(Device *d, KvPool *pool, int group, int from, int to, int n_tokens)
{
    (void)d;
    PoserWork *w = poser_push(pool);
    w->group = group;
    w->from = from;
    w->to = to;
    w->n_tokens = n_tokens;
}

static void poser_state_copy(Device *d, KvPool *pool, int from, int to)
{
    poser_page_copy(d, pool, -1, from, to, 0);
}

static bool poser_submit(Device *d, Program *p, KvPool *pool, const StepBlock *s, uint64_t *ticket,
                         Error *err)
{
    (void)d;
    *ticket = (uint64_t)++poser.steps;
    if (poser.lost_step > 0 && poser.steps >= poser.lost_step)
        return err_set(err, ERR_LOST, "the poser is lost");
    PoserWork *w = poser_push(pool);
    w->ticket = *ticket;
    w->program = p;
    w->step = *s;
    w->rows = poser_dup(s->rows, sizeof *w->rows * (size_t)s->n_rows);
    w->segs = poser_dup(s->segs, sizeof *w->segs * (size_t)s->n_segs);
    w->out_rows = poser_dup(s->out_rows, sizeof *w->out_rows * (size_t)s->n_out);
    w->samples = poser_dup(s->samples, sizeof *w->samples * (size_t)s->n_samples);
    const KvPoolDesc *k = &poser.pool;
    const size_t table = (size_t)(k->n_groups > 0 ? k->seq_pages[0] : 0);
    w->pages = malloc(sizeof *w->pages * table * (size_t)(s->n_segs * k->n_groups) + 1);
    for (int i = 0; i < s->n_segs; i++)
        for (int g = 0; g < k->n_groups; g++) {
            int32_t *own = w->pages + table * (size_t)(i * k->n_groups + g);
            memcpy(own, s->segs[i].pages[g], sizeof *own * table);
            w->segs[i].pages[g] = own;
        }
    int waiting = 0;
    for (const PoserWork *q = poser.work; q; q = q->next)
        waiting += q->ticket > 0;
    poser.most_flights = waiting > poser.most_flights ? waiting : poser.most_flights;
    poser.drawn_here += s->n_samples;
    return true;
}

static int32_t poser_draw(const float *logits)
{
    int best = 0;
    for (int i = 1; i < POSER_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static bool poser_run_step(Device *d, PoserWork *w, Error *err)
{
    StepBlock s = w->step;
    uint64_t ticket;
    for (int i = 0; i < s.n_rows; i++)
        if (w->rows[i].token < 0)
            w->rows[i].token = poser.drawn[-1 - w->rows[i].token];
    float *logits = malloc(sizeof *logits * (size_t)(s.n_out * POSER_VOCAB) + 1);
    s.rows = w->rows;
    s.segs = w->segs;
    s.out_rows = w->out_rows;
    s.n_samples = 0;
    s.logits = logits;
    const bool ok = device_cpu.submit(d, w->program, w->pool, &s, &ticket, err) &&
                    device_cpu.wait(d, w->program, ticket, 0, err);
    for (int i = 0; ok && i < w->step.n_samples; i++) {
        const SampleDesc *sd = &w->samples[i];
        const float *row = logits + (int64_t)sd->out * POSER_VOCAB;
        const int32_t token = poser_draw(row);
        poser.drawn[sd->slot] = token;
        w->step.results[i] = (SampleResult){token, row[token]};
    }
    if (ok && w->step.logits)
        memcpy(w->step.logits, logits, sizeof *logits * (size_t)(s.n_out * POSER_VOCAB));
    free(logits);
    return ok;
}

static bool poser_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    (void)p;
    (void)deadline_ns;
    bool ok = true;
    for (bool last = false; poser.work && !last;) {
        PoserWork *w = poser.work;
        last = w->ticket == ticket;
        if (w->ticket > 0)
            ok = poser_run_step(d, w, err) && ok;
        else if (w->group < 0)
            device_cpu.state_copy(d, w->pool, w->from, w->to);
        else
            device_cpu.page_copy(d, w->pool, w->group, w->from, w->to, w->n_tokens);
        poser.work = w->next;
        free(w->rows);
        free(w->segs);
        free(w->out_rows);
        free(w->pages);
        free(w->samples);
        free(w);
    }
    return ok;
}

/* Copies that nobody waited for. */
static void poser_drop_queue(void)
{
    while (poser.work) {
        PoserWork *w = poser.work;
        poser.work = w->next;
        free(w);
    }
}

static void poser_close(Device *d)
{
    poser_drop_queue();
    device_cpu.close(d);
}

static const DeviceOps *poser_ops(void)
{
    static DeviceOps ops;
    ops = device_cpu;
    ops.name = "poser";
    ops.samples = true;
    ops.in_flight = 2;
    ops.open = poser_open;
    ops.close = poser_close;
    ops.memory = poser_memory;
    ops.place = poser_place;
    ops.supports = poser_supports;
    ops.need = poser_need;
    ops.weights_open = poser_weights_open;
    ops.weights_close = poser_weights_close;
    ops.pool_open = poser_pool_open;
    ops.pool_close = poser_pool_close;
    ops.page_copy = poser_page_copy;
    ops.state_copy = poser_state_copy;
    ops.lower = poser_lower;
    ops.program_close = poser_program_close;
    ops.submit = poser_submit;
    ops.wait = poser_wait;
    return &ops;
}

#endif
