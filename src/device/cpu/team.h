/* team.h: the threads of the CPU device. The caller is thread 0; team_run returns when every thread
 * has returned from `fn`.
 *
 * Threads wait by spinning for a short time (a barrier of two running threads costs 0.1 to 0.7 us),
 * then sleep on a futex, so an idle team costs nothing. Between runs they sleep sooner. One
 * team_run at a time. */
#ifndef MERE_DEVICE_CPU_TEAM_H
#define MERE_DEVICE_CPU_TEAM_H

#include "base/err.h"

typedef struct Team Team;
typedef void TeamFn(void *ctx, int thread);

enum { TEAM_MAX = 256 };

/* n_threads 1 .. TEAM_MAX, the caller included. ERR_NOMEM or ERR_DEVICE when threads cannot be
 * made. */
MUST_CHECK bool team_open(int n_threads, Team **out, Error *err);
void team_close(Team *t);
int team_size(const Team *t);
void team_run(Team *t, TeamFn *fn, void *ctx);
/* For use inside fn, by every thread alike: returns when all have arrived; what they wrote before
 * is visible after. */
void team_barrier(Team *t);
/* Cores this process may run on. */
int team_cores(void);

#endif
