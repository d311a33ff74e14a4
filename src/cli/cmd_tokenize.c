/* Text to token ids and back, with the tokenizer alone: no weights are read, no device is opened.
 */
#include "base/jsonout.h"
#include "cli/cli.h"
#include "cli/input.h"

enum {
    PIECE_MAX = 1024, /* bytes of one token, else it is shown cut */
    OUTPUT_MAX = 1 << 30
};

/* Length of the UTF-8 character at s, 0 when there is none. */
static size_t utf8_len(const unsigned char *s, size_t left)
{
    const size_t n = s[0] < 0x80                   ? 1
                     : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
                     : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
                     : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                                   : 0;
    if (n == 0 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

/* A token's bytes as people read them: in quotes, with \n, \t, \", \\ and \xNN for control
 * characters and for bytes that are no whole character. */
static void add_shown(StrBuf *b, Str s)
{
    strbuf_add_cstr(b, "\"");
    for (size_t i = 0; i < s.len;) {
        const unsigned char *p = (const unsigned char *)s.ptr + i;
        const size_t n = utf8_len(p, s.len - i);
        if (*p == '\n' || *p == '\t')
            strbuf_add_cstr(b, *p == '\n' ? "\\n" : "\\t");
        else if (*p == '"' || *p == '\\')
            strbuf_printf(b, "\\%c", *p);
        else if (n == 0 || *p < 0x20 || *p == 0x7F)
            strbuf_printf(b, "\\x%02x", *p);
        else if (n == 2 && p[0] == 0xC2 && p[1] < 0xA0) /* C1 controls */
            strbuf_printf(b, "\\xc2\\x%02x", p[1]);
        else
            strbuf_add(b, s.ptr + i, n);
        i += n > 0 ? n : 1;
    }
    strbuf_add_cstr(b, "\"");
}

static bool from_mere(const MereError *merr, Error *err)
{
    return err_set(err, (ErrCode)merr->code, "%s", merr->msg);
}

static bool encode(Cli *c, Arena *a, Str text, int32_t **ids, int64_t *n, Error *err)
{
    const uint32_t flags =
        (c->o.bos ? MERE_TOK_SPECIAL : 0U) |
        (c->o.has_special && strcmp(c->o.special, "on") == 0 ? MERE_TOK_PARSE : 0U);
    const MereStr in = {text.ptr, text.len};
    MereError merr = {0};
    if (!mere_tokenize(c->model, in, flags, NULL, 0, n, &merr))
        return from_mere(&merr, err);
    *ids = ARENA_ARRAY(a, *n > 0 ? *n : 1, int32_t, err);
    if (!*ids)
        return false;
    return mere_tokenize(c->model, in, flags, *ids, *n, n, &merr) || from_mere(&merr, err);
}

static bool piece(Cli *c, int32_t id, char out[PIECE_MAX], Str *s, Error *err)
{
    MereError merr = {0};
    size_t n;
    if (!mere_detokenize(c->model, &id, 1, out, PIECE_MAX, &n, &merr))
        return from_mere(&merr, err);
    *s = (Str){out, n < PIECE_MAX ? n : PIECE_MAX};
    return true;
}

static void add_ids(StrBuf *b, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        strbuf_printf(b, "%s%d", i ? "," : "", ids[i]);
}

static bool add_json(Cli *c, StrBuf *b, const int32_t *ids, int64_t n, Error *err)
{
    char bytes[PIECE_MAX];
    Str s;
    strbuf_add_cstr(b, "{\"schema_version\":1,\"model\":");
    jsonout_str(b, str_from(c->o.model));
    strbuf_printf(b, ",\"count\":%lld,\"token_ids\":[", (long long)n);
    add_ids(b, ids, n);
    strbuf_add_cstr(b, "],\"pieces\":[");
    for (int64_t i = 0; i < n; i++) {
        if (!piece(c, ids[i], bytes, &s, err))
            return false;
        strbuf_add_cstr(b, i ? "," : "");
        jsonout_str(b, s);
    }
    strbuf_add_cstr(b, "]}\n");
    return true;
}

static bool add_table(Cli *c, StrBuf *b, const int32_t *ids, int64_t n, Error *err)
{
    char bytes[PIECE_MAX];
    Str s = {0};
    for (int64_t i = 0; i < n; i++) {
        if (!piece(c, ids[i], bytes, &s, err))
            return false;
        strbuf_printf(b, "%d\t", ids[i]);
        add_shown(b, s);
        strbuf_add_cstr(b, "\n");
    }
    return true;
}

static bool tokenize(Cli *c, Arena *a, StrBuf *b, Error *err)
{
    Str text;
    int32_t *ids = NULL;
    int64_t n = 0;
    if (!input_text(a, &c->o, &text, err) || !encode(c, a, text, &ids, &n, err))
        return false;
    if (c->o.json)
        return add_json(c, b, ids, n, err);
    if (c->o.count) {
        strbuf_printf(b, "%lld\n", (long long)n);
        return true;
    }
    if (!c->o.bare_ids)
        return add_table(c, b, ids, n, err);
    add_ids(b, ids, n);
    strbuf_add_cstr(b, "\n");
    return true;
}

static bool check_ids(const Cli *c, const int32_t *ids, int64_t n, Error *err)
{
    MereInfo info = {.size = sizeof info};
    mere_model_info(c->model, &info);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= info.vocab)
            return err_set(err, ERR_USAGE, "--decode: token %d, the vocabulary has %d", ids[i],
                           info.vocab);
    return true;
}

/* The bytes as they are, without a line end of our own. */
static bool decode(Cli *c, Arena *a, StrBuf *b, Error *err)
{
    Str text = str_from(c->o.decode);
    int32_t *ids = NULL;
    int64_t n = 0;
    size_t len = 0;
    MereError merr = {0};
    if ((str_is(text, "-") && !input_stdin(a, &text, err)) ||
        !input_ids(a, "--decode", text, &ids, &n, err) || !check_ids(c, ids, n, err))
        return false;
    if (!mere_detokenize(c->model, ids, n, NULL, 0, &len, &merr))
        return from_mere(&merr, err);
    char *bytes = arena_take(a, len > 0 ? len : 1, 1, err);
    if (!bytes)
        return false;
    if (!mere_detokenize(c->model, ids, n, bytes, len, &len, &merr))
        return from_mere(&merr, err);
    if (!c->o.json) {
        strbuf_add(b, bytes, len);
        return true;
    }
    strbuf_add_cstr(b, "{\"schema_version\":1,\"model\":");
    jsonout_str(b, str_from(c->o.model));
    strbuf_printf(b, ",\"count\":%lld,\"text\":", (long long)n);
    jsonout_str(b, (Str){bytes, len});
    strbuf_add_cstr(b, "}\n");
    return true;
}

static bool check_options(const Options *o, Error *err)
{
    if (o->has_decode &&
        (o->has_prompt || o->has_file || o->bare_ids || o->count || o->bos || o->has_special))
        return err_set(err, ERR_USAGE, "--decode takes no text and none of its options");
    if (o->bare_ids + o->count + o->json > 1)
        return err_set(err, ERR_USAGE, "--ids, --count and --json exclude each other");
    return true;
}

int cmd_tokenize(Cli *c)
{
    Error err;
    MereError merr = {0};
    if (!check_options(&c->o, &err))
        return cli_fail(c, &err);
    if (!mere_text_open(cli_str(c->o.model), &c->model, &merr))
        return cli_fail_mere(c, &merr);
    Arena a;
    arena_init(&a, "tokenize");
    StrBuf b;
    strbuf_init(&b, OUTPUT_MAX);
    const bool ok = c->o.has_decode ? decode(c, &a, &b, &err) : tokenize(c, &a, &b, &err);
    int rc;
    if (ok) {
        rc = cli_put(c, &b);
    } else {
        strbuf_free(&b);
        rc = cli_fail(c, &err);
    }
    arena_free(&a);
    return rc;
}
