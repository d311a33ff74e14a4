#include "text/tokenizer_steps.h"

#include "base/mem.h"
#include "text/base64.h"

static const char mark[] = "\xE2\x96\x81"; /* U+2581 */

static bool unsupported(const TokenizerSteps *o, const char *where, const char *what, Error *err)
{
    return err_set(err, ERR_UNSUPPORTED, "%s: %s \"%.60s\" is not supported", o->doc, where, what);
}

static bool section_type(const TokenizerSteps *o, const json_t *obj, Str *type, Error *err)
{
    if (!json_is_object(obj))
        return err_set(err, ERR_FORMAT, "%s: a component is no object", o->doc);
    if (!json_get_str_or(obj, o->doc, "type", type, err))
        return false;
    return type->ptr || err_set(err, ERR_FORMAT, "%s: a component has no \"type\"", o->doc);
}

typedef bool Reader(TokenizerSteps *o, const json_t *obj, Error *err);

/* {"type": "Sequence", key: [...]}, and NULL for a missing list. */
static bool each(TokenizerSteps *o, const json_t *list, Reader *read, Error *err)
{
    size_t i;
    json_t *part;
    json_array_foreach (list, i, part) {
        if (!read(o, part, err))
            return false;
    }
    return true;
}

static bool own_text(const TokenizerSteps *o, Str text, Str *out, Error *err)
{
    out->ptr = arena_strdup(o->arena, text.ptr, text.len, err);
    out->len = text.len;
    return out->ptr != NULL;
}

/* "pattern": {"String": ...} or {"Regex": ...}; one of the two is set. */
static bool read_pattern(const TokenizerSteps *o, const json_t *obj, const char *where, Str *regex,
                         Str *literal, Error *err)
{
    const json_t *pattern = json_object_get(obj, "pattern");
    *regex = *literal = (Str){0};
    if (!json_get_str_or(pattern, o->doc, "Regex", regex, err) ||
        !json_get_str_or(pattern, o->doc, "String", literal, err))
        return false;
    return regex->ptr || literal->ptr ||
           err_set(err, ERR_FORMAT, "%s: %s: \"pattern\" has no \"Regex\" or \"String\"", o->doc,
                   where);
}

/* ---- normalizer ---- */

static bool read_replace(TokenizerSteps *o, const json_t *obj, Error *err)
{
    Str regex;
    Str literal;
    Str content;
    if (!read_pattern(o, obj, "normalizer Replace", &regex, &literal, err) ||
        !json_get_str_or(obj, o->doc, "content", &content, err))
        return false;
    if (!content.ptr)
        return err_set(err, ERR_FORMAT, "%s: normalizer Replace has no \"content\"", o->doc);
    if (literal.ptr && literal.len == 0)
        return err_set(err, ERR_FORMAT, "%s: normalizer Replace: \"pattern\" is empty", o->doc);
    if (o->replaces_space && memchr(content.ptr, ' ', content.len))
        return unsupported(o, "normalizer: after U+2581 for spaces,", "Replace", err);
    NormStep *step =
        normchain_add(&o->t->norm, o->doc, regex.ptr ? NORM_REPLACE_RE : NORM_REPLACE, err);
    if (!step || !own_text(o, content, &step->to, err))
        return false;
    if (regex.ptr)
        return textre_compile(&step->re, o->doc, regex, TEXTRE_ONIG, err);
    if (str_is(literal, " ") && str_is(content, mark))
        o->replaces_space = o->t->norm.n;
    return own_text(o, literal, &step->from, err);
}

static bool read_prepend(TokenizerSteps *o, const json_t *obj, Error *err)
{
    Str text;
    if (!json_get_str_or(obj, o->doc, "prepend", &text, err))
        return false;
    if (!text.ptr)
        return err_set(err, ERR_FORMAT, "%s: normalizer Prepend has no \"prepend\"", o->doc);
    NormStep *step = normchain_add(&o->t->norm, o->doc, NORM_PREPEND, err);
    return step && own_text(o, text, &step->to, err);
}

static bool read_precompiled(TokenizerSteps *o, const json_t *obj, Error *err)
{
    Str text;
    if (!json_get_str_or(obj, o->doc, "precompiled_charsmap", &text, err))
        return false;
    if (!text.ptr || text.len == 0)
        return true;
    if (o->t->charsmap.n_units > 0)
        return unsupported(o, "normalizer: a second", "Precompiled", err);
    char *blob = mem_alloc(text.len);
    if (!blob)
        return err_nomem(err, o->doc, text.len);
    const int64_t n = base64_decode(text, blob);
    const bool ok =
        n >= 0 ? charsmap_open(o->arena, o->doc, (Str){blob, (size_t)n}, &o->t->charsmap, err)
               : err_set(err, ERR_FORMAT, "%s: precompiled_charsmap is no base64", o->doc);
    mem_free(blob);
    if (!ok || o->t->charsmap.n_units == 0)
        return ok;
    NormStep *step = normchain_add(&o->t->norm, o->doc, NORM_CHARSMAP, err);
    if (step)
        step->map = &o->t->charsmap;
    return step != NULL;
}

static bool read_bert(TokenizerSteps *o, const json_t *obj, Error *err)
{
    NormStep *step = normchain_add(&o->t->norm, o->doc, NORM_BERT, err);
    return step && json_get_bool_or(obj, o->doc, "clean_text", true, &step->clean, err) &&
           json_get_bool_or(obj, o->doc, "handle_chinese_chars", true, &step->chinese, err) &&
           json_get_bool_or(obj, o->doc, "lowercase", true, &step->lower, err) &&
           json_get_bool_or(obj, o->doc, "strip_accents", step->lower, &step->accents, err);
}

static bool read_strip(TokenizerSteps *o, const json_t *obj, Error *err)
{
    NormStep *step = normchain_add(&o->t->norm, o->doc, NORM_STRIP, err);
    return step && json_get_bool_or(obj, o->doc, "strip_left", true, &step->left, err) &&
           json_get_bool_or(obj, o->doc, "strip_right", true, &step->right, err);
}

bool tokenizer_read_normalizer(TokenizerSteps *o, const json_t *obj, Error *err)
{
    static const struct {
        const char *name;
        NormKind kind;
        NormalizeForm form;
    } simple[] = {{"NFC", NORM_FORM, NORMALIZE_NFC},
                  {"NFD", NORM_FORM, NORMALIZE_NFD},
                  {"NFKC", NORM_FORM, NORMALIZE_NFKC},
                  {"NFKD", NORM_FORM, NORMALIZE_NFKD},
                  {"Lowercase", NORM_LOWER, NORMALIZE_NONE},
                  {"StripAccents", NORM_STRIP_ACCENTS, NORMALIZE_NONE},
                  {"Nmt", NORM_NMT, NORMALIZE_NONE}};
    static const struct {
        const char *name;
        Reader *read;
    } others[] = {{"Replace", read_replace},
                  {"Prepend", read_prepend},
                  {"Strip", read_strip},
                  {"Precompiled", read_precompiled},
                  {"BertNormalizer", read_bert}};
    Str type;
    if (!section_type(o, obj, &type, err))
        return false;
    if (str_is(type, "Sequence"))
        return each(o, json_object_get(obj, "normalizers"), tokenizer_read_normalizer, err);
    /* Spaces that these make, or drop, would be taken for the marks. */
    static const char *const before[] = {"NFKC",           "NFKD",        "Nmt",
                                         "BertNormalizer", "Precompiled", "Strip"};
    for (size_t i = 0; o->replaces_space && i < COUNT_OF(before); i++) {
        if (str_is(type, before[i]))
            return unsupported(o, "normalizer: after U+2581 for spaces,", type.ptr, err);
    }
    for (size_t i = 0; i < COUNT_OF(simple); i++) {
        if (!str_is(type, simple[i].name))
            continue;
        NormStep *step = normchain_add(&o->t->norm, o->doc, simple[i].kind, err);
        if (step)
            step->form = simple[i].form;
        return step != NULL;
    }
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        if (str_is(type, others[i].name))
            return others[i].read(o, obj, err);
    }
    if (str_is(type, "ByteLevel")) {
        o->byte_level = true; /* the alphabet is how its tokens are written, nothing else */
        return true;
    }
    return unsupported(o, "normalizer", type.ptr, err);
}

/* ---- pre_tokenizer ---- */

static bool read_behavior(const TokenizerSteps *o, const json_t *obj, PretokBehavior *out,
                          Error *err)
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

static bool add_split(TokenizerSteps *o, const char *pattern, TextReDialect dialect,
                      PretokBehavior behavior, bool invert, Error *err)
{
    o->has_split = true;
    return pretok_add_split(&o->t->pretok, o->doc, str_from(pattern), dialect, behavior, invert,
                            err);
}

static bool add_class(TokenizerSteps *o, PretokClass class, PretokBehavior behavior, Error *err)
{
    o->has_split = true;
    return pretok_add_class(&o->t->pretok, o->doc, class, behavior, err);
}

static bool read_split(TokenizerSteps *o, const json_t *obj, Error *err)
{
    PretokBehavior behavior;
    bool invert;
    Str regex;
    Str literal;
    if (!read_behavior(o, obj, &behavior, err) ||
        !json_get_bool_or(obj, o->doc, "invert", false, &invert, err) ||
        !read_pattern(o, obj, "pre_tokenizer Split", &regex, &literal, err))
        return false;
    /* No space is left to be found. */
    if (o->replaces_space && literal.ptr && memchr(literal.ptr, ' ', literal.len) && !invert)
        return true;
    o->has_split = true;
    return pretok_add_split(&o->t->pretok, o->doc, regex.ptr ? regex : literal,
                            regex.ptr ? TEXTRE_ONIG : TEXTRE_LITERAL, behavior, invert, err);
}

static bool read_byte_level(TokenizerSteps *o, const json_t *obj, Error *err)
{
    bool prefix;
    bool regex;
    if (!json_get_bool_or(obj, o->doc, "add_prefix_space", true, &prefix, err) ||
        !json_get_bool_or(obj, o->doc, "use_regex", true, &regex, err))
        return false;
    if (o->pre_byte_level)
        return unsupported(o, "pre_tokenizer: a second", "ByteLevel", err);
    o->byte_level = true;
    o->pre_byte_level = true;
    if (prefix && !pretok_add_prefix_space(&o->t->pretok, o->doc, err))
        return false;
    return !regex || add_split(o, pretok_gpt2, TEXTRE_RUST, PRETOK_ISOLATED, false, err);
}

static bool read_metaspace(TokenizerSteps *o, const json_t *obj, Error *err)
{
    static const char *const names[] = {"never", "first", "always"};
    Str scheme;
    Str replacement;
    bool prefix_space;
    bool split;
    if (!json_get_str_or(obj, o->doc, "replacement", &replacement, err) ||
        !json_get_str_or(obj, o->doc, "prepend_scheme", &scheme, err) ||
        !json_get_bool_or(obj, o->doc, "add_prefix_space", true, &prefix_space, err) ||
        !json_get_bool_or(obj, o->doc, "split", true, &split, err))
        return false;
    if (replacement.ptr && !str_is(replacement, mark))
        return unsupported(o, "pre_tokenizer Metaspace: replacement", replacement.ptr, err);
    int prefix = prefix_space ? PRETOK_ALWAYS : PRETOK_NEVER;
    for (int i = 0; scheme.ptr && i < (int)COUNT_OF(names); i++) {
        if (str_is(scheme, names[i]))
            prefix = i;
    }
    o->metaspace = true;
    return pretok_add_metaspace(&o->t->pretok, o->doc, (PretokPrefix)prefix, split, err);
}

bool tokenizer_read_pre_tokenizer(TokenizerSteps *o, const json_t *obj, Error *err)
{
    Str type;
    if (!section_type(o, obj, &type, err))
        return false;
    if (str_is(type, "Sequence"))
        return each(o, json_object_get(obj, "pretokenizers"), tokenizer_read_pre_tokenizer, err);
    /* Steps after ByteLevel see the byte alphabet. */
    if (o->pre_byte_level && !o->t->pretok.alphabet &&
        !pretok_add_alphabet(&o->t->pretok, o->doc, err))
        return false;
    if (str_is(type, "ByteLevel"))
        return read_byte_level(o, obj, err);
    /* It gives spaces for U+2581, which these would take for spaces. */
    static const char *const before[] = {"Split", "Whitespace", "WhitespaceSplit",
                                         "BertPreTokenizer", "Metaspace"};
    for (size_t i = 0; o->metaspace && i < COUNT_OF(before); i++) {
        if (str_is(type, before[i]))
            return unsupported(o, "pre_tokenizer: after Metaspace,", type.ptr, err);
    }
    if (str_is(type, "Split"))
        return read_split(o, obj, err);
    if (str_is(type, "Metaspace"))
        return read_metaspace(o, obj, err);
    if (str_is(type, "Digits")) {
        bool single;
        return json_get_bool_or(obj, o->doc, "individual_digits", false, &single, err) &&
               add_class(o, PRETOK_NUMERIC, single ? PRETOK_ISOLATED : PRETOK_CONTIGUOUS, err);
    }
    if (str_is(type, "Punctuation")) {
        PretokBehavior behavior;
        return read_behavior(o, obj, &behavior, err) &&
               add_class(o, PRETOK_PUNCTUATION, behavior, err);
    }
    if (str_is(type, "Whitespace"))
        return add_split(o, "\\w+|[^\\w\\s]+", TEXTRE_RUST, PRETOK_REMOVED, true, err);
    if (str_is(type, "WhitespaceSplit"))
        return add_class(o, PRETOK_SPACE, PRETOK_REMOVED, err);
    if (str_is(type, "BertPreTokenizer")) {
        o->has_split = true;
        return pretok_add_bert(&o->t->pretok, o->doc, err);
    }
    if (str_is(type, "FixedLength")) {
        int length;
        o->has_split = true;
        return json_get_int_or(obj, o->doc, "length", 1, 1 << 20, 5, &length, err) &&
               pretok_add_fixed(&o->t->pretok, o->doc, length, err);
    }
    if (str_is(type, "CharDelimiterSplit")) {
        Str delimiter;
        if (!json_get_str_or(obj, o->doc, "delimiter", &delimiter, err))
            return false;
        if (!delimiter.ptr || delimiter.len == 0)
            return err_set(err, ERR_FORMAT,
                           "%s: pre_tokenizer CharDelimiterSplit has no \"delimiter\"", o->doc);
        o->has_split = true;
        return pretok_add_split(&o->t->pretok, o->doc, delimiter, TEXTRE_LITERAL, PRETOK_REMOVED,
                                false, err);
    }
    return unsupported(o, "pre_tokenizer", type.ptr, err);
}

/* ---- decoder ---- */

bool tokenizer_read_decoder(TokenizerSteps *o, const json_t *obj, Error *err)
{
    Str type;
    if (!section_type(o, obj, &type, err))
        return false;
    if (str_is(type, "Sequence"))
        return each(o, json_object_get(obj, "decoders"), tokenizer_read_decoder, err);
    if (str_is(type, "ByteLevel")) {
        o->byte_level = true;
        return true;
    }
    if (str_is(type, "Fuse") || str_is(type, "ByteFallback"))
        return true; /* pieces are bytes, and in a row they are the text */
    if (str_is(type, "WordPiece")) {
        o->t->strip = true;
        return true;
    }
    if (str_is(type, "BPEDecoder")) {
        Str suffix;
        return json_get_str_or(obj, o->doc, "suffix", &suffix, err) &&
               own_text(o, suffix.ptr ? suffix : str_from("</w>"), &o->suffix, err);
    }
    if (str_is(type, "Metaspace")) {
        Str scheme;
        bool prefix_space;
        if (!json_get_str_or(obj, o->doc, "prepend_scheme", &scheme, err) ||
            !json_get_bool_or(obj, o->doc, "add_prefix_space", true, &prefix_space, err))
            return false;
        o->t->strip = scheme.ptr ? !str_is(scheme, "never") : prefix_space;
        return true;
    }
    if (str_is(type, "Replace")) {
        Str regex;
        Str literal;
        Str content;
        if (!read_pattern(o, obj, "decoder Replace", &regex, &literal, err) ||
            !json_get_str_or(obj, o->doc, "content", &content, err))
            return false;
        if (literal.ptr && str_is(literal, mark) && content.ptr && str_is(content, " "))
            return true;
        return unsupported(o, "decoder Replace: pattern", literal.ptr ? literal.ptr : regex.ptr,
                           err);
    }
    if (str_is(type, "Strip")) {
        Str content;
        int start;
        int stop;
        if (!json_get_str_or(obj, o->doc, "content", &content, err) ||
            !json_get_int_or(obj, o->doc, "start", 0, 1 << 20, 0, &start, err) ||
            !json_get_int_or(obj, o->doc, "stop", 0, 1 << 20, 0, &stop, err))
            return false;
        if (!content.ptr || !str_is(content, " ") || start > 1 || stop > 0)
            return unsupported(o, "decoder Strip: content", content.ptr ? content.ptr : "", err);
        o->t->strip = start == 1;
        return true;
    }
    return unsupported(o, "decoder", type.ptr, err);
}

/* ---- together ---- */

void tokenizer_settle_steps(TokenizerSteps *o)
{
    Tokenizer *t = o->t;
    NormChain *c = &t->norm;
    if (o->byte_level) {
        t->spelling = TOKENIZER_ALPHABET;
        return;
    }
    t->spelling = o->metaspace || o->replaces_space ? TOKENIZER_SPACES : TOKENIZER_PLAIN;
    if (!o->replaces_space || o->has_split)
        return;
    /* Nobody looks at the marks before the model, which knows both: leave the spaces. */
    const int at = o->replaces_space - 1;
    for (int i = 0; i < c->n; i++) {
        if (c->steps[i].kind == NORM_PREPEND && str_is(c->steps[i].to, mark))
            c->steps[i].to = str_from(" ");
    }
    for (int i = at + 1; i < c->n; i++)
        c->steps[i - 1] = c->steps[i];
    c->n--;
}

/* ---- post_processor ---- */

static bool push_around(const TokenizerSteps *o, bool before, int64_t id, Error *err)
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
static bool read_template(TokenizerSteps *o, const json_t *obj, Error *err)
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

bool tokenizer_read_post_processor(TokenizerSteps *o, const json_t *obj, Error *err)
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
    if (str_is(type, "Sequence"))
        return each(o, json_object_get(obj, "processors"), tokenizer_read_post_processor, err);
    return unsupported(o, "post_processor", type.ptr, err);
}
