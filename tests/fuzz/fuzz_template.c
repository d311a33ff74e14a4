/* A chat template, rendered with a fixed conversation under small limits. Output is valid UTF-8. */
#include "base/json.h"
#include "text/template.h"
#include "text/utf8.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char vars_text[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
    "\\u00e9.\"},{\"role\":\"user\",\"content\":"
    "\"Hi\\n  there \"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{"
    "\"name\":\"f\",\"arguments\":{\"a\":1,\"b\":[1.5,true]}}}]}],\"tools\":[{\"type\":"
    "\"function\"}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"s\":\"a,b c\",\"n\":3,\"f\":-2.5,"
    "\"l\":[3,1,2],\"d\":{\"b\":1,\"a\":[1]},\"e\":\"\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena a;
    Error err = {0};
    Template *t;
    if (!data)
        return 0;
    json_setup();
    json_t *vars = json_parse("vars", (Str){vars_text, sizeof vars_text - 1}, &err);
    if (!vars)
        abort();
    const struct tm now = {.tm_year = 126, .tm_mon = 2, .tm_mday = 14};
    const TemplateLimits limits = {
        .steps = 200000, .memory_bytes = 8 << 20, .depth = 300, .output_bytes = 1 << 20};
    const TemplateInput in = {.more = vars, .now = &now, .limits = &limits};
    StrBuf out;
    arena_init(&a, "fuzz");
    strbuf_init(&out, 1 << 20);
    const bool ok = template_open(&a, "fuzz", (Str){(const char *)data, size}, &t, &err) &&
                    template_render(t, &in, &out, &err);
    if (ok ? utf8_valid_prefix(strbuf_str(&out)) != out.len : !err.msg[0])
        abort();
    strbuf_free(&out);
    arena_free(&a);
    json_decref(vars);
    return 0;
}
