#include "base/json.h"
#include "text/tokenizer_build.h"

static const char name[] = "tokenizer_config.json";

/* A token given as a string or as {"content": string}; *id stays when it is not there or null. */
static bool token(const Tokenizer *t, const json_t *config, const char *key, int *id, Error *err)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!json_is_string(v))
        return true;
    const Str text = {json_string_value(v), json_string_length(v)};
    const int found = tokenizer_find(t, text);
    if (found < 0)
        return err_set(err, ERR_FORMAT, "%s: %s \"%.60s\" is no token of %s", name, key, text.ptr,
                       t->vocab.doc);
    *id = found;
    return true;
}

static bool flag(const json_t *config, const char *key, int *out, Error *err)
{
    bool on;
    if (!json_get_bool_or(config, name, key, false, &on, err))
        return false;
    if (json_is_boolean(json_object_get(config, key)))
        *out = on;
    return true;
}

bool tokenizer_parse_config(Str config, json_t **out, Error *err)
{
    *out = NULL;
    if (!config.ptr || str_is(config, "null"))
        return true;
    *out = json_parse(name, config, err);
    return *out != NULL;
}

bool tokenizer_read_config(Tokenizer *t, Str config, Error *err)
{
    json_t *obj;
    if (!tokenizer_parse_config(config, &obj, err))
        return false;
    int add_bos = -1;
    int add_eos = -1;
    const bool ok =
        !obj ||
        (token(t, obj, "bos_token", &t->bos, err) && token(t, obj, "eos_token", &t->eos, err) &&
         flag(obj, "add_bos_token", &add_bos, err) && flag(obj, "add_eos_token", &add_eos, err));
    if (ok)
        tokenizer_set_around(t, add_bos, add_eos);
    json_decref(obj);
    return ok;
}

static bool add(Arena *a, Tokenizer *t, const char *key, const json_t *item, Error *err)
{
    int64_t id;
    Str text;
    AddedTok tok = {0};
    if (!str_to_int(str_from(key), 0, TOKENIZER_VOCAB_MAX - 1, &id))
        return err_set(err, ERR_FORMAT, "%s: added_tokens_decoder: \"%.60s\" is no token id", name,
                       key);
    if (!json_get_str_or(item, name, "content", &text, err) ||
        !json_get_bool_or(item, name, "special", false, &tok.special, err) ||
        !json_get_bool_or(item, name, "lstrip", false, &tok.lstrip, err) ||
        !json_get_bool_or(item, name, "rstrip", false, &tok.rstrip, err) ||
        !json_get_bool_or(item, name, "single_word", false, &tok.single_word, err))
        return err_wrap(err, "added_tokens_decoder");
    if (!text.ptr || text.len == 0)
        return err_set(err, ERR_FORMAT, "%s: added_tokens_decoder: \"%.60s\" has no \"content\"",
                       name, key);
    tok.id = (int32_t)id;
    tok.text = text;
    return tokenizer_add_added(a, t, &t->raw, tok, err);
}

bool tokenizer_config_added(Arena *a, Tokenizer *t, Str config, int more, Error *err)
{
    json_t *obj;
    if (!tokenizer_parse_config(config, &obj, err))
        return false;
    const json_t *list = json_object_get(obj, "added_tokens_decoder");
    t->raw.at = ARENA_ARRAY(a, (size_t)more + json_object_size(list), AddedTok, err);
    bool ok = t->raw.at != NULL;
    const char *key;
    json_t *item;
    json_object_foreach ((json_t *)(uintptr_t)list, key, item)
        ok = ok && add(a, t, key, item, err);
    json_decref(obj);
    return ok;
}
