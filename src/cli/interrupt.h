/* interrupt.h: Ctrl-C. The first SIGINT or SIGTERM makes a descriptor readable; the second ends the
 * process. A signal handler cannot be handed anything, so this file keeps the descriptor in a
 * variable of its own. Main thread. */
#ifndef MERE_CLI_INTERRUPT_H
#define MERE_CLI_INTERRUPT_H

#include "base/attr.h"

/* The descriptor, -1 when there is none to be had (the signal then ends the process). */
int interrupt_install(void);
/* The signals end the process again, as they did before. */
void interrupt_remove(void);
bool interrupt_pending(void);
/* Forgets the one that was heard: the next one is the first again. */
void interrupt_rearm(void);
/* What the process should exit with: 130 after SIGINT, 143 after SIGTERM. */
int interrupt_exit_code(void);

#endif
