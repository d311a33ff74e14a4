#include "weights/hub.h"

#include "base/file.h"
#include "base/json.h"
#include "weights/dirlist.h"
#include "weights/gguf.h"

#include <stdlib.h>

enum { REF_MAX = 200 };

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
    const bool ollama = env("OLLAMA_MODELS") ? under(a, env("OLLAMA_MODELS"), "", &out->ollama, err)
                                             : under(a, home, "/.ollama/models", &out->ollama, err);
    return store && cache && ollama &&
           under(a, home, "/.lmstudio/models", &out->lmstudio[0], err) &&
           under(a, home, "/.cache/lm-studio/models", &out->lmstudio[1], err);
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

bool hub_parse(const char *name, HubName *out)
{
    const Str all = str_from(name);
    if (all.len > HUB_NAME_MAX)
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

/* Counts of a directory's own weights. */
static bool count(Arena *a, const char *dir, int *n_safetensors, int *n_gguf, Error *err)
{
    const ArenaMark mark = arena_mark(a);
    const char *const *names;
    const bool ok = dirlist_read(a, dir, ".safetensors", &names, n_safetensors, err) &&
                    dirlist_read(a, dir, ".gguf", &names, n_gguf, err);
    arena_rewind(a, mark);
    return ok;
}

/* Repositories keep the splits of a quant in a folder of their own (<dir>/Q8_0/x-00001-of-...). The
 * one folder that has a GGUF model of this quant; *path stays when there is none. */
static bool in_subdirs(Arena *a, const char *dir, Str quant, const char **path, Error *err)
{
    const char *const *names;
    int n;
    const char *found = NULL;
    if (!dirlist_read(a, dir, "", &names, &n, err))
        return false;
    for (int i = 0; i < n; i++) {
        const char *sub = arena_printf(a, err, "%s/%s", dir, names[i]);
        if (!sub)
            return false;
        const char *file;
        Error other = {0};
        if (!file_is_dir(sub) || !gguf_in_dir(a, sub, quant, &file, &other))
            continue;
        if (found)
            return err_set(err, ERR_USAGE, "%s: GGUF models in several folders; say which: %s", dir,
                           "name:quant");
        found = file;
    }
    if (found)
        *path = found;
    return true;
}

/* Weights of a directory that exists: its safetensors, or its one GGUF file when it has none or a
 * quant is asked for. */
static bool in_dir(Arena *a, const char *dir, Str quant, const char **path, Error *err)
{
    int n_safetensors = 0;
    int n_gguf = 0;
    if (!count(a, dir, &n_safetensors, &n_gguf, err))
        return false;
    *path = dir;
    if (quant.len == 0 && n_safetensors > 0)
        return true;
    if (n_gguf == 0 && !in_subdirs(a, dir, quant, path, err))
        return false;
    if (*path != dir || (quant.len == 0 && n_gguf == 0))
        return true;
    Error own = {0};
    if (gguf_in_dir(a, dir, quant, path, &own))
        return true;
    *path = dir;
    if (own.code == ERR_NOT_FOUND && n_gguf > 0 && !in_subdirs(a, dir, quant, path, err))
        return false;
    if (*path != dir)
        return true;
    if (err)
        *err = own;
    return false;
}

bool hub_snapshot(Arena *a, const char *repo_dir, const char **dir, Error *err)
{
    const char *ref = arena_printf(a, err, "%s/refs/main", repo_dir);
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
    const char *path = arena_printf(a, err, "%s/snapshots/%.*s", repo_dir, (int)rev.len, rev.ptr);
    if (!path)
        return false;
    if (file_is_dir(path))
        *dir = path;
    return true;
}

/* NULL in *dir without an error when the cache has not got the repository. */
static bool in_cache(Arena *a, const char *cache, const HubName *n, const char **dir, Error *err)
{
    const char *repo = arena_printf(a, err, "%s/models--%.*s--%.*s", cache, (int)n->owner.len,
                                    n->owner.ptr, (int)n->repo.len, n->repo.ptr);
    return repo && hub_snapshot(a, repo, dir, err);
}

/* ---- Ollama ---- */

bool hub_manifest(Arena *a, const char *ollama, const char *manifest, const char **blob, Error *err)
{
    static const char model[] = "application/vnd.ollama.image.model";
    Str text;
    if (!file_read(a, manifest, HUB_MANIFEST_MAX, &text, err))
        return false;
    json_t *m = json_parse(manifest, text, err);
    if (!m)
        return false;
    const json_t *layers = json_object_get(m, "layers");
    Str digest = {0};
    bool ok = true;
    for (size_t i = 0; ok && !digest.ptr && i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        Str type;
        ok = json_get_str_or(layer, manifest, "mediaType", &type, err) &&
             (!type.ptr || !str_is(type, model) ||
              json_get_str_or(layer, manifest, "digest", &digest, err));
    }
    static const char hex[] = "0123456789abcdef";
    if (ok && (!digest.ptr || digest.len != 71 || !str_starts(digest, "sha256:") ||
               strspn(digest.ptr + 7, hex) != 64))
        ok = err_set(err, ERR_FORMAT, "%s: names no model blob", manifest);
    if (ok) {
        *blob = arena_printf(a, err, "%s/blobs/sha256-%.64s", ollama, digest.ptr + 7);
        ok = *blob != NULL;
    }
    json_decref(m);
    return ok;
}

/* *path stays when Ollama has not got it. */
static bool in_ollama(Arena *a, const char *ollama, const HubName *n, const char **path, Error *err)
{
    static const char *const registries[] = {"registry.ollama.ai", "hf.co"};
    const Str owner = n->owner.len ? n->owner : str_from("library");
    const Str tag = n->quant.len ? n->quant : str_from("latest");
    for (size_t i = 0; i < COUNT_OF(registries); i++) {
        const char *manifest = arena_printf(a, err, "%s/manifests/%s/%.*s/%.*s/%.*s", ollama,
                                            registries[i], (int)owner.len, owner.ptr,
                                            (int)n->repo.len, n->repo.ptr, (int)tag.len, tag.ptr);
        if (!manifest)
            return false;
        if (file_exists(manifest) && !file_is_dir(manifest))
            return hub_manifest(a, ollama, manifest, path, err);
    }
    return true;
}

/* ---- the store ---- */

/* A pull has begun there and has not ended (config.json is the last to get its name). */
static bool is_unfinished(Arena *a, const char *dir, bool *yes, Error *err)
{
    const ArenaMark mark = arena_mark(a);
    const char *const *names;
    int n_parts = 0;
    int n_safetensors = 0;
    int n_gguf = 0;
    const char *config = arena_printf(a, err, "%s/config.json", dir);
    const bool ok = config && dirlist_read(a, dir, ".part", &names, &n_parts, err) &&
                    count(a, dir, &n_safetensors, &n_gguf, err);
    *yes = ok && n_parts > 0 && n_gguf == 0 && !file_exists(config);
    arena_rewind(a, mark);
    return ok;
}

static bool in_store(Arena *a, const char *store, const HubName *n, const char **path, bool *found,
                     Error *err)
{
    const char *dir = arena_printf(a, err, "%s/%.*s%s%.*s", store, (int)n->owner.len, n->owner.ptr,
                                   n->owner.len ? "/" : "", (int)n->repo.len, n->repo.ptr);
    /* A file's whole name counts too. */
    const char *file =
        dir ? arena_printf(a, err, "%s%s", dir, str_ends(n->repo, ".gguf") ? "" : ".gguf") : NULL;
    *found = true;
    if (!file)
        return false;
    if (file_is_dir(dir)) {
        bool unfinished;
        if (!is_unfinished(a, dir, &unfinished, err))
            return false;
        if (unfinished)
            return err_set(err, ERR_NOT_FOUND, "%s: its pull has not ended; mere pull goes on",
                           dir);
        return in_dir(a, dir, n->quant, path, err);
    }
    *found = n->quant.len == 0 && file_exists(file);
    *path = file;
    return *found;
}

/* Folders of other programs; *path stays NULL when none has it. */
static bool elsewhere(Arena *a, const HubRoots *roots, const HubName *n, const char **path,
                      Error *err)
{
    *path = NULL;
    if (roots->cache && n->owner.len) {
        const char *dir;
        if (!in_cache(a, roots->cache, n, &dir, err))
            return false;
        if (dir)
            return in_dir(a, dir, n->quant, path, err);
    }
    for (size_t i = 0; i < COUNT_OF(roots->lmstudio) && n->owner.len; i++) {
        bool found = false;
        Error other = {0};
        if (roots->lmstudio[i] && in_store(a, roots->lmstudio[i], n, path, &found, &other))
            return true;
        *path = NULL;
        if (found) {
            if (err)
                *err = other;
            return false;
        }
    }
    return !roots->ollama || in_ollama(a, roots->ollama, n, path, err);
}

bool hub_resolve(Arena *a, const HubRoots *roots, const char *name, const char **path, Error *err)
{
    if (file_is_dir(name))
        return (*path = arena_strdup(a, name, strlen(name), err)) &&
               in_dir(a, *path, (Str){0}, path, err);
    if (file_exists(name))
        return (*path = arena_strdup(a, name, strlen(name), err)) != NULL;
    HubName n;
    if (!hub_parse(name, &n)) {
        /* Something that can only be a path reads best as one that is not there. */
        if (strchr(name, '/') && strlen(name) <= HUB_NAME_MAX)
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
    if (!elsewhere(a, roots, &n, path, err))
        return false;
    if (*path)
        return true;
    if (n.owner.len)
        return err_set(
            err, ERR_NOT_FOUND, "%.100s: not here (store %.50s, cache %.50s); mere pull fetches it",
            name, roots->store ? roots->store : "(none)", roots->cache ? roots->cache : "(none)");
    return err_set(err, ERR_NOT_FOUND,
                   "%.60s: not here; looked for a path, in the store %.70s and the cache %.70s",
                   name, roots->store ? roots->store : "(none)",
                   roots->cache ? roots->cache : "(none)");
}
