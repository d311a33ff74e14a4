/* SmolLM2-135M-Instruct as Q4_1 GGUF in exact numerics, through mere.h, against transformers in F32
 * on the dequantised weights (tests/data/real): ids of the rendered prompts, the first step's
 * logprobs, and greedy tokens up to the first step whose two best are within 0.02 nats. Ten
 * requests over four slots, so the answers also show that batching changes nothing. */
#include "real/smollm2.h"

static int setup(void **state)
{
    static Fix f;
    fix_open(&f, model_name);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fix_close(*state);
    return 0;
}

static void prompts_become_the_same_ids(void **state)
{
    const Fix *f = *state;
    for (size_t i = 0; i < n_prompts(f); i++) {
        const json_t *rendered = json_object_get(prompt(f, i), "rendered");
        if (!json_is_string(rendered))
            rendered = json_object_get(prompt(f, i), "prompt");
        int32_t want[256];
        int32_t got[256];
        const int n_want = read_ids(json_object_get(prompt(f, i), "prompt_ids"), want, 256);
        int64_t n;
        MereError err;
        const MereStr text = {json_string_value(rendered), json_string_length(rendered)};
        if (!mere_tokenize(f->model, text, MERE_TOK_SPECIAL | MERE_TOK_PARSE, got, 256, &n, &err))
            fail_msg("%s", err.msg);
        if (n != n_want || memcmp(got, want, (size_t)n * sizeof *got) != 0)
            fail_msg("prompt %zu: %d ids, wanted %d", i, (int)n, n_want);
    }
}

static void memory_is_what_was_planned(void **state)
{
    const Fix *f = *state;
    MereStats st;
    mere_stats(f->model, &st);
    const double diff = (double)st.peak_anon_bytes - (double)st.planned_bytes;
    const double allowed = fmax(32 << 20, 0.05 * (double)st.planned_bytes);
    print_message("planned %.1f MiB, peak %.1f MiB\n", (double)st.planned_bytes / (1 << 20),
                  (double)st.peak_anon_bytes / (1 << 20));
    if (fabs(diff) > allowed)
        fail_msg("peak is %.0f bytes, planned %.0f", (double)st.peak_anon_bytes,
                 (double)st.planned_bytes);
}

int main(void)
{
    if (!find_model()) {
        print_message("SmolLM2-135M-Instruct-Q4_1 is neither in MERE_TEST_MODELS nor in the model "
                      "store: skipped\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_become_the_same_ids),
        cmocka_unit_test(greedy_tokens_are_the_references),
        cmocka_unit_test(memory_is_what_was_planned),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
