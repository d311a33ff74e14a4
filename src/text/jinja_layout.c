#include "text/jinja_layout.h"

#include "text/jinja_char.h"
#include "text/jinja_seq.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

/* ---- wordwrap ---- */

/* A line by code points, and where its chunks end: a line may break between two of them. */
typedef struct Line {
    uint32_t *cp;
    size_t *at; /* byte of each code point, and of the end */
    size_t n;
    size_t *ends;
    size_t n_chunks;
} Line;

typedef struct Wrap {
    int64_t width;
    bool break_words, at_hyphens, hyphens_too;
    Str between; /* lines */
} Wrap;

static bool line_init(Jinja *j, Str s, Line *l)
{
    *l = (Line){0};
    l->cp = jinja_take(j, s.len + 1, sizeof *l->cp);
    l->at = jinja_take(j, s.len + 1, sizeof *l->at);
    l->ends = jinja_take(j, s.len + 1, sizeof *l->ends);
    if (!l->cp || !l->at || !l->ends || !jinja_step(j, 1 + (int64_t)(s.len / 2)))
        return false;
    for (size_t i = 0; i < s.len; l->n++) {
        const int n = utf8_decode(s.ptr + i, s.len - i, &l->cp[l->n]);
        l->at[l->n] = i;
        i += n > 0 ? (size_t)n : 1;
    }
    l->at[l->n] = s.len;
    return true;
}

static bool is_blank(uint32_t cp)
{
    return cp == ' ' || (cp >= '\t' && cp <= '\r');
}

static bool is_letter(uint32_t cp)
{
    return jinja_is_word(cp) && jinja_digit(cp) < 0;
}

static bool letter_at(const Line *l, size_t i)
{
    return i < l->n && is_letter(l->cp[i]);
}

/* Behind a word, two hyphens or more and another word. */
static bool is_dash(const Line *l, size_t i)
{
    const uint32_t before = i > 0 ? l->cp[i - 1] : 0;
    const bool word = jinja_is_word(before) ||
                      (before && before < 0x80 && strchr("!\"'&.,?", (int)before) != NULL);
    size_t end = i;
    while (end < l->n && l->cp[end] == '-')
        end++;
    return word && end - i >= 2 && end < l->n && jinja_is_word(l->cp[end]);
}

/* A hyphen inside a word, with letters enough on both sides. */
static bool is_hyphen(const Line *l, size_t i)
{
    const bool before =
        i >= 2 && letter_at(l, i - 1) &&
        (letter_at(l, i - 2) || (i >= 3 && l->cp[i - 2] == '-' && letter_at(l, i - 3)));
    return l->cp[i] == '-' && before && letter_at(l, i + 1) &&
           (letter_at(l, i + 2) || (i + 2 < l->n && l->cp[i + 2] == '-' && letter_at(l, i + 3)));
}

/* The end of the chunk that starts at i. */
static size_t chunk_end(const Line *l, size_t i, bool hyphens)
{
    size_t end = i + 1;
    if (is_blank(l->cp[i])) {
        while (end < l->n && is_blank(l->cp[end]))
            end++;
        return end;
    }
    if (hyphens && is_dash(l, i)) {
        while (l->cp[end] == '-')
            end++;
        return end;
    }
    for (; end < l->n && !is_blank(l->cp[end]); end++) {
        if (hyphens && is_hyphen(l, end))
            return end + 1;
        if (hyphens && l->cp[end] == '-' && is_dash(l, end))
            return end;
    }
    return end;
}

static bool all_space(const Line *l, size_t from, size_t to)
{
    while (from < to && jinja_is_space(l->cp[from]))
        from++;
    return from == to;
}

/* How much of a chunk that is too long fits into `room`. */
static size_t break_at(const Line *l, size_t from, size_t to, size_t room, bool hyphens)
{
    if (!hyphens || to - from <= room)
        return room;
    size_t h = room;
    while (h > 0 && l->cp[from + h - 1] != '-')
        h--;
    for (size_t i = 0; h > 1 && i < h - 1; i++) {
        if (l->cp[from + i] != '-')
            return h;
    }
    return room;
}

static bool wrap_line(Jinja *j, StrBuf *b, Str s, const Wrap *how)
{
    Line l;
    if (!line_init(j, s, &l))
        return false;
    if (how->width <= 0)
        return jinja_fail(j, "ValueError: invalid width (must be > 0)");
    const size_t width = (size_t)how->width;
    for (size_t i = 0; i < l.n; i = l.ends[l.n_chunks++])
        l.ends[l.n_chunks] = chunk_end(&l, i, how->at_hyphens);
    size_t pos = 0;
    size_t lines = 0;
    for (size_t k = 0; k < l.n_chunks;) {
        if (lines > 0 && all_space(&l, pos, l.ends[k]))
            pos = l.ends[k++];
        const size_t start = pos;
        size_t last = pos; /* start of the last piece */
        size_t pieces = 0;
        for (; k < l.n_chunks && l.ends[k] - start <= width; k++, pieces++) {
            last = pos;
            pos = l.ends[k];
        }
        if (k < l.n_chunks && l.ends[k] - pos > width && (how->break_words || pieces == 0)) {
            last = pos;
            pos = how->break_words
                      ? pos + break_at(&l, pos, l.ends[k], width - (pos - start), how->hyphens_too)
                      : l.ends[k++];
            pieces++;
        }
        size_t end = pos;
        if (pieces > 0 && all_space(&l, last, pos)) {
            end = last;
            pieces--;
        }
        if (pieces == 0)
            continue;
        if (lines++ > 0)
            strbuf_add(b, how->between.ptr, how->between.len);
        strbuf_add(b, s.ptr + l.at[start], l.at[end] - l.at[start]);
        if (!jinja_step(j, 1 + (int64_t)(how->between.len / 16)))
            return false;
    }
    return true;
}

bool jinja_wordwrap(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue lines = {0};
    Wrap how = {0};
    if (!jinja_bind(j, "wordwrap", call, "width break_long_words wrapstring break_on_hyphens", 0,
                    arg))
        return false;
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (v.type != JINJA_STR)
        return jinja_fail(j, "TypeError: wordwrap wants a string, got '%s'", jinja_type_name(v));
    if (arg[2].type == JINJA_NONE)
        arg[2].type = JINJA_MISSING;
    if (!jinja_bound_int(j, arg[0], 79, &how.width) ||
        !jinja_bound_str(j, "wordwrap", arg[2], (Str){"\n", 1}, &how.between) ||
        !jinja_splitlines(j, jinja_text(v), false, &lines))
        return false;
    how.break_words = arg[1].type == JINJA_MISSING || jinja_truth(arg[1]);
    how.hyphens_too = arg[3].type == JINJA_MISSING || jinja_truth(arg[3]);
    how.at_hyphens = how.hyphens_too && (arg[3].type == JINJA_MISSING || arg[3].type == JINJA_BOOL);
    StrBuf b;
    jinja_buf(j, &b);
    for (int64_t i = 0; i < lines.u.list->n; i++) {
        if (i > 0)
            strbuf_add(&b, how.between.ptr, how.between.len);
        if (!wrap_line(j, &b, jinja_text(lines.u.list->at[i]), &how)) {
            strbuf_free(&b);
            return false;
        }
    }
    return jinja_take_buf(j, &b, out);
}

/* ---- pprint ---- */

enum { PAGE = 80 };

static bool is_plain(JinjaValue v, JinjaType type)
{
    return v.type == type && v.flags == 0;
}

/* repr(v) with the keys of dicts in order. */
static bool write_sorted(Jinja *j, StrBuf *b, JinjaValue v)
{
    const bool list = is_plain(v, JINJA_LIST);
    if (!list && !is_plain(v, JINJA_TUPLE) && v.type != JINJA_DICT)
        return jinja_write(j, b, v, true);
    if (!jinja_enter(j) || !jinja_step(j, 1))
        return false;
    if (v.type == JINJA_DICT) {
        const JinjaPair *at;
        if (!jinja_sorted_pairs(j, v.u.dict, true, &at))
            return false;
        for (int64_t i = 0; i < v.u.dict->n; i++) {
            strbuf_add_cstr(b, i ? ", " : "{");
            if (!write_sorted(j, b, at[i].key) || !strbuf_add_cstr(b, ": ") ||
                !write_sorted(j, b, at[i].value))
                return false;
        }
        strbuf_add_cstr(b, v.u.dict->n ? "}" : "{}");
    } else {
        strbuf_add_cstr(b, list ? "[" : "(");
        for (int64_t i = 0; i < v.u.list->n; i++) {
            if ((i > 0 && !strbuf_add_cstr(b, ", ")) || !write_sorted(j, b, v.u.list->at[i]))
                return false;
        }
        strbuf_add_cstr(b, list ? "]" : v.u.list->n == 1 ? ",)" : ")");
    }
    j->depth--;
    return true;
}

static bool sorted_repr(Jinja *j, JinjaValue v, JinjaValue *out)
{
    StrBuf b;
    jinja_buf(j, &b);
    if (!write_sorted(j, &b, v) && !b.failed) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}

static int64_t width_of(JinjaValue text)
{
    return (int64_t)utf8_count(jinja_text(text));
}

static void next_line(StrBuf *b, int64_t indent)
{
    strbuf_add_cstr(b, "\n");
    for (int64_t i = 0; i < indent; i++)
        strbuf_add_cstr(b, " ");
}

/* The end of what follows i: a word and the blanks behind it. */
static size_t part_end(Str s, size_t i)
{
    for (int blanks = 0; blanks < 2; blanks++) {
        while (i < s.len) {
            uint32_t cp = 0;
            const int n = utf8_decode(s.ptr + i, s.len - i, &cp);
            if (jinja_is_space(cp) != (blanks == 1))
                break;
            i += n > 0 ? (size_t)n : 1;
        }
    }
    return i;
}

/* A line that is too wide, in pieces that end behind blanks. `less`: columns that are taken behind
 * the last one. */
static bool break_line(Jinja *j, Str line, int64_t width, int64_t less, JinjaList *chunks)
{
    size_t from = 0;
    for (size_t i = 0; i < line.len;) {
        const size_t end = part_end(line, i);
        JinjaValue rep = {0};
        if (end == line.len)
            width -= less;
        if (!sorted_repr(j, jinja_str(line.ptr + from, end - from), &rep))
            return false;
        if (width_of(rep) > width) {
            if (i > from && (!sorted_repr(j, jinja_str(line.ptr + from, i - from), &rep) ||
                             !jinja_list_push(j, chunks, rep)))
                return false;
            from = i;
        }
        i = end;
    }
    JinjaValue rep = {0};
    return from == line.len || (sorted_repr(j, jinja_str(line.ptr + from, line.len - from), &rep) &&
                                jinja_list_push(j, chunks, rep));
}

static bool pretty_str(Jinja *j, StrBuf *b, JinjaValue v, int64_t indent, int64_t allowance,
                       bool outermost)
{
    JinjaValue lines = {0};
    JinjaValue chunks = {0};
    JinjaValue rep = {0};
    if (!jinja_splitlines(j, jinja_text(v), true, &lines) ||
        !jinja_list_new(j, JINJA_LIST, 0, &chunks))
        return false;
    indent += outermost;
    allowance += outermost;
    for (int64_t i = 0; i < lines.u.list->n; i++) {
        const int64_t less = i + 1 == lines.u.list->n ? allowance : 0;
        if (!sorted_repr(j, lines.u.list->at[i], &rep) ||
            !(width_of(rep) <= PAGE - indent - less
                  ? jinja_list_push(j, chunks.u.list, rep)
                  : break_line(j, jinja_text(lines.u.list->at[i]), PAGE - indent, less,
                               chunks.u.list)))
            return false;
    }
    const JinjaList *c = chunks.u.list;
    const bool parens = outermost && c->n != 1;
    if (parens)
        strbuf_add_cstr(b, "(");
    for (int64_t i = 0; i < c->n; i++) {
        if (i > 0)
            next_line(b, indent);
        strbuf_add(b, c->at[i].u.s, c->at[i].len);
    }
    return !parens || strbuf_add_cstr(b, ")");
}

static bool pretty(Jinja *j, StrBuf *b, JinjaValue v, int64_t indent, int64_t allowance, int level);

static bool pretty_dict(Jinja *j, StrBuf *b, const JinjaDict *d, int64_t indent, int64_t allowance,
                        int level)
{
    const JinjaPair *at;
    if (!jinja_sorted_pairs(j, d, true, &at))
        return false;
    strbuf_add_cstr(b, "{");
    for (int64_t i = 0; i < d->n; i++) {
        JinjaValue key = {0};
        if (i > 0) {
            strbuf_add_cstr(b, ",");
            next_line(b, indent + 1);
        }
        if (!sorted_repr(j, at[i].key, &key))
            return false;
        strbuf_add(b, key.u.s, key.len);
        strbuf_add_cstr(b, ": ");
        if (!pretty(j, b, at[i].value, indent + 1 + width_of(key) + 2,
                    i + 1 == d->n ? allowance + 1 : 1, level))
            return false;
    }
    return strbuf_add_cstr(b, "}");
}

static bool pretty_list(Jinja *j, StrBuf *b, JinjaValue v, int64_t indent, int64_t allowance,
                        int level)
{
    const JinjaList *l = v.u.list;
    const char *const end = v.type == JINJA_LIST ? "]" : l->n == 1 ? ",)" : ")";
    strbuf_add_cstr(b, v.type == JINJA_LIST ? "[" : "(");
    for (int64_t i = 0; i < l->n; i++) {
        if (i > 0) {
            strbuf_add_cstr(b, ",");
            next_line(b, indent + 1);
        }
        if (!pretty(j, b, l->at[i], indent + 1,
                    i + 1 == l->n ? allowance + (int64_t)strlen(end) : 1, level))
            return false;
    }
    return strbuf_add_cstr(b, end);
}

/* v from column `indent` on, with `allowance` columns of brackets behind it. */
static bool pretty(Jinja *j, StrBuf *b, JinjaValue v, int64_t indent, int64_t allowance, int level)
{
    JinjaValue rep = {0};
    if (b->failed || !jinja_enter(j) || !sorted_repr(j, v, &rep))
        return false;
    bool ok;
    if (width_of(rep) <= PAGE - indent - allowance)
        ok = strbuf_add(b, rep.u.s, rep.len);
    else if (v.type == JINJA_DICT)
        ok = pretty_dict(j, b, v.u.dict, indent, allowance, level + 1);
    else if (is_plain(v, JINJA_LIST) || is_plain(v, JINJA_TUPLE))
        ok = pretty_list(j, b, v, indent, allowance, level + 1);
    else if (is_plain(v, JINJA_STR) && v.len > 0)
        ok = pretty_str(j, b, v, indent, allowance, level == 0);
    else
        ok = strbuf_add(b, rep.u.s, rep.len);
    j->depth--;
    return ok && jinja_step(j, 1 + indent / 16);
}

bool jinja_pprint(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    StrBuf b;
    if (!jinja_bind(j, "pprint", call, "", 0, arg))
        return false;
    jinja_buf(j, &b);
    if (!pretty(j, &b, v, 0, 0, 0) && !b.failed) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}
