/* What a tokenizer holds, says that it holds, and is planned for. */
#include "text/text_data.h"

enum { N = 30000 };

/* Token i: one to six letters, all different. */
static int letters(int i, char out[8])
{
    int n = 0;
    do {
        out[n++] = (char)('a' + i % 26);
        i /= 26;
    } while (i-- > 0);
    out[n] = '\0';
    return n;
}

static void list(StrBuf *b, const char *form)
{
    char text[8];
    for (int i = 0; i < N; i++) {
        (void)letters(i, text);
        strbuf_printf(b, i ? "," : "");
        if (strcmp(form, "table") == 0)
            strbuf_printf(b, "\"%s\":%d", text, i);
        else
            strbuf_printf(b, "[\"%s\",-%d.5]", text, i % 13);
    }
}

/* Every pair of a longer token's last letter and the rest: most tokens here have both. */
static void merges(StrBuf *b)
{
    char text[8];
    bool first = true;
    for (int i = 26; i < N; i++) {
        const int n = letters(i, text);
        strbuf_printf(b, "%s\"%.*s %c\"", first ? "" : ",", n - 1, text, text[n - 1]);
        first = false;
    }
}

static void test_held(void **state)
{
    (void)state;
    static const char *const kinds[] = {"BPE", "Unigram", "WordPiece"};
    for (size_t k = 0; k < 2 * COUNT_OF(kinds); k++) {
        const char *kind = kinds[k / 2];
        const bool bytes = k % 2 && k / 2 == 0;
        StrBuf json;
        Arena a;
        Error err = {0};
        Tokenizer *t = NULL;
        strbuf_init(&json, 16 << 20);
        strbuf_printf(
            &json,
            "{\"normalizer\":null,\"pre_tokenizer\":%s,\"decoder\":null,\"model\":{\"type\":"
            "\"%s\",\"vocab\":",
            bytes ? "{\"type\":\"ByteLevel\"}" : "null", kind);
        const bool table = strcmp(kind, "Unigram") != 0;
        strbuf_printf(&json, table ? "{" : "[");
        list(&json, table ? "table" : "scored");
        strbuf_printf(&json, table ? "}" : "]");
        if (strcmp(kind, "BPE") == 0) {
            strbuf_printf(&json, ",\"merges\":[");
            merges(&json);
            strbuf_printf(&json, "]");
        }
        strbuf_printf(&json, "}}");
        assert_false(json.failed);
        const size_t before = mem_in_use();
        arena_init(&a, "tokenizer");
        if (!tokenizer_json_open(&a, kind, strbuf_str(&json), (Str){0}, &t, &err))
            fail_msg("%s", err.msg);
        const size_t held = mem_in_use() - before;
        const size_t told = tokenizer_bytes(t);
        if (told < held - held / 50 || told > held + held / 50)
            fail_msg("%s: %zu bytes held, %zu told", kind, held, told);
        assert_in_range(told, N * 20, tokenizer_bytes_for(tokenizer_n_vocab(t)));
        tokenizer_close(t);
        arena_free(&a);
        assert_int_equal(mem_in_use(), before);
        strbuf_free(&json);
    }
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
