#include "base/str.h"

#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool str_to_int(Str s, int64_t lo, int64_t hi, int64_t *out)
{
    char buf[24];
    if (s.len == 0 || s.len >= sizeof buf || s.ptr[0] == ' ')
        return false;
    memcpy(buf, s.ptr, s.len);
    buf[s.len] = '\0';
    char *end;
    errno = 0;
    const long long v = strtoll(buf, &end, 10);
    if (errno != 0 || end != buf + s.len || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

bool str_to_double(Str s, double *out)
{
    char buf[64];
    if (s.len == 0 || s.len >= sizeof buf || s.ptr[0] == ' ')
        return false;
    memcpy(buf, s.ptr, s.len);
    buf[s.len] = '\0';
    char *end;
    const double v = strtod(buf, &end);
    if (end != buf + s.len || !isfinite(v))
        return false;
    *out = v;
    return true;
}

void strbuf_init(StrBuf *b, size_t max)
{
    *b = (StrBuf){.max = max};
}

void strbuf_free(StrBuf *b)
{
    mem_free(b->ptr);
    *b = (StrBuf){.max = b->max};
}

void strbuf_clear(StrBuf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->ptr)
        b->ptr[0] = '\0';
}

static bool reserve(StrBuf *b, size_t more)
{
    if (b->failed || more > b->max || b->len > b->max - more) {
        b->failed = true;
        return false;
    }
    const size_t need = b->len + more + 1;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap * 2 : 64;
    if (cap < need)
        cap = need;
    char *p = mem_realloc(b->ptr, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->ptr = p;
    b->cap = cap;
    return true;
}

bool strbuf_add(StrBuf *b, const char *s, size_t len)
{
    if (!reserve(b, len))
        return false;
    if (len)
        memcpy(b->ptr + b->len, s, len);
    b->len += len;
    b->ptr[b->len] = '\0';
    return true;
}

bool strbuf_add_cstr(StrBuf *b, const char *s)
{
    return strbuf_add(b, s, strlen(s));
}

bool strbuf_printf(StrBuf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    bool ok = n >= 0 && reserve(b, (size_t)n);
    if (ok) {
        vsnprintf(b->ptr + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
    return ok;
}

bool strbuf_check(const StrBuf *b, const char *what, Error *err)
{
    if (!b->failed)
        return true;
    return err_set(err, ERR_NOMEM, "%s: %zu bytes held, no room for more (limit %zu)", what, b->len,
                   b->max);
}
