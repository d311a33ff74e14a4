#include "text/jinja_format.h"

#include "text/jinja_method.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH_MAX = 1000 };

/* [[fill]align][sign][#][0][width][,][.precision][type] */
typedef struct Spec {
    Str fill;
    char align; /* '<' '>' '^' '=', 0: by type */
    char sign;  /* '+' '-' ' ' or 0 */
    bool alt;
    bool zero;            /* a 0 before the width, and no alignment */
    char group;           /* ',' or '_' between thousands, 0: none */
    int width, precision; /* -1: not given */
    char type;            /* 0: none */
} Spec;

static bool bad_spec(Jinja *j, char type, JinjaValue v)
{
    return jinja_fail(j, "ValueError: Unknown format code '%c' for object of type '%s'", type,
                      jinja_type_name(v));
}

/* Decimal digits at *p; -1 when there are none. */
static int read_int(const char **p, const char *end)
{
    if (*p == end || **p < '0' || **p > '9')
        return -1;
    int v = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; (*p)++)
        v = v < 100000 ? v * 10 + (**p - '0') : v;
    return v;
}

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static bool parse_spec(Jinja *j, Str s, Spec *spec)
{
    const char *p = s.ptr;
    const char *end = s.ptr + s.len;
    *spec = (Spec){.fill = {" ", 1}, .width = -1, .precision = -1};
    const size_t step = s.len ? utf8_step(*p) : 0;
    if (s.len > step && is_align(p[step])) {
        spec->fill = (Str){p, step};
        spec->align = p[step];
        p += step + 1;
    } else if (p < end && is_align(*p)) {
        spec->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' '))
        spec->sign = *p++;
    if (p < end && *p == '#') {
        spec->alt = true;
        p++;
    }
    if (p < end && *p == '0') { /* the width may begin with it even so */
        if (!spec->align && spec->fill.ptr[0] == ' ')
            spec->fill = (Str){"0", 1};
        spec->zero = !spec->align;
    }
    spec->width = read_int(&p, end);
    if (p < end && (*p == ',' || *p == '_'))
        spec->group = *p++;
    if (p < end && spec->group && (*p == ',' || *p == '_'))
        return jinja_fail(j,
                          *p == spec->group ? "ValueError: Cannot specify '%c' with '%c'."
                                            : "ValueError: Cannot specify both ',' and '_'.",
                          *p, *p);
    if (p < end && *p == '.') {
        p++;
        spec->precision = read_int(&p, end);
        if (spec->precision < 0)
            return jinja_fail(j, "ValueError: Format specifier missing precision");
    }
    if (p < end)
        spec->type = *p++;
    if (p != end)
        return jinja_fail(j, "ValueError: Invalid format specifier");
    if (spec->width > WIDTH_MAX || spec->precision > WIDTH_MAX)
        return jinja_fail(j, "ValueError: a width or precision above %d", WIDTH_MAX);
    return true;
}

/* Digits of v in a base, most significant first. */
static Str to_base(uint64_t v, unsigned base, bool upper, char buf[72])
{
    const char *set = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char *p = buf + 72;
    do {
        *--p = set[v % base];
        v /= base;
    } while (v);
    return (Str){p, (size_t)(buf + 72 - p)};
}

static void pad_out(StrBuf *b, const Spec *s, Str head, Str body, bool number)
{
    const char align = s->align ? s->align : number ? '>' : '<';
    const int64_t len = (int64_t)(utf8_count(head) + utf8_count(body));
    const int64_t total = s->width > len ? s->width - len : 0;
    const int64_t left = align == '>' ? total : align == '^' ? total / 2 : 0;
    for (int64_t i = 0; i < left; i++)
        strbuf_add(b, s->fill.ptr, s->fill.len);
    strbuf_add(b, head.ptr, head.len);
    for (int64_t i = 0; align == '=' && i < total; i++)
        strbuf_add(b, s->fill.ptr, s->fill.len);
    strbuf_add(b, body.ptr, body.len);
    for (int64_t i = left; align != '=' && i < total; i++)
        strbuf_add(b, s->fill.ptr, s->fill.len);
}

static const char *sign_of(const Spec *s, bool negative)
{
    return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

static bool is_xdigit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Digits with a mark between groups of `each`; zeros before them are grouped too, up to `width`
 * characters of all. */
static void add_groups(Str digits, char mark, size_t each, size_t width, StrBuf *out)
{
    size_t whole = 0;
    while (whole < digits.len && (each == 4 ? is_xdigit(digits.ptr[whole])
                                            : digits.ptr[whole] >= '0' && digits.ptr[whole] <= '9'))
        whole++;
    const size_t rest = digits.len - whole;
    size_t zeros = 0;
    while (whole > 0 && whole + zeros + (whole + zeros - 1) / each + rest < width)
        zeros++;
    for (size_t i = 0; i < whole + zeros; i++) {
        if (i > 0 && (whole + zeros - i) % each == 0)
            strbuf_add(out, &mark, 1);
        strbuf_add(out, i < zeros ? "0" : digits.ptr + (i - zeros), 1);
    }
    strbuf_add(out, digits.ptr + whole, rest);
}

/* How much of the width zeros fill, once what stands before the digits is taken off. */
static size_t zero_width(const Spec *s, size_t head)
{
    const bool zeros = s->align == '=' && str_is(s->fill, "0");
    return zeros && s->width > 0 && (size_t)s->width > head ? (size_t)s->width - head : 0;
}

static bool format_int(Jinja *j, StrBuf *b, const Spec *s, JinjaValue v)
{
    int64_t i;
    if (!jinja_to_int(j, v, &i))
        return false;
    const uint64_t mag = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char buf[72];
    char head[4];
    const char *prefix = "";
    unsigned base = 10;
    if (s->type == 'x' || s->type == 'X') {
        base = 16;
        prefix = s->alt ? (s->type == 'x' ? "0x" : "0X") : "";
    } else if (s->type == 'o') {
        base = 8;
        prefix = s->alt ? "0o" : "";
    } else if (s->type == 'b') {
        base = 2;
        prefix = s->alt ? "0b" : "";
    } else if (s->type == 'c') {
        if (i < 0 || i > 0x10FFFF || (i >= 0xD800 && i < 0xE000))
            return jinja_fail(j, "OverflowError: %%c arg not in range(0x110000)");
        char utf8[4];
        pad_out(b, s, (Str){"", 0}, (Str){utf8, (size_t)utf8_encode((uint32_t)i, utf8)}, false);
        return true;
    }
    const Str digits = to_base(mag, base, s->type == 'X', buf);
    snprintf(head, sizeof head, "%s%s", sign_of(s, i < 0), prefix);
    StrBuf grouped;
    strbuf_init(&grouped, 4096);
    if (s->group)
        add_groups(digits, s->group, base == 10 ? 3 : 4, zero_width(s, strlen(head)), &grouped);
    StrBuf zeros; /* "%.3d": at least three digits */
    strbuf_init(&zeros, WIDTH_MAX + 128);
    for (int k = (int)digits.len; k < s->precision; k++)
        strbuf_add_cstr(&zeros, "0");
    const Str body = s->group ? strbuf_str(&grouped) : digits;
    strbuf_add(&zeros, body.ptr, body.len);
    pad_out(b, s, str_from(head), strbuf_str(&zeros), true);
    b->failed = b->failed || grouped.failed || zeros.failed;
    strbuf_free(&grouped);
    strbuf_free(&zeros);
    return true;
}

/* No type, but a precision: as 'g', with a digit behind the point at least, and the other notation
 * one digit earlier. */
static void float_general(double mag, int precision, char *text, size_t size)
{
    char e[1400];
    precision = precision > 0 ? precision : 1;
    snprintf(e, sizeof e, "%.*e", precision - 1, mag);
    const char *at = strchr(e, 'e');
    const long exp = at ? strtol(at + 1, NULL, 10) : 0;
    snprintf(text, size, "%.*g", precision, mag);
    if (exp >= -4 && exp < precision - 1) {
        if (!strchr(text, '.'))
            snprintf(text, size, "%.1f", mag);
    } else if (exp == precision - 1) { /* 'g' would still write it out */
        size_t n = at ? (size_t)(at - e) : 0;
        while (n > 1 && (e[n - 1] == '0' || e[n - 1] == '.') && memchr(e, '.', n))
            n--;
        snprintf(text, size, "%.*s%s", (int)n, e, at ? at : "");
    }
}

static bool format_float(Jinja *j, StrBuf *b, const Spec *s, JinjaValue v)
{
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (!jinja_is_number(v))
        return jinja_fail(j, "TypeError: must be real number, not %s", jinja_type_name(v));
    const double f = jinja_to_double(v);
    char text[1400]; /* 309 digits, a point and up to WIDTH_MAX decimals */
    const double mag = fabs(f);
    const int precision = s->precision < 0 ? 6 : s->precision;
    const bool upper = s->type == 'E' || s->type == 'F' || s->type == 'G';
    const bool finite = isfinite(f);
    if (!finite) {
        snprintf(text, sizeof text, "%s",
                 isnan(f) ? (upper ? "NAN" : "nan")
                 : upper  ? "INF"
                          : "inf");
    } else if (s->type == '\0' && s->precision < 0) {
        jinja_float_text(mag, text);
    } else if (s->type == '\0') {
        float_general(mag, precision, text, sizeof text);
    } else if (s->type == 'e' || s->type == 'E') {
        snprintf(text, sizeof text, s->type == 'e' ? (s->alt ? "%#.*e" : "%.*e") : "%.*E",
                 precision, mag);
    } else if (s->type == 'g' || s->type == 'G') {
        snprintf(text, sizeof text,
                 s->type == 'G' ? (s->alt ? "%#.*G" : "%.*G") : (s->alt ? "%#.*g" : "%.*g"),
                 precision, mag);
    } else {
        snprintf(text, sizeof text, s->alt ? "%#.*f" : "%.*f", precision,
                 s->type == '%' ? mag * 100 : mag);
    }
    const char *tail = s->type == '%' ? "%" : "";
    const char *head = sign_of(s, signbit(f) && !isnan(f));
    StrBuf body;
    strbuf_init(&body, 8192);
    if (s->group && finite)
        add_groups(str_from(text), s->group, 3, zero_width(s, strlen(head) + strlen(tail)), &body);
    else
        strbuf_add_cstr(&body, text);
    strbuf_add_cstr(&body, tail);
    pad_out(b, s, str_from(head), strbuf_str(&body), true);
    b->failed = b->failed || body.failed;
    strbuf_free(&body);
    return true;
}

static bool format_str(Jinja *j, StrBuf *b, const Spec *s, JinjaValue v)
{
    JinjaValue text = {0};
    if (!jinja_to_str(j, v, &text))
        return false;
    Str body = jinja_text(text);
    if (s->precision >= 0)
        body = jinja_substr(body, 0, s->precision);
    pad_out(b, s, (Str){"", 0}, body, false);
    return true;
}

static bool format_text(Jinja *j, StrBuf *b, Spec *s, JinjaValue v)
{
    if (s->type && s->type != 's')
        return bad_spec(j, s->type, v);
    if (s->sign)
        return jinja_fail(j, "ValueError: Sign not allowed in string format specifier");
    if (s->alt)
        return jinja_fail(j,
                          "ValueError: Alternate form (#) not allowed in string format specifier");
    if (s->group)
        return jinja_fail(j, "ValueError: Cannot specify '%c' with 's'.", s->group);
    if (s->align == '=')
        return jinja_fail(j, "ValueError: '=' alignment not allowed in string format specifier");
    return format_str(j, b, s, v);
}

static bool format_number(Jinja *j, StrBuf *b, Spec *s, JinjaValue v)
{
    const bool whole = v.type != JINJA_FLOAT;
    if (s->zero)
        s->align = '=';
    if (s->type == 'n' && s->group)
        return jinja_fail(j, "ValueError: Cannot specify '%c' with 'n'.", s->group);
    if (s->type == 'n') /* the C locale's grouping is none */
        s->type = whole ? 'd' : 'g';
    if (s->group && s->type && strchr(s->group == ',' ? "cbxXo" : "c", s->type))
        return jinja_fail(j, "ValueError: Cannot specify '%c' with '%c'.", s->group, s->type);
    if (s->type && strchr("eEfFgG%", s->type))
        return format_float(j, b, s, v);
    if (!whole)
        return s->type ? bad_spec(j, s->type, v) : format_float(j, b, s, v);
    if (s->type && !strchr("dxXobc", s->type))
        return bad_spec(j, s->type, v);
    if (s->precision >= 0)
        return jinja_fail(j, "ValueError: Precision not allowed in integer format specifier");
    if (s->type == 'c' && (s->sign || s->alt))
        return jinja_fail(j, "ValueError: Sign or alternate form not allowed with 'c'");
    return format_int(j, b, s, v);
}

static bool format_value(Jinja *j, StrBuf *b, Str text, JinjaValue v)
{
    Spec s;
    if (text.len == 0) {
        JinjaValue plain = {0};
        return jinja_to_str(j, v, &plain) && strbuf_add(b, plain.u.s, plain.len);
    }
    if (v.type != JINJA_STR && !jinja_is_number(v))
        return jinja_fail(j, "TypeError: unsupported format string passed to %s.__format__",
                          jinja_type_name(v));
    if (!parse_spec(j, text, &s))
        return false;
    return v.type == JINJA_STR ? format_text(j, b, &s, v) : format_number(j, b, &s, v);
}

/* ---- "%s" % x ---- */

typedef struct Percent {
    JinjaValue args;
    int64_t next;
} Percent;

static bool next_arg(Jinja *j, Percent *p, JinjaValue *out)
{
    if (p->args.type == JINJA_TUPLE) {
        if (p->next >= p->args.u.list->n)
            return jinja_fail(j, "TypeError: not enough arguments for format string");
        *out = p->args.u.list->at[p->next++];
        return true;
    }
    if (p->next++ > 0)
        return jinja_fail(j, "TypeError: not enough arguments for format string");
    *out = p->args;
    return true;
}

/* One conversion; *at is behind its '%'. */
static bool percent_one(Jinja *j, StrBuf *b, const char **at, const char *end, Percent *p)
{
    const char *q = *at;
    Spec s = {.fill = {" ", 1}, .align = '>', .width = -1, .precision = -1};
    JinjaValue v = {.type = JINJA_MISSING};
    if (q < end && *q == '(') {
        const char *close = memchr(q, ')', (size_t)(end - q));
        if (!close)
            return jinja_fail(j, "ValueError: incomplete format key");
        if (p->args.type != JINJA_DICT)
            return jinja_fail(j, "TypeError: format requires a mapping");
        const Str key = {q + 1, (size_t)(close - q) - 1};
        const JinjaValue *found = jinja_dict_find(p->args.u.dict, key);
        if (!found)
            return jinja_fail(j, "KeyError: '%.*s'", key.len < 60 ? (int)key.len : 60, key.ptr);
        v = *found;
        p->next++;
        q = close + 1;
    }
    bool left = false;
    bool zero = false;
    for (; q < end && *q && strchr("-+ #0", *q); q++) {
        left = left || *q == '-';
        zero = zero || *q == '0';
        s.alt = s.alt || *q == '#';
        s.sign = *q == '+' ? '+' : *q == ' ' && !s.sign ? ' ' : s.sign;
    }
    s.width = read_int(&q, end);
    if (q < end && *q == '.') {
        q++;
        s.precision = read_int(&q, end);
        s.precision = s.precision < 0 ? 0 : s.precision;
    }
    if (s.width > WIDTH_MAX || s.precision > WIDTH_MAX)
        return jinja_fail(j, "ValueError: a width or precision above %d", WIDTH_MAX);
    if (q == end)
        return jinja_fail(j, "ValueError: incomplete format");
    s.type = *q++;
    *at = q;
    if (s.type == '%') {
        strbuf_add_cstr(b, "%");
        return true;
    }
    if (v.type == JINJA_MISSING && !next_arg(j, p, &v))
        return false;
    s.align = left ? '<' : '>';
    if (strchr("diuxXoceEfFgG", s.type) && zero && !left) {
        s.align = '=';
        s.fill = (Str){"0", 1};
    }
    switch (s.type) {
    case 's':
        return format_str(j, b, &s, v);
    case 'r':
    case 'a': {
        StrBuf text;
        jinja_buf(j, &text);
        JinjaValue repr = {0};
        if (!jinja_write(j, &text, v, true)) {
            strbuf_free(&text);
            return false;
        }
        return jinja_take_buf(j, &text, &repr) && format_str(j, b, &s, repr);
    }
    case 'd':
    case 'i':
    case 'u':
        if (v.type == JINJA_FLOAT && fabs(v.u.f) < 9e18)
            v = jinja_int((int64_t)v.u.f);
        s.type = 'd';
        if (!jinja_is_number(v))
            return v.type == JINJA_UNDEFINED
                       ? jinja_undefined_fail(j, v)
                       : jinja_fail(j, "TypeError: %%d format: a real number is required, not %s",
                                    jinja_type_name(v));
        return format_int(j, b, &s, v);
    case 'x':
    case 'X':
    case 'o':
        return format_int(j, b, &s, v);
    case 'c':
        if (v.type == JINJA_STR && utf8_count(jinja_text(v)) != 1)
            return jinja_fail(j, "TypeError: %%c requires int or char");
        return v.type == JINJA_STR ? format_str(j, b, &s, v) : format_int(j, b, &s, v);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        return format_float(j, b, &s, v);
    default:
        return jinja_fail(j, "ValueError: unsupported format character 0x%x", (unsigned)s.type);
    }
}

bool jinja_percent(Jinja *j, Str format, JinjaValue args, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    Percent p = {.args = args};
    const char *at = format.ptr;
    const char *end = format.ptr + format.len;
    bool ok = jinja_step(j, (int64_t)(format.len / 16));
    while (ok && at < end) {
        const char *sign = memchr(at, '%', (size_t)(end - at));
        strbuf_add(&b, at, (size_t)((sign ? sign : end) - at));
        if (!sign)
            break;
        at = sign + 1;
        ok = jinja_step(j, 1) && percent_one(j, &b, &at, end, &p);
    }
    const bool all = args.type == JINJA_TUPLE
                         ? p.next >= args.u.list->n
                         : p.next > 0 || args.type == JINJA_DICT || args.type == JINJA_LIST ||
                               args.type == JINJA_RANGE || args.type == JINJA_UNDEFINED;
    if (ok && !all)
        ok = jinja_fail(j, "TypeError: not all arguments converted during string formatting");
    if (!ok) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}

/* ---- "{}".format(x) ---- */

/* *next: of the fields without a number; negative: one had a number. */
static bool field_value(Jinja *j, Str field, const JinjaCall *call, int *next, JinjaValue *out)
{
    size_t n = 0;
    while (n < field.len && field.ptr[n] != '.' && field.ptr[n] != '[')
        n++;
    const Str first = {field.ptr, n};
    int64_t index = -1;
    const bool number = n > 0 && str_to_int(first, 0, INT32_MAX, &index);
    const bool numbered = number && n == field.len; /* "0.a" leaves the numbering as it is */
    if ((field.len == 0 && *next < 0) || (numbered && *next > 0))
        return jinja_fail(j, "ValueError: cannot switch between manual field specification and "
                             "automatic field numbering");
    if (field.len == 0)
        index = (*next)++;
    else if (numbered)
        *next = -1;
    else if (!number)
        index = -1;
    if (index >= 0) {
        if (index >= call->n_pos)
            return jinja_fail(j,
                              "IndexError: Replacement index %" PRId64
                              " out of range for positional args tuple",
                              index);
        *out = call->pos[index];
    } else {
        int k = 0;
        while (k < call->n_kw && !str_eq(call->kw[k].name, first))
            k++;
        if (k == call->n_kw)
            return jinja_fail(j, "KeyError: '%.*s'", n < 60 ? (int)n : 60, first.ptr);
        *out = call->kw[k].value;
    }
    while (n < field.len) {
        if (!jinja_step(j, 1))
            return false;
        const bool item = field.ptr[n++] == '[';
        const size_t from = n;
        while (n < field.len && (item ? field.ptr[n] != ']' : !strchr(".[", field.ptr[n])))
            n++;
        const Str name = {field.ptr + from, n - from};
        if (item) {
            if (n == field.len)
                return jinja_fail(j, "ValueError: expected '}' before end of string");
            n++;
            const JinjaValue key = str_to_int(name, 0, INT32_MAX, &index)
                                       ? jinja_int(index)
                                       : jinja_str(name.ptr, name.len);
            if (!jinja_item(j, *out, key, out))
                return false;
        } else if (!jinja_attr(j, *out, name, out)) {
            return false;
        }
    }
    return true;
}

/* A specifier may itself have fields: "{:>{width}}". */
static bool expand_spec(Jinja *j, Str spec, const JinjaCall *call, int *next, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    for (size_t i = 0; i < spec.len;) {
        const char *open = memchr(spec.ptr + i, '{', spec.len - i);
        const size_t at = open ? (size_t)(open - spec.ptr) : spec.len;
        strbuf_add(&b, spec.ptr + i, at - i);
        if (!open)
            break;
        const char *close = memchr(open, '}', spec.len - at);
        JinjaValue v = {0};
        if (!close ||
            !field_value(j, (Str){open + 1, (size_t)(close - open) - 1}, call, next, &v) ||
            !jinja_write(j, &b, v, false)) {
            strbuf_free(&b);
            return jinja_fail(j, "ValueError: a broken field in a format specifier");
        }
        i = (size_t)(close - spec.ptr) + 1;
    }
    return jinja_take_buf(j, &b, out);
}

/* One replacement field; text is between its braces. */
static bool format_field(Jinja *j, StrBuf *b, Str text, const JinjaCall *call, int *next)
{
    const char *colon = memchr(text.ptr, ':', text.len);
    Str spec = {"", 0};
    if (colon) {
        spec = (Str){colon + 1, text.len - (size_t)(colon - text.ptr) - 1};
        text.len = (size_t)(colon - text.ptr);
    }
    char conversion = '\0';
    if (text.len >= 2 && text.ptr[text.len - 2] == '!') {
        conversion = text.ptr[text.len - 1];
        text.len -= 2;
    }
    JinjaValue v = {0};
    if (!field_value(j, text, call, next, &v))
        return false;
    if (conversion == 'r' || conversion == 'a' || conversion == 's') {
        StrBuf t;
        jinja_buf(j, &t);
        if (!jinja_write(j, &t, v, conversion != 's')) {
            strbuf_free(&t);
            return false;
        }
        if (!jinja_take_buf(j, &t, &v))
            return false;
    } else if (conversion) {
        return jinja_fail(j, "ValueError: Unknown conversion specifier");
    }
    JinjaValue expanded = {0};
    if (spec.len && memchr(spec.ptr, '{', spec.len)) {
        if (!expand_spec(j, spec, call, next, &expanded))
            return false;
        spec = jinja_text(expanded);
    }
    return format_value(j, b, spec, v);
}

bool jinja_format(Jinja *j, Str format, const JinjaCall *call, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    int next = 0;
    bool ok = jinja_step(j, (int64_t)(format.len / 16));
    for (size_t i = 0; ok && i < format.len;) {
        const char c = format.ptr[i];
        if ((c == '{' || c == '}') && i + 1 < format.len && format.ptr[i + 1] == c) {
            strbuf_add(&b, &c, 1);
            i += 2;
        } else if (c == '{') {
            size_t end = i + 1;
            for (int depth = 1; end < format.len; end++) {
                depth += format.ptr[end] == '{' ? 1 : format.ptr[end] == '}' ? -1 : 0;
                if (depth == 0)
                    break;
            }
            if (end == format.len)
                ok = jinja_fail(j, "ValueError: Single '{' encountered in format string");
            else
                ok = jinja_step(j, 1) &&
                     format_field(j, &b, (Str){format.ptr + i + 1, end - i - 1}, call, &next);
            i = end + 1;
        } else if (c == '}') {
            ok = jinja_fail(j, "ValueError: Single '}' encountered in format string");
        } else {
            strbuf_add(&b, &c, 1);
            i++;
        }
    }
    if (!ok) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}

/* ---- strftime ---- */

static const char *const day_names[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday"};
static const char *const month_names[] = {"January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December"};

/* Week of the year whose first day is `first` (0: Sunday). */
static int week(const struct tm *t, int first)
{
    return (t->tm_yday + 7 - (t->tm_wday - first + 7) % 7) / 7;
}

static bool date_field(StrBuf *b, char c, const struct tm *t)
{
    const char *const day = day_names[(unsigned)t->tm_wday % 7];
    const char *const month = month_names[(unsigned)t->tm_mon % 12];
    const int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    const int year = t->tm_year + 1900;
    switch (c) {
    case 'a':
        return strbuf_printf(b, "%.3s", day);
    case 'A':
        return strbuf_add_cstr(b, day);
    case 'b':
    case 'h':
        return strbuf_printf(b, "%.3s", month);
    case 'B':
        return strbuf_add_cstr(b, month);
    case 'd':
        return strbuf_printf(b, "%02d", t->tm_mday);
    case 'e':
        return strbuf_printf(b, "%2d", t->tm_mday);
    case 'm':
        return strbuf_printf(b, "%02d", t->tm_mon + 1);
    case 'y':
        return strbuf_printf(b, "%02d", year % 100);
    case 'Y':
        return strbuf_printf(b, "%d", year);
    case 'C':
        return strbuf_printf(b, "%02d", year / 100);
    case 'H':
        return strbuf_printf(b, "%02d", t->tm_hour);
    case 'I':
        return strbuf_printf(b, "%02d", hour12);
    case 'M':
        return strbuf_printf(b, "%02d", t->tm_min);
    case 'S':
        return strbuf_printf(b, "%02d", t->tm_sec);
    case 'f':
        return strbuf_add_cstr(b, "000000");
    case 'p':
        return strbuf_add_cstr(b, t->tm_hour < 12 ? "AM" : "PM");
    case 'j':
        return strbuf_printf(b, "%03d", t->tm_yday + 1);
    case 'w':
        return strbuf_printf(b, "%d", t->tm_wday);
    case 'u':
        return strbuf_printf(b, "%d", t->tm_wday ? t->tm_wday : 7);
    case 'U':
        return strbuf_printf(b, "%02d", week(t, 0));
    case 'W':
        return strbuf_printf(b, "%02d", week(t, 1));
    case 'D':
    case 'x':
        return strbuf_printf(b, "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, year % 100);
    case 'F':
        return strbuf_printf(b, "%d-%02d-%02d", year, t->tm_mon + 1, t->tm_mday);
    case 'R':
        return strbuf_printf(b, "%02d:%02d", t->tm_hour, t->tm_min);
    case 'T':
    case 'X':
        return strbuf_printf(b, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec);
    case 'c':
        return strbuf_printf(b, "%.3s %.3s %2d %02d:%02d:%02d %d", day, month, t->tm_mday,
                             t->tm_hour, t->tm_min, t->tm_sec, year);
    case 'n':
        return strbuf_add_cstr(b, "\n");
    case 't':
        return strbuf_add_cstr(b, "\t");
    case 'z': /* the reference's clock knows no zone */
    case 'Z':
        return true;
    case '%':
        return strbuf_add_cstr(b, "%");
    default:
        return strbuf_printf(b, "%%%c", c);
    }
}

bool jinja_strftime(Jinja *j, Str format, const struct tm *at, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    if (!jinja_step(j, (int64_t)format.len))
        return false;
    for (size_t i = 0; i < format.len; i++) {
        const char c = format.ptr[i];
        const bool bare = i + 2 < format.len && format.ptr[i + 1] == '-'; /* %-d: no zero before */
        if (c != '%' || i + 1 == format.len) {
            strbuf_add(&b, &c, 1);
            continue;
        }
        i += bare ? 2 : 1;
        const size_t from = b.len;
        (void)date_field(&b, format.ptr[i], at);
        if (bare && !b.failed && b.len - from > 1 && (b.ptr[from] == '0' || b.ptr[from] == ' ')) {
            memmove(b.ptr + from, b.ptr + from + 1, b.len - from);
            b.len--;
        }
    }
    return jinja_take_buf(j, &b, out);
}
