#include "engine/bench.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { REPS_MAX = 1000, READ_MAX_THREADS = 256, READ_ROUNDS = 4 };

/* The bandwidth is measured on this much of the weights at most. */
#define READ_BYTES_MAX ((int64_t)1 << 30)

typedef struct Bench {
    MereModel *m;
    const MereBench *b;
    MereBenchResult *out;
    Arena arena;
    KvSeq *seqs; /* [rows] */
    int n_live;
    int32_t *tokens; /* [ctx] of all sequences alike */
    Row *rows;
    Segment *segs;
    int32_t *out_rows;
    SampleDesc *samples;   /* [rows] */
    SampleResult *results; /* [SCHED_FLIGHTS_MAX][rows] */
    uint64_t tickets[SCHED_FLIGHTS_MAX];
    int n_flights, oldest;
    double *prefill, *decode; /* [reps] tok/s */
    bool ok;
    Error *err;
} Bench;

/* ---- reading ---- */

typedef struct Reader {
    const Model *model;
    int index, n;
    uint64_t sum;
    pthread_t thread;
} Reader;

/* Four streams far apart, fetched ahead: what the fastest kernels do, so that memory sets the pace.
 */
static uint64_t read_span(const uint8_t *p, int64_t n)
{
    enum { STREAMS = 4, LINE = 64, AHEAD = 2048 };
    const int64_t part = n / STREAMS / LINE * LINE;
    uint64_t s[LINE / 8] = {0};
    uint64_t v[LINE / 8];
    for (int64_t at = 0; at < part; at += LINE)
        for (int i = 0; i < STREAMS; i++) {
            const uint8_t *line = p + part * i + at;
            __builtin_prefetch(line + AHEAD);
            memcpy(v, line, sizeof v);
            for (int j = 0; j < LINE / 8; j++)
                s[j] += v[j];
        }
    uint64_t sum = 0;
    for (int j = 0; j < LINE / 8; j++)
        sum ^= s[j];
    return sum;
}

/* This thread's share of every weight, as the device cuts them. Returns the bytes of all shares. */
static int64_t read_weights(Reader *r)
{
    int64_t total = 0;
    for (int i = 0; i < r->model->n_weights; i++) {
        const Weight *w = r->model->weights[i];
        const int n = (w->n_experts > 0 ? w->n_experts : 1) * w->n_segs;
        for (int s = 0; s < n && total < READ_BYTES_MAX; s++) {
            const RowView *v = &w->segs[s];
            const int64_t from = v->n * r->index / r->n;
            const int64_t to = v->n * (r->index + 1) / r->n;
            r->sum += read_span(v->data + from * v->row_bytes, (to - from) * v->row_bytes);
            total += v->n * v->row_bytes;
        }
    }
    return total;
}

static void *reader_main(void *arg)
{
    (void)read_weights(arg);
    return NULL;
}

/* Best of a few rounds: what the memory gives, not what the neighbours leave. */
static double read_gb_s(MereModel *m)
{
    Reader readers[READ_MAX_THREADS];
    const int n = (int)i64_max(1, i64_min(m->engine->threads, READ_MAX_THREADS));
    double best = 0;
    for (int round = 0; round < READ_ROUNDS; round++) {
        const uint64_t t0 = clock_ns();
        bool started[READ_MAX_THREADS];
        for (int i = 0; i < n; i++) {
            readers[i] = (Reader){.model = m->h.model, .index = i, .n = n};
            started[i] =
                i > 0 && pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]) == 0;
        }
        const int64_t bytes = read_weights(&readers[0]);
        for (int i = 1; i < n; i++) {
            if (started[i])
                pthread_join(readers[i].thread, NULL);
            else
                (void)read_weights(&readers[i]);
        }
        uint64_t sum = 0;
        for (int i = 0; i < n; i++)
            sum ^= readers[i].sum;
        const double ns = (double)(clock_ns() - t0);
        /* The sum is used, so that the reads are not left out. */
        const double rate = (double)bytes / (ns + (sum == 1 ? 1.0 : 0.0));
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- steps ---- */

static bool wait_oldest(Bench *b, Error *err)
{
    const SchedDesc *d = sched_desc(b->m->attached.sched);
    const uint64_t deadline = clock_ns() + (uint64_t)3600 * 1000000000U;
    const uint64_t ticket = b->tickets[b->oldest];
    b->oldest = (b->oldest + 1) % d->flights;
    b->n_flights--;
    return d->kv.ops->wait(d->kv.device, d->program, ticket, deadline, err);
}

static bool wait_all(Bench *b)
{
    while (b->n_flights > 0)
        if (!wait_oldest(b, b->err))
            return false;
    return true;
}

static bool submit(Bench *b, StepBlock *block)
{
    Sched *s = b->m->attached.sched;
    const SchedDesc *d = sched_desc(s);
    const int at = (b->oldest + b->n_flights) % d->flights;
    if (block->n_samples > 0)
        block->results = b->results + (int64_t)at * b->b->rows;
    else if (block->n_out > 0)
        block->logits = sched_logits(s);
    if (!d->kv.ops->submit(d->kv.device, d->program, d->kv.pool, block, &b->tickets[at], b->err))
        return false;
    b->n_flights++;
    /* Logits are waited for, as by who draws from them; draws only when there is no more room. */
    return block->logits ? wait_all(b) : b->n_flights < d->flights || wait_oldest(b, b->err);
}

/* One step that appends n rows to each of the live sequences [0, n_seqs), with a draw from each
 * last row when `want`. drawn: the rows are of the tokens that the step before drew. */
static bool step(Bench *b, int n_seqs, int n, bool want, bool drawn)
{
    Sched *s = b->m->attached.sched;
    const bool samples = sched_desc(s)->kv.ops->samples;
    StepBlock block = {.rows = b->rows,
                       .segs = b->segs,
                       .out_rows = b->out_rows,
                       .samples = b->samples,
                       .n_segs = n_seqs};
    for (int i = 0; i < n_seqs; i++) {
        KvSeq *seq = &b->seqs[i];
        if (!kv_reserve(sched_kv(s), seq, n, b->err))
            return false;
        b->segs[i] = (Segment){.row0 = block.n_rows};
        kv_segment(sched_kv(s), seq, n, &b->segs[i]);
        for (int r = 0; r < n; r++) {
            const int at = seq->n_tokens + r;
            b->rows[block.n_rows++] = (Row){drawn && samples ? -1 - i : b->tokens[at], at};
        }
        if (!want)
            continue;
        if (samples)
            b->samples[block.n_samples++] = (SampleDesc){.out = block.n_out, .slot = i};
        b->out_rows[block.n_out++] = block.n_rows - 1;
    }
    if (!submit(b, &block))
        return false;
    for (int i = 0; i < n_seqs; i++) /* out of the tree: which tokens they are is not asked */
        kv_commit(sched_kv(s), &b->seqs[i], b->tokens, n);
    return true;
}

/* Appends n tokens to sequence 0, in chunks, and waits for the last. */
static bool prefill(Bench *b, int n, bool want)
{
    const int chunk = sched_desc(b->m->attached.sched)->chunk;
    while (n > 0) {
        const int rows = n < chunk ? n : chunk;
        n -= rows;
        if (!step(b, 1, rows, want && n == 0, false))
            return false;
    }
    return wait_all(b);
}

static bool admit(Bench *b, int n_total)
{
    if (!kv_admit(sched_kv(b->m->attached.sched), &b->seqs[b->n_live], b->tokens, n_total, n_total,
                  (Str){"", 0}, false))
        return err_set(b->err, ERR_FULL, "no pages for sequence %d of %d tokens", b->n_live,
                       n_total);
    b->n_live++;
    return true;
}

static void release_all(Bench *b)
{
    while (b->n_live > 0)
        kv_release(sched_kv(b->m->attached.sched), &b->seqs[--b->n_live], b->tokens, false);
}

static bool measure_prefill(Bench *b, double *tok_s)
{
    const int n = b->b->prompt;
    if (!admit(b, b->b->depth + n) || !prefill(b, b->b->depth, false))
        return false;
    const uint64_t t0 = clock_ns();
    if (!prefill(b, n, true))
        return false;
    *tok_s = (double)n * 1e9 / (double)(clock_ns() - t0);
    return true;
}

static bool measure_decode(Bench *b, double *tok_s)
{
    const int n_seqs = b->b->rows;
    for (int i = 0; i < n_seqs; i++) {
        if (!admit(b, b->b->depth + b->b->gen))
            return false;
        /* prefill works on the first: change places. */
        const KvSeq first = b->seqs[0];
        b->seqs[0] = b->seqs[i];
        b->seqs[i] = first;
        if (!prefill(b, b->b->depth, false))
            return false;
    }
    const uint64_t t0 = clock_ns();
    for (int t = 0; t < b->b->gen; t++)
        if (!step(b, n_seqs, 1, true, t > 0))
            return false;
    if (!wait_all(b))
        return false;
    *tok_s = (double)n_seqs * b->b->gen * 1e9 / (double)(clock_ns() - t0);
    return true;
}

/* ---- results ---- */

static int compare(const void *a, const void *b)
{
    double x;
    double y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static double median(double *v, int n, double *spread)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    const double mid = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    *spread = mid > 0 ? (v[n - 1] - v[0]) / mid : 0;
    return mid;
}

static bool take_memory(Bench *b)
{
    Sched *s = b->m->attached.sched;
    const SchedDesc *d = sched_desc(s);
    Arena *a = &b->arena;
    b->seqs = ARENA_ARRAY(a, b->b->rows, KvSeq, b->err);
    b->tokens = ARENA_ARRAY(a, d->kv.ctx, int32_t, b->err);
    b->rows = ARENA_ARRAY(a, d->max_rows, Row, b->err);
    b->segs = ARENA_ARRAY(a, d->kv.slots, Segment, b->err);
    b->out_rows = ARENA_ARRAY(a, d->max_out, int32_t, b->err);
    b->samples = ARENA_ARRAY(a, b->b->rows, SampleDesc, b->err);
    b->results = ARENA_ARRAY(a, (int64_t)d->flights * b->b->rows, SampleResult, b->err);
    b->prefill = ARENA_ARRAY(a, b->b->reps, double, b->err);
    b->decode = ARENA_ARRAY(a, b->b->reps, double, b->err);
    if (!b->seqs || !b->tokens || !b->rows || !b->segs || !b->out_rows || !b->samples ||
        !b->results || !b->prefill || !b->decode)
        return false;
    for (int i = 0; i < d->kv.ctx; i++) /* any tokens, the same in each run */
        b->tokens[i] = (int32_t)(((uint64_t)i * 2654435761U + 12345) % (uint64_t)d->vocab);
    for (int i = 0; i < b->b->rows; i++)
        if (!kv_seq_init(sched_kv(s), a, &b->seqs[i], b->err))
            return false;
    return true;
}

static bool measure_all(Bench *b)
{
    /* The first round warms caches and clocks and is not counted. */
    for (int rep = -1; rep < b->b->reps; rep++) {
        double p = 0;
        double d = 0;
        if (b->b->prompt > 0 && !measure_prefill(b, &p))
            return false;
        release_all(b);
        if (b->b->gen > 0 && !measure_decode(b, &d))
            return false;
        release_all(b);
        if (rep >= 0) {
            b->prefill[rep] = p;
            b->decode[rep] = d;
        }
    }
    MereBenchResult *r = b->out;
    if (b->b->prompt > 0)
        r->prefill_tok_s = median(b->prefill, b->b->reps, &r->prefill_spread);
    if (b->b->gen > 0)
        r->decode_tok_s = median(b->decode, b->b->reps, &r->decode_spread);
    r->bytes_per_token = (uint64_t)b->m->h.graph->weight_bytes_per_row;
    DeviceMemory memory;
    engine_memory(b->m->engine, &memory, NULL);
    /* The host's threads read what the host's threads compute with: no measure of another device.
     */
    if (memory.shared && memory.limit_bytes == 0)
        r->read_gb_s = read_gb_s(b->m);
    if (r->read_gb_s > 0) /* rows of a step read the weights once */
        r->bandwidth_share =
            (double)r->bytes_per_token * r->decode_tok_s / b->b->rows / (r->read_gb_s * 1e9);
    return true;
}

static void bench_main(void *arg)
{
    Bench *b = arg;
    if (!b->m->attached.sched) {
        (void)err_set(b->err, ERR_USAGE, "the engine was closed");
        return;
    }
    if (!sched_idle(b->m->attached.sched)) {
        (void)err_set(b->err, ERR_FAILED, "requests are live: a measurement needs the model alone");
        return;
    }
    kv_clear(sched_kv(b->m->attached.sched));
    b->ok = take_memory(b) && measure_all(b);
    Error later;
    while (b->n_flights > 0) /* after a failure: their results lie in the arena */
        if (!wait_oldest(b, &later))
            log_msg(LOG_INFO, "%s", later.msg);
    release_all(b);
}

bool bench_run(MereModel *m, const MereBench *b, MereBenchResult *out, Error *err)
{
    MereBench own = *b;
    own.rows = own.rows > 0 ? own.rows : 1;
    own.reps = own.reps > 0 ? own.reps : 3;
    *out = (MereBenchResult){0};
    if (own.prompt < 0 || own.gen < 0 || own.depth < 0 || own.reps > REPS_MAX)
        return err_set(err, ERR_USAGE, "prompt %d, gen %d, depth %d, reps %d: out of range",
                       (int)own.prompt, (int)own.gen, (int)own.depth, (int)own.reps);
    if (own.rows > m->info.slots)
        return err_set(err, ERR_USAGE, "%d rows, the model was opened with %d slots", (int)own.rows,
                       (int)m->info.slots);
    const int64_t need = (int64_t)own.depth + (own.prompt > own.gen ? own.prompt : own.gen);
    if (need > m->info.ctx)
        return err_set(err, ERR_USAGE, "depth %d and prompt %d or gen %d: the context holds %d",
                       (int)own.depth, (int)own.prompt, (int)own.gen, (int)m->info.ctx);
    Bench job = {.m = m, .b = &own, .out = out, .err = err};
    arena_init(&job.arena, "bench");
    const bool called = engine_call(m->engine, bench_main, &job);
    arena_free(&job.arena);
    return called ? job.ok : err_set(err, ERR_USAGE, "the engine was closed");
}
