#include "weights/dirlist.h"

#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

typedef struct Entry Entry;
struct Entry {
    Entry *next;
    const char *name;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool dirlist_read(Arena *a, const char *dir, const char *suffix, const char *const **names, int *n,
                  Error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return err_set(err, errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, "%s: %s",
                       dir, strerror(errno));
    Entry *list = NULL;
    int count = 0;
    int seen = 0;
    bool ok = true;
    const struct dirent *e;
    while (ok && (e = readdir(d)) != NULL) {
        if (++seen > DIRLIST_MAX) {
            ok = err_set(err, ERR_TOO_LONG, "%s: more than %d entries", dir, DIRLIST_MAX);
            break;
        }
        if (e->d_name[0] == '.' || !str_ends(str_from(e->d_name), suffix))
            continue;
        Entry *entry = ARENA_NEW(a, Entry, err);
        if (entry)
            entry->name = arena_strdup(a, e->d_name, strlen(e->d_name), err);
        ok = entry && entry->name;
        if (ok) {
            entry->next = list;
            list = entry;
            count++;
        }
    }
    closedir(d);
    const char **out = ok ? ARENA_ARRAY(a, count, const char *, err) : NULL;
    if (!out)
        return false;
    for (int i = 0; i < count; i++, list = list->next)
        out[i] = list->name;
    qsort(out, (size_t)count, sizeof *out, by_name);
    *names = out;
    *n = count;
    return true;
}
