#include "support/gguf_head.h"

#include "support/gguf_write.h"

#include "base/num.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>

bool gguf_head_open(Arena *a, const char *data, const char *name, GgufHead *out, Error *err)
{
    Str head;
    Str sum;
    long long bytes = 0;
    const char *path = arena_printf(a, err, "%s/tiny-gguf/%s.head", data, name);
    if (!path || !file_read(a, path, 1 << 20, &head, err))
        return false;
    path = arena_printf(a, err, "%s/tiny-gguf/%s.sum", data, name);
    if (!path || !file_read(a, path, 1 << 10, &sum, err))
        return false;
    if (sscanf(sum.ptr, "%64s %lld", out->sha256, &bytes) != 2 || bytes < (long long)head.len)
        return err_set(err, ERR_FORMAT, "%s: no sha256 and size", path);
    out->bytes = bytes;
    out->file = ARENA_ARRAY(a, bytes, uint8_t, err);
    if (!out->file)
        return false;
    memcpy(out->file, head.ptr, head.len);
    return gguf_parse(a, name, out->file, (uint64_t)bytes, &out->gguf, err);
}

void gguf_head_put(const GgufHead *h, const Tensor *t, const float *x)
{
    uint8_t *to = h->file + (t->data - h->file);
    for (int64_t i = 0; i < tensor_elements(t); i++)
        if (t->dtype == DT_F32)
            memcpy(to + i * 4, &x[i], 4);
        else if (t->dtype == DT_BF16)
            memcpy(to + i * 2, &(uint16_t){num_to_bf16(x[i])}, 2);
        else if (t->dtype == DT_Q8_0 && i % 32 == 0)
            gguf_write_q8_0(x + i, to + i / 32 * 34);
}

bool gguf_head_write(const GgufHead *h, const char *path, Error *err)
{
    char hex[2 * EVP_MAX_MD_SIZE + 1] = "";
    unsigned char md[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_Digest(h->file, (size_t)h->bytes, md, &n, EVP_sha256(), NULL) != 1)
        return err_set(err, ERR_FAILED, "%s: no sha256", h->gguf.doc);
    for (unsigned i = 0; i < n; i++)
        (void)snprintf(hex + (ptrdiff_t)i * 2, 3, "%02x", md[i]);
    if (strcmp(hex, h->sha256) != 0)
        return err_set(err, ERR_FORMAT, "%s: sha256 %s, the converter's file has %s", h->gguf.doc,
                       hex, h->sha256);
    FILE *f = fopen(path, "wb");
    if (!f)
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    const bool wrote = fwrite(h->file, 1, (size_t)h->bytes, f) == (size_t)h->bytes;
    return (fclose(f) == 0 && wrote) || err_set(err, ERR_IO, "%s: cannot write", path);
}
