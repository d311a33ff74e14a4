#include "text/jinja_value.h"

#include "text/jinja_seq.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- errors and limits ---- */

bool jinja_fail(Jinja *j, const char *fmt, ...)
{
    if (j->failed)
        return false;
    char msg[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    j->failed = true;
    return err_set(j->err, ERR_REQUEST, "%s: line %d: %s", j->doc, j->line, msg);
}

/* object_type_repr of Jinja: 'dict object', but 'None'. */
static const char *object_name(uint8_t type, char buf[32])
{
    if (type == JINJA_NONE)
        return "None";
    snprintf(buf, 32, "%s object", jinja_type_name((JinjaValue){.type = type}));
    return buf;
}

bool jinja_undefined_fail(Jinja *j, JinjaValue v)
{
    char of[32];
    const int n = v.len < 80 ? (int)v.len : 80;
    switch ((JinjaUndef)v.flags) {
    case JINJA_UNDEF_NAME:
        return jinja_fail(j, "UndefinedError: '%.*s' is undefined", n, v.u.s);
    case JINJA_UNDEF_ATTR:
        return jinja_fail(j, "UndefinedError: '%s' has no attribute '%.*s'", object_name(v.of, of),
                          n, v.u.s);
    case JINJA_UNDEF_ITEM:
        return jinja_fail(j, "UndefinedError: %s has no element %" PRId64, object_name(v.of, of),
                          v.u.i);
    case JINJA_UNDEF_UNSAFE:
        break;
    }
    return jinja_fail(j, "SecurityError: access to attribute '%.*s' of '%s' object is unsafe", n,
                      v.u.s, jinja_type_name((JinjaValue){.type = v.of}));
}

bool jinja_step(Jinja *j, int64_t n)
{
    if (j->failed)
        return false;
    j->steps += n;
    if (j->steps <= j->limits.steps)
        return true;
    return jinja_fail(j, "the template needs more than %" PRId64 " steps", j->limits.steps);
}

bool jinja_enter(Jinja *j)
{
    if (j->depth >= j->limits.depth)
        return jinja_fail(j, "the template nests deeper than %d levels", j->limits.depth);
    j->depth++;
    return true;
}

static bool use_memory(Jinja *j, size_t bytes)
{
    if (bytes > j->limits.memory_bytes || j->used > j->limits.memory_bytes - bytes)
        return jinja_fail(j, "the template needs more than %zu bytes of memory",
                          j->limits.memory_bytes);
    j->used += bytes;
    return true;
}

void *jinja_take(Jinja *j, size_t n, size_t size)
{
    if (j->failed)
        return NULL;
    if (n > SIZE_MAX / 2 / size) {
        jinja_fail(j, "the template needs too much memory");
        return NULL;
    }
    if (!use_memory(j, n * size + 16))
        return NULL;
    void *p = arena_take(&j->arena, n, size, j->err);
    if (!p)
        j->failed = true;
    return p;
}

/* ---- making ---- */

bool jinja_copy_str(Jinja *j, Str s, JinjaValue *out)
{
    char *p = jinja_take(j, s.len + 1, 1);
    if (!p)
        return false;
    if (s.len)
        memcpy(p, s.ptr, s.len);
    *out = jinja_str(p, s.len);
    return jinja_step(j, (int64_t)(s.len / 16));
}

bool jinja_join_str(Jinja *j, Str a, Str b, JinjaValue *out)
{
    if (b.len == 0) {
        *out = jinja_str(a.ptr, a.len);
        return true;
    }
    if (a.len == 0) {
        *out = jinja_str(b.ptr, b.len);
        return true;
    }
    if (!jinja_step(j, (int64_t)(b.len / 16)))
        return false;
    if (a.ptr + a.len == j->grow_at && b.len <= (size_t)(j->grow_end - j->grow_at)) {
        memcpy(j->grow_at, b.ptr, b.len);
        j->grow_at += b.len;
        *out = jinja_str(a.ptr, a.len + b.len);
        return true;
    }
    const size_t len = a.len + b.len;
    char *p;
    if (len <= (size_t)(j->grow_end - j->grow_at)) {
        p = j->grow_at;
    } else {
        const size_t room = len < 2048 ? 4096 : len * 2;
        p = jinja_take(j, room, 1);
        if (!p)
            return false;
        j->grow_end = p + room;
    }
    memcpy(p, a.ptr, a.len);
    memcpy(p + a.len, b.ptr, b.len);
    j->grow_at = p + len;
    *out = jinja_str(p, len);
    return jinja_step(j, (int64_t)(a.len / 16));
}

bool jinja_list_new(Jinja *j, JinjaType type, int64_t cap, JinjaValue *out)
{
    JinjaList *l = jinja_take(j, 1, sizeof *l);
    if (!l)
        return false;
    if (cap > 0) {
        l->at = jinja_take(j, (size_t)cap, sizeof *l->at);
        if (!l->at)
            return false;
        l->cap = cap;
    }
    *out = (JinjaValue){.type = (uint8_t)type, .u.list = l};
    return true;
}

bool jinja_list_push(Jinja *j, JinjaList *l, JinjaValue v)
{
    if (l->n == l->cap) {
        const int64_t cap = l->cap ? l->cap * 2 : 8;
        JinjaValue *at = jinja_take(j, (size_t)cap, sizeof *at);
        if (!at)
            return false;
        if (l->n)
            memcpy(at, l->at, (size_t)l->n * sizeof *at);
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = v;
    return true;
}

bool jinja_range_new(Jinja *j, int64_t start, int64_t stop, int64_t step, JinjaValue *out)
{
    if (!jinja_list_new(j, JINJA_RANGE, 0, out))
        return false;
    JinjaList *l = out->u.list;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (l->n == JINJA_RANGE_MAX)
            return jinja_fail(j,
                              "OverflowError: Range too big. The sandbox blocks ranges larger "
                              "than MAX_RANGE (%d).",
                              JINJA_RANGE_MAX);
        if (!jinja_list_push(j, l, jinja_int(i)))
            return false;
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    if (!jinja_list_push(j, l, jinja_int(start)) || !jinja_list_push(j, l, jinja_int(stop)) ||
        !jinja_list_push(j, l, jinja_int(step)))
        return false;
    l->n -= 3;
    return jinja_step(j, l->n / 4);
}

bool jinja_dict_new(Jinja *j, JinjaType type, JinjaValue *out)
{
    JinjaDict *d = jinja_take(j, 1, sizeof *d);
    if (!d)
        return false;
    *out = (JinjaValue){.type = (uint8_t)type, .u.dict = d};
    return true;
}

enum { DICT_SMALL = 8 /* pairs that are searched in order */ };

/* Equal keys hash alike: 1, 1.0 and True are one key, as in Python. */
static bool hash_key(Jinja *j, JinjaValue key, uint64_t *out)
{
    double f;
    switch ((JinjaType)key.type) {
    case JINJA_STR:
        *out = vocab_hash(key.u.s, key.len);
        return jinja_step(j, key.len / 16);
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
        f = jinja_to_double(key);
        *out = vocab_hash((const char *)&f, sizeof f);
        return true;
    case JINJA_NONE:
    case JINJA_UNDEFINED:
    case JINJA_FUNCTION:
        *out = key.type;
        return true;
    case JINJA_TUPLE: {
        if (!jinja_enter(j))
            return false;
        uint64_t h = 77;
        for (int64_t i = 0; i < key.u.list->n; i++) {
            uint64_t part = 0;
            if (!jinja_step(j, 1) || !hash_key(j, key.u.list->at[i], &part))
                return false;
            h = (h ^ part) * 0x9E3779B97F4A7C15U;
            h ^= h >> 31;
        }
        j->depth--;
        *out = h;
        return true;
    }
    case JINJA_LIST:
    case JINJA_DICT:
    case JINJA_VIEW:
        return jinja_fail(j, "TypeError: unhashable type: '%s'", jinja_type_name(key));
    case JINJA_RANGE:
        *out = (uint64_t)key.u.list->n;
        return true;
    case JINJA_CYCLER:
    case JINJA_JOINER:
    case JINJA_GEN:
    case JINJA_NAMESPACE:
    case JINJA_MACRO:
    case JINJA_METHOD:
    case JINJA_LOOP:
    case JINJA_MISSING:
        break;
    }
    *out = (uint64_t)(uintptr_t)key.u.list;
    return true;
}

static bool dict_find_slot(Jinja *j, const JinjaDict *d, JinjaValue key, int64_t *pair,
                           uint64_t *slot)
{
    uint64_t h = 0;
    if (!hash_key(j, key, &h))
        return false;
    bool same = false;
    *pair = -1;
    if (!d->index) {
        for (int64_t i = 0; i < d->n; i++) {
            if (!jinja_equal(j, d->at[i].key, key, &same))
                return false;
            if (same) {
                *pair = i;
                return true;
            }
        }
        return true;
    }
    for (*slot = h & d->mask; d->index[*slot]; *slot = (*slot + 1) & d->mask) {
        const int64_t i = (int64_t)d->index[*slot] - 1;
        if (!jinja_step(j, 1) || !jinja_equal(j, d->at[i].key, key, &same))
            return false;
        if (same) {
            *pair = i;
            return true;
        }
    }
    return true;
}

bool jinja_dict_get(Jinja *j, const JinjaDict *d, JinjaValue key, JinjaValue **found)
{
    int64_t pair;
    uint64_t slot;
    *found = NULL;
    if (!dict_find_slot(j, d, key, &pair, &slot))
        return false;
    if (pair >= 0)
        *found = &d->at[pair].value;
    return true;
}

JinjaValue *jinja_dict_find(const JinjaDict *d, Str key)
{
    if (!d->index) {
        for (int64_t i = 0; i < d->n; i++) {
            if (d->at[i].key.type == JINJA_STR && str_eq(jinja_text(d->at[i].key), key))
                return &d->at[i].value;
        }
        return NULL;
    }
    uint64_t slot = vocab_hash(key.ptr, key.len) & d->mask;
    for (; d->index[slot]; slot = (slot + 1) & d->mask) {
        JinjaPair *p = &d->at[d->index[slot] - 1];
        if (p->key.type == JINJA_STR && str_eq(jinja_text(p->key), key))
            return &p->value;
    }
    return NULL;
}

static bool dict_grow(Jinja *j, JinjaDict *d)
{
    const int64_t cap = d->cap ? d->cap * 2 : DICT_SMALL;
    JinjaPair *at = jinja_take(j, (size_t)cap, sizeof *at);
    if (!at)
        return false;
    if (d->n)
        memcpy(at, d->at, (size_t)d->n * sizeof *at);
    d->at = at;
    d->cap = cap;
    if (cap <= DICT_SMALL)
        return true;
    if (cap > INT32_MAX)
        return jinja_fail(j, "a dict is too large");
    d->index = jinja_take(j, (size_t)cap * 2, sizeof *d->index);
    if (!d->index)
        return false;
    d->mask = (uint64_t)cap * 2 - 1;
    for (int64_t i = 0; i < d->n; i++) {
        uint64_t h;
        if (!jinja_step(j, 1) || !hash_key(j, d->at[i].key, &h))
            return false;
        while (d->index[h & d->mask])
            h++;
        d->index[h & d->mask] = (uint32_t)(i + 1);
    }
    return true;
}

bool jinja_dict_set(Jinja *j, JinjaDict *d, JinjaValue key, JinjaValue value)
{
    int64_t pair;
    uint64_t slot = 0;
    if (!dict_find_slot(j, d, key, &pair, &slot))
        return false;
    if (pair >= 0) {
        d->at[pair].value = value;
        return true;
    }
    if (d->n == d->cap) {
        if (!dict_grow(j, d) || !dict_find_slot(j, d, key, &pair, &slot))
            return false;
    }
    d->at[d->n++] = (JinjaPair){key, value};
    if (d->index)
        d->index[slot] = (uint32_t)d->n;
    return true;
}

bool jinja_from_json(Jinja *j, const json_t *v, JinjaValue *out)
{
    if (!v) {
        *out = jinja_none();
        return true;
    }
    if (!jinja_step(j, 1) || !jinja_enter(j))
        return false;
    bool ok = true;
    switch (json_typeof(v)) {
    case JSON_OBJECT: {
        ok = jinja_dict_new(j, JINJA_DICT, out);
        for (void *it = json_object_iter((json_t *)(uintptr_t)v); ok && it;
             it = json_object_iter_next((json_t *)(uintptr_t)v, it)) {
            const JinjaValue key =
                jinja_str(json_object_iter_key(it), json_object_iter_key_len(it));
            JinjaValue value = {0};
            ok = jinja_from_json(j, json_object_iter_value(it), &value) &&
                 jinja_dict_set(j, out->u.dict, key, value);
        }
        break;
    }
    case JSON_ARRAY: {
        const size_t n = json_array_size(v);
        ok = jinja_list_new(j, JINJA_LIST, (int64_t)n, out);
        for (size_t i = 0; ok && i < n; i++) {
            JinjaValue item = {0};
            ok = jinja_from_json(j, json_array_get(v, i), &item) &&
                 jinja_list_push(j, out->u.list, item);
        }
        break;
    }
    case JSON_STRING: /* borrowed: the JSON outlives the render */
        if (json_string_length(v) > UINT32_MAX)
            ok = jinja_fail(j, "a string of more than 4 GiB");
        else
            *out = jinja_str(json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        *out = jinja_int(json_integer_value(v));
        break;
    case JSON_REAL:
        *out = jinja_float(json_real_value(v));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jinja_bool(json_is_true(v));
        break;
    case JSON_NULL:
        *out = jinja_none();
        break;
    }
    j->depth--;
    return ok;
}

/* ---- reading ---- */

const char *jinja_type_name(JinjaValue v)
{
    switch ((JinjaType)v.type) {
    case JINJA_UNDEFINED:
        return "Undefined";
    case JINJA_NONE:
        return "NoneType";
    case JINJA_BOOL:
        return "bool";
    case JINJA_INT:
        return "int";
    case JINJA_FLOAT:
        return "float";
    case JINJA_STR:
        return "str";
    case JINJA_LIST:
        return "list";
    case JINJA_TUPLE:
        return "tuple";
    case JINJA_GEN:
        return "generator";
    case JINJA_RANGE:
        return "range";
    case JINJA_VIEW:
        return v.flags == JINJA_KEYS     ? "dict_keys"
               : v.flags == JINJA_VALUES ? "dict_values"
                                         : "dict_items";
    case JINJA_DICT:
        return "dict";
    case JINJA_NAMESPACE:
        return "Namespace";
    case JINJA_MACRO:
        return "Macro";
    case JINJA_FUNCTION:
    case JINJA_METHOD:
        return "function";
    case JINJA_LOOP:
        return "LoopContext";
    case JINJA_CYCLER:
        return "Cycler";
    case JINJA_JOINER:
        return "Joiner";
    case JINJA_MISSING:
        break;
    }
    return "missing";
}

bool jinja_truth(JinjaValue v)
{
    switch ((JinjaType)v.type) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.u.b;
    case JINJA_INT:
        return v.u.i != 0;
    case JINJA_FLOAT:
        return v.u.f != 0.0;
    case JINJA_STR:
        return v.len > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        return v.u.list->n > 0;
    case JINJA_DICT:
        return v.u.dict->n > 0;
    case JINJA_GEN:
    case JINJA_NAMESPACE:
    case JINJA_MACRO:
    case JINJA_FUNCTION:
    case JINJA_METHOD:
    case JINJA_LOOP:
    case JINJA_CYCLER:
    case JINJA_JOINER:
        break;
    }
    return true;
}

double jinja_to_double(JinjaValue number)
{
    return number.type == JINJA_FLOAT  ? number.u.f
           : number.type == JINJA_BOOL ? (number.u.b ? 1.0 : 0.0)
                                       : (double)number.u.i;
}

bool jinja_to_int(Jinja *j, JinjaValue v, int64_t *out)
{
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (v.type == JINJA_BOOL)
        *out = v.u.b;
    else if (v.type == JINJA_INT)
        *out = v.u.i;
    else
        return jinja_fail(j, "TypeError: '%s' object cannot be interpreted as an integer",
                          jinja_type_name(v));
    return true;
}

bool jinja_iterate(Jinja *j, JinjaValue v, JinjaList **out)
{
    JinjaValue made = {0};
    switch ((JinjaType)v.type) {
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        *out = v.u.list;
        return true;
    case JINJA_GEN:
        if (v.u.list->pos == 0) {
            v.u.list->pos = 1;
            *out = v.u.list;
            return true;
        }
        break; /* read before: nothing is left */
    case JINJA_UNDEFINED:
        break;
    case JINJA_DICT:
        if (!jinja_list_new(j, JINJA_LIST, v.u.dict->n, &made))
            return false;
        for (int64_t i = 0; i < v.u.dict->n; i++) {
            if (!jinja_list_push(j, made.u.list, v.u.dict->at[i].key))
                return false;
        }
        *out = made.u.list;
        return jinja_step(j, v.u.dict->n / 16);
    case JINJA_STR: {
        if (!jinja_list_new(j, JINJA_LIST, (int64_t)utf8_count(jinja_text(v)), &made) ||
            !jinja_step(j, v.len))
            return false;
        for (size_t i = 0; i < v.len;) {
            const size_t n = utf8_step(v.u.s[i]);
            if (!jinja_list_push(j, made.u.list, jinja_str(v.u.s + i, n)))
                return false;
            i += n;
        }
        *out = made.u.list;
        return true;
    }
    case JINJA_MISSING:
    case JINJA_NONE:
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
    case JINJA_NAMESPACE:
    case JINJA_MACRO:
    case JINJA_FUNCTION:
    case JINJA_METHOD:
    case JINJA_LOOP:
    case JINJA_CYCLER:
    case JINJA_JOINER:
        return jinja_fail(j, "TypeError: '%s' object is not iterable", jinja_type_name(v));
    }
    if (!jinja_list_new(j, JINJA_LIST, 0, &made))
        return false;
    *out = made.u.list;
    return true;
}

bool jinja_length(Jinja *j, JinjaValue v, int64_t *out)
{
    if (v.type == JINJA_STR) {
        *out = (int64_t)utf8_count(jinja_text(v));
        return jinja_step(j, v.len / 16);
    }
    if (jinja_is_seq(v) && v.type != JINJA_GEN)
        *out = v.u.list->n;
    else if (v.type == JINJA_DICT)
        *out = v.u.dict->n;
    else if (v.type == JINJA_LOOP)
        *out = jinja_eval_loop_length(v);
    else if (v.type == JINJA_UNDEFINED)
        *out = 0;
    else
        return jinja_fail(j, "TypeError: object of type '%s' has no len()", jinja_type_name(v));
    return true;
}

static bool equal_lists(Jinja *j, const JinjaList *a, const JinjaList *b, bool *out)
{
    *out = a->n == b->n;
    for (int64_t i = 0; *out && i < a->n; i++) {
        if (!jinja_equal(j, a->at[i], b->at[i], out))
            return false;
    }
    return true;
}

/* Of keys and items alone: what they hold, in any order. */
static bool equal_views(Jinja *j, JinjaValue a, JinjaValue b, bool *out)
{
    *out = a.u.list == b.u.list ||
           (a.flags != JINJA_VALUES && b.flags != JINJA_VALUES && a.u.list->n == b.u.list->n);
    for (int64_t i = 0; *out && i < a.u.list->n; i++) {
        if (!jinja_contains(j, b, a.u.list->at[i], out))
            return false;
    }
    return true;
}

static bool equal_dicts(Jinja *j, const JinjaDict *a, const JinjaDict *b, bool *out)
{
    *out = a->n == b->n;
    for (int64_t i = 0; *out && i < a->n; i++) {
        JinjaValue *other;
        if (!jinja_dict_get(j, b, a->at[i].key, &other))
            return false;
        if (!other)
            *out = false;
        else if (!jinja_equal(j, a->at[i].value, *other, out))
            return false;
    }
    return true;
}

bool jinja_equal(Jinja *j, JinjaValue a, JinjaValue b, bool *out)
{
    *out = false;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.type != JINJA_FLOAT && b.type != JINJA_FLOAT)
            *out = (a.type == JINJA_BOOL ? a.u.b : a.u.i) == (b.type == JINJA_BOOL ? b.u.b : b.u.i);
        else
            *out = jinja_to_double(a) == jinja_to_double(b);
        return true;
    }
    if (a.type != b.type)
        return true;
    bool ok = true;
    switch ((JinjaType)a.type) {
    case JINJA_STR:
        *out = str_eq(jinja_text(a), jinja_text(b));
        return a.len < 16 || jinja_step(j, a.len / 16);
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        *out = true;
        return true;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        if (!jinja_step(j, 1) || !jinja_enter(j))
            return false;
        ok = a.type == JINJA_VIEW ? equal_views(j, a, b, out)
                                  : equal_lists(j, a.u.list, b.u.list, out);
        j->depth--;
        return ok;
    case JINJA_DICT:
        if (!jinja_step(j, 1) || !jinja_enter(j))
            return false;
        ok = equal_dicts(j, a.u.dict, b.u.dict, out);
        j->depth--;
        return ok;
    case JINJA_FUNCTION:
        *out = a.u.function == b.u.function;
        return true;
    case JINJA_MISSING:
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
    case JINJA_GEN:
    case JINJA_NAMESPACE:
    case JINJA_MACRO:
    case JINJA_METHOD:
    case JINJA_LOOP:
    case JINJA_CYCLER:
    case JINJA_JOINER:
        break;
    }
    *out = a.u.list == b.u.list;
    return true;
}

bool jinja_less(Jinja *j, JinjaValue a, JinjaValue b, const char *op, bool *out)
{
    if (a.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, a);
    if (b.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, b);
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.type == JINJA_INT && b.type == JINJA_INT)
            *out = a.u.i < b.u.i;
        else
            *out = jinja_to_double(a) < jinja_to_double(b);
        return true;
    }
    if (a.type == JINJA_STR && b.type == JINJA_STR) { /* UTF-8 sorts as its code points */
        const size_t n = a.len < b.len ? a.len : b.len;
        const int c = n ? memcmp(a.u.s, b.u.s, n) : 0;
        *out = c ? c < 0 : a.len < b.len;
        return jinja_step(j, (int64_t)(n / 16));
    }
    if (a.type == b.type && (a.type == JINJA_LIST || a.type == JINJA_TUPLE)) {
        if (!jinja_step(j, 1) || !jinja_enter(j))
            return false;
        const JinjaList *x = a.u.list;
        const JinjaList *y = b.u.list;
        int64_t i = 0;
        bool same = true;
        while (i < x->n && i < y->n) {
            if (!jinja_equal(j, x->at[i], y->at[i], &same))
                return false;
            if (!same)
                break;
            i++;
        }
        bool ok = true;
        if (i < x->n && i < y->n)
            ok = jinja_less(j, x->at[i], y->at[i], op, out);
        else
            *out = x->n < y->n;
        j->depth--;
        return ok;
    }
    return jinja_fail(j, "TypeError: '%s' not supported between instances of '%s' and '%s'", op,
                      jinja_type_name(a), jinja_type_name(b));
}

bool jinja_contains(Jinja *j, JinjaValue box, JinjaValue item, bool *out)
{
    *out = false;
    if (box.type == JINJA_STR) {
        if (item.type == JINJA_UNDEFINED)
            return jinja_undefined_fail(j, item);
        if (item.type != JINJA_STR)
            return jinja_fail(j, "TypeError: 'in <string>' requires string as left operand, not %s",
                              jinja_type_name(item));
        *out = item.len == 0 || memmem(box.u.s, box.len, item.u.s, item.len) != NULL;
        return jinja_step(j, box.len / 16);
    }
    if (box.type == JINJA_DICT) {
        JinjaValue *found;
        if (!jinja_dict_get(j, box.u.dict, item, &found))
            return false;
        *out = found != NULL;
        return true;
    }
    const bool pair = item.type == JINJA_TUPLE && item.u.list->n == 2;
    if (box.type == JINJA_VIEW && box.flags != JINJA_VALUES &&
        (box.flags == JINJA_KEYS || pair)) { /* looked up, and so one that could be a key */
        uint64_t h;
        if (!hash_key(j, pair && box.flags == JINJA_ITEMS ? item.u.list->at[0] : item, &h))
            return false;
    }
    if (!jinja_is_seq(box) && box.type != JINJA_UNDEFINED)
        return jinja_fail(j, "TypeError: argument of type '%s' is not iterable",
                          jinja_type_name(box));
    JinjaList none = {0};
    JinjaList *l = &none;
    if (!jinja_iterate(j, box, &l))
        return false;
    for (int64_t i = 0; i < l->n && !*out; i++) {
        if (!jinja_step(j, 1) || !jinja_equal(j, l->at[i], item, out))
            return false;
    }
    return true;
}

/* ---- text ---- */

void jinja_buf(const Jinja *j, StrBuf *b)
{
    strbuf_init(b, j->limits.memory_bytes - j->used);
}

bool jinja_buf_check(Jinja *j, const StrBuf *b)
{
    if (!b->failed)
        return !j->failed;
    /* Near the limit it was the limit: buffers grow by doubling. */
    if (b->max < b->len * 2 + (1 << 20))
        return jinja_fail(j, "the template needs more than %zu bytes of memory",
                          j->limits.memory_bytes);
    if (!j->failed)
        err_nomem(j->err, j->doc, b->cap);
    j->failed = true;
    return false;
}

bool jinja_take_buf(Jinja *j, StrBuf *b, JinjaValue *out)
{
    const bool ok = jinja_buf_check(j, b) && jinja_copy_str(j, strbuf_str(b), out);
    strbuf_free(b);
    return ok;
}

void jinja_float_text(double f, char out[32])
{
    if (!isfinite(f)) {
        snprintf(out, 32, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    /* The fewest digits that read back as the same number; then Python's choice of notation. */
    char sci[32];
    int digits = 1;
    for (; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(sci, sizeof sci, "%.*e", digits - 1, f);
        if (strtod(sci, NULL) == f)
            break;
    }
    const char *e = strchr(sci, 'e');
    const long exp = e ? strtol(e + 1, NULL, 10) : 0;
    if (exp < -4 || exp >= 16) {
        const int n = e ? (int)(e - sci) : 0;
        snprintf(out, 32, "%.*se%c%02ld", n, sci, exp < 0 ? '-' : '+', labs(exp));
        return;
    }
    const int decimals = digits - 1 - (int)exp;
    snprintf(out, 32, "%.*f", decimals > 1 ? decimals : 1, f);
}

bool jinja_is_printable(uint32_t cp)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    /* Unassigned is 0; separators and the "other" categories are the last ones. */
    return cp == ' ' || (c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS);
}

static void repr_str(StrBuf *out, Str s)
{
    const bool single = s.len && memchr(s.ptr, '\'', s.len);
    const bool dbl = s.len && memchr(s.ptr, '"', s.len);
    const char quote = single && !dbl ? '"' : '\'';
    strbuf_add(out, &quote, 1);
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = 0;
        const size_t n = (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        if (cp == '\\' || cp == (uint32_t)quote)
            strbuf_printf(out, "\\%c", (char)cp);
        else if (cp == '\n')
            strbuf_add_cstr(out, "\\n");
        else if (cp == '\r')
            strbuf_add_cstr(out, "\\r");
        else if (cp == '\t')
            strbuf_add_cstr(out, "\\t");
        else if (cp < 0x20 || cp == 0x7F || (cp >= 0x80 && !jinja_is_printable(cp)))
            strbuf_printf(out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        else
            strbuf_add(out, s.ptr + i, n);
        i += n ? n : 1;
    }
    strbuf_add(out, &quote, 1);
}

/* Whether a list or dict is inside itself, which takes a namespace; then three dots stand for it.
 */
static bool is_open(const Jinja *j, const void *box)
{
    for (const JinjaOpen *o = j->open; o && j->open_namespaces > 0; o = o->outer) {
        if (o->box == box)
            return true;
    }
    return false;
}

static bool write_seq(Jinja *j, StrBuf *out, JinjaValue v)
{
    const JinjaList *l = v.u.list;
    const JinjaOpen here = {j->open, l};
    if (is_open(j, l))
        return strbuf_add_cstr(out, v.type == JINJA_TUPLE ? "(...)" : "[...]");
    j->open = &here;
    strbuf_add_cstr(out, v.type == JINJA_TUPLE ? "(" : "[");
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            strbuf_add_cstr(out, ", ");
        if (!jinja_write(j, out, l->at[i], true))
            return false;
    }
    if (v.type == JINJA_TUPLE && l->n == 1)
        strbuf_add_cstr(out, ",");
    strbuf_add_cstr(out, v.type == JINJA_TUPLE ? ")" : "]");
    j->open = here.outer;
    return true;
}

static bool write_dict(Jinja *j, StrBuf *out, const JinjaDict *d)
{
    const JinjaOpen here = {j->open, d};
    if (is_open(j, d))
        return strbuf_add_cstr(out, "{...}");
    j->open = &here;
    strbuf_add_cstr(out, "{");
    for (int64_t i = 0; i < d->n; i++) {
        if (i)
            strbuf_add_cstr(out, ", ");
        if (!jinja_write(j, out, d->at[i].key, true))
            return false;
        strbuf_add_cstr(out, ": ");
        if (!jinja_write(j, out, d->at[i].value, true))
            return false;
    }
    strbuf_add_cstr(out, "}");
    j->open = here.outer;
    return true;
}

bool jinja_write(Jinja *j, StrBuf *out, JinjaValue v, bool repr)
{
    char text[32];
    bool ok = true;
    const size_t before = out->len;
    if (!jinja_enter(j))
        return false;
    switch ((JinjaType)v.type) {
    case JINJA_MISSING:
        break;
    case JINJA_UNDEFINED:
        if (repr)
            strbuf_add_cstr(out, "Undefined");
        break;
    case JINJA_NONE:
        strbuf_add_cstr(out, "None");
        break;
    case JINJA_BOOL:
        strbuf_add_cstr(out, v.u.b ? "True" : "False");
        break;
    case JINJA_INT:
        strbuf_printf(out, "%" PRId64, v.u.i);
        break;
    case JINJA_FLOAT:
        jinja_float_text(v.u.f, text);
        strbuf_add_cstr(out, text);
        break;
    case JINJA_STR:
        if (repr && (v.flags & JINJA_SAFE)) {
            strbuf_add_cstr(out, "Markup(");
            repr_str(out, jinja_text(v));
            strbuf_add_cstr(out, ")");
        } else if (repr)
            repr_str(out, jinja_text(v));
        else
            strbuf_add(out, v.u.s, v.len);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        ok = write_seq(j, out, v);
        break;
    case JINJA_RANGE: {
        const JinjaValue *of = v.u.list->at + v.u.list->n;
        strbuf_printf(out, "range(%" PRId64 ", %" PRId64, of[0].u.i, of[1].u.i);
        if (of[2].u.i != 1)
            strbuf_printf(out, ", %" PRId64, of[2].u.i);
        strbuf_add_cstr(out, ")");
        break;
    }
    case JINJA_VIEW:
        strbuf_printf(out, "%s(", jinja_type_name(v));
        ok = write_seq(j, out, v);
        strbuf_add_cstr(out, ")");
        break;
    case JINJA_DICT:
        ok = write_dict(j, out, v.u.dict);
        break;
    case JINJA_NAMESPACE:
        strbuf_add_cstr(out, "<Namespace ");
        j->open_namespaces++;
        ok = write_dict(j, out, v.u.dict);
        j->open_namespaces--;
        strbuf_add_cstr(out, ">");
        break;
    case JINJA_MACRO:
    case JINJA_LOOP:
        ok = jinja_eval_repr(out, v);
        break;
    case JINJA_GEN:
    case JINJA_FUNCTION:
    case JINJA_METHOD:
    case JINJA_CYCLER:
    case JINJA_JOINER:
        strbuf_printf(out, "<%s object>", jinja_type_name(v));
        break;
    }
    j->depth--;
    return ok && jinja_step(j, 1 + (int64_t)((out->len - before) / 16));
}

bool jinja_to_str(Jinja *j, JinjaValue v, JinjaValue *out)
{
    if (v.type == JINJA_STR) {
        *out = v;
        return true;
    }
    if (v.type == JINJA_UNDEFINED) {
        *out = jinja_str("", 0);
        return true;
    }
    StrBuf b;
    jinja_buf(j, &b);
    if (!jinja_write(j, &b, v, false)) {
        strbuf_free(&b);
        return false;
    }
    return jinja_take_buf(j, &b, out);
}

/* ---- JSON ---- */

static void json_str(StrBuf *out, Str s, bool ascii)
{
    strbuf_add_cstr(out, "\"");
    size_t run = 0; /* start of what goes out as it is */
    for (size_t i = 0; i < s.len;) {
        uint32_t cp = (unsigned char)s.ptr[i];
        size_t n = 1;
        if (cp >= 0x80) {
            if (!ascii) {
                i++;
                continue;
            }
            n = (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
            n = n ? n : 1;
        } else if (cp >= 0x20 && cp != '"' && cp != '\\' && !(ascii && cp == 0x7F)) {
            i++;
            continue;
        }
        strbuf_add(out, s.ptr + run, i - run);
        static const char named[] = "\b\f\n\r\t\"\\";
        static const char letter[] = "bfnrt\"\\";
        const char *at = cp && cp < 0x80 ? strchr(named, (int)cp) : NULL;
        if (at)
            strbuf_printf(out, "\\%c", letter[at - named]);
        else if (cp >= 0x10000)
            strbuf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                          0xDC00 + (cp & 0x3FF));
        else
            strbuf_printf(out, "\\u%04x", cp);
        i += n;
        run = i;
    }
    strbuf_add(out, s.ptr + run, s.len - run);
    strbuf_add_cstr(out, "\"");
}

static void json_line(StrBuf *out, const JinjaJson *how, int level)
{
    if (!how->multiline)
        return;
    strbuf_add_cstr(out, "\n");
    for (int i = 0; i < level; i++)
        strbuf_add(out, how->indent.ptr, how->indent.len);
}

static bool json_value(Jinja *j, StrBuf *out, JinjaValue v, const JinjaJson *how, int level);

static bool json_key(Jinja *j, StrBuf *out, JinjaValue key, const JinjaJson *how)
{
    if (key.type == JINJA_STR) {
        json_str(out, jinja_text(key), how->ascii);
        return true;
    }
    if (!jinja_is_number(key) && key.type != JINJA_NONE)
        return jinja_fail(j, "TypeError: keys must be str, int, float, bool or None, not %s",
                          jinja_type_name(key));
    strbuf_add_cstr(out, "\"");
    if (!json_value(j, out, key, how, 0))
        return false;
    strbuf_add_cstr(out, "\"");
    return true;
}

static bool json_dict(Jinja *j, StrBuf *out, const JinjaDict *d, const JinjaJson *how, int level)
{
    const JinjaPair *at = d->at;
    if (d->n == 0) {
        strbuf_add_cstr(out, "{}");
        return true;
    }
    if (how->sort && !jinja_sorted_pairs(j, d, false, &at))
        return false;
    strbuf_add_cstr(out, "{");
    for (int64_t i = 0; i < d->n; i++) {
        if (i)
            strbuf_add(out, how->item_sep.ptr, how->item_sep.len);
        json_line(out, how, level + 1);
        if (!json_key(j, out, at[i].key, how))
            return false;
        strbuf_add(out, how->key_sep.ptr, how->key_sep.len);
        if (!json_value(j, out, at[i].value, how, level + 1))
            return false;
    }
    json_line(out, how, level);
    strbuf_add_cstr(out, "}");
    return true;
}

static bool json_list(Jinja *j, StrBuf *out, const JinjaList *l, const JinjaJson *how, int level)
{
    if (l->n == 0) {
        strbuf_add_cstr(out, "[]");
        return true;
    }
    strbuf_add_cstr(out, "[");
    for (int64_t i = 0; i < l->n; i++) {
        if (i)
            strbuf_add(out, how->item_sep.ptr, how->item_sep.len);
        json_line(out, how, level + 1);
        if (!json_value(j, out, l->at[i], how, level + 1))
            return false;
    }
    json_line(out, how, level);
    strbuf_add_cstr(out, "]");
    return true;
}

static bool json_value(Jinja *j, StrBuf *out, JinjaValue v, const JinjaJson *how, int level)
{
    char text[32];
    bool ok = true;
    const size_t before = out->len;
    if (!jinja_enter(j))
        return false;
    switch ((JinjaType)v.type) {
    case JINJA_NONE:
        strbuf_add_cstr(out, "null");
        break;
    case JINJA_BOOL:
        strbuf_add_cstr(out, v.u.b ? "true" : "false");
        break;
    case JINJA_INT:
        strbuf_printf(out, "%" PRId64, v.u.i);
        break;
    case JINJA_FLOAT:
        jinja_float_text(v.u.f, text);
        strbuf_add_cstr(out, isnan(v.u.f)   ? "NaN"
                             : isinf(v.u.f) ? (v.u.f < 0 ? "-Infinity" : "Infinity")
                                            : text);
        break;
    case JINJA_STR:
        json_str(out, jinja_text(v), how->ascii);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        ok = json_list(j, out, v.u.list, how, level);
        break;
    case JINJA_DICT:
        ok = json_dict(j, out, v.u.dict, how, level);
        break;
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_GEN:
    case JINJA_NAMESPACE:
    case JINJA_MACRO:
    case JINJA_FUNCTION:
    case JINJA_METHOD:
    case JINJA_LOOP:
    case JINJA_CYCLER:
    case JINJA_JOINER:
    case JINJA_RANGE:
    case JINJA_VIEW:
        ok = jinja_fail(j, "TypeError: Object of type %s is not JSON serializable",
                        jinja_type_name(v));
        break;
    }
    j->depth--;
    return ok && jinja_step(j, 1 + (int64_t)((out->len - before) / 16));
}

bool jinja_to_json(Jinja *j, StrBuf *out, JinjaValue v, const JinjaJson *how)
{
    return json_value(j, out, v, how, 0);
}
