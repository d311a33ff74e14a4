#version 460
// y = x W^T for 1 to 8 rows of x and quantised W: int8 activations per 32 k, four products an
// instruction. A lane owns chunks of 32 weights, whose words are loaded D chunks ahead; a subgroup
// takes RW rows of W at a time. What bounds it is the reading of W; k needs only be a multiple of
// 32 (lanes past the last chunk meet zeros).
//
// Modules: CLS 0 nibbles (S4, A4, E4), 1 bytes (A8, S8), 2 six bits (K6); R, RW, D literal, since
// drivers do not unroll large bodies with bounds that are specialised.
//
// Four rows with R as a constant of the pipeline took 3.4 times as long (NVIDIA).
#extension GL_EXT_spirv_intrinsics : require
#include "lin_base.glsl"
#include "lin_scale.glsl"
#include "lin_quant.glsl"
layout(constant_id = 2) const uint K = 64;       // EXPERTS 2: TOP_K times an expert's k
layout(constant_id = 8) const uint INPUT = 0;    // 0 already quantised, 1 f32, 2 f32 with RMS norm and weight, 3 norm without
layout(constant_id = 9) const uint SILU = 0;     // W's rows are [gate | up]; RW must be even
layout(constant_id = 10) const uint FLAGS = 0;   // 1 addend, 2 bias, 4 gather
layout(constant_id = 11) const uint EXPERTS = 0; // 1: row y is a pair (token, choice); 2: a token, k runs over its choices
layout(constant_id = 12) const uint TOP_K = 1;
layout(constant_id = 13) const uint N_EXPERTS = 0; // above 0: each workgroup ranks the logits itself; 0: ids and shares are given
layout(constant_id = 14) const uint RENORM = 0;
layout(constant_id = 15) const uint MIXED = 0;   // dot of mixed sign is fast: high nibbles need no shift
layout(push_constant) uniform P {
    W4 w; W1 s; F4 x; F4 nw; X4 xq; OF1 y; F1 add; F1 bias;
    I1 rows;                 // gather: the row of x; experts: ids [token][TOP_K]
    F1 logits;               // [token][ldl], or the shares [token][TOP_K] of the choices
    uint n, n0, ldx, ldy, lda, m, ldl;
    float eps;
};
#include "moe_rank.glsl"
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4452) int sudot(uint a, uint b, spirv_literal int fmt);
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450) int sdot(uint a, uint b, spirv_literal int fmt);

const uint KC = K / 32, CL = (KC + SG - 1) / SG, NS = WG / SG, HELD = INPUT == 0 ? 1 : KC * R;
const uint EC = EXPERTS == 2 ? KC / TOP_K : KC; // chunks of one row of W
const uint ORDER = CLS == 1 ? ORDER_BYTES : ORDER_NIBBLES;
const bool FULL = KC % SG == 0; // every lane has a chunk in every step
const float HIGH16 = CLS != 1 && MIXED != 0 ? 0.0625 : 1.0; // high nibbles count 16-fold
shared uvec4 plane0[HELD], plane1[HELD];
shared vec2 held[HELD];
shared float red[INPUT < 2 ? 1 : NS * R];

struct Chunk {
    uvec4 a;
#if CLS != 0
    uvec4 b; // CLS 2: x, y the high pairs
#endif
    uvec2 s;
};

uint weight_row(uint col, uint r, uint cols) { return SILU != 0 ? (r & 1) * cols + col : col; }

Chunk chunk_load(uint row, uint c)
{
    Chunk k;
    k.s = scale_load(s, row, c * 2);
#if CLS == 1
    k.a = w.v[row * (WS / 4) + c * 2];
    k.b = w.v[row * (WS / 4) + c * 2 + 1];
#else
    k.a = w.v[row * (WS / 4) + c];
#endif
#if CLS == 2
    k.b = uvec4(W2(w).v[row * (WS / 2) + EC * 2 + c], 0, 0);
#endif
    return k;
}

int dots(uvec4 x, uvec4 w) { return sdot(x.x, w.x, 0) + sdot(x.y, w.y, 0) + sdot(x.z, w.z, 0) + sdot(x.w, w.w, 0); }
int udots(uvec4 x, uvec4 w) { return sudot(x.x, w.x, 0) + sudot(x.y, w.y, 0) + sudot(x.z, w.z, 0) + sudot(x.w, w.w, 0); }

// One row of W's 32 products with a chunk of activations.
float chunk_dot(Chunk k, uint c, uvec4 x0, uvec4 x1, vec2 f)
{
#if CLS == 0
    const vec2 sc = scale_decode(k.s, c * 2);
    if (LAYOUT == GPU_LAYOUT_E4) {
        uvec4 lo, hi;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            lo[i] = e2m1_bytes(k.a[i] & 0x0f0f0f0fu);
            hi[i] = e2m1_bytes(k.a[i] >> 4 & 0x0f0f0f0fu);
        }
        return sc.x * (0.5 / HIGH16) * f.x * float(dots(x0, lo) + dots(x1, hi));
    }
    const int i = MIXED != 0 ? udots(x0, k.a & 0x0f0f0f0fu) * 16 + udots(x1, k.a & 0xf0f0f0f0u)
                             : dots(x0, k.a & 0x0f0f0f0fu) + dots(x1, k.a >> 4 & 0x0f0f0f0fu);
    if (LAYOUT == GPU_LAYOUT_S4)
        return sc.x * (float(i) * f.x - 8.0 * f.y);
    return sc.x * (float(i) * f.x) + sc.y * f.y;
#elif CLS == 1
    const vec2 sc = scale_decode(k.s, c * 2);
    const uint flip = LAYOUT == GPU_LAYOUT_A8 ? 0x80808080u : 0; // u8 as int8: 128 less
    const float fi = float(dots(x0, k.a ^ flip) + dots(x1, k.b ^ flip)) * f.x;
    return LAYOUT == GPU_LAYOUT_A8 ? sc.x * (fi + 128.0 * f.y) + sc.y * f.y : sc.x * fi;
#else
    int sum[2];
    [[unroll]] for (uint h = 0; h < 2; h++) {
        sum[h] = 0;
        [[unroll]] for (uint j = 0; j < 2; j++) {
            const uint i = h * 2 + j, t = spread_nibbles(k.b[h] >> j * 16 & 0xffffu);
            // 96 + q has no carry between bytes; with the top bit flipped it is q - 32
            const uint lo = ((k.a[i] & 0x0f0f0f0fu | (t & 0x03030303u) << 4) + 0x60606060u) ^ 0x80808080u;
            const uint hi = ((k.a[i] >> 4 & 0x0f0f0f0fu | (t & 0x0c0c0c0cu) << 2) + 0x60606060u) ^ 0x80808080u;
            sum[h] += sdot(x0[i], lo, 0) + sdot(x1[i], hi, 0);
        }
    }
    const float d = unpackHalf2x16(k.s.y).x * (1.0 / HIGH16) * f.x;
    const uint sc = k.s.x >> (c & 1) * 16;
    return d * float((int(sc << 24) >> 24) * sum[0] + (int(sc << 16) >> 24) * sum[1]);
#endif
}

// x, normed, into shared memory as int8; what the sums need from the norm is in inv.
void quantise(uint token, inout float inv[R])
{
    const uint tid = gl_LocalInvocationID.x;
    float sq[R];
    [[unroll]] for (uint q = 0; q < R; q++)
        sq[q] = 0.0;
    for (uint u0 = 0; u0 < KC * 4; u0 += WG) { // the same number of turns for all
        const uint u = u0 + tid;
        [[unroll]] for (uint q = 0; q < R; q++) {
            vec4 a = vec4(0), b = vec4(0);
            if (u < KC * 4) {
                uint row = min(gl_WorkGroupID.y * R + q, m - 1), at = u * 2;
                if ((FLAGS & 4) != 0)
                    row = uint(rows.v[row]);
                if (EXPERTS == 1)
                    row = token;
                if (EXPERTS == 2) { // row token * TOP_K + choice
                    row = token * TOP_K + u / (EC * 4);
                    at = u % (EC * 4) * 2;
                }
                a = x.v[row * (ldx / 4) + at];
                b = x.v[row * (ldx / 4) + at + 1];
                if (INPUT >= 2)
                    sq[q] += dot(a, a) + dot(b, b);
                if (INPUT == 2) {
                    a *= nw.v[u * 2];
                    b *= nw.v[u * 2 + 1];
                }
                if (EXPERTS == 2) {
                    const uint choice = u / (EC * 4);
                    const float share = N_EXPERTS != 0 ? rank_share[choice] : logits.v[token * TOP_K + choice];
                    a *= share;
                    b *= share;
                }
            }
            uvec2 words;
            vec2 f;
            quant8(a, b, ORDER, words, f);
            if (u < KC * 4) {
                const uint at = q * KC + u / 4, i = u & 3;
                if (ORDER == ORDER_NIBBLES) {
                    plane0[at][i] = words.x;
                    plane1[at][i] = words.y;
                } else if (i < 2) {
                    plane0[at][i * 2] = words.x;
                    plane0[at][i * 2 + 1] = words.y;
                } else {
                    plane1[at][i * 2 - 4] = words.x;
                    plane1[at][i * 2 - 3] = words.y;
                }
                if (i == 0)
                    held[at] = vec2(f.x * HIGH16, f.y);
            }
        }
    }
    if (INPUT >= 2)
        [[unroll]] for (uint q = 0; q < R; q++) {
            const float v = subgroupAdd(sq[q]);
            if (gl_SubgroupInvocationID == 0)
                red[q * NS + gl_SubgroupID] = v;
        }
    barrier();
    if (INPUT >= 2)
        [[unroll]] for (uint q = 0; q < R; q++) {
            float v = 0.0;
            for (uint i = 0; i < NS; i++)
                v += red[q * NS + i];
            inv[q] = 1.0 / sqrt(v / float(K) + eps);
        }
}

void main()
{
    const uint lane = gl_SubgroupInvocationID, sg = gl_SubgroupID;
    const uint row0 = gl_WorkGroupID.y * R;
    const uint cols = SILU != 0 ? n / 2 : n, CB = SILU != 0 ? RW / 2 : RW, nb = (cols + CB - 1) / CB;
    const uint b0 = gl_WorkGroupID.x * nb / gl_NumWorkGroups.x, b1 = (gl_WorkGroupID.x + 1) * nb / gl_NumWorkGroups.x;
    const uint turns = (b1 - b0 + NS - 1) / NS * CL; // equal for all subgroups
    const uint token = EXPERTS == 1 ? row0 / TOP_K : row0;
    uint first = 0;
    Chunk ww[D * RW];
#define LOAD(d, t)                                                                                 \
    {                                                                                              \
        const uint blk_ = b0 + sg + (t) / CL * NS, c_ = (t) % CL * SG + lane;                      \
        const bool have_ = (t) < turns && blk_ < b1 && (FULL || c_ < KC);                                    \
        uint e_ = first;                                                                           \
        if (EXPERTS == 2)                                                                          \
            e_ = have_ ? (N_EXPERTS != 0 ? rank_id[c_ / EC] : uint(rows.v[token * TOP_K + c_ / EC])) * n : 0; \
        [[unroll]] for (uint r_ = 0; r_ < RW; r_++) {                                              \
            const uint col_ = min(blk_ * CB + (SILU != 0 ? r_ / 2 : r_), cols - 1);                \
            if (have_)                                                                             \
                ww[(d) * RW + r_] = chunk_load(e_ + weight_row(col_, r_, cols), EXPERTS == 2 ? c_ % EC : c_); \
        }                                                                                          \
    }
    if (EXPERTS == 0)
        [[unroll]] for (uint d = 0; d < D; d++)
            LOAD(d, d)
    if (N_EXPERTS != 0)
        rank_experts(logits, token * ldl, EXPERTS == 2);
    if (EXPERTS == 1)
        first = (N_EXPERTS != 0 ? rank_id[row0 % TOP_K] : uint(rows.v[row0])) * n;
    if (EXPERTS != 0)
        [[unroll]] for (uint d = 0; d < D; d++)
            LOAD(d, d)
    float inv[R];
    [[unroll]] for (uint q = 0; q < R; q++)
        inv[q] = 1.0;
    if (INPUT != 0)
        quantise(token, inv);
    float acc[RW * R];
    [[unroll]] for (uint i = 0; i < RW * R; i++)
        acc[i] = 0.0;
    for (uint t = 0; t < turns; t += D) {
        [[unroll]] for (uint d = 0; d < D; d++) {
            const uint c = (t + d) % CL * SG + lane, blk = b0 + sg + (t + d) / CL * NS;
            const bool have = t + d < turns && (FULL || c < KC);
            if (have) {
                [[unroll]] for (uint q = 0; q < R; q++) {
                    uvec4 x0, x1;
                    vec2 f;
                    if (INPUT == 0) {
                        const uint row = min(row0 + q, m - 1);
                        x0 = xq.v[(row * KC + c) * 2];
                        x1 = xq.v[(row * KC + c) * 2 + 1];
                        f = F2(xq).v[m * KC * 4 + row * KC + c];
                    } else {
                        x0 = plane0[q * KC + c];
                        x1 = plane1[q * KC + c];
                        f = held[q * KC + c];
                    }
                    [[unroll]] for (uint r = 0; r < RW; r++)
                        acc[r * R + q] += chunk_dot(ww[d * RW + r], EXPERTS == 2 ? c % EC : c, x0, x1, f);
                }
            }
            LOAD(d, t + d + D)
            if (t + d < turns && (t + d) % CL == CL - 1) { // the end of RW rows
                [[unroll]] for (uint i = 0; i < RW * R; i++)
                    acc[i] = subgroupAdd(acc[i]) * inv[i % R];
                if (lane == 0 && blk < b1)
                    [[unroll]] for (uint q = 0; q < R; q++)
                        [[unroll]] for (uint r = 0; r < RW; r++) {
                            const uint col = blk * CB + (SILU != 0 ? r / 2 : r), row = row0 + q;
                            if (col >= cols || row >= m || (SILU != 0 && (r & 1) != 0))
                                continue;
                            float v = acc[r * R + q];
                            if ((FLAGS & 2) != 0)
                                v += bias.v[n0 + col];
                            if (SILU != 0) {
                                float up = acc[(r + 1) % RW * R + q];
                                if ((FLAGS & 2) != 0)
                                    up += bias.v[n0 + cols + col];
                                v = silu(v) * up;
                            }
                            if ((FLAGS & 1) != 0)
                                v += add.v[row * lda + n0 + col];
                            y.v[row * ldy + n0 + col] = v;
                        }
                [[unroll]] for (uint i = 0; i < RW * R; i++)
                    acc[i] = 0.0;
            }
        }
    }
}
