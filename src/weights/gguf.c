#include "weights/gguf.h"

#include "base/num.h"
#include "weights/dirlist.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum {
    KV_MAX = 8192,
    TENSORS_MAX = 1 << 20,
    NAME_MAX_BYTES = 1024,
    ARRAY_DEPTH = 4,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MAX = 1 << 20,
    SPLITS_MAX = 1000,
};

/* 0: no fixed size. */
static const uint8_t type_bytes[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};
static const char *const type_names[GGUF_TYPE_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

/* ---- reading, always inside the file ---- */

typedef struct Cursor {
    const uint8_t *start, *at, *end;
    const char *doc;
} Cursor;

/* n bytes, or NULL and an error that says where the file ended and inside what. */
static const uint8_t *take(Cursor *c, uint64_t n, const char *what, Error *err)
{
    if (n > (uint64_t)(c->end - c->at)) {
        err_set(err, ERR_FORMAT,
                "%.100s: %.60s at byte %" PRIu64 " wants %" PRIu64
                " bytes, the file ends at %" PRIu64,
                c->doc, what, (uint64_t)(c->at - c->start), n, (uint64_t)(c->end - c->start));
        return NULL;
    }
    const uint8_t *p = c->at;
    c->at += n;
    return p;
}

static uint64_t load(const uint8_t *p, int n)
{
    uint64_t v = 0;
    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

static bool read_u32(Cursor *c, const char *what, uint32_t *out, Error *err)
{
    const uint8_t *p = take(c, 4, what, err);
    if (!p)
        return false;
    *out = (uint32_t)load(p, 4);
    return true;
}

static bool read_u64(Cursor *c, const char *what, uint64_t *out, Error *err)
{
    const uint8_t *p = take(c, 8, what, err);
    if (!p)
        return false;
    *out = load(p, 8);
    return true;
}

static bool read_str(Cursor *c, const char *what, Str *out, Error *err)
{
    uint64_t n;
    if (!read_u64(c, what, &n, err))
        return false;
    const uint8_t *p = take(c, n, what, err);
    *out = (Str){(const char *)p, n};
    return p != NULL;
}

/* A key or tensor name: limited, and without NUL so that it can be printed and compared. */
static bool read_name(Cursor *c, const char *what, Str *out, Error *err)
{
    if (!read_str(c, what, out, err))
        return false;
    if (out->len == 0 || out->len > NAME_MAX_BYTES || memchr(out->ptr, 0, out->len))
        return err_set(err, ERR_FORMAT, "%s: %s of %zu bytes, wanted 1 to %d without NUL", c->doc,
                       what, out->len, NAME_MAX_BYTES);
    return true;
}

/* ---- metadata ---- */

static bool skip_array(Cursor *c, const char *key, int depth, GgufType *item, uint64_t *n,
                       Error *err)
{
    uint32_t type;
    if (!read_u32(c, key, &type, err) || !read_u64(c, key, n, err))
        return false;
    if (type >= GGUF_TYPE_COUNT)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is an array of unknown type %" PRIu32, c->doc,
                       key, type);
    *item = (GgufType)type;
    if (type_bytes[type]) {
        const uint64_t left = (uint64_t)(c->end - c->at);
        if (*n > left / type_bytes[type])
            return err_set(err, ERR_FORMAT,
                           "%s: \"%s\" is an array of %" PRIu64 " %s, the file has %" PRIu64
                           " bytes left",
                           c->doc, key, *n, type_names[type], left);
        c->at += *n * type_bytes[type];
        return true;
    }
    if (type == GGUF_ARRAY && depth == ARRAY_DEPTH)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" nests arrays deeper than %d", c->doc, key,
                       ARRAY_DEPTH);
    /* Each item takes 8 bytes or more, so the loop ends with the file. */
    for (uint64_t i = 0; i < *n; i++) {
        Str s;
        GgufType inner;
        uint64_t inner_n;
        if (type == GGUF_STR ? !read_str(c, key, &s, err)
                             : !skip_array(c, key, depth + 1, &inner, &inner_n, err))
            return false;
    }
    return true;
}

static bool read_kv(Cursor *c, GgufKv *kv, Error *err)
{
    uint32_t type;
    if (!read_name(c, "metadata key", &kv->key, err))
        return false;
    char key[64];
    (void)snprintf(key, sizeof key, "%.*s", (int)(kv->key.len < 60 ? kv->key.len : 60),
                   kv->key.ptr);
    if (!read_u32(c, key, &type, err))
        return false;
    if (type >= GGUF_TYPE_COUNT)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is of unknown type %" PRIu32, c->doc, key,
                       type);
    kv->type = (GgufType)type;
    kv->n = 1;
    kv->data = c->at;
    if (type == GGUF_ARRAY) {
        if (!skip_array(c, key, 1, &kv->item, &kv->n, err))
            return false;
        kv->data += 12; /* the first item, behind item type and count */
    } else if (type == GGUF_STR) {
        Str s;
        if (!read_str(c, key, &s, err))
            return false;
    } else if (!take(c, type_bytes[type], key, err)) {
        return false;
    }
    kv->bytes = (uint64_t)(c->at - kv->data);
    return true;
}

static bool read_metadata(Cursor *c, Gguf *g, Error *err)
{
    for (int64_t i = 0; i < g->n_kv; i++) {
        GgufKv *kv = &g->kv[i];
        if (!read_kv(c, kv, err))
            return false;
        for (int64_t j = 0; j < i; j++)
            if (str_eq(g->kv[j].key, kv->key))
                return err_set(err, ERR_FORMAT, "%s: key \"%.*s\" appears twice", c->doc,
                               (int)(kv->key.len < 60 ? kv->key.len : 60), kv->key.ptr);
    }
    return true;
}

/* ---- tensors ---- */

static bool read_tensor(Cursor *c, Tensor *t, Error *err)
{
    uint32_t n_dims;
    uint32_t type;
    if (!read_name(c, "tensor name", &t->name, err))
        return false;
    char what[200];
    (void)snprintf(what, sizeof what, "%.100s: tensor \"%.*s\"", c->doc,
                   (int)(t->name.len < 60 ? t->name.len : 60), t->name.ptr);
    if (!read_u32(c, "tensor dimensions", &n_dims, err))
        return false;
    if (n_dims > TENSOR_DIMS_MAX)
        return err_set(err, ERR_FORMAT, "%s: %" PRIu32 " dimensions, at most %d", what, n_dims,
                       TENSOR_DIMS_MAX);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < TENSOR_DIMS_MAX; i++)
        t->dims[i] = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) { /* stored fastest first */
        uint64_t d;
        if (!read_u64(c, "tensor dimensions", &d, err))
            return false;
        t->dims[i] = (int64_t)d;
    }
    if (!read_u32(c, "tensor type", &type, err) || !read_u64(c, "tensor offset", &t->offset, err))
        return false;
    t->dtype = tensor_dtype_gguf(type);
    if (t->dtype == DT_COUNT)
        return err_set(err, ERR_UNSUPPORTED, "%s: GGUF type %" PRIu32 " is not known", what, type);
    return tensor_size(t->dtype, t->dims, t->n_dims, what, &t->bytes, err);
}

/* Offsets count from the data section, which starts at the next multiple of the alignment. */
static bool place_tensors(const Cursor *c, Gguf *g, Error *err)
{
    const uint64_t len = (uint64_t)(c->end - c->start);
    const uint64_t at = (uint64_t)(c->at - c->start);
    const uint64_t data = (at + g->alignment - 1) & ~(g->alignment - 1);
    for (int64_t i = 0; i < g->n_tensors; i++) {
        Tensor *t = &g->tensors[i];
        if (data > len || t->offset > len - data || t->bytes > len - data - t->offset)
            return err_set(err, ERR_FORMAT,
                           "%.100s: tensor \"%.*s\" has %" PRIu64 " bytes at offset %" PRIu64
                           ", the file has %" PRIu64 " bytes of data",
                           c->doc, (int)(t->name.len < 60 ? t->name.len : 60), t->name.ptr,
                           t->bytes, t->offset, data > len ? 0 : len - data);
        t->offset += data;
        t->data = c->start + t->offset;
    }
    return true;
}

bool gguf_parse(Arena *a, const char *doc, const uint8_t *bytes, uint64_t len, Gguf *out,
                Error *err)
{
    *out = (Gguf){.doc = doc};
    Cursor c = {bytes, bytes, bytes + len, doc};
    uint64_t n_tensors;
    uint64_t n_kv;
    const uint8_t *magic = take(&c, 4, "magic", err);
    if (!magic)
        return false;
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(err, ERR_FORMAT, "%s: no GGUF file (starts with %02x %02x %02x %02x)", doc,
                       magic[0], magic[1], magic[2], magic[3]);
    if (!read_u32(&c, "version", &out->version, err) ||
        !read_u64(&c, "tensor count", &n_tensors, err) ||
        !read_u64(&c, "metadata count", &n_kv, err))
        return false;
    if (out->version != 2 && out->version != 3)
        return err_set(err, ERR_UNSUPPORTED, "%s: GGUF version %" PRIu32 "%s, wanted 2 or 3", doc,
                       out->version,
                       out->version && out->version % 65536 == 0 ? " (big-endian file)" : "");
    /* The smallest entry of each kind bounds the count before memory is taken for it. */
    const uint64_t left = (uint64_t)(c.end - c.at);
    if (n_kv > KV_MAX || n_kv > left / 14)
        return err_set(err, ERR_FORMAT, "%s: metadata count %" PRIu64 ", at most %" PRIu64, doc,
                       n_kv, left / 14 < KV_MAX ? left / 14 : KV_MAX);
    if (n_tensors > TENSORS_MAX || n_tensors > left / 25)
        return err_set(err, ERR_FORMAT, "%s: tensor count %" PRIu64 ", at most %" PRIu64, doc,
                       n_tensors, left / 25 < TENSORS_MAX ? left / 25 : TENSORS_MAX);
    out->n_kv = (int64_t)n_kv;
    out->n_tensors = (int64_t)n_tensors;
    out->kv = ARENA_ARRAY(a, n_kv, GgufKv, err);
    out->tensors = ARENA_ARRAY(a, n_tensors, Tensor, err);
    if (!out->kv || !out->tensors || !read_metadata(&c, out, err))
        return false;
    int64_t alignment;
    if (!gguf_i64_or(out, "general.alignment", ALIGNMENT_DEFAULT, &alignment, err))
        return false;
    if (alignment < 1 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return err_set(err, ERR_FORMAT,
                       "%s: \"general.alignment\" is %" PRId64 ", wanted a power of two up to %d",
                       doc, alignment, ALIGNMENT_MAX);
    out->alignment = (uint64_t)alignment;
    for (int64_t i = 0; i < out->n_tensors; i++)
        if (!read_tensor(&c, &out->tensors[i], err))
            return false;
    if (!place_tensors(&c, out, err))
        return false;
    const ArenaMark mark = arena_mark(a);
    const Tensor **scratch = ARENA_ARRAY(a, n_tensors, const Tensor *, err);
    if (!scratch || !tensor_check_overlap(out->tensors, out->n_tensors, scratch, doc, err))
        return false;
    arena_rewind(a, mark);
    return true;
}

/* ---- files and splits ---- */

/* "<prefix>-00002-of-00003.gguf": the prefix's length and the count. */
static bool split_name(const char *path, size_t *prefix, int *count)
{
    static const char form[] = "-00001-of-00003.gguf";
    const size_t n = strlen(path);
    if (n < sizeof form - 1)
        return false;
    const char *tail = path + n - (sizeof form - 1);
    for (size_t i = 0; i < sizeof form - 1; i++) {
        const bool digit = tail[i] >= '0' && tail[i] <= '9';
        const bool wanted = form[i] >= '0' && form[i] <= '9';
        if (wanted != digit || (!wanted && tail[i] != form[i]))
            return false;
    }
    int64_t v;
    if (!str_to_int((Str){tail + 10, 5}, 1, SPLITS_MAX, &v))
        return false;
    *prefix = n - (sizeof form - 1);
    *count = (int)v;
    return true;
}

static bool map_one(Arena *a, const char *path, FileMap *map, Gguf *g, Error *err)
{
    if (!file_map(path, map, err))
        return false;
    if (gguf_parse(a, path, map->data, map->bytes, g, err))
        return true;
    file_unmap(map);
    return false;
}

/* Joins the tensors of `parts` behind the first one's metadata. */
static bool join_splits(Arena *a, const Gguf *parts, int n, Gguf *out, Error *err)
{
    int64_t total = 0;
    for (int i = 0; i < n; i++)
        total += parts[i].n_tensors;
    int64_t wanted;
    if (!gguf_i64_or(&parts[0], "split.tensors.count", total, &wanted, err))
        return false;
    if (wanted != total)
        return err_set(err, ERR_FORMAT,
                       "%s: \"split.tensors.count\" is %" PRId64 ", its %d splits have %" PRId64,
                       parts[0].doc, wanted, n, total);
    Tensor *all = ARENA_ARRAY(a, total, Tensor, err);
    if (!all)
        return false;
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        for (int64_t j = 0; j < parts[i].n_tensors; j++, at++) {
            all[at] = parts[i].tensors[j];
            all[at].file = i;
        }
    }
    FileMap *maps = out->maps;
    const char **paths = out->paths;
    *out = parts[0];
    out->tensors = all;
    out->n_tensors = total;
    out->maps = maps;
    out->paths = paths;
    out->n_files = n;
    return true;
}

static bool open_splits(Arena *a, const char *path, int n, Gguf *out, Error *err)
{
    size_t prefix;
    int named;
    if (!split_name(path, &prefix, &named) || named != n)
        return err_set(err, ERR_FORMAT,
                       "%s: one of %d splits, but its name does not end in -00001-of-%05d.gguf",
                       path, n, n);
    out->maps = ARENA_ARRAY(a, n, FileMap, err);
    out->paths = ARENA_ARRAY(a, n, const char *, err);
    Gguf *parts = ARENA_ARRAY(a, n, Gguf, err);
    if (!out->maps || !out->paths || !parts)
        return false;
    for (int i = 0; i < n; i++) {
        out->paths[i] = arena_printf(a, err, "%.*s-%05d-of-%05d.gguf", (int)prefix, path, i + 1, n);
        if (!out->paths[i] || !map_one(a, out->paths[i], &out->maps[i], &parts[i], err))
            return false;
        out->n_files = i + 1;
        int64_t no;
        int64_t count;
        if (!gguf_i64_or(&parts[i], "split.no", -1, &no, err) ||
            !gguf_i64_or(&parts[i], "split.count", -1, &count, err))
            return false;
        if (no != i || count != n)
            return err_set(err, ERR_FORMAT,
                           "%s: \"split.no\" %" PRId64 " of \"split.count\" %" PRId64
                           ", wanted %d of %d",
                           out->paths[i], no, count, i, n);
    }
    return join_splits(a, parts, n, out, err);
}

bool gguf_open(Arena *a, const char *path, Gguf *out, Error *err)
{
    FileMap map;
    const char *doc = arena_strdup(a, path, strlen(path), err);
    *out = (Gguf){0};
    if (!doc || !map_one(a, doc, &map, out, err))
        return false;
    int64_t count;
    bool ok = gguf_i64_or(out, "split.count", 1, &count, err);
    if (ok && (count < 0 || count > SPLITS_MAX))
        ok = err_set(err, ERR_FORMAT, "%s: \"split.count\" is %" PRId64 ", at most %d", doc, count,
                     SPLITS_MAX);
    if (ok && count <= 1) {
        out->maps = ARENA_NEW(a, FileMap, err);
        out->paths = ARENA_NEW(a, const char *, err);
        if (out->maps && out->paths) {
            out->maps[0] = map;
            out->paths[0] = doc;
            out->n_files = 1;
            return true;
        }
        ok = false;
    }
    file_unmap(&map);
    *out = (Gguf){0};
    if (ok && open_splits(a, doc, (int)count, out, err))
        return true;
    gguf_close(out);
    return false;
}

void gguf_close(Gguf *g)
{
    for (int i = 0; i < g->n_files; i++)
        file_unmap(&g->maps[i]);
    *g = (Gguf){0};
}

bool gguf_add(Arena *a, Gguf *g, const char *path, Gguf *added, Error *err)
{
    if (!gguf_open(a, path, added, err))
        return false;
    const int n_files = g->n_files + added->n_files;
    const int64_t n = g->n_tensors + added->n_tensors;
    FileMap *maps = ARENA_ARRAY(a, n_files, FileMap, err);
    const char **paths = ARENA_ARRAY(a, n_files, const char *, err);
    Tensor *tensors = ARENA_ARRAY(a, n, Tensor, err);
    if (!maps || !paths || !tensors) {
        gguf_close(added);
        return false;
    }
    for (int i = 0; i < n_files; i++) {
        const Gguf *from = i < g->n_files ? g : added;
        maps[i] = from->maps[from == g ? i : i - g->n_files];
        paths[i] = from->paths[from == g ? i : i - g->n_files];
    }
    for (int64_t i = 0; i < g->n_tensors; i++)
        tensors[i] = g->tensors[i];
    for (int64_t i = 0; i < added->n_tensors; i++) {
        added->tensors[i].file += g->n_files;
        tensors[g->n_tensors + i] = added->tensors[i];
    }
    g->maps = maps;
    g->paths = paths;
    g->n_files = n_files;
    g->tensors = tensors;
    g->n_tensors = n;
    added->n_files = 0; /* they are g's to close */
    return true;
}

/* `quant` is a whole word of `name`, in any case. '_' is inside a word ("Q4_K_M") but may come
 * before one. */
static bool names_quant(const char *name, Str quant)
{
    const size_t n = strlen(name);
    for (size_t i = 1; i + quant.len < n; i++)
        if (strncasecmp(name + i, quant.ptr, quant.len) == 0 && strchr("-._", name[i - 1]) &&
            strchr("-.", name[i + quant.len]))
            return true;
    return false;
}

/* The models, or the projectors, of a directory. */
typedef struct Found {
    const char *name; /* the last one */
    int count;
    char list[120]; /* names of all that fit */
} Found;

static bool look(Arena *a, const char *dir, bool projectors, Str quant, Found *out, Error *err)
{
    const char *const *names;
    int n;
    *out = (Found){.count = 0};
    if (!dirlist_read(a, dir, ".gguf", &names, &n, err))
        return false;
    for (int i = 0; i < n; i++) {
        size_t prefix;
        int splits;
        const bool later_split = split_name(names[i], &prefix, &splits) &&
                                 strncmp(names[i] + prefix, "-00001-of-", 10) != 0;
        if (later_split || (strncasecmp(names[i], "mmproj", 6) == 0) != projectors ||
            (quant.len && !names_quant(names[i], quant)))
            continue;
        out->name = names[i];
        const size_t used = strlen(out->list);
        if (used + strlen(out->name) + 3 < sizeof out->list)
            (void)snprintf(out->list + used, sizeof out->list - used, "%s%s",
                           out->count ? ", " : "", out->name);
        out->count++;
    }
    return true;
}

bool gguf_in_dir(Arena *a, const char *dir, Str quant, const char **path, Error *err)
{
    Found f;
    if (!look(a, dir, false, quant, &f, err))
        return false;
    if (f.count == 0)
        return err_set(err, ERR_NOT_FOUND, "%s: no .gguf model%s%.*s", dir,
                       quant.len ? " named " : "", (int)quant.len, quant.len ? quant.ptr : "");
    if (f.count > 1)
        return err_set(err, ERR_USAGE, "%s: %d GGUF models, say which: %s", dir, f.count, f.list);
    *path = arena_printf(a, err, "%s/%s", dir, f.name);
    return *path != NULL;
}

bool gguf_projector(Arena *a, const char *model, const char **path, Error *err)
{
    const char *slash = strrchr(model, '/');
    const char *dir = slash ? arena_strdup(a, model, (size_t)(slash + 1 - model), err) : "./";
    Found f;
    if (!dir || !look(a, dir, true, (Str){0}, &f, err))
        return false;
    if (f.count == 0)
        return err_set(err, ERR_NOT_FOUND, "%s: no vision projector (mmproj*.gguf) beside it",
                       model);
    if (f.count > 1)
        return err_set(err, ERR_USAGE, "%s: %d vision projectors beside it, wanted one: %s", model,
                       f.count, f.list);
    *path = arena_printf(a, err, "%s%s", dir, f.name);
    return *path != NULL;
}

/* ---- getters ---- */

const GgufKv *gguf_find(const Gguf *g, const char *key)
{
    for (int64_t i = 0; i < g->n_kv; i++)
        if (str_is(g->kv[i].key, key))
            return &g->kv[i];
    return NULL;
}

static bool wrong_type(const Gguf *g, const GgufKv *kv, const char *key, const char *wanted,
                       Error *err)
{
    return err_set(err, ERR_FORMAT, "%s: \"%s\" is of type %s, wanted %s", g->doc, key,
                   type_names[kv->type], wanted);
}

static int64_t as_i64(GgufType type, const uint8_t *p)
{
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL:
        return p[0];
    case GGUF_I8:
        return (int8_t)p[0];
    case GGUF_U16:
        return (int64_t)load(p, 2);
    case GGUF_I16:
        return (int16_t)load(p, 2);
    case GGUF_U32:
        return (int64_t)load(p, 4);
    case GGUF_I32:
        return (int32_t)load(p, 4);
    case GGUF_U64:
    case GGUF_I64:
        return (int64_t)load(p, 8);
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_STR:
    case GGUF_ARRAY:
    case GGUF_TYPE_COUNT:
        break;
    }
    return 0;
}

static double as_f64(GgufType type, const uint8_t *p)
{
    if (type == GGUF_F32)
        return (double)num_float((uint32_t)load(p, 4));
    if (type == GGUF_F64) {
        const uint64_t bits = load(p, 8);
        double d;
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    if (type == GGUF_U64)
        return (double)load(p, 8);
    return (double)as_i64(type, p);
}

static bool is_number(GgufType t)
{
    return t != GGUF_BOOL && t != GGUF_STR && t != GGUF_ARRAY;
}

bool gguf_i64_or(const Gguf *g, const char *key, int64_t missing, int64_t *out, Error *err)
{
    const GgufKv *kv = gguf_find(g, key);
    *out = missing;
    if (!kv)
        return true;
    if (!is_number(kv->type))
        return wrong_type(g, kv, key, "an integer", err);
    if (kv->type == GGUF_F32 || kv->type == GGUF_F64) {
        const double d = as_f64(kv->type, kv->data);
        if (!(fabs(d) < 9e15) || floor(d) != d)
            return err_set(err, ERR_FORMAT, "%s: \"%s\" is %g, wanted an integer", g->doc, key, d);
        *out = (int64_t)d;
        return true;
    }
    *out = as_i64(kv->type, kv->data);
    if (kv->type == GGUF_U64 && *out < 0)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is %" PRIu64 ", too large", g->doc, key,
                       load(kv->data, 8));
    return true;
}

bool gguf_f64_or(const Gguf *g, const char *key, double missing, double *out, Error *err)
{
    const GgufKv *kv = gguf_find(g, key);
    *out = missing;
    if (!kv)
        return true;
    if (!is_number(kv->type))
        return wrong_type(g, kv, key, "a number", err);
    *out = as_f64(kv->type, kv->data);
    return isfinite(*out) || err_set(err, ERR_FORMAT, "%s: \"%s\" is not finite", g->doc, key);
}

bool gguf_bool_or(const Gguf *g, const char *key, bool missing, bool *out, Error *err)
{
    const GgufKv *kv = gguf_find(g, key);
    *out = missing;
    if (!kv)
        return true;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, kv, key, "a bool", err);
    *out = kv->data[0] != 0;
    return true;
}

bool gguf_str_or(const Gguf *g, const char *key, Str missing, Str *out, Error *err)
{
    const GgufKv *kv = gguf_find(g, key);
    *out = missing;
    if (!kv)
        return true;
    if (kv->type != GGUF_STR)
        return wrong_type(g, kv, key, "a string", err);
    const uint8_t *at = kv->data;
    *out = gguf_next_str(&at);
    return true;
}

int64_t gguf_item_i64(const GgufKv *kv, uint64_t i)
{
    return as_i64(kv->item, kv->data + i * type_bytes[kv->item]);
}

double gguf_item_f64(const GgufKv *kv, uint64_t i)
{
    return as_f64(kv->item, kv->data + i * type_bytes[kv->item]);
}

Str gguf_next_str(const uint8_t **at)
{
    const uint64_t n = load(*at, 8);
    const Str s = {(const char *)*at + 8, n};
    *at += 8 + n;
    return s;
}
