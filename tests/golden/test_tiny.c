/* The tiny model of every family against an independent reference (transformers in f32; for the
 * MLX-quantised ones mlx-lm in f32), 25 teacher-forced tokens, along every way to cut the work into
 * steps. Pages hold 4 positions, so that 25 tokens cross them; mistral's window is 8.
 *
 *   test_tiny [pattern]   only the cases whose name ("llama exact") matches, with * and ?
 * MERE_TEST_DEVICE names another device than the CPU ("vulkan:0"; exit 77 where it is not there).
 * There it must refuse the formats that GPUs have no layout for. */
#include "support/run_model.h"
#include "support/tiny_fill.h"

#include "base/file.h"
#include "base/json.h"
#include "weights/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

enum { N_TOKENS = 25, N_PREFILL = 17, VOCAB = 320, N_SEQS = 4, MAX_ROWS = 64 };

/* Fast: 8-bit activations, f16 cache. Nats, mean over the rows. Measured are 1e-4 for the dense
 * models; a random router's logits lie so close together that experts flip, worth up to 0.1 on a
 * row (0.01 in the mean). */
static const double dense_kl_bound = 0.001;
static const double moe_kl_bound = 0.03;

typedef struct Case {
    const char *name;
    bool mlx; /* stored with its weights; else generated */
    bool moe;
    const char *refused; /* its format that GPUs have no layout for (gpu_weight.h) */
} Case;

typedef struct Fixture {
    Arena arena;
    const char *dir;
    int32_t ids[N_TOKENS];
    float golden[N_TOKENS][VOCAB];
    RunModel *run;
    double bound; /* the family's: what f32 arithmetic in another order may cost */
    double worst; /* largest difference seen */
} Fixture;

static void must(bool ok, const Error *err)
{
    if (!ok)
        fail_msg("%s", err->msg);
}

static const Tensor *find(const Tensor *t, int64_t n, const char *name)
{
    for (int64_t i = 0; i < n; i++)
        if (str_is(t[i].name, name))
            return &t[i];
    fail_msg("golden.safetensors has no %s", name);
    return NULL;
}

static Fixture *open_case(const Case *c)
{
    Error err;
    Fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    arena_init(&f->arena, "test");
    const char *golden = arena_printf(&f->arena, &err, "%s/%s/%s/golden.safetensors", TEST_DATA,
                                      c->mlx ? "tiny-mlx" : "tiny", c->name);
    Str bytes;
    Tensor *tensors;
    int64_t n;
    must(golden != NULL, &err);
    must(file_read(&f->arena, golden, 1 << 20, &bytes, &err), &err);
    must(safetensors_parse(&f->arena, golden, (const uint8_t *)bytes.ptr, bytes.len, &tensors, &n,
                           &err),
         &err);
    const Tensor *ids = find(tensors, n, "ids");
    const Tensor *logits = find(tensors, n, c->mlx ? "logits_f32" : "logits");
    assert_int_equal(ids->bytes, sizeof f->ids);
    assert_int_equal(logits->bytes, sizeof f->golden);
    memcpy(f->ids, ids->data, sizeof f->ids);
    memcpy(f->golden, logits->data, sizeof f->golden);
    if (c->mlx)
        f->dir = arena_printf(&f->arena, &err, "%s/tiny-mlx/%s", TEST_DATA, c->name);
    else
        must(tiny_fill(&f->arena, TEST_DATA, c->name, TEST_TMP, &f->dir, &err), &err);
    must(f->dir != NULL, &err);
    return f;
}

/* The device under test; NULL: the CPU. */
static const char *other_device(void)
{
    const char *name = getenv("MERE_TEST_DEVICE");
    return name && *name && strcmp(name, "cpu") != 0 ? name : NULL;
}

static bool try_open(Fixture *f, Numerics numerics, const char *level, Error *err)
{
    const RunOptions opt = {.device = other_device(),
                            .numerics = numerics,
                            .kv = numerics == NUM_EXACT ? KV_FORMAT_F32 : KV_FORMAT_F16,
                            .threads = 2,
                            .level = level,
                            .page_tokens = 4,
                            .max_tokens = 32,
                            .n_seqs = N_SEQS,
                            .max_rows = MAX_ROWS};
    return run_model_open(&f->arena, f->dir, &opt, &f->run, err);
}

static void open_run(Fixture *f, Numerics numerics, const char *level)
{
    Error err;
    must(try_open(f, numerics, level, &err), &err);
    assert_int_equal(run_model_get(f->run)->vocab, VOCAB);
    f->bound = run_model_get(f->run)->family->max_abs_diff;
    assert_true(f->bound > 0 && f->bound <= 1e-4);
    if (other_device())
        f->bound = 1e-4; /* sums in a GPU's order, its exp and rsqrt */
}

static void close_case(Fixture *f)
{
    run_model_close(f->run);
    arena_free(&f->arena);
    free(f);
}

/* Row `row` of the golden logits against one computed. */
static void compare(Fixture *f, const char *way, int row, const float *got)
{
    for (int i = 0; i < VOCAB; i++) {
        const double d = fabs((double)got[i] - (double)f->golden[row][i]);
        if (!(d <= f->bound))
            fail_msg("%s: row %d, logit %d is %.7g, wanted %.7g (off by %.3g)", way, row, i,
                     (double)got[i], (double)f->golden[row][i], d);
        f->worst = fmax(f->worst, d);
    }
}

/* Feeds tokens [from, to) of sequence 0 in chunks and compares every row. */
static void feed(Fixture *f, const char *way, int from, int to, int chunk)
{
    static float logits[MAX_ROWS][VOCAB];
    Error err;
    for (int at = from; at < to; at += chunk) {
        const int n = to - at < chunk ? to - at : chunk;
        const RunPart part = {.seq = 0, .tokens = f->ids + at, .n = n};
        must(run_model_step(f->run, &part, 1, logits[0], &err), &err);
        for (int i = 0; i < n; i++)
            compare(f, way, at + i, logits[i]);
    }
}

static void whole_and_chunks(Fixture *f)
{
    static const int chunks[] = {N_TOKENS, 1, 3, 8};
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        run_model_reset(f->run, 0);
        feed(f, "chunks", 0, N_TOKENS, chunks[i]);
    }
}

static void prefill_and_decode(Fixture *f)
{
    run_model_reset(f->run, 0);
    feed(f, "prefill", 0, N_PREFILL, N_PREFILL);
    feed(f, "decode", N_PREFILL, N_TOKENS, 1);
}

/* Sequences that start at different steps and advance by different numbers of rows, together. */
static void batches(Fixture *f)
{
    static float logits[MAX_ROWS][VOCAB];
    static const int start[N_SEQS] = {0, 0, 1, 3};
    static const int rows[N_SEQS][3] = {{5, 1, 2}, {1, 1, 1}, {8, 3, 1}, {2, 7, 4}};
    Error err;
    for (int s = 0; s < N_SEQS; s++)
        run_model_reset(f->run, s);
    for (int step = 0;; step++) {
        RunPart parts[N_SEQS];
        int n_parts = 0;
        for (int i = 0; i < N_SEQS; i++) {
            const int s = step % 2 ? N_SEQS - 1 - i : i; /* order within a step is free */
            const int len = run_model_len(f->run, s);
            int n = rows[s][step % 3];
            if (n > N_TOKENS - len)
                n = N_TOKENS - len;
            if (step < start[s] || n == 0)
                continue;
            parts[n_parts++] =
                (RunPart){.seq = s, .tokens = f->ids + len, .n = n, .last_only = s == 2};
        }
        if (n_parts == 0)
            break;
        must(run_model_step(f->run, parts, n_parts, logits[0], &err), &err);
        int out = 0;
        for (int p = 0; p < n_parts; p++) {
            const int len = run_model_len(f->run, parts[p].seq);
            const int n_out = parts[p].last_only ? 1 : parts[p].n;
            for (int i = 0; i < n_out; i++)
                compare(f, "batch", len - n_out + i, logits[out++]);
        }
    }
}

/* Other tokens after a snapshot leave no trace once it is returned to. */
static void snapshots(Fixture *f)
{
    static float logits[MAX_ROWS][VOCAB];
    enum { AT = 10 };
    int32_t others[9];
    Error err;
    for (int i = 0; i < 9; i++)
        others[i] = (f->ids[i] * 7 + 5) % VOCAB;
    run_model_reset(f->run, 0);
    feed(f, "before the snapshot", 0, AT, AT);
    run_model_snapshot(f->run, 0);
    for (int round = 0; round < 2; round++) {
        const RunPart wrong = {.seq = 0, .tokens = others, .n = 9};
        must(run_model_step(f->run, &wrong, 1, logits[0], &err), &err);
        const RunPart one = {.seq = 0, .tokens = others, .n = 1};
        must(run_model_step(f->run, &one, 1, logits[0], &err), &err);
        run_model_drop(f->run, 0);
        feed(f, "after the snapshot", AT, N_TOKENS, round ? 3 : N_TOKENS);
        run_model_drop(f->run, 0);
    }
    run_model_reset(f->run, 0);
    for (int g = 0; g < run_model_plan(f->run)->n_kv_groups; g++)
        for (int s = 1; s < N_SEQS; s++)
            run_model_reset(f->run, s);
    for (int g = 0; g < run_model_plan(f->run)->n_kv_groups; g++)
        assert_int_equal(run_model_pages_in_use(f->run, g), 0);
}

static void test_exact(void **state)
{
    const Case *c = *state;
    Fixture *f = open_case(c);
    open_run(f, NUM_EXACT, NULL);
    whole_and_chunks(f);
    prefill_and_decode(f);
    batches(f);
    snapshots(f);
    print_message("%-17s exact: max |logit difference| %.2g\n", c->name, f->worst);
    close_case(f);
}

static void test_exact_scalar(void **state)
{
    const Case *c = *state;
    Fixture *f = open_case(c);
    open_run(f, NUM_EXACT, "scalar");
    prefill_and_decode(f);
    print_message("%-17s exact, scalar: max |logit difference| %.2g\n", c->name, f->worst);
    close_case(f);
}

/* KL(golden || got) in nats. */
static double kl(const float *golden, const float *got)
{
    double sum[2] = {0, 0};
    double cross = 0;
    for (int i = 0; i < VOCAB; i++) {
        sum[0] += exp((double)golden[i]);
        sum[1] += exp((double)got[i]);
        cross += exp((double)golden[i]) * ((double)golden[i] - (double)got[i]);
    }
    return cross / sum[0] - log(sum[0]) + log(sum[1]);
}

static void test_fast(void **state)
{
    static float logits[MAX_ROWS][VOCAB];
    const Case *c = *state;
    Fixture *f = open_case(c);
    Error err;
    open_run(f, NUM_FAST, NULL);
    double worst = 0;
    double kl_sum = 0;
    double kl_max = 0;
    static const int ends[] = {N_PREFILL, 18, 19, 20, 21, 22, 23, 24, N_TOKENS};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        const int len = run_model_len(f->run, 0);
        const RunPart part = {.seq = 0, .tokens = f->ids + len, .n = ends[i] - len};
        must(run_model_step(f->run, &part, 1, logits[len], &err), &err);
    }
    for (int row = 0; row < N_TOKENS; row++) {
        const double d = kl(f->golden[row], logits[row]);
        kl_sum += d;
        kl_max = fmax(kl_max, d);
        for (int i = 0; i < VOCAB; i++)
            worst = fmax(worst, fabs((double)logits[row][i] - (double)f->golden[row][i]));
    }
    print_message("%-17s fast: max |logit difference| %.2g, KL mean %.2g max %.2g nats\n", c->name,
                  worst, kl_sum / N_TOKENS, kl_max);
    const double bound = c->moe ? moe_kl_bound : dense_kl_bound;
    if (!(kl_sum / N_TOKENS <= bound))
        fail_msg("mean KL %.3g nats, wanted %.3g at most", kl_sum / N_TOKENS, bound);
    close_case(f);
}

/* A format that GPUs cannot keep: refused before anything runs, by the format's name. */
static void test_refused(void **state)
{
    const Case *c = *state;
    Fixture *f = open_case(c);
    static const Numerics classes[] = {NUM_EXACT, NUM_FAST};
    for (size_t i = 0; i < COUNT_OF(classes); i++) {
        Error err;
        if (try_open(f, classes[i], NULL, &err))
            fail_msg("%s opened on %s: formats without a layout must be refused", c->name,
                     other_device());
        if (err.code != ERR_UNSUPPORTED || !strstr(err.msg, c->refused))
            fail_msg("%s: \"%s\" (code %d), wanted ERR_UNSUPPORTED and the name %s", c->name,
                     err.msg, (int)err.code, c->refused);
    }
    arena_free(&f->arena);
    free(f);
}

/* The kinds of test of a case: an instruction set of the CPU says nothing of another device. */
enum { EXACT, EXACT_SCALAR, FAST, REFUSED, N_KINDS };
static bool applies(const Case *c, int kind)
{
    if (!other_device())
        return kind != REFUSED;
    return c->refused ? kind == REFUSED : kind == EXACT || kind == FAST;
}

int main(int argc, char **argv)
{
    static Case cases[] = {
        {.name = "llama"},
        {.name = "llama_tied_rope3"},
        {.name = "llama_yarn"},
        {.name = "mistral"},
        {.name = "qwen3"},
        {.name = "qwen3_moe", .moe = true},
        {.name = "qwen3_next", .moe = true},
        {.name = "llama-4b64", .mlx = true},
        {.name = "llama-4b32", .mlx = true},
        {.name = "llama-8b64", .mlx = true},
        {.name = "llama-mxfp4", .mlx = true},
        {.name = "llama-2b32", .mlx = true},
        {.name = "llama-3b64", .mlx = true},
        {.name = "llama-5b64", .mlx = true},
        {.name = "llama-6b64", .mlx = true},
        {.name = "llama-mixed46", .mlx = true},
        {.name = "llama-mxfp8", .mlx = true, .refused = "mxfp8"},
        {.name = "llama-nvfp4", .mlx = true, .refused = "nvfp4"},
        {.name = "qwen3_moe-4b64", .mlx = true, .moe = true},
        {.name = "qwen3_moe-mxfp4", .mlx = true, .moe = true},
        {.name = "qwen3_next-4b32", .mlx = true, .moe = true},
    };
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[N_KINDS] = {[EXACT] = {"exact", test_exact},
                        [EXACT_SCALAR] = {"exact_scalar", test_exact_scalar},
                        [FAST] = {"fast", test_fast},
                        [REFUSED] = {"refused", test_refused}};
    static char names[COUNT_OF(cases) * N_KINDS][40];
    struct CMUnitTest tests[COUNT_OF(cases) * N_KINDS];
    const DeviceOps *ops;
    int index;
    Error err;
    if (other_device() && !device_find(str_from(other_device()), &ops, &index, &err)) {
        print_message("no device to test on: %s\n", err.msg);
        return 77;
    }
    json_setup();
    size_t n = 0;
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (int k = 0; k < N_KINDS; k++) {
            if (!applies(&cases[c], k))
                continue;
            (void)snprintf(names[n], sizeof names[n], "%s %s", cases[c].name, kinds[k].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, &cases[c]};
            n++;
        }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("tiny", tests, n, NULL, NULL);
}
