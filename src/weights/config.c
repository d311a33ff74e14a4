#include "weights/config.h"

#include "base/file.h"

#include <inttypes.h>

/* "eos_token_id" of obj as a new list in *out; NULL when it has none. */
static bool eos_list(const json_t *obj, const char *doc, json_t **out, Error *err)
{
    json_t *v = json_object_get(obj, "eos_token_id");
    *out = NULL;
    if (!v || json_is_null(v))
        return true;
    json_t *list = json_array();
    const bool is_list = json_is_array(v);
    const size_t n = is_list ? json_array_size(v) : 1;
    if (n > CONFIG_EOS_MAX) {
        json_decref(list);
        return err_set(err, ERR_FORMAT, "%s: \"eos_token_id\" has %zu ids, at most %d", doc, n,
                       CONFIG_EOS_MAX);
    }
    for (size_t i = 0; i < n && list; i++) {
        json_t *id = is_list ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX) {
            json_decref(list);
            return err_set(err, ERR_FORMAT, "%s: \"eos_token_id\" is no token id or list of them",
                           doc);
        }
        if (json_array_append(list, id) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    if (!list)
        return err_nomem(err, doc, 0);
    *out = list;
    return true;
}

static bool merge(json_t *config, const char *doc, json_t *generation, const char *generation_doc,
                  Error *err)
{
    json_t *eos;
    if (!eos_list(generation, generation_doc, &eos, err) ||
        (!eos && !eos_list(config, doc, &eos, err)) ||
        (!eos && !eos_list(json_object_get(config, "text_config"), doc, &eos, err)))
        return false;
    if (eos && json_object_set_new(config, "eos_token_id", eos) != 0)
        return err_nomem(err, doc, 0);
    if (generation && json_object_set(config, "generation_config", generation) != 0)
        return err_nomem(err, doc, 0);
    return true;
}

static json_t *parse_object(const char *doc, Str text, Error *err)
{
    json_t *v = json_parse(doc, text, err);
    if (!v || json_is_object(v))
        return v;
    json_decref(v);
    err_set(err, ERR_FORMAT, "%s: not a JSON object", doc);
    return NULL;
}

bool config_parse(const char *doc, Str text, const char *generation_doc, Str generation,
                  json_t **out, Error *err)
{
    json_t *config = parse_object(doc, text, err);
    json_t *extra = config && generation.ptr ? parse_object(generation_doc, generation, err) : NULL;
    const bool ok =
        config && (extra || !generation.ptr) && merge(config, doc, extra, generation_doc, err);
    json_decref(extra);
    if (!ok) {
        json_decref(config);
        return false;
    }
    *out = config;
    return true;
}

bool config_read(Arena *a, const char *dir, json_t **out, const char **doc, Error *err)
{
    const char *path = arena_printf(a, err, "%s/config.json", dir);
    const char *generation_path = arena_printf(a, err, "%s/generation_config.json", dir);
    if (!path || !generation_path)
        return false;
    *doc = path;
    const ArenaMark mark = arena_mark(a);
    Str text;
    Str generation = {0};
    const bool ok = file_read(a, path, CONFIG_FILE_MAX, &text, err) &&
                    (!file_exists(generation_path) ||
                     file_read(a, generation_path, CONFIG_FILE_MAX, &generation, err)) &&
                    config_parse(path, text, generation_path, generation, out, err);
    arena_rewind(a, mark);
    return ok;
}

ConfigQuant config_quant(const json_t *config, const char *module)
{
    const json_t *q = json_object_get(config, "quantization");
    if (!json_is_object(q))
        q = json_object_get(config, "quantization_config");
    const json_t *own = json_object_get(q, module);
    const bool is_own = json_is_object(own);
    if (is_own)
        q = own;
    const json_t *mode = json_object_get(q, "mode");
    ConfigQuant out = {.bits = (int)json_integer_value(json_object_get(q, "bits")),
                       .group = (int)json_integer_value(json_object_get(q, "group_size"))};
    if (json_is_string(mode))
        out.mode = (Str){json_string_value(mode), json_string_length(mode)};
    else if (is_own || out.bits)
        out.mode = str_from("affine");
    return out;
}
