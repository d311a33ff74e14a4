/* progress.h: how far a load has come, on one line of the terminal that goes away again. Main
 * thread.
 */
#ifndef MERE_CLI_PROGRESS_H
#define MERE_CLI_PROGRESS_H

#include "base/attr.h"

typedef struct Progress {
    bool visible;    /* stderr is a terminal and --quiet was not given */
    bool has_line;   /* something stands there */
    double start_ms; /* of the load */
    double bytes_ms; /* when the first bytes were told */
    uint64_t from_bytes;
} Progress;

void progress_start(Progress *p, bool quiet);
/* MereOptions.progress: nothing for the first second, then a bar, bytes, speed and time left. False
 * once Ctrl-C was pressed (interrupt.h). */
bool progress_show(void *progress, uint64_t done_bytes, uint64_t total_bytes);
void progress_end(Progress *p);

/* The line for a load that has brought done of total bytes at bytes_s bytes a second (0: not known
 * yet). Returns out. */
const char *progress_line(uint64_t done, uint64_t total, double bytes_s, char out[128]);

#endif
