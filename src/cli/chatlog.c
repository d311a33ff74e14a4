#include "cli/chatlog.h"

#include "base/file.h"
#include "base/json.h"
#include "base/jsonout.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static const char *const roles[] = {"system", "user", "assistant"};

void chatlog_free(Chatlog *log)
{
    for (int i = 0; i < log->n; i++)
        mem_free(log->messages[i].text);
    mem_free(log->messages);
    *log = (Chatlog){0};
}

static bool make_message(ChatMessage *m, ChatRole role, Str text, Error *err)
{
    if (text.len > CHATLOG_TEXT_MAX)
        return err_set(err, ERR_TOO_LONG, "a message of %zu bytes, at most %d are taken", text.len,
                       CHATLOG_TEXT_MAX);
    char *copy = mem_alloc(text.len + 1);
    if (!copy)
        return err_nomem(err, "message", text.len + 1);
    if (text.len > 0)
        memcpy(copy, text.ptr, text.len);
    copy[text.len] = '\0';
    *m = (ChatMessage){role, copy, text.len};
    return true;
}

static bool insert(Chatlog *log, int at, ChatRole role, Str text, Error *err)
{
    if (log->n == log->cap) {
        const int cap = log->cap > 0 ? 2 * log->cap : 16;
        const size_t bytes = (size_t)cap * sizeof *log->messages;
        ChatMessage *grown = mem_realloc(log->messages, bytes);
        if (!grown)
            return err_nomem(err, "conversation", bytes);
        log->messages = grown;
        log->cap = cap;
    }
    ChatMessage m;
    if (!make_message(&m, role, text, err))
        return false;
    memmove(log->messages + at + 1, log->messages + at,
            (size_t)(log->n - at) * sizeof *log->messages);
    log->messages[at] = m;
    log->n++;
    return true;
}

static void take_out(Chatlog *log, int at)
{
    mem_free(log->messages[at].text);
    log->n--;
    memmove(log->messages + at, log->messages + at + 1,
            (size_t)(log->n - at) * sizeof *log->messages);
}

bool chatlog_add(Chatlog *log, ChatRole role, Str text, Error *err)
{
    return insert(log, log->n, role, text, err);
}

const ChatMessage *chatlog_system(const Chatlog *log)
{
    return log->n > 0 && log->messages[0].role == CHAT_SYSTEM ? &log->messages[0] : NULL;
}

bool chatlog_set_system(Chatlog *log, Str text, Error *err)
{
    const bool had = chatlog_system(log) != NULL;
    if (text.len > 0 && !insert(log, 0, CHAT_SYSTEM, text, err))
        return false;
    if (had)
        take_out(log, text.len > 0 ? 1 : 0);
    return true;
}

const ChatMessage *chatlog_last(const Chatlog *log, ChatRole role)
{
    return log->n > 0 && log->messages[log->n - 1].role == role ? &log->messages[log->n - 1] : NULL;
}

bool chatlog_drop(Chatlog *log, ChatRole role)
{
    if (!chatlog_last(log, role))
        return false;
    take_out(log, log->n - 1);
    return true;
}

void chatlog_clear(Chatlog *log)
{
    const int keep = chatlog_system(log) ? 1 : 0;
    while (log->n > keep)
        take_out(log, log->n - 1);
}

void chatlog_json(const Chatlog *log, StrBuf *out)
{
    strbuf_add_cstr(out, "[");
    for (int i = 0; i < log->n; i++) {
        const ChatMessage *m = &log->messages[i];
        strbuf_printf(out, "%s{\"role\":\"%s\",\"content\":", i ? "," : "", roles[m->role]);
        jsonout_str(out, (Str){m->text, m->len});
        strbuf_add_cstr(out, "}");
    }
    strbuf_add_cstr(out, "]");
}

/* ---- files ---- */

static bool write_file(const char *path, Str text, Error *err)
{
    FILE *f = fopen(path, "wbe");
    if (!f)
        return err_set(err, ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    const bool written =
        fwrite(text.ptr, 1, text.len, f) == text.len && fputc('\n', f) != EOF && fflush(f) == 0;
    const int why = errno;
    const bool closed = fclose(f) == 0;
    return (written && closed) ||
           err_set(err, ERR_IO, "%s: cannot write: %s", path, strerror(written ? errno : why));
}

bool chatlog_save(const Chatlog *log, const char *path, Error *err)
{
    StrBuf text, part;
    strbuf_init(&text, (size_t)CHATLOG_TEXT_MAX * 8);
    strbuf_init(&part, 1 << 16);
    chatlog_json(log, &text);
    strbuf_printf(&part, "%s.part", path);
    bool ok = strbuf_check(&text, "conversation", err) && strbuf_check(&part, "file name", err) &&
              write_file(part.ptr, strbuf_str(&text), err);
    if (ok && rename(part.ptr, path) != 0) {
        ok = err_set(err, ERR_IO, "%s: cannot create: %s", path, strerror(errno));
        unlink(part.ptr);
    }
    strbuf_free(&text);
    strbuf_free(&part);
    return ok;
}

static bool read_message(Chatlog *log, const char *path, const json_t *item, int i, Error *err)
{
    Str role = {0};
    Str content = {0};
    if (!json_is_object(item) || !json_get_str_or(item, path, "role", &role, err) ||
        !json_get_str_or(item, path, "content", &content, err) || !role.ptr || !content.ptr)
        return err_set(err, ERR_FORMAT, "%s: message %d is no object with role and content as text",
                       path, i);
    for (size_t r = 0; r < COUNT_OF(roles); r++) {
        if (!str_is(role, roles[r]))
            continue;
        if (r == CHAT_SYSTEM && i > 0)
            break;
        return chatlog_add(log, (ChatRole)r, content, err);
    }
    return err_set(err, ERR_FORMAT,
                   "%s: message %d has the role \"%.*s\"; user and assistant are taken, and system "
                   "at the beginning",
                   path, i, (int)(role.len < 40 ? role.len : 40), role.ptr);
}

static bool read_messages(Chatlog *log, const char *path, Str text, Error *err)
{
    json_t *doc = json_parse(path, text, err);
    if (!doc)
        return false;
    bool ok =
        json_is_array(doc) || err_set(err, ERR_FORMAT, "%s: wanted an array of messages", path);
    for (size_t i = 0; ok && i < json_array_size(doc); i++)
        ok = read_message(log, path, json_array_get(doc, i), (int)i, err);
    json_decref(doc);
    return ok;
}

bool chatlog_load(Chatlog *log, const char *path, Error *err)
{
    Arena a;
    Str text;
    Chatlog read = {0};
    arena_init(&a, "conversation");
    const bool ok =
        file_read(&a, path, CHATLOG_FILE_MAX, &text, err) && read_messages(&read, path, text, err);
    if (ok) {
        chatlog_free(log);
        *log = read;
    } else {
        chatlog_free(&read);
    }
    arena_free(&a);
    return ok;
}
