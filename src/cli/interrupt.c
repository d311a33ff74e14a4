#include "cli/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

static volatile sig_atomic_t interrupt_fd = -1;
static volatile sig_atomic_t interrupt_signal;

static void on_signal(int signo)
{
    const int saved = errno;
    const uint64_t one = 1;
    if (interrupt_signal)
        _exit(128 + signo);
    interrupt_signal = signo;
    if (write((int)interrupt_fd, &one, sizeof one) < 0)
        _exit(128 + signo);
    errno = saved;
}

int interrupt_install(void)
{
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return -1;
    interrupt_fd = fd;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return fd;
}

void interrupt_remove(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

bool interrupt_pending(void)
{
    return interrupt_signal != 0;
}

void interrupt_rearm(void)
{
    uint64_t n;
    if (interrupt_fd >= 0 && read((int)interrupt_fd, &n, sizeof n) < 0 && errno != EAGAIN)
        return; /* stays heard: the next one ends the process */
    interrupt_signal = 0;
}

int interrupt_exit_code(void)
{
    return 128 + (int)interrupt_signal;
}
