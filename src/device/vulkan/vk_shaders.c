#include "device/vulkan/vk.h"

#define SHADER(name, ...)                                                                          \
    extern const uint8_t mere_spv_##name[];                                                        \
    extern const uint8_t mere_spv_##name##_end[];
#include "device/vulkan/shaders/shaders.def"
#undef SHADER

const VkShader *vk_shaders(int *n)
{
    static const VkShader shaders[] = {
#define SHADER(name, ...) {#name, mere_spv_##name, mere_spv_##name##_end},
#include "device/vulkan/shaders/shaders.def"
#undef SHADER
    };
    *n = (int)COUNT_OF(shaders);
    return shaders;
}
