#include "device/fault.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>

static bool parse(const Fault *f, const char *text, int64_t *at, int64_t *code)
{
    const char *colon = strchr(text, ':');
    const Str n = {text, colon ? (size_t)(colon - text) : strlen(text)};
    *code = f->code;
    if (colon && (f->min == f->max || !str_to_int(str_from(colon + 1), f->min, f->max, code)))
        return false;
    return str_to_int(n, 1, INT64_MAX, at);
}

bool fault_read(Fault *f, Error *err)
{
    const char *text = getenv("MERE_FAULT");
    const size_t len = strlen(f->name);
    if (!text || strncmp(text, f->name, len) != 0 || text[len] != ':')
        text = "";
    if (strcmp(text, f->seen) == 0)
        return true;
    int64_t at = 0;
    int64_t code = 0;
    const bool good = !*text || parse(f, text + len + 1, &at, &code);
    if (!good || strlen(text) >= sizeof f->seen) {
        char codes[48] = "";
        if (f->min != f->max)
            (void)snprintf(codes, sizeof codes, "[:CODE], CODE %d to %d", f->min, f->max);
        return err_set(err, ERR_USAGE, "MERE_FAULT=%.60s: wanted %s:N%s, N from 1", text, f->name,
                       codes);
    }
    (void)snprintf(f->seen, sizeof f->seen, "%s", text);
    atomic_store(&f->calls, 0);
    atomic_store(&f->fail_code, (int)code);
    atomic_store(&f->fail_at, (uint64_t)at);
    return true;
}

int fault_next(Fault *f)
{
    const uint64_t n = atomic_fetch_add_explicit(&f->calls, 1, memory_order_relaxed) + 1;
    if (n != atomic_load_explicit(&f->fail_at, memory_order_relaxed))
        return 0;
    return atomic_load_explicit(&f->fail_code, memory_order_relaxed);
}

void fault_at(Fault *f, uint64_t n, int code)
{
    atomic_store(&f->fail_code, code);
    atomic_store(&f->fail_at, n ? atomic_load(&f->calls) + n : 0);
}
