/* jinja_eval.h: walks a parsed template and appends its text to j->out. */
#ifndef MERE_TEXT_JINJA_EVAL_H
#define MERE_TEXT_JINJA_EVAL_H

#include "text/jinja_ast.h"

/* j is set up but for its scope; j->context holds the variables. */
bool jinja_eval(Jinja *j, const JinjaNode *root);

#endif
