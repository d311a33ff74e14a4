/* jinja_filter.h: the filters of "x|name". */
#ifndef MERE_TEXT_JINJA_FILTER_H
#define MERE_TEXT_JINJA_FILTER_H

#include "text/jinja_call.h"

int jinja_filter_id(Str name); /* -1: unknown */
/* id -1 fails with `name`. */
bool jinja_filter(Jinja *j, int id, Str name, JinjaValue v, const JinjaCall *call, JinjaValue *out);

#endif
