#include "serve/openai.h"

#include "base/json.h"

#include <inttypes.h>

typedef struct Parse {
    Arena *arena;
    const json_t *body;
    OpenaiRequest *out;
    const char *param;
    Error *err;
} Parse;

/* Every field is read through this: it is what *param tells. null counts as missing. */
static json_t *field(Parse *p, const char *key)
{
    p->param = key;
    json_t *v = json_object_get(p->body, key);
    return json_is_null(v) ? NULL : v;
}

static bool wrong(Parse *p, const char *wanted)
{
    return err_set(p->err, ERR_REQUEST, "%s: wanted %s", p->param, wanted);
}

static bool unsupported(Parse *p, const char *why)
{
    return err_set(p->err, ERR_UNSUPPORTED, "%s: %s", p->param, why);
}

static bool get_f32(Parse *p, const char *key, double lo, double hi, double missing, float *out)
{
    const json_t *v = field(p, key);
    double d = missing;
    if (v) {
        if (!json_is_number(v))
            return wrong(p, "a number");
        d = json_number_value(v);
        if (!(d >= lo && d <= hi))
            return err_set(p->err, ERR_REQUEST, "%s: %g is not within %g to %g", key, d, lo, hi);
    }
    *out = (float)d;
    return true;
}

static bool get_i64(Parse *p, const char *key, int64_t lo, int64_t hi, int64_t missing,
                    int64_t *out)
{
    *out = missing;
    const json_t *v = field(p, key);
    if (!v)
        return true;
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else {
        const double d = json_number_value(v);
        if (!json_is_real(v) || !(d > -9e15 && d < 9e15) || d != (double)(int64_t)d)
            return wrong(p, "an integer");
        *out = (int64_t)d;
    }
    if (*out < lo || *out > hi)
        return err_set(p->err, ERR_REQUEST, "%s: %" PRId64 " is not within %" PRId64 " to %" PRId64,
                       key, *out, lo, hi);
    return true;
}

static bool get_int(Parse *p, const char *key, int lo, int hi, int missing, int32_t *out)
{
    int64_t n;
    if (!get_i64(p, key, lo, hi, missing, &n))
        return false;
    *out = (int32_t)n;
    return true;
}

static bool get_bool(Parse *p, const char *key, bool missing, bool *out)
{
    const json_t *v = field(p, key);
    if (v && !json_is_boolean(v))
        return wrong(p, "true or false");
    *out = v ? json_is_true(v) : missing;
    return true;
}

static bool copy_str(Parse *p, const json_t *v, MereStr *out)
{
    const size_t len = json_string_length(v);
    out->ptr = arena_strdup(p->arena, json_string_value(v), len, p->err);
    out->len = len;
    return out->ptr != NULL;
}

static bool copy_json(Parse *p, const json_t *v, MereStr *out)
{
    const size_t len = json_dumpb(v, NULL, 0, JSON_COMPACT);
    char *text = len ? arena_take(p->arena, len + 1, 1, p->err) : NULL;
    if (!text)
        return len ? false : err_nomem(p->err, p->param, 0);
    if (json_dumpb(v, text, len, JSON_COMPACT) != len)
        return err_nomem(p->err, p->param, len);
    *out = (MereStr){text, len};
    return true;
}

/* ---- fields of both kinds ---- */

static bool parse_stops(Parse *p)
{
    const json_t *v = field(p, "stop");
    if (!v)
        return true;
    const bool is_list = json_is_array(v);
    const size_t n = is_list ? json_array_size(v) : 1;
    if (n > OPENAI_STOPS_MAX)
        return err_set(p->err, ERR_REQUEST, "stop: %zu strings, at most %d are taken", n,
                       OPENAI_STOPS_MAX);
    MereStr *stops = ARENA_ARRAY(p->arena, n ? n : 1, MereStr, p->err);
    if (!stops)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *s = is_list ? json_array_get(v, i) : v;
        if (!json_is_string(s) || json_string_length(s) == 0)
            return wrong(p, "a string or a list of strings, none empty");
        if (!copy_str(p, s, &stops[i]))
            return false;
    }
    p->out->gen.stops = stops;
    p->out->gen.n_stops = (int32_t)n;
    return true;
}

static bool parse_bias(Parse *p)
{
    json_t *v = field(p, "logit_bias");
    if (!v)
        return true;
    if (!json_is_object(v))
        return wrong(p, "an object of token id to number");
    const size_t n = json_object_size(v);
    if (n > OPENAI_BIAS_MAX)
        return err_set(p->err, ERR_REQUEST, "logit_bias: %zu entries, at most %d are taken", n,
                       OPENAI_BIAS_MAX);
    MereBias *bias = ARENA_ARRAY(p->arena, n ? n : 1, MereBias, p->err);
    if (!bias)
        return false;
    const char *key;
    json_t *add;
    int32_t i = 0;
    json_object_foreach (v, key, add) {
        int64_t id;
        if (!str_to_int(str_from(key), 0, INT32_MAX, &id))
            return wrong(p, "keys that are token ids");
        const double d = json_number_value(add);
        if (!json_is_number(add) || !(d >= -100 && d <= 100))
            return wrong(p, "values from -100 to 100");
        bias[i++] = (MereBias){(int32_t)id, (float)d};
    }
    p->out->gen.sampling.bias = bias;
    p->out->gen.sampling.n_bias = i;
    return true;
}

static bool parse_sampling(Parse *p)
{
    MereSampling *s = &p->out->gen.sampling;
    int64_t seed;
    if (!get_f32(p, "temperature", 0, 2, 1, &s->temperature) ||
        !get_f32(p, "top_p", 0, 1, 1, &s->top_p) || !get_f32(p, "min_p", 0, 1, 0, &s->min_p) ||
        !get_int(p, "top_k", -1, INT32_MAX, 0, &s->top_k) ||
        !get_f32(p, "presence_penalty", -2, 2, 0, &s->presence_penalty) ||
        !get_f32(p, "frequency_penalty", -2, 2, 0, &s->frequency_penalty) ||
        !get_f32(p, "repetition_penalty", 0.01, 10, 1, &s->repeat_penalty) ||
        !get_i64(p, "seed", INT64_MIN, INT64_MAX, 0, &seed))
        return false;
    /* To clients top_p 0 means the likeliest token only and seed 0 is a seed; to mere.h 0 is "not
     * set" in both. */
    if (s->top_p == 0.0F)
        s->top_p = 1e-9F;
    if (s->top_k < 0)
        s->top_k = 0;
    if (field(p, "seed"))
        s->seed = seed ? (uint64_t)seed : UINT64_C(1) << 63;
    return parse_bias(p);
}

static bool parse_stream(Parse *p)
{
    if (!get_bool(p, "stream", false, &p->out->stream))
        return false;
    json_t *v = field(p, "stream_options");
    if (!v)
        return true;
    if (!json_is_object(v))
        return wrong(p, "an object");
    if (!p->out->stream)
        return err_set(p->err, ERR_REQUEST, "stream_options: only with \"stream\": true");
    const json_t *usage = json_object_get(v, "include_usage");
    if (usage && !json_is_boolean(usage) && !json_is_null(usage)) {
        p->param = "stream_options.include_usage";
        return wrong(p, "true or false");
    }
    p->out->include_usage = json_is_true(usage);
    return true;
}

static bool refuse_unsupported(Parse *p)
{
    int32_t n;
    bool flag = false;
    if (!get_int(p, "n", 1, 128, 1, &n))
        return false;
    if (n != 1)
        return unsupported(p, "only 1 choice a request");
    if (!get_int(p, "best_of", 1, 128, 1, &n))
        return false;
    if (n != 1)
        return unsupported(p, "only 1 choice a request");
    if (!get_bool(p, "echo", false, &flag))
        return false;
    if (flag)
        return unsupported(p, "the prompt is not echoed");
    json_t *v = field(p, "suffix");
    if (v && !(json_is_string(v) && json_string_length(v) == 0))
        return unsupported(p, "filling in the middle is not supported");
    v = field(p, "response_format");
    if (v) {
        const char *type = json_string_value(json_object_get(v, "type"));
        if (!type)
            return wrong(p, "an object with a \"type\"");
        if (strcmp(type, "text") != 0)
            return unsupported(p, "only {\"type\": \"text\"} is supported");
    }
    if (field(p, "functions"))
        return unsupported(p, "use \"tools\"");
    if (field(p, "audio"))
        return unsupported(p, "answers are text only");
    return true;
}

static bool parse_common(Parse *p)
{
    MereRequest *gen = &p->out->gen;
    const json_t *model = field(p, "model");
    if (model && !json_is_string(model))
        return wrong(p, "a string");
    MereStr name;
    if (model) {
        if (!copy_str(p, model, &name))
            return false;
        p->out->model = (Str){name.ptr, name.len};
    }
    const json_t *salt = field(p, "cache_salt");
    if (salt && !json_is_string(salt))
        return wrong(p, "a string");
    if (salt && !copy_str(p, salt, &gen->cache_salt))
        return false;
    return refuse_unsupported(p) && parse_stream(p) && parse_sampling(p) && parse_stops(p) &&
           get_bool(p, "ignore_eos", false, &gen->ignore_eos);
}

/* ---- completions ---- */

static bool parse_ids(Parse *p, const json_t *list)
{
    const size_t n = json_array_size(list);
    int32_t *ids = ARENA_ARRAY(p->arena, n, int32_t, p->err);
    if (!ids)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return wrong(p, "token ids that are integers of 0 and above");
        ids[i] = (int32_t)json_integer_value(v);
    }
    p->out->gen.ids = ids;
    p->out->gen.n_ids = (int64_t)n;
    return true;
}

static bool parse_prompt(Parse *p)
{
    const json_t *v = field(p, "prompt");
    /* A list of one prompt is that prompt. */
    if (json_is_array(v) && json_array_size(v) > 0 && !json_is_integer(json_array_get(v, 0))) {
        if (json_array_size(v) > 1)
            return unsupported(p, "one prompt a request");
        v = json_array_get(v, 0);
    }
    if (json_is_string(v))
        return copy_str(p, v, &p->out->gen.prompt);
    if (json_is_array(v) && json_array_size(v) > 0)
        return parse_ids(p, v);
    return wrong(p, "a string or a list of token ids");
}

static bool parse_completion(Parse *p)
{
    MereRequest *gen = &p->out->gen;
    return parse_prompt(p) && get_int(p, "max_tokens", 1, INT32_MAX, 16, &gen->max_tokens) &&
           get_int(p, "logprobs", 0, OPENAI_LOGPROBS_MAX, -1, &gen->sampling.logprobs);
}

/* ---- chat ---- */

/* Templates index messages by key and concatenate `content`; most know only strings. A list of text
 * parts becomes one string, parts joined by line ends as other servers do. */
static bool flatten_content(Parse *p, json_t *msg, json_t *parts)
{
    StrBuf text;
    strbuf_init(&text, SIZE_MAX / 2);
    bool ok = true;
    size_t i;
    json_t *part;
    json_array_foreach (parts, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *s = json_object_get(part, "text");
        if (!type) {
            ok = wrong(p, "content parts with a \"type\"");
            break;
        }
        if (strcmp(type, "text") != 0) {
            ok = err_set(p->err, ERR_UNSUPPORTED,
                         "messages: content part of type \"%.40s\", only \"text\" is supported",
                         type);
            break;
        }
        if (!json_is_string(s)) {
            ok = wrong(p, "a string as \"text\" of a content part");
            break;
        }
        if (i > 0)
            strbuf_add(&text, "\n", 1);
        strbuf_add(&text, json_string_value(s), json_string_length(s));
    }
    if (ok &&
        (text.failed || json_object_set_new(msg, "content",
                                            json_stringn(text.ptr ? text.ptr : "", text.len)) != 0))
        ok = err_nomem(p->err, "messages", text.len);
    strbuf_free(&text);
    return ok;
}

/* Clients send the arguments of a call as JSON in a string; templates want the object. */
static bool parse_tool_calls(Parse *p, json_t *calls)
{
    if (!json_is_array(calls))
        return wrong(p, "a list as \"tool_calls\"");
    size_t i;
    json_t *call;
    json_array_foreach (calls, i, call) {
        json_t *fn = json_object_get(call, "function");
        const json_t *args = json_object_get(fn, "arguments");
        if (!json_is_string(json_object_get(fn, "name")))
            return wrong(p, "tool calls with a \"function\" and its \"name\"");
        if (!json_is_string(args))
            continue;
        Error ignored;
        json_t *parsed = json_parse(
            "arguments", (Str){json_string_value(args), json_string_length(args)}, &ignored);
        if (json_is_object(parsed)) {
            if (json_object_set_new(fn, "arguments", parsed) != 0)
                return err_nomem(p->err, "messages", 0);
        } else {
            json_decref(parsed);
        }
    }
    return true;
}

static bool parse_message(Parse *p, json_t *msg, size_t i)
{
    const char *role = json_string_value(json_object_get(msg, "role"));
    if (!role || !*role)
        return err_set(p->err, ERR_REQUEST, "messages: entry %zu: wanted an object with a \"role\"",
                       i);
    if (strcmp(role, "developer") == 0 &&
        json_object_set_new(msg, "role", json_string("system")) != 0)
        return err_nomem(p->err, "messages", 0);
    json_t *content = json_object_get(msg, "content");
    json_t *calls = json_object_get(msg, "tool_calls");
    if (json_is_array(content)) {
        if (!flatten_content(p, msg, content))
            return err_wrap(p->err, "messages entry %zu", i);
    } else if (!json_is_string(content) && !(calls && (!content || json_is_null(content)))) {
        return err_set(p->err, ERR_REQUEST,
                       "messages: entry %zu: wanted \"content\", a string or a list of parts", i);
    }
    if (calls && !json_is_null(calls) && !parse_tool_calls(p, calls))
        return err_wrap(p->err, "messages entry %zu", i);
    return true;
}

static bool parse_tools(Parse *p)
{
    json_t *tools = field(p, "tools");
    if (tools) {
        if (!json_is_array(tools))
            return wrong(p, "a list");
        size_t i;
        json_t *tool;
        json_array_foreach (tools, i, tool) {
            const char *type = json_string_value(json_object_get(tool, "type"));
            const json_t *fn = json_object_get(tool, "function");
            if (!type || strcmp(type, "function") != 0 ||
                !json_is_string(json_object_get(fn, "name")))
                return err_set(p->err, ERR_REQUEST,
                               "tools: entry %zu: wanted type \"function\" and a function with a "
                               "\"name\"",
                               i);
        }
    }
    const json_t *choice = field(p, "tool_choice");
    bool use = true;
    if (choice) {
        const char *s = json_string_value(choice);
        if (s && strcmp(s, "none") == 0)
            use = false;
        else if (!s || strcmp(s, "auto") != 0)
            return unsupported(p, "only \"auto\" and \"none\" are supported");
    }
    if (!tools || !use || json_array_size(tools) == 0)
        return true;
    p->param = "tools";
    return copy_json(p, tools, &p->out->tools);
}

static bool parse_chat(Parse *p)
{
    MereRequest *gen = &p->out->gen;
    json_t *messages = field(p, "messages");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return wrong(p, "a list of messages, not empty");
    size_t i;
    json_t *msg;
    json_array_foreach (messages, i, msg)
        if (!parse_message(p, msg, i))
            return false;
    if (!copy_json(p, messages, &p->out->messages) || !parse_tools(p))
        return false;
    const json_t *vars = field(p, "chat_template_kwargs");
    if (vars && !json_is_object(vars))
        return wrong(p, "an object");
    if (vars && !copy_json(p, vars, &p->out->vars))
        return false;

    if (!get_int(p, "max_tokens", 1, INT32_MAX, 0, &gen->max_tokens) ||
        !get_int(p, "max_completion_tokens", 1, INT32_MAX, gen->max_tokens, &gen->max_tokens))
        return false;
    bool logprobs = false;
    int32_t top = -1;
    if (!get_bool(p, "logprobs", false, &logprobs) ||
        !get_int(p, "top_logprobs", 0, OPENAI_LOGPROBS_MAX, -1, &top))
        return false;
    if (top > 0 && !logprobs)
        return err_set(p->err, ERR_REQUEST, "top_logprobs: only with \"logprobs\": true");
    gen->sampling.logprobs = logprobs ? (top > 0 ? top : 0) : -1;
    gen->parse_special = true;
    return true;
}

bool openai_parse(Arena *a, OpenaiKind kind, Str body, OpenaiRequest *out, const char **param,
                  Error *err)
{
    *out = (OpenaiRequest){.kind = kind, .gen = MERE_REQUEST_INIT};
    *param = NULL;
    json_t *root = json_parse("body", body, err);
    if (!root) {
        if (err->code == ERR_FORMAT)
            err->code = ERR_REQUEST;
        return false;
    }
    Parse p = {.arena = a, .body = root, .out = out, .err = err};
    bool ok;
    if (!json_is_object(root))
        ok = err_set(err, ERR_REQUEST, "body: wanted a JSON object");
    else
        ok = parse_common(&p) && (kind == OPENAI_CHAT ? parse_chat(&p) : parse_completion(&p));
    if (!ok)
        *param = p.param;
    json_decref(root);
    return ok;
}
