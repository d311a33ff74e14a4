/* jsonscan.h: a pull scanner over JSON text, for the big tables of tokenizer.json: a vocabulary of
 * 150,000 strings is read in one pass, with no tree of values in between (a general JSON library
 * takes 200 ms and 70 MB there). Small parts are skipped as raw text and given to json.h.
 *
 * The scanner borrows the text. Errors name the document, the line and what was wanted. One thread.
 */
#ifndef MERE_TEXT_JSONSCAN_H
#define MERE_TEXT_JSONSCAN_H

#include "base/str.h"

typedef struct JsonScan {
    const char *doc;
    const char *start, *p, *end;
    bool first;  /* nothing was read yet in the container just entered */
    bool loose;  /* strings may be no valid UTF-8: the reader checks them */
    StrBuf text; /* the last string, unescaped; used when it has escapes */
} JsonScan;

void jsonscan_init(JsonScan *s, const char *doc, Str text);
void jsonscan_free(JsonScan *s);
/* ERR_FORMAT at the present place: "doc: line 3: ...". Returns false. */
bool jsonscan_fail(const JsonScan *s, const char *what, Error *err);

/* The first character of the next value ('{' '[' '"' 't' '-' ...), 0 at the end. Not consumed. */
char jsonscan_peek(JsonScan *s);
MUST_CHECK bool jsonscan_open(JsonScan *s, char bracket, Error *err); /* '{' or '[' */
/* In an object: the next key, or *more false after its '}'. The key borrows from the text, or from
 * the scanner until the next string. */
MUST_CHECK bool jsonscan_key(JsonScan *s, bool *more, Str *key, Error *err);
/* The same in two steps: whether another member follows, which the scanner then stands on; its key.
 */
MUST_CHECK bool jsonscan_more(JsonScan *s, char close, bool *more, Error *err);
MUST_CHECK bool jsonscan_name(JsonScan *s, Str *key, Error *err);
/* In an array: whether another value follows; false after its ']'. */
MUST_CHECK bool jsonscan_item(JsonScan *s, bool *more, Error *err);
/* A string, unescaped, which may hold NUL; lone surrogates are ERR_FORMAT. Borrowed as the key is.
 */
MUST_CHECK bool jsonscan_string(JsonScan *s, Str *out, Error *err);
/* A whole number in [0, max]. */
MUST_CHECK bool jsonscan_uint(JsonScan *s, int64_t max, int64_t *out, Error *err);
/* Any value; *raw is its text. Brackets are only counted here: parse the text to check it. */
MUST_CHECK bool jsonscan_skip(JsonScan *s, Str *raw, Error *err);

#endif
