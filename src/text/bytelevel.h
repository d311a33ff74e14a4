/* bytelevel.h: GPT-2's printable alphabet for bytes. Vocabularies written as text name byte 0x20 by
 * U+0120 and so on: printable Latin-1 stands for itself, the other 68 bytes are U+0100 upwards in
 * order. Pure functions. */
#ifndef MERE_TEXT_BYTELEVEL_H
#define MERE_TEXT_BYTELEVEL_H

#include "base/str.h"

/* The bytes that a token's text stands for, into out (at least text.len bytes); returns their
 * count. -1 when a character is not of the alphabet: such a token stands for its own UTF-8. */
int64_t bytelevel_decode(Str text, char *out);
/* The same for text inside a JSON string, up to what is no character of the alphabet, or is '"' or
 * '\\', which JSON writes otherwise. *p moves there. At most max bytes. */
size_t bytelevel_scan(const char **p, const char *end, char *out, size_t max);
/* The code point that stands for a byte. */
uint32_t bytelevel_char(uint8_t byte);

#endif
