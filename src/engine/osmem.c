#include "engine/osmem.h"

#include "base/str.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { TEXT_MAX = 8192 };

/* Files below /proc and /sys have no size: read what fits. */
static Str read_small(const char *path, char *buf)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return (Str){buf, 0};
    size_t n = 0;
    ssize_t got;
    while (n < TEXT_MAX && (got = read(fd, buf + n, TEXT_MAX - n)) > 0)
        n += (size_t)got;
    close(fd);
    return (Str){buf, n};
}

/* The number after `key` at the start of a line; false when there is none ("max", say). */
static bool number_after(Str text, const char *key, uint64_t *out)
{
    const size_t len = strlen(key);
    for (size_t at = 0; at + len <= text.len; at++) {
        if ((at > 0 && text.ptr[at - 1] != '\n') || memcmp(text.ptr + at, key, len) != 0)
            continue;
        at += len;
        while (at < text.len && (text.ptr[at] == ' ' || text.ptr[at] == '\t'))
            at++;
        uint64_t v = 0;
        bool any = false;
        for (; at < text.len && text.ptr[at] >= '0' && text.ptr[at] <= '9'; at++) {
            const uint64_t digit = (uint64_t)(text.ptr[at] - '0');
            if (v > (UINT64_MAX - digit) / 10)
                return false;
            v = v * 10 + digit;
            any = true;
        }
        *out = v;
        return any;
    }
    return false;
}

static bool number_in(const char *dir, const char *file, const char *key, uint64_t *out)
{
    char path[1200];
    char buf[TEXT_MAX];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    return n > 0 && (size_t)n < sizeof path && number_after(read_small(path, buf), key, out);
}

/* What a control group leaves: its limit less what it uses, cached files not counted. */
static uint64_t group_left(const char *dir, bool v2, uint64_t left)
{
    uint64_t limit;
    uint64_t used;
    uint64_t cached;
    if (!number_in(dir, v2 ? "memory.max" : "memory.limit_in_bytes", "", &limit) ||
        !number_in(dir, v2 ? "memory.current" : "memory.usage_in_bytes", "", &used))
        return left;
    if (!number_in(dir, "memory.stat", v2 ? "file " : "total_cache ", &cached))
        cached = 0;
    used = used > cached ? used - cached : 0;
    const uint64_t mine = limit > used ? limit - used : 0;
    return mine < left ? mine : left;
}

/* This process's group and those above it, as far as they can be seen from here. */
static uint64_t groups_left(const char *root, Str path, bool v2, uint64_t left)
{
    char dir[1024];
    const int n = snprintf(dir, sizeof dir, "%s%.*s", root, (int)path.len, path.ptr);
    if (n <= 0 || (size_t)n >= sizeof dir)
        return left;
    const size_t end = strlen(root);
    for (size_t len = (size_t)n;;) {
        dir[len] = '\0';
        left = group_left(dir, v2, left);
        if (len <= end)
            return left;
        while (len > end && dir[len - 1] != '/')
            len--;
        while (len > end && dir[len - 1] == '/')
            len--;
    }
}

uint64_t osmem_available(void)
{
    char buf[TEXT_MAX];
    uint64_t left;
    if (!number_after(read_small("/proc/meminfo", buf), "MemAvailable:", &left))
        return 0;
    left *= 1024;
    /* Lines "0::/path" (v2) and "4:memory:/path" (v1). */
    const Str groups = read_small("/proc/self/cgroup", buf);
    for (size_t at = 0; at < groups.len;) {
        const char *line = groups.ptr + at;
        const char *stop = memchr(line, '\n', groups.len - at);
        const size_t len = stop ? (size_t)(stop - line) : groups.len - at;
        at += len + 1;
        const char *first = memchr(line, ':', len);
        const char *second =
            first ? memchr(first + 1, ':', len - (size_t)(first + 1 - line)) : NULL;
        if (!second)
            continue;
        const Str kind = {first + 1, (size_t)(second - first - 1)};
        const Str path = {second + 1, len - (size_t)(second + 1 - line)};
        if (kind.len == 0)
            left = groups_left("/sys/fs/cgroup", path, true, left);
        else if (str_is(kind, "memory"))
            left = groups_left("/sys/fs/cgroup/memory", path, false, left);
    }
    return left;
}

uint64_t osmem_total(void)
{
    char buf[TEXT_MAX];
    uint64_t kb;
    return number_after(read_small("/proc/meminfo", buf), "MemTotal:", &kb) ? kb * 1024 : 0;
}

uint64_t osmem_anon(void)
{
    char buf[TEXT_MAX];
    uint64_t kb;
    return number_after(read_small("/proc/self/status", buf), "RssAnon:", &kb) ? kb * 1024 : 0;
}
