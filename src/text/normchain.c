#include "text/normchain.h"

#include "text/unisets.h"
#include "text/utf8.h"

#include <utf8proc.h>

NormStep *normchain_add(NormChain *c, const char *doc, NormKind kind, Error *err)
{
    if (c->n == NORMCHAIN_STEPS_MAX) {
        err_set(err, ERR_UNSUPPORTED, "%s: normalizer has more than %d steps", doc,
                NORMCHAIN_STEPS_MAX);
        return NULL;
    }
    NormStep *s = &c->steps[c->n++];
    *s = (NormStep){.kind = kind};
    return s;
}

void normchain_free(NormChain *c)
{
    for (int i = 0; i < c->n; i++)
        textre_free(&c->steps[i].re);
    c->n = 0;
}

void normchain_work_init(NormWork *w, TextReWork *re, size_t text_bytes)
{
    for (int i = 0; i < 2; i++)
        strbuf_init(&w->at[i], text_bytes * NORMCHAIN_GROWTH_MAX + 65536);
    strbuf_init(&w->older, text_bytes * NORMCHAIN_GROWTH_MAX + 65536);
    w->re = re;
}

void normchain_work_free(NormWork *w)
{
    strbuf_free(&w->at[0]);
    strbuf_free(&w->at[1]);
    strbuf_free(&w->older);
}

/* ---- characters ---- */

static void add_cp(StrBuf *out, uint32_t cp)
{
    char utf8[4];
    strbuf_add(out, utf8, (size_t)utf8_encode(cp, utf8));
}

/* U+0130 is the only character whose lower case has two (SpecialCasing.txt); final sigma is not
 * treated, as in the references. */
static void add_lower(StrBuf *out, uint32_t cp)
{
    if (cp == 0x130)
        strbuf_add(out, "i\xCC\x87", 3);
    else
        add_cp(out, unisets_lower(cp));
}

static void lower(Str text, StrBuf *out)
{
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        i += (size_t)utf8_decode(text.ptr + i, text.len - i, &cp);
        add_lower(out, cp);
    }
}

static void strip_marks(UniSet marks, Str text, StrBuf *out)
{
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        const size_t n = (size_t)utf8_decode(text.ptr + i, text.len - i, &cp);
        if (!unisets_has(marks, cp))
            strbuf_add(out, text.ptr + i, n);
        i += n;
    }
}

static void nmt(Str text, StrBuf *out)
{
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        const size_t n = (size_t)utf8_decode(text.ptr + i, text.len - i, &cp);
        const bool drop = (cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) ||
                          cp == 0x7F || cp == 0x8F || cp == 0x9F;
        const bool space = cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
                           (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 ||
                           cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD;
        if (space)
            strbuf_add(out, " ", 1);
        else if (!drop)
            strbuf_add(out, text.ptr + i, n);
        i += n;
    }
}

static void strip(const NormStep *s, Str text, StrBuf *out)
{
    size_t from = 0;
    size_t to = text.len;
    uint32_t cp = 0;
    while (s->left && from < to) {
        const size_t n = (size_t)utf8_decode(text.ptr + from, to - from, &cp);
        if (!utf8_is_space(cp))
            break;
        from += n;
    }
    while (s->right && to > from) {
        size_t at = to - 1;
        while (((unsigned char)text.ptr[at] & 0xC0U) == 0x80)
            at--;
        if (utf8_decode(text.ptr + at, to - at, &cp) == 0 || !utf8_is_space(cp))
            break;
        to = at;
    }
    strbuf_add(out, text.ptr + from, to - from);
}

/* ---- replacing ---- */

static void replace(const NormStep *s, Str text, StrBuf *out)
{
    size_t at = 0;
    while (text.len - at >= s->from.len) {
        const char *hit = memchr(text.ptr + at, s->from.ptr[0], text.len - at - s->from.len + 1);
        if (!hit)
            break;
        const size_t i = (size_t)(hit - text.ptr);
        strbuf_add(out, text.ptr + at, i - at);
        if (memcmp(hit, s->from.ptr, s->from.len) == 0) {
            strbuf_add(out, s->to.ptr, s->to.len);
            at = i + s->from.len;
        } else {
            strbuf_add(out, hit, 1);
            at = i + 1;
        }
    }
    strbuf_add(out, text.ptr + at, text.len - at);
}

static bool replace_re(const NormStep *s, NormWork *w, Str text, StrBuf *out, Error *err)
{
    size_t done = 0;
    size_t from = 0;
    Str seen = text;
    if (unisets_newer(text) < text.len) {
        strbuf_clear(&w->older);
        if (!strbuf_add(&w->older, text.ptr, text.len))
            return strbuf_check(&w->older, "normalised text", err);
        unisets_older(text, w->older.ptr);
        seen = strbuf_str(&w->older);
    }
    while (from <= text.len) {
        bool found;
        size_t start;
        size_t end;
        if (!textre_next(&s->re, w->re, seen, from, &found, &start, &end, err))
            return false;
        if (!found)
            break;
        strbuf_add(out, text.ptr + done, start - done);
        strbuf_add(out, s->to.ptr, s->to.len);
        done = end;
        from = end;
        if (start == end)
            from += end < text.len ? utf8_step(text.ptr[end]) : 1;
    }
    strbuf_add(out, text.ptr + done, text.len - done);
    return true;
}

/* ---- maps ---- */

static size_t grapheme(Str text)
{
    utf8proc_int32_t state = 0;
    uint32_t last = 0;
    size_t i = (size_t)utf8_decode(text.ptr, text.len, &last);
    while (i < text.len) {
        uint32_t cp = 0;
        const size_t n = (size_t)utf8_decode(text.ptr + i, text.len - i, &cp);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)last, (utf8proc_int32_t)cp, &state))
            break;
        last = cp;
        i += n;
    }
    return i;
}

/* `tokenizers` looks a short grapheme up as a whole, and takes the first entry that any of its
 * beginnings has: marks after it are lost. Models were trained so. */
static void charsmap(const NormStep *s, Str text, StrBuf *out)
{
    enum { GRAPHEME_MAX = 6 };
    size_t used;
    for (size_t i = 0; i < text.len;) {
        const size_t n = grapheme((Str){text.ptr + i, text.len - i});
        const size_t end = i + n;
        if (n < GRAPHEME_MAX) {
            const Str to = charsmap_shortest(s->map, (Str){text.ptr + i, n}, &used);
            if (used > 0) {
                strbuf_add(out, to.ptr, to.len);
                i = end;
                continue;
            }
        }
        while (i < end) {
            const size_t c = utf8_step(text.ptr[i]);
            const Str to = charsmap_shortest(s->map, (Str){text.ptr + i, c}, &used);
            if (used > 0)
                strbuf_add(out, to.ptr, to.len);
            else
                strbuf_add(out, text.ptr + i, c);
            i += c;
        }
    }
}

/* The longest entry at each place; then spaces: none at the ends and one at most between words with
 * merge_spaces, one before (after) the text with prefix (suffix). */
static void sentencepiece(const NormStep *s, Str text, bool start, StrBuf *out)
{
    const size_t from = out->len;
    bool space = s->merge_spaces; /* the last thing was one, or would be the first */
    bool prefixed = !(s->prefix && start);
    for (size_t i = 0; i < text.len;) {
        size_t used = 0;
        Str to = {0};
        if (s->map)
            to = charsmap_longest(s->map, (Str){text.ptr + i, text.len - i}, &used);
        if (used == 0) {
            used = utf8_step(text.ptr[i]);
            to = (Str){text.ptr + i, used};
        }
        i += used;
        for (size_t k = 0; k < to.len; k++) {
            const bool is_space = to.ptr[k] == ' ';
            if (is_space && s->merge_spaces && space)
                continue;
            if (!prefixed)
                strbuf_add(out, " ", 1);
            prefixed = true;
            strbuf_add(out, to.ptr + k, 1);
            space = is_space;
        }
    }
    while (s->merge_spaces && out->len > from && out->ptr[out->len - 1] == ' ')
        out->len--;
    if (s->suffix && out->len > from)
        strbuf_add(out, " ", 1);
}

/* ---- BERT ---- */

static bool is_chinese(uint32_t cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
           (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
           (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

static bool bert(const NormStep *s, Str text, StrBuf *out, Error *err)
{
    StrBuf clean;
    StrBuf bare;
    strbuf_init(&clean, out->max);
    strbuf_init(&bare, out->max);
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        const size_t n = (size_t)utf8_decode(text.ptr + i, text.len - i, &cp);
        const Str c = {text.ptr + i, n};
        i += n;
        if (s->clean && (cp == 0 || cp == 0xFFFD || unisets_has(UNISETS_CONTROL, cp)))
            continue;
        if (s->clean && utf8_is_space(cp)) {
            strbuf_add(&clean, " ", 1);
        } else if (s->chinese && is_chinese(cp)) {
            strbuf_add(&clean, " ", 1);
            strbuf_add(&clean, c.ptr, c.len);
            strbuf_add(&clean, " ", 1);
        } else {
            strbuf_add(&clean, c.ptr, c.len);
        }
    }
    bool ok = strbuf_check(&clean, "normalised text", err);
    Str at = strbuf_str(&clean);
    StrBuf marked;
    strbuf_init(&marked, out->max);
    if (ok && s->accents && !normalize_is_plain(NORMALIZE_NFD, at)) {
        ok = normalize_text(NORMALIZE_NFD, at, &marked, err);
        if (ok) {
            strip_marks(UNISETS_ACCENT, strbuf_str(&marked), &bare);
            ok = strbuf_check(&bare, "normalised text", err);
            at = strbuf_str(&bare);
        }
    }
    if (ok && s->lower)
        lower(at, out);
    else if (ok)
        strbuf_add(out, at.ptr, at.len);
    strbuf_free(&clean);
    strbuf_free(&bare);
    strbuf_free(&marked);
    return ok;
}

/* ---- running ---- */

/* Nothing to do for sure: spares the copy. */
static bool leaves(const NormStep *s, Str text, bool start)
{
    switch (s->kind) {
    case NORM_FORM:
        return normalize_is_plain(s->form, text);
    case NORM_PREPEND:
        return !start || text.len == 0;
    case NORM_SENTENCEPIECE:
        return !s->map && !s->merge_spaces && !s->suffix && !(s->prefix && start);
    case NORM_REPLACE:
    case NORM_REPLACE_RE:
    case NORM_STRIP:
    case NORM_LOWER:
    case NORM_STRIP_ACCENTS:
    case NORM_NMT:
    case NORM_CHARSMAP:
    case NORM_BERT:
        break;
    }
    return text.len == 0;
}

static bool step(const NormStep *s, NormWork *w, Str text, bool start, StrBuf *out, Error *err)
{
    switch (s->kind) {
    case NORM_FORM:
        return normalize_text(s->form, text, out, err);
    case NORM_PREPEND:
        strbuf_add(out, s->to.ptr, s->to.len);
        strbuf_add(out, text.ptr, text.len);
        break;
    case NORM_REPLACE:
        replace(s, text, out);
        break;
    case NORM_REPLACE_RE:
        return replace_re(s, w, text, out, err);
    case NORM_STRIP:
        strip(s, text, out);
        break;
    case NORM_LOWER:
        lower(text, out);
        break;
    case NORM_STRIP_ACCENTS:
        strip_marks(UNISETS_MARK, text, out);
        break;
    case NORM_NMT:
        nmt(text, out);
        break;
    case NORM_CHARSMAP:
        charsmap(s, text, out);
        break;
    case NORM_BERT:
        return bert(s, text, out, err);
    case NORM_SENTENCEPIECE:
        sentencepiece(s, text, start, out);
        break;
    }
    return true;
}

bool normchain_run(const NormChain *c, NormWork *w, Str text, bool start, Str *out, Error *err)
{
    int side = 0;
    for (int i = 0; i < c->n; i++) {
        if (leaves(&c->steps[i], text, start))
            continue;
        StrBuf *to = &w->at[side];
        strbuf_clear(to);
        if (!step(&c->steps[i], w, text, start, to, err))
            return false;
        if (!strbuf_check(to, "normalised text", err))
            return false;
        text = strbuf_str(to);
        side = !side;
    }
    *out = text;
    return true;
}
