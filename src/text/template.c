#include "text/template.h"

#include "text/jinja_eval.h"
#include "text/jinja_parse.h"
#include "text/utf8.h"

struct Template {
    const char *doc;
    Str source;
    JinjaNode *root;
    size_t bytes;
};

TemplateLimits template_limits(void)
{
    return (TemplateLimits){.steps = 20 * 1000 * 1000,
                            .memory_bytes = (size_t)256 << 20,
                            .depth = 1000,
                            .output_bytes = (size_t)64 << 20};
}

/* Line ends become \n, and one at the very end is dropped. */
static Str normal_source(char *to, Str from)
{
    size_t n = 0;
    for (size_t i = 0; i < from.len; i++) {
        const char c = from.ptr[i];
        if (c == '\r') {
            to[n++] = '\n';
            i += i + 1 < from.len && from.ptr[i + 1] == '\n';
        } else {
            to[n++] = c;
        }
    }
    if (n > 0 && to[n - 1] == '\n')
        n--;
    to[n] = '\0';
    return (Str){to, n};
}

bool template_open(Arena *a, const char *doc, Str source, Template **out, Error *err)
{
    if (source.len > TEMPLATE_SOURCE_MAX)
        return err_set(err, ERR_FORMAT, "%s: template of %zu bytes, at most %d", doc, source.len,
                       TEMPLATE_SOURCE_MAX);
    if (utf8_valid_prefix(source) != source.len)
        return err_set(err, ERR_FORMAT, "%s: the template is no valid UTF-8 at byte %zu", doc,
                       utf8_valid_prefix(source));
    const size_t before = arena_bytes(a);
    Template *t = ARENA_NEW(a, Template, err);
    char *copy = t ? arena_take(a, source.len + 1, 1, err) : NULL;
    if (!copy)
        return false;
    t->doc = arena_strdup(a, doc, strlen(doc), err);
    if (!t->doc)
        return false;
    t->source = normal_source(copy, source);
    if (!jinja_parse(a, t->doc, t->source, &t->root, err))
        return false;
    t->bytes = arena_bytes(a) - before;
    *out = t;
    return true;
}

Str template_source(const Template *t)
{
    return t->source;
}

size_t template_bytes(const Template *t)
{
    return t->bytes;
}

static bool set_vars(Jinja *j, const TemplateInput *in, JinjaDict *context)
{
    JinjaValue v;
    for (int i = 0; i < in->n_vars; i++) {
        const char *name = in->vars[i].name;
        if (!jinja_from_json(j, in->vars[i].value, &v) ||
            !jinja_dict_set(j, context, jinja_str(name, strlen(name)), v))
            return false;
    }
    if (!in->more)
        return true;
    JinjaValue more;
    if (!json_is_object(in->more))
        return jinja_fail(j, "the variables are no JSON object");
    if (!jinja_from_json(j, in->more, &more))
        return false;
    for (int64_t i = 0; i < more.u.dict->n; i++) {
        const JinjaPair *p = &more.u.dict->at[i];
        if (!jinja_dict_set(j, context, p->key, p->value))
            return false;
    }
    return true;
}

bool template_render(const Template *t, const TemplateInput *in, StrBuf *out, Error *err)
{
    Error none;
    struct tm now;
    Jinja j = {.doc = t->doc,
               .limits = in->limits ? *in->limits : template_limits(),
               .line = 1,
               .now = in->now,
               .err = err ? err : &none};
    if (!j.now) {
        const time_t at = time(NULL);
        if (!localtime_r(&at, &now))
            return err_set(err, ERR_FAILED, "%s: the local time is not known", t->doc);
        j.now = &now;
    }
    JinjaDict context = {0};
    j.context = &context;
    arena_init(&j.arena, t->doc);
    strbuf_init(&j.out, j.limits.output_bytes);
    bool ok = set_vars(&j, in, &context) && jinja_eval(&j, t->root);
    if (ok && !strbuf_add(out, j.out.ptr ? j.out.ptr : "", j.out.len))
        ok = strbuf_check(out, t->doc, err);
    strbuf_free(&j.out);
    arena_free(&j.arena);
    return ok;
}
