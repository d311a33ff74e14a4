#include "weights/safetensors.h"

#include "weights/dirlist.h"

#include <inttypes.h>
#include <stdio.h>

enum { FILES_MAX = 1000, INDEX_MAX = 256 << 20 };

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

/* One entry of the header. `name` is a NUL-terminated copy. */
static bool read_entry(const char *doc, const char *name, const json_t *v, uint64_t data_at,
                       uint64_t data_bytes, Tensor *t, Error *err)
{
    char what[240];
    (void)snprintf(what, sizeof what, "%.100s: tensor \"%.100s\"", doc, name);
    if (!json_is_object(v))
        return err_set(err, ERR_FORMAT, "%s: not an object", what);
    Str dtype;
    if (!json_get_str_or(v, what, "dtype", &dtype, err))
        return false;
    t->dtype = dtype.ptr ? tensor_dtype_named(dtype) : DT_COUNT;
    if (t->dtype == DT_COUNT)
        return err_set(err, dtype.ptr ? ERR_UNSUPPORTED : ERR_FORMAT, "%s: dtype \"%.*s\" %s", what,
                       (int)(dtype.len < 20 ? dtype.len : 20), dtype.ptr ? dtype.ptr : "",
                       dtype.ptr ? "is not known" : "is missing");

    const json_t *shape = json_object_get(v, "shape");
    const size_t n_dims = json_array_size(shape);
    if (!json_is_array(shape) || n_dims > TENSOR_DIMS_MAX)
        return err_set(err, ERR_FORMAT, "%s: shape is no array of at most %d", what,
                       TENSOR_DIMS_MAX);
    t->n_dims = (int)n_dims;
    for (size_t i = 0; i < TENSOR_DIMS_MAX; i++) {
        const json_t *d = json_array_get(shape, i);
        if (i < n_dims && (!json_is_integer(d) || json_integer_value(d) < 0))
            return err_set(err, ERR_FORMAT, "%s: shape[%zu] is no size", what, i);
        t->dims[i] = i < n_dims ? json_integer_value(d) : 1;
    }
    if (!tensor_size(t->dtype, t->dims, t->n_dims, what, &t->bytes, err))
        return false;

    const json_t *offsets = json_object_get(v, "data_offsets");
    const json_t *from = json_array_get(offsets, 0);
    const json_t *to = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to) ||
        json_integer_value(from) < 0 || json_integer_value(to) < json_integer_value(from))
        return err_set(err, ERR_FORMAT, "%s: data_offsets is no range [from, to)", what);
    const uint64_t begin = (uint64_t)json_integer_value(from);
    const uint64_t end = (uint64_t)json_integer_value(to);
    if (end > data_bytes)
        return err_set(err, ERR_FORMAT,
                       "%s: data_offsets end at %" PRIu64 ", the file has %" PRIu64
                       " bytes of data",
                       what, end, data_bytes);
    if (end - begin != t->bytes)
        return err_set(err, ERR_FORMAT,
                       "%s: data_offsets hold %" PRIu64 " bytes, dtype and shape want %" PRIu64,
                       what, end - begin, t->bytes);
    t->offset = data_at + begin;
    return true;
}

static bool read_header(Arena *a, const char *doc, json_t *header, const uint8_t *bytes,
                        uint64_t len, uint64_t data_at, Tensor **out, int64_t *n, Error *err)
{
    if (!json_is_object(header))
        return err_set(err, ERR_FORMAT, "%s: the header is no JSON object", doc);
    Tensor *tensors = ARENA_ARRAY(a, json_object_size(header), Tensor, err);
    if (!tensors)
        return false;
    int64_t count = 0;
    const char *name;
    json_t *v;
    json_object_foreach (header, name, v) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        Tensor *t = &tensors[count++];
        if (!read_entry(doc, name, v, data_at, len - data_at, t, err))
            return false;
        t->data = bytes + t->offset;
        t->name = (Str){arena_strdup(a, name, strlen(name), err), strlen(name)};
        if (!t->name.ptr)
            return false;
    }
    const ArenaMark mark = arena_mark(a);
    const Tensor **scratch = ARENA_ARRAY(a, count, const Tensor *, err);
    if (!scratch || !tensor_check_overlap(tensors, count, scratch, doc, err))
        return false;
    arena_rewind(a, mark);
    *out = tensors;
    *n = count;
    return true;
}

bool safetensors_parse(Arena *a, const char *doc, const uint8_t *bytes, uint64_t len, Tensor **out,
                       int64_t *n, Error *err)
{
    if (len < 8)
        return err_set(err, ERR_FORMAT, "%s: %" PRIu64 " bytes, no safetensors file", doc, len);
    uint64_t header_len = 0;
    for (int i = 7; i >= 0; i--)
        header_len = header_len << 8 | bytes[i];
    if (header_len > SAFETENSORS_HEADER_MAX)
        return err_set(err, ERR_FORMAT, "%s: header of %" PRIu64 " bytes, at most %d", doc,
                       header_len, SAFETENSORS_HEADER_MAX);
    if (header_len > len - 8)
        return err_set(err, ERR_FORMAT, "%s: header of %" PRIu64 " bytes, the file has %" PRIu64,
                       doc, header_len, len);
    json_t *header = json_parse(doc, (Str){(const char *)bytes + 8, header_len}, err);
    if (!header)
        return false;
    const bool ok = read_header(a, doc, header, bytes, len, 8 + header_len, out, n, err);
    json_decref(header);
    return ok;
}

/* `seen` is the set of files so far. */
static bool add_file(SafetensorsIndex *x, json_t *seen, const char *doc, const char *key,
                     const char *file, Error *err)
{
    if (json_object_get(seen, file))
        return true;
    if (file[0] == '\0' || file[0] == '.' || strchr(file, '/'))
        return err_set(err, ERR_FORMAT, "%s: weight_map[\"%.60s\"] is \"%.80s\", no file name", doc,
                       key, file);
    if (x->n_files == FILES_MAX)
        return err_set(err, ERR_FORMAT, "%s: names more than %d files", doc, FILES_MAX);
    if (json_object_set_new(seen, file, json_true()) != 0)
        return err_nomem(err, doc, 0);
    x->files[x->n_files++] = file;
    return true;
}

static bool index_files(Arena *a, const char *doc, json_t *map, SafetensorsIndex *out, Error *err)
{
    if (!json_is_object(map))
        return err_set(err, ERR_FORMAT, "%s: key \"weight_map\" is no object", doc);
    out->weight_map = map;
    out->files = ARENA_ARRAY(a, FILES_MAX, const char *, err);
    if (!out->files)
        return false;
    json_t *seen = json_object();
    bool ok = seen || err_nomem(err, doc, 0);
    const char *key;
    json_t *v;
    json_object_foreach (map, key, v) {
        if (ok && !json_is_string(v))
            ok = err_set(err, ERR_FORMAT, "%s: weight_map[\"%.60s\"] is no string", doc, key);
        ok = ok && add_file(out, seen, doc, key, json_string_value(v), err);
        if (!ok)
            break;
    }
    json_decref(seen);
    return ok;
}

bool safetensors_index_parse(Arena *a, const char *doc, Str text, SafetensorsIndex *out, Error *err)
{
    *out = (SafetensorsIndex){0};
    out->json = json_parse(doc, text, err);
    if (out->json && index_files(a, doc, json_object_get(out->json, "weight_map"), out, err))
        return true;
    json_decref(out->json);
    *out = (SafetensorsIndex){0};
    return false;
}

static const char *join(Arena *a, const char *dir, const char *name, Error *err)
{
    return arena_printf(a, err, "%s/%s", dir, name);
}

/* Names that follow the shards' pattern, model-00001-of-00002.safetensors, or the only file. */
static bool choose_without_index(Arena *a, const char *dir, const char *const **files, int *n,
                                 Error *err)
{
    const char *const *names;
    int count;
    if (!dirlist_read(a, dir, ".safetensors", &names, &count, err))
        return false;
    const char **shards = ARENA_ARRAY(a, count + 1, const char *, err);
    if (!shards)
        return false;
    *files = shards;
    *n = 0;
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], single_name) == 0) {
            shards[0] = single_name;
            *n = 1;
            return true;
        }
        if (str_starts(str_from(names[i]), "model-") && strstr(names[i], "-of-"))
            shards[(*n)++] = names[i];
    }
    if (*n > 0)
        return true;
    if (count == 1) {
        *files = names;
        *n = 1;
        return true;
    }
    return err_set(err, ERR_NOT_FOUND, "%s: no model.safetensors (%d other .safetensors files)",
                   dir, count);
}

/* The files to read. With an index, out->json stays for duplicates. */
static bool choose(Arena *a, const char *dir, SafetensorsIndex *index, const char *const **files,
                   int *n, Error *err)
{
    const char *path = join(a, dir, index_name, err);
    if (!path)
        return false;
    if (!file_exists(path))
        return choose_without_index(a, dir, files, n, err);
    Str text;
    if (!file_read(a, path, INDEX_MAX, &text, err) ||
        !safetensors_index_parse(a, path, text, index, err))
        return false;
    const char *missing = NULL;
    for (int i = 0; i < index->n_files && !missing; i++) {
        const char *shard = join(a, dir, index->files[i], err);
        if (!shard)
            return false;
        if (!file_exists(shard))
            missing = index->files[i];
    }
    *files = index->files;
    *n = index->n_files;
    if (!missing && *n > 0)
        return true;
    /* The index is another layout's when the whole model is in one file. */
    const char *single = join(a, dir, single_name, err);
    if (!single)
        return false;
    if (file_exists(single))
        return choose_without_index(a, dir, files, n, err);
    return err_set(err, ERR_NOT_FOUND, "%s: names %s, which is not there", path,
                   missing ? missing : "no file");
}

/* Of two tensors with one name, the one whose file the index names. */
static bool settle_twins(const SafetensorsSet *set, const SafetensorsIndex *index, Tensor *first,
                         const Tensor *second, Error *err)
{
    const char *wanted =
        index->json ? json_string_value(json_object_get(index->weight_map, first->name.ptr)) : NULL;
    if (wanted) {
        char tail[300];
        (void)snprintf(tail, sizeof tail, "/%s", wanted);
        if (str_ends(str_from(set->paths[first->file]), tail))
            return true;
        if (str_ends(str_from(set->paths[second->file]), tail)) {
            *first = *second;
            return true;
        }
    }
    return err_set(err, ERR_FORMAT, "%s: tensor \"%.80s\" is also in %s", set->paths[second->file],
                   second->name.ptr, set->paths[first->file]);
}

static bool load(Arena *a, const char *dir, const SafetensorsIndex *index, const char *const *files,
                 int n, SafetensorsSet *set, Error *err)
{
    set->maps = ARENA_ARRAY(a, n, FileMap, err);
    set->paths = ARENA_ARRAY(a, n, const char *, err);
    Tensor **parts = ARENA_ARRAY(a, n, Tensor *, err);
    int64_t *counts = ARENA_ARRAY(a, n, int64_t, err);
    if (!set->maps || !set->paths || !parts || !counts)
        return false;
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        set->paths[i] = join(a, dir, files[i], err);
        if (!set->paths[i] || !file_map(set->paths[i], &set->maps[i], err))
            return false;
        set->n_files = i + 1;
        if (!safetensors_parse(a, set->paths[i], set->maps[i].data, set->maps[i].bytes, &parts[i],
                               &counts[i], err))
            return false;
        total += counts[i];
    }
    set->tensors = ARENA_ARRAY(a, total, Tensor, err);
    if (!set->tensors || !tensor_map_init(&set->map, a, set->tensors, total, err))
        return false;
    for (int i = 0; i < n; i++) {
        for (int64_t j = 0; j < counts[i]; j++) {
            const int64_t at = set->n_tensors;
            set->tensors[at] = parts[i][j];
            set->tensors[at].file = i;
            const int64_t is = tensor_map_put(&set->map, at);
            if (is == at)
                set->n_tensors++;
            else if (!settle_twins(set, index, &set->tensors[is], &set->tensors[at], err))
                return false;
        }
    }
    return true;
}

bool safetensors_open(Arena *a, const char *dir, SafetensorsSet *out, Error *err)
{
    *out = (SafetensorsSet){0};
    SafetensorsIndex index = {0};
    const char *const *files;
    int n;
    const bool ok =
        choose(a, dir, &index, &files, &n, err) && load(a, dir, &index, files, n, out, err);
    json_decref(index.json);
    if (!ok)
        safetensors_close(out);
    return ok;
}

void safetensors_close(SafetensorsSet *set)
{
    for (int i = 0; i < set->n_files; i++)
        file_unmap(&set->maps[i]);
    *set = (SafetensorsSet){0};
}
