/* The streaming detokeniser: whole characters only, no byte lost, however the ids come. */
#include "text/text_data.h"

#include "text/detok.h"
#include "text/utf8.h"

/* Lossy decoding of a whole text at once: each maximal broken part becomes U+FFFD. */
static void lossy(Str s, StrBuf *out)
{
    while (s.len > 0) {
        uint32_t cp;
        const int n = utf8_decode(s.ptr, s.len, &cp);
        bool incomplete;
        const size_t step = n > 0 ? (size_t)n : utf8_broken_part(s, &incomplete);
        if (n > 0)
            strbuf_add(out, s.ptr, step);
        else
            strbuf_add_cstr(out, "\xEF\xBF\xBD");
        s = (Str){s.ptr + step, s.len - step};
    }
}

static void test_lossy_cases(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"abc", "abc"},
        {"\xC3\xA9", "\xC3\xA9"},
        {"\xFF", "\xEF\xBF\xBD"},
        {"\xC3", "\xEF\xBF\xBD"},
        {"\xC3(", "\xEF\xBF\xBD("},
        {"\xE2\x82(", "\xEF\xBF\xBD("},
        {"\xF0\x9F\x98"
         "a",
         "\xEF\xBF\xBD"
         "a"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\x80\xC3\xA9\xC3", "\xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBD"},
        {"\xF0\x9F\xF0\x9F\x98\x80", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        /* At once, and byte by byte. */
        for (int single = 0; single < 2; single++) {
            const Str s = str_from(cases[i].bytes);
            Detok d;
            Error err = {0};
            StrBuf out;
            detok_init(&d, NULL, 0);
            strbuf_init(&out, 1000);
            for (size_t k = 0; k < s.len; k += single ? 1 : s.len)
                assert_true(detok_add_bytes(&d, (Str){s.ptr + k, single ? 1 : s.len}, &out, &err));
            assert_true(detok_end(&d, &out, &err));
            assert_text(cases[i].bytes, strbuf_str(&out), str_from(cases[i].want));
            strbuf_free(&out);
        }
    }
}

static void test_random_ids(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    uint64_t seed = 5;
    for (int round = 0; round < 3000; round++) {
        int32_t ids[40];
        const int n = (int)(next_random(&seed) % COUNT_OF(ids));
        Detok d;
        Error err = {0};
        StrBuf out;
        StrBuf raw;
        StrBuf want;
        detok_init(&d, t, 0);
        strbuf_init(&out, 1 << 16);
        strbuf_init(&raw, 1 << 16);
        strbuf_init(&want, 1 << 16);
        for (int i = 0; i < n; i++) {
            /* Mostly bytes beyond ASCII, so that characters are split and broken. */
            ids[i] = (int32_t)(next_random(&seed) % 3 ? 128 + next_random(&seed) % 128
                                                      : next_random(&seed) % 330);
            assert_true(detok_add(&d, ids[i], &out, &err));
            assert_in_range(detok_held(&d), 0, 3);
            const Str so_far = strbuf_str(&out);
            assert_int_equal(utf8_valid_prefix(so_far), so_far.len);
        }
        assert_true(detok_end(&d, &out, &err));
        assert_int_equal(detok_held(&d), 0);
        assert_true(tokenizer_decode(t, ids, n, 0, &raw, &err));
        lossy(strbuf_str(&raw), &want);
        assert_text("stream", strbuf_str(&out), strbuf_str(&want));
        strbuf_free(&out);
        strbuf_free(&raw);
        strbuf_free(&want);
    }
    tokenizer_close(t);
    arena_free(&a);
}

static void test_special(void **state)
{
    (void)state;
    Arena a;
    Detok d;
    Error err = {0};
    StrBuf out;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    strbuf_init(&out, 100);
    detok_init(&d, t, TOKENIZER_SKIP_SPECIAL);
    const int32_t ids[] = {65, 309, 0xC3, 310, 0xA9, 66};
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        assert_true(detok_add(&d, ids[i], &out, &err));
    assert_text("skipped", strbuf_str(&out),
                str_from("A\xC3\xA9"
                         "B"));
    strbuf_free(&out);
    strbuf_init(&out, 3); /* full */
    detok_init(&d, t, 0);
    assert_false(detok_add(&d, 309, &out, &err));
    assert_int_equal(err.code, ERR_NOMEM);
    strbuf_free(&out);
    tokenizer_close(t);
    arena_free(&a);
}

static void test_utf8(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back = 0;
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        const int n = utf8_encode(cp, s);
        if (utf8_decode(s, (size_t)n, &back) != n || back != cp || (int)utf8_step(s[0]) != n)
            fail_msg("U+%04X: %d bytes, back U+%04X", cp, n, back);
        for (int k = 1; k < n; k++) { /* cut: incomplete, and one broken part */
            bool incomplete;
            assert_int_equal(utf8_decode(s, (size_t)k, &back), 0);
            assert_int_equal(utf8_broken_part((Str){s, (size_t)k}, &incomplete), k);
            assert_true(incomplete);
        }
    }
    assert_int_equal(utf8_count(str_from("a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80")), 4);
    assert_int_equal(utf8_valid_prefix(str_from("abcdefghijkl\xC3\xA9\xFFz")), 14);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lossy_cases),
        cmocka_unit_test(test_random_ids),
        cmocka_unit_test(test_special),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
