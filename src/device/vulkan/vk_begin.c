#include "device/vulkan/vk.h"

/* Words are copied four groups deep at most: blocks are small but for the page tables. */
enum { COPY_GROUPS_MAX = 64 };

static void emit_copy(VkBuild *b, uint32_t wg)
{
    const GpuStepLayout *l = vk_step_layout(b);
    const struct {
        VkPtr host, words, count, sampled;
        uint32_t ring, stride, tokens, rows;
    } push = {vk_step_host(b),
              vk_step(b),
              vk_step_count(b),
              vk_sampled(b),
              VK_RING,
              (uint32_t)(b->layout->step_stride / (int64_t)sizeof(int32_t)),
              (uint32_t)l->tokens,
              (uint32_t)vk_bucket_rows(b)};
    const int64_t groups = (l->max_words + (int64_t)wg - 1) / wg;
    vk_dispatch(b, &(VkDispatch){.shader = "begin",
                                 .spec = {wg, (uint32_t)vk_subgroup(b)},
                                 .n_spec = 2,
                                 .groups = {(uint32_t)i64_min(groups, COPY_GROUPS_MAX)},
                                 .push = &push,
                                 .push_bytes = sizeof push});
}

static void emit_table(VkBuild *b, int table, uint32_t wg)
{
    const RopeDesc *r = &vk_plan(b)->graph->rope_tables[table];
    if (r->axis) {
        vk_build_fail(b, ERR_UNSUPPORTED, "rotation by several positions of a row");
        return;
    }
    const uint32_t half = (uint32_t)r->rot_dim / 2;
    const uint32_t rows = (uint32_t)vk_bucket_rows(b);
    const struct {
        VkPtr words, turns, table;
        uint32_t pos, rows, half;
        float scale;
    } push = {vk_step(b),
              vk_rope_turns(b, table),
              vk_rope_table(b, table),
              (uint32_t)vk_step_layout(b)->pos,
              rows,
              half,
              r->scale};
    vk_dispatch(b, &(VkDispatch){.shader = "rope_table",
                                 .spec = {wg, (uint32_t)vk_subgroup(b)},
                                 .n_spec = 2,
                                 .groups = {(rows * half + wg - 1) / wg},
                                 .overlap = table > 0,
                                 .push = &push,
                                 .push_bytes = sizeof push});
}

void vk_emit_begin(VkBuild *b)
{
    const uint32_t wg = 128;
    emit_copy(b, wg);
    for (int t = 0; t < vk_plan(b)->graph->n_rope_tables; t++)
        emit_table(b, t, wg);
}
