#include "weights/listing.h"

#include "base/json.h"
#include "weights/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>

static const uint64_t FILE_MAX = UINT64_C(1) << 46; /* 64 TiB */

/* ---- reading ---- */

/* Every piece is a name that may be in the store. *hidden: one begins with a dot
 * (".gitattributes").
 */
static bool path_ok(Str path, bool *hidden)
{
    *hidden = false;
    if (path.len == 0 || path.len > LISTING_PATH_MAX)
        return false;
    for (size_t at = 0; at <= path.len;) {
        const char *slash = memchr(path.ptr + at, '/', path.len - at);
        const size_t end = slash ? (size_t)(slash - path.ptr) : path.len;
        Str piece = {path.ptr + at, end - at};
        at = end + 1;
        if (str_is(piece, ".") || str_is(piece, ".."))
            return false;
        if (piece.len > 1 && piece.ptr[0] == '.') {
            *hidden = true;
            piece = (Str){piece.ptr + 1, piece.len - 1};
            while (piece.len && piece.ptr[0] == '.')
                piece = (Str){piece.ptr + 1, piece.len - 1};
        }
        if (!part_name_ok(piece))
            return false;
    }
    return true;
}

static bool read_hash(const json_t *obj, const char *doc, size_t len, char *out, Error *err)
{
    Str hex;
    if (!json_get_str_or(obj, doc, "oid", &hex, err))
        return false;
    if (!hex.ptr)
        return true;
    if (hex.len == len + 7 && str_starts(hex, "sha256:"))
        hex = (Str){hex.ptr + 7, len};
    if (!part_hex_ok(hex, len))
        return err_set(err, ERR_FORMAT, "%s: \"oid\" is no hash of %zu hex digits", doc, len);
    memcpy(out, hex.ptr, len);
    return true;
}

static bool read_size(const json_t *obj, const char *doc, uint64_t *out, Error *err)
{
    int64_t bytes;
    if (!json_get_i64(obj, doc, "size", 0, (int64_t)FILE_MAX, &bytes, err))
        return false;
    *out = (uint64_t)bytes;
    return true;
}

static bool grow(Arena *a, Listing *l, Error *err)
{
    if (l->n < l->cap)
        return true;
    const int cap = l->cap ? l->cap * 2 : 64;
    ListedFile *files = ARENA_ARRAY(a, cap, ListedFile, err);
    if (!files)
        return false;
    if (l->n)
        memcpy(files, l->files, (size_t)l->n * sizeof *files);
    l->files = files;
    l->cap = cap;
    return true;
}

static bool add_entry(Arena *a, const char *doc, const json_t *entry, Listing *out, Error *err)
{
    Str type, path;
    bool hidden;
    if (!json_is_object(entry))
        return err_set(err, ERR_FORMAT, "%s: an entry is no object", doc);
    if (!json_get_str_or(entry, doc, "type", &type, err) ||
        !json_get_str_or(entry, doc, "path", &path, err))
        return false;
    if (!type.ptr || !path.ptr)
        return err_set(err, ERR_FORMAT, "%s: an entry without \"type\" or \"path\"", doc);
    if (!path_ok(path, &hidden))
        return err_set(err, ERR_FORMAT, "%s: a file's name is not safe: \"%.*s\"", doc,
                       (int)(path.len < 80 ? path.len : 80), path.ptr);
    if (!str_is(type, "file") || hidden)
        return true;
    if (out->n == LISTING_FILES_MAX)
        return err_set(err, ERR_FORMAT, "%s: more than %d files", doc, LISTING_FILES_MAX);
    if (!grow(a, out, err))
        return false;
    ListedFile f = {.path = arena_strdup(a, path.ptr, path.len, err)};
    if (!f.path)
        return false;
    const char *slash = strrchr(f.path, '/');
    f.want.name = slash ? slash + 1 : f.path;
    const json_t *lfs = json_object_get(entry, "lfs");
    const bool ok = json_is_object(lfs) ? read_size(lfs, doc, &f.want.bytes, err) &&
                                              read_hash(lfs, doc, 64, f.want.sha256, err)
                                        : read_size(entry, doc, &f.want.bytes, err) &&
                                              read_hash(entry, doc, 40, f.want.git, err);
    if (ok)
        out->files[out->n++] = f;
    return ok;
}

bool listing_add(Arena *a, const char *doc, Str text, Listing *out, Error *err)
{
    if (text.len > LISTING_PAGE_MAX)
        return err_set(err, ERR_FORMAT, "%s: a page of %zu bytes, at most %d", doc, text.len,
                       LISTING_PAGE_MAX);
    json_t *list = json_parse(doc, text, err);
    if (!list)
        return false;
    bool ok = json_is_array(list) || err_set(err, ERR_FORMAT, "%s: no list of files", doc);
    const size_t n = json_array_size(list);
    for (size_t i = 0; ok && i < n; i++)
        ok = add_entry(a, doc, json_array_get(list, i), out, err);
    json_decref(list);
    return ok;
}

/* ---- names of GGUF files ---- */

bool listing_split(const char *name, size_t *stem, int *which, int *count)
{
    static const char form[] = "-00000-of-00000.gguf";
    const size_t len = strlen(name);
    const size_t tail = sizeof form - 1;
    if (len <= tail)
        return false;
    int v[2] = {0, 0};
    const char *p = name + len - tail;
    for (size_t i = 0; i < tail; i++) {
        if (form[i] != '0') {
            if (p[i] != form[i])
                return false;
        } else {
            if (p[i] < '0' || p[i] > '9')
                return false;
            int *out = &v[i > 6];
            *out = *out * 10 + (p[i] - '0');
        }
    }
    *stem = len - tail;
    *which = v[0];
    *count = v[1];
    return v[0] >= 1 && v[0] <= v[1];
}

Str listing_quant(const char *name)
{
    static const char *const whole[] = {"f16", "bf16", "f32", "fp16", "fp32"};
    const size_t n = strlen(name);
    Str found = {name, 0};
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && !strchr("-._", name[i - 1]))
            continue;
        const size_t len = strcspn(name + i, "-.");
        const char *p = name + i;
        bool yes = strncasecmp(p, "mxfp4", 5) == 0;
        for (size_t w = 0; w < COUNT_OF(whole); w++)
            yes |= len == strlen(whole[w]) && strncasecmp(p, whole[w], len) == 0;
        const char *q = p + (*p == 'I' || *p == 'i' || *p == 'T' || *p == 't');
        /* "Q4_K_M", but not "q2" alone, which is no format */
        yes |= (*q == 'Q' || *q == 'q') && q[1] >= '1' && q[1] <= '8' && q[2] == '_';
        if (yes) {
            found = (Str){p, len};
            i += len;
        }
    }
    return found;
}

/* `quant` is a whole word of the name, in any case ('_' may come before one, not behind). */
static bool names_quant(const char *name, Str quant)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i + quant.len < n; i++)
        if ((i == 0 || strchr("-._", name[i - 1])) &&
            strncasecmp(name + i, quant.ptr, quant.len) == 0 && strchr("-.", name[i + quant.len]))
            return true;
    return false;
}

/* ---- choosing ---- */

static int by_path(const void *a, const void *b)
{
    return strcmp((*(const ListedFile *const *)a)->path, (*(const ListedFile *const *)b)->path);
}

static bool finish(const char *doc, ListingChoice *out, Error *err)
{
    if (out->n)
        qsort(out->files, (size_t)out->n, sizeof(const ListedFile *), by_path);
    for (int i = 0; i < out->n; i++) /* at most some hundred */
        for (int j = 0; j < i; j++)
            if (strcmp(out->files[i]->want.name, out->files[j]->want.name) == 0)
                return err_set(err, ERR_FORMAT, "%s: two files of the model are called %.80s", doc,
                               out->files[i]->want.name);
    return true;
}

static bool is_model_gguf(const ListedFile *f)
{
    const char *name = f->want.name;
    return str_ends(str_from(name), ".gguf") && !strcasestr(name, "mmproj") &&
           strncasecmp(name, "imatrix", 7) != 0;
}

/* Length of the path that all splits of a model share; the whole path of a file of its own. */
static size_t stem_len(const ListedFile *f)
{
    size_t stem;
    int which, count;
    if (!listing_split(f->want.name, &stem, &which, &count))
        return strlen(f->path);
    return strlen(f->path) - strlen(f->want.name) + stem;
}

static bool is_first(const ListedFile *f)
{
    size_t stem;
    int which, count;
    return is_model_gguf(f) && (!listing_split(f->want.name, &stem, &which, &count) || which == 1);
}

/* Lower is better: the place of its quant in the order of taste, then the shorter path. */
static int rank(const ListedFile *f)
{
    static const char *const order[] = {
        "Q4_K_M", "Q4_0",   "Q4_1",   "Q4_K_S", "Q5_K_M", "Q5_0", "Q5_1", "Q5_K_S", "Q6_K", "Q8_0",
        "MXFP4",  "IQ4_XS", "IQ4_NL", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16",    "F32"};
    const Str q = listing_quant(f->want.name);
    for (size_t i = 0; i < COUNT_OF(order); i++)
        if (q.len == strlen(order[i]) && strncasecmp(q.ptr, order[i], q.len) == 0)
            return (int)i;
    return COUNT_OF(order);
}

static bool is_better(const ListedFile *f, const ListedFile *best, bool by_rank)
{
    if (!best)
        return true;
    if (by_rank && rank(f) != rank(best))
        return rank(f) < rank(best);
    const size_t n = strlen(f->path);
    const size_t m = strlen(best->path);
    return n != m ? n < m : strcmp(f->path, best->path) < 0;
}

/* "Q4_0, Q8_0" of all first files but `except`; at most `max` bytes, then "...". NULL: none. */
static bool name_quants(Arena *a, const Listing *all, const ListedFile *except, const char **out,
                        Error *err)
{
    enum { LIST_MAX = 160 };
    StrBuf b;
    strbuf_init(&b, LISTING_PATH_MAX + LIST_MAX);
    for (int i = 0; i < all->n && b.len < LIST_MAX; i++) {
        const ListedFile *f = &all->files[i];
        if (f == except || !is_first(f))
            continue;
        const Str q = listing_quant(f->want.name);
        const Str word = q.len ? q : str_from(f->want.name);
        strbuf_printf(&b, "%s%.*s", b.len ? ", " : "", (int)word.len, word.ptr);
    }
    if (b.len >= LIST_MAX)
        strbuf_add_cstr(&b, " ...");
    bool ok = strbuf_check(&b, "names of quants", err);
    *out = NULL;
    if (ok && b.len)
        ok = (*out = arena_strdup(a, b.ptr, b.len, err)) != NULL;
    strbuf_free(&b);
    return ok;
}

static bool choose_gguf(Arena *a, const char *doc, const Listing *all, Str quant,
                        ListingChoice *out, Error *err)
{
    const ListedFile *best = NULL;
    for (int i = 0; i < all->n; i++) {
        const ListedFile *f = &all->files[i];
        if (is_first(f) && (!quant.len || names_quant(f->want.name, quant)) &&
            is_better(f, best, !quant.len))
            best = f;
    }
    const char *others;
    if (!name_quants(a, all, best, &others, err))
        return false;
    if (!best && others)
        return err_set(err, ERR_NOT_FOUND, "%s: no GGUF model named %.*s; there are %s", doc,
                       (int)quant.len, quant.ptr, others);
    if (!best)
        return err_set(err, ERR_NOT_FOUND, "%s: no GGUF files (of %d files)", doc, all->n);
    out->is_gguf = true;
    out->others = quant.len ? NULL : others;
    const Str q = listing_quant(best->want.name);
    out->quant = arena_strdup(a, q.ptr, q.len, err);
    if (!out->quant)
        return false;
    size_t stem;
    int which, count = 1;
    const bool is_split = listing_split(best->want.name, &stem, &which, &count);
    const size_t len = stem_len(best);
    for (int i = 0; i < all->n; i++) {
        const ListedFile *f = &all->files[i];
        int of = 0;
        if (f == best ||
            (is_split && listing_split(f->want.name, &stem, &which, &of) && of == count &&
             stem_len(f) == len && strncmp(f->path, best->path, len) == 0))
            out->files[out->n++] = f;
    }
    if (out->n != count)
        return err_set(err, ERR_FORMAT, "%s: %d of the %d files of %.100s are listed", doc, out->n,
                       count, best->want.name);
    return finish(doc, out, err);
}

/* Beside the weights: what the tokenizer, the template and media need, and the licence. */
static bool is_side_file(const char *name)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "vocab.txt",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "preprocessor_config.json",
                                        "processor_config.json",
                                        "video_preprocessor_config.json",
                                        "model.safetensors.index.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return strncasecmp(name, "LICENSE", 7) == 0 || strncasecmp(name, "NOTICE", 6) == 0;
}

static const ListedFile *find(const Listing *all, const char *path)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->files[i].path, path) == 0)
            return &all->files[i];
    return NULL;
}

/* Weights without an index: model.safetensors, else all but Mistral's second copy. */
static bool is_lone_weight(const Listing *all, const ListedFile *f)
{
    const bool has_model = find(all, "model.safetensors") != NULL;
    return str_ends(str_from(f->path), ".safetensors") && !strchr(f->path, '/') &&
           (has_model ? strcmp(f->path, "model.safetensors") == 0
                      : strncmp(f->path, "consolidated", 12) != 0);
}

bool listing_choose(Arena *a, const char *doc, const Listing *all, Str quant, ListingChoice *out,
                    Error *err)
{
    *out =
        (ListingChoice){.quant = "", .files = ARENA_ARRAY(a, all->n + 1, const ListedFile *, err)};
    if (!out->files)
        return false;
    bool has_weights = false;
    bool has_gguf = false;
    for (int i = 0; i < all->n; i++) {
        has_weights |= is_lone_weight(all, &all->files[i]);
        has_gguf |= is_model_gguf(&all->files[i]);
    }
    if (quant.len || (has_gguf && !(has_weights && find(all, "config.json"))))
        return choose_gguf(a, doc, all, quant, out, err);
    if (!has_weights)
        return err_set(err, ERR_NOT_FOUND, "%s: no safetensors and no GGUF weights (of %d files)",
                       doc, all->n);
    out->index = find(all, "model.safetensors.index.json");
    for (int i = 0; i < all->n; i++) {
        const ListedFile *f = &all->files[i];
        if ((!strchr(f->path, '/') && is_side_file(f->path)) ||
            (!out->index && is_lone_weight(all, f)))
            out->files[out->n++] = f;
    }
    return finish(doc, out, err);
}

bool listing_choose_shards(Arena *a, const Listing *all, Str text, ListingChoice *out, Error *err)
{
    const char *doc = "model.safetensors.index.json";
    SafetensorsIndex index;
    if (!safetensors_index_parse(a, doc, text, &index, err))
        return false;
    bool ok = true;
    const int room = all->n + 1;
    for (int i = 0; ok && i < index.n_files; i++) {
        const ListedFile *f = find(all, index.files[i]);
        if (!f || out->n == room)
            ok = err_set(err, ERR_FORMAT, "%s: names %.100s, which the repository has not", doc,
                         index.files[i]);
        else
            out->files[out->n++] = f;
    }
    json_decref(index.json);
    return ok && finish(doc, out, err);
}
