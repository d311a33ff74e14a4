#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Guard {
    atomic_uintptr_t start; /* 0: free */
    atomic_uintptr_t end;
    atomic_bool broken;
} Guard;

static Guard guards[FILE_MAPS_MAX];

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    (void)context;
    const uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < FILE_MAPS_MAX; i++) {
        const uintptr_t start = atomic_load(&guards[i].start);
        if (start == 0 || at < start || at >= atomic_load(&guards[i].end))
            continue;
        const uintptr_t page = 4096;
        const int saved = errno;
        void *p = mmap((void *)(at & ~(page - 1)), page, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        errno = saved;
        if (p == MAP_FAILED)
            break;
        atomic_store(&guards[i].broken, true);
        return;
    }
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

bool file_guard_install(Error *err)
{
    struct sigaction sa = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    sigemptyset(&sa.sa_mask);
    if (sigaction(SIGBUS, &sa, NULL) != 0)
        return err_set(err, ERR_IO, "SIGBUS handler: %s", strerror(errno));
    return true;
}

static int guard_take(uintptr_t start, uintptr_t end)
{
    for (int i = 0; i < FILE_MAPS_MAX; i++) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&guards[i].start, &none, start)) {
            atomic_store(&guards[i].broken, false);
            atomic_store(&guards[i].end, end);
            return i;
        }
    }
    return -1;
}

static bool open_regular(const char *path, int *fd, uint64_t *bytes, Error *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return err_set(err, errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, "%s: %s",
                       path, strerror(errno));
    struct stat st;
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        return err_set(err, ERR_IO, "%s: not a regular file", path);
    }
    *bytes = (uint64_t)st.st_size;
    return true;
}

bool file_map(const char *path, FileMap *map, Error *err)
{
    *map = (FileMap){.slot = -1};
    int fd;
    uint64_t bytes;
    if (!open_regular(path, &fd, &bytes, err))
        return false;
    if (bytes == 0) {
        close(fd);
        return true;
    }
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return err_set(err, ERR_IO, "%s: cannot map %" PRIu64 " bytes: %s", path, bytes,
                       strerror(errno));
    map->data = p;
    map->bytes = bytes;
    map->slot = guard_take((uintptr_t)p, (uintptr_t)p + bytes);
    if (map->slot < 0) {
        munmap(p, bytes);
        *map = (FileMap){.slot = -1};
        return err_set(err, ERR_IO, "%s: more than %d files mapped", path, FILE_MAPS_MAX);
    }
    return true;
}

void file_unmap(FileMap *map)
{
    if (map->data) {
        munmap((void *)(uintptr_t)map->data, map->bytes);
        atomic_store(&guards[map->slot].start, 0);
    }
    *map = (FileMap){.slot = -1};
}

bool file_map_broken(const FileMap *map)
{
    return map->data && atomic_load(&guards[map->slot].broken);
}

bool file_read(Arena *a, const char *path, uint64_t max, Str *out, Error *err)
{
    int fd;
    uint64_t bytes;
    if (!open_regular(path, &fd, &bytes, err))
        return false;
    if (bytes > max) {
        close(fd);
        return err_set(err, ERR_TOO_LONG, "%s: %" PRIu64 " bytes, at most %" PRIu64 " are read",
                       path, bytes, max);
    }
    char *p = arena_take(a, bytes + 1, 1, err);
    uint64_t done = 0;
    while (p && done < bytes) {
        const ssize_t n = read(fd, p + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err_set(err, ERR_IO, "%s: read %" PRIu64 " of %" PRIu64 " bytes: %s", path, done, bytes,
                    n < 0 ? strerror(errno) : "the file became shorter");
            p = NULL;
            break;
        }
        done += (uint64_t)n;
    }
    close(fd);
    if (!p)
        return false;
    *out = (Str){p, bytes};
    return true;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

uint64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}
