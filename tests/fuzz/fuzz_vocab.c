/* The files of a tokenizer other than tokenizer.json, and a text to encode with one. The first byte
 * says which kind: SentencePiece, tiktoken, tekken.json, vocab.json with merges.txt, vocab.txt, or
 * a map of characters. Then up to three parts with the bytes 254 253 between them: the file, the
 * second file or tokenizer_config.json, the text. */
#include "base/json.h"
#include "tokenizer_use.h"
#include "text/charsmap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Str next_part(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *from = *at;
    const uint8_t *to = from;
    while (end - to >= 2 && (to[0] != 254 || to[1] != 253))
        to++;
    const bool found = end - to >= 2;
    *at = found ? to + 2 : end;
    return (Str){(const char *)from, (size_t)((found ? to : end) - from)};
}

static void use_map(Arena *a, Str file, Str text)
{
    Charsmap map;
    Error err = {0};
    if (!charsmap_open(a, "fuzz", file, &map, &err))
        return;
    for (size_t i = 0; i < text.len; i++) {
        size_t used;
        const Str rest = {text.ptr + i, text.len - i};
        if (charsmap_longest(&map, rest, &used).len > map.texts.len || used > rest.len)
            abort();
        if (charsmap_shortest(&map, rest, &used).len > map.texts.len || used > rest.len)
            abort();
    }
}

static bool open_kind(Arena *a, int kind, Str file, Str second, Tokenizer **t, Error *err)
{
    const Str config = second.len ? second : (Str){0};
    switch (kind) {
    case 0:
        return tokenizer_spm_open(a, "fuzz", file, config, t, err);
    case 1:
        return tokenizer_tiktoken_open(a, "fuzz", file, config, t, err);
    case 2:
        return tokenizer_tekken_open(a, "fuzz", file, t, err);
    case 3:
        return tokenizer_vocab_open(a, "fuzz", file, second, (Str){0}, t, err);
    default:
        return tokenizer_wordpiece_open(a, "fuzz", file, config, t, err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena a;
    Error err = {0};
    Tokenizer *t = NULL;
    if (!data || size < 1)
        return 0;
    json_setup();
    arena_init(&a, "fuzz");
    const uint8_t *at = data + 1;
    const uint8_t *end = data + size;
    const int kind = data[0] % 6;
    const Str file = next_part(&at, end);
    const Str second = next_part(&at, end);
    const Str text = {(const char *)at, (size_t)(end - at)};
    if (kind == 5) {
        use_map(&a, file, second);
    } else if (open_kind(&a, kind, file, second, &t, &err)) {
        tokenizer_use(&a, t, text);
        tokenizer_close(t);
    } else if (!err.msg[0]) {
        abort();
    }
    arena_free(&a);
    return 0;
}
