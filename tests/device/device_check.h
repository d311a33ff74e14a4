/* device_check.h: what the tests of device_net.h's networks share: the CPU and both classes of a
 * device kept open, a network run on each over some numbers of rows, and the bounds. */
#ifndef MERE_TESTS_DEVICE_CHECK_H
#define MERE_TESTS_DEVICE_CHECK_H

#include "device/device_net.h"

/* Relative error of a row of logits. Exact: f32 everywhere, sums in another order. Fast: int8
 * activations (of one scale per 32 k) or bf16 factors for each of the products that a network has,
 * keys and values in f16. */
#define EXACT_BOUND 2e-5
#define PRODUCT_BOUND 1.5e-2
#define KV_BOUND 1e-3

/* Numbers of rows of net_script: all steps of up to 64 rows' buckets, or of up to 8 rows'. On a
 * software device compiling kernels takes most of the time, and the fewer the buckets, the fewer
 * the kernels. */
static const int many_rows[] = {1, 5, 9, 17, 40};
static const int few_rows[] = {1, 5};
static const NetClass exact = {NUM_EXACT, KV_FORMAT_F32, 16};
static const NetClass fast = {NUM_FAST, KV_FORMAT_F16, 16};

enum { MAX_ROWS = 42, FEW_MAX_ROWS = 7 };

typedef struct Session {
    NetRun cpu, exact, fast; /* devices, kept open: a network is loaded and closed on each */
} Session;

static inline int open_session(void **state)
{
    Session *s = test_calloc(1, sizeof *s);
    Error err;
    const char *name = net_device();
    net_must(net_open_device(&s->cpu, "cpu", NUM_EXACT, &err), &err);
    net_must(net_open_device(&s->exact, name, NUM_EXACT, &err), &err);
    net_must(net_open_device(&s->fast, name, NUM_FAST, &err), &err);
    print_message("%s\n", s->exact.ops->describe(s->exact.device));
    *state = s;
    return 0;
}

static inline int close_session(void **state)
{
    Session *s = *state;
    net_close(&s->cpu);
    net_close(&s->exact);
    net_close(&s->fast);
    test_free(s);
    return 0;
}

/* Weights, cache and program, not the device. */
static inline void unload(NetRun *r)
{
    Device *keep = r->device;
    r->device = NULL;
    if (r->program)
        r->ops->program_close(keep, r->program);
    if (r->pool)
        r->ops->pool_close(keep, r->pool);
    if (r->weights)
        r->ops->weights_close(keep, r->weights);
    r->program = NULL;
    r->pool = NULL;
    r->weights = NULL;
    r->device = keep;
}

static inline float *reference(Session *s, Net *n, int rows, int page_tokens)
{
    Error err;
    const NetClass c = {NUM_EXACT, KV_FORMAT_F32, page_tokens};
    float *want =
        net_take(n, (size_t)net_script_out(rows) * (size_t)n->plan->values[n->plan->out].width,
                 sizeof *want);
    net_must(net_load(&s->cpu, n, &c, &err), &err);
    net_run(&s->cpu, n, rows, want);
    unload(&s->cpu);
    return want;
}

static inline void run_class(NetRun *r, Net *n, const NetClass *c, const char *class_name,
                             const int *row_counts, int n_counts, float *const *want, double bound)
{
    Error err;
    const int width = n->plan->values[n->plan->out].width;
    if (!net_load(r, n, c, &err))
        fail_msg("%s, %s: %s", n->what, class_name, err.msg);
    for (int i = 0; i < n_counts; i++) {
        const int rows = row_counts[i];
        float *got = net_take(n, (size_t)net_script_out(rows) * (size_t)width, sizeof *got);
        for (int j = 0; j < net_script_out(rows) * width; j++)
            got[j] = NAN;
        memset(r->len, 0, sizeof r->len);
        net_run(r, n, rows, got);
        net_compare(n, class_name, rows, got, want[i], bound);
    }
    unload(r);
}

/* Both classes over some numbers of rows. Frees the network. */
static inline void check_rows(Session *s, Net *n, int page_tokens, const int *rows, int n_rows,
                              double fast_bound)
{
    float *want[COUNT_OF(many_rows)];
    assert_true(n_rows <= (int)COUNT_OF(many_rows));
    NetClass e = exact;
    NetClass f = fast;
    e.page_tokens = f.page_tokens = page_tokens;
    for (int i = 0; i < n_rows; i++)
        want[i] = reference(s, n, rows[i], page_tokens);
    run_class(&s->exact, n, &e, "exact", rows, n_rows, want, EXACT_BOUND);
    run_class(&s->fast, n, &f, "fast", rows, n_rows, want, fast_bound);
    net_free(n);
}

static inline void check_many(Session *s, Net *n, double fast_bound)
{
    check_rows(s, n, 16, many_rows, COUNT_OF(many_rows), fast_bound);
}

static inline void check_few(Session *s, Net *n, double fast_bound)
{
    check_rows(s, n, 16, few_rows, COUNT_OF(few_rows), fast_bound);
}

static inline void name_net(Net *n, const char *what, const char *format, int k, int rows)
{
    (void)snprintf(n->what, sizeof n->what, "%s %s [%d, %d]", what, format, rows, k);
}

static inline const GoldenCase *format_of(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(golden_cases); i++)
        if (strcmp(golden_cases[i].name, name) == 0)
            return &golden_cases[i];
    fail_msg("no format is called %s", name);
    return NULL;
}

#endif
