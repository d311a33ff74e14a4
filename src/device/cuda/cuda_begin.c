#include "device/cuda/cuda_emit.h"
#include "device/cuda/kernels/begin_params.h"

_Static_assert(BEGIN_TABLES == ROPE_TABLES_MAX, "every rope table has its entry");
/* head; tokens, positions, segments; slots; outputs; samples; segments; pages */
_Static_assert(4 + KV_GROUPS_MAX + 4 <= BEGIN_RANGES, "every range has its entry");

/* Words of page tables that are read before their length is known: a microsecond of PCIe. */
enum { PAGES_AHEAD = 2048, WORDS_OF_CTA = 1024 };

static void add_range(BeginParams *p, int at, int64_t n)
{
    p->ranges[p->n_ranges++] = (BeginRange){at, (int32_t)n};
}

static void add_ranges(const CudaBuild *b, BeginParams *p)
{
    const GpuStepLayout *l = cuda_step_layout(b);
    const int segs = (int)i64_min(p->rows, l->max_segs);
    const int out = cuda_max_out(b);
    add_range(p, 0, GPU_STEP_HEAD);
    add_range(p, l->tokens, p->rows);
    add_range(p, l->pos, p->rows);
    add_range(p, l->seg, p->rows);
    for (int g = 0; g < l->n_groups; g++)
        add_range(p, l->slots[g], p->rows);
    add_range(p, l->out_rows, out);
    add_range(p, l->samples, (int64_t)out * GPU_SAMPLE_WORDS);
    add_range(p, l->segs, (int64_t)segs * GPU_SEG_WORDS);
    p->pages = l->pages;
    p->copied = (int32_t)i64_min(l->max_words - l->pages, PAGES_AHEAD);
    add_range(p, l->pages, p->copied);
}

void cuda_emit_begin(CudaBuild *b)
{
    const GraphPlan *g = cuda_plan(b)->graph;
    const GpuStepLayout *l = cuda_step_layout(b);
    BeginParams p = {.host = cuda_step_host(b),
                     .step = cuda_step(b),
                     .count = cuda_step_count(b),
                     .sampled = cuda_sampled(b),
                     .ring = CUDA_RING,
                     .max_words = l->max_words,
                     .rows = cuda_bucket_rows(b),
                     .tokens = l->tokens,
                     .pos = l->pos,
                     .n_tables = g->n_rope_tables};
    add_ranges(b, &p);
    for (int t = 0; t < g->n_rope_tables; t++)
        p.tables[t] = (BeginTable){.inv_freq = cuda_inv_freq(b, t),
                                   .out = cuda_rope_table(b, t),
                                   .scale = g->rope_tables[t].scale,
                                   .half = g->rope_tables[t].rot_dim / 2};
    int64_t words = 0;
    for (int r = 0; r < p.n_ranges; r++)
        words += p.ranges[r].n;
    const int64_t grid = i64_max((p.rows + BEGIN_ROWS - 1) / BEGIN_ROWS, words / WORDS_OF_CTA + 1);
    cuda_launch(b, &(CudaLaunch){.kernel = "begin",
                                 .grid = {(int)grid, 1, 1},
                                 .block = BEGIN_THREADS,
                                 .params = &p,
                                 .params_bytes = sizeof p});
}
