/* kl: how far the fast numeric class is from the exact one, in nats.
 *
 *     kl MODEL [--tokens N] [--max-mean NATS] [--threads N] [--chunk ROWS] [--device ID]
 *
 * The fast engine, on the device if one is named and else on the CPU, writes N tokens (eight
 * sequences, temperature 1, fixed seeds); both engines (the exact one is the CPU) then score the
 * same tokens, and the Kullback-Leibler divergence of fast from exact is taken over the whole
 * vocabulary at every position: sum p_exact (ln p_exact - ln p_fast). Prints mean, median, 99th
 * percentile, largest, and how often the most likely token is the same. Exit code 1 when the mean
 * is above --max-mean. Memory: one sequence's logits (tokens / 8 * vocabulary floats). */
#include "mere.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 8 };

typedef struct Args {
    const char *model;
    const char *device;
    int tokens;
    int threads;
    int chunk;
    double max_mean;
} Args;

typedef struct Scores {
    double *kl;
    int n;
    int same_top;
} Scores;

static void die(const char *what, const MereError *err)
{
    fprintf(stderr, "kl: %s: %s\n", what, err->msg);
    exit(mere_err_exit_code(err->code));
}

static void open_model(const Args *a, MereNumerics numerics, MereEngine **engine, MereModel **model)
{
    MereError err;
    MereOptions opt = MERE_OPTIONS_INIT;
    opt.numerics = numerics;
    opt.threads = a->threads;
    const char *device = numerics == MERE_FAST ? a->device : "cpu";
    opt.device = (MereStr){device, strlen(device)};
    opt.chunk = numerics == MERE_FAST ? a->chunk : 0;
    opt.slots = SEQUENCES;
    opt.ctx = a->tokens / SEQUENCES + 16;
    opt.no_prefix_cache = true;
    if (!mere_engine_open(&opt, engine, &err))
        die("engine", &err);
    if (!mere_model_open(*engine, (MereStr){a->model, strlen(a->model)}, &opt, model, &err))
        die(a->model, &err);
}

/* ids [SEQUENCES][len + 1]; the first token of each sequence is a piece of common text. */
static void write_text(MereEngine *engine, MereModel *model, int len, int32_t *ids)
{
    MereError err;
    int done[SEQUENCES];
    int live = SEQUENCES;
    for (int s = 0; s < SEQUENCES; s++) {
        int32_t start[4];
        int64_t n;
        static const char *const begin[SEQUENCES] = {"The", "In", "A",  "When",
                                                     "It",  "We", "To", "If"};
        if (!mere_tokenize(model, (MereStr){begin[s], strlen(begin[s])}, 0, start, 4, &n, &err) ||
            n < 1)
            die("tokenize", &err);
        ids[(size_t)s * (size_t)(len + 1)] = start[0];
        done[s] = 1;
        MereRequest req = MERE_REQUEST_INIT;
        req.ids = start;
        req.n_ids = 1;
        req.max_tokens = len;
        req.ignore_eos = true;
        req.sampling.temperature = 1;
        req.sampling.seed = (uint64_t)s + 1;
        req.user = (uint64_t)s;
        uint64_t id;
        if (!mere_submit(model, &req, &id, &err))
            die("submit", &err);
    }
    MereEvent ev;
    while (live > 0 && mere_next(engine, &ev, -1)) {
        const int s = (int)ev.user;
        if (ev.type == MERE_EVENT_TOKEN && done[s] <= len)
            ids[(size_t)s * (size_t)(len + 1) + (size_t)done[s]++] = ev.token;
        if (ev.type == MERE_EVENT_END) {
            if (ev.finish == MERE_FINISH_ERROR)
                die("generation", &ev.error);
            live--;
        }
    }
}

/* Calls `row` for the logits of each position of the ids, in order. */
static void score(MereEngine *engine, MereModel *model, const int32_t *ids, int n,
                  void (*row)(void *, int, const float *, int), void *ctx)
{
    MereError err;
    MereRequest req = MERE_REQUEST_INIT;
    req.ids = ids;
    req.n_ids = n;
    req.echo_logits = true;
    uint64_t id;
    if (!mere_submit(model, &req, &id, &err))
        die("submit", &err);
    MereEvent ev;
    while (mere_next(engine, &ev, -1)) {
        if (ev.type == MERE_EVENT_LOGITS)
            row(ctx, ev.index, ev.logits, ev.n_logits);
        if (ev.type == MERE_EVENT_END) {
            if (ev.finish == MERE_FINISH_ERROR)
                die("scoring", &ev.error);
            return;
        }
    }
}

typedef struct Kept {
    float *logits; /* [len][vocab] of the fast engine */
    int vocab;
    Scores *scores;
} Kept;

static double log_sum(const float *x, int n, int *top)
{
    *top = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[*top])
            *top = i;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)x[*top]);
    return log(sum) + (double)x[*top];
}

static void keep_row(void *ctx, int index, const float *x, int n)
{
    Kept *k = ctx;
    memcpy(k->logits + (size_t)index * (size_t)k->vocab, x, (size_t)n * sizeof *x);
}

static void compare_row(void *ctx, int index, const float *exact, int n)
{
    Kept *k = ctx;
    const float *fast = k->logits + (size_t)index * (size_t)k->vocab;
    int top_exact, top_fast;
    const double ze = log_sum(exact, n, &top_exact);
    const double zf = log_sum(fast, n, &top_fast);
    double kl = 0;
    for (int i = 0; i < n; i++) {
        const double lp = (double)exact[i] - ze;
        kl += exp(lp) * (lp - ((double)fast[i] - zf));
    }
    k->scores->kl[k->scores->n++] = kl;
    k->scores->same_top += top_exact == top_fast;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool parse(int argc, char **argv, Args *a)
{
    *a = (Args){.device = "cpu", .tokens = 4096, .max_mean = HUGE_VAL};
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-')
            a->model = argv[i];
        else if (i + 1 == argc)
            return false;
        else if (strcmp(argv[i], "--tokens") == 0)
            a->tokens = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0)
            a->threads = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--chunk") == 0)
            a->chunk = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--device") == 0)
            a->device = argv[++i];
        else if (strcmp(argv[i], "--max-mean") == 0)
            a->max_mean = strtod(argv[++i], NULL);
        else
            return false;
    }
    return a->model && a->tokens >= SEQUENCES && a->threads >= 0 && a->chunk >= 0;
}

int main(int argc, char **argv)
{
    Args a;
    if (!parse(argc, argv, &a)) {
        fprintf(stderr,
                "usage: kl MODEL [--tokens N] [--max-mean NATS] [--threads N] [--chunk ROWS] "
                "[--device ID]\n");
        return 2;
    }
    const int len = a.tokens / SEQUENCES;
    MereEngine *fast, *exact;
    MereModel *fast_model, *exact_model;
    open_model(&a, MERE_FAST, &fast, &fast_model);
    open_model(&a, MERE_EXACT, &exact, &exact_model);
    MereInfo info = {.size = sizeof info};
    mere_model_info(fast_model, &info);
    int32_t *ids = malloc((size_t)SEQUENCES * (size_t)(len + 1) * sizeof *ids);
    Scores scores = {.kl = malloc((size_t)a.tokens * sizeof(double))};
    Kept kept = {.logits = malloc((size_t)len * (size_t)info.vocab * sizeof(float)),
                 .vocab = info.vocab,
                 .scores = &scores};
    if (!ids || !scores.kl || !kept.logits) {
        fprintf(stderr, "kl: out of memory\n");
        return 4;
    }
    write_text(fast, fast_model, len, ids);
    for (int s = 0; s < SEQUENCES; s++) {
        const int32_t *seq = ids + (size_t)s * (size_t)(len + 1);
        score(fast, fast_model, seq, len, keep_row, &kept);
        score(exact, exact_model, seq, len, compare_row, &kept);
    }
    double sum = 0;
    for (int i = 0; i < scores.n; i++)
        sum += scores.kl[i];
    qsort(scores.kl, (size_t)scores.n, sizeof(double), by_value);
    const double mean = sum / scores.n;
    printf("tokens %d  mean %.5f  median %.5f  p99 %.5f  max %.5f nats  same most likely token "
           "%.2f %%\n",
           scores.n, mean, scores.kl[scores.n / 2], scores.kl[scores.n * 99 / 100],
           scores.kl[scores.n - 1], 100.0 * scores.same_top / scores.n);
    free(ids);
    free(scores.kl);
    free(kept.logits);
    mere_model_close(fast_model);
    mere_model_close(exact_model);
    mere_engine_close(fast);
    mere_engine_close(exact);
    if (scores.n != len * SEQUENCES || !(mean <= a.max_mean)) {
        fprintf(stderr, "kl: mean %.5f nats over %d tokens, wanted at most %.5f over %d\n", mean,
                scores.n, a.max_mean, len * SEQUENCES);
        return 1;
    }
    return 0;
}
