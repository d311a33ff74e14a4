#include "serve/reply.h"

#include "base/jsonout.h"

#include <inttypes.h>

enum { TOKENS, TOKEN_LOGPROBS, TOP_LOGPROBS, TEXT_OFFSET }; /* columns of completions */

static Str as_str(MereStr s)
{
    return (Str){s.ptr, s.len};
}

/* ---- log-probabilities ---- */

void reply_logprobs_init(ReplyLogprobs *l, size_t max_bytes)
{
    *l = (ReplyLogprobs){0};
    for (int i = 0; i < REPLY_COLUMNS; i++)
        strbuf_init(&l->column[i], max_bytes);
}

void reply_logprobs_free(ReplyLogprobs *l)
{
    for (int i = 0; i < REPLY_COLUMNS; i++)
        strbuf_free(&l->column[i]);
}

void reply_logprobs_next(ReplyLogprobs *l)
{
    for (int i = 0; i < REPLY_COLUMNS; i++)
        strbuf_clear(&l->column[i]);
    l->n = 0;
}

/* "token": ..., "logprob": ..., "bytes": [...] */
static void add_entry(StrBuf *b, MereStr bytes, float logprob)
{
    strbuf_add_cstr(b, "\"token\":");
    jsonout_str(b, as_str(bytes));
    strbuf_add_cstr(b, ",\"logprob\":");
    jsonout_f32(b, logprob);
    strbuf_add_cstr(b, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++)
        strbuf_printf(b, "%s%u", i ? "," : "", (unsigned)(unsigned char)bytes.ptr[i]);
    strbuf_add_cstr(b, "]");
}

static void add_chat(StrBuf *b, MereStr bytes, const MereEvent *ev)
{
    strbuf_add_cstr(b, "{");
    add_entry(b, bytes, ev->logprob);
    strbuf_add_cstr(b, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top; i++) {
        strbuf_add_cstr(b, i ? ",{" : "{");
        add_entry(b, ev->top[i].bytes, ev->top[i].logprob);
        strbuf_add_cstr(b, "}");
    }
    strbuf_add_cstr(b, "]}");
}

void reply_logprobs_add(ReplyLogprobs *l, OpenaiKind kind, MereStr bytes, const MereEvent *ev)
{
    StrBuf *c = l->column;
    if (l->n++ > 0)
        for (int i = 0; i < (kind == OPENAI_CHAT ? 1 : REPLY_COLUMNS); i++)
            strbuf_add_cstr(&c[i], ",");
    if (kind == OPENAI_CHAT) {
        add_chat(&c[0], bytes, ev);
    } else {
        jsonout_str(&c[TOKENS], as_str(bytes));
        jsonout_f32(&c[TOKEN_LOGPROBS], ev->logprob);
        strbuf_printf(&c[TEXT_OFFSET], "%" PRId64, l->offset);
        strbuf_add_cstr(&c[TOP_LOGPROBS], "{");
        for (int i = 0; i < ev->n_top; i++) {
            strbuf_add_cstr(&c[TOP_LOGPROBS], i ? "," : "");
            jsonout_str(&c[TOP_LOGPROBS], as_str(ev->top[i].bytes));
            strbuf_add_cstr(&c[TOP_LOGPROBS], ":");
            jsonout_f32(&c[TOP_LOGPROBS], ev->top[i].logprob);
        }
        strbuf_add_cstr(&c[TOP_LOGPROBS], "}");
    }
    for (size_t i = 0; i < bytes.len; i++)
        if (((unsigned char)bytes.ptr[i] & 0xC0U) != 0x80U)
            l->offset++;
}

static void add_logprobs(StrBuf *b, OpenaiKind kind, const ReplyLogprobs *l)
{
    strbuf_add_cstr(b, ",\"logprobs\":");
    if (!l) {
        strbuf_add_cstr(b, "null");
        return;
    }
    static const char *const names[REPLY_COLUMNS] = {
        [TOKENS] = "{\"tokens\":[",
        [TOKEN_LOGPROBS] = "],\"token_logprobs\":[",
        [TOP_LOGPROBS] = "],\"top_logprobs\":[",
        [TEXT_OFFSET] = "],\"text_offset\":[",
    };
    if (kind == OPENAI_CHAT)
        strbuf_add_cstr(b, "{\"content\":[");
    for (int i = 0; i < (kind == OPENAI_CHAT ? 1 : REPLY_COLUMNS); i++) {
        if (kind == OPENAI_COMPLETION)
            strbuf_add_cstr(b, names[i]);
        strbuf_add(b, l->column[i].ptr, l->column[i].len);
        b->failed = b->failed || l->column[i].failed;
    }
    strbuf_add_cstr(b, kind == OPENAI_CHAT ? "],\"refusal\":null}" : "]}");
}

/* ---- objects ---- */

static void add_head(StrBuf *b, const ReplyHead *head, bool is_chunk)
{
    const char *object = head->kind == OPENAI_COMPLETION ? "text_completion"
                         : is_chunk                      ? "chat.completion.chunk"
                                                         : "chat.completion";
    strbuf_printf(b,
                  "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", head->id,
                  object, head->created);
    jsonout_str(b, head->model);
    strbuf_add_cstr(b, ",\"choices\":[");
}

static void add_usage(StrBuf *b, const MereUsage *u)
{
    strbuf_printf(b,
                  ",\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":%d}",
                  u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens,
                  u->cached_tokens);
    if (u->drafted > 0)
        strbuf_printf(b,
                      ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%d,"
                      "\"rejected_prediction_tokens\":%d}",
                      u->accepted, u->drafted - u->accepted);
    strbuf_add_cstr(b, "}");
}

static void add_finish(StrBuf *b, const char *finish)
{
    if (finish)
        strbuf_printf(b, ",\"finish_reason\":\"%s\"}", finish);
    else
        strbuf_add_cstr(b, ",\"finish_reason\":null}");
}

void reply_full(StrBuf *b, const ReplyHead *head, Str text, const ReplyLogprobs *logprobs,
                const char *finish, const MereUsage *usage)
{
    add_head(b, head, false);
    if (head->kind == OPENAI_CHAT) {
        strbuf_add_cstr(b, "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
        jsonout_str(b, text);
        strbuf_add_cstr(b, ",\"refusal\":null}");
    } else {
        strbuf_add_cstr(b, "{\"index\":0,\"text\":");
        jsonout_str(b, text);
    }
    add_logprobs(b, head->kind, logprobs);
    add_finish(b, finish);
    strbuf_add_cstr(b, "]");
    add_usage(b, usage);
    strbuf_add_cstr(b, "}");
}

/* One event with one choice. delta: the inside of chat's "delta" or the text of a completion. */
static void add_chunk(StrBuf *b, const ReplyHead *head, bool is_first, Str text,
                      const ReplyLogprobs *logprobs, const char *finish, bool with_usage)
{
    strbuf_add_cstr(b, "data: ");
    add_head(b, head, true);
    if (head->kind == OPENAI_CHAT) {
        strbuf_add_cstr(b, "{\"index\":0,\"delta\":{");
        if (is_first)
            strbuf_add_cstr(b, "\"role\":\"assistant\",");
        if (text.ptr) {
            strbuf_add_cstr(b, "\"content\":");
            jsonout_str(b, text);
        }
        strbuf_add_cstr(b, "}");
    } else {
        strbuf_add_cstr(b, "{\"index\":0,\"text\":");
        jsonout_str(b, text);
    }
    add_logprobs(b, head->kind, logprobs);
    add_finish(b, finish);
    strbuf_add_cstr(b, with_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

void reply_role(StrBuf *b, const ReplyHead *head, bool with_usage)
{
    add_chunk(b, head, true, str_from(""), NULL, NULL, with_usage);
}

void reply_text(StrBuf *b, const ReplyHead *head, Str text, const ReplyLogprobs *logprobs,
                bool with_usage)
{
    add_chunk(b, head, false, text, logprobs, NULL, with_usage);
}

void reply_finish(StrBuf *b, const ReplyHead *head, const char *finish, bool with_usage)
{
    add_chunk(b, head, false, (Str){NULL, 0}, NULL, finish, with_usage);
}

void reply_usage(StrBuf *b, const ReplyHead *head, const MereUsage *usage)
{
    strbuf_add_cstr(b, "data: ");
    add_head(b, head, true);
    strbuf_add_cstr(b, "]");
    add_usage(b, usage);
    strbuf_add_cstr(b, "}\n\n");
}

void reply_done(StrBuf *b)
{
    strbuf_add_cstr(b, "data: [DONE]\n\n");
}

void reply_error(StrBuf *b, int status, const char *code, const char *param, const char *message)
{
    strbuf_add_cstr(b, "{\"error\":{\"message\":");
    jsonout_str(b, str_from(message));
    strbuf_printf(
        b, ",\"type\":\"%s\",\"param\":", status < 500 ? "invalid_request_error" : "server_error");
    if (param)
        jsonout_str(b, str_from(param));
    else
        strbuf_add_cstr(b, "null");
    strbuf_add_cstr(b, ",\"code\":");
    if (code)
        jsonout_str(b, str_from(code));
    else
        strbuf_add_cstr(b, "null");
    strbuf_add_cstr(b, "}}");
}

void reply_error_event(StrBuf *b, int status, const char *code, const char *message)
{
    strbuf_add_cstr(b, "data: ");
    reply_error(b, status, code, NULL, message);
    strbuf_add_cstr(b, "\n\n");
}
