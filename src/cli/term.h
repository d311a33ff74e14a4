/* term.h: what goes to the terminal. Text from outside (models, files, clients) never brings
 * control sequences with it. */
#ifndef MERE_CLI_TERM_H
#define MERE_CLI_TERM_H

#include "base/str.h"

#include <stdio.h>

/* Writes text; with `visible`, control characters other than line end and tab as ^X, and C1
 * controls as <9b>. False: the write failed. */
bool term_write(FILE *to, Str text, bool visible);

#endif
