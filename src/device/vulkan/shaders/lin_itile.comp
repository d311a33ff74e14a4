#version 460
// y = x W^T for many rows and quantised W: tiles in shared memory, int8 by int8, four products an
// instruction, sums made f32 after each 32 k (K6: 16). x comes quantised (lin_quant, ORDER_BYTES);
// W's codes become bytes once per tile, so the inner loop is the same for all layouts:
// 32 k of a thread's TM x 4 results cost 8 TM * 4 dots, 4 TM * 4 others and (TM + 4) * 2 loads.
#extension GL_EXT_spirv_intrinsics : require
#include "lin_base.glsl"
#include "lin_scale.glsl"
#ifndef TM
#define TM 8 // 16 * TM rows
#define CH 2 // chunks of 32 k a stage
#endif
#include "lin_tile.glsl"
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450) int sdot(uint a, uint b, spirv_literal int fmt);

const uint KC = K / 32, XP = BM + 1, WP = BN + 1; // padded: rows of a stage start in different banks
shared uvec4 xs[CH * 2 * XP], ws[CH * 2 * WP];
shared vec2 xf[CH * BM], wf[CH * BN]; // K6: the two scales of a chunk

uvec2 bytes_of(uint q, uint pairs)
{
    uint lo = spread_nibbles(q & 0xffffu), hi = spread_nibbles(q >> 16);
    if (LAYOUT == GPU_LAYOUT_K6) {
        // pair i of 16 bits to bits 4, 5 of byte i of two words
        const uint t = spread_nibbles(pairs);
        const uint even = (t & 0x03030303u) << 4, odd = (t & 0x0c0c0c0cu) << 2;
        lo |= even & 0xffu | (odd & 0xffu) << 8 | (even & 0xff00u) << 8 | (odd & 0xff00u) << 16;
        hi |= even >> 16 & 0xffu | (odd >> 16 & 0xffu) << 8 | (even >> 24) << 16 | (odd >> 24) << 24;
        lo = (lo + 0x60606060u) ^ 0x80808080u; // q - 32
        hi = (hi + 0x60606060u) ^ 0x80808080u;
    }
    if (LAYOUT == GPU_LAYOUT_E4)
        return uvec2(e2m1_bytes(lo), e2m1_bytes(hi));
    return uvec2(lo, hi);
}

void load_weights(uint row, uint c, uint col, uint ch)
{
    uvec4 a = uvec4(0), b = uvec4(0);
    vec2 f = vec2(0);
    if (c < KC) {
        const uvec2 raw = scale_load(s, row, c * 2);
        f = scale_decode(raw, c * 2);
        if (LAYOUT == GPU_LAYOUT_A8 || LAYOUT == GPU_LAYOUT_S8) {
            a = w.v[row * (WS / 4) + c * 2];
            b = w.v[row * (WS / 4) + c * 2 + 1];
            if (LAYOUT == GPU_LAYOUT_A8) { // u8 as int8: 128 less
                a ^= 0x80808080u;
                b ^= 0x80808080u;
                f.y += 128.0 * f.x;
            }
        } else {
            const uvec4 q = w.v[row * (WS / 4) + c];
            uvec2 h = uvec2(0);
            if (LAYOUT == GPU_LAYOUT_K6) {
                h = W2(w).v[row * (WS / 2) + KC * 2 + c];
                f.y = scale_decode(raw, c * 2 + 1).x;
            }
            a.xy = bytes_of(q.x, h.x & 0xffffu);
            a.zw = bytes_of(q.y, h.x >> 16);
            b.xy = bytes_of(q.z, h.y & 0xffffu);
            b.zw = bytes_of(q.w, h.y >> 16);
            if (LAYOUT == GPU_LAYOUT_E4)
                f.x *= 0.5;
        }
    }
    ws[ch * 2 * WP + col] = a;
    ws[(ch * 2 + 1) * WP + col] = b;
    wf[ch * BN + col] = f;
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
    for (uint c0 = 0; c0 < KC; c0 += CH) {
        EACH(i, CH * 2 * BM) {
            const uint row = i / (CH * 2), part = i % (CH * 2);
            xs[part * XP + row] = c0 + part / 2 < KC ? x.v[(from_row[row] * KC + c0) * 2 + part] : uvec4(0);
        }
        EACH(f, CH * BM) {
            const uint row = f / CH, ch = f % CH;
            xf[ch * BM + row] = c0 + ch < KC ? F2(x).v[ldx * KC * 4 + from_row[row] * KC + c0 + ch] : vec2(0);
        }
        EACH(q, CH * BN)
            load_weights(first + tile_weight_row(q / CH), c0 + q % CH, q / CH, q % CH);
        barrier();
        [[unroll]] for (uint ch = 0; ch < CH; ch++) {
            int sum[TM * 4];
            [[unroll]] for (uint h = 0; h < 2; h++) {
                uvec4 b[4];
                [[unroll]] for (uint j = 0; j < 4; j++)
                    b[j] = ws[(ch * 2 + h) * WP + tx + 16 * j];
                [[unroll]] for (uint i = 0; i < TM; i++) {
                    const uvec4 a = xs[(ch * 2 + h) * XP + ty + 16 * i];
                    [[unroll]] for (uint j = 0; j < 4; j++) {
                        const int d = sdot(a.x, b[j].x, 0) + sdot(a.y, b[j].y, 0) + sdot(a.z, b[j].z, 0) + sdot(a.w, b[j].w, 0);
                        if (LAYOUT == GPU_LAYOUT_K6)
                            acc[i * 4 + j] += float(d) * xf[ch * BM + ty + 16 * i].x * wf[ch * BN + tx + 16 * j][h];
                        else
                            sum[i * 4 + j] = h == 0 ? d : sum[i * 4 + j] + d;
                    }
                }
            }
            if (LAYOUT != GPU_LAYOUT_K6) {
                vec2 g[4];
                [[unroll]] for (uint j = 0; j < 4; j++)
                    g[j] = wf[ch * BN + tx + 16 * j];
                [[unroll]] for (uint i = 0; i < TM; i++) {
                    const vec2 f = xf[ch * BM + ty + 16 * i];
                    [[unroll]] for (uint j = 0; j < 4; j++)
                        acc[i * 4 + j] += float(sum[i * 4 + j]) * (f.x * g[j].x) + f.y * g[j].y;
                }
            }
        }
        barrier();
    }
    tile_store(acc);
}
