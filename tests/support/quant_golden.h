/* quant_golden.h: the packed tensors of tests/data/quant with the values their own libraries make
 * of them. For tests that end at the first fault: a file that is not there fails the test. */
#ifndef MERE_TESTS_QUANT_GOLDEN_H
#define MERE_TESTS_QUANT_GOLDEN_H

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

/* One file of tests/data/quant: a well-formed safetensors file, so nothing is checked here. */
typedef struct Golden {
    FileMap map;
    json_t *header;
    const uint8_t *data;
} Golden;

static inline void golden_open(Golden *g, const char *name)
{
    char path[512];
    Error err = {0};
    snprintf(path, sizeof path, "%s/quant/%s.safetensors", TEST_DATA, name);
    if (!file_map(path, &g->map, &err))
        fail_msg("%s", err.msg);
    uint64_t n;
    memcpy(&n, g->map.data, sizeof n);
    g->header = json_parse(path, (Str){(const char *)g->map.data + 8, n}, &err);
    if (!g->header)
        fail_msg("%s", err.msg);
    g->data = g->map.data + 8 + n;
}

static inline void golden_close(Golden *g)
{
    json_decref(g->header);
    file_unmap(&g->map);
}

static inline const uint8_t *golden_get(const Golden *g, const char *tensor, int *rows, int *cols)
{
    const json_t *t = json_object_get(g->header, tensor);
    const json_t *shape = json_object_get(t, "shape");
    if (!t)
        return NULL;
    *rows = (int)json_integer_value(json_array_get(shape, 0));
    *cols = (int)json_integer_value(json_array_get(shape, 1));
    return g->data + json_integer_value(json_array_get(json_object_get(t, "data_offsets"), 0));
}

typedef struct GoldenCase {
    const char *name;
    FormatId format;
    FormatId scale_format;  /* MLX */
    int group, scale_bytes; /* MLX; 0: GGUF */
} GoldenCase;

static const GoldenCase golden_cases[] = {
    {"gguf_F16", FMT_F16, FMT_F32, 0, 0},
    {"gguf_BF16", FMT_BF16, FMT_F32, 0, 0},
    {"gguf_Q4_0", FMT_Q4_0, FMT_F32, 0, 0},
    {"gguf_Q4_1", FMT_Q4_1, FMT_F32, 0, 0},
    {"gguf_Q8_0", FMT_Q8_0, FMT_F32, 0, 0},
    {"gguf_Q4_K", FMT_Q4_K, FMT_F32, 0, 0},
    {"gguf_Q6_K", FMT_Q6_K, FMT_F32, 0, 0},
    {"gguf_MXFP4", FMT_MXFP4, FMT_F32, 0, 0},
    {"gguf_Q5_0", FMT_Q5_0, FMT_F32, 0, 0},
    {"gguf_Q5_1", FMT_Q5_1, FMT_F32, 0, 0},
    {"gguf_Q2_K", FMT_Q2_K, FMT_F32, 0, 0},
    {"gguf_Q3_K", FMT_Q3_K, FMT_F32, 0, 0},
    {"gguf_Q5_K", FMT_Q5_K, FMT_F32, 0, 0},
    {"gguf_IQ4_NL", FMT_IQ4_NL, FMT_F32, 0, 0},
    {"gguf_IQ4_XS", FMT_IQ4_XS, FMT_F32, 0, 0},
    {"gguf_IQ3_S", FMT_IQ3_S, FMT_F32, 0, 0},
    {"gguf_IQ3_XXS", FMT_IQ3_XXS, FMT_F32, 0, 0},
    {"gguf_IQ2_S", FMT_IQ2_S, FMT_F32, 0, 0},
    {"gguf_IQ2_XS", FMT_IQ2_XS, FMT_F32, 0, 0},
    {"gguf_IQ2_XXS", FMT_IQ2_XXS, FMT_F32, 0, 0},
    {"gguf_IQ1_M", FMT_IQ1_M, FMT_F32, 0, 0},
    {"gguf_IQ1_S", FMT_IQ1_S, FMT_F32, 0, 0},
    {"gguf_TQ2_0", FMT_TQ2_0, FMT_F32, 0, 0},
    {"gguf_TQ1_0", FMT_TQ1_0, FMT_F32, 0, 0},
    {"gguf_NVFP4", FMT_NVFP4, FMT_F32, 0, 0},
    {"gguf_Q1_0", FMT_Q1_0, FMT_F32, 0, 0},
    {"mlx_affine_b4_g32", FMT_AFFINE4, FMT_BF16, 32, 2},
    {"mlx_affine_b4_g64", FMT_AFFINE4, FMT_BF16, 64, 2},
    {"mlx_affine_b4_g128", FMT_AFFINE4, FMT_BF16, 128, 2},
    {"mlx_affine_b4_g64_f16", FMT_AFFINE4, FMT_F16, 64, 2},
    {"mlx_affine_b4_g64_f32", FMT_AFFINE4, FMT_F32, 64, 4},
    {"mlx_affine_b8_g32", FMT_AFFINE8, FMT_BF16, 32, 2},
    {"mlx_affine_b8_g64", FMT_AFFINE8, FMT_BF16, 64, 2},
    {"mlx_affine_b8_g128", FMT_AFFINE8, FMT_BF16, 128, 2},
    {"mlx_affine_b8_g64_f16", FMT_AFFINE8, FMT_F16, 64, 2},
    {"mlx_affine_b1_g64", FMT_AFFINE1, FMT_BF16, 64, 2},
    {"mlx_affine_b2_g32", FMT_AFFINE2, FMT_BF16, 32, 2},
    {"mlx_affine_b2_g64", FMT_AFFINE2, FMT_BF16, 64, 2},
    {"mlx_affine_b2_g128", FMT_AFFINE2, FMT_BF16, 128, 2},
    {"mlx_affine_b3_g32", FMT_AFFINE3, FMT_BF16, 32, 2},
    {"mlx_affine_b3_g64", FMT_AFFINE3, FMT_BF16, 64, 2},
    {"mlx_affine_b3_g128", FMT_AFFINE3, FMT_BF16, 128, 2},
    {"mlx_affine_b5_g32", FMT_AFFINE5, FMT_BF16, 32, 2},
    {"mlx_affine_b5_g64", FMT_AFFINE5, FMT_BF16, 64, 2},
    {"mlx_affine_b5_g128", FMT_AFFINE5, FMT_BF16, 128, 2},
    {"mlx_affine_b6_g32", FMT_AFFINE6, FMT_BF16, 32, 2},
    {"mlx_affine_b6_g64", FMT_AFFINE6, FMT_BF16, 64, 2},
    {"mlx_affine_b6_g128", FMT_AFFINE6, FMT_BF16, 128, 2},
    {"mlx_mxfp4_b4_g32", FMT_MXFP4P, FMT_F32, 32, 1},
    {"mlx_mxfp8_b8_g32", FMT_MXFP8P, FMT_F32, 32, 1},
    {"mlx_nvfp4_b4_g16", FMT_NVFP4P, FMT_F32, 16, 1},
};

/* A view of the case's tensor; *want: [n][k] f32. Close g when done. */
static inline RowView golden_view(Golden *g, const GoldenCase *c, const uint8_t **want)
{
    int rows = 0;
    int width = 0;
    int groups = 0;
    int k = 0;
    golden_open(g, c->name);
    *want = golden_get(g, "dequant_f32", &rows, &k);
    RowView v = {.n = rows, .k = k, .format = c->format, .scale_format = c->scale_format};
    if (c->group == 0) {
        v.data = golden_get(g, "blocks", &rows, &width);
        v.row_bytes = width;
        v.group = format_info(c->format)->block;
        return v;
    }
    v.data = golden_get(g, "weight", &rows, &width);
    v.row_bytes = (int64_t)width * 4;
    v.scales = golden_get(g, "scales", &rows, &groups);
    v.biases = golden_get(g, "biases", &rows, &groups);
    v.scale_row_bytes = (int64_t)groups * c->scale_bytes;
    v.group = c->group;
    return v;
}

#endif
