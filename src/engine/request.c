#include "engine/request.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/kv.h"
#include "engine/sample.h"
#include "engine/stop.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <time.h>

enum {
    TEXT_PER_TOKEN = 8, /* usual bytes of a token, with room to spare */
    TOP_TEXT = 8,       /* of an alternative */
    TEXT_BLOCK = 1 << 16
};

static bool check_stops(const MereRequest *r, Error *err)
{
    if (r->n_stops < 0 || r->n_stops > STOP_MAX || (r->n_stops > 0 && !r->stops))
        return err_set(err, ERR_REQUEST, "stop: %d strings, at most %d", (int)r->n_stops, STOP_MAX);
    for (int i = 0; i < r->n_stops; i++) {
        const Str s = {r->stops[i].ptr, r->stops[i].len};
        if (s.len == 0 || s.len > STOP_BYTES_MAX)
            return err_set(err, ERR_REQUEST, "stop: string %d has %zu bytes, wanted 1 to %d", i,
                           s.len, STOP_BYTES_MAX);
        if (utf8_valid_prefix(s) != s.len)
            return err_set(err, ERR_REQUEST, "stop: string %d is not valid UTF-8", i);
    }
    return true;
}

static bool check_ids(const int32_t *ids, int64_t n_ids, int vocab, Error *err)
{
    if (n_ids <= 0)
        return err_set(err, ERR_REQUEST, "the prompt is empty");
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return err_set(err, ERR_REQUEST,
                           "token %" PRId64 " of the prompt is %d, the vocabulary has %d", i,
                           (int)ids[i], vocab);
    return true;
}

/* *max_new is filled: 0 for echo, else at least 1. */
static bool check_length(const MereRequest *r, int64_t n_ids, int ctx, int *max_new, Error *err)
{
    if (r->max_tokens < 0)
        return err_set(err, ERR_REQUEST, "max_tokens is %d, wanted 0 or more", (int)r->max_tokens);
    *max_new = 0;
    if (r->echo_logits)
        return n_ids <= ctx ||
               err_set(err, ERR_TOO_LONG, "the prompt has %" PRId64 " tokens, the context holds %d",
                       n_ids, ctx);
    const int64_t total = n_ids + (r->max_tokens > 0 ? r->max_tokens : 1);
    if (total > ctx)
        return err_set(err, ERR_TOO_LONG,
                       "the prompt has %" PRId64
                       " tokens and max_tokens is %d, the context holds %d",
                       n_ids, (int)r->max_tokens, ctx);
    *max_new = r->max_tokens > 0 ? r->max_tokens : ctx - (int)n_ids;
    return true;
}

static bool copy_str(Arena *a, Str s, Str *out, Error *err)
{
    const char *p = arena_strdup(a, s.ptr, s.len, err);
    *out = (Str){p, s.len};
    return p != NULL;
}

static bool copy_input(Request *q, const MereRequest *r, const int32_t *ids, Error *err)
{
    Arena *a = &q->arena;
    int32_t *own = ARENA_ARRAY(a, q->n_prompt, int32_t, err);
    MereBias *bias = ARENA_ARRAY(a, r->sampling.n_bias, MereBias, err);
    Str *stops = ARENA_ARRAY(a, r->n_stops, Str, err);
    if (!own || !bias || !stops)
        return false;
    memcpy(own, ids, (size_t)q->n_prompt * sizeof *own);
    if (r->sampling.n_bias > 0)
        memcpy(bias, r->sampling.bias, (size_t)r->sampling.n_bias * sizeof *bias);
    q->ids = own;
    q->sampling.bias = bias;
    q->stops = stops;
    for (int i = 0; i < r->n_stops; i++)
        if (!copy_str(a, (Str){r->stops[i].ptr, r->stops[i].len}, &stops[i], err))
            return false;
    return copy_str(a, (Str){r->cache_salt.ptr, r->cache_salt.len}, &q->salt, err);
}

static bool take_output(Request *q, Error *err)
{
    if (q->echo_logits) {
        q->rows_bytes = (size_t)q->row_cap * (size_t)q->vocab * sizeof(float);
        q->rows = mem_map(q->rows_bytes);
        return q->rows || err_nomem(err, "rows of logits", q->rows_bytes);
    }
    const size_t n = (size_t)q->max_new;
    const size_t tops = n * (size_t)q->n_top;
    const size_t text = n * TEXT_PER_TOKEN + tops * TOP_TEXT + 256;
    const size_t bytes = n * sizeof *q->tokens + tops * sizeof *q->top + text;
    q->block = mem_alloc(bytes); /* not zeroed: pages are touched as tokens come */
    if (!q->block)
        return err_nomem(err, "events of a request", bytes);
    q->tokens = q->block;
    q->top = (MereLogprob *)(void *)(q->tokens + n);
    q->text = (char *)(q->top + tops);
    q->text_left = text;
    return true;
}

static uint64_t clock_seed(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    const uint64_t now = (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
    uint64_t x = now ^ (now << 21) ^ (clock_ns() << 40);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x ^= x >> 31;
    return x ? x : 1;
}

bool request_new(const MereRequest *r, const int32_t *ids, int64_t n_ids,
                 const RequestLimits *limits, Request **out, Error *err)
{
    int max_new;
    if (!check_ids(ids, n_ids, limits->vocab, err) ||
        !check_length(r, n_ids, limits->ctx, &max_new, err) || !check_stops(r, err) ||
        !sample_check(&r->sampling, limits->vocab, err))
        return false;
    if (r->cache_salt.len > KV_SALT_MAX)
        return err_set(err, ERR_REQUEST, "cache_salt has %zu bytes, at most %d", r->cache_salt.len,
                       KV_SALT_MAX);
    Request *q = mem_zalloc(sizeof *q);
    if (!q)
        return err_nomem(err, "request", sizeof *q);
    arena_init(&q->arena, "request");
    atomic_init(&q->cancelled, false);
    q->user = r->user;
    q->n_prompt = (int)n_ids;
    q->max_new = max_new;
    q->sampling = r->sampling;
    q->n_stops = r->n_stops;
    q->ignore_eos = r->ignore_eos;
    q->echo_logits = r->echo_logits;
    q->n_top = r->sampling.logprobs > 0 ? r->sampling.logprobs : 0;
    q->vocab = limits->vocab;
    q->row_cap = limits->echo_rows;
    q->submit_ns = clock_ns();
    if (q->sampling.seed == 0)
        q->sampling.seed = clock_seed();
    if (!copy_input(q, r, ids, err) || !take_output(q, err)) {
        request_free(q);
        return false;
    }
    *out = q;
    return true;
}

void request_free(Request *r)
{
    if (!r)
        return;
    mem_free(r->block);
    mem_unmap(r->rows, r->rows_bytes);
    arena_free(&r->arena);
    mem_free(r);
}

bool request_text(Request *r, Str text, Str *out, Error *err)
{
    if (text.len > r->text_left) {
        const size_t block = text.len > TEXT_BLOCK ? text.len : TEXT_BLOCK;
        r->text = arena_take(&r->arena, block, 1, err);
        r->text_left = r->text ? block : 0;
        if (!r->text)
            return false;
    }
    if (text.len > 0)
        memcpy(r->text, text.ptr, text.len);
    *out = (Str){r->text, text.len};
    r->text += text.len;
    r->text_left -= text.len;
    return true;
}
