/* input.h: a command's text: from an option, a file or standard input. Main thread. */
#ifndef MERE_CLI_INPUT_H
#define MERE_CLI_INPUT_H

#include "base/arena.h"
#include "base/str.h"
#include "cli/options.h"

enum { INPUT_MAX = 64 << 20 }; /* bytes */

/* A file's whole text, NUL-terminated, in `a`. "-" is standard input. ERR_USAGE: it cannot be read
 * (a text that is not there is a wrong argument); the message begins with `option`. */
MUST_CHECK bool input_file(Arena *a, const char *option, const char *path, Str *out, Error *err);
/* Standard input until its end. */
MUST_CHECK bool input_stdin(Arena *a, Str *out, Error *err);
/* --prompt, else --file, else standard input when that is no terminal. ERR_USAGE: both, or none. */
MUST_CHECK bool input_text(Arena *a, const Options *o, Str *out, Error *err);
/* Token ids between commas or blanks. ERR_USAGE: something else; the message begins with `option`.
 */
MUST_CHECK bool input_ids(Arena *a, const char *option, Str text, int32_t **ids, int64_t *n,
                          Error *err);

#endif
