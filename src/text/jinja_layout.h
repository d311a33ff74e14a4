/* jinja_layout.h: filters that lay out text in lines and columns as Python's textwrap and pprint.
 */
#ifndef MERE_TEXT_JINJA_LAYOUT_H
#define MERE_TEXT_JINJA_LAYOUT_H

#include "text/jinja_call.h"

bool jinja_wordwrap(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_pprint(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);

#endif
