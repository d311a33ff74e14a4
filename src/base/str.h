/* str.h: byte strings. Str borrows (pointer and length, any bytes, not NUL-terminated unless said);
 * StrBuf owns and grows. */
#ifndef MERE_BASE_STR_H
#define MERE_BASE_STR_H

#include "base/err.h"

#include <string.h>

typedef struct Str {
    const char *ptr;
    size_t len;
} Str;

static inline Str str_from(const char *cstr)
{
    return (Str){cstr, strlen(cstr)};
}

static inline bool str_eq(Str a, Str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool str_is(Str a, const char *cstr)
{
    return str_eq(a, str_from(cstr));
}

static inline bool str_starts(Str a, const char *prefix)
{
    const size_t n = strlen(prefix);
    return a.len >= n && memcmp(a.ptr, prefix, n) == 0;
}

static inline bool str_ends(Str a, const char *suffix)
{
    const size_t n = strlen(suffix);
    return a.len >= n && memcmp(a.ptr + a.len - n, suffix, n) == 0;
}

/* Whole string as a decimal integer within [lo, hi]. */
bool str_to_int(Str s, int64_t lo, int64_t hi, int64_t *out);
bool str_to_double(Str s, double *out);

/* A buffer with a limit from birth: an append past `max` fails. Zero-initialise with strbuf_init.
 * Errors are sticky: after a failed append `failed` is set and later appends do nothing, so one
 * check at the end is enough. */
typedef struct StrBuf {
    char *ptr; /* always NUL-terminated when not NULL */
    size_t len, cap, max;
    bool failed;
} StrBuf;

void strbuf_init(StrBuf *b, size_t max);
void strbuf_free(StrBuf *b);
void strbuf_clear(StrBuf *b); /* keeps the memory */
bool strbuf_add(StrBuf *b, const char *s, size_t len);
bool strbuf_add_cstr(StrBuf *b, const char *s);
bool strbuf_printf(StrBuf *b, const char *fmt, ...) PRINTF(2, 3);
static inline Str strbuf_str(const StrBuf *b)
{
    return (Str){b->ptr ? b->ptr : "", b->len};
}
/* ERR_NOMEM when the buffer failed. */
MUST_CHECK bool strbuf_check(const StrBuf *b, const char *what, Error *err);

#endif
