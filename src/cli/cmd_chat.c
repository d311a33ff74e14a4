/* A conversation. Each turn the model's template renders all of it; the engine's prefix cache has
 * the rows of the turns before, so that only the new ones are read. Answers go to stdout,
 * everything else to stderr. */
#include "base/clock.h"
#include "base/jsonout.h"
#include "cli/chatlog.h"
#include "cli/cli.h"
#include "cli/fetch.h"
#include "cli/interrupt.h"
#include "cli/lineedit.h"
#include "cli/term.h"
#include "weights/hub.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TEXT_MAX = 256 << 20,
    THINK_AS_TEMPLATE = -1,
    THINK_OFF = 0,
    THINK_ON = INT32_MAX /* less: thinking tokens at most */
};

/* What /set changes. */
typedef struct Settings {
    double temp, top_p, min_p;
    int64_t top_k, seed, n; /* seed 0: from the clock each time; n 0: until the context is full */
    int64_t think;
} Settings;

typedef struct Chat {
    Cli *c;
    Arena arena; /* the program's */
    MereInfo info;
    Settings set;
    Chatlog log;
    LineEdit *in;
    int interrupt_fd;
    bool is_terminal; /* somebody sits there: errors do not end the program */
    bool visible;     /* stdout is a terminal */
    bool dims;        /* thoughts in a dim colour */
    bool is_done;
    /* the turn */
    StrBuf prompt, answer;
    bool opens_thought; /* the template itself begins one */
    bool is_dim;
    int32_t *ids; /* prompt and answer */
    int64_t n_ids;
    MereEvent end;   /* of its last request */
    MereUsage usage; /* of all its requests */
    int n_turns;
} Chat;

static bool from_mere(const MereError *merr, Error *err)
{
    return err_set(err, (ErrCode)merr->code, "%s", merr->msg);
}

/* ---- settings ---- */

typedef struct Setting {
    const char *name;
    bool is_int;
    double lo, hi;
    size_t at; /* offset in Settings */
    const char *help;
} Setting;

static const Setting settings[] = {
    {"temp", false, 0, 100, offsetof(Settings, temp), "temperature (0: the likeliest token)"},
    {"top_k", true, 0, INT32_MAX, offsetof(Settings, top_k), "of the K likeliest only (0: all)"},
    {"top_p", false, 0, 1, offsetof(Settings, top_p), "of the likeliest that sum to P (1: all)"},
    {"min_p", false, 0, 1, offsetof(Settings, min_p), "of those with P times the most (0: all)"},
    {"seed", true, 0, 0x1p53, offsetof(Settings, seed), "of the choices (0: from the clock)"},
    {"n", true, 0, INT32_MAX, offsetof(Settings, n), "tokens of an answer at most (0: no limit)"},
};

static bool parse_think(const char *from, Str value, int64_t *out, Error *err)
{
    if (str_is(value, "on"))
        *out = THINK_ON;
    else if (str_is(value, "off"))
        *out = THINK_OFF;
    else if (!str_to_int(value, 0, INT32_MAX - 1, out))
        return err_set(err, ERR_USAGE, "%s: \"%.*s\" is neither on nor off nor a number of tokens",
                       from, (int)(value.len < 40 ? value.len : 40), value.ptr);
    return true;
}

static bool set_value(Settings *s, Str name, Str value, Error *err)
{
    if (str_is(name, "think"))
        return parse_think("think", value, &s->think, err);
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const Setting *row = &settings[i];
        if (!str_is(name, row->name))
            continue;
        void *at = (char *)s + row->at;
        int64_t n;
        double v;
        if (row->is_int ? !str_to_int(value, (int64_t)row->lo, (int64_t)row->hi, &n)
                        : !str_to_double(value, &v) || !(v >= row->lo && v <= row->hi))
            return err_set(err, ERR_USAGE, "%s: \"%.*s\" is no number from %.0f to %.0f", row->name,
                           (int)(value.len < 40 ? value.len : 40), value.ptr, row->lo, row->hi);
        if (row->is_int)
            memcpy(at, &n, sizeof n);
        else
            memcpy(at, &v, sizeof v);
        return true;
    }
    return err_set(err, ERR_USAGE,
                   "no setting \"%.*s\"; there are temp, top_k, top_p, min_p, seed, n and think",
                   (int)(name.len < 40 ? name.len : 40), name.ptr);
}

static const char *think_name(int64_t think, char out[24])
{
    if (think == THINK_AS_TEMPLATE || think == THINK_OFF || think == THINK_ON)
        return think == THINK_OFF ? "off" : think == THINK_ON ? "on" : "as the template has it";
    snprintf(out, 24, "%lld", (long long)think);
    return out;
}

static void print_settings(const Chat *chat)
{
    char think[24];
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const Setting *row = &settings[i];
        const char *at = (const char *)&chat->set + row->at;
        int64_t n;
        double v;
        memcpy(&n, at, sizeof n);
        memcpy(&v, at, sizeof v);
        if (row->is_int)
            fprintf(stderr, "  %-6s %-8lld %s\n", row->name, (long long)n, row->help);
        else
            fprintf(stderr, "  %-6s %-8g %s\n", row->name, v, row->help);
    }
    fprintf(stderr, "  %-6s %-8s %s\n", "think", think_name(chat->set.think, think),
            "thinking: on, off, or tokens at most");
}

static bool take_options(Chat *chat, Error *err)
{
    const Options *o = &chat->c->o;
    chat->set = (Settings){.temp = o->temp,
                           .top_p = o->has_top_p ? o->top_p : 1,
                           .min_p = o->min_p,
                           .top_k = o->top_k,
                           .seed = o->seed,
                           .n = o->n,
                           .think = THINK_AS_TEMPLATE};
    if (o->has_think && !parse_think("--think", str_from(o->think), &chat->set.think, err))
        return false;
    return !o->has_system || chatlog_set_system(&chat->log, str_from(o->system), err);
}

/* ---- the prompt ---- */

/* The conversation as the model sees it, with thinking as `think` says, into `out`. */
static bool render(const Chat *chat, int64_t think, StrBuf *out, Error *err)
{
    StrBuf json;
    char vars[80] = "";
    if (think == THINK_ON || think == THINK_OFF)
        snprintf(vars, sizeof vars, "{\"enable_thinking\":%s}", think ? "true" : "false");
    else if (think > 0)
        snprintf(vars, sizeof vars, "{\"enable_thinking\":true,\"thinking_budget\":%lld}",
                 (long long)think);
    strbuf_init(&json, (size_t)TEXT_MAX * 2);
    chatlog_json(&chat->log, &json);
    bool ok = strbuf_check(&json, "conversation", err);
    size_t cap = json.len + 16384;
    strbuf_clear(out);
    for (int round = 0; ok && round < 2; round++) {
        Arena a;
        MereError merr = {0};
        size_t n = 0;
        arena_init(&a, "prompt");
        char *text = arena_take(&a, cap, 1, err);
        ok = text != NULL;
        if (ok && !mere_chat_render(chat->c->model, (MereStr){json.ptr, json.len}, MERE_STR(""),
                                    cli_str(vars), text, cap, &n, &merr))
            ok = from_mere(&merr, err);
        if (ok && n <= cap) {
            strbuf_add(out, text, n);
            round = 2;
        }
        arena_free(&a);
        cap = n;
    }
    strbuf_free(&json);
    return ok && strbuf_check(out, "prompt", err);
}

/* Ids of text, special tokens among them, behind those that are there. `a` holds chat->ids. */
static bool append_ids(Chat *chat, Arena *a, Str text, Error *err)
{
    MereError merr = {0};
    const MereStr in = {text.ptr, text.len};
    int64_t n;
    if (!mere_tokenize(chat->c->model, in, MERE_TOK_PARSE, NULL, 0, &n, &merr))
        return from_mere(&merr, err);
    int32_t *ids = ARENA_ARRAY(a, chat->n_ids + n + chat->info.ctx + 1, int32_t, err);
    if (!ids)
        return false;
    if (chat->n_ids > 0)
        memcpy(ids, chat->ids, (size_t)chat->n_ids * sizeof *ids);
    if (!mere_tokenize(chat->c->model, in, MERE_TOK_PARSE, ids + chat->n_ids, n, &n, &merr))
        return from_mere(&merr, err);
    chat->ids = ids;
    chat->n_ids += n;
    return true;
}

static bool ends_in_think(Str s)
{
    while (s.len > 0 && (s.ptr[s.len - 1] == '\n' || s.ptr[s.len - 1] == ' '))
        s.len--;
    return str_ends(s, "<think>");
}

/* ---- the answer ---- */

static bool in_thought(const Chat *chat)
{
    const char *text = chat->answer.ptr ? chat->answer.ptr : "";
    const bool began =
        chat->opens_thought || strncmp(text + strspn(text, " \n"), "<think>", 7) == 0;
    return began && !strstr(text, "</think>");
}

static bool write_out(Chat *chat, Str text)
{
    const bool dim = chat->dims && in_thought(chat);
    if (dim && !chat->is_dim)
        fputs("\033[2m", stdout);
    chat->is_dim = chat->is_dim || dim;
    bool ok = term_write(stdout, text, chat->visible);
    if (chat->is_dim && !dim) {
        fputs("\033[0m", stdout);
        chat->is_dim = false;
    }
    return ok && fflush(stdout) == 0;
}

static bool take_text(Chat *chat, Str text, Error *err)
{
    if (text.len == 0)
        return true;
    strbuf_add(&chat->answer, text.ptr, text.len);
    return strbuf_check(&chat->answer, "answer", err) &&
           (write_out(chat, text) ||
            err_set(err, ERR_FAILED, "cannot write to standard output: %s", strerror(errno)));
}

/* What no seed was given for: odd, and exact in every reader of JSON (53 bits). */
static uint64_t clock_seed(void)
{
    return (clock_ns() * 0x9e3779b97f4a7c15U >> 12) | 1;
}

static void add_usage(MereUsage *to, const MereUsage *u)
{
    if (to->prompt_tokens == 0) {
        *to = *u;
        return;
    }
    to->completion_tokens += u->completion_tokens;
    to->decode_ms += u->decode_ms + u->prefill_ms;
}

/* At most max_tokens more behind chat->ids. */
static bool generate(Chat *chat, int64_t max_tokens, Error *err)
{
    Cli *c = chat->c;
    const Settings *s = &chat->set;
    MereRequest req = MERE_REQUEST_INIT;
    req.ids = chat->ids;
    req.n_ids = chat->n_ids;
    req.max_tokens = (int32_t)max_tokens;
    req.sampling = (MereSampling){.temperature = (float)s->temp,
                                  .top_k = (int32_t)s->top_k,
                                  .top_p = (float)s->top_p,
                                  .min_p = (float)s->min_p,
                                  .repeat_penalty = (float)c->o.repeat_penalty,
                                  .presence_penalty = (float)c->o.presence_penalty,
                                  .frequency_penalty = (float)c->o.frequency_penalty,
                                  .seed = s->seed > 0 ? (uint64_t)s->seed : clock_seed(),
                                  .logprobs = -1};
    uint64_t id;
    MereError merr = {0};
    if (!mere_submit(c->model, &req, &id, &merr))
        return from_mere(&merr, err);
    bool ok = true; /* after a failed write the request still runs to its END */
    MereEvent ev;
    do {
        if (!cli_next(c, id, &ev, err))
            return false;
        if (ev.type == MERE_EVENT_TOKEN)
            chat->ids[chat->n_ids++] = ev.token;
        if (ok && !take_text(chat, (Str){ev.text.ptr ? ev.text.ptr : "", ev.text.len}, err)) {
            ok = false;
            mere_cancel(c->engine, id);
        }
    } while (ev.type != MERE_EVENT_END);
    chat->end = ev;
    add_usage(&chat->usage, &ev.usage);
    if (ok && ev.finish == MERE_FINISH_ERROR)
        return from_mere(&ev.error, err);
    return ok;
}

/* With a limit on thinking: so many tokens, then the thought is closed for the model and it goes on
 * from there. */
static bool generate_thinking(Chat *chat, Arena *a, int64_t limit, Error *err)
{
    const int64_t before = chat->n_ids;
    if (!generate(chat, i64_min(chat->set.think, limit), err))
        return false;
    if (chat->end.finish != MERE_FINISH_LENGTH || chat->set.think >= limit)
        return true;
    static const char close_thought[] = "\n</think>\n\n";
    if (in_thought(chat) && (!append_ids(chat, a, str_from(close_thought), err) ||
                             !take_text(chat, str_from(close_thought), err)))
        return false;
    const int64_t left = limit - (chat->n_ids - before);
    return left < 1 || generate(chat, left, err);
}

static void note_end(const Chat *chat, int64_t limit)
{
    Cli *c = chat->c;
    if (chat->end.finish == MERE_FINISH_CANCELLED)
        cli_note(c, "stopped; what came stays in the conversation (/undo drops it, /regenerate "
                    "asks again)");
    else if (chat->end.finish == MERE_FINISH_LENGTH && limit == chat->set.n)
        cli_note(c, "the answer was cut at %lld tokens (/set n N changes that, 0: no limit)",
                 (long long)limit);
    else if (chat->end.finish == MERE_FINISH_LENGTH)
        cli_note(c,
                 "the answer was cut: the context of %d tokens is full; /clear begins anew, /undo "
                 "takes the last turn back, --ctx N opens a larger one",
                 chat->info.ctx);
}

/* Answers the conversation, which ends in a message of the user. On failure nothing is added. */
static bool answer(Chat *chat, Arena *a, Error *err)
{
    strbuf_clear(&chat->answer);
    chat->n_ids = 0;
    chat->usage = (MereUsage){0};
    chat->is_dim = false;
    if (!render(chat, chat->set.think, &chat->prompt, err) ||
        !append_ids(chat, a, strbuf_str(&chat->prompt), err))
        return false;
    chat->opens_thought = ends_in_think(strbuf_str(&chat->prompt));
    const int64_t room = chat->info.ctx - chat->n_ids;
    if (room < 1)
        return err_set(
            err, ERR_TOO_LONG,
            "the conversation has %lld tokens, the context holds %d: the message was not "
            "sent. /clear begins anew, /undo takes turns back, --ctx N opens a larger one",
            (long long)chat->n_ids, chat->info.ctx);
    const int64_t limit = chat->set.n > 0 ? i64_min(chat->set.n, room) : room;
    const bool is_budget = chat->set.think > 0 && chat->set.think < THINK_ON;
    const bool ok = is_budget ? generate_thinking(chat, a, limit, err) : generate(chat, limit, err);
    if (chat->is_dim)
        fputs("\033[0m", stdout);
    if (chat->answer.len > 0 && chat->answer.ptr[chat->answer.len - 1] != '\n')
        (void)fputc('\n', stdout);
    (void)fflush(stdout); /* a write that fails is told of with the next piece, or at the end */
    if (!ok)
        return false;
    if (chat->end.finish == MERE_FINISH_CANCELLED && chat->answer.len == 0) {
        if (chat->is_terminal)
            fputc('\n', stderr); /* behind the terminal's ^C */
        return err_set(err, ERR_CANCELLED,
                       "stopped before anything came: the conversation is as it was");
    }
    chat->n_turns++;
    note_end(chat, limit);
    return chatlog_add(&chat->log, CHAT_ASSISTANT, strbuf_str(&chat->answer), err);
}

/* ---- turns ---- */

/* An answer was stopped: the program goes on and the next Ctrl-C is the first again. */
static void hear_again(Chat *chat)
{
    if (!interrupt_pending())
        return;
    if (!chat->is_terminal || interrupt_exit_code() != 130) {
        chat->is_done = true; /* SIGTERM, or nobody sits there: run() tells the exit code */
        return;
    }
    interrupt_rearm();
    chat->c->interrupt_fd = chat->interrupt_fd;
}

static bool take_turn(Chat *chat, Error *err)
{
    Arena a;
    arena_init(&a, "turn");
    const bool ok = answer(chat, &a, err);
    chat->ids = NULL;
    arena_free(&a);
    hear_again(chat);
    return ok;
}

static bool send(Chat *chat, Str text, Error *err)
{
    if (!chatlog_add(&chat->log, CHAT_USER, text, err))
        return false;
    if (take_turn(chat, err))
        return true;
    chatlog_drop(&chat->log, CHAT_USER);
    return false;
}

/* ---- commands ---- */

static bool do_system(Chat *chat, Str arg, Error *err)
{
    if (arg.len == 0) {
        const ChatMessage *m = chatlog_system(&chat->log);
        term_write(stderr, m ? (Str){m->text, m->len} : str_from("(no system message)"), true);
        fputc('\n', stderr);
        return true;
    }
    return chatlog_set_system(&chat->log, str_is(arg, "\"\"") ? (Str){"", 0} : arg, err);
}

/* A switch that the template does not have would do nothing without a word. */
static bool check_think(Chat *chat, Error *err)
{
    StrBuf on, off;
    Chat probe = {.c = chat->c};
    strbuf_init(&on, TEXT_MAX);
    strbuf_init(&off, TEXT_MAX);
    bool ok = chatlog_add(&probe.log, CHAT_USER, str_from("x"), err) &&
              render(&probe, THINK_ON, &on, err) && render(&probe, THINK_OFF, &off, err);
    if (ok && str_eq(strbuf_str(&on), strbuf_str(&off)))
        cli_note(chat->c, "the model's template has no switch for thinking: on and off change "
                          "nothing");
    strbuf_free(&on);
    strbuf_free(&off);
    chatlog_free(&probe.log);
    return ok;
}

static bool do_set(Chat *chat, Str arg, Error *err)
{
    size_t n = 0;
    while (n < arg.len && arg.ptr[n] != ' ')
        n++;
    if (arg.len == 0) {
        print_settings(chat);
        return true;
    }
    const Str name = {arg.ptr, n};
    while (n < arg.len && arg.ptr[n] == ' ')
        n++;
    if (n == arg.len)
        return err_set(err, ERR_USAGE, "/set wants NAME VALUE; /set alone shows them");
    if (!set_value(&chat->set, name, (Str){arg.ptr + n, arg.len - n}, err))
        return false;
    return !str_is(name, "think") || check_think(chat, err);
}

static bool do_save(Chat *chat, Str arg, Error *err)
{
    if (arg.len == 0)
        return err_set(err, ERR_USAGE, "/save wants FILE");
    if (!chatlog_save(&chat->log, arg.ptr, err))
        return false;
    cli_note(chat->c, "%d messages are in %.*s", chat->log.n, (int)arg.len, arg.ptr);
    return true;
}

static bool do_load(Chat *chat, Str arg, Error *err)
{
    if (arg.len == 0)
        return err_set(err, ERR_USAGE, "/load wants FILE");
    if (!chatlog_load(&chat->log, arg.ptr, err))
        return false;
    cli_note(chat->c, "%d messages from %.*s", chat->log.n, (int)arg.len, arg.ptr);
    return true;
}

static bool do_regenerate(Chat *chat, Str arg, Error *err)
{
    (void)arg;
    const ChatMessage *old = chatlog_last(&chat->log, CHAT_ASSISTANT);
    if (!old)
        return chatlog_last(&chat->log, CHAT_USER)
                   ? take_turn(chat, err)
                   : err_set(err, ERR_USAGE, "/regenerate: there is no answer yet");
    if (chat->set.temp <= 0)
        cli_note(chat->c, "temperature 0 gives the same answer again; /set temp 0.7 varies it");
    StrBuf kept;
    strbuf_init(&kept, TEXT_MAX);
    strbuf_add(&kept, old->text, old->len);
    bool ok = strbuf_check(&kept, "answer", err);
    if (ok) {
        chatlog_drop(&chat->log, CHAT_ASSISTANT);
        ok = take_turn(chat, err);
        Error second;
        if (!ok && !chatlog_add(&chat->log, CHAT_ASSISTANT, strbuf_str(&kept), &second))
            *err = second;
    }
    strbuf_free(&kept);
    return ok;
}

static bool do_undo(Chat *chat, Str arg, Error *err)
{
    (void)arg;
    const bool had_answer = chatlog_drop(&chat->log, CHAT_ASSISTANT);
    if (!chatlog_drop(&chat->log, CHAT_USER) && !had_answer)
        return err_set(err, ERR_USAGE, "/undo: the conversation is empty");
    return true;
}

static bool do_stats(Chat *chat, Str arg, Error *err)
{
    (void)arg;
    (void)err;
    const MereUsage *u = &chat->usage;
    char memory[CLI_MEMORY];
    fprintf(stderr, "  turns     %d, messages %d\n", chat->n_turns, chat->log.n);
    fprintf(stderr, "  context   %d of %d tokens\n", u->prompt_tokens + u->completion_tokens,
            chat->info.ctx);
    fprintf(stderr, "  prompt    %d tokens, %d from the cache, %d read at %.1f tok/s\n",
            u->prompt_tokens, u->cached_tokens, u->prompt_tokens - u->cached_tokens,
            cli_rate(u->prompt_tokens - u->cached_tokens, u->prefill_ms));
    fprintf(stderr, "  answer    %d tokens, the first after %.0f ms, then %.1f tok/s\n",
            u->completion_tokens, u->ttft_ms, cli_rate(u->completion_tokens - 1, u->decode_ms));
    fprintf(stderr, "  memory    %s\n", cli_memory(chat->c, memory));
    return true;
}

static bool do_clear(Chat *chat, Str arg, Error *err)
{
    (void)arg;
    (void)err;
    chatlog_clear(&chat->log);
    chat->usage = (MereUsage){0};
    return true;
}

static bool do_exit(Chat *chat, Str arg, Error *err)
{
    (void)arg;
    (void)err;
    chat->is_done = true;
    return true;
}

static bool do_help(Chat *chat, Str arg, Error *err);

static const struct {
    const char *name, *arg, *help;
    bool (*run)(Chat *chat, Str arg, Error *err);
} commands[] = {
    {"/system", "[TEXT]", "set the system message, or show it (\"\" takes it away)", do_system},
    {"/set", "[NAME VALUE]", "temp, top_k, top_p, min_p, seed, n, think; alone: show them", do_set},
    {"/save", "FILE", "write the conversation as JSON messages", do_save},
    {"/load", "FILE", "go on with such a file", do_load},
    {"/regenerate", "", "answer the last message again", do_regenerate},
    {"/undo", "", "take the last message and its answer back", do_undo},
    {"/stats", "", "tokens, cached tokens, speed, memory", do_stats},
    {"/clear", "", "begin anew; the system message stays", do_clear},
    {"/help", "", "this list", do_help},
    {"/exit", "", "leave (also /quit, /bye and Ctrl-D)", do_exit},
    {"/quit", "", NULL, do_exit},
    {"/bye", "", NULL, do_exit},
};

static bool do_help(Chat *chat, Str arg, Error *err)
{
    (void)chat;
    (void)arg;
    (void)err;
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        char left[32];
        if (!commands[i].help)
            continue;
        snprintf(left, sizeof left, "%s %s", commands[i].name, commands[i].arg);
        fprintf(stderr, "  %-19s %s\n", left, commands[i].help);
    }
    fputs("A line that ends in \\ goes on in the next; \"\"\" begins and ends a block of lines.\n"
          "A message that begins with / is written with two. Ctrl-C stops an answer.\n",
          stderr);
    return true;
}

static bool run_command(Chat *chat, Str line, Error *err)
{
    size_t n = 0;
    while (n < line.len && line.ptr[n] != ' ' && line.ptr[n] != '\n')
        n++;
    const Str name = {line.ptr, n};
    while (n < line.len && line.ptr[n] == ' ')
        n++;
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        if (!str_is(name, commands[i].name))
            continue;
        if (n < line.len && !*commands[i].arg)
            return err_set(err, ERR_USAGE, "%s takes no argument", commands[i].name);
        return commands[i].run(chat, (Str){line.ptr + n, line.len - n}, err);
    }
    return err_set(err, ERR_USAGE, "unknown command \"%.*s\"; /help lists them",
                   (int)(name.len < 40 ? name.len : 40), name.ptr);
}

/* ---- the loop ---- */

static bool is_blank(Str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (!strchr(" \t\r\n", s.ptr[i]))
            return false;
    return true;
}

static bool take_line(Chat *chat, Str text, Error *err)
{
    if (is_blank(text))
        return true;
    if (text.ptr[0] != '/')
        return send(chat, text, err);
    if (text.len > 1 && text.ptr[1] == '/')
        return send(chat, (Str){text.ptr + 1, text.len - 1}, err);
    return run_command(chat, text, err);
}

/* The exit code. Whatever fails ends the program when nobody sits there, or when the device is
 * lost. */
static int loop(Chat *chat)
{
    Cli *c = chat->c;
    bool was_interrupted = false;
    while (!chat->is_done) {
        Error err;
        Str text;
        switch (lineedit_read(chat->in, &text, &err)) {
        case LINE_END:
            if (chat->is_terminal)
                fputc('\n', stderr);
            return 0;
        case LINE_FAILED:
            return cli_fail(c, &err);
        case LINE_INTERRUPTED:
            if (chat->is_terminal)
                fputc('\n', stderr);
            hear_again(chat);
            if (was_interrupted)
                return 130;
            was_interrupted = true;
            if (!chat->is_done)
                cli_note(c, "Ctrl-C again leaves; so do Ctrl-D and /exit");
            break;
        case LINE_TEXT:
            was_interrupted = false;
            if (take_line(chat, text, &err))
                break;
            const int rc = cli_fail(c, &err);
            if (interrupt_pending())
                return interrupt_exit_code();
            if (!chat->is_terminal || err.code == ERR_LOST)
                return rc;
            break;
        }
    }
    return interrupt_pending() ? interrupt_exit_code() : 0;
}

/* Beside the store; NULL when there is no place for it. */
static const char *history_file(Chat *chat)
{
    Error err;
    HubRoots roots;
    if (!hub_roots(&chat->arena, &roots, &err) || !roots.store)
        return NULL;
    const char *end = strrchr(roots.store, '/');
    const char *home =
        end ? arena_printf(&chat->arena, &err, "%.*s", (int)(end - roots.store), roots.store)
            : NULL;
    if (!home || !*home)
        return NULL;
    (void)mkdir(home, 0700);
    return arena_printf(&chat->arena, &err, "%s/chat_history", home);
}

static int run(Chat *chat)
{
    Cli *c = chat->c;
    Error err;
    int rc;
    if (!take_options(chat, &err))
        return cli_fail(c, &err);
    if (!fetch_missing(c, &rc))
        return rc;
    cli_catch_interrupts(c);
    chat->interrupt_fd = c->interrupt_fd;
    if (!cli_open_model(c, &rc))
        return rc;
    chat->info.size = sizeof chat->info;
    mere_model_info(c->model, &chat->info);
    if (!chat->info.has_chat_template) {
        err_set(&err, ERR_UNSUPPORTED,
                "the model has no chat template: it cannot converse (mere run --raw goes on with a "
                "text)");
        return cli_fail(c, &err);
    }
    if (chat->set.think != THINK_AS_TEMPLATE && !check_think(chat, &err))
        return cli_fail(c, &err);
    if (!lineedit_open(history_file(chat), c->interrupt_fd, c->has_colour, &chat->in, &err))
        return cli_fail(c, &err);
    chat->is_terminal = lineedit_is_terminal(chat->in);
    if (chat->is_terminal)
        cli_note(c, "/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves");
    rc = loop(chat);
    const int written = cli_flush(c);
    return rc ? rc : written;
}

int cmd_chat(Cli *c)
{
    Chat chat = {.c = c,
                 .interrupt_fd = -1,
                 .visible = isatty(STDOUT_FILENO) != 0,
                 .dims = c->has_colour && isatty(STDOUT_FILENO)};
    arena_init(&chat.arena, "chat");
    strbuf_init(&chat.prompt, TEXT_MAX);
    strbuf_init(&chat.answer, TEXT_MAX);
    const int rc = run(&chat);
    lineedit_close(chat.in);
    chatlog_free(&chat.log);
    strbuf_free(&chat.prompt);
    strbuf_free(&chat.answer);
    arena_free(&chat.arena);
    return rc;
}
