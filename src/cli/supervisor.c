#include "cli/supervisor.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    EARLY_MS = 10000, /* a worker that ends sooner after it was ready has not recovered */
    EARLY_MAX = 5,    /* so many in a row, and nothing is started any more */
    DELAY_MAX_MS = 8000
};

typedef struct Supervisor {
    const Cli *c;
    int listen_fd; /* -1: closed, nobody is to come any more */
    int signal_fd;
    sigset_t old_mask;
    pid_t worker;
    bool was_ready;  /* any worker, ever */
    int n_signals;   /* passed on */
    int early;       /* that ended early, in a row */
    double ready_ms; /* of the present worker; 0: not yet */
} Supervisor;

void supervisor_ready(int ready_fd)
{
    if (ready_fd < 0)
        return;
    const char byte = 1;
    while (write(ready_fd, &byte, 1) < 0 && errno == EINTR)
        ;
    close(ready_fd);
}

/* The worker is told; nobody new is taken meanwhile. It leaves the third signal no choice. */
static void pass_on(Supervisor *s, int signo)
{
    s->n_signals++;
    if (s->listen_fd >= 0) {
        close(s->listen_fd);
        s->listen_fd = -1;
    }
    if (s->worker > 0)
        (void)kill(s->worker, s->n_signals < 3 ? signo : SIGKILL);
}

/* Next signal that is waiting; 0: none. */
static int next_signal(const Supervisor *s)
{
    struct signalfd_siginfo info;
    return read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

/* Until the worker has ended. Returns its status as waitpid gives it. */
static int watch_worker(Supervisor *s, int ready_fd)
{
    for (;;) {
        int status;
        const pid_t got = waitpid(s->worker, &status, WNOHANG);
        if (got == s->worker || (got < 0 && errno != EINTR))
            return got < 0 ? 0 : status;
        struct pollfd fds[2] = {{.fd = s->signal_fd, .events = POLLIN},
                                {.fd = ready_fd, .events = POLLIN}};
        (void)poll(fds, ready_fd >= 0 ? 2 : 1, -1);
        char byte;
        if (ready_fd >= 0 && fds[1].revents) {
            if (read(ready_fd, &byte, 1) == 1) {
                s->ready_ms = clock_ms();
                s->was_ready = true;
            }
            close(ready_fd);
            ready_fd = -1;
        }
        for (int signo; (signo = next_signal(s)) != 0;)
            if (signo == SIGINT || signo == SIGTERM)
                pass_on(s, signo);
    }
}

/* True: a signal came before the time was over; *signo. */
static bool interrupted_within(Supervisor *s, int ms, int *signo)
{
    const double until = clock_ms() + ms;
    for (;;) {
        const double left = until - clock_ms();
        if (left <= 0)
            return false;
        struct pollfd p = {.fd = s->signal_fd, .events = POLLIN};
        (void)poll(&p, 1, (int)left + 1);
        while ((*signo = next_signal(s)) != 0)
            if (*signo == SIGINT || *signo == SIGTERM)
                return true;
    }
}

static void describe(int status, char out[96])
{
    if (WIFSIGNALED(status))
        snprintf(out, 96, "the worker was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) == mere_err_exit_code(MERE_ERR_LOST))
        snprintf(out, 96, "the worker has lost its device");
    else
        snprintf(out, 96, "the worker ended with exit code %d", WEXITSTATUS(status));
}

/* Whether there is to be another worker, after what pause. False: *exit_code. */
static bool start_again(Supervisor *s, int status, int *exit_code)
{
    const int lost = mere_err_exit_code(MERE_ERR_LOST);
    const bool exited = WIFEXITED(status);
    *exit_code = exited ? WEXITSTATUS(status) : s->n_signals > 0 ? 128 + WTERMSIG(status) : lost;
    /* It was told to end, or could not begin: a port, a model, a device that is not there. */
    if (s->n_signals > 0 || (exited && WEXITSTATUS(status) == 0) ||
        (exited && !s->was_ready && WEXITSTATUS(status) != lost))
        return false;
    char what[96];
    describe(status, what);
    const bool early = s->ready_ms <= 0 || clock_ms() - s->ready_ms < EARLY_MS;
    s->early = early ? s->early + 1 : 0;
    Error err;
    if (s->early > EARLY_MAX) {
        err_set(&err, ERR_FAILED, "%s; that was the %dth in a row to end early: giving up", what,
                s->early);
        (void)cli_fail(s->c, &err);
        return false;
    }
    int delay = 0;
    if (s->early > 1)
        delay = 500 << (s->early - 2);
    delay = delay < DELAY_MAX_MS ? delay : DELAY_MAX_MS;
    err_set(&err, ERR_FAILED, "%s; starting another%s", what, delay ? " after a pause" : "");
    (void)cli_fail(s->c, &err);
    int signo = 0;
    if (delay > 0 && interrupted_within(s, delay, &signo)) {
        *exit_code = signo == SIGINT ? 130 : 0;
        return false;
    }
    return true;
}

/* In the worker: a group of its own, so that a terminal's Ctrl-C comes by way of the supervisor
 * alone, and an end when the supervisor is gone. */
static void become_worker(const Supervisor *s, pid_t parent)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(128 + SIGTERM);
    close(s->signal_fd);
    (void)sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
}

static int fail(const Supervisor *s, const char *what)
{
    Error err;
    err_set(&err, ERR_FAILED, "%s: %s", what, strerror(errno));
    return cli_fail(s->c, &err);
}

static int run(Supervisor *s, Cli *c, const SupervisorDesc *d)
{
    const pid_t parent = getpid();
    for (;;) {
        int ready[2];
        if (pipe2(ready, O_CLOEXEC) != 0)
            return fail(s, "pipe");
        s->ready_ms = 0;
        s->worker = fork();
        if (s->worker < 0)
            return fail(s, "cannot start a process");
        if (s->worker == 0) {
            close(ready[0]);
            become_worker(s, parent);
            c->is_worker = true;
            return d->work(c, d->ctx, ready[1], s->was_ready);
        }
        close(ready[1]);
        const int status = watch_worker(s, ready[0]);
        s->worker = 0;
        int exit_code;
        if (!start_again(s, status, &exit_code))
            return exit_code;
    }
}

int supervisor_run(Cli *c, const SupervisorDesc *d)
{
    Supervisor s = {.c = c, .listen_fd = d->listen_fd};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &mask, &s.old_mask) != 0)
        return fail(&s, "sigprocmask");
    s.signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s.signal_fd < 0)
        return fail(&s, "signalfd");
    const int rc = run(&s, c, d);
    if (!c->is_worker) {
        close(s.signal_fd);
        if (s.listen_fd >= 0)
            close(s.listen_fd);
    }
    return rc;
}
