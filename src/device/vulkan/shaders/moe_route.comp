#version 460
// A token's experts and their shares: ids, shares [token][TOP_K], a token a workgroup.
#include "lin_base.glsl"
layout(constant_id = 2) const uint N_EXPERTS = 8;
layout(constant_id = 3) const uint TOP_K = 1;
layout(constant_id = 4) const uint RENORM = 0;
layout(push_constant) uniform P { F1 logits; OI1 ids; OF1 shares; uint ldl; };
#include "moe_rank.glsl"

void main()
{
    const uint token = gl_WorkGroupID.x, tid = gl_LocalInvocationID.x;
    rank_experts(logits, token * ldl, true);
    if (tid < TOP_K) {
        ids.v[token * TOP_K + tid] = int(rank_id[tid]);
        shares.v[token * TOP_K + tid] = rank_share[tid];
    }
}
