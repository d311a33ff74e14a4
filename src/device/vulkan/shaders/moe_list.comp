#version 460
// The work list of the experts' tiles (lin_tile.glsl), by one workgroup: pairs (token, choice)
// sorted by expert, then tiles of up to BM pairs of one expert. Which pair comes first within an
// expert is left to chance: no result depends on it.
#include "lin_base.glsl"
layout(constant_id = 2) const uint N_EXPERTS = 8;
layout(constant_id = 3) const uint TOP_K = 1;
layout(constant_id = 4) const uint BM = 32;
layout(push_constant) uniform P {
    I1 ids;   // [token][TOP_K]
    I1 limit; // how many tokens are meant
    OI1 list;
    uint m, list_pairs;
};
shared uint count[N_EXPERTS], start[N_EXPERTS], tiles[N_EXPERTS], most;

void main()
{
    const uint tid = gl_LocalInvocationID.x, pairs = min(m, uint(limit.v[0])) * TOP_K;
    EACH(i, N_EXPERTS)
        count[i] = 0;
    barrier();
    EACH(j, pairs)
        atomicAdd(count[ids.v[j]], 1);
    barrier();
    if (tid == 0) {
        uint at = 0, tile = 0, largest = 0;
        for (uint e = 0; e < N_EXPERTS; e++) {
            start[e] = at;
            tiles[e] = tile;
            at += count[e];
            largest = max(largest, count[e]);
            tile += (count[e] + BM - 1) / BM;
        }
        list.v[0] = int(tile);
        most = largest;
    }
    barrier();
    for (uint base = 0; base < N_EXPERTS; base += WG)
        for (uint i = 0; i * BM < most; i++) {
            const uint e = min(base + tid, N_EXPERTS - 1), at = 4 + (tiles[e] + i) * 4;
            if (i * BM >= count[e])
                continue;
            list.v[at] = int(e);
            list.v[at + 1] = int(start[e] + i * BM);
            list.v[at + 2] = int(min(count[e] - i * BM, BM));
        }
    barrier();
    EACH(p, pairs)
        list.v[list_pairs + atomicAdd(start[ids.v[p]], 1)] = int(p);
}
