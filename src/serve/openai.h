/* openai.h: bodies of POST /v1/completions and /v1/chat/completions into requests of mere.h. Pure:
 * no sockets, no engine. Any thread.
 *
 * Fields that change what the client gets and that this server cannot do are refused by name (n
 * above 1, echo, response_format, tool_choice "required" ...); fields that it does not know are
 * ignored, as clients send many. */
#ifndef MERE_SERVE_OPENAI_H
#define MERE_SERVE_OPENAI_H

#include "base/arena.h"
#include "base/str.h"
#include "mere.h"

typedef enum OpenaiKind { OPENAI_COMPLETION, OPENAI_CHAT } OpenaiKind;

enum { OPENAI_STOPS_MAX = 16, OPENAI_LOGPROBS_MAX = 20, OPENAI_BIAS_MAX = 1024 };

typedef struct OpenaiRequest {
    OpenaiKind kind;
    Str model; /* ptr NULL: not given */
    bool stream;
    bool include_usage;
    /* Chat: JSON text for mere_chat_render; tools and vars may be empty. The prompt of `gen` is
     * then left to the caller. */
    MereStr messages, tools, vars;
    MereRequest gen;
} OpenaiRequest;

/* All that `out` points to lives in `a`. ERR_REQUEST: the message says what is wrong (bad JSON with
 * its line) and *param names the field, NULL when it is not about one. ERR_UNSUPPORTED likewise for
 * what this server cannot do. */
MUST_CHECK bool openai_parse(Arena *a, OpenaiKind kind, Str body, OpenaiRequest *out,
                             const char **param, Error *err);

#endif
