#include "text/chat.h"

#include "text/template.h"

struct Chat {
    const char *doc;
    Template *plain;
    Template *with_tools; /* for conversations with tools; often NULL: `plain` does both */
    const Tokenizer *tokenizer;
    size_t bytes;
};

/* "chat_template" of tokenizer_config.json: a string, or [{"name": ..., "template": ...}]. */
static bool open_config(Arena *a, Chat *c, const json_t *config, Error *err)
{
    const json_t *v = json_object_get(config, "chat_template");
    if (json_is_string(v))
        return template_open(a, c->doc, (Str){json_string_value(v), json_string_length(v)},
                             &c->plain, err);
    size_t i;
    json_t *item;
    json_array_foreach (v, i, item) {
        Str name;
        Str text;
        if (!json_get_str_or(item, c->doc, "name", &name, err) ||
            !json_get_str_or(item, c->doc, "template", &text, err))
            return err_wrap(err, "chat_template[%zu]", i);
        if (!name.ptr || !text.ptr)
            return err_set(err, ERR_FORMAT,
                           "%s: chat_template[%zu] wants \"name\" and \"template\"", c->doc, i);
        Template **to = str_is(name, "default")    ? &c->plain
                        : str_is(name, "tool_use") ? &c->with_tools
                                                   : NULL;
        if (to && !*to && !template_open(a, c->doc, text, to, err))
            return err_wrap(err, "chat_template \"%.*s\"", name.len < 60 ? (int)name.len : 60,
                            name.ptr);
    }
    return true;
}

bool chat_open(Arena *a, const ChatSource *source, Chat **out, Error *err)
{
    const size_t before = arena_bytes(a);
    Chat *c = ARENA_NEW(a, Chat, err);
    if (!c)
        return false;
    c->doc = arena_printf(a, err, "%s: chat template", source->doc);
    if (!c->doc)
        return false;
    c->tokenizer = source->tokenizer;
    if (source->jinja.ptr && !template_open(a, c->doc, source->jinja, &c->plain, err))
        return false;
    if (!c->plain && source->tokenizer_config.ptr) {
        json_t *config = json_parse("tokenizer_config.json", source->tokenizer_config, err);
        if (!config)
            return false;
        const bool ok = open_config(a, c, config, err);
        json_decref(config);
        if (!ok)
            return false;
    }
    if (!c->plain)
        return err_set(err, ERR_NOT_FOUND,
                       "%s has no chat template: use --raw to give it the prompt as it is",
                       source->doc);
    c->bytes = arena_bytes(a) - before;
    *out = c;
    return true;
}

/* bos_token, eos_token: *out NULL when the tokenizer has none. */
static bool token_text(const Tokenizer *t, int id, json_t **out, Error *err)
{
    *out = NULL;
    if (!t || id < 0)
        return true;
    const Str s = tokenizer_piece(t, id);
    *out = json_stringn(s.ptr, s.len);
    return *out || err_nomem(err, "chat template", s.len);
}

bool chat_render(const Chat *c, const ChatInput *in, StrBuf *out, Error *err)
{
    json_t *bos = NULL;
    json_t *eos = NULL;
    bool ok = false;
    if (!json_is_array(in->messages))
        return err_set(err, ERR_REQUEST, "messages must be an array");
    const bool has_tools = in->tools && json_array_size(in->tools) > 0;
    TemplateVar vars[6] = {
        {"messages", in->messages},
        {"tools", has_tools ? in->tools : NULL},
        {"documents", NULL},
        {"add_generation_prompt", in->add_generation_prompt ? json_true() : json_false()},
    };
    int n = 4;
    if (c->tokenizer && (!token_text(c->tokenizer, tokenizer_bos(c->tokenizer), &bos, err) ||
                         !token_text(c->tokenizer, tokenizer_eos(c->tokenizer), &eos, err)))
        goto done;
    if (bos)
        vars[n++] = (TemplateVar){"bos_token", bos};
    if (eos)
        vars[n++] = (TemplateVar){"eos_token", eos};
    const TemplateInput input = {.vars = vars, .n_vars = n, .more = in->vars, .now = in->now};
    ok = template_render(has_tools && c->with_tools ? c->with_tools : c->plain, &input, out, err);
done:
    json_decref(bos);
    json_decref(eos);
    return ok;
}

bool chat_mentions(const Chat *c, const char *name)
{
    const Str s = template_source(c->plain);
    return memmem(s.ptr, s.len, name, strlen(name)) != NULL;
}

size_t chat_bytes(const Chat *c)
{
    return c->bytes;
}
