/* A tokenizer.json and a text to encode with it. The input is up to three texts with a byte 254
 * between them: tokenizer.json, tokenizer_config.json, text. Whatever opens must encode any text
 * within its vocabulary and decode its own ids, and the stream must give valid UTF-8. */
#include "base/json.h"
#include "tokenizer_use.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Str next_text(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *from = *at;
    const uint8_t *to = from;
    while (to < end && *to != 254)
        to++;
    *at = to < end ? to + 1 : end;
    return (Str){(const char *)from, (size_t)(to - from)};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena a;
    Error err = {0};
    Tokenizer *t;
    const uint8_t *at = data;
    const uint8_t *end = data + size;
    if (!data)
        return 0;
    json_setup();
    arena_init(&a, "fuzz");
    const Str json = next_text(&at, end);
    const Str config = at < end ? next_text(&at, end) : (Str){0};
    if (tokenizer_json_open(&a, "fuzz", json, config.len ? config : (Str){0}, &t, &err)) {
        tokenizer_use(&a, t, (Str){(const char *)at, (size_t)(end - at)});
        tokenizer_close(t);
    } else if (!err.msg[0]) {
        abort();
    }
    arena_free(&a);
    return 0;
}
