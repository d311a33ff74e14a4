#include "text/jinja_op.h"

#include "text/jinja_filter.h"
#include "text/jinja_format.h"

#include <math.h>

static bool overflow(Jinja *j)
{
    return jinja_fail(j, "OverflowError: a whole number beyond 64 bits");
}

static int64_t whole(JinjaValue v)
{
    return v.type == JINJA_BOOL ? v.u.b : v.u.i;
}

static bool op_type_error(Jinja *j, JinjaOp op, JinjaValue a, JinjaValue b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
    if (op == JO_ADD && (a.type == JINJA_STR || a.type == JINJA_LIST || a.type == JINJA_TUPLE))
        return jinja_fail(j, "TypeError: can only concatenate %s (not \"%s\") to %s",
                          jinja_type_name(a), jinja_type_name(b), jinja_type_name(a));
    return jinja_fail(j, "TypeError: unsupported operand type(s) for %s: '%s' and '%s'", names[op],
                      jinja_type_name(a), jinja_type_name(b));
}

static bool power(Jinja *j, int64_t a, int64_t b, JinjaValue *out)
{
    int64_t r = 1;
    if (b < 0) {
        if (a == 0)
            return jinja_fail(j, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
        *out = jinja_float(pow((double)a, (double)b));
        return true;
    }
    while (b > 0) {
        if ((b & 1) && __builtin_mul_overflow(r, a, &r))
            return overflow(j);
        b >>= 1;
        if (b > 0 && __builtin_mul_overflow(a, a, &a))
            return overflow(j);
    }
    *out = jinja_int(r);
    return true;
}

static bool int_op(Jinja *j, JinjaOp op, int64_t a, int64_t b, JinjaValue *out)
{
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case JO_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case JO_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case JO_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case JO_DIV:
        if (b == 0)
            return jinja_fail(j, "ZeroDivisionError: division by zero");
        *out = jinja_float((double)a / (double)b);
        return true;
    case JO_FLOORDIV:
    case JO_MOD:
        if (b == 0)
            return jinja_fail(j, "ZeroDivisionError: integer division or modulo by zero");
        if (b == -1) {
            over = op == JO_FLOORDIV && a == INT64_MIN;
            r = op == JO_FLOORDIV && !over ? -a : 0;
        } else { /* C rounds to zero, Python down */
            const bool down = a % b != 0 && (a % b < 0) != (b < 0);
            r = op == JO_FLOORDIV ? a / b - down : a % b + (down ? b : 0);
        }
        break;
    case JO_POW:
        return power(j, a, b, out);
    case JO_EQ:
    case JO_NE:
    case JO_LT:
    case JO_LE:
    case JO_GT:
    case JO_GE:
    case JO_IN:
    case JO_NOT_IN:
        break;
    }
    *out = jinja_int(r);
    return !over || overflow(j);
}

/* The whole number that `near` is but for rounding, or is above; a zero takes the sign of `exact`.
 */
static double floor_quotient(double near, double exact)
{
    const double below = floor(near);
    return near == 0.0 ? copysign(0.0, exact) : near - below > 0.5 ? below + 1.0 : below;
}

static bool float_op(Jinja *j, JinjaOp op, double a, double b, JinjaValue *out)
{
    double r = 0.0;
    switch (op) {
    case JO_ADD:
        r = a + b;
        break;
    case JO_SUB:
        r = a - b;
        break;
    case JO_MUL:
        r = a * b;
        break;
    case JO_DIV:
        if (b == 0.0)
            return jinja_fail(j, "ZeroDivisionError: float division by zero");
        r = a / b;
        break;
    case JO_FLOORDIV:
    case JO_MOD: {
        if (b == 0.0)
            return jinja_fail(j, "ZeroDivisionError: float floor division by zero");
        double m = fmod(a, b);
        const double div = (a - m) / b;
        const bool down = m != 0.0 && (m < 0.0) != (b < 0.0);
        if (op == JO_MOD)
            r = m != 0.0 ? m + (down ? b : 0.0) : copysign(0.0, b);
        else
            r = floor_quotient(div - (down ? 1.0 : 0.0), a / b);
        break;
    }
    case JO_POW:
        if (a == 0.0 && b < 0.0)
            return jinja_fail(j, "ZeroDivisionError: 0.0 cannot be raised to a negative power");
        if (a < 0.0 && isfinite(b) && b != floor(b))
            return jinja_fail(j, "complex numbers are not supported");
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b))
            return jinja_fail(j, "OverflowError: (34, 'Numerical result out of range')");
        break;
    case JO_EQ:
    case JO_NE:
    case JO_LT:
    case JO_LE:
    case JO_GT:
    case JO_GE:
    case JO_IN:
    case JO_NOT_IN:
        break;
    }
    *out = jinja_float(r);
    return true;
}

/* A string marked safe takes another only escaped, as markupsafe does. */
static bool add_strings(Jinja *j, JinjaValue a, JinjaValue b, JinjaValue *out)
{
    const uint8_t safe = (a.flags | b.flags) & JINJA_SAFE;
    if (safe && (a.flags ^ b.flags) & JINJA_SAFE) {
        const Str name = {"escape", 6};
        JinjaValue *plain = a.flags & JINJA_SAFE ? &b : &a;
        if (!jinja_filter(j, jinja_filter_id(name), name, *plain, &(JinjaCall){0}, plain))
            return false;
    }
    if (!jinja_join_str(j, jinja_text(a), jinja_text(b), out))
        return false;
    out->flags = safe;
    return true;
}

static bool add_lists(Jinja *j, JinjaValue a, JinjaValue b, JinjaValue *out)
{
    const int64_t n = a.u.list->n + b.u.list->n;
    if (!jinja_list_new(j, (JinjaType)a.type, n, out) || !jinja_step(j, n / 4))
        return false;
    JinjaList *l = out->u.list;
    if (a.u.list->n)
        memcpy(l->at, a.u.list->at, (size_t)a.u.list->n * sizeof *l->at);
    if (b.u.list->n)
        memcpy(l->at + a.u.list->n, b.u.list->at, (size_t)b.u.list->n * sizeof *l->at);
    l->n = n;
    return true;
}

static bool repeat(Jinja *j, JinjaValue v, int64_t times, JinjaValue *out)
{
    times = times < 0 ? 0 : times;
    if (v.type == JINJA_STR) {
        StrBuf b;
        jinja_buf(j, &b);
        for (int64_t i = 0; i < times && v.len > 0; i++) {
            if (!strbuf_add(&b, v.u.s, v.len) || !jinja_step(j, 1 + v.len / 16))
                break;
        }
        if (!jinja_take_buf(j, &b, out))
            return false;
        out->flags = v.flags;
        return true;
    }
    if (!jinja_list_new(j, (JinjaType)v.type, 0, out))
        return false;
    for (int64_t i = 0; i < times && v.u.list->n > 0; i++) {
        for (int64_t k = 0; k < v.u.list->n; k++) {
            if (!jinja_step(j, 1) || !jinja_list_push(j, out->u.list, v.u.list->at[k]))
                return false;
        }
    }
    return true;
}

bool jinja_op(Jinja *j, JinjaOp op, JinjaValue a, JinjaValue b, JinjaValue *out)
{
    /* The left side of a string's % may be formatted with an undefined value. */
    if (op == JO_MOD && a.type == JINJA_STR)
        return jinja_percent(j, jinja_text(a), b, out);
    if (a.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, a);
    if (b.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, b);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.type == JINJA_FLOAT || b.type == JINJA_FLOAT)
            return float_op(j, op, jinja_to_double(a), jinja_to_double(b), out);
        return int_op(j, op, whole(a), whole(b), out);
    }
    const bool a_list = a.type == JINJA_LIST || a.type == JINJA_TUPLE;
    const bool b_list = b.type == JINJA_LIST || b.type == JINJA_TUPLE;
    if (op == JO_ADD && a.type == JINJA_STR && b.type == JINJA_STR)
        return add_strings(j, a, b, out);
    if (op == JO_ADD && a_list && a.type == b.type)
        return add_lists(j, a, b, out);
    const bool a_int = a.type == JINJA_INT || a.type == JINJA_BOOL;
    const bool b_int = b.type == JINJA_INT || b.type == JINJA_BOOL;
    if (op == JO_MUL && (a_list || a.type == JINJA_STR) && b_int)
        return repeat(j, a, whole(b), out);
    if (op == JO_MUL && (b_list || b.type == JINJA_STR) && a_int)
        return repeat(j, b, whole(a), out);
    return op_type_error(j, op, a, b);
}

bool jinja_op_negate(Jinja *j, JinjaValue v, JinjaValue *out)
{
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (!jinja_is_number(v))
        return jinja_fail(j, "TypeError: bad operand type for unary -: '%s'", jinja_type_name(v));
    if (v.type == JINJA_FLOAT) {
        *out = jinja_float(-v.u.f);
        return true;
    }
    if (whole(v) == INT64_MIN)
        return overflow(j);
    *out = jinja_int(-whole(v));
    return true;
}
