/* The kernels at both ends of a step, in the emulator: tokens drawn on the device against the
 * engine's sampler, and what `begin` leaves in device memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cuda/kernels/begin_params.h"
#include "device/cuda/kernels/sample_params.h"
#include "device/gpu/gpu_step.h"
#include "emu/emu.h"
#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RING = 2, MAX_SAMPLES = 4, SAMPLES_AT = GPU_STEP_HEAD };

static uint64_t address(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static void launch(const char *kernel, int x, int y, int block, const void *params, size_t bytes)
{
    const int grid[3] = {x, y, 1};
    if (emu_launch(kernel, grid, block, 0, 0, params, bytes) != 0)
        fail_msg("%s", emu_error());
}

/* ---- sampling ---- */

typedef struct Fix {
    Arena a;
    Sampler s;
    int vocab, n_parts;
    float *logits; /* [MAX_SAMPLES][vocab] */
    float *work;
    int32_t step[SAMPLES_AT + MAX_SAMPLES * GPU_SAMPLE_WORDS];
    SamplePartial *partials;
    uint32_t counters[1 + MAX_SAMPLES];
    uint32_t count, done;
    int32_t sampled[SAMPLE_SLOTS_MAX];
    SampleResult results[RING][MAX_SAMPLES];
} Fix;

static Fix *fix_open(int vocab)
{
    Error err;
    Fix *f = calloc(1, sizeof *f);
    assert_non_null(f);
    arena_init(&f->a, "test");
    f->vocab = vocab;
    f->n_parts = (vocab + SAMPLE_PART - 1) / SAMPLE_PART;
    assert_true(sample_init(&f->a, vocab, &f->s, &err));
    f->logits = ARENA_ARRAY(&f->a, MAX_SAMPLES * vocab, float, &err);
    f->work = ARENA_ARRAY(&f->a, vocab, float, &err);
    f->partials = ARENA_ARRAY(&f->a, MAX_SAMPLES * f->n_parts, SamplePartial, &err);
    assert_true(f->logits && f->work && f->partials);
    memset(f->sampled, 0xee, sizeof f->sampled);
    return f;
}

static void fix_close(Fix *f)
{
    arena_free(&f->a);
    free(f);
}

static void put_float(int32_t *word, float v)
{
    memcpy(word, &v, sizeof v);
}

/* One step that draws `n` samples; results of this step's entry of the ring. */
static const SampleResult *run(Fix *f, const SampleDesc *samples, int n)
{
    f->step[GPU_STEP_N_SAMPLES] = n;
    f->step[GPU_STEP_TICKET] = (int32_t)f->count + 1;
    for (int i = 0; i < n; i++) {
        int32_t *w = f->step + SAMPLES_AT + i * GPU_SAMPLE_WORDS;
        w[GPU_SAMPLE_OUT] = samples[i].out;
        w[GPU_SAMPLE_SLOT] = samples[i].slot;
        w[GPU_SAMPLE_TOP_K] = samples[i].top_k;
        put_float(&w[GPU_SAMPLE_TEMPERATURE], samples[i].temperature);
        put_float(&w[GPU_SAMPLE_TOP_P], samples[i].top_p);
        put_float(&w[GPU_SAMPLE_MIN_P], samples[i].min_p);
        put_float(&w[GPU_SAMPLE_RANDOM], (float)samples[i].random);
    }
    const uint32_t number = f->count;
    const SampleParams p = {.step = address(f->step),
                            .logits = address(f->logits),
                            .partials = address(f->partials),
                            .counters = address(f->counters),
                            .count = address(&f->count),
                            .sampled = address(f->sampled),
                            .results = address(f->results),
                            .done = address(&f->done),
                            .vocab = f->vocab,
                            .n_parts = f->n_parts,
                            .samples_at = SAMPLES_AT,
                            .ring = RING,
                            .max_out = MAX_SAMPLES};
    launch("sample", f->n_parts, MAX_SAMPLES, SAMPLE_THREADS, &p, sizeof p);
    assert_int_equal(f->count, number + 1);
    assert_int_equal(f->done, number + 1);
    for (int i = 0; i <= MAX_SAMPLES; i++)
        assert_int_equal(f->counters[i], 0);
    return f->results[number % RING];
}

static void random_logits(float *x, int n, unsigned seed, float spread)
{
    srand(seed);
    for (int i = 0; i < n; i++)
        x[i] = ((float)rand() / (float)RAND_MAX - 0.5F) * spread;
}

/* The engine's sampler on the same row with the random number of (seed, position). */
static int32_t reference(Fix *f, const SampleDesc *d, uint64_t seed, int position)
{
    Error err;
    Sampled out;
    const MereSampling p = {.temperature = d->temperature,
                            .top_k = d->top_k,
                            .top_p = d->top_p,
                            .min_p = d->min_p,
                            .seed = seed,
                            .logprobs = -1};
    static const int32_t none;
    const SampleHistory h = {&none, position, position};
    memcpy(f->work, f->logits + (size_t)d->out * (size_t)f->vocab,
           (size_t)f->vocab * sizeof(float));
    if (!sample_next(&f->s, &p, &h, f->work, &out, &err))
        fail_msg("%s", err.msg);
    return out.token;
}

static void greedy_takes_the_first_of_equals(void **state)
{
    (void)state;
    const int vocabs[] = {1, 31, 1003, SAMPLE_PART, SAMPLE_PART + 1, 20000};
    for (size_t v = 0; v < COUNT_OF(vocabs); v++) {
        Fix *f = fix_open(vocabs[v]);
        const int n = f->vocab;
        random_logits(f->logits, MAX_SAMPLES * n, (unsigned)n, 4);
        f->logits[n - 1] = f->logits[n / 3] = 9; /* row 0: two equals */
        f->logits[n + n / 2] = 9;                /* row 1 */
        for (int i = 0; i < n; i++)              /* row 2: all equal */
            f->logits[2 * n + i] = -3;
        f->logits[3 * n + n / 2] = n > 1 ? -INFINITY : 1.0F; /* row 3: a ban */
        const SampleDesc s[] = {
            {.out = 0, .slot = 5}, {.out = 1, .slot = 7}, {.out = 2, .slot = 9}};
        const SampleResult *r = run(f, s, 3);
        const int want[] = {n / 3, n / 2, 0};
        for (int i = 0; i < 3; i++) {
            if (r[i].token != want[i])
                fail_msg("vocabulary of %d, row %d: token %d, wanted %d", n, i, (int)r[i].token,
                         want[i]);
            assert_int_equal(f->sampled[s[i].slot], want[i]);
            assert_memory_equal(&r[i].logit, &f->logits[(size_t)i * (size_t)n + (size_t)want[i]],
                                sizeof(float));
        }
        assert_int_equal(f->sampled[6], (int32_t)0xeeeeeeee);
        fix_close(f);
    }
}

static void bad_logits_give_no_token(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY};
    Fix *f = fix_open(9000);
    for (int b = 0; b < 2; b++)
        for (int greedy = 0; greedy < 2; greedy++) {
            random_logits(f->logits, MAX_SAMPLES * f->vocab, 3, 4);
            f->logits[8900] = bad[b];
            for (int i = 0; i < f->vocab; i++)
                f->logits[2 * f->vocab + i] = -INFINITY; /* nothing is left */
            const float t = greedy ? 0.0F : 1.0F;
            const SampleDesc s[] = {{.out = 0, .slot = 0, .temperature = t, .random = 0.5},
                                    {.out = 1, .slot = 1, .temperature = t, .random = 0.5},
                                    {.out = 2, .slot = 2, .temperature = t, .random = 0.5}};
            const SampleResult *r = run(f, s, 3);
            assert_int_equal(r[0].token, -1);
            assert_true(r[1].token >= 0);
            assert_int_equal(r[2].token, -1);
            assert_int_equal(f->sampled[0], -1);
        }
    fix_close(f);
}

/* Sums are rounded otherwise there, so a draw that falls on the border of two tokens may differ:
 * hardly ever. */
static void draws_are_the_engines(void **state)
{
    (void)state;
    const struct {
        SampleDesc d;
        float spread;
        int vocab;
    } cases[] = {
        {{.temperature = 1}, 20, 1003},
        {{.temperature = 0.7F, .top_k = 40}, 20, 1003},
        {{.temperature = 1, .top_p = 0.9F}, 20, 1003},
        {{.temperature = 0.8F, .top_k = 20, .top_p = 0.95F, .min_p = 0.05F}, 16, 1003},
        {{.temperature = 1.5F, .min_p = 0.1F}, 12, 1003},
        {{.temperature = 1, .top_p = 0.5F, .min_p = 0.02F}, 12, 1003},
        {{.temperature = 1, .top_k = 1}, 12, 1003},
        {{.temperature = 1, .top_p = 1e-6F}, 12, 1003},
        /* more candidates than a band holds */
        {{.temperature = 1}, 0.5F, 12000},
        {{.temperature = 5, .top_k = 3000}, 4, 12000},
        {{.temperature = 2, .top_p = 0.97F}, 1, 12000},
        {{.temperature = 1, .top_k = 5000, .top_p = 0.8F, .min_p = 0.01F}, 3, 12000},
        /* all equal: only ids tell candidates apart */
        {{.temperature = 1}, 0, 6000},
        {{.temperature = 1, .top_k = 2500, .top_p = 0.9F}, 0, 6000},
    };
    int n = 0;
    int differ = 0;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        Fix *f = fix_open(cases[c].vocab);
        random_logits(f->logits, MAX_SAMPLES * f->vocab, (unsigned)c + 1, cases[c].spread);
        f->logits[11] = -INFINITY;
        for (int position = 0; position < (f->vocab > 2000 ? 8 : 24); position += MAX_SAMPLES) {
            SampleDesc s[MAX_SAMPLES];
            for (int i = 0; i < MAX_SAMPLES; i++) {
                s[i] = cases[c].d;
                s[i].out = MAX_SAMPLES - 1 - i;
                s[i].slot = i;
                s[i].random = sample_random(c, (uint64_t)(position + i));
            }
            const SampleResult *r = run(f, s, MAX_SAMPLES);
            for (int i = 0; i < MAX_SAMPLES; i++) {
                const int32_t want = reference(f, &s[i], c, position + i);
                n++;
                if (r[i].token == want)
                    continue;
                differ++;
                print_message("case %d, position %d: token %d, the engine's %d\n", (int)c,
                              position + i, (int)r[i].token, (int)want);
            }
        }
        fix_close(f);
    }
    if (differ > n / 100)
        fail_msg("%d of %d draws differ from the engine's", differ, n);
}

static void extreme_random_numbers(void **state)
{
    (void)state;
    Fix *f = fix_open(3000);
    random_logits(f->logits, MAX_SAMPLES * f->vocab, 8, 6);
    f->logits[17] = 5;
    const SampleDesc s[] = {
        {.out = 0, .slot = 0, .temperature = 1, .random = 0},
        {.out = 0, .slot = 1, .temperature = 1, .top_k = 3, .random = 0.99999999999},
        {.out = 0, .slot = 2, .temperature = 100, .top_p = 1, .random = 0.99999999999},
    };
    const SampleResult *r = run(f, s, 3);
    assert_int_equal(r[0].token, 17); /* the most likely is the first */
    int above = 0;                    /* the third of three */
    for (int i = 0; i < f->vocab; i++)
        above += f->logits[i] > f->logits[r[1].token];
    assert_int_equal(above, 2);
    assert_true(r[2].token >= 0 && r[2].token < f->vocab);
    fix_close(f);
}

/* ---- begin ---- */

enum { BUCKET = 64, WORDS = 700, TOKENS = 32, POS = 96, PAGES = 400, HALF = 12 };

static void begin_brings_the_block(void **state)
{
    (void)state;
    static int32_t host[RING][WORDS], step[WORDS], sampled[SAMPLE_SLOTS_MAX];
    static float inv_freq[HALF], table[BUCKET][HALF][2];
    uint32_t count = 5;
    for (int i = 0; i < HALF; i++)
        inv_freq[i] = powf(10000.0F, -(float)i / HALF);
    for (int i = 0; i < WORDS; i++) {
        host[0][i] = -77;
        host[1][i] = 1000 + i;
        step[i] = -1;
    }
    sampled[3] = 123;
    sampled[4] = -1; /* a slot whose logits were no numbers */
    host[1][TOKENS + 1] = -1 - 3;
    host[1][TOKENS + 2] = -1 - 4;
    host[1][GPU_STEP_WORDS] = 600; /* pages beyond those that are read ahead */
    for (int r = 0; r < BUCKET; r++)
        host[1][POS + r] = r * r * 250; /* up to a million */
    BeginParams p = {.host = address(host),
                     .step = address(step),
                     .count = address(&count),
                     .sampled = address(sampled),
                     .ring = RING,
                     .max_words = WORDS,
                     .rows = BUCKET,
                     .tokens = TOKENS,
                     .pos = POS,
                     .pages = PAGES,
                     .copied = 50,
                     .n_ranges = 4,
                     .n_tables = 1,
                     .ranges = {{0, 32}, {TOKENS, BUCKET}, {POS, BUCKET}, {PAGES, 50}},
                     .tables = {{address(inv_freq), address(table), 1.25F, HALF}}};
    launch("begin", 5, 1, BEGIN_THREADS, &p, sizeof p);
    for (int i = 0; i < WORDS; i++) {
        const bool wanted = i < POS + BUCKET || (i >= PAGES && i < 600);
        const int32_t want = !wanted           ? -1
                             : i == TOKENS + 1 ? 123
                             : i == TOKENS + 2 ? 0
                                               : host[1][i];
        if (step[i] != want)
            fail_msg("word %d: %d, wanted %d", i, (int)step[i], (int)want);
    }
    int last_bit = 0;
    for (int r = 0; r < BUCKET; r++)
        for (int i = 0; i < HALF; i++) {
            const double angle = (double)host[1][POS + r] * (double)inv_freq[i];
            const float want[2] = {(float)(cos(angle) * 1.25), (float)(sin(angle) * 1.25)};
            for (int j = 0; j < 2; j++) {
                const float got = table[r][i][j];
                if (fabsf(got - want[j]) > 1.2e-7F)
                    fail_msg("position %d, frequency %d: %.9g, wanted %.9g", (int)host[1][POS + r],
                             i, (double)got, (double)want[j]);
                last_bit += memcmp(&got, &want[j], sizeof got) != 0;
            }
        }
    assert_true(last_bit < 5); /* of 1,536: the C library's numbers but for roundings */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_equals),
        cmocka_unit_test(bad_logits_give_no_token),
        cmocka_unit_test(draws_are_the_engines),
        cmocka_unit_test(extreme_random_numbers),
        cmocka_unit_test(begin_brings_the_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
