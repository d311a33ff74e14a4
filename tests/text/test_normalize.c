/* Normalisation forms against Python's unicodedata (tests/data/text/normalize.json), and that a
 * hostile run of marks costs no more than others. */
#include "text/text_data.h"

#include "base/clock.h"
#include "text/normalize.h"

static void test_forms(void **state)
{
    (void)state;
    json_t *data = data_json("text/normalize.json");
    size_t i;
    json_t *c;
    json_array_foreach (data, i, c) {
        const Str text = json_text(json_array_get(c, 0));
        for (int f = NORMALIZE_NFC; f <= NORMALIZE_NFKD; f++) {
            const Str want = json_text(json_array_get(c, (size_t)f));
            StrBuf out;
            Error err = {0};
            strbuf_init(&out, 1 << 16);
            assert_true(normalize_text((NormalizeForm)f, text, &out, &err));
            assert_text("normalised", strbuf_str(&out), want);
            if (normalize_is_plain((NormalizeForm)f, text))
                assert_text("plain", text, want);
            strbuf_free(&out);
        }
    }
    json_decref(data);
}

/* Longer than the chunk that is worked on at once. */
static void test_chunks(void **state)
{
    (void)state;
    StrBuf text;
    StrBuf want;
    StrBuf out;
    Error err = {0};
    strbuf_init(&text, 1 << 20);
    strbuf_init(&want, 1 << 20);
    strbuf_init(&out, 1 << 20);
    for (int i = 0; i < 20000; i++) {
        strbuf_add_cstr(&text, i % 7 ? "e\xCC\x81" : "e\xCC\x81x\xCC\xA3");
        strbuf_add_cstr(&want, i % 7 ? "\xC3\xA9" : "\xC3\xA9x\xCC\xA3");
    }
    assert_true(normalize_text(NORMALIZE_NFC, strbuf_str(&text), &out, &err));
    assert_true(str_eq(strbuf_str(&out), strbuf_str(&want)));
    strbuf_free(&text);
    strbuf_free(&want);
    strbuf_free(&out);
}

static void test_marks(void **state)
{
    (void)state;
    StrBuf text;
    StrBuf out;
    Error err = {0};
    strbuf_init(&text, 4 << 20);
    strbuf_init(&out, 4 << 20);
    strbuf_add_cstr(&text, "a");
    for (int i = 0; i < 300000; i++) /* classes 230 and 220 in the wrong order throughout */
        strbuf_add_cstr(&text, i % 2 ? "\xCC\xA3" : "\xCC\x82");
    const double start = clock_ms();
    assert_true(normalize_text(NORMALIZE_NFC, strbuf_str(&text), &out, &err));
    const double ms = clock_ms() - start;
    assert_memory_equal(out.ptr, "\xE1\xBA\xAD", 3); /* both composed */
    if (ms > 20000)                                  /* about 20 ms; insertion sort takes minutes */
        fail_msg("%.0f ms", ms);
    strbuf_free(&text);
    strbuf_free(&out);
}

static void test_full(void **state)
{
    (void)state;
    StrBuf out;
    Error err = {0};
    strbuf_init(&out, 4);
    assert_false(normalize_text(NORMALIZE_NFKD, str_from("\xEF\xB7\xBA"), &out, &err));
    assert_int_equal(err.code, ERR_NOMEM);
    strbuf_free(&out);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
