#include "text/fallback.h"

void fallback_init(Fallback *f)
{
    *f = (Fallback){.unk = -1};
    for (int i = 0; i < 256; i++)
        f->byte_id[i] = -1;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int fallback_byte_of(Str token)
{
    if (token.len != 6 || !str_starts(token, "<0x") || token.ptr[5] != '>')
        return -1;
    const int hi = hex_digit(token.ptr[3]);
    const int lo = hex_digit(token.ptr[4]);
    return hi < 0 || lo < 0 ? -1 : hi << 4 | lo;
}

bool fallback_push(const Fallback *f, BpeWork *w, Str bytes, Error *err)
{
    if (f->bytes) {
        for (size_t i = 0; i < bytes.len; i++) {
            if (!bpe_push(w, f->byte_id[(unsigned char)bytes.ptr[i]], err))
                return false;
        }
        return true;
    }
    if (f->unk < 0)
        return true;
    /* Only a run that is still the last thing pushed goes on. */
    if (f->fuse && w->unk_end == w->n && w->n > 0)
        return true;
    if (!bpe_push(w, f->unk, err))
        return false;
    w->unk_end = w->n;
    return true;
}
