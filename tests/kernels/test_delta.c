/* The gated delta rule against its definition, and hand-over of its state between chunks. */
#include "kernels/kernels_check.h"

typedef struct Case {
    int n_k, n_v, k_dim, v_dim, rows;
    int kind;        /* of the inputs */
    bool from_state; /* else from zeros */
} Case;

static const Case cases[] = {
    {1, 1, 1, 1, 5, 0, false},    {2, 4, 16, 16, 40, 0, true},   {1, 3, 17, 33, 9, 0, true},
    {2, 2, 64, 64, 65, 0, false}, {1, 2, 128, 128, 70, 0, true}, {1, 1, 128, 129, 33, 0, true},
    {1, 1, 15, 7, 100, 0, true},  {1, 2, 32, 80, 12, 1, true},   {1, 2, 32, 80, 12, 2, true},
    {1, 2, 64, 48, 20, 3, true},  {4, 4, 96, 100, 1, 0, true},   {1, 1, 256, 256, 3, 0, true},
};

typedef struct Data {
    DeltaArgs d;
    float *qkv, *a, *b, *a_log, *dt_bias, *state;
    int64_t ldx, ldh, ldy, s_size;
    uint8_t *work;
} Data;

static Data data_make(Check *c, const Case *t)
{
    Data m = {.d = {.n_k_heads = t->n_k, .n_v_heads = t->n_v, .k_dim = t->k_dim, .v_dim = t->v_dim},
              .ldx = 2 * t->n_k * t->k_dim + t->n_v * t->v_dim + 3,
              .ldh = t->n_v + 2,
              .ldy = t->n_v * t->v_dim + 1,
              .s_size = (int64_t)t->n_v * t->k_dim * t->v_dim};
    m.qkv = check_input(c, (int)(t->rows * m.ldx), t->kind, 1e8F);
    m.a = check_input(c, (int)(t->rows * m.ldh), 0, 0.0F);
    m.b = check_input(c, (int)(t->rows * m.ldh), 0, 0.0F);
    m.a_log = check_input(c, t->n_v, 0, 0.0F);
    m.dt_bias = check_input(c, t->n_v, 0, 0.0F);
    m.state = check_input(c, (int)m.s_size, 0, 0.0F);
    for (int h = 0; h < t->n_v; h++)
        m.a_log[h] -= 4.0F; /* decays near 1, so that rows add up */
    const int64_t bytes = delta_work_bytes(&m.d);
    m.work = (uint8_t *)check_take(c, (size_t)bytes + 64, 1);
    memset(m.work, 0xff, (size_t)bytes + 64);
    return m;
}

/* Rows [r0, r1), the state in and out. */
static void data_run(const CpuKernels *k, const Case *t, const Data *m, int r0, int r1,
                     const float *in, float *out, float *y)
{
    for (int h = 0; h < t->n_v; h++) /* a head a call */
        k->delta(&m->d, m->qkv + r0 * m->ldx, m->ldx, m->a + r0 * m->ldh, m->ldh,
                 m->b + r0 * m->ldh, m->ldh, m->a_log, m->dt_bias, in, out, h, h + 1, r1 - r0,
                 y + r0 * m->ldy, m->ldy, m->work);
    const int64_t bytes = delta_work_bytes(&m->d);
    for (int i = 0; i < 64; i++)
        assert_int_equal(m->work[bytes + i], 0xff);
}

/* Largest column norm of a state, and the largest |v| of a row. */
static double scale_of(const Case *t, const Data *m, const float *s, int r)
{
    double most = 0.0;
    for (int h = 0; h < t->n_v; h++) {
        for (int j = 0; j < t->v_dim; j++) {
            double sum = 0.0;
            for (int i = 0; i < t->k_dim; i++) {
                const double x = (double)s[((int64_t)h * t->k_dim + i) * t->v_dim + j];
                sum += x * x;
            }
            const double v =
                (double)m->qkv[r * m->ldx + 2 * t->n_k * t->k_dim + (int64_t)h * t->v_dim + j];
            most = fmax(most, 2.0 * sqrt(sum) + fabs(v));
        }
    }
    return most;
}

/* Bound. With |k| = 1, beta <= 1 and decay <= 1 a row maps states without stretching them (decay (I
 * - beta k k^T) is a contraction), so a column's error after r rows is at most the sum of what each
 * row added: sums of k_dim products, their combination and the normalised k and q (k_dim / 16 + 8
 * roundings each) give (2 k_dim + 24) U of B = max over rows of 2 |column| + |v|. |q| <= 1, so y is
 * off by no more than that and its own sum. Both sides round the state: the reference adds one U.
 */
static void test_delta_reference(void **state)
{
    (void)state;
    for (size_t n = 0; n < COUNT_OF(cases); n++) {
        const Case *t = &cases[n];
        Check c;
        check_open(&c);
        c.seed = n + 5;
        const Data m = data_make(&c, t);
        const float *in = t->from_state ? m.state : NULL;
        float *want = check_output(&c, t->rows * m.ldy);
        float *want_s = check_output(&c, m.s_size);
        double *bound = (double *)check_take(&c, (size_t)t->rows + 16, sizeof *bound);
        double most = in ? scale_of(t, &m, in, 0) : 0.0;
        for (int r = 0; r < t->rows; r++) {
            data_run(&c.ref, t, &m, r, r + 1, r ? want_s : in, want_s, want);
            most = fmax(most, scale_of(t, &m, want_s, r));
            bound[r] = (r + 2.0) * (2.0 * t->k_dim + 24.0) * U * most + 0x1p-140;
        }
        for (int l = 0; l < c.n_levels; l++) {
            float *y = check_output(&c, t->rows * m.ldy);
            float *s = check_output(&c, m.s_size);
            data_run(&c.level[l].k, t, &m, 0, t->rows, in, s, y);
            check_guards(y, t->rows * m.ldy, "delta");
            check_guards(s, m.s_size, "delta state");
            for (int r = 0; r < t->rows; r++) {
                for (int i = 0; i < t->n_v * t->v_dim; i++)
                    check_near("delta", r * m.ldy + i, y[r * m.ldy + i], want[r * m.ldy + i],
                               bound[r]);
                assert_true(isnan((double)y[(r + 1) * m.ldy - 1]) != 0);
            }
            for (int64_t i = 0; i < m.s_size; i++)
                check_near("delta state", i, s[i], want_s[i], bound[t->rows - 1]);
        }
        arena_free(&c.arena);
    }
}

/* One pass, and chunks with the state handed over in place, give the same bits. */
static void test_delta_chunks(void **state)
{
    (void)state;
    const int chunks[] = {1, 2, 3, 31, 32, 33, 64};
    for (size_t n = 0; n < COUNT_OF(cases); n++) {
        const Case *t = &cases[n];
        Check c;
        check_open(&c);
        const Data m = data_make(&c, t);
        const float *in = t->from_state ? m.state : NULL;
        for (int l = -1; l < c.n_levels; l++) {
            const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
            float *want = check_output(&c, t->rows * m.ldy);
            float *want_s = check_output(&c, m.s_size);
            data_run(k, t, &m, 0, t->rows, in, want_s, want);
            for (size_t i = 0; i < COUNT_OF(chunks); i++) {
                float *y = check_output(&c, t->rows * m.ldy);
                float *s = check_output(&c, m.s_size);
                for (int r = 0; r < t->rows; r += chunks[i]) {
                    const int end = r + chunks[i] < t->rows ? r + chunks[i] : t->rows;
                    data_run(k, t, &m, r, end, r ? s : in, s, y);
                }
                for (int r = 0; r < t->rows; r++)
                    check_equal("delta chunks", y + r * m.ldy, want + r * m.ldy, m.ldy - 1);
                check_equal("delta chunk state", s, want_s, m.s_size);
            }
        }
        arena_free(&c.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delta_reference),
        cmocka_unit_test(test_delta_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
