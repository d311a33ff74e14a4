/* A GGUF file: metadata, tensor infos, then the configuration (as a text model, as a vision tower)
 * and the names made from them. */
#include "weights/gguf_names.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const Gguf *g, const uint8_t *data, size_t size)
{
    for (int64_t i = 0; i < g->n_kv; i++) {
        const GgufKv *kv = &g->kv[i];
        if (kv->data < data || kv->data + kv->bytes > data + size)
            abort();
        if (kv->type != GGUF_ARRAY)
            continue;
        const uint8_t *at = kv->data;
        for (uint64_t j = 0; j < kv->n; j++) {
            if (kv->item == GGUF_STR)
                (void)gguf_next_str(&at);
            else if (kv->item != GGUF_ARRAY)
                (void)(gguf_item_f64(kv, j) + (double)gguf_item_i64(kv, j));
        }
        if (kv->item == GGUF_STR && at != kv->data + kv->bytes)
            abort();
    }
    for (int64_t i = 0; i < g->n_tensors; i++) {
        const Tensor *t = &g->tensors[i];
        if (t->offset + t->bytes > size)
            abort();
        const volatile uint8_t *first = t->data;
        if (t->bytes)
            (void)(first[0] + first[t->bytes - 1]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena a;
    Error err = {0};
    Gguf g;
    json_t *config = NULL;
    json_setup();
    arena_init(&a, "fuzz");
    if (gguf_parse(&a, "fuzz", data, size, &g, &err)) {
        walk(&g, data, size);
        if (!gguf_names_config(&g, &config, &err))
            config = NULL;
        for (int64_t i = 0; i < g.n_tensors; i++) {
            Str name;
            if (!gguf_names_tensor(&a, config, g.tensors[i].name, &name, &err) ||
                name.ptr[name.len] != '\0')
                abort();
        }
        json_decref(config);
        json_t *other = json_object();
        err = (Error){0};
        if (!gguf_names_vision(&g, other, &err) && err.msg[0] == '\0')
            abort();
        json_decref(other);
    } else if (err.code == ERR_NONE || err.msg[0] == '\0') {
        abort();
    }
    arena_free(&a);
    return 0;
}
