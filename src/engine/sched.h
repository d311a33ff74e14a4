/* sched.h: which rows go into the next step, and what becomes of each row's logits.
 *
 * A model has `slots` sequences. A request waits in a bounded queue until one is free and the pool
 * has its pages (kv.h), first come first served; once admitted it runs to its end. A step takes one
 * row of every sequence that generates, then prompts in order of admission until `max_rows` rows
 * are taken; a prompt longer than what is left goes on in the next step. Echo requests (teacher
 * forcing) take as many rows as their reader has room for.
 *
 * Up to `flights` steps are with the device at once, which runs them in order: step t + 1 is
 * submitted before the result of step t is read. What is known of a step is settled when it is
 * submitted (its positions count, full blocks join the prefix tree, snapshots are queued behind
 * it); only results wait. Where the device samples, and a request asks for nothing else than it can
 * do (sample_is_plain), a sequence goes on meanwhile with a row whose token only the device knows
 * (KvSeq.n_ahead). When the token becomes known and ends the answer, that row has computed nothing
 * wrong: it holds the last token's keys, values and state; only the token drawn from it is dropped.
 * The last of max_tokens is known beforehand and gets no such row. While a step's logits are wanted
 * on the host nothing is submitted behind it: those sequences would take part in every second step
 * only.
 *
 * A step that was refused ends its requests. One that fails later, when others may have built on
 * what it left in the cache, ends all live requests and empties the cache; a lost device ends
 * everything. Every wait has a deadline.
 *
 * Only sched_submit and sched_stats may be called from any thread; all else belongs to the engine
 * thread. All memory comes from the arena of sched_open and one mapping for the logits of each
 * flight; a step allocates nothing. */
#ifndef MERE_ENGINE_SCHED_H
#define MERE_ENGINE_SCHED_H

#include "engine/events.h"
#include "engine/kv.h"

typedef struct Sched Sched;

/* Of those that a device allows: with two it never waits for the host. */
enum { SCHED_FLIGHTS_MAX = 2 };

typedef struct SchedDesc {
    KvDesc kv; /* with ops, device, pool */
    Program *program;
    Events *events;
    int vocab;
    int flights; /* steps submitted before the oldest is waited for, 1 .. SCHED_FLIGHTS_MAX */
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

/* Submits a step, if there is anything to do, and waits for the oldest when no other may be
 * submitted before: false means that nothing can go on until a request comes, is cancelled, or a
 * reader takes its rows. */
bool sched_step(Sched *s);
/* Waits for what is with the device. */
void sched_settle(Sched *s);
/* No request waits or runs, nothing is with the device. */
bool sched_idle(Sched *s);
/* For bench.c, which runs steps of its own while the scheduler is idle. */
Kv *sched_kv(Sched *s);
const SchedDesc *sched_desc(const Sched *s);
float *sched_logits(Sched *s);
/* The state of every sequence, for tests: kv_verify. */
MUST_CHECK bool sched_verify(Sched *s, Error *err);

#endif
