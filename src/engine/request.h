/* request.h: one request from submit to the last event: what was asked, copied, and what came out.
 *
 * All memory that an answer can need is taken when the request is made (a record per token, top
 * logprobs, text at a usual length); only text that is longer than usual takes a block more. The
 * pages of the large parts are touched as the answer grows.
 *
 * Who owns it: the submitting thread until events_add; then the engine thread writes and the
 * reading thread reads, with the counts (n_made, n_taken ...) under the lock of Events. After the
 * END event was read, the reader frees it. */
#ifndef MERE_ENGINE_REQUEST_H
#define MERE_ENGINE_REQUEST_H

#include "base/arena.h"
#include "base/str.h"
#include "mere.h"

#include <stdatomic.h>

typedef struct Request Request;

typedef struct RequestToken {
    int32_t token;
    float logprob;
    uint32_t text_len;
    const char *text;
} RequestToken;

struct Request {
    uint64_t id, user;
    Arena arena;
    Request *next; /* in the scheduler's queue */
    atomic_bool cancelled;

    /* What was asked. */
    const int32_t *ids;
    int n_prompt;
    int max_new; /* 0 for echo_logits */
    MereSampling sampling;
    const Str *stops;
    int n_stops;
    Str salt;
    bool ignore_eos, echo_logits;

    /* What came out: written by the engine thread. */
    RequestToken *tokens; /* [max_new] */
    MereLogprob *top;     /* [max_new][n_top] */
    int n_top;            /* logprobs asked for */
    char *text;           /* free space of the current block */
    size_t text_left;
    void *block; /* tokens, top and the first text */
    float *rows; /* [row_cap][vocab] logits that wait to be read */
    size_t rows_bytes;
    int row_cap, vocab;
    Str last_text;
    MereFinish finish;
    MereError error;
    MereUsage usage;
    uint64_t submit_ns, admit_ns, first_ns;

    /* Under the lock of Events. */
    Request *all_next, *all_prev, *ready_next;
    int n_made, n_taken;       /* token events */
    int rows_made, rows_taken; /* logits rows since the start; ring position row % row_cap */
    bool ready, ended;
};

typedef struct RequestLimits {
    int vocab, ctx;
    int echo_rows; /* rows of logits that may wait unread */
} RequestLimits;

/* `ids` is the prompt as tokens; r->prompt and r->ids are not looked at. ERR_REQUEST: the field and
 * its range. ERR_TOO_LONG: prompt and max_tokens against the context. ERR_NOMEM. */
MUST_CHECK bool request_new(const MereRequest *r, const int32_t *ids, int64_t n_ids,
                            const RequestLimits *limits, Request **out, Error *err);
void request_free(Request *r); /* NULL is fine */

/* Engine thread. A copy of the text that lives as long as the request. */
MUST_CHECK bool request_text(Request *r, Str text, Str *out, Error *err);

#endif
