// rope_table.comp: cosine and sine of each row's position times each frequency.
// A frequency comes as turns per position in 64-bit fixed point, so that the angle is an exact
// product modulo one turn: f32 angles would be wrong by 0.004 at position 100,000. Sine and cosine
// are polynomials of our own: Vulkan promises only 2^-11 of its own.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"

layout(push_constant) uniform P
{
    I1 words;
    W2 turns; // [half] low, high
    OF2 table; // [rows][half] cos, sin
    uint pos;  // word of row 0's position
    uint rows, half_dim;
    float scale;
};

void main()
{
    const uint i = gl_GlobalInvocationID.x;
    if (i >= rows * half_dim)
        return;
    const uint p = uint(words.v[pos + i / half_dim]);
    const uvec2 t = turns.v[i % half_dim];
    uint high, low;
    umulExtended(p, t.x, high, low);
    const uint angle = p * t.y + high; // of 2^32 a turn
    const uint quarter = (angle + 0x20000000u) >> 30;
    precise const float r = float(int(angle - (quarter << 30))) * 1.4629180792671596e-9; // 2 pi / 2^32
    precise const float z = r * r;
    precise const float s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * r + r;
    precise const float c = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z - 0.5 * z + 1.0;
    const vec2 cs = (quarter & 1u) != 0 ? vec2(-s, c) : vec2(c, s);
    table.v[i] = ((quarter & 2u) != 0 ? -cs : cs) * scale;
}
