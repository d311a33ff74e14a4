/* jinja_format.h: Python's two ways to format: "%s" % x and "{}".format(x), and strftime. */
#ifndef MERE_TEXT_JINJA_FORMAT_H
#define MERE_TEXT_JINJA_FORMAT_H

#include "text/jinja_call.h"

/* "format" % args; args is one value, a tuple, or a dict for %(name)s. */
bool jinja_percent(Jinja *j, Str format, JinjaValue args, JinjaValue *out);
bool jinja_format(Jinja *j, Str format, const JinjaCall *call, JinjaValue *out);
/* English names whatever the process's locale is. */
bool jinja_strftime(Jinja *j, Str format, const struct tm *at, JinjaValue *out);

#endif
