/* dirlist.h: names of a directory's entries. */
#ifndef MERE_WEIGHTS_DIRLIST_H
#define MERE_WEIGHTS_DIRLIST_H

#include "base/arena.h"

enum { DIRLIST_MAX = 65536 }; /* entries read */

/* Names that end in `suffix`, sorted by byte value, in `a`. Hidden ones (".x") do not count.
 * ERR_NOT_FOUND: no such directory. ERR_TOO_LONG: more than DIRLIST_MAX entries. */
MUST_CHECK bool dirlist_read(Arena *a, const char *dir, const char *suffix,
                             const char *const **names, int *n, Error *err);

#endif
