/* net.h: an event loop with an HTTP/1.1 server on it; the only file that knows libevent.
 *
 * One thread: every call belongs to the thread that is in net_run (or, before and
 * after it, to the owner). A NetReq is one request that waits for its answer. It is valid from the
 * `request` handler until the answer is complete (net_reply, net_stream_end), net_stream_write
 * returned false, or its `gone` callback was called; then it must not be touched again.
 *
 * A client that closes its connection, or its sending half, before the answer is complete counts as
 * gone (Linux tells about it at once; elsewhere it is found by the next write). Limits: header
 * bytes, body bytes, connections, time for a request to arrive whole (so that a client that sends a
 * byte now and then holds a connection no longer than that), time without progress of a write, and
 * bytes that wait to be written to one client.
 *
 * Requests that the library itself refuses (garbage, headers over the limit, bodies over the limit
 * by Content-Length) get its HTML page with 400, 413, 417 or 501; all others reach the handler. */
#ifndef MERE_SERVE_NET_H
#define MERE_SERVE_NET_H

#include "base/str.h"

typedef struct Net Net;
typedef struct NetReq NetReq;

typedef struct NetOptions {
    size_t max_header_bytes; /* request line and headers */
    size_t max_body_bytes;
    size_t max_pending_bytes; /* a streamed answer that waits for a slow reader */
    int max_connections;      /* further ones wait in the listen queue */
    int request_ms;           /* from accept, or the last answer's end, to the whole request */
    int write_ms;             /* without a byte taken by the client */
    void (*request)(void *ctx, NetReq *r);
    void *ctx;
} NetOptions;

/* Opens a listening socket. host: name or address; port 0: the system picks. *port_out: the port
 * got. ERR_FAILED: the port is in use or the address is not ours. Caller closes *fd. */
MUST_CHECK bool net_listen(const char *host, int port, int *fd, int *port_out, Error *err);

/* Takes over listen_fd (also on failure). */
MUST_CHECK bool net_open(const NetOptions *opt, int listen_fd, Net **out, Error *err);
/* Drops every connection; `gone` is called for requests that wait. */
void net_close(Net *net);

/* Calls back while fd is readable. The fd stays the caller's. */
MUST_CHECK bool net_watch(Net *net, int fd, void (*cb)(void *ctx), void *ctx, Error *err);
MUST_CHECK bool net_signal(Net *net, int signo, void (*cb)(void *ctx), void *ctx, Error *err);
/* One callback after ms; a later call moves it. There is one timer. */
void net_timer(Net *net, int ms, void (*cb)(void *ctx), void *ctx);

void net_run(Net *net); /* until net_stop */
void net_stop(Net *net);
/* Closes the listening socket and connections on which no request is being answered; a later call
 * closes those that have become idle since. */
void net_refuse_new(Net *net);
int net_connections(const Net *net);

/* ---- one request ---- */
const char *net_method(const NetReq *r);           /* "GET" */
const char *net_path(const NetReq *r);             /* without query */
Str net_header(const NetReq *r, const char *name); /* ptr NULL: absent */
size_t net_body_bytes(const NetReq *r);
Str net_body(NetReq *r); /* contiguous; ptr NULL: out of memory */
void net_on_gone(NetReq *r, void (*gone)(void *ctx), void *ctx);
/* An answer's header; ignored when memory is short. */
void net_reply_header(NetReq *r, const char *name, const char *value);
/* Ends r. */
void net_reply(NetReq *r, int status, const char *content_type, Str body);
void net_stream_start(NetReq *r, int status, const char *content_type);
/* False: the client is too slow or memory is short; its connection was closed and r is gone (the
 * `gone` callback is not called). */
MUST_CHECK bool net_stream_write(NetReq *r, Str bytes);
void net_stream_end(NetReq *r); /* ends r */
void net_drop(NetReq *r);       /* closes the connection in the middle of an answer; ends r */

#endif
