#include "model/model.h"

#include <ctype.h>

#define MODEL(family) extern const ModelFamily family##_family;
#include "model/models.def"
#undef MODEL

static const ModelFamily *const families[] = {
#define MODEL(family) &family##_family,
#include "model/models.def"
#undef MODEL
};

const ModelFamily *const *model_families(int *n)
{
    *n = (int)COUNT_OF(families);
    return families;
}

/* Case-folded, '-' equal to '_': makers and converters spell the same name both ways. */
static bool same_type(const char *a, const char *b)
{
    for (;; a++, b++) {
        const int x = *a == '-' ? '_' : tolower((unsigned char)*a);
        const int y = *b == '-' ? '_' : tolower((unsigned char)*b);
        if (x != y)
            return false;
        if (x == '\0')
            return true;
    }
}

const ModelFamily *model_family_find(const char *model_type)
{
    for (size_t i = 0; i < COUNT_OF(families); i++)
        for (const char *const *t = families[i]->types; *t; t++)
            if (same_type(*t, model_type))
                return families[i];
    return NULL;
}

static bool unknown_type(const char *doc, const char *type, Error *err)
{
    StrBuf known;
    strbuf_init(&known, 4096);
    for (size_t i = 0; i < COUNT_OF(families); i++)
        for (const char *const *t = families[i]->types; *t; t++)
            (void)strbuf_printf(&known, "%s%s", known.len ? ", " : "", *t);
    (void)err_set(err, ERR_UNSUPPORTED, "%s: \"model_type\" is \"%.60s\", known are %s", doc, type,
                  known.ptr ? known.ptr : "others");
    strbuf_free(&known);
    return false;
}

bool model_open(Arena *a, const Checkpoint *ck, Model **out, Error *err)
{
    const json_t *config = checkpoint_config(ck);
    const char *doc = checkpoint_doc(ck);
    Str type;
    if (!json_get_str_or(config, doc, "model_type", &type, err))
        return false;
    if (!type.ptr)
        return err_set(err, ERR_FORMAT, "%s: key \"model_type\" is missing", doc);
    const ModelFamily *family = model_family_find(type.ptr);
    if (!family)
        return unknown_type(doc, type.ptr, err);
    Model *m = ARENA_NEW(a, Model, err);
    if (!m)
        return false;
    *m = (Model){.arena = a, .ck = ck, .family = family, .doc = doc};
    if (!family->config(m, config, err) || !family->weights(m, err))
        return false;
    *out = m;
    return true;
}

const char *model_pipeline_name(Pipeline p)
{
    static const char *const names[] = {[PIPELINE_DECODE] = "decode",
                                        [PIPELINE_ENCODER_DECODER] = "encoder-decoder",
                                        [PIPELINE_VISION_DECODE] = "vision-decode"};
    return names[p];
}

bool model_needs(const Model *m, Pipeline p, Error *err)
{
    if (m->family->pipeline == p)
        return true;
    StrBuf parts;
    strbuf_init(&parts, 256);
    for (const ModelPart *part = m->family->parts; part->name; part++)
        (void)strbuf_printf(&parts, "%s%s", parts.len ? ", " : "", part->name);
    (void)err_set(err, ERR_UNSUPPORTED,
                  "%s: %s models need the %s pipeline (parts %s), and this command runs %s", m->doc,
                  m->family->name, model_pipeline_name(m->family->pipeline),
                  parts.ptr ? parts.ptr : "of their own", model_pipeline_name(p));
    strbuf_free(&parts);
    return false;
}

bool model_build(const Model *m, Arena *a, const char *part, const GraphLimits *limits,
                 const GraphPlan **plan, Error *err)
{
    for (const ModelPart *p = m->family->parts; p->name; p++) {
        if (strcmp(p->name, part) != 0)
            continue;
        Graph *g = graph_begin(a, p->name, err);
        if (!g)
            return false;
        p->build(g, m);
        return graph_end(g, limits, plan, err);
    }
    return err_set(err, ERR_UNSUPPORTED, "%s: a %s model has no part \"%s\"", m->doc,
                   m->family->name, part);
}
