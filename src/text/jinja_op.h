/* jinja_op.h: the arithmetic operators, as Python has them but with 64-bit whole numbers. */
#ifndef MERE_TEXT_JINJA_OP_H
#define MERE_TEXT_JINJA_OP_H

#include "text/jinja_ast.h"

/* op is JO_ADD to JO_POW. */
bool jinja_op(Jinja *j, JinjaOp op, JinjaValue a, JinjaValue b, JinjaValue *out);
bool jinja_op_negate(Jinja *j, JinjaValue v, JinjaValue *out);

#endif
