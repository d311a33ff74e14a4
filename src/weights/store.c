#include "weights/store.h"

#include "base/file.h"
#include "weights/dirlist.h"
#include "weights/listing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char LOCK[] = ".pull.lock";

const char *store_origin_name(StoreOrigin origin)
{
    switch (origin) {
    case STORE_OWN:
        return "store";
    case STORE_HF_CACHE:
        return "Hugging Face cache";
    case STORE_LMSTUDIO:
        return "LM Studio";
    case STORE_OLLAMA:
        return "Ollama";
    }
    return "?";
}

/* ---- files of a model ---- */

static bool add_file(Arena *a, const char *path, StoreFile *out, int *n, Error *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return true;
    out[*n] = (StoreFile){arena_strdup(a, path, strlen(path), err), (uint64_t)st.st_size};
    return out[(*n)++].path != NULL;
}

/* A GGUF file and its splits, from the names of its directory. */
static bool gguf_files(Arena *a, const char *path, StoreFile **out, int *n, Error *err)
{
    size_t stem;
    int which, count;
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    *n = 0;
    if (!listing_split(base, &stem, &which, &count)) {
        *out = ARENA_NEW(a, StoreFile, err);
        return *out && add_file(a, path, *out, n, err);
    }
    *out = ARENA_ARRAY(a, count, StoreFile, err);
    if (!*out)
        return false;
    for (int i = 1; i <= count; i++) {
        const char *split = arena_printf(a, err, "%.*s-%05d-of-%05d.gguf",
                                         (int)(base - path) + (int)stem, path, i, count);
        if (!split || !add_file(a, split, *out, n, err))
            return false;
    }
    return true;
}

bool store_files(Arena *a, const char *path, StoreFile **out, int *n, Error *err)
{
    const char *const *names;
    int n_names;
    if (!file_is_dir(path))
        return gguf_files(a, path, out, n, err);
    if (!dirlist_read(a, path, "", &names, &n_names, err))
        return false;
    *n = 0;
    *out = ARENA_ARRAY(a, n_names + 1, StoreFile, err);
    if (!*out)
        return false;
    for (int i = 0; i < n_names; i++) {
        const char *file = arena_printf(a, err, "%s/%s", path, names[i]);
        if (!file || !add_file(a, file, *out, n, err))
            return false;
    }
    return true;
}

/* ---- the list ---- */

typedef struct Lister {
    Arena *a;
    StoreModel *models;
    int n, cap;
    StoreOrigin origin;
} Lister;

static bool add_model(Lister *l, const char *name, const char *path, const char *format, Error *err)
{
    StoreFile *files;
    int n;
    if (l->n == STORE_MODELS_MAX)
        return err_set(err, ERR_TOO_LONG, "more than %d models", STORE_MODELS_MAX);
    if (l->n == l->cap) {
        const int cap = l->cap ? l->cap * 2 : 64;
        StoreModel *grown = ARENA_ARRAY(l->a, cap, StoreModel, err);
        if (!grown)
            return false;
        if (l->n)
            memcpy(grown, l->models, (size_t)l->n * sizeof *grown);
        l->models = grown;
        l->cap = cap;
    }
    if (!store_files(l->a, path, &files, &n, err))
        return false;
    StoreModel m = {.name = name, .path = path, .format = format, .origin = l->origin};
    for (int i = 0; i < n; i++) {
        struct stat st;
        m.bytes += files[i].bytes;
        if (stat(files[i].path, &st) == 0 && st.st_mtime > m.modified_s)
            m.modified_s = st.st_mtime;
    }
    l->models[l->n++] = m;
    return true;
}

static const char *gguf_format(Arena *a, const char *file, Error *err)
{
    const char *slash = strrchr(file, '/');
    const Str q = listing_quant(slash ? slash + 1 : file);
    return arena_printf(a, err, "GGUF%s%.*s", q.len ? " " : "", (int)q.len, q.ptr);
}

/* First splits and lone files that are models; *n of them in `out` (as many as names). */
static int first_files(const char *const *names, int n, const char **out)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        size_t stem;
        int which = 1;
        int of;
        if (strncasecmp(names[i], "mmproj", 6) != 0 &&
            (!listing_split(names[i], &stem, &which, &of) || which == 1))
            out[count++] = names[i];
    }
    return count;
}

/* One line for each GGUF model of a directory; "name:quant" where there are several. *found: there
 * was one. */
static bool add_ggufs(Lister *l, const char *name, const char *dir, bool *found, Error *err)
{
    const char *const *names;
    int n;
    if (!dirlist_read(l->a, dir, ".gguf", &names, &n, err))
        return false;
    const char **first = ARENA_ARRAY(l->a, n + 1, const char *, err);
    if (!first)
        return false;
    n = first_files(names, n, first);
    for (int i = 0; i < n; i++) {
        const Str q = listing_quant(first[i]);
        const char *full = n == 1 ? name
                                  : arena_printf(l->a, err, "%s:%.*s", name,
                                                 q.len ? (int)q.len : (int)strlen(first[i]) - 5,
                                                 q.len ? q.ptr : first[i]);
        const char *path = arena_printf(l->a, err, "%s/%s", dir, first[i]);
        const char *format = path ? gguf_format(l->a, path, err) : NULL;
        if (!full || !format || !add_model(l, full, path, format, err))
            return false;
    }
    *found = n > 0;
    return true;
}

/* A directory that may be a model: its weights, or GGUF files one folder below. */
static bool add_dir(Lister *l, const char *name, const char *dir, Error *err)
{
    const char *const *names;
    int n_weights, n_parts, n_sub;
    bool found = false;
    Error skipped;
    if (!dirlist_read(l->a, dir, ".safetensors", &names, &n_weights, &skipped) ||
        !dirlist_read(l->a, dir, ".part", &names, &n_parts, &skipped))
        return true;
    const char *config = arena_printf(l->a, err, "%s/config.json", dir);
    if (!config || !add_ggufs(l, name, dir, &found, err))
        return false;
    if (n_weights > 0 && file_exists(config))
        return add_model(l, name, dir, "safetensors", err);
    if (!found && n_parts > 0 && l->origin == STORE_OWN)
        return add_model(l, name, dir, "unfinished", err);
    if (found || n_weights > 0 || !dirlist_read(l->a, dir, "", &names, &n_sub, &skipped))
        return true;
    for (int i = 0; i < n_sub; i++) {
        const char *sub = arena_printf(l->a, err, "%s/%s", dir, names[i]);
        if (!sub || (file_is_dir(sub) && !add_ggufs(l, name, sub, &found, err)))
            return false;
    }
    return true;
}

/* Calls for each entry of <root> that can be a piece of a name. */
static bool each(Lister *l, const char *root, const char *prefix,
                 bool (*visit)(Lister *, const char *, const char *, Error *), Error *err)
{
    const char *const *names;
    int n;
    Error skipped;
    if (!root || !dirlist_read(l->a, root, "", &names, &n, &skipped))
        return true;
    for (int i = 0; i < n; i++) {
        HubName ok;
        const char *name = arena_printf(l->a, err, "%s%s", prefix, names[i]);
        const char *path = arena_printf(l->a, err, "%s/%s", root, names[i]);
        if (!name || !path ||
            (hub_parse(names[i], &ok) && !ok.quant.len && !visit(l, name, path, err)))
            return false;
    }
    return true;
}

static bool visit_repo(Lister *l, const char *name, const char *path, Error *err)
{
    return !file_is_dir(path) || add_dir(l, name, path, err);
}

/* In the store a file or a model of one word, or an owner. */
static bool visit_store(Lister *l, const char *name, const char *path, Error *err)
{
    if (!file_is_dir(path)) {
        const Str s = str_from(name);
        if (!str_ends(s, ".gguf"))
            return true;
        const char *word = arena_strdup(l->a, name, s.len - 5, err);
        const char *format = word ? gguf_format(l->a, path, err) : NULL;
        return format && add_model(l, word, path, format, err);
    }
    const int before = l->n;
    const char *config = arena_printf(l->a, err, "%s/config.json", path);
    const char *prefix = arena_printf(l->a, err, "%s/", name);
    const char *const *names;
    int n;
    Error skipped;
    if (!config || !prefix)
        return false;
    const bool is_model =
        file_exists(config) || (dirlist_read(l->a, path, ".gguf", &names, &n, &skipped) && n > 0);
    if (is_model && !add_dir(l, name, path, err))
        return false;
    return l->n > before || each(l, path, prefix, visit_repo, err);
}

static bool visit_owner(Lister *l, const char *name, const char *path, Error *err)
{
    const char *prefix = arena_printf(l->a, err, "%s/", name);
    return prefix && (!file_is_dir(path) || each(l, path, prefix, visit_repo, err));
}

/* models--<owner>--<repo> */
static bool visit_cached(Lister *l, const char *name, const char *path, Error *err)
{
    static const char models[] = "models--";
    const char *owner = name + sizeof models - 1;
    const char *dash = str_starts(str_from(name), models) ? strstr(owner, "--") : NULL;
    const char *dir;
    Error skipped;
    if (!dash || !hub_snapshot(l->a, path, &dir, &skipped) || !dir)
        return true;
    const char *full = arena_printf(l->a, err, "%.*s/%s", (int)(dash - owner), owner, dash + 2);
    return full && add_dir(l, full, dir, err);
}

/* ---- Ollama: manifests/<registry>/<owner>/<model>/<tag> ---- */

static bool add_manifest(Lister *l, const char *ollama, const char *name, const char *manifest,
                         Error *err)
{
    const char *blob;
    Error skipped;
    if (file_is_dir(manifest) || !hub_manifest(l->a, ollama, manifest, &blob, &skipped) ||
        !file_exists(blob))
        return true;
    return add_model(l, name, blob, "GGUF", err);
}

static bool add_tags(Lister *l, const char *ollama, const char *name, const char *dir, Error *err)
{
    const char *const *tags;
    int n;
    Error skipped;
    if (!file_is_dir(dir) || !dirlist_read(l->a, dir, "", &tags, &n, &skipped))
        return true;
    for (int i = 0; i < n; i++) {
        const char *manifest = arena_printf(l->a, err, "%s/%s", dir, tags[i]);
        const char *full =
            strcmp(tags[i], "latest") == 0 ? name : arena_printf(l->a, err, "%s:%s", name, tags[i]);
        HubName ok;
        if (!manifest || !full ||
            (hub_parse(full, &ok) && !add_manifest(l, ollama, full, manifest, err)))
            return false;
    }
    return true;
}

static bool add_registry(Lister *l, const char *ollama, const char *registry, Error *err)
{
    const char *const *owners;
    const char *const *models;
    int n_owners, n_models;
    Error skipped;
    const char *root = arena_printf(l->a, err, "%s/manifests/%s", ollama, registry);
    if (!root)
        return false;
    if (!dirlist_read(l->a, root, "", &owners, &n_owners, &skipped))
        return true;
    for (int o = 0; o < n_owners; o++) {
        const char *dir = arena_printf(l->a, err, "%s/%s", root, owners[o]);
        if (!dir)
            return false;
        if (!dirlist_read(l->a, dir, "", &models, &n_models, &skipped))
            continue;
        const bool is_library = strcmp(owners[o], "library") == 0;
        for (int m = 0; m < n_models; m++) {
            const char *name = arena_printf(l->a, err, "%s%s%s", is_library ? "" : owners[o],
                                            is_library ? "" : "/", models[m]);
            const char *tags = arena_printf(l->a, err, "%s/%s", dir, models[m]);
            if (!name || !tags || !add_tags(l, ollama, name, tags, err))
                return false;
        }
    }
    return true;
}

static int by_origin_and_name(const void *x, const void *y)
{
    const StoreModel *a = x;
    const StoreModel *b = y;
    return a->origin != b->origin ? (a->origin > b->origin) - (a->origin < b->origin)
                                  : strcmp(a->name, b->name);
}

bool store_list(Arena *a, const HubRoots *roots, StoreModel **out, int *n, Error *err)
{
    Lister l = {.a = a, .origin = STORE_OWN};
    if (!each(&l, roots->store, "", visit_store, err))
        return false;
    l.origin = STORE_HF_CACHE;
    if (!each(&l, roots->cache, "", visit_cached, err))
        return false;
    l.origin = STORE_LMSTUDIO;
    for (size_t i = 0; i < COUNT_OF(roots->lmstudio); i++)
        if (!each(&l, roots->lmstudio[i], "", visit_owner, err))
            return false;
    l.origin = STORE_OLLAMA;
    if (roots->ollama && (!add_registry(&l, roots->ollama, "registry.ollama.ai", err) ||
                          !add_registry(&l, roots->ollama, "hf.co", err)))
        return false;
    if (l.n)
        qsort(l.models, (size_t)l.n, sizeof *l.models, by_origin_and_name);
    *out = l.models;
    *n = l.n;
    return true;
}

/* ---- a directory that is held ---- */

static bool make_dirs(const char *path, Error *err)
{
    char part[PATH_MAX];
    const size_t n = strlen(path);
    if (n >= sizeof part)
        return err_set(err, ERR_TOO_LONG, "%.100s: a path of more than %d bytes", path, PATH_MAX);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return err_set(err, errno == ENOSPC ? ERR_FIT : ERR_IO, "%s: cannot make it: %s", part,
                           strerror(errno));
    }
    return true;
}

/* A real directory called `name` in dir_fd, made where it is missing; closes dir_fd. */
static int enter(int dir_fd, const char *name, const char *path, Error *err)
{
    if (mkdirat(dir_fd, name, 0777) != 0 && errno != EEXIST) {
        err_set(err, errno == ENOSPC ? ERR_FIT : ERR_IO, "%s: cannot make %s: %s", path, name,
                strerror(errno));
        close(dir_fd);
        return -1;
    }
    const int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        err_set(err, ERR_IO, "%s: %s is no directory of its own: %s", path, name, strerror(errno));
    close(dir_fd);
    return fd;
}

static int open_dir(Arena *a, const char *store, const HubName *name, Error *err)
{
    const char *owner = arena_strdup(a, name->owner.ptr, name->owner.len, err);
    const char *repo = arena_strdup(a, name->repo.ptr, name->repo.len, err);
    if (!owner || !repo || !make_dirs(store, err))
        return -1;
    int fd = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        err_set(err, ERR_IO, "%s: %s", store, strerror(errno));
        return -1;
    }
    if (name->owner.len)
        fd = enter(fd, owner, store, err);
    return fd < 0 ? -1 : enter(fd, repo, store, err);
}

/* The lock is on a file that still has its name: a removal takes file and directory away. */
static bool still_there(const StoreDir *d)
{
    struct stat held, named;
    return fstat(d->lock_fd, &held) == 0 && stat(d->path, &named) == 0 &&
           fstatat(d->fd, LOCK, &named, AT_SYMLINK_NOFOLLOW) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

bool store_dir_open(Arena *a, const char *store, const HubName *name, bool (*wait)(void *ctx),
                    void *ctx, StoreDir *out, Error *err)
{
    *out = (StoreDir){.fd = -1, .lock_fd = -1};
    out->path = arena_printf(a, err, "%s/%.*s%s%.*s", store, (int)name->owner.len, name->owner.ptr,
                             name->owner.len ? "/" : "", (int)name->repo.len, name->repo.ptr);
    if (!out->path)
        return false;
    for (;;) {
        out->fd = open_dir(a, store, name, err);
        if (out->fd < 0)
            return false;
        out->lock_fd = openat(out->fd, LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (out->lock_fd < 0 && errno != ENOENT) {
            err_set(err, errno == ENOSPC ? ERR_FIT : ERR_IO, "%s/%s: %s", out->path, LOCK,
                    strerror(errno));
            store_dir_close(out);
            return false;
        }
        while (out->lock_fd >= 0 && flock(out->lock_fd, LOCK_EX | LOCK_NB) != 0) {
            const bool go_on = wait && wait(ctx);
            if (!go_on) {
                if (wait)
                    err_set(err, ERR_CANCELLED, "interrupted");
                else
                    err_set(err, ERR_FAILED, "%s: a pull of it is running", out->path);
                close(out->lock_fd);
                close(out->fd);
                *out = (StoreDir){.fd = -1, .lock_fd = -1};
                return false;
            }
            usleep(100000);
        }
        if (out->lock_fd >= 0 && still_there(out))
            return true;
        if (out->lock_fd >= 0)
            close(out->lock_fd);
        close(out->fd);
    }
}

void store_dir_close(StoreDir *d)
{
    Arena a;
    const char *const *names;
    int n = 1;
    Error err;
    if (d->fd < 0)
        return;
    arena_init(&a, "store");
    if (d->lock_fd >= 0 && dirlist_read(&a, d->path, "", &names, &n, &err) && n == 0) {
        (void)unlinkat(d->fd, LOCK, 0);
        (void)rmdir(d->path);
    }
    arena_free(&a);
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    close(d->fd);
    *d = (StoreDir){.fd = -1, .lock_fd = -1};
}

/* ---- removing ---- */

static bool is_below(const char *path, const char *root)
{
    const size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && path[n] == '/';
}

/* The model's directory in the store; *path stays NULL when it is a lone file or not there. */
static bool own_dir(Arena *a, const HubRoots *roots, const HubName *n, const char **path,
                    Error *err)
{
    const char *dir =
        arena_printf(a, err, "%s/%.*s%s%.*s", roots->store, (int)n->owner.len, n->owner.ptr,
                     n->owner.len ? "/" : "", (int)n->repo.len, n->repo.ptr);
    *path = dir && file_is_dir(dir) ? dir : NULL;
    return dir != NULL;
}

bool store_find(Arena *a, const HubRoots *roots, const char *name, StoreFile **files, int *n,
                Error *err)
{
    HubName parsed;
    const char *dir = NULL;
    const char *path;
    if (!roots->store)
        return err_set(err, ERR_NOT_FOUND, "there is no store: neither MERE_HOME nor HOME is set");
    if (!hub_parse(name, &parsed))
        return err_set(err, ERR_USAGE,
                       "\"%.100s\" is no model name (owner/repo[:quant]); files of "
                       "your own are yours to delete",
                       name);
    if (!own_dir(a, roots, &parsed, &dir, err))
        return false;
    if (dir && !parsed.quant.len) {
        if (!store_files(a, dir, files, n, err))
            return false;
        return *n > 0 || err_set(err, ERR_NOT_FOUND, "%s: no files of a model", dir);
    }
    if (!hub_resolve(a, roots, name, &path, err))
        return false;
    if (!is_below(path, roots->store))
        return err_set(err, ERR_USAGE,
                       "%.60s: is not in the store but at %.120s, which is left alone", name, path);
    return store_files(a, path, files, n, err);
}

bool store_remove(Arena *a, const HubRoots *roots, const char *name, Error *err)
{
    HubName parsed;
    StoreFile *files;
    const char *path = NULL;
    StoreDir dir = {.fd = -1, .lock_fd = -1};
    int n = 0;
    if (!store_find(a, roots, name, &files, &n, err) || !hub_parse(name, &parsed) ||
        !own_dir(a, roots, &parsed, &path, err) ||
        (path && !store_dir_open(a, roots->store, &parsed, NULL, NULL, &dir, err)))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < n; i++)
        if (unlink(files[i].path) != 0 && errno != ENOENT)
            ok = err_set(err, ERR_IO, "%s: cannot delete: %s", files[i].path, strerror(errno));
    store_dir_close(&dir);
    if (ok && parsed.owner.len) {
        const char *owner =
            arena_printf(a, err, "%s/%.*s", roots->store, (int)parsed.owner.len, parsed.owner.ptr);
        ok = owner != NULL;
        if (ok)
            (void)rmdir(owner); /* others may live there */
    }
    return ok;
}
