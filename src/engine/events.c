#include "engine/events.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

bool events_open(Events *e, int max_all, Error *err)
{
    *e = (Events){.max_all = max_all, .fd = -1};
    e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->fd < 0)
        return err_set(err, ERR_IO, "eventfd: %s", strerror(errno));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->some, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&e->lock, NULL);
    return true;
}

void events_close(Events *e)
{
    if (e->fd < 0)
        return;
    while (e->all) {
        Request *r = e->all;
        e->all = r->all_next;
        request_free(r);
    }
    close(e->fd);
    pthread_cond_destroy(&e->some);
    pthread_mutex_destroy(&e->lock);
    e->fd = -1;
}

/* ---- all requests, under the lock ---- */

static void link_all(Events *e, Request *r)
{
    r->all_prev = NULL;
    r->all_next = e->all;
    if (e->all)
        e->all->all_prev = r;
    e->all = r;
    e->n_all++;
}

static void unlink_all(Events *e, Request *r)
{
    *(r->all_prev ? &r->all_prev->all_next : &e->all) = r->all_next;
    if (r->all_next)
        r->all_next->all_prev = r->all_prev;
    e->n_all--;
}

bool events_add(Events *e, Request *r, Error *err)
{
    pthread_mutex_lock(&e->lock);
    const bool ok = e->n_all < e->max_all;
    const int n = e->n_all;
    if (ok) {
        r->id = ++e->last_id;
        link_all(e, r);
    }
    pthread_mutex_unlock(&e->lock);
    return ok || err_set(err, ERR_FULL, "%d requests wait or have unread events, at most %d", n,
                         e->max_all);
}

void events_remove(Events *e, Request *r)
{
    pthread_mutex_lock(&e->lock);
    unlink_all(e, r);
    pthread_mutex_unlock(&e->lock);
}

bool events_cancel(Events *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    Request *r = e->all;
    while (r && r->id != id)
        r = r->all_next;
    const bool found = r && !r->ended;
    if (found)
        atomic_store_explicit(&r->cancelled, true, memory_order_relaxed);
    pthread_mutex_unlock(&e->lock);
    return found;
}

/* ---- the queue of requests that have events, under the lock ---- */

static void push_ready(Events *e, Request *r)
{
    if (r->ready)
        return;
    r->ready = true;
    r->ready_next = NULL;
    if (e->ready) {
        e->ready_last->ready_next = r;
    } else {
        e->ready = r;
        const uint64_t one = 1;
        /* Fails only when the counter is full, which leaves it readable as wanted. */
        if (write(e->fd, &one, sizeof one) < 0)
            errno = 0;
        pthread_cond_signal(&e->some);
    }
    e->ready_last = r;
}

static Request *pop_ready(Events *e)
{
    Request *r = e->ready;
    e->ready = r->ready_next;
    r->ready = false;
    return r;
}

static void clear_fd(Events *e)
{
    uint64_t n;
    if (!e->ready && read(e->fd, &n, sizeof n) < 0)
        errno = 0; /* EAGAIN: it was clear */
}

void events_token(Events *e, Request *r)
{
    pthread_mutex_lock(&e->lock);
    r->n_made++;
    push_ready(e, r);
    pthread_mutex_unlock(&e->lock);
}

void events_rows(Events *e, Request *r, int n)
{
    pthread_mutex_lock(&e->lock);
    r->rows_made += n;
    push_ready(e, r);
    pthread_mutex_unlock(&e->lock);
}

int events_rows_free(Events *e, const Request *r)
{
    pthread_mutex_lock(&e->lock);
    const int n = r->row_cap - (r->rows_made - r->rows_taken);
    pthread_mutex_unlock(&e->lock);
    return n;
}

void events_end(Events *e, Request *r)
{
    pthread_mutex_lock(&e->lock);
    r->ended = true;
    push_ready(e, r);
    pthread_mutex_unlock(&e->lock);
}

/* ---- reading ---- */

/* The reader is done with the event it had. True: rows of logits have room again. */
static bool release_held(Events *e, Request **dead)
{
    Request *r = e->held;
    const bool row = e->held_row;
    e->held = NULL;
    e->held_row = false;
    if (!r)
        return false;
    if (row) {
        r->rows_taken++;
        if (r->rows_taken < r->rows_made || r->ended)
            push_ready(e, r);
        /* Waking for each row would run steps of one row. */
        return r->rows_taken == r->rows_made;
    }
    unlink_all(e, r);
    *dead = r;
    return false;
}

static void fill(Events *e, Request *r, MereEvent *ev)
{
    *ev = (MereEvent){.request = r->id, .user = r->user};
    if (r->rows_taken < r->rows_made) {
        ev->type = MERE_EVENT_LOGITS;
        ev->index = r->rows_taken;
        ev->logits = r->rows + (size_t)(r->rows_taken % r->row_cap) * (size_t)r->vocab;
        ev->n_logits = r->vocab;
        e->held = r;
        e->held_row = true; /* comes back to the queue when this row is done with */
        return;
    }
    if (r->n_taken < r->n_made) {
        const RequestToken *t = &r->tokens[r->n_taken];
        ev->type = MERE_EVENT_TOKEN;
        ev->index = r->n_taken;
        ev->token = t->token;
        ev->logprob = t->logprob;
        ev->text = (MereStr){t->text, t->text_len};
        if (r->n_top > 0) {
            ev->top = r->top + (size_t)r->n_taken * (size_t)r->n_top;
            ev->n_top = r->n_top;
        }
        r->n_taken++;
        if (r->n_taken < r->n_made || r->ended)
            push_ready(e, r);
        return;
    }
    ev->type = MERE_EVENT_END;
    ev->text = (MereStr){r->last_text.ptr, r->last_text.len};
    ev->finish = r->finish;
    ev->error = r->error;
    ev->usage = r->usage;
    ev->seed = r->sampling.seed;
    e->held = r;
}

static bool wait_ready(Events *e, int timeout_ms)
{
    struct timespec until;
    if (timeout_ms > 0) {
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
    }
    while (!e->ready) {
        if (timeout_ms == 0)
            return false;
        if (timeout_ms < 0)
            pthread_cond_wait(&e->some, &e->lock);
        else if (pthread_cond_timedwait(&e->some, &e->lock, &until) == ETIMEDOUT && !e->ready)
            return false;
    }
    return true;
}

bool events_next(Events *e, MereEvent *ev, int timeout_ms)
{
    Request *dead = NULL;
    pthread_mutex_lock(&e->lock);
    const bool room = release_held(e, &dead);
    if (room && e->wake) {
        pthread_mutex_unlock(&e->lock);
        e->wake(e->wake_ctx);
        pthread_mutex_lock(&e->lock);
    }
    const bool some = wait_ready(e, timeout_ms);
    if (some)
        fill(e, pop_ready(e), ev);
    clear_fd(e);
    pthread_mutex_unlock(&e->lock);
    request_free(dead);
    return some;
}
