#version 460
// A row of x a workgroup, normed if wanted, as int8 per 32 k for lin_gemv and lin_itile:
// [m][K / 32] chunks of 32 bytes, then [m][K / 32] pairs of factors. FORM 2: normed f32 [m][K].
#include "lin_base.glsl"
#include "lin_quant.glsl"
layout(constant_id = 2) const uint K = 64;
layout(constant_id = 3) const uint FORM = 0;   // ORDER_NIBBLES, ORDER_BYTES, 2: f32
layout(constant_id = 4) const uint NORM = 0;   // 1: RMS norm with weight, 2: without
layout(constant_id = 5) const uint FLAGS = 0;  // 4 gather, 8 x's rows are 16-byte aligned
layout(constant_id = 6) const uint TOP_K = 0;  // above 0: k runs over a token's choices, each times its share
layout(constant_id = 7) const uint MIXED = 0;
layout(push_constant) uniform P {
    F1 x; F1 nw; OU1 q; I1 rows; F1 share; I1 limit; // limit: how many rows are meant; 0: all
    uint ldx, m, has_limit;
    float eps;
};
shared float red[128];

vec4 load4(uint at, uint k)
{
    if ((FLAGS & 8) != 0 && k + 4 <= K)
        return F4(x).v[at / 4];
    vec4 v = vec4(0);
    [[unroll]] for (uint i = 0; i < 4; i++)
        if (k + i < K)
            v[i] = x.v[at + i];
    return v;
}

void main()
{
    const uint tid = gl_LocalInvocationID.x, row = gl_WorkGroupID.x, K8 = (K + 7) / 8, KC = K / 32;
    if (has_limit != 0 && row >= uint(limit.v[0]))
        return;
    const uint from = ((FLAGS & 4) != 0 ? uint(rows.v[row]) : TOP_K != 0 ? row * TOP_K : row) * ldx;
    float inv = 1.0;
    if (NORM != 0) {
        float sq = 0.0;
        EACH(k, K)
            sq += x.v[from + k] * x.v[from + k];
        sq = subgroupAdd(sq);
        if (gl_SubgroupInvocationID == 0)
            red[gl_SubgroupID] = sq;
        barrier();
        sq = 0.0;
        for (uint i = 0; i < WG / SG; i++)
            sq += red[i];
        inv = 1.0 / sqrt(sq / float(K) + eps);
    }
    for (uint u0 = 0; u0 < K8; u0 += WG) {
        const uint u = u0 + tid;
        vec4 a = vec4(0), b = vec4(0);
        if (u < K8) {
            a = load4(from + u * 8, u * 8) * inv;
            b = load4(from + u * 8 + 4, u * 8 + 4) * inv;
            if (NORM == 1)
                [[unroll]] for (uint i = 0; i < 4; i++) {
                    if (u * 8 + i < K)
                        a[i] *= nw.v[u * 8 + i];
                    if (u * 8 + 4 + i < K)
                        b[i] *= nw.v[u * 8 + 4 + i];
                }
            if (TOP_K != 0) {
                const float s = share.v[row * TOP_K + u * 8 / (K / max(TOP_K, 1))];
                a *= s;
                b *= s;
            }
        }
        if (FORM == 2) {
            [[unroll]] for (uint i = 0; i < 4; i++) {
                if (u * 8 + i < K)
                    q.v[row * K + u * 8 + i] = floatBitsToUint(a[i]);
                if (u * 8 + 4 + i < K)
                    q.v[row * K + u * 8 + 4 + i] = floatBitsToUint(b[i]);
            }
            continue;
        }
        uvec2 words;
        vec2 f;
        quant8(a, b, FORM, words, f);
        if (u >= K8)
            continue;
        const uint at = (row * KC + u / 4) * 8, i = u & 3;
        if (FORM == ORDER_NIBBLES) {
            q.v[at + i] = words.x;
            q.v[at + 4 + i] = words.y;
        } else {
            q.v[at + i * 2] = words.x;
            q.v[at + i * 2 + 1] = words.y;
        }
        if (i == 0)
            OF2(q).v[m * KC * 4 + row * KC + u / 4] = vec2(FORM == ORDER_NIBBLES && MIXED != 0 ? f.x * 0.0625 : f.x, f.y);
    }
}
