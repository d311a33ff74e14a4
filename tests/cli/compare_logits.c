/* compare_logits FILE GOLDEN BOUND: the F32 tensors "logits" of two safetensors files have one
 * shape and differ by at most BOUND. Prints the largest difference. */
#include "base/file.h"
#include "base/json.h"
#include "weights/safetensors.h"

#include <math.h>
#include <stdio.h>

enum { FILE_MAX = 64 << 20 };

static bool read_logits(Arena *a, const char *path, Tensor *out, Error *err)
{
    Str bytes;
    Tensor *t;
    int64_t n;
    if (!file_read(a, path, FILE_MAX, &bytes, err) ||
        !safetensors_parse(a, path, (const uint8_t *)bytes.ptr, bytes.len, &t, &n, err))
        return false;
    for (int64_t i = 0; i < n; i++) {
        if (!str_is(t[i].name, "logits"))
            continue;
        *out = t[i];
        return (t[i].dtype == DT_F32 && t[i].n_dims == 2) ||
               err_set(err, ERR_FORMAT, "%s: logits are no F32 matrix", path);
    }
    return err_set(err, ERR_FORMAT, "%s: no tensor \"logits\"", path);
}

static bool compare(Arena *a, const char *path, const char *golden, double bound, Error *err)
{
    Tensor x;
    Tensor y;
    if (!read_logits(a, path, &x, err) || !read_logits(a, golden, &y, err))
        return false;
    if (x.dims[0] != y.dims[0] || x.dims[1] != y.dims[1])
        return err_set(err, ERR_FORMAT, "%s is [%lld, %lld], wanted [%lld, %lld]", path,
                       (long long)x.dims[0], (long long)x.dims[1], (long long)y.dims[0],
                       (long long)y.dims[1]);
    double worst = 0;
    for (uint64_t at = 0; at < x.bytes; at += sizeof(float)) {
        float p;
        float q;
        memcpy(&p, x.data + at, sizeof p);
        memcpy(&q, y.data + at, sizeof q);
        const double d = fabs((double)p - (double)q);
        if (!(d <= bound))
            return err_set(err, ERR_FAILED, "%s: element %llu is %g, wanted %g within %g", path,
                           (unsigned long long)(at / sizeof p), (double)p, (double)q, bound);
        worst = d > worst ? d : worst;
    }
    printf("%.3g\n", worst);
    return true;
}

int main(int argc, char **argv)
{
    double bound;
    if (argc != 4 || !str_to_double(str_from(argv[3]), &bound)) {
        fputs("usage: compare_logits FILE GOLDEN BOUND\n", stderr);
        return 2;
    }
    json_setup();
    Arena a;
    arena_init(&a, "compare_logits");
    Error err = {0};
    const bool ok = compare(&a, argv[1], argv[2], bound, &err);
    if (!ok)
        fprintf(stderr, "compare_logits: %s\n", err.msg);
    arena_free(&a);
    return ok ? 0 : 1;
}
