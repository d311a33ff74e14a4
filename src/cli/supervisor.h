/* supervisor.h: a process that keeps a listening socket and starts the process that owns the
 * devices, again when that one crashes or loses its device.
 *
 * A device that was lost stays so for the process that had it, so the worker ends (exit code 70)
 * and another begins afresh; clients that connect meanwhile wait in the socket's queue. SIGINT and
 * SIGTERM are passed on, and the worker's exit code becomes the supervisor's. Before threads are
 * made. Main thread. */
#ifndef MERE_CLI_SUPERVISOR_H
#define MERE_CLI_SUPERVISOR_H

#include "cli/cli.h"

typedef struct SupervisorDesc {
    int listen_fd; /* the worker's copy is the worker's; this process closes its own when it stops
                    */
    /* In the worker: serves, and calls supervisor_ready(ready_fd) when it does. again: one before
     * it did. Returns the exit code. */
    int (*work)(Cli *c, void *ctx, int ready_fd, bool again);
    void *ctx;
} SupervisorDesc;

/* Returns in the supervisor, and in each worker with what `work` returned. */
int supervisor_run(Cli *c, const SupervisorDesc *d);
void supervisor_ready(int ready_fd);

#endif
