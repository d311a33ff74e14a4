/* Bodies of both completion routes, as a pure function: the first byte chooses the route. */
#include "base/json.h"
#include "serve/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    json_setup();
    Arena a;
    arena_init(&a, "fuzz");
    OpenaiRequest rq;
    const char *param;
    Error err = {0};
    const Str body = {(const char *)data + 1, size - 1};
    if (!openai_parse(&a, data[0] & 1U ? OPENAI_CHAT : OPENAI_COMPLETION, body, &rq, &param,
                      &err) &&
        err.code == ERR_NONE)
        __builtin_trap(); /* a refusal says why */
    arena_free(&a);
    return 0;
}
