#include "weights/safetensors_write.h"

#include "base/json.h"
#include "weights/tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static bool write_all(SafetensorsWriter *w, const void *data, size_t n, Error *err)
{
    const char *p = data;
    while (n > 0) {
        const ssize_t done = write(w->fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            err_set(err, ERR_IO, "%s: %s", w->tmp, done < 0 ? strerror(errno) : "write gave 0");
            safetensors_write_abort(w);
            return false;
        }
        p += done;
        n -= (size_t)done;
    }
    return true;
}

/* {"name": {"dtype": "F32", "shape": [2,3], "data_offsets": [0,24]}, ...}, padded with blanks so
 * that the data starts at a multiple of 8. */
static bool make_header(const SafetensorsOut *tensors, int n, StrBuf *out, int64_t *values,
                        Error *err)
{
    uint64_t at = 0;
    *values = 0;
    json_t *header = json_object();
    bool ok = header != NULL;
    for (int i = 0; i < n && ok; i++) {
        const SafetensorsOut *t = &tensors[i];
        uint64_t bytes;
        if (!tensor_size(DT_F32, t->dims, t->n_dims, t->name, &bytes, err)) {
            json_decref(header);
            return false;
        }
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++)
            ok = json_array_append_new(shape, json_integer(t->dims[d])) == 0 && ok;
        json_t *entry =
            json_pack("{s:s, s:o, s:[I,I]}", "dtype", "F32", "shape", shape, "data_offsets",
                      (json_int_t)at, (json_int_t)at + (json_int_t)bytes);
        ok = json_object_set_new(header, t->name, entry) == 0 && ok;
        at += bytes;
        *values += (int64_t)(bytes / 4);
    }
    char *text = ok ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text)
        return err_nomem(err, "safetensors header", 0);
    strbuf_add_cstr(out, text);
    json_text_free(text);
    while (out->len % 8 && strbuf_add(out, " ", 1)) {
    }
    return strbuf_check(out, "safetensors header", err);
}

bool safetensors_write_begin(Arena *a, const char *path, const SafetensorsOut *tensors, int n,
                             SafetensorsWriter *w, Error *err)
{
    *w = (SafetensorsWriter){.fd = -1};
    w->path = arena_strdup(a, path, strlen(path), err);
    w->tmp = w->path ? arena_printf(a, err, "%s.tmp.%ld", path, (long)getpid()) : NULL;
    if (!w->tmp)
        return false;
    StrBuf header;
    strbuf_init(&header, 64 << 20);
    bool ok = make_header(tensors, n, &header, &w->left, err);
    if (ok) {
        w->fd = open(w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd < 0)
            ok = err_set(err, ERR_IO, "%s: %s", w->tmp, strerror(errno));
    }
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)(header.len >> (8 * i));
    ok = ok && write_all(w, len, sizeof len, err) && write_all(w, header.ptr, header.len, err);
    strbuf_free(&header);
    return ok;
}

bool safetensors_write_f32(SafetensorsWriter *w, const float *x, int64_t n, Error *err)
{
    if (n > w->left)
        return err_set(err, ERR_USAGE, "%s: %" PRId64 " values more than its shapes hold", w->path,
                       n - w->left);
    w->left -= n;
    return write_all(w, x, (size_t)n * sizeof *x, err);
}

bool safetensors_write_end(SafetensorsWriter *w, Error *err)
{
    if (w->left != 0) {
        safetensors_write_abort(w);
        return err_set(err, ERR_USAGE, "%s: %" PRId64 " values are missing", w->path, w->left);
    }
    const int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 || rename(w->tmp, w->path) != 0) {
        err_set(err, ERR_IO, "%s: %s", w->path, strerror(errno));
        (void)unlink(w->tmp);
        return false;
    }
    return true;
}

void safetensors_write_abort(SafetensorsWriter *w)
{
    if (w->fd < 0)
        return;
    close(w->fd);
    (void)unlink(w->tmp);
    w->fd = -1;
}
