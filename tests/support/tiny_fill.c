#include "support/tiny_fill.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 64 << 20 };

static uint64_t fnv1a64(const char *s)
{
    uint64_t h = 0xcbf29ce484222325U;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3U;
    return h;
}

static uint64_t splitmix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

static bool make_dir(const char *path, Error *err)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    return true;
}

static bool write_file(const char *dir, const char *name, Str bytes, Error *err)
{
    char path[512];
    char tmp[560];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)snprintf(tmp, sizeof tmp, "%s.%d", path, (int)getpid());
    FILE *f = fopen(tmp, "wb");
    if (!f)
        return err_set(err, ERR_IO, "%s: %s", tmp, strerror(errno));
    const bool wrote = fwrite(bytes.ptr, 1, bytes.len, f) == bytes.len;
    if (fclose(f) != 0 || !wrote || rename(tmp, path) != 0)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    return true;
}

/* Missing files are fine: not every model has them all. */
static bool copy_file(Arena *a, const char *from, const char *to, const char *name, Error *err)
{
    const char *path = arena_printf(a, err, "%s/%s", from, name);
    Str bytes;
    if (!path)
        return false;
    return !file_exists(path) ||
           (file_read(a, path, FILE_MAX, &bytes, err) && write_file(to, name, bytes, err));
}

typedef struct TinyTensor {
    const char *name;
    bool bf16; /* else F32 */
    int64_t n;
    double scale, offset, grid; /* grid 0: none */
} TinyTensor;

static bool read_tensor(const char *doc, const json_t *t, TinyTensor *out, Error *err)
{
    Str name, dtype;
    if (!json_get_str_or(t, doc, "name", &name, err) ||
        !json_get_str_or(t, doc, "dtype", &dtype, err) ||
        !json_get_f64(t, doc, "scale", &out->scale, err) ||
        !json_get_f64(t, doc, "offset", &out->offset, err) ||
        !json_get_f64_or(t, doc, "grid", 0, &out->grid, err))
        return false;
    out->name = name.ptr;
    out->bf16 = str_is(dtype, "BF16");
    out->n = 1;
    size_t i;
    json_t *dim;
    json_array_foreach (json_object_get(t, "shape"), i, dim)
        out->n *= json_integer_value(dim);
    return true;
}

static bool add_values(StrBuf *b, const TinyTensor *t)
{
    const uint64_t seed = fnv1a64(t->name);
    for (int64_t i = 0; i < t->n; i++) {
        const double u2 = (double)(splitmix64(seed + (uint64_t)i) >> 40) / 8388608.0;
        double v = t->offset + t->scale * (u2 - 1);
        if (t->grid > 0)
            v = rint(v * t->grid) / t->grid;
        const float f = (float)v;
        const uint16_t h = num_to_bf16(f);
        if (!(t->bf16 ? strbuf_add(b, (const char *)&h, sizeof h)
                      : strbuf_add(b, (const char *)&f, sizeof f)))
            return false;
    }
    return true;
}

/* The whole file: length of the header, header padded with spaces to 8 bytes, data. */
static bool make_weights(const char *doc, const json_t *tensors, StrBuf *file, Error *err)
{
    StrBuf head, body;
    strbuf_init(&head, FILE_MAX);
    strbuf_init(&body, FILE_MAX);
    bool ok = true;
    size_t i;
    json_t *item;
    (void)strbuf_add_cstr(&head, "{\"__metadata__\":{\"format\":\"pt\"}");
    json_array_foreach (tensors, i, item) {
        TinyTensor t;
        ok = ok && read_tensor(doc, item, &t, err);
        if (!ok)
            break;
        const size_t from = body.len;
        char *shape = json_dumps(json_object_get(item, "shape"), JSON_COMPACT);
        (void)add_values(&body, &t);
        (void)strbuf_printf(&head,
                            ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                            t.name, t.bf16 ? "BF16" : "F32", shape ? shape : "", from, body.len);
        json_text_free(shape);
    }
    (void)strbuf_add_cstr(&head, "}");
    while (head.len % 8 != 0 && !head.failed)
        (void)strbuf_add_cstr(&head, " ");
    const uint64_t len = head.len;
    strbuf_init(file, FILE_MAX);
    (void)strbuf_add(file, (const char *)&len, sizeof len);
    (void)strbuf_add(file, head.ptr, head.len);
    (void)strbuf_add(file, body.ptr, body.len);
    ok = ok && strbuf_check(&head, "tiny header", err) && strbuf_check(&body, "tiny data", err) &&
         strbuf_check(file, "tiny weights", err);
    strbuf_free(&head);
    strbuf_free(&body);
    return ok;
}

static bool check_hash(const char *doc, Str file, const char *want, Error *err)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    char hex[2 * EVP_MAX_MD_SIZE + 1] = "";
    if (EVP_Digest(file.ptr, file.len, sum, &n, EVP_sha256(), NULL) != 1)
        return err_set(err, ERR_FAILED, "%s: no sha256", doc);
    for (unsigned i = 0; i < n; i++)
        (void)snprintf(hex + 2 * (size_t)i, 3, "%02x", sum[i]);
    if (!want || strcmp(hex, want) != 0)
        return err_set(err, ERR_FORMAT, "%s: generated weights have sha256 %s, wanted %s", doc, hex,
                       want ? want : "one");
    return true;
}

bool tiny_fill(Arena *a, const char *data, const char *name, const char *tmp, const char **dir,
               Error *err)
{
    const char *from = arena_printf(a, err, "%s/tiny/%s", data, name);
    const char *shared = arena_printf(a, err, "%s/tiny", data);
    const char *parent = arena_printf(a, err, "%s/tiny", tmp);
    const char *to = arena_printf(a, err, "%s/tiny/%s", tmp, name);
    const char *doc = arena_printf(a, err, "%s/tiny/%s/golden.json", data, name);
    Str text;
    if (!from || !shared || !parent || !to || !doc || !make_dir(parent, err) ||
        !make_dir(to, err) || !file_read(a, doc, FILE_MAX, &text, err))
        return false;
    json_t *golden = json_parse(doc, text, err);
    if (!golden)
        return false;
    StrBuf file;
    bool ok = make_weights(doc, json_object_get(golden, "tensors"), &file, err) &&
              check_hash(doc, strbuf_str(&file),
                         json_string_value(json_object_get(golden, "sha256")), err) &&
              write_file(to, "model.safetensors", strbuf_str(&file), err);
    strbuf_free(&file);
    json_decref(golden);
    static const char *const own[] = {"config.json", "generation_config.json"};
    static const char *const common[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; ok && i < COUNT_OF(own); i++)
        ok = copy_file(a, from, to, own[i], err) && copy_file(a, shared, to, common[i], err);
    *dir = to;
    return ok;
}
