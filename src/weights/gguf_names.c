#include "weights/gguf_names.h"

#include "weights/config.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct Pair {
    const char *gguf;
    const char *hf;
} Pair;

static const Pair layer_names[] = {
#define TENSOR(gguf, hf) {gguf, hf},
#include "weights/gguf_names.def"
};
static const Pair top_names[] = {
#define TOP(gguf, hf) {gguf, hf},
#include "weights/gguf_names.def"
};
static const Pair vision_names[] = {
#define VISION(gguf, hf) {gguf, hf},
#include "weights/gguf_names.def"
};
static const Pair enc_names[] = {
#define ENC(gguf, hf) {gguf, hf},
#include "weights/gguf_names.def"
};
static const Pair dec_names[] = {
#define DEC(gguf, hf) {gguf, hf},
#include "weights/gguf_names.def"
};
static const Pair t5_top_names[] = {
#define T5_TOP(gguf, hf) {gguf, hf},
#include "weights/gguf_names.def"
};
static const struct {
    const char *arch;
    const char *model_type;
    bool interleaved;
} archs[] = {
#define ARCH(arch, model_type, interleaved) {arch, model_type, interleaved},
#include "weights/gguf_names.def"
};
typedef struct IntKey {
    const char *key;
    const char *name;
    bool required;
} IntKey;

static const IntKey ints[] = {
#define INT(key, name, required) {key, name, required},
#include "weights/gguf_names.def"
};
static const IntKey t5_ints[] = {
#define T5_INT(key, name, required) {key, name, required},
#include "weights/gguf_names.def"
};
static const IntKey vision_ints[] = {
#define VISION_INT(key, name, required) {key, name, required},
#include "weights/gguf_names.def"
};
static const Pair tokens[] = {
#define TOKEN(key, name) {key, name},
#include "weights/gguf_names.def"
};
static const char *const eos_keys[] = {
#define EOS(key) key,
#include "weights/gguf_names.def"
};
static const char *const end_texts[] = {
#define END(text) text,
#include "weights/gguf_names.def"
};

/* `name` is the pair's name, alone or before a dot; *rest is what follows. */
static const char *match(const Pair *pairs, size_t n, Str name, Str *rest)
{
    for (size_t i = 0; i < n; i++) {
        const size_t len = strlen(pairs[i].gguf);
        if (str_starts(name, pairs[i].gguf) && (name.len == len || name.ptr[len] == '.')) {
            *rest = (Str){name.ptr + len, name.len - len};
            return pairs[i].hf;
        }
    }
    return NULL;
}

/* Layers of one stack: "<gguf><i>.NAME" is "<hf><i>.NAME". */
typedef struct Stack {
    const char *gguf, *hf;
    const Pair *names;
    size_t n_names;
} Stack;

static const Stack stacks[] = {
    {"blk.", "model.layers.", layer_names, COUNT_OF(layer_names)},
    {"v.blk.", "visual.blocks.", vision_names, COUNT_OF(vision_names)},
};
static const Stack t5_stacks[] = {
    {"enc.blk.", "encoder.block.", enc_names, COUNT_OF(enc_names)},
    {"dec.blk.", "decoder.block.", dec_names, COUNT_OF(dec_names)},
};

/* The tensor's name when it is one of the stack's, else NULL without an error. plain: an MLP
 * without a gate has one matrix where others have wi_0 and wi_1. */
static char *layer_name(Arena *a, const Stack *s, Str gguf, bool plain, Error *err, bool *found)
{
    const size_t first = strlen(s->gguf);
    size_t digits = 0;
    Str rest;
    *found = false;
    if (!str_starts(gguf, s->gguf))
        return NULL;
    while (first + digits < gguf.len && gguf.ptr[first + digits] >= '0' &&
           gguf.ptr[first + digits] <= '9')
        digits++;
    const size_t at = first + digits + 1;
    if (!digits || at >= gguf.len || gguf.ptr[at - 1] != '.')
        return NULL;
    const char *hf = match(s->names, s->n_names, (Str){gguf.ptr + at, gguf.len - at}, &rest);
    *found = hf != NULL;
    if (!hf)
        return NULL;
    const size_t len = strlen(hf) - (plain && strstr(hf, ".wi_1") ? strlen("_1") : 0);
    return arena_printf(a, err, "%s%.*s.%.*s%.*s", s->hf, (int)digits, gguf.ptr + first, (int)len,
                        hf, (int)rest.len, rest.ptr);
}

static bool is_type(const json_t *config, const char *model_type)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && strcmp(type, model_type) == 0;
}

bool gguf_names_tensor(Arena *a, const json_t *config, Str gguf, Str *out, Error *err)
{
    Str rest;
    const bool t5 = is_type(config, "t5");
    const char *act = json_string_value(json_object_get(config, "feed_forward_proj"));
    const char *hf = t5 ? match(t5_top_names, COUNT_OF(t5_top_names), gguf, &rest)
                        : match(top_names, COUNT_OF(top_names), gguf, &rest);
    char *name = hf ? arena_printf(a, err, "%s%.*s", hf, (int)rest.len, rest.ptr) : NULL;
    bool found = hf != NULL;
    for (size_t i = 0; !found && i < (t5 ? COUNT_OF(t5_stacks) : COUNT_OF(stacks)); i++)
        name = layer_name(a, t5 ? &t5_stacks[i] : &stacks[i], gguf, act && strcmp(act, "relu") == 0,
                          err, &found);
    if (!found)
        name = arena_strdup(a, gguf.ptr, gguf.len, err);
    if (!name)
        return false;
    *out = str_from(name);
    return true;
}

/* ---- configuration ---- */

/* What is being made. Setting a key of a config that ran out of memory is found at the end. */
typedef struct Maker {
    const Gguf *g;
    const char *arch;
    json_t *config;
    bool failed;
    Error *err;
} Maker;

static void set(Maker *m, json_t *obj, const char *key, json_t *value)
{
    if (json_object_set_new(obj, key, value) != 0)
        m->failed = true;
}

static const char *arch_key(const Maker *m, const char *key, char *buf, size_t size)
{
    (void)snprintf(buf, size, "%s.%s", m->arch, key);
    return buf;
}

static bool missing(const Maker *m, const char *key)
{
    return err_set(m->err, ERR_FORMAT, "%s: key \"%s\" is missing", m->g->doc, key);
}

/* An integer, or the one value of an array that holds it for every layer. 0 entries (layers without
 * attention) do not count. *found is false when the key is missing. */
static bool get_per_layer(const Maker *m, const char *key, int64_t *out, bool *found)
{
    const GgufKv *kv = gguf_find(m->g, key);
    *found = kv != NULL;
    *out = 0;
    if (!kv || kv->type != GGUF_ARRAY) {
        if (!gguf_i64_or(m->g, key, 0, out, m->err))
            return false;
    } else {
        if (kv->item == GGUF_STR || kv->item == GGUF_ARRAY || kv->item == GGUF_F32 ||
            kv->item == GGUF_F64 || kv->n > 100000)
            return err_set(m->err, ERR_FORMAT, "%s: \"%s\" is no array of integers", m->g->doc,
                           key);
        for (uint64_t i = 0; i < kv->n; i++) {
            const int64_t v = gguf_item_i64(kv, i);
            if (v == 0)
                continue;
            if (*out != 0 && v != *out)
                return err_set(m->err, ERR_UNSUPPORTED,
                               "%s: \"%s\" differs between layers (%" PRId64 " and %" PRId64 ")",
                               m->g->doc, key, *out, v);
            *out = v;
        }
    }
    if (*found && (*out < 0 || *out > INT32_MAX))
        return err_set(m->err, ERR_FORMAT, "%s: \"%s\" is %" PRId64 ", wanted 0 to %d", m->g->doc,
                       key, *out, INT32_MAX);
    return true;
}

static bool make_ints(Maker *m, const IntKey *list, size_t n)
{
    char key[128];
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        bool found;
        if (!get_per_layer(m, arch_key(m, list[i].key, key, sizeof key), &v, &found))
            return false;
        if (!found && list[i].required)
            return missing(m, key);
        if (found)
            set(m, m->config, list[i].name, json_integer(v));
    }
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        int64_t v;
        if (!gguf_i64_or(m->g, tokens[i].gguf, -1, &v, m->err))
            return false;
        if (v >= 0 && v <= INT32_MAX)
            set(m, m->config, tokens[i].hf, json_integer(v));
    }
    return true;
}

static int64_t made(const Maker *m, const char *key)
{
    return json_integer_value(json_object_get(m->config, key));
}

/* Keys whose value follows from several. */
static bool make_shapes(Maker *m)
{
    char key[128];
    int64_t v;
    bool found;
    const int64_t heads = made(m, "num_attention_heads");
    if (!get_per_layer(m, arch_key(m, "attention.head_count_kv", key, sizeof key), &v, &found))
        return false;
    set(m, m->config, "num_key_value_heads", json_integer(found ? v : heads));
    if (!get_per_layer(m, arch_key(m, "feed_forward_length", key, sizeof key), &v, &found))
        return false;
    if (!found && !json_object_get(m->config, "moe_intermediate_size"))
        return missing(m, key);
    if (found)
        set(m, m->config, "intermediate_size", json_integer(v));

    if (!get_per_layer(m, arch_key(m, "attention.key_length", key, sizeof key), &v, &found))
        return false;
    if (!found && heads == 0)
        return err_set(m->err, ERR_FORMAT, "%s: \"%s.attention.head_count\" is 0", m->g->doc,
                       m->arch);
    const int64_t head_dim = found ? v : made(m, "hidden_size") / heads;
    if (head_dim == 0)
        return err_set(m->err, ERR_FORMAT, "%s: \"%s\" is 0", m->g->doc, key);
    set(m, m->config, "head_dim", json_integer(head_dim));
    if (!get_per_layer(m, arch_key(m, "rope.dimension_count", key, sizeof key), &v, &found))
        return false;
    if (found && v != head_dim)
        set(m, m->config, "partial_rotary_factor", json_real((double)v / (double)head_dim));

    /* Prediction layers for speculation are counted in block_count but are no part of the stack. */
    if (!get_per_layer(m, arch_key(m, "nextn_predict_layers", key, sizeof key), &v, &found))
        return false;
    const int64_t layers = made(m, "num_hidden_layers") - v;
    if (layers <= 0)
        return err_set(m->err, ERR_FORMAT, "%s: %" PRId64 " layers", m->g->doc, layers);
    set(m, m->config, "num_hidden_layers", json_integer(layers));

    const int64_t v_heads = made(m, "linear_num_value_heads");
    if (!get_per_layer(m, arch_key(m, "ssm.inner_size", key, sizeof key), &v, &found))
        return false;
    if (found && v_heads > 0)
        set(m, m->config, "linear_value_head_dim", json_integer(v / v_heads));
    return true;
}

static bool make_layer_types(Maker *m)
{
    char key[128];
    const GgufKv *kv = gguf_find(m->g, arch_key(m, "attention.recurrent_layers", key, sizeof key));
    const int64_t layers = made(m, "num_hidden_layers");
    if (!kv)
        return true;
    if (kv->type != GGUF_ARRAY || kv->item != GGUF_BOOL || kv->n < (uint64_t)layers)
        return err_set(m->err, ERR_FORMAT, "%s: \"%s\" is no array of %" PRId64 " bools", m->g->doc,
                       key, layers);
    json_t *types = json_array();
    for (int64_t i = 0; i < layers; i++)
        if (json_array_append_new(types, json_string(gguf_item_i64(kv, (uint64_t)i)
                                                         ? "linear_attention"
                                                         : "full_attention")) != 0)
            m->failed = true;
    set(m, m->config, "layer_types", types);
    return true;
}

/* rope_theta and rope_scaling. */
static bool make_rope(Maker *m)
{
    static const Pair yarn[] = {
        {"rope.scaling.yarn_attn_factor", "attention_factor"},
        {"rope.scaling.yarn_beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "beta_slow"},
        {"rope.scaling.yarn_log_multiplier", "mscale_all_dim"},
        {"attention.temperature_scale", "llama_4_scaling_beta"},
    };
    char key[128];
    double v;
    if (!gguf_f64_or(m->g, arch_key(m, "rope.freq_base", key, sizeof key), 10000.0, &v, m->err))
        return false;
    set(m, m->config, "rope_theta", json_real(v));

    Str type;
    double factor;
    double old_factor; /* the key of early files, linear only */
    int64_t original;
    bool found;
    if (!gguf_f64_or(m->g, arch_key(m, "rope.scale_linear", key, sizeof key), 0.0, &old_factor,
                     m->err) ||
        !gguf_f64_or(m->g, arch_key(m, "rope.scaling.factor", key, sizeof key), old_factor, &factor,
                     m->err) ||
        !gguf_str_or(m->g, arch_key(m, "rope.scaling.type", key, sizeof key),
                     str_from(factor > 1.0 ? "linear" : "none"), &type, m->err))
        return false;
    if (str_is(type, "none") || (factor == 0.0 && str_is(type, "linear")))
        return true;
    if (!str_is(type, "linear") && !str_is(type, "yarn"))
        return err_set(m->err, ERR_UNSUPPORTED, "%s: \"%s\" is \"%.*s\", wanted linear or yarn",
                       m->g->doc, key, (int)(type.len < 40 ? type.len : 40), type.ptr);
    if (factor <= 0.0)
        return err_set(m->err, ERR_FORMAT, "%s: \"%s.rope.scaling.factor\" is %g", m->g->doc,
                       m->arch, factor);
    json_t *scaling = json_object();
    set(m, m->config, "rope_scaling", scaling); /* owned from here on */
    if (m->failed)
        return true;
    set(m, scaling, "rope_type", json_stringn(type.ptr, type.len));
    set(m, scaling, "factor", json_real(factor));
    if (str_is(type, "linear"))
        return true;
    if (!get_per_layer(m, arch_key(m, "rope.scaling.original_context_length", key, sizeof key),
                       &original, &found))
        return false;
    if (found)
        set(m, scaling, "original_max_position_embeddings", json_integer(original));
    for (size_t i = 0; i < COUNT_OF(yarn); i++) {
        if (!gguf_f64_or(m->g, arch_key(m, yarn[i].gguf, key, sizeof key), -1.0, &v, m->err))
            return false;
        if (gguf_find(m->g, key))
            set(m, scaling, yarn[i].hf, json_real(v));
    }
    /* The published pair is equal, and then the attention factor is 1. */
    const json_t *mscale = json_object_get(scaling, "mscale_all_dim");
    if (mscale)
        set(m, scaling, "mscale", json_real(json_real_value(mscale)));
    return true;
}

/* Which share of the frequencies each of three positions turns; the file has a fourth, of none. */
static bool make_sections(Maker *m)
{
    enum { AXES = 3 };
    char key[128];
    const GgufKv *kv = gguf_find(m->g, arch_key(m, "rope.dimension_sections", key, sizeof key));
    if (!kv)
        return missing(m, key);
    if (kv->type != GGUF_ARRAY || (kv->item != GGUF_I32 && kv->item != GGUF_U32) || kv->n < AXES ||
        kv->n > AXES + 1 || (kv->n > AXES && gguf_item_i64(kv, AXES) != 0))
        return err_set(m->err, ERR_FORMAT, "%s: \"%s\" is no array of three integers and a 0",
                       m->g->doc, key);
    json_t *scaling = json_object_get(m->config, "rope_scaling");
    if (!scaling) {
        scaling = json_object();
        set(m, m->config, "rope_scaling", scaling); /* owned from here on */
        if (m->failed)
            return true;
        set(m, scaling, "rope_type", json_string("default"));
    }
    json_t *list = json_array();
    for (uint64_t i = 0; i < AXES; i++)
        if (json_array_append_new(list, json_integer(gguf_item_i64(kv, i))) != 0)
            m->failed = true;
    set(m, scaling, "mrope_section", list);
    return true;
}

static void add_eos(Maker *m, json_t *list, int64_t id)
{
    const size_t n = json_array_size(list);
    if (n == CONFIG_EOS_MAX)
        return;
    for (size_t i = 0; i < n; i++)
        if (json_integer_value(json_array_get(list, i)) == id)
            return;
    if (json_array_append_new(list, json_integer(id)) != 0)
        m->failed = true;
}

/* Ids that end an answer: those the metadata names, then control tokens known by their text. */
static bool make_eos(Maker *m)
{
    json_t *list = json_array();
    set(m, m->config, "eos_token_id", list);
    if (m->failed)
        return true;
    for (size_t i = 0; i < COUNT_OF(eos_keys); i++) {
        int64_t id;
        if (!gguf_i64_or(m->g, eos_keys[i], -1, &id, m->err))
            return false;
        if (id >= 0 && id <= INT32_MAX)
            add_eos(m, list, id);
    }
    enum { CONTROL = 3 }; /* of tokenizer.ggml.token_type */
    const GgufKv *texts = gguf_find(m->g, "tokenizer.ggml.tokens");
    const GgufKv *types = gguf_find(m->g, "tokenizer.ggml.token_type");
    if (!texts || texts->type != GGUF_ARRAY || texts->item != GGUF_STR || !types ||
        types->type != GGUF_ARRAY || types->item != GGUF_I32)
        return true;
    const uint8_t *at = texts->data;
    for (uint64_t i = 0; i < texts->n && i < types->n; i++) {
        const Str text = gguf_next_str(&at);
        if (gguf_item_i64(types, i) != CONTROL)
            continue;
        for (size_t j = 0; j < COUNT_OF(end_texts); j++)
            if (str_is(text, end_texts[j]))
                add_eos(m, list, (int64_t)i);
    }
    return true;
}

static const Tensor *find_tensor(const Gguf *g, const char *name)
{
    for (int64_t i = 0; i < g->n_tensors; i++)
        if (str_is(g->tensors[i].name, name))
            return &g->tensors[i];
    return NULL;
}

static bool make_vocab(Maker *m)
{
    char key[128];
    int64_t v;
    bool found;
    if (!get_per_layer(m, arch_key(m, "vocab_size", key, sizeof key), &v, &found))
        return false;
    const Tensor *embed = find_tensor(m->g, "token_embd.weight");
    const GgufKv *texts = gguf_find(m->g, "tokenizer.ggml.tokens");
    if (embed) /* the matrix may have padding rows that the metadata does not count */
        v = embed->dims[0];
    else if (!found && texts && texts->type == GGUF_ARRAY && texts->n < INT32_MAX)
        v = (int64_t)texts->n;
    set(m, m->config, "vocab_size", json_integer(v));
    set(m, m->config, "tie_word_embeddings", json_boolean(!find_tensor(m->g, "output.weight")));
    return true;
}

/* The converter stores f32: 1e-5 comes back as 9.99999975e-06, which is the same f32 again. */
static bool make_eps(Maker *m, const char *name)
{
    char key[128];
    double eps;
    const char *eps_key = arch_key(m, "attention.layer_norm_rms_epsilon", key, sizeof key);
    if (!gguf_find(m->g, eps_key))
        return missing(m, eps_key);
    if (!gguf_f64_or(m->g, eps_key, 0.0, &eps, m->err))
        return false;
    set(m, m->config, name, json_real(eps));
    return true;
}

/* The largest distance of the learned bias is not written: it is 128 in every published model. */
static bool make_t5(Maker *m)
{
    if (!make_ints(m, t5_ints, COUNT_OF(t5_ints)) || !make_eos(m) || !make_vocab(m) ||
        !make_eps(m, "layer_norm_epsilon"))
        return false;
    const bool gated = find_tensor(m->g, "enc.blk.0.ffn_gate.weight") != NULL;
    set(m, m->config, "feed_forward_proj", json_string(gated ? "gated-gelu" : "relu"));
    set(m, m->config, "model_type", json_string("t5"));
    return true;
}

static bool make_rest(Maker *m, const char *model_type, bool interleaved)
{
    char key[128];
    bool norm;
    if (!make_eps(m, "rms_norm_eps"))
        return false;
    if (!gguf_bool_or(m->g, arch_key(m, "expert_weights_norm", key, sizeof key), true, &norm,
                      m->err))
        return false;
    if (made(m, "num_experts") > 0) {
        set(m, m->config, "norm_topk_prob", json_boolean(norm));
        set(m, m->config, "decoder_sparse_step", json_integer(1));
        set(m, m->config, "mlp_only_layers", json_array());
        /* The same architecture name stands for Mixtral. */
        if (strcmp(model_type, "llama") == 0)
            model_type = "mixtral";
    }
    set(m, m->config, "model_type", json_string(model_type));
    set(m, m->config, "hidden_act", json_string("silu"));
    if (interleaved)
        set(m, m->config, "rope_interleaved", json_true());
    return !gguf_names_has_vision(m->config) || make_sections(m);
}

static bool unknown_arch(const Gguf *g, Str arch, Error *err)
{
    char list[120] = "";
    for (size_t i = 0; i < COUNT_OF(archs); i++) {
        const size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, " %s", archs[i].arch);
    }
    return err_set(err, ERR_UNSUPPORTED, "%s: architecture \"%.*s\", known are%s", g->doc,
                   (int)(arch.len < 40 ? arch.len : 40), arch.ptr, list);
}

bool gguf_names_config(const Gguf *g, json_t **out, Error *err)
{
    Str arch;
    if (!gguf_str_or(g, "general.architecture", (Str){0}, &arch, err))
        return false;
    if (!arch.ptr)
        return err_set(err, ERR_FORMAT, "%s: key \"general.architecture\" is missing", g->doc);
    size_t i = 0;
    while (i < COUNT_OF(archs) && !str_is(arch, archs[i].arch))
        i++;
    if (i == COUNT_OF(archs))
        return unknown_arch(g, arch, err);
    Maker m = {.g = g, .arch = archs[i].arch, .config = json_object(), .err = err};
    if (!m.config)
        return err_nomem(err, g->doc, 0);
    bool ok = strcmp(archs[i].arch, "t5") == 0
                  ? make_t5(&m)
                  : make_ints(&m, ints, COUNT_OF(ints)) && make_shapes(&m) &&
                        make_layer_types(&m) && make_rope(&m) && make_eos(&m) && make_vocab(&m) &&
                        make_rest(&m, archs[i].model_type, archs[i].interleaved);
    if (m.failed) /* also where a value that could not be set was then found missing */
        ok = err_nomem(err, g->doc, 0);
    if (!ok) {
        json_decref(m.config);
        return false;
    }
    *out = m.config;
    return true;
}

/* ---- a vision tower ---- */

bool gguf_names_has_vision(const json_t *config)
{
    return is_type(config, "qwen2_vl");
}

/* The converter's "clip.vision.feed_forward_length" is the text's width: a tensor says it instead.
 */
static bool make_mlp_ratio(Maker *m)
{
    static const char name[] = "v.blk.0.ffn_up.weight";
    const Tensor *up = find_tensor(m->g, name);
    const int64_t width = made(m, "embed_dim");
    if (!up)
        return err_set(m->err, ERR_FORMAT, "%s: tensor \"%s\" is missing", m->g->doc, name);
    if (width == 0 || up->dims[0] % width != 0)
        return err_set(m->err, ERR_FORMAT,
                       "%s: tensor \"%s\" has %" PRId64
                       " rows, wanted a multiple of \"clip.vision.embedding_length\", %" PRId64,
                       m->g->doc, name, up->dims[0], width);
    set(m, m->config, "mlp_ratio", json_integer(up->dims[0] / width));
    return true;
}

static bool make_vision(Maker *m)
{
    bool gelu, silu;
    if (!make_ints(m, vision_ints, COUNT_OF(vision_ints)) || !make_mlp_ratio(m) ||
        !gguf_bool_or(m->g, "clip.use_gelu", false, &gelu, m->err) ||
        !gguf_bool_or(m->g, "clip.use_silu", false, &silu, m->err))
        return false;
    const char *other = gelu ? "gelu" : "silu";
    set(m, m->config, "hidden_act", json_string(gelu || silu ? other : "quick_gelu"));
    set(m, m->config, "temporal_patch_size", json_integer(2));
    return true;
}

bool gguf_names_vision(const Gguf *g, json_t *config, Error *err)
{
    Str arch, projector;
    if (!gguf_str_or(g, "general.architecture", (Str){0}, &arch, err) ||
        !gguf_str_or(g, "clip.projector_type", (Str){0}, &projector, err))
        return false;
    if (!str_is(arch, "clip") || !str_is(projector, "qwen2vl_merger"))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: architecture \"%.*s\" with projector \"%.*s\", known is clip with "
                       "qwen2vl_merger",
                       g->doc, (int)(arch.len < 40 ? arch.len : 40), arch.ptr,
                       (int)(projector.len < 40 ? projector.len : 40), projector.ptr);
    Maker m = {.g = g, .arch = "clip", .config = json_object(), .err = err};
    set(&m, config, "vision_config", m.config); /* owned from here on */
    const bool ok = m.failed || make_vision(&m);
    return m.failed ? err_nomem(err, g->doc, 0) : ok;
}
