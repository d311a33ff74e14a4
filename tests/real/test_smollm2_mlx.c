/* SmolLM2-135M-Instruct as an MLX checkpoint (affine, 4 bits; 8 bits for the embedding) with the
 * weights of its Q4_1 GGUF, in exact numerics, through mere.h: the answers of test_smollm2.c, for
 * the container must not change them. The twin has no tokenizer: prompts are ids. */
#include "real/smollm2.h"
#include "support/mlx_twin.h"

#include <unistd.h>

#define TWIN TEST_TMP "/smollm2-mlx"

static int setup(void **state)
{
    static Fix f;
    MereInfo *info;
    MereError err;
    Error own;
    Arena scratch;
    if (!mere_info_read((MereStr){model_name, strlen(model_name)}, &info, &err))
        fail_msg("%s", err.msg);
    arena_init(&scratch, "twin");
    const char *gguf = arena_strdup(&scratch, info->path.ptr, info->path.len, &own);
    mere_info_free(info);
    if (!gguf || !mlx_twin(&scratch, gguf, TWIN, &own))
        fail_msg("%s", own.msg);
    arena_free(&scratch);
    fix_open(&f, TWIN);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fix_close(*state);
    return 0;
}

static void the_twin_is_what_is_read(void **state)
{
    const Fix *f = *state;
    MereInfo info = {.size = sizeof info};
    mere_model_info(f->model, &info);
    if (info.container.len != strlen("safetensors") ||
        memcmp(info.container.ptr, "safetensors", info.container.len) != 0)
        fail_msg("container %.*s, wanted safetensors", (int)info.container.len, info.container.ptr);
    int four = 0;
    int eight = 0;
    for (int32_t i = 0; i < info.n_groups; i++) {
        const MereStr format = info.groups[i].format;
        four += format.len >= 12 && memcmp(format.ptr, "affine 4-bit", 12) == 0;
        eight += format.len >= 12 && memcmp(format.ptr, "affine 8-bit", 12) == 0;
    }
    if (four != 2 || eight != 1) /* attention and mlp; embedding */
        fail_msg("%d groups of affine 4-bit and %d of 8-bit, wanted 2 and 1", four, eight);
}

int main(void)
{
    if (!find_model()) {
        print_message("SmolLM2-135M-Instruct-Q4_1 is neither in MERE_TEST_MODELS nor in the model "
                      "store: skipped\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_twin_is_what_is_read),
        cmocka_unit_test(greedy_tokens_are_the_references),
    };
    const int failed = cmocka_run_group_tests(tests, setup, teardown);
    (void)unlink(TWIN "/model.safetensors"); /* 100 MB that only this program reads */
    return failed;
}
