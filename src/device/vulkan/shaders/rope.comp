// rope.comp: rotates the first dimensions of each head by the row's angles.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
layout(constant_id = 2) const uint PAIRS = 0; // (2i, 2i + 1), else (i, i + half)

layout(push_constant) uniform P
{
    F1 x;
    F2 table; // [rows][half_dim] cos, sin
    OF1 y;
    uint ldx, ldy, width, head_dim, half_dim;
};

void main()
{
    const uint i = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
    if (i >= width)
        return;
    const uint d = i % head_dim;
    float v = x.v[r * ldx + i];
    if (d < 2 * half_dim) {
        const bool first = PAIRS != 0 ? (d & 1) == 0 : d < half_dim;
        const uint j = PAIRS != 0 ? d / 2 : first ? d : d - half_dim;
        const uint step_ = PAIRS != 0 ? 1 : half_dim;
        const float o = x.v[r * ldx + (first ? i + step_ : i - step_)];
        const vec2 cs = table.v[r * half_dim + j];
        v = first ? v * cs.x - o * cs.y : v * cs.x + o * cs.y;
    }
    y.v[r * ldy + i] = v;
}
