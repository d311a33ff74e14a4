// argmax.comp: the largest logit of a block of a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
#include "sample.glsl"

layout(push_constant) uniform P
{
    F1 logits; // [rows][vocab]
    I1 words;
    Best best; // [rows][blocks]
    uint vocab, block; // block: logits of one
};

shared uvec4 part[WG / 8];

uvec4 better(uvec4 a, uvec4 b)
{
    const float x = uintBitsToFloat(a.x), y = uintBitsToFloat(b.x);
    const bool first = x > y || (x == y && a.y < b.y);
    return uvec4(first ? a.xy : b.xy, a.z | b.z, 0);
}

void main()
{
    const uint t = gl_LocalInvocationID.x, r = gl_WorkGroupID.y, from = gl_WorkGroupID.x * block;
    if (r >= uint(words.v[GPU_STEP_N_OUT]))
        return;
    const uint to = min(from + block, vocab);
    uvec4 m = uvec4(0xff800000u, 0xffffffffu, 0, 0); // -infinity nowhere
    for (uint b = from; b < to; b += WG) {
        const uint i = b + t;
        if (i >= to)
            continue;
        const uint bits = floatBitsToUint(logits.v[r * vocab + i]);
        const bool bad = (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u;
        m = better(m, bad ? uvec4(0xff800000u, i, 1, 0) : uvec4(bits, i, 0, 0));
    }
    for (uint o = SG / 2; o > 0; o /= 2)
        m = better(m, uvec4(subgroupShuffleXor(m.x, o), subgroupShuffleXor(m.y, o), subgroupShuffleXor(m.z, o), 0));
    if (gl_SubgroupInvocationID == 0)
        part[gl_SubgroupID] = m;
    barrier();
    if (t == 0) {
        for (uint i = 1; i < WG / SG; i++)
            m = better(m, part[i]);
        best.v[r * gl_NumWorkGroups.x + gl_WorkGroupID.x] = m;
    }
}
