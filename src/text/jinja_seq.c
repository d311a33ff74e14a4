#include "text/jinja_seq.h"

#include "text/jinja_filter.h"
#include "text/jinja_method.h"
#include "text/jinja_op.h"
#include "text/jinja_test.h"

/* ---- attributes of items ---- */

/* v.attribute, where attribute is a whole number or a dotted path. */
static bool get_path(Jinja *j, JinjaValue v, JinjaValue path, JinjaValue *out)
{
    if (path.type != JINJA_STR)
        return jinja_item(j, v, path, out);
    Str rest = jinja_text(path);
    *out = v;
    for (;;) {
        const char *dot = rest.len ? memchr(rest.ptr, '.', rest.len) : NULL;
        const Str part = {rest.ptr, dot ? (size_t)(dot - rest.ptr) : rest.len};
        int64_t i;
        const JinjaValue key =
            str_to_int(part, 0, INT32_MAX, &i) ? jinja_int(i) : jinja_str(part.ptr, part.len);
        if (!jinja_step(j, 1) || !jinja_item(j, *out, key, out))
            return false;
        if (!dot)
            return true;
        rest = (Str){dot + 1, rest.len - part.len - 1};
    }
}

/* The value that an item is sorted or compared by. */
static bool item_key(Jinja *j, JinjaValue v, JinjaValue attribute, bool case_sensitive,
                     JinjaValue *out)
{
    *out = v;
    if (attribute.type != JINJA_MISSING && attribute.type != JINJA_NONE &&
        !get_path(j, v, attribute, out))
        return false;
    if (out->type == JINJA_STR && !case_sensitive)
        return jinja_case(j, jinja_text(*out), JINJA_LOWER, out);
    return true;
}

/* Several attributes with commas give a list of keys. */
static bool sort_key(Jinja *j, JinjaValue v, JinjaValue attribute, bool case_sensitive,
                     JinjaValue *out)
{
    JinjaValue names = {0};
    if (attribute.type != JINJA_STR || !memchr(attribute.u.s, ',', attribute.len))
        return item_key(j, v, attribute, case_sensitive, out);
    if (!jinja_split(j, jinja_text(attribute), (Str){",", 1}, -1, false, &names) ||
        !jinja_list_new(j, JINJA_LIST, names.u.list->n, out))
        return false;
    for (int64_t i = 0; i < names.u.list->n; i++) {
        JinjaValue part = {0};
        if (!item_key(j, v, names.u.list->at[i], case_sensitive, &part) ||
            !jinja_list_push(j, out->u.list, part))
            return false;
    }
    return true;
}

typedef struct Keyed {
    JinjaValue key, value;
} Keyed;

typedef enum Order {
    ORDER_PLAIN,
    ORDER_LISTED, /* as inside a list, where equal ones are never asked for their order */
    ORDER_MIXED,  /* types that have no order among them go by their names */
} Order;

static bool key_less(Jinja *j, JinjaValue a, JinjaValue b, Order order, bool *out)
{
    bool same = false;
    *out = false;
    if (order == ORDER_MIXED && a.type != b.type && !(jinja_is_number(a) && jinja_is_number(b))) {
        *out = strcmp(jinja_type_name(a), jinja_type_name(b)) < 0;
        return true;
    }
    if (order == ORDER_MIXED && a.type == JINJA_NONE)
        return true;
    if (order == ORDER_LISTED && !jinja_equal(j, a, b, &same))
        return false;
    return same || jinja_less(j, a, b, "<", out);
}

/* Stable merge sort of at[0, n), with `tmp` as room. */
static bool sort_keyed(Jinja *j, Keyed *at, Keyed *tmp, int64_t n, bool reverse, Order order)
{
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t from = 0; from < n; from += 2 * width) {
            const int64_t mid = i64_min(from + width, n);
            const int64_t end = i64_min(from + 2 * width, n);
            int64_t a = from;
            int64_t b = mid;
            for (int64_t k = from; k < end; k++) {
                bool take_b = a == mid;
                if (a < mid && b < end) { /* the right one only when it is truly before */
                    const bool ok = reverse ? key_less(j, at[a].key, at[b].key, order, &take_b)
                                            : key_less(j, at[b].key, at[a].key, order, &take_b);
                    if (!ok || !jinja_step(j, 1))
                        return false;
                }
                tmp[k] = take_b ? at[b++] : at[a++];
            }
        }
        memcpy(at, tmp, (size_t)n * sizeof *at);
    }
    return true;
}

static bool keyed_of(Jinja *j, const JinjaList *items, JinjaValue attribute, bool case_sensitive,
                     Keyed **out)
{
    Keyed *at = jinja_take(j, (size_t)items->n * 2 + 1, sizeof *at);
    if (!at)
        return false;
    for (int64_t i = 0; i < items->n; i++) {
        at[i].value = items->at[i];
        if (!jinja_step(j, 1) || !sort_key(j, items->at[i], attribute, case_sensitive, &at[i].key))
            return false;
    }
    *out = at;
    return true;
}

bool jinja_sorted_pairs(Jinja *j, const JinjaDict *d, bool mixed, const JinjaPair **out)
{
    Keyed *at = jinja_take(j, (size_t)d->n * 2 + 1, sizeof *at);
    JinjaPair *pairs = jinja_take(j, (size_t)d->n + 1, sizeof *pairs);
    if (!at || !pairs)
        return false;
    for (int64_t i = 0; i < d->n; i++)
        at[i] = (Keyed){d->at[i].key, d->at[i].value};
    if (!sort_keyed(j, at, at + d->n, d->n, false, mixed ? ORDER_MIXED : ORDER_PLAIN))
        return false;
    for (int64_t i = 0; i < d->n; i++) {
        pairs[i].key = at[i].key;
        pairs[i].value = at[i].value;
    }
    *out = pairs;
    return true;
}

bool jinja_seq_sort(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    Keyed *at;
    if (!jinja_bind(j, "sort", call, "reverse case_sensitive attribute", 0, arg) ||
        !jinja_iterate(j, v, &items) || !keyed_of(j, items, arg[2], jinja_truth(arg[1]), &at) ||
        !sort_keyed(j, at, at + items->n, items->n, jinja_truth(arg[0]), ORDER_LISTED) ||
        !jinja_list_new(j, JINJA_LIST, items->n, out))
        return false;
    for (int64_t i = 0; i < items->n; i++)
        out->u.list->at[out->u.list->n++] = at[i].value;
    return true;
}

bool jinja_seq_dictsort(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    Str by;
    JinjaValue pairs = {0};
    Keyed *at;
    if (!jinja_bind(j, "dictsort", call, "case_sensitive by reverse", 0, arg) ||
        !jinja_bound_str(j, "dictsort", arg[1], (Str){"key", 3}, &by))
        return false;
    if (v.type == JINJA_UNDEFINED)
        return jinja_undefined_fail(j, v);
    if (v.type != JINJA_DICT)
        return jinja_fail(j, "AttributeError: '%s' object has no attribute 'items'",
                          jinja_type_name(v));
    if (!str_is(by, "key") && !str_is(by, "value"))
        return jinja_fail(j, "FilterArgumentError: You can only sort by either \"key\" or "
                             "\"value\"");
    const JinjaValue index = jinja_int(str_is(by, "value"));
    if (!jinja_items(j, v.u.dict, &pairs) ||
        !keyed_of(j, pairs.u.list, index, jinja_truth(arg[0]), &at) ||
        !sort_keyed(j, at, at + pairs.u.list->n, pairs.u.list->n, jinja_truth(arg[2]), ORDER_PLAIN))
        return false;
    for (int64_t i = 0; i < pairs.u.list->n; i++)
        pairs.u.list->at[i] = at[i].value;
    *out = pairs;
    return true;
}

static bool extreme(Jinja *j, JinjaValue v, const JinjaCall *call, bool max, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    JinjaValue best_key = {.type = JINJA_MISSING};
    if (!jinja_bind(j, max ? "max" : "min", call, "case_sensitive attribute", 0, arg) ||
        !jinja_iterate(j, v, &items))
        return false;
    *out = jinja_undef_attr(v, (Str){"0", 1}); /* of an empty sequence */
    for (int64_t i = 0; i < items->n; i++) {
        JinjaValue key = {0};
        bool better = i == 0;
        if (!jinja_step(j, 1) || !item_key(j, items->at[i], arg[1], jinja_truth(arg[0]), &key))
            return false;
        if (i > 0 && !(max ? jinja_less(j, best_key, key, ">", &better)
                           : jinja_less(j, key, best_key, "<", &better)))
            return false;
        if (better) {
            best_key = key;
            *out = items->at[i];
        }
    }
    return true;
}

bool jinja_seq_max(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return extreme(j, v, call, true, out);
}

bool jinja_seq_min(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return extreme(j, v, call, false, out);
}

bool jinja_seq_unique(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    JinjaValue seen = {0};
    if (!jinja_bind(j, "unique", call, "case_sensitive attribute", 0, arg) ||
        !jinja_iterate(j, v, &items) || !jinja_dict_new(j, JINJA_DICT, &seen) ||
        !jinja_list_new(j, JINJA_GEN, 0, out))
        return false;
    for (int64_t i = 0; i < items->n; i++) {
        JinjaValue key = {0};
        JinjaValue *found;
        if (!jinja_step(j, 1) || !item_key(j, items->at[i], arg[1], jinja_truth(arg[0]), &key) ||
            !jinja_dict_get(j, seen.u.dict, key, &found))
            return false;
        if (!found && (!jinja_dict_set(j, seen.u.dict, key, jinja_none()) ||
                       !jinja_list_push(j, out->u.list, items->at[i])))
            return false;
    }
    return true;
}

bool jinja_seq_groupby(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    Keyed *at;
    if (!jinja_bind(j, "groupby", call, "attribute default case_sensitive", 1, arg) ||
        !jinja_iterate(j, v, &items) || !keyed_of(j, items, arg[0], jinja_truth(arg[2]), &at))
        return false;
    for (int64_t i = 0; i < items->n && arg[1].type != JINJA_MISSING; i++) {
        if (at[i].key.type == JINJA_UNDEFINED)
            at[i].key = arg[1];
    }
    if (!sort_keyed(j, at, at + items->n, items->n, false, ORDER_PLAIN) ||
        !jinja_list_new(j, JINJA_LIST, 0, out))
        return false;
    JinjaList *members = NULL;
    for (int64_t i = 0; i < items->n; i++) {
        bool same = false;
        if (i > 0 && !jinja_equal(j, at[i - 1].key, at[i].key, &same))
            return false;
        if (!same) {
            JinjaValue pair = {0};
            JinjaValue list = {0};
            JinjaValue name = {0};
            if (!jinja_list_new(j, JINJA_TUPLE, 2, &pair) ||
                !jinja_list_new(j, JINJA_LIST, 0, &list) ||
                !get_path(j, at[i].value, arg[0], &name))
                return false;
            if (name.type == JINJA_UNDEFINED && arg[1].type != JINJA_MISSING)
                name = arg[1];
            pair.flags = JINJA_GROUP;
            pair.u.list->at[0] = name;
            pair.u.list->at[1] = list;
            pair.u.list->n = 2;
            members = list.u.list;
            if (!jinja_list_push(j, out->u.list, pair))
                return false;
        }
        if (!jinja_list_push(j, members, at[i].value))
            return false;
    }
    return true;
}

/* ---- picking and mapping ---- */

/* select, reject and their attr forms: the test is named by an argument. */
static bool pick(Jinja *j, JinjaValue v, const JinjaCall *call, bool by_attr, bool keep,
                 JinjaValue *out)
{
    JinjaList *items;
    const int skip = by_attr ? 1 : 0;
    if (!jinja_truth(v)) /* None too is nothing to pick from */
        return jinja_list_new(j, JINJA_GEN, 0, out);
    if (call->n_pos < skip)
        return jinja_fail(j, "FilterArgumentError: Missing parameter for attribute name");
    const bool tested = call->n_pos > skip;
    if (tested && call->pos[skip].type != JINJA_STR)
        return jinja_fail(j, "TypeError: a test's name must be a string");
    const Str name = tested ? jinja_text(call->pos[skip]) : (Str){"", 0};
    const int id = tested ? jinja_test_id(name) : -1;
    JinjaCall rest = {0};
    if (tested)
        rest = (JinjaCall){call->pos + skip + 1, call->n_pos - skip - 1, call->kw, call->n_kw};
    if (!jinja_iterate(j, v, &items) || !jinja_list_new(j, JINJA_GEN, 0, out))
        return false;
    for (int64_t i = 0; i < items->n; i++) {
        JinjaValue item = items->at[i];
        if (!jinja_step(j, 1) || (by_attr && !get_path(j, item, call->pos[0], &item)))
            return false;
        bool yes = jinja_truth(item);
        if (tested && !jinja_test(j, id, name, item, &rest, &yes))
            return false;
        if (yes == keep && !jinja_list_push(j, out->u.list, items->at[i]))
            return false;
    }
    return true;
}

bool jinja_seq_select(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return pick(j, v, call, false, true, out);
}

bool jinja_seq_reject(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return pick(j, v, call, false, false, out);
}

bool jinja_seq_selectattr(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return pick(j, v, call, true, true, out);
}

bool jinja_seq_rejectattr(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    return pick(j, v, call, true, false, out);
}

bool jinja_seq_map(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaList *items;
    if (!jinja_truth(v))
        return jinja_list_new(j, JINJA_GEN, 0, out);
    if (!jinja_iterate(j, v, &items) || !jinja_list_new(j, JINJA_GEN, items->n, out))
        return false;
    if (call->n_pos == 0) { /* map(attribute=..., default=...) */
        JinjaValue arg[JINJA_PARAMS_MAX];
        if (!jinja_bind(j, "map", call, "attribute default", 1, arg))
            return false;
        for (int64_t i = 0; i < items->n; i++) {
            JinjaValue got = {0};
            if (!jinja_step(j, 1) || !get_path(j, items->at[i], arg[0], &got))
                return false;
            if (got.type == JINJA_UNDEFINED && arg[1].type != JINJA_MISSING)
                got = arg[1];
            if (!jinja_list_push(j, out->u.list, got))
                return false;
        }
        return true;
    }
    if (call->pos[0].type != JINJA_STR)
        return jinja_fail(j, "TypeError: a filter's name must be a string");
    const Str name = jinja_text(call->pos[0]);
    const int id = jinja_filter_id(name);
    const JinjaCall rest = {call->pos + 1, call->n_pos - 1, call->kw, call->n_kw};
    if (!jinja_enter(j)) /* map may name map */
        return false;
    for (int64_t i = 0; i < items->n; i++) {
        JinjaValue got = {0};
        if (!jinja_step(j, 1) || !jinja_filter(j, id, name, items->at[i], &rest, &got) ||
            !jinja_list_push(j, out->u.list, got))
            return false;
    }
    j->depth--;
    return true;
}

/* ---- the rest ---- */

bool jinja_seq_length(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    int64_t n;
    if (!jinja_bind(j, "length", call, "", 0, arg) || !jinja_length(j, v, &n))
        return false;
    *out = jinja_int(n);
    return true;
}

bool jinja_seq_first(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    if (!jinja_bind(j, "first", call, "", 0, arg) || !jinja_iterate(j, v, &items))
        return false;
    *out = items->n ? items->at[0] : jinja_undef_attr(v, (Str){"first", 5});
    return true;
}

bool jinja_seq_last(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    if (v.type == JINJA_GEN)
        return jinja_fail(j, "TypeError: 'generator' object is not reversible");
    if (!jinja_bind(j, "last", call, "", 0, arg) || !jinja_iterate(j, v, &items))
        return false;
    *out = items->n ? items->at[items->n - 1] : jinja_undef_attr(v, (Str){"last", 4});
    return true;
}

bool jinja_seq_list(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    if (!jinja_bind(j, "list", call, "", 0, arg) || !jinja_iterate(j, v, &items))
        return false;
    /* Lists never change, so the items are shared. */
    *out = (JinjaValue){.type = JINJA_LIST, .u.list = items};
    return true;
}

bool jinja_seq_items(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    if (!jinja_bind(j, "items", call, "", 0, arg))
        return false;
    if (v.type == JINJA_UNDEFINED)
        return jinja_list_new(j, JINJA_GEN, 0, out);
    if (v.type != JINJA_DICT)
        return jinja_fail(j, "TypeError: Can only get item pairs from a mapping.");
    if (!jinja_items(j, v.u.dict, out))
        return false;
    out->type = JINJA_GEN;
    return true;
}

bool jinja_seq_reverse(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    if (!jinja_bind(j, "reverse", call, "", 0, arg))
        return false;
    if (v.type == JINJA_STR) {
        const JinjaValue part[3] = {jinja_none(), jinja_none(), jinja_int(-1)};
        return jinja_slice(j, v, part, out);
    }
    /* What cannot be read backwards becomes a list. */
    if (!jinja_iterate(j, v, &items) ||
        !jinja_list_new(j, v.type == JINJA_GEN ? JINJA_LIST : JINJA_GEN, items->n, out) ||
        !jinja_step(j, items->n / 4))
        return false;
    for (int64_t i = items->n; i-- > 0;)
        out->u.list->at[out->u.list->n++] = items->at[i];
    return true;
}

bool jinja_seq_join(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    JinjaValue sep = jinja_str("", 0);
    if (!jinja_bind(j, "join", call, "d attribute", 0, arg) || !jinja_iterate(j, v, &items) ||
        (arg[0].type != JINJA_MISSING && !jinja_to_str(j, arg[0], &sep)))
        return false;
    StrBuf b;
    jinja_buf(j, &b);
    for (int64_t i = 0; i < items->n; i++) {
        JinjaValue item = items->at[i];
        if (i)
            strbuf_add(&b, sep.u.s, sep.len);
        const size_t before = b.len;
        const bool ok = (arg[1].type == JINJA_MISSING || get_path(j, item, arg[1], &item)) &&
                        jinja_write(j, &b, item, false) &&
                        jinja_step(j, 1 + (int64_t)((b.len - before + sep.len) / 16));
        if (!ok || b.failed)
            break;
    }
    return jinja_take_buf(j, &b, out);
}

bool jinja_seq_sum(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    if (!jinja_bind(j, "sum", call, "attribute start", 0, arg) || !jinja_iterate(j, v, &items))
        return false;
    *out = arg[1].type == JINJA_MISSING ? jinja_int(0) : arg[1];
    if (out->type == JINJA_STR)
        return jinja_fail(j, "TypeError: sum() can't sum strings [use ''.join(seq) instead]");
    for (int64_t i = 0; i < items->n; i++) {
        JinjaValue item = items->at[i];
        if (!jinja_step(j, 1) ||
            (arg[0].type != JINJA_MISSING && arg[0].type != JINJA_NONE &&
             !get_path(j, item, arg[0], &item)) ||
            !jinja_op(j, JO_ADD, *out, item, out))
            return false;
    }
    return true;
}

static bool piece_of(Jinja *j, const JinjaList *items, int64_t from, int64_t to, JinjaValue *out)
{
    if (!jinja_list_new(j, JINJA_LIST, to - from + 1, out))
        return false;
    for (int64_t i = from; i < to; i++)
        out->u.list->at[out->u.list->n++] = items->at[i];
    return jinja_step(j, 1 + (to - from) / 4);
}

bool jinja_seq_batch(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    int64_t size;
    if (!jinja_bind(j, "batch", call, "linecount fill_with", 1, arg) ||
        !jinja_to_int(j, arg[0], &size) || !jinja_iterate(j, v, &items) ||
        !jinja_list_new(j, JINJA_GEN, 0, out))
        return false;
    if (size < 1 || size > INT32_MAX)
        size = items->n ? items->n : 1; /* the reference never cuts then */
    for (int64_t i = 0; i < items->n; i += size) {
        JinjaValue piece = {0};
        const int64_t end = i64_min(i + size, items->n);
        if (!piece_of(j, items, i, end, &piece))
            return false;
        const bool fill = arg[1].type != JINJA_MISSING && arg[1].type != JINJA_NONE;
        for (int64_t k = end; fill && k < i + size; k++) {
            if (!jinja_step(j, 1) || !jinja_list_push(j, piece.u.list, arg[1]))
                return false;
        }
        if (!jinja_list_push(j, out->u.list, piece))
            return false;
    }
    return true;
}

bool jinja_seq_slice(Jinja *j, JinjaValue v, const JinjaCall *call, JinjaValue *out)
{
    JinjaValue arg[JINJA_PARAMS_MAX];
    JinjaList *items;
    int64_t slices;
    if (!jinja_bind(j, "slice", call, "slices fill_with", 1, arg) ||
        !jinja_to_int(j, arg[0], &slices) || !jinja_iterate(j, v, &items) ||
        !jinja_list_new(j, JINJA_GEN, 0, out))
        return false;
    if (slices < 1)
        return jinja_fail(j, "ZeroDivisionError: integer division or modulo by zero");
    const int64_t each = items->n / slices;
    const int64_t more = items->n % slices;
    int64_t at = 0;
    for (int64_t s = 0; s < slices; s++) {
        JinjaValue piece = {0};
        const int64_t n = each + (s < more);
        if (!jinja_step(j, 1) || !piece_of(j, items, at, at + n, &piece))
            return false;
        if (arg[1].type != JINJA_MISSING && arg[1].type != JINJA_NONE && s >= more &&
            !jinja_list_push(j, piece.u.list, arg[1]))
            return false;
        if (!jinja_list_push(j, out->u.list, piece))
            return false;
        at += n;
    }
    return true;
}
