#include "weights/part.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18, TAG_LEN = 12 };

/* ---- names ---- */

/* Bytes of the UTF-8 sequence at s, 0 when it is none (RFC 3629: no surrogates, no long forms). */
static size_t utf8_len(const unsigned char *s, size_t n)
{
    const size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (len == 1)
        return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] >= 0xA0) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] >= 0x90))
        return 0;
    return len;
}

bool part_name_ok(Str name)
{
    if (name.len == 0 || name.len > PART_NAME_MAX || name.ptr[0] == '.')
        return false;
    const unsigned char *s = (const unsigned char *)name.ptr;
    for (size_t i = 0; i < name.len;) {
        const size_t len = utf8_len(s + i, name.len - i);
        const bool is_control =
            s[i] < 0x20 || s[i] == 0x7F || (s[i] == 0xC2 && len == 2 && s[i + 1] < 0xA0);
        if (len == 0 || is_control || s[i] == '/' || s[i] == '\\')
            return false;
        i += len;
    }
    return true;
}

bool part_hex_ok(Str hex, size_t len)
{
    if (hex.len != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!((hex.ptr[i] >= '0' && hex.ptr[i] <= '9') || (hex.ptr[i] >= 'a' && hex.ptr[i] <= 'f')))
            return false;
    return true;
}

/* ---- hashes ---- */

/* *out is NULL when there is nothing to check. */
static bool hash_begin(const PartWant *want, void **out, Error *err)
{
    *out = NULL;
    if (!want->sha256[0] && !want->git[0])
        return true;
    EVP_MD_CTX *h = EVP_MD_CTX_new();
    char head[40];
    const int n = snprintf(head, sizeof head, "blob %" PRIu64, want->bytes);
    bool ok = h && EVP_DigestInit_ex(h, want->sha256[0] ? EVP_sha256() : EVP_sha1(), NULL) == 1;
    if (ok && !want->sha256[0]) /* git hashes "blob <bytes>" and a zero before the content */
        ok = EVP_DigestUpdate(h, head, (size_t)n + 1) == 1;
    if (!ok) {
        EVP_MD_CTX_free(h);
        return err_set(err, ERR_NOMEM, "%s: no hash to be had from OpenSSL", want->name);
    }
    *out = h;
    return true;
}

static void hash_hex(EVP_MD_CTX *h, char out[65])
{
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_DigestFinal_ex(h, md, &n) != 1 || n > 32)
        n = 0;
    for (unsigned i = 0; i < n; i++)
        snprintf(out + (size_t)i * 2, 3, "%02x", md[i]);
    out[(size_t)n * 2] = '\0';
}

static bool same_hash(const PartWant *want, EVP_MD_CTX *h, char found[65])
{
    if (!h)
        return true;
    hash_hex(h, found);
    return strcmp(found, want->sha256[0] ? want->sha256 : want->git) == 0;
}

/* Feeds `bytes` bytes of fd to h. */
static bool hash_fd(EVP_MD_CTX *h, int fd, uint64_t bytes, const char *name, PartTick tick,
                    void *ctx, Error *err)
{
    unsigned char buf[READ_BYTES];
    for (uint64_t at = 0; at < bytes;) {
        const uint64_t left = bytes - at;
        const ssize_t n = pread(fd, buf, left < sizeof buf ? (size_t)left : sizeof buf, (off_t)at);
        if (n <= 0)
            return err_set(err, ERR_IO, "%s: cannot read: %s", name,
                           n ? strerror(errno) : "cut short");
        if (h && EVP_DigestUpdate(h, buf, (size_t)n) != 1)
            return err_set(err, ERR_FAILED, "%s: OpenSSL cannot hash", name);
        at += (uint64_t)n;
        if (tick && !tick(ctx, (uint64_t)n))
            return err_set(err, ERR_CANCELLED, "interrupted");
    }
    return true;
}

/* A regular file, not a link; -1 in *fd without an error when there is none. */
static bool open_old(int dir_fd, const char *name, int flags, int *fd, uint64_t *bytes, Error *err)
{
    struct stat st;
    *fd = openat(dir_fd, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return errno == ENOENT || err_set(err, ERR_IO, "%s: %s", name, strerror(errno));
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return err_set(err, ERR_IO, "%s: not a regular file", name);
    }
    *bytes = (uint64_t)st.st_size;
    return true;
}

bool part_is_there(int dir_fd, const PartWant *want, bool *same, PartTick tick, void *ctx,
                   Error *err)
{
    struct stat st;
    *same = false;
    if (fstatat(dir_fd, want->name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size != want->bytes)
        return true;
    int fd;
    uint64_t bytes = 0;
    void *h = NULL;
    char found[65];
    if (!open_old(dir_fd, want->name, O_RDONLY, &fd, &bytes, err))
        return false;
    const bool ok = fd < 0 || (hash_begin(want, &h, err) &&
                               (!h || hash_fd(h, fd, want->bytes, want->name, tick, ctx, err)));
    *same = ok && fd >= 0 && same_hash(want, h, found);
    EVP_MD_CTX_free(h);
    if (fd >= 0)
        close(fd);
    return ok;
}

bool part_hash_file(int dir_fd, const char *name, char sha256[65], uint64_t *bytes, PartTick tick,
                    void *ctx, Error *err)
{
    const PartWant want = {.name = name, .sha256 = "?"};
    int fd;
    void *h;
    if (!open_old(dir_fd, name, O_RDONLY, &fd, bytes, err))
        return false;
    if (fd < 0)
        return err_set(err, ERR_NOT_FOUND, "%s: no such file", name);
    const bool ok = hash_begin(&want, &h, err) && hash_fd(h, fd, *bytes, name, tick, ctx, err);
    if (ok)
        hash_hex(h, sha256);
    EVP_MD_CTX_free(h);
    close(fd);
    return ok;
}

/* ---- the part ---- */

void part_init(Part *p, int dir_fd, const PartWant *want)
{
    *p = (Part){.want = *want, .dir_fd = dir_fd, .fd = -1};
    const char *hash = want->sha256[0] ? want->sha256 : want->git[0] ? want->git : "0";
    snprintf(p->temp, sizeof p->temp, "%s.%.*s.part", want->name, TAG_LEN, hash);
}

bool part_resume(Part *p, PartTick tick, void *ctx, Error *err)
{
    uint64_t bytes = 0;
    if (!open_old(p->dir_fd, p->temp, O_RDWR, &p->fd, &bytes, err))
        return false;
    if (p->fd < 0)
        return true;
    if (bytes > p->want.bytes)
        return part_restart(p, err);
    if (!hash_begin(&p->want, &p->hash, err) ||
        (p->hash && !hash_fd(p->hash, p->fd, bytes, p->temp, tick, ctx, err))) {
        part_close(p);
        return false;
    }
    p->bytes = bytes;
    return true;
}

/* The file exists and the hash runs. */
static bool opened(Part *p, Error *err)
{
    if (p->fd >= 0)
        return true;
    p->fd = openat(p->dir_fd, p->temp, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (p->fd < 0)
        return err_set(err, errno == ENOSPC ? ERR_FIT : ERR_IO, "%s: cannot make it: %s", p->temp,
                       strerror(errno));
    p->bytes = 0;
    return hash_begin(&p->want, &p->hash, err);
}

bool part_write(Part *p, const void *data, size_t n, Error *err)
{
    if (!opened(p, err))
        return false;
    if (n > p->want.bytes - p->bytes)
        return err_set(err, ERR_FORMAT, "%s: more than the %" PRIu64 " bytes that it should have",
                       p->want.name, p->want.bytes);
    for (size_t at = 0; at < n;) {
        const ssize_t w = pwrite(p->fd, (const char *)data + at, n - at, (off_t)(p->bytes + at));
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) { /* what was written is not hashed: the next run starts at the size again */
            const int why = errno;
            if (ftruncate(p->fd, (off_t)p->bytes) != 0)
                (void)unlinkat(p->dir_fd, p->temp, 0);
            const bool full = why == ENOSPC || why == EDQUOT || why == EFBIG;
            return err_set(err, full ? ERR_FIT : ERR_IO,
                           "%s: %s after %" PRIu64 " of %" PRIu64
                           " bytes; what is there stays for the next pull",
                           p->want.name,
                           full ? "the disk is full (or a limit is reached)" : strerror(why),
                           p->bytes, p->want.bytes);
        }
        at += (size_t)w;
    }
    if (p->hash && EVP_DigestUpdate(p->hash, data, n) != 1)
        return err_set(err, ERR_FAILED, "%s: OpenSSL cannot hash", p->want.name);
    p->bytes += n;
    return true;
}

bool part_restart(Part *p, Error *err)
{
    EVP_MD_CTX_free(p->hash);
    p->hash = NULL;
    p->bytes = 0;
    p->is_whole = false;
    if (p->fd >= 0 && ftruncate(p->fd, 0) != 0)
        return err_set(err, ERR_IO, "%s: %s", p->temp, strerror(errno));
    return p->fd < 0 || hash_begin(&p->want, &p->hash, err);
}

bool part_finish(Part *p, Error *err)
{
    char found[65] = "";
    if (!opened(p, err)) /* a file of no bytes */
        return false;
    if (p->bytes != p->want.bytes)
        return err_set(err, ERR_FORMAT, "%s: %" PRIu64 " bytes, wanted %" PRIu64, p->want.name,
                       p->bytes, p->want.bytes);
    if (!same_hash(&p->want, p->hash, found)) {
        (void)unlinkat(p->dir_fd, p->temp, 0);
        part_close(p);
        p->bytes = 0;
        return err_set(err, ERR_FORMAT, "%s: hash is %.16s..., wanted %.16s...", p->want.name,
                       found, p->want.sha256[0] ? p->want.sha256 : p->want.git);
    }
    if (fsync(p->fd) != 0)
        return err_set(err, errno == ENOSPC || errno == EDQUOT ? ERR_FIT : ERR_IO, "%s: %s",
                       p->temp, strerror(errno));
    part_close(p);
    p->is_whole = true;
    return true;
}

/* Parts of other revisions: NAME.<hex>.part. */
static void remove_older(const Part *p)
{
    const int fd = openat(p->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    const size_t len = strlen(p->want.name);
    const struct dirent *e;
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((e = readdir(d)) != NULL) {
        const Str name = str_from(e->d_name);
        if (name.len <= len + 6 || strncmp(e->d_name, p->want.name, len) != 0 ||
            e->d_name[len] != '.' || !str_ends(name, ".part"))
            continue;
        const Str tag = {e->d_name + len + 1, name.len - len - 6};
        if (part_hex_ok(tag, TAG_LEN) || str_is(tag, "0"))
            (void)unlinkat(p->dir_fd, e->d_name, 0);
    }
    closedir(d);
}

bool part_publish(Part *p, Error *err)
{
    if (!p->is_whole)
        return err_set(err, ERR_FAILED, "%s: not whole", p->want.name);
    if (renameat(p->dir_fd, p->temp, p->dir_fd, p->want.name) != 0)
        return err_set(err, ERR_IO, "%s: cannot rename: %s", p->temp, strerror(errno));
    remove_older(p);
    return true;
}

void part_close(Part *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    EVP_MD_CTX_free(p->hash);
    p->hash = NULL;
}
