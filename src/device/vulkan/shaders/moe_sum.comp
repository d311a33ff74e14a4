#version 460
// y = sum over a token's choices of share * x's row of the pair, plus an addend. Grid: x over
// columns, y over tokens.
#include "lin_base.glsl"
layout(constant_id = 2) const uint TOP_K = 1;
layout(constant_id = 3) const uint ADD = 0;
layout(push_constant) uniform P { F1 x; F1 share; F1 add; OF1 y; uint n, ldx, lda, ldy; };

void main()
{
    const uint c = gl_WorkGroupID.x * WG + gl_LocalInvocationID.x, token = gl_WorkGroupID.y;
    if (c >= n)
        return;
    float sum = 0.0;
    for (uint j = 0; j < TOP_K; j++)
        sum += share.v[token * TOP_K + j] * x.v[(token * TOP_K + j) * ldx + c];
    if (ADD != 0)
        sum += add.v[token * lda + c];
    y.v[token * ldy + c] = sum;
}
