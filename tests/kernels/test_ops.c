/* The elementwise and reducing kernels of every level against their definitions. */
#include "kernels/kernels_check.h"

static const int sizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 576, 1021};

enum { ROWS = 3, PAD = 5 };

/* x * rsqrt(mean) * w: a sum of n squares in at least 32 chains and a tree, half of whose error
 * reaches the root; then division, root, reciprocal, two products on either side. */
static double norm_bound(int n, float want)
{
    return ((n / 32.0 + 12.0) / 2.0 + 10.0) * U * fabs((double)want) + 0x1p-148;
}

/* exp 2.2 U, 1 + e, the division and the product, on either side, and silu's product with up. */
static double sigmoid_bound(float want)
{
    return 12.0 * U * fabs((double)want) + 0x1p-147;
}

static void test_rms_norm(void **state)
{
    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes) * INPUTS * 3; s++) {
        Check c;
        check_open(&c);
        const int group = sizes[s / (INPUTS * 3)];
        const int groups = s % 3 == 0 ? 1 : 3;
        const int width = group * groups;
        const int ld = width + PAD;
        float *x = check_input(&c, ROWS * ld, (int)(s / 3 % INPUTS), 1e15F);
        float *z = check_input(&c, ROWS * ld, 0, 0.0F);
        float *w = s % 3 == 2 ? NULL : check_input(&c, group, 0, 0.0F);
        for (int gated = 0; gated < 2; gated++) {
            float *want = check_output(&c, ROWS * ld);
            float *in_place = check_output(&c, ROWS * ld);
            for (int l = -1; l < c.n_levels; l++) {
                const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
                float *y = l < 0 ? want : check_output(&c, ROWS * ld);
                if (gated)
                    k->rms_norm_gated(x, ld, z, ld, w, 1e-5F, width, group, ROWS, y, ld);
                else
                    k->rms_norm(x, ld, w, 1e-5F, width, group, ROWS, y, ld);
                check_guards(y, ROWS * ld, "rms_norm");
                for (int i = 0; i < ROWS * ld; i++) {
                    if (i % ld >= width) {
                        assert_true(isnan((double)y[i]) != 0);
                        continue;
                    }
                    check_near("rms_norm", i, y[i], want[i],
                               norm_bound(group, want[i]) + (gated ? sigmoid_bound(want[i]) : 0.0));
                }
                memcpy(in_place, x, sizeof(float) * (size_t)(ROWS * ld));
                if (gated)
                    continue;
                k->rms_norm(in_place, ld, w, 1e-5F, width, group, ROWS, in_place, ld);
                for (int r = 0; r < ROWS; r++)
                    check_equal("rms_norm in place", in_place + r * ld, y + r * ld, width);
            }
        }
        arena_free(&c.arena);
    }
}

static void test_gates(void **state)
{
    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes) * INPUTS; s++) {
        Check c;
        check_open(&c);
        const int width = sizes[s / INPUTS];
        const int ld = width + PAD;
        const int n = ROWS * ld;
        float *g = check_input(&c, n, (int)(s % INPUTS), s & 1 ? 1e30F : -1e30F);
        float *x = check_input(&c, n, (int)(s % INPUTS), 1e6F);
        for (int i = 0; i < n; i += 3)
            g[i] *= 30.0F; /* into both tails of exp */
        float *want[4];
        for (int l = -1; l < c.n_levels; l++) {
            const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
            float *y[4];
            for (int j = 0; j < 4; j++)
                y[j] = check_output(&c, n);
            k->silu_mul(g, ld, x, ld, width, ROWS, y[0], ld);
            k->sigmoid_mul(x, ld, g, ld, false, width, ROWS, y[1], ld);
            k->sigmoid_mul(x, ld, g, ld, true, width, ROWS, y[2], ld);
            k->add(x, ld, g, ld, width, ROWS, y[3], ld);
            for (int j = 0; j < 4; j++) {
                check_guards(y[j], n, "gate");
                if (l < 0)
                    want[j] = y[j];
                for (int i = 0; i < n; i++) {
                    if (i % ld >= width)
                        assert_true(isnan((double)y[j][i]) != 0);
                    else if (j == 3)
                        check_equal("add", y[j] + i, want[j] + i, 1);
                    else
                        check_near("gate", i, y[j][i], want[j][i], sigmoid_bound(want[j][i]));
                }
            }
            if (l < 0)
                continue;
            k->sigmoid_mul(x, ld, g, ld, false, width, 1, y[0], ld);
            check_equal("one row of three", y[0], y[1], width);
        }
        arena_free(&c.arena);
    }
}

/* The definition against the formula over a row's own sums: values, in place, with and without
 * bias. */
static void test_layer_norm(void **state)
{
    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes) * INPUTS; s++) {
        Check c;
        check_open(&c);
        const int width = sizes[s / INPUTS];
        const int ld = width + PAD;
        const int n = ROWS * ld;
        float *x = check_input(&c, n, (int)(s % INPUTS), 1e15F);
        float *w = check_input(&c, width, 0, 0.0F);
        float *b = s & 1 ? check_input(&c, width, 0, 0.0F) : NULL;
        for (int l = -1; l < c.n_levels; l++) {
            const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
            float *y = check_output(&c, n);
            k->layer_norm(x, ld, w, b, 1e-5F, width, ROWS, y, ld);
            check_guards(y, n, "layer_norm");
            for (int r = 0; r < ROWS; r++) {
                long double sum = 0;
                long double squares = 0;
                for (int i = 0; i < width; i++)
                    sum += (long double)x[r * ld + i];
                for (int i = 0; i < width; i++) {
                    const long double d = (long double)x[r * ld + i] - sum / width;
                    squares += d * d;
                }
                for (int i = 0; i < width; i++) {
                    const double d = (double)((long double)x[r * ld + i] - sum / width);
                    const double part = d / sqrt((double)squares / width + (double)1e-5F);
                    const double all = part * (double)w[i] + (b ? (double)b[i] : 0.0);
                    check_near("layer_norm", r * ld + i, y[r * ld + i], (float)all,
                               2 * U * fabs(all) + 0x1p-20 * fabs(part * (double)w[i]) + 0x1p-148);
                }
                for (int i = width; i < ld; i++)
                    assert_true(isnan((double)y[r * ld + i]) != 0);
            }
            float *in_place = check_output(&c, n);
            memcpy(in_place, x, sizeof *x * (size_t)n);
            k->layer_norm(in_place, ld, w, b, 1e-5F, width, ROWS, in_place, ld);
            for (int r = 0; r < ROWS; r++)
                check_equal("layer_norm in place", in_place + r * ld, y + r * ld, width);
        }
        arena_free(&c.arena);
    }
}

/* Published values, tails, and the product with a second input. */
static void test_act(void **state)
{
    (void)state;
    static const float x[] = {1, -1, -3, 0.5F, 5, -8, 0, -1e30F, 1e30F};
    static const double want[4][COUNT_OF(x)] = {
        [ACT_RELU] = {1, 0, 0, 0.5, 5, 0, 0, 0, 1e30},
        [ACT_GELU] = {0.841344746, -0.158655254, -0.00404969409, 0.345731231, 4.99999857,
                      -4.97676846e-15, 0, 0, 1e30},
        [ACT_GELU_TANH] = {0.841191991, -0.158808009, -0.00363739208, 0.34571401, 4.99999977,
                           -3.10778294e-21, 0, 0, 1e30},
        [ACT_QUICK_GELU] = {0.845795766, -0.154204234, -0.0180713097, 0.350388437, 4.99899298,
                            -9.76642887e-06, 0, 0, 1e30},
    };
    enum { N = COUNT_OF(x) };
    Check c;
    check_open(&c);
    for (int l = -1; l < c.n_levels; l++) {
        const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
        for (int a = ACT_RELU; a <= ACT_QUICK_GELU; a++) {
            float y[2 * N];
            float up[2 * N];
            float both[2 * N];
            for (int i = 0; i < 2 * N; i++)
                up[i] = (float)(i + 1) * 0.25F;
            k->act((ActKind)a, x, 0, NULL, 0, N, 2, y, N);
            k->act((ActKind)a, x, 0, up, N, N, 2, both, N);
            for (int i = 0; i < 2 * N; i++) {
                const double v = want[a][i % N];
                /* the constants have nine digits */
                check_near("act", i, y[i], (float)v, (2 * U + 1e-8) * fabs(v));
                check_near("act with a second input", i, both[i],
                           (float)((double)y[i] * (double)up[i]), 2 * U * fabs((double)both[i]));
            }
            const float bad = NAN;
            k->act((ActKind)a, &bad, 1, NULL, 0, 1, 1, y, 1);
            assert_true(isnan((double)y[0]) != 0);
        }
    }
    arena_free(&c.arena);
}

/* Every element is the one of the row it stands for, or 0; any cut of the rows gives the same. */
static void test_window(void **state)
{
    (void)state;
    static const struct {
        int n, width;
        WindowDesc w;
    } cases[] = {
        {7, 5, {.taps = 3, .stride = 1, .pad = 1}}, {8, 3, {.taps = 3, .stride = 2, .pad = 1}},
        {1, 4, {.taps = 3, .stride = 1, .pad = 1}}, {12, 2, {.taps = 4, .stride = 4, .pad = 0}},
        {5, 1, {.taps = 7, .stride = 1, .pad = 6}}, {9, 17, {.taps = 1, .stride = 1, .pad = 0}}};
    for (size_t s = 0; s < COUNT_OF(cases); s++) {
        Check c;
        check_open(&c);
        const WindowDesc *w = &cases[s].w;
        const int width = cases[s].width;
        const int rows = cases[s].n / w->stride;
        const int ld = width * w->taps + PAD;
        float *x = check_input(&c, cases[s].n * (width + 2), 0, 0.0F);
        for (int l = -1; l < c.n_levels; l++) {
            const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
            for (int cut = 1; cut <= rows; cut++) {
                float *y = check_output(&c, rows * ld);
                for (int r = 0; r < rows; r += cut) {
                    const int n = rows - r < cut ? rows - r : cut;
                    k->window(x, width + 2, cases[s].n, width, w, r, n, y + r * ld, ld);
                }
                check_guards(y, rows * ld, "window");
                for (int i = 0; i < rows * ld; i++) {
                    const int at = i % ld;
                    const int from = i / ld * w->stride - w->pad + at % w->taps;
                    const bool inside = from >= 0 && from < cases[s].n;
                    const float want = inside ? x[from * (width + 2) + at / w->taps] : 0.0F;
                    if (at >= width * w->taps)
                        assert_true(isnan((double)y[i]) != 0);
                    else
                        check_equal("window", y + i, &want, 1);
                }
            }
        }
        arena_free(&c.arena);
    }
}

/* Each frequency turns by its own position: as the table of that position alone has it. */
static void test_rope_axes(void **state)
{
    (void)state;
    enum { AXES = 3, HALF = 8 };
    static const uint8_t axis[HALF] = {0, 0, 1, 2, 1, 2, 2, 0};
    static const int32_t pos[ROWS][AXES] = {{0, 0, 0}, {5, 9, 2}, {131071, 1, 77}};
    float inv_freq[HALF];
    for (int i = 0; i < HALF; i++)
        inv_freq[i] = powf(100.0F, -(float)i / HALF);
    const RopeArgs plain = {.head_dim = 16, .rot_dim = 16, .scale = 1.2F, .inv_freq = inv_freq};
    RopeArgs rope = plain;
    rope.axis = axis;
    rope.n_axes = AXES;
    Check c;
    check_open(&c);
    for (int l = -1; l < c.n_levels; l++) {
        const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
        float *got = check_output(&c, ROWS * 2 * HALF);
        k->rope_table(&rope, pos[0], ROWS, got);
        check_guards(got, ROWS * 2 * HALF, "rope_table of axes");
        for (int a = 0; a < AXES; a++) {
            float want[ROWS * 2 * HALF];
            const int32_t one[ROWS] = {pos[0][a], pos[1][a], pos[2][a]};
            k->rope_table(&plain, one, ROWS, want);
            for (int i = 0; i < ROWS * 2 * HALF; i++)
                if (axis[i % HALF] == a)
                    check_equal("rope_table of axes", got + i, want + i, 1);
        }
    }
    arena_free(&c.arena);
}

static void test_rope(void **state)
{
    (void)state;
    const int dims[][2] = {{2, 2}, {16, 16}, {64, 64}, {128, 128}, {80, 32}, {96, 34}, {64, 6}};
    for (size_t s = 0; s < COUNT_OF(dims) * 2; s++) {
        Check c;
        check_open(&c);
        enum { HEADS = 3 };
        float inv_freq[64];
        const RopeArgs rope = {.head_dim = dims[s / 2][0],
                               .rot_dim = dims[s / 2][1],
                               .pairs = s & 1,
                               .scale = 1.2F,
                               .inv_freq = inv_freq};
        for (int i = 0; i < 64; i++)
            inv_freq[i] = powf(10000.0F, -(float)i / 32.0F);
        const int32_t pos[ROWS] = {0, 7, 131071};
        const int64_t ld = HEADS * rope.head_dim + PAD;
        float *x = check_input(&c, (int)(ROWS * ld), 0, 0.0F);
        float *want = NULL;
        for (int l = -1; l < c.n_levels; l++) {
            const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
            float *y = check_output(&c, ROWS * ld);
            float *cs = check_output(&c, ROWS * rope.rot_dim);
            memcpy(y, x, (size_t)(ROWS * ld) * sizeof *y);
            k->rope_table(&rope, pos, ROWS, cs);
            k->rope(y, ld, HEADS, &rope, cs, ROWS);
            check_guards(y, ROWS * ld, "rope");
            check_guards(cs, (int64_t)ROWS * rope.rot_dim, "rope_table");
            want = l < 0 ? y : want;
            check_equal("rope", y, want, ROWS * ld);
        }
        /* the reference against the formula, one angle */
        const int half = rope.rot_dim / 2;
        const int i = half - 1;
        const int other = rope.pairs ? 2 * i + 1 : i + half;
        const int first = rope.pairs ? 2 * i : i;
        const double angle = 131071.0 * (double)inv_freq[i];
        const float *row = x + 2 * ld + rope.head_dim;
        const double rotated =
            1.2 * ((double)row[first] * cos(angle) - (double)row[other] * sin(angle));
        check_near("rope formula", first, want[2 * ld + rope.head_dim + first], (float)rotated,
                   40.0 * U);
        for (int d = rope.rot_dim; d < rope.head_dim; d++)
            assert_true(want[d] == x[d]);
        arena_free(&c.arena);
    }
}

static void test_combine(void **state)
{
    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes) * INPUTS; s++) {
        Check c;
        check_open(&c);
        const int width = sizes[s / INPUTS];
        const int ld = width + PAD;
        const int k_max = (int)(s % 9) + 1;
        float *x = check_input(&c, 40 * ld, (int)(s % INPUTS), 1e20F);
        float *w = check_input(&c, ROWS * k_max, 0, 0.0F);
        float *more = s & 1 ? check_input(&c, ROWS * ld, 0, 0.0F) : NULL;
        int32_t place[ROWS * 9];
        for (int i = 0; i < ROWS * k_max; i++)
            place[i] = check_below(&c, 40);
        float *want = NULL;
        for (int l = -1; l < c.n_levels; l++) {
            float *y = check_output(&c, ROWS * ld);
            (l < 0 ? &c.ref : &c.level[l].k)
                ->combine(x, ld, place, w, k_max, more, ld, width, ROWS, y, ld);
            check_guards(y, ROWS * ld, "combine");
            want = l < 0 ? y : want;
            for (int i = 0; i < ROWS * ld; i++) {
                if (i % ld >= width)
                    continue;
                double sum = more ? fabs((double)more[i]) : 0.0; /* (k + 2) U sum |w x| */
                for (int j = 0; j < k_max; j++)
                    sum += fabs((double)w[i / ld * k_max + j] *
                                (double)x[place[i / ld * k_max + j] * ld + i % ld]);
                check_near("combine", i, y[i], want[i], (k_max + 2) * U * sum + 0x1p-148);
            }
        }
        arena_free(&c.arena);
    }
}

static void test_conv(void **state)
{
    (void)state;
    const int widths[] = {1, 2, 3, 4, 8};
    const int rows[] = {1, 2, 3, 4, 9};
    for (size_t s = 0; s < COUNT_OF(sizes) * COUNT_OF(widths); s++) {
        Check c;
        check_open(&c);
        const int channels = sizes[s % COUNT_OF(sizes)];
        const int width = widths[s / COUNT_OF(sizes)];
        const int n = rows[s % COUNT_OF(rows)];
        const int c0 = channels > 4 ? 3 : 0;
        const int ld = channels + PAD;
        const int states = channels * (width - 1);
        float *x = check_input(&c, 2 * n * ld, (int)(s % INPUTS), 1e10F);
        float *w = check_input(&c, channels * width, 0, 0.0F);
        float *want = NULL;
        float *want_state = NULL;
        for (int l = -1; l < c.n_levels; l++) {
            const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
            float *y = check_output(&c, 2 * n * ld);
            float *st = check_output(&c, states);
            k->conv_silu(x, ld, w, width, NULL, st, c0, channels, 2 * n, y, ld);
            check_guards(y, 2 * n * ld, "conv_silu");
            check_guards(st, states, "conv_silu state");
            want = l < 0 ? y : want;
            want_state = l < 0 ? st : want_state;
            for (int ch = c0; ch < channels; ch++) {
                /* silu's slope is at most 1.1; width + 1 roundings on either side */
                check_equal("conv state", st + ch * (width - 1), want_state + ch * (width - 1),
                            width - 1);
                for (int r = 0; r < 2 * n; r++) {
                    double sum = 0.0;
                    for (int t = 0; t < width && t <= r; t++)
                        sum += fabs((double)w[ch * width + width - 1 - t] *
                                    (double)x[(r - t) * ld + ch]);
                    check_near("conv_silu", r * ld + ch, y[r * ld + ch], want[r * ld + ch],
                               1.1 * (width + 1) * U * sum + sigmoid_bound(want[r * ld + ch]));
                }
            }
            /* in two chunks, in place, the state handed over */
            float *again = check_output(&c, 2 * n * ld);
            float *st2 = check_output(&c, states);
            memcpy(again, x, sizeof(float) * (size_t)(2 * n * ld));
            k->conv_silu(again, ld, w, width, NULL, st2, c0, channels, n, again, ld);
            k->conv_silu(again + n * ld, ld, w, width, st2, st2, c0, channels, n, again + n * ld,
                         ld);
            for (int r = 0; r < 2 * n; r++)
                check_equal("conv chunks", again + r * ld + c0, y + r * ld + c0, channels - c0);
            check_equal("conv chunk state", st2 + c0 * (width - 1), st + c0 * (width - 1),
                        (channels - c0) * (width - 1));
        }
        arena_free(&c.arena);
    }
}

static void test_route(void **state)
{
    (void)state;
    const int experts[][2] = {{1, 1},  {4, 2},   {8, 8},    {17, 5},
                              {60, 4}, {128, 8}, {512, 10}, {1000, 33}};
    for (size_t s = 0; s < COUNT_OF(experts) * INPUTS * 2; s++) {
        Check c;
        check_open(&c);
        const int n = experts[s / (INPUTS * 2)][0];
        const int k_top = experts[s / (INPUTS * 2)][1];
        const bool renorm = s & 1;
        float *x = check_input(&c, ROWS * n, (int)(s / 2 % INPUTS), 1e30F);
        if (n > 8)
            x[3] = x[8]; /* a tie */
        const int many = ROWS * k_top;
        int32_t *want_id = NULL;
        float *want = NULL;
        for (int l = -1; l < c.n_levels; l++) {
            float *y = check_output(&c, many);
            int32_t *id = (int32_t *)check_take(&c, (size_t)many + 16, sizeof *id);
            (l < 0 ? &c.ref : &c.level[l].k)->route_softmax(x, n, n, k_top, renorm, ROWS, id, y);
            check_guards(y, many, "route");
            want = l < 0 ? y : want;
            want_id = l < 0 ? id : want_id;
            for (int i = 0; i < many; i++) {
                assert_int_equal(id[i], want_id[i]);
                /* e^: 2.2 U a side; the sum: n / 8 chains and a tree; reciprocal and product */
                check_near("route", i, y[i], want[i],
                           (n / 8.0 + 16.0) * U * fabs((double)want[i]) + 0x1p-148);
                if (i % k_top)
                    assert_true(y[i] <= y[i - 1]);
            }
        }
        arena_free(&c.arena);
    }
}

/* NaN logits still name k different experts. */
static void test_route_nan(void **state)
{
    (void)state;
    Check c;
    check_open(&c);
    float x[20];
    for (int i = 0; i < 20; i++)
        x[i] = i % 3 ? NAN : (float)i;
    for (int l = -1; l < c.n_levels; l++) {
        int32_t id[10];
        float w[10];
        unsigned seen = 0;
        (l < 0 ? &c.ref : &c.level[l].k)->route_softmax(x, 20, 20, 10, false, 1, id, w);
        for (int i = 0; i < 10; i++) {
            assert_in_range(id[i], 0, 19);
            assert_int_equal(seen >> id[i] & 1U, 0);
            seen |= 1U << id[i];
        }
        assert_int_equal(id[0], 18);
    }
    arena_free(&c.arena);
}

static void test_argmax(void **state)
{
    (void)state;
    for (size_t s = 0; s < (COUNT_OF(sizes) + 1) * INPUTS; s++) {
        Check c;
        check_open(&c);
        const int n = s / INPUTS < COUNT_OF(sizes) ? sizes[s / INPUTS] : 49157;
        float *x = check_input(&c, n, (int)(s % INPUTS), 90.0F);
        if (n > 16) { /* ties, NaN, and -inf everywhere before them */
            for (int i = 0; i < n / 2; i++)
                x[i] = -INFINITY;
            x[n - 1] = x[n - 3] = 100.0F;
            x[n - 2] = NAN;
            if (n > 6000)
                x[n - 3000] = x[n - 5000] = 100.0F; /* far apart */
        }
        float want = 0.0F;
        const int32_t at = c.ref.argmax(x, n, &want);
        const double lse = c.ref.log_sum_exp(x, n, want);
        for (int l = 0; l < c.n_levels; l++) {
            float max = NAN;
            assert_int_equal(c.level[l].k.argmax(x, n, &max), at);
            check_equal("argmax", &max, &want, 1);
        }
        if (n > 16)
            x[n - 2] = 0.0F;
        const double clean = n > 16 ? c.ref.log_sum_exp(x, n, want) : lse;
        for (int l = 0; l < c.n_levels; l++) {
            /* the logarithm turns the sum's relative error, chains of 64 and a tree, into absolute
             */
            const double got = c.level[l].k.log_sum_exp(x, n, want);
            if (!(fabs(got - clean) <= 80.0 * U))
                fail_msg("log_sum_exp of %d: %.12g, want %.12g", n, got, clean);
        }
        arena_free(&c.arena);
    }
    Check c;
    check_open(&c);
    const float nothing[3] = {NAN, NAN, NAN};
    for (int l = -1; l < c.n_levels; l++) {
        float max = 0.0F;
        assert_int_equal((l < 0 ? &c.ref : &c.level[l].k)->argmax(nothing, 3, &max), 0);
        assert_true(isinf((double)max) != 0);
    }
    arena_free(&c.arena);
}

static void test_embed(void **state)
{
    (void)state;
    Check c;
    check_open(&c);
    uint8_t codes[4 * 2 * 34]; /* four rows of 64 as Q8_0 */
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i % 34 == 1 ? 0x30 : check_below(&c, 256));
    const RowView table = {.data = codes,
                           .row_bytes = 68,
                           .n = 4,
                           .k = 64,
                           .group = 32,
                           .format = FMT_Q8_0,
                           .scale_format = FMT_F32};
    const int32_t ids[] = {3, 0, -1, 4, 1};
    for (int l = -1; l < c.n_levels; l++) {
        float *y = check_output(&c, 5 * 70);
        float row[64];
        (l < 0 ? &c.ref : &c.level[l].k)->embed(&table, ids, 5, y, 70);
        check_guards(y, 5 * 70, "embed");
        for (int r = 0; r < 5; r++) {
            memset(row, 0, sizeof row);
            if (ids[r] >= 0 && ids[r] < 4)
                format_dequant_row(&table, ids[r], row);
            check_equal("embed", y + r * 70, row, 64);
        }
    }
    arena_free(&c.arena);
}

/* exp through silu_mul(g, up = 1): g / (1 + e^-g), over a sweep of the whole range of f32. */
static void test_exp_sweep(void **state)
{
    (void)state;
    enum { N = 4096 };
    Check c;
    check_open(&c);
    float g[N];
    float up[N];
    float y[N];
    for (uint64_t at = 0; at < 1ULL << 32; at += (uint64_t)N * 1021) {
        for (int i = 0; i < N; i++) {
            g[i] = num_float((uint32_t)(at + (uint64_t)i * 1021));
            up[i] = 1.0F;
        }
        for (int l = 0; l < c.n_levels; l++) {
            c.level[l].k.silu_mul(g, N, up, N, N, 1, y, N);
            for (int i = 0; i < N; i++) {
                const double x = (double)g[i];
                if (g[i] != g[i] || isinf(x)) {
                    assert_true(isinf(x) || isnan((double)y[i]));
                    continue;
                }
                const double want = x / (1.0 + exp(-x));
                /* below -88.7 e^-x is infinite in f32, the quotient 0 */
                const double bound = x < -88.0 ? 1e-36 : 5.5 * U * fabs(want) + 0x1p-148;
                check_near("silu sweep", i, y[i], (float)want, bound);
            }
        }
    }
    arena_free(&c.arena);
}

/* log_sum_exp of one number x and max 0 is log(e^x): off by the relative error of e^x, 1.08 ulp. */
static void test_exp_alone(void **state)
{
    (void)state;
    Check c;
    check_open(&c);
    for (int i = -87 * 4096; i < 88 * 4096; i += 3) {
        const float x = (float)i / 4096.0F;
        for (int l = 0; l < c.n_levels; l++) {
            const double got = c.level[l].k.log_sum_exp(&x, 1, 0.0F);
            if (!(fabs(got - (double)x) <= 1.08 * 2.0 * U))
                fail_msg("e^%.9g: relative error %g", (double)x, got - (double)x);
        }
    }
    arena_free(&c.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm),   cmocka_unit_test(test_gates),
        cmocka_unit_test(test_rope),       cmocka_unit_test(test_combine),
        cmocka_unit_test(test_layer_norm), cmocka_unit_test(test_act),
        cmocka_unit_test(test_window),     cmocka_unit_test(test_rope_axes),
        cmocka_unit_test(test_conv),       cmocka_unit_test(test_route),
        cmocka_unit_test(test_route_nan),  cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_embed),      cmocka_unit_test(test_exp_sweep),
        cmocka_unit_test(test_exp_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
