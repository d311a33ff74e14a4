/* pull_http.h: transfers over HTTP, several at once, behind pull.h. The one user of libcurl.
 *
 * Redirects are followed here and not by libcurl: the token goes to the endpoint's own scheme, host
 * and port and nowhere else, and https is never left for http. What can pass (cut connections,
 * slow or busy servers, 429, 5xx) is tried again from where it stopped, with growing waits; a file
 * that moves forward is tried without limit. Main thread; nothing blocks longer than 100 ms
 * between two calls of tick. */
#ifndef MERE_WEIGHTS_PULL_HTTP_H
#define MERE_WEIGHTS_PULL_HTTP_H

#include "weights/part.h"

typedef struct PullHttp PullHttp;

typedef struct PullHttpOptions {
    const char *endpoint; /* "https://huggingface.co" */
    const char *token;    /* NULL: none */
    int n_tries;          /* of a transfer that does not move forward, >= 1 */
    int backoff_ms;       /* before the second try; doubles, up to 30 s */
    int low_speed_s; /* less than 1,000 bytes a second for so long: the connection is given up */
    bool (*tick)(void *ctx);                   /* false: stop, ERR_CANCELLED */
    void (*note)(void *ctx, const char *text); /* what is tried again, and why */
    void *ctx;
} PullHttpOptions;

enum { PULL_URL_MAX = 8192 };

typedef struct PullHttpFlight PullHttpFlight;
/* One file or text. The caller sets the first four. */
typedef struct PullHttpItem {
    const char *url;
    const char *what;        /* for messages */
    Part *part;              /* where it goes: goes on at part->bytes, part_finish at the end; or */
    StrBuf *body;            /* a text of at most body->max bytes */
    char next[PULL_URL_MAX]; /* the Link header's next page, "" when there is none */
    PullHttpFlight *flight;
} PullHttpItem;

/* ERR_USAGE: the endpoint is no http(s) URL, or the token has letters that no header may have. */
MUST_CHECK bool pull_http_open(const PullHttpOptions *o, PullHttp **out, Error *err);
void pull_http_close(PullHttp *h);
/* All of them, at most `jobs` at once. The first that fails for good ends all. ERR_NOT_FOUND 404;
 * ERR_REQUEST 401 and 403; ERR_FIT disk full; ERR_FORMAT wrong hash or size (twice); ERR_IO the
 * network. */
MUST_CHECK bool pull_http_run(PullHttp *h, PullHttpItem *items, int n, int jobs, Error *err);
/* `url` has the endpoint's scheme, host and port. */
bool pull_http_is_home(const PullHttp *h, const char *url);

#endif
