/* reply.h: the JSON of OpenAI answers, chunks and error objects, written into StrBufs. Pure; any
 * thread. Errors are the buffers' (sticky): callers check once. */
#ifndef MERE_SERVE_REPLY_H
#define MERE_SERVE_REPLY_H

#include "base/str.h"
#include "mere.h"
#include "serve/openai.h"

/* What is the same in every object of one answer. Strings are borrowed. */
typedef struct ReplyHead {
    OpenaiKind kind;
    const char *id;  /* "chatcmpl-..." or "cmpl-..." */
    int64_t created; /* Unix seconds */
    Str model;
} ReplyHead;

/* Log-probabilities gathered token by token: for chat a list of objects, for completions four
 * columns. */
enum { REPLY_COLUMNS = 4 };
typedef struct ReplyLogprobs {
    StrBuf column[REPLY_COLUMNS];
    int n;
    int64_t offset; /* characters of the answer before the next token */
} ReplyLogprobs;

void reply_logprobs_init(ReplyLogprobs *l, size_t max_bytes);
void reply_logprobs_free(ReplyLogprobs *l);
/* Forgets the tokens, keeps the offset: for the next chunk. */
void reply_logprobs_next(ReplyLogprobs *l);
/* bytes: the token's own. */
void reply_logprobs_add(ReplyLogprobs *l, OpenaiKind kind, MereStr bytes, const MereEvent *ev);

/* A whole answer. logprobs may be NULL; finish: "stop" or "length". */
void reply_full(StrBuf *b, const ReplyHead *head, Str text, const ReplyLogprobs *logprobs,
                const char *finish, const MereUsage *usage);

/* ---- chunks of a stream, each framed as a server-sent event ("data: {...}\n\n") ---- */
/* with_usage: the client asked for usage, so that every other chunk says "usage": null. */
void reply_role(StrBuf *b, const ReplyHead *head, bool with_usage); /* chat only */
void reply_text(StrBuf *b, const ReplyHead *head, Str text, const ReplyLogprobs *logprobs,
                bool with_usage);
void reply_finish(StrBuf *b, const ReplyHead *head, const char *finish, bool with_usage);
void reply_usage(StrBuf *b, const ReplyHead *head, const MereUsage *usage);
void reply_done(StrBuf *b);
void reply_error_event(StrBuf *b, int status, const char *code, const char *message);

/* {"error": {...}}. param and code may be NULL. */
void reply_error(StrBuf *b, int status, const char *code, const char *param, const char *message);

#endif
