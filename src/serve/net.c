/* Facts about libevent 2.1's evhttp that shape this file:
 * - While a request waits for its answer reading is off, so that a close goes unseen. Turning it on
 *   would let one pipelined byte run the library into "illegal connection state", which ends the
 *   process. EV_CLOSED events see a FIN, but not a RST (epoll reports that as an error, which is
 *   handed to readers and writers only, again and again). So a duplicate of the descriptor is
 *   watched edge-triggered, and poll tells what the edge was.
 * - Once an answer is being written reading is on and nothing takes the bytes away: the input
 *   buffer gets a high watermark for that time. It must be wide while a request is read, because
 *   chunked bodies are taken one whole chunk at a time.
 * - Its timeouts are for inactivity and would also end a long stream, so it gets a write timeout
 *   only, and `sweep` closes connections whose request has not arrived in time.
 * - When a connection fails in the middle of an answer, the request is taken off it and becomes
 *   ours to free; when we free the connection, the request goes with it. on_closed tells the two
 *   apart by the request's connection.
 * - No hook tells that a connection was accepted except the one that makes its bufferevent; the
 *   connection is then the argument of that bufferevent's callbacks. */
#include "serve/net.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    WATCHES_MAX = 8,
    PIPELINE_BYTES = 64 * 1024, /* read ahead of requests while one is being answered */
    SWEEP_MS_MAX = 1000,
    BACKLOG = 256
};

typedef struct Conn Conn;

struct NetReq {
    Conn *conn;
    struct evhttp_request *req;
    struct event *edge; /* on watch_fd; NULL where the system has no edge-triggered events */
    int watch_fd;       /* duplicate of the connection's, while edge is there */
    void (*gone)(void *ctx);
    void *gone_ctx;
};

struct Conn {
    Net *net;
    Conn *prev, *next;
    struct bufferevent *bev;         /* referenced only until attached */
    struct evhttp_connection *evcon; /* NULL until attached */
    uint64_t since_ns;               /* when it began to wait for a request */
    bool busy;                       /* a request is being answered */
    NetReq req;                      /* in use while req.req is not NULL */
};

typedef struct Watch {
    struct event *ev;
    void (*cb)(void *ctx);
    void *ctx;
} Watch;

struct Net {
    NetOptions opt;
    struct event_base *base;
    struct evhttp *http;
    struct evconnlistener *listener; /* owned by http; NULL once refused */
    struct evhttp_bound_socket *bound;
    struct event *attach, *sweep, *timer;
    void (*timer_cb)(void *ctx);
    void *timer_ctx;
    Watch watches[WATCHES_MAX];
    int n_watches;
    Conn *conns;
    int n_conns;
};

static void quiet_log(int severity, const char *msg)
{
    log_msg(severity >= EVENT_LOG_WARN ? LOG_WARN : LOG_DEBUG, "libevent: %s", msg);
}

/* ---- listening ---- */

bool net_listen(const char *host, int port, int *fd, int *port_out, Error *err)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list;
    const int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0)
        return err_set(err, ERR_FAILED, "host %s: %s", host, gai_strerror(rc));
    int s = -1;
    int why = 0;
    for (const struct addrinfo *a = list; a && s < 0; a = a->ai_next) {
        s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (s < 0) {
            why = errno;
            continue;
        }
        const int on = 1;
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(s, a->ai_addr, a->ai_addrlen) != 0 || listen(s, BACKLOG) != 0) {
            why = errno;
            close(s);
            s = -1;
        }
    }
    freeaddrinfo(list);
    if (s < 0)
        return err_set(err, ERR_FAILED, "cannot listen on %s port %d: %s", host, port,
                       why == EADDRINUSE ? "the port is in use" : strerror(why));
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    char name[16];
    int64_t got = 0;
    if (getsockname(s, (struct sockaddr *)&addr, &len) != 0 ||
        getnameinfo((struct sockaddr *)&addr, len, NULL, 0, name, sizeof name, NI_NUMERICSERV) !=
            0 ||
        !str_to_int(str_from(name), 1, 65535, &got)) {
        close(s);
        return err_set(err, ERR_FAILED, "cannot tell the port of %s port %d", host, port);
    }
    *fd = s;
    *port_out = (int)got;
    return true;
}

/* ---- connections ---- */

static void conn_unlink(Conn *c)
{
    Net *net = c->net;
    if (c->prev)
        c->prev->next = c->next;
    else
        net->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    if (net->n_conns-- == net->opt.max_connections && net->listener)
        evconnlistener_enable(net->listener);
    mem_free(c);
}

static void req_clear(NetReq *r)
{
    if (r->edge) {
        event_free(r->edge);
        close(r->watch_fd);
    }
    *r = (NetReq){.conn = r->conn};
}

/* The library is about to free the connection, for whatever reason. */
static void on_closed(struct evhttp_connection *evcon, void *arg)
{
    (void)evcon;
    Conn *c = arg;
    if (c->req.req) {
        struct evhttp_request *req = c->req.req;
        void (*gone)(void *) = c->req.gone;
        void *ctx = c->req.gone_ctx;
        req_clear(&c->req);
        if (!evhttp_request_get_connection(req))
            evhttp_request_free(req);
        if (gone)
            gone(ctx);
    }
    conn_unlink(c);
}

static struct bufferevent *on_accept(struct event_base *base, void *arg)
{
    Net *net = arg;
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    Conn *c = bev ? mem_zalloc(sizeof *c) : NULL;
    if (!c)
        return bev; /* not counted; its requests are refused in on_request */
    bufferevent_incref(bev);
    c->net = net;
    c->bev = bev;
    c->req.conn = c;
    c->since_ns = clock_ns();
    c->next = net->conns;
    if (c->next)
        c->next->prev = c;
    net->conns = c;
    if (++net->n_conns == net->opt.max_connections && net->listener)
        evconnlistener_disable(net->listener);
    event_active(net->attach, EV_TIMEOUT, 0);
    return bev;
}

/* Runs right after the accept, before the new sockets are polled for the first time. */
static void on_attach(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    Net *net = arg;
    const struct timeval write_tv = {net->opt.write_ms / 1000, net->opt.write_ms % 1000 * 1000};
    for (Conn *c = net->conns, *next; c; c = next) {
        next = c->next;
        if (!c->bev)
            continue;
        void *evcon = NULL;
        bufferevent_getcb(c->bev, NULL, NULL, NULL, &evcon);
        const bool alive = evcon && evhttp_connection_get_bufferevent(evcon) == c->bev;
        if (alive)
            bufferevent_set_timeouts(c->bev, NULL, &write_tv);
        bufferevent_decref(c->bev);
        c->bev = NULL;
        if (alive) {
            c->evcon = evcon;
            evhttp_connection_set_closecb(evcon, on_closed, c);
        } else {
            conn_unlink(c);
        }
    }
}

static void on_sweep(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    Net *net = arg;
    const uint64_t now = clock_ns();
    for (Conn *c = net->conns, *next; c; c = next) {
        next = c->next;
        if (c->evcon && !c->busy && now - c->since_ns > (uint64_t)net->opt.request_ms * 1000 * 1000)
            evhttp_connection_free(c->evcon);
    }
}

/* ---- requests ---- */

/* All bytes of the answer are written. */
static void on_complete(struct evhttp_request *req, void *arg)
{
    (void)req;
    Conn *c = arg;
    c->busy = false;
    c->since_ns = clock_ns();
    bufferevent_setwatermark(evhttp_connection_get_bufferevent(c->evcon), EV_READ, 0, 0);
}

/* Something came on a connection whose request is being answered: bytes, which wait, or its end. */
static void on_edge(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    Conn *c = arg;
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) > 0)
        evhttp_connection_free(c->evcon);
}

static bool watch_edges(Conn *c)
{
    if (!(event_base_get_features(c->net->base) & EV_FEATURE_ET))
        return true;
    const int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(c->evcon));
    NetReq *r = &c->req;
    r->watch_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (r->watch_fd < 0)
        return false;
    r->edge = event_new(c->net->base, r->watch_fd, EV_READ | EV_ET | EV_PERSIST, on_edge, c);
    if (!r->edge)
        close(r->watch_fd);
    return r->edge && event_add(r->edge, NULL) == 0;
}

static void on_request(struct evhttp_request *req, void *arg)
{
    Net *net = arg;
    struct evhttp_connection *evcon = evhttp_request_get_connection(req);
    Conn *c = net->conns;
    while (c && c->evcon != evcon)
        c = c->next;
    if (!c) {
        evhttp_send_error(req, 503, NULL);
        return;
    }
    c->busy = true;
    c->req.req = req;
    evhttp_request_set_on_complete_cb(req, on_complete, c);
    bufferevent_setwatermark(evhttp_connection_get_bufferevent(evcon), EV_READ, 0, PIPELINE_BYTES);
    if (!watch_edges(c)) {
        evhttp_connection_free(evcon);
        return;
    }
    net->opt.request(net->opt.ctx, &c->req);
}

const char *net_method(const NetReq *r)
{
    static const struct {
        enum evhttp_cmd_type type;
        const char *name;
    } methods[] = {
        {EVHTTP_REQ_GET, "GET"},         {EVHTTP_REQ_POST, "POST"},
        {EVHTTP_REQ_HEAD, "HEAD"},       {EVHTTP_REQ_PUT, "PUT"},
        {EVHTTP_REQ_TRACE, "TRACE"},     {EVHTTP_REQ_DELETE, "DELETE"},
        {EVHTTP_REQ_OPTIONS, "OPTIONS"}, {EVHTTP_REQ_PATCH, "PATCH"},
        {EVHTTP_REQ_CONNECT, "CONNECT"},
    };
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (methods[i].type == evhttp_request_get_command(r->req))
            return methods[i].name;
    return "";
}

const char *net_path(const NetReq *r)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(r->req);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    return path ? path : "";
}

Str net_header(const NetReq *r, const char *name)
{
    const char *v = evhttp_find_header(evhttp_request_get_input_headers(r->req), name);
    return v ? str_from(v) : (Str){NULL, 0};
}

size_t net_body_bytes(const NetReq *r)
{
    return evbuffer_get_length(evhttp_request_get_input_buffer(r->req));
}

Str net_body(NetReq *r)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(r->req);
    const size_t len = evbuffer_get_length(in);
    if (len == 0)
        return (Str){"", 0};
    const unsigned char *p = evbuffer_pullup(in, -1);
    return (Str){(const char *)p, p ? len : 0};
}

void net_on_gone(NetReq *r, void (*gone)(void *ctx), void *ctx)
{
    r->gone = gone;
    r->gone_ctx = ctx;
}

void net_reply_header(NetReq *r, const char *name, const char *value)
{
    evhttp_add_header(evhttp_request_get_output_headers(r->req), name, value);
}

/* No phrase: the library's table has none for some codes that we send, and clients ignore it. */
static const char *phrase(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 413:
        return "Payload Too Large";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    default:
        return status < 500 ? "Client Error" : "Server Error";
    }
}

void net_drop(NetReq *r)
{
    struct evhttp_connection *evcon = r->conn->evcon;
    r->gone = NULL;
    evhttp_connection_free(evcon);
}

void net_reply(NetReq *r, int status, const char *content_type, Str body)
{
    struct evhttp_request *req = r->req;
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    struct evbuffer *out = evbuffer_new();
    int failed =
        !out || (content_type && evhttp_add_header(headers, "Content-Type", content_type) != 0);
    if (!failed && evhttp_request_get_command(req) == EVHTTP_REQ_HEAD) {
        /* The library would send the body and no length. */
        char length[24];
        snprintf(length, sizeof length, "%zu", body.len);
        failed = evhttp_add_header(headers, "Content-Length", length) != 0;
    } else if (!failed) {
        failed = evbuffer_add(out, body.ptr, body.len) != 0;
    }
    if (failed) {
        if (out)
            evbuffer_free(out);
        net_drop(r);
        return;
    }
    req_clear(r);
    evhttp_send_reply(req, status, phrase(status), out);
    evbuffer_free(out);
}

void net_stream_start(NetReq *r, int status, const char *content_type)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(r->req);
    evhttp_add_header(headers, "Content-Type", content_type);
    evhttp_add_header(headers, "Cache-Control", "no-cache");
    evhttp_send_reply_start(r->req, status, phrase(status));
}

bool net_stream_write(NetReq *r, Str bytes)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(r->conn->evcon);
    struct evbuffer *chunk = evbuffer_new();
    const size_t waiting = evbuffer_get_length(bufferevent_get_output(bev));
    if (!chunk || waiting > r->conn->net->opt.max_pending_bytes ||
        evbuffer_add(chunk, bytes.ptr, bytes.len) != 0) {
        if (chunk)
            evbuffer_free(chunk);
        net_drop(r);
        return false;
    }
    evhttp_send_reply_chunk(r->req, chunk);
    evbuffer_free(chunk);
    return true;
}

void net_stream_end(NetReq *r)
{
    struct evhttp_request *req = r->req;
    req_clear(r);
    evhttp_send_reply_end(req);
}

/* ---- the loop ---- */

static void on_watch(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    const Watch *w = arg;
    w->cb(w->ctx);
}

static bool watch(Net *net, int fd, short what, void (*cb)(void *ctx), void *ctx, Error *err)
{
    if (net->n_watches == WATCHES_MAX)
        return err_set(err, ERR_FAILED, "event loop: more than %d watches", WATCHES_MAX);
    Watch *w = &net->watches[net->n_watches];
    *w = (Watch){.cb = cb, .ctx = ctx};
    w->ev = event_new(net->base, fd, (short)(what | EV_PERSIST), on_watch, w);
    if (!w->ev)
        return err_nomem(err, "event loop", sizeof *w);
    net->n_watches++;
    if (event_add(w->ev, NULL) != 0)
        return err_set(err, ERR_FAILED, "event loop: cannot watch descriptor or signal %d", fd);
    return true;
}

bool net_watch(Net *net, int fd, void (*cb)(void *ctx), void *ctx, Error *err)
{
    return watch(net, fd, EV_READ, cb, ctx, err);
}

bool net_signal(Net *net, int signo, void (*cb)(void *ctx), void *ctx, Error *err)
{
    return watch(net, signo, EV_SIGNAL, cb, ctx, err);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    Net *net = arg;
    net->timer_cb(net->timer_ctx);
}

void net_timer(Net *net, int ms, void (*cb)(void *ctx), void *ctx)
{
    const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
    net->timer_cb = cb;
    net->timer_ctx = ctx;
    event_add(net->timer, &tv);
}

bool net_open(const NetOptions *opt, int listen_fd, Net **out, Error *err)
{
    Net *net = mem_zalloc(sizeof *net);
    if (!net) {
        close(listen_fd);
        return err_nomem(err, "event loop", sizeof *net);
    }
    net->opt = *opt;
    event_set_log_callback(quiet_log);
    net->base = event_base_new();
    net->http = net->base ? evhttp_new(net->base) : NULL;
    if (net->http) {
        net->attach = event_new(net->base, -1, 0, on_attach, net);
        net->sweep = event_new(net->base, -1, EV_PERSIST, on_sweep, net);
        net->timer = event_new(net->base, -1, 0, on_timer, net);
        net->bound = evhttp_accept_socket_with_handle(net->http, listen_fd);
    }
    if (!net->attach || !net->sweep || !net->timer || !net->bound) {
        if (!net->bound)
            close(listen_fd);
        net_close(net);
        return err_nomem(err, "event loop", sizeof *net);
    }
    net->listener = evhttp_bound_socket_get_listener(net->bound);
    evhttp_set_max_headers_size(net->http, (ssize_t)opt->max_header_bytes);
    /* Above ours, so that bodies a little too long get our answer and not the library's page. */
    evhttp_set_max_body_size(net->http, (ssize_t)(opt->max_body_bytes + opt->max_body_bytes / 8));
    evhttp_set_allowed_methods(net->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
                                              EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                              EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE |
                                              EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
    evhttp_set_default_content_type(net->http, NULL);
    evhttp_set_flags(net->http, EVHTTP_SERVER_LINGERING_CLOSE);
    evhttp_set_bevcb(net->http, on_accept, net);
    evhttp_set_gencb(net->http, on_request, net);
    const int ms = opt->request_ms < 2 * SWEEP_MS_MAX ? opt->request_ms / 2 + 1 : SWEEP_MS_MAX;
    const struct timeval tv = {ms / 1000, ms % 1000 * 1000};
    event_add(net->sweep, &tv);
    *out = net;
    return true;
}

void net_close(Net *net)
{
    if (!net)
        return;
    net->listener = NULL;
    if (net->base && net->attach)
        on_attach(-1, 0, net); /* those accepted and not yet attached */
    if (net->http)
        evhttp_free(net->http);
    for (int i = 0; i < net->n_watches; i++)
        event_free(net->watches[i].ev);
    if (net->attach)
        event_free(net->attach);
    if (net->sweep)
        event_free(net->sweep);
    if (net->timer)
        event_free(net->timer);
    if (net->base)
        event_base_free(net->base);
    mem_free(net);
}

void net_run(Net *net)
{
    event_base_dispatch(net->base);
}

void net_stop(Net *net)
{
    event_base_loopbreak(net->base);
}

void net_refuse_new(Net *net)
{
    if (net->listener) {
        net->listener = NULL;
        evhttp_del_accept_socket(net->http, net->bound);
    }
    for (Conn *c = net->conns, *next; c; c = next) {
        next = c->next;
        if (c->evcon && !c->busy)
            evhttp_connection_free(c->evcon);
    }
}

int net_connections(const Net *net)
{
    return net->n_conns;
}
