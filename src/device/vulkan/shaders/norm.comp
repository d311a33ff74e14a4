// norm.comp: RMS norm of a group of columns by one workgroup, times a vector, times silu(gate).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
layout(constant_id = 2) const uint WEIGHT = 1; // there is a vector
layout(constant_id = 3) const uint GATE = 0;   // there is a gate

layout(push_constant) uniform P
{
    F1 x;
    F1 w; // [group]
    F1 z; // the gate
    OF1 y;
    uint ldx, ldz, ldy, group;
    float eps;
};

shared float part[WG / 8]; // a subgroup has at least 8

void main()
{
    const uint t = gl_LocalInvocationID.x, c0 = gl_WorkGroupID.x * group, r = gl_WorkGroupID.y;
    float sum = 0;
    for (uint b = 0; b < group; b += WG) {
        const float v = b + t < group ? x.v[r * ldx + c0 + b + t] : 0.0;
        sum += v * v;
    }
    sum = subgroupAdd(sum);
    if (gl_SubgroupInvocationID == 0)
        part[gl_SubgroupID] = sum;
    barrier();
    sum = 0;
    for (uint i = 0; i < WG / SG; i++)
        sum += part[i];
    const float s = 1.0 / sqrt(sum / float(group) + eps);
    for (uint b = 0; b < group; b += WG) { // every subgroup turns as often: lavapipe needs it
        const uint i = b + t;
        if (i >= group)
            continue;
        float v = x.v[r * ldx + c0 + i] * s;
        if (WEIGHT != 0)
            v *= w.v[i];
        if (GATE != 0)
            v *= silu(z.v[r * ldz + c0 + i]);
        y.v[r * ldy + c0 + i] = v;
    }
}
