#include "text/detok.h"

#include "text/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void detok_init(Detok *d, const Tokenizer *t, unsigned flags)
{
    *d = (Detok){.tokenizer = t, .flags = flags};
}

/* Whole characters of s go out, broken parts become U+FFFD; an incomplete end is left. Returns how
 * many bytes were used. */
static size_t give(Str s, StrBuf *out)
{
    size_t at = 0;
    while (at < s.len) {
        const Str rest = {s.ptr + at, s.len - at};
        const size_t good = utf8_valid_prefix(rest);
        strbuf_add(out, rest.ptr, good);
        at += good;
        if (good == rest.len)
            break;
        bool incomplete;
        const size_t broken =
            utf8_broken_part((Str){rest.ptr + good, rest.len - good}, &incomplete);
        if (incomplete)
            break;
        strbuf_add_cstr(out, replacement);
        at += broken;
    }
    return at;
}

bool detok_add_bytes(Detok *d, Str bytes, StrBuf *out, Error *err)
{
    /* Byte by byte until the held character is whole or broken, then the rest at once. */
    while (d->n_held > 0 && bytes.len > 0) {
        d->held[d->n_held++] = (uint8_t)*bytes.ptr++;
        bytes.len--;
        char copy[4];
        memcpy(copy, d->held, 4);
        const size_t used = give((Str){copy, (size_t)d->n_held}, out);
        d->n_held -= (int)used;
        memmove(d->held, copy + used, (size_t)d->n_held);
    }
    if (d->n_held == 0 && bytes.len > 0) {
        const size_t used = give(bytes, out);
        d->n_held = (int)(bytes.len - used);
        if (d->n_held > 0)
            memcpy(d->held, bytes.ptr + used, (size_t)d->n_held);
    }
    return strbuf_check(out, "text", err);
}

bool detok_add(Detok *d, int32_t id, StrBuf *out, Error *err)
{
    if ((d->flags & TOKENIZER_SKIP_SPECIAL) && tokenizer_is_special(d->tokenizer, id))
        return true;
    return detok_add_bytes(d, tokenizer_piece(d->tokenizer, id), out, err);
}

bool detok_end(Detok *d, StrBuf *out, Error *err)
{
    if (d->n_held > 0)
        strbuf_add_cstr(out, replacement); /* held bytes are always one incomplete character */
    d->n_held = 0;
    return strbuf_check(out, "text", err);
}
