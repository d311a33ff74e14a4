#include "text/jinja_filter.h"

#include "text/jinja_char.h"
#include "text/jinja_format.h"
#include "text/jinja_layout.h"
#include "text/jinja_markup.h"
#include "text/jinja_method.h"
#include "text/jinja_seq.h"
#include "text/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool no_args(Jinja *j, const char *what, const JinjaCall *call)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    return jinja_bind(j, what, call, "", 0, arg);
}

/* ---- text ---- */

static bool case_filter(Jinja *j, JinjaValue v, JinjaCase how, const JinjaCall *call,
                        JinjaValue *out)
{
    JinjaValue s = {0};
    if (!no_args(j, "this filter", call) || !jinja_to_str(j, v, &s) ||
        !jinja_case(j, jinja_text(s), how, out))
        return false;
    out->flags = how == JINJA_TITLE_TAG ? 0 : s.flags;
    return true;
}

static bool f_upper(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return case_filter(j, v, JINJA_UPPER, call, out);
}

static bool f_lower(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return case_filter(j, v, JINJA_LOWER, call, out);
}

static bool f_capitalize(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return case_filter(j, v, JINJA_CAPITALIZE, call, out);
}

static bool f_title(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return case_filter(j, v, JINJA_TITLE_TAG, call, out);
}

static bool f_string(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return no_args(j, "string", call) && jinja_to_str(j, v, out);
}

static bool f_trim(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue s = {0};
    Str chars;
    if (!jinja_bind(j, "trim", call, "chars", 0, arg) || !jinja_to_str(j, v, &s) ||
        !jinja_bound_str(j, "trim", arg[0], (Str){NULL, 0}, &chars) ||
        !jinja_step(j, (int64_t)(s.len / 16) * (int64_t)(chars.len / 16 + 1)))
        return false;
    const Str cut = jinja_strip(jinja_text(s), chars, JINJA_LEFT | JINJA_RIGHT);
    *out = jinja_str(cut.ptr, cut.len);
    out->flags = s.flags;
    return true;
}

static bool f_replace(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue s = {0};
    JinjaValue from = {0};
    JinjaValue to = {0};
    int64_t count;
    return jinja_bind(j, "replace", call, "old new count", 2, arg) && jinja_to_str(j, v, &s) &&
           jinja_to_str(j, arg[0], &from) && jinja_to_str(j, arg[1], &to) &&
           jinja_bound_int(j, arg[2], -1, &count) &&
           jinja_replace(j, jinja_text(s), jinja_text(from), jinja_text(to), count, out);
}

/* Of filters that take nothing but a string. */
static bool want_text(Jinja *j, const char *what, JinjaValue v, JinjaValue *out)
{
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (v.type != JINJA_STR)
        return jinja_fail(j, "TypeError: %s wants a string, got '%s'", what, jinja_type_name(v));
    *out = v;
    return true;
}

static bool f_indent(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue s = {0};
    JinjaValue lines = {0};
    JinjaValue pad = {0};
    if (!jinja_bind(j, "indent", call, "width first blank", 0, arg) ||
        !want_text(j, "indent", v, &s))
        return false;
    if (arg[0].type == JINJA_STR) {
        pad = arg[0];
    } else {
        int64_t width;
        if (!jinja_bound_int(j, arg[0], 4, &width) ||
            !jinja_pad(j, (Str){"", 0}, width, (Str){" ", 1}, JINJA_LEFT, &pad))
            return false;
    }
    const bool first = jinja_truth(arg[1]);
    const bool blank = jinja_truth(arg[2]);
    /* The reference adds a newline before it splits, so that a last newline counts as a line. */
    StrBuf b;
    jinja_buf(j, &b);
    strbuf_add(&b, s.u.s, s.len);
    strbuf_add_cstr(&b, "\n");
    JinjaValue whole = {0};
    if (!jinja_take_buf(j, &b, &whole) || !jinja_splitlines(j, jinja_text(whole), false, &lines))
        return false;
    jinja_buf(j, &b);
    for (int64_t i = 0; i < lines.u.list->n; i++) {
        const JinjaValue line = lines.u.list->at[i];
        if (i)
            strbuf_add_cstr(&b, "\n");
        if (i == 0 ? first : blank || line.len > 0)
            strbuf_add(&b, pad.u.s, pad.len);
        strbuf_add(&b, line.u.s, line.len);
        if (b.failed || !jinja_step(j, 1 + (int64_t)(pad.len / 16)))
            break;
    }
    if (!jinja_take_buf(j, &b, out))
        return false;
    out->flags = s.flags;
    return true;
}

static bool f_center(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue s = {0};
    int64_t width;
    return jinja_bind(j, "center", call, "width", 0, arg) && jinja_to_str(j, v, &s) &&
           jinja_bound_int(j, arg[0], 80, &width) &&
           jinja_pad(j, jinja_text(s), width, (Str){" ", 1}, JINJA_LEFT | JINJA_RIGHT, out) &&
           (out->flags = s.flags, true);
}

static bool f_truncate(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue text = {0};
    int64_t length;
    int64_t leeway;
    int64_t n;
    Str end;
    if (!jinja_bind(j, "truncate", call, "length killwords end leeway", 0, arg) ||
        !jinja_bound_int(j, arg[0], 255, &length) ||
        !jinja_bound_str(j, "truncate", arg[2], (Str){"...", 3}, &end) ||
        !jinja_bound_int(j, arg[3], 5, &leeway) || !jinja_length(j, v, &n))
        return false;
    const int64_t tail = (int64_t)utf8_count(end);
    if (length < tail)
        return jinja_fail(j, "AssertionError: expected length >= %" PRId64 ", got %" PRId64, tail,
                          length);
    if (leeway < 0)
        return jinja_fail(j, "AssertionError: expected leeway >= 0, got %" PRId64, leeway);
    if (n - leeway <= length) {
        *out = v;
        return true;
    }
    if (!want_text(j, "truncate", v, &text))
        return false;
    Str cut = jinja_substr(jinja_text(text), 0, length - tail);
    if (!jinja_truth(arg[1])) { /* back to the last blank */
        size_t at = cut.len;
        while (at > 0 && cut.ptr[at - 1] != ' ')
            at--;
        if (at > 0)
            cut.len = at - 1;
    }
    if (!jinja_join_str(j, cut, end, out))
        return false;
    out->flags = text.flags;
    return true;
}

static bool f_wordcount(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue s = {0};
    if (!no_args(j, "wordcount", call) || !jinja_to_str(j, v, &s) || !jinja_step(j, s.len / 4))
        return false;
    int64_t n = 0;
    bool inside = false;
    for (size_t i = 0; i < s.len;) { /* runs of \w */
        uint32_t cp = 0;
        const int len = utf8_decode(s.u.s + i, s.len - i, &cp);
        const bool word = jinja_is_word(cp);
        n += word && !inside;
        inside = word;
        i += len > 0 ? (size_t)len : 1;
    }
    *out = jinja_int(n);
    return true;
}

static bool f_format(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue s = {0};
    JinjaValue args = {0};
    if (!jinja_to_str(j, v, &s))
        return false;
    if (call->n_pos && call->n_kw)
        return jinja_fail(
            j, "FilterArgumentError: can't handle positional and keyword arguments together");
    if (call->n_kw) {
        if (!jinja_dict_new(j, JINJA_DICT, &args))
            return false;
        for (int i = 0; i < call->n_kw; i++) {
            const JinjaKw *kw = &call->kw[i];
            if (!jinja_dict_set(j, args.u.dict, jinja_str(kw->name.ptr, kw->name.len), kw->value))
                return false;
        }
    } else {
        if (!jinja_list_new(j, JINJA_TUPLE, call->n_pos, &args))
            return false;
        for (int i = 0; i < call->n_pos; i++)
            args.u.list->at[args.u.list->n++] = call->pos[i];
    }
    return jinja_percent(j, jinja_text(s), args, out);
}

/* ---- numbers ---- */

static bool f_abs(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    int64_t i;
    if (!no_args(j, "abs", call))
        return false;
    if (v.type == JINJA_FLOAT) {
        *out = jinja_float(fabs(v.u.f));
        return true;
    }
    if (!jinja_to_int(j, v, &i))
        return false;
    if (i == INT64_MIN)
        return jinja_fail(j, "OverflowError: a whole number beyond 64 bits");
    *out = jinja_int(i < 0 ? -i : i);
    return true;
}

/* A number as Python reads it: blanks around it and '_' between digits are passed over, digits of
 * any script count. False: longer than any number, or a '_' out of place. */
static bool plain_number(Str s, char *out, size_t cap)
{
    size_t n = 0;
    bool digit = false; /* before */
    s = jinja_strip(s, (Str){NULL, 0}, JINJA_LEFT | JINJA_RIGHT);
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        const int len = utf8_decode(s.ptr + i, s.len - i, &cp);
        i += len > 0 ? (size_t)len : 1;
        const bool between = digit && i < s.len && s.ptr[i] != '_';
        if (cp == '_' && !between)
            return false;
        const int value = jinja_digit(cp);
        digit = value >= 0 || (cp < 0x80 && isalpha((int)cp));
        if (cp == '_')
            continue;
        if ((value < 0 && (cp == 0 || cp >= 0x80)) || n + 1 == cap)
            return false;
        out[n++] = value >= 0 ? (char)('0' + value) : (char)cp;
    }
    out[n] = '\0';
    return n > 0;
}

static bool text_to_int(Str s, int base, int64_t *out)
{
    char buf[72];
    char *end;
    errno = 0;
    if (!plain_number(s, buf, sizeof buf))
        return false;
    *out = strtoll(buf, &end, base);
    return *end == '\0' && errno == 0;
}

static bool text_to_double(Str s, double *out)
{
    char buf[1200];
    char *end;
    if (!plain_number(s, buf, sizeof buf) || strpbrk(buf, "xX("))
        return false;
    *out = strtod(buf, &end);
    return *end == '\0';
}

static bool f_int(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    int64_t base;
    int64_t i = 0;
    double f;
    if (!jinja_bind(j, "int", call, "default base", 0, arg) ||
        !jinja_bound_int(j, arg[1], 10, &base))
        return false;
    *out = arg[0].type == JINJA_MISSING ? jinja_int(0) : arg[0];
    if (v.type == JINJA_INT || v.type == JINJA_BOOL) {
        *out = jinja_int(v.type == JINJA_BOOL ? v.u.b : v.u.i);
    } else if (v.type == JINJA_FLOAT ||
               (v.type == JINJA_STR && text_to_double(jinja_text(v), &f))) {
        if (v.type == JINJA_STR && base >= 2 && base <= 36 &&
            text_to_int(jinja_text(v), (int)base, &i)) {
            *out = jinja_int(i);
            return true;
        }
        f = v.type == JINJA_FLOAT ? v.u.f : f;
        if (isfinite(f) && fabs(f) >= 9.2e18)
            return jinja_fail(j, "OverflowError: a whole number beyond 64 bits");
        if (isfinite(f))
            *out = jinja_int((int64_t)f);
    } else if (v.type == JINJA_STR && base >= 2 && base <= 36 &&
               text_to_int(jinja_text(v), (int)base, &i)) {
        *out = jinja_int(i);
    } else if (v.type == JINJA_UNDEFINED) {
        return jinja_undefined_fail(j, v);
    }
    return true;
}

static bool f_float(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    double f;
    if (!jinja_bind(j, "float", call, "default", 0, arg))
        return false;
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (jinja_is_number(v))
        *out = jinja_float(jinja_to_double(v));
    else if (v.type == JINJA_STR && text_to_double(jinja_text(v), &f))
        *out = jinja_float(f);
    else
        *out = arg[0].type == JINJA_MISSING ? jinja_float(0.0) : arg[0];
    return true;
}

/* float(v) */
static bool to_double(Jinja *j, JinjaValue v, double *out)
{
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (v.type == JINJA_STR)
        return text_to_double(jinja_text(v), out) ||
               jinja_fail(j, "ValueError: could not convert string to float");
    if (!jinja_is_number(v))
        return jinja_fail(j,
                          "TypeError: float() argument must be a string or a real number, not '%s'",
                          jinja_type_name(v));
    *out = jinja_to_double(v);
    return true;
}

static bool f_filesizeformat(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    static const char letters[] = "kMGTPEZY";
    JinjaValue arg[JINJA_PARAMS_MAX];
    double bytes = 0.0;
    char text[400];
    if (!jinja_bind(j, "filesizeformat", call, "binary", 0, arg) || !to_double(j, v, &bytes))
        return false;
    const bool binary = jinja_truth(arg[0]);
    const double base = binary ? 1024.0 : 1000.0;
    if (isnan(bytes) || (isinf(bytes) && bytes < 0))
        return jinja_fail(j, "ValueError: cannot convert float to integer");
    if (bytes < base) {
        snprintf(text, sizeof text, bytes == 1.0 ? "1 Byte" : "%.0f Bytes", trunc(bytes) + 0.0);
    } else {
        int i = 0;
        double unit = base * base;
        for (; i < 7 && bytes >= unit; i++)
            unit *= base;
        const char letter = binary && i == 0 ? 'K' : letters[i];
        snprintf(text, sizeof text, "%.1f %c%sB", base * bytes / unit, letter, binary ? "i" : "");
    }
    return jinja_copy_str(j, str_from(text), out);
}

static bool f_round(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    int64_t precision;
    Str method;
    if (!jinja_bind(j, "round", call, "precision method", 0, arg) ||
        !jinja_bound_int(j, arg[0], 0, &precision) ||
        !jinja_bound_str(j, "round", arg[1], (Str){"common", 6}, &method))
        return false;
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (!jinja_is_number(v))
        return jinja_fail(j, "TypeError: type %s doesn't define __round__ method",
                          jinja_type_name(v));
    if (precision < -20 || precision > 300)
        return jinja_fail(j, "round: a precision outside -20 to 300");
    const bool whole = v.type != JINJA_FLOAT;
    const double f = jinja_to_double(v);
    if (str_is(method, "common")) {
        if (whole && precision >= 0) {
            *out = jinja_int(v.type == JINJA_BOOL ? v.u.b : v.u.i);
            return true;
        }
        if (precision > 0 && isfinite(f)) { /* correctly rounded from the exact decimal value */
            char text[700];
            snprintf(text, sizeof text, "%.*f", (int)precision, f);
            *out = jinja_float(strtod(text, NULL));
            return true;
        }
        const double unit = pow(10.0, (double)-precision);
        const double r = rint(f / unit) * unit;
        *out = whole ? jinja_int((int64_t)r) : jinja_float(r);
        return true;
    }
    const double scale = pow(10.0, (double)precision);
    const bool up = str_is(method, "ceil");
    if (!up && !str_is(method, "floor"))
        return jinja_fail(j, "FilterArgumentError: method must be common, ceil or floor");
    if (!isfinite(f * scale))
        return jinja_fail(j, "OverflowError: cannot convert float to integer");
    *out = jinja_float(((up ? ceil(f * scale) : floor(f * scale)) + 0.0) / scale); /* no -0 */
    return true;
}

/* ---- values ---- */

static bool f_default(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (!jinja_bind(j, "default", call, "default_value boolean", 0, arg))
        return false;
    const bool use = v.type == JINJA_UNDEFINED || (jinja_truth(arg[1]) && !jinja_truth(v));
    *out = !use ? v : arg[0].type == JINJA_MISSING ? jinja_str("", 0) : arg[0];
    return true;
}

static bool f_attr(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str name;
    if (!jinja_bind(j, "attr", call, "name", 1, arg) ||
        !jinja_bound_str(j, "attr", arg[0], (Str){"", 0}, &name))
        return false;
    if (v.type == JINJA_DICT && jinja_dict_find(v.u.dict, name)) { /* keys do not count */
        *out = jinja_undef_attr(v, name);
        const JinjaValue bare = {.type = JINJA_DICT, .u.dict = &(JinjaDict){0}};
        JinjaValue method = {0};
        if (!jinja_attr(j, bare, name, &method))
            return false;
        return method.type == JINJA_METHOD ? jinja_attr(j, v, name, out) : true;
    }
    return jinja_attr(j, v, name, out);
}

static bool f_tojson(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (!jinja_bind(j, "tojson", call, "ensure_ascii indent separators sort_keys", 0, arg))
        return false;
    JinjaJson how = {.ascii = jinja_truth(arg[0]), .sort = jinja_truth(arg[3])};
    JinjaValue pad = jinja_str("", 0);
    how.multiline = arg[1].type != JINJA_MISSING && arg[1].type != JINJA_NONE;
    if (how.multiline && arg[1].type == JINJA_STR) {
        pad = arg[1];
    } else if (how.multiline) {
        int64_t width;
        if (!jinja_to_int(j, arg[1], &width) ||
            !jinja_pad(j, (Str){"", 0}, width, (Str){" ", 1}, JINJA_LEFT, &pad))
            return false;
    }
    how.indent = jinja_text(pad);
    how.item_sep = how.multiline ? (Str){",", 1} : (Str){", ", 2};
    how.key_sep = (Str){": ", 2};
    if (arg[2].type != JINJA_MISSING && arg[2].type != JINJA_NONE) {
        const JinjaList *seps = jinja_is_seq(arg[2]) ? arg[2].u.list : NULL;
        if (!seps || seps->n != 2 || seps->at[0].type != JINJA_STR || seps->at[1].type != JINJA_STR)
            return jinja_fail(j, "TypeError: separators must be two strings");
        how.item_sep = jinja_text(seps->at[0]);
        how.key_sep = jinja_text(seps->at[1]);
    }
    StrBuf b;
    jinja_buf(j, &b);
    if (!jinja_to_json(j, &b, v, &how)) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}

typedef bool FilterFn(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);

static const struct {
    const char *name;
    FilterFn *fn; /* NULL: known, and refused: of chance, or of lists of domains */
} filters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"batch", jinja_seq_batch},
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"count", jinja_seq_length},
    {"d", f_default},
    {"default", f_default},
    {"dictsort", jinja_seq_dictsort},
    {"e", jinja_escape},
    {"escape", jinja_escape},
    {"filesizeformat", f_filesizeformat},
    {"first", jinja_seq_first},
    {"float", f_float},
    {"forceescape", jinja_forceescape},
    {"format", f_format},
    {"groupby", jinja_seq_groupby},
    {"indent", f_indent},
    {"int", f_int},
    {"items", jinja_seq_items},
    {"join", jinja_seq_join},
    {"last", jinja_seq_last},
    {"length", jinja_seq_length},
    {"list", jinja_seq_list},
    {"lower", f_lower},
    {"map", jinja_seq_map},
    {"max", jinja_seq_max},
    {"min", jinja_seq_min},
    {"pprint", jinja_pprint},
    {"random", NULL},
    {"reject", jinja_seq_reject},
    {"rejectattr", jinja_seq_rejectattr},
    {"replace", f_replace},
    {"reverse", jinja_seq_reverse},
    {"round", f_round},
    {"safe", jinja_safe},
    {"select", jinja_seq_select},
    {"selectattr", jinja_seq_selectattr},
    {"slice", jinja_seq_slice},
    {"sort", jinja_seq_sort},
    {"string", f_string},
    {"striptags", jinja_striptags},
    {"sum", jinja_seq_sum},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"unique", jinja_seq_unique},
    {"upper", f_upper},
    {"urlencode", jinja_urlencode},
    {"urlize", NULL},
    {"wordcount", f_wordcount},
    {"wordwrap", jinja_wordwrap},
    {"xmlattr", jinja_xmlattr},
};

int jinja_filter_id(Str name)
{
    for (int i = 0; i < (int)COUNT_OF(filters); i++) {
        if (str_is(name, filters[i].name))
            return i;
    }
    return -1;
}

bool jinja_filter(Jinja *j, int id, Str name, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    if (id < 0)
        return jinja_fail(j, "TemplateRuntimeError: No filter named '%.*s' found.",
                          name.len < 60 ? (int)name.len : 60, name.ptr);
    if (!filters[id].fn)
        return jinja_fail(j, "the filter '%s' is not supported", filters[id].name);
    return filters[id].fn(j, v, call, out);
}
