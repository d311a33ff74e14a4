/* Attention against its definition, and its promise that neither tile, chunk nor batch shows. */
#include "kernels/kernels_check.h"

typedef struct Shape {
    const char *what;
    int n_heads, n_kv, head_dim, v_dim, page_tokens;
    int n_rows, kv_len;
    int window;
    float softcap;
    bool sinks;
    KvType type;
    float size; /* of q: larger, sharper */
    bool full;
    int span; /* of a bias; 0: none */
} Shape;

/* A sequence in a pool of pages in random order, with garbage (NaN) wherever nothing was written.
 */
typedef struct Case {
    Shape s;
    KvLayer kv;
    AttnArgs args;
    AttnSeg seg;
    int32_t *pages;
    float *q, *keys, *values; /* keys, values: [kv_len] rows, as the reference reads them */
    int64_t ldq, ldo;
} Case;

static void case_open(Check *c, Case *t)
{
    const int n_pages = (t->s.kv_len + t->s.page_tokens - 1) / t->s.page_tokens + 3;
    const int size = t->s.type == KV_F16 ? 2 : 4;
    const int64_t k_row = (int64_t)t->s.n_kv * t->s.head_dim;
    const int64_t v_row = (int64_t)t->s.n_kv * t->s.v_dim;
    const int64_t slots = (int64_t)n_pages * t->s.page_tokens;
    t->kv = (KvLayer){.k = (uint8_t *)check_take(c, (size_t)(slots * k_row + 64), (size_t)size),
                      .v = (uint8_t *)check_take(c, (size_t)(slots * v_row + 64), (size_t)size),
                      .n_kv_heads = t->s.n_kv,
                      .head_dim = t->s.head_dim,
                      .v_dim = t->s.v_dim,
                      .page_tokens = t->s.page_tokens,
                      .type = t->s.type};
    memset(t->kv.k, 0xff, (size_t)(slots * k_row * size));
    memset(t->kv.v, 0xff, (size_t)(slots * v_row * size));
    t->pages = (int32_t *)check_take(c, (size_t)n_pages + 16, sizeof *t->pages);
    for (int i = 0; i < n_pages; i++) {
        const int j = check_below(c, i + 1);
        t->pages[i] = t->pages[j];
        t->pages[j] = i;
    }
    t->keys = check_input(c, (int)(t->s.kv_len * k_row), 0, 0.0F);
    t->values = check_input(c, (int)(t->s.kv_len * v_row), 0, 0.0F);
    int32_t *at = (int32_t *)check_take(c, (size_t)t->s.kv_len + 16, sizeof *at);
    for (int i = 0; i < t->s.kv_len; i++)
        at[i] = t->pages[i / t->s.page_tokens] * t->s.page_tokens + i % t->s.page_tokens;
    c->ref.kv_write(&t->kv, t->keys, k_row, t->values, v_row, at, t->s.kv_len);
    const int first = t->s.kv_len - t->s.n_rows - t->s.window + 1; /* the oldest visible key */
    for (int i = 0; t->s.window > 0 && i < first / t->s.page_tokens; i++)
        t->pages[i] = -1;
    float *sinks = check_input(c, t->s.n_heads, 0, 0.0F);
    t->args = (AttnArgs){
        .n_heads = t->s.n_heads,
        .scale = 1.0F / sqrtf((float)t->s.head_dim),
        .softcap = t->s.softcap,
        .window = t->s.window,
        .sinks = t->s.sinks ? sinks : NULL,
        .full = t->s.full,
        .bias = t->s.span > 0 ? check_input(c, t->s.n_heads * (2 * t->s.span + 1), 0, 0.0F) : NULL,
        .span = t->s.span};
    t->seg = (AttnSeg){.row0 = 2, .n_rows = t->s.n_rows, .kv_len = t->s.kv_len, .pages = t->pages};
    t->ldq = (int64_t)t->s.n_heads * t->s.head_dim + 3;
    t->ldo = (int64_t)t->s.n_heads * t->s.v_dim + 5;
    t->q = check_input(c, (int)((t->s.n_rows + 2) * t->ldq), 0, 0.0F);
    for (int64_t i = 0; i < (t->s.n_rows + 2) * t->ldq; i++)
        t->q[i] *= t->s.size;
}

/* All rows, q_tile at a time. */
static float *case_run(Check *c, const Case *t, const CpuKernels *k, const AttnSeg *seg, int q_tile,
                       const float *q)
{
    const int64_t n = (t->s.n_rows + 2) * t->ldo;
    float *out = check_output(c, n);
    const int64_t bytes = attn_work_bytes(&t->kv, &t->args, q_tile);
    uint8_t *work = (uint8_t *)check_take(c, (size_t)bytes + 64, 1);
    memset(work, 0xff, (size_t)bytes + 64);
    for (int h = 0; h < t->s.n_kv; h++) {
        for (int q0 = 0; q0 < seg->n_rows; q0 += q_tile) {
            const int q1 = q0 + q_tile < seg->n_rows ? q0 + q_tile : seg->n_rows;
            k->attn(&t->kv, &t->args, seg, h, q0, q1, q, t->ldq, out, t->ldo, work);
        }
    }
    for (int i = 0; i < 64; i++)
        assert_int_equal(work[bytes + i], 0xff);
    check_guards(out, n, t->s.what);
    return out;
}

/* The bound of one query vector with n keys in nb blocks: a score is a chain of head_dim products
 * and a scaling, d = (head_dim + 2) U scale sum|q k|, with softcap plus cap 2^-21 (tanh and its
 * division); score - max rounds by 2 U max|s|. So a weight is off by e^(d + 2 U max|s|) and 4 U of
 * exp; the chains over keys and the shifts add (n + 8 nb) U of sum p|v| / sum p, which is at most
 * 4, the largest value. Numerator and denominator each: twice. */
static double case_bound(const Case *t, int r, int h)
{
    const int head_dim = t->s.head_dim;
    const int share = t->s.n_heads / t->s.n_kv;
    const int pos = t->s.kv_len - t->s.n_rows + r;
    const int from = t->s.window > 0 && pos >= t->s.window ? pos - t->s.window + 1 : 0;
    const float *q = t->q + (r + 2) * t->ldq + (int64_t)h * head_dim;
    const double n = pos + 1 - from;
    double most = 0.0;
    for (int j = from; j <= pos; j++) {
        const float *k = t->keys + ((int64_t)j * t->s.n_kv + h / share) * head_dim;
        double sum = 0.0;
        for (int d = 0; d < head_dim; d++)
            sum += fabs((double)q[d] * (double)k[d]);
        most = fmax(most, sum * (double)t->args.scale * (1.0 + 0x1p-11)); /* k as f16 */
    }
    double off = (head_dim + 4) * U * most;
    if (t->s.softcap > 0.0F)
        off += (double)t->s.softcap * 0x1p-21;
    return 4.0 * 2.0 * (expm1(off) + (4.0 + n + 8.0 * (n / 64 + 2)) * U);
}

/* One query vector's result [v_dim] against softmax(scale q k + bias) v, in double, of f32 keys.
 * Scores are below 64 * 16 / 8: each is off by at most (head_dim + 4) U of that, and weights by e
 * to it. */
static void check_softmax(const Case *t, int r, int h, const float *got)
{
    const int kv_head = h / (t->s.n_heads / t->s.n_kv);
    const int pos = t->s.kv_len - t->s.n_rows + r;
    const int n = t->s.full ? t->s.kv_len : pos + 1;
    const int span = t->s.span;
    const float *q = t->q + (r + 2) * t->ldq + (int64_t)h * t->s.head_dim;
    double score[512];
    double max = -HUGE_VAL;
    double most = 0;
    double sum = 0;
    for (int j = 0; j < n; j++) {
        const float *k = t->keys + ((int64_t)j * t->s.n_kv + kv_head) * t->s.head_dim;
        double all = 0;
        score[j] = 0;
        for (int d = 0; d < t->s.head_dim; d++) {
            score[j] += (double)q[d] * (double)k[d] * (double)t->args.scale;
            all += fabs((double)q[d] * (double)k[d]) * (double)t->args.scale;
        }
        int at = j - pos;
        at = at < -span ? -span : at > span ? span : at;
        if (span > 0)
            score[j] += (double)t->args.bias[h * (2 * span + 1) + span + at];
        max = fmax(max, score[j]);
        most = fmax(most, all + 4.0);
    }
    for (int j = 0; j < n; j++)
        sum += score[j] = exp(score[j] - max);
    for (int d = 0; d < t->s.v_dim; d++) {
        double want = 0;
        for (int j = 0; j < n; j++)
            want += score[j] / sum *
                    (double)t->values[((int64_t)j * t->s.n_kv + kv_head) * t->s.v_dim + d];
        check_near(t->s.what, d, got[d], (float)want,
                   8.0 * (expm1((t->s.head_dim + 5) * U * most) + (n + 20.0) * U));
    }
}

static const Shape shapes[] = {
    {"smollm2 decode", 9, 3, 64, 64, 16, 1, 300, 0, 0, false, KV_F16, 1, false, 0},
    {"smollm2 prefill", 9, 3, 64, 64, 32, 130, 130, 0, 0, false, KV_F16, 1, false, 0},
    {"f32 chunk", 8, 2, 64, 64, 16, 37, 200, 0, 0, false, KV_F32, 1, false, 0},
    {"f32 decode", 8, 2, 128, 128, 64, 1, 1000, 0, 0, false, KV_F32, 1, false, 0},
    {"one key", 4, 4, 16, 16, 4, 1, 1, 0, 0, false, KV_F16, 1, false, 0},
    {"pages of 4", 6, 2, 16, 16, 4, 21, 90, 0, 0, false, KV_F16, 1, false, 0},
    {"pages of 1", 3, 1, 8, 8, 1, 5, 70, 0, 0, false, KV_F32, 1, false, 0},
    {"window 1", 4, 2, 32, 32, 16, 40, 100, 1, 0, false, KV_F16, 1, false, 0},
    {"window 17", 4, 2, 32, 32, 8, 70, 150, 17, 0, false, KV_F16, 1, false, 0},
    {"window 128", 16, 2, 64, 64, 16, 200, 500, 128, 0, true, KV_F16, 1, false, 0},
    {"window beyond", 2, 1, 64, 64, 16, 10, 100, 4096, 0, false, KV_F16, 1, false, 0},
    {"softcap", 4, 2, 64, 64, 16, 33, 129, 0, 50, false, KV_F16, 8, false, 0},
    {"sharp", 4, 2, 64, 64, 16, 33, 129, 0, 0, false, KV_F16, 50, false, 0},
    {"sinks", 8, 1, 64, 64, 64, 65, 65, 0, 0, true, KV_F16, 1, false, 0},
    {"head 256", 4, 1, 256, 256, 16, 20, 84, 0, 0, false, KV_F16, 1, false, 0},
    {"odd dims", 5, 5, 33, 19, 16, 13, 140, 0, 0, false, KV_F16, 1, false, 0},
    {"odd dims decode", 7, 1, 80, 72, 32, 1, 140, 0, 0, true, KV_F16, 1, false, 0},
    {"tiny dims f32", 13, 1, 1, 1, 16, 9, 80, 0, 0, false, KV_F32, 1, false, 0},
    {"many heads a group", 32, 1, 64, 128, 16, 3, 259, 0, 0, false, KV_F16, 1, false, 0},
};

static void test_attn_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Case t = {.s = shapes[i]};
        Check c;
        check_open(&c);
        case_open(&c, &t);
        const float *want = case_run(&c, &t, &c.ref, &t.seg, t.s.n_rows, t.q);
        for (int l = 0; l < c.n_levels; l++) {
            const float *got = case_run(&c, &t, &c.level[l].k, &t.seg, t.s.n_rows, t.q);
            for (int r = 0; r < t.s.n_rows; r++) {
                for (int h = 0; h < t.s.n_heads; h++) {
                    const double bound = case_bound(&t, r, h);
                    for (int d = 0; d < t.s.v_dim; d++) {
                        const int64_t at = (r + 2) * t.ldo + (int64_t)h * t.s.v_dim + d;
                        check_near(t.s.what, at, got[at], want[at], bound);
                    }
                }
            }
            for (int64_t j = 0; j < 2 * t.ldo; j++)
                assert_true(isnan((double)got[j])); /* rows of another segment */
        }
        arena_free(&c.arena);
    }
}

/* Tiles of any size, chunks of any size and decode give the same bits. */
static void test_attn_invariant(void **state)
{
    (void)state;
    const int sizes[] = {1, 2, 3, 5, 8, 16, 64};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        Case t = {.s = shapes[i]};
        Check c;
        check_open(&c);
        case_open(&c, &t);
        for (int l = 0; l < c.n_levels; l++) {
            const float *want = case_run(&c, &t, &c.level[l].k, &t.seg, t.s.n_rows, t.q);
            for (size_t s = 0; s < COUNT_OF(sizes); s++) {
                const float *got = case_run(&c, &t, &c.level[l].k, &t.seg, sizes[s], t.q);
                for (int r = 2; r < t.s.n_rows + 2; r++)
                    check_equal(t.s.what, got + r * t.ldo, want + r * t.ldo,
                                t.s.n_heads * t.s.v_dim);
                for (int r0 = 0; r0 < t.s.n_rows; r0 += sizes[s]) { /* as if kv_len were growing */
                    const int n = r0 + sizes[s] < t.s.n_rows ? sizes[s] : t.s.n_rows - r0;
                    const AttnSeg part = {.row0 = 2,
                                          .n_rows = n,
                                          .kv_len = t.s.kv_len - t.s.n_rows + r0 + n,
                                          .pages = t.pages};
                    got = case_run(&c, &t, &c.level[l].k, &part, n, t.q + r0 * t.ldq);
                    for (int r = 0; r < n; r++)
                        check_equal(t.s.what, got + (r + 2) * t.ldo, want + (r0 + r + 2) * t.ldo,
                                    t.s.n_heads * t.s.v_dim);
                }
            }
        }
        arena_free(&c.arena);
    }
}

/* A NaN or a huge value in one query or in a later key stays there. */
static void test_attn_hostile_rows(void **state)
{
    (void)state;
    Case t = {.s = {"hostile", 6, 2, 64, 64, 16, 30, 100, 0, 0, false, KV_F16, 1, false, 0}};
    Check c;
    check_open(&c);
    case_open(&c, &t);
    float *bad = check_input(&c, (int)((t.s.n_rows + 2) * t.ldq), 0, 0.0F);
    memcpy(bad, t.q, (size_t)((t.s.n_rows + 2) * t.ldq) * sizeof *bad);
    bad[(7 + 2) * t.ldq + 5] = NAN;
    bad[(8 + 2) * t.ldq + 5] = 3e38F;
    for (int l = 0; l < c.n_levels; l++) {
        const float *want = case_run(&c, &t, &c.level[l].k, &t.seg, t.s.n_rows, t.q);
        const float *got = case_run(&c, &t, &c.level[l].k, &t.seg, t.s.n_rows, bad);
        for (int r = 2; r < t.s.n_rows + 2; r++) {
            if (r != 9 && r != 10)
                check_equal(t.s.what, got + r * t.ldo, want + r * t.ldo, t.s.n_heads * t.s.v_dim);
        }
    }
    /* the last key becomes infinite: rows before it do not see it */
    const int64_t k_row = (int64_t)t.s.n_kv * t.s.head_dim;
    float *k = check_input(&c, (int)k_row, 0, 0.0F);
    const int32_t slot = t.pages[99 / 16] * 16 + 99 % 16;
    for (int64_t i = 0; i < k_row; i++)
        k[i] = INFINITY;
    for (int l = 0; l < c.n_levels; l++) {
        const float *want = case_run(&c, &t, &c.level[l].k, &t.seg, t.s.n_rows, t.q);
        c.ref.kv_write(&t.kv, k, k_row, k, k_row, &slot, 1);
        const float *got = case_run(&c, &t, &c.level[l].k, &t.seg, t.s.n_rows, t.q);
        for (int r = 2; r < t.s.n_rows + 1; r++)
            check_equal(t.s.what, got + r * t.ldo, want + r * t.ldo, t.s.n_heads * t.s.v_dim);
        c.ref.kv_write(&t.kv, t.keys + 99 * k_row, k_row, t.values + 99 * k_row, k_row, &slot, 1);
    }
    arena_free(&c.arena);
}

/* Full attention and a bias by distance: every level against a plain softmax over all visible keys,
 * and no tile of queries shows. */
static void test_attn_full_and_bias(void **state)
{
    (void)state;
    static const Shape more[] = {
        {.what = "full",
         .n_heads = 4,
         .n_kv = 2,
         .head_dim = 64,
         .v_dim = 64,
         .page_tokens = 16,
         .n_rows = 70,
         .kv_len = 70,
         .full = true},
        {.what = "full, few queries",
         .n_heads = 6,
         .n_kv = 6,
         .head_dim = 16,
         .v_dim = 16,
         .page_tokens = 4,
         .n_rows = 3,
         .kv_len = 150,
         .full = true},
        {.what = "full, more queries than keys",
         .n_heads = 2,
         .n_kv = 2,
         .head_dim = 33,
         .v_dim = 19,
         .page_tokens = 16,
         .n_rows = 40,
         .kv_len = 5,
         .full = true},
        {.what = "full, biased",
         .n_heads = 4,
         .n_kv = 4,
         .head_dim = 16,
         .v_dim = 16,
         .page_tokens = 64,
         .n_rows = 130,
         .kv_len = 130,
         .full = true,
         .span = 16},
        {.what = "causal, biased",
         .n_heads = 4,
         .n_kv = 2,
         .head_dim = 64,
         .v_dim = 64,
         .page_tokens = 16,
         .n_rows = 37,
         .kv_len = 200,
         .span = 128},
        {.what = "biased decode",
         .n_heads = 4,
         .n_kv = 4,
         .head_dim = 16,
         .v_dim = 16,
         .page_tokens = 4,
         .n_rows = 1,
         .kv_len = 90,
         .span = 1},
    };
    static const int tiles[] = {1, 3, 16, 512};
    for (size_t i = 0; i < COUNT_OF(more); i++) {
        Case t = {.s = more[i]};
        t.s.type = KV_F32;
        t.s.size = 1;
        Check c;
        check_open(&c);
        case_open(&c, &t);
        for (int l = -1; l < c.n_levels; l++) {
            const CpuKernels *k = l < 0 ? &c.ref : &c.level[l].k;
            const float *first = NULL;
            for (size_t j = 0; j < COUNT_OF(tiles); j++) {
                const float *got = case_run(&c, &t, k, &t.seg, tiles[j], t.q);
                first = first ? first : got;
                for (int r = 2; r < t.s.n_rows + 2; r++)
                    check_equal(t.s.what, got + r * t.ldo, first + r * t.ldo,
                                t.s.n_heads * t.s.v_dim);
            }
            for (int r = 0; r < t.s.n_rows; r++)
                for (int h = 0; h < t.s.n_heads; h++)
                    check_softmax(&t, r, h, first + (r + 2) * t.ldo + (int64_t)h * t.s.v_dim);
        }
        arena_free(&c.arena);
    }
}

/* Same bits from every level's kv_write, and slots of -1 are left alone. */
static void test_kv_write(void **state)
{
    (void)state;
    const int dims[] = {1, 15, 16, 17, 64, 80, 128, 200};
    for (size_t i = 0; i < COUNT_OF(dims) * 4; i++) {
        Check c;
        check_open(&c);
        const int dim = dims[i / 4];
        const KvType type = i & 1 ? KV_F16 : KV_F32;
        const int page = i & 2 ? 4 : 32;
        enum { N = 40, HEADS = 3 };
        const int64_t ld = (int64_t)HEADS * dim + 7;
        const int64_t n = (int64_t)64 * HEADS * dim; /* two pages of 32 */
        float *k = check_input(&c, (int)(N * ld), 3, 1e30F);
        float *v = check_input(&c, (int)(N * ld), 3, -1e30F);
        for (int j = 0; j < 20; j++) /* subnormal as f16, or ties of its rounding */
            k[check_below(&c, (int)(N * ld))] = check_random(&c) * (j & 1 ? 0x1p-15F : 0x1p-24F);
        int32_t slots[N];
        for (int r = 0; r < N; r++)
            slots[r] = r % 7 == 3 ? -1 : (r * 11) % 40;
        float *want[2];
        for (int l = -1; l < c.n_levels; l++) {
            float *out[2] = {check_output(&c, n), check_output(&c, n)};
            const KvLayer kv = {.k = (uint8_t *)out[0],
                                .v = (uint8_t *)out[1],
                                .n_kv_heads = HEADS,
                                .head_dim = dim,
                                .v_dim = dim,
                                .page_tokens = page,
                                .type = type};
            (l < 0 ? &c.ref : &c.level[l].k)->kv_write(&kv, k, ld, v, ld, slots, 37);
            for (int j = 0; j < 2; j++) {
                check_guards(out[j], n, "kv_write");
                if (l < 0)
                    want[j] = out[j];
                else
                    check_equal("kv_write", out[j], want[j], n);
            }
        }
        arena_free(&c.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attn_reference),    cmocka_unit_test(test_attn_invariant),
        cmocka_unit_test(test_attn_hostile_rows), cmocka_unit_test(test_attn_full_and_bias),
        cmocka_unit_test(test_kv_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
