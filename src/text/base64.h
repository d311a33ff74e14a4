/* base64.h: RFC 4648's alphabet to bytes. Pure functions. */
#ifndef MERE_TEXT_BASE64_H
#define MERE_TEXT_BASE64_H

#include "base/str.h"

/* Into out, text.len bytes at most; '=' at the end may be missing. The count, or -1: another
 * character. */
int64_t base64_decode(Str text, char *out);

#endif
