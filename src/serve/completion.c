#include "serve/completion.h"

#include "base/log.h"
#include "base/mem.h"
#include "serve/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

enum {
    ANSWER_BYTES_MAX = 64 * 1024 * 1024, /* of one answer held for a client that does not stream */
    PROMPT_BYTES_MAX = 256 * 1024 * 1024,
    TOKEN_BYTES = 256 /* of one token's text in log-probabilities; longer ones are cut */
};
static const char json_type[] = "application/json";

struct Completion {
    CompletionSet *set;
    Completion *prev, *next;
    NetReq *req; /* NULL: answered or gone */
    uint64_t id; /* the engine's */
    ReplyHead head;
    char head_id[48];
    bool stream, include_usage, want_logprobs;
    bool started; /* the stream's headers are out */
    StrBuf text;  /* the answer so far; of a stream, the bytes to write next */
    ReplyLogprobs logprobs;
};

/* ---- errors ---- */

void completion_refuse(NetReq *r, int status, const char *code, const char *param,
                       const char *message)
{
    log_msg(LOG_INFO, "%s %s %d %s", net_method(r), net_path(r), status, message);
    StrBuf b;
    strbuf_init(&b, 4096);
    reply_error(&b, status, code, param, message);
    /* Out of memory here: the status alone is an answer too. */
    net_reply(r, status, json_type, b.failed ? str_from("") : strbuf_str(&b));
    strbuf_free(&b);
}

static void refuse_mere(NetReq *r, const MereError *err, const char *param)
{
    const int status = mere_err_http_status(err->code);
    if (err->code == MERE_ERR_FULL)
        net_reply_header(r, "Retry-After", "1");
    completion_refuse(r, status,
                      err->code == MERE_ERR_TOO_LONG ? "context_length_exceeded"
                                                     : mere_err_name(err->code),
                      param, err->msg);
}

static void refuse_body(NetReq *r, const char *param, const Error *err)
{
    /* What a client asks for and this server cannot do is the client's mistake: 400, not 501. */
    const int status = err->code == ERR_NOMEM ? 503 : 400;
    completion_refuse(r, status, err_name(err->code), param, err->msg);
}

/* ---- life ---- */

static void finish(Completion *c)
{
    CompletionSet *set = c->set;
    if (c->prev)
        c->prev->next = c->next;
    else
        set->list = c->next;
    if (c->next)
        c->next->prev = c->prev;
    set->n--;
    strbuf_free(&c->text);
    reply_logprobs_free(&c->logprobs);
    mem_free(c);
}

static void on_gone(void *ctx)
{
    Completion *c = ctx;
    c->req = NULL;
    log_msg(LOG_INFO, "%s: the client has gone", c->head.id);
    mere_cancel(c->set->engine, c->id);
}

/* The engine's work has lost its purpose. */
static void abandon(Completion *c)
{
    c->req = NULL;
    mere_cancel(c->set->engine, c->id);
}

/* Writes what c->text holds. */
static bool flush(Completion *c)
{
    if (!c->started) {
        net_stream_start(c->req, 200, "text/event-stream; charset=utf-8");
        c->started = true;
    }
    bool ok = true;
    if (c->text.failed) {
        net_drop(c->req);
        ok = false;
    } else if (c->text.len > 0) {
        ok = net_stream_write(c->req, strbuf_str(&c->text));
    }
    if (!ok) {
        log_msg(LOG_INFO, "%s: the client reads too slowly or memory is short", c->head.id);
        abandon(c);
    }
    strbuf_clear(&c->text);
    return ok;
}

/* ---- start ---- */

static bool render(const CompletionSet *set, Arena *a, OpenaiRequest *rq, MereError *merr,
                   Error *err)
{
    size_t cap = rq->messages.len + rq->tools.len * 2 + 16384;
    for (int round = 0; round < 2; round++) {
        char *text = arena_take(a, cap, 1, err);
        if (!text)
            return false;
        size_t n;
        if (!mere_chat_render(set->model, rq->messages, rq->tools, rq->vars, text, cap, &n, merr))
            return false;
        if (n <= cap) {
            rq->gen.prompt = (MereStr){text, n};
            return true;
        }
        if (n > PROMPT_BYTES_MAX)
            break;
        cap = n;
    }
    return err_set(err, ERR_TOO_LONG, "messages: the rendered prompt is longer than %d bytes",
                   PROMPT_BYTES_MAX);
}

static Completion *completion_new(CompletionSet *set, NetReq *r, const OpenaiRequest *rq)
{
    Completion *c = mem_zalloc(sizeof *c);
    if (!c)
        return NULL;
    c->set = set;
    c->req = r;
    c->stream = rq->stream;
    c->include_usage = rq->include_usage;
    c->want_logprobs = rq->gen.sampling.logprobs >= 0;
    snprintf(c->head_id, sizeof c->head_id, "%s-%016" PRIx64 "%08" PRIx64,
             rq->kind == OPENAI_CHAT ? "chatcmpl" : "cmpl", set->boot, ++set->n_started);
    c->head = (ReplyHead){rq->kind, c->head_id, (int64_t)time(NULL), set->model_name};
    strbuf_init(&c->text, ANSWER_BYTES_MAX);
    reply_logprobs_init(&c->logprobs, ANSWER_BYTES_MAX);
    c->next = set->list;
    if (c->next)
        c->next->prev = c;
    set->list = c;
    set->n++;
    return c;
}

/* Parses and submits; everything in `a` may go afterwards. True: c lives. */
static void start(CompletionSet *set, NetReq *r, OpenaiKind kind, Arena *a)
{
    Error err = {0};
    MereError merr = {0};
    const char *param;
    OpenaiRequest rq;
    const Str body = net_body(r);
    if (!body.ptr) {
        err_nomem(&err, "the body", 0);
        refuse_body(r, NULL, &err);
        return;
    }
    if (!openai_parse(a, kind, body, &rq, &param, &err)) {
        refuse_body(r, param, &err);
        return;
    }
    if (rq.model.len > 0 && !str_eq(rq.model, set->model_name) &&
        !str_eq(rq.model, set->model_alias)) {
        err_set(&err, ERR_NOT_FOUND, "model \"%.*s\" is not served here, \"%.*s\" is",
                (int)(rq.model.len < 80 ? rq.model.len : 80), rq.model.ptr,
                (int)set->model_name.len, set->model_name.ptr);
        completion_refuse(r, 404, "model_not_found", "model", err.msg);
        return;
    }
    if (kind == OPENAI_CHAT && !render(set, a, &rq, &merr, &err)) {
        if (merr.code == MERE_OK)
            refuse_body(r, "messages", &err);
        else /* the template refused these messages, or there is none */
            completion_refuse(r, merr.code == MERE_ERR_NOMEM ? 503 : 400, mere_err_name(merr.code),
                              "messages", merr.msg);
        return;
    }
    Completion *c = completion_new(set, r, &rq);
    if (!c) {
        err_nomem(&err, "a request", sizeof *c);
        refuse_body(r, NULL, &err);
        return;
    }
    if (!mere_submit(set->model, &rq.gen, &c->id, &merr)) {
        finish(c);
        refuse_mere(r, &merr,
                    merr.code == MERE_ERR_TOO_LONG && kind == OPENAI_CHAT ? "messages"
                    : merr.code == MERE_ERR_TOO_LONG                      ? "prompt"
                                                                          : NULL);
        return;
    }
    net_on_gone(r, on_gone, c);
}

void completion_start(CompletionSet *set, NetReq *r, OpenaiKind kind)
{
    Arena a;
    arena_init(&a, "request");
    start(set, r, kind, &a);
    arena_free(&a);
}

/* ---- events ---- */

static void on_token(Completion *c, const MereEvent *ev)
{
    if (c->want_logprobs) {
        char bytes[TOKEN_BYTES];
        size_t n = 0;
        MereError ignored;
        if (!mere_detokenize(c->set->model, &ev->token, 1, bytes, sizeof bytes, &n, &ignored))
            n = 0;
        reply_logprobs_add(&c->logprobs, c->head.kind,
                           (MereStr){bytes, n < sizeof bytes ? n : sizeof bytes}, ev);
    }
    const Str text = {ev->text.ptr, ev->text.len};
    if (!c->stream) {
        strbuf_add(&c->text, text.ptr, text.len);
        return;
    }
    if (text.len == 0 && !c->want_logprobs)
        return;
    if (!c->started && c->head.kind == OPENAI_CHAT)
        reply_role(&c->text, &c->head, c->include_usage);
    reply_text(&c->text, &c->head, text.ptr ? text : str_from(""),
               c->want_logprobs ? &c->logprobs : NULL, c->include_usage);
    reply_logprobs_next(&c->logprobs);
    flush(c);
}

/* The request failed in the engine, or the server ended it. */
static void end_with_error(Completion *c, const MereEvent *ev)
{
    MereError err = ev->error;
    if (ev->finish == MERE_FINISH_CANCELLED) {
        err.code = MERE_ERR_CANCELLED;
        snprintf(err.msg, sizeof err.msg, "the server is stopping");
    }
    const int status = ev->finish == MERE_FINISH_CANCELLED ? 503 : mere_err_http_status(err.code);
    if (!c->started) {
        completion_refuse(c->req, status, mere_err_name(err.code), NULL, err.msg);
        return;
    }
    log_msg(LOG_WARN, "%s: %s", c->head.id, err.msg);
    reply_error_event(&c->text, status, mere_err_name(err.code), err.msg);
    if (flush(c))
        net_stream_end(c->req);
}

static void end_stream(Completion *c, const MereEvent *ev)
{
    if (!c->started && c->head.kind == OPENAI_CHAT)
        reply_role(&c->text, &c->head, c->include_usage);
    if (ev->text.len > 0)
        reply_text(&c->text, &c->head, (Str){ev->text.ptr, ev->text.len}, NULL, c->include_usage);
    reply_finish(&c->text, &c->head, mere_finish_name(ev->finish), c->include_usage);
    if (c->include_usage)
        reply_usage(&c->text, &c->head, &ev->usage);
    reply_done(&c->text);
    if (flush(c))
        net_stream_end(c->req);
}

static void end_full(Completion *c, const MereEvent *ev)
{
    strbuf_add(&c->text, ev->text.ptr, ev->text.len);
    StrBuf out;
    strbuf_init(&out, (size_t)ANSWER_BYTES_MAX * 8);
    reply_full(&out, &c->head, strbuf_str(&c->text), c->want_logprobs ? &c->logprobs : NULL,
               mere_finish_name(ev->finish), &ev->usage);
    if (c->text.failed || out.failed)
        completion_refuse(c->req, 503, err_name(ERR_NOMEM), NULL,
                          "out of memory: the answer does not fit");
    else
        net_reply(c->req, 200, json_type, strbuf_str(&out));
    strbuf_free(&out);
}

static void on_end(Completion *c, const MereEvent *ev)
{
    if (c->req) {
        log_msg(LOG_INFO, "%s: %s, %d prompt tokens (%d cached), %d completion tokens, %.0f ms",
                c->head.id, mere_finish_name(ev->finish), ev->usage.prompt_tokens,
                ev->usage.cached_tokens, ev->usage.completion_tokens,
                ev->usage.queue_ms + ev->usage.prefill_ms + ev->usage.decode_ms);
        if (ev->finish == MERE_FINISH_STOP || ev->finish == MERE_FINISH_LENGTH) {
            if (c->stream)
                end_stream(c, ev);
            else
                end_full(c, ev);
        } else {
            end_with_error(c, ev);
        }
    }
    finish(c);
}

void completion_event(CompletionSet *set, const MereEvent *ev)
{
    Completion *c = set->list;
    while (c && c->id != ev->request)
        c = c->next;
    if (!c)
        return;
    if (ev->type == MERE_EVENT_END)
        on_end(c, ev);
    else if (ev->type == MERE_EVENT_TOKEN && c->req)
        on_token(c, ev);
}

void completion_cancel_all(CompletionSet *set)
{
    for (Completion *c = set->list; c; c = c->next)
        mere_cancel(set->engine, c->id);
}

void completion_free_all(CompletionSet *set)
{
    while (set->list)
        finish(set->list);
}
