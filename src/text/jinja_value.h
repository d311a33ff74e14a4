/* jinja_value.h: the values of a template and the memory of one render.
 *
 * Values are 16 bytes by copy; strings, lists and dicts lie in the render's arena and never change
 * once a template can see them (the sandbox forbids it), so they are shared freely and freed all at
 * once. Strings are valid UTF-8. A value's rules are Python's: the messages of errors too, since
 * template authors look them up.
 *
 * Every function that can fail returns false with j's error set. One render, one thread. */
#ifndef MERE_TEXT_JINJA_VALUE_H
#define MERE_TEXT_JINJA_VALUE_H

#include "base/arena.h"
#include "base/json.h"
#include "text/template.h"

typedef enum JinjaType {
    JINJA_MISSING, /* an argument that was not given; templates never see it */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_GEN,   /* what map, select ... give: read once, always true, no length */
    JINJA_RANGE, /* a list of whole numbers; behind them start, stop and step */
    JINJA_VIEW,  /* of a dict: a list that has no items by number; flags: JinjaView */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_FUNCTION, /* a global function */
    JINJA_METHOD,   /* bound to its object */
    JINJA_LOOP,
    JINJA_CYCLER,
    JINJA_JOINER,
} JinjaType;

/* Why a value is undefined; the name or index is kept for the message. */
typedef enum JinjaUndef {
    JINJA_UNDEF_NAME,  /* no such variable */
    JINJA_UNDEF_ATTR,  /* no such attribute; `of` is the object's type */
    JINJA_UNDEF_ITEM,  /* no such element, i */
    JINJA_UNDEF_UNSAFE /* an attribute that would change the object */
} JinjaUndef;

typedef enum JinjaView { JINJA_KEYS, JINJA_VALUES, JINJA_ITEMS } JinjaView;

enum {
    JINJA_SAFE = 1 /* string: marked with the safe filter */,
    JINJA_GROUP = 2 /* tuple: of groupby */
};

enum { JINJA_RANGE_MAX = 100000 /* as the sandbox has it */ };

typedef struct JinjaList JinjaList;
typedef struct JinjaDict JinjaDict;
typedef struct JinjaMacro JinjaMacro;
typedef struct JinjaMethod JinjaMethod;
typedef struct JinjaLoop JinjaLoop;
typedef struct JinjaCycle JinjaCycle;

typedef struct JinjaValue {
    uint8_t type;  /* JinjaType */
    uint8_t flags; /* JINJA_SAFE, JINJA_GROUP; JinjaUndef of an undefined */
    uint8_t of;    /* JinjaType of the object whose attribute is undefined */
    uint32_t len;  /* bytes of a string (or of an undefined's name) */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        JinjaList *list; /* LIST TUPLE GEN RANGE VIEW */
        JinjaDict *dict; /* DICT NAMESPACE */
        JinjaMacro *macro;
        int function; /* JinjaFunction */
        JinjaMethod *method;
        JinjaLoop *loop;
        JinjaCycle *cycle; /* CYCLER JOINER */
    } u;
} JinjaValue;

struct JinjaList {
    JinjaValue *at;
    int64_t n, cap;
    int64_t pos; /* GEN: what was read */
};

typedef struct JinjaPair {
    JinjaValue key, value;
} JinjaPair;

struct JinjaDict {
    JinjaPair *at; /* in order of insertion */
    int64_t n, cap;
    uint32_t *index; /* open addressing, pair + 1; NULL while small */
    uint64_t mask;
};

struct JinjaCycle {
    JinjaList *items; /* of a joiner: its separator */
    int64_t at;
};

struct JinjaMethod {
    JinjaValue self;
    Str name; /* lives as long as the template */
};

typedef struct JinjaScope JinjaScope;

/* One render. */
/* A list or dict that is being written out. */
typedef struct JinjaOpen {
    const struct JinjaOpen *outer;
    const void *box;
} JinjaOpen;

typedef struct Jinja {
    Arena arena;
    const char *doc;
    TemplateLimits limits;
    int64_t steps;
    size_t used; /* bytes of values */
    int depth;
    int line;      /* of the node at work */
    char *grow_at; /* where the last joined string ends: the next join may go on there */
    char *grow_end;
    StrBuf out;
    const JinjaDict *context;
    JinjaScope *scope, *root;
    const struct tm *now;
    const JinjaOpen *open;
    int open_namespaces;
    bool escape; /* inside {% autoescape true %} */
    bool failed;
    Error *err;
} Jinja;

/* ---- errors and limits ---- */
bool jinja_fail(Jinja *j, const char *fmt, ...)
    PRINTF(2, 3);                                  /* ERR_REQUEST, with document and line */
bool jinja_undefined_fail(Jinja *j, JinjaValue v); /* v is used where it may not be */
bool jinja_step(Jinja *j, int64_t n);              /* n steps more; fails at the limit */
bool jinja_enter(Jinja *j);                        /* one level deeper; undo with depth-- */
void *jinja_take(Jinja *j, size_t n, size_t size); /* zeroed; NULL: failed */

/* ---- making ---- */
static inline JinjaValue jinja_none(void)
{
    return (JinjaValue){.type = JINJA_NONE};
}
static inline JinjaValue jinja_bool(bool b)
{
    return (JinjaValue){.type = JINJA_BOOL, .u.b = b};
}
static inline JinjaValue jinja_int(int64_t i)
{
    return (JinjaValue){.type = JINJA_INT, .u.i = i};
}
static inline JinjaValue jinja_float(double f)
{
    return (JinjaValue){.type = JINJA_FLOAT, .u.f = f};
}
/* Borrows. */
static inline JinjaValue jinja_str(const char *s, size_t len)
{
    return (JinjaValue){.type = JINJA_STR, .len = (uint32_t)len, .u.s = s};
}
static inline JinjaValue jinja_undef_attr(JinjaValue of, Str name)
{
    return (JinjaValue){.type = JINJA_UNDEFINED,
                        .flags = JINJA_UNDEF_ATTR,
                        .of = of.type,
                        .len = (uint32_t)name.len,
                        .u.s = name.ptr};
}
static inline Str jinja_text(JinjaValue v)
{
    return (Str){v.u.s, v.len};
}
bool jinja_copy_str(Jinja *j, Str s, JinjaValue *out);
/* a + b; when `a` was the last thing joined, b is put behind it without a copy. */
bool jinja_join_str(Jinja *j, Str a, Str b, JinjaValue *out);
bool jinja_list_new(Jinja *j, JinjaType type, int64_t cap, JinjaValue *out);
bool jinja_list_push(Jinja *j, JinjaList *l, JinjaValue v);
bool jinja_range_new(Jinja *j, int64_t start, int64_t stop, int64_t step, JinjaValue *out);
bool jinja_dict_new(Jinja *j, JinjaType type, JinjaValue *out);
bool jinja_dict_set(Jinja *j, JinjaDict *d, JinjaValue key, JinjaValue value);
bool jinja_from_json(Jinja *j, const json_t *v, JinjaValue *out);

/* ---- reading ---- */
const char *jinja_type_name(JinjaValue v); /* as Python names it: "str", "NoneType" */
bool jinja_truth(JinjaValue v);
static inline bool jinja_is_number(JinjaValue v)
{
    return v.type == JINJA_INT || v.type == JINJA_FLOAT || v.type == JINJA_BOOL;
}
static inline bool jinja_is_seq(JinjaValue v)
{
    return v.type == JINJA_LIST || v.type == JINJA_TUPLE || v.type == JINJA_GEN ||
           v.type == JINJA_RANGE || v.type == JINJA_VIEW;
}
double jinja_to_double(JinjaValue number);
/* The whole number of an int or bool. */
bool jinja_to_int(Jinja *j, JinjaValue v, int64_t *out);
/* *found NULL: no such key. Fails on an unhashable key. */
bool jinja_dict_get(Jinja *j, const JinjaDict *d, JinjaValue key, JinjaValue **found);
JinjaValue *jinja_dict_find(const JinjaDict *d, Str key);
/* The items that a for loop would see, as a list that may be `v` itself: do not change it. */
bool jinja_iterate(Jinja *j, JinjaValue v, JinjaList **out);
bool jinja_length(Jinja *j, JinjaValue v, int64_t *out);
bool jinja_equal(Jinja *j, JinjaValue a, JinjaValue b, bool *out);
bool jinja_less(Jinja *j, JinjaValue a, JinjaValue b, const char *op, bool *out);
/* item in box */
bool jinja_contains(Jinja *j, JinjaValue box, JinjaValue item, bool *out);
/* str(v) as a string value; strings give themselves. */
bool jinja_to_str(Jinja *j, JinjaValue v, JinjaValue *out);
/* Appends str(v) or repr(v). */
bool jinja_write(Jinja *j, StrBuf *out, JinjaValue v, bool repr);
/* "<Macro 'f'>", "<LoopContext 1/3>": jinja_eval.c knows. */
bool jinja_eval_repr(StrBuf *out, JinjaValue v);
int64_t jinja_eval_loop_length(JinjaValue loop);
bool jinja_is_printable(uint32_t cp);          /* of str.isprintable, and of repr */
void jinja_float_text(double f, char out[32]); /* Python's repr */
/* Takes b's text as a value; b is freed. */
bool jinja_take_buf(Jinja *j, StrBuf *b, JinjaValue *out);
/* A buffer bounded by what the render may still hold. */
void jinja_buf(const Jinja *j, StrBuf *b);
/* b failed: says whether by a limit or for want of memory. */
bool jinja_buf_check(Jinja *j, const StrBuf *b);

typedef struct JinjaJson {
    bool ascii; /* \u escapes beyond ASCII */
    bool sort;
    bool multiline;
    Str indent; /* of one level */
    Str item_sep, key_sep;
} JinjaJson;
/* Appends json.dumps(v). */
bool jinja_to_json(Jinja *j, StrBuf *out, JinjaValue v, const JinjaJson *how);

#endif
