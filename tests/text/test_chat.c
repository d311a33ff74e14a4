/* Where a chat template comes from, and what it is given. */
#include "text/text_data.h"

#include "text/chat.h"

static json_t *parse(const char *text)
{
    Error err = {0};
    json_t *v = json_parse("test", str_from(text), &err);
    if (!v)
        fail_msg("%s", err.msg);
    return v;
}

static void expect(const ChatSource *source, const char *messages, const char *tools,
                   const char *vars, bool gen, const char *want)
{
    Arena a;
    Chat *c;
    Error err = {0};
    StrBuf out;
    arena_init(&a, "test");
    strbuf_init(&out, 10000);
    json_t *m = parse(messages);
    json_t *t = tools ? parse(tools) : NULL;
    json_t *v = vars ? parse(vars) : NULL;
    if (!chat_open(&a, source, &c, &err))
        fail_msg("%s", err.msg);
    const ChatInput in = {.messages = m, .tools = t, .vars = v, .add_generation_prompt = gen};
    if (!chat_render(c, &in, &out, &err))
        fail_msg("%s", err.msg);
    assert_text("chat", strbuf_str(&out), str_from(want));
    assert_true(chat_bytes(c) > 0);
    strbuf_free(&out);
    json_decref(m);
    json_decref(t);
    json_decref(v);
    arena_free(&a);
}

static const char hello[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]";

/* The golden tiny model's ChatML template, from its tokenizer_config.json. */
static void test_chatml(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    const ChatSource source = {.doc = "tiny",
                               .tokenizer_config = data_file(&a, "tiny/tokenizer_config.json")};
    expect(&source, hello, NULL, NULL, true, "<|im_start|>user\nHi<|im_end|><|im_start|>assistant");
    expect(&source, hello, NULL, NULL, false, "<|im_start|>user\nHi<|im_end|>");
    arena_free(&a);
}

static void test_variables(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    Tokenizer *t = tiny_tokenizer(&a);
    const ChatSource source = {
        .doc = "x",
        .jinja =
            str_from("{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ documents }}"
                     "{{ think|default('-') }}{{ messages|length }}{{ add_generation_prompt }}"),
        .tokenizer = t};
    expect(&source, hello, NULL, NULL, false, "<|endoftext|><|im_end|>TrueNone-1False");
    expect(&source, hello, "[]", NULL, false, "<|endoftext|><|im_end|>TrueNone-1False");
    expect(&source, hello, "[{\"a\":1}]", "{\"think\":true,\"bos_token\":\"!\"}", true,
           "!<|im_end|>FalseNoneTrue1True");
    tokenizer_close(t);
    arena_free(&a);
}

/* A list of named templates: tools go to "tool_use", the rest to "default". */
static void test_named(void **state)
{
    (void)state;
    const ChatSource source = {
        .doc = "x",
        .tokenizer_config =
            str_from("{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},{\"name\":"
                     "\"tool_use\",\"template\":\"T{{ tools|length }}\"},{\"name\":\"rag\","
                     "\"template\":\"{{ not parsed\"}]}")};
    expect(&source, hello, NULL, NULL, false, "D");
    expect(&source, hello, "[1,2]", NULL, false, "T2");
    /* chat_template.jinja goes before the configuration's. */
    const ChatSource both = {
        .doc = "x", .jinja = str_from("J"), .tokenizer_config = source.tokenizer_config};
    expect(&both, hello, NULL, NULL, false, "J");
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *jinja, *config;
        ErrCode code;
        const char *mentions;
    } cases[] = {
        {NULL, NULL, ERR_NOT_FOUND, "--raw"},
        {NULL, "{}", ERR_NOT_FOUND, "--raw"},
        {NULL, "{\"chat_template\":[]}", ERR_NOT_FOUND, "--raw"},
        {NULL, "{", ERR_FORMAT, "tokenizer_config.json"},
        {NULL, "{\"chat_template\":[{\"name\":\"default\"}]}", ERR_FORMAT, "chat_template[0]"},
        {NULL, "{\"chat_template\":[{\"name\":\"default\",\"template\":\"{{\"}]}", ERR_FORMAT,
         "default"},
        {"{% if %}", NULL, ERR_FORMAT, "x: chat template: line 1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Arena a;
        Chat *c;
        Error err = {0};
        arena_init(&a, "test");
        const ChatSource source = {.doc = "x",
                                   .jinja = cases[i].jinja ? str_from(cases[i].jinja) : (Str){0},
                                   .tokenizer_config =
                                       cases[i].config ? str_from(cases[i].config) : (Str){0}};
        assert_false(chat_open(&a, &source, &c, &err));
        if (err.code != cases[i].code || !strstr(err.msg, cases[i].mentions))
            fail_msg("case %zu: %s \"%s\"", i, err_name(err.code), err.msg);
        arena_free(&a);
    }
}

static void test_refusal(void **state)
{
    (void)state;
    Arena a;
    Chat *c;
    Error err = {0};
    StrBuf out;
    arena_init(&a, "test");
    strbuf_init(&out, 100);
    strbuf_add_cstr(&out, "kept");
    const ChatSource source = {.doc = "m",
                               .jinja =
                                   str_from("text{% if messages[0].role != 'user' %}{{ "
                                            "raise_exception('start with user') }}{% endif %}")};
    assert_true(chat_open(&a, &source, &c, &err));
    assert_true(chat_mentions(c, "raise_exception"));
    assert_false(chat_mentions(c, "enable_thinking"));
    json_t *m = parse("[{\"role\":\"system\",\"content\":\"\"}]");
    const ChatInput in = {.messages = m};
    assert_false(chat_render(c, &in, &out, &err));
    assert_int_equal(err.code, ERR_REQUEST);
    assert_string_equal(err.msg, "m: chat template: line 1: start with user");
    assert_text("kept", strbuf_str(&out), str_from("kept"));
    const ChatInput no_list = {.messages = NULL};
    assert_false(chat_render(c, &no_list, &out, &err));
    assert_int_equal(err.code, ERR_REQUEST);
    json_decref(m);
    strbuf_free(&out);
    arena_free(&a);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),  cmocka_unit_test(test_variables),
        cmocka_unit_test(test_named),   cmocka_unit_test(test_errors),
        cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
