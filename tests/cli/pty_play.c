/* pty_play SCRIPT PROGRAM ARGS...: runs a program on a pseudo-terminal as a person would.
 *
 * Each line of SCRIPT is a step: "send TEXT" types TEXT, "wait TEXT" waits until TEXT appears in
 * what came after the last match; in both \r is Enter, \xNN a byte, \\ a backslash. After the last
 * step the program must end by itself. What it wrote goes to stdout, its exit code is ours; 99 when
 * a step failed. */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 30000, FAILED = 99, SEEN_MAX = 1 << 20 };

static char seen[SEEN_MAX + 1];
static size_t n_seen, n_matched;

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* False: the program has closed its side. */
static bool take(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) <= 0)
        return true;
    const ssize_t n = read(fd, seen + n_seen, SEEN_MAX - n_seen);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    n_seen += (size_t)n;
    seen[n_seen] = '\0';
    return true;
}

static bool wait_for(int fd, const char *text)
{
    const long end = now_ms() + PATIENCE_MS;
    for (bool open = true;;) {
        const char *at = memmem(seen + n_matched, n_seen - n_matched, text, strlen(text));
        if (at) {
            n_matched = (size_t)(at - seen) + strlen(text);
            return true;
        }
        if (!open || now_ms() > end)
            return false;
        open = take(fd, 100);
    }
}

/* In place: \r, \xNN and \\ become their bytes. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        char byte = *p;
        if (*p == '\\' && p[1] == 'r') {
            byte = '\r';
            p++;
        } else if (*p == '\\' && p[1] == 'x' && p[2] && p[3]) {
            const char hex[3] = {p[2], p[3], '\0'};
            byte = (char)strtol(hex, NULL, 16);
            p += 3;
        } else if (*p == '\\' && p[1] == '\\') {
            p++;
        }
        *to++ = byte;
    }
    *to = '\0';
}

static bool type(int fd, const char *text)
{
    const size_t n = strlen(text);
    return write(fd, text, n) == (ssize_t)n;
}

static bool play(int fd, FILE *script)
{
    char line[4096];
    while (fgets(line, sizeof line, script)) {
        line[strcspn(line, "\n")] = '\0';
        unescape(line);
        const bool is_send = strncmp(line, "send ", 5) == 0;
        if (!is_send && strncmp(line, "wait ", 5) != 0) {
            fprintf(stderr, "pty_play: no step: %s\n", line);
            return false;
        }
        if (!(is_send ? type(fd, line + 5) : wait_for(fd, line + 5))) {
            fprintf(stderr, "pty_play: failed: %s\n", line);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    FILE *script = argc > 2 ? fopen(argv[1], "re") : NULL;
    if (!script) {
        fputs("usage: pty_play SCRIPT PROGRAM ARGS...\n", stderr);
        return FAILED;
    }
    const struct winsize size = {.ws_row = 24, .ws_col = 100};
    int fd;
    const pid_t pid = forkpty(&fd, NULL, NULL, &size);
    if (pid < 0) {
        perror("forkpty");
        return FAILED;
    }
    if (pid == 0) {
        execvp(argv[2], argv + 2);
        _exit(FAILED);
    }
    bool ok = play(fd, script);
    const long end = now_ms() + PATIENCE_MS;
    while (ok && take(fd, 100))
        ok = now_ms() < end;
    if (!ok)
        kill(pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    fwrite(seen, 1, n_seen, stdout);
    fclose(script);
    if (!ok)
        return FAILED;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
