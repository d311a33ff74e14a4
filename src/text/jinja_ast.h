/* jinja_ast.h: a parsed template: a tree of nodes in the template's arena. Never changes after the
 * parse. Names are interned: one spelling, one pointer. */
#ifndef MERE_TEXT_JINJA_AST_H
#define MERE_TEXT_JINJA_AST_H

#include "text/jinja_value.h"

typedef enum JinjaKind {
    /* expressions */
    JN_CONST,   /* value */
    JN_NAME,    /* name */
    JN_LIST,    /* items */
    JN_TUPLE,   /* items */
    JN_DICT,    /* items: key, value, key, value ... */
    JN_ATTR,    /* a.name */
    JN_ITEM,    /* a[b] */
    JN_SLICE,   /* a[items[0]:items[1]:items[2]]; NULL where left out */
    JN_CALL,    /* a(args) */
    JN_FILTER,  /* a|name(args); a NULL: the text of a filter block */
    JN_TEST,    /* a is name(args) */
    JN_NOT,     /* not a */
    JN_NEG,     /* -a */
    JN_POS,     /* +a */
    JN_BINARY,  /* a op b */
    JN_AND,     /* a and b */
    JN_OR,      /* a or b */
    JN_COMPARE, /* items[0] ops[0] items[1] ops[1] ... */
    JN_CONCAT,  /* items[0] ~ items[1] ... */
    JN_COND,    /* a if b else c; c may be NULL */
    /* statements */
    JN_TEXT,         /* name: literal text */
    JN_PRINT,        /* a */
    JN_IF,           /* items: condition, block, condition, block ...; b: else */
    JN_FOR,          /* for a in b if c: body, otherwise; recursive */
    JN_SET,          /* a = b */
    JN_SET_BLOCK,    /* a = body, through filter b (NULL: none) */
    JN_MACRO,        /* name, params, body */
    JN_CALL_BLOCK,   /* a: the call; params and body: caller */
    JN_FILTER_BLOCK, /* a: chain of JN_FILTER; body */
    JN_WITH,         /* items: target, value ...; body */
    JN_SCOPE,        /* body with variables of its own; flag: a block, which sees none of a loop */
    JN_AUTOESCAPE,   /* a: whether; body */
    JN_REFUSE,       /* name: include, import, extends: there is nothing to load from */
    JN_BREAK,
    JN_CONTINUE,
    JN_BLOCK, /* items: statements; unset: see jinja_scope.h */
} JinjaKind;

typedef enum JinjaOp {
    JO_ADD,
    JO_SUB,
    JO_MUL,
    JO_DIV,
    JO_FLOORDIV,
    JO_MOD,
    JO_POW,
    JO_EQ,
    JO_NE,
    JO_LT,
    JO_LE,
    JO_GT,
    JO_GE,
    JO_IN,
    JO_NOT_IN,
} JinjaOp;

/* What a macro's body mentions, and so accepts. */
enum { JINJA_USES_VARARGS = 1, JINJA_USES_KWARGS = 2, JINJA_USES_CALLER = 4 };

typedef struct JinjaNode JinjaNode;

typedef struct JinjaKwNode {
    Str name;
    JinjaNode *value;
} JinjaKwNode;

typedef struct JinjaArgNodes {
    JinjaNode **pos;
    int n_pos;
    JinjaKwNode *kw;
    int n_kw;
    JinjaNode *star, *star_star; /* *a, **b; NULL: none */
} JinjaArgNodes;

typedef struct JinjaParam {
    Str name;
    JinjaNode *missing; /* default; NULL: undefined */
} JinjaParam;

struct JinjaNode {
    JinjaKind kind;
    int line;
    uint8_t
        op; /* JinjaOp of BINARY; USES_ flags of MACRO and CALL_BLOCK; FOR: its body has "loop" */
    bool flag; /* TEST: negated; FOR: recursive */
    int id;    /* FILTER, TEST: index in its table, -1: unknown */
    Str name;
    JinjaNode *a, *b, *c;
    JinjaNode *body, *otherwise; /* JN_BLOCK */
    JinjaNode **items;
    int n_items;
    uint8_t *ops; /* COMPARE: [n_items - 1] */
    JinjaArgNodes *args;
    JinjaParam *params;
    int n_params;
    JinjaValue value;
    Str *unset;
    int n_unset;
};

#endif
