#include "text/textre.h"

#include "base/mem.h"
#include "text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>

/* ---- translation ---- */

enum { GROUPS_MAX = 100, CLASS_DEPTH = 8, CLASS_PARTS = 8 };

/* White_Space. PCRE2's own \s has U+180E too, which neither Oniguruma nor Rust counts. Ends in a
 * property, so that a hyphen after it stays a hyphen. */
static const char class_space[] = "\\t-\\r\\x{85}\\x{2028}\\x{2029}\\p{Zs}";
/* \w: PCRE2 10.42's own lacks marks, connectors other than '_' and the letters that are symbols.
 * Oniguruma counts the fractions and raised digits of Latin-1, Rust what joins characters. */
#define WORD                                                                                       \
    "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"
static const char class_word_onig[] = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}" WORD;
static const char class_word_rust[] = "\\x{200C}\\x{200D}" WORD;
static const char class_hex[] = "0-9A-Fa-f";

typedef struct Trans {
    const char *doc;
    const char *p, *end;
    TextReDialect dialect;
    StrBuf *out;
    Error *err;
} Trans;

static bool unsupported(const Trans *t, const char *what)
{
    return err_set(t->err, ERR_UNSUPPORTED, "%s: regular expression: %s", t->doc, what);
}

/* The members that a shorthand stands for, or NULL when PCRE2 reads it alike. */
static const char *shorthand(const Trans *t, char c)
{
    if (c == 's' || c == 'S')
        return class_space;
    if (c == 'w' || c == 'W')
        return t->dialect == TEXTRE_ONIG ? class_word_onig : class_word_rust;
    if (t->dialect == TEXTRE_ONIG && (c == 'h' || c == 'H'))
        return class_hex;
    return NULL;
}

/* PCRE2 takes \p{Han} for what is also used in Han text; the others for the script alone, which it
 * calls sc:Han. */
static bool is_script(Str name)
{
    char text[64];
    int code;
    PCRE2_SIZE where;
    if (name.len < 3 || name.len > 40 || name.ptr[0] < 'A' || name.ptr[0] > 'Z')
        return false;
    const int n = snprintf(text, sizeof text, "\\p{sc:%.*s}", (int)name.len, name.ptr);
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)text, (PCRE2_SIZE)n, PCRE2_UTF, &code, &where, NULL);
    pcre2_code_free(re);
    return re != NULL;
}

/* The escape at t->p (on its backslash) into out. */
static bool escape(Trans *t, bool in_class)
{
    if (t->end - t->p < 2)
        return unsupported(t, "it ends in a backslash");
    const char c = t->p[1];
    const char *members = shorthand(t, c);
    const bool negated = c >= 'A' && c <= 'Z';
    if (members && !(in_class && negated)) {
        if (!in_class)
            strbuf_add_cstr(t->out, negated ? "[^" : "[");
        strbuf_add_cstr(t->out, members);
        if (!in_class)
            strbuf_add_cstr(t->out, "]");
        t->p += 2;
        return true;
    }
    if (c == 'u' && t->end - t->p >= 6) {
        strbuf_add_cstr(t->out, "\\x{");
        strbuf_add(t->out, t->p + 2, 4);
        strbuf_add_cstr(t->out, "}");
        t->p += 6;
        return true;
    }
    size_t n = 1 + utf8_step(c);
    if ((c == 'p' || c == 'P' || c == 'x' || c == 'o' || c == 'g' || c == 'k') &&
        t->end - t->p > 2 && t->p[2] == '{') {
        const char *close = memchr(t->p, '}', (size_t)(t->end - t->p));
        if (!close)
            return unsupported(t, "an escape's brace does not close");
        n = (size_t)(close - t->p) + 1;
        const size_t not = t->p[3] == '^';
        const Str name = {t->p + 3 + not, n - 4 - not };
        if ((c == 'p' || c == 'P') && n > 4 + not &&is_script(name)) {
            strbuf_printf(t->out, "\\%c{%ssc:%.*s}", c, not ? "^" : "", (int)name.len, name.ptr);
            t->p += n;
            return true;
        }
    }
    if (n > (size_t)(t->end - t->p))
        n = (size_t)(t->end - t->p);
    strbuf_add(t->out, t->p, n);
    t->p += n;
    return true;
}

/* [:name:] as the dialects have it: Oniguruma by Unicode, Rust by ASCII. NULL: there is no such. */
static const char *posix_class(TextReDialect dialect, Str name)
{
    static const struct {
        const char *name, *onig, *rust;
    } classes[] = {
        {"alpha", "\\p{Alphabetic}", "A-Za-z"},
        {"alnum", "\\p{Alphabetic}\\p{Nd}", "0-9A-Za-z"},
        {"digit", "\\p{Nd}", "0-9"},
        {"lower", "\\p{Lowercase}", "a-z"},
        {"upper", "\\p{Uppercase}", "A-Z"},
        {"punct", "\\p{P}\\p{S}", "!-/:-@\\[-`{-~"},
        {"space", class_space, "\\t-\\r\\x{20}"},
        {"blank", "\\t\\p{Zs}", "\\t\\x{20}"},
        {"cntrl", "\\p{Cc}", "\\x{0}-\\x{1F}\\x{7F}"},
        {"xdigit", class_hex, class_hex},
        {"ascii", "\\x{0}-\\x{7F}", "\\x{0}-\\x{7F}"},
    };
    for (size_t i = 0; i < COUNT_OF(classes); i++) {
        if (str_is(name, classes[i].name))
            return dialect == TEXTRE_ONIG ? classes[i].onig : classes[i].rust;
    }
    return NULL;
}

/* A class from t->p on '['. With "&&" it becomes (?:(?=[a])[b]); a nested class may only stand
 * alone between two "&&". */
static bool class_of(Trans *t, int depth)
{
    if (depth > CLASS_DEPTH)
        return unsupported(t, "classes nest too deep");
    StrBuf *const out = t->out;
    StrBuf parts[CLASS_PARTS];
    bool nested[CLASS_PARTS] = {false};
    int n = 0;
    bool ok = false;
    t->p++;
    const bool negated = t->p < t->end && *t->p == '^';
    if (negated)
        t->p++;
    strbuf_init(&parts[n++], TEXTRE_PATTERN_MAX * 8);
    t->out = &parts[0];
    bool first = true;
    while (t->p < t->end && (*t->p != ']' || first)) {
        const char c = *t->p;
        const bool has_next = t->end - t->p > 1;
        if (c == '\\') {
            if (!escape(t, true))
                goto done;
        } else if (c == '[' && has_next && t->p[1] == ':') {
            const char *close = memchr(t->p, ']', (size_t)(t->end - t->p));
            if (!close) {
                unsupported(t, "a POSIX class does not close");
                goto done;
            }
            const size_t len = (size_t)(close - t->p);
            const char *members =
                len > 3 ? posix_class(t->dialect, (Str){t->p + 2, len - 3}) : NULL;
            if (!members) {
                unsupported(t, "a POSIX class that is not known");
                goto done;
            }
            strbuf_add_cstr(t->out, members);
            t->p = close + 1;
        } else if (c == '[' && t->dialect == TEXTRE_ONIG) {
            if (t->out->len > 0) {
                unsupported(t, "a class inside a class, without &&");
                goto done;
            }
            if (!class_of(t, depth + 1))
                goto done;
            nested[n - 1] = true;
        } else if (c == '&' && has_next && t->p[1] == '&' && t->dialect == TEXTRE_ONIG) {
            if (n == CLASS_PARTS) {
                unsupported(t, "a class with too many &&");
                goto done;
            }
            strbuf_init(&parts[n++], TEXTRE_PATTERN_MAX * 8);
            t->out = &parts[n - 1];
            t->p += 2;
        } else {
            if (nested[n - 1]) {
                unsupported(t, "a class inside a class, without &&");
                goto done;
            }
            size_t len = utf8_step(c);
            if (len > (size_t)(t->end - t->p))
                len = (size_t)(t->end - t->p);
            if (c == '[')
                strbuf_add_cstr(t->out, "\\");
            strbuf_add(t->out, t->p, len);
            t->p += len;
        }
        first = false;
    }
    if (t->p == t->end) {
        unsupported(t, "a class does not close");
        goto done;
    }
    t->p++;
    if ((n > 1 || nested[0]) && negated) {
        unsupported(t, "a negated class with && or a class inside");
        goto done;
    }
    if (n > 1)
        strbuf_add_cstr(out, "(?:");
    for (int i = 0; i < n; i++) {
        if (i + 1 < n)
            strbuf_add_cstr(out, "(?=");
        if (!nested[i])
            strbuf_add_cstr(out, negated ? "[^" : "[");
        strbuf_add(out, parts[i].ptr ? parts[i].ptr : "", parts[i].len);
        if (parts[i].failed)
            out->failed = true;
        if (!nested[i])
            strbuf_add_cstr(out, "]");
        if (i + 1 < n)
            strbuf_add_cstr(out, ")");
    }
    if (n > 1)
        strbuf_add_cstr(out, ")");
    ok = true;
done:
    for (int i = 0; i < n; i++)
        strbuf_free(&parts[i]);
    t->out = out;
    return ok;
}

/* Length of a {2}, {2,}, {2,3} or {,3} at p; 0: a plain brace. */
static size_t braces(const char *p, const char *end)
{
    const char *q = p + 1;
    bool digits = false;
    while (q < end && *q >= '0' && *q <= '9') {
        q++;
        digits = true;
    }
    if (q < end && *q == ',') {
        q++;
        while (q < end && *q >= '0' && *q <= '9') {
            q++;
            digits = true;
        }
    }
    return digits && q < end && *q == '}' ? (size_t)(q - p) + 1 : 0;
}

static void insert(StrBuf *b, size_t at, const char *text)
{
    const size_t n = strlen(text);
    if (!strbuf_add_cstr(b, text))
        return;
    memmove(b->ptr + at + n, b->ptr + at, b->len - n - at);
    memcpy(b->ptr + at, text, n);
}

static bool onig(Trans *t)
{
    size_t open[GROUPS_MAX];
    int depth = 0;
    const size_t none = SIZE_MAX;
    size_t atom = none; /* where the last repeatable item starts in out */
    while (t->p < t->end) {
        const char c = *t->p;
        const size_t at = t->out->len;
        if (c == '\\') {
            if (!escape(t, false))
                return false;
            atom = at;
        } else if (c == '[') {
            if (!class_of(t, 0))
                return false;
            atom = at;
        } else if (c == '(') {
            if (depth == GROUPS_MAX)
                return unsupported(t, "groups nest too deep");
            open[depth++] = at;
            strbuf_add(t->out, t->p++, 1);
            if (t->p < t->end && *t->p == '?') {
                /* Ruby's (?m) is what PCRE2 calls (?s). */
                do {
                    const char f = *t->p++;
                    strbuf_add(t->out, t->dialect == TEXTRE_ONIG && f == 'm' ? "s" : &f, 1);
                } while (t->p < t->end && ((*t->p >= 'a' && *t->p <= 'z') || *t->p == '-'));
            }
            atom = none;
        } else if (c == ')') {
            atom = depth > 0 ? open[--depth] : none;
            strbuf_add(t->out, t->p++, 1);
        } else if (c == '{' && braces(t->p, t->end) > 0) {
            const size_t n = braces(t->p, t->end);
            if (t->p[1] == ',') { /* {,3}: PCRE2 10.42 takes it literally */
                strbuf_add_cstr(t->out, "{0");
                strbuf_add(t->out, t->p + 1, n - 1);
            } else {
                strbuf_add(t->out, t->p, n);
            }
            t->p += n;
            const bool plus = t->p < t->end && *t->p == '+';
            if (plus && t->dialect == TEXTRE_ONIG && atom != none) {
                insert(t->out, atom, "(?:");
                strbuf_add_cstr(t->out, ")");
            } else {
                atom = none;
            }
            if (plus || (t->p < t->end && *t->p == '?')) {
                strbuf_add(t->out, t->p++, 1);
                atom = none;
            }
        } else if (c == '*' || c == '+' || c == '?') {
            strbuf_add(t->out, t->p++, 1);
            if (t->p < t->end && (*t->p == '+' || *t->p == '?'))
                strbuf_add(t->out, t->p++, 1);
            atom = none;
        } else {
            size_t n = utf8_step(c);
            if (n > (size_t)(t->end - t->p))
                n = (size_t)(t->end - t->p);
            strbuf_add(t->out, t->p, n);
            t->p += n;
            atom = c == '|' || c == '^' || c == '$' ? none : at;
        }
    }
    return true;
}

bool textre_translate(const char *doc, Str pattern, TextReDialect dialect, StrBuf *out, Error *err)
{
    if (pattern.len > TEXTRE_PATTERN_MAX)
        return err_set(err, ERR_UNSUPPORTED, "%s: regular expression of %zu bytes, at most %d", doc,
                       pattern.len, TEXTRE_PATTERN_MAX);
    if (utf8_valid_prefix(pattern) != pattern.len)
        return err_set(err, ERR_FORMAT, "%s: regular expression: no valid UTF-8", doc);
    if (dialect == TEXTRE_LITERAL) {
        strbuf_add(out, pattern.ptr, pattern.len);
    } else {
        Trans t = {doc, pattern.ptr, pattern.ptr + pattern.len, dialect, out, err};
        if (!onig(&t))
            return false;
    }
    return strbuf_check(out, doc, err);
}

/* ---- PCRE2 ---- */

static void *hook_alloc(size_t bytes, void *ctx)
{
    (void)ctx;
    return mem_alloc(bytes);
}

static void hook_free(void *p, void *ctx)
{
    (void)ctx;
    mem_free(p);
}

bool textre_compile(TextRe *re, const char *doc, Str pattern, TextReDialect dialect, Error *err)
{
    *re = (TextRe){0};
    bool ok = false;
    StrBuf text;
    strbuf_init(&text, TEXTRE_PATTERN_MAX * 8);
    pcre2_general_context *general = pcre2_general_context_create(hook_alloc, hook_free, NULL);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    if (!textre_translate(doc, pattern, dialect, &text, err))
        goto done;
    if (!context) {
        err_nomem(err, doc, sizeof *re);
        goto done;
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, GROUPS_MAX * 2);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C;
    if (dialect == TEXTRE_ONIG)
        options |= PCRE2_MULTILINE;
    else if (dialect == TEXTRE_RUST)
        options |= PCRE2_DOLLAR_ENDONLY;
    else
        options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | PCRE2_LITERAL;
    int code;
    PCRE2_SIZE where;
    const Str src = strbuf_str(&text);
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)src.ptr, src.len, options, &code, &where, context);
    if (!compiled) {
        if (code == PCRE2_ERROR_HEAP_FAILED) {
            err_nomem(err, doc, src.len);
        } else {
            PCRE2_UCHAR why[120];
            pcre2_get_error_message(code, why, sizeof why);
            err_set(err, ERR_FORMAT, "%s: regular expression: %s at byte %zu", doc,
                    (const char *)why, (size_t)where);
        }
        goto done;
    }
    /* Without JIT (no executable memory) matching is ten times slower and gives the same. */
    const int jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    size_t jit_bytes = 0;
    pcre2_pattern_info(compiled, PCRE2_INFO_SIZE, &re->bytes);
    if (jit == 0)
        pcre2_pattern_info(compiled, PCRE2_INFO_JITSIZE, &jit_bytes);
    re->bytes += jit_bytes;
    re->code = compiled;
    re->literal = dialect == TEXTRE_LITERAL;
    ok = true;
done:
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    strbuf_free(&text);
    return ok;
}

void textre_free(TextRe *re)
{
    pcre2_code_free(re->code);
    *re = (TextRe){0};
}

/* ---- matching ---- */

enum {
    LIMIT_FIRST = 2000, /* steps of an ordinary match: no published expression needs 200 */
    LIMIT_STEP = 16,
    LIMIT_TRIES = 5,              /* 2 thousand to 131 million */
    HEAP_KIB = 256 * 1024,        /* of the interpreter, when the JIT's stack is too small */
    BUDGET_MIN = 16 * 1000 * 1000 /* steps, about 0.1 s */
};

bool textre_work_init(TextReWork *w, size_t text_bytes, Error *err)
{
    *w = (TextReWork){.budget = BUDGET_MIN + 64 * (int64_t)text_bytes};
    pcre2_general_context *general = pcre2_general_context_create(hook_alloc, hook_free, NULL);
    if (general) {
        w->match = pcre2_match_data_create(1, general);
        w->context = pcre2_match_context_create(general);
        pcre2_general_context_free(general);
    }
    if (!w->match || !w->context) {
        textre_work_free(w);
        return err_nomem(err, "regular expression", sizeof *w);
    }
    pcre2_set_heap_limit(w->context, HEAP_KIB);
    pcre2_set_match_limit(w->context, LIMIT_FIRST);
    return true;
}

void textre_work_free(TextReWork *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    *w = (TextReWork){0};
}

/* Again with more steps, as far as the budget allows, and in the interpreter (whose backtracking
 * lies on the heap) when the JIT ran out of stack. */
static int match_again(const TextRe *re, TextReWork *w, Str text, size_t from, int rc)
{
    uint32_t options = PCRE2_NO_UTF_CHECK;
    uint32_t limit = LIMIT_FIRST;
    for (int tries = 0; tries < 2 * LIMIT_TRIES; tries++) {
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            options |= PCRE2_NO_JIT;
        else if (rc == PCRE2_ERROR_MATCHLIMIT && limit < UINT32_MAX / LIMIT_STEP)
            limit *= LIMIT_STEP;
        else
            break;
        w->budget -= limit;
        if (w->budget < 0) {
            rc = PCRE2_ERROR_MATCHLIMIT;
            break;
        }
        pcre2_set_match_limit(w->context, limit);
        rc = pcre2_match(re->code, (PCRE2_SPTR)text.ptr, text.len, from, options, w->match,
                         w->context);
    }
    pcre2_set_match_limit(w->context, LIMIT_FIRST);
    return rc;
}

bool textre_next(const TextRe *re, TextReWork *w, Str text, size_t from, bool *found, size_t *start,
                 size_t *end, Error *err)
{
    int rc = pcre2_match(re->code, (PCRE2_SPTR)text.ptr, text.len, from, PCRE2_NO_UTF_CHECK,
                         w->match, w->context);
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = match_again(re, w, text, from, rc);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return true;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return err_nomem(err, "regular expression", text.len);
    if (rc < 0) {
        PCRE2_UCHAR why[120];
        pcre2_get_error_message(rc, why, sizeof why);
        return err_set(err, ERR_FORMAT,
                       "the tokenizer's regular expression gave up on %zu bytes of text: %s",
                       text.len, (const char *)why);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->match);
    *start = range[0];
    *end = range[1];
    if (*start < from || *end < *start) /* \K in a look-around */
        return err_set(err, ERR_FORMAT, "the tokenizer's regular expression matches backwards");
    return true;
}
