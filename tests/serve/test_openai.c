/* Request bodies to requests: what the HTTP cases cannot see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "serve/openai.h"

#include <stdio.h>

static OpenaiRequest parse(Arena *a, OpenaiKind kind, const char *body)
{
    OpenaiRequest rq;
    const char *param;
    Error err = {0};
    if (!openai_parse(a, kind, str_from(body), &rq, &param, &err))
        fail_msg("%s: %s", body, err.msg);
    return rq;
}

static void check_str(MereStr got, const char *want)
{
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)got.len, got.ptr ? got.ptr : "");
    assert_string_equal(text, want);
}

static void test_defaults(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    OpenaiRequest rq = parse(&a, OPENAI_COMPLETION, "{\"prompt\":\"a\\u0000b\"}");
    assert_int_equal(rq.gen.prompt.len, 3);
    assert_memory_equal(rq.gen.prompt.ptr, "a\0b", 3);
    assert_int_equal(rq.gen.max_tokens, 16);
    assert_true(rq.gen.sampling.temperature == 1.0F);
    assert_true(rq.gen.sampling.top_p == 1.0F);
    assert_int_equal(rq.gen.sampling.logprobs, -1);
    assert_int_equal(rq.gen.sampling.seed, 0);
    assert_false(rq.stream || rq.include_usage || rq.gen.parse_special);
    rq = parse(&a, OPENAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    assert_int_equal(rq.gen.max_tokens, 0);
    assert_true(rq.gen.parse_special);
    arena_free(&a);
}

static void test_fields(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    OpenaiRequest rq =
        parse(&a, OPENAI_COMPLETION,
              "{\"model\":\"m\",\"prompt\":[3,4],\"stream\":true,\"stream_options\":"
              "{\"include_usage\":true},\"temperature\":0,\"top_p\":0,\"top_k\":-1,"
              "\"min_p\":0.25,\"presence_penalty\":-1.5,\"frequency_penalty\":2,\"seed\":0,"
              "\"stop\":[\"x\",\"yz\"],\"logit_bias\":{\"7\":-100,\"8\":1.5},\"logprobs\":0,"
              "\"max_tokens\":5e0,\"repetition_penalty\":1.25,\"cache_salt\":\"s\","
              "\"ignore_eos\":true,\"n\":null}");
    const MereSampling *s = &rq.gen.sampling;
    assert_true(str_is(rq.model, "m"));
    assert_int_equal(rq.gen.n_ids, 2);
    assert_int_equal(rq.gen.ids[1], 4);
    assert_true(rq.stream && rq.include_usage && rq.gen.ignore_eos);
    assert_true(s->temperature == 0.0F && s->min_p == 0.25F && s->presence_penalty == -1.5F);
    assert_true(s->frequency_penalty == 2.0F && s->repeat_penalty == 1.25F);
    assert_true(s->top_p > 0.0F && s->top_p < 1e-6F); /* 0 would mean "not set" */
    assert_int_equal(s->top_k, 0);
    assert_true(s->seed != 0); /* 0 would mean "from the clock" */
    assert_int_equal(s->logprobs, 0);
    assert_int_equal(rq.gen.max_tokens, 5);
    assert_int_equal(rq.gen.n_stops, 2);
    check_str(rq.gen.stops[1], "yz");
    assert_int_equal(s->n_bias, 2);
    assert_int_equal(s->bias[0].id, 7);
    assert_true(s->bias[1].add == 1.5F);
    check_str(rq.gen.cache_salt, "s");
    rq = parse(&a, OPENAI_COMPLETION, "{\"prompt\":\"a\",\"stop\":\"one\",\"seed\":-3}");
    assert_int_equal(rq.gen.n_stops, 1);
    assert_true(rq.gen.sampling.seed == (uint64_t)-3);
    arena_free(&a);
}

static void test_chat_messages(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    OpenaiRequest rq = parse(
        &a, OPENAI_CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":"
        "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"z\\\":1,\\\"a\\\":2}\"}},{\"function\":{\"name\":\"g\","
        "\"arguments\":\"no json\"}}]}],\"max_tokens\":3,\"max_completion_tokens\":4,"
        "\"chat_template_kwargs\":{\"think\":false}}");
    check_str(rq.messages,
              "[{\"role\":\"system\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"a\\nb\"},"
              "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
              "\"f\",\"arguments\":{\"z\":1,\"a\":2}}},{\"function\":{\"name\":\"g\","
              "\"arguments\":\"no json\"}}]}]");
    check_str(rq.vars, "{\"think\":false}");
    check_str(rq.tools, "");
    assert_int_equal(rq.gen.max_tokens, 4);
    rq = parse(&a, OPENAI_CHAT,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tools\":[{\"type\":"
               "\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}");
    check_str(rq.tools, "");
    arena_free(&a);
}

static void test_bad_json_keeps_param_null(void **state)
{
    (void)state;
    Arena a;
    arena_init(&a, "test");
    OpenaiRequest rq;
    const char *param = "x";
    Error err = {0};
    assert_false(openai_parse(&a, OPENAI_CHAT, str_from("{\n\n,"), &rq, &param, &err));
    assert_null(param);
    assert_int_equal(err.code, ERR_REQUEST);
    assert_non_null(strstr(err.msg, "line 3"));
    arena_free(&a);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    const Str body = str_from(
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
        "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{\\\"a\\\":1}\"}}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
        "\"stop\":[\"x\"],\"logit_bias\":{\"5\":1},\"model\":\"m\",\"cache_salt\":\"s\"}");
    const size_t before = mem_in_use();
    bool ok = false;
    for (uint64_t n = 1; n < 2000 && !ok; n++) {
        Arena a;
        arena_init(&a, "test");
        OpenaiRequest rq;
        const char *param;
        Error err = {0};
        mem_fail_at(n, false);
        ok = openai_parse(&a, OPENAI_CHAT, body, &rq, &param, &err);
        const bool reached = mem_count_get() >= n;
        mem_fail_at(0, false);
        if (!ok) {
            if (err.code != ERR_NOMEM)
                fail_msg("allocation %d: %s", (int)n, err.msg);
        } else {
            ok = !reached; /* jansson may get by without some */
        }
        arena_free(&a);
        assert_int_equal(mem_in_use(), before);
    }
    assert_true(ok);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_chat_messages),
        cmocka_unit_test(test_bad_json_keeps_param_null),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
