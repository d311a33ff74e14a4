#include "text/jinja_lex.h"

#include "text/utf8.h"

typedef struct Lex {
    Arena *arena;
    const char *doc;
    const char *start, *p, *end;
    int line;
    JinjaToken *at;
    int n, cap;
    Error *err;
} Lex;

static bool fail(const Lex *l, const char *what)
{
    return err_set(l->err, ERR_FORMAT, "%s: line %d: %s", l->doc, l->line, what);
}

static bool push(Lex *l, JinjaTok type, const char *from, size_t len)
{
    if (l->n == l->cap) {
        const int cap = l->cap ? l->cap * 2 : 256;
        JinjaToken *at = ARENA_ARRAY(l->arena, cap, JinjaToken, l->err);
        if (!at)
            return false;
        if (l->n)
            memcpy(at, l->at, (size_t)l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = (JinjaToken){type, l->line, {from, len}};
    return true;
}

/* Moves p to `to`, counting lines. */
static void advance(Lex *l, const char *to)
{
    for (; l->p < to; l->p++)
        l->line += *l->p == '\n';
}

/* Length of the white space character at p, 0: none. Python's str.isspace, beyond White_Space, has
 * U+001C to U+001F. */
static size_t space_at(const char *p, const char *end)
{
    uint32_t cp;
    const int n = utf8_decode(p, (size_t)(end - p), &cp);
    if (n == 0 || !(utf8_is_space(cp) || (cp >= 0x1C && cp <= 0x1F)))
        return 0;
    return (size_t)n;
}

static const char *skip_space(const char *p, const char *end)
{
    size_t n;
    while (p < end && (n = space_at(p, end)) > 0)
        p += n;
    return p;
}

/* End of text[from, to) without the white space at its end. */
static const char *strip_end(const char *from, const char *to)
{
    while (to > from) {
        const char *q = to - 1;
        while (q > from && ((unsigned char)*q & 0xC0U) == 0x80)
            q--;
        if (space_at(q, to) != (size_t)(to - q))
            break;
        to = q;
    }
    return to;
}

static bool is(const Lex *l, const char *p, const char *text)
{
    const size_t n = strlen(text);
    return (size_t)(l->end - p) >= n && memcmp(p, text, n) == 0;
}

/* The next "{{", "{%" or "{#" at or after p, or the end. */
static const char *find_tag(const Lex *l, const char *p)
{
    while (p < l->end) {
        p = memchr(p, '{', (size_t)(l->end - p));
        if (!p)
            return l->end;
        if (l->end - p > 1 && (p[1] == '{' || p[1] == '%' || p[1] == '#'))
            return p;
        p++;
    }
    return l->end;
}

/* Literal text [p, tag), trimmed as the tag wants. */
static bool text(Lex *l, const char *tag, bool line_start)
{
    const char *to = tag;
    if (tag < l->end) {
        const char sign = l->end - tag > 2 ? tag[2] : '\0';
        if (sign == '-') {
            to = strip_end(l->p, tag);
        } else if (sign != '+' && tag[1] != '{') { /* lstrip_blocks */
            const char *bol = tag;
            while (bol > l->p && bol[-1] != '\n')
                bol--;
            if ((bol > l->p || line_start) && strip_end(bol, tag) == bol)
                to = bol;
        }
    }
    if (to > l->p && !push(l, JT_TEXT, l->p, (size_t)(to - l->p)))
        return false;
    advance(l, tag);
    return true;
}

/* Past what follows a tag's end at p: with '-' all white space, else one newline (trim_blocks). */
static const char *after_tag(const Lex *l, const char *p, char sign, bool trim)
{
    if (sign == '-')
        return skip_space(p, l->end);
    if (trim && sign != '+' && p < l->end && *p == '\n')
        return p + 1;
    return p;
}

static bool comment(Lex *l)
{
    const char *const from = l->p + 2 + (l->end - l->p > 2 && strchr("-+", l->p[2]) && l->p[2]);
    const char *p = from;
    while ((p = memchr(p, '#', (size_t)(l->end - p)))) {
        if (l->end - p > 1 && p[1] == '}')
            break;
        p++;
    }
    if (!p)
        return fail(l, "a comment does not end");
    const char sign = p > from && (p[-1] == '-' || p[-1] == '+') ? p[-1] : '\0';
    advance(l, after_tag(l, p + 2, sign, true));
    return true;
}

/* "{%- raw -%}" at p: its end and signs, or NULL. */
static const char *word_tag(const Lex *l, const char *p, const char *word, char *before,
                            char *after)
{
    *before = '\0';
    *after = '\0';
    p += 2;
    if (p < l->end && (*p == '-' || *p == '+'))
        *before = *p++;
    p = skip_space(p, l->end);
    if (!is(l, p, word))
        return NULL;
    p = skip_space(p + strlen(word), l->end);
    if (p < l->end && (*p == '-' || *p == '+'))
        *after = *p++;
    return is(l, p, "%}") ? p + 2 : NULL;
}

/* {% raw %} ... {% endraw %}; *done false when the tag at p is another. */
static bool raw(Lex *l, bool *done)
{
    char before;
    char after;
    const char *p = word_tag(l, l->p, "raw", &before, &after);
    if (after == '+') /* no such end of this tag */
        p = NULL;
    *done = p != NULL;
    if (!p)
        return true;
    advance(l, after_tag(l, p, after, false));
    for (const char *q = l->p; q < l->end; q++) {
        q = memchr(q, '{', (size_t)(l->end - q));
        if (!q)
            break;
        if (!is(l, q, "{%"))
            continue;
        const char *end = word_tag(l, q, "endraw", &before, &after);
        if (!end)
            continue;
        const char *to = q;
        if (before == '-') {
            to = strip_end(l->p, q);
        } else if (before != '+') {
            const char *bol = q;
            while (bol > l->p && bol[-1] != '\n')
                bol--;
            if (bol > l->p && strip_end(bol, q) == bol)
                to = bol;
        }
        if (to > l->p && !push(l, JT_TEXT, l->p, (size_t)(to - l->p)))
            return false;
        advance(l, after_tag(l, end, after, true));
        return true;
    }
    return fail(l, "{% raw %} does not end");
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between. */
static const char *digits(const Lex *l, const char *p)
{
    while (p < l->end &&
           (is_digit(*p) || (*p == '_' && l->end - p > 1 && is_digit(p[1]) && is_digit(p[-1]))))
        p++;
    return p;
}

static bool number(Lex *l)
{
    const char *p = l->p;
    bool is_float = false;
    const bool index = p > l->start && p[-1] == '.'; /* a.0.1: two indices, no float */
    if (*p == '0' && l->end - p > 1 && strchr("xXbBoO", p[1]) && p[1]) {
        p += 2;
        while (p < l->end && is_name_byte(*p))
            p++;
    } else {
        p = digits(l, p);
        if (!index && l->end - p > 1 && *p == '.' && is_digit(p[1])) {
            p = digits(l, p + 1);
            is_float = true;
        }
        if (!index && l->end - p > 1 && (*p == 'e' || *p == 'E')) {
            const char *q = p + 1;
            if (*q == '+' || *q == '-')
                q++;
            if (q < l->end && is_digit(*q)) {
                p = digits(l, q);
                is_float = true;
            }
        }
    }
    for (const char *q = l->p; !is_float && *l->p == '0' && q < p; q++) {
        if (is_digit(*q) && *q != '0' && (l->p[1] == '_' || is_digit(l->p[1])))
            return fail(l, "a whole number with a zero before it");
    }
    if (!push(l, is_float ? JT_FLOAT : JT_INT, l->p, (size_t)(p - l->p)))
        return false;
    l->p = p;
    return true;
}

static bool string(Lex *l)
{
    const char quote = *l->p;
    const char *p = l->p + 1;
    while (p < l->end && *p != quote)
        p += *p == '\\' && l->end - p > 1 ? 2 : 1;
    if (p >= l->end)
        return fail(l, "a string does not end");
    if (!push(l, JT_STRING, l->p + 1, (size_t)(p - l->p) - 1))
        return false;
    advance(l, p + 1);
    return true;
}

static bool op(Lex *l, StrBuf *open)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "**", "//"};
    const char c = *l->p;
    size_t len = 1;
    for (size_t i = 0; i < COUNT_OF(two); i++)
        len = is(l, l->p, two[i]) ? 2 : len;
    if (len == 1 && (c == '\0' || !strchr("+-/*%~[](){}<>=.:|,;", c)))
        return fail(l, "an unexpected character in a tag");
    if (strchr("([{", c)) {
        const char close = c == '(' ? ')' : c == '[' ? ']' : '}';
        if (!strbuf_add(open, &close, 1))
            return strbuf_check(open, l->doc, l->err);
    } else if (strchr(")]}", c)) {
        if (open->len == 0 || open->ptr[open->len - 1] != c)
            return fail(l, "a closing bracket without its opening one");
        open->len--;
    }
    if (!push(l, JT_OP, l->p, len))
        return false;
    l->p += len;
    return true;
}

/* Inside {{ }} or {% %}; p is behind the opening. */
static bool inside(Lex *l, bool print, StrBuf *open)
{
    const char *close = print ? "}}" : "%}";
    const int from = l->line;
    open->len = 0;
    for (;;) {
        advance(l, skip_space(l->p, l->end));
        if (l->p == l->end) {
            l->line = from;
            return fail(l, print ? "{{ does not end" : "{% does not end");
        }
        if (open->len == 0) {
            const char sign = *l->p == '-' || (*l->p == '+' && !print) ? *l->p : '\0';
            const char *p = l->p + (sign ? 1 : 0);
            if (is(l, p, close)) {
                if (!push(l, print ? JT_PRINT_END : JT_BLOCK_END, p, 2))
                    return false;
                advance(l, after_tag(l, p + 2, sign, !print));
                return true;
            }
        }
        const char c = *l->p;
        bool ok;
        if (is_digit(c)) {
            ok = number(l);
        } else if (is_name_byte(c)) {
            const char *p = l->p;
            while (p < l->end && is_name_byte(*p) && space_at(p, l->end) == 0)
                p++;
            ok = push(l, JT_NAME, l->p, (size_t)(p - l->p));
            l->p = p;
        } else if (c == '"' || c == '\'') {
            ok = string(l);
        } else {
            ok = op(l, open);
        }
        if (!ok)
            return false;
    }
}

static bool lex(Lex *l, StrBuf *open)
{
    bool line_start = true;
    while (l->p < l->end) {
        const char *tag = find_tag(l, l->p);
        if (!text(l, tag, line_start))
            return false;
        if (tag == l->end)
            break;
        if (tag[1] == '#') {
            if (!comment(l))
                return false;
        } else {
            bool done = false;
            if (tag[1] == '%' && !raw(l, &done))
                return false;
            if (!done) {
                const bool print = tag[1] == '{';
                if (!push(l, print ? JT_PRINT_BEGIN : JT_BLOCK_BEGIN, tag, 2))
                    return false;
                l->p += 2;
                if (l->p < l->end && (*l->p == '-' || *l->p == '+'))
                    l->p++;
                if (!inside(l, print, open))
                    return false;
            }
        }
        line_start = l->p > l->start && l->p[-1] == '\n';
    }
    return push(l, JT_END, l->end, 0);
}

bool jinja_lex(Arena *a, const char *doc, Str source, JinjaToken **out, int *n, Error *err)
{
    Lex l = {.arena = a, .doc = doc, .line = 1, .err = err};
    l.start = l.p = source.ptr;
    l.end = source.ptr + source.len;
    StrBuf open; /* the closing brackets that are due */
    strbuf_init(&open, source.len + 1);
    const bool ok = lex(&l, &open);
    strbuf_free(&open);
    *out = l.at;
    *n = l.n;
    return ok;
}
