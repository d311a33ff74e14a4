/* Everything between the products, on the emulator against the reference kernels and double code:
 * widths that are no multiple of anything, windows of wider rows, several segments, states in place
 * and copied. */
#include "kernels_cuda/emit_run.h"

#include "base/num.h"
#include "device/cpu/kernels_sets.h"

enum { MAX_SEGS = 4 };

static CudaBuild b;
static GraphPlan graph;
static CpuKernels ref;

/* Random rows [rows][ld] from column `col` of wider ones; NaN elsewhere. */
static RunValue random_value(int rows, int width, int ld, int col)
{
    RunValue v = run_value(rows, width, ld);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++)
            v.x[(int64_t)r * ld + col + i] = 3.0F * run_random();
    v.x += col;
    return v;
}

static Vec random_vec(int n)
{
    Vec v = {"vec", n, run_take((size_t)n * sizeof(float))};
    for (int i = 0; i < n; i++)
        v.v[i] = 1.5F * run_random();
    return v;
}

static void start(int rows)
{
    memset(&b, 0, sizeof b);
    b.rows = rows;
    b.max_out = 3;
    b.sms = 4;
    b.arch = 90;
    b.plan.graph = &graph;
    graph = (GraphPlan){.max_rows = rows, .max_out_rows = 3, .max_segs = MAX_SEGS};
    ops_ref_set(&ref);
    delta_ref_set(&ref);
}

static void step_of(const Segment *segs, int n_segs, int n_rows, const int32_t *tokens,
                    const int32_t *out_rows, int n_states)
{
    Error err;
    Row rows[64];
    for (int r = 0; r < n_rows; r++)
        rows[r] = (Row){tokens ? tokens[r] : 0, r};
    const KvPoolDesc pool = {.state_floats = b.state_floats, .n_states = n_states};
    graph.state_floats = b.state_floats;
    gpu_step_layout(&graph, &pool, &b.layout);
    b.step = run_take((size_t)b.layout.max_words * sizeof(int32_t));
    const StepBlock step = {.n_rows = n_rows,
                            .n_segs = n_segs,
                            .n_out = out_rows ? 3 : 0,
                            .rows = rows,
                            .segs = segs,
                            .out_rows = out_rows};
    if (!gpu_step_write(&b.layout, &graph, &pool, &step, 1, b.step, &err))
        fail_msg("%s", err.msg);
}

/* Compares [rows][width] with `want` [rows][width]. */
static void check(const char *what, const RunValue *y, const float *want, int rows,
                  double tolerance)
{
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < y->width; i++) {
            const double have = (double)y->x[(int64_t)r * y->ld + i];
            const double w = (double)want[(int64_t)r * y->width + i];
            if (!(fabs(have - w) <= tolerance * (1.0 + fabs(w))))
                fail_msg("%s: row %d column %d: %.9g, wanted %.9g", what, r, i, have, w);
        }
        for (int i = y->width; i < y->ld; i++)
            if (!isnan(y->x[(int64_t)r * y->ld + i]))
                fail_msg("%s: row %d column %d beyond the width was written", what, r, i);
    }
}

static void elementwise(void **state)
{
    (void)state;
    static const struct {
        OpKind kind;
        int width, ld, col, gate;
    } cases[] = {{OP_ADD, 1024, 1024, 0, 1024},         {OP_ADD, 37, 41, 3, 37},
                 {OP_SILU_MUL, 2050, 2052, 0, 2050},    {OP_SILU_MUL, 64, 160, 32, 64},
                 {OP_SIGMOID_MUL, 1100, 1104, 0, 1100}, {OP_SIGMOID_MUL, 130, 132, 1, 1},
                 {OP_SIGMOID_MUL, 128, 128, 0, 1}};
    enum { ROWS = 5 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        start(ROWS);
        const int w = cases[c].width;
        const RunValue x = random_value(ROWS, w, cases[c].ld, cases[c].col);
        const RunValue g = random_value(ROWS, cases[c].gate, cases[c].gate + 4, 0);
        const RunValue y = run_value(ROWS, w, cases[c].ld);
        b.values[0] = x;
        b.values[1] = g;
        b.values[2] = y;
        const GpuOp op = {.kind = cases[c].kind, .in = {0, 1, -1}, .out = 2};
        cuda_emit_elementwise(&b, &op);
        float *want = run_take(sizeof(float) * (size_t)(ROWS * w));
        if (op.kind == OP_ADD)
            ref.add(x.x, x.ld, g.x, g.ld, w, ROWS, want, w);
        else if (op.kind == OP_SILU_MUL)
            ref.silu_mul(x.x, x.ld, g.x, g.ld, w, ROWS, want, w);
        else
            ref.sigmoid_mul(x.x, x.ld, g.x, g.ld, cases[c].gate == 1, w, ROWS, want, w);
        check(b.kernels, &y, want, ROWS, 1e-6);
        run_end(&b);
        free(want);
        free(x.x - cases[c].col);
        free(g.x);
        free(y.x);
    }
}

static void norms(void **state)
{
    (void)state;
    static const struct {
        int width, group;
        bool weight, gated;
    } cases[] = {{4096, 4096, true, false}, {1030, 1030, false, false}, {64, 64, true, false},
                 {1152, 96, true, false},   {2048, 128, true, true},    {1200, 600, true, true}};
    enum { ROWS = 3 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        start(ROWS);
        const int w = cases[c].width;
        const int group = cases[c].group;
        const RunValue x = random_value(ROWS, w, w + 5, 2);
        const RunValue z = random_value(ROWS, w, w, 0);
        const RunValue y = run_value(ROWS, w, w + 1);
        const Vec v = random_vec(group);
        b.values[0] = x;
        b.values[1] = z;
        b.values[2] = y;
        const Op desc = {.eps = 1e-5F, .group = group, .vec = cases[c].weight ? &v : NULL};
        const GpuOp op = {.kind = cases[c].gated ? OP_NORM_GATED : OP_NORM,
                          .op = &desc,
                          .in = {0, cases[c].gated ? 1 : -1, -1},
                          .out = 2};
        cuda_emit_norm(&b, &op);
        float *want = run_take(sizeof(float) * (size_t)(ROWS * w));
        for (int r = 0; r < ROWS; r++) { /* by group: the vector of the reference is one group's */
            for (int g = 0; g < w; g += group) {
                if (cases[c].gated)
                    ref.rms_norm_gated(x.x + r * x.ld + g, x.ld, z.x + r * z.ld + g, z.ld, v.v,
                                       1e-5F, group, group, 1, want + r * w + g, w);
                else
                    ref.rms_norm(x.x + r * x.ld + g, x.ld, desc.vec ? v.v : NULL, 1e-5F, group,
                                 group, 1, want + r * w + g, w);
            }
        }
        check(b.kernels, &y, want, ROWS, 3e-6);
        run_end(&b);
        free(want);
        free(x.x - 2);
        free(z.x);
        free(y.x);
        free(v.v);
    }
}

static void rope(void **state)
{
    (void)state;
    static const struct {
        int heads, dim, rot;
        bool pairs;
    } cases[] = {{3, 64, 64, false}, {2, 96, 64, true}, {5, 16, 8, false}, {1, 128, 128, true}};
    enum { ROWS = 4 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        start(ROWS);
        const int w = cases[c].heads * cases[c].dim;
        const int half = cases[c].rot / 2;
        const RunValue x = random_value(ROWS, w, w + 3, 0);
        const RunValue y = run_value(ROWS, w, w);
        b.values[0] = x;
        b.values[1] = y;
        float *cs = run_take(sizeof(float) * (size_t)(ROWS * cases[c].rot));
        b.rope = run_take(sizeof(float) * (size_t)(ROWS * cases[c].rot));
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < half; i++) {
                b.rope[(r * half + i) * 2] = cs[r * 2 * half + i] = run_random();
                b.rope[(r * half + i) * 2 + 1] = cs[r * 2 * half + half + i] = run_random();
            }
        }
        Op desc = {.kind = OP_ROPE};
        desc.u.rope = (RopeDesc){.n_heads = cases[c].heads,
                                 .head_dim = cases[c].dim,
                                 .rot_dim = cases[c].rot,
                                 .pairs = cases[c].pairs};
        const GpuOp op = {.kind = OP_ROPE, .op = &desc, .in = {0, -1, -1}, .out = 1};
        cuda_emit_elementwise(&b, &op);
        float *want = run_take(sizeof(float) * (size_t)(ROWS * w));
        for (int r = 0; r < ROWS; r++)
            memcpy(want + r * w, x.x + r * x.ld, sizeof(float) * (size_t)w);
        const RopeArgs args = {.head_dim = cases[c].dim,
                               .rot_dim = cases[c].rot,
                               .pairs = cases[c].pairs,
                               .scale = 1.0F};
        ref.rope(want, w, cases[c].heads, &args, cs, ROWS);
        check(b.kernels, &y, want, ROWS, 1e-6);
        run_end(&b);
        free(want);
        free(cs);
        free(b.rope);
        free(x.x);
        free(y.x);
    }
}

static void out_rows(void **state)
{
    (void)state;
    static const int widths[] = {2048, 45};
    enum { ROWS = 8 };
    for (size_t c = 0; c < 2; c++) {
        start(ROWS);
        const int w = widths[c];
        const RunValue x = random_value(ROWS, w, w + 3, 0);
        const RunValue y = run_value(3, w, w);
        const Segment seg = {.n_rows = ROWS, .kv_len = ROWS};
        const int32_t rows[] = {1, 4, 7};
        step_of(&seg, 1, ROWS, NULL, rows, 0);
        b.values[0] = x;
        b.values[1] = y;
        const GpuOp op = {.kind = OP_OUT_ROWS, .in = {0, -1, -1}, .out = 1, .axis = AXIS_OUT_ROWS};
        cuda_emit_out_rows(&b, &op);
        for (int r = 0; r < 3; r++)
            assert_memory_equal(y.x + r * w, x.x + rows[r] * x.ld, sizeof(float) * (size_t)w);
        run_end(&b);
        free(b.step);
        free(x.x);
        free(y.x);
    }
}

/* Random bytes, then scales made finite. */
static void fill_part(const GpuPart *p, uint8_t *codes, uint8_t *scales)
{
    for (int64_t i = 0; i < p->code_bytes; i++)
        codes[i] = (uint8_t)run_below(256);
    for (int64_t i = 0; i < p->scale_bytes; i++)
        scales[i] = (uint8_t)run_below(256);
    for (int64_t i = 0; i + 4 <= p->code_bytes; i += 4) {
        const float f = run_random();
        if (p->layout == GPU_F32)
            memcpy(codes + i, &f, sizeof f);
        if (p->layout == GPU_F16 || p->layout == GPU_BF16)
            codes[i + 1] &= 0xbb, codes[i + 3] &= 0xbb;
    }
    for (int64_t i = 0; i + 4 <= p->scale_bytes; i += 4) {
        const float f = run_random();
        if (p->scale == GPU_SCALE_F32_PAIR)
            memcpy(scales + i, &f, sizeof f);
        else if (p->scale == GPU_SCALE_E8M0)
            memset(scales + i, 120 + (int)(i / 4 % 12), 4);
        else if (p->scale != GPU_SCALE_K6)
            scales[i + 1] &= 0xbb, scales[i + 3] &= 0xbb;
        else if (i % 20 == 16)
            scales[i + 1] &= 0xbb;
    }
}

static void embed(void **state)
{
    (void)state;
    static const struct {
        GpuLayout layout;
        GpuScale scale;
        int group, k, bits, scale_bytes; /* bits a code; bytes of scale for `per` k */
        int per;
    } cases[] = {
        {GPU_F32, GPU_SCALE_NONE, 0, 36, 32, 0, 1},
        {GPU_F16, GPU_SCALE_NONE, 0, 64, 16, 0, 1},
        {GPU_BF16, GPU_SCALE_NONE, 0, 1032, 16, 0, 1},
        {GPU_A4, GPU_SCALE_F16_PAIR, 64, 256, 4, 4, 64},
        {GPU_A4, GPU_SCALE_BF16_PAIR, 32, 1088, 4, 4, 32},
        {GPU_A4, GPU_SCALE_F32_PAIR, 128, 256, 4, 8, 128},
        {GPU_A8, GPU_SCALE_BF16_PAIR, 64, 192, 8, 4, 64},
        {GPU_S4, GPU_SCALE_F16, 32, 96, 4, 2, 32},
        {GPU_S8, GPU_SCALE_F16, 32, 160, 8, 2, 32},
        {GPU_E4, GPU_SCALE_E8M0, 32, 128, 4, 1, 32},
        {GPU_K6, GPU_SCALE_K6, 16, 512, 6, 20, 256},
    };
    enum { N = 20, ROWS = 8 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        start(ROWS);
        const int k = cases[c].k;
        GpuPart parts[2];
        int64_t at = 0;
        for (int i = 0; i < 2; i++) {
            GpuPart *p = &parts[i];
            *p = (GpuPart){.layout = cases[c].layout,
                           .scale = cases[c].scale,
                           .group = cases[c].group,
                           .row0 = i * 13,
                           .rows = i ? 7 : 13};
            p->code_stride = i64_round_up((int64_t)k * cases[c].bits / 8, 16);
            p->scale_stride = i64_round_up((int64_t)k / cases[c].per * cases[c].scale_bytes, 16);
            p->code_bytes = p->rows * p->code_stride;
            p->scale_bytes = p->rows * p->scale_stride;
            p->code_offset = at;
            p->scale_offset = at + i64_round_up(p->code_bytes, 256);
            at = p->scale_offset + i64_round_up(p->scale_bytes, 256);
        }
        b.weight_memory = run_take((size_t)at);
        for (int i = 0; i < 2; i++)
            fill_part(&parts[i], b.weight_memory + parts[i].code_offset,
                      b.weight_memory + parts[i].scale_offset);
        const Weight weight = {.name = "embed", .n = N, .k = k};
        b.weight = (GpuWeight){&weight, 1, k, 2, parts, at, true};
        const int32_t tokens[ROWS] = {0, 12, 13, 19, 20, 5, 1 << 20, 14};
        const Segment seg = {.n_rows = ROWS, .kv_len = ROWS};
        step_of(&seg, 1, ROWS, tokens, NULL, 0);
        const RunValue y = run_value(ROWS, k, k + (int)(c % 2) * 4);
        b.values[0] = y;
        const GpuOp op = {.kind = OP_EMBED, .in = {-1, -1, -1}, .out = 0, .weight = &weight};
        cuda_emit_embed(&b, &op);
        float *want = run_take(sizeof(float) * (size_t)(ROWS * k));
        for (int r = 0; r < ROWS; r++) {
            const GpuPart *p = &parts[tokens[r] >= 13];
            const int64_t row = tokens[r] - p->row0;
            if (tokens[r] >= N)
                memset(want + r * k, 0, sizeof(float) * (size_t)k);
            else
                gpu_weight_unpack_row(p, k, b.weight_memory + p->code_offset + row * p->code_stride,
                                      b.weight_memory + p->scale_offset + row * p->scale_stride,
                                      want + r * k);
        }
        char what[64];
        snprintf(what, sizeof what, "embed, layout %d, scale %d", (int)cases[c].layout,
                 (int)cases[c].scale);
        check(what, &y, want, ROWS, 1e-6);
        run_end(&b);
        free(want);
        free(b.weight_memory);
        free(b.step);
        free(y.x);
    }
}

/* Four segments: one row, several, more than a tile, two; a fresh one, one in place, two copied. */
static const Segment segs[MAX_SEGS] = {
    {.row0 = 0, .n_rows = 1, .kv_len = 9, .state_in = 2, .state_out = 2},
    {.row0 = 1, .n_rows = 5, .kv_len = 5, .state_in = -1, .state_out = 0},
    {.row0 = 6, .n_rows = 37, .kv_len = 60, .state_in = 3, .state_out = 3},
    {.row0 = 43, .n_rows = 2, .kv_len = 9, .state_in = 4, .state_out = 1},
};
enum { SEG_ROWS = 45, STATES = 5 };

static float *random_states(void)
{
    float *s = run_take(sizeof(float) * (size_t)(STATES * b.state_floats));
    for (int64_t i = 0; i < STATES * b.state_floats; i++)
        s[i] = run_random();
    return s;
}

static void check_states(const char *what, const float *want)
{
    for (int64_t i = 0; i < STATES * b.state_floats; i++)
        if (!(fabsf(b.state[i] - want[i]) <= 1e-5F * (1.0F + fabsf(want[i]))))
            fail_msg("%s: slot %d, number %d of the state: %.9g, wanted %.9g", what,
                     (int)(i / b.state_floats), (int)(i % b.state_floats), (double)b.state[i],
                     (double)want[i]);
}

static void conv(void **state)
{
    (void)state;
    static const struct {
        int channels, width;
    } cases[] = {{200, 4}, {64, 2}, {33, 8}, {130, 3}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        start(64);
        const int n = cases[c].channels;
        const int width = cases[c].width;
        b.state_floats = 16 + n * (width - 1) + 5;
        step_of(segs, MAX_SEGS, SEG_ROWS, NULL, NULL, STATES);
        b.state = random_states();
        float *states = run_take(sizeof(float) * (size_t)(STATES * b.state_floats));
        memcpy(states, b.state, sizeof(float) * (size_t)(STATES * b.state_floats));
        const RunValue x = random_value(64, n, n + 3, 0);
        const RunValue y = run_value(64, n, n);
        const Vec w = random_vec(n * width);
        b.values[0] = x;
        b.values[1] = y;
        Op desc = {.kind = OP_CONV};
        desc.u.conv = (ConvDesc){.channels = n, .width = width, .w = &w, .state_offset = 16};
        const GpuOp op = {.kind = OP_CONV, .op = &desc, .in = {0, -1, -1}, .out = 1};
        cuda_emit_conv(&b, &op);
        float *want = run_take(sizeof(float) * (size_t)(SEG_ROWS * n));
        for (int s = 0; s < MAX_SEGS; s++)
            ref.conv_silu(x.x + segs[s].row0 * x.ld, x.ld, w.v, width,
                          segs[s].state_in < 0 ? NULL
                                               : states + segs[s].state_in * b.state_floats + 16,
                          states + segs[s].state_out * b.state_floats + 16, 0, n, segs[s].n_rows,
                          want + segs[s].row0 * n, n);
        check(b.kernels, &y, want, SEG_ROWS, 2e-6);
        check_states(b.kernels, states);
        run_end(&b);
        free(want);
        free(states);
        free(b.state);
        free(b.step);
        free(x.x);
        free(y.x);
        free(w.v);
    }
}

static void delta(void **state)
{
    (void)state;
    static const struct {
        int k_heads, v_heads, k_dim, v_dim;
    } cases[] = {{2, 4, 128, 128}, {1, 1, 16, 16}, {1, 3, 24, 40}, {1, 2, 64, 96}, {1, 1, 160, 64}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        start(64);
        const DeltaArgs d = {cases[c].k_heads, cases[c].v_heads, cases[c].k_dim, cases[c].v_dim};
        const int qkv = 2 * d.n_k_heads * d.k_dim + d.n_v_heads * d.v_dim;
        const int out = d.n_v_heads * d.v_dim;
        b.state_floats = 32 + (int64_t)d.n_v_heads * d.k_dim * d.v_dim;
        step_of(segs, MAX_SEGS, SEG_ROWS, NULL, NULL, STATES);
        b.state = random_states();
        float *states = run_take(sizeof(float) * (size_t)(STATES * b.state_floats));
        memcpy(states, b.state, sizeof(float) * (size_t)(STATES * b.state_floats));
        const RunValue x = random_value(64, qkv, qkv + 1, 0);
        const RunValue a = random_value(64, d.n_v_heads, d.n_v_heads + 2, 0);
        const RunValue g = random_value(64, d.n_v_heads, d.n_v_heads, 0);
        const RunValue y = run_value(64, out, out);
        const Vec a_log = random_vec(d.n_v_heads);
        const Vec dt_bias = random_vec(d.n_v_heads);
        b.values[0] = x;
        b.values[1] = a;
        b.values[2] = g;
        b.values[3] = y;
        Op desc = {.kind = OP_DELTA};
        desc.u.delta = (DeltaDesc){.n_k_heads = d.n_k_heads,
                                   .n_v_heads = d.n_v_heads,
                                   .k_dim = d.k_dim,
                                   .v_dim = d.v_dim,
                                   .a_log = &a_log,
                                   .dt_bias = &dt_bias,
                                   .state_offset = 32};
        const GpuOp op = {.kind = OP_DELTA, .op = &desc, .in = {0, 1, 2}, .out = 3};
        cuda_emit_delta(&b, &op);
        float *want = run_take(sizeof(float) * (size_t)(SEG_ROWS * out));
        uint8_t *work = run_take(sizeof(double) * (size_t)(2 * d.k_dim + d.v_dim));
        for (int s = 0; s < MAX_SEGS; s++) {
            const int r = segs[s].row0;
            ref.delta(&d, x.x + r * x.ld, x.ld, a.x + r * a.ld, a.ld, g.x + r * g.ld, g.ld, a_log.v,
                      dt_bias.v,
                      segs[s].state_in < 0 ? NULL : states + segs[s].state_in * b.state_floats + 32,
                      states + segs[s].state_out * b.state_floats + 32, 0, d.n_v_heads,
                      segs[s].n_rows, want + r * out, out, work);
        }
        check(b.kernels, &y, want, SEG_ROWS, 1e-5);
        check_states(b.kernels, states);
        run_end(&b);
        free(work);
        free(want);
        free(states);
        free(b.state);
        free(b.step);
        free(x.x);
        free(a.x);
        free(g.x);
        free(y.x);
        free(a_log.v);
        free(dt_bias.v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise), cmocka_unit_test(norms), cmocka_unit_test(rope),
        cmocka_unit_test(out_rows),    cmocka_unit_test(embed), cmocka_unit_test(conv),
        cmocka_unit_test(delta),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
