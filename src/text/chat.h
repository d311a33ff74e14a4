/* chat.h: a conversation to the prompt text that the model's own chat template makes of it.
 *
 * A template is opened once and then never changes: any thread may render it, each render with its
 * own memory. There is no built-in template: a model without one is an error that names --raw,
 * since a guessed format gives bad answers without a word. Limits on source, steps, memory, depth
 * and output are those of template.h. */
#ifndef MERE_TEXT_CHAT_H
#define MERE_TEXT_CHAT_H

#include "base/arena.h"
#include "base/json.h"
#include "text/tokenizer.h"

#include <time.h>

typedef struct Chat Chat;

/* Where a checkpoint may keep its template; the first that is there is taken. All borrowed during
 * open only. */
typedef struct ChatSource {
    const char *doc;      /* the checkpoint, for messages */
    Str jinja;            /* text of chat_template.jinja, or GGUF's tokenizer.chat_template */
    Str tokenizer_config; /* text of tokenizer_config.json: "chat_template", a string or a list of
                             named ones ("default", "tool_use") */
    const Tokenizer *tokenizer; /* for bos_token and eos_token; may be NULL */
} ChatSource;

/* ERR_NOT_FOUND: no template anywhere. ERR_FORMAT: it does not parse, with its line. */
MUST_CHECK bool chat_open(Arena *a, const ChatSource *source, Chat **out, Error *err);

typedef struct ChatInput {
    const json_t *messages; /* array of {role, content, ...}, as OpenAI's API has them */
    const json_t *tools;    /* array, or NULL: none */
    const json_t *vars;     /* object of further variables (enable_thinking ...), or NULL */
    bool add_generation_prompt;
    const struct tm *now; /* for strftime_now; NULL: the local time */
} ChatInput;

/* Appends the prompt to `out` (initialised by the caller with its own limit). ERR_REQUEST: the
 * template refuses the conversation (raise_exception, or a field that it needs is missing), with
 * its text and line; a limit was met. ERR_NOMEM: out of memory, or `out` is full. `out` is as it
 * was after an error. */
MUST_CHECK bool chat_render(const Chat *c, const ChatInput *in, StrBuf *out, Error *err);

/* The template's text mentions this name: whether a variable such as enable_thinking does anything.
 */
bool chat_mentions(const Chat *c, const char *name);
size_t chat_bytes(const Chat *c); /* memory held */

#endif
