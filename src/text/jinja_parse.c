#include "text/jinja_parse.h"

#include "base/mem.h"
#include "text/jinja_filter.h"
#include "text/jinja_lex.h"
#include "text/jinja_scope.h"
#include "text/jinja_test.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { MACROS_MAX = 32 /* nested macros */ };

/* A list of nodes that grows by doubling in the arena. */
typedef struct NodeList {
    JinjaNode **at;
    int n, cap;
} NodeList;

typedef struct Parse {
    Arena *arena;
    const char *doc;
    const JinjaToken *tok;
    int depth;
    int loops;  /* for loops around, up to a macro */
    int in_for; /* and beyond */
    int n_loop; /* mentions of "loop" */
    bool soft;  /* in an if: an unknown filter or test fails where it is met, else at once */
    const JinjaNode *unknown;      /* the first of the latter; NULL: none */
    JinjaNode *macros[MACROS_MAX]; /* whose bodies are around */
    int n_macros;
    NodeList blocks; /* for their names */
    Str *names;      /* interned, open addressing, on the heap until the end */
    uint64_t names_mask, n_names;
    Error *err;
} Parse;

static bool fail(const Parse *p, const char *what)
{
    const JinjaToken *t = p->tok;
    if (t->type == JT_END)
        return err_set(p->err, ERR_FORMAT, "%s: line %d: %s, at the end of the template", p->doc,
                       t->line, what);
    return err_set(p->err, ERR_FORMAT, "%s: line %d: %s, near \"%.*s\"", p->doc, t->line, what,
                   t->text.len < 40 ? (int)t->text.len : 40, t->text.ptr);
}

static bool deeper(Parse *p)
{
    if (p->depth >= TEMPLATE_PARSE_DEPTH)
        return fail(p, "nested too deep");
    p->depth++;
    return true;
}

/* ---- tokens ---- */

static bool is_op(const Parse *p, const char *op)
{
    return p->tok->type == JT_OP && str_is(p->tok->text, op);
}

static bool is_name(const Parse *p, const char *name)
{
    return p->tok->type == JT_NAME && str_is(p->tok->text, name);
}

static bool take_op(Parse *p, const char *op)
{
    const bool yes = is_op(p, op);
    p->tok += yes;
    return yes;
}

static bool take_name(Parse *p, const char *name)
{
    const bool yes = is_name(p, name);
    p->tok += yes;
    return yes;
}

static bool want_op(Parse *p, const char *op)
{
    if (take_op(p, op))
        return true;
    char what[16] = "wanted '?'";
    what[8] = op[0];
    return fail(p, what);
}

static bool want(Parse *p, JinjaTok type, const char *what)
{
    if (p->tok->type != type)
        return fail(p, what);
    p->tok++;
    return true;
}

/* ---- nodes ---- */

static JinjaNode *node(Parse *p, JinjaKind kind)
{
    JinjaNode *n = ARENA_NEW(p->arena, JinjaNode, p->err);
    if (n) {
        n->kind = kind;
        n->line = p->tok->line;
    }
    return n;
}

static bool grow_names(Parse *p)
{
    const uint64_t size = p->names ? (p->names_mask + 1) * 2 : 256;
    Str *names = mem_zalloc(size * sizeof *names);
    if (!names)
        return err_nomem(p->err, p->doc, size * sizeof *names);
    for (uint64_t i = 0; p->names && i <= p->names_mask; i++) {
        const Str s = p->names[i];
        if (!s.ptr)
            continue;
        uint64_t at = vocab_hash(s.ptr, s.len) & (size - 1);
        while (names[at].ptr)
            at = (at + 1) & (size - 1);
        names[at] = s;
    }
    mem_free(p->names);
    p->names = names;
    p->names_mask = size - 1;
    return true;
}

/* The one spelling of this name. */
static bool intern(Parse *p, Str s, Str *out)
{
    if (!p->names || p->n_names * 2 > p->names_mask) {
        if (!grow_names(p))
            return false;
    }
    uint64_t at = vocab_hash(s.ptr, s.len) & p->names_mask;
    for (; p->names[at].ptr; at = (at + 1) & p->names_mask) {
        if (str_eq(p->names[at], s)) {
            *out = p->names[at];
            return true;
        }
    }
    p->names[at] = s;
    p->n_names++;
    *out = s;
    return true;
}

static bool take_ident(Parse *p, Str *out, const char *what)
{
    if (p->tok->type != JT_NAME)
        return fail(p, what);
    if (!intern(p, p->tok->text, out))
        return false;
    p->tok++;
    return true;
}

static bool push(Parse *p, NodeList *l, JinjaNode *n)
{
    if (l->n == l->cap) {
        const int cap = l->cap ? l->cap * 2 : 4;
        JinjaNode **at = ARENA_ARRAY(p->arena, cap, JinjaNode *, p->err);
        if (!at)
            return false;
        if (l->n)
            memcpy(at, l->at, (size_t)l->n * sizeof(JinjaNode *));
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = n;
    return true;
}

/* ---- literals ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Python's string escapes: out gets at most as many bytes as s has. */
static bool unescape(Parse *p, Str s, char *out, size_t *len)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        if (s.ptr[i] != '\\' || i + 1 == s.len) {
            out[n++] = s.ptr[i++];
            continue;
        }
        const char c = s.ptr[i + 1];
        const char *at = c ? strchr(from, c) : NULL;
        const size_t n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (at) {
            out[n++] = to[at - from];
            i += 2;
        } else if (c == '\n') { /* a line that goes on */
            i += 2;
        } else if (n_hex > 0) {
            uint32_t cp = 0;
            for (size_t k = 0; k < n_hex; k++) {
                const int d = i + 2 + k < s.len ? hex(s.ptr[i + 2 + k]) : -1;
                if (d < 0 || cp > 0x10FFFF)
                    return fail(p, "a string has a broken \\x, \\u or \\U escape");
                cp = cp << 4 | (uint32_t)d;
            }
            if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
                return fail(p, "a string's escape is no character");
            n += (size_t)utf8_encode(cp, out + n);
            i += 2 + n_hex;
        } else if (c >= '0' && c <= '7') {
            uint32_t cp = 0;
            size_t k = i + 1;
            for (; k < s.len && k < i + 4 && s.ptr[k] >= '0' && s.ptr[k] <= '7'; k++)
                cp = cp * 8 + (uint32_t)(s.ptr[k] - '0');
            n += (size_t)utf8_encode(cp, out + n);
            i = k;
        } else if (c == 'N') {
            return fail(p, "a string's escape \\N is not supported");
        } else { /* unknown: stays as it is */
            out[n++] = '\\';
            i++;
        }
    }
    *len = n;
    return true;
}

/* Neighbouring strings are one. */
static bool parse_string(Parse *p, JinjaNode **out)
{
    size_t total = 0;
    for (const JinjaToken *t = p->tok; t->type == JT_STRING; t++)
        total += t->text.len;
    JinjaNode *n = node(p, JN_CONST);
    char *text = n ? arena_take(p->arena, total + 4, 1, p->err) : NULL;
    if (!text)
        return false;
    size_t len = 0;
    for (; p->tok->type == JT_STRING; p->tok++) {
        size_t part = 0;
        if (!unescape(p, p->tok->text, text + len, &part))
            return false;
        len += part;
    }
    n->value = jinja_str(text, len);
    *out = n;
    return true;
}

static bool parse_number(Parse *p, JinjaNode **out)
{
    char text[64];
    size_t len = 0;
    const Str s = p->tok->text;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '_')
            continue;
        if (len + 1 == sizeof text)
            return fail(p, "a number is too long");
        text[len++] = s.ptr[i];
    }
    text[len] = '\0';
    JinjaNode *n = node(p, JN_CONST);
    if (!n)
        return false;
    char *end;
    errno = 0;
    if (p->tok->type == JT_FLOAT) {
        n->value = jinja_float(strtod(text, &end));
        if (isinf(n->value.u.f))
            return fail(p, "a number is too large");
    } else {
        const char kind = len > 2 && text[0] == '0' ? text[1] : '\0';
        const int base = kind == 'x' || kind == 'X'   ? 16
                         : kind == 'o' || kind == 'O' ? 8
                         : kind == 'b' || kind == 'B' ? 2
                                                      : 10;
        n->value = jinja_int(strtoll(text + (base == 10 ? 0 : 2), &end, base));
    }
    if (errno == ERANGE && p->tok->type == JT_INT)
        return fail(p, "a number is too large");
    if (end != text + len)
        return fail(p, "a malformed number");
    p->tok++;
    *out = n;
    return true;
}

/* ---- expressions ---- */

static bool parse_expr(Parse *p, JinjaNode **out);
static bool parse_unary(Parse *p, bool with_filter, JinjaNode **out);
static bool parse_tuple(Parse *p, bool with_cond, bool explicit_parens, JinjaNode **out);

static void note_use(Parse *p, Str name)
{
    const uint8_t use = str_is(name, "varargs")  ? JINJA_USES_VARARGS
                        : str_is(name, "kwargs") ? JINJA_USES_KWARGS
                        : str_is(name, "caller") ? JINJA_USES_CALLER
                                                 : 0;
    for (int i = 0; use && i < p->n_macros; i++)
        p->macros[i]->op |= use;
}

static bool parse_list(Parse *p, JinjaNode **out)
{
    JinjaNode *n = node(p, JN_LIST);
    NodeList items = {0};
    if (!n)
        return false;
    p->tok++;
    while (!is_op(p, "]")) {
        JinjaNode *item;
        if (items.n > 0 && !want_op(p, ","))
            return false;
        if (is_op(p, "]"))
            break;
        if (!parse_expr(p, &item) || !push(p, &items, item))
            return false;
    }
    p->tok++;
    n->items = items.at;
    n->n_items = items.n;
    *out = n;
    return true;
}

static bool parse_dict(Parse *p, JinjaNode **out)
{
    JinjaNode *n = node(p, JN_DICT);
    NodeList items = {0};
    if (!n)
        return false;
    p->tok++;
    while (!is_op(p, "}")) {
        JinjaNode *key;
        JinjaNode *value;
        if (items.n > 0 && !want_op(p, ","))
            return false;
        if (is_op(p, "}"))
            break;
        if (!parse_expr(p, &key) || !want_op(p, ":") || !parse_expr(p, &value) ||
            !push(p, &items, key) || !push(p, &items, value))
            return false;
    }
    p->tok++;
    n->items = items.at;
    n->n_items = items.n;
    *out = n;
    return true;
}

static bool parse_primary(Parse *p, JinjaNode **out)
{
    const JinjaToken *t = p->tok;
    switch (t->type) {
    case JT_STRING:
        return parse_string(p, out);
    case JT_INT:
    case JT_FLOAT:
        return parse_number(p, out);
    case JT_NAME: {
        const bool yes = str_is(t->text, "true") || str_is(t->text, "True");
        const bool no = str_is(t->text, "false") || str_is(t->text, "False");
        const bool none = str_is(t->text, "none") || str_is(t->text, "None");
        JinjaNode *n = node(p, yes || no || none ? JN_CONST : JN_NAME);
        if (!n)
            return false;
        if (n->kind == JN_CONST)
            n->value = none ? jinja_none() : jinja_bool(yes);
        else if (!intern(p, t->text, &n->name))
            return false;
        p->n_loop += str_is(t->text, "loop");
        if (n->kind == JN_NAME)
            note_use(p, n->name);
        p->tok++;
        *out = n;
        return true;
    }
    case JT_OP:
        if (str_is(t->text, "(")) {
            p->tok++;
            return parse_tuple(p, true, true, out) && want_op(p, ")");
        }
        if (str_is(t->text, "["))
            return parse_list(p, out);
        if (str_is(t->text, "{"))
            return parse_dict(p, out);
        break;
    case JT_END:
    case JT_TEXT:
    case JT_PRINT_BEGIN:
    case JT_PRINT_END:
    case JT_BLOCK_BEGIN:
    case JT_BLOCK_END:
        break;
    }
    return fail(p, "wanted an expression");
}

/* "(" args ")" from its opening bracket. */
static bool parse_args(Parse *p, JinjaArgNodes **out)
{
    JinjaArgNodes *args = ARENA_NEW(p->arena, JinjaArgNodes, p->err);
    NodeList pos = {0};
    NodeList kw = {0};
    Str *names = NULL;
    int names_cap = 0;
    if (!args)
        return false;
    p->tok++;
    for (bool first = true; !is_op(p, ")"); first = false) {
        if (!first && !want_op(p, ","))
            return false;
        if (is_op(p, ")"))
            break;
        JinjaNode *value;
        if (take_op(p, "**")) {
            if (args->star_star || !parse_expr(p, &args->star_star))
                return args->star_star ? fail(p, "a second ** argument") : false;
        } else if (take_op(p, "*")) {
            if (args->star || !parse_expr(p, &args->star))
                return args->star ? fail(p, "a second * argument") : false;
        } else if (p->tok->type == JT_NAME && p->tok[1].type == JT_OP &&
                   str_is(p->tok[1].text, "=")) {
            if (kw.n == names_cap) {
                const int cap = names_cap ? names_cap * 2 : 4;
                Str *more = ARENA_ARRAY(p->arena, cap, Str, p->err);
                if (!more)
                    return false;
                if (kw.n)
                    memcpy(more, names, (size_t)kw.n * sizeof *more);
                names = more;
                names_cap = cap;
            }
            if (!intern(p, p->tok->text, &names[kw.n]))
                return false;
            p->tok += 2;
            if (!parse_expr(p, &value) || !push(p, &kw, value))
                return false;
        } else {
            if (kw.n > 0 || args->star || args->star_star)
                return fail(p, "a positional argument after a named one");
            if (!parse_expr(p, &value) || !push(p, &pos, value))
                return false;
        }
    }
    p->tok++;
    args->pos = pos.at;
    args->n_pos = pos.n;
    args->n_kw = kw.n;
    args->kw = ARENA_ARRAY(p->arena, kw.n, JinjaKwNode, p->err);
    if (!args->kw)
        return false;
    for (int i = 0; i < kw.n; i++)
        args->kw[i] = (JinjaKwNode){names[i], kw.at[i]};
    *out = args;
    return true;
}

/* What is between the brackets of a[...]. */
static bool parse_subscript(Parse *p, JinjaNode *object, JinjaNode **out)
{
    JinjaNode *part[3] = {NULL, NULL, NULL};
    int n_colons = 0;
    JinjaNode *n = node(p, JN_ITEM);
    if (!n)
        return false;
    p->tok++;
    while (!is_op(p, "]") && !is_op(p, ",")) {
        if (take_op(p, ":")) {
            if (++n_colons > 2)
                return fail(p, "a slice has three parts at most");
        } else if (part[n_colons] || !parse_expr(p, &part[n_colons])) {
            return part[n_colons] ? fail(p, "wanted ']'") : false;
        }
    }
    if (is_op(p, ",")) { /* a[1, 2]: a tuple as the key */
        NodeList items = {0};
        if (n_colons || !part[0])
            return fail(p, "slices of several dimensions are not supported");
        JinjaNode *tuple = node(p, JN_TUPLE);
        if (!tuple || !push(p, &items, part[0]))
            return false;
        while (take_op(p, ",") && !is_op(p, "]")) {
            if (!parse_expr(p, &part[1]) || !push(p, &items, part[1]))
                return false;
        }
        tuple->items = items.at;
        tuple->n_items = items.n;
        part[0] = tuple;
    }
    if (!want_op(p, "]"))
        return false;
    n->a = object;
    if (n_colons == 0) {
        if (!part[0])
            return fail(p, "an index is missing");
        n->b = part[0];
    } else {
        n->kind = JN_SLICE;
        n->items = ARENA_ARRAY(p->arena, 3, JinjaNode *, p->err);
        if (!n->items)
            return false;
        memcpy(n->items, part, sizeof part);
        n->n_items = 3;
    }
    *out = n;
    return true;
}

static bool parse_call(Parse *p, JinjaNode *callee, JinjaNode **out)
{
    JinjaNode *n = node(p, JN_CALL);
    if (!n)
        return false;
    n->a = callee;
    *out = n;
    return parse_args(p, &n->args);
}

static bool parse_postfix(Parse *p, JinjaNode **io)
{
    for (;;) {
        if (is_op(p, ".")) {
            p->tok++;
            JinjaNode *n = node(p, p->tok->type == JT_INT ? JN_ITEM : JN_ATTR);
            if (!n)
                return false;
            n->a = *io;
            if (p->tok->type == JT_INT) {
                if (!parse_number(p, &n->b))
                    return false;
            } else if (!take_ident(p, &n->name, "wanted a name after '.'")) {
                return false;
            }
            *io = n;
        } else if (is_op(p, "[")) {
            if (!parse_subscript(p, *io, io))
                return false;
        } else if (is_op(p, "(")) {
            if (!parse_call(p, *io, io))
                return false;
        } else {
            return true;
        }
    }
}

static void note_unknown(Parse *p, const JinjaNode *n)
{
    if (n->id < 0 && !p->soft && !p->unknown)
        p->unknown = n;
}

/* name and args of one filter; `a` is what it is applied to. */
static bool parse_filter(Parse *p, JinjaNode *a, JinjaNode **out)
{
    JinjaNode *n = node(p, JN_FILTER);
    if (!n)
        return false;
    n->a = a;
    const char *const start = p->tok->text.ptr;
    if (!take_ident(p, &n->name, "wanted a filter's name"))
        return false;
    while (take_op(p, ".")) { /* dotted names exist, none of them here */
        n->name = (Str){start, (size_t)(p->tok->text.ptr + p->tok->text.len - start)};
        if (!want(p, JT_NAME, "wanted a name after '.'"))
            return false;
    }
    n->id = jinja_filter_id(n->name);
    note_unknown(p, n);
    if (is_op(p, "(") && !parse_args(p, &n->args))
        return false;
    *out = n;
    return true;
}

static bool parse_test(Parse *p, JinjaNode *a, JinjaNode **out)
{
    JinjaNode *n = node(p, JN_TEST);
    if (!n)
        return false;
    n->a = a;
    n->flag = take_name(p, "not");
    if (!take_ident(p, &n->name, "wanted a test's name"))
        return false;
    while (take_op(p, ".")) { /* dotted names exist, none of them here */
        if (!want(p, JT_NAME, "wanted a name after '.'"))
            return false;
        n->name =
            (Str){n->name.ptr, (size_t)(p->tok[-1].text.ptr + p->tok[-1].text.len - n->name.ptr)};
    }
    n->id = jinja_test_id(n->name);
    note_unknown(p, n);
    const JinjaToken *t = p->tok;
    if (is_op(p, "(")) {
        if (!parse_args(p, &n->args))
            return false;
    } else if ((t->type == JT_NAME && !str_is(t->text, "else") && !str_is(t->text, "or") &&
                !str_is(t->text, "and")) ||
               t->type == JT_STRING || t->type == JT_INT || t->type == JT_FLOAT || is_op(p, "[") ||
               is_op(p, "{")) {
        if (is_name(p, "is"))
            return fail(p, "tests cannot be chained with is");
        JinjaArgNodes *args = ARENA_NEW(p->arena, JinjaArgNodes, p->err);
        JinjaNode **pos = ARENA_ARRAY(p->arena, 1, JinjaNode *, p->err);
        if (!args || !pos || !parse_primary(p, &pos[0]) || !parse_postfix(p, &pos[0]))
            return false;
        args->pos = pos;
        args->n_pos = 1;
        n->args = args;
    }
    *out = n;
    return true;
}

static bool parse_filter_expr(Parse *p, JinjaNode **io)
{
    for (;;) {
        if (take_op(p, "|")) {
            if (!parse_filter(p, *io, io))
                return false;
        } else if (take_name(p, "is")) {
            if (!parse_test(p, *io, io))
                return false;
        } else if (is_op(p, "(")) {
            if (!parse_call(p, *io, io))
                return false;
        } else {
            return true;
        }
    }
}

static bool parse_unary(Parse *p, bool with_filter, JinjaNode **out)
{
    if (!deeper(p))
        return false;
    if (is_op(p, "-") || is_op(p, "+")) {
        JinjaNode *n = node(p, is_op(p, "-") ? JN_NEG : JN_POS);
        if (!n)
            return false;
        p->tok++;
        if (!parse_unary(p, false, &n->a))
            return false;
        *out = n;
    } else if (!parse_primary(p, out)) {
        return false;
    }
    if (!parse_postfix(p, out) || (with_filter && !parse_filter_expr(p, out)))
        return false;
    p->depth--;
    return true;
}

typedef struct BinaryOp {
    const char *text;
    JinjaOp op;
} BinaryOp;

static const BinaryOp mul_ops[] = {
    {"*", JO_MUL}, {"/", JO_DIV}, {"//", JO_FLOORDIV}, {"%", JO_MOD}};
static const BinaryOp add_ops[] = {{"+", JO_ADD}, {"-", JO_SUB}};
static const BinaryOp pow_ops[] = {{"**", JO_POW}};

static const BinaryOp *binary_op(const Parse *p, const BinaryOp *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (is_op(p, ops[i].text))
            return &ops[i];
    }
    return NULL;
}

static bool parse_binary_rest(Parse *p, const BinaryOp *op, JinjaNode **io, JinjaNode **right)
{
    JinjaNode *n = node(p, JN_BINARY);
    if (!n)
        return false;
    n->op = (uint8_t)op->op;
    n->a = *io;
    p->tok++;
    *io = n;
    *right = n;
    return true;
}

static bool parse_pow(Parse *p, JinjaNode **out)
{
    if (!parse_unary(p, true, out))
        return false;
    const BinaryOp *op;
    while ((op = binary_op(p, pow_ops, COUNT_OF(pow_ops)))) {
        JinjaNode *n;
        if (!parse_binary_rest(p, op, out, &n) || !parse_unary(p, true, &n->b))
            return false;
    }
    return true;
}

static bool parse_mul(Parse *p, JinjaNode **out)
{
    if (!parse_pow(p, out))
        return false;
    const BinaryOp *op;
    while ((op = binary_op(p, mul_ops, COUNT_OF(mul_ops)))) {
        JinjaNode *n;
        if (!parse_binary_rest(p, op, out, &n) || !parse_pow(p, &n->b))
            return false;
    }
    return true;
}

static bool parse_concat(Parse *p, JinjaNode **out)
{
    if (!parse_mul(p, out))
        return false;
    if (!is_op(p, "~"))
        return true;
    JinjaNode *n = node(p, JN_CONCAT);
    NodeList items = {0};
    if (!n || !push(p, &items, *out))
        return false;
    while (take_op(p, "~")) {
        JinjaNode *item;
        if (!parse_mul(p, &item) || !push(p, &items, item))
            return false;
    }
    n->items = items.at;
    n->n_items = items.n;
    *out = n;
    return true;
}

static bool parse_add(Parse *p, JinjaNode **out)
{
    if (!parse_concat(p, out))
        return false;
    const BinaryOp *op;
    while ((op = binary_op(p, add_ops, COUNT_OF(add_ops)))) {
        JinjaNode *n;
        if (!parse_binary_rest(p, op, out, &n) || !parse_concat(p, &n->b))
            return false;
    }
    return true;
}

/* The comparison operator that comes, taken; false: none. */
static bool compare_op(Parse *p, uint8_t *op)
{
    static const BinaryOp ops[] = {{"==", JO_EQ}, {"!=", JO_NE}, {"<", JO_LT},
                                   {"<=", JO_LE}, {">", JO_GT},  {">=", JO_GE}};
    const BinaryOp *found = binary_op(p, ops, COUNT_OF(ops));
    if (found) {
        *op = (uint8_t)found->op;
        p->tok++;
        return true;
    }
    if (take_name(p, "in")) {
        *op = JO_IN;
        return true;
    }
    if (is_name(p, "not") && p->tok[1].type == JT_NAME && str_is(p->tok[1].text, "in")) {
        p->tok += 2;
        *op = JO_NOT_IN;
        return true;
    }
    return false;
}

static bool parse_compare(Parse *p, JinjaNode **out)
{
    if (!parse_add(p, out))
        return false;
    uint8_t op;
    NodeList items = {0};
    StrBuf ops;
    strbuf_init(&ops, TEMPLATE_SOURCE_MAX);
    JinjaNode *n = NULL;
    bool ok = true;
    while (ok && compare_op(p, &op)) {
        const char c = (char)op;
        JinjaNode *item;
        if (!n) {
            n = node(p, JN_COMPARE);
            ok = n && push(p, &items, *out);
        }
        ok = ok && (strbuf_add(&ops, &c, 1) || strbuf_check(&ops, p->doc, p->err)) &&
             parse_add(p, &item) && push(p, &items, item);
    }
    if (ok && n) {
        n->items = items.at;
        n->n_items = items.n;
        n->ops = (uint8_t *)arena_strdup(p->arena, ops.ptr, ops.len, p->err);
        ok = n->ops != NULL;
        *out = n;
    }
    strbuf_free(&ops);
    return ok;
}

static bool parse_not(Parse *p, JinjaNode **out)
{
    if (!is_name(p, "not"))
        return parse_compare(p, out);
    JinjaNode *n = node(p, JN_NOT);
    if (!n || !deeper(p))
        return false;
    p->tok++;
    if (!parse_not(p, &n->a))
        return false;
    p->depth--;
    *out = n;
    return true;
}

static bool parse_and(Parse *p, JinjaNode **out)
{
    if (!parse_not(p, out))
        return false;
    while (is_name(p, "and")) {
        JinjaNode *n = node(p, JN_AND);
        if (!n)
            return false;
        p->tok++;
        n->a = *out;
        if (!parse_not(p, &n->b))
            return false;
        *out = n;
    }
    return true;
}

static bool parse_or(Parse *p, JinjaNode **out)
{
    if (!parse_and(p, out))
        return false;
    while (is_name(p, "or")) {
        JinjaNode *n = node(p, JN_OR);
        if (!n)
            return false;
        p->tok++;
        n->a = *out;
        if (!parse_and(p, &n->b))
            return false;
        *out = n;
    }
    return true;
}

static bool parse_expr(Parse *p, JinjaNode **out)
{
    const JinjaNode *const unknown = p->unknown;
    if (!deeper(p) || !parse_or(p, out))
        return false;
    while (is_name(p, "if")) {
        JinjaNode *n = node(p, JN_COND);
        if (!n)
            return false;
        p->tok++;
        n->a = *out;
        if (!parse_or(p, &n->b) || (take_name(p, "else") && !parse_expr(p, &n->c)))
            return false;
        p->unknown = unknown;
        *out = n;
    }
    p->depth--;
    return true;
}

/* One expression, or several with commas: a tuple. */
static bool parse_tuple(Parse *p, bool with_cond, bool explicit_parens, JinjaNode **out)
{
    NodeList items = {0};
    bool comma = false;
    JinjaNode *first = NULL;
    for (;;) {
        if (is_op(p, ")") || p->tok->type == JT_BLOCK_END || p->tok->type == JT_PRINT_END)
            break;
        JinjaNode *item;
        if (!(with_cond ? parse_expr(p, &item) : parse_or(p, &item)) || !push(p, &items, item))
            return false;
        first = first ? first : item;
        if (!take_op(p, ","))
            break;
        comma = true;
    }
    if (items.n == 1 && !comma) {
        *out = first;
        return true;
    }
    if (items.n == 0 && !explicit_parens)
        return fail(p, "wanted an expression");
    JinjaNode *n = node(p, JN_TUPLE);
    if (!n)
        return false;
    n->items = items.at;
    n->n_items = items.n;
    *out = n;
    return true;
}

/* ---- statements ---- */

static bool parse_body(Parse *p, const char *const *ends, JinjaNode **out);

static bool is_constant(Str name)
{
    return str_is(name, "true") || str_is(name, "false") || str_is(name, "none") ||
           str_is(name, "True") || str_is(name, "False") || str_is(name, "None");
}

/* What may stand left of "=" or after "for": a name, ns.name (not in for), or a tuple of names. */
static bool parse_target(Parse *p, bool with_attr, JinjaNode **out)
{
    NodeList items = {0};
    bool tuple = false;
    if (!deeper(p))
        return false;
    for (;;) {
        JinjaNode *item;
        if (take_op(p, "(")) {
            if (!parse_target(p, with_attr, &item) || !want_op(p, ")"))
                return false;
        } else {
            item = node(p, JN_NAME);
            if (!item || !take_ident(p, &item->name, "wanted a variable's name"))
                return false;
            if (is_constant(item->name))
                return fail(p, "a constant cannot be assigned to");
            if ((!with_attr || (p->in_for > 0 && !is_op(p, "."))) && str_is(item->name, "loop"))
                return fail(p, "a for loop cannot assign to \"loop\"");
            if (with_attr && is_op(p, ".")) {
                JinjaNode *attr = node(p, JN_ATTR);
                p->tok++;
                if (!attr || !take_ident(p, &attr->name, "wanted a name after '.'"))
                    return false;
                attr->a = item;
                item = attr;
            }
        }
        if (!push(p, &items, item))
            return false;
        if (!take_op(p, ","))
            break;
        tuple = true;
        if (is_name(p, "in") || is_op(p, ")"))
            break;
    }
    p->depth--;
    *out = items.at[0];
    if (!tuple)
        return true;
    JinjaNode *n = node(p, JN_TUPLE);
    if (!n)
        return false;
    n->items = items.at;
    n->n_items = items.n;
    *out = n;
    return true;
}

static bool end_tag(Parse *p)
{
    return want(p, JT_BLOCK_END, "wanted '%}'");
}

static bool parse_if(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    NodeList items = {0};
    const bool soft = p->soft;
    p->soft = true;
    for (;;) {
        JinjaNode *cond;
        JinjaNode *body;
        if (!parse_tuple(p, false, false, &cond) || !end_tag(p) || !parse_body(p, ends, &body) ||
            !push(p, &items, cond) || !push(p, &items, body))
            return false;
        if (take_name(p, "elif"))
            continue;
        if (take_name(p, "else")) {
            if (!end_tag(p) || !parse_body(p, ends + 2, &n->b))
                return false;
        }
        p->tok++; /* endif */
        p->soft = soft;
        n->items = items.at;
        n->n_items = items.n;
        return end_tag(p);
    }
}

static bool parse_for(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    if (!parse_target(p, false, &n->a))
        return false;
    if (!take_name(p, "in"))
        return fail(p, "wanted \"in\"");
    if (!parse_tuple(p, false, false, &n->b))
        return false;
    if (take_name(p, "if") && !parse_expr(p, &n->c))
        return false;
    n->flag = take_name(p, "recursive");
    if (!end_tag(p))
        return false;
    const bool soft = p->soft;
    p->soft = false;
    const int n_loop = p->n_loop;
    p->loops++;
    p->in_for++;
    if (!parse_body(p, ends, &n->body))
        return false;
    n->op = p->n_loop > n_loop;
    p->loops--;
    if (take_name(p, "else")) {
        if (!end_tag(p) || !parse_body(p, ends + 1, &n->otherwise))
            return false;
    }
    p->tok++; /* endfor */
    p->in_for--;
    p->soft = soft;
    return end_tag(p);
}

/* The body of a tag that has variables of its own, and its end. */
static bool parse_scoped(Parse *p, const char *const *ends, JinjaNode **body)
{
    const bool soft = p->soft;
    p->soft = false;
    if (!end_tag(p) || !parse_body(p, ends, body))
        return false;
    p->soft = soft;
    p->tok++; /* its end */
    return true;
}

static bool parse_set(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endset", NULL};
    if (!parse_target(p, true, &n->a))
        return false;
    if (take_op(p, "="))
        return parse_tuple(p, true, false, &n->b) && end_tag(p);
    n->kind = JN_SET_BLOCK;
    if (take_op(p, "|")) {
        if (!parse_filter(p, NULL, &n->b) || !parse_filter_expr(p, &n->b))
            return false;
    }
    return parse_scoped(p, ends, &n->body) && end_tag(p);
}

/* "(a, b=1)" of a macro or call block. */
static bool parse_params(Parse *p, JinjaNode *n)
{
    JinjaParam *params = NULL;
    int cap = 0;
    p->tok++;
    while (!is_op(p, ")")) {
        if (n->n_params > 0 && !want_op(p, ","))
            return false;
        if (is_op(p, ")"))
            break;
        if (n->n_params == cap) {
            const int more = cap ? cap * 2 : 4;
            JinjaParam *at = ARENA_ARRAY(p->arena, more, JinjaParam, p->err);
            if (!at)
                return false;
            if (cap)
                memcpy(at, params, (size_t)cap * sizeof *at);
            params = at;
            cap = more;
        }
        JinjaParam *param = &params[n->n_params];
        if (!take_ident(p, &param->name, "wanted a parameter's name"))
            return false;
        if (take_op(p, "=")) {
            if (!parse_expr(p, &param->missing))
                return false;
        } else if (n->n_params > 0 && params[n->n_params - 1].missing) {
            return fail(p, "a parameter without a default after one that has it");
        }
        n->n_params++;
    }
    p->tok++;
    n->params = params;
    return true;
}

static bool parse_macro_body(Parse *p, JinjaNode *n, const char *const *ends)
{
    if (p->n_macros == MACROS_MAX)
        return fail(p, "macros nest too deep");
    const int loops = p->loops;
    p->macros[p->n_macros++] = n;
    p->loops = 0;
    if (!parse_scoped(p, ends, &n->body))
        return false;
    p->loops = loops;
    p->n_macros--;
    return end_tag(p);
}

static bool parse_macro(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    if (!take_ident(p, &n->name, "wanted a macro's name"))
        return false;
    if (!is_op(p, "("))
        return fail(p, "wanted '('");
    return parse_params(p, n) && parse_macro_body(p, n, ends);
}

static bool parse_call_block(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endcall", NULL};
    if (is_op(p, "(") && !parse_params(p, n))
        return false;
    if (!parse_expr(p, &n->a))
        return false;
    if (n->a->kind != JN_CALL)
        return fail(p, "{% call %} wants a call");
    if (!intern(p, str_from("caller"), &n->name))
        return false;
    return parse_macro_body(p, n, ends);
}

static bool parse_filter_block(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endfilter", NULL};
    return parse_filter(p, NULL, &n->a) && parse_filter_expr(p, &n->a) &&
           parse_scoped(p, ends, &n->body) && end_tag(p);
}

static bool parse_with(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endwith", NULL};
    NodeList items = {0};
    while (p->tok->type != JT_BLOCK_END) {
        JinjaNode *target = node(p, JN_NAME);
        JinjaNode *value;
        if (items.n > 0 && !want_op(p, ","))
            return false;
        if (!target ||
            !(p->tok->type == JT_NAME && p->tok[1].type == JT_OP && str_is(p->tok[1].text, "=")
                  ? take_ident(p, &target->name, "wanted a variable's name")
                  : parse_target(p, false, &target)) ||
            !want_op(p, "=") || !parse_expr(p, &value) || !push(p, &items, target) ||
            !push(p, &items, value))
            return false;
    }
    n->items = items.at;
    n->n_items = items.n;
    return parse_scoped(p, ends, &n->body) && end_tag(p);
}

/* {% generation %} marks text for training masks; its body is rendered as that of a call block. */
static bool parse_generation(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    const int loops = p->loops;
    p->loops = 0;
    if (!parse_scoped(p, ends, &n->body))
        return false;
    p->loops = loops;
    return end_tag(p);
}

/* {% block name %}: rendered in place, since nothing can extend the template. */
static bool parse_block(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endblock", NULL};
    const int loops = p->loops;
    if (!take_ident(p, &n->name, "wanted a block's name"))
        return false;
    for (int i = 0; i < p->blocks.n; i++) {
        if (str_eq(p->blocks.at[i]->name, n->name))
            return fail(p, "a second block of this name");
    }
    if (!push(p, &p->blocks, n))
        return false;
    n->flag = !take_name(p, "scoped");
    if (is_name(p, "required"))
        return fail(p, "a required block, and nothing can extend the template");
    p->loops = 0;
    if (!parse_scoped(p, ends, &n->body))
        return false;
    p->loops = loops;
    if (p->tok->type == JT_NAME && !(str_eq(p->tok->text, n->name) && p->tok++))
        return fail(p, "the end of another block");
    return end_tag(p);
}

static bool parse_autoescape(Parse *p, JinjaNode *n)
{
    static const char *const ends[] = {"endautoescape", NULL};
    return parse_expr(p, &n->a) && parse_scoped(p, ends, &n->body) && end_tag(p);
}

/* {% print a, b %} */
static bool parse_print(Parse *p, JinjaNode *n)
{
    NodeList items = {0};
    while (p->tok->type != JT_BLOCK_END) {
        JinjaNode *item = node(p, JN_PRINT);
        if ((items.n > 0 && !want_op(p, ",")) || !item || !parse_expr(p, &item->a) ||
            !push(p, &items, item))
            return false;
    }
    n->items = items.at;
    n->n_items = items.n;
    return end_tag(p);
}

/* "with context" and the like: passed over. */
static void skip_words(Parse *p, const char *first, const char *second)
{
    if (is_name(p, first) && p->tok[1].type == JT_NAME && str_is(p->tok[1].text, second))
        p->tok += 2;
}

static void skip_context(Parse *p)
{
    skip_words(p, "with", "context");
    skip_words(p, "without", "context");
}

/* include, import, from and extends fail where they are met: there is nothing to load from. */
static bool parse_load(Parse *p, JinjaNode *n)
{
    (void)n;
    JinjaNode *from;
    Str name;
    const Str word = p->tok[-1].text;
    if (!parse_expr(p, &from))
        return false;
    if (str_is(word, "include")) {
        skip_words(p, "ignore", "missing");
        skip_context(p);
        return end_tag(p);
    }
    if (str_is(word, "import")) {
        if (!take_name(p, "as"))
            return fail(p, "wanted \"as\"");
        if (!take_ident(p, &name, "wanted a variable's name"))
            return false;
        skip_context(p);
        return end_tag(p);
    }
    if (str_is(word, "from")) {
        if (!take_name(p, "import"))
            return fail(p, "wanted \"import\"");
        do {
            if (!take_ident(p, &name, "wanted a name") ||
                (take_name(p, "as") && !take_ident(p, &name, "wanted a name")))
                return false;
            skip_context(p);
        } while (take_op(p, ",") && p->tok->type == JT_NAME);
    }
    return end_tag(p);
}

typedef bool StatementParser(Parse *p, JinjaNode *n);

static bool parse_statement(Parse *p, JinjaNode **out)
{
    static const struct {
        const char *name;
        JinjaKind kind;
        StatementParser *parse;
    } table[] = {
        {"if", JN_IF, parse_if},
        {"for", JN_FOR, parse_for},
        {"set", JN_SET, parse_set},
        {"macro", JN_MACRO, parse_macro},
        {"call", JN_CALL_BLOCK, parse_call_block},
        {"filter", JN_FILTER_BLOCK, parse_filter_block},
        {"with", JN_WITH, parse_with},
        {"generation", JN_SCOPE, parse_generation},
        {"block", JN_SCOPE, parse_block},
        {"autoescape", JN_AUTOESCAPE, parse_autoescape},
        {"print", JN_BLOCK, parse_print},
        {"include", JN_REFUSE, parse_load},
        {"import", JN_REFUSE, parse_load},
        {"from", JN_REFUSE, parse_load},
        {"extends", JN_REFUSE, parse_load},
    };
    const Str word = p->tok->text;
    if (p->tok->type != JT_NAME)
        return fail(p, "wanted a tag's name");
    if (str_is(word, "break") || str_is(word, "continue")) {
        if (p->loops == 0)
            return fail(p, "outside a loop");
        *out = node(p, str_is(word, "break") ? JN_BREAK : JN_CONTINUE);
        p->tok++;
        return *out && end_tag(p);
    }
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        if (!str_is(word, table[i].name))
            continue;
        *out = node(p, table[i].kind);
        if (!*out)
            return false;
        p->tok++;
        return table[i].parse(p, *out);
    }
    return fail(p, "an unknown tag");
}

/* Statements up to a tag of `ends` (NULL: the end of the template), whose name is then the token.
 */
static bool parse_body(Parse *p, const char *const *ends, JinjaNode **out)
{
    NodeList items = {0};
    JinjaNode *block = node(p, JN_BLOCK);
    if (!block || !deeper(p))
        return false;
    for (;;) {
        JinjaNode *n = NULL;
        if (p->tok->type == JT_END) {
            if (ends)
                return fail(p, "a block is not closed");
            break;
        }
        if (p->tok->type == JT_TEXT) {
            n = node(p, JN_TEXT);
            if (!n)
                return false;
            n->name = p->tok->text;
            p->tok++;
        } else if (p->tok->type == JT_PRINT_BEGIN) {
            n = node(p, JN_PRINT);
            if (!n)
                return false;
            p->tok++;
            if (!parse_tuple(p, true, false, &n->a) || !want(p, JT_PRINT_END, "wanted '}}'"))
                return false;
        } else {
            if (!want(p, JT_BLOCK_BEGIN, "wanted '{%'"))
                return false;
            bool end = false;
            for (int i = 0; ends && ends[i]; i++)
                end = end || is_name(p, ends[i]);
            if (end)
                break;
            if (!parse_statement(p, &n))
                return false;
        }
        if (!push(p, &items, n))
            return false;
    }
    p->depth--;
    block->items = items.at;
    block->n_items = items.n;
    *out = block;
    return true;
}

bool jinja_parse(Arena *a, const char *doc, Str source, JinjaNode **out, Error *err)
{
    Arena tokens;
    arena_init(&tokens, doc);
    JinjaToken *tok;
    int n;
    bool ok = jinja_lex(&tokens, doc, source, &tok, &n, err);
    if (ok) {
        Parse p = {.arena = a, .doc = doc, .tok = tok, .err = err};
        ok = parse_body(&p, NULL, out);
        if (ok && p.unknown)
            ok = err_set(err, ERR_FORMAT, "%s: line %d: No %s named '%.*s'.", doc, p.unknown->line,
                         p.unknown->kind == JN_FILTER ? "filter" : "test",
                         p.unknown->name.len < 60 ? (int)p.unknown->name.len : 60,
                         p.unknown->name.ptr);
        ok = ok && jinja_scopes(a, doc, *out, err);
        mem_free(p.names);
    }
    arena_free(&tokens);
    return ok;
}
