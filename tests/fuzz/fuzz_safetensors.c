/* A safetensors file: whatever the header says, a tensor that is given out lies inside the file. */
#include "weights/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch(const Tensor *t, const uint8_t *data, size_t size)
{
    if (t->bytes == 0)
        return;
    const volatile uint8_t *first = t->data;
    if (t->data < data || t->offset + t->bytes > size || t->n_dims > TENSOR_DIMS_MAX)
        abort();
    (void)(first[0] + first[t->bytes - 1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena a;
    Error err = {0};
    Tensor *tensors;
    int64_t n;
    TensorMap map;
    json_setup();
    arena_init(&a, "fuzz");
    if (safetensors_parse(&a, "fuzz", data, size, &tensors, &n, &err)) {
        for (int64_t i = 0; i < n; i++)
            touch(&tensors[i], data, size);
        if (tensor_map_init(&map, &a, tensors, n, &err))
            for (int64_t i = 0; i < n; i++)
                if (tensor_map_put(&map, i) != i ||
                    tensor_map_find(&map, tensors[i].name) != &tensors[i])
                    abort(); /* the header's names are unique */
    } else if (err.code == ERR_NONE || err.msg[0] == '\0') {
        abort();
    }
    arena_free(&a);
    return 0;
}
