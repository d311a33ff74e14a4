/* jinja_parse.h: template source to a tree (jinja_ast.h). Nesting is bounded by
 * TEMPLATE_PARSE_DEPTH. Errors: "doc: line 3: ...", ERR_FORMAT, or ERR_UNSUPPORTED for a tag of
 * Jinja that is not here. */
#ifndef MERE_TEXT_JINJA_PARSE_H
#define MERE_TEXT_JINJA_PARSE_H

#include "text/jinja_ast.h"

/* The tree, in `a`, borrows from `source`, which must live as long. */
MUST_CHECK bool jinja_parse(Arena *a, const char *doc, Str source, JinjaNode **out, Error *err);

#endif
