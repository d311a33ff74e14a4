#include "support/fake_hub.h"

#include "base/str.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REQUEST_MAX = 16384, LISTING_MAX = 64 << 20, CHUNK = 16384 };

typedef struct Connection {
    FakeHub *h;
    int fd;
    bool other;
} Connection;

void fake_hub_sha256(const char *data, size_t n, char out[65])
{
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned len = 0;
    EVP_Digest(data, n, md, &len, EVP_sha256(), NULL);
    for (unsigned i = 0; i < 32; i++)
        snprintf(out + (size_t)i * 2, 3, "%02x", md[i]);
}

static void git_sha1(const char *data, size_t n, char out[41])
{
    unsigned char md[EVP_MAX_MD_SIZE];
    char head[40];
    const int len = snprintf(head, sizeof head, "blob %zu", n);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    EVP_DigestInit_ex(c, EVP_sha1(), NULL);
    EVP_DigestUpdate(c, head, (size_t)len + 1);
    EVP_DigestUpdate(c, data, n);
    EVP_DigestFinal_ex(c, md, NULL);
    EVP_MD_CTX_free(c);
    for (unsigned i = 0; i < 20; i++)
        snprintf(out + (size_t)i * 2, 3, "%02x", md[i]);
}

FakeFile *fake_hub_add(FakeHub *h, const char *path, const char *data, size_t n)
{
    FakeFile *f = &h->files[h->n_files++];
    f->path = path;
    f->data = data;
    f->n = n;
    f->first_range = -1;
    return f;
}

/* ---- answers ---- */

static bool put(int fd, const char *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t w = send(fd, data + at, n - at, MSG_NOSIGNAL);
        if (w <= 0)
            return false;
        at += (size_t)w;
    }
    return true;
}

static void answer(const Connection *c, int status, const char *headers, const char *body, size_t n)
{
    char head[4096];
    const int len = snprintf(head, sizeof head,
                             "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n",
                             status, n, headers);
    if (put(c->fd, head, (size_t)len))
        (void)put(c->fd, body, n);
}

/* Larger files are listed as LFS does, with SHA-256, text as git does. */
static void list_file(StrBuf *b, const FakeFile *f)
{
    char sha256[65];
    char sha1[41];
    fake_hub_sha256(f->data, f->n, sha256);
    git_sha1(f->data, f->n, sha1);
    const Str path = str_from(f->path);
    strbuf_printf(b, "{\"type\":\"file\",\"path\":\"%s\",\"size\":%zu", f->path, f->n);
    if (!f->no_hash &&
        (str_ends(path, ".safetensors") || str_ends(path, ".gguf") || f->listed_sha256))
        strbuf_printf(b,
                      ",\"oid\":\"%s\",\"lfs\":{\"oid\":\"%s\",\"size\":%zu,\"pointerSize\":134}",
                      sha1, f->listed_sha256 ? f->listed_sha256 : sha256, f->n);
    else if (!f->no_hash)
        strbuf_printf(b, ",\"oid\":\"%s\"", sha1);
    strbuf_add_cstr(b, "}");
}

static void send_list(const Connection *c, const char *target)
{
    FakeHub *h = c->h;
    char link[400] = "";
    const char *from_arg = strstr(target, "from=");
    const int from = from_arg ? (int)strtol(from_arg + 5, NULL, 10) : 0;
    const int to = h->page && from + h->page < h->n_files ? from + h->page : h->n_files;
    if (h->list_status) {
        snprintf(link, sizeof link, "X-Error-Code: %s\r\nRetry-After: %d\r\n",
                 h->error_code ? h->error_code : "-", h->retry_after_s);
        answer(c, h->list_status, link, "{}", 2);
        return;
    }
    StrBuf b;
    strbuf_init(&b, LISTING_MAX);
    strbuf_add_cstr(&b, "[{\"type\":\"directory\",\"path\":\"folder\",\"size\":0,\"oid\":\"0\"}");
    for (int i = from; i < to; i++) {
        strbuf_add_cstr(&b, ",");
        list_file(&b, &h->files[i]);
    }
    strbuf_add_cstr(&b, "]");
    if (h->next)
        snprintf(link, sizeof link, "Link: <%s>; rel=\"next\"\r\n", h->next);
    else if (to < h->n_files)
        snprintf(link, sizeof link,
                 "Link: <http://127.0.0.1:%d/api/models/%s/tree/main?recursive=1&from=%d>; "
                 "rel=\"next\"\r\n",
                 h->port, h->repo, to);
    if (h->listing)
        answer(c, 200, link, h->listing, strlen(h->listing));
    else
        answer(c, 200, link, b.ptr, b.len);
    strbuf_free(&b);
}

static void send_body(const Connection *c, FakeFile *f, size_t from, int request)
{
    const int i = request < FAKE_TRIES ? request : FAKE_TRIES - 1;
    const size_t cut = f->cut_at[i] ? (size_t)f->cut_at[i] : f->n;
    const size_t stall = f->stall_at[i] ? (size_t)f->stall_at[i] : f->n;
    for (size_t at = 0; from + at < f->n && at < cut;) {
        size_t n = f->n - from - at;
        n = n < CHUNK ? n : CHUNK;
        n = n < cut - at ? n : cut - at;
        if (at >= stall) {
            for (int k = 0; k < 200 && !atomic_load(&c->h->stop); k++)
                usleep(50000);
            return;
        }
        n = at < stall && n > stall - at ? stall - at : n;
        if (!put(c->fd, f->data + from + at, n))
            return;
        at += n;
        atomic_fetch_add(&f->served_bytes, (long)n);
        if (f->bytes_s)
            usleep((unsigned)((double)n / (double)f->bytes_s * 1e6));
    }
}

static void send_file(const Connection *c, FakeFile *f, const char *request)
{
    char head[400];
    size_t from = 0;
    const char *range = strcasestr(request, "\r\nRange: bytes=");
    if (f->elsewhere && !c->other) {
        char to[400];
        if (c->h->redirect_to)
            snprintf(to, sizeof to, "Location: %s\r\n", c->h->redirect_to);
        else
            snprintf(to, sizeof to, "Location: http://localhost:%d/cdn/%s?sig=x\r\n",
                     c->h->other_port, f->path);
        answer(c, 302, to, "", 0);
        return;
    }
    const int request_no = atomic_fetch_add(&f->n_requests, 1);
    const int status = request_no < FAKE_TRIES ? f->status[request_no] : 0;
    atomic_store(&f->first_range, range ? strtol(range + 15, NULL, 10) : -1);
    if (status) {
        snprintf(head, sizeof head, "Retry-After: %d\r\n", c->h->retry_after_s);
        answer(c, status, head, "no", 2);
        return;
    }
    if (range && !f->ignores_range)
        from = (size_t)strtol(range + 15, NULL, 10);
    if (range && !f->ignores_range && from >= f->n) {
        answer(c, 416, "", "", 0);
        return;
    }
    if (range && !f->ignores_range)
        snprintf(head, sizeof head,
                 "HTTP/1.1 206 X\r\nContent-Range: bytes %zu-%zu/%zu\r\nContent-Length: %zu\r\n"
                 "Connection: close\r\n\r\n",
                 f->lies_range ? from + 1 : from, f->n - 1, f->n, f->n - from);
    else
        snprintf(head, sizeof head,
                 "HTTP/1.1 200 X\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", f->n);
    if (put(c->fd, head, strlen(head)))
        send_body(c, f, from, request_no);
}

static void serve(const Connection *c, const char *request)
{
    FakeHub *h = c->h;
    char target[2048] = "";
    char tree[400], resolve[400], bearer[400];
    const char *space = strchr(request, ' ');
    const size_t n = space ? strcspn(space + 1, " \r\n") : 0;
    if (n < sizeof target)
        snprintf(target, sizeof target, "%.*s", (int)n, space ? space + 1 : "");
    const bool has_token = strcasestr(request, "\r\nAuthorization:") != NULL;
    atomic_fetch_add(&h->n_requests, 1);
    if (has_token)
        atomic_store(c->other ? &h->token_elsewhere : &h->token_at_hub, true);
    snprintf(bearer, sizeof bearer, "\r\nAuthorization: Bearer %s\r\n", h->token ? h->token : "");
    if (h->token && !c->other && !strstr(request, bearer)) {
        answer(c, 401, "X-Error-Code: GatedRepo\r\n", "{}", 2);
        return;
    }
    snprintf(tree, sizeof tree, "/api/models/%s/tree/main", h->repo);
    snprintf(resolve, sizeof resolve, "/%s/resolve/main/", h->repo);
    const char *path = NULL;
    if (!c->other && str_starts(str_from(target), tree)) {
        send_list(c, target);
        return;
    }
    if (!c->other && str_starts(str_from(target), resolve))
        path = target + strlen(resolve);
    else if (c->other && str_starts(str_from(target), "/cdn/"))
        path = target + 5;
    for (int i = 0; path && i < h->n_files; i++)
        if (strlen(h->files[i].path) == strcspn(path, "?") &&
            strncmp(path, h->files[i].path, strlen(h->files[i].path)) == 0) {
            send_file(c, &h->files[i], request);
            return;
        }
    answer(c, 404, "", "no", 2);
}

/* ---- connections ---- */

static void *talk(void *arg)
{
    Connection *c = arg;
    FakeHub *h = c->h;
    char request[REQUEST_MAX];
    size_t n = 0;
    const int now = atomic_fetch_add(&h->n_now, 1) + 1;
    int most = atomic_load(&h->n_most);
    while (now > most && !atomic_compare_exchange_weak(&h->n_most, &most, now))
        ;
    request[0] = '\0';
    while (n + 1 < sizeof request && !strstr(request, "\r\n\r\n")) {
        const ssize_t r = recv(c->fd, request + n, sizeof request - 1 - n, 0);
        if (r <= 0)
            break;
        n += (size_t)r;
        request[n] = '\0';
    }
    if (strstr(request, "\r\n\r\n"))
        serve(c, request);
    shutdown(c->fd, SHUT_WR);
    close(c->fd);
    free(c);
    atomic_fetch_sub(&h->n_now, 1);
    atomic_fetch_sub(&h->n_threads, 1);
    return NULL;
}

static void *accept_all(void *arg)
{
    FakeHub *h = arg;
    struct pollfd fds[2] = {{.fd = h->fds[0], .events = POLLIN},
                            {.fd = h->fds[1], .events = POLLIN}};
    while (!atomic_load(&h->stop)) {
        if (poll(fds, 2, 50) <= 0)
            continue;
        for (int i = 0; i < 2; i++) {
            if (!(fds[i].revents & POLLIN))
                continue;
            const int fd = accept4(fds[i].fd, NULL, NULL, SOCK_CLOEXEC);
            Connection *c = fd >= 0 ? malloc(sizeof *c) : NULL;
            pthread_t t;
            if (!c) {
                if (fd >= 0)
                    close(fd);
                continue;
            }
            *c = (Connection){h, fd, i == 1};
            atomic_fetch_add(&h->n_threads, 1);
            if (pthread_create(&t, NULL, talk, c) == 0) {
                pthread_detach(t);
            } else {
                atomic_fetch_sub(&h->n_threads, 1);
                close(fd);
                free(c);
            }
        }
    }
    return NULL;
}

static int listen_here(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return -1;
    *port = ntohs(at.sin_port);
    return fd;
}

bool fake_hub_start(FakeHub *h)
{
    h->fds[0] = listen_here(&h->port);
    h->fds[1] = listen_here(&h->other_port);
    return h->fds[0] >= 0 && h->fds[1] >= 0 && pthread_create(&h->thread, NULL, accept_all, h) == 0;
}

void fake_hub_stop(FakeHub *h)
{
    atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    close(h->fds[0]);
    close(h->fds[1]);
    while (atomic_load(&h->n_threads) > 0)
        usleep(10000);
}
