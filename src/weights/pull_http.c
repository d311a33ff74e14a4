#include "weights/pull_http.h"

#include "base/clock.h"
#include "base/mem.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum {
    REDIRECTS_MAX = 8,
    WAIT_MAX_MS = 30000,
    RETRY_AFTER_MAX_S = 300,
    RESTARTS_MAX = 2, /* of a file whose hash was wrong */
    CONNECT_S = 20,
    LOW_SPEED = 1000, /* bytes a second */
    POLL_MS = 100,
    ERROR_BODY_MAX = 1 << 20,
    TOKEN_MAX = 4096
};

struct PullHttp {
    PullHttpOptions o;
    CURLM *multi;
    struct curl_slist *with_token; /* NULL: no token */
    CURLU *home;
    uint32_t random;
};

typedef enum FlightState { WAITING, FLYING, LANDED } FlightState;

struct PullHttpFlight {
    PullHttp *h;
    PullHttpItem *item;
    CURL *easy;
    FlightState state;
    char at[PULL_URL_MAX]; /* where it is asked for now */
    int n_redirects, n_tries, n_restarts;
    double due_ms;
    uint64_t try_from;    /* bytes when this try began */
    long status;          /* of the answer whose body comes; 0: none yet */
    uint64_t range_from;  /* of Content-Range; UINT64_MAX: none */
    uint64_t error_bytes; /* of bodies that nobody wants */
    long retry_after_s;
    char hub_error[40]; /* X-Error-Code */
    Error sink;         /* why the body could not be taken; code ERR_NONE: it could */
};

/* ---- URLs ---- */

static bool same_part(CURLU *a, CURLU *b, CURLUPart part, unsigned flags)
{
    char *x = NULL;
    char *y = NULL;
    const bool same = curl_url_get(a, part, &x, flags) == CURLUE_OK &&
                      curl_url_get(b, part, &y, flags) == CURLUE_OK && strcasecmp(x, y) == 0;
    curl_free(x);
    curl_free(y);
    return same;
}

bool pull_http_is_home(const PullHttp *h, const char *url)
{
    CURLU *u = curl_url();
    const bool yes = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                     same_part(u, h->home, CURLUPART_SCHEME, 0) &&
                     same_part(u, h->home, CURLUPART_HOST, 0) &&
                     same_part(u, h->home, CURLUPART_PORT, CURLU_DEFAULT_PORT);
    curl_url_cleanup(u);
    return yes;
}

static bool has_scheme(const char *url, const char *scheme)
{
    return strncasecmp(url, scheme, strlen(scheme)) == 0;
}

/* http(s), and not http when the endpoint is https. */
static bool may_go(const PullHttp *h, const char *url)
{
    return has_scheme(url, "https://") ||
           (has_scheme(url, "http://") && has_scheme(h->o.endpoint, "http://"));
}

/* ---- opening ---- */

static bool add_token(PullHttp *h, Error *err)
{
    const char *token = h->o.token;
    char line[TOKEN_MAX + 32];
    if (!token || !*token)
        return true;
    for (const char *p = token; *p; p++)
        if (*p <= ' ' || *p >= 0x7F || p - token >= TOKEN_MAX)
            return err_set(err, ERR_USAGE,
                           "HF_TOKEN: no token (blanks, control characters or more "
                           "than %d bytes)",
                           TOKEN_MAX);
    snprintf(line, sizeof line, "Authorization: Bearer %s", token);
    h->with_token = curl_slist_append(NULL, line);
    return h->with_token || err_nomem(err, "HTTP header", sizeof line);
}

bool pull_http_open(const PullHttpOptions *o, PullHttp **out, Error *err)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(err, ERR_FAILED, "libcurl does not start");
    PullHttp *h = mem_zalloc(sizeof *h);
    if (!h)
        return err_nomem(err, "HTTP", sizeof *h);
    h->o = *o;
    h->random = (uint32_t)clock_ns() | 1;
    h->multi = curl_multi_init();
    h->home = curl_url();
    bool ok = (h->multi && h->home) || err_nomem(err, "libcurl", 0);
    if (ok && ((!has_scheme(o->endpoint, "http://") && !has_scheme(o->endpoint, "https://")) ||
               curl_url_set(h->home, CURLUPART_URL, o->endpoint, 0) != CURLUE_OK))
        ok = err_set(err, ERR_USAGE, "HF_ENDPOINT: \"%.100s\" is no http:// or https:// address",
                     o->endpoint);
    if (!ok || !add_token(h, err)) {
        pull_http_close(h);
        return false;
    }
    *out = h;
    return true;
}

void pull_http_close(PullHttp *h)
{
    if (!h)
        return;
    curl_multi_cleanup(h->multi);
    curl_url_cleanup(h->home);
    curl_slist_free_all(h->with_token);
    mem_free(h);
}

/* ---- headers and bodies ---- */

/* The value of a header line called `name`, without blanks around it; ptr NULL: another header. */
static Str header(const char *line, size_t n, const char *name)
{
    const size_t len = strlen(name);
    if (n <= len || strncasecmp(line, name, len) != 0 || line[len] != ':')
        return (Str){0};
    size_t from = len + 1;
    while (from < n && (line[from] == ' ' || line[from] == '\t'))
        from++;
    while (n > from && (unsigned char)line[n - 1] <= ' ')
        n--;
    return (Str){line + from, n - from};
}

/* Link: <https://...>; rel="next" */
static void take_next(PullHttpItem *item, Str v)
{
    const char *rel = memmem(v.ptr, v.len, "rel=\"next\"", 10);
    const char *from = rel ? memchr(v.ptr, '<', v.len) : NULL;
    const char *to = from ? memchr(from, '>', v.len - (size_t)(from - v.ptr)) : NULL;
    if (to && (size_t)(to - from) <= sizeof item->next - 1)
        snprintf(item->next, sizeof item->next, "%.*s", (int)(to - from - 1), from + 1);
}

static size_t on_header(char *line, size_t size, size_t count, void *ctx)
{
    PullHttpFlight *f = ctx;
    const size_t n = size * count;
    Str v = header(line, n, "Content-Range");
    int64_t x;
    if (v.ptr && str_starts(v, "bytes ")) {
        v = (Str){v.ptr + 6, v.len - 6};
        const char *dash = memchr(v.ptr, '-', v.len);
        if (dash && str_to_int((Str){v.ptr, (size_t)(dash - v.ptr)}, 0, INT64_MAX, &x))
            f->range_from = (uint64_t)x;
    }
    v = header(line, n, "Retry-After");
    if (v.ptr && str_to_int(v, 0, INT32_MAX, &x))
        f->retry_after_s = x < RETRY_AFTER_MAX_S ? (long)x : RETRY_AFTER_MAX_S;
    v = header(line, n, "X-Error-Code");
    if (v.ptr)
        snprintf(f->hub_error, sizeof f->hub_error, "%.*s", (int)v.len, v.ptr);
    v = header(line, n, "Link");
    if (v.ptr)
        take_next(f->item, v);
    return n;
}

/* At the first byte of a good answer: does it go on where the part ends? */
static bool begin_body(PullHttpFlight *f)
{
    Part *part = f->item->part;
    if (f->item->body)
        strbuf_clear(f->item->body);
    if (!part || f->status == 206) {
        if (part && f->range_from != part->bytes)
            return err_set(&f->sink, ERR_FORMAT,
                           "%s: the server sends another range than was asked for", f->item->what);
        return true;
    }
    return part->bytes == 0 || part_restart(part, &f->sink); /* it sends all of it */
}

static size_t on_body(char *data, size_t size, size_t count, void *ctx)
{
    PullHttpFlight *f = ctx;
    const size_t n = size * count;
    const bool first = f->status == 0;
    if (first)
        curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &f->status);
    if (f->status < 200 || f->status > 299) {
        f->error_bytes += n;
        return f->error_bytes > ERROR_BODY_MAX ? 0 : n;
    }
    if (first && !begin_body(f))
        return 0;
    if (f->item->part)
        return part_write(f->item->part, data, n, &f->sink) ? n : 0;
    if (strbuf_add(f->item->body, data, n))
        return n;
    err_set(&f->sink, ERR_FORMAT, "%s: more than %zu bytes", f->item->what, f->item->body->max);
    return 0;
}

/* ---- flights ---- */

/* libcurl's option setters are variadic; each result is one that cannot fail but for memory. */
static bool set_up(PullHttpFlight *f, Error *err)
{
    const PullHttp *h = f->h;
    CURL *e = f->easy;
    const Part *part = f->item->part;
    char range[40];
    CURLcode rc = CURLE_OK;
#define SET(option, value) rc = rc != CURLE_OK ? rc : curl_easy_setopt(e, option, value)
    SET(CURLOPT_URL, f->at);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_USERAGENT, "mere/" MERE_VERSION);
    SET(CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    SET(CURLOPT_LOW_SPEED_LIMIT, (long)LOW_SPEED);
    SET(CURLOPT_LOW_SPEED_TIME, (long)h->o.low_speed_s);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, f);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, f);
    SET(CURLOPT_PRIVATE, f);
    if (h->with_token && pull_http_is_home(h, f->at))
        SET(CURLOPT_HTTPHEADER, h->with_token);
    if (part && part->bytes > 0) {
        snprintf(range, sizeof range, "%" PRIu64 "-", part->bytes);
        SET(CURLOPT_RANGE, range);
    } else if (!part) {
        SET(CURLOPT_ACCEPT_ENCODING, ""); /* listings shrink tenfold; files must come as they are */
    }
    const char *ca = getenv("CURL_CA_BUNDLE");
    if (!ca || !*ca)
        ca = getenv("SSL_CERT_FILE");
    if (ca && *ca)
        SET(CURLOPT_CAINFO, ca);
#undef SET
    return rc == CURLE_OK || err_set(err, ERR_IO, "%s: %s", f->item->what, curl_easy_strerror(rc));
}

static bool take_off(PullHttpFlight *f, Error *err)
{
    f->easy = curl_easy_init();
    if (!f->easy)
        return err_nomem(err, "libcurl", 0);
    f->status = 0;
    f->range_from = UINT64_MAX;
    f->error_bytes = 0;
    f->retry_after_s = 0;
    f->hub_error[0] = '\0';
    f->item->next[0] = '\0';
    f->sink.code = ERR_NONE;
    f->try_from = f->item->part ? f->item->part->bytes : 0;
    f->state = FLYING;
    if (!set_up(f, err))
        return false;
    const CURLMcode rc = curl_multi_add_handle(f->h->multi, f->easy);
    return rc == CURLM_OK || err_set(err, ERR_IO, "%s: %s", f->item->what, curl_multi_strerror(rc));
}

static void put_down(PullHttpFlight *f)
{
    if (f->easy) {
        curl_multi_remove_handle(f->h->multi, f->easy);
        curl_easy_cleanup(f->easy);
    }
    f->easy = NULL;
    f->state = WAITING;
}

/* Waits in [1, 1.25) times the doubled base, so that several do not come back together. */
static double wait_ms(PullHttpFlight *f)
{
    PullHttp *h = f->h;
    double ms = h->o.backoff_ms;
    for (int i = 1; i < f->n_tries && ms < WAIT_MAX_MS; i++)
        ms *= 2;
    h->random = h->random * 1664525U + 1013904223U;
    ms =
        (ms < WAIT_MAX_MS ? ms : WAIT_MAX_MS) * (1 + (double)(h->random >> 8) / (double)(1U << 26));
    const double asked = (double)f->retry_after_s * 1e3;
    return asked > ms ? asked : ms;
}

/* Another try from the first address (a signed one behind it may have run out), or the error. */
static bool again(PullHttpFlight *f, ErrCode code, const char *why, Error *err)
{
    const Part *part = f->item->part;
    if (part && part->bytes > f->try_from)
        f->n_tries = 0;
    if (++f->n_tries >= f->h->o.n_tries)
        return err_set(err, code, "%.90s: %.100s (%d tries)", f->item->what, why, f->n_tries);
    const double ms = wait_ms(f);
    char text[240];
    snprintf(text, sizeof text, "%.100s: %.80s; trying again in %.1f s", f->item->what, why,
             ms * 1e-3);
    f->h->o.note(f->h->o.ctx, text);
    snprintf(f->at, sizeof f->at, "%s", f->item->url);
    f->n_redirects = 0;
    f->due_ms = clock_ms() + ms;
    return true;
}

static bool redirect(PullHttpFlight *f, char *to, Error *err)
{
    if (!to || strlen(to) >= sizeof f->at)
        return err_set(err, ERR_FORMAT, "%s: a redirect to nowhere", f->item->what);
    if (!may_go(f->h, to))
        return err_set(err, ERR_FORMAT, "%.80s: a redirect from https to %.60s is not followed",
                       f->item->what, to);
    if (++f->n_redirects > REDIRECTS_MAX)
        return err_set(err, ERR_FORMAT, "%s: more than %d redirects", f->item->what, REDIRECTS_MAX);
    memmove(f->at, to, strlen(to) + 1);
    f->due_ms = 0;
    return true;
}

static bool refused(const PullHttpFlight *f, long status, Error *err)
{
    if (status == 404 || strcmp(f->hub_error, "RepoNotFound") == 0)
        return err_set(err, ERR_NOT_FOUND, "%s: the hub has not got it (%ld)", f->item->what,
                       status);
    if (status == 401 || status == 403)
        return err_set(err, ERR_REQUEST, "%s: access is refused (%ld)", f->item->what, status);
    return err_set(err, ERR_IO, "%s: the hub answers %ld", f->item->what, status);
}

/* A file that is all there. */
static bool check_part(PullHttpFlight *f, Error *err)
{
    Part *part = f->item->part;
    char why[64];
    if (part->bytes < part->want.bytes) {
        snprintf(why, sizeof why, "cut at %" PRIu64 " of %" PRIu64 " bytes", part->bytes,
                 part->want.bytes);
        return again(f, ERR_IO, why, err);
    }
    if (part_finish(part, err)) {
        f->state = LANDED;
        return true;
    }
    if (err->code != ERR_FORMAT || ++f->n_restarts >= RESTARTS_MAX)
        return false;
    f->try_from = UINT64_MAX; /* nothing was gained */
    return again(f, ERR_FORMAT, "the hash is wrong, from the start", err);
}

static bool answered(PullHttpFlight *f, long status, char *to, Error *err)
{
    switch (status) {
    case 301:
    case 302:
    case 303:
    case 307:
    case 308:
        return redirect(f, to, err);
    case 200:
    case 206:
        if (f->item->part)
            return check_part(f, err);
        f->state = LANDED;
        return true;
    case 416: /* past the end of what it has: it has something else */
        return (!f->item->part || part_restart(f->item->part, err)) &&
               again(f, ERR_IO, "the server cannot go on there (416)", err);
    case 408:
    case 425:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504: {
        char why[48];
        snprintf(why, sizeof why, "the hub answers %ld", status);
        return again(f, ERR_IO, why, err);
    }
    default:
        return refused(f, status, err);
    }
}

static bool may_pass(CURLcode rc)
{
    static const CURLcode passing[] = {CURLE_COULDNT_RESOLVE_PROXY,
                                       CURLE_COULDNT_RESOLVE_HOST,
                                       CURLE_COULDNT_CONNECT,
                                       CURLE_PARTIAL_FILE,
                                       CURLE_OPERATION_TIMEDOUT,
                                       CURLE_SSL_CONNECT_ERROR,
                                       CURLE_GOT_NOTHING,
                                       CURLE_SEND_ERROR,
                                       CURLE_RECV_ERROR,
                                       CURLE_HTTP2,
                                       CURLE_HTTP2_STREAM,
                                       CURLE_AGAIN};
    for (size_t i = 0; i < COUNT_OF(passing); i++)
        if (rc == passing[i])
            return true;
    return false;
}

/* A transfer has ended, in whatever way. */
static bool land(PullHttpFlight *f, CURLcode rc, Error *err)
{
    long status = 0;
    char *url = NULL;
    char to[PULL_URL_MAX] = "";
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(f->easy, CURLINFO_REDIRECT_URL, &url);
    const bool fits = url && strlen(url) < sizeof to;
    if (fits)
        memcpy(to, url, strlen(url) + 1);
    put_down(f);
    if (f->sink.code != ERR_NONE) {
        if (err)
            *err = f->sink;
        return false;
    }
    if (rc == CURLE_OK)
        return answered(f, status, fits ? to : NULL, err);
    if (may_pass(rc))
        return again(f, ERR_IO, curl_easy_strerror(rc), err);
    return err_set(err, ERR_IO, "%.90s: %.100s", f->item->what, curl_easy_strerror(rc));
}

/* Starts what is due; *idle_ms: until the next is. */
static bool start_due(PullHttpItem *items, int n, int jobs, int *idle_ms, Error *err)
{
    const double now = clock_ms();
    int n_flying = 0;
    double idle = POLL_MS;
    for (int i = 0; i < n; i++)
        n_flying += items[i].flight->state == FLYING;
    for (int i = 0; i < n && n_flying < jobs; i++) {
        PullHttpFlight *f = items[i].flight;
        if (f->state != WAITING)
            continue;
        if (f->due_ms > now) {
            idle = f->due_ms - now < idle ? f->due_ms - now : idle;
            continue;
        }
        if (!take_off(f, err))
            return false;
        n_flying++;
    }
    *idle_ms = (int)idle + 1;
    return true;
}

static bool fly(PullHttp *h, PullHttpItem *items, int n, int jobs, Error *err)
{
    int n_landed = 0;
    while (n_landed < n) {
        int idle_ms, running, left;
        if (!start_due(items, n, jobs, &idle_ms, err))
            return false;
        curl_multi_perform(h->multi, &running);
        const CURLMsg *m;
        while ((m = curl_multi_info_read(h->multi, &left)) != NULL) {
            char *private = NULL;
            if (m->msg != CURLMSG_DONE)
                continue;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private);
            PullHttpFlight *f = (PullHttpFlight *)(void *)private;
            if (!land(f, m->data.result, err))
                return false;
            n_landed += f->state == LANDED;
            idle_ms = 0;
        }
        if (!h->o.tick(h->o.ctx))
            return err_set(err, ERR_CANCELLED,
                           "interrupted; what is there stays for the next pull");
        if (n_landed < n)
            curl_multi_poll(h->multi, NULL, 0, idle_ms, NULL);
    }
    return true;
}

bool pull_http_run(PullHttp *h, PullHttpItem *items, int n, int jobs, Error *err)
{
    Error own;
    if (n == 0)
        return true;
    PullHttpFlight *flights = mem_zalloc((size_t)n * sizeof *flights);
    if (!flights)
        return err_nomem(err, "transfers", (size_t)n * sizeof *flights);
    bool ok = true;
    for (int i = 0; i < n; i++) {
        flights[i] = (PullHttpFlight){.h = h, .item = &items[i]};
        items[i].flight = &flights[i];
        items[i].next[0] = '\0';
        if (strlen(items[i].url) >= PULL_URL_MAX)
            ok = err_set(err, ERR_FORMAT, "%s: an address of more than %d bytes", items[i].what,
                         PULL_URL_MAX);
        else
            memcpy(flights[i].at, items[i].url, strlen(items[i].url) + 1);
    }
    ok = ok && fly(h, items, n, jobs, err ? err : &own);
    for (int i = 0; i < n; i++) {
        put_down(&flights[i]);
        items[i].flight = NULL;
    }
    mem_free(flights);
    return ok;
}
