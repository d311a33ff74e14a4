// delta.comp: the gated delta rule. LANES neighbouring invocations hold one column of a head's state
// [K][v_dim] in registers and go through the segment's rows; columns never meet, so there is no
// barrier. The norms of q and k fall out of the same reads.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
#include "state.glsl"
layout(constant_id = 2) const uint K = 128;
layout(constant_id = 3) const uint LANES = 4; // 1, 2 or 4; divides K
layout(constant_id = 4) const uint V = 128;

layout(push_constant) uniform P
{
    F1 qkv; // q heads, k heads, v heads
    F1 a;
    F1 b;
    F1 a_log;
    F1 dt_bias;
    I1 words;
    OF1 state;
    OF1 y;
    uint ldx, lda, ldb, ldy;
    uint k_heads, share; // v heads; v heads of one k head
    uint segs;
    uint state_floats, state_offset;
};

float softplus(float x) { return max(x, 0.0) + (abs(x) > 15.0 ? exp(-abs(x)) : log(1.0 + exp(-abs(x)))); }

float lanes_add(float v)
{
    if (LANES > 1)
        v += subgroupShuffleXor(v, 1);
    if (LANES > 2)
        v += subgroupShuffleXor(v, 2);
    return v;
}

void main()
{
    const uint per = WG / LANES; // columns of a workgroup
    const uint blocks = (V + per - 1) / per;
    const uint h = gl_WorkGroupID.x / blocks, s = gl_WorkGroupID.y;
    const uint col = gl_WorkGroupID.x % blocks * per + gl_LocalInvocationID.x / LANES;
    const uint lane = gl_LocalInvocationID.x % LANES;
    if (s >= uint(words.v[GPU_STEP_N_SEGS]))
        return;
    const bool mine = col < V;
    const uint j = mine ? col : 0; // the others read what is there and write nothing
    const uint at = segs + s * GPU_SEG_WORDS;
    const uint row0 = uint(words.v[at + GPU_SEG_ROW0]), n = uint(words.v[at + GPU_SEG_N_ROWS]);
    const int slot = words.v[at + GPU_SEG_STATE_IN];
    const uint head = state_offset + h * K * V;
    OF1 old = state_at(state, max(slot, 0), state_floats, head);
    OF1 next = state_at(state, words.v[at + GPU_SEG_STATE_OUT], state_floats, head);
    float st[K / LANES];
    for (uint i = 0; i < K / LANES; i++)
        st[i] = slot < 0 ? 0.0 : old.v[(i * LANES + lane) * V + j];
    const uint kh = h / share;
    const float rate = -exp(a_log.v[h]), bias = dt_bias.v[h];
    for (uint r = row0; r < row0 + n; r++) {
        const uint q0 = r * ldx + kh * K, k0 = q0 + k_heads * K;
        const float decay = exp(rate * softplus(a.v[r * lda + h] + bias));
        const float beta = 1.0 / (1.0 + exp(-b.v[r * ldb + h]));
        float qq = 0, kk = 0, seen = 0;
        for (uint i = 0; i < K / LANES; i++) {
            const float q = qkv.v[q0 + i * LANES + lane], k = qkv.v[k0 + i * LANES + lane];
            qq += q * q;
            kk += k * k;
            seen += k * st[i];
        }
        const float qs = 1.0 / sqrt((lanes_add(qq) + 1e-6) * float(K));
        const float ks = 1.0 / sqrt(lanes_add(kk) + 1e-6);
        const float v = qkv.v[r * ldx + 2 * k_heads * K + h * V + j];
        const float diff = beta * (v - lanes_add(seen) * ks * decay) * ks;
        float sum = 0;
        for (uint i = 0; i < K / LANES; i++) {
            st[i] = st[i] * decay + qkv.v[k0 + i * LANES + lane] * diff;
            sum += qkv.v[q0 + i * LANES + lane] * st[i];
        }
        sum = lanes_add(sum) * qs;
        if (mine && lane == 0)
            y.v[r * ldy + h * V + j] = sum;
    }
    if (mine)
        for (uint i = 0; i < K / LANES; i++)
            next.v[(i * LANES + lane) * V + j] = st[i];
}
