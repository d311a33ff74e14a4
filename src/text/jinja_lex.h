/* jinja_lex.h: template source to tokens, with Jinja's rules for white space around tags
 * (trim_blocks and lstrip_blocks are on). All tokens are made at once, in an arena; text and names
 * borrow from the source, which must be valid UTF-8 with \n line ends. */
#ifndef MERE_TEXT_JINJA_LEX_H
#define MERE_TEXT_JINJA_LEX_H

#include "base/arena.h"
#include "base/str.h"

typedef enum JinjaTok {
    JT_END,
    JT_TEXT,
    JT_PRINT_BEGIN, /* {{ */
    JT_PRINT_END,
    JT_BLOCK_BEGIN, /* {% */
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING, /* text between the quotes, escapes still in it */
    JT_INT,
    JT_FLOAT,
    JT_OP, /* text: the operator */
} JinjaTok;

typedef struct JinjaToken {
    JinjaTok type;
    int line;
    Str text;
} JinjaToken;

/* Ends in JT_END. ERR_FORMAT: "doc: line 3: ...". */
MUST_CHECK bool jinja_lex(Arena *a, const char *doc, Str source, JinjaToken **out, int *n,
                          Error *err);

#endif
