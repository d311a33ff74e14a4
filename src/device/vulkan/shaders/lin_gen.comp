#version 460
// y = x W^T in f32 for every layout, any k, a few rows at a time: the exact class, precise weights
// and plain f16, bf16, f32 weights. A subgroup takes RW rows of W and R rows of x; a lane eight k
// at a time. Grid: x over blocks of weight rows, y over groups of R rows (EXPERTS: pairs or tokens).
#include "lin_base.glsl"
#include "lin_scale.glsl"
#ifndef R
#define R 1
#define RW 4
#endif
layout(constant_id = 2) const uint K = 64;
layout(constant_id = 8) const uint NORM = 0;    // 1: RMS norm with weight, 2: without
layout(constant_id = 9) const uint SILU = 0;    // W's rows are [gate | up]
layout(constant_id = 10) const uint FLAGS = 0;  // 1 addend, 2 bias, 4 gather, 8 x's rows are 16-byte aligned
layout(constant_id = 11) const uint EXPERTS = 0; // 1: row y is a pair (token, choice); 2: a token, summed over its choices
layout(constant_id = 12) const uint TOP_K = 1;
layout(push_constant) uniform P {
    W4 w; W1 s; F1 x; F1 nw; OF1 y; F1 add; F1 bias;
    I1 rows;   // gather: the row of x
    I1 ids;    // [token][TOP_K] experts
    F1 weight; // of the choices
    uint n, n0, ldx, ldy, lda, m; // rows of W in this part, column of y of the first
    float eps;
};
shared float red[128 * R];

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

vec4 norm4(uint k)
{
    vec4 v = vec4(0);
    [[unroll]] for (uint i = 0; i < 4; i++)
        if (k + i < K)
            v[i] = nw.v[k + i];
    return v;
}

void main()
{
    const uint lane = gl_SubgroupInvocationID, sg = gl_SubgroupID, NS = WG / SG;
    const uint row0 = gl_WorkGroupID.y * R;
    uint xr[R];
    float inv[R], sq[R];
    [[unroll]] for (uint q = 0; q < R; q++) {
        xr[q] = min(row0 + q, m - 1);
        if ((FLAGS & 4) != 0)
            xr[q] = uint(rows.v[xr[q]]);
        if (EXPERTS == 1)
            xr[q] /= TOP_K;
        inv[q] = 1.0;
        sq[q] = 0.0;
    }
    if (NORM != 0) {
        EACH(k, K)
            [[unroll]] for (uint q = 0; q < R; q++) {
                const float v = x.v[xr[q] * ldx + k];
                sq[q] += v * v;
            }
        [[unroll]] for (uint q = 0; q < R; q++) {
            const float v = subgroupAdd(sq[q]);
            if (lane == 0)
                red[q * NS + sg] = v;
        }
        barrier();
        [[unroll]] for (uint q = 0; q < R; q++) {
            float v = 0.0;
            for (uint i = 0; i < NS; i++)
                v += red[q * NS + i];
            inv[q] = 1.0 / sqrt(v / float(K) + eps);
        }
    }
    const uint cols = SILU != 0 ? n / 2 : n, CB = SILU != 0 ? RW / 2 : RW, nb = (cols + CB - 1) / CB;
    const uint slots = EXPERTS == 2 ? TOP_K : 1;
    // every subgroup of a group makes the same number of turns
    for (uint base = gl_WorkGroupID.x * NS; base < nb; base += gl_NumWorkGroups.x * NS) {
        const uint c0 = (base + sg) * CB;
        float acc[RW * R];
        [[unroll]] for (uint i = 0; i < RW * R; i++)
            acc[i] = 0.0;
        for (uint slot = 0; slot < slots; slot++) {
            uint first = 0; // row of the expert
            float share = 1.0;
            if (EXPERTS == 1)
                first = uint(ids.v[row0]) * n;
            if (EXPERTS == 2) {
                const uint pair = row0 * TOP_K + slot;
                first = uint(ids.v[pair]) * n;
                share = weight.v[pair];
                xr[0] = pair;
            }
            for (uint u = lane; u * 8 < K; u += SG) {
                vec4 xa[R], xb[R];
                [[unroll]] for (uint q = 0; q < R; q++) {
                    const uint at = xr[q] * ldx + u * 8;
                    xa[q] = load4(at, u * 8);
                    xb[q] = load4(at + 4, u * 8 + 4);
                }
                if (NORM == 1) {
                    const vec4 na = norm4(u * 8), nb4 = norm4(u * 8 + 4);
                    [[unroll]] for (uint q = 0; q < R; q++) {
                        xa[q] *= na;
                        xb[q] *= nb4;
                    }
                }
                [[unroll]] for (uint r = 0; r < RW; r++) {
                    const uint c = min(c0 + (SILU != 0 ? r / 2 : r), cols - 1);
                    vec4 wa, wb;
                    weight8(w, s, first + (SILU != 0 ? (r & 1) * cols + c : c), u, K, wa, wb);
                    [[unroll]] for (uint q = 0; q < R; q++)
                        acc[r * R + q] += share * (dot(wa, xa[q]) + dot(wb, xb[q]));
                }
            }
        }
        [[unroll]] for (uint i = 0; i < RW * R; i++)
            acc[i] = subgroupAdd(acc[i]) * inv[i % R];
        if (lane == 0)
            [[unroll]] for (uint q = 0; q < R; q++)
                [[unroll]] for (uint r = 0; r < RW; r++) {
                    const uint c = c0 + (SILU != 0 ? r / 2 : r), row = row0 + q;
                    if (c >= cols || row >= m || (SILU != 0 && (r & 1) != 0))
                        continue;
                    float v = acc[r * R + q];
                    if ((FLAGS & 2) != 0)
                        v += bias.v[n0 + c];
                    if (SILU != 0) {
                        float up = acc[(r + 1) % RW * R + q];
                        if ((FLAGS & 2) != 0)
                            up += bias.v[n0 + cols + c];
                        v = silu(v) * up;
                    }
                    if ((FLAGS & 1) != 0)
                        v += add.v[row * lda + n0 + c];
                    y.v[row * ldy + n0 + c] = v;
                }
    }
}
