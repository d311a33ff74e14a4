/* Templates: what Jinja2 gives for each case of tests/data/text/templates.json ([template, text] or
 * [template, null, error]), and that every limit ends a render with an error. */
#include "text/text_data.h"

#include "base/clock.h"
#include "fixed_now.h"
#include "text/template.h"

static bool render(Str source, const json_t *vars, const TemplateLimits *limits, StrBuf *out,
                   Error *err)
{
    Arena a;
    Template *t;
    arena_init(&a, "test");
    const TemplateInput in = {.more = vars, .now = &fixed_now, .limits = limits};
    const bool ok = template_open(&a, "t", source, &t, err) && template_render(t, &in, out, err);
    arena_free(&a);
    return ok;
}

static void test_cases(void **state)
{
    (void)state;
    json_t *data = data_json("text/templates.json");
    const json_t *vars = json_object_get(data, "vars");
    size_t i;
    json_t *c;
    json_array_foreach (json_object_get(data, "cases"), i, c) {
        const Str source = json_text(json_array_get(c, 0));
        const json_t *want = json_array_get(c, 1);
        Error err = {0};
        StrBuf out;
        strbuf_init(&out, 1 << 20);
        const bool ok = render(source, vars, NULL, &out, &err);
        if (json_is_null(want)) {
            if (ok)
                fail_msg("%s gave \"%s\", wanted %s", source.ptr, out.ptr ? out.ptr : "",
                         json_string_value(json_array_get(c, 2)));
            assert_int_equal(out.len, 0);
            assert_non_null(strstr(err.msg, "t: line "));
        } else {
            if (!ok)
                fail_msg("%s\n  got  %s", source.ptr, err.msg);
            assert_text(source.ptr, strbuf_str(&out), json_text(want));
        }
        strbuf_free(&out);
    }
    assert_true(i > 600);
    json_decref(data);
}

/* The messages are those that authors of templates know. */
static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        ErrCode code;
        const char *msg;
    } cases[] = {
        {"\n\n{{ raise_exception('No system role') }}", ERR_REQUEST, "t: line 3: No system role"},
        {"{{ a.b }}", ERR_REQUEST, "t: line 1: UndefinedError: 'a' is undefined"},
        {"{{ {}.b.c }}", ERR_REQUEST,
         "t: line 1: UndefinedError: 'dict object' has no attribute 'b'"},
        {"{{ [1][3].x }}", ERR_REQUEST, "t: line 1: UndefinedError: list object has no element 3"},
        {"{{ 'a' + 1 }}", ERR_REQUEST,
         "t: line 1: TypeError: can only concatenate str (not \"int\") to str"},
        {"{% for x in none %}{% endfor %}", ERR_REQUEST,
         "t: line 1: TypeError: 'NoneType' object is not iterable"},
        {"{{ [].append(1) }}", ERR_REQUEST,
         "t: line 1: SecurityError: access to attribute 'append' of 'list' object is unsafe"},
        {"{{ 1|nope }}", ERR_FORMAT, "t: line 1: No filter named 'nope'."},
        {"{{ 1 is nope }}", ERR_FORMAT, "t: line 1: No test named 'nope'."},
        {"{% if 1 %}{{ 1|nope }}{% endif %}", ERR_REQUEST,
         "t: line 1: TemplateRuntimeError: No filter named 'nope' found."},
        {"a\n{{ 1", ERR_FORMAT, "t: line 2: {{ does not end"},
        {"{% if 1 %}", ERR_FORMAT, "t: line 1: a block is not closed, at the end of the template"},
        {"{% include 'x' %}", ERR_REQUEST,
         "t: line 1: TypeError: no loader for this environment specified"},
        {"{{ 'a'.encode() }}", ERR_REQUEST, "t: line 1: the method encode of str is not supported"},
        {"{{ [1]|random }}", ERR_REQUEST, "t: line 1: the filter 'random' is not supported"},
        {"{{ 'a'|urlize }}", ERR_REQUEST, "t: line 1: the filter 'urlize' is not supported"},
        {"{{ lipsum() }}", ERR_REQUEST, "t: line 1: lipsum() is not supported"},
        {"{% block a %}{% endblock %}{{ self.a() }}", ERR_REQUEST,
         "t: line 1: \"self\" is not supported"},
        {"{{ '\\N{BULLET}' }}", ERR_FORMAT,
         "t: line 1: a string's escape \\N is not supported, near \"\\N{BULLET}\""},
        {"{{ (-8) ** 0.5 }}", ERR_REQUEST, "t: line 1: complex numbers are not supported"},
        {"{{ 5[1:] }}", ERR_REQUEST, "t: line 1: TypeError: 'int' object is not subscriptable"},
        {"\xff", ERR_FORMAT, "t: the template is no valid UTF-8 at byte 0"},
        {"{{ 9223372036854775807 + 1 }}", ERR_REQUEST,
         "t: line 1: OverflowError: a whole number beyond 64 bits"},
        {"{{ 99999999999999999999 }}", ERR_FORMAT,
         "t: line 1: a number is too large, near \"99999999999999999999\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error err = {0};
        StrBuf out;
        strbuf_init(&out, 1000);
        if (render(str_from(cases[i].source), NULL, NULL, &out, &err))
            fail_msg("%s rendered", cases[i].source);
        assert_string_equal(err.msg, cases[i].msg);
        assert_int_equal(err.code, cases[i].code);
        strbuf_free(&out);
    }
}

static void expect_limit(const char *source, const TemplateLimits *limits, const char *mentions)
{
    Error err = {0};
    StrBuf out;
    strbuf_init(&out, 1 << 20);
    const double start = clock_ms();
    if (render(str_from(source), NULL, limits, &out, &err))
        fail_msg("%s rendered", source);
    if (err.code != ERR_REQUEST || !strstr(err.msg, mentions))
        fail_msg("%s: %s \"%s\", wanted \"%s\"", source, err_name(err.code), err.msg, mentions);
    const double ms = clock_ms() - start;
    if (ms > 60000)
        fail_msg("%s: %.0f ms", source, ms);
    assert_int_equal(out.len, 0);
    strbuf_free(&out);
}

/* Under small limits and under the usual ones. */
static void test_hostile(void **state)
{
    (void)state;
    const TemplateLimits small = {
        .steps = 100000, .memory_bytes = 1 << 20, .depth = 200, .output_bytes = 10000};
    const TemplateLimits usual = template_limits();
    static const struct {
        const char *source, *mentions;
    } cases[] = {
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
         "more than"},
        {"{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% "
         "endfor %}",
         "more than"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% "
         "endfor %}",
         "more than"},
        {"{{ 'x' * 1000000000 }}", "more than"},
        {"{{ [0] * 1000000000 }}", "more than"},
        {"{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * "
         "99 "
         "}}{% endfor %}",
         "than"},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels"},
        {"{% macro f(x) %}{{ f(x=[x]) }}{% endmacro %}{{ f(1) }}", "levels"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "levels"},
        {"{% set ns = namespace(x=1) %}{% for i in range(3000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}{{ ns.x }}",
         "levels"},
        {"{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ [ns] == [[ns]] }}{% for i in "
         "range(3000) "
         "%}{% set ns.x = namespace(x=ns.x) %}{% endfor %}{{ ns }}",
         "levels"},
        {"{% set ns = namespace(x=1) %}{% for i in range(3000) %}{% set ns.x = [ns.x] %}{% endfor "
         "%}{{ ns.x == [ns.x] }}{{ ns.x|tojson }}",
         "levels"},
        {"{{ 'a'.center(999999999999) }}", "more than"},
        {"{{ '%999999999d' % 1 }}", "width"},
        {"{{ '{:999999999}'.format(1) }}", "width"},
        {"{{ [1]|tojson(indent=99999999999) }}", "more than"},
        {"{{ range(1000000) }}", "Range"},
        {"{{ 'abc'|replace('', 'x' * 500000)|replace('', 'y' * 500000)|replace('x', 'zzzz') }}",
         "more than"},
        {"{% set x = ('ab,' * 20000).split(',') %}{% for i in range(90000) %}{{ 'zz' in x }}{% "
         "endfor %}",
         "steps"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect_limit(cases[i].source, &small, "");
        expect_limit(cases[i].source, &usual, cases[i].mentions);
    }
}

typedef enum Limit { LIMIT_STEPS, LIMIT_MEMORY, LIMIT_DEPTH, LIMIT_OUTPUT } Limit;

static TemplateLimits limited(Limit which, int64_t n)
{
    TemplateLimits l = template_limits();
    if (which == LIMIT_STEPS)
        l.steps = n;
    else if (which == LIMIT_MEMORY)
        l.memory_bytes = (size_t)n;
    else if (which == LIMIT_DEPTH)
        l.depth = (int)n;
    else
        l.output_bytes = (size_t)n;
    return l;
}

/* The smallest limit under which `source` renders; one less fails, and says why. */
static int64_t least(const char *source, Limit which, const char *mentions)
{
    int64_t bad = 0;
    int64_t good = 1 << 24;
    while (good - bad > 1) {
        const int64_t mid = bad + (good - bad) / 2;
        const TemplateLimits l = limited(which, mid);
        Error err = {0};
        StrBuf out;
        strbuf_init(&out, 1 << 20);
        if (render(str_from(source), NULL, &l, &out, &err)) {
            good = mid;
        } else {
            if (err.code != ERR_REQUEST || !strstr(err.msg, mentions))
                fail_msg("%s under %lld: \"%s\", wanted \"%s\"", source, (long long)mid, err.msg,
                         mentions);
            assert_int_equal(out.len, 0);
            bad = mid;
        }
        strbuf_free(&out);
    }
    assert_true(good < 1 << 24);
    return good;
}

/* Each round of a loop, each level of a macro, each byte counts. */
static void test_steps(void **state)
{
    (void)state;
    const int64_t few =
        least("{% for i in range(100) %}{{ i }}{% endfor %}", LIMIT_STEPS, " steps");
    const int64_t many =
        least("{% for i in range(1100) %}{{ i }}{% endfor %}", LIMIT_STEPS, " steps");
    assert_true(many - few >= 3000); /* the body, its tag and the name */
    assert_true(least("{{ ('a' * 99999) == ('a' * 99998 ~ 'b') }}", LIMIT_STEPS, " steps") > 99999);
    assert_true(least("{% set s = 'abcdefgh' * 9999 %}{{ s|upper|length }}", LIMIT_STEPS,
                      " steps") > 79992 / 16);
}

static void test_memory(void **state)
{
    (void)state;
    const int64_t base = least("{{ 'x' }}", LIMIT_MEMORY, " bytes of memory");
    assert_true(base < 10000);
    assert_true(least("{% set s = 'x' * 100000 %}", LIMIT_MEMORY, " bytes of memory") > 100000);
    assert_true(least("{% set l = range(5000)|list %}", LIMIT_MEMORY, " bytes of memory") >
                5000 * 16);
    /* Values of a loop that is over are not given back: a render is short. */
    assert_true(least("{% for i in range(50) %}{% set s = 'x' * 1000 %}{% endfor %}", LIMIT_MEMORY,
                      " bytes of memory") > 50000);
    /* Output is none of it. */
    assert_true(least("{% for i in range(1000) %}0123456789{% endfor %}", LIMIT_MEMORY,
                      " bytes of memory") < 1000 * 1000);
}

static void test_depth(void **state)
{
    (void)state;
    static const char *const levels = " levels";
    const char *const text =
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}";
    char few[200];
    char many[200];
    snprintf(few, sizeof few, "%s{{ f(5) }}", text);
    snprintf(many, sizeof many, "%s{{ f(25) }}", text);
    const int64_t shallow = least(few, LIMIT_DEPTH, levels);
    const int64_t deep = least(many, LIMIT_DEPTH, levels);
    assert_int_equal((deep - shallow) % 20, 0); /* the same for every call */
    assert_true(deep - shallow >= 20 * 3);
    assert_true(least("{{ [[[[[[[[1]]]]]]]] }}", LIMIT_DEPTH, levels) >= 8);
    assert_true(least("{% for a in [[[[[]]]]] recursive %}{{ loop(a) }}{% endfor %}", LIMIT_DEPTH,
                      levels) >= 5);
}

/* Counts what is written; the caller's buffer has its own limit. */
static void test_output(void **state)
{
    (void)state;
    assert_int_equal(least("0123456789", LIMIT_OUTPUT, "output"), 10);
    assert_int_equal(least("01234{{ 567890 }}", LIMIT_OUTPUT, "output"), 11);
    assert_int_equal(least("{% for i in range(100) %}ab{% endfor %}", LIMIT_OUTPUT, "output"), 200);
    const TemplateLimits ten = limited(LIMIT_OUTPUT, 10);
    Error err = {0};
    StrBuf out;
    strbuf_init(&out, 100);
    assert_true(render(str_from("0123456789"), NULL, &ten, &out, &err));
    assert_true(render(str_from("01234{{ 56789 }}"), NULL, &ten, &out, &err));
    assert_false(render(str_from("01234{{ 567890 }}"), NULL, &ten, &out, &err));
    assert_text("kept", strbuf_str(&out), str_from("01234567890123456789"));
    strbuf_free(&out);
    strbuf_init(&out, 5);
    assert_false(render(str_from("0123456789"), NULL, &ten, &out, &err));
    assert_int_equal(err.code, ERR_NOMEM);
    strbuf_free(&out);
}

/* `open` n times, then `close` n times. */
static void nest(StrBuf *b, int n, const char *open, const char *middle, const char *close)
{
    strbuf_clear(b);
    strbuf_add_cstr(b, "{{ ");
    for (int i = 0; i < n; i++)
        strbuf_add_cstr(b, open);
    strbuf_add_cstr(b, middle);
    for (int i = 0; i < n; i++)
        strbuf_add_cstr(b, close);
    strbuf_add_cstr(b, " }}");
}

static void test_parse_depth(void **state)
{
    (void)state;
    static const struct {
        const char *open, *middle, *close;
    } cases[] = {
        {"(", "1", ")"},   {"[", "1", "]"},   {"-", "1", ""},
        {"not ", "1", ""}, {"{1:", "1", "}"}, {"1 if 1 else ", "1", ""},
        {"x(", "1", ")"},  {"x[", "1", "]"},  {"a}}{% if 1 %}", "", ""},
    };
    StrBuf b;
    StrBuf out;
    strbuf_init(&b, 4 << 20);
    strbuf_init(&out, 1 << 20);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error err = {0};
        nest(&b, 20000, cases[i].open, cases[i].middle, cases[i].close);
        assert_false(render(strbuf_str(&b), NULL, NULL, &out, &err));
        assert_int_equal(err.code, ERR_FORMAT);
    }
    /* Long chains nest in the tree only: they meet the render's depth. */
    static const char *const chains[] = {"1+", "x.y|d.", "a~", "a or ", "x and "};
    for (size_t i = 0; i < COUNT_OF(chains); i++) {
        Error err = {0};
        nest(&b, 20000, chains[i], "1", "");
        (void)!render(strbuf_str(&b), NULL, NULL, &out, &err);
    }
    strbuf_free(&b);
    strbuf_init(&b, 4 << 20);
    for (int i = 0; i <= TEMPLATE_SOURCE_MAX; i++)
        strbuf_add_cstr(&b, "x");
    Error err = {0};
    assert_false(render(strbuf_str(&b), NULL, NULL, &out, &err));
    assert_non_null(strstr(err.msg, "at most"));
    strbuf_free(&b);
    strbuf_free(&out);
}

/* Hash tables met with many keys, and names with many spellings. */
static void test_many(void **state)
{
    (void)state;
    StrBuf b;
    StrBuf out;
    Error err = {0};
    strbuf_init(&b, 1 << 20);
    strbuf_init(&out, 1 << 20);
    json_t *vars = json_object();
    for (int i = 0; i < 5000; i++) {
        char name[32];
        snprintf(name, sizeof name, "v%d", i);
        json_object_set_new(vars, name, json_integer(i));
        strbuf_printf(&b, "{%% set w%d = v%d %%}", i, i);
    }
    strbuf_add_cstr(&b, "{{ w4999 }},{{ w0 + v17 }},{% set d = dict(v4999=1) %}{{ d.v4999 }}");
    if (!render(strbuf_str(&b), vars, NULL, &out, &err))
        fail_msg("%s", err.msg);
    assert_text("many", strbuf_str(&out), str_from("4999,17,1"));
    json_decref(vars);
    strbuf_free(&b);
    strbuf_free(&out);
}

/* Two renders of one template share nothing. */
static void test_again(void **state)
{
    (void)state;
    Arena a;
    Template *t;
    Error err = {0};
    arena_init(&a, "test");
    assert_true(template_open(&a, "t",
                              str_from("{% set ns = namespace(n=0) %}{% for i in x %}{% "
                                       "set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"),
                              &t, &err));
    for (int i = 1; i < 4; i++) {
        json_t *x = json_pack("{s:[i,i]}", "x", i, i);
        const TemplateInput in = {.more = x};
        StrBuf out;
        char want[8];
        strbuf_init(&out, 100);
        assert_true(template_render(t, &in, &out, &err));
        snprintf(want, sizeof want, "%d", 2 * i);
        assert_text("again", strbuf_str(&out), str_from(want));
        strbuf_free(&out);
        json_decref(x);
    }
    assert_true(template_bytes(t) > 0);
    arena_free(&a);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),   cmocka_unit_test(test_messages),
        cmocka_unit_test(test_hostile), cmocka_unit_test(test_steps),
        cmocka_unit_test(test_memory),  cmocka_unit_test(test_depth),
        cmocka_unit_test(test_output),  cmocka_unit_test(test_parse_depth),
        cmocka_unit_test(test_many),    cmocka_unit_test(test_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
