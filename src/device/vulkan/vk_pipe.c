#include "device/vulkan/vk.h"

#include "base/mem.h"

#include <string.h>

/* The module of a shader, made on first use. */
static bool get_module(Device *d, const char *name, VkShaderModule *out, Error *err)
{
    int n;
    const VkShader *shaders = vk_shaders(&n);
    int i = 0;
    while (i < n && strcmp(shaders[i].name, name) != 0)
        i++;
    if (i == n)
        return err_set(err, ERR_UNSUPPORTED, "vulkan: no shader is called %s", name);
    if (!d->modules) {
        d->modules = mem_zalloc((size_t)n * sizeof *d->modules);
        if (!d->modules)
            return err_nomem(err, "shader modules", (size_t)n * sizeof *d->modules);
    }
    VkModule *m = &d->modules[i];
    if (!m->module) {
        const VkShaderModuleCreateInfo make = {
            .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
            .codeSize = (size_t)(shaders[i].end - shaders[i].code),
            /* Embedded on a 64-byte border. */
            .pCode = (const uint32_t *)(const void *)shaders[i].code};
        if (!VK_TRY(&d->root.api, err, CreateShaderModule, d->device, &make, NULL, &m->module)) {
            m->module = VK_NULL_HANDLE;
            return err_wrap(err, "shader %s", name);
        }
        m->name = shaders[i].name;
    }
    *out = m->module;
    return true;
}

static bool same(const VkPipe *p, const VkDispatch *x)
{
    return p->n_spec == x->n_spec && strcmp(p->shader, x->shader) == 0 &&
           memcmp(p->spec, x->spec, (size_t)x->n_spec * sizeof *p->spec) == 0;
}

static bool room(Device *d, Error *err)
{
    if (d->n_pipes < d->cap_pipes)
        return true;
    const int cap = d->cap_pipes ? 2 * d->cap_pipes : 64;
    VkPipe *p = mem_realloc(d->pipes, (size_t)cap * sizeof *p);
    if (!p)
        return err_nomem(err, "pipelines", (size_t)cap * sizeof *p);
    d->pipes = p;
    d->cap_pipes = cap;
    return true;
}

static bool make(Device *d, const VkDispatch *x, VkPipeline *out, Error *err)
{
    VkShaderModule module = VK_NULL_HANDLE;
    if (!get_module(d, x->shader, &module, err))
        return false;
    VkSpecializationMapEntry entries[VK_SPEC_MAX];
    for (int i = 0; i < x->n_spec; i++)
        entries[i] = (VkSpecializationMapEntry){
            .constantID = (uint32_t)i, .offset = (uint32_t)i * 4, .size = sizeof(uint32_t)};
    const VkSpecializationInfo spec = {.mapEntryCount = (uint32_t)x->n_spec,
                                       .pMapEntries = entries,
                                       .dataSize = (size_t)x->n_spec * sizeof *x->spec,
                                       .pData = x->spec};
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = (uint32_t)d->facts.subgroup};
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = d->facts.sizes_subgroup ? &size : NULL,
                  .flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &spec},
        .layout = d->layout};
    if (!VK_TRY(&d->root.api, err, CreateComputePipelines, d->device, d->cache, 1, &info, NULL,
                out)) {
        *out = VK_NULL_HANDLE;
        return err_wrap(err, "shader %s", x->shader);
    }
    return true;
}

bool vk_pipe_get(Device *d, const VkDispatch *x, VkPipeline *out, Error *err)
{
    for (int i = 0; i < d->n_pipes; i++)
        if (same(&d->pipes[i], x)) {
            *out = d->pipes[i].pipeline;
            return true;
        }
    if (!room(d, err) || !make(d, x, out, err))
        return false;
    VkPipe *p = &d->pipes[d->n_pipes++];
    *p = (VkPipe){.shader = x->shader, .n_spec = x->n_spec, .pipeline = *out};
    memcpy(p->spec, x->spec, (size_t)x->n_spec * sizeof *x->spec);
    return true;
}

void vk_pipe_close(Device *d)
{
    VkApi *api = &d->root.api;
    int n;
    (void)vk_shaders(&n);
    for (int i = 0; i < d->n_pipes; i++)
        api->DestroyPipeline(d->device, d->pipes[i].pipeline, NULL);
    for (int i = 0; d->modules && i < n; i++)
        if (d->modules[i].module)
            api->DestroyShaderModule(d->device, d->modules[i].module, NULL);
    mem_free(d->pipes);
    mem_free(d->modules);
}
