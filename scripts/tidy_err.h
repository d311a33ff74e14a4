/* tidy_err.h: put before every file by tidy.sh. The analyser looks at one file at a time and cannot know that these return
 * false, which is how every function here says that its outputs are not set. */
#include "base/err.h"

#define err_set(...) ((void)err_set(__VA_ARGS__), false)
#define err_wrap(...) ((void)err_wrap(__VA_ARGS__), false)
#define err_nomem(...) ((void)err_nomem(__VA_ARGS__), false)
