// conv.comp: causal depthwise convolution and SiLU, each row and channel alone. Inputs from before
// the segment come from its state, which conv_state.comp moves on afterwards.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
#include "state.glsl"
layout(constant_id = 2) const uint WIDTH = 4; // taps

layout(push_constant) uniform P
{
    F1 x;
    F1 w; // [channels][WIDTH]
    I1 words;
    OF1 state; // [channels][WIDTH - 1], oldest first
    OF1 y;
    uint ldx, ldy, channels;
    uint seg, segs; // words: segment of row 0; the first segment
    uint state_floats, state_offset;
};

void main()
{
    const uint c = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
    const int s = words.v[seg + r];
    if (c >= channels || s < 0)
        return;
    const uint at = segs + uint(s) * GPU_SEG_WORDS;
    const int i = int(r) - words.v[at + GPU_SEG_ROW0]; // row of the segment
    const int slot = words.v[at + GPU_SEG_STATE_IN];
    OF1 old = state_at(state, max(slot, 0), state_floats, state_offset);
    float sum = 0;
    [[unroll]] for (int t = 0; t < int(WIDTH); t++) {
        const int from = i + t - int(WIDTH - 1);
        float v = 0;
        if (from >= 0)
            v = x.v[uint(int(r) + from - i) * ldx + c];
        else if (slot >= 0)
            v = old.v[c * (WIDTH - 1) + uint(from + int(WIDTH - 1))];
        sum += w.v[c * WIDTH + uint(t)] * v;
    }
    y.v[r * ldy + c] = silu(sum);
}
