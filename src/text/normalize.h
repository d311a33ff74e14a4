/* normalize.h: Unicode normalisation forms. Linear in the text: utf8proc's own reordering of marks
 * is quadratic in a run of them, so that part is done here. Pure functions, any thread. */
#ifndef MERE_TEXT_NORMALIZE_H
#define MERE_TEXT_NORMALIZE_H

#include "base/str.h"

typedef enum NormalizeForm {
    NORMALIZE_NONE,
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD
} NormalizeForm;

/* The text (valid UTF-8) is already in this form for sure; a cheap test that may say false wrongly.
 */
bool normalize_is_plain(NormalizeForm form, Str text);
/* Appends the normalised text. ERR_NOMEM: out of memory, or `out` is full. */
MUST_CHECK bool normalize_text(NormalizeForm form, Str text, StrBuf *out, Error *err);

#endif
