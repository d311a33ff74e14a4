/* Expressions in the dialects of tokenizer files, and the pieces they cut, against the reference
 * library (tests/data/text/pieces.json was made with it); what hostile expressions come to. */
#include "text/text_data.h"

#include "base/clock.h"
#include "text/pretok.h"

static bool collect(void *ctx, Str piece, Error *err)
{
    (void)err;
    StrBuf *b = ctx;
    strbuf_add(b, piece.ptr, piece.len);
    strbuf_add_cstr(b, "|");
    return true;
}

/* The pieces, each followed by '|'. */
static void cut(const Pretok *p, Str text, StrBuf *out)
{
    Arena a;
    TextReWork w;
    Error err = {0};
    arena_init(&a, "test");
    assert_true(textre_work_init(&w, text.len, &err));
    strbuf_clear(out);
    if (!pretok_run(p, &w, &a, text, true, collect, out, &err))
        fail_msg("%s", err.msg);
    textre_work_free(&w);
    arena_free(&a);
}

static void test_pieces(void **state)
{
    (void)state;
    json_t *data = data_json("text/pieces.json");
    StrBuf got;
    StrBuf want;
    strbuf_init(&got, 1 << 20);
    strbuf_init(&want, 1 << 20);
    size_t i;
    json_t *c;
    json_array_foreach (data, i, c) {
        Pretok p = {0};
        Error err = {0};
        const Str pattern = json_text(json_array_get(c, 0));
        if (!pretok_add_split(&p, "test", pattern, TEXTRE_ONIG,
                              (PretokBehavior)json_integer_value(json_array_get(c, 1)),
                              json_is_true(json_array_get(c, 2)), &err))
            fail_msg("%s", err.msg);
        cut(&p, json_text(json_array_get(c, 3)), &got);
        strbuf_clear(&want);
        size_t k;
        json_t *piece;
        json_array_foreach (json_array_get(c, 4), k, piece) {
            strbuf_add(&want, json_string_value(piece), json_string_length(piece));
            strbuf_add_cstr(&want, "|");
        }
        assert_text(pattern.ptr, strbuf_str(&got), strbuf_str(&want));
        pretok_free(&p);
    }
    strbuf_free(&got);
    strbuf_free(&want);
    json_decref(data);
}

static void test_translate(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        TextReDialect dialect;
        const char *to;
    } cases[] = {
        {"\\p{N}{1,3}+", TEXTRE_ONIG, "(?:\\p{N}{1,3})+"},
        {"\\p{N}{1,3}+", TEXTRE_RUST, "\\p{N}{1,3}+"},
        {"(?:ab){2}+c", TEXTRE_ONIG, "(?:(?:ab){2})+c"},
        {"a{,3}b", TEXTRE_ONIG, "a{0,3}b"},
        {"a{2,}?b{x", TEXTRE_ONIG, "a{2,}?b{x"},
        {"[\\p{L}&&[^\\p{Han}]]+", TEXTRE_ONIG, "(?:(?=[\\p{L}])[^\\p{sc:Han}])+"},
        {"[a-z&&[aeiou]]", TEXTRE_ONIG, "(?:(?=[a-z])[aeiou])"},
        {"[[:alpha:]_]", TEXTRE_ONIG, "[\\p{Alphabetic}_]"},
        {"[]a]", TEXTRE_ONIG, "[]a]"},
        {"\\h\\H", TEXTRE_ONIG, "[0-9A-Fa-f][^0-9A-Fa-f]"},
        {"\\h", TEXTRE_RUST, "\\h"},
        {"(?m:.)", TEXTRE_ONIG, "(?s:.)"},
        {"\\u4e00", TEXTRE_ONIG, "\\x{4e00}"},
        {"[\\p{Han}\\P{^Thai}]\\p{L}\\p{Lu}", TEXTRE_ONIG,
         "[\\p{sc:Han}\\P{^sc:Thai}]\\p{L}\\p{Lu}"},
        {"\\w", TEXTRE_RUST,
         "[\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"
         "\\x{1F170}-\\x{1F189}\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}]"},
        {"[\\s-]", TEXTRE_ONIG, "[\\t-\\r\\x{85}\\x{2028}\\x{2029}\\p{Zs}-]"},
        {"a++b*+c?+", TEXTRE_ONIG, "a++b*+c?+"},
        {"a.b", TEXTRE_LITERAL, "a.b"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        StrBuf out;
        Error err = {0};
        strbuf_init(&out, 1000);
        if (!textre_translate("t", str_from(cases[i].from), cases[i].dialect, &out, &err))
            fail_msg("%s: %s", cases[i].from, err.msg);
        assert_text(cases[i].from, strbuf_str(&out), str_from(cases[i].to));
        strbuf_free(&out);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {"(",
                                        "[a",
                                        "[a[b]]",
                                        "[^a&&[b]]",
                                        "[[a]b]",
                                        "a\\",
                                        "\\p{Xq",
                                        "[[:alpha:",
                                        "(?<n>a)(?<n>b)(?P=z)",
                                        "\\C",
                                        "\xff",
                                        "a{70000}",
                                        "(?=a\\K)",
                                        "((a{500}){500}){500}",
                                        "*a"};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        TextRe re;
        Error err = {0};
        if (textre_compile(&re, "t", str_from(cases[i]), TEXTRE_ONIG, &err))
            fail_msg("%s compiled", cases[i]);
        assert_true(err.code == ERR_FORMAT || err.code == ERR_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "regular expression"));
    }
    static char deep[400];
    memset(deep, '(', 200);
    memset(deep + 200, ')', 199);
    TextRe re;
    Error err = {0};
    assert_false(textre_compile(&re, "t", str_from(deep), TEXTRE_ONIG, &err));
}

/* Exponential, polynomial and recursive expressions end with an error (or a result) soon. */
static void test_hostile(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "(a+)+$b", "(a|a)*b|.", "a*a*a*a*a*b|.",    "(?:a?){30}a{30}b|.",     "(a|aa)+$x",
        "(?R)?a",  "(a*)*b|.",  "(?=(a+))a*b\\1|.", "((a{1,9}){1,9}){1,9}b|."};
    enum { LEN = 20000 };
    static char text[LEN];
    memset(text, 'a', LEN);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Pretok p = {0};
        Error err = {0};
        Arena a;
        TextReWork w;
        StrBuf out;
        arena_init(&a, "test");
        strbuf_init(&out, 1 << 20);
        if (!pretok_add_split(&p, "t", str_from(cases[i]), TEXTRE_ONIG, PRETOK_ISOLATED, false,
                              &err))
            fail_msg("%s: %s", cases[i], err.msg);
        assert_true(textre_work_init(&w, LEN, &err));
        const double start = clock_ms();
        if (!pretok_run(&p, &w, &a, (Str){text, LEN}, true, collect, &out, &err))
            assert_true(err.code == ERR_FORMAT);
        const double ms = clock_ms() - start;
        if (ms > 60000) /* about a second */
            fail_msg("%s: %.0f ms", cases[i], ms);
        textre_work_free(&w);
        strbuf_free(&out);
        pretok_free(&p);
        arena_free(&a);
    }
}

/* What overflows the JIT's stack goes on in the interpreter. */
static void test_deep_groups(void **state)
{
    (void)state;
    enum { LEN = 200000 };
    Pretok p = {0};
    Error err = {0};
    StrBuf out;
    char *text = mem_alloc(LEN);
    assert_non_null(text);
    memset(text, '7', LEN);
    strbuf_init(&out, 1 << 20);
    assert_true(pretok_add_split(&p, "t", str_from("\\p{N}{1,3}+"), TEXTRE_ONIG, PRETOK_ISOLATED,
                                 false, &err));
    cut(&p, (Str){text, LEN}, &out);
    assert_int_equal(out.len, LEN + 1); /* one piece */
    pretok_free(&p);
    strbuf_free(&out);
    mem_free(text);
}

static void test_steps(void **state)
{
    (void)state;
    Pretok p = {0};
    Error err = {0};
    StrBuf out;
    strbuf_init(&out, 1000);
    assert_true(
        pretok_add_split(&p, "t", str_from("\\p{N}"), TEXTRE_RUST, PRETOK_ISOLATED, false, &err));
    assert_true(pretok_add_prefix_space(&p, "t", &err));
    assert_true(pretok_add_split(&p, "t", str_from(pretok_gpt2), TEXTRE_RUST, PRETOK_ISOLATED,
                                 false, &err));
    cut(&p, str_from("ab12 c"), &out);
    assert_text("steps", strbuf_str(&out), str_from(" ab| 1| 2| c|"));
    for (int i = 3; i < PRETOK_STEPS_MAX; i++)
        assert_true(pretok_add_prefix_space(&p, "t", &err));
    assert_false(pretok_add_prefix_space(&p, "t", &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    pretok_free(&p);
    strbuf_free(&out);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),      cmocka_unit_test(test_translate),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_deep_groups), cmocka_unit_test(test_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
