/* serve.h: one model over HTTP. The server is handed a listening socket, an open engine and a
 * model, so that the process that holds the socket can be another than the one that owns the
 * device.
 *
 * serve_run is the loop; everything else belongs to its thread, except serve_stop. The caller
 * keeps engine and model open until serve_close. The engine's events must be read by nobody else
 * meanwhile. */
#ifndef MERE_SERVE_SERVE_H
#define MERE_SERVE_SERVE_H

#include "base/str.h"
#include "mere.h"

typedef struct Server Server;

/* Zero means the default given. Strings are borrowed until serve_close. */
typedef struct ServerOptions {
    MereEngine *engine;
    MereModel *model;
    const char *model_name;   /* MODEL as the user gave it; answers use its last part */
    const char *api_key;      /* NULL: none is needed */
    const char *cors;         /* NULL: none; an origin, or "*" */
    bool signals;             /* SIGINT and SIGTERM stop the server */
    size_t max_body_bytes;    /* 32 MiB */
    size_t max_header_bytes;  /* 64 KiB */
    size_t max_pending_bytes; /* 1 MiB: of a stream, not yet taken by its client */
    int max_connections;      /* 1024 */
    int request_ms;           /* 60000: for a request to arrive whole, idle time before included */
    int write_ms;             /* 60000: without a byte taken */
    int drain_ms;             /* 10000: for running requests to end once the server stops */
} ServerOptions;

/* Opens a listening socket. host: name or address; port 0: the system picks. *port_out: the port
 * got. ERR_FAILED: the port is in use or the address is not ours. Caller closes *fd. */
MUST_CHECK bool serve_listen(const char *host, int port, int *fd, int *port_out, Error *err);

/* Takes over listen_fd (also on failure). */
MUST_CHECK bool serve_open(const ServerOptions *opt, int listen_fd, Server **out, Error *err);
/* Serves until stopped. The exit code: 0 after serve_stop or SIGTERM, 130 after SIGINT, 70 when
 * the device was lost. */
int serve_run(Server *s);
/* Stops accepting, lets running requests end for up to drain_ms, then cancels them; a second call
 * cancels at once. Any thread; safe in a signal handler. */
void serve_stop(Server *s);
void serve_close(Server *s);

/* What answers call the model: the last part of the path, less ".gguf". Borrowed from path. */
Str serve_model_name(const char *path);

#endif
