/* jinja_scope.h: finds the names that a scope gives a value before it reads them. Such a name
 * belongs to the scope from its start, so that until then it is undefined there and in the scopes
 * inside, whatever the render's variables hold. Jinja2 decides so when it loads a template. */
#ifndef MERE_TEXT_JINJA_SCOPE_H
#define MERE_TEXT_JINJA_SCOPE_H

#include "text/jinja_ast.h"

/* Fills in `unset` of the blocks that are bodies of scopes. Names are interned. */
bool jinja_scopes(Arena *a, const char *doc, JinjaNode *root, Error *err);

#endif
