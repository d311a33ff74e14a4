#include "serve/serve.h"

#include "base/clock.h"
#include "base/jsonout.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/completion.h"
#include "serve/net.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    EVENTS_A_TURN = 256, /* of the engine, before sockets get their turn */
    DRAIN_TICK_MS = 20,
    DRAIN_GRACE_MS = 2000, /* after cancelling: for END events and last bytes */
    LOST_DRAIN_MS = 500,   /* for the errors of a lost device to go out: another server waits */
    CLOSE_WAIT_MS = 5000   /* in serve_close, for END events */
};

struct Server {
    ServerOptions opt;
    Net *net;
    CompletionSet set;
    int stop_fd; /* eventfd: serve_stop */
    int64_t created;
    bool draining, cancelled, lost;
    uint64_t drain_from_ns;
    int exit_code;
};

/* ---- stopping ---- */

static void drain_tick(void *ctx)
{
    Server *s = ctx;
    const double ms = (double)(clock_ns() - s->drain_from_ns) * 1e-6;
    const bool idle = s->set.n == 0 && net_connections(s->net) == 0;
    if (idle || (s->cancelled && ms > s->opt.drain_ms + DRAIN_GRACE_MS)) {
        net_stop(s->net);
        return;
    }
    if (!s->cancelled && ms > s->opt.drain_ms) {
        s->cancelled = true;
        completion_cancel_all(&s->set);
    }
    net_refuse_new(s->net); /* connections whose answer is out are idle now */
    net_timer(s->net, DRAIN_TICK_MS, drain_tick, s);
}

static void stop(Server *s, int exit_code)
{
    if (s->draining) { /* asked twice: the deadline is now */
        s->drain_from_ns = clock_ns() - (uint64_t)s->opt.drain_ms * 1000 * 1000;
        return;
    }
    s->draining = true;
    s->exit_code = exit_code;
    s->drain_from_ns = clock_ns();
    log_msg(LOG_INFO, "stopping: %d requests are running", s->set.n);
    drain_tick(s);
}

static void on_sigint(void *ctx)
{
    stop(ctx, 130);
}

static void on_sigterm(void *ctx)
{
    stop(ctx, 0);
}

static void on_stop_fd(void *ctx)
{
    Server *s = ctx;
    uint64_t n;
    if (read(s->stop_fd, &n, sizeof n) != (ssize_t)sizeof n)
        return;
    for (uint64_t i = 0; i < n && i < 2; i++) /* calls since the last turn of the loop */
        stop(s, 0);
}

void serve_stop(Server *s)
{
    const uint64_t one = 1;
    if (write(s->stop_fd, &one, sizeof one) != (ssize_t)sizeof one)
        return; /* the counter is full of earlier calls */
}

/* ---- events of the engine ---- */

static void on_engine(void *ctx)
{
    Server *s = ctx;
    MereEvent ev;
    for (int i = 0; i < EVENTS_A_TURN && mere_next(s->opt.engine, &ev, 0); i++) {
        completion_event(&s->set, &ev);
        if (ev.type == MERE_EVENT_END && ev.finish == MERE_FINISH_ERROR &&
            ev.error.code == MERE_ERR_LOST && !s->lost) {
            s->lost = true;
            log_msg(LOG_ERROR, "the device is lost: %s", ev.error.msg);
            if (s->opt.drain_ms > LOST_DRAIN_MS)
                s->opt.drain_ms = LOST_DRAIN_MS;
            stop(s, mere_err_exit_code(MERE_ERR_LOST));
        }
    }
}

/* ---- handlers of routes.def ---- */

static void send_json(NetReq *r, int status, StrBuf *b)
{
    if (b->failed)
        completion_refuse(r, 503, err_name(ERR_NOMEM), NULL, "out of memory");
    else
        net_reply(r, status, "application/json", strbuf_str(b));
    strbuf_free(b);
}

static void route_chat(Server *s, NetReq *r)
{
    completion_start(&s->set, r, OPENAI_CHAT);
}

static void route_completions(Server *s, NetReq *r)
{
    completion_start(&s->set, r, OPENAI_COMPLETION);
}

static void route_models(Server *s, NetReq *r)
{
    MereInfo info = {.size = sizeof info};
    mere_model_info(s->opt.model, &info);
    StrBuf b;
    strbuf_init(&b, 64 * 1024);
    strbuf_add_cstr(&b, "{\"object\":\"list\",\"data\":[{\"id\":");
    jsonout_str(&b, s->set.model_name);
    strbuf_printf(&b,
                  ",\"object\":\"model\",\"created\":%" PRId64
                  ",\"owned_by\":\"mere\",\"max_model_len\":%d,\"family\":",
                  s->created, info.ctx);
    jsonout_str(&b, (Str){info.family.ptr, info.family.len});
    strbuf_add_cstr(&b, "}]}");
    send_json(r, 200, &b);
}

static void route_health(Server *s, NetReq *r)
{
    MereStats st = {0};
    mere_stats(s->opt.model, &st);
    const char *status = s->lost ? "lost" : s->draining ? "stopping" : "ok";
    StrBuf b;
    strbuf_init(&b, 64 * 1024);
    strbuf_printf(&b, "{\"status\":\"%s\",\"model\":", status);
    jsonout_str(&b, s->set.model_name);
    strbuf_printf(&b,
                  ",\"live\":%d,\"queued\":%d,\"slots\":%d,\"requests\":%" PRIu64
                  ",\"connections\":%d,\"pages_used\":%d,\"pages_total\":%d,\"states_used\":%d,"
                  "\"planned_bytes\":%" PRIu64 ",\"anon_bytes\":%" PRIu64
                  ",\"peak_anon_bytes\":%" PRIu64 ",\"mapped_bytes\":%" PRIu64 "}",
                  st.live, st.queued, st.slots, st.requests, net_connections(s->net), st.pages_used,
                  st.pages_total, st.states_used, st.planned_bytes, st.anon_bytes,
                  st.peak_anon_bytes, st.mapped_bytes);
    send_json(r, s->lost || s->draining ? 503 : 200, &b);
}

static void route_root(Server *s, NetReq *r)
{
    StrBuf b;
    strbuf_init(&b, 64 * 1024);
    strbuf_printf(&b, "mere %s serves %.*s\n\n", mere_version(), (int)s->set.model_name.len,
                  s->set.model_name.ptr);
#define ROUTE(method, path, handler, key, what)                                                    \
    strbuf_printf(&b, "%-5s %-22s %s\n", method, path, what);
#include "serve/routes.def"
#undef ROUTE
    if (b.failed)
        completion_refuse(r, 503, err_name(ERR_NOMEM), NULL, "out of memory");
    else
        net_reply(r, 200, "text/plain; charset=utf-8", strbuf_str(&b));
    strbuf_free(&b);
}

static const struct {
    const char *method, *path;
    void (*handle)(Server *s, NetReq *r);
    bool needs_key;
} routes[] = {
#define ROUTE(method, path, handler, key, what) {method, path, route_##handler, key},
#include "serve/routes.def"
#undef ROUTE
};

/* ---- dispatch ---- */

/* Time does not depend on where the first difference is, only on the length of what was sent. */
static bool key_matches(Str got, const char *key)
{
    const size_t n = strlen(key);
    unsigned diff = got.len != n;
    for (size_t i = 0; i < got.len; i++)
        diff |= (unsigned)((unsigned char)got.ptr[i] ^ (unsigned char)key[n ? i % n : 0]);
    return diff == 0;
}

static bool authorised(const Server *s, const NetReq *r)
{
    if (!s->opt.api_key)
        return true;
    Str v = net_header(r, "Authorization");
    if (!v.ptr || v.len < 7 || strncasecmp(v.ptr, "Bearer ", 7) != 0)
        return false;
    return key_matches((Str){v.ptr + 7, v.len - 7}, s->opt.api_key);
}

/* A page from elsewhere may not use a server that its visitor runs: browsers send such requests
 * with the page's origin. True: r may go on. */
static bool check_origin(const Server *s, NetReq *r)
{
    const Str origin = net_header(r, "Origin");
    if (!origin.ptr)
        return true;
    if (s->opt.cors && (strcmp(s->opt.cors, "*") == 0 || str_is(origin, s->opt.cors))) {
        net_reply_header(r, "Access-Control-Allow-Origin", s->opt.cors);
        net_reply_header(r, "Vary", "Origin");
        return true;
    }
    const Str host = net_header(r, "Host");
    const char *sep = strstr(origin.ptr, "://");
    return sep && host.ptr && strcmp(sep + 3, host.ptr) == 0;
}

static void preflight(NetReq *r)
{
    net_reply_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    net_reply_header(r, "Access-Control-Allow-Headers", "Authorization, Content-Type");
    net_reply_header(r, "Access-Control-Max-Age", "600");
    net_reply(r, 204, NULL, str_from(""));
}

static void no_route(NetReq *r, const char *allowed)
{
    char msg[160];
    if (!allowed) {
        snprintf(msg, sizeof msg, "there is no %.100s here; GET / lists what there is",
                 net_path(r));
        completion_refuse(r, 404, "not_found", NULL, msg);
        return;
    }
    net_reply_header(r, "Allow", allowed);
    snprintf(msg, sizeof msg, "%s is not allowed for %.60s, %s is", net_method(r), net_path(r),
             allowed);
    completion_refuse(r, 405, "method_not_allowed", NULL, msg);
}

static void on_request(void *ctx, NetReq *r)
{
    Server *s = ctx;
    const char *method = net_method(r);
    const char *path = net_path(r);
    const bool is_head = strcmp(method, "HEAD") == 0;
    const char *allowed = NULL;
    size_t route = COUNT_OF(routes);
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        if (strcmp(routes[i].path, path) != 0)
            continue;
        allowed = routes[i].method;
        if (strcmp(allowed, is_head ? "GET" : method) == 0)
            route = i;
    }
    if (s->draining)
        net_reply_header(r, "Connection", "close");
    if (!check_origin(s, r)) {
        completion_refuse(r, 403, "origin_not_allowed", NULL,
                          "requests from web pages of this origin are not allowed; see --cors");
    } else if (s->opt.cors && allowed && strcmp(method, "OPTIONS") == 0) {
        preflight(r);
    } else if (route == COUNT_OF(routes)) {
        no_route(r, allowed);
    } else if (routes[route].needs_key && !authorised(s, r)) {
        net_reply_header(r, "WWW-Authenticate", "Bearer");
        completion_refuse(r, 401, "invalid_api_key", NULL,
                          "this server wants its API key as \"Authorization: Bearer KEY\"");
    } else if (s->draining && strcmp(method, "POST") == 0) {
        completion_refuse(r, 503, "stopping", NULL, "the server is stopping");
    } else if (net_body_bytes(r) > s->opt.max_body_bytes) {
        char msg[128];
        snprintf(msg, sizeof msg, "the body has %zu bytes, at most %zu are taken",
                 net_body_bytes(r), s->opt.max_body_bytes);
        net_reply_header(r, "Connection", "close");
        completion_refuse(r, 413, "body_too_large", NULL, msg);
    } else {
        routes[route].handle(s, r);
    }
}

/* ---- life ---- */

Str serve_model_name(const char *path)
{
    Str name = str_from(path);
    while (name.len > 1 && name.ptr[name.len - 1] == '/')
        name.len--;
    for (size_t i = name.len; i > 0; i--)
        if (name.ptr[i - 1] == '/' && i < name.len) {
            name.ptr += i;
            name.len -= i;
            break;
        }
    if (str_ends(name, ".gguf") && name.len > 5)
        name.len -= 5;
    return name;
}

static void set_defaults(ServerOptions *o)
{
    if (!o->max_body_bytes)
        o->max_body_bytes = 32 * 1024 * 1024;
    if (!o->max_header_bytes)
        o->max_header_bytes = 64 * 1024;
    if (!o->max_pending_bytes)
        o->max_pending_bytes = 1024 * 1024;
    if (!o->max_connections)
        o->max_connections = 1024;
    if (!o->request_ms)
        o->request_ms = 60000;
    if (!o->write_ms)
        o->write_ms = 60000;
    if (!o->drain_ms)
        o->drain_ms = 10000;
}

bool serve_listen(const char *host, int port, int *fd, int *port_out, Error *err)
{
    return net_listen(host, port, fd, port_out, err);
}

bool serve_open(const ServerOptions *opt, int listen_fd, Server **out, Error *err)
{
    Server *s = mem_zalloc(sizeof *s);
    if (!s) {
        close(listen_fd);
        return err_nomem(err, "server", sizeof *s);
    }
    s->opt = *opt;
    set_defaults(&s->opt);
    s->created = (int64_t)time(NULL);
    s->set = (CompletionSet){.engine = opt->engine,
                             .model = opt->model,
                             .model_name = serve_model_name(opt->model_name),
                             .model_alias = str_from(opt->model_name)};
    if (getrandom(&s->set.boot, sizeof s->set.boot, GRND_NONBLOCK) != (ssize_t)sizeof s->set.boot)
        s->set.boot = clock_ns();
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const NetOptions net = {.max_header_bytes = s->opt.max_header_bytes,
                            .max_body_bytes = s->opt.max_body_bytes,
                            .max_pending_bytes = s->opt.max_pending_bytes,
                            .max_connections = s->opt.max_connections,
                            .request_ms = s->opt.request_ms,
                            .write_ms = s->opt.write_ms,
                            .request = on_request,
                            .ctx = s};
    bool ok;
    if (s->stop_fd < 0) {
        close(listen_fd);
        ok = err_set(err, ERR_FAILED, "server: cannot make an eventfd");
    } else {
        ok = net_open(&net, listen_fd, &s->net, err) &&
             net_watch(s->net, mere_fd(opt->engine), on_engine, s, err) &&
             net_watch(s->net, s->stop_fd, on_stop_fd, s, err) &&
             (!opt->signals || (net_signal(s->net, SIGINT, on_sigint, s, err) &&
                                net_signal(s->net, SIGTERM, on_sigterm, s, err)));
    }
    if (!ok) {
        serve_close(s);
        return false;
    }
    signal(SIGPIPE, SIG_IGN); /* a write to a closed connection is an error of that connection */
    *out = s;
    return true;
}

int serve_run(Server *s)
{
    net_run(s->net);
    return s->exit_code;
}

void serve_close(Server *s)
{
    if (!s)
        return;
    net_close(s->net); /* clients are gone: their requests are cancelled */
    const uint64_t from = clock_ns();
    MereEvent ev;
    while (s->set.n > 0 && clock_ns() - from < (uint64_t)CLOSE_WAIT_MS * 1000 * 1000)
        if (mere_next(s->opt.engine, &ev, 50))
            completion_event(&s->set, &ev);
    completion_free_all(&s->set);
    if (s->stop_fd >= 0)
        close(s->stop_fd);
    mem_free(s);
}
