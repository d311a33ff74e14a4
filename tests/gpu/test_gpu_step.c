/* The block of words that a step sends: contents, padding, limits. */
#include "device/gpu/gpu_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

static const GraphPlan graph = {
    .max_rows = 12, .max_out_rows = 3, .max_segs = 3, .state_floats = 5, .n_kv_groups = 2};
static const KvPoolDesc kv = {.n_groups = 2,
                              .page_tokens = {4, 8},
                              .n_pages = {10, 6},
                              .seq_pages = {5, 3},
                              .state_floats = 5,
                              .n_states = 4};

typedef struct Step {
    StepBlock b;
    Row rows[16];
    Segment segs[4];
    int32_t out[4];
    int32_t tables[4][2][8];
    SampleDesc samples[4];
} Step;

/* Two sequences: three rows that end at position 9, and one row at position 0. */
static void fill(Step *s)
{
    *s = (Step){0};
    for (int i = 0; i < 16; i++)
        s->rows[i] = (Row){.token = 100 + i, .pos = 7 + i};
    s->rows[3].token = -1 - 9;
    const int32_t a[2][8] = {{-1, 7, 2}, {5, 0}};
    memcpy(s->tables[0], a, sizeof a);
    s->tables[1][0][0] = 9;
    s->tables[1][1][0] = 3;
    s->segs[0] = (Segment){.n_rows = 3, .kv_len = 10, .state_in = 2, .state_out = 1};
    s->segs[1] = (Segment){.row0 = 3, .n_rows = 1, .kv_len = 1, .state_in = -1, .state_out = 3};
    for (int i = 0; i < 2; i++)
        for (int g = 0; g < 2; g++)
            s->segs[i].pages[g] = s->tables[i][g];
    s->out[0] = 2;
    s->out[1] = 3;
    s->samples[0] = (SampleDesc){.out = 1,
                                 .slot = 9,
                                 .temperature = 0.5F,
                                 .top_k = 40,
                                 .top_p = 0.25F,
                                 .min_p = 0.125F,
                                 .random = 0.75};
    s->b = (StepBlock){.n_rows = 4,
                       .n_segs = 2,
                       .n_out = 2,
                       .n_samples = 1,
                       .rows = s->rows,
                       .segs = s->segs,
                       .out_rows = s->out,
                       .samples = s->samples};
}

static float as_float(int32_t w)
{
    float f;
    memcpy(&f, &w, sizeof f);
    return f;
}

static void test_contents(void **state)
{
    (void)state;
    GpuStepLayout l;
    gpu_step_layout(&graph, &kv, &l);
    assert_int_equal(l.max_rows, 16);
    assert_int_equal(l.max_words % 4, 0);
    int32_t block[1024];
    assert_true(l.max_words <= 1024);
    memset(block, 0x55, sizeof block);
    Step s;
    Error err;
    fill(&s);
    if (!gpu_step_write(&l, &graph, &kv, &s.b, 77, block, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(block[GPU_STEP_N_ROWS], 4);
    assert_int_equal(block[GPU_STEP_N_OUT], 2);
    assert_int_equal(block[GPU_STEP_N_SAMPLES], 1);
    assert_int_equal(block[GPU_STEP_TICKET], 77);
    assert_int_equal(block[GPU_STEP_MAX_KV], 10);
    assert_int_equal(block[GPU_STEP_WORDS], l.pages + 3 + 2 + 1 + 1);
    assert_int_equal(block[l.tokens + 1], 101);
    assert_int_equal(block[l.tokens + 3], -10);
    assert_int_equal(block[l.pos + 2], 9);
    const int32_t segs[4] = {0, 0, 0, 1};
    assert_memory_equal(block + l.seg, segs, sizeof segs);
    /* Positions 7, 8, 9 of pages of 4 and of 8 tokens; position 0. */
    const int32_t slots4[4] = {7 * 4 + 3, 2 * 4, 2 * 4 + 1, 9 * 4};
    const int32_t slots8[4] = {5 * 8 + 7, 0, 1, 3 * 8};
    assert_memory_equal(block + l.slots[0], slots4, sizeof slots4);
    assert_memory_equal(block + l.slots[1], slots8, sizeof slots8);
    const int32_t *seg = block + l.segs + GPU_SEG_WORDS;
    assert_int_equal(seg[GPU_SEG_ROW0], 3);
    assert_int_equal(seg[GPU_SEG_KV_LEN], 1);
    assert_int_equal(seg[GPU_SEG_STATE_IN], -1);
    assert_int_equal(seg[GPU_SEG_STATE_OUT], 3);
    assert_int_equal(block[seg[GPU_SEG_PAGES]], 9);
    assert_int_equal(block[seg[GPU_SEG_PAGES + 1]], 3);
    assert_int_equal(block[block[l.segs + GPU_SEG_PAGES] + 2], 2);
    assert_int_equal(block[l.out_rows], 2);
    assert_int_equal(block[l.out_rows + 1], 3);
    assert_int_equal(block[l.out_rows + 2], 0);
    const int32_t *sample = block + l.samples;
    assert_int_equal(sample[GPU_SAMPLE_OUT], 1);
    assert_int_equal(sample[GPU_SAMPLE_SLOT], 9);
    assert_int_equal(sample[GPU_SAMPLE_TOP_K], 40);
    assert_true(as_float(sample[GPU_SAMPLE_TEMPERATURE]) == 0.5F);
    assert_true(as_float(sample[GPU_SAMPLE_RANDOM]) == 0.75F);
}

/* Rows up to the bucket touch nothing, whatever the block held before. */
static void test_padding(void **state)
{
    (void)state;
    GpuStepLayout l;
    gpu_step_layout(&graph, &kv, &l);
    int32_t block[1024];
    memset(block, 0x55, sizeof block);
    Step s;
    Error err;
    fill(&s);
    s.segs[0].n_rows = 2;
    s.segs[0].kv_len = 9;
    s.segs[1].row0 = 2;
    s.b.n_rows = 3;
    s.out[1] = 2;
    assert_true(gpu_step_write(&l, &graph, &kv, &s.b, 1, block, &err));
    assert_int_equal(block[l.tokens + 3], 0);
    assert_int_equal(block[l.seg + 3], -1);
    assert_int_equal(block[l.slots[0] + 3], -1);
    assert_int_equal(block[l.slots[1] + 3], -1);
}

static void refused(Step *s, const char *part)
{
    GpuStepLayout l;
    gpu_step_layout(&graph, &kv, &l);
    int32_t block[1024];
    Error err;
    assert_false(gpu_step_write(&l, &graph, &kv, &s->b, 1, block, &err));
    assert_int_equal(err.code, ERR_DEVICE);
    if (!strstr(err.msg, part))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, part);
}

static void test_refusals(void **state)
{
    (void)state;
    Step s;
    fill(&s);
    s.b.n_rows = 13;
    refused(&s, "13 rows");
    fill(&s);
    s.b.n_rows = 3;
    refused(&s, "cover 4 of 3");
    fill(&s);
    s.segs[1].row0 = 2;
    refused(&s, "segment 1");
    fill(&s);
    s.out[1] = 4;
    refused(&s, "output 1");
    fill(&s);
    s.samples[0].out = 2;
    refused(&s, "sample 0");
    fill(&s);
    s.samples[0].slot = SAMPLE_SLOTS_MAX;
    refused(&s, "slot 4096");
    fill(&s);
    s.segs[0].state_out = 4;
    refused(&s, "state slots");
    fill(&s);
    s.tables[0][0][1] = 10;
    refused(&s, "page 10 of 10");
    fill(&s);
    s.segs[0].kv_len = 25;
    refused(&s, "7 pages");
    fill(&s);
    s.rows[0].token = -SAMPLE_SLOTS_MAX - 1;
    refused(&s, "sample slot");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
