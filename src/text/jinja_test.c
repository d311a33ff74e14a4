#include "text/jinja_test.h"

#include "text/jinja_filter.h"
#include "text/jinja_method.h"
#include "text/jinja_op.h"
#include "text/utf8.h"

typedef bool TestFn(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out);

static bool test_defined(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type != JINJA_UNDEFINED;
    return true;
}

static bool test_undefined(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_UNDEFINED;
    return true;
}

static bool test_none(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_NONE;
    return true;
}

static bool test_boolean(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_BOOL;
    return true;
}

static bool test_true(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_BOOL && v.u.b;
    return true;
}

static bool test_false(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_BOOL && !v.u.b;
    return true;
}

static bool test_integer(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_INT;
    return true;
}

static bool test_float(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_FLOAT;
    return true;
}

static bool test_number(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = jinja_is_number(v);
    return true;
}

static bool test_string(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_STR;
    return true;
}

static bool test_mapping(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_DICT;
    return true;
}

static bool test_iterable(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_STR || v.type == JINJA_DICT || v.type == JINJA_UNDEFINED ||
           v.type == JINJA_LOOP || jinja_is_seq(v);
    return true;
}

static bool test_sequence(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_STR || v.type == JINJA_DICT || v.type == JINJA_UNDEFINED ||
           v.type == JINJA_LIST || v.type == JINJA_TUPLE || v.type == JINJA_RANGE;
    return true;
}

static bool test_callable(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_MACRO || v.type == JINJA_FUNCTION || v.type == JINJA_METHOD ||
           v.type == JINJA_LOOP || v.type == JINJA_JOINER || v.type == JINJA_UNDEFINED;
    return true;
}

static bool test_sameas(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    *out = false;
    return v.type != arg[0].type || jinja_equal(j, v, arg[0], out);
}

static bool test_eq(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    return jinja_equal(j, v, arg[0], out);
}

static bool test_ne(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    if (!jinja_equal(j, v, arg[0], out))
        return false;
    *out = !*out;
    return true;
}

static bool test_lt(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    return jinja_less(j, v, arg[0], "<", out);
}

static bool test_gt(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    return jinja_less(j, arg[0], v, ">", out);
}

static bool test_le(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    if (!jinja_less(j, arg[0], v, "<=", out))
        return false;
    *out = !*out;
    return true;
}

static bool test_ge(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    if (!jinja_less(j, v, arg[0], ">=", out))
        return false;
    *out = !*out;
    return true;
}

static bool test_in(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    return jinja_contains(j, arg[0], v, out);
}

/* v % by == rest, whatever the operator makes of v. */
static bool leaves(Jinja *j, JinjaValue v, JinjaValue by, int64_t rest, bool *out)
{
    JinjaValue r = {0};
    return jinja_op(j, JO_MOD, v, by, &r) && jinja_equal(j, r, jinja_int(rest), out);
}

static bool test_odd(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)arg;
    return leaves(j, v, jinja_int(2), 1, out);
}

static bool test_even(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)arg;
    return leaves(j, v, jinja_int(2), 0, out);
}

static bool test_divisibleby(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    return leaves(j, v, arg[0], 0, out);
}

static bool test_case(Jinja *j, JinjaValue v, const char *method, bool *out)
{
    JinjaValue text = {0};
    JinjaValue is = {0};
    const JinjaCall none = {0};
    if (!jinja_to_str(j, v, &text))
        return false;
    const JinjaMethod m = {text, str_from(method)};
    if (!jinja_method_call(j, &m, &none, &is))
        return false;
    *out = is.u.b;
    return true;
}

static bool test_lower(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)arg;
    return test_case(j, v, "islower", out);
}

static bool test_upper(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)arg;
    return test_case(j, v, "isupper", out);
}

static bool test_escaped(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)j, (void)arg;
    *out = v.type == JINJA_STR && (v.flags & JINJA_SAFE);
    return true;
}

/* A value that could be a key. */
static bool want_hashable(Jinja *j, JinjaValue v)
{
    JinjaDict one = {0};
    return jinja_dict_set(j, &one, v, jinja_none());
}

static bool test_filter(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)arg;
    if (!want_hashable(j, v))
        return false;
    *out = v.type == JINJA_STR && jinja_filter_id(jinja_text(v)) >= 0;
    return true;
}

static bool test_test(Jinja *j, JinjaValue v, const JinjaValue *arg, bool *out)
{
    (void)arg;
    if (!want_hashable(j, v))
        return false;
    *out = v.type == JINJA_STR && jinja_test_id(jinja_text(v)) >= 0;
    return true;
}

static const struct {
    const char *name;
    TestFn *fn;
    int n_args;
} tests[] = {
    {"defined", test_defined, 0},
    {"undefined", test_undefined, 0},
    {"none", test_none, 0},
    {"boolean", test_boolean, 0},
    {"true", test_true, 0},
    {"false", test_false, 0},
    {"integer", test_integer, 0},
    {"float", test_float, 0},
    {"number", test_number, 0},
    {"string", test_string, 0},
    {"mapping", test_mapping, 0},
    {"iterable", test_iterable, 0},
    {"sequence", test_sequence, 0},
    {"callable", test_callable, 0},
    {"sameas", test_sameas, 1},
    {"eq", test_eq, 1},
    {"equalto", test_eq, 1},
    {"==", test_eq, 1},
    {"ne", test_ne, 1},
    {"!=", test_ne, 1},
    {"lt", test_lt, 1},
    {"lessthan", test_lt, 1},
    {"<", test_lt, 1},
    {"gt", test_gt, 1},
    {"greaterthan", test_gt, 1},
    {">", test_gt, 1},
    {"le", test_le, 1},
    {"<=", test_le, 1},
    {"ge", test_ge, 1},
    {">=", test_ge, 1},
    {"in", test_in, 1},
    {"odd", test_odd, 0},
    {"even", test_even, 0},
    {"divisibleby", test_divisibleby, 1},
    {"lower", test_lower, 0},
    {"upper", test_upper, 0},
    {"escaped", test_escaped, 0},
    {"filter", test_filter, 0},
    {"test", test_test, 0},
};

int jinja_test_id(Str name)
{
    for (int i = 0; i < (int)COUNT_OF(tests); i++) {
        if (str_is(name, tests[i].name))
            return i;
    }
    return -1;
}

bool jinja_test(Jinja *j, int id, Str name, JinjaValue v, const JinjaCall *call, bool *out)
{
    const int shown = name.len < 60 ? (int)name.len : 60;
    if (id < 0)
        return jinja_fail(j, "TemplateRuntimeError: No test named '%.*s' found.", shown, name.ptr);
    JinjaValue arg[JINJA_PARAMS_MAX];
    return jinja_bind(j, tests[id].name, call, tests[id].n_args ? "other" : "", tests[id].n_args,
                      arg) &&
           tests[id].fn(j, v, arg, out);
}
