#include "text/jinja_call.h"

/* The i-th name of a blank-separated list; empty behind the last. */
static Str nth(const char *names, int i)
{
    while (i-- > 0 && *names) {
        names = strchr(names, ' ');
        if (!names)
            return (Str){"", 0};
        names++;
    }
    const char *end = strchr(names, ' ');
    return (Str){names, end ? (size_t)(end - names) : strlen(names)};
}

bool jinja_bind(Jinja *j, const char *what, const JinjaCall *call, const char *names,
                int n_required, JinjaValue out[JINJA_PARAMS_MAX])
{
    int n = 0;
    while (n < JINJA_PARAMS_MAX && nth(names, n).len > 0)
        n++;
    for (int i = 0; i < JINJA_PARAMS_MAX; i++)
        out[i] = (JinjaValue){.type = JINJA_MISSING};
    if (call->n_pos > n)
        return jinja_fail(j, "TypeError: %s takes at most %d arguments, %d given", what, n,
                          call->n_pos);
    for (int i = 0; i < call->n_pos; i++)
        out[i] = call->pos[i];
    for (int k = 0; k < call->n_kw; k++) {
        const Str name = call->kw[k].name;
        int at = 0;
        while (at < n && !str_eq(nth(names, at), name))
            at++;
        const int shown = name.len < 60 ? (int)name.len : 60;
        if (at == n)
            return jinja_fail(j, "TypeError: %s got an unexpected keyword argument '%.*s'", what,
                              shown, name.ptr);
        if (out[at].type != JINJA_MISSING)
            return jinja_fail(j, "TypeError: %s got multiple values for argument '%.*s'", what,
                              shown, name.ptr);
        out[at] = call->kw[k].value;
    }
    for (int i = 0; i < n_required; i++) {
        if (out[i].type == JINJA_MISSING) {
            const Str name = nth(names, i);
            return jinja_fail(j, "TypeError: %s is missing its argument '%.*s'", what,
                              (int)name.len, name.ptr);
        }
    }
    return true;
}

bool jinja_bound_int(Jinja *j, JinjaValue v, int64_t missing, int64_t *out)
{
    *out = missing;
    return v.type == JINJA_MISSING || v.type == JINJA_NONE || jinja_to_int(j, v, out);
}

bool jinja_bound_str(Jinja *j, const char *what, JinjaValue v, Str missing, Str *out)
{
    *out = missing;
    if (v.type == JINJA_MISSING || v.type == JINJA_NONE)
        return true;
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (v.type != JINJA_STR)
        return jinja_fail(j, "TypeError: %s wants a string, got '%s'", what, jinja_type_name(v));
    *out = jinja_text(v);
    return true;
}
