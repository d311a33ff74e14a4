/* jinja_markup.h: filters of HTML and of addresses. */
#ifndef MERE_TEXT_JINJA_MARKUP_H
#define MERE_TEXT_JINJA_MARKUP_H

#include "text/jinja_call.h"

bool jinja_escape(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_forceescape(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_safe(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_striptags(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_urlencode(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);
bool jinja_xmlattr(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out);

#endif
