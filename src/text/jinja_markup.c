#include "text/jinja_markup.h"

#include "text/jinja_method.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

static bool no_args(Jinja *j, const char *what, const JinjaCall *call)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    return jinja_bind(j, what, call, "", 0, arg);
}

bool jinja_safe(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    if (!no_args(j, "safe", call) || !jinja_to_str(j, v, out))
        return false;
    out->flags |= JINJA_SAFE;
    return true;
}

static bool escape_html(Jinja *j, Str s, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    for (size_t i = 0; i < s.len; i++) {
        const char c = s.ptr[i];
        if (c == '&')
            strbuf_add_cstr(&b, "&amp;");
        else if (c == '<')
            strbuf_add_cstr(&b, "&lt;");
        else if (c == '>')
            strbuf_add_cstr(&b, "&gt;");
        else if (c == '"')
            strbuf_add_cstr(&b, "&#34;");
        else if (c == '\'')
            strbuf_add_cstr(&b, "&#39;");
        else
            strbuf_add(&b, &c, 1);
    }
    if (!jinja_take_buf(j, &b, out))
        return false;
    out->flags |= JINJA_SAFE;
    return true;
}

bool jinja_escape(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue s = {0};
    if (!no_args(j, "escape", call) || !jinja_to_str(j, v, &s))
        return false;
    if (s.flags & JINJA_SAFE) {
        *out = s;
        return true;
    }
    return escape_html(j, jinja_text(s), out);
}

bool jinja_forceescape(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue s = {0};
    return no_args(j, "forceescape", call) && jinja_to_str(j, v, &s) &&
           escape_html(j, jinja_text(s), out);
}

/* ---- striptags ---- */

/* Takes out everything from `open` to `close`. */
static bool cut_out(Jinja *j, StrBuf *b, const char *open, const char *close)
{
    size_t from = 0;
    for (;;) {
        char *at = b->len > from ? memmem(b->ptr + from, b->len - from, open, strlen(open)) : NULL;
        if (!at)
            return true;
        const size_t rest = b->len - (size_t)(at - b->ptr);
        char *end = memmem(at, rest, close, strlen(close));
        if (!end)
            return true;
        end += strlen(close);
        if (!jinja_step(j, 1 + (int64_t)(rest / 64)))
            return false;
        memmove(at, end, b->len - (size_t)(end - b->ptr));
        b->len -= (size_t)(end - at);
        from = (size_t)(at - b->ptr);
        from = from > strlen(open) ? from - strlen(open) : 0; /* what it met may open one */
    }
}

/* "&amp;" and the like at s[*i], and numbers; other names are refused rather than left as they are.
 */
static bool add_entity(Jinja *j, StrBuf *b, Str s, size_t *i)
{
    static const struct {
        const char *name;
        char stands_for;
    } names[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    const Str rest = {s.ptr + *i, s.len - *i};
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        if (str_starts(rest, names[k].name)) {
            *i += strlen(names[k].name);
            return strbuf_add(b, &names[k].stands_for, 1);
        }
    }
    const char second = rest.len > 1 ? rest.ptr[1] : ' ';
    const bool hex = rest.len > 2 && (rest.ptr[2] | 0x20) == 'x';
    size_t n = hex ? 3 : 2;
    uint32_t cp = 0;
    if (second != '#' && !((second | 0x20) >= 'a' && (second | 0x20) <= 'z')) {
        ++*i;
        return strbuf_add_cstr(b, "&");
    }
    const size_t first = n;
    for (; second == '#' && n < rest.len && n < first + 7; n++) {
        const char c = rest.ptr[n];
        const int digit = c >= '0' && c <= '9'                            ? c - '0'
                          : hex && (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                          : -1;
        if (digit < 0)
            break;
        cp = cp * (hex ? 16 : 10) + (uint32_t)digit;
    }
    if (second == '#' && n == first) {
        ++*i;
        return strbuf_add_cstr(b, "&");
    }
    char utf8[4];
    const bool ends = n < rest.len && rest.ptr[n] == ';';
    const int len = utf8_encode(cp, utf8);
    if (second != '#' || !ends || cp < 0x20 || (cp >= 0x7F && cp < 0xA0) || len <= 0 ||
        (cp >= 0xFDD0 && cp <= 0xFDEF) || (cp & 0xFFFE) == 0xFFFE)
        return jinja_fail(j, "striptags: an entity that is not supported");
    *i += n + 1;
    return strbuf_add(b, utf8, (size_t)len);
}

bool jinja_striptags(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue s = {0};
    JinjaValue words = {0};
    JinjaValue bare = {0};
    StrBuf b;
    if (!no_args(j, "striptags", call) || !jinja_to_str(j, v, &s) || !jinja_step(j, s.len / 16))
        return false;
    jinja_buf(j, &b);
    strbuf_add(&b, s.u.s, s.len);
    if (!cut_out(j, &b, "<!--", "-->") || !cut_out(j, &b, "<", ">")) {
        strbuf_free(&b);
        return false;
    }
    if (!jinja_take_buf(j, &b, &bare) ||
        !jinja_split(j, jinja_text(bare), (Str){NULL, 0}, -1, false, &words))
        return false;
    jinja_buf(j, &b);
    bool ok = true;
    for (int64_t k = 0; ok && k < words.u.list->n; k++) {
        const Str word = jinja_text(words.u.list->at[k]);
        if (k)
            strbuf_add_cstr(&b, " ");
        for (size_t i = 0; ok && i < word.len;) {
            const char *amp = memchr(word.ptr + i, '&', word.len - i);
            const size_t end = amp ? (size_t)(amp - word.ptr) : word.len;
            strbuf_add(&b, word.ptr + i, end - i);
            i = end;
            ok = !amp || b.failed || add_entity(j, &b, word, &i);
            if (b.failed)
                break;
        }
    }
    if (!ok && !b.failed) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}

/* ---- addresses and attributes ---- */

/* `in_query`: a blank is '+', and '/' no exception. */
static bool quote(Jinja *j, StrBuf *b, JinjaValue v, bool in_query)
{
    JinjaValue s = {0};
    if (!jinja_to_str(j, v, &s) || !jinja_step(j, 1 + s.len / 16))
        return false;
    for (size_t i = 0; i < s.len; i++) {
        const char c = s.u.s[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') ||
                           (c && strchr(in_query ? "_.-~" : "_.-~/", c) != NULL);
        if (plain)
            strbuf_add(b, &c, 1);
        else if (in_query && c == ' ')
            strbuf_add_cstr(b, "+");
        else
            strbuf_printf(b, "%%%02X", (unsigned)(unsigned char)c);
    }
    return true;
}

static bool quote_pairs(Jinja *j, StrBuf *b, JinjaValue v)
{
    JinjaValue pairs = {0};
    JinjaList *items;
    if (v.type == JINJA_DICT) {
        if (!jinja_items(j, v.u.dict, &pairs))
            return false;
        items = pairs.u.list;
    } else if (!jinja_iterate(j, v, &items)) {
        return false;
    }
    for (int64_t i = 0; i < items->n; i++) {
        JinjaList *pair;
        if (!jinja_iterate(j, items->at[i], &pair))
            return false;
        if (pair->n != 2)
            return jinja_fail(j, "ValueError: an item that is no pair");
        if (i)
            strbuf_add_cstr(b, "&");
        if (!quote(j, b, pair->at[0], true) || !strbuf_add_cstr(b, "=") ||
            !quote(j, b, pair->at[1], true))
            return false;
    }
    return true;
}

bool jinja_urlencode(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    StrBuf b;
    if (!no_args(j, "urlencode", call))
        return false;
    jinja_buf(j, &b);
    if (!(v.type == JINJA_DICT || jinja_is_seq(v) ? quote_pairs(j, &b, v)
                                                  : quote(j, &b, v, false)) &&
        !b.failed) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}

static bool add_attr(Jinja *j, StrBuf *b, const JinjaPair *p)
{
    JinjaValue key = {0};
    JinjaValue value = {0};
    if (p->key.type != JINJA_STR)
        return jinja_fail(j, "TypeError: expected string, got '%s'", jinja_type_name(p->key));
    for (size_t i = 0; i < p->key.len; i++) {
        if (p->key.u.s[i] && strchr(" \t\n\v\f\r/>=", p->key.u.s[i]))
            return jinja_fail(j, "ValueError: Invalid character in attribute name");
    }
    if (!jinja_escape(j, p->key, &(JinjaCall){0}, &key) ||
        !jinja_escape(j, p->value, &(JinjaCall){0}, &value))
        return false;
    strbuf_add(b, key.u.s, key.len);
    strbuf_add_cstr(b, "=\"");
    strbuf_add(b, value.u.s, value.len);
    strbuf_add_cstr(b, "\"");
    return true;
}

bool jinja_xmlattr(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    StrBuf b;
    if (!jinja_bind(j, "xmlattr", call, "autospace", 0, arg))
        return false;
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (v.type != JINJA_DICT)
        return jinja_fail(j, "AttributeError: '%s' object has no attribute 'items'",
                          jinja_type_name(v));
    const bool space = arg[0].type == JINJA_MISSING || jinja_truth(arg[0]);
    bool any = false;
    jinja_buf(j, &b);
    for (int64_t i = 0; i < v.u.dict->n; i++) {
        const JinjaPair *p = &v.u.dict->at[i];
        if (p->value.type == JINJA_NONE || p->value.type == JINJA_UNDEFINED)
            continue;
        if (any || space)
            strbuf_add_cstr(&b, " ");
        any = true;
        if (!add_attr(j, &b, p)) {
            strbuf_free(&b);
            return false;
        }
    }
    if (!jinja_take_buf(j, &b, out))
        return false;
    out->flags = j->escape ? JINJA_SAFE : 0;
    return true;
}
