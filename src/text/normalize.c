#include "text/normalize.h"

#include "base/mem.h"
#include "text/unisets.h"
#include "text/utf8.h"

#include <utf8proc.h>

bool normalize_is_plain(NormalizeForm form, Str text)
{
    if (form == NORMALIZE_NONE)
        return true;
    /* NFC: no character below U+0300 changes, unless one from there on follows. */
    const uint32_t plain = form == NORMALIZE_NFC ? 0x300 : 0x80;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        const int n = utf8_decode(text.ptr + i, text.len - i, &cp);
        if (cp >= plain)
            return false;
        i += n > 0 ? (size_t)n : 1;
    }
    return true;
}

typedef struct Cps {
    utf8proc_int32_t *at;
    size_t n, cap;
    utf8proc_int32_t *sorted; /* scratch for a run of marks */
    size_t sorted_cap;
} Cps;

static bool reserve(utf8proc_int32_t **p, size_t need, size_t *cap, Error *err)
{
    if (need <= *cap)
        return true;
    const size_t n = need * 2 + 64;
    utf8proc_int32_t *q = mem_realloc(*p, n * sizeof *q);
    if (!q)
        return err_nomem(err, "normaliser", n * sizeof *q);
    *p = q;
    *cap = n;
    return true;
}

static int combining_class(utf8proc_int32_t cp)
{
    const int class = utf8proc_get_property(cp)->combining_class & 255;
    return class && unisets_has(UNISETS_INERT, (uint32_t)cp) ? 0 : class;
}

/* Puts each run of marks into the order of their combining classes, keeping equal ones as they are.
 */
static bool order_marks(Cps *c, Error *err)
{
    for (size_t i = 0; i < c->n;) {
        size_t end = i;
        while (end < c->n && combining_class(c->at[end]) != 0)
            end++;
        const size_t n = end - i;
        if (n < 2) {
            i = end + 1;
            continue;
        }
        if (!reserve(&c->sorted, n, &c->sorted_cap, err))
            return false;
        size_t first[257] = {0}; /* counting sort */
        for (size_t k = i; k < end; k++)
            first[combining_class(c->at[k]) + 1]++;
        for (int k = 0; k < 256; k++)
            first[k + 1] += first[k];
        for (size_t k = i; k < end; k++)
            c->sorted[first[combining_class(c->at[k])]++] = c->at[k];
        memcpy(c->at + i, c->sorted, n * sizeof *c->at);
        i = end + 1;
    }
    return true;
}

static void write_cp(utf8proc_int32_t cp, StrBuf *out)
{
    char utf8[4];
    strbuf_add(out, utf8, (size_t)utf8_encode((uint32_t)cp, utf8));
}

/* Stands for the characters that must not be composed, which wait in c->sorted. */
enum { KEPT = 0xFFFF };

/* utf8proc takes U+11A7, which stands before the first final consonant, for one. */
static bool must_keep(utf8proc_int32_t cp)
{
    return cp == KEPT || cp == 0x11A7 || unisets_has(UNISETS_INERT, (uint32_t)cp);
}

static bool hide_kept(Cps *c, Error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        n += must_keep(c->at[i]);
    if (!reserve(&c->sorted, n, &c->sorted_cap, err))
        return false;
    n = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (!must_keep(c->at[i]))
            continue;
        c->sorted[n++] = c->at[i];
        c->at[i] = KEPT;
    }
    return true;
}

static bool write_composed(Cps *c, StrBuf *out, Error *err)
{
    if (!hide_kept(c, err))
        return false;
    c->n = (size_t)utf8proc_normalize_utf32(
        c->at, (utf8proc_ssize_t)c->n, (utf8proc_option_t)(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    size_t kept = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->at[i] == KEPT) {
            write_cp(c->sorted[kept++], out);
        } else if (unisets_has(UNISETS_INERT, (uint32_t)c->at[i])) { /* utf8proc is newer: undo */
            utf8proc_int32_t parts[4];
            int last = 0;
            const utf8proc_ssize_t n =
                utf8proc_decompose_char(c->at[i], parts, 4, UTF8PROC_DECOMPOSE, &last);
            for (utf8proc_ssize_t k = 0; k < n && k < 4; k++)
                write_cp(parts[k], out);
        } else {
            write_cp(c->at[i], out);
        }
    }
    return true;
}

static bool write_out(Cps *c, bool compose, StrBuf *out, Error *err)
{
    if (!order_marks(c, err) || (compose && c->n > 0 && !write_composed(c, out, err)))
        return false;
    for (size_t i = 0; !compose && i < c->n; i++)
        write_cp(c->at[i], out);
    c->n = 0;
    return strbuf_check(out, "normalised text", err);
}

bool normalize_text(NormalizeForm form, Str text, StrBuf *out, Error *err)
{
    if (form == NORMALIZE_NONE)
        return strbuf_add(out, text.ptr, text.len) || strbuf_check(out, "normalised text", err);
    const bool compose = form == NORMALIZE_NFC || form == NORMALIZE_NFKC;
    int options = UTF8PROC_DECOMPOSE;
    if (form == NORMALIZE_NFKC || form == NORMALIZE_NFKD)
        options |= UTF8PROC_COMPAT;
    Cps c = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < text.len;) {
        uint32_t cp = 0xFFFD;
        const int n = utf8_decode(text.ptr + i, text.len - i, &cp);
        /* An ASCII character never changes with what is before it: a place to stop. */
        if (cp < 0x80 && c.n > 4096)
            ok = write_out(&c, compose, out, err);
        ok = ok && reserve(&c.at, c.n + 32, &c.cap, err);
        if (!ok)
            break;
        int last_boundclass = 0;
        const utf8proc_ssize_t m = utf8proc_decompose_char(
            (utf8proc_int32_t)cp, c.at + c.n, 32, (utf8proc_option_t)options, &last_boundclass);
        if (m < 0 || m > 32) { /* the longest mapping has 18 */
            ok = err_set(err, ERR_FAILED, "U+%04X cannot be normalised: %s", cp,
                         m < 0 ? utf8proc_errmsg(m) : "too long");
            break;
        }
        if ((m != 1 || c.at[c.n] != (utf8proc_int32_t)cp) && unisets_has(UNISETS_INERT, cp)) {
            c.at[c.n++] = (utf8proc_int32_t)cp;
        } else {
            c.n += (size_t)m;
        }
        i += n > 0 ? (size_t)n : 1;
    }
    ok = ok && write_out(&c, compose, out, err);
    mem_free(c.at);
    mem_free(c.sorted);
    return ok;
}
