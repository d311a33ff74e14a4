/* template.h: Jinja templates as chat templates use them: parsed once to a tree, rendered by
 * walking it.
 *
 * The dialect is Jinja2 3.1 in the setting of Hugging Face's chat templates: trim_blocks,
 * lstrip_blocks, loop controls, the generation tag, the immutable sandbox (append, update ... are
 * refused), tojson without ASCII escapes, raise_exception and strftime_now. Filters, tests, global
 * functions and methods are Jinja2's; the few that are refused are in docs/templates.md. include,
 * import and extends fail where they are met. Integers have 64 bits: a result beyond is an error.
 *
 * A parsed template never changes (any thread may render it) and lives in its arena. A render takes
 * its memory from its own arena and is bounded by TemplateLimits, so a hostile template ends with
 * an error. */
#ifndef MERE_TEXT_TEMPLATE_H
#define MERE_TEXT_TEMPLATE_H

#include "base/arena.h"
#include "base/json.h"

#include <time.h>

typedef struct Template Template;

enum {
    TEMPLATE_SOURCE_MAX = 1 << 20, /* bytes of source */
    TEMPLATE_PARSE_DEPTH = 100,    /* nested expressions and blocks */
};

typedef struct TemplateLimits {
    int64_t steps;       /* nodes evaluated, plus one for every 16 bytes moved or compared */
    size_t memory_bytes; /* of values; output not counted */
    int depth;           /* nested evaluation: expressions, blocks and macro calls together */
    size_t output_bytes;
} TemplateLimits;

/* 20 million steps (seconds at most), 256 MiB, depth 1,000, 64 MiB. */
TemplateLimits template_limits(void);

/* `source` is borrowed during the call only. ERR_FORMAT: "doc: line 3: ...". */
MUST_CHECK bool template_open(Arena *a, const char *doc, Str source, Template **out, Error *err);

Str template_source(const Template *t);   /* line ends are \n */
size_t template_bytes(const Template *t); /* memory held */

typedef struct TemplateVar {
    const char *name;
    const json_t *value; /* NULL: None */
} TemplateVar;

typedef struct TemplateInput {
    const TemplateVar *vars; /* later ones win */
    int n_vars;
    const json_t *more;   /* object whose keys are variables too (they win over vars), or NULL */
    const struct tm *now; /* NULL: the local time */
    const TemplateLimits *limits; /* NULL: template_limits() */
} TemplateInput;

/* Appends to `out`. ERR_REQUEST: raise_exception or any other error while rendering, and each
 * limit, named, with the line. ERR_NOMEM: no memory, or `out` is full. `out` is as it was after an
 * error. */
MUST_CHECK bool template_render(const Template *t, const TemplateInput *in, StrBuf *out,
                                Error *err);

#endif
