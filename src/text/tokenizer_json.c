#include "base/json.h"
#include "text/jsonscan.h"
#include "text/tokenizer_build.h"

/* The sections of a tokenizer.json, as raw text but for the big tables, which are read where they
 * lie. */
typedef struct Sections {
    Str added, normalizer, pre_tokenizer, post_processor, decoder;
    Str model_type, unk, ignore_merges;
    Str merges; /* set when they come before the vocabulary */
    bool has_model, has_vocab, has_merges;
} Sections;

typedef struct Open {
    Arena *arena;
    const char *doc;
    Tokenizer *t;
    StrBuf scratch;
    Sections s;
    bool byte_level; /* ByteLevel was met in pre_tokenizer */
} Open;

static bool unsupported(const Open *o, const char *where, const char *what, Error *err)
{
    return err_set(err, ERR_UNSUPPORTED, "%s: %s \"%.60s\" is not supported", o->doc, where, what);
}

static bool read_vocab(Open *o, JsonScan *s, Error *err)
{
    if (jsonscan_peek(s) != '{')
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: model.vocab is no object, as in Unigram; wanted model.type \"BPE\"",
                       o->doc);
    if (!jsonscan_open(s, '{', err))
        return false;
    s->loose = true; /* the byte alphabet is a stricter test, and made anyway */
    for (;;) {
        bool more;
        Str token;
        if (!jsonscan_key(s, &more, &token, err))
            return false;
        if (!more)
            break;
        int64_t id; /* reading it leaves the borrowed key alone */
        if (!jsonscan_uint(s, TOKENIZER_VOCAB_MAX - 1, &id, err) ||
            !tokenizer_add_token(o->t, id, token, err))
            return false;
    }
    s->loose = false;
    if (!vocab_index(o->arena, &o->t->vocab, err))
        return false;
    bpe_init(&o->t->bpe, &o->t->vocab);
    o->s.has_vocab = true;
    return true;
}

static bool add_merge(Open *o, const JsonScan *s, Str left, Str right, int64_t *rank, Error *err)
{
    if (*rank >= TOKENIZER_VOCAB_MAX)
        return jsonscan_fail(s, "too many merges", err);
    return tokenizer_add_merge(o->t, left, right, (uint32_t)(*rank)++, err);
}

/* ["left", "right"] */
static bool read_pair(Open *o, JsonScan *s, Str *left, Str *right, Error *err)
{
    bool more;
    if (!jsonscan_open(s, '[', err) || !jsonscan_item(s, &more, err))
        return false;
    if (!more)
        return jsonscan_fail(s, "a merge is no pair of strings", err);
    if (!jsonscan_string(s, left, err))
        return false;
    if (left->ptr == s->text.ptr) { /* unescaped: the next string would overwrite it */
        left->ptr = arena_strdup(o->arena, left->ptr, left->len, err);
        if (!left->ptr)
            return false;
    }
    if (!jsonscan_item(s, &more, err))
        return false;
    if (!more)
        return jsonscan_fail(s, "a merge is no pair of strings", err);
    if (!jsonscan_string(s, right, err) || !jsonscan_item(s, &more, err))
        return false;
    return !more || jsonscan_fail(s, "a merge has more than two parts", err);
}

/* "left right", or ["left", "right"]. */
static bool read_merges(Open *o, JsonScan *s, Error *err)
{
    if (!jsonscan_open(s, '[', err))
        return false;
    int64_t rank = 0;
    s->loose = true;
    for (;;) {
        bool more;
        if (!jsonscan_item(s, &more, err))
            return false;
        if (!more)
            break;
        Str left = {0};
        Str right = {0};
        if (jsonscan_peek(s) == '"') {
            Str both;
            if (!jsonscan_string(s, &both, err))
                return false;
            if (str_starts(both, "#version"))
                continue;
            const char *gap = memchr(both.ptr, ' ', both.len);
            if (!gap)
                return jsonscan_fail(s, "a merge has no space between two parts", err);
            left = (Str){both.ptr, (size_t)(gap - both.ptr)};
            right = (Str){gap + 1, both.len - left.len - 1};
            if (!add_merge(o, s, left, right, &rank, err))
                return false;
            continue;
        }
        const ArenaMark mark = arena_mark(o->arena);
        if (!read_pair(o, s, &left, &right, err) || !add_merge(o, s, left, right, &rank, err))
            return false;
        arena_rewind(o->arena, mark);
    }
    s->loose = false;
    o->s.has_merges = true;
    return bpe_index(o->arena, &o->t->bpe, err);
}

/* A key of "model" that changes the algorithm in a way that is not ours: only null, false, 0 or ""
 * will do. */
static bool refuse_set(const Open *o, const char *key, Str raw, Error *err)
{
    if (str_is(raw, "null") || str_is(raw, "false") || str_is(raw, "\"\"") || str_is(raw, "0") ||
        str_is(raw, "0.0"))
        return true;
    return err_set(err, ERR_UNSUPPORTED, "%s: model.%s is %.*s, which is not supported", o->doc,
                   key, raw.len < 40 ? (int)raw.len : 40, raw.ptr);
}

static bool check_type(const Open *o, Error *err)
{
    if (!o->s.model_type.ptr || str_is(o->s.model_type, "\"BPE\""))
        return true;
    return err_set(err, ERR_UNSUPPORTED, "%s: model.type is %.*s, wanted \"BPE\"", o->doc,
                   o->s.model_type.len < 40 ? (int)o->s.model_type.len : 40, o->s.model_type.ptr);
}

static bool read_model(Open *o, JsonScan *s, Error *err)
{
    if (!jsonscan_open(s, '{', err))
        return false;
    o->s.has_model = true;
    for (;;) {
        bool more;
        Str key;
        if (!jsonscan_key(s, &more, &key, err))
            return false;
        if (!more)
            break;
        static const char *const must_be_unset[] = {"dropout", "continuing_subword_prefix",
                                                    "end_of_word_suffix"};
        const char *refuse = NULL;
        for (size_t i = 0; i < COUNT_OF(must_be_unset); i++)
            refuse = str_is(key, must_be_unset[i]) ? must_be_unset[i] : refuse;
        Str raw;
        if (str_is(key, "vocab")) {
            if (o->s.has_vocab)
                return jsonscan_fail(s, "model.vocab is there twice", err);
            if (!check_type(o, err) || !read_vocab(o, s, err))
                return false;
        } else if (str_is(key, "merges") && o->s.has_vocab) {
            if (o->s.has_merges)
                return jsonscan_fail(s, "model.merges is there twice", err);
            if (!read_merges(o, s, err))
                return false;
        } else {
            Str *keep = str_is(key, "merges")          ? &o->s.merges
                        : str_is(key, "type")          ? &o->s.model_type
                        : str_is(key, "unk_token")     ? &o->s.unk
                        : str_is(key, "ignore_merges") ? &o->s.ignore_merges
                                                       : &raw;
            if (!jsonscan_skip(s, keep, err))
                return false;
            if (refuse && !refuse_set(o, refuse, raw, err))
                return false;
        }
    }
    if (!check_type(o, err))
        return false;
    if (!o->s.has_vocab)
        return err_set(err, ERR_FORMAT, "%s: model.vocab is missing", o->doc);
    if (o->s.merges.ptr && !o->s.has_merges) {
        JsonScan again;
        jsonscan_init(&again, o->doc, o->s.merges);
        const bool ok = read_merges(o, &again, err);
        jsonscan_free(&again);
        return ok;
    }
    return o->s.has_merges || err_set(err, ERR_FORMAT, "%s: model.merges is missing", o->doc);
}

static bool read_file(Open *o, JsonScan *s, Error *err)
{
    if (!jsonscan_open(s, '{', err))
        return false;
    for (;;) {
        bool more;
        Str key;
        Str raw;
        if (!jsonscan_key(s, &more, &key, err))
            return false;
        if (!more)
            break;
        if (str_is(key, "model")) {
            if (o->s.has_model)
                return jsonscan_fail(s, "\"model\" is there twice", err);
            if (!read_model(o, s, err))
                return false;
            continue;
        }
        Str *keep = str_is(key, "added_tokens")     ? &o->s.added
                    : str_is(key, "normalizer")     ? &o->s.normalizer
                    : str_is(key, "pre_tokenizer")  ? &o->s.pre_tokenizer
                    : str_is(key, "post_processor") ? &o->s.post_processor
                    : str_is(key, "decoder")        ? &o->s.decoder
                                                    : &raw;
        if (!jsonscan_skip(s, keep, err))
            return false;
    }
    if (jsonscan_peek(s) != '\0')
        return jsonscan_fail(s, "text after the end", err);
    return o->s.has_model || err_set(err, ERR_FORMAT, "%s: \"model\" is missing", o->doc);
}

/* ---- the small sections ---- */

/* *out NULL when the section is missing or null. */
static bool parse_section(const Open *o, const char *name, Str raw, json_t **out, Error *err)
{
    *out = NULL;
    if (!raw.ptr || str_is(raw, "null"))
        return true;
    *out = json_parse(o->doc, raw, err);
    return *out || err_wrap(err, "%s", name);
}

static bool section_type(const Open *o, const json_t *obj, Str *type, Error *err)
{
    if (!json_is_object(obj))
        return err_set(err, ERR_FORMAT, "%s: a component is no object", o->doc);
    if (!json_get_str_or(obj, o->doc, "type", type, err))
        return false;
    return type->ptr || err_set(err, ERR_FORMAT, "%s: a component has no \"type\"", o->doc);
}

static bool read_normalizer(Open *o, const json_t *obj, Error *err)
{
    static const struct {
        const char *name;
        NormalizeForm form;
    } forms[] = {{"NFC", NORMALIZE_NFC},
                 {"NFD", NORMALIZE_NFD},
                 {"NFKC", NORMALIZE_NFKC},
                 {"NFKD", NORMALIZE_NFKD}};
    Str type;
    if (!section_type(o, obj, &type, err))
        return false;
    if (str_is(type, "Sequence")) {
        size_t i;
        json_t *part;
        json_array_foreach (json_object_get(obj, "normalizers"), i, part) {
            if (!read_normalizer(o, part, err))
                return false;
        }
        return true;
    }
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        if (!str_is(type, forms[i].name))
            continue;
        if (o->t->form != NORMALIZE_NONE && o->t->form != forms[i].form)
            return unsupported(o, "normalizer: a second form,", forms[i].name, err);
        o->t->form = forms[i].form;
        return true;
    }
    return unsupported(o, "normalizer", type.ptr, err);
}

static bool read_behavior(const Open *o, const json_t *obj, PretokBehavior *out, Error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    Str name;
    if (!json_get_str_or(obj, o->doc, "behavior", &name, err))
        return false;
    *out = PRETOK_ISOLATED;
    if (!name.ptr)
        return true;
    for (int i = 0; i < (int)COUNT_OF(names); i++) {
        if (str_is(name, names[i])) {
            *out = (PretokBehavior)i;
            return true;
        }
    }
    return unsupported(o, "pre_tokenizer behavior", name.ptr, err);
}

static bool read_split(Open *o, const json_t *obj, Error *err)
{
    PretokBehavior behavior;
    bool invert;
    const json_t *pattern = json_object_get(obj, "pattern");
    Str regex;
    Str literal;
    if (!read_behavior(o, obj, &behavior, err) ||
        !json_get_bool_or(obj, o->doc, "invert", false, &invert, err) ||
        !json_get_str_or(pattern, o->doc, "Regex", &regex, err) ||
        !json_get_str_or(pattern, o->doc, "String", &literal, err))
        return false;
    if (!regex.ptr && !literal.ptr)
        return err_set(err, ERR_FORMAT,
                       "%s: pre_tokenizer Split: \"pattern\" has no \"Regex\" or "
                       "\"String\"",
                       o->doc);
    return pretok_add_split(&o->t->pretok, o->doc, regex.ptr ? regex : literal,
                            regex.ptr ? TEXTRE_ONIG : TEXTRE_LITERAL, behavior, invert, err);
}

static bool read_byte_level(Open *o, const json_t *obj, Error *err)
{
    bool prefix;
    bool regex;
    if (!json_get_bool_or(obj, o->doc, "add_prefix_space", true, &prefix, err) ||
        !json_get_bool_or(obj, o->doc, "use_regex", true, &regex, err))
        return false;
    o->byte_level = true;
    if (prefix && !pretok_add_prefix_space(&o->t->pretok, o->doc, err))
        return false;
    return !regex || pretok_add_split(&o->t->pretok, o->doc, str_from(pretok_gpt2), TEXTRE_RUST,
                                      PRETOK_ISOLATED, false, err);
}

static bool read_pre_tokenizer(Open *o, const json_t *obj, Error *err)
{
    Str type;
    if (!section_type(o, obj, &type, err))
        return false;
    if (str_is(type, "Sequence")) {
        size_t i;
        json_t *part;
        json_array_foreach (json_object_get(obj, "pretokenizers"), i, part) {
            if (!read_pre_tokenizer(o, part, err))
                return false;
        }
        return true;
    }
    /* The reference's later steps would see the byte alphabet instead of the text. */
    if (o->byte_level)
        return unsupported(o, "pre_tokenizer: a step after ByteLevel,", type.ptr, err);
    if (str_is(type, "ByteLevel"))
        return read_byte_level(o, obj, err);
    if (str_is(type, "Split"))
        return read_split(o, obj, err);
    if (str_is(type, "Digits")) {
        bool single;
        return json_get_bool_or(obj, o->doc, "individual_digits", false, &single, err) &&
               pretok_add_split(&o->t->pretok, o->doc, str_from(single ? "\\p{N}" : "\\p{N}+"),
                                TEXTRE_RUST, PRETOK_ISOLATED, false, err);
    }
    if (str_is(type, "Punctuation")) {
        PretokBehavior behavior;
        return read_behavior(o, obj, &behavior, err) &&
               pretok_add_split(&o->t->pretok, o->doc, str_from("[!-/:-@\\[-`{-~\\p{P}]"),
                                TEXTRE_RUST, behavior, false, err);
    }
    return unsupported(o, "pre_tokenizer", type.ptr, err);
}

static bool read_decoder(const Open *o, const json_t *obj, bool *byte_level, Error *err)
{
    Str type;
    if (!section_type(o, obj, &type, err))
        return false;
    if (str_is(type, "Sequence")) {
        size_t i;
        json_t *part;
        json_array_foreach (json_object_get(obj, "decoders"), i, part) {
            if (!read_decoder(o, part, byte_level, err))
                return false;
        }
        return true;
    }
    if (str_is(type, "ByteLevel"))
        *byte_level = true;
    else if (!str_is(type, "Fuse"))
        return unsupported(o, "decoder", type.ptr, err);
    return true;
}

static bool push_around(const Open *o, bool before, int64_t id, Error *err)
{
    Tokenizer *t = o->t;
    if (!vocab_has(&t->vocab, id))
        return err_set(err, ERR_FORMAT,
                       "%s: post_processor: token id %lld is not in the vocabulary", o->doc,
                       (long long)id);
    int *n = before ? &t->n_prefix : &t->n_suffix;
    if (*n == TOKENIZER_AROUND_MAX)
        return err_set(err, ERR_UNSUPPORTED, "%s: post_processor adds more than %d tokens", o->doc,
                       TOKENIZER_AROUND_MAX);
    (before ? t->prefix : t->suffix)[(*n)++] = (int32_t)id;
    return true;
}

/* TemplateProcessing: the tokens before and after the one sequence in "single". */
static bool read_template(Open *o, const json_t *obj, Error *err)
{
    const json_t *specials = json_object_get(obj, "special_tokens");
    bool before = true;
    size_t i;
    json_t *item;
    json_array_foreach (json_object_get(obj, "single"), i, item) {
        if (json_object_get(item, "Sequence")) {
            if (!before)
                return err_set(err, ERR_UNSUPPORTED, "%s: post_processor repeats the text", o->doc);
            before = false;
            continue;
        }
        Str name;
        if (!json_get_str_or(json_object_get(item, "SpecialToken"), o->doc, "id", &name, err))
            return false;
        const json_t *ids =
            name.ptr ? json_object_get(json_object_get(specials, name.ptr), "ids") : NULL;
        if (!json_is_array(ids))
            return err_set(err, ERR_FORMAT,
                           "%s: post_processor.special_tokens has no ids for \"%.60s\"", o->doc,
                           name.ptr ? name.ptr : "");
        size_t k;
        json_t *id;
        json_array_foreach (ids, k, id) {
            if (!push_around(o, before, json_is_integer(id) ? json_integer_value(id) : -1, err))
                return false;
        }
    }
    return true;
}

static bool read_post_processor(Open *o, const json_t *obj, Error *err)
{
    Str type;
    if (!section_type(o, obj, &type, err))
        return false;
    if (str_is(type, "ByteLevel"))
        return true; /* only trims offsets */
    if (str_is(type, "TemplateProcessing"))
        return read_template(o, obj, err);
    if (str_is(type, "RobertaProcessing") || str_is(type, "BertProcessing")) {
        const json_t *cls = json_array_get(json_object_get(obj, "cls"), 1);
        const json_t *sep = json_array_get(json_object_get(obj, "sep"), 1);
        return push_around(o, true, json_is_integer(cls) ? json_integer_value(cls) : -1, err) &&
               push_around(o, false, json_is_integer(sep) ? json_integer_value(sep) : -1, err);
    }
    if (str_is(type, "Sequence")) {
        size_t i;
        json_t *part;
        json_array_foreach (json_object_get(obj, "processors"), i, part) {
            if (!read_post_processor(o, part, err))
                return false;
        }
        return true;
    }
    return unsupported(o, "post_processor", type.ptr, err);
}

static bool read_added(Open *o, const json_t *list, Error *err)
{
    Tokenizer *t = o->t;
    const size_t n = json_array_size(list);
    t->raw.at = ARENA_ARRAY(o->arena, n, AddedTok, err);
    t->normalized.at = ARENA_ARRAY(o->arena, n, AddedTok, err);
    if (!t->raw.at || !t->normalized.at)
        return false;
    size_t i;
    json_t *item;
    json_array_foreach (list, i, item) {
        AddedTok tok = {0};
        bool normalized;
        Str text;
        int id;
        if (!json_get_int(item, o->doc, "id", 0, TOKENIZER_VOCAB_MAX - 1, &id, err) ||
            !json_get_str_or(item, o->doc, "content", &text, err) ||
            !json_get_bool_or(item, o->doc, "special", false, &tok.special, err) ||
            !json_get_bool_or(item, o->doc, "lstrip", false, &tok.lstrip, err) ||
            !json_get_bool_or(item, o->doc, "rstrip", false, &tok.rstrip, err) ||
            !json_get_bool_or(item, o->doc, "single_word", false, &tok.single_word, err) ||
            !json_get_bool_or(item, o->doc, "normalized", !tok.special, &normalized, err))
            return err_wrap(err, "added_tokens[%zu]", i);
        if (!text.ptr || text.len == 0)
            return err_set(err, ERR_FORMAT, "%s: added_tokens[%zu] has no \"content\"", o->doc, i);
        tok.id = id;
        if (!vocab_set_added(&t->vocab, id, text, tok.special, err))
            return false;
        if (normalized) {
            strbuf_clear(&o->scratch);
            if (!normalize_text(t->form, text, &o->scratch, err))
                return false;
            text = strbuf_str(&o->scratch);
        }
        tok.text = (Str){arena_strdup(o->arena, text.ptr, text.len, err), text.len};
        if (!tok.text.ptr)
            return false;
        AddedToks *set = normalized ? &t->normalized : &t->raw;
        set->at[set->n++] = tok;
    }
    return true;
}

/* ---- tokenizer_config.json ---- */

/* A token given as a string or as {"content": string}; -1 when it is not there or null. */
static bool config_token(const Open *o, const json_t *config, const char *key, int *id, Error *err)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!json_is_string(v))
        return true;
    const Str text = {json_string_value(v), json_string_length(v)};
    const int found = tokenizer_find(o->t, text);
    if (found < 0)
        return err_set(err, ERR_FORMAT, "tokenizer_config.json: %s \"%.60s\" is no token of %s",
                       key, text.ptr, o->doc);
    *id = found;
    return true;
}

static bool config_flag(const json_t *config, const char *key, int *out, Error *err)
{
    bool on;
    if (!json_get_bool_or(config, "tokenizer_config.json", key, false, &on, err))
        return false;
    if (json_is_boolean(json_object_get(config, key)))
        *out = on;
    return true;
}

static bool read_config(Open *o, const json_t *config, Error *err)
{
    int add_bos = -1;
    int add_eos = -1;
    if (!config_token(o, config, "bos_token", &o->t->bos, err) ||
        !config_token(o, config, "eos_token", &o->t->eos, err) ||
        !config_flag(config, "add_bos_token", &add_bos, err) ||
        !config_flag(config, "add_eos_token", &add_eos, err))
        return false;
    tokenizer_set_around(o->t, add_bos, add_eos);
    return true;
}

/* ---- putting it together ---- */

typedef bool SectionReader(Open *o, const json_t *obj, Error *err);

static bool with_section(Open *o, const char *name, Str raw, SectionReader *read, Error *err)
{
    json_t *obj;
    if (!parse_section(o, name, raw, &obj, err))
        return false;
    const bool ok = !obj || read(o, obj, err);
    json_decref(obj);
    return ok;
}

static bool check_decoder(Open *o, const json_t *obj, Error *err)
{
    bool byte_level = false;
    if (!read_decoder(o, obj, &byte_level, err))
        return false;
    return byte_level || err_set(err, ERR_UNSUPPORTED, "%s: decoder is not ByteLevel", o->doc);
}

static bool read_unk(Open *o, const json_t *unk, Error *err)
{
    if (!json_is_string(unk))
        return err_set(err, ERR_FORMAT, "%s: model.unk_token is no string", o->doc);
    o->t->bpe.unk = tokenizer_find(o->t, (Str){json_string_value(unk), json_string_length(unk)});
    return true;
}

static bool build(Open *o, Str json, Str config, size_t before, Error *err)
{
    JsonScan scan;
    jsonscan_init(&scan, o->doc, json);
    bool ok = read_file(o, &scan, err);
    jsonscan_free(&scan);
    if (!ok || !with_section(o, "normalizer", o->s.normalizer, read_normalizer, err) ||
        !with_section(o, "pre_tokenizer", o->s.pre_tokenizer, read_pre_tokenizer, err) ||
        !with_section(o, "decoder", o->s.decoder, check_decoder, err))
        return false;
    if (!o->byte_level)
        return err_set(err, ERR_UNSUPPORTED, "%s: pre_tokenizer has no ByteLevel step", o->doc);
    if (!with_section(o, "added_tokens", o->s.added, read_added, err) ||
        !with_section(o, "post_processor", o->s.post_processor, read_post_processor, err))
        return false;
    o->t->bpe.ignore_merges = str_is(o->s.ignore_merges, "true");
    if (!tokenizer_finish(o->arena, o->t, "tokenizer.json", before, err) ||
        !with_section(o, "unk_token", o->s.unk, read_unk, err))
        return false;
    const Str text = {config.ptr, config.len};
    return with_section(o, "tokenizer_config.json", text, read_config, err);
}

bool tokenizer_json_open(Arena *a, const char *doc, Str json, Str config, Tokenizer **out,
                         Error *err)
{
    if (json.len > TOKENIZER_FILE_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: %zu bytes, at most %d", doc, json.len,
                       TOKENIZER_FILE_MAX);
    if (!json.ptr)
        json = (Str){"", 0};
    const size_t before = arena_bytes(a);
    Open o = {.arena = a, .doc = doc};
    if (!tokenizer_new(a, doc, &o.t, err))
        return false;
    strbuf_init(&o.scratch, (size_t)1 << 30);
    const bool ok = build(&o, json, config, before, err);
    strbuf_free(&o.scratch);
    if (!ok) {
        tokenizer_close(o.t);
        return false;
    }
    *out = o.t;
    return true;
}
