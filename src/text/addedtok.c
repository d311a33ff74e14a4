#include "text/addedtok.h"

#include "text/unisets.h"
#include "text/utf8.h"

#include <stdlib.h>

static int compare(Str a, Str b)
{
    const size_t n = a.len < b.len ? a.len : b.len;
    const int c = n ? memcmp(a.ptr, b.ptr, n) : 0;
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int by_text(const void *a, const void *b)
{
    const AddedTok *x = a;
    const AddedTok *y = b;
    const int c = compare(x->text, y->text);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

bool addedtok_build(AddedToks *set, const char *doc, Error *err)
{
    if (set->n > 0)
        qsort(set->at, (size_t)set->n, sizeof *set->at, by_text);
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        const AddedTok *t = &set->at[i];
        if (t->text.len == 0 || t->text.len > ADDEDTOK_BYTES_MAX)
            return err_set(err, ERR_FORMAT, "%s: added token %d has %zu bytes, wanted 1 to %d", doc,
                           t->id, t->text.len, ADDEDTOK_BYTES_MAX);
        set->starts[(unsigned char)t->text.ptr[0]] = 1;
        if (n == 0 || !str_eq(set->at[n - 1].text, t->text))
            set->at[n++] = *t;
    }
    set->n = n;
    return true;
}

int32_t addedtok_find(const AddedToks *set, Str text)
{
    int lo = 0;
    int hi = set->n;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (compare(set->at[mid].text, text) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < set->n && str_eq(set->at[lo].text, text) ? set->at[lo].id : -1;
}

/* First token of [lo, hi), which agree in their first d bytes, whose byte d is >= c (as unsigned).
 */
static int lower(const AddedToks *set, int lo, int hi, size_t d, int c)
{
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        const Str t = set->at[mid].text;
        const int b = t.len > d ? (unsigned char)t.ptr[d] : -1;
        if (b < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static const AddedTok *longest_at(const AddedToks *set, Str text, size_t pos)
{
    const AddedTok *best = NULL;
    int lo = 0;
    int hi = set->n;
    for (size_t d = 0; pos + d < text.len; d++) {
        const int c = (unsigned char)text.ptr[pos + d];
        lo = lower(set, lo, hi, d, c);
        hi = lower(set, lo, hi, d, c + 1);
        if (lo == hi)
            break;
        if (set->at[lo].text.len == d + 1)
            best = &set->at[lo];
    }
    return best;
}

/* The character that ends at `at`; its first byte, or `at` when there is none. */
static size_t char_before(Str text, size_t at, uint32_t *cp)
{
    for (size_t n = 1; n <= 4 && n <= at; n++) {
        if (((unsigned char)text.ptr[at - n] & 0xC0U) != 0x80)
            return utf8_decode(text.ptr + at - n, n, cp) == (int)n ? at - n : at;
    }
    return at;
}

static bool touches_word(Str text, size_t start, size_t end)
{
    uint32_t cp;
    if (char_before(text, start, &cp) != start && unisets_is_word(cp))
        return true;
    return utf8_decode(text.ptr + end, text.len - end, &cp) > 0 && unisets_is_word(cp);
}

static bool is_stripped(const AddedToks *set, uint32_t cp)
{
    return utf8_is_space(cp) && !(set->marks && cp == ' ');
}

const AddedTok *addedtok_next(const AddedToks *set, Str text, bool special, size_t *pos,
                              size_t from, size_t *start, size_t *end)
{
    if (set->n == 0)
        return NULL;
    for (size_t i = *pos; i < text.len; i++) {
        if (!set->starts[(unsigned char)text.ptr[i]])
            continue;
        const AddedTok *t = longest_at(set, text, i);
        if (!t)
            continue;
        const size_t after = i + t->text.len;
        if (i < from || (t->special && !special) ||
            (t->single_word && touches_word(text, i, after))) {
            i = after - 1; /* the match is spent all the same */
            continue;
        }
        *start = i;
        *end = after;
        uint32_t cp;
        while (t->lstrip && *start > from) {
            const size_t before = char_before(text, *start, &cp);
            if (before == *start || before < from || !is_stripped(set, cp))
                break;
            *start = before;
        }
        while (t->rstrip) {
            const int n = utf8_decode(text.ptr + *end, text.len - *end, &cp);
            if (n == 0 || !is_stripped(set, cp))
                break;
            *end += (size_t)n;
        }
        *pos = after;
        return t;
    }
    *pos = text.len;
    return NULL;
}
