/* http_client.h: a server on a thread, and blocking sockets that talk to it, for the tests. */
#ifndef TESTS_SERVE_HTTP_CLIENT_H
#define TESTS_SERVE_HTTP_CLIENT_H

#include "base/str.h"
#include "mere.h"
#include "serve/serve.h"

#include <pthread.h>

typedef struct Rig {
    MereEngine *engine;
    MereModel *model;
    Server *server;
    pthread_t thread;
    int port;
    int exit_code; /* after rig_join */
} Rig;

/* Opens engine, model and server and runs it. `so` may leave engine and model out. Fails the test
 * when it cannot. */
void rig_open(Rig *rig, const char *model, const MereOptions *mo, const ServerOptions *so);
/* Waits for the server to end by itself. */
void rig_join(Rig *rig);
void rig_close(Rig *rig); /* stops and frees; rig_join may have been called */

int http_connect(const Rig *rig);
void http_send(int fd, Str bytes);
void http_post(int fd, const char *path, const char *body);
/* Appends what comes until `until` occurs in out (NULL: until the server closes) or ms passed.
 * True: it occurred, or the server closed for NULL. */
bool http_read(int fd, StrBuf *out, const char *until, int ms);
/* Reads one answer (by Content-Length or chunked) and leaves the connection open. Returns the
 * status, 0 when none came in 60 s. `body` gets the body, chunks joined. */
int http_answer(int fd, StrBuf *body);
/* One POST on a connection of its own; the status. */
int http_call(const Rig *rig, const char *path, const char *json, StrBuf *body);
/* "live" + "queued" of /health. */
int http_rows_in_use(const Rig *rig);
/* Waits up to ms for no row to be in use. */
bool http_wait_idle(const Rig *rig, int ms);

#endif
