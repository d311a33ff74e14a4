/* Teacher forcing: the rows stream into the file as the engine makes them. The file appears under
 * its name only when it is whole.
 *
 *   u64 little-endian  bytes of the header
 *   header             {"logits":{"dtype":"F32","shape":[n,vocab],"data_offsets":[0,bytes]}},
 * padded with blanks to 8 bytes n * vocab f32      little-endian */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { IDS_MAX = 1 << 20 };

static bool parse_ids(Arena *a, const char *text, int32_t **out, int64_t *n, Error *err)
{
    int64_t count = 1;
    for (const char *p = text; *p; p++)
        count += *p == ',';
    if (count > IDS_MAX)
        return err_set(err, ERR_USAGE, "--ids: %" PRId64 " ids, at most %d are taken", count,
                       IDS_MAX);
    int32_t *ids = ARENA_ARRAY(a, count, int32_t, err);
    if (!ids)
        return false;
    const char *p = text;
    for (int64_t i = 0; i < count; i++) {
        const size_t len = strcspn(p, ",");
        int64_t id;
        if (!str_to_int((Str){p, len}, 0, INT32_MAX, &id))
            return err_set(err, ERR_USAGE, "--ids: \"%.*s\" is no token id",
                           (int)(len < 40 ? len : 40), p);
        ids[i] = (int32_t)id;
        p += len + (p[len] ? 1 : 0);
    }
    *out = ids;
    *n = count;
    return true;
}

static bool write_all(FILE *f, const char *path, const void *data, size_t bytes, Error *err)
{
    return fwrite(data, 1, bytes, f) == bytes ||
           err_set(err, ERR_IO, "%s: cannot write: %s", path, strerror(errno));
}

static bool write_header(FILE *f, const char *path, int64_t n, int64_t vocab, Error *err)
{
    char header[192];
    int len = snprintf(header, sizeof header - 8,
                       "{\"logits\":{\"dtype\":\"F32\",\"shape\":[%" PRId64 ",%" PRId64
                       "],\"data_offsets\":[0,%" PRId64 "]}}",
                       n, vocab, n * vocab * 4);
    while (len % 8 != 0)
        header[len++] = ' ';
    uint8_t size[8] = {(uint8_t)len, (uint8_t)(len >> 8)};
    return write_all(f, path, size, sizeof size, err) &&
           write_all(f, path, header, (size_t)len, err);
}

/* Rows arrive in order. */
static bool write_rows(Cli *c, uint64_t id, FILE *f, const char *path, int64_t n, int vocab,
                       Error *err)
{
    int64_t rows = 0;
    MereEvent ev;
    bool ok = true; /* after a failed write the request still runs to its END */
    for (;;) {
        if (!cli_next(c, id, &ev, err))
            return false;
        if (ev.type == MERE_EVENT_END)
            break;
        if (ev.type != MERE_EVENT_LOGITS || !ok)
            continue;
        ok = ev.n_logits == vocab ? write_all(f, path, ev.logits, (size_t)vocab * 4, err)
                                  : err_set(err, ERR_FAILED, "row %d has %d logits, wanted %d",
                                            ev.index, ev.n_logits, vocab);
        if (!ok)
            mere_cancel(c->engine, id);
        rows++;
    }
    if (!ok)
        return false;
    if (ev.finish == MERE_FINISH_CANCELLED)
        return err_set(err, ERR_CANCELLED, "interrupted: %s is not written", path);
    if (ev.finish == MERE_FINISH_ERROR)
        return err_set(err, (ErrCode)ev.error.code, "%s", ev.error.msg);
    return rows == n ||
           err_set(err, ERR_FAILED, "%" PRId64 " rows of logits came, wanted %" PRId64, rows, n);
}

static bool run(Cli *c, const int32_t *ids, int64_t n, const char *path, const char *part,
                Error *err)
{
    MereInfo info = {.size = sizeof info};
    mere_model_info(c->model, &info);
    MereRequest req = MERE_REQUEST_INIT;
    req.ids = ids;
    req.n_ids = n;
    req.echo_logits = true;
    uint64_t id;
    MereError merr = {0};
    if (!mere_submit(c->model, &req, &id, &merr))
        return err_set(err, (ErrCode)merr.code, "%s", merr.msg);
    FILE *f = fopen(part, "wbe");
    if (!f)
        return err_set(err, ERR_IO, "%s: cannot create: %s", part, strerror(errno));
    bool ok =
        write_header(f, part, n, info.vocab, err) && write_rows(c, id, f, part, n, info.vocab, err);
    if (fclose(f) != 0 && ok)
        ok = err_set(err, ERR_IO, "%s: cannot write: %s", part, strerror(errno));
    if (ok && rename(part, path) != 0)
        ok = err_set(err, ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    if (!ok)
        unlink(part);
    return ok;
}

int cmd_logits(Cli *c)
{
    Error err;
    Arena a;
    arena_init(&a, "logits");
    int32_t *ids = NULL;
    int64_t n = 0;
    bool ok = (c->o.has_ids && c->o.has_out) ||
              err_set(&err, ERR_USAGE, "mere logits wants --ids N,N,... and --out FILE");
    ok = ok && parse_ids(&a, c->o.ids, &ids, &n, &err);
    const char *part = ok ? arena_printf(&a, &err, "%s.part", c->o.out) : NULL;
    int rc = 0;
    if (!part) {
        rc = cli_fail(c, &err);
    } else {
        if (!c->o.has_ctx) {
            c->o.ctx = n;
            c->o.has_ctx = true;
        }
        cli_catch_interrupts(c);
        if (cli_open_model(c, &rc) && !run(c, ids, n, c->o.out, part, &err))
            rc = cli_fail(c, &err);
    }
    arena_free(&a);
    return rc;
}
