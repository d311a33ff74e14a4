// conv_state.comp: a segment's last inputs become its state. In place when both slots are one: what
// is kept moves down.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
#include "state.glsl"
layout(constant_id = 2) const uint WIDTH = 4;

layout(push_constant) uniform P
{
    F1 x;
    I1 words;
    OF1 state;
    uint ldx, channels;
    uint segs;
    uint state_floats, state_offset;
};

void main()
{
    const uint c = gl_GlobalInvocationID.x, s = gl_WorkGroupID.y;
    if (c >= channels || s >= uint(words.v[GPU_STEP_N_SEGS]))
        return;
    const uint at = segs + s * GPU_SEG_WORDS;
    const int row0 = words.v[at + GPU_SEG_ROW0], n = words.v[at + GPU_SEG_N_ROWS];
    const int slot = words.v[at + GPU_SEG_STATE_IN];
    OF1 old = state_at(state, max(slot, 0), state_floats, state_offset);
    OF1 next = state_at(state, words.v[at + GPU_SEG_STATE_OUT], state_floats, state_offset);
    const int past = int(WIDTH) - 1;
    for (int t = 0; t < past; t++) {
        const int from = n - past + t; // row of the segment
        float v = 0;
        if (from >= 0)
            v = x.v[uint(row0 + from) * ldx + c];
        else if (slot >= 0)
            v = old.v[c * uint(past) + uint(n + t)];
        next.v[c * uint(past) + uint(t)] = v;
    }
}
