#include "text/jinja_method.h"

#include "text/jinja_char.h"
#include "text/jinja_format.h"
#include "text/utf8.h"

#include <math.h>
#include <utf8proc.h>

/* ---- attributes and items ---- */

static const char *const str_methods[] = {
    "capitalize",   "casefold",     "center",  "count",     "endswith",   "expandtabs",
    "find",         "format",       "index",   "isalnum",   "isalpha",    "isascii",
    "isdecimal",    "isdigit",      "islower", "isnumeric", "isspace",    "istitle",
    "isupper",      "join",         "ljust",   "lower",     "lstrip",     "partition",
    "removeprefix", "removesuffix", "replace", "rfind",     "rindex",     "rjust",
    "rpartition",   "rsplit",       "rstrip",  "split",     "splitlines", "startswith",
    "strip",        "swapcase",     "title",   "upper",     "zfill",      "format_map",
    "isidentifier", "isprintable",  "encode",  "maketrans", "translate",  NULL};
static const char *const int_methods[] = {"bit_count", "bit_length", "conjugate", NULL};
static const char *const float_methods[] = {"conjugate", "is_integer", NULL};
static const char *const list_methods[] = {"copy", "count", "index", NULL};
static const char *const tuple_methods[] = {"count", "index", NULL};
static const char *const dict_methods[] = {"copy", "get", "items", "keys", "values", NULL};
static const char *const list_unsafe[] = {"append", "clear",   "extend", "insert", "pop",
                                          "remove", "reverse", "sort",   NULL};
static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};

static bool among(Str name, const char *const *list)
{
    for (; *list; list++) {
        if (str_is(name, *list))
            return true;
    }
    return false;
}

static bool find_method(Jinja *j, JinjaValue obj, Str name, bool *found, JinjaValue *out)
{
    const char *const none[] = {NULL};
    const char *const *safe = none;
    const char *const *unsafe = none;
    *found = false;
    if (obj.type == JINJA_STR) {
        safe = str_methods;
    } else if (obj.type == JINJA_LIST) {
        safe = list_methods;
        unsafe = list_unsafe;
    } else if (obj.type == JINJA_TUPLE || obj.type == JINJA_RANGE) {
        safe = tuple_methods;
    } else if (obj.type == JINJA_INT || obj.type == JINJA_BOOL) {
        safe = int_methods;
    } else if (obj.type == JINJA_FLOAT) {
        safe = float_methods;
    } else if (obj.type == JINJA_DICT) {
        safe = dict_methods;
        unsafe = dict_unsafe;
    }
    if (among(name, unsafe)) {
        *found = true;
        *out = jinja_undef_attr(obj, name);
        out->flags = JINJA_UNDEF_UNSAFE;
        return true;
    }
    if (!among(name, safe))
        return true;
    JinjaMethod *m = jinja_take(j, 1, sizeof *m);
    if (!m)
        return false;
    *m = (JinjaMethod){obj, name};
    *found = true;
    *out = (JinjaValue){.type = JINJA_METHOD, .u.method = m};
    return true;
}

/* start, stop and step of a range. */
static bool range_attr(JinjaValue range, Str name, JinjaValue *out)
{
    static const char *const names[] = {"start", "stop", "step"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (str_is(name, names[i])) {
            *out = range.u.list->at[range.u.list->n + (int64_t)i];
            return true;
        }
    }
    return false;
}

static bool number_attr(JinjaValue v, Str name, JinjaValue *out)
{
    const bool whole = v.type != JINJA_FLOAT;
    if (str_is(name, "imag"))
        *out = whole ? jinja_int(0) : jinja_float(0.0);
    else if (whole && str_is(name, "denominator"))
        *out = jinja_int(1);
    else if (str_is(name, "real") || (whole && str_is(name, "numerator")))
        *out = v.type == JINJA_BOOL ? jinja_int(v.u.b) : v;
    else
        return false;
    return true;
}

/* Attributes alone, no keys. */
static bool own_attr(Jinja *j, JinjaValue obj, Str name, bool *found, JinjaValue *out)
{
    *found = false;
    if (obj.type == JINJA_NAMESPACE) {
        const JinjaValue *v = jinja_dict_find(obj.u.dict, name);
        *found = v != NULL;
        if (v)
            *out = *v;
        return true;
    }
    if (obj.type == JINJA_TUPLE && (obj.flags & JINJA_GROUP)) {
        const int at = str_is(name, "grouper") ? 0 : str_is(name, "list") ? 1 : -1;
        *found = at >= 0;
        if (*found) {
            *out = obj.u.list->at[at];
            return true;
        }
    }
    if ((obj.type == JINJA_RANGE && range_attr(obj, name, out)) ||
        (jinja_is_number(obj) && number_attr(obj, name, out))) {
        *found = true;
        return true;
    }
    if (obj.type == JINJA_LOOP || obj.type == JINJA_MACRO || obj.type == JINJA_CYCLER) {
        if (!jinja_eval_attr(j, obj, name, out))
            return false;
        *found = out->type != JINJA_MISSING;
        return true;
    }
    return find_method(j, obj, name, found, out);
}

bool jinja_attr(Jinja *j, JinjaValue obj, Str name, JinjaValue *out)
{
    bool found;
    if (obj.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, obj);
    if (!own_attr(j, obj, name, &found, out))
        return false;
    if (found)
        return true;
    if (obj.type == JINJA_DICT) {
        const JinjaValue *v = jinja_dict_find(obj.u.dict, name);
        if (v) {
            *out = *v;
            return true;
        }
    }
    *out = jinja_undef_attr(obj, name);
    return true;
}

bool jinja_item(Jinja *j, JinjaValue obj, JinjaValue key, JinjaValue *out)
{
    if (obj.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, obj);
    if (obj.type == JINJA_DICT && key.type != JINJA_LIST && key.type != JINJA_DICT) {
        JinjaValue *v;
        if (!jinja_dict_get(j, obj.u.dict, key, &v))
            return false;
        if (v) {
            *out = *v;
            return true;
        }
    }
    const bool whole = key.type == JINJA_INT || key.type == JINJA_BOOL;
    if (whole && (obj.type == JINJA_LIST || obj.type == JINJA_TUPLE || obj.type == JINJA_RANGE ||
                  obj.type == JINJA_STR)) {
        int64_t i = key.type == JINJA_BOOL ? key.u.b : key.u.i;
        int64_t n;
        if (!jinja_length(j, obj, &n))
            return false;
        if (i < 0)
            i += n;
        if (i >= 0 && i < n) {
            if (obj.type == JINJA_STR) {
                const Str c = jinja_substr(jinja_text(obj), i, i + 1);
                *out = jinja_str(c.ptr, c.len);
                out->flags = obj.flags;
                return jinja_step(j, obj.len / 16);
            }
            *out = obj.u.list->at[i];
            return true;
        }
    }
    bool found = false;
    if (key.type == JINJA_STR && !own_attr(j, obj, jinja_text(key), &found, out))
        return false;
    if (found)
        return true;
    if (key.type == JINJA_STR)
        *out = jinja_undef_attr(obj, jinja_text(key));
    else
        *out = (JinjaValue){.type = JINJA_UNDEFINED,
                            .flags = JINJA_UNDEF_ITEM,
                            .of = obj.type,
                            .u.i = whole ? (key.type == JINJA_BOOL ? key.u.b : key.u.i) : 0};
    return true;
}

bool jinja_slice(Jinja *j, JinjaValue obj, const JinjaValue part[3], JinjaValue *out)
{
    if (obj.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, obj);
    if (obj.type != JINJA_LIST && obj.type != JINJA_TUPLE && obj.type != JINJA_RANGE &&
        obj.type != JINJA_STR)
        return jinja_fail(j, "TypeError: '%s' object is not subscriptable", jinja_type_name(obj));
    int64_t n;
    int64_t step = 1;
    if (!jinja_length(j, obj, &n) ||
        (part[2].type != JINJA_NONE && !jinja_to_int(j, part[2], &step)))
        return false;
    if (step == 0)
        return jinja_fail(j, "ValueError: slice step cannot be zero");
    int64_t from = step > 0 ? 0 : n - 1;
    int64_t to = step > 0 ? n : -1;
    int64_t *const ends[] = {&from, &to};
    for (int k = 0; k < 2; k++) {
        if (part[k].type == JINJA_NONE)
            continue;
        if (!jinja_to_int(j, part[k], ends[k]))
            return false;
        if (*ends[k] < 0)
            *ends[k] = *ends[k] + n < 0 ? (step > 0 ? 0 : -1) : *ends[k] + n;
        else if (*ends[k] >= n)
            *ends[k] = step > 0 ? n : n - 1;
    }
    if (obj.type == JINJA_STR && step == 1) {
        const Str s = jinja_substr(jinja_text(obj), from, to > from ? to : from);
        *out = jinja_str(s.ptr, s.len);
        out->flags = obj.flags;
        return jinja_step(j, obj.len / 16);
    }
    if (obj.type == JINJA_RANGE) {
        const JinjaValue *of = obj.u.list->at + n;
        return jinja_range_new(j, of[0].u.i + from * of[2].u.i, of[0].u.i + to * of[2].u.i,
                               of[2].u.i * step, out);
    }
    JinjaList *items;
    JinjaValue list = {0};
    if (!jinja_iterate(j, obj, &items) ||
        !jinja_list_new(j, obj.type == JINJA_TUPLE ? JINJA_TUPLE : JINJA_LIST, 0, &list))
        return false;
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (!jinja_list_push(j, list.u.list, items->at[i]))
            return false;
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step)
            break;
        i += step;
    }
    if (!jinja_step(j, list.u.list->n / 4))
        return false;
    if (obj.type != JINJA_STR) {
        *out = list;
        return true;
    }
    StrBuf b;
    jinja_buf(j, &b);
    for (int64_t i = 0; i < list.u.list->n; i++)
        strbuf_add(&b, list.u.list->at[i].u.s, list.u.list->at[i].len);
    if (!jinja_take_buf(j, &b, out))
        return false;
    out->flags = obj.flags;
    return true;
}

/* ---- methods of str ---- */

static bool want_str(Jinja *j, const char *what, JinjaValue v, Str *out)
{
    return jinja_bound_str(j, what, v, (Str){NULL, 0}, out);
}

/* s[start:end] by code points; *from: where it starts. *inside false: the start is past the end,
 * and then nothing is found there, not even an empty string. */
static bool cut_ends(Jinja *j, Str s, JinjaValue start, JinjaValue end, Str *cut, int64_t *from,
                     bool *inside)
{
    *cut = s;
    *from = 0;
    *inside = true;
    if (start.type == JINJA_MISSING && end.type == JINJA_MISSING)
        return true;
    const int64_t n = (int64_t)utf8_count(s);
    int64_t to = n;
    if (!jinja_bound_int(j, start, 0, from) || !jinja_bound_int(j, end, n, &to))
        return false;
    *from = *from < 0 ? (*from + n < 0 ? 0 : *from + n) : *from;
    to = to < 0 ? (to + n < 0 ? 0 : to + n) : to > n ? n : to;
    *inside = *from <= to;
    *cut = jinja_substr(s, *from, to > *from ? to : *from);
    return jinja_step(j, (int64_t)(s.len / 16));
}

/* startswith, endswith: a string or a tuple of them, with optional start and end. */
static bool affix(Jinja *j, Str s, bool at_end, const JinjaCall *call, JinjaValue *out)
{
    const char *what = at_end ? "endswith()" : "startswith()";
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (!jinja_bind(j, what, call, "prefix start end", 1, arg))
        return false;
    int64_t from;
    bool inside;
    if (!cut_ends(j, s, arg[1], arg[2], &s, &from, &inside))
        return false;
    const JinjaValue *at = &arg[0];
    int64_t n = 1;
    if (arg[0].type == JINJA_TUPLE) {
        at = arg[0].u.list->at;
        n = arg[0].u.list->n;
    }
    bool yes = false;
    for (int64_t i = 0; i < n && !yes; i++) {
        if (at[i].type == JINJA_UNDEFINED)
            return jinja_undefined_fail(j, at[i]);
        if (at[i].type != JINJA_STR)
            return jinja_fail(j, "TypeError: %s first arg must be str or a tuple of str, not %s",
                              what, jinja_type_name(at[i]));
        const Str a = jinja_text(at[i]);
        yes = inside && a.len <= s.len &&
              (a.len == 0 || memcmp(at_end ? s.ptr + s.len - a.len : s.ptr, a.ptr, a.len) == 0);
        if (!jinja_step(j, (int64_t)(a.len / 16) + 1))
            return false;
    }
    *out = jinja_bool(yes);
    return true;
}

static bool join(Jinja *j, Str sep, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    if (!jinja_bind(j, "join()", call, "iterable", 1, arg) || !jinja_iterate(j, arg[0], &items))
        return false;
    StrBuf b;
    jinja_buf(j, &b);
    for (int64_t i = 0; i < items->n; i++) {
        const JinjaValue v = items->at[i];
        if (v.type != JINJA_STR) {
            strbuf_free(&b);
            return jinja_fail(j, "TypeError: sequence item %lld: expected str instance, %s found",
                              (long long)i, jinja_type_name(v));
        }
        if (i)
            strbuf_add(&b, sep.ptr, sep.len);
        strbuf_add(&b, v.u.s, v.len);
        if (b.failed || !jinja_step(j, 1 + v.len / 16))
            break;
    }
    return jinja_take_buf(j, &b, out);
}

static bool partition(Jinja *j, Str s, bool last, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue parts = {0};
    Str sep;
    if (!jinja_bind(j, "partition()", call, "sep", 1, arg) ||
        !want_str(j, "partition()", arg[0], &sep))
        return false;
    if (!sep.ptr || sep.len == 0)
        return jinja_fail(j, "ValueError: empty separator");
    if (!jinja_split(j, s, sep, 1, last, &parts) || !jinja_list_new(j, JINJA_TUPLE, 3, out))
        return false;
    const JinjaList *l = parts.u.list;
    JinjaList *t = out->u.list;
    const JinjaValue empty = jinja_str("", 0);
    t->n = 3;
    if (l->n == 2) {
        t->at[0] = l->at[0];
        t->at[1] = arg[0];
        t->at[2] = l->at[1];
    } else {
        t->at[0] = last ? empty : l->at[0];
        t->at[1] = empty;
        t->at[2] = last ? l->at[0] : empty;
    }
    return true;
}

/* Numeric_Type Digit beyond the decimal ones: superscripts, subscripts, and 1 to 9 in circles. */
typedef enum CharClass {
    CLASS_DIGIT,
    CLASS_ALNUM,
    CLASS_ALPHA,
    CLASS_ASCII,
    CLASS_DECIMAL,
    CLASS_NUMERIC,
    CLASS_SPACE,
    CLASS_PRINTABLE,
} CharClass;

static bool in_class(uint32_t cp, CharClass class)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    const bool letter = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    const bool number = c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
    switch (class) {
    case CLASS_ALNUM:
        return letter || number;
    case CLASS_ALPHA:
        return letter;
    case CLASS_ASCII:
        return cp < 0x80;
    case CLASS_DECIMAL:
        return c == UTF8PROC_CATEGORY_ND;
    case CLASS_DIGIT:
        return c == UTF8PROC_CATEGORY_ND || jinja_is_special_digit(cp);
    case CLASS_NUMERIC:
        return number || jinja_is_numeral(cp);
    case CLASS_SPACE:
        return jinja_is_space(cp);
    case CLASS_PRINTABLE:
        return jinja_is_printable(cp);
    }
    return false;
}

static bool all_in(Str s, CharClass class)
{
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        if (!in_class(cp, class))
            return false;
        i += n > 0 ? (size_t)n : 1;
    }
    return s.len > 0 || class == CLASS_ASCII || class == CLASS_PRINTABLE;
}

/* islower, isupper, istitle. */
static bool cased(Str s, char how)
{
    bool any = false;
    bool inside = false; /* a word */
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        i += n > 0 ? (size_t)n : 1;
        const bool title = utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LT;
        const bool up = title || jinja_is_upper(cp);
        const bool low = jinja_is_lower(cp);
        if ((how == 'l' && up) || (how == 'u' && (low || title)) ||
            (how == 't' && ((up && inside) || (low && !inside))))
            return false;
        any = any || up || low;
        inside = up || low;
    }
    return any;
}

static bool pad(Jinja *j, Str s, int sides, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    int64_t width;
    Str fill;
    return jinja_bind(j, "center()", call, "width fillchar", 1, arg) &&
           jinja_to_int(j, arg[0], &width) &&
           jinja_bound_str(j, "fillchar", arg[1], (Str){" ", 1}, &fill) &&
           jinja_pad(j, s, width, fill, sides, out);
}

static bool zfill(Jinja *j, Str s, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    int64_t width;
    if (!jinja_bind(j, "zfill()", call, "width", 1, arg) || !jinja_to_int(j, arg[0], &width))
        return false;
    const bool sign = s.len > 0 && (s.ptr[0] == '-' || s.ptr[0] == '+');
    const Str body = {s.ptr + sign, s.len - sign};
    JinjaValue padded = {0};
    if (!jinja_pad(j, body, width - sign, (Str){"0", 1}, JINJA_LEFT, &padded))
        return false;
    if (!sign) {
        *out = padded;
        return true;
    }
    return jinja_join_str(j, (Str){s.ptr, 1}, jinja_text(padded), out);
}

static bool count_of(Jinja *j, Str s, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str what;
    int64_t n = 0;
    int64_t from;
    bool inside;
    if (!jinja_bind(j, "count()", call, "sub start end", 1, arg) ||
        !want_str(j, "count()", arg[0], &what) ||
        !cut_ends(j, s, arg[1], arg[2], &s, &from, &inside))
        return false;
    if (!what.ptr)
        return jinja_fail(j, "TypeError: must be str, not NoneType");
    if (what.len == 0) {
        n = inside ? (int64_t)utf8_count(s) + 1 : 0;
    } else {
        const char *at;
        while ((at = memmem(s.ptr, s.len, what.ptr, what.len))) {
            n++;
            s.len -= (size_t)(at - s.ptr) + what.len;
            s.ptr = at + what.len;
        }
    }
    *out = jinja_int(n);
    return jinja_step(j, (int64_t)(s.len / 16) + n);
}

static bool expandtabs(Jinja *j, Str s, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    int64_t size;
    if (!jinja_bind(j, "expandtabs()", call, "tabsize", 0, arg) ||
        !jinja_bound_int(j, arg[0], 8, &size) || !jinja_step(j, (int64_t)s.len))
        return false;
    size = size > 100 ? 100 : size;
    StrBuf b;
    jinja_buf(j, &b);
    int64_t column = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '\t') {
            for (int64_t k = size > 0 ? size - column % size : 0; k > 0; k--, column++)
                strbuf_add_cstr(&b, " ");
            continue;
        }
        strbuf_add(&b, s.ptr + i, 1);
        column += ((unsigned char)s.ptr[i] & 0xC0U) != 0x80;
        if (s.ptr[i] == '\n' || s.ptr[i] == '\r')
            column = 0;
    }
    return jinja_take_buf(j, &b, out);
}

static bool str_search(Jinja *j, Str s, Str name, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str what;
    int64_t at;
    int64_t from;
    bool inside;
    const bool last = str_starts(name, "r");
    if (!jinja_bind(j, "find()", call, "sub start end", 1, arg) ||
        !want_str(j, "find()", arg[0], &what) ||
        !cut_ends(j, s, arg[1], arg[2], &s, &from, &inside))
        return false;
    if (!what.ptr)
        return jinja_fail(j, "TypeError: must be str, not NoneType");
    if (!jinja_find(j, s, what, last, &at))
        return false;
    at = at < 0 || !inside ? -1 : at + from;
    if (at < 0 && str_ends(name, "index"))
        return jinja_fail(j, "ValueError: substring not found");
    *out = jinja_int(at);
    return true;
}

static bool strip(Jinja *j, Str s, Str name, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str chars;
    if (!jinja_bind(j, "strip()", call, "chars", 0, arg) || !want_str(j, "strip()", arg[0], &chars))
        return false;
    if (!jinja_step(j, (int64_t)(s.len / 16) * (int64_t)(chars.len / 16 + 1)))
        return false;
    const int sides = str_starts(name, "l")   ? JINJA_LEFT
                      : str_starts(name, "r") ? JINJA_RIGHT
                                              : JINJA_LEFT | JINJA_RIGHT;
    const Str cut = jinja_strip(s, chars, sides);
    *out = jinja_str(cut.ptr, cut.len);
    return true;
}

static bool split(Jinja *j, Str s, bool from_right, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str sep;
    int64_t max;
    return jinja_bind(j, "split()", call, "sep maxsplit", 0, arg) &&
           want_str(j, "split()", arg[0], &sep) && jinja_bound_int(j, arg[1], -1, &max) &&
           jinja_split(j, s, sep, max, from_right, out);
}

static bool replace(Jinja *j, Str s, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str from;
    Str to;
    int64_t count;
    if (!jinja_bind(j, "replace()", call, "old new count", 2, arg) ||
        !want_str(j, "replace()", arg[0], &from) || !want_str(j, "replace()", arg[1], &to) ||
        !jinja_bound_int(j, arg[2], -1, &count))
        return false;
    if (!from.ptr || !to.ptr)
        return jinja_fail(j, "TypeError: replace() argument must be str, not NoneType");
    return jinja_replace(j, s, from, to, count, out);
}

static bool remove_affix(Jinja *j, Str s, bool suffix, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str a;
    if (!jinja_bind(j, "removeprefix()", call, "prefix", 1, arg) ||
        !want_str(j, "removeprefix()", arg[0], &a))
        return false;
    if (a.len > 0 && a.len <= s.len &&
        memcmp(suffix ? s.ptr + s.len - a.len : s.ptr, a.ptr, a.len) == 0)
        s = suffix ? (Str){s.ptr, s.len - a.len} : (Str){s.ptr + a.len, s.len - a.len};
    *out = jinja_str(s.ptr, s.len);
    return true;
}

static bool format_map(Jinja *j, Str s, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (!jinja_bind(j, "format_map()", call, "mapping", 1, arg))
        return false;
    if (arg[0].type != JINJA_DICT)
        return jinja_fail(j, "TypeError: format_map() takes a mapping, not %s",
                          jinja_type_name(arg[0]));
    const JinjaDict *d = arg[0].u.dict;
    JinjaKw *kw = jinja_take(j, (size_t)d->n + 1, sizeof *kw);
    JinjaCall fields = {.kw = kw};
    if (!kw)
        return false;
    for (int64_t i = 0; i < d->n; i++) {
        if (d->at[i].key.type == JINJA_STR)
            kw[fields.n_kw++] = (JinjaKw){jinja_text(d->at[i].key), d->at[i].value};
    }
    return jinja_step(j, d->n / 4) && jinja_format(j, s, &fields, out);
}

static bool str_method(Jinja *j, Str s, Str name, const JinjaCall *call, JinjaValue *out)
{
    static const struct {
        const char *name;
        JinjaCase how;
    } cases[] = {{"upper", JINJA_UPPER},       {"lower", JINJA_LOWER},
                 {"casefold", JINJA_CASEFOLD}, {"capitalize", JINJA_CAPITALIZE},
                 {"title", JINJA_TITLE},       {"swapcase", JINJA_SWAPCASE}};
    static const struct {
        const char *name;
        CharClass class;
    } classes[] = {{"isalnum", CLASS_ALNUM}, {"isalpha", CLASS_ALPHA},
                   {"isascii", CLASS_ASCII}, {"isdecimal", CLASS_DECIMAL},
                   {"isdigit", CLASS_DIGIT}, {"isnumeric", CLASS_NUMERIC},
                   {"isspace", CLASS_SPACE}, {"isprintable", CLASS_PRINTABLE}};
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (str_is(name, "split") || str_is(name, "rsplit"))
        return split(j, s, name.ptr[0] == 'r', call, out);
    if (str_ends(name, "strip"))
        return strip(j, s, name, call, out);
    if (str_is(name, "startswith") || str_is(name, "endswith"))
        return affix(j, s, name.ptr[0] == 'e', call, out);
    if (str_is(name, "replace"))
        return replace(j, s, call, out);
    if (str_is(name, "join"))
        return join(j, s, call, out);
    if (str_is(name, "format"))
        return jinja_format(j, s, call, out);
    if (str_is(name, "format_map"))
        return format_map(j, s, call, out);
    if (str_is(name, "find") || str_is(name, "rfind") || str_is(name, "index") ||
        str_is(name, "rindex"))
        return str_search(j, s, name, call, out);
    if (str_is(name, "partition") || str_is(name, "rpartition"))
        return partition(j, s, name.ptr[0] == 'r', call, out);
    if (str_is(name, "removeprefix") || str_is(name, "removesuffix"))
        return remove_affix(j, s, str_is(name, "removesuffix"), call, out);
    if (str_is(name, "center"))
        return pad(j, s, JINJA_LEFT | JINJA_RIGHT, call, out);
    if (str_is(name, "ljust"))
        return pad(j, s, JINJA_RIGHT, call, out);
    if (str_is(name, "rjust"))
        return pad(j, s, JINJA_LEFT, call, out);
    if (str_is(name, "zfill"))
        return zfill(j, s, call, out);
    if (str_is(name, "expandtabs"))
        return expandtabs(j, s, call, out);
    if (str_is(name, "count"))
        return count_of(j, s, call, out);
    if (str_is(name, "splitlines"))
        return jinja_bind(j, "splitlines()", call, "keepends", 0, arg) &&
               jinja_splitlines(j, s, jinja_truth(arg[0]), out);
    if (str_is(name, "encode") || str_is(name, "maketrans") || str_is(name, "translate"))
        return jinja_fail(j, "the method %.*s of str is not supported", (int)name.len, name.ptr);
    if (!jinja_bind(j, "this method", call, "", 0, arg))
        return false;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (str_is(name, cases[i].name))
            return jinja_case(j, s, cases[i].how, out);
    }
    *out = jinja_bool(false);
    for (size_t i = 0; i < COUNT_OF(classes); i++) {
        if (str_is(name, classes[i].name))
            *out = jinja_bool(all_in(s, classes[i].class));
    }
    if (str_is(name, "isidentifier"))
        *out = jinja_bool(jinja_is_identifier(s));
    if (str_is(name, "islower") || str_is(name, "isupper") || str_is(name, "istitle"))
        *out = jinja_bool(cased(s, name.ptr[2]));
    return jinja_step(j, (int64_t)(s.len / 4));
}

/* ---- methods of list and dict ---- */

bool jinja_items(Jinja *j, const JinjaDict *d, JinjaValue *out)
{
    if (!jinja_list_new(j, JINJA_LIST, d->n, out) || !jinja_step(j, d->n))
        return false;
    for (int64_t i = 0; i < d->n; i++) {
        JinjaValue pair = {0};
        if (!jinja_list_new(j, JINJA_TUPLE, 2, &pair))
            return false;
        pair.u.list->at[0] = d->at[i].key;
        pair.u.list->at[1] = d->at[i].value;
        pair.u.list->n = 2;
        if (!jinja_list_push(j, out->u.list, pair))
            return false;
    }
    return true;
}

static bool dict_method(Jinja *j, JinjaValue self, Str name, const JinjaCall *call, JinjaValue *out)
{
    const JinjaDict *d = self.u.dict;
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (str_is(name, "get")) {
        JinjaValue *v;
        if (!jinja_bind(j, "get()", call, "key default", 1, arg) ||
            !jinja_dict_get(j, d, arg[0], &v))
            return false;
        *out = v ? *v : arg[1].type == JINJA_MISSING ? jinja_none() : arg[1];
        return true;
    }
    if (!jinja_bind(j, "this method", call, "", 0, arg))
        return false;
    if (str_is(name, "items")) {
        if (!jinja_items(j, d, out))
            return false;
        out->type = JINJA_VIEW;
        out->flags = JINJA_ITEMS;
        return true;
    }
    if (str_is(name, "copy")) {
        *out = self; /* nothing can change it */
        return true;
    }
    if (!jinja_list_new(j, JINJA_VIEW, d->n, out) || !jinja_step(j, d->n / 4))
        return false;
    out->flags = str_is(name, "keys") ? JINJA_KEYS : JINJA_VALUES;
    for (int64_t i = 0; i < d->n; i++) {
        if (!jinja_list_push(j, out->u.list, str_is(name, "keys") ? d->at[i].key : d->at[i].value))
            return false;
    }
    return true;
}

static bool list_method(Jinja *j, JinjaValue self, Str name, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (str_is(name, "copy")) {
        *out = self;
        return jinja_bind(j, "copy()", call, "", 0, arg);
    }
    const bool index = str_is(name, "index");
    const int64_t len = self.u.list->n;
    int64_t from;
    int64_t to;
    if (!jinja_bind(j, "count()", call,
                    index && self.type != JINJA_RANGE ? "value start stop" : "value", 1, arg) ||
        !jinja_bound_int(j, arg[1], 0, &from) || !jinja_bound_int(j, arg[2], len, &to))
        return false;
    from = from < 0 ? (from + len < 0 ? 0 : from + len) : from;
    to = to < 0 ? to + len : i64_min(to, len);
    int64_t n = 0;
    for (int64_t i = from; i < to; i++) {
        bool same;
        if (!jinja_step(j, 1) || !jinja_equal(j, self.u.list->at[i], arg[0], &same))
            return false;
        if (same && index) {
            *out = jinja_int(i);
            return true;
        }
        n += same;
    }
    if (index)
        return jinja_fail(j, "ValueError: the value is not in the list");
    *out = jinja_int(n);
    return true;
}

static bool number_method(Jinja *j, JinjaValue self, Str name, const JinjaCall *call,
                          JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (!jinja_bind(j, "this method", call, "", 0, arg))
        return false;
    if (str_is(name, "conjugate"))
        return number_attr(self, str_from("real"), out);
    if (self.type == JINJA_FLOAT) {
        *out = jinja_bool(isfinite(self.u.f) && floor(self.u.f) == self.u.f);
        return true;
    }
    const int64_t i = self.type == JINJA_BOOL ? self.u.b : self.u.i;
    const uint64_t mag = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    if (str_is(name, "bit_count"))
        *out = jinja_int(__builtin_popcountll(mag));
    else
        *out = jinja_int(mag ? 64 - __builtin_clzll(mag) : 0);
    return true;
}

static void mark_safe(JinjaValue *v)
{
    if (v->type == JINJA_STR)
        v->flags |= JINJA_SAFE;
    for (int64_t i = 0; (v->type == JINJA_LIST || v->type == JINJA_TUPLE) && i < v->u.list->n; i++)
        v->u.list->at[i].flags |= JINJA_SAFE;
}

bool jinja_method_call(Jinja *j, const JinjaMethod *m, const JinjaCall *call, JinjaValue *out)
{
    if (m->self.type == JINJA_STR) {
        if (!str_method(j, jinja_text(m->self), m->name, call, out))
            return false;
        if (m->self.flags & JINJA_SAFE) /* what comes of marked text is marked */
            mark_safe(out);
        return true;
    }
    if (m->self.type == JINJA_DICT)
        return dict_method(j, m->self, m->name, call, out);
    if (jinja_is_number(m->self))
        return number_method(j, m->self, m->name, call, out);
    return list_method(j, m->self, m->name, call, out);
}
