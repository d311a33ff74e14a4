#include "weights/bundle.h"

#include "base/json.h"
#include "base/jsonout.h"
#include "weights/part.h"
#include "weights/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 512, COPY_BYTES = 1 << 18 };
static const char MANIFEST[] = "mere-bundle.json";

/* A ustar header. Sizes of 8 GiB and more are in base 256, as GNU and BSD tar write them. */
typedef struct TarHeader {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
} TarHeader;
_Static_assert(sizeof(TarHeader) == BLOCK, "a tar header is one block");

typedef struct Bundle {
    Arena *a;
    const PullOptions *o;
    PullProgress progress;
    int fd;
    const char *path;
    const char *name; /* "owner/repo" */
    PartWant *files;
    int n;
} Bundle;

static bool on_read(void *ctx, uint64_t bytes)
{
    Bundle *b = ctx;
    b->progress.done_bytes += bytes;
    return b->o->progress(b->o->ctx, &b->progress);
}

static unsigned checksum(const TarHeader *h)
{
    const unsigned char *p = (const unsigned char *)h;
    unsigned sum = 0;
    for (size_t i = 0; i < BLOCK; i++) /* the field itself counts as blanks */
        sum += i >= offsetof(TarHeader, checksum) && i < offsetof(TarHeader, type) ? ' ' : p[i];
    return sum;
}

/* ---- writing ---- */

static bool put(Bundle *b, const void *data, size_t n, Error *err)
{
    for (size_t at = 0; at < n;) {
        const ssize_t w = write(b->fd, (const char *)data + at, n - at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            const bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
            return err_set(err, full ? ERR_FIT : ERR_IO, "%s: cannot write: %s", b->path,
                           strerror(errno));
        }
        at += (size_t)w;
    }
    return true;
}

static bool put_header(Bundle *b, const char *prefix, const char *name, uint64_t bytes, Error *err)
{
    TarHeader h = {.mode = "0000644",
                   .uid = "0000000",
                   .gid = "0000000",
                   .mtime = "00000000000",
                   .type = '0',
                   .magic = "ustar",
                   .version = {'0', '0'}};
    if (strlen(name) >= sizeof h.name || strlen(prefix) >= sizeof h.prefix)
        return err_set(err, ERR_TOO_LONG, "%s: %.100s is too long a name for a tar file", b->path,
                       name);
    memcpy(h.name, name, strlen(name));
    memcpy(h.prefix, prefix, strlen(prefix));
    if (bytes < UINT64_C(1) << 33) {
        char octal[24];
        snprintf(octal, sizeof octal, "%011" PRIo64, bytes);
        memcpy(h.size, octal, sizeof h.size);
    } else {
        h.size[0] = (char)0x80;
        for (int i = 11; i >= 4; i--, bytes >>= 8)
            h.size[i] = (char)(bytes & 0xFF);
    }
    char sum[16];
    snprintf(sum, sizeof sum, "%06o", checksum(&h) & 0777777U);
    memcpy(h.checksum, sum, 7);
    h.checksum[7] = ' ';
    return put(b, &h, sizeof h, err);
}

static bool put_padding(Bundle *b, uint64_t bytes, Error *err)
{
    static const char zeros[BLOCK];
    return put(b, zeros, (size_t)((BLOCK - bytes % BLOCK) % BLOCK), err);
}

static bool put_manifest(Bundle *b, Error *err)
{
    StrBuf s;
    strbuf_init(&s, BUNDLE_MANIFEST_MAX);
    strbuf_add_cstr(&s, "{\"schema_version\":1,\"name\":");
    jsonout_str(&s, str_from(b->name));
    strbuf_add_cstr(&s, ",\"files\":[");
    for (int i = 0; i < b->n; i++) {
        strbuf_add_cstr(&s, i ? ",\n{\"name\":" : "\n{\"name\":");
        jsonout_str(&s, str_from(b->files[i].name));
        strbuf_printf(&s, ",\"bytes\":%" PRIu64 ",\"sha256\":\"%s\"}", b->files[i].bytes,
                      b->files[i].sha256);
    }
    strbuf_add_cstr(&s, "]}\n");
    const bool ok = strbuf_check(&s, MANIFEST, err) && put_header(b, "", MANIFEST, s.len, err) &&
                    put(b, s.ptr, s.len, err) && put_padding(b, s.len, err);
    strbuf_free(&s);
    return ok;
}

static bool put_file(Bundle *b, int dir_fd, const PartWant *f, Error *err)
{
    char buf[COPY_BYTES];
    if (!put_header(b, b->name, f->name, f->bytes, err))
        return false;
    const int fd = openat(dir_fd, f->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_IO, "%s: %s", f->name, strerror(errno));
    uint64_t at = 0;
    bool ok = true;
    while (ok && at < f->bytes) {
        const uint64_t left = f->bytes - at;
        const ssize_t n = read(fd, buf, left < sizeof buf ? (size_t)left : sizeof buf);
        ok = n > 0 || err_set(err, ERR_IO, "%s: cannot read: %s", f->name,
                              n ? strerror(errno) : "cut short");
        ok = ok && put(b, buf, (size_t)n, err);
        at += ok ? (uint64_t)n : 0;
        if (ok && !on_read(b, (uint64_t)n))
            ok = err_set(err, ERR_CANCELLED, "interrupted");
    }
    close(fd);
    return ok && put_padding(b, f->bytes, err);
}

static bool put_all(Bundle *b, int dir_fd, Error *err)
{
    static const char end[2 * BLOCK];
    for (int i = 0; i < b->n; i++)
        if (!part_hash_file(dir_fd, b->files[i].name, b->files[i].sha256, &b->files[i].bytes,
                            on_read, b, err))
            return false;
    b->progress.phase = PULL_FETCHING;
    b->progress.done_bytes = 0;
    if (!put_manifest(b, err))
        return false;
    for (int i = 0; i < b->n; i++)
        if (!put_file(b, dir_fd, &b->files[i], err))
            return false;
    if (!put(b, end, sizeof end, err))
        return false;
    return fsync(b->fd) == 0 || err_set(err, ERR_IO, "%s: %s", b->path, strerror(errno));
}

bool bundle_write(Arena *a, const PullOptions *o, const PullResult *model, const char *path,
                  Error *err)
{
    HubName name;
    const char *temp = arena_printf(a, err, "%s.part", path);
    Bundle b = {.a = a,
                .o = o,
                .n = model->n_files,
                .path = temp,
                .progress = {.phase = PULL_CHECKING,
                             .n_files = model->n_files,
                             .total_bytes = model->bytes}};
    b.files = temp ? ARENA_ARRAY(a, b.n, PartWant, err) : NULL;
    if (!b.files)
        return false;
    if (!hub_parse(model->name, &name))
        return err_set(err, ERR_USAGE, "%s: no model name", model->name);
    b.name = arena_printf(a, err, "%.*s/%.*s", (int)name.owner.len, name.owner.ptr,
                          (int)name.repo.len, name.repo.ptr);
    if (!b.name)
        return false;
    for (int i = 0; i < b.n; i++)
        b.files[i].name = model->files[i];
    const int dir_fd = open(model->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return err_set(err, ERR_IO, "%s: %s", model->dir, strerror(errno));
    b.fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool ok = b.fd >= 0 || err_set(err, ERR_IO, "%s: cannot make it: %s", temp, strerror(errno));
    ok = ok && put_all(&b, dir_fd, err);
    close(dir_fd);
    if (b.fd >= 0 && close(b.fd) != 0 && ok)
        ok = err_set(err, ERR_IO, "%s: %s", temp, strerror(errno));
    if (ok && rename(temp, path) != 0)
        ok = err_set(err, ERR_IO, "%s: cannot rename: %s", temp, strerror(errno));
    if (!ok && b.fd >= 0)
        (void)unlink(temp);
    return ok;
}

/* ---- reading ---- */

static bool take(Bundle *b, void *out, size_t n, Error *err)
{
    for (size_t at = 0; at < n;) {
        const ssize_t r = read(b->fd, (char *)out + at, n - at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_set(err, ERR_IO, "%s: %s", b->path, strerror(errno));
        if (r == 0)
            return err_set(err, ERR_FORMAT, "%s: ends too soon", b->path);
        at += (size_t)r;
    }
    return true;
}

/* A number of octal digits, or of base 256. */
static bool tar_number(const char *field, size_t n, uint64_t *out)
{
    uint64_t v = 0;
    if ((unsigned char)field[0] == 0x80) {
        for (size_t i = 1; i < n; i++) {
            if (v >> 55)
                return false;
            v = v << 8 | (unsigned char)field[i];
        }
        *out = v;
        return true;
    }
    size_t i = 0;
    while (i < n && field[i] == ' ')
        i++;
    const size_t from = i;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        v = v * 8 + (uint64_t)(field[i] - '0');
    *out = v;
    return i > from && (i == n || field[i] == '\0' || field[i] == ' ');
}

/* The next entry, which must be the file <prefix>/<name>. *bytes: of its content. */
static bool take_header(Bundle *b, const char *prefix, const char *name, uint64_t *bytes,
                        Error *err)
{
    TarHeader h;
    uint64_t sum;
    char full[300];
    char wanted[300];
    if (!take(b, &h, sizeof h, err))
        return false;
    if (!tar_number(h.checksum, sizeof h.checksum, &sum) || sum != checksum(&h) ||
        memcmp(h.magic, "ustar", 5) != 0)
        return err_set(err, ERR_FORMAT, "%s: no tar header where %s should be", b->path, name);
    if ((h.type != '0' && h.type != '\0') || !tar_number(h.size, sizeof h.size, bytes))
        return err_set(err, ERR_FORMAT, "%s: %s is no regular file", b->path, name);
    snprintf(full, sizeof full, "%.155s%s%.100s", h.prefix, h.prefix[0] ? "/" : "", h.name);
    snprintf(wanted, sizeof wanted, "%.155s%s%.100s", prefix, *prefix ? "/" : "", name);
    return strcmp(full, wanted) == 0 ||
           err_set(err, ERR_FORMAT, "%s: holds \"%.80s\" where %.80s should be: no bundle of mere",
                   b->path, full, wanted);
}

static bool skip_padding(Bundle *b, uint64_t bytes, Error *err)
{
    char pad[BLOCK];
    return take(b, pad, (size_t)((BLOCK - bytes % BLOCK) % BLOCK), err);
}

static bool parse_file(Bundle *b, const json_t *entry, PartWant *out, Error *err)
{
    Str name, hash;
    int64_t bytes;
    if (!json_get_str_or(entry, MANIFEST, "name", &name, err) ||
        !json_get_str_or(entry, MANIFEST, "sha256", &hash, err) ||
        !json_get_i64(entry, MANIFEST, "bytes", 0, INT64_C(1) << 46, &bytes, err))
        return false;
    if (!name.ptr || !part_name_ok(name) || name.len >= BUNDLE_NAME_MAX || str_is(name, MANIFEST))
        return err_set(err, ERR_FORMAT, "%s: a file's name is not safe: \"%.*s\"", b->path,
                       (int)(name.len < 80 ? name.len : 80), name.ptr ? name.ptr : "");
    if (!hash.ptr || !part_hex_ok(hash, 64))
        return err_set(err, ERR_FORMAT, "%s: %.80s has no SHA-256", b->path, name.ptr);
    out->name = arena_strdup(b->a, name.ptr, name.len, err);
    out->bytes = (uint64_t)bytes;
    memcpy(out->sha256, hash.ptr, 64);
    b->progress.total_bytes += out->bytes;
    return out->name != NULL;
}

static bool parse_manifest(Bundle *b, Str text, Error *err)
{
    json_t *m = json_parse(MANIFEST, text, err);
    Str name;
    HubName parsed;
    if (!m)
        return false;
    const json_t *files = json_object_get(m, "files");
    const size_t n = json_array_size(files);
    bool ok = json_get_str_or(m, MANIFEST, "name", &name, err);
    if (ok && (!name.ptr || !hub_parse(name.ptr, &parsed) || !parsed.owner.len ||
               parsed.quant.len || n == 0 || n > PULL_FILES_MAX))
        ok = err_set(err, ERR_FORMAT, "%s: its list names no model, or 0 or more than %d files",
                     b->path, PULL_FILES_MAX);
    if (ok) {
        b->name = arena_strdup(b->a, name.ptr, name.len, err);
        b->files = b->name ? ARENA_ARRAY(b->a, n, PartWant, err) : NULL;
        ok = b->files != NULL;
    }
    for (size_t i = 0; ok && i < n; i++)
        ok = parse_file(b, json_array_get(files, i), &b->files[b->n++], err);
    for (int i = 0; ok && i < b->n; i++)
        for (int j = 0; ok && j < i; j++)
            if (strcmp(b->files[i].name, b->files[j].name) == 0)
                ok = err_set(err, ERR_FORMAT, "%s: %.80s twice", b->path, b->files[i].name);
    json_decref(m);
    return ok;
}

static bool take_manifest(Bundle *b, Error *err)
{
    uint64_t bytes = 0;
    if (!take_header(b, "", MANIFEST, &bytes, err))
        return false;
    if (bytes > BUNDLE_MANIFEST_MAX)
        return err_set(err, ERR_FORMAT, "%s: a list of %" PRIu64 " bytes, at most %d", b->path,
                       bytes, BUNDLE_MANIFEST_MAX);
    char *text = arena_take(b->a, (size_t)bytes + 1, 1, err);
    return text && take(b, text, (size_t)bytes, err) && skip_padding(b, bytes, err) &&
           parse_manifest(b, (Str){text, (size_t)bytes}, err);
}

static bool take_file(Bundle *b, Part *part, Error *err)
{
    char buf[COPY_BYTES];
    const PartWant *f = &part->want;
    uint64_t bytes = 0;
    if (!take_header(b, b->name, f->name, &bytes, err))
        return false;
    if (bytes != f->bytes)
        return err_set(err, ERR_FORMAT, "%s: %.80s has %" PRIu64 " bytes, its list says %" PRIu64,
                       b->path, f->name, bytes, f->bytes);
    while (part->bytes < bytes) {
        const uint64_t left = bytes - part->bytes;
        const size_t n = left < sizeof buf ? (size_t)left : sizeof buf;
        if (!take(b, buf, n, err) || !part_write(part, buf, n, err))
            return false;
        if (!on_read(b, n))
            return err_set(err, ERR_CANCELLED, "interrupted");
    }
    return part_finish(part, err) && skip_padding(b, bytes, err);
}

static bool on_wait(void *ctx)
{
    Bundle *b = ctx;
    b->progress.phase = PULL_WAITING;
    return b->o->progress(b->o->ctx, &b->progress);
}

static bool take_all(Bundle *b, PullResult *out, Error *err)
{
    HubName name;
    StoreDir dir;
    if (!take_manifest(b, err))
        return false;
    Part *parts = ARENA_ARRAY(b->a, b->n, Part, err);
    out->files = ARENA_ARRAY(b->a, b->n, const char *, err);
    if (!parts || !out->files || !hub_parse(b->name, &name) ||
        !store_dir_open(b->a, b->o->store, &name, on_wait, b, &dir, err))
        return false;
    b->progress.phase = PULL_FETCHING;
    bool ok = true;
    for (int i = 0; i < b->n; i++)
        part_init(&parts[i], dir.fd, &b->files[i]);
    for (int i = 0; ok && i < b->n; i++) {
        ok = take_file(b, &parts[i], err);
        b->progress.done_files = i + 1;
    }
    for (int last = 0; ok && last < 2; last++)
        for (int i = 0; ok && i < b->n; i++)
            if ((strcmp(b->files[i].name, "config.json") == 0) == (last == 1))
                ok = part_publish(&parts[i], err);
    for (int i = 0; i < b->n; i++) {
        part_close(&parts[i]);
        out->files[i] = b->files[i].name;
    }
    if (ok && fsync(dir.fd) != 0)
        ok = err_set(err, ERR_IO, "%s: %s", dir.path, strerror(errno));
    if (!ok) /* the bundle is still there: nothing to go on with */
        for (int i = 0; i < b->n; i++)
            (void)unlinkat(dir.fd, parts[i].temp, 0);
    out->dir = dir.path;
    store_dir_close(&dir);
    return ok;
}

bool bundle_read(Arena *a, const PullOptions *o, const char *path, PullResult *out, Error *err)
{
    Bundle b = {.a = a, .o = o, .path = path};
    *out = (PullResult){0};
    if (!o->store)
        return err_set(err, ERR_USAGE, "no place for models: neither MERE_HOME nor HOME is set");
    b.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (b.fd < 0)
        return err_set(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path,
                       strerror(errno));
    const bool ok = take_all(&b, out, err);
    close(b.fd);
    out->name = b.name;
    out->n_files = b.n;
    out->bytes = b.progress.total_bytes;
    return ok;
}
