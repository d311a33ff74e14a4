// lin_base.glsl: what every product, expert and attention shader starts with: extensions, buffer
// references, the workgroup's shape (constants 0 and 1) and small conversions.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_GOOGLE_include_directive : require
#include "gpu_words.h"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WG = 256;
layout(constant_id = 1) const uint SG = 32;

layout(buffer_reference, std430, buffer_reference_align = 16) readonly restrict buffer W4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly restrict buffer W2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly restrict buffer W1 { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer F4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer F2 { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer F1 { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer I1 { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer X4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer OF1 { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer OI1 { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer OU1 { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer OF2 { vec2 v[]; };

// i = 0 .. n - 1, one a thread, WG at a time: every subgroup makes the same number of turns. Where
// they differ after a barrier, Mesa's CPU driver (22.3) ends all of them with the first.
#define EACH(i, n)                                                                                 \
    uint i;                                                                                        \
    for (uint i##_base = 0; i##_base < (n); i##_base += WG)                                        \
        if ((i = i##_base + gl_LocalInvocationID.x) < (n))

float bf16_float(uint bits) { return uintBitsToFloat(bits << 16); }
float silu(float x) { return x / (1.0 + exp(-x)); }
float e8m0_float(uint e) { return uintBitsToFloat(e == 0u ? 0x00400000u : e == 255u ? 0x7fc00000u : e << 23); }
