// begin.comp: copies the step block of this step from host memory to the device's. Tokens below 0
// become those last sampled into the slot they name.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"

layout(push_constant) uniform P
{
    W1 host;    // [ring][stride] words
    OI1 words;  // the block
    I1 count;   // steps so far
    I1 sampled; // [slots]
    uint ring, stride;
    uint tokens, rows; // words that are tokens
};

void main()
{
    const uint from = uint(count.v[0]) % ring * stride;
    const uint n = host.v[from + GPU_STEP_WORDS];
    for (uint i = gl_GlobalInvocationID.x; i < n; i += gl_NumWorkGroups.x * WG) {
        int w = int(host.v[from + i]);
        if (i >= tokens && i - tokens < rows && w < 0)
            w = sampled.v[-1 - w];
        words.v[i] = w;
    }
}
