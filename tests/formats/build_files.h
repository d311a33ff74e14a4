/* build_files.h: model files written by the tests themselves: a temporary directory, safetensors
 * from a header's text, GGUF from calls. Test programs only; everything fails the test on error. */
#ifndef MERE_TESTS_FORMATS_BUILD_FILES_H
#define MERE_TESTS_FORMATS_BUILD_FILES_H

#include "base/arena.h"
#include "base/str.h"
#include "weights/gguf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a temporary directory ---- */

typedef struct TempDir {
    char path[400];
} TempDir;

static inline void temp_open(TempDir *d)
{
    snprintf(d->path, sizeof d->path, "%s/formats-XXXXXX", TEST_TMP);
    if (!mkdtemp(d->path))
        fail_msg("cannot make %s", d->path);
}

static inline void temp_remove(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *e;
    while (dir && (e = readdir(dir)) != NULL) {
        char name[1200];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(name, sizeof name, "%.900s/%s", path, e->d_name);
        if (unlink(name) != 0)
            temp_remove(name);
    }
    if (dir)
        closedir(dir);
    rmdir(path);
}

static inline void temp_write(const TempDir *d, const char *name, const void *data, size_t n)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    for (char *slash = strchr(path + strlen(d->path) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0777);
        *slash = '/';
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        fail_msg("cannot write %s", path);
}

static inline void temp_text(const TempDir *d, const char *name, const char *text)
{
    temp_write(d, name, text, strlen(text));
}

static inline const char *temp_path(const TempDir *d, const char *name, char *buf, size_t size)
{
    snprintf(buf, size, "%s/%s", d->path, name);
    return buf;
}

/* ---- bytes ---- */

static inline void put(StrBuf *b, const void *data, size_t n)
{
    if (!strbuf_add(b, data, n))
        fail_msg("test buffer is full");
}

static inline void put_int(StrBuf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        put(b, &(uint8_t){(uint8_t)(v >> (8 * i))}, 1);
}

/* Data whose byte i is (seed + 7 i) mod 251, so that a wrong offset shows. */
static inline void put_pattern(StrBuf *b, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        put_int(b, (seed + 7 * i) % 251, 1);
}

/* ---- safetensors ---- */

static inline void put_safetensors(StrBuf *b, const char *header, size_t data, unsigned seed)
{
    put_int(b, strlen(header), 8);
    put(b, header, strlen(header));
    put_pattern(b, data, seed);
}

static inline void temp_safetensors(const TempDir *d, const char *name, const char *header,
                                    size_t data, unsigned seed)
{
    StrBuf b;
    strbuf_init(&b, 1 << 20);
    put_safetensors(&b, header, data, seed);
    temp_write(d, name, b.ptr, b.len);
    strbuf_free(&b);
}

/* ---- GGUF ---- */

typedef struct GgufBuilder {
    StrBuf kv, infos, data;
    uint64_t n_kv, n_tensors;
    uint32_t version;
    uint64_t alignment;
} GgufBuilder;

static inline void gguf_start(GgufBuilder *g)
{
    *g = (GgufBuilder){.version = 3, .alignment = 32};
    strbuf_init(&g->kv, 1 << 22);
    strbuf_init(&g->infos, 1 << 22);
    strbuf_init(&g->data, 1 << 22);
}

static inline void put_gguf_str(StrBuf *b, const char *s)
{
    put_int(b, strlen(s), 8);
    put(b, s, strlen(s));
}

static inline void gguf_key(GgufBuilder *g, const char *key, GgufType type)
{
    put_gguf_str(&g->kv, key);
    put_int(&g->kv, type, 4);
    g->n_kv++;
}

static inline void gguf_u32(GgufBuilder *g, const char *key, uint32_t v)
{
    gguf_key(g, key, GGUF_U32);
    put_int(&g->kv, v, 4);
}

static inline void gguf_f32(GgufBuilder *g, const char *key, float v)
{
    gguf_key(g, key, GGUF_F32);
    put(&g->kv, &v, 4);
}

static inline void gguf_text(GgufBuilder *g, const char *key, const char *v)
{
    gguf_key(g, key, GGUF_STR);
    put_gguf_str(&g->kv, v);
}

static inline void gguf_array(GgufBuilder *g, const char *key, GgufType item, uint64_t n)
{
    gguf_key(g, key, GGUF_ARRAY);
    put_int(&g->kv, item, 4);
    put_int(&g->kv, n, 8);
}

/* dims as the file has them: fastest first. */
static inline void gguf_info(GgufBuilder *g, const char *name, int n_dims, const uint64_t *dims,
                             uint32_t type, uint64_t offset)
{
    put_gguf_str(&g->infos, name);
    put_int(&g->infos, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++)
        put_int(&g->infos, dims[i], 8);
    put_int(&g->infos, type, 4);
    put_int(&g->infos, offset, 8);
    g->n_tensors++;
}

/* A tensor with its bytes, at the next multiple of the alignment. */
static inline void gguf_tensor(GgufBuilder *g, const char *name, int n_dims, const uint64_t *dims,
                               uint32_t type, size_t bytes)
{
    while (g->data.len % g->alignment)
        put_int(&g->data, 0, 1);
    gguf_info(g, name, n_dims, dims, type, g->data.len);
    put_pattern(&g->data, bytes, (unsigned)g->n_tensors);
}

/* The file's bytes; the builder is freed. */
static inline void gguf_finish(GgufBuilder *g, StrBuf *out)
{
    strbuf_init(out, 1 << 24);
    put(out, "GGUF", 4);
    put_int(out, g->version, 4);
    put_int(out, g->n_tensors, 8);
    put_int(out, g->n_kv, 8);
    put(out, strbuf_str(&g->kv).ptr, g->kv.len);
    put(out, strbuf_str(&g->infos).ptr, g->infos.len);
    while (g->data.len && out->len % g->alignment)
        put_int(out, 0, 1);
    put(out, strbuf_str(&g->data).ptr, g->data.len);
    strbuf_free(&g->kv);
    strbuf_free(&g->infos);
    strbuf_free(&g->data);
}

static inline void temp_gguf(const TempDir *d, const char *name, GgufBuilder *g)
{
    StrBuf b;
    gguf_finish(g, &b);
    temp_write(d, name, b.ptr, b.len);
    strbuf_free(&b);
}

/* ---- checks ---- */

static inline void expect_error(const char *what, const Error *err, ErrCode code,
                                const char *const *parts, int n_parts)
{
    if (err->code != code)
        fail_msg("%s: code %s, wanted %s (%s)", what, err_name(err->code), err_name(code),
                 err->msg);
    for (int i = 0; i < n_parts; i++)
        if (parts[i] && !strstr(err->msg, parts[i]))
            fail_msg("%s: message \"%s\" does not say \"%s\"", what, err->msg, parts[i]);
}

#endif
