/* config.json with generation_config.json, and what it says of quantised modules. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "formats/build_files.h"
#include "weights/config.h"

static json_t *parse(const char *config, const char *generation, Error *err)
{
    json_t *out = NULL;
    const Str second = generation ? str_from(generation) : (Str){0};
    return config_parse("config.json", str_from(config), "generation_config.json", second, &out,
                        err)
               ? out
               : NULL;
}

static void test_eos_ids(void **state)
{
    static const struct {
        const char *config, *generation, *want;
    } cases[] = {
        {"{\"eos_token_id\":2}", NULL, "[2]"},
        {"{\"eos_token_id\":[2,3]}", NULL, "[2,3]"},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":[7,8]}", "[7,8]"},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":7}", "[7]"},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":null}", "[2]"},
        {"{\"eos_token_id\":2}", "{}", "[2]"},
        {"{\"text_config\":{\"eos_token_id\":9}}", NULL, "[9]"},
        {"{\"eos_token_id\":[]}", NULL, "[]"},
        {"{}", NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error err = {0};
        json_t *config = parse(cases[i].config, cases[i].generation, &err);
        if (!config)
            fail_msg("%s", err.msg);
        char *got = json_dumps(json_object_get(config, "eos_token_id"), JSON_COMPACT);
        assert_int_equal(got != NULL, cases[i].want != NULL);
        if (got)
            assert_string_equal(got, cases[i].want);
        json_text_free(got);
        assert_int_equal(json_object_get(config, "generation_config") != NULL,
                         cases[i].generation != NULL);
        json_decref(config);
    }
}

static void test_errors(void **state)
{
    char many[2000] = "{\"eos_token_id\":[1";
    for (int i = 0; i < 64; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ",%d", i);
    snprintf(many + strlen(many), sizeof many - strlen(many), "]}");
    const struct {
        const char *config, *generation, *says;
    } cases[] = {
        {"", NULL, "config.json: line"},
        {"[1]", NULL, "config.json: not a JSON object"},
        {"{}", "3", "generation_config.json: not a JSON object"},
        {"{}", "{", "generation_config.json: line"},
        {"{\"eos_token_id\":\"</s>\"}", NULL, "config.json: \"eos_token_id\" is no token id"},
        {"{\"eos_token_id\":-1}", NULL, "\"eos_token_id\" is no token id"},
        {"{\"eos_token_id\":[1,2147483648]}", NULL, "\"eos_token_id\" is no token id"},
        {"{\"eos_token_id\":[[1]]}", NULL, "\"eos_token_id\" is no token id"},
        {"{}", "{\"eos_token_id\":{}}", "generation_config.json: \"eos_token_id\""},
        {many, NULL, "has 65 ids, at most 64"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Error err = {0};
        if (parse(cases[i].config, cases[i].generation, &err))
            fail_msg("accepted: %s %s", cases[i].config, cases[i].says);
        expect_error(cases[i].config, &err, ERR_FORMAT, &cases[i].says, 1);
    }
}

static void check_quant(const char *config, const char *module, int bits, int group,
                        const char *mode)
{
    Error err = {0};
    json_t *c = parse(config, NULL, &err);
    const ConfigQuant q = config_quant(c, module);
    assert_int_equal(q.bits, bits);
    assert_int_equal(q.group, group);
    assert_int_equal(q.mode.len, strlen(mode));
    assert_true(q.mode.len == 0 || str_is(q.mode, mode));
    json_decref(c);
}

static void test_quantization(void **state)
{
    (void)state;
    const char *mixed = "{\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\","
                        "\"a.gate\":{\"bits\":8,\"group_size\":64},\"a.b\":false,"
                        "\"a.c\":{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"}}}";
    check_quant(mixed, "a.x", 4, 32, "mxfp4");
    check_quant(mixed, "a.gate", 8, 64, "affine"); /* an override without a mode is affine */
    check_quant(mixed, "a.b", 4, 32, "mxfp4");     /* false: only the tensors can tell */
    check_quant(mixed, "a.c", 4, 16, "nvfp4");
    check_quant("{\"quantization_config\":{\"bits\":4,\"group_size\":64}}", "x", 4, 64, "affine");
    check_quant("{}", "x", 0, 0, "");
    check_quant("{\"quantization\":7}", "x", 0, 0, "");
    check_quant("{\"quantization\":{\"bits\":\"4\",\"mode\":5}}", "x", 0, 0, "");
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const size_t before = mem_in_use();
    uint64_t n = 0;
    for (bool ok = false; !ok;) {
        Error err = {0};
        mem_fail_at(++n, false);
        json_t *c =
            parse("{\"eos_token_id\":[2,3],\"x\":{\"y\":[1,2]}}", "{\"eos_token_id\":7}", &err);
        mem_fail_at(0, false);
        ok = c != NULL;
        if (!ok)
            expect_error("config", &err, ERR_NOMEM, NULL, 0);
        json_decref(c);
        assert_int_equal(mem_in_use(), before);
    }
    assert_true(n > 20);
}

int main(void)
{
    json_setup();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eos_ids),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_quantization),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
