#version 460
// y = silu(gate) * up of the two halves of x's columns, where the halves of a weight lie in
// different parts. Grid: x over columns, y over rows.
#include "lin_base.glsl"
layout(push_constant) uniform P { F1 x; OF1 y; uint n, ldx, ldy; };

void main()
{
    const uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, row = gl_WorkGroupID.y;
    if (c < n)
        y.v[row * ldy + c] = silu(x.v[row * ldx + c]) * x.v[row * ldx + n + c];
}
