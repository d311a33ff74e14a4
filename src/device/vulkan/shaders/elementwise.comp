// elementwise.comp: sums and gates of two matrices.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
layout(constant_id = 2) const uint KIND = 0;   // 0 a + b, 1 silu(a) * b, 2 a * sigmoid(b)
layout(constant_id = 3) const uint COLUMN = 0; // b is one column

layout(push_constant) uniform P
{
    F1 a;
    F1 b;
    OF1 y;
    uint lda, ldb, ldy, width;
};

void main()
{
    const uint i = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
    if (i >= width)
        return;
    const float p = a.v[r * lda + i], q = b.v[r * ldb + (COLUMN != 0 ? 0 : i)];
    y.v[r * ldy + i] = KIND == 0 ? p + q : KIND == 1 ? silu(p) * q : p / (1.0 + exp(-q));
}
