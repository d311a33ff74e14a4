/* The JSON beside safetensors. The input is up to three texts with a byte 255 (in no valid JSON)
 * between them: config.json, generation_config.json, model.safetensors.index.json. */
#include "weights/config.h"
#include "weights/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Str next_text(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *from = *at;
    const uint8_t *to = from;
    while (to < end && *to != 255)
        to++;
    *at = to < end ? to + 1 : end;
    return (Str){(const char *)from, (size_t)(to - from)};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena a;
    Error err = {0};
    const uint8_t *at = data;
    const uint8_t *end = data + size;
    if (!data)
        return 0;
    json_setup();
    arena_init(&a, "fuzz");
    const Str config = next_text(&at, end);
    const Str generation = at < end ? next_text(&at, end) : (Str){0};
    json_t *out = NULL;
    if (config_parse("config", config, "generation", generation, &out, &err)) {
        const json_t *eos = json_object_get(out, "eos_token_id");
        if (json_array_size(eos) > CONFIG_EOS_MAX)
            abort();
        const ConfigQuant q = config_quant(out, "lm_head");
        if (q.mode.len && !q.mode.ptr)
            abort();
        json_decref(out);
    }
    SafetensorsIndex index;
    if (at < end && safetensors_index_parse(&a, "index", next_text(&at, end), &index, &err)) {
        for (int i = 0; i < index.n_files; i++)
            if (strchr(index.files[i], '/') || index.files[i][0] == '.')
                abort();
        json_decref(index.json);
    }
    arena_free(&a);
    return 0;
}
