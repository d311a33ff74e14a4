/* jinja_method.h: attributes, items and the methods of str, list and dict. */
#ifndef MERE_TEXT_JINJA_METHOD_H
#define MERE_TEXT_JINJA_METHOD_H

#include "text/jinja_call.h"
#include "text/jinja_text.h"

/* obj.name: a method first, then a dict's key; undefined when there is neither. Fails on an
 * undefined object. */
bool jinja_attr(Jinja *j, JinjaValue obj, Str name, JinjaValue *out);
/* obj[key]: an item first, then an attribute. */
bool jinja_item(Jinja *j, JinjaValue obj, JinjaValue key, JinjaValue *out);
/* obj[from:to:step]; JINJA_NONE where left out. */
bool jinja_slice(Jinja *j, JinjaValue obj, const JinjaValue part[3], JinjaValue *out);
bool jinja_method_call(Jinja *j, const JinjaMethod *m, const JinjaCall *call, JinjaValue *out);
/* dict.items(): a list of (key, value). */
bool jinja_items(Jinja *j, const JinjaDict *d, JinjaValue *out);
/* Attributes of the objects that the evaluator owns (loop, macro); JINJA_MISSING: none. */
bool jinja_eval_attr(Jinja *j, JinjaValue obj, Str name, JinjaValue *out);

#endif
