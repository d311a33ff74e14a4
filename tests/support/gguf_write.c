#include "support/gguf_write.h"

#include "base/num.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

enum { MAX_BYTES = 64 << 20, ALIGN = 32, TYPE_U32 = 4, TYPE_F32 = 6, TYPE_STR = 8 };

static void raw(StrBuf *b, const void *p, size_t n)
{
    (void)strbuf_add(b, p, n);
}

static void u32(StrBuf *b, uint32_t v)
{
    raw(b, &v, sizeof v);
}

static void u64(StrBuf *b, uint64_t v)
{
    raw(b, &v, sizeof v);
}

static void str(StrBuf *b, const char *s)
{
    u64(b, strlen(s));
    raw(b, s, strlen(s));
}

static void pad(StrBuf *b, size_t unit)
{
    static const char zeros[ALIGN];
    raw(b, zeros, (unit - b->len % unit) % unit);
}

void gguf_write_begin(GgufWrite *w)
{
    *w = (GgufWrite){.n_kv = 0};
    strbuf_init(&w->kv, MAX_BYTES);
    strbuf_init(&w->infos, MAX_BYTES);
    strbuf_init(&w->data, MAX_BYTES);
}

static void key(GgufWrite *w, const char *name, uint32_t type)
{
    str(&w->kv, name);
    u32(&w->kv, type);
    w->n_kv++;
}

void gguf_write_u32(GgufWrite *w, const char *name, uint32_t v)
{
    key(w, name, TYPE_U32);
    u32(&w->kv, v);
}

void gguf_write_f32(GgufWrite *w, const char *name, float v)
{
    key(w, name, TYPE_F32);
    raw(&w->kv, &v, sizeof v);
}

void gguf_write_str(GgufWrite *w, const char *name, const char *v)
{
    key(w, name, TYPE_STR);
    str(&w->kv, v);
}

void gguf_write_q8_0(const float *x, uint8_t block[34])
{
    float top = 0;
    for (int i = 0; i < 32; i++)
        top = fmaxf(top, fabsf(x[i]));
    const float scale = top / 127;
    const float inverse = top > 0 ? 1 / scale : 0;
    const uint16_t d = num_to_f16(scale);
    memcpy(block, &d, sizeof d);
    for (int i = 0; i < 32; i++) {
        const int8_t q = (int8_t)roundf(x[i] * inverse);
        memcpy(block + 2 + i, &q, 1);
    }
}

void gguf_write_tensor(GgufWrite *w, const char *name, DType type, const int64_t *dims, int n_dims,
                       const float *x)
{
    int64_t n = 1;
    pad(&w->data, ALIGN);
    str(&w->infos, name);
    u32(&w->infos, (uint32_t)n_dims);
    for (int i = n_dims - 1; i >= 0; i--) {
        u64(&w->infos, (uint64_t)dims[i]);
        n *= dims[i];
    }
    u32(&w->infos, (uint32_t)tensor_dtype(type)->gguf);
    u64(&w->infos, w->data.len);
    w->n_tensors++;
    if (type == DT_F32) {
        raw(&w->data, x, (size_t)n * sizeof *x);
    } else if (type == DT_Q8_0) {
        uint8_t block[34];
        for (int64_t i = 0; i < n; i += 32) {
            gguf_write_q8_0(x + i, block);
            raw(&w->data, block, sizeof block);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            const uint16_t h = type == DT_F16 ? num_to_f16(x[i]) : num_to_bf16(x[i]);
            raw(&w->data, &h, sizeof h);
        }
    }
}

bool gguf_write_end(GgufWrite *w, const char *path, Error *err)
{
    StrBuf head;
    strbuf_init(&head, MAX_BYTES);
    raw(&head, "GGUF", 4);
    u32(&head, 3);
    u64(&head, w->n_tensors);
    u64(&head, w->n_kv);
    raw(&head, w->kv.ptr, w->kv.len);
    raw(&head, w->infos.ptr, w->infos.len);
    pad(&head, ALIGN);
    bool ok = strbuf_check(&w->kv, path, err) && strbuf_check(&w->infos, path, err) &&
              strbuf_check(&w->data, path, err) && strbuf_check(&head, path, err);
    FILE *f = ok ? fopen(path, "wb") : NULL;
    if (ok && !f)
        ok = err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    if (f) {
        const bool wrote = fwrite(head.ptr, 1, head.len, f) == head.len &&
                           fwrite(w->data.ptr, 1, w->data.len, f) == w->data.len;
        if (fclose(f) != 0 || !wrote)
            ok = err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    }
    strbuf_free(&head);
    strbuf_free(&w->kv);
    strbuf_free(&w->infos);
    strbuf_free(&w->data);
    return ok;
}
