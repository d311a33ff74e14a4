#include "base/json.h"

#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>

/* jansson does not survive a failed allocation while it parses: some leak, some are reported as
 * syntax errors, one makes it write past its buffer. So a parse that runs out of memory does not
 * return into jansson: the hook jumps back to json_parse, which frees every block that the parse
 * still held. Those are kept in a set, not linked through headers: blocks stay what malloc gave, so
 * that a program which uses jansson beside this library may mix them. jansson's hooks take no
 * context, hence the thread-local. */
typedef struct Parse {
    void **slots;  /* open addressing, linear; NULL: free */
    size_t n, cap; /* cap is a power of two, at least twice n */
    jmp_buf out_of_memory;
} Parse;

static _Thread_local Parse *parsing;

static size_t slot_of(const Parse *p, const void *block)
{
    const uint64_t h = (uint64_t)(uintptr_t)block * 0x9e3779b97f4a7c15U;
    return (size_t)(h >> 32) & (p->cap - 1);
}

static void set_put(Parse *p, void *block)
{
    size_t i = slot_of(p, block);
    while (p->slots[i])
        i = (i + 1) & (p->cap - 1);
    p->slots[i] = block;
    p->n++;
}

static bool set_grow(Parse *p)
{
    const size_t old_cap = p->cap;
    void **old = p->slots;
    void **slots = mem_zalloc((old_cap ? old_cap * 2 : 64) * sizeof *slots);
    if (!slots)
        return false;
    p->slots = slots;
    p->cap = old_cap ? old_cap * 2 : 64;
    p->n = 0;
    for (size_t i = 0; i < old_cap; i++)
        if (old[i])
            set_put(p, old[i]);
    mem_free(old);
    return true;
}

/* Takes a block out and closes the gap, so that no search stops early. */
static void set_remove(Parse *p, const void *block)
{
    const size_t mask = p->cap - 1;
    size_t i = slot_of(p, block);
    while (p->slots[i] && p->slots[i] != block)
        i = (i + 1) & mask;
    if (!p->slots[i])
        return; /* taken before the parse */
    p->n--;
    for (size_t j = (i + 1) & mask; p->slots[j]; j = (j + 1) & mask) {
        const size_t home = slot_of(p, p->slots[j]);
        if (((j - home) & mask) >= ((j - i) & mask)) {
            p->slots[i] = p->slots[j];
            i = j;
        }
    }
    p->slots[i] = NULL;
}

static void *hook_alloc(size_t bytes)
{
    Parse *p = parsing;
    void *block = NULL;
    if (!p || 2 * (p->n + 1) <= p->cap || set_grow(p))
        block = mem_alloc(bytes);
    if (!p)
        return block;
    if (!block)
        longjmp(p->out_of_memory, 1);
    set_put(p, block);
    return block;
}

static void hook_free(void *block)
{
    if (parsing && block && parsing->cap > 0)
        set_remove(parsing, block);
    mem_free(block);
}

static void parse_end(Parse *p, bool keep)
{
    parsing = NULL;
    for (size_t i = 0; i < p->cap && !keep; i++)
        mem_free(p->slots[i]);
    mem_free(p->slots);
}

void json_setup(void)
{
    json_set_alloc_funcs(hook_alloc, hook_free);
}

void json_text_free(char *text)
{
    mem_free(text);
}

/* jansson's own limit is 2048 levels; recursion in our walkers wants a smaller one. Strings are
 * skipped so that brackets in text do not count. */
static bool depth_ok(Str text)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.len; i++) {
        const char c = text.ptr[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > JSON_DEPTH)
                return false;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return true;
}

json_t *json_parse(const char *doc, Str text, Error *err)
{
    if (!depth_ok(text)) {
        err_set(err, ERR_FORMAT, "%s: nested deeper than %d levels", doc, JSON_DEPTH);
        return NULL;
    }
    json_error_t je;
    Parse parse = {0};
    parsing = &parse;
    if (setjmp(parse.out_of_memory) != 0) {
        parse_end(&parse, false);
        err_nomem(err, doc, text.len);
        return NULL;
    }
    json_t *v = json_loadb(text.ptr ? text.ptr : "", text.len,
                           JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    parse_end(&parse, true);
    if (!v)
        err_set(err, ERR_FORMAT, "%s: line %d, column %d: %s", doc, je.line, je.column, je.text);
    return v;
}

static json_t *find(const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

static bool missing_key(const char *doc, const char *key, Error *err)
{
    return err_set(err, ERR_FORMAT, "%s: key \"%s\" is missing", doc, key);
}

static bool to_i64(const json_t *v, const char *doc, const char *key, int64_t lo, int64_t hi,
                   int64_t *out, Error *err)
{
    int64_t n;
    if (json_is_integer(v)) {
        n = json_integer_value(v);
    } else if (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v) &&
               fabs(json_real_value(v)) < 9e15) {
        n = (int64_t)json_real_value(v);
    } else {
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is %s, wanted an integer", doc, key,
                       type_name(v));
    }
    if (n < lo || n > hi)
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is %" PRId64 ", wanted %" PRId64 " to %" PRId64,
                       doc, key, n, lo, hi);
    *out = n;
    return true;
}

bool json_get_i64(const json_t *obj, const char *doc, const char *key, int64_t lo, int64_t hi,
                  int64_t *out, Error *err)
{
    const json_t *v = find(obj, key);
    return v ? to_i64(v, doc, key, lo, hi, out, err) : missing_key(doc, key, err);
}

bool json_get_int(const json_t *obj, const char *doc, const char *key, int lo, int hi, int *out,
                  Error *err)
{
    int64_t n;
    if (!json_get_i64(obj, doc, key, lo, hi, &n, err))
        return false;
    *out = (int)n;
    return true;
}

bool json_get_int_or(const json_t *obj, const char *doc, const char *key, int lo, int hi,
                     int missing, int *out, Error *err)
{
    if (find(obj, key))
        return json_get_int(obj, doc, key, lo, hi, out, err);
    *out = missing;
    return true;
}

bool json_get_f64(const json_t *obj, const char *doc, const char *key, double *out, Error *err)
{
    const json_t *v = find(obj, key);
    if (!v)
        return missing_key(doc, key, err);
    if (!json_is_number(v))
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is %s, wanted a number", doc, key,
                       type_name(v));
    *out = json_number_value(v);
    return true;
}

bool json_get_f64_or(const json_t *obj, const char *doc, const char *key, double missing,
                     double *out, Error *err)
{
    if (find(obj, key))
        return json_get_f64(obj, doc, key, out, err);
    *out = missing;
    return true;
}

bool json_get_bool_or(const json_t *obj, const char *doc, const char *key, bool missing, bool *out,
                      Error *err)
{
    const json_t *v = find(obj, key);
    if (v && !json_is_boolean(v))
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is %s, wanted true or false", doc, key,
                       type_name(v));
    *out = v ? json_is_true(v) : missing;
    return true;
}

bool json_get_str_or(const json_t *obj, const char *doc, const char *key, Str *out, Error *err)
{
    const json_t *v = find(obj, key);
    if (v && !json_is_string(v))
        return err_set(err, ERR_FORMAT, "%s: \"%s\" is %s, wanted a string", doc, key,
                       type_name(v));
    *out = v ? (Str){json_string_value(v), json_string_length(v)} : (Str){NULL, 0};
    return true;
}
