/* sched.h: which rows go into the next step, and what becomes of each row's logits.
 *
 * A model has `slots` sequences. A request waits in a bounded queue until one is free and the pool
 * has its pages (kv.h), first come first served; once admitted it runs to its end. A step takes one
 * row of every sequence that generates, then prompts in order of admission until `max_rows` rows
 * are taken; a prompt longer than what is left goes on in the next step. Echo requests (teacher
 * forcing) take as many rows as their reader has room for.
 *
 * Only sched_submit and sched_stats may be called from any thread; all else belongs to the engine
 * thread. All memory comes from the arena of sched_open and one mapping for
 * the logits; a step allocates nothing. */
#ifndef MERE_ENGINE_SCHED_H
#define MERE_ENGINE_SCHED_H

#include "engine/events.h"
#include "engine/kv.h"

typedef struct Sched Sched;

typedef struct SchedDesc {
    KvDesc kv; /* with ops, device, pool */
    Program *program;
    Events *events;
    int vocab;
    int max_rows, max_out; /* of a step; both >= slots */
    int chunk;             /* most rows of one prompt in a step */
    int queue;             /* requests that may wait */
    int snapshot_tokens;   /* recurrent state is kept each so many tokens of a prompt */
    const int32_t *eos;
    int n_eos;
    /* The bytes that a token adds to the text (empty for control tokens), and its own bytes. */
    Str (*text)(const void *ctx, int32_t id);
    Str (*piece)(const void *ctx, int32_t id);
    bool (*broken)(const void *ctx); /* the weights were lost; NULL: never */
    const void *ctx;
} SchedDesc;

typedef struct SchedStats {
    int queued, live, pages_used, pages_total, states_used;
    uint64_t steps, rows, requests;
} SchedStats;

/* Bytes that sched_open takes, logits included. */
int64_t sched_bytes(const SchedDesc *d);
MUST_CHECK bool sched_open(Arena *a, const SchedDesc *d, Sched **out, Error *err);
/* Ends every request with `finish` CANCELLED, then frees what is not in the arena. NULL is fine. */
void sched_close(Sched *s);

/* Owns the request from here (its events come through Events). ERR_FULL: the queue is full. Or the
 * error that made the model unusable. The request is the caller's still when this fails. */
MUST_CHECK bool sched_submit(Sched *s, Request *r, Error *err);
void sched_stats(Sched *s, SchedStats *out);

/* One step, if there is anything to do: false means that nothing can go on until a request comes,
 * is cancelled, or a reader takes its rows. */
bool sched_step(Sched *s);
/* No request waits or runs. */
bool sched_idle(Sched *s);
/* For bench.c, which runs steps of its own while the scheduler is idle. */
Kv *sched_kv(Sched *s);
const SchedDesc *sched_desc(const Sched *s);
float *sched_logits(Sched *s);
/* The state of every sequence, for tests: kv_verify. */
MUST_CHECK bool sched_verify(Sched *s, Error *err);

#endif
