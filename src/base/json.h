/* json.h: jansson behind mere's error and memory rules. Values are jansson's json_t,
 * reference-counted by their owner (json_decref). Limits: depth 64 (JSON_DEPTH), duplicate keys and
 * invalid UTF-8 are errors. Getters name the document and the key in their message. */
#ifndef MERE_BASE_JSON_H
#define MERE_BASE_JSON_H

#include "base/str.h"

#include <jansson.h>

enum { JSON_DEPTH = 64 };

/* Routes jansson's memory through mem.h. Call once before any other use. */
void json_setup(void);
/* Frees text that json_dumps returned. */
void json_text_free(char *text);

/* NULL and ERR_FORMAT ("doc: line 3: ...") when the text is no JSON value or nests deeper than
 * JSON_DEPTH. Caller owns. */
json_t *json_parse(const char *doc, Str text, Error *err);

/* A key of an object. `doc` names the object in errors. Wrong type or range: ERR_FORMAT. Missing or
 * null: the `_or` forms give the default, the others ERR_FORMAT. Whole-valued reals (1e4) count as
 * integers. */
MUST_CHECK bool json_get_i64(const json_t *obj, const char *doc, const char *key, int64_t lo,
                             int64_t hi, int64_t *out, Error *err);
MUST_CHECK bool json_get_int(const json_t *obj, const char *doc, const char *key, int lo, int hi,
                             int *out, Error *err);
MUST_CHECK bool json_get_int_or(const json_t *obj, const char *doc, const char *key, int lo, int hi,
                                int missing, int *out, Error *err);
MUST_CHECK bool json_get_f64(const json_t *obj, const char *doc, const char *key, double *out,
                             Error *err);
MUST_CHECK bool json_get_f64_or(const json_t *obj, const char *doc, const char *key, double missing,
                                double *out, Error *err);
MUST_CHECK bool json_get_bool_or(const json_t *obj, const char *doc, const char *key, bool missing,
                                 bool *out, Error *err);
/* Borrowed from obj. out->ptr is NULL when missing. */
MUST_CHECK bool json_get_str_or(const json_t *obj, const char *doc, const char *key, Str *out,
                                Error *err);

#endif
