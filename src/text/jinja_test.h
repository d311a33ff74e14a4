/* jinja_test.h: the tests of "x is name". */
#ifndef MERE_TEXT_JINJA_TEST_H
#define MERE_TEXT_JINJA_TEST_H

#include "text/jinja_call.h"

int jinja_test_id(Str name); /* -1: unknown */
/* id -1 fails with `name`. */
bool jinja_test(Jinja *j, int id, Str name, JinjaValue v, const JinjaCall *call, bool *out);

#endif
