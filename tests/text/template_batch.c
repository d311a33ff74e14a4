/* Renders templates by the batch, for tools/compare_templates.py. One JSON object a line:
 *   {"vars": {...}}                    variables of the renders that name none
 *   {"name": "x", "source": "..."}     keeps a template; answers null or {"error": ...}
 *   {"name": "x", "vars": {...}}       renders a kept one
 *   {"source": "..."}                  renders once
 * Each render answers a line: {"text": ...} or {"error": ...}. The clock stands still. */
#include "base/json.h"
#include "fixed_now.h"
#include "text/template.h"

#include <stdio.h>
#include <stdlib.h>

enum { LINE_MAX_BYTES = 64 << 20, OUT_MAX_BYTES = 64 << 20 };

typedef struct Kept {
    char *name;
    Template *t;
} Kept;

static Arena kept_arena;
static Kept kept[1024];
static int n_kept;

static void answer(const char *key, Str text)
{
    json_t *v = json_pack("{s:s#}", key, text.ptr, text.len);
    char *line = v ? json_dumps(v, JSON_COMPACT) : NULL;
    puts(line ? line : "{\"error\":\"the text is no valid UTF-8\"}");
    json_text_free(line);
    json_decref(v);
}

static void answer_render(const Template *t, const json_t *vars)
{
    Error err = {0};
    StrBuf out;
    strbuf_init(&out, OUT_MAX_BYTES);
    const TemplateInput in = {.more = vars, .now = &fixed_now};
    if (template_render(t, &in, &out, &err))
        answer("text", strbuf_str(&out));
    else
        answer("error", str_from(err.msg));
    strbuf_free(&out);
}

static const Template *find(const char *name)
{
    for (int i = 0; i < n_kept; i++) {
        if (str_is(str_from(kept[i].name), name))
            return kept[i].t;
    }
    fprintf(stderr, "template_batch: no template %s\n", name);
    exit(2);
}

static void open_one(Arena *a, const char *name, Str source, const json_t *vars)
{
    Error err = {0};
    Template *t;
    if (!template_open(a, name ? name : "t", source, &t, &err)) {
        answer("error", str_from(err.msg));
    } else if (!name) {
        answer_render(t, vars);
    } else {
        if (n_kept == (int)COUNT_OF(kept))
            exit(2);
        kept[n_kept].t = t;
        kept[n_kept].name = arena_strdup(a, name, strlen(name), &err);
        if (!kept[n_kept++].name)
            exit(2);
        puts("null");
    }
}

int main(void)
{
    json_setup();
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    json_t *vars = NULL;
    Error err = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    arena_init(&kept_arena, "kept");
    while ((len = getline(&line, &cap, stdin)) > 0) {
        json_t *v =
            len < LINE_MAX_BYTES ? json_parse("line", (Str){line, (size_t)len}, &err) : NULL;
        if (!v) {
            fprintf(stderr, "template_batch: %s\n", err.msg);
            return 2;
        }
        const json_t *source = json_object_get(v, "source");
        const char *name = json_string_value(json_object_get(v, "name"));
        json_t *own = json_object_get(v, "vars");
        const Str text = {json_string_value(source), json_string_length(source)};
        if (source && name) {
            open_one(&kept_arena, name, text, NULL);
        } else if (source) {
            Arena a;
            arena_init(&a, "one");
            open_one(&a, NULL, text, vars);
            arena_free(&a);
        } else if (name) {
            answer_render(find(name), own);
        } else {
            json_decref(vars);
            vars = json_incref(own);
        }
        json_decref(v);
    }
    json_decref(vars);
    free(line);
    arena_free(&kept_arena);
    return 0;
}
