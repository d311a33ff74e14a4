#include "engine/sched.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/sample.h"
#include "engine/stop.h"
#include "text/detok.h"

#include <stdio.h>

_Static_assert(SAMPLE_TOP_MAX == 20, "mere.h promises 20 alternatives");

enum { TEXT_HELD_MAX = 1 << 20 }; /* bytes of one token and of held text: a limit, not a size */

/* A place for one live sequence. */
typedef struct Slot {
    Request *req;   /* NULL: free */
    uint32_t epoch; /* counts the requests: results of an earlier one are dropped */
    bool on_device; /* the device draws its tokens */
    KvSeq seq;
    int32_t *tokens; /* [ctx] prompt, then answer */
    int n_tokens;    /* seq.n_tokens of them have been submitted */
    int n_pending;   /* tokens that are being drawn; seq.n_ahead <= n_pending */
    int n_prompt;
    int n_hit;        /* prompt tokens found in the cache */
    int snapshot_end; /* a prompt's state is kept at this length; 0: not */
    Detok detok;
    StrBuf text; /* text that is not given out yet */
    /* In the step that is being composed. */
    int n_rows, out0, n_out; /* rows; logits rows [out0, out0 + n_out) */
    int sample;              /* index of its SampleDesc, -1: none */
} Slot;

/* What a sequence gets from a step. */
typedef struct Part {
    int slot;
    uint32_t epoch;
    int out0, n_out; /* rows of the logits */
    int sample;      /* of the results; -1: the host draws */
} Part;

/* A step that the device has. */
typedef struct Flight {
    uint64_t ticket;
    int n_rows;
    bool has_logits;
    Part *parts; /* [slots] */
    int n_parts;
    SampleResult *results; /* [slots] */
    float *logits;         /* [max_out][vocab] */
} Flight;

struct Sched {
    SchedDesc d;
    Kv *kv;
    Sampler sampler;
    Slot *slots;
    const KvSeq **seqs; /* [slots] those of the slots */
    int *order;         /* [slots] live slots by admission */
    int n_live;
    Request *wait, *wait_last; /* taken from the inbox */
    /* The step that is being composed. */
    Row *rows;           /* [max_rows] */
    Segment *segs;       /* [slots] */
    int *seg_slot;       /* [slots] */
    int32_t *out_rows;   /* [max_out] */
    SampleDesc *samples; /* [slots] */
    int n_rows, n_segs, n_out, n_samples;
    bool want_logits;
    /* Those the device has: n_flights from `oldest` on, around. */
    Flight flights[SCHED_FLIGHTS_MAX];
    int n_flights, oldest;
    float *logits; /* of all flights */
    size_t logits_bytes;

    pthread_mutex_t lock; /* for what follows */
    Request *inbox, *inbox_last;
    int n_queued; /* inbox and wait */
    bool failed;
    Error failure; /* why the model cannot be used any more */
    SchedStats stats;
};

/* ---- open and close ---- */

int64_t sched_bytes(const SchedDesc *d)
{
    const int64_t slots = d->kv.slots;
    return kv_bytes(&d->kv) + sample_bytes(d->vocab) +
           slots * (int64_t)(sizeof(Slot) + (size_t)d->kv.ctx * sizeof(int32_t) + 4096) +
           (int64_t)d->max_rows * (int64_t)sizeof(Row) +
           d->flights * (slots * (int64_t)(sizeof(Part) + sizeof(SampleResult)) +
                         (int64_t)d->max_out * d->vocab * (int64_t)sizeof(float));
}

static bool open_slots(Sched *s, Arena *a, Error *err)
{
    const int n = s->d.kv.slots;
    s->slots = ARENA_ARRAY(a, n, Slot, err);
    s->seqs = ARENA_ARRAY(a, n, const KvSeq *, err);
    s->order = ARENA_ARRAY(a, n, int, err);
    s->segs = ARENA_ARRAY(a, n, Segment, err);
    s->seg_slot = ARENA_ARRAY(a, n, int, err);
    s->rows = ARENA_ARRAY(a, s->d.max_rows, Row, err);
    s->out_rows = ARENA_ARRAY(a, s->d.max_out, int32_t, err);
    s->samples = ARENA_ARRAY(a, n, SampleDesc, err);
    if (!s->slots || !s->seqs || !s->order || !s->segs || !s->seg_slot || !s->rows ||
        !s->out_rows || !s->samples)
        return false;
    for (int i = 0; i < s->d.flights; i++) {
        Flight *f = &s->flights[i];
        f->parts = ARENA_ARRAY(a, n, Part, err);
        f->results = ARENA_ARRAY(a, n, SampleResult, err);
        if (!f->parts || !f->results)
            return false;
    }
    for (int i = 0; i < n; i++) {
        Slot *slot = &s->slots[i];
        s->seqs[i] = &slot->seq;
        strbuf_init(&slot->text, TEXT_HELD_MAX);
        slot->tokens = ARENA_ARRAY(a, s->d.kv.ctx, int32_t, err);
        if (!slot->tokens || !kv_seq_init(s->kv, a, &slot->seq, err))
            return false;
        /* Held text is short: this size is hardly ever outgrown. */
        if (!strbuf_printf(&slot->text, "%1024s", ""))
            return err_nomem(err, "text of a sequence", 1024);
        strbuf_clear(&slot->text);
    }
    return true;
}

bool sched_open(Arena *a, const SchedDesc *d, Sched **out, Error *err)
{
    Sched *s = ARENA_NEW(a, Sched, err);
    if (!s)
        return false;
    s->d = *d;
    if (!kv_open(a, &d->kv, &s->kv, err) || !sample_init(a, d->vocab, &s->sampler, err))
        return false;
    const bool ok = open_slots(s, a, err);
    const size_t floats = (size_t)d->max_out * (size_t)d->vocab;
    s->logits_bytes = (size_t)d->flights * floats * sizeof(float);
    s->logits = ok ? mem_map(s->logits_bytes) : NULL;
    if (!s->logits) {
        for (int i = 0; s->slots && i < d->kv.slots; i++)
            strbuf_free(&s->slots[i].text);
        return ok ? err_nomem(err, "logits", s->logits_bytes) : false;
    }
    for (int i = 0; i < d->flights; i++)
        s->flights[i].logits = s->logits + (size_t)i * floats;
    pthread_mutex_init(&s->lock, NULL);
    s->stats.pages_total = kv_counts(s->kv).total;
    *out = s;
    return true;
}

/* ---- the end of a request ---- */

static double ms_between(uint64_t from, uint64_t to)
{
    return from && to > from ? (double)(to - from) * 1e-6 : 0;
}

static void end_request(Sched *s, Request *r, MereFinish finish, const Error *why, int n_hit)
{
    const uint64_t now = clock_ns();
    r->finish = finish;
    if (why) {
        r->error.code = (int32_t)why->code;
        snprintf(r->error.msg, sizeof r->error.msg, "%s", why->msg);
    }
    r->usage.prompt_tokens = r->n_prompt;
    r->usage.cached_tokens = n_hit;
    r->usage.completion_tokens = r->n_made;
    r->usage.queue_ms = ms_between(r->submit_ns, r->admit_ns ? r->admit_ns : now);
    r->usage.prefill_ms = ms_between(r->admit_ns, r->first_ns ? r->first_ns : now);
    r->usage.decode_ms = ms_between(r->first_ns, now);
    r->usage.ttft_ms = ms_between(r->submit_ns, r->first_ns);
    events_end(s->d.events, r);
}

static void publish(Sched *s, int rows)
{
    const KvCounts c = kv_counts(s->kv);
    pthread_mutex_lock(&s->lock);
    s->stats.live = s->n_live;
    s->stats.pages_used = c.live;
    s->stats.pages_total = c.total;
    s->stats.states_used = c.states_live + c.states_kept;
    s->stats.steps += rows > 0;
    s->stats.rows += (uint64_t)rows;
    pthread_mutex_unlock(&s->lock);
}

/* Frees the slot's rows, pages and state; `keep` leaves what it computed to the prefix tree. */
static void end_slot(Sched *s, Slot *slot, MereFinish finish, const Error *why, bool keep)
{
    Request *r = slot->req;
    Error local;
    /* Held text, and the bytes of a character that never became whole. */
    if (!detok_end(&slot->detok, &slot->text, &local) ||
        !request_text(r, strbuf_str(&slot->text), &r->last_text, &local)) {
        r->last_text = (Str){"", 0};
        if (finish != MERE_FINISH_ERROR) {
            finish = MERE_FINISH_ERROR;
            why = &local;
        }
    }
    kv_release(s->kv, &slot->seq, slot->tokens, keep);
    slot->req = NULL;
    slot->epoch++;
    slot->n_pending = 0;
    const int at = (int)(slot - s->slots);
    int i = 0;
    while (s->order[i] != at)
        i++;
    for (s->n_live--; i < s->n_live; i++)
        s->order[i] = s->order[i + 1];
    publish(s, 0); /* who reads the event finds the place free */
    end_request(s, r, finish, why, slot->n_hit);
}

static void end_waiting(Sched *s, MereFinish finish, const Error *why)
{
    while (s->wait) {
        Request *r = s->wait;
        s->wait = r->next;
        pthread_mutex_lock(&s->lock);
        s->n_queued--;
        pthread_mutex_unlock(&s->lock);
        end_request(s, r, finish, why, 0);
    }
}

static void take_inbox(Sched *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->inbox) {
        *(s->wait ? &s->wait_last->next : &s->wait) = s->inbox;
        s->wait_last = s->inbox_last;
        s->inbox = s->inbox_last = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Generous: a slow machine with a large model takes seconds a row. */
static uint64_t deadline_of(int n_rows)
{
    return clock_ns() + 60000000000U + (uint64_t)n_rows * 10000000000U;
}

static bool wait_oldest(Sched *s, Flight **out, Error *err)
{
    Flight *f = &s->flights[s->oldest];
    s->oldest = (s->oldest + 1) % s->d.flights;
    s->n_flights--;
    *out = f;
    return s->d.kv.ops->wait(s->d.kv.device, s->d.program, f->ticket, deadline_of(f->n_rows), err);
}

/* Nobody wants the results, but the device may still write them. */
static void drain(Sched *s)
{
    Error err;
    Flight *f;
    while (s->n_flights > 0)
        if (!wait_oldest(s, &f, &err))
            log_msg(LOG_INFO, "step of %d rows: %s", f->n_rows, err.msg);
}

static void fail_live(Sched *s, const Error *why)
{
    drain(s);
    while (s->n_live > 0)
        end_slot(s, &s->slots[s->order[0]], MERE_FINISH_ERROR, why, false);
    kv_clear(s->kv);
}

/* The model cannot go on: everything ends with the error, and so does every later submit. */
static void fail_all(Sched *s, const Error *why)
{
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    s->failure = *why;
    pthread_mutex_unlock(&s->lock);
    take_inbox(s); /* after `failed`: no submit can come between */
    fail_live(s, why);
    end_waiting(s, MERE_FINISH_ERROR, why);
}

void sched_close(Sched *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->failed = true;
    (void)err_set(&s->failure, ERR_CANCELLED, "the model was closed");
    pthread_mutex_unlock(&s->lock);
    take_inbox(s);
    drain(s);
    while (s->n_live > 0)
        end_slot(s, &s->slots[s->order[0]], MERE_FINISH_CANCELLED, NULL, false);
    end_waiting(s, MERE_FINISH_CANCELLED, NULL);
    for (int i = 0; i < s->d.kv.slots; i++)
        strbuf_free(&s->slots[i].text);
    mem_unmap(s->logits, s->logits_bytes);
    pthread_mutex_destroy(&s->lock);
}

bool sched_submit(Sched *s, Request *r, Error *err)
{
    bool ok = true;
    pthread_mutex_lock(&s->lock);
    if (s->failed) {
        if (err)
            *err = s->failure;
        ok = false;
    } else if (s->n_queued >= s->d.queue) {
        ok =
            err_set(err, ERR_FULL, "%d requests wait already, at most %d", s->n_queued, s->d.queue);
    } else {
        r->next = NULL;
        *(s->inbox ? &s->inbox_last->next : &s->inbox) = r;
        s->inbox_last = r;
        s->n_queued++;
        s->stats.requests++;
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

void sched_stats(Sched *s, SchedStats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->queued = s->n_queued;
    pthread_mutex_unlock(&s->lock);
}

/* ---- before a step ---- */

static void drop_cancelled(Sched *s)
{
    for (int i = 0; i < s->n_live;) {
        Slot *slot = &s->slots[s->order[i]];
        if (atomic_load_explicit(&slot->req->cancelled, memory_order_relaxed))
            end_slot(s, slot, MERE_FINISH_CANCELLED, NULL, true);
        else
            i++;
    }
    Request **link = &s->wait;
    Request *last = NULL;
    while (*link) {
        Request *r = *link;
        if (!atomic_load_explicit(&r->cancelled, memory_order_relaxed)) {
            last = r;
            link = &r->next;
            continue;
        }
        *link = r->next;
        pthread_mutex_lock(&s->lock);
        s->n_queued--;
        pthread_mutex_unlock(&s->lock);
        end_request(s, r, MERE_FINISH_CANCELLED, NULL, 0);
    }
    s->wait_last = last;
}

static Slot *free_slot(Sched *s)
{
    for (int i = 0; i < s->d.kv.slots; i++)
        if (!s->slots[i].req)
            return &s->slots[i];
    return NULL;
}

static void admit(Sched *s)
{
    while (s->wait) {
        Request *r = s->wait;
        Slot *slot = free_slot(s);
        /* Logits of every row are wanted: nothing of a prompt may come from the cache. */
        if (!slot || !kv_admit(s->kv, &slot->seq, r->ids, r->n_prompt, r->n_prompt + r->max_new,
                               r->salt, !r->echo_logits))
            return;
        s->wait = r->next;
        pthread_mutex_lock(&s->lock);
        s->n_queued--;
        pthread_mutex_unlock(&s->lock);
        r->admit_ns = clock_ns();
        slot->req = r;
        slot->on_device = s->d.kv.ops->samples && !r->echo_logits && sample_is_plain(&r->sampling);
        slot->n_prompt = slot->n_tokens = r->n_prompt;
        memcpy(slot->tokens, r->ids, (size_t)r->n_prompt * sizeof *r->ids);
        slot->n_hit = slot->seq.n_tokens;
        /* All but the last token: a repeated prompt needs its last row again, so a state after the
         * whole prompt would be of no use to it. It costs a step of one row, so short prompts go
         * without. */
        slot->snapshot_end =
            r->n_prompt - 1 - slot->n_hit >= s->d.kv.page_tokens ? r->n_prompt - 1 : 0;
        detok_init(&slot->detok, NULL, 0);
        strbuf_clear(&slot->text);
        s->order[s->n_live++] = (int)(slot - s->slots);
    }
}

/* Length at which a prompt's next chunk must end, so that the state can be kept there. */
static int chunk_end(const Sched *s, const Slot *slot)
{
    int end = slot->n_tokens;
    if (slot->seq.state < 0 || s->d.kv.desc.n_states <= s->d.kv.slots)
        return end;
    const int at = slot->seq.n_tokens;
    if (slot->snapshot_end > at && slot->snapshot_end < end)
        end = slot->snapshot_end;
    const int step = s->d.snapshot_tokens;
    if (step > 0 && at / step * step + step < end)
        end = at / step * step + step;
    return end;
}

/* Positions that were submitted. */
static int submitted(const Slot *slot)
{
    return slot->seq.n_tokens + slot->seq.n_ahead;
}

/* A row for the token that is being drawn: only behind the newest draw, which is the one that the
 * device keeps, and only when there is another token to come. */
static bool can_run_ahead(const Slot *slot)
{
    return slot->on_device && slot->n_pending > 0 &&
           submitted(slot) == slot->n_tokens + slot->n_pending - 1 &&
           slot->req->n_made + slot->n_pending < slot->req->max_new;
}

/* Rows of the slot in this step, at most `room`; 0: none can go. */
static int rows_wanted(Sched *s, const Slot *slot, int room)
{
    if (slot->n_pending > 0)
        return can_run_ahead(slot) && s->n_out < s->d.max_out;
    int n = chunk_end(s, slot) - slot->seq.n_tokens;
    if (slot->req->echo_logits) {
        const int space = events_rows_free(s->d.events, slot->req);
        if (space < slot->req->row_cap)
            return 0; /* the reader takes a chunk whole before the next is made */
        n = (int)i64_min(n, i64_min(space, s->d.max_out - s->n_out));
    }
    n = (int)i64_min(n, i64_min(room, s->d.chunk));
    /* An end that has no place for its logits waits. */
    if (!slot->req->echo_logits && slot->seq.n_tokens + n == slot->n_tokens &&
        s->n_out >= s->d.max_out)
        n--;
    return n;
}

static void add_sample(Sched *s, Slot *slot, int position)
{
    const MereSampling *p = &slot->req->sampling;
    /* Devices draw in f32: the largest that is below 1 there. */
    const float u = (float)sample_random(p->seed, (uint64_t)position);
    slot->sample = s->n_samples;
    s->samples[s->n_samples++] = (SampleDesc){.out = slot->out0,
                                              .slot = (int32_t)(slot - s->slots),
                                              .temperature = p->temperature,
                                              .top_k = p->top_k,
                                              .top_p = p->top_p,
                                              .min_p = p->min_p,
                                              .random = u < 1 ? (double)u : 1 - 0x1p-24};
}

static void add_rows(Sched *s, Slot *slot, int n)
{
    Error err;
    if (!kv_reserve(s->kv, &slot->seq, n, &err)) {
        log_msg(LOG_ERROR, "%s", err.msg);
        end_slot(s, slot, MERE_FINISH_ERROR, &err, false);
        return;
    }
    const int at = (int)(slot - s->slots);
    const int done = submitted(slot);
    Segment *seg = &s->segs[s->n_segs];
    *seg = (Segment){.row0 = s->n_rows};
    kv_segment(s->kv, &slot->seq, n, seg);
    for (int i = 0; i < n; i++)
        s->rows[s->n_rows + i] =
            (Row){done + i < slot->n_tokens ? slot->tokens[done + i] : -1 - at, done + i};
    slot->n_rows = n;
    slot->out0 = s->n_out;
    slot->n_out = slot->req->echo_logits ? n : done + n >= slot->n_tokens;
    slot->sample = -1;
    for (int i = 0; i < slot->n_out; i++)
        s->out_rows[s->n_out++] = s->n_rows + n - slot->n_out + i;
    if (slot->n_out > 0 && slot->on_device)
        add_sample(s, slot, done + n);
    s->want_logits = s->want_logits || (slot->n_out > 0 && !slot->on_device);
    s->seg_slot[s->n_segs++] = at;
    s->n_rows += n;
}

static bool generates(const Slot *slot)
{
    return slot->n_pending > 0 ||
           (slot->n_tokens - slot->seq.n_tokens == 1 && slot->n_tokens > slot->n_prompt);
}

static void compose(Sched *s)
{
    s->n_rows = s->n_segs = s->n_out = s->n_samples = 0;
    s->want_logits = false;
    for (int prompts = 0; prompts < 2; prompts++)
        for (int i = 0; i < s->n_live && s->n_rows < s->d.max_rows;) {
            Slot *slot = &s->slots[s->order[i]];
            const int live = s->n_live;
            if (generates(slot) == (prompts == 0)) {
                const int n = rows_wanted(s, slot, s->d.max_rows - s->n_rows);
                if (n > 0)
                    add_rows(s, slot, n);
            }
            i += s->n_live == live; /* else this slot ended and the next took its place */
        }
}

/* ---- submitting ---- */

/* The slot's rows are the device's now. */
static void count_rows(Sched *s, Slot *slot, Flight *f)
{
    if (submitted(slot) >= slot->n_tokens) {
        kv_ahead(&slot->seq, slot->n_rows);
    } else {
        kv_commit(s->kv, &slot->seq, slot->tokens, slot->n_rows);
        const int done = slot->seq.n_tokens;
        const int step = s->d.snapshot_tokens;
        if (done < slot->n_prompt && (done == slot->snapshot_end || (step > 0 && done % step == 0)))
            kv_snapshot(s->kv, &slot->seq, slot->tokens);
    }
    if (slot->n_out == 0)
        return;
    f->parts[f->n_parts++] = (Part){.slot = (int)(slot - s->slots),
                                    .epoch = slot->epoch,
                                    .out0 = slot->out0,
                                    .n_out = slot->n_out,
                                    .sample = slot->sample};
    slot->n_pending += slot->req->echo_logits ? 0 : 1;
}

static void submit_step(Sched *s)
{
    Flight *f = &s->flights[(s->oldest + s->n_flights) % s->d.flights];
    const StepBlock step = {.n_rows = s->n_rows,
                            .n_segs = s->n_segs,
                            .n_out = s->n_out,
                            .n_samples = s->n_samples,
                            .rows = s->rows,
                            .segs = s->segs,
                            .out_rows = s->out_rows,
                            .samples = s->samples,
                            .results = f->results,
                            .logits = s->want_logits ? f->logits : NULL};
    Error err;
    if (!s->d.kv.ops->submit(s->d.kv.device, s->d.program, s->d.kv.pool, &step, &f->ticket, &err)) {
        log_msg(LOG_ERROR, "step of %d rows: %s", s->n_rows, err.msg);
        if (err.code == ERR_LOST)
            fail_all(s, &err);
        else
            for (int i = 0; i < s->n_segs; i++)
                end_slot(s, &s->slots[s->seg_slot[i]], MERE_FINISH_ERROR, &err, false);
        return;
    }
    f->n_rows = s->n_rows;
    f->has_logits = s->want_logits;
    f->n_parts = 0;
    s->n_flights++;
    for (int i = 0; i < s->n_segs; i++)
        count_rows(s, &s->slots[s->seg_slot[i]], f);
}

/* ---- results ---- */

static bool is_eos(const Sched *s, int32_t token)
{
    for (int i = 0; i < s->d.n_eos; i++)
        if (s->d.eos[i] == token)
            return true;
    return false;
}

static bool record_tops(Sched *s, Request *r, const Sampled *sampled, Error *err)
{
    MereLogprob *top = r->top + (size_t)r->n_made * (size_t)r->n_top;
    for (int i = 0; i < sampled->n_top && i < r->n_top; i++) {
        Str bytes;
        if (!request_text(r, s->d.piece(s->d.ctx, sampled->top[i].id), &bytes, err))
            return false;
        top[i] = (MereLogprob){sampled->top[i].id, sampled->top[i].logprob, {bytes.ptr, bytes.len}};
    }
    return true;
}

/* The text that this token makes certain, into the event's record. *stopped: a stop string ended.
 */
static bool record_text(Sched *s, Slot *slot, int32_t token, RequestToken *out, bool *stopped,
                        Error *err)
{
    Request *r = slot->req;
    const size_t old = slot->text.len;
    if (!detok_add_bytes(&slot->detok, s->d.text(s->d.ctx, token), &slot->text, err))
        return false;
    const Str text = strbuf_str(&slot->text);
    const StopFind f = stop_find(r->stops, r->n_stops, text, old);
    *stopped = f.stopped;
    Str given;
    if (!request_text(r, (Str){text.ptr, f.give}, &given, err))
        return false;
    out->text = given.ptr;
    out->text_len = (uint32_t)given.len;
    const size_t rest = f.stopped ? 0 : text.len - f.give;
    memmove(slot->text.ptr, slot->text.ptr + f.give, rest);
    slot->text.len = rest;
    slot->text.ptr[rest] = '\0';
    return true;
}

/* What the device drew, or what the host draws from the logits. */
static bool draw(Sched *s, Slot *slot, const Flight *f, const Part *part, Sampled *out, Error *err)
{
    if (part->sample < 0) {
        const SampleHistory h = {slot->tokens, slot->n_prompt, slot->n_tokens};
        float *logits = f->logits + (size_t)part->out0 * (size_t)s->d.vocab;
        return sample_next(&s->sampler, &slot->req->sampling, &h, logits, out, err);
    }
    *out = (Sampled){.token = f->results[part->sample].token};
    if (out->token >= 0 && out->token < s->d.vocab)
        return true;
    return err_set(err, ERR_FAILED, "the logits at position %d are not finite", slot->n_tokens);
}

static void take_token(Sched *s, Slot *slot, const Flight *f, const Part *part)
{
    Request *r = slot->req;
    Error err;
    Sampled sampled;
    if (!draw(s, slot, f, part, &sampled, &err)) {
        end_slot(s, slot, MERE_FINISH_ERROR, &err, false);
        return;
    }
    const bool eos = !r->ignore_eos && is_eos(s, sampled.token);
    bool stopped = false;
    RequestToken *t = &r->tokens[r->n_made];
    *t = (RequestToken){.token = sampled.token, .logprob = sampled.logprob, .text = ""};
    if ((!eos && !record_text(s, slot, sampled.token, t, &stopped, &err)) ||
        !record_tops(s, r, &sampled, &err)) {
        end_slot(s, slot, MERE_FINISH_ERROR, &err, false);
        return;
    }
    if (!r->first_ns)
        r->first_ns = clock_ns();
    slot->tokens[slot->n_tokens++] = sampled.token;
    slot->n_pending--;
    if (slot->seq.n_ahead > 0) /* its own row is with the device already */
        kv_commit(s->kv, &slot->seq, slot->tokens, 1);
    const bool full = r->n_made + 1 == r->max_new;
    events_token(s->d.events, r);
    if (stopped) /* what came after the stop is not part of the answer */
        detok_init(&slot->detok, NULL, 0);
    if (eos || stopped)
        end_slot(s, slot, MERE_FINISH_STOP, NULL, true);
    else if (full)
        end_slot(s, slot, MERE_FINISH_LENGTH, NULL, true);
}

static void give_rows(Sched *s, Slot *slot, const Flight *f, const Part *part)
{
    Request *r = slot->req;
    const size_t vocab = (size_t)s->d.vocab;
    for (int i = 0; i < part->n_out; i++)
        memcpy(r->rows + (size_t)((r->rows_made + i) % r->row_cap) * vocab,
               f->logits + (size_t)(part->out0 + i) * vocab, vocab * sizeof(float));
    if (!r->first_ns)
        r->first_ns = clock_ns();
    events_rows(s->d.events, r, part->n_out);
    if (slot->seq.n_tokens == slot->n_prompt)
        end_slot(s, slot, MERE_FINISH_LENGTH, NULL, false);
}

static void take_results(Sched *s, const Flight *f)
{
    for (int i = 0; i < f->n_parts; i++) {
        const Part *part = &f->parts[i];
        Slot *slot = &s->slots[part->slot];
        if (slot->epoch != part->epoch)
            continue; /* its request has ended meanwhile */
        if (slot->req->echo_logits)
            give_rows(s, slot, f, part);
        else
            take_token(s, slot, f, part);
    }
}

static void settle_oldest(Sched *s)
{
    Error err;
    Flight *f;
    const bool ok = wait_oldest(s, &f, &err);
    if (s->d.broken && s->d.broken(s->d.ctx)) {
        (void)err_set(&err, ERR_IO, "a file of the model was cut short while in use");
        fail_all(s, &err);
    } else if (ok) {
        take_results(s, f);
    } else {
        log_msg(LOG_ERROR, "step of %d rows: %s", f->n_rows, err.msg);
        if (err.code == ERR_LOST)
            fail_all(s, &err);
        else
            fail_live(s, &err);
    }
    publish(s, f->n_rows);
}

void sched_settle(Sched *s)
{
    while (s->n_flights > 0)
        settle_oldest(s);
}

bool sched_step(Sched *s)
{
    take_inbox(s);
    drop_cancelled(s);
    const int newest = (s->oldest + s->n_flights + s->d.flights - 1) % s->d.flights;
    if (s->n_flights == 0 || !s->flights[newest].has_logits) {
        admit(s);
        compose(s);
        const bool some = s->n_rows > 0;
        if (some)
            submit_step(s);
        if (s->n_flights == 0 || (some && s->n_flights < s->d.flights)) {
            publish(s, 0);
            return some;
        }
    }
    settle_oldest(s);
    return true;
}

bool sched_idle(Sched *s)
{
    pthread_mutex_lock(&s->lock);
    const bool idle = s->n_queued == 0;
    pthread_mutex_unlock(&s->lock);
    return idle && s->n_live == 0 && s->n_flights == 0;
}

Kv *sched_kv(Sched *s)
{
    return s->kv;
}

const SchedDesc *sched_desc(const Sched *s)
{
    return &s->d;
}

float *sched_logits(Sched *s)
{
    return s->logits;
}

bool sched_verify(Sched *s, Error *err)
{
    return kv_verify(s->kv, s->seqs, s->d.kv.slots, err);
}
