/* jinja_call.h: arguments of one call, evaluated. */
#ifndef MERE_TEXT_JINJA_CALL_H
#define MERE_TEXT_JINJA_CALL_H

#include "text/jinja_value.h"

typedef struct JinjaKw {
    Str name;
    JinjaValue value;
} JinjaKw;

typedef struct JinjaCall {
    const JinjaValue *pos;
    int n_pos;
    const JinjaKw *kw;
    int n_kw;
} JinjaCall;

enum { JINJA_PARAMS_MAX = 8 };

/* Spreads a call over named parameters: `names` is "old new count", out[] gets each value or
 * JINJA_MISSING. Fails on too many, unknown or doubled arguments, and when one of the first
 * n_required is missing. */
bool jinja_bind(Jinja *j, const char *what, const JinjaCall *call, const char *names,
                int n_required, JinjaValue out[JINJA_PARAMS_MAX]);
/* Bound values with a default. */
bool jinja_bound_int(Jinja *j, JinjaValue v, int64_t missing, int64_t *out);
bool jinja_bound_str(Jinja *j, const char *what, JinjaValue v, Str missing, Str *out);

#endif
