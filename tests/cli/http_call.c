/* http_call PORT PATH [BODY]: GET, or POST with a JSON body, to 127.0.0.1; prints the answer's
 * body. MERE_KEY in the environment is sent as the bearer token. Exit code 0 for status 200, else 1
 * with the status on stderr. */
#include "base/str.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MAX = 16 << 20 };

static int connect_port(int port)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool send_all(int fd, Str s)
{
    while (s.len > 0) {
        const ssize_t n = write(fd, s.ptr, s.len);
        if (n <= 0)
            return false;
        s = (Str){s.ptr + n, s.len - (size_t)n};
    }
    return true;
}

static void read_all(int fd, StrBuf *out)
{
    char buf[65536];
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0)
        (void)strbuf_add(out, buf, (size_t)n);
}

int main(int argc, char **argv)
{
    int64_t port;
    if (argc < 3 || argc > 4 || !str_to_int(str_from(argv[1]), 1, 65535, &port)) {
        fputs("usage: http_call PORT PATH [BODY]\n", stderr);
        return 2;
    }
    const int fd = connect_port((int)port);
    if (fd < 0) {
        perror("http_call: connect");
        return 1;
    }
    StrBuf request;
    StrBuf answer;
    strbuf_init(&request, ANSWER_MAX);
    strbuf_init(&answer, ANSWER_MAX);
    const char *body = argc == 4 ? argv[3] : "";
    const char *key = getenv("MERE_KEY");
    (void)strbuf_printf(&request, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
                        argc == 4 ? "POST" : "GET", argv[2]);
    if (key)
        (void)strbuf_printf(&request, "Authorization: Bearer %s\r\n", key);
    if (argc == 4)
        (void)strbuf_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                            strlen(body));
    (void)strbuf_printf(&request, "\r\n%s", body);
    if (send_all(fd, strbuf_str(&request)))
        read_all(fd, &answer);
    close(fd);
    const char *text = answer.ptr ? answer.ptr : "";
    const char *end = strstr(text, "\r\n\r\n");
    const bool ok = end && strncmp(text, "HTTP/1.1 200", 12) == 0;
    if (end)
        fputs(end + 4, stdout);
    if (!ok)
        fprintf(stderr, "http_call: %.60s\n", text);
    strbuf_free(&request);
    strbuf_free(&answer);
    return ok ? 0 : 1;
}
