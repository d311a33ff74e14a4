/* Tiny models that the quantisation libraries of Hugging Face checkpoints wrote
 * (scripts/make-hf-quant.py) against the logits of transformers with the libraries' own dequantised
 * weights, both in F32. */
#include "support/run_model.h"

#include "base/file.h"
#include "base/mem.h"
#include "weights/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VOCAB = 64, N_TOKENS = 9 };

/* The fast class rounds activations to 8 bits: nats, mean over the rows, as for the tiny models of
 * test_tiny. */
static const double fast_kl_bound = 0.001;

static const char *const schemes[] = {
    "awq",           "bitnet",         "bitnet_div",     "bnb_nf4",
    "ct_fp8_tensor", "ct_fp8_channel", "bnb_nf4_nested", "ct_int4",
    "ct_int4_act",   "ct_int4_asym",   "ct_int8",        "ct_int4_channel_asym",
    "ct_nvfp4",      "ct_int8_packed", "fp8_block",      "gptq_2",
    "gptq_3_act",    "gptq_4",         "gptq_4_act",     "gptq_8",
    "gptq_v2_act",   "modelopt_fp8",   "modelopt_nvfp4"};

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

static const void *find(const Tensor *t, int64_t n, const char *name, size_t bytes)
{
    for (int64_t i = 0; i < n; i++)
        if (str_is(t[i].name, name) && t[i].bytes == bytes)
            return t[i].data;
    fail_msg("golden.safetensors has no %s of %d bytes", name, (int)bytes);
    return NULL;
}

/* All tokens at once, or the last `single` one by one: products of many rows and of one. What the
 * family allows for f32 sums in another order. */
static double run(Arena *a, const char *dir, Numerics numerics, const int32_t *ids, int single,
                  float logits[N_TOKENS][VOCAB])
{
    const RunOptions opt = {.numerics = numerics,
                            .kv = KV_FORMAT_F32,
                            .threads = 2,
                            .page_tokens = 4,
                            .max_tokens = 32,
                            .n_seqs = 1,
                            .max_rows = 16};
    RunModel *r;
    Error err;
    must(run_model_open(a, dir, &opt, &r, &err), &err);
    assert_int_equal(run_model_get(r)->vocab, VOCAB);
    for (int at = 0; at < N_TOKENS;) {
        const RunPart part = {.tokens = ids + at, .n = at ? 1 : N_TOKENS - single};
        must(run_model_step(r, &part, 1, logits[at], &err), &err);
        at += part.n;
    }
    const double bound = run_model_get(r)->family->max_abs_diff;
    run_model_close(r);
    assert_true(bound > 0 && bound <= 1e-4);
    return bound;
}

/* KL(want || got). */
static double divergence(const float *want, const float *got)
{
    double w = 0;
    double g = 0;
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        w += exp((double)want[i]);
        g += exp((double)got[i]);
    }
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)want[i]) / w * ((double)want[i] - log(w) - ((double)got[i] - log(g)));
    return sum;
}

static void test_logits(void **state)
{
    static float want[N_TOKENS][VOCAB];
    static float got[N_TOKENS][VOCAB];
    const char *scheme = *state;
    int32_t ids[N_TOKENS];
    Arena a;
    Error err;
    Str bytes;
    Tensor *tensors;
    int64_t n;
    arena_init(&a, "test");
    const char *dir = arena_printf(&a, &err, "%s/hfquant/%s", TEST_DATA, scheme);
    must(dir != NULL, &err);
    const char *golden = arena_printf(&a, &err, "%s/golden.safetensors", dir);
    must(golden && file_read(&a, golden, 1 << 20, &bytes, &err), &err);
    must(safetensors_parse(&a, golden, (const uint8_t *)bytes.ptr, bytes.len, &tensors, &n, &err),
         &err);
    memcpy(ids, find(tensors, n, "ids", sizeof ids), sizeof ids);
    memcpy(want, find(tensors, n, "logits", sizeof want), sizeof want);
    double worst = 0;
    for (int single = 0; single < N_TOKENS; single += 4) {
        const double bound = run(&a, dir, NUM_EXACT, ids, single, got);
        for (int r = 0; r < N_TOKENS; r++)
            for (int i = 0; i < VOCAB; i++) {
                const double d = fabs((double)got[r][i] - (double)want[r][i]);
                if (!(d <= bound))
                    fail_msg("%s: row %d, logit %d is %.7g, wanted %.7g", scheme, r, i,
                             (double)got[r][i], (double)want[r][i]);
                worst = fmax(worst, d);
            }
    }
    double kl = 0;
    (void)run(&a, dir, NUM_FAST, ids, 4, got);
    for (int r = 0; r < N_TOKENS; r++)
        kl += divergence(want[r], got[r]) / N_TOKENS;
    print_message("%-20s max |logit difference| %.2g, fast: KL %.2g\n", scheme, worst, kl);
    assert_true(kl <= fast_kl_bound);
    arena_free(&a);
}

int main(void)
{
    struct CMUnitTest tests[COUNT_OF(schemes)];
    json_setup();
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        char *scheme = (char *)(uintptr_t)schemes[i];
        tests[i] = (struct CMUnitTest){scheme, test_logits, NULL, NULL, scheme};
    }
    return _cmocka_run_group_tests("quant_files", tests, COUNT_OF(schemes), NULL, NULL);
}
