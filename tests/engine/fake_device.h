/* fake_device.h: a device for tests of scheduling: the logits of a row are a hash of all tokens up
 * to it, read from the pages and the state that the step names. A wrong page, a copy that was not
 * made, a window's page given back too early or a wrong state slot all change the hash, so a test
 * only has to compare tokens with fake_answer.
 *
 * It is as late as a device may be: steps and copies are queued, and run in order when a step is
 * waited for. */
#ifndef MERE_TESTS_ENGINE_FAKE_DEVICE_H
#define MERE_TESTS_ENGINE_FAKE_DEVICE_H

#include "base/mem.h"
#include "device/device.h"
#include "engine/events.h"
#include "engine/sample.h"
#include "engine/sched.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A step or a copy that waits to be run; a step's own copies of what it reads. */
typedef struct FakeWork FakeWork;
struct FakeWork {
    FakeWork *next;
    uint64_t ticket; /* 0: a copy */
    KvPool *pool;
    int group, from, to, n_tokens; /* copies; group -1: of a state */
    StepBlock step;
    Row *rows;
    Segment *segs;
    int32_t *out_rows, *pages;
    SampleDesc *samples;
};

struct Device {
    int vocab;
    int steps, copies, waited;
    int fail_step; /* this step number is refused (1: the first), 0: none */
    int fail_wait; /* this step number fails when it is waited for */
    bool lost;     /* ... as a lost device */
    bool broken;
    int64_t rows, most_rows;
    int in_flight;
    int most_flights, ahead_rows, drawn_here; /* seen */
    FakeWork *work, *last;
    int32_t drawn[64];
};

struct KvPool {
    KvPoolDesc desc;
    int32_t *tokens[KV_GROUPS_MAX]; /* [n_pages][page_tokens] */
    uint64_t *state;                /* [n_states] */
};

struct Program {
    int vocab;
};

static inline uint64_t fake_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15U;
    h ^= h >> 29;
    return h * 0xbf58476d1ce4e5b9U ^ (h >> 32);
}

/* What a row sees of a group: all tokens, or those of the window. */
static inline uint64_t fake_hash(const int32_t *tokens, int n, int window)
{
    uint64_t h = 1;
    for (int i = window > 0 && n > window ? n - window : 0; i < n; i++)
        h = fake_mix(h, (uint64_t)(uint32_t)tokens[i]);
    return h;
}

static inline uint64_t fake_state_hash(const int32_t *tokens, int n)
{
    uint64_t h = 7;
    for (int i = 0; i < n; i++)
        h = fake_mix(h, (uint64_t)(uint32_t)tokens[i]);
    return h;
}

static inline void fake_logits(uint64_t h, int vocab, float *out)
{
    for (int i = 0; i < vocab; i++) {
        const uint64_t x = fake_mix(h, (uint64_t)(uint32_t)i + 1000);
        out[i] = (float)(x >> 40) * 0x1p-24F * 12 - 6;
    }
}

/* Logits after `tokens` by the definition. */
static inline void fake_expect(const KvPoolDesc *d, const int32_t *tokens, int n, int vocab,
                               float *out)
{
    uint64_t h = 3;
    for (int g = 0; g < d->n_groups; g++)
        h = fake_mix(h, fake_hash(tokens, n, d->groups[g].window));
    if (d->state_floats > 0)
        h = fake_mix(h, fake_state_hash(tokens, n));
    fake_logits(h, vocab, out);
}

static inline KvPool *fake_pool(const KvPoolDesc *d)
{
    KvPool *p = calloc(1, sizeof *p);
    p->desc = *d;
    for (int g = 0; g < d->n_groups; g++) {
        const size_t n = (size_t)d->n_pages[g] * (size_t)d->page_tokens[g];
        p->tokens[g] = malloc(n * sizeof(int32_t) + 1);
        memset(p->tokens[g], 0xee, n * sizeof(int32_t));
    }
    p->state = calloc((size_t)d->n_states + 1, sizeof *p->state);
    return p;
}

static inline void fake_pool_free(KvPool *p)
{
    for (int g = 0; g < p->desc.n_groups; g++)
        free(p->tokens[g]);
    free(p->state);
    free(p);
}

/* ---- drawing, by the definition of device.h ---- */

static inline int32_t fake_draw(const float *logits, int vocab, const SampleDesc *d)
{
    int order[256];
    double w[256];
    assert_true(vocab <= 256);
    for (int i = 0; i < vocab;
         i++) { /* by insertion: most likely first, of equals the smaller id */
        int at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    if (d->temperature < 1e-4F)
        return order[0];
    int n = d->top_k > 0 && d->top_k < vocab ? d->top_k : vocab;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        w[i] = exp((double)(logits[order[i]] - logits[order[0]]) / (double)d->temperature);
        sum += w[i];
    }
    if (d->top_p > 0 && d->top_p < 1) {
        double mass = w[0];
        int keep = 1;
        while (keep < n && mass < (double)d->top_p * sum)
            mass += w[keep++];
        n = keep;
    }
    while (n > 1 && w[n - 1] < (double)d->min_p)
        n--;
    sum = 0;
    for (int i = 0; i < n; i++)
        sum += w[i];
    double mass = w[0];
    int i = 0;
    while (i < n - 1 && mass <= d->random * sum)
        mass += w[++i];
    return order[i];
}

/* ---- the queue ---- */

static inline void fake_work_free(FakeWork *w)
{
    free(w->rows);
    free(w->segs);
    free(w->out_rows);
    free(w->pages);
    free(w->samples);
    free(w);
}

static inline FakeWork *fake_push(Device *d, KvPool *p)
{
    FakeWork *w = calloc(1, sizeof *w);
    w->pool = p;
    *(d->work ? &d->last->next : &d->work) = w;
    d->last = w;
    return w;
}

static inline void *fake_dup(const void *p, size_t bytes)
{
    void *own = malloc(bytes + 1);
    if (bytes > 0)
        memcpy(own, p, bytes);
    return own;
}

static void fake_page_copy(Device *d, KvPool *p, int group, int from, int to, int n_tokens)
{
    d->copies++;
    assert_true(from >= 0 && from < p->desc.n_pages[group] && to >= 0 &&
                to < p->desc.n_pages[group] && from != to &&
                n_tokens <= p->desc.page_tokens[group]);
    FakeWork *w = fake_push(d, p);
    w->group = group;
    w->from = from;
    w->to = to;
    w->n_tokens = n_tokens;
}

static void fake_state_copy(Device *d, KvPool *p, int from, int to)
{
    d->copies++;
    assert_true(from >= 0 && from < p->desc.n_states && to >= 0 && to < p->desc.n_states);
    FakeWork *w = fake_push(d, p);
    w->group = -1;
    w->from = from;
    w->to = to;
}

static inline void fake_run_copy(const FakeWork *w)
{
    KvPool *p = w->pool;
    if (w->group < 0) {
        p->state[w->to] = p->state[w->from];
        return;
    }
    const int size = p->desc.page_tokens[w->group];
    memcpy(p->tokens[w->group] + (int64_t)w->to * size,
           p->tokens[w->group] + (int64_t)w->from * size, (size_t)w->n_tokens * sizeof(int32_t));
}

/* The row's tokens through the page table. */
static uint64_t fake_row_hash(const KvPool *p, const Segment *seg, int n)
{
    uint64_t h = 3;
    for (int g = 0; g < p->desc.n_groups; g++) {
        const int window = p->desc.groups[g].window;
        const int size = p->desc.page_tokens[g];
        uint64_t hg = 1;
        for (int i = window > 0 && n > window ? n - window : 0; i < n; i++) {
            const int32_t page = seg->pages[g][i / size];
            assert_in_range(page, 0, p->desc.n_pages[g] - 1);
            hg = fake_mix(hg, (uint64_t)(uint32_t)p->tokens[g][(int64_t)page * size + i % size]);
        }
        h = fake_mix(h, hg);
    }
    return h;
}

static inline void fake_run_step(Device *d, FakeWork *w)
{
    KvPool *p = w->pool;
    const StepBlock *s = &w->step;
    int out = 0;
    for (int i = 0; i < s->n_rows; i++)
        if (w->rows[i].token < 0)
            w->rows[i].token = d->drawn[-1 - w->rows[i].token];
    float *logits = malloc(sizeof *logits * (size_t)(s->n_out * d->vocab) + 1);
    for (int i = 0; i < s->n_segs; i++) {
        const Segment *seg = &w->segs[i];
        const int row = seg->row0;
        /* All rows are written before any is read, as a device does it. */
        for (int r = 0; r < seg->n_rows; r++) {
            const int at = seg->kv_len - seg->n_rows + r;
            for (int g = 0; g < p->desc.n_groups; g++) {
                const int size = p->desc.page_tokens[g];
                p->tokens[g][(int64_t)seg->pages[g][at / size] * size + at % size] =
                    w->rows[row + r].token;
            }
        }
        uint64_t state =
            seg->state_in >= 0 && p->desc.state_floats > 0 ? p->state[seg->state_in] : 7;
        for (int r = 0; r < seg->n_rows; r++) {
            state = fake_mix(state, (uint64_t)(uint32_t)w->rows[row + r].token);
            if (out < s->n_out && w->out_rows[out] == row + r) {
                uint64_t h = fake_row_hash(p, seg, seg->kv_len - seg->n_rows + r + 1);
                if (p->desc.state_floats > 0)
                    h = fake_mix(h, state);
                fake_logits(h, d->vocab, logits + (int64_t)out * d->vocab);
                out++;
            }
        }
        if (p->desc.state_floats > 0)
            p->state[seg->state_out] = state;
    }
    assert_int_equal(out, s->n_out);
    for (int i = 0; i < s->n_samples; i++) {
        const SampleDesc *sd = &w->samples[i];
        const int32_t token = fake_draw(logits + (int64_t)sd->out * d->vocab, d->vocab, sd);
        d->drawn[sd->slot] = token;
        s->results[i] = (SampleResult){token, logits[(int64_t)sd->out * d->vocab + token]};
    }
    if (s->logits)
        memcpy(s->logits, logits, sizeof *logits * (size_t)(s->n_out * d->vocab));
    free(logits);
}

/* Runs what is queued up to the step of the ticket; 0: everything. */
static inline void fake_run_until(Device *d, uint64_t ticket)
{
    while (d->work) {
        FakeWork *w = d->work;
        const bool last = ticket > 0 && w->ticket == ticket;
        if (w->ticket > 0)
            fake_run_step(d, w);
        else
            fake_run_copy(w);
        d->work = w->next;
        fake_work_free(w);
        if (last)
            return;
    }
}

static inline void fake_check_step(const Device *d, const KvPool *p, const StepBlock *s)
{
    int row = 0;
    for (int i = 0; i < s->n_segs; i++) {
        const Segment *seg = &s->segs[i];
        assert_int_equal(seg->row0, row);
        for (int r = 0; r < seg->n_rows; r++) {
            const Row *at = &s->rows[row + r];
            assert_int_equal(at->pos, seg->kv_len - seg->n_rows + r);
            assert_true(at->token >= 0 || d->in_flight > 1);
            for (int g = 0; g < p->desc.n_groups; g++)
                assert_in_range(seg->pages[g][at->pos / p->desc.page_tokens[g]], 0,
                                p->desc.n_pages[g] - 1);
        }
        if (p->desc.state_floats > 0) {
            assert_in_range(seg->state_out, 0, p->desc.n_states - 1);
            if (seg->state_in < 0)
                assert_int_equal(seg->kv_len, seg->n_rows);
        }
        row += seg->n_rows;
    }
    assert_int_equal(row, s->n_rows);
    for (int i = 0; i < s->n_samples; i++) {
        assert_in_range(s->samples[i].out, 0, s->n_out - 1);
        assert_in_range(s->samples[i].slot, 0, COUNT_OF(d->drawn) - 1);
        assert_true(s->samples[i].random >= 0 && (float)s->samples[i].random < 1);
    }
    assert_true(s->logits || s->n_samples == s->n_out);
}

static bool fake_submit(Device *d, Program *prog, KvPool *p, const StepBlock *s, uint64_t *ticket,
                        Error *err)
{
    (void)prog;
    d->steps++;
    *ticket = (uint64_t)d->steps;
    if (d->steps == d->fail_step)
        return err_set(err, d->lost ? ERR_LOST : ERR_DEVICE, "step %d was made to fail", d->steps);
    fake_check_step(d, p, s);
    int waiting = 1;
    for (const FakeWork *w = d->work; w; w = w->next)
        waiting += w->ticket > 0;
    assert_true(waiting <= d->in_flight);
    d->most_flights = waiting > d->most_flights ? waiting : d->most_flights;
    d->rows += s->n_rows;
    d->most_rows = i64_max(d->most_rows, s->n_rows);
    d->drawn_here += s->n_samples;
    for (int i = 0; i < s->n_rows; i++)
        d->ahead_rows += s->rows[i].token < 0;
    FakeWork *w = fake_push(d, p);
    w->ticket = *ticket;
    w->step = *s;
    w->rows = fake_dup(s->rows, sizeof *w->rows * (size_t)s->n_rows);
    w->segs = fake_dup(s->segs, sizeof *w->segs * (size_t)s->n_segs);
    w->out_rows = fake_dup(s->out_rows, sizeof *w->out_rows * (size_t)s->n_out);
    w->samples = fake_dup(s->samples, sizeof *w->samples * (size_t)s->n_samples);
    size_t n_pages = 0;
    for (int i = 0; i < s->n_segs; i++)
        for (int g = 0; g < p->desc.n_groups; g++)
            n_pages += (size_t)((s->segs[i].kv_len - 1) / p->desc.page_tokens[g] + 1);
    int32_t *at = w->pages = malloc(sizeof *w->pages * n_pages + 1);
    for (int i = 0; i < s->n_segs; i++)
        for (int g = 0; g < p->desc.n_groups; g++) {
            const int n = (s->segs[i].kv_len - 1) / p->desc.page_tokens[g] + 1;
            memcpy(at, s->segs[i].pages[g], sizeof *at * (size_t)n);
            w->segs[i].pages[g] = at;
            at += n;
        }
    /* Who reads before waiting finds nothing. */
    for (int i = 0; i < s->n_samples; i++)
        s->results[i] = (SampleResult){-77, 0};
    for (int64_t i = 0; s->logits && i < (int64_t)s->n_out * d->vocab; i++)
        s->logits[i] = NAN;
    return true;
}

static bool fake_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    (void)p;
    assert_true(deadline_ns > 0);
    assert_true(ticket > (uint64_t)d->waited);
    d->waited = (int)ticket;
    const bool failed = d->fail_wait > 0 &&
                        ((int)ticket == d->fail_wait || (d->lost && (int)ticket > d->fail_wait));
    for (FakeWork *w = d->work; failed && w; w = w->next)
        for (int i = 0; w->ticket == ticket && i < w->step.n_rows; i++)
            w->rows[i].token = 0x5555; /* what it leaves is rubbish */
    fake_run_until(d, ticket);
    return !failed || err_set(err, d->lost ? ERR_LOST : ERR_DEVICE, "step %d failed", (int)ticket);
}

static const DeviceOps fake_ops = {
    .name = "fake",
    .in_flight = 1,
    .page_copy = fake_page_copy,
    .state_copy = fake_state_copy,
    .submit = fake_submit,
    .wait = fake_wait,
};

/* As a GPU is. */
static const DeviceOps fake_gpu_ops = {
    .name = "fakegpu",
    .samples = true,
    .in_flight = 2,
    .page_copy = fake_page_copy,
    .state_copy = fake_state_copy,
    .submit = fake_submit,
    .wait = fake_wait,
};

/* ---- a scheduler over it ---- */

typedef struct FakeShape {
    int vocab, ctx, slots, chunk, page_tokens, queue;
    int windows[KV_GROUPS_MAX]; /* per group, 0: full */
    int n_groups;
    int n_snapshots; /* with state */
    bool state;
    int pages_less; /* than all slots together need, in full groups */
    bool no_share;
    int snapshot_tokens;
    bool gpu;
} FakeShape;

typedef struct Fake {
    FakeShape shape;
    Arena arena;
    Device device;
    Program program;
    KvPool *pool;
    KvPoolDesc desc;
    Events events;
    Sched *sched;
    RequestLimits limits;
} Fake;

enum { FAKE_EOS = 1, FAKE_MUTE = 2 };

/* Token t is "<t>", but some make up characters and stops in pieces. */
static Str fake_text(const void *ctx, int32_t id)
{
    (void)ctx;
    static const char *const pieces[] = {"",         "",         "",    "a",  "b", "ab",
                                         "\xc3",     "\xa9",     "END", "EN", "D", "stop ",
                                         "\xf0\x9f", "\x98\x80", " ",   "x"};
    return id >= 0 && (size_t)id < COUNT_OF(pieces) ? str_from(pieces[id]) : str_from("w ");
}

static bool fake_broken(const void *ctx)
{
    return ((const Fake *)ctx)->device.broken;
}

static inline KvPoolDesc fake_desc(const FakeShape *s)
{
    KvPoolDesc d = {.n_groups = s->n_groups, .state_floats = s->state ? 2 : 0};
    for (int g = 0; g < s->n_groups; g++) {
        d.groups[g] = (KvGroup){.n_layers = 1, .n_kv_heads = 1, .window = s->windows[g]};
        d.page_tokens[g] = s->page_tokens;
        d.n_pages[g] = kv_pool_pages(&d.groups[g], s->page_tokens, s->ctx, s->slots,
                                     s->chunk > 2 ? s->chunk : 2) -
                       (s->windows[g] ? 0 : s->pages_less);
    }
    d.n_states = s->state ? s->slots + s->n_snapshots : 0;
    return d;
}

static inline bool fake_open(Fake *f, const FakeShape *shape, Error *err)
{
    const DeviceOps *ops = shape->gpu ? &fake_gpu_ops : &fake_ops;
    *f = (Fake){.shape = *shape,
                .device = {.vocab = shape->vocab, .in_flight = ops->in_flight},
                .program = {shape->vocab}};
    arena_init(&f->arena, "fake");
    f->desc = fake_desc(shape);
    f->pool = fake_pool(&f->desc);
    f->limits = (RequestLimits){.vocab = shape->vocab, .ctx = shape->ctx, .echo_rows = 3};
    if (!events_open(&f->events, 100000, err))
        return false;
    static const int32_t eos[] = {FAKE_EOS};
    const SchedDesc d = {
        .kv = {.ops = ops,
               .device = &f->device,
               .pool = f->pool,
               .desc = f->desc,
               .ctx = shape->ctx,
               .slots = shape->slots,
               .max_rows = shape->chunk > ops->in_flight ? shape->chunk : ops->in_flight,
               .page_tokens = shape->page_tokens,
               .share = !shape->no_share},
        .program = &f->program,
        .events = &f->events,
        .flights = ops->in_flight,
        .vocab = shape->vocab,
        .max_rows = shape->chunk > shape->slots ? shape->chunk : shape->slots,
        .max_out = shape->slots + 3,
        .chunk = shape->chunk,
        .queue = shape->queue,
        .snapshot_tokens = shape->snapshot_tokens,
        .eos = eos,
        .n_eos = 1,
        .text = fake_text,
        .piece = fake_text,
        .broken = fake_broken,
        .ctx = f,
    };
    if (sched_open(&f->arena, &d, &f->sched, err))
        return true;
    f->sched = NULL;
    return false;
}

static inline void fake_close(Fake *f)
{
    sched_close(f->sched);
    fake_run_until(&f->device, 0);
    events_close(&f->events);
    fake_pool_free(f->pool);
    arena_free(&f->arena);
}

/* The answer by the definition: n tokens or up to EOS (included). Returns the count. */
static inline int fake_answer(const Fake *f, const int32_t *prompt, int n_prompt, int n,
                              bool ignore_eos, const MereSampling *p, int32_t *out)
{
    const int vocab = f->shape.vocab;
    int32_t *all = malloc(sizeof *all * (size_t)(n_prompt + n));
    float *logits = malloc(sizeof *logits * (size_t)vocab);
    Arena a;
    arena_init(&a, "answer");
    Sampler sampler;
    Error err;
    if (!sample_init(&a, vocab, &sampler, &err))
        fail_msg("%s", err.msg);
    memcpy(all, prompt, sizeof *all * (size_t)n_prompt);
    int made = 0;
    while (made < n) {
        const int at = n_prompt + made;
        fake_expect(&f->desc, all, at, vocab, logits);
        int32_t token;
        if (f->shape.gpu && sample_is_plain(p)) {
            const SampleDesc d = {.temperature = p->temperature,
                                  .top_k = p->top_k,
                                  .top_p = p->top_p,
                                  .min_p = p->min_p,
                                  .random = (double)(float)sample_random(p->seed, (uint64_t)at)};
            token = fake_draw(logits, vocab, &d);
        } else {
            const SampleHistory h = {all, n_prompt, at};
            Sampled s;
            if (!sample_next(&sampler, p, &h, logits, &s, &err))
                fail_msg("%s", err.msg);
            token = s.token;
        }
        all[at] = out[made++] = token;
        if (token == FAKE_EOS && !ignore_eos)
            break;
    }
    arena_free(&a);
    free(logits);
    free(all);
    return made;
}

static inline int fake_greedy(const Fake *f, const int32_t *prompt, int n_prompt, int n,
                              bool ignore_eos, int32_t *out)
{
    const MereSampling greedy = {.logprobs = -1};
    return fake_answer(f, prompt, n_prompt, n, ignore_eos, &greedy, out);
}

#endif
