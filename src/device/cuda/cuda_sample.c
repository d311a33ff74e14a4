#include "device/cuda/cuda_emit.h"
#include "device/cuda/kernels/sample_params.h"

_Static_assert(sizeof(SampleResult) == 8, "a result is a token and a logit");
_Static_assert(sizeof(SamplePartial) == 16, "kernels read it as 16 bytes");

void cuda_emit_sample(CudaBuild *b)
{
    const GraphPlan *g = cuda_plan(b)->graph;
    const GpuStepLayout *l = cuda_step_layout(b);
    const int vocab = cuda_value_ld(b, g->out);
    const int n_parts = (vocab + SAMPLE_PART - 1) / SAMPLE_PART;
    const int n_samples = cuda_max_out(b);
    const SampleParams p = {
        .step = cuda_step(b),
        .logits = cuda_logits(b),
        .partials = cuda_work(b, (int64_t)n_samples * n_parts * (int64_t)sizeof(SamplePartial)),
        .counters = cuda_counters(b, 1 + n_samples),
        .count = cuda_step_count(b),
        .sampled = cuda_sampled(b),
        .results = cuda_results_host(b),
        .done = cuda_done_host(b),
        .vocab = vocab,
        .n_parts = n_parts,
        .samples_at = l->samples,
        .ring = CUDA_RING,
        .max_out = l->max_out};
    cuda_launch(b, &(CudaLaunch){.kernel = "sample",
                                 .grid = {n_parts, n_samples, 1},
                                 .block = SAMPLE_THREADS,
                                 .programmatic = true,
                                 .params = &p,
                                 .params_bytes = sizeof p});
}
