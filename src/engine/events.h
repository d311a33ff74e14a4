/* events.h: the way from the engine thread to the reader: requests that have something to tell, in
 * a queue of requests.
 *
 * What a request made is kept in the request itself (request.h), which has room for all of it, so
 * a slow reader loses nothing and stops nobody, and the queue is a list through the requests:
 * nothing is allocated here. Events of one request come in order; requests take turns. A file
 * descriptor (eventfd) is readable while events wait.
 *
 * Any thread may call any function, but events_next and what it returned belong to one thread at a
 * time. */
#ifndef MERE_ENGINE_EVENTS_H
#define MERE_ENGINE_EVENTS_H

#include "engine/request.h"

#include <pthread.h>

typedef struct Events {
    pthread_mutex_t lock;
    pthread_cond_t some;
    int fd;
    Request *ready, *ready_last;
    Request *all;
    int n_all, max_all;
    uint64_t last_id;
    Request *held;        /* whose event the reader has; freed with the next call when it ended */
    bool held_row;        /* that event was a row of logits */
    void (*wake)(void *); /* room was made for more rows; called without the lock */
    void *wake_ctx;
} Events;

/* max_all: requests that may be there, read or not. */
MUST_CHECK bool events_open(Events *e, int max_all, Error *err);
void events_close(Events *e); /* frees all requests; nobody may be in a call */

/* Gives the request its id and owns it from here. ERR_FULL: max_all requests have unread events. */
MUST_CHECK bool events_add(Events *e, Request *r, Error *err);
/* Takes back a request that was added and has told nothing. */
void events_remove(Events *e, Request *r);
/* Marks the request as cancelled; false: no such request, or it has ended. */
bool events_cancel(Events *e, uint64_t id);

/* Engine thread. The token's record (and tops) have been written at index n_made. */
void events_token(Events *e, Request *r);
/* Engine thread: n rows were written to r->rows. */
void events_rows(Events *e, Request *r, int n);
/* Engine thread: rows that may be written now (0: the reader has to catch up). */
int events_rows_free(Events *e, const Request *r);
/* Engine thread: finish, error, usage and last_text were written. The request must not be touched
 * after. */
void events_end(Events *e, Request *r);

/* See mere_next. */
bool events_next(Events *e, MereEvent *ev, int timeout_ms);

#endif
