/* jsonout.h: JSON text written straight into a StrBuf, without a tree. The caller writes brackets,
 * commas and keys; these write the values. Errors are the StrBuf's (sticky). */
#ifndef MERE_BASE_JSONOUT_H
#define MERE_BASE_JSONOUT_H

#include "base/str.h"

/* A quoted string. Bytes that are no UTF-8 become U+FFFD, each once. */
void jsonout_str(StrBuf *b, Str s);
/* The shortest decimal that reads back as the same number; null for NaN and infinities. */
void jsonout_f64(StrBuf *b, double v);
void jsonout_f32(StrBuf *b, float v);

#endif
