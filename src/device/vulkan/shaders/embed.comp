// embed.comp: a row of the table for each token, in f32. One dispatch a part of the table: a token
// is the business of the part that holds its row; one outside the table gives zeros (first part).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
#include "lin_scale.glsl"

layout(push_constant) uniform P
{
    W4 codes;
    W1 scales;
    I1 words;
    OF1 y;
    uint tokens; // word of row 0's token
    uint k, ld;
    uint row0, rows; // of the part
    uint n;          // rows of the table
};

void main()
{
    const uint u = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
    if (u * 8 >= k)
        return;
    const uint token = uint(words.v[tokens + r]);
    const bool outside = token >= n;
    if (outside ? row0 != 0 : token - row0 >= rows)
        return;
    vec4 a = vec4(0), b = vec4(0);
    if (!outside)
        weight8(codes, scales, token - row0, u, k, a, b);
    const uint at = r * ld + u * 8;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        if (u * 8 + i < k)
            y.v[at + i] = a[i];
        if (u * 8 + 4 + i < k)
            y.v[at + 4 + i] = b[i];
    }
}
