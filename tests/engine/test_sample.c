/* Sampling: each step of the order in sample.h, draws against the distribution they must follow,
 * and logprobs against log-softmax in double. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static MereSampling plain(void)
{
    return (MereSampling){.logprobs = -1, .seed = 42};
}

typedef struct Fix {
    Arena a;
    Sampler s;
    float *logits, *work;
} Fix;

static void fix_open(Fix *f, int vocab)
{
    Error err;
    arena_init(&f->a, "test");
    assert_true(sample_init(&f->a, vocab, &f->s, &err));
    f->logits = ARENA_ARRAY(&f->a, vocab, float, &err);
    f->work = ARENA_ARRAY(&f->a, vocab, float, &err);
}

static Sampled next(Fix *f, const MereSampling *p, const SampleHistory *h)
{
    Error err;
    Sampled out;
    memcpy(f->work, f->logits, (size_t)f->s.vocab * sizeof(float));
    if (!sample_next(&f->s, p, h, f->work, &out, &err))
        fail_msg("%s", err.msg);
    for (int i = 0; i < f->s.vocab; i++)
        assert_int_equal(f->s.counts[i], 0);
    return out;
}

static void random_logits(Fix *f, unsigned seed, float spread)
{
    srand(seed);
    for (int i = 0; i < f->s.vocab; i++)
        f->logits[i] = ((float)rand() / (float)RAND_MAX - 0.5F) * spread;
}

static void greedy_takes_the_first_of_equals(void **state)
{
    (void)state;
    Fix f;
    fix_open(&f, 1003);
    random_logits(&f, 1, 4);
    f.logits[900] = f.logits[17] = 9;
    const MereSampling p = plain();
    const SampleHistory h = {NULL, 0, 0};
    assert_int_equal(next(&f, &p, &h).token, 17);
    f.logits[1002] = 10; /* the tail that no full group of lanes covers */
    assert_int_equal(next(&f, &p, &h).token, 1002);
    arena_free(&f.a);
}

static void philox_matches_the_published_vectors(void **state)
{
    (void)state;
    /* Random123's kat_vectors, philox4x32 10: counter 0, key 0 gives 6627e8d5 e169c58d ... */
    const double got = sample_random(0, 0);
    const uint64_t bits = ((uint64_t)0x6627e8d5U << 32 | 0xe169c58dU) >> 11;
    assert_true(fabs(got - (double)bits * 0x1p-53) < 1e-18);
}

/* Probabilities by the definition in sample.h, in double: sort, cut, renormalise. */
typedef struct P {
    double p;
    int id;
} P;

static int by_p(const void *a, const void *b)
{
    const P *x = a;
    const P *y = b;
    return x->p > y->p ? -1 : x->p < y->p ? 1 : x->id - y->id;
}

static void define(const float *logits, int vocab, const MereSampling *m, double *out)
{
    P *p = malloc(sizeof *p * (size_t)vocab);
    double max = -1e30;
    for (int i = 0; i < vocab; i++)
        max = fmax(max, (double)logits[i]);
    for (int i = 0; i < vocab; i++)
        p[i] = (P){exp(((double)logits[i] - max) / (double)m->temperature), i};
    qsort(p, (size_t)vocab, sizeof *p, by_p);
    int n = m->top_k > 0 && m->top_k < vocab ? m->top_k : vocab;
    double total = 0;
    for (int i = 0; i < n; i++)
        total += p[i].p;
    if (m->top_p > 0 && m->top_p < 1) {
        double sum = 0;
        int k = 0;
        while (k < n && sum < (double)m->top_p * total)
            sum += p[k++].p;
        n = k;
    }
    while (n > 1 && p[n - 1].p < (double)m->min_p)
        n--;
    total = 0;
    for (int i = 0; i < n; i++)
        total += p[i].p;
    for (int i = 0; i < vocab; i++)
        out[i] = 0;
    for (int i = 0; i < n; i++)
        out[p[i].id] = p[i].p / total;
    free(p);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { VOCAB = 57, DRAWS = 40000 };
    Fix f;
    fix_open(&f, VOCAB);
    random_logits(&f, 3, 7);
    const struct {
        float t, top_p, min_p;
        int top_k;
    } cases[] = {{1, 0, 0, 0},       {0.7F, 0, 0, 0},     {2.5F, 0, 0, 0},  {1, 0, 0, 5},
                 {1, 0.8F, 0, 0},    {1.3F, 0.9F, 0, 10}, {1, 0, 0.1F, 0},  {1, 0.95F, 0.05F, 0},
                 {1, 0.9F, 0.2F, 8}, {1, 0, 0.3F, 12},    {0.01F, 0, 0, 0}, {100, 0, 0, 0},
                 {1, 0.0001F, 0, 0}, {1, 0, 1, 0},        {1, 0, 0, 1},     {1, 0.9999F, 0, 0}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        MereSampling p = plain();
        p.temperature = cases[c].t;
        p.top_k = cases[c].top_k;
        p.top_p = cases[c].top_p;
        p.min_p = cases[c].min_p;
        double want[VOCAB];
        define(f.logits, VOCAB, &p, want);
        int got[VOCAB] = {0};
        for (int i = 0; i < DRAWS; i++) {
            const SampleHistory h = {NULL, 0, i};
            got[next(&f, &p, &h).token]++;
        }
        for (int i = 0; i < VOCAB; i++) {
            /* 6 standard deviations: false alarms of 2e-9 a value. */
            const double sd = sqrt(want[i] * (1 - want[i]) / DRAWS);
            const double diff = fabs((double)got[i] / DRAWS - want[i]);
            if (diff > 6 * sd + 1e-6)
                fail_msg("case %zu token %d: drawn %.5f, wanted %.5f", c, i, (double)got[i] / DRAWS,
                         want[i]);
        }
    }
    arena_free(&f.a);
}

static void same_seed_and_position_same_draw(void **state)
{
    (void)state;
    Fix f;
    fix_open(&f, 500);
    random_logits(&f, 4, 3);
    MereSampling p = plain();
    p.temperature = 1;
    int differ = 0;
    for (int i = 0; i < 100; i++) {
        const SampleHistory h = {NULL, 0, i};
        p.seed = 42;
        const int a = next(&f, &p, &h).token;
        assert_int_equal(next(&f, &p, &h).token, a);
        p.seed = 43;
        differ += next(&f, &p, &h).token != a;
    }
    assert_true(differ > 50);
    arena_free(&f.a);
}

static void wide_and_flat_logits_reach_every_band(void **state)
{
    (void)state;
    /* Mass far below the maximum: 100,000 tokens 12 nats down weigh 0.61 of the first one. */
    enum { VOCAB = 100001 };
    Fix f;
    fix_open(&f, VOCAB);
    for (int i = 1; i < VOCAB; i++)
        f.logits[i] = -12;
    f.logits[0] = 0;
    MereSampling p = plain();
    p.temperature = 1;
    int first = 0;
    enum { DRAWS = 400 };
    for (int i = 0; i < DRAWS; i++) {
        const SampleHistory h = {NULL, 0, i};
        first += next(&f, &p, &h).token == 0;
    }
    const double want = 1 / (1 + 100000 * exp(-12));
    const double sd = sqrt(want * (1 - want) / DRAWS);
    if (fabs((double)first / DRAWS - want) > 5 * sd)
        fail_msg("first token drawn %.3f, wanted %.3f", (double)first / DRAWS, want);
    arena_free(&f.a);
}

static void logprobs_are_the_models_own(void **state)
{
    (void)state;
    enum { VOCAB = 1000 };
    Fix f;
    fix_open(&f, VOCAB);
    random_logits(&f, 5, 20);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)f.logits[i]);
    MereSampling p = plain();
    p.logprobs = 20;
    p.temperature = 0.5F;
    const MereBias bias = {7, 100};
    p.bias = &bias;
    p.n_bias = 1;
    const SampleHistory h = {NULL, 0, 0};
    const Sampled s = next(&f, &p, &h);
    assert_int_equal(s.token, 7);
    assert_float_equal(s.logprob, (float)((double)f.logits[7] - log(sum)), 1e-5F);
    assert_int_equal(s.n_top, 20);
    for (int i = 0; i < 20; i++) {
        const SampleTop t = s.top[i];
        assert_float_equal(t.logprob, (float)((double)f.logits[t.id] - log(sum)), 1e-5F);
        int larger = 0;
        for (int j = 0; j < VOCAB; j++)
            larger += f.logits[j] > f.logits[t.id];
        assert_int_equal(larger, i);
    }
    p.logprobs = 0;
    const Sampled none = next(&f, &p, &h);
    assert_int_equal(none.n_top, 0);
    assert_float_equal(none.logprob, s.logprob, 0);
    arena_free(&f.a);
}

static void penalties_and_bias(void **state)
{
    (void)state;
    Fix f;
    fix_open(&f, 8);
    const float base[8] = {1, 2, 3, -1, 0.5F, 2.9F, -4, 2.8F};
    memcpy(f.logits, base, sizeof base);
    const int32_t said[] = {2, 2, 5, 7, 7, 7};
    const SampleHistory h = {said, 2, 6}; /* prompt 2 2, answer 5 7 7 7 */
    MereSampling p = plain();
    p.repeat_penalty = 2; /* 2, 5, 7 halved: token 1 leads */
    assert_int_equal(next(&f, &p, &h).token, 1);
    p.repeat_last = 3; /* only 7 is: 2 leads again */
    assert_int_equal(next(&f, &p, &h).token, 2);
    p = plain();
    p.presence_penalty = 0.5F; /* answer only: 5 and 7 lose 0.5, the prompt's 2 nothing */
    assert_int_equal(next(&f, &p, &h).token, 2);
    p.frequency_penalty = -0.5F; /* 7 gains 1.5 - 0.5: 3.8 */
    assert_int_equal(next(&f, &p, &h).token, 7);
    p = plain();
    const MereBias ban[] = {{2, -INFINITY}, {5, -100}, {6, 1}};
    p.bias = ban;
    p.n_bias = 3;
    assert_int_equal(next(&f, &p, &h).token, 7);
    p.temperature = 1;
    for (int i = 0; i < 200; i++) {
        const SampleHistory at = {said, 2, 6};
        p.seed = (uint64_t)i + 1;
        assert_int_not_equal(next(&f, &p, &at).token, 2);
    }
    arena_free(&f.a);
}

static void bad_logits_are_an_error(void **state)
{
    (void)state;
    Fix f;
    fix_open(&f, 37);
    Error err;
    Sampled out;
    const MereSampling p = plain();
    const SampleHistory h = {NULL, 0, 5};
    for (int at = 0; at < 37; at++) {
        for (int i = 0; i < 37; i++)
            f.logits[i] = (float)i;
        f.logits[at] = at % 2 ? NAN : INFINITY;
        assert_false(sample_next(&f.s, &p, &h, f.logits, &out, &err));
        assert_int_equal(err.code, ERR_FAILED);
    }
    for (int i = 0; i < 37; i++)
        f.logits[i] = -INFINITY;
    assert_false(sample_next(&f.s, &p, &h, f.logits, &out, &err));
    f.logits[3] = -5;
    assert_true(sample_next(&f.s, &p, &h, f.logits, &out, &err));
    assert_int_equal(out.token, 3);
    arena_free(&f.a);
}

static void parameters_are_checked(void **state)
{
    (void)state;
    Error err;
    const MereBias far = {100, 1};
    const MereBias nan_bias = {1, NAN};
    const MereSampling bad[] = {{.temperature = -1, .logprobs = -1},
                                {.temperature = NAN, .logprobs = -1},
                                {.top_p = 1.5F, .logprobs = -1},
                                {.min_p = -0.1F, .logprobs = -1},
                                {.top_k = -1, .logprobs = -1},
                                {.logprobs = 21},
                                {.logprobs = -2},
                                {.repeat_penalty = NAN, .logprobs = -1},
                                {.presence_penalty = INFINITY, .logprobs = -1},
                                {.bias = &far, .n_bias = 1, .logprobs = -1},
                                {.bias = &nan_bias, .n_bias = 1, .logprobs = -1},
                                {.n_bias = 3, .logprobs = -1},
                                {.repeat_last = -3, .logprobs = -1}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        if (sample_check(&bad[i], 50, &err))
            fail_msg("case %zu passed", i);
        assert_int_equal(err.code, ERR_REQUEST);
    }
    MereSampling p = plain();
    assert_true(sample_check(&p, 50, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_equals),
        cmocka_unit_test(philox_matches_the_published_vectors),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(same_seed_and_position_same_draw),
        cmocka_unit_test(wide_and_flat_logits_reach_every_band),
        cmocka_unit_test(logprobs_are_the_models_own),
        cmocka_unit_test(penalties_and_bias),
        cmocka_unit_test(bad_logits_are_an_error),
        cmocka_unit_test(parameters_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
