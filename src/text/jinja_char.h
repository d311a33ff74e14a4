/* jinja_char.h: what Python's str knows of a character. Pure functions. */
#ifndef MERE_TEXT_JINJA_CHAR_H
#define MERE_TEXT_JINJA_CHAR_H

#include "base/str.h"

bool jinja_is_space(uint32_t cp); /* str.isspace */
bool jinja_is_word(uint32_t cp);  /* \w of a regular expression */
bool jinja_is_lower(uint32_t cp);
bool jinja_is_upper(uint32_t cp);
bool jinja_is_cased(uint32_t cp);
/* Marks and the like, which a word goes on over. */
bool jinja_is_case_ignorable(uint32_t cp);
bool jinja_is_special_digit(uint32_t cp); /* of str.isdigit, no decimal one */
bool jinja_is_numeral(uint32_t cp);       /* of str.isnumeric, a letter otherwise */
/* What a decimal digit of any script stands for, or -1. */
int jinja_digit(uint32_t cp);
bool jinja_is_identifier(Str s); /* str.isidentifier */

#endif
