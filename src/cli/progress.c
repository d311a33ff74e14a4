#include "cli/progress.h"

#include "base/clock.h"
#include "cli/interrupt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { QUIET_MS = 1000, BAR = 24 };

void progress_start(Progress *p, bool quiet)
{
    *p = (Progress){.visible = !quiet && isatty(STDERR_FILENO), .start_ms = clock_ms()};
    if (!p->visible)
        return;
    fputs("\r\033[Kloading ...", stderr);
    (void)fflush(stderr);
    p->has_line = true;
}

const char *progress_line(uint64_t done, uint64_t total, double bytes_s, char out[128])
{
    const double part = total > 0 ? (double)done / (double)total : 0;
    char bar[BAR + 1];
    const int full = (int)(part * BAR);
    memset(bar, '-', BAR);
    memset(bar, '#', (size_t)(full < BAR ? full : BAR));
    bar[BAR] = '\0';
    const int n = snprintf(out, 128, "loading [%s] %3.0f %%  %.2f of %.2f GB", bar, part * 100,
                           (double)done * 1e-9, (double)total * 1e-9);
    if (n > 0 && n < 128 && bytes_s > 0)
        snprintf(out + n, 128 - (size_t)n, "  %.2f GB/s  %.0f s left", bytes_s * 1e-9,
                 (double)(total - done) / bytes_s);
    return out;
}

bool progress_show(void *progress, uint64_t done_bytes, uint64_t total_bytes)
{
    Progress *p = progress;
    const double now = clock_ms();
    if (p->bytes_ms <= 0) {
        p->bytes_ms = now;
        p->from_bytes = done_bytes;
    }
    if (p->visible && now - p->start_ms > QUIET_MS && done_bytes <= total_bytes) {
        const double s = (now - p->bytes_ms) * 1e-3;
        char line[128];
        fprintf(stderr, "\r\033[K%s",
                progress_line(done_bytes, total_bytes,
                              s > 0 ? (double)(done_bytes - p->from_bytes) / s : 0, line));
        (void)fflush(stderr);
    }
    return !interrupt_pending();
}

void progress_end(Progress *p)
{
    if (!p->has_line)
        return;
    fputs("\r\033[K", stderr);
    (void)fflush(stderr);
    p->has_line = false;
}
