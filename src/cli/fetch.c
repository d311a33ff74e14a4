#include "cli/fetch.h"

#include "base/clock.h"
#include "base/jsonout.h"
#include "cli/interrupt.h"
#include "cli/term.h"
#include "weights/bundle.h"
#include "weights/hub.h"

#include <inttypes.h>
#include <signal.h>
#include <strings.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 160, BAR = 20 };

typedef struct Fetch {
    Cli *c;
    bool visible;  /* stderr is a terminal, and not --quiet */
    bool has_line; /* something stands there */
    double start_ms, last_ms;
    PullPhase phase;
    double rate; /* bytes a second, of the last seconds */
    double rate_ms;
    uint64_t rate_bytes;
} Fetch;

static void clear_line(Fetch *f)
{
    if (f->has_line)
        fputs("\r\033[K", stderr);
    f->has_line = false;
}

/* Smoothed over some five seconds. */
static void take_rate(Fetch *f, uint64_t bytes, double now)
{
    const double s = (now - f->rate_ms) * 1e-3;
    if (s < 0.5)
        return;
    const double last = (double)(bytes - f->rate_bytes) / s;
    f->rate = f->rate > 0 ? f->rate + (last - f->rate) * (s < 5 ? s / 5 : 1) : last;
    f->rate_ms = now;
    f->rate_bytes = bytes;
}

static void time_left(double s, char out[32])
{
    if (s < 60)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 3600)
        snprintf(out, 32, "%.0f min", s / 60);
    else
        snprintf(out, 32, "%.1f h", s / 3600);
}

static void show(Fetch *f, const PullProgress *p)
{
    static const char *const words[] = {[PULL_LISTING] = "asking for the list of files",
                                        [PULL_WAITING] = "waiting for another pull",
                                        [PULL_CHECKING] = "checking",
                                        [PULL_FETCHING] = "pulling"};
    char line[LINE_MAX_BYTES];
    char bar[BAR + 1];
    char done[24], total[24], rate[24], left[32];
    size_t n = (size_t)snprintf(line, sizeof line, "%s", words[p->phase]);
    if (p->total_bytes > 0 && p->done_bytes <= p->total_bytes && p->phase >= PULL_CHECKING) {
        const double part = (double)p->done_bytes / (double)p->total_bytes;
        memset(bar, '-', BAR);
        memset(bar, '#', (size_t)(part * BAR));
        bar[BAR] = '\0';
        n += (size_t)snprintf(line + n, sizeof line - n, " [%s] %3.0f %%  %s of %s  %d/%d files",
                              bar, part * 100, cli_bytes(p->done_bytes, done),
                              cli_bytes(p->total_bytes, total), p->done_files, p->n_files);
        if (f->rate > 0 && n < sizeof line) {
            time_left((double)(p->total_bytes - p->done_bytes) / f->rate, left);
            snprintf(line + n, sizeof line - n, "  %s/s  %s left",
                     cli_bytes((uint64_t)f->rate, rate), left);
        }
    }
    fprintf(stderr, "\r\033[K%s", line);
    (void)fflush(stderr);
    f->has_line = true;
}

static bool on_progress(void *ctx, const PullProgress *p)
{
    Fetch *f = ctx;
    const double now = clock_ms();
    if (p->phase != f->phase || f->rate_ms <= 0) {
        f->phase = p->phase;
        f->rate = 0;
        f->rate_ms = now;
        f->rate_bytes = p->done_bytes;
    }
    if (p->done_bytes < f->rate_bytes) /* a file began again */
        f->rate_bytes = p->done_bytes;
    take_rate(f, p->done_bytes, now);
    if (f->visible && now - f->last_ms >= 100) {
        f->last_ms = now;
        show(f, p);
    }
    return !interrupt_pending();
}

static void on_note(void *ctx, const char *text)
{
    Fetch *f = ctx;
    clear_line(f);
    cli_note(f->c, "%s", text);
}

/* A write past a limit on file sizes is then an error like a full disk, not the end. */
static void begin(Fetch *f, Cli *c)
{
    *f = (Fetch){.c = c, .visible = !c->o.quiet && isatty(STDERR_FILENO), .start_ms = clock_ms()};
    (void)signal(SIGXFSZ, SIG_IGN);
    cli_catch_interrupts(c);
}

static bool set_options(Fetch *f, Arena *a, PullOptions *o, Error *err)
{
    HubRoots roots;
    if (!pull_options(a, o, err) || !hub_roots(a, &roots, err))
        return false;
    o->store = roots.store;
    o->progress = on_progress;
    o->note = on_note;
    o->ctx = f;
    if (f->c->o.has_revision)
        o->revision = f->c->o.revision;
    if (f->c->o.has_jobs)
        o->jobs = (int)f->c->o.jobs;
    return true;
}

static int print_json(const Cli *c, const PullResult *r)
{
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    strbuf_add_cstr(&b, "{\"schema_version\":1,\"name\":");
    jsonout_str(&b, str_from(r->name));
    strbuf_add_cstr(&b, ",\"path\":");
    jsonout_str(&b, str_from(r->dir));
    strbuf_printf(&b, ",\"size_bytes\":%" PRIu64 ",\"fetched_bytes\":%" PRIu64 ",\"files\":[",
                  r->bytes, r->fetched_bytes);
    for (int i = 0; i < r->n_files; i++) {
        strbuf_add_cstr(&b, i ? "," : "");
        jsonout_str(&b, str_from(r->files[i]));
    }
    strbuf_add_cstr(&b, "]}\n");
    return cli_put(c, &b);
}

static int finish(Fetch *f, bool ok, const PullResult *r, const Error *err)
{
    Cli *c = f->c;
    char size[24], fetched[24];
    clear_line(f);
    if (!ok) {
        const int rc = cli_fail(c, err);
        return interrupt_pending() ? interrupt_exit_code() : rc;
    }
    const double s = (clock_ms() - f->start_ms) * 1e-3;
    if (r->fetched_bytes > 0)
        cli_note(c, "%s: %d files, %s, %s fetched in %.0f s, in %s", r->name, r->n_files,
                 cli_bytes(r->bytes, size), cli_bytes(r->fetched_bytes, fetched), s, r->dir);
    else
        cli_note(c, "%s: %d files, %s, checked, in %s", r->name, r->n_files,
                 cli_bytes(r->bytes, size), r->dir);
    return c->o.command == CMD_PULL && c->o.json ? print_json(c, r) : 0;
}

int fetch_model(Cli *c, const char *name, const char *bundle)
{
    Fetch f;
    Arena a;
    Error err;
    PullOptions o;
    PullResult r;
    begin(&f, c);
    arena_init(&a, "pull");
    bool ok = set_options(&f, &a, &o, &err) && pull_model(&a, &o, name, &r, &err);
    if (ok && bundle) {
        ok = bundle_write(&a, &o, &r, bundle, &err);
        clear_line(&f);
        if (ok)
            cli_note(c, "%s: written", bundle);
    }
    const int rc = finish(&f, ok, &r, &err);
    arena_free(&a);
    return rc;
}

int fetch_bundle(Cli *c, const char *bundle)
{
    Fetch f;
    Arena a;
    Error err;
    PullOptions o;
    PullResult r;
    begin(&f, c);
    arena_init(&a, "bundle");
    const bool ok = set_options(&f, &a, &o, &err) && bundle_read(&a, &o, bundle, &r, &err);
    const int rc = finish(&f, ok, &r, &err);
    arena_free(&a);
    return rc;
}

bool fetch_confirm(const char *question)
{
    char answer[16] = "";
    fputs(question, stderr);
    fputs(" [y/N] ", stderr);
    (void)fflush(stderr);
    if (!fgets(answer, sizeof answer, stdin))
        return false;
    answer[strcspn(answer, "\r\n")] = '\0';
    return strcasecmp(answer, "y") == 0 || strcasecmp(answer, "yes") == 0;
}

bool fetch_missing(Cli *c, int *exit_code)
{
    Arena a;
    Error err;
    HubRoots roots;
    HubName parsed;
    const char *path;
    if (!hub_parse(c->o.model, &parsed) || !parsed.owner.len || !isatty(STDIN_FILENO) ||
        !isatty(STDERR_FILENO))
        return true;
    arena_init(&a, "model name");
    const bool missing = hub_roots(&a, &roots, &err) &&
                         !hub_resolve(&a, &roots, c->o.model, &path, &err) &&
                         err.code == ERR_NOT_FOUND;
    arena_free(&a);
    if (!missing)
        return true;
    char question[400];
    snprintf(question, sizeof question, "%.300s is not here. Pull it?", c->o.model);
    if (!fetch_confirm(question)) {
        *exit_code = cli_fail(c, &err);
        return false;
    }
    *exit_code = fetch_model(c, c->o.model, NULL);
    return *exit_code == 0;
}
