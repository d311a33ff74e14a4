#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts a message that filled its buffer back to the last whole UTF-8 character. */
static void trim_partial_char(char *s)
{
    size_t len = strlen(s);
    size_t start = len;
    while (start > 0 && ((unsigned char)s[start - 1] & 0xC0U) == 0x80U)
        start--;
    if (start == 0)
        return;
    const unsigned char lead = (unsigned char)s[start - 1];
    const size_t want = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : lead >= 0xC0U ? 2 : 1;
    if (len - (start - 1) < want)
        s[start - 1] = '\0';
}

bool err_set(Error *err, ErrCode code, const char *fmt, ...)
{
    if (!err)
        return false;
    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    const int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof err->msg)
        trim_partial_char(err->msg);
    return false;
}

bool err_wrap(Error *err, const char *fmt, ...)
{
    if (!err)
        return false;
    char prefix[sizeof err->msg];
    char old[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(old, err->msg, sizeof old);
    const int n = snprintf(err->msg, sizeof err->msg, "%.100s: %s", prefix, old);
    if (n >= (int)sizeof err->msg)
        trim_partial_char(err->msg);
    return false;
}

bool err_nomem(Error *err, const char *what, size_t bytes)
{
    return err_set(err, ERR_NOMEM, "out of memory: %s needs %zu bytes", what, bytes);
}

static const struct {
    const char *name;
    int exit_code;
    int http;
} err_table[ERR_COUNT] = {
#define ERR(code, name, exit_code, http) [code] = {name, exit_code, http},
#include "base/err.def"
#undef ERR
};

const char *err_name(ErrCode code)
{
    return (unsigned)code < ERR_COUNT ? err_table[code].name : "unknown";
}

int err_exit_code(ErrCode code)
{
    return (unsigned)code < ERR_COUNT ? err_table[code].exit_code : 1;
}

int err_http_status(ErrCode code)
{
    return (unsigned)code < ERR_COUNT ? err_table[code].http : 500;
}
