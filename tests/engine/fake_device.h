/* fake_device.h: a device for tests of scheduling: the logits of a row are a hash of all tokens up
 * to it, read from the pages and the state that the step names. A wrong page, a copy that was not
 * made, a window's page given back too early or a wrong state slot all change the hash, so a test
 * only has to compare tokens with fake_expect. */
#ifndef MERE_TESTS_ENGINE_FAKE_DEVICE_H
#define MERE_TESTS_ENGINE_FAKE_DEVICE_H

#include "base/mem.h"
#include "device/device.h"
#include "engine/events.h"
#include "engine/sched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct Device {
    int vocab;
    int steps, copies;
    int fail_step; /* this step number fails (1: the first), 0: none */
    bool lost;     /* ... as a lost device */
    bool broken;
    int64_t rows, most_rows;
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

static void fake_page_copy(Device *d, KvPool *p, int group, int from, int to, int n_tokens)
{
    d->copies++;
    const int size = p->desc.page_tokens[group];
    assert_true(from >= 0 && from < p->desc.n_pages[group] && to >= 0 &&
                to < p->desc.n_pages[group] && from != to && n_tokens <= size);
    memcpy(p->tokens[group] + (int64_t)to * size, p->tokens[group] + (int64_t)from * size,
           (size_t)n_tokens * sizeof(int32_t));
}

static void fake_state_copy(Device *d, KvPool *p, int from, int to)
{
    d->copies++;
    assert_true(from >= 0 && from < p->desc.n_states && to >= 0 && to < p->desc.n_states);
    p->state[to] = p->state[from];
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

static bool fake_submit(Device *d, Program *prog, KvPool *p, const StepBlock *s, uint64_t *ticket,
                        Error *err)
{
    *ticket = (uint64_t)d->steps;
    d->steps++;
    d->rows += s->n_rows;
    d->most_rows = i64_max(d->most_rows, s->n_rows);
    if (d->steps == d->fail_step)
        return err_set(err, d->lost ? ERR_LOST : ERR_DEVICE, "step %d was made to fail", d->steps);
    int row = 0;
    int out = 0;
    for (int i = 0; i < s->n_segs; i++) {
        const Segment *seg = &s->segs[i];
        assert_int_equal(seg->row0, row);
        /* All rows are written before any is read, as a device does it. */
        for (int r = 0; r < seg->n_rows; r++) {
            const int at = seg->kv_len - seg->n_rows + r;
            assert_int_equal(s->rows[row + r].pos, at);
            for (int g = 0; g < p->desc.n_groups; g++) {
                const int size = p->desc.page_tokens[g];
                const int32_t page = seg->pages[g][at / size];
                assert_in_range(page, 0, p->desc.n_pages[g] - 1);
                p->tokens[g][(int64_t)page * size + at % size] = s->rows[row + r].token;
            }
        }
        uint64_t state = 7;
        if (p->desc.state_floats > 0) {
            assert_in_range(seg->state_out, 0, p->desc.n_states - 1);
            if (seg->state_in >= 0)
                state = p->state[seg->state_in];
            else
                assert_int_equal(seg->kv_len, seg->n_rows);
        }
        for (int r = 0; r < seg->n_rows; r++) {
            state = fake_mix(state, (uint64_t)(uint32_t)s->rows[row + r].token);
            if (out < s->n_out && s->out_rows[out] == row + r) {
                uint64_t h = fake_row_hash(p, seg, seg->kv_len - seg->n_rows + r + 1);
                if (p->desc.state_floats > 0)
                    h = fake_mix(h, state);
                fake_logits(h, prog->vocab, s->logits + (int64_t)out * prog->vocab);
                out++;
            }
        }
        if (p->desc.state_floats > 0)
            p->state[seg->state_out] = state;
        row += seg->n_rows;
    }
    assert_int_equal(row, s->n_rows);
    assert_int_equal(out, s->n_out);
    return true;
}

static bool fake_wait(Device *d, Program *p, uint64_t ticket, uint64_t deadline_ns, Error *err)
{
    (void)ticket;
    (void)d;
    (void)p;
    (void)deadline_ns;
    (void)err;
    return true;
}

static const DeviceOps fake_ops = {
    .name = "fake",
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
        d.n_pages[g] = kv_pool_pages(&d.groups[g], s->page_tokens, s->ctx, s->slots, s->chunk) -
                       (s->windows[g] ? 0 : s->pages_less);
    }
    d.n_states = s->state ? s->slots + s->n_snapshots : 0;
    return d;
}

static inline bool fake_open(Fake *f, const FakeShape *shape, Error *err)
{
    *f = (Fake){.shape = *shape, .device = {.vocab = shape->vocab}, .program = {shape->vocab}};
    arena_init(&f->arena, "fake");
    f->desc = fake_desc(shape);
    f->pool = fake_pool(&f->desc);
    f->limits = (RequestLimits){.vocab = shape->vocab, .ctx = shape->ctx, .echo_rows = 3};
    if (!events_open(&f->events, 100000, err))
        return false;
    static const int32_t eos[] = {FAKE_EOS};
    const SchedDesc d = {
        .kv = {.ops = &fake_ops,
               .device = &f->device,
               .pool = f->pool,
               .desc = f->desc,
               .ctx = shape->ctx,
               .slots = shape->slots,
               .max_rows = shape->chunk,
               .page_tokens = shape->page_tokens,
               .share = !shape->no_share},
        .program = &f->program,
        .events = &f->events,
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
    events_close(&f->events);
    fake_pool_free(f->pool);
    arena_free(&f->arena);
}

/* Greedy answer by the definition: n tokens or up to EOS (included). Returns the count. */
static inline int fake_greedy(const Fake *f, const int32_t *prompt, int n_prompt, int n,
                              bool ignore_eos, int32_t *out)
{
    int32_t *all = malloc(sizeof *all * (size_t)(n_prompt + n));
    float *logits = malloc(sizeof *logits * (size_t)f->shape.vocab);
    memcpy(all, prompt, sizeof *all * (size_t)n_prompt);
    int made = 0;
    while (made < n) {
        fake_expect(&f->desc, all, n_prompt + made, f->shape.vocab, logits);
        int best = 0;
        for (int i = 1; i < f->shape.vocab; i++)
            if (logits[i] > logits[best])
                best = i;
        all[n_prompt + made] = out[made] = best;
        made++;
        if (best == FAKE_EOS && !ignore_eos)
            break;
    }
    free(logits);
    free(all);
    return made;
}

#endif
