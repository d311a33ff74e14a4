#include "cli/cli.h"
#include "cli/supervisor.h"
#include "serve/serve.h"

#include <stdlib.h>
#include <unistd.h>

enum { PORT_DEFAULT = 8080, HOST_MAX = 256 };

typedef struct Address {
    char host[HOST_MAX];
    int port;
} Address;

/* MERE_HOST is HOST, HOST:PORT or either behind http://; an IPv6 address with a port is in
 * brackets. */
static bool parse_env(const char *env, Address *a, Error *err)
{
    Str host = str_from(env);
    if (str_starts(host, "http://")) {
        host.ptr += 7;
        host.len -= 7;
    }
    while (host.len > 0 && host.ptr[host.len - 1] == '/')
        host.len--;
    const char *colon = memrchr(host.ptr, ':', host.len);
    const char *bracket = memrchr(host.ptr, ']', host.len);
    const bool one_colon = colon && memchr(host.ptr, ':', host.len) == colon;
    Str port = {NULL, 0};
    if (colon && (one_colon || (bracket && colon == bracket + 1))) {
        port = (Str){colon + 1, host.len - (size_t)(colon - host.ptr) - 1};
        host.len = (size_t)(colon - host.ptr);
    }
    if (host.len >= 2 && host.ptr[0] == '[' && host.ptr[host.len - 1] == ']') {
        host.ptr++;
        host.len -= 2;
    }
    int64_t n = a->port;
    if (host.len == 0 || host.len >= HOST_MAX || (port.ptr && !str_to_int(port, 0, 65535, &n)))
        return err_set(err, ERR_USAGE, "MERE_HOST: \"%.60s\" is no HOST or HOST:PORT", env);
    memcpy(a->host, host.ptr, host.len);
    a->host[host.len] = '\0';
    a->port = (int)n;
    return true;
}

static bool get_address(const Options *o, Address *a, Error *err)
{
    *a = (Address){.host = "127.0.0.1", .port = PORT_DEFAULT};
    const char *env = getenv("MERE_HOST");
    if (env && *env && !parse_env(env, a, err))
        return false;
    if (o->has_host && snprintf(a->host, sizeof a->host, "%s", o->host) >= HOST_MAX)
        return err_set(err, ERR_USAGE, "--host: longer than %d bytes", HOST_MAX - 1);
    if (o->has_port)
        a->port = (int)o->port;
    /* An empty variable behind --api-key must not open the server to everybody. */
    if (o->has_api_key && !*o->api_key)
        return err_set(err, ERR_USAGE, "--api-key: the key is empty");
    return true;
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

static void announce(const Cli *c, const Address *a)
{
    MereInfo info = {.size = sizeof info};
    mere_model_info(c->model, &info);
    const Str name = serve_model_name(c->o.model);
    const MereStr device = mere_engine_device(c->engine);
    const bool v6 = strchr(a->host, ':') != NULL;
    printf("serving %.*s on %.*s, %d slot%s of %d tokens, at http://%s%s%s:%d\n", (int)name.len,
           name.ptr, (int)device.len, device.ptr, info.slots, info.slots == 1 ? "" : "s", info.ctx,
           v6 ? "[" : "", a->host, v6 ? "]" : "", a->port);
    fflush(stdout);
}

typedef struct Place {
    Address a;
    int fd;
} Place;

static int serve(Cli *c, void *ctx, int ready_fd, bool again)
{
    const Place *p = ctx;
    int rc;
    cli_catch_interrupts(c); /* while loading; then the server's own */
    if (!cli_open_model(c, &rc)) {
        close(p->fd);
        return rc;
    }
    const ServerOptions so = {.engine = c->engine,
                              .model = c->model,
                              .model_name = c->o.model,
                              .api_key = c->o.api_key,
                              .cors = c->o.cors,
                              .signals = true};
    Error err;
    Server *s;
    if (!serve_open(&so, p->fd, &s, &err))
        return cli_fail(c, &err);
    if (!again)
        announce(c, &p->a);
    else
        cli_note(c, "serving again");
    if (!again && !c->o.has_api_key && !is_loopback(p->a.host))
        cli_note(c, "%s: whoever reaches this address can use the model (--api-key)", p->a.host);
    supervisor_ready(ready_fd);
    rc = serve_run(s);
    serve_close(s);
    return rc;
}

int cmd_serve(Cli *c)
{
    Place p;
    Error err;
    /* The socket first: a port in use is told before the model is loaded. */
    if (!get_address(&c->o, &p.a, &err) ||
        !serve_listen(p.a.host, p.a.port, &p.fd, &p.a.port, &err))
        return cli_fail(c, &err);
    if (c->o.no_supervisor)
        return serve(c, &p, -1, false);
    const SupervisorDesc d = {.listen_fd = p.fd, .work = serve, .ctx = &p};
    return supervisor_run(c, &d);
}
