#include "cli/lineedit.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000 };

struct LineEdit {
    EditLine *el; /* NULL: no terminal */
    History *history;
    HistEvent event;
    const char *history_file;
    int interrupt_fd;
    bool interrupted;
    bool is_continued; /* which of the two prompts */
    bool colour;
    mbstate_t state; /* of a character that has come in part */
    StrBuf text;
    char buf[4096]; /* of a pipe: read, not yet taken */
    size_t buf_at, buf_len;
};

/* Between two \1 libedit counts no columns; such a piece belongs to the character behind it, so
 * that one at the end would be lost. */
static const char *prompt(EditLine *el)
{
    void *data = NULL;
    el_get(el, EL_CLIENTDATA, &data);
    const LineEdit *l = data;
    if (!l->colour)
        return l->is_continued ? ". " : "> ";
    return l->is_continued ? "\1\033[2m\1.\1\033[0m\1 " : "\1\033[1;32m\1>\1\033[0m\1 ";
}

/* One character for libedit. Waiting is ours, so that Ctrl-C is seen at once and never lost. */
static int read_char(EditLine *el, wchar_t *out)
{
    void *data = NULL;
    el_get(el, EL_CLIENTDATA, &data);
    LineEdit *l = data;
    for (;;) {
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = l->interrupt_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0) {
            if (errno == EINTR)
                continue; /* the descriptor says what it was */
            return -1;
        }
        if (fds[1].revents) {
            l->interrupted = true;
            return -1;
        }
        char byte;
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return (int)n;
        const size_t got = mbrtowc(out, &byte, 1, &l->state);
        if (got == (size_t)-2)
            continue;
        if (got == (size_t)-1) { /* no character of this locale: dropped */
            l->state = (mbstate_t){0};
            continue;
        }
        return 1;
    }
}

/* A terminal's characters are UTF-8 here unless the environment says otherwise. */
static void set_locale(void)
{
    const char *now = setlocale(LC_CTYPE, "");
    if (!now || strcmp(now, "C") == 0 || strcmp(now, "POSIX") == 0)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
}

static bool open_terminal(LineEdit *l, Error *err)
{
    set_locale();
    FILE *to = isatty(STDOUT_FILENO) ? stdout : stderr;
    l->el = el_init("mere", stdin, to, stderr);
    l->history = l->el ? history_init() : NULL;
    if (!l->el || !l->history)
        return err_nomem(err, "line editor", 0);
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_PROMPT_ESC, prompt, '\1');
    el_set(l->el, EL_GETCFN, read_char);
    history(l->history, &l->event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &l->event, H_SETUNIQUE, 1);
    el_set(l->el, EL_HIST, history, l->history);
    el_source(l->el, NULL); /* ~/.editrc */
    if (l->history_file)
        (void)history(l->history, &l->event, H_LOAD, l->history_file);
    return true;
}

bool lineedit_open(const char *history_file, int interrupt_fd, bool colour, LineEdit **out,
                   Error *err)
{
    LineEdit *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_nomem(err, "line editor", sizeof *l);
    l->history_file = history_file;
    l->interrupt_fd = interrupt_fd;
    l->colour = colour;
    strbuf_init(&l->text, LINEEDIT_MAX);
    const bool is_terminal =
        isatty(STDIN_FILENO) && (isatty(STDOUT_FILENO) || isatty(STDERR_FILENO));
    if (is_terminal && !open_terminal(l, err)) {
        lineedit_close(l);
        return false;
    }
    *out = l;
    return true;
}

/* What was typed is for its owner's eyes. */
static void save_history(LineEdit *l)
{
    const int fd = open(l->history_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    (void)fchmod(fd, 0600);
    close(fd);
    (void)history(l->history, &l->event, H_SAVE, l->history_file);
}

void lineedit_close(LineEdit *l)
{
    if (!l)
        return;
    if (l->el && l->history && l->history_file)
        save_history(l);
    if (l->history)
        history_end(l->history);
    if (l->el)
        el_end(l->el);
    strbuf_free(&l->text);
    mem_free(l);
}

bool lineedit_is_terminal(const LineEdit *l)
{
    return l->el != NULL;
}

/* ---- one line ---- */

static LineResult edit_line(LineEdit *l, Error *err)
{
    int n = 0;
    l->interrupted = false;
    /* Before the prompt, not behind it as libedit would: what is typed at once is not echoed twice,
     * nor dropped by the terminal's own Ctrl-C and Ctrl-D. */
    (void)el_set(l->el, EL_PREP_TERM, 1);
    errno = 0;
    const char *line = el_gets(l->el, &n);
    if (l->interrupted)
        return LINE_INTERRUPTED;
    if (!line || n <= 0) {
        if (n < 0 && errno != 0 && errno != EINTR) {
            err_set(err, ERR_IO, "standard input: cannot read: %s", strerror(errno));
            return LINE_FAILED;
        }
        return LINE_END;
    }
    strbuf_add(&l->text, line, (size_t)n);
    return LINE_TEXT;
}

/* More of a pipe into the buffer. LINE_END: there is no more. */
static LineResult fill(LineEdit *l, Error *err)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = l->interrupt_fd, .events = POLLIN}};
        ssize_t n = poll(fds, 2, -1);
        if (n >= 0 && fds[1].revents)
            return LINE_INTERRUPTED;
        if (n >= 0)
            n = read(STDIN_FILENO, l->buf, sizeof l->buf);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err_set(err, ERR_IO, "standard input: cannot read: %s", strerror(errno));
            return LINE_FAILED;
        }
        l->buf_at = 0;
        l->buf_len = (size_t)n;
        return n > 0 ? LINE_TEXT : LINE_END;
    }
}

static LineResult pipe_line(LineEdit *l, Error *err)
{
    for (bool any = false;; any = true) {
        if (l->buf_at == l->buf_len) {
            const LineResult r = fill(l, err);
            if (r != LINE_TEXT)
                return r == LINE_END && any ? LINE_TEXT : r;
        }
        const char *from = l->buf + l->buf_at;
        const char *end = memchr(from, '\n', l->buf_len - l->buf_at);
        const size_t n = end ? (size_t)(end - from) + 1 : l->buf_len - l->buf_at;
        strbuf_add(&l->text, from, n);
        l->buf_at += n;
        if (end)
            return LINE_TEXT;
    }
}

/* Appends a line without its end. */
static LineResult next_line(LineEdit *l, Error *err)
{
    const LineResult r = l->el ? edit_line(l, err) : pipe_line(l, err);
    if (r == LINE_TEXT && l->text.len > 0 && l->text.ptr[l->text.len - 1] == '\n')
        l->text.ptr[--l->text.len] = '\0';
    if (r == LINE_TEXT && l->text.len > 0 && l->text.ptr[l->text.len - 1] == '\r' && !l->el)
        l->text.ptr[--l->text.len] = '\0';
    return r;
}

/* ---- a message ---- */

static void shorten(StrBuf *b, size_t n)
{
    b->len -= n;
    b->ptr[b->len] = '\0';
}

static bool ends_in(const StrBuf *b, size_t from, const char *what)
{
    const size_t n = strlen(what);
    return b->len >= from + n && memcmp(b->ptr + b->len - n, what, n) == 0;
}

/* After the opening """: the lines up to the closing one, which is taken away. */
static LineResult read_block(LineEdit *l, Error *err)
{
    size_t from = 3;
    while (!ends_in(&l->text, from, "\"\"\"")) {
        if (l->text.len > 3)
            strbuf_add_cstr(&l->text, "\n");
        from = l->text.len;
        l->is_continued = true;
        const LineResult r = next_line(l, err);
        if (r != LINE_TEXT && r != LINE_END)
            return r;
        if (l->text.failed)
            break;
        if (r == LINE_END) {
            err_set(err, ERR_REQUEST, "the input ends in a message that \"\"\" began");
            return LINE_FAILED;
        }
    }
    if (l->text.failed)
        return LINE_TEXT; /* told by the caller */
    shorten(&l->text, 3);
    if (l->text.len > 3 && l->text.ptr[l->text.len - 1] == '\n')
        shorten(&l->text, 1);
    memmove(l->text.ptr, l->text.ptr + 3, l->text.len - 3 + 1);
    l->text.len -= 3;
    return LINE_TEXT;
}

static LineResult read_continued(LineEdit *l, Error *err)
{
    while (ends_in(&l->text, 0, "\\")) {
        shorten(&l->text, 1);
        strbuf_add_cstr(&l->text, "\n");
        l->is_continued = true;
        const LineResult r = next_line(l, err);
        if (r != LINE_TEXT)
            return r == LINE_END ? LINE_TEXT : r;
    }
    return LINE_TEXT;
}

static void remember(LineEdit *l, Str text)
{
    if (l->el && text.len > 0)
        (void)history(l->history, &l->event, H_ENTER, text.ptr);
}

LineResult lineedit_read(LineEdit *l, Str *text, Error *err)
{
    strbuf_clear(&l->text);
    strbuf_add_cstr(&l->text, "");
    l->is_continued = false;
    LineResult r = next_line(l, err);
    if (r == LINE_TEXT && str_starts(strbuf_str(&l->text), "\"\"\""))
        r = read_block(l, err);
    else if (r == LINE_TEXT)
        r = read_continued(l, err);
    if (r != LINE_TEXT)
        return r;
    if (!strbuf_check(&l->text, "message", err))
        return LINE_FAILED;
    *text = strbuf_str(&l->text);
    remember(l, *text);
    return LINE_TEXT;
}
