// out_rows.comp: the rows whose output is wanted.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"

layout(push_constant) uniform P
{
    F1 x;
    I1 words;
    OF1 y;
    uint ldx, ldy, width;
    uint out_rows; // word of the first one's number
};

void main()
{
    const uint i = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
    if (i < width)
        y.v[r * ldy + i] = x.v[uint(words.v[out_rows + r]) * ldx + i];
}
