#include "text/jinja_scope.h"

#include "base/mem.h"

/* What a name is at the start of a scope. */
typedef enum Start {
    START_NONE,  /* not met */
    START_OUTER, /* what it is around the scope */
    START_PARAM, /* given from outside */
    START_UNSET,
} Start;

typedef struct Name {
    Str name;
    Start start; /* of the scope that is looked at */
    int outer;   /* depth of the innermost scope around that knows it, 0: none */
} Name;

/* A name that a scope knows, and what its `outer` was. */
typedef struct Known {
    int name, outer;
} Known;

typedef struct Scopes {
    Arena *arena;
    const char *doc;
    Error *err;
    Name *names;
    int n_names, cap_names;
    int *table; /* of names by pointer, open addressing: index + 1 */
    size_t mask;
    Known *known; /* of the scope that is looked at and those around it */
    size_t n_known, cap_known;
    int depth, base; /* scopes; those up to base are not seen */
    int ifs;         /* around */
} Scopes;

static size_t slot_of(const Scopes *s, Str name)
{
    size_t at = ((size_t)(uintptr_t)name.ptr * 0x9E3779B97F4A7C15U >> 20) & s->mask;
    while (s->table[at] && s->names[s->table[at] - 1].name.ptr != name.ptr)
        at = (at + 1) & s->mask;
    return at;
}

static bool grow(Scopes *s)
{
    const int cap = s->cap_names ? s->cap_names * 2 : 64;
    const size_t size = (size_t)cap * 4;
    Name *names = mem_realloc(s->names, (size_t)cap * sizeof *names);
    if (names)
        s->names = names;
    int *table = names ? mem_zalloc(size * sizeof *table) : NULL;
    if (!table)
        return err_nomem(s->err, s->doc, size * sizeof *table);
    mem_free(s->table);
    s->table = table;
    s->mask = size - 1;
    s->cap_names = cap;
    for (int i = 0; i < s->n_names; i++)
        s->table[slot_of(s, s->names[i].name)] = i + 1;
    return true;
}

static bool find(Scopes *s, Str name, int *out)
{
    if (s->n_names == s->cap_names && !grow(s))
        return false;
    const size_t at = slot_of(s, name);
    if (!s->table[at]) {
        s->names[s->n_names++] = (Name){.name = name};
        s->table[at] = s->n_names;
    }
    *out = s->table[at] - 1;
    return true;
}

/* The first mention of a name in a scope. */
static bool know(Scopes *s, int name, Start start)
{
    if (s->n_known == s->cap_known) {
        const size_t cap = s->cap_known ? s->cap_known * 2 : 64;
        Known *at = mem_realloc(s->known, cap * sizeof *at);
        if (!at)
            return err_nomem(s->err, s->doc, cap * sizeof *at);
        s->known = at;
        s->cap_known = cap;
    }
    s->known[s->n_known++] = (Known){name, s->names[name].outer};
    s->names[name].start = start;
    return true;
}

static bool load(Scopes *s, Str name)
{
    int i;
    return find(s, name, &i) &&
           (s->names[i].start || s->names[i].outer > s->base || know(s, i, START_OUTER));
}

static bool store(Scopes *s, Str name)
{
    int i;
    if (!find(s, name, &i))
        return false;
    /* What an if may leave out is what it is outside. */
    const bool outer = s->names[i].outer > s->base || s->ifs > 0;
    return s->names[i].start || know(s, i, outer ? START_OUTER : START_UNSET);
}

static bool param(Scopes *s, Str name)
{
    int i;
    return find(s, name, &i) && (s->names[i].start || know(s, i, START_PARAM));
}

/* Every name that an expression reads. What is long is so on the side of `a`. */
static bool loads(Scopes *s, const JinjaNode *n)
{
    for (; n; n = n->a) {
        if (n->kind == JN_NAME && !load(s, n->name))
            return false;
        if ((n->b && !loads(s, n->b)) || (n->c && !loads(s, n->c)))
            return false;
        for (int i = 0; i < n->n_items; i++) {
            if (n->items[i] && !loads(s, n->items[i]))
                return false;
        }
        const JinjaArgNodes *args = n->args;
        for (int i = 0; args && i < args->n_pos; i++) {
            if (!loads(s, args->pos[i]))
                return false;
        }
        for (int i = 0; args && i < args->n_kw; i++) {
            if (!loads(s, args->kw[i].value))
                return false;
        }
        if (args && (!loads(s, args->star) || !loads(s, args->star_star)))
            return false;
    }
    return true;
}

static bool target(Scopes *s, const JinjaNode *n, bool is_param)
{
    if (n->kind == JN_NAME)
        return is_param ? param(s, n->name) : store(s, n->name);
    if (n->kind != JN_TUPLE)
        return loads(s, n);
    for (int i = 0; i < n->n_items; i++) {
        if (!target(s, n->items[i], is_param))
            return false;
    }
    return true;
}

static bool look(Scopes *s, const JinjaNode *n);

/* ---- statements ---- */

/* What a statement does to the names of the scope that it stands in. */
static bool look(Scopes *s, const JinjaNode *n)
{
    bool ok = true;
    switch (n->kind) {
    case JN_BLOCK:
        for (int i = 0; ok && i < n->n_items; i++)
            ok = look(s, n->items[i]);
        return ok;
    case JN_IF:
        s->ifs++;
        for (int i = 0; ok && i + 1 < n->n_items; i += 2)
            ok = loads(s, n->items[i]) && look(s, n->items[i + 1]);
        ok = ok && (!n->b || look(s, n->b));
        s->ifs--;
        return ok;
    case JN_FOR:
        return loads(s, n->b);
    case JN_SET:
        return loads(s, n->b) && target(s, n->a, false);
    case JN_SET_BLOCK:
        return target(s, n->a, false);
    case JN_MACRO:
        return store(s, n->name);
    case JN_WITH:
        for (int i = 0; ok && i + 1 < n->n_items; i += 2)
            ok = loads(s, n->items[i + 1]);
        return ok;
    case JN_PRINT:
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
        return loads(s, n->a);
    case JN_TEXT:
    case JN_SCOPE:
    case JN_AUTOESCAPE:
    case JN_REFUSE:
    case JN_BREAK:
    case JN_CONTINUE:
    case JN_CONST:
    case JN_NAME:
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT:
    case JN_ATTR:
    case JN_ITEM:
    case JN_SLICE:
    case JN_CALL:
    case JN_FILTER:
    case JN_TEST:
    case JN_NOT:
    case JN_NEG:
    case JN_POS:
    case JN_BINARY:
    case JN_AND:
    case JN_OR:
    case JN_COMPARE:
    case JN_CONCAT:
    case JN_COND:
        break;
    }
    return true;
}

/* ---- scopes ---- */

static bool scopes_in(Scopes *s, const JinjaNode *n);

/* The names of the scope whose body is looked at, from `first` on, become those around the scopes
 * inside. */
static bool close_names(Scopes *s, size_t first, JinjaNode *body)
{
    int n_unset = 0;
    for (size_t i = first; i < s->n_known; i++)
        n_unset += s->names[s->known[i].name].start == START_UNSET;
    if (n_unset > 0 &&
        !(body->unset = arena_take(s->arena, (size_t)n_unset, sizeof *body->unset, s->err)))
        return false;
    for (size_t i = first; i < s->n_known; i++) {
        Name *n = &s->names[s->known[i].name];
        if (n->start == START_UNSET)
            body->unset[body->n_unset++] = n->name;
        n->outer = s->depth;
        n->start = START_NONE;
    }
    return true;
}

/* n: whose body or else part is the scope; NULL: the template. */
static bool scope(Scopes *s, const JinjaNode *n, JinjaNode *body)
{
    const size_t first = s->n_known;
    const int base = s->base;
    const bool main = n && body == n->body;
    bool ok = true;
    if (n && n->kind == JN_SCOPE && n->flag) /* a block sees the render's variables alone */
        s->base = s->depth;
    s->depth++;
    if (main && n->kind == JN_FOR)
        ok = target(s, n->a, true);
    for (int i = 0; ok && main && i < n->n_params; i++)
        ok = param(s, n->params[i].name);
    for (int i = 0; ok && main && i < n->n_params; i++)
        ok = loads(s, n->params[i].missing);
    for (int i = 0; ok && n && n->kind == JN_WITH && i + 1 < n->n_items; i += 2)
        ok = target(s, n->items[i], true);
    if (ok && n && n->kind == JN_AUTOESCAPE)
        ok = loads(s, n->a);
    ok = ok && look(s, body) && (!n || n->kind != JN_FILTER_BLOCK || loads(s, n->a)) &&
         close_names(s, first, body) && scopes_in(s, body);
    while (s->n_known > first) {
        s->n_known--;
        s->names[s->known[s->n_known].name].outer = s->known[s->n_known].outer;
    }
    s->depth--;
    s->base = base;
    return ok;
}

static bool scopes_in(Scopes *s, const JinjaNode *n)
{
    if (n->kind == JN_BLOCK || n->kind == JN_IF) {
        for (int i = n->kind == JN_IF; i < n->n_items; i += 1 + (n->kind == JN_IF)) {
            if (!scopes_in(s, n->items[i]))
                return false;
        }
        return n->kind != JN_IF || !n->b || scopes_in(s, n->b);
    }
    return !n->body || (scope(s, n, n->body) && (!n->otherwise || scope(s, n, n->otherwise)));
}

bool jinja_scopes(Arena *a, const char *doc, JinjaNode *root, Error *err)
{
    Scopes s = {.arena = a, .doc = doc, .err = err};
    const bool ok = scope(&s, NULL, root);
    mem_free(s.names);
    mem_free(s.table);
    mem_free(s.known);
    return ok;
}
