#include "text/jsonscan.h"

#include "text/utf8.h"

void jsonscan_init(JsonScan *s, const char *doc, Str text)
{
    *s = (JsonScan){.doc = doc, .start = text.ptr, .p = text.ptr, .end = text.ptr + text.len};
    strbuf_init(&s->text, text.len);
}

void jsonscan_free(JsonScan *s)
{
    strbuf_free(&s->text);
}

bool jsonscan_fail(const JsonScan *s, const char *what, Error *err)
{
    int64_t line = 1;
    for (const char *q = s->start; q < s->p && q < s->end; q++)
        line += *q == '\n';
    return err_set(err, ERR_FORMAT, "%s: line %lld, byte %lld: %s", s->doc, (long long)line,
                   (long long)(s->p - s->start), what);
}

char jsonscan_peek(JsonScan *s)
{
    if (s->p < s->end && (unsigned char)*s->p > ' ') /* compact files */
        return *s->p;
    /* Pretty-printed ones: a newline and a run of blanks before each entry. */
    if (s->p < s->end && *s->p == '\n')
        s->p++;
    uint64_t eight;
    while (s->end - s->p >= 8) {
        memcpy(&eight, s->p, 8);
        eight ^= 0x2020202020202020U;
        if (eight) {
            s->p += __builtin_ctzll(eight) >> 3;
            break;
        }
        s->p += 8;
    }
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
    return s->p < s->end ? *s->p : '\0';
}

bool jsonscan_open(JsonScan *s, char bracket, Error *err)
{
    if (jsonscan_peek(s) != bracket)
        return jsonscan_fail(s, bracket == '{' ? "wanted an object" : "wanted an array", err);
    s->p++;
    s->first = true;
    return true;
}

bool jsonscan_more(JsonScan *s, char close, bool *more, Error *err)
{
    const char c = jsonscan_peek(s);
    const bool first = s->first;
    s->first = false;
    if (c == close) {
        s->p++;
        *more = false;
        return true;
    }
    *more = true;
    if (first)
        return true;
    if (c != ',')
        return jsonscan_fail(s, "wanted a comma or a closing bracket", err);
    s->p++;
    (void)jsonscan_peek(s);
    return true;
}

bool jsonscan_name(JsonScan *s, Str *key, Error *err)
{
    if (!jsonscan_string(s, key, err))
        return false;
    if (jsonscan_peek(s) != ':')
        return jsonscan_fail(s, "wanted ':' after a key", err);
    s->p++;
    return true;
}

bool jsonscan_key(JsonScan *s, bool *more, Str *key, Error *err)
{
    return jsonscan_more(s, '}', more, err) && (!*more || jsonscan_name(s, key, err));
}

bool jsonscan_item(JsonScan *s, bool *more, Error *err)
{
    return jsonscan_more(s, ']', more, err);
}

static bool hex4(const char *p, const char *end, uint32_t *out)
{
    if (end - p < 4)
        return false;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        const char c = p[i];
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0)
            return false;
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return true;
}

/* One escape at s->p (after the backslash) into s->text. */
static bool escape(JsonScan *s, Error *err)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end)
        return jsonscan_fail(s, "the text ends inside a string", err);
    const char c = *s->p++;
    if (c != 'u') {
        const char *at = c ? strchr(from, c) : NULL;
        if (!at)
            return jsonscan_fail(s, "unknown escape in a string", err);
        strbuf_add(&s->text, &to[at - from], 1);
        return true;
    }
    uint32_t cp;
    if (!hex4(s->p, s->end, &cp))
        return jsonscan_fail(s, "\\u wants four hexadecimal digits", err);
    s->p += 4;
    if (cp >= 0xD800 && cp < 0xE000) {
        uint32_t low;
        if (cp >= 0xDC00 || s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u' ||
            !hex4(s->p + 2, s->end, &low) || low < 0xDC00 || low >= 0xE000)
            return jsonscan_fail(s, "half of a surrogate pair", err);
        s->p += 6;
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    char utf8[4];
    strbuf_add(&s->text, utf8, (size_t)utf8_encode(cp, utf8));
    return true;
}

/* Past plain characters to the next quote or backslash, eight at a time; *high collects bytes from
 * 0x80 on. */
static const char *plain_run(const char *p, const char *end, uint64_t *high)
{
    const uint64_t ones = 0x0101010101010101U;
    uint64_t word;
    while (end - p >= 8) {
        memcpy(&word, p, 8);
        const uint64_t quote = word ^ ones * '"';
        const uint64_t slash = word ^ ones * '\\';
        /* The lowest bit set is exact; borrows may set some above it. */
        const uint64_t hit = (((quote - ones) & ~quote) | ((slash - ones) & ~slash)) & ones << 7;
        if (hit) {
            const int n = __builtin_ctzll(hit) >> 3;
            *high |= n ? word << (64 - 8 * n) : 0;
            return p + n;
        }
        *high |= word;
        p += 8;
    }
    for (; p < end && *p != '"' && *p != '\\'; p++)
        *high |= (unsigned char)*p;
    return p;
}

bool jsonscan_string(JsonScan *s, Str *out, Error *err)
{
    if (jsonscan_peek(s) != '"')
        return jsonscan_fail(s, "wanted a string", err);
    const char *run = ++s->p;
    uint64_t high = 0;
    s->p = plain_run(s->p, s->end, &high);
    if (s->p == s->end)
        return jsonscan_fail(s, "the text ends inside a string", err);
    if (*s->p == '"') {
        *out = (Str){run, (size_t)(s->p - run)};
        s->p++;
    } else {
        strbuf_clear(&s->text);
        for (;;) {
            strbuf_add(&s->text, run, (size_t)(s->p - run));
            if (s->p == s->end)
                return jsonscan_fail(s, "the text ends inside a string", err);
            if (*s->p++ == '"')
                break;
            if (!escape(s, err))
                return false;
            run = s->p;
            s->p = plain_run(s->p, s->end, &high);
        }
        if (!strbuf_check(&s->text, s->doc, err))
            return false;
        *out = strbuf_str(&s->text);
    }
    /* Escapes give valid characters only. */
    if (!s->loose && (high & 0x8080808080808080U) && utf8_valid_prefix(*out) != out->len)
        return jsonscan_fail(s, "a string is no valid UTF-8", err);
    return true;
}

bool jsonscan_uint(JsonScan *s, int64_t max, int64_t *out, Error *err)
{
    int64_t v = 0;
    char c = jsonscan_peek(s);
    if (c < '0' || c > '9')
        return jsonscan_fail(s, "wanted a whole number that is not negative", err);
    while (s->p < s->end && (c = *s->p) >= '0' && c <= '9') {
        if (v > max / 10)
            return jsonscan_fail(s, "a number is too large", err);
        v = v * 10 + (c - '0');
        s->p++;
    }
    if (v > max)
        return jsonscan_fail(s, "a number is too large", err);
    if (s->p < s->end && (*s->p == '.' || *s->p == 'e' || *s->p == 'E'))
        return jsonscan_fail(s, "wanted a whole number", err);
    *out = v;
    return true;
}

/* Past the string that starts at s->p. */
static bool skip_string(JsonScan *s, Error *err)
{
    s->p++;
    while (s->p < s->end && *s->p != '"')
        s->p += *s->p == '\\' && s->end - s->p > 1 ? 2 : 1;
    if (s->p >= s->end)
        return jsonscan_fail(s, "the text ends inside a string", err);
    s->p++;
    return true;
}

bool jsonscan_skip(JsonScan *s, Str *raw, Error *err)
{
    (void)jsonscan_peek(s); /* past the blanks */
    const char *from = s->p;
    int64_t depth = 0;
    do {
        if (s->p >= s->end)
            return jsonscan_fail(s, "the text ends inside a value", err);
        const char c = *s->p;
        if (c == '"') {
            if (!skip_string(s, err))
                return false;
        } else if (c == '{' || c == '[') {
            depth++;
            s->p++;
        } else if (c == '}' || c == ']') {
            if (depth-- == 0)
                return jsonscan_fail(s, "wanted a value", err);
            s->p++;
        } else if (depth == 0) { /* number, true, false, null */
            while (s->p < s->end && *s->p && *s->p != ',' && *s->p != ']' && *s->p != '}' &&
                   *s->p != ' ' && *s->p != '\n' && *s->p != '\t' && *s->p != '\r')
                s->p++;
            if (s->p == from)
                return jsonscan_fail(s, "wanted a value", err);
        } else {
            s->p++;
        }
    } while (depth > 0);
    *raw = (Str){from, (size_t)(s->p - from)};
    return true;
}
