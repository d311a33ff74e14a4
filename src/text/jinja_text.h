/* jinja_text.h: operations on strings as Python's str has them, on UTF-8 by code points. Results
 * are in the render's memory or borrow from their input. */
#ifndef MERE_TEXT_JINJA_TEXT_H
#define MERE_TEXT_JINJA_TEXT_H

#include "text/jinja_value.h"

typedef enum JinjaCase {
    JINJA_UPPER,
    JINJA_LOWER,
    JINJA_CAPITALIZE,
    JINJA_TITLE,     /* str.title(): a capital after every character that is no letter */
    JINJA_TITLE_TAG, /* the title filter: after blanks, '-' and opening brackets only */
    JINJA_SWAPCASE,
    JINJA_CASEFOLD,
} JinjaCase;

enum { JINJA_LEFT = 1, JINJA_RIGHT = 2 };

bool jinja_case(Jinja *j, Str s, JinjaCase how, JinjaValue *out);
/* chars.ptr NULL: white space. A substring, nothing is copied. */
Str jinja_strip(Str s, Str chars, int sides);
/* sep.ptr NULL: runs of white space. max < 0: no limit. */
bool jinja_split(Jinja *j, Str s, Str sep, int64_t max, bool from_right, JinjaValue *out);
bool jinja_splitlines(Jinja *j, Str s, bool keep_ends, JinjaValue *out);
/* count < 0: all. */
bool jinja_replace(Jinja *j, Str s, Str from, Str to, int64_t count, JinjaValue *out);
/* Code point index of the first (last) occurrence, -1: none. */
bool jinja_find(Jinja *j, Str s, Str what, bool last, int64_t *out);
/* Code points [from, to) with Python's rules for negative ends (already resolved: 0 <= from <= to).
 */
Str jinja_substr(Str s, int64_t from, int64_t to);
/* s padded with fill (one character) to `width` code points; sides: where the padding goes. */
bool jinja_pad(Jinja *j, Str s, int64_t width, Str fill, int sides, JinjaValue *out);

#endif
