#include "text/jinja_eval.h"

#include "text/jinja_filter.h"
#include "text/jinja_format.h"
#include "text/jinja_method.h"
#include "text/jinja_op.h"
#include "text/jinja_test.h"

#include <inttypes.h>

typedef struct JinjaVar {
    Str name;
    JinjaValue value;
} JinjaVar;

/* Variables of one block. Macros keep the scope that they were defined in, so scopes lie in the
 * arena. */
struct JinjaScope {
    JinjaScope *parent;
    JinjaVar *vars;
    int n, cap;
};

struct JinjaMacro {
    const JinjaNode *node; /* MACRO or CALL_BLOCK */
    JinjaScope *scope;
};

struct JinjaLoop {
    const JinjaNode *node;
    JinjaScope *scope; /* around the loop */
    const JinjaList *items;
    int64_t at;
    int64_t depth; /* of recursion, from 0 */
    JinjaValue changed;
};

typedef enum JinjaFunction {
    FN_NAMESPACE,
    FN_RANGE,
    FN_DICT,
    FN_RAISE_EXCEPTION,
    FN_STRFTIME_NOW,
    FN_CYCLER,
    FN_JOINER,
    FN_LIPSUM,
} JinjaFunction;

typedef enum Flow { FLOW_FAIL, FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

static bool eval(Jinja *j, const JinjaNode *n, JinjaValue *out);
static Flow exec(Jinja *j, const JinjaNode *n);
static bool call_value(Jinja *j, JinjaValue callee, const JinjaCall *call, JinjaValue *out);

/* ---- variables ---- */

static JinjaVar *scope_find(JinjaScope *s, Str name)
{
    for (int i = s->n; i-- > 0;) {
        JinjaVar *v = &s->vars[i];
        if (v->name.ptr == name.ptr || str_eq(v->name, name))
            return v;
    }
    return NULL;
}

static bool scope_push(Jinja *j)
{
    JinjaScope *s = jinja_take(j, 1, sizeof *s);
    if (!s)
        return false;
    s->parent = j->scope;
    j->scope = s;
    return true;
}

static bool scope_set(Jinja *j, Str name, JinjaValue value)
{
    JinjaScope *s = j->scope;
    JinjaVar *v = scope_find(s, name);
    if (v) {
        v->value = value;
        return true;
    }
    if (s->n == s->cap) {
        const int cap = s->cap ? s->cap * 2 : 4;
        JinjaVar *vars = jinja_take(j, (size_t)cap, sizeof *vars);
        if (!vars)
            return false;
        if (s->n)
            memcpy(vars, s->vars, (size_t)s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (JinjaVar){name, value};
    return jinja_step(j, 1 + s->n / 16);
}

static bool global(Str name, JinjaValue *out)
{
    static const char *const names[] = {[FN_NAMESPACE] = "namespace",
                                        [FN_RANGE] = "range",
                                        [FN_DICT] = "dict",
                                        [FN_RAISE_EXCEPTION] = "raise_exception",
                                        [FN_STRFTIME_NOW] = "strftime_now",
                                        [FN_CYCLER] = "cycler",
                                        [FN_JOINER] = "joiner",
                                        [FN_LIPSUM] = "lipsum"};
    for (int i = 0; i < (int)COUNT_OF(names); i++) {
        if (str_is(name, names[i])) {
            *out = (JinjaValue){.type = JINJA_FUNCTION, .u.function = i};
            return true;
        }
    }
    return false;
}

static JinjaValue undefined_name(Str name)
{
    return (JinjaValue){.type = JINJA_UNDEFINED,
                        .flags = JINJA_UNDEF_NAME,
                        .len = (uint32_t)name.len,
                        .u.s = name.ptr};
}

static bool lookup(Jinja *j, Str name, JinjaValue *out)
{
    int64_t seen = 0;
    for (JinjaScope *s = j->scope; s; s = s->parent) {
        const JinjaVar *v = scope_find(s, name);
        if (v) {
            *out = v->value;
            return true;
        }
        seen += 1 + s->n / 8;
    }
    const JinjaValue *v = jinja_dict_find(j->context, name);
    if (!v && str_is(name, "self"))
        return jinja_fail(j, "\"self\" is not supported");
    if (v)
        *out = *v;
    else if (!global(name, out))
        *out = undefined_name(name);
    return jinja_step(j, seen / 8);
}

/* Gives the value to a name, ns.name, or to each of a tuple. */
static bool assign(Jinja *j, const JinjaNode *target, JinjaValue value)
{
    if (target->kind == JN_NAME)
        return scope_set(j, target->name, value);
    if (target->kind == JN_ATTR) {
        JinjaValue ns = {0};
        if (!lookup(j, target->a->name, &ns))
            return false;
        if (ns.type != JINJA_NAMESPACE)
            return jinja_fail(
                j, "TemplateRuntimeError: cannot assign attribute on non-namespace object");
        return jinja_dict_set(j, ns.u.dict, jinja_str(target->name.ptr, target->name.len), value);
    }
    JinjaList *items;
    if (value.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, value);
    if (!jinja_iterate(j, value, &items) || !jinja_enter(j))
        return false;
    if (items->n != target->n_items)
        return jinja_fail(j, "ValueError: %s values to unpack (expected %d, got %" PRId64 ")",
                          items->n < target->n_items ? "not enough" : "too many", target->n_items,
                          items->n);
    for (int i = 0; i < target->n_items; i++) {
        if (!assign(j, target->items[i], items->at[i]))
            return false;
    }
    j->depth--;
    return true;
}

/* ---- output ---- */

static bool put(Jinja *j, Str s)
{
    if (s.len > j->limits.output_bytes - j->out.len)
        return jinja_fail(j, "the template's output is longer than %zu bytes",
                          j->limits.output_bytes);
    if (!strbuf_add(&j->out, s.ptr, s.len)) {
        j->failed = true;
        return err_nomem(j->err, j->doc, j->out.len + s.len);
    }
    return jinja_step(j, (int64_t)(s.len / 16));
}

/* What was written behind `mark`, as a string. */
static bool take_output(Jinja *j, size_t mark, JinjaValue *out)
{
    *out = jinja_str("", 0);
    if (j->out.len > mark && !jinja_copy_str(j, (Str){j->out.ptr + mark, j->out.len - mark}, out))
        return false;
    j->out.len = mark;
    out->flags = j->escape ? JINJA_SAFE : 0;
    return true;
}

/* Runs a block and takes what it wrote as a string; break and continue leave it without one. */
static Flow capture(Jinja *j, const JinjaNode *body, JinjaValue *out)
{
    const size_t mark = j->out.len;
    const Flow flow = exec(j, body);
    if (flow == FLOW_NEXT)
        return take_output(j, mark, out) ? FLOW_NEXT : FLOW_FAIL;
    j->out.len = mark;
    return flow;
}

/* ---- calls ---- */

/* Evaluates arguments; `caller` (MISSING: none) comes as one more keyword. */
static bool eval_args(Jinja *j, const JinjaArgNodes *args, JinjaValue caller, JinjaCall *out)
{
    *out = (JinjaCall){0};
    if (!args && caller.type == JINJA_MISSING)
        return true;
    const JinjaArgNodes none = {0};
    args = args ? args : &none;
    JinjaList *star = NULL;
    JinjaValue v = {0};
    JinjaValue more = {.type = JINJA_MISSING};
    if (args->star && (!eval(j, args->star, &v) || !jinja_iterate(j, v, &star)))
        return false;
    if (args->star_star) {
        if (!eval(j, args->star_star, &more))
            return false;
        if (more.type != JINJA_DICT)
            return jinja_fail(j, "TypeError: argument after ** must be a mapping, not %s",
                              jinja_type_name(more));
    }
    const size_t n_pos = (size_t)args->n_pos + (size_t)(star ? star->n : 0);
    const size_t n_kw =
        (size_t)args->n_kw + (size_t)(more.type == JINJA_DICT ? more.u.dict->n : 0) + 1;
    JinjaValue *pos = jinja_take(j, n_pos + 1, sizeof *pos);
    JinjaKw *kw = jinja_take(j, n_kw, sizeof *kw);
    if (!pos || !kw || n_pos > INT32_MAX || n_kw > INT32_MAX)
        return false;
    for (int i = 0; i < args->n_pos; i++) {
        if (!eval(j, args->pos[i], &pos[out->n_pos++]))
            return false;
    }
    for (int64_t i = 0; star && i < star->n; i++)
        pos[out->n_pos++] = star->at[i];
    for (int i = 0; i < args->n_kw; i++) {
        kw[out->n_kw].name = args->kw[i].name;
        if (!eval(j, args->kw[i].value, &kw[out->n_kw++].value))
            return false;
    }
    for (int64_t i = 0; more.type == JINJA_DICT && i < more.u.dict->n; i++) {
        const JinjaPair *p = &more.u.dict->at[i];
        if (p->key.type != JINJA_STR)
            return jinja_fail(j, "TypeError: keywords must be strings");
        kw[out->n_kw++] = (JinjaKw){jinja_text(p->key), p->value};
    }
    if (caller.type != JINJA_MISSING)
        kw[out->n_kw++] = (JinjaKw){{"caller", 6}, caller};
    out->pos = pos;
    out->kw = kw;
    return jinja_step(j, 1 + (out->n_pos + out->n_kw) / 4);
}

static const JinjaKw *find_kw(const JinjaCall *call, Str name)
{
    for (int i = 0; i < call->n_kw; i++) {
        if (str_eq(call->kw[i].name, name))
            return &call->kw[i];
    }
    return NULL;
}

static bool is_param(const JinjaNode *m, Str name)
{
    for (int i = 0; i < m->n_params; i++) {
        if (str_eq(m->params[i].name, name))
            return true;
    }
    return false;
}

/* Parameters, varargs, kwargs and caller into the macro's scope. */
static bool bind_macro(Jinja *j, const JinjaNode *m, const JinjaCall *call)
{
    const int n = m->name.len < 60 ? (int)m->name.len : 60;
    for (int i = 0; i < m->n_params; i++) {
        const JinjaParam *p = &m->params[i];
        const JinjaKw *kw = find_kw(call, p->name);
        JinjaValue v = undefined_name(p->name);
        if (i < call->n_pos && kw)
            return jinja_fail(j, "TypeError: macro '%.*s' got multiple values for an argument", n,
                              m->name.ptr);
        if (i < call->n_pos)
            v = call->pos[i];
        else if (kw)
            v = kw->value;
        else if (p->missing && !eval(j, p->missing, &v))
            return false;
        if (!scope_set(j, p->name, v))
            return false;
    }
    JinjaValue v = {0};
    if (m->op & JINJA_USES_VARARGS) {
        if (!jinja_list_new(j, JINJA_TUPLE, 0, &v))
            return false;
        for (int i = m->n_params; i < call->n_pos; i++) {
            if (!jinja_list_push(j, v.u.list, call->pos[i]))
                return false;
        }
        if (!scope_set(j, (Str){"varargs", 7}, v))
            return false;
    } else if (call->n_pos > m->n_params) {
        return jinja_fail(j, "TypeError: macro '%.*s' takes not more than %d argument(s)", n,
                          m->name.ptr, m->n_params);
    }
    const Str caller = {"caller", 6};
    const bool takes_caller = (m->op & JINJA_USES_CALLER) && !is_param(m, caller);
    JinjaValue rest = {0};
    if (!jinja_dict_new(j, JINJA_DICT, &rest))
        return false;
    v = (JinjaValue){.type = JINJA_UNDEFINED, .len = 6, .u.s = "caller"};
    for (int i = 0; i < call->n_kw; i++) {
        const JinjaKw *kw = &call->kw[i];
        if (takes_caller && str_eq(kw->name, caller))
            v = kw->value;
        else if (!is_param(m, kw->name) &&
                 !jinja_dict_set(j, rest.u.dict, jinja_str(kw->name.ptr, kw->name.len), kw->value))
            return false;
    }
    if (takes_caller && !scope_set(j, caller, v))
        return false;
    if (m->op & JINJA_USES_KWARGS)
        return scope_set(j, (Str){"kwargs", 6}, rest);
    if (rest.u.dict->n == 0)
        return true;
    const JinjaValue key = rest.u.dict->at[0].key;
    return jinja_fail(j, "TypeError: macro '%.*s' takes no keyword argument '%.*s'", n, m->name.ptr,
                      key.len < 60 ? (int)key.len : 60, key.u.s);
}

static bool call_macro(Jinja *j, const JinjaMacro *m, const JinjaCall *call, JinjaValue *out)
{
    JinjaScope *const outer = j->scope;
    const int line = j->line;
    j->scope = m->scope;
    const bool ok = scope_push(j) && bind_macro(j, m->node, call) &&
                    capture(j, m->node->body, out) != FLOW_FAIL;
    j->scope = outer;
    j->line = line;
    return ok;
}

static bool make_range(Jinja *j, const JinjaCall *call, JinjaValue *out)
{
    int64_t v[3] = {0, 0, 1};
    if (call->n_pos < 1 || call->n_pos > 3 || call->n_kw)
        return jinja_fail(j, "TypeError: range expected 1 to 3 arguments, got %d", call->n_pos);
    for (int i = 0; i < call->n_pos; i++) {
        if (!jinja_to_int(j, call->pos[i], &v[call->n_pos == 1 ? 1 : i]))
            return false;
    }
    if (v[2] == 0)
        return jinja_fail(j, "ValueError: range() arg 3 must not be zero");
    return jinja_range_new(j, v[0], v[1], v[2], out);
}

/* dict(...) and namespace(...): from a dict or pairs, and keywords. */
static bool make_dict(Jinja *j, JinjaType type, const JinjaCall *call, JinjaValue *out)
{
    if (call->n_pos > 1)
        return jinja_fail(j, "TypeError: dict expected at most 1 argument, got %d", call->n_pos);
    if (!jinja_dict_new(j, type, out))
        return false;
    if (call->n_pos == 1 && call->pos[0].type == JINJA_DICT) {
        const JinjaDict *d = call->pos[0].u.dict;
        for (int64_t i = 0; i < d->n; i++) {
            if (!jinja_step(j, 1) || !jinja_dict_set(j, out->u.dict, d->at[i].key, d->at[i].value))
                return false;
        }
    } else if (call->n_pos == 1) {
        JinjaList *pairs;
        if (call->pos[0].type == JINJA_UNDEFINED)
            return jinja_undefined_fail(j, call->pos[0]);
        if (!jinja_iterate(j, call->pos[0], &pairs))
            return false;
        for (int64_t i = 0; i < pairs->n; i++) {
            JinjaList *pair;
            if (!jinja_step(j, 1) || !jinja_iterate(j, pairs->at[i], &pair))
                return false;
            if (pair->n != 2)
                return jinja_fail(j,
                                  "ValueError: dictionary update sequence element has length "
                                  "%" PRId64 "; 2 is required",
                                  pair->n);
            if (!jinja_dict_set(j, out->u.dict, pair->at[0], pair->at[1]))
                return false;
        }
    }
    for (int i = 0; i < call->n_kw; i++) {
        const JinjaKw *kw = &call->kw[i];
        if (!jinja_dict_set(j, out->u.dict, jinja_str(kw->name.ptr, kw->name.len), kw->value))
            return false;
    }
    return true;
}

/* cycler(a, b ...): current, next() and reset(). */
static bool make_cycler(Jinja *j, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue items = {0};
    JinjaCycle *c = jinja_take(j, 1, sizeof *c);
    if (!c)
        return false;
    if (call->n_pos == 0 || call->n_kw)
        return jinja_fail(j, "TypeError: at least one item has to be provided");
    if (!jinja_list_new(j, JINJA_LIST, call->n_pos, &items))
        return false;
    for (int i = 0; i < call->n_pos; i++)
        items.u.list->at[items.u.list->n++] = call->pos[i];
    c->items = items.u.list;
    *out = (JinjaValue){.type = JINJA_CYCLER, .u.cycle = c};
    return true;
}

/* joiner(sep): a call gives the separator, the first one nothing. */
static bool make_joiner(Jinja *j, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaValue items = {0};
    JinjaCycle *c = jinja_take(j, 1, sizeof *c);
    if (!c || !jinja_bind(j, "joiner()", call, "sep", 0, arg) ||
        !jinja_list_new(j, JINJA_LIST, 1, &items))
        return false;
    items.u.list->at[items.u.list->n++] =
        arg[0].type == JINJA_MISSING ? jinja_str(", ", 2) : arg[0];
    c->items = items.u.list;
    *out = (JinjaValue){.type = JINJA_JOINER, .u.cycle = c};
    return true;
}

static bool cycler_method(Jinja *j, const JinjaMethod *m, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaCycle *c = m->self.u.cycle;
    if (!jinja_bind(j, "this method", call, "", 0, arg))
        return false;
    *out = jinja_none();
    if (str_is(m->name, "reset")) {
        c->at = 0;
    } else {
        *out = c->items->at[c->at];
        c->at = (c->at + 1) % c->items->n;
    }
    return true;
}

static bool call_function(Jinja *j, int function, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    switch ((JinjaFunction)function) {
    case FN_NAMESPACE:
        return make_dict(j, JINJA_NAMESPACE, call, out);
    case FN_DICT:
        return make_dict(j, JINJA_DICT, call, out);
    case FN_RANGE:
        return make_range(j, call, out);
    case FN_CYCLER:
        return make_cycler(j, call, out);
    case FN_JOINER:
        return make_joiner(j, call, out);
    case FN_LIPSUM:
        return jinja_fail(j, "lipsum() is not supported");
    case FN_RAISE_EXCEPTION: {
        JinjaValue text = {0};
        if (!jinja_bind(j, "raise_exception()", call, "message", 1, arg) ||
            !jinja_to_str(j, arg[0], &text))
            return false;
        return jinja_fail(j, "%.*s", text.len < 180 ? (int)text.len : 180, text.u.s);
    }
    case FN_STRFTIME_NOW: {
        Str format;
        return jinja_bind(j, "strftime_now()", call, "format", 1, arg) &&
               jinja_bound_str(j, "strftime_now()", arg[0], (Str){"", 0}, &format) &&
               jinja_strftime(j, format, j->now, out);
    }
    }
    return false;
}

/* ---- loops ---- */

static Flow run_loop(Jinja *j, const JinjaNode *n, JinjaScope *outer, JinjaValue iterable,
                     int64_t depth);

/* loop(children) in a recursive loop: the text of the loop over them. */
static bool call_loop(Jinja *j, const JinjaLoop *loop, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (!loop->node->flag)
        return jinja_fail(j, "TypeError: The loop must have the 'recursive' marker to be called "
                             "recursively.");
    if (!jinja_bind(j, "loop()", call, "iterable", 1, arg))
        return false;
    JinjaScope *const here = j->scope;
    const size_t mark = j->out.len;
    if (run_loop(j, loop->node, loop->scope, arg[0], loop->depth + 1) == FLOW_FAIL)
        return false;
    j->scope = here;
    return take_output(j, mark, out);
}

/* loop.cycle(a, b ...) and loop.changed(x ...) */
static bool loop_method(Jinja *j, const JinjaMethod *m, const JinjaCall *call, JinjaValue *out)
{
    JinjaLoop *loop = m->self.u.loop;
    if (str_is(m->name, "cycle")) {
        if (call->n_pos == 0)
            return jinja_fail(j, "TypeError: no items for cycling given");
        *out = call->pos[loop->at % call->n_pos];
        return true;
    }
    JinjaValue now = {0};
    bool same = false;
    if (!jinja_list_new(j, JINJA_TUPLE, call->n_pos, &now))
        return false;
    for (int i = 0; i < call->n_pos; i++)
        now.u.list->at[now.u.list->n++] = call->pos[i];
    if (loop->changed.type != JINJA_MISSING && !jinja_equal(j, loop->changed, now, &same))
        return false;
    loop->changed = now;
    *out = jinja_bool(!same);
    return true;
}

bool jinja_eval_repr(StrBuf *out, JinjaValue v)
{
    if (v.type == JINJA_LOOP)
        return strbuf_printf(out, "<LoopContext %" PRId64 "/%" PRId64 ">", v.u.loop->at + 1,
                             v.u.loop->items->n);
    const Str name = v.u.macro->node->name;
    if (v.u.macro->node->kind == JN_CALL_BLOCK)
        return strbuf_add_cstr(out, "<Macro anonymous>");
    strbuf_add_cstr(out, "<Macro '");
    strbuf_add(out, name.ptr, name.len);
    return strbuf_add_cstr(out, "'>");
}

int64_t jinja_eval_loop_length(JinjaValue loop)
{
    return loop.u.loop->items->n;
}

static bool make_method(Jinja *j, JinjaValue self, Str name, JinjaValue *out)
{
    JinjaMethod *m = jinja_take(j, 1, sizeof *m);
    if (!m)
        return false;
    *m = (JinjaMethod){self, name};
    *out = (JinjaValue){.type = JINJA_METHOD, .u.method = m};
    return true;
}

bool jinja_eval_attr(Jinja *j, JinjaValue obj, Str name, JinjaValue *out)
{
    *out = (JinjaValue){.type = JINJA_MISSING};
    if (obj.type == JINJA_MACRO) {
        const JinjaNode *m = obj.u.macro->node;
        if (str_is(name, "name"))
            *out = jinja_str(m->name.ptr, m->name.len);
        else if (str_is(name, "catch_kwargs"))
            *out = jinja_bool(m->op & JINJA_USES_KWARGS);
        else if (str_is(name, "catch_varargs"))
            *out = jinja_bool(m->op & JINJA_USES_VARARGS);
        else if (str_is(name, "caller"))
            *out = jinja_bool(m->op & JINJA_USES_CALLER);
        else if (str_is(name, "arguments")) {
            if (!jinja_list_new(j, JINJA_TUPLE, m->n_params, out))
                return false;
            for (int i = 0; i < m->n_params; i++)
                out->u.list->at[out->u.list->n++] =
                    jinja_str(m->params[i].name.ptr, m->params[i].name.len);
        }
        return true;
    }
    if (obj.type == JINJA_CYCLER) {
        if (str_is(name, "current"))
            *out = obj.u.cycle->items->at[obj.u.cycle->at];
        else if (str_is(name, "items"))
            *out = (JinjaValue){.type = JINJA_TUPLE, .u.list = obj.u.cycle->items};
        else if (str_is(name, "pos"))
            *out = jinja_int(obj.u.cycle->at);
        return !(str_is(name, "next") || str_is(name, "reset")) || make_method(j, obj, name, out);
    }
    const JinjaLoop *l = obj.u.loop;
    const int64_t n = l->items->n;
    if (str_is(name, "index"))
        *out = jinja_int(l->at + 1);
    else if (str_is(name, "index0"))
        *out = jinja_int(l->at);
    else if (str_is(name, "revindex"))
        *out = jinja_int(n - l->at);
    else if (str_is(name, "revindex0"))
        *out = jinja_int(n - l->at - 1);
    else if (str_is(name, "first"))
        *out = jinja_bool(l->at == 0);
    else if (str_is(name, "last"))
        *out = jinja_bool(l->at + 1 == n);
    else if (str_is(name, "length"))
        *out = jinja_int(n);
    else if (str_is(name, "depth"))
        *out = jinja_int(l->depth + 1);
    else if (str_is(name, "depth0"))
        *out = jinja_int(l->depth);
    else if (str_is(name, "previtem"))
        *out = l->at > 0 ? l->items->at[l->at - 1] : jinja_undef_attr(obj, name);
    else if (str_is(name, "nextitem"))
        *out = l->at + 1 < n ? l->items->at[l->at + 1] : jinja_undef_attr(obj, name);
    else if (str_is(name, "cycle") || str_is(name, "changed"))
        return make_method(j, obj, name, out);
    return true;
}

static bool call_value(Jinja *j, JinjaValue callee, const JinjaCall *call, JinjaValue *out)
{
    switch ((JinjaType)callee.type) {
    case JINJA_MACRO:
        return call_macro(j, callee.u.macro, call, out);
    case JINJA_FUNCTION:
        return call_function(j, callee.u.function, call, out);
    case JINJA_METHOD:
        return callee.u.method->self.type == JINJA_LOOP ? loop_method(j, callee.u.method, call, out)
               : callee.u.method->self.type == JINJA_CYCLER
                   ? cycler_method(j, callee.u.method, call, out)
                   : jinja_method_call(j, callee.u.method, call, out);
    case JINJA_JOINER: {
        JinjaValue arg[JINJA_PARAMS_MAX];
        *out = callee.u.cycle->at++ ? callee.u.cycle->items->at[0] : jinja_str("", 0);
        return jinja_bind(j, "joiner", call, "", 0, arg);
    }
    case JINJA_LOOP:
        return call_loop(j, callee.u.loop, call, out);
    case JINJA_UNDEFINED:
        return jinja_undefined_fail(j, callee);
    case JINJA_MISSING:
    case JINJA_NONE:
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
    case JINJA_STR:
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_GEN:
    case JINJA_RANGE:
    case JINJA_VIEW:
    case JINJA_DICT:
    case JINJA_NAMESPACE:
    case JINJA_CYCLER:
        break;
    }
    return jinja_fail(j, "TypeError: '%s' object is not callable", jinja_type_name(callee));
}

/* ---- expressions ---- */

static bool eval_items(Jinja *j, const JinjaNode *n, JinjaType type, JinjaValue *out)
{
    if (!jinja_list_new(j, type, n->n_items, out))
        return false;
    for (int i = 0; i < n->n_items; i++) {
        JinjaValue v = {0};
        if (!eval(j, n->items[i], &v) || !jinja_list_push(j, out->u.list, v))
            return false;
    }
    return true;
}

static bool eval_dict(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    if (!jinja_dict_new(j, JINJA_DICT, out))
        return false;
    for (int i = 0; i + 1 < n->n_items; i += 2) {
        JinjaValue key = {0};
        JinjaValue value = {0};
        if (!eval(j, n->items[i], &key) || !eval(j, n->items[i + 1], &value) ||
            !jinja_dict_set(j, out->u.dict, key, value))
            return false;
    }
    return true;
}

static bool eval_slice(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaValue obj = {0};
    JinjaValue part[3];
    if (!eval(j, n->a, &obj))
        return false;
    for (int i = 0; i < 3; i++) {
        part[i] = jinja_none();
        if (n->items[i] && !eval(j, n->items[i], &part[i]))
            return false;
    }
    return jinja_slice(j, obj, part, out);
}

static bool compare_one(Jinja *j, JinjaOp op, JinjaValue a, JinjaValue b, bool *yes)
{
    switch (op) {
    case JO_EQ:
        return jinja_equal(j, a, b, yes);
    case JO_NE:
        if (!jinja_equal(j, a, b, yes))
            return false;
        *yes = !*yes;
        return true;
    case JO_LT:
        return jinja_less(j, a, b, "<", yes);
    case JO_GT:
        return jinja_less(j, b, a, ">", yes);
    case JO_LE:
    case JO_GE:
        if (!(op == JO_LE ? jinja_less(j, b, a, "<=", yes) : jinja_less(j, a, b, ">=", yes)))
            return false;
        *yes = !*yes;
        return true;
    case JO_IN:
        return jinja_contains(j, b, a, yes);
    case JO_NOT_IN:
        if (!jinja_contains(j, b, a, yes))
            return false;
        *yes = !*yes;
        return true;
    case JO_ADD:
    case JO_SUB:
    case JO_MUL:
    case JO_DIV:
    case JO_FLOORDIV:
    case JO_MOD:
    case JO_POW:
        break;
    }
    return false;
}

static bool eval_compare(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaValue left = {0};
    bool yes = true;
    if (!eval(j, n->items[0], &left))
        return false;
    for (int i = 1; i < n->n_items && yes; i++) {
        JinjaValue right = {0};
        if (!eval(j, n->items[i], &right) ||
            !compare_one(j, (JinjaOp)n->ops[i - 1], left, right, &yes))
            return false;
        left = right;
    }
    *out = jinja_bool(yes);
    return true;
}

/* What stands for v where text is escaped. */
static bool escaped(Jinja *j, JinjaValue v, JinjaValue *out)
{
    const Str name = {"escape", 6};
    return jinja_filter(j, jinja_filter_id(name), name, v, &(JinjaCall){0}, out);
}

static bool eval_concat(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaValue sum = jinja_str("", 0);
    for (int i = 0; i < n->n_items; i++) {
        JinjaValue v = {0};
        if (!eval(j, n->items[i], &v) || !jinja_to_str(j, v, &v) ||
            (j->escape && !escaped(j, v, &v)) ||
            !jinja_join_str(j, jinja_text(sum), jinja_text(v), &sum))
            return false;
    }
    *out = sum;
    out->flags = j->escape ? JINJA_SAFE : 0;
    return true;
}

static bool eval_call(Jinja *j, const JinjaNode *n, JinjaValue caller, JinjaValue *out)
{
    JinjaValue callee = {0};
    JinjaCall call;
    if (!eval(j, n->a, &callee) || !eval_args(j, n->args, caller, &call))
        return false;
    j->line = n->line;
    return call_value(j, callee, &call, out);
}

/* `text` is what a chain of filters without a subject is applied to. */
static bool eval_filter(Jinja *j, const JinjaNode *n, const JinjaValue *text, JinjaValue *out)
{
    JinjaValue v = {0};
    JinjaCall call;
    const JinjaValue no_caller = {.type = JINJA_MISSING};
    if (!n->a && text) {
        v = *text;
    } else if (text && n->a->kind == JN_FILTER) {
        if (!jinja_enter(j) || !eval_filter(j, n->a, text, &v))
            return false;
        j->depth--;
    } else if (!eval(j, n->a, &v)) {
        return false;
    }
    if (!eval_args(j, n->args, no_caller, &call))
        return false;
    j->line = n->line;
    return jinja_filter(j, n->id, n->name, v, &call, out);
}

static bool eval_test(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaValue v = {0};
    JinjaCall call;
    bool yes;
    const JinjaValue no_caller = {.type = JINJA_MISSING};
    if (!eval(j, n->a, &v) || !eval_args(j, n->args, no_caller, &call) ||
        !jinja_test(j, n->id, n->name, v, &call, &yes))
        return false;
    *out = jinja_bool(yes != n->flag);
    return true;
}

static bool eval_binary(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaValue a = {0};
    JinjaValue b = {0};
    if (!eval(j, n->a, &a) || !eval(j, n->b, &b))
        return false;
    j->line = n->line;
    return jinja_op(j, (JinjaOp)n->op, a, b, out);
}

static bool eval_cond(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaValue yes = {0};
    if (!eval(j, n->b, &yes))
        return false;
    if (jinja_truth(yes))
        return eval(j, n->a, out);
    if (n->c)
        return eval(j, n->c, out);
    *out = (JinjaValue){.type = JINJA_UNDEFINED, .len = 16, .u.s = "an inline if ..."};
    return true;
}

static bool eval_node(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaValue v = {0};
    switch (n->kind) {
    case JN_CONST:
        *out = n->value;
        return true;
    case JN_NAME:
        return lookup(j, n->name, out);
    case JN_LIST:
        return eval_items(j, n, JINJA_LIST, out);
    case JN_TUPLE:
        return eval_items(j, n, JINJA_TUPLE, out);
    case JN_DICT:
        return eval_dict(j, n, out);
    case JN_ATTR:
        return eval(j, n->a, &v) && jinja_attr(j, v, n->name, out);
    case JN_ITEM: {
        JinjaValue key = {0};
        return eval(j, n->a, &v) && eval(j, n->b, &key) && jinja_item(j, v, key, out);
    }
    case JN_SLICE:
        return eval_slice(j, n, out);
    case JN_CALL:
        return eval_call(j, n, (JinjaValue){.type = JINJA_MISSING}, out);
    case JN_FILTER:
        return eval_filter(j, n, NULL, out);
    case JN_TEST:
        return eval_test(j, n, out);
    case JN_NOT:
        if (!eval(j, n->a, &v))
            return false;
        *out = jinja_bool(!jinja_truth(v));
        return true;
    case JN_NEG:
        return eval(j, n->a, &v) && jinja_op_negate(j, v, out);
    case JN_POS:
        return eval(j, n->a, &v) && jinja_op(j, JO_SUB, v, jinja_int(0), out);
    case JN_BINARY:
        return eval_binary(j, n, out);
    case JN_AND:
    case JN_OR:
        if (!eval(j, n->a, out))
            return false;
        return jinja_truth(*out) != (n->kind == JN_AND) || eval(j, n->b, out);
    case JN_COMPARE:
        return eval_compare(j, n, out);
    case JN_CONCAT:
        return eval_concat(j, n, out);
    case JN_COND:
        return eval_cond(j, n, out);
    case JN_TEXT:
    case JN_PRINT:
    case JN_IF:
    case JN_FOR:
    case JN_SET:
    case JN_SET_BLOCK:
    case JN_MACRO:
    case JN_CALL_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_WITH:
    case JN_SCOPE:
    case JN_AUTOESCAPE:
    case JN_REFUSE:
    case JN_BREAK:
    case JN_CONTINUE:
    case JN_BLOCK:
        break;
    }
    return jinja_fail(j, "a statement where a value is wanted");
}

static bool eval(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    j->line = n->line;
    if (!jinja_step(j, 1) || !jinja_enter(j) || !eval_node(j, n, out))
        return false;
    j->depth--;
    return true;
}

/* ---- statements ---- */

static bool print_value(Jinja *j, JinjaValue v)
{
    return jinja_to_str(j, v, &v) && (!j->escape || escaped(j, v, &v)) && put(j, jinja_text(v));
}

static Flow exec_if(Jinja *j, const JinjaNode *n)
{
    for (int i = 0; i + 1 < n->n_items; i += 2) {
        JinjaValue v = {0};
        if (!eval(j, n->items[i], &v))
            return FLOW_FAIL;
        if (jinja_truth(v))
            return exec(j, n->items[i + 1]);
    }
    return n->b ? exec(j, n->b) : FLOW_NEXT;
}

/* Whether an item passes "if" of a for tag; it is tested in a scope of its own, which stays. */
static bool passes(Jinja *j, const JinjaNode *n, JinjaScope *outer, JinjaValue item, bool *out)
{
    JinjaValue yes = {0};
    j->scope = outer;
    if (!scope_push(j) || !assign(j, n->a, item) || !eval(j, n->c, &yes))
        return false;
    *out = jinja_truth(yes);
    return true;
}

/* All that pass, for a body that may ask how many there are. Targets that are a tuple make one. */
static bool filter_items(Jinja *j, const JinjaNode *n, JinjaScope *outer, JinjaList **items)
{
    JinjaValue kept = {0};
    if (!jinja_list_new(j, JINJA_LIST, 0, &kept))
        return false;
    for (int64_t i = 0; i < (*items)->n; i++) {
        JinjaValue item = (*items)->at[i];
        bool pass;
        if (!passes(j, n, outer, item, &pass))
            return false;
        if (pass && ((n->a->kind == JN_TUPLE && !eval(j, n->a, &item)) ||
                     !jinja_list_push(j, kept.u.list, item)))
            return false;
    }
    j->scope = outer;
    *items = kept.u.list;
    return true;
}

static Flow run_loop(Jinja *j, const JinjaNode *n, JinjaScope *outer, JinjaValue iterable,
                     int64_t depth)
{
    JinjaList *items;
    if (!jinja_enter(j) || !jinja_iterate(j, iterable, &items))
        return FLOW_FAIL;
    j->scope = outer;
    if (n->c && n->op && !filter_items(j, n, outer, &items))
        return FLOW_FAIL;
    JinjaLoop *loop = jinja_take(j, 1, sizeof *loop);
    if (!loop)
        return FLOW_FAIL;
    Flow flow = FLOW_NEXT;
    bool ended = false; /* a body, without break or continue: else there is no other way */
    *loop = (JinjaLoop){.node = n, .scope = outer, .items = items, .depth = depth};
    for (loop->at = 0; loop->at < items->n; loop->at++) {
        const JinjaValue self = {.type = JINJA_LOOP, .u.loop = loop};
        if (n->c && !n->op) {
            bool pass;
            if (!passes(j, n, outer, items->at[loop->at], &pass))
                return FLOW_FAIL;
            if (!pass)
                continue;
        }
        j->scope = outer;
        if (!jinja_step(j, 1) || !scope_push(j) || !scope_set(j, (Str){"loop", 4}, self) ||
            !assign(j, n->a, items->at[loop->at]))
            return FLOW_FAIL;
        flow = exec(j, n->body);
        if (flow == FLOW_FAIL || flow == FLOW_BREAK)
            break;
        ended = ended || flow == FLOW_NEXT;
    }
    if (flow == FLOW_FAIL)
        return FLOW_FAIL;
    flow = FLOW_NEXT;
    j->scope = outer;
    if (!ended && n->otherwise) { /* its break is that of the loop around */
        if (!scope_push(j))
            return FLOW_FAIL;
        flow = exec(j, n->otherwise);
        j->scope = outer;
    }
    j->depth--;
    return flow;
}

static Flow exec_set_block(Jinja *j, const JinjaNode *n)
{
    JinjaScope *const outer = j->scope;
    JinjaValue text = {0};
    if (!scope_push(j))
        return FLOW_FAIL;
    const Flow flow = capture(j, n->body, &text);
    j->scope = outer;
    if (flow != FLOW_NEXT)
        return flow;
    if (n->b && !eval_filter(j, n->b, &text, &text))
        return FLOW_FAIL;
    return assign(j, n->a, text) ? FLOW_NEXT : FLOW_FAIL;
}

static Flow exec_filter_block(Jinja *j, const JinjaNode *n)
{
    JinjaScope *const outer = j->scope;
    JinjaValue text = {0};
    if (!scope_push(j))
        return FLOW_FAIL;
    const Flow flow = capture(j, n->body, &text);
    if (flow != FLOW_NEXT) {
        j->scope = outer;
        return flow;
    }
    if (!eval_filter(j, n->a, &text, &text))
        return FLOW_FAIL;
    j->scope = outer;
    if (text.type != JINJA_STR) {
        jinja_fail(j, "TypeError: expected str instance, %s found", jinja_type_name(text));
        return FLOW_FAIL;
    }
    return put(j, jinja_text(text)) ? FLOW_NEXT : FLOW_FAIL;
}

static bool make_macro(Jinja *j, const JinjaNode *n, JinjaValue *out)
{
    JinjaMacro *m = jinja_take(j, 1, sizeof *m);
    if (!m)
        return false;
    *m = (JinjaMacro){n, j->scope};
    *out = (JinjaValue){.type = JINJA_MACRO, .u.macro = m};
    return true;
}

static Flow exec_with(Jinja *j, const JinjaNode *n)
{
    JinjaScope *const outer = j->scope;
    JinjaScope *inner;
    if (!scope_push(j))
        return FLOW_FAIL;
    inner = j->scope;
    for (int i = 0; i + 1 < n->n_items; i += 2) { /* values do not see each other */
        JinjaValue v = {0};
        j->scope = outer;
        if (!eval(j, n->items[i + 1], &v))
            return FLOW_FAIL;
        j->scope = inner;
        if (!assign(j, n->items[i], v))
            return FLOW_FAIL;
    }
    j->scope = inner;
    const Flow flow = exec(j, n->body);
    j->scope = outer;
    return flow;
}

static Flow exec_scope(Jinja *j, const JinjaNode *n)
{
    JinjaScope *const outer = j->scope;
    j->scope = n->flag ? j->root : outer;
    if (!scope_push(j))
        return FLOW_FAIL;
    const Flow flow = exec(j, n->body);
    j->scope = outer;
    return flow;
}

static Flow exec_autoescape(Jinja *j, const JinjaNode *n)
{
    JinjaScope *const outer = j->scope;
    const bool before = j->escape;
    JinjaValue yes = {0};
    if (!eval(j, n->a, &yes) || !scope_push(j))
        return FLOW_FAIL;
    j->escape = jinja_truth(yes);
    const Flow flow = exec(j, n->body);
    j->escape = before;
    j->scope = outer;
    return flow;
}

static Flow exec_block(Jinja *j, const JinjaNode *n)
{
    for (int i = 0; i < n->n_unset; i++) {
        if (!scope_set(j, n->unset[i], undefined_name(n->unset[i])))
            return FLOW_FAIL;
    }
    for (int i = 0; i < n->n_items; i++) {
        const Flow flow = exec(j, n->items[i]);
        if (flow != FLOW_NEXT)
            return flow;
    }
    return FLOW_NEXT;
}

static bool exec_simple(Jinja *j, const JinjaNode *n)
{
    JinjaValue v = {0};
    switch (n->kind) {
    case JN_TEXT:
        return put(j, n->name);
    case JN_PRINT:
        return eval(j, n->a, &v) && print_value(j, v);
    case JN_SET:
        return eval(j, n->b, &v) && assign(j, n->a, v);
    case JN_MACRO:
        return make_macro(j, n, &v) && scope_set(j, n->name, v);
    case JN_CALL_BLOCK: {
        JinjaValue caller = {0};
        return make_macro(j, n, &caller) && eval_call(j, n->a, caller, &v) && print_value(j, v);
    }
    case JN_REFUSE:
        return jinja_fail(j, "TypeError: no loader for this environment specified");
    case JN_FOR:
    case JN_SET_BLOCK:
    case JN_FILTER_BLOCK:
    case JN_WITH:
    case JN_SCOPE:
    case JN_AUTOESCAPE:
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
    case JN_IF:
    case JN_BREAK:
    case JN_CONTINUE:
    case JN_BLOCK:
        break;
    }
    return jinja_fail(j, "a value where a statement is wanted");
}

static Flow exec(Jinja *j, const JinjaNode *n)
{
    Flow flow = FLOW_NEXT;
    j->line = n->line;
    if (!jinja_step(j, 1) || !jinja_enter(j))
        return FLOW_FAIL;
    JinjaValue v = {0};
    if (n->kind == JN_BLOCK)
        flow = exec_block(j, n);
    else if (n->kind == JN_IF)
        flow = exec_if(j, n);
    else if (n->kind == JN_FOR)
        flow = eval(j, n->b, &v) ? run_loop(j, n, j->scope, v, 0) : FLOW_FAIL;
    else if (n->kind == JN_BREAK)
        flow = FLOW_BREAK;
    else if (n->kind == JN_CONTINUE)
        flow = FLOW_CONTINUE;
    else if (n->kind == JN_SET_BLOCK)
        flow = exec_set_block(j, n);
    else if (n->kind == JN_FILTER_BLOCK)
        flow = exec_filter_block(j, n);
    else if (n->kind == JN_WITH)
        flow = exec_with(j, n);
    else if (n->kind == JN_SCOPE)
        flow = exec_scope(j, n);
    else if (n->kind == JN_AUTOESCAPE)
        flow = exec_autoescape(j, n);
    else if (!exec_simple(j, n))
        flow = FLOW_FAIL;
    j->depth--;
    return flow;
}

bool jinja_eval(Jinja *j, const JinjaNode *root)
{
    if (!scope_push(j))
        return false;
    j->root = j->scope;
    return exec(j, root) != FLOW_FAIL;
}
