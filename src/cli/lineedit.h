/* lineedit.h: messages typed by a person, or lines of a pipe. On a terminal the line can be edited
 * and earlier ones come back (libedit, known to lineedit.c alone); elsewhere lines are read as they
 * are. A message may have several lines: a line that ends in \ goes on in the next one, and from
 * """ to """ every line belongs to it. Main thread. */
#ifndef MERE_CLI_LINEEDIT_H
#define MERE_CLI_LINEEDIT_H

#include "base/str.h"

enum { LINEEDIT_MAX = 16 << 20 }; /* bytes of one message */

typedef struct LineEdit LineEdit;

typedef enum LineResult {
    LINE_TEXT,
    LINE_END,         /* the end of the input, or Ctrl-D */
    LINE_INTERRUPTED, /* Ctrl-C: what was typed is dropped */
    LINE_FAILED
} LineResult;

/* `history` names the file that keeps earlier messages between runs (NULL: none); it is read and
 * written only on a terminal. `interrupt_fd`: readable after Ctrl-C (interrupt.h), -1: none. */
MUST_CHECK bool lineedit_open(const char *history, int interrupt_fd, bool colour, LineEdit **out,
                              Error *err);
/* NULL is fine. */
void lineedit_close(LineEdit *l);
/* Lines are edited on a terminal. */
bool lineedit_is_terminal(const LineEdit *l);
/* The next message, without its last line end; lives until the next call. Sets *text with
 * LINE_TEXT, *err with LINE_FAILED. */
LineResult lineedit_read(LineEdit *l, Str *text, Error *err);

#endif
