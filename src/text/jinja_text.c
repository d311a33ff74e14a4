#include "text/jinja_text.h"

#include "text/jinja_char.h"
#include "text/utf8.h"

#include <utf8proc.h>

static void add_cp(StrBuf *b, utf8proc_int32_t cp)
{
    char utf8[4];
    strbuf_add(b, utf8, (size_t)utf8_encode((uint32_t)cp, utf8));
}

enum { FOLDED_MAX = 8 };

/* The folded form, of up to three characters. */
static int folded(uint32_t cp, utf8proc_int32_t to[FOLDED_MAX])
{
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, to, FOLDED_MAX, UTF8PROC_CASEFOLD, &boundary);
    return n > 0 && n <= FOLDED_MAX ? (int)n : 0;
}

/* A letter that has no capital of its own takes those of its folded form. */
static void add_upper(StrBuf *b, uint32_t cp, bool title)
{
    utf8proc_int32_t to[FOLDED_MAX];
    const utf8proc_int32_t c = (utf8proc_int32_t)cp;
    const utf8proc_int32_t up = title ? utf8proc_totitle(c) : utf8proc_toupper(c);
    const utf8proc_category_t category = utf8proc_category(c);
    const bool single = cp < 0x80 || category == UTF8PROC_CATEGORY_LU ||
                        (title && (category == UTF8PROC_CATEGORY_LT || up != c) && cp != 0xDF);
    const int n = single ? 1 : folded(cp, to);
    if (n <= 1) {
        add_cp(b, up);
        return;
    }
    if (title && to[n - 1] == 0x3B9) /* of Greek, an iota that goes below the letter */
        to[n - 1] = 0x345;
    bool done = false; /* with the first letter that has a capital */
    for (int i = 0; i < n; i++) {
        const utf8proc_int32_t capital = utf8proc_toupper(to[i]);
        add_cp(b, title && done ? to[i] : capital);
        done = done || capital != to[i];
    }
}

static void add_lower(StrBuf *b, uint32_t cp)
{
    if (cp == 0x130) { /* dotted capital I: i and a combining dot */
        strbuf_add_cstr(b, "i\xCC\x87");
        return;
    }
    add_cp(b, utf8proc_tolower((utf8proc_int32_t)cp));
}

static bool opens_word(uint32_t cp)
{
    return jinja_is_space(cp) || cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<';
}

/* Whether letters stand before `from` and none behind `to`: a small sigma has a form for there. */
static bool ends_word(Str s, size_t from, size_t to)
{
    uint32_t cp = 0;
    bool before = false;
    while (from > 0 && !before) {
        from--;
        if (((unsigned char)s.ptr[from] & 0xC0U) == 0x80)
            continue;
        (void)utf8_decode(s.ptr + from, s.len - from, &cp);
        before = jinja_is_cased(cp);
        if (!before && !jinja_is_case_ignorable(cp))
            break;
    }
    while (before && to < s.len) {
        const int n = utf8_decode(s.ptr + to, s.len - to, &cp);
        to += n > 0 ? (size_t)n : 1;
        if (!jinja_is_case_ignorable(cp))
            return !jinja_is_cased(cp);
    }
    return before;
}

bool jinja_case(Jinja *j, Str s, JinjaCase how, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    bool start = true; /* of a word, or of the text */
    utf8proc_int32_t fold[FOLDED_MAX];
    int n_folded;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0xFFFD;
        const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        i += n > 0 ? (size_t)n : 1;
        bool up = false;
        bool title = false;
        bool keep = false;
        switch (how) {
        case JINJA_UPPER:
            up = true;
            break;
        case JINJA_LOWER:
            break;
        case JINJA_CAPITALIZE:
            up = title = start;
            start = false;
            break;
        case JINJA_TITLE:
            up = title = start;
            start = !jinja_is_cased(cp);
            break;
        case JINJA_TITLE_TAG:
            up = start;
            start = opens_word(cp);
            break;
        case JINJA_SWAPCASE:
            up = jinja_is_lower(cp);
            keep = !up && !jinja_is_upper(cp);
            break;
        case JINJA_CASEFOLD:
            n_folded = folded(cp, fold);
            for (int k = 0; k < n_folded; k++)
                add_cp(&b, fold[k]);
            continue;
        }
        if (keep)
            add_cp(&b, (utf8proc_int32_t)cp);
        else if (up)
            add_upper(&b, cp, title);
        else if (cp == 0x3A3 && ends_word(s, i - (size_t)n, i))
            add_cp(&b, 0x3C2);
        else
            add_lower(&b, cp);
    }
    return jinja_step(j, (int64_t)s.len / 4) ? jinja_take_buf(j, &b, out)
                                             : (strbuf_free(&b), false);
}

static bool in_set(Str chars, const char *p, size_t n, uint32_t cp)
{
    if (!chars.ptr)
        return jinja_is_space(cp);
    for (size_t i = 0; i < chars.len;) {
        const size_t m = utf8_step(chars.ptr[i]);
        if (m == n && memcmp(chars.ptr + i, p, n) == 0)
            return true;
        i += m;
    }
    return false;
}

Str jinja_strip(Str s, Str chars, int sides)
{
    uint32_t cp = 0;
    while ((sides & JINJA_LEFT) && s.len > 0) {
        const size_t n = utf8_step(s.ptr[0]);
        (void)utf8_decode(s.ptr, s.len, &cp);
        if (!in_set(chars, s.ptr, n, cp))
            break;
        s = (Str){s.ptr + n, s.len - n};
    }
    while ((sides & JINJA_RIGHT) && s.len > 0) {
        size_t n = 1;
        while (n < s.len && n < 4 && ((unsigned char)s.ptr[s.len - n] & 0xC0U) == 0x80)
            n++;
        (void)utf8_decode(s.ptr + s.len - n, n, &cp);
        if (!in_set(chars, s.ptr + s.len - n, n, cp))
            break;
        s.len -= n;
    }
    return s;
}

static bool add_part(Jinja *j, JinjaValue list, const char *from, const char *to)
{
    return jinja_step(j, 1) &&
           jinja_list_push(j, list.u.list, jinja_str(from, (size_t)(to - from)));
}

/* On runs of white space, from the left. */
static bool split_space(Jinja *j, Str s, int64_t max, JinjaValue list)
{
    for (;;) {
        s = jinja_strip(s, (Str){NULL, 0}, JINJA_LEFT);
        if (s.len == 0)
            return true;
        if (max >= 0 && list.u.list->n == max)
            return add_part(j, list, s.ptr, s.ptr + s.len);
        size_t i = 0;
        while (i < s.len) {
            uint32_t cp = 0;
            const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
            if (jinja_is_space(cp))
                break;
            i += n > 0 ? (size_t)n : 1;
        }
        if (!add_part(j, list, s.ptr, s.ptr + i))
            return false;
        s = (Str){s.ptr + i, s.len - i};
    }
}

static void reverse(JinjaList *l)
{
    for (int64_t a = 0, b = l->n - 1; a < b; a++, b--) {
        const JinjaValue t = l->at[a];
        l->at[a] = l->at[b];
        l->at[b] = t;
    }
}

static bool rsplit_space(Jinja *j, Str s, int64_t max, JinjaValue list)
{
    for (;;) {
        s = jinja_strip(s, (Str){NULL, 0}, JINJA_RIGHT);
        if (s.len == 0)
            break;
        if (max >= 0 && list.u.list->n == max) {
            if (!add_part(j, list, s.ptr, s.ptr + s.len))
                return false;
            break;
        }
        size_t at = s.len;
        while (at > 0) {
            size_t n = 1;
            while (n < at && n < 4 && ((unsigned char)s.ptr[at - n] & 0xC0U) == 0x80)
                n++;
            uint32_t cp = 0;
            (void)utf8_decode(s.ptr + at - n, n, &cp);
            if (jinja_is_space(cp))
                break;
            at -= n;
        }
        if (!add_part(j, list, s.ptr + at, s.ptr + s.len))
            return false;
        s.len = at;
    }
    reverse(list.u.list);
    return true;
}

/* *at NULL: none. */
static bool find_last(Jinja *j, Str s, Str what, const char **at)
{
    *at = NULL;
    if (what.len > s.len)
        return true;
    const int64_t cost = (int64_t)(what.len / 16) + 1;
    for (size_t i = s.len - what.len + 1; i-- > 0;) {
        if (i % 16 == 0 && !jinja_step(j, cost))
            return false;
        if (what.len == 0 || memcmp(s.ptr + i, what.ptr, what.len) == 0) {
            *at = s.ptr + i;
            break;
        }
    }
    return true;
}

bool jinja_split(Jinja *j, Str s, Str sep, int64_t max, bool from_right, JinjaValue *out)
{
    if (!jinja_list_new(j, JINJA_LIST, 0, out) || !jinja_step(j, (int64_t)(s.len / 16)))
        return false;
    if (!sep.ptr)
        return from_right ? rsplit_space(j, s, max, *out) : split_space(j, s, max, *out);
    if (sep.len == 0)
        return jinja_fail(j, "ValueError: empty separator");
    while (max < 0 || out->u.list->n < max) {
        if (from_right) {
            const char *at;
            if (!find_last(j, s, sep, &at))
                return false;
            if (!at)
                break;
            if (!add_part(j, *out, at + sep.len, s.ptr + s.len))
                return false;
            s.len = (size_t)(at - s.ptr);
        } else {
            const char *at = memmem(s.ptr, s.len, sep.ptr, sep.len);
            if (!at)
                break;
            if (!add_part(j, *out, s.ptr, at))
                return false;
            s.len -= (size_t)(at - s.ptr) + sep.len;
            s.ptr = at + sep.len;
        }
    }
    if (!add_part(j, *out, s.ptr, s.ptr + s.len))
        return false;
    if (from_right)
        reverse(out->u.list);
    return true;
}

static bool is_line_end(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool jinja_splitlines(Jinja *j, Str s, bool keep_ends, JinjaValue *out)
{
    if (!jinja_list_new(j, JINJA_LIST, 0, out) || !jinja_step(j, (int64_t)(s.len / 4)))
        return false;
    size_t from = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
        size_t next = i + (n > 0 ? (size_t)n : 1);
        if (is_line_end(cp)) {
            if (cp == '\r' && next < s.len && s.ptr[next] == '\n')
                next++;
            if (!add_part(j, *out, s.ptr + from, s.ptr + (keep_ends ? next : i)))
                return false;
            from = next;
        }
        i = next;
    }
    return from == s.len || add_part(j, *out, s.ptr + from, s.ptr + s.len);
}

bool jinja_replace(Jinja *j, Str s, Str from, Str to, int64_t count, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    size_t at = 0;
    if (!jinja_step(j, (int64_t)(s.len / 16)))
        return false;
    while (count != 0) {
        if (from.len == 0) { /* before every character and at the end */
            strbuf_add(&b, to.ptr, to.len);
            if (at == s.len)
                break;
            const size_t n = utf8_step(s.ptr[at]);
            strbuf_add(&b, s.ptr + at, n);
            at += n;
        } else {
            const char *hit = memmem(s.ptr + at, s.len - at, from.ptr, from.len);
            if (!hit)
                break;
            strbuf_add(&b, s.ptr + at, (size_t)(hit - s.ptr) - at);
            strbuf_add(&b, to.ptr, to.len);
            at = (size_t)(hit - s.ptr) + from.len;
        }
        if (count > 0)
            count--;
        if (b.failed || !jinja_step(j, 1))
            break;
    }
    if (at < s.len)
        strbuf_add(&b, s.ptr + at, s.len - at);
    return jinja_take_buf(j, &b, out);
}

bool jinja_find(Jinja *j, Str s, Str what, bool last, int64_t *out)
{
    const char *at = NULL;
    if (!last)
        at = memmem(s.ptr, s.len, what.ptr, what.len);
    else if (!find_last(j, s, what, &at))
        return false;
    *out = at ? (int64_t)utf8_count((Str){s.ptr, (size_t)(at - s.ptr)}) : -1;
    return jinja_step(j, (int64_t)(s.len / 8));
}

Str jinja_substr(Str s, int64_t from, int64_t to)
{
    size_t a = 0;
    int64_t i = 0;
    while (i < from && a < s.len) {
        a += utf8_step(s.ptr[a]);
        i++;
    }
    size_t b = a;
    while (i < to && b < s.len) {
        b += utf8_step(s.ptr[b]);
        i++;
    }
    return (Str){s.ptr + a, b - a};
}

bool jinja_pad(Jinja *j, Str s, int64_t width, Str fill, int sides, JinjaValue *out)
{
    const int64_t len = (int64_t)utf8_count(s);
    const int64_t total = width > len ? width - len : 0;
    int64_t left = 0;
    if (utf8_count(fill) != 1)
        return jinja_fail(j, "TypeError: The fill character must be exactly one character long");
    if (sides == (JINJA_LEFT | JINJA_RIGHT)) /* Python's str.center leans by parity */
        left = total / 2 + (total & width & 1);
    else if (sides == JINJA_LEFT)
        left = total;
    StrBuf b;
    jinja_buf(j, &b);
    if (!jinja_step(j, total))
        return false;
    for (int64_t i = 0; i < left && !b.failed; i++)
        strbuf_add(&b, fill.ptr, fill.len);
    strbuf_add(&b, s.ptr, s.len);
    for (int64_t i = left; i < total && !b.failed; i++)
        strbuf_add(&b, fill.ptr, fill.len);
    return jinja_take_buf(j, &b, out);
}
