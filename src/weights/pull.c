#include "weights/pull.h"

#include "base/file.h"
#include "weights/listing.h"
#include "weights/pull_http.h"
#include "weights/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { JOBS = 4, N_TRIES = 6, BACKOFF_MS = 1000, LOW_SPEED_S = 30, TOKEN_FILE_MAX = 8192 };

typedef struct Pull {
    Arena *a;
    const PullOptions *o;
    HubName name;
    const char *repo; /* "owner/repo" */
    PullHttp *http;
    Listing all;
    ListingChoice choice;
    StrBuf index; /* text of the index, when it was read */
    StoreDir dir;
    Part *parts; /* one for each file of the choice */
    bool *there; /* is whole under its name */
    PullHttpItem *items;
    int n_items;
    PullProgress progress;
    uint64_t resumed_bytes;
    bool said_waiting;
} Pull;

/* ---- options ---- */

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

static bool is_on(const char *name)
{
    const char *v = env(name);
    return v && strcmp(v, "0") != 0 && strcasecmp(v, "false") != 0 && strcasecmp(v, "no") != 0 &&
           strcasecmp(v, "off") != 0;
}

static bool find_token(Arena *a, const char **out, Error *err)
{
    const char *home = env("HOME");
    *out = env("HF_TOKEN");
    if (*out)
        return true;
    const char *path = env("HF_TOKEN_PATH");
    if (!path && env("HF_HOME"))
        path = arena_printf(a, err, "%s/token", env("HF_HOME"));
    else if (!path && home)
        path = arena_printf(a, err, "%s/.cache/huggingface/token", home);
    Str text;
    Error none;
    if (!path || !file_exists(path) || !file_read(a, path, TOKEN_FILE_MAX, &text, &none))
        return true; /* public models need none */
    while (text.len && (unsigned char)text.ptr[text.len - 1] <= ' ')
        text.len--;
    if (text.len)
        *out = arena_strdup(a, text.ptr, text.len, err);
    return !text.len || *out;
}

bool pull_options(Arena *a, PullOptions *out, Error *err)
{
    *out = (PullOptions){.revision = "main",
                         .jobs = JOBS,
                         .n_tries = N_TRIES,
                         .backoff_ms = BACKOFF_MS,
                         .low_speed_s = LOW_SPEED_S};
    const char *endpoint = env("HF_ENDPOINT") ? env("HF_ENDPOINT") : "https://huggingface.co";
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        n--;
    out->endpoint = arena_strdup(a, endpoint, n, err);
    out->offline = is_on("MERE_OFFLINE")     ? "MERE_OFFLINE"
                   : is_on("HF_HUB_OFFLINE") ? "HF_HUB_OFFLINE"
                                             : NULL;
    return out->endpoint && find_token(a, &out->token, err);
}

/* ---- progress ---- */

static bool show(Pull *p)
{
    PullProgress *g = &p->progress;
    if (g->phase == PULL_FETCHING) {
        g->done_bytes = 0;
        g->done_files = 0;
        for (int i = 0; i < p->choice.n; i++) {
            const bool whole = p->there[i] || p->parts[i].is_whole;
            g->done_bytes += whole ? p->choice.files[i]->want.bytes : p->parts[i].bytes;
            g->done_files += whole;
        }
        g->fetched_bytes = g->done_bytes > p->resumed_bytes ? g->done_bytes - p->resumed_bytes : 0;
    }
    return p->o->progress(p->o->ctx, g);
}

static bool on_tick(void *ctx)
{
    return show(ctx);
}

static void on_note(void *ctx, const char *text)
{
    const Pull *p = ctx;
    p->o->note(p->o->ctx, text);
}

static bool on_wait(void *ctx)
{
    Pull *p = ctx;
    if (!p->said_waiting)
        p->o->note(p->o->ctx, "another process is pulling this model: waiting for it");
    p->said_waiting = true;
    p->progress.phase = PULL_WAITING;
    return show(p);
}

static bool on_read(void *ctx, uint64_t bytes)
{
    Pull *p = ctx;
    p->progress.done_bytes += bytes;
    return show(p);
}

/* ---- the listing ---- */

/* Percent-encodes all but letters, digits, "-_.~/". */
static const char *escape(Arena *a, const char *path, Error *err)
{
    static const char hex[] = "0123456789ABCDEF";
    const size_t n = strlen(path);
    char *out = arena_take(a, n * 3 + 1, 1, err);
    char *to = out;
    for (size_t i = 0; out && i < n; i++) {
        const unsigned char c = (unsigned char)path[i];
        const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                           (c >= 'A' && c <= 'Z') || strchr("-_.~/", c);
        if (plain) {
            *to++ = (char)c;
        } else {
            *to++ = '%';
            *to++ = hex[c >> 4];
            *to++ = hex[c & 15];
        }
    }
    return out;
}

/* A revision may have a '/' ("refs/pr/1"), which is then no separator. */
static const char *escape_revision(Arena *a, const char *revision, Error *err)
{
    StrBuf b;
    strbuf_init(&b, 4096);
    const char *plain = escape(a, revision, err);
    for (const char *c = plain; c && *c; c++)
        strbuf_add(&b, *c == '/' ? "%2F" : c, *c == '/' ? 3 : 1);
    const bool ok = plain && strbuf_check(&b, "revision", err);
    const char *out = ok ? arena_strdup(a, b.ptr ? b.ptr : "", b.len, err) : NULL;
    strbuf_free(&b);
    return out;
}

static const char *file_url(Pull *p, const ListedFile *f, Error *err)
{
    const char *rev = escape_revision(p->a, p->o->revision, err);
    const char *path = escape(p->a, f->path, err);
    return rev && path
               ? arena_printf(p->a, err, "%s/%s/resolve/%s/%s", p->o->endpoint, p->repo, rev, path)
               : NULL;
}

/* Refusals are explained: what is to be done, and where. */
static bool explain(const Pull *p, Error *err)
{
    if (err->code == ERR_REQUEST)
        return err_set(err, ERR_IO,
                       "%.80s: the hub refuses access%s. If it is gated, accept its licence at "
                       "%.60s/%.80s%s",
                       p->repo, p->o->token ? " with this token" : "", p->o->endpoint, p->repo,
                       p->o->token ? "" : " and set HF_TOKEN");
    if (err->code == ERR_NOT_FOUND && p->choice.n == 0 && p->all.n == 0)
        return err_set(err, ERR_NOT_FOUND,
                       "%.80s: there is no such model (revision %.40s) at %.60s%s", p->repo,
                       p->o->revision, p->o->endpoint,
                       p->o->token ? "" : ", or it is private: set HF_TOKEN");
    return false;
}

/* One text. `item` is the caller's: item->next tells the page behind it. */
static bool get_text(Pull *p, const char *url, const char *what, StrBuf *body, PullHttpItem *item,
                     Error *err)
{
    *item = (PullHttpItem){.url = url, .what = what, .body = body};
    return pull_http_run(p->http, item, 1, 1, err) || explain(p, err);
}

static bool read_listing(Pull *p, Error *err)
{
    const char *rev = escape_revision(p->a, p->o->revision, err);
    const char *url = rev ? arena_printf(p->a, err, "%s/api/models/%s/tree/%s?recursive=1",
                                         p->o->endpoint, p->repo, rev)
                          : NULL;
    PullHttpItem *item = ARENA_NEW(p->a, PullHttpItem, err);
    StrBuf page;
    bool ok = url && item;
    strbuf_init(&page, LISTING_PAGE_MAX);
    for (int i = 0; ok && url; i++) {
        ok = i < LISTING_PAGES_MAX || err_set(err, ERR_FORMAT, "%s: more than %d pages of files",
                                              p->repo, LISTING_PAGES_MAX);
        ok = ok && get_text(p, url, p->repo, &page, item, err) &&
             listing_add(p->a, p->repo, strbuf_str(&page), &p->all, err);
        url = NULL;
        if (ok && item->next[0] && !pull_http_is_home(p->http, item->next))
            ok = err_set(err, ERR_FORMAT, "%s: its list goes on at another host: %.100s", p->repo,
                         item->next);
        else if (ok && item->next[0])
            ok = (url = arena_strdup(p->a, item->next, strlen(item->next), err)) != NULL;
    }
    strbuf_free(&page);
    return ok;
}

static bool choose(Pull *p, Error *err)
{
    ListingChoice *c = &p->choice;
    if (!listing_choose(p->a, p->repo, &p->all, p->name.quant, c, err))
        return false;
    if (c->index) {
        PullHttpItem *item = ARENA_NEW(p->a, PullHttpItem, err);
        const char *url = file_url(p, c->index, err);
        if (!item || !url || !get_text(p, url, c->index->path, &p->index, item, err) ||
            !listing_choose_shards(p->a, &p->all, strbuf_str(&p->index), c, err))
            return false;
    }
    if (c->n > PULL_FILES_MAX)
        return err_set(err, ERR_FORMAT, "%s: %d files, at most %d", p->repo, c->n, PULL_FILES_MAX);
    if (c->others) {
        char text[400];
        snprintf(text, sizeof text, "taking %s; there are also %.240s (mere pull %.100s:NAME)",
                 c->quant[0] ? c->quant : c->files[0]->want.name, c->others, p->repo);
        p->o->note(p->o->ctx, text);
    }
    return true;
}

/* ---- fetching ---- */

/* What an earlier pull has left, hashed; whole parts are finished. */
static bool check_old(Pull *p, Error *err)
{
    uint64_t bytes = 0;
    p->progress = (PullProgress){.phase = PULL_CHECKING, .n_files = p->choice.n};
    for (int i = 0; i < p->choice.n; i++)
        p->progress.total_bytes += p->choice.files[i]->want.bytes;
    for (int i = 0; i < p->choice.n; i++) {
        const ListedFile *f = p->choice.files[i];
        Part *part = &p->parts[i];
        if (!show(p))
            return err_set(err, ERR_CANCELLED, "interrupted");
        p->progress.done_bytes = bytes;
        if (!part_is_there(p->dir.fd, &f->want, &p->there[i], on_read, p, err))
            return false;
        bytes += f->want.bytes;
        if (p->there[i])
            continue;
        if (!part_resume(part, on_read, p, err))
            return false;
        if (part->fd < 0 || part->bytes < f->want.bytes)
            continue;
        if (!part_finish(part, err)) {
            if (err->code != ERR_FORMAT) /* a wrong one is gone, and comes again */
                return false;
            part_init(part, p->dir.fd, &f->want);
        }
    }
    return true;
}

static bool check_room(const Pull *p, Error *err)
{
    struct statvfs fs;
    uint64_t wanted = 0;
    for (int i = 0; i < p->choice.n; i++)
        if (!p->there[i])
            wanted += p->parts[i].want.bytes - p->parts[i].bytes;
    if (fstatvfs(p->dir.fd, &fs) != 0)
        return true;
    const uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return wanted <= free_bytes ||
           err_set(err, ERR_FIT, "%.120s: the disk has %.1f MB free, %.1f MB are still to come",
                   p->dir.path, (double)free_bytes * 1e-6, (double)wanted * 1e-6);
}

/* The index is here already, as text. */
static bool keep_index(Pull *p, int i, Error *err)
{
    Part *part = &p->parts[i];
    return (part->bytes == 0 || part_restart(part, err)) &&
           part_write(part, p->index.ptr ? p->index.ptr : "", p->index.len, err) &&
           part_finish(part, err);
}

static bool fetch(Pull *p, Error *err)
{
    p->progress.phase = PULL_FETCHING;
    p->items = ARENA_ARRAY(p->a, p->choice.n + 1, PullHttpItem, err);
    if (!p->items)
        return false;
    for (int i = 0; i < p->choice.n; i++)
        p->resumed_bytes += p->there[i] ? p->choice.files[i]->want.bytes : p->parts[i].bytes;
    for (int i = 0; i < p->choice.n; i++) {
        const ListedFile *f = p->choice.files[i];
        if (p->there[i] || p->parts[i].is_whole)
            continue;
        if (f == p->choice.index) {
            if (!keep_index(p, i, err))
                return false;
            continue;
        }
        PullHttpItem *item = &p->items[p->n_items++];
        item->url = file_url(p, f, err);
        item->what = f->path;
        item->part = &p->parts[i];
        if (!item->url)
            return false;
    }
    return pull_http_run(p->http, p->items, p->n_items, p->o->jobs, err) || explain(p, err);
}

static bool publish(Pull *p, PullResult *out, Error *err)
{
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < p->choice.n; i++) {
            const bool is_config = strcmp(p->choice.files[i]->want.name, "config.json") == 0;
            if (!p->there[i] && is_config == (last == 1) && !part_publish(&p->parts[i], err))
                return false;
        }
    if (fsync(p->dir.fd) != 0)
        return err_set(err, ERR_IO, "%s: %s", p->dir.path, strerror(errno));
    out->dir = p->dir.path;
    out->n_files = p->choice.n;
    out->files = ARENA_ARRAY(p->a, p->choice.n, const char *, err);
    if (!out->files)
        return false;
    for (int i = 0; i < p->choice.n; i++) {
        out->files[i] = p->choice.files[i]->want.name;
        out->bytes += p->choice.files[i]->want.bytes;
    }
    out->fetched_bytes = p->progress.fetched_bytes;
    return true;
}

static bool bring(Pull *p, PullResult *out, Error *err)
{
    if (!read_listing(p, err) || !choose(p, err) ||
        !store_dir_open(p->a, p->o->store, &p->name, on_wait, p, &p->dir, err))
        return false;
    p->there = ARENA_ARRAY(p->a, p->choice.n + 1, bool, err);
    Part *parts = p->there ? ARENA_ARRAY(p->a, p->choice.n + 1, Part, err) : NULL;
    if (!parts)
        return false;
    for (int i = 0; i < p->choice.n; i++)
        part_init(&parts[i], p->dir.fd, &p->choice.files[i]->want);
    p->parts = parts;
    return check_old(p, err) && check_room(p, err) && fetch(p, err) &&
           (show(p), publish(p, out, err));
}

bool pull_model(Arena *a, const PullOptions *o, const char *name, PullResult *out, Error *err)
{
    Error own;
    Error *e = err ? err : &own;
    Pull p = {.a = a, .o = o, .dir = {.fd = -1, .lock_fd = -1}};
    *out = (PullResult){0};
    if (!hub_parse(name, &p.name) || !p.name.owner.len)
        return err_set(e, ERR_USAGE, "\"%.100s\" is no model name of a hub (owner/repo[:quant])",
                       name);
    if (o->offline)
        return err_set(e, ERR_FAILED, "%.100s: nothing is fetched while %s is set", name,
                       o->offline);
    if (!o->store)
        return err_set(e, ERR_USAGE, "no place for models: neither MERE_HOME nor HOME is set");
    p.repo = arena_printf(a, e, "%.*s/%.*s", (int)p.name.owner.len, p.name.owner.ptr,
                          (int)p.name.repo.len, p.name.repo.ptr);
    out->name = arena_strdup(a, name, strlen(name), e);
    if (!p.repo || !out->name)
        return false;
    const PullHttpOptions http = {.endpoint = o->endpoint,
                                  .token = o->token,
                                  .n_tries = o->n_tries,
                                  .backoff_ms = o->backoff_ms,
                                  .low_speed_s = o->low_speed_s,
                                  .tick = on_tick,
                                  .note = on_note,
                                  .ctx = &p};
    strbuf_init(&p.index, LISTING_INDEX_MAX);
    const bool ok = pull_http_open(&http, &p.http, e) && bring(&p, out, e);
    for (int i = 0; p.parts && i < p.choice.n; i++)
        part_close(&p.parts[i]);
    store_dir_close(&p.dir);
    pull_http_close(p.http);
    strbuf_free(&p.index);
    return ok;
}
