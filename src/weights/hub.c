#include "weights/hub.h"

#include "base/file.h"
#include "weights/dirlist.h"
#include "weights/gguf.h"

#include <stdlib.h>

enum { NAME_MAX_BYTES = 300, REF_MAX = 200 };

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

/* <base><tail>, or NULL without an error when there is no base. */
static bool under(Arena *a, const char *base, const char *tail, const char **out, Error *err)
{
    *out = base ? arena_printf(a, err, "%s%s", base, tail) : NULL;
    return *out || !base;
}

bool hub_roots(Arena *a, HubRoots *out, Error *err)
{
    const char *home = env("HOME");
    const char *data = env("XDG_DATA_HOME");
    *out = (HubRoots){0};
    const bool store = env("MERE_HOME") ? under(a, env("MERE_HOME"), "/models", &out->store, err)
                       : data           ? under(a, data, "/mere/models", &out->store, err)
                              : under(a, home, "/.local/share/mere/models", &out->store, err);
    const bool cache = env("HF_HUB_CACHE") ? under(a, env("HF_HUB_CACHE"), "", &out->cache, err)
                       : env("HF_HOME")
                           ? under(a, env("HF_HOME"), "/hub", &out->cache, err)
                           : under(a, home, "/.cache/huggingface/hub", &out->cache, err);
    return store && cache;
}

/* One piece of a name: letters, digits, '-', '_', '.'; not "." or "..", not hidden. */
static bool piece_ok(Str s)
{
    if (s.len == 0 || s.ptr[0] == '.')
        return false;
    for (size_t i = 0; i < s.len; i++) {
        const char c = s.ptr[i];
        const bool alnum =
            (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alnum && c != '-' && c != '_' && c != '.')
            return false;
    }
    return true;
}

typedef struct HubName {
    Str owner; /* empty for a single word */
    Str repo;
    Str quant; /* empty: none */
} HubName;

static bool parse_name(const char *name, HubName *out)
{
    const Str all = str_from(name);
    if (all.len > NAME_MAX_BYTES)
        return false;
    const char *colon = strchr(name, ':');
    const size_t len = colon ? (size_t)(colon - name) : all.len;
    const char *slash = memchr(name, '/', len);
    *out = (HubName){0};
    if (colon) {
        out->quant = (Str){colon + 1, all.len - len - 1};
        if (!piece_ok(out->quant))
            return false;
    }
    const size_t owner = slash ? (size_t)(slash - name) : 0;
    const size_t repo = slash ? owner + 1 : 0;
    out->owner = (Str){name, owner};
    out->repo = (Str){name + repo, len - repo};
    return (!slash || piece_ok(out->owner)) && piece_ok(out->repo);
}

/* Weights of a directory that exists: its safetensors, or its one GGUF file when it has none or a
 * quant is asked for. */
static bool in_dir(Arena *a, const char *dir, Str quant, const char **path, Error *err)
{
    const char *const *names;
    int n_safetensors = 0;
    int n_gguf = 0;
    if (!dirlist_read(a, dir, ".safetensors", &names, &n_safetensors, err) ||
        !dirlist_read(a, dir, ".gguf", &names, &n_gguf, err))
        return false;
    if (quant.len == 0 && (n_safetensors > 0 || n_gguf == 0)) {
        *path = dir;
        return true;
    }
    return gguf_in_dir(a, dir, quant, path, err);
}

/* The revision that refs/main names, as a directory; NULL without an error when the cache has not
 * got the repository. */
static bool snapshot(Arena *a, const char *cache, const HubName *n, const char **dir, Error *err)
{
    const char *repo = arena_printf(a, err, "%s/models--%.*s--%.*s", cache, (int)n->owner.len,
                                    n->owner.ptr, (int)n->repo.len, n->repo.ptr);
    const char *ref = repo ? arena_printf(a, err, "%s/refs/main", repo) : NULL;
    *dir = NULL;
    if (!ref)
        return false;
    if (!file_exists(ref))
        return true;
    Str rev;
    if (!file_read(a, ref, REF_MAX, &rev, err))
        return false;
    while (rev.len && (rev.ptr[rev.len - 1] == '\n' || rev.ptr[rev.len - 1] == '\r'))
        rev.len--;
    if (!piece_ok(rev))
        return err_set(err, ERR_FORMAT, "%s: names no revision", ref);
    const char *path = arena_printf(a, err, "%s/snapshots/%.*s", repo, (int)rev.len, rev.ptr);
    if (!path)
        return false;
    if (file_is_dir(path))
        *dir = path;
    return true;
}

static bool in_store(Arena *a, const char *store, const HubName *n, const char **path, bool *found,
                     Error *err)
{
    const char *dir = arena_printf(a, err, "%s/%.*s%s%.*s", store, (int)n->owner.len, n->owner.ptr,
                                   n->owner.len ? "/" : "", (int)n->repo.len, n->repo.ptr);
    const char *file = dir ? arena_printf(a, err, "%s.gguf", dir) : NULL;
    *found = true;
    if (!file)
        return false;
    if (file_is_dir(dir))
        return in_dir(a, dir, n->quant, path, err);
    *found = n->quant.len == 0 && file_exists(file);
    *path = file;
    return *found;
}

bool hub_resolve(Arena *a, const HubRoots *roots, const char *name, const char **path, Error *err)
{
    if (file_is_dir(name))
        return (*path = arena_strdup(a, name, strlen(name), err)) &&
               in_dir(a, *path, (Str){0}, path, err);
    if (file_exists(name))
        return (*path = arena_strdup(a, name, strlen(name), err)) != NULL;
    HubName n;
    if (!parse_name(name, &n)) {
        /* Something that can only be a path reads best as one that is not there. */
        if (strchr(name, '/') && strlen(name) <= NAME_MAX_BYTES)
            return err_set(err, ERR_NOT_FOUND, "%s: no such file or directory", name);
        return err_set(err, ERR_USAGE,
                       "\"%.100s\" is no path and no model name (owner/repo[:quant])", name);
    }
    if (roots->store) {
        bool found;
        if (in_store(a, roots->store, &n, path, &found, err))
            return true;
        if (found)
            return false;
    }
    if (roots->cache && n.owner.len) {
        const char *dir;
        if (!snapshot(a, roots->cache, &n, &dir, err))
            return false;
        if (dir)
            return in_dir(a, dir, n.quant, path, err);
    }
    return err_set(err, ERR_NOT_FOUND,
                   "%.60s: not here; looked for a path, in the store %.70s and the cache %.70s",
                   name, roots->store ? roots->store : "(none)",
                   roots->cache ? roots->cache : "(none)");
}
