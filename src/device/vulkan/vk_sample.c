#include "device/vulkan/vk.h"

/* Logits of one block: enough that a row's best ones are read by one workgroup at once. */
enum { BLOCK = 8192 };

void vk_emit_sample(VkBuild *b)
{
    const GpuStepLayout *l = vk_step_layout(b);
    const uint32_t vocab = (uint32_t)b->layout->vocab;
    const uint32_t blocks = (vocab + BLOCK - 1) / BLOCK;
    const uint32_t out = (uint32_t)vk_max_out(b);
    const uint32_t sg = (uint32_t)vk_subgroup(b);
    const VkPtr best = vk_work(b, (int64_t)out * blocks * 16);
    const struct {
        VkPtr logits, words, best;
        uint32_t vocab, block;
    } first = {vk_logits(b), vk_step(b), best, vocab, BLOCK};
    vk_dispatch(b, &(VkDispatch){.shader = "argmax",
                                 .spec = {256, sg},
                                 .n_spec = 2,
                                 .groups = {blocks, out},
                                 .push = &first,
                                 .push_bytes = sizeof first});
    const struct {
        VkPtr logits, words, best, sampled, results, count;
        uint32_t vocab, blocks, samples, ring, stride;
    } second = {vk_logits(b),
                vk_step(b),
                best,
                vk_sampled(b),
                vk_results_host(b),
                vk_step_count(b),
                vocab,
                blocks,
                (uint32_t)l->samples,
                VK_RING,
                (uint32_t)(b->layout->results_stride / (int64_t)sizeof(int32_t))};
    vk_dispatch(b, &(VkDispatch){.shader = "sample",
                                 .spec = {(uint32_t)i64_min(vk_local_max(b), 512), sg},
                                 .n_spec = 2,
                                 .groups = {out},
                                 .push = &second,
                                 .push_bytes = sizeof second});
}
