#version 460
// y = x W^T for many rows in f32, every layout: tiles of 32 k in shared memory.
#include "lin_base.glsl"
#include "lin_scale.glsl"
#ifndef TM
#define TM 4
#endif
#include "lin_tile.glsl"
const uint XP = BM + 1, WP = BN + 1;
shared vec4 xs[8 * XP], ws[8 * WP]; // [k / 4][row]

vec4 load_x(uint row, uint k)
{
    const uint at = row * ldx + k;
    if ((FLAGS & 8) != 0 && k + 4 <= K)
        return uintBitsToFloat(x.v[at / 4]);
    vec4 v = vec4(0);
    [[unroll]] for (uint i = 0; i < 4; i++)
        if (k + i < K)
            v[i] = F1(x).v[at + i];
    return v;
}

void main()
{
    const uint tid = gl_LocalInvocationID.x, tx = tid & 15, ty = tid >> 4;
    uint first;
    if (!tile_rows(first))
        return;
    float acc[TM * 4];
    [[unroll]] for (uint i = 0; i < TM * 4; i++)
        acc[i] = 0.0;
    for (uint k0 = 0; k0 < K; k0 += 32) {
        EACH(i, BM * 8)
            xs[i % 8 * XP + i / 8] = load_x(from_row[i / 8], k0 + i % 8 * 4);
        EACH(j, BN * 4) {
            vec4 a = vec4(0), b = vec4(0);
            const uint u = k0 / 8 + j % 4;
            if (u * 8 < K)
                weight8(w, s, first + tile_weight_row(j / 4), u, K, a, b);
            ws[j % 4 * 2 * WP + j / 4] = a;
            ws[(j % 4 * 2 + 1) * WP + j / 4] = b;
        }
        barrier();
        [[unroll]] for (uint q = 0; q < 8; q++) {
            vec4 b[4];
            [[unroll]] for (uint j = 0; j < 4; j++)
                b[j] = ws[q * WP + tx + 16 * j];
            [[unroll]] for (uint i = 0; i < TM; i++) {
                const vec4 a = xs[q * XP + ty + 16 * i];
                [[unroll]] for (uint j = 0; j < 4; j++)
                    acc[i * 4 + j] += dot(a, b[j]);
            }
        }
        barrier();
    }
    tile_store(acc);
}
