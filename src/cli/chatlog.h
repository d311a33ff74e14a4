/* chatlog.h: a conversation: an optional system message, then messages of user and assistant in
 * turn. As JSON it is what the OpenAI API calls "messages". Owns its text; single thread. */
#ifndef MERE_CLI_CHATLOG_H
#define MERE_CLI_CHATLOG_H

#include "base/str.h"

enum {
    CHATLOG_TEXT_MAX = 64 << 20, /* bytes of one message */
    CHATLOG_FILE_MAX = 64 << 20  /* bytes of a file */
};

typedef enum ChatRole { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT } ChatRole;

typedef struct ChatMessage {
    ChatRole role;
    char *text; /* NUL-terminated */
    size_t len;
} ChatMessage;

typedef struct Chatlog {
    ChatMessage *messages;
    int n, cap;
} Chatlog;

void chatlog_free(Chatlog *log);
MUST_CHECK bool chatlog_add(Chatlog *log, ChatRole role, Str text, Error *err);
/* In place of the one there is; an empty text takes it away. */
MUST_CHECK bool chatlog_set_system(Chatlog *log, Str text, Error *err);
/* The system message, or NULL. */
const ChatMessage *chatlog_system(const Chatlog *log);
/* The last message when it is the role's, or NULL. */
const ChatMessage *chatlog_last(const Chatlog *log, ChatRole role);
/* Drops the last message when it is the role's. */
bool chatlog_drop(Chatlog *log, ChatRole role);
/* Drops all but the system message. */
void chatlog_clear(Chatlog *log);

/* Appends the JSON array. Bytes that are no UTF-8 become U+FFFD. */
void chatlog_json(const Chatlog *log, StrBuf *out);
/* Whole or not at all. ERR_IO: the system's reason. */
MUST_CHECK bool chatlog_save(const Chatlog *log, const char *path, Error *err);
/* In place of what `log` holds, which stays as it is after an error. ERR_NOT_FOUND, ERR_IO: no such
 * file. ERR_FORMAT: no array of {role, content} with text, or roles other than those above. */
MUST_CHECK bool chatlog_load(Chatlog *log, const char *path, Error *err);

#endif
