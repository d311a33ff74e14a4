#version 460
// Before attention, for steps of more than one row: q normed and rotated to work memory
// [row][HQ][HD], k likewise to its slot of the cache, v to its slot. A subgroup a head, a row.
// Grid: x over HQ + 2 HK heads, WG / SG at a time, y over rows.
#include "attn_base.glsl"
layout(push_constant) uniform P {
    F1 q; F1 k; F1 v; F1 q_norm; F1 k_norm; F2 rope; I1 step; OU1 kc; OU1 vc; OF1 out_q;
    uint ldq, ldk, ldv;
    float q_eps, k_eps;
};

void main()
{
    const uint row = gl_WorkGroupID.y, lane = gl_SubgroupInvocationID;
    const uint head = gl_WorkGroupID.x * (WG / SG) + gl_SubgroupID, angles = row * (ROT / 2);
    if (head >= HQ + 2 * HK)
        return;
    if (head < HQ) {
        const uint at = row * ldq + head * HD;
        const float inv = head_inv(q, at, Q_NORM, q_eps);
        for (uint d = lane; d < HD; d += SG)
            out_q.v[(row * HQ + head) * HD + d] = head_value(q, at, q_norm, Q_NORM, inv, rope, angles, d);
        return;
    }
    const int slot = step.v[SLOTS_AT + row];
    if (slot < 0)
        return;
    if (head < HQ + HK) {
        const uint kh = head - HQ, at = row * ldk + kh * HD;
        const float inv = head_inv(k, at, K_NORM, k_eps);
        for (uint i = lane; i < HD / 2; i += SG)
            kv_store2(kc, uint(slot), kh, HD, i,
                      vec2(head_value(k, at, k_norm, K_NORM, inv, rope, angles, i * 2),
                           head_value(k, at, k_norm, K_NORM, inv, rope, angles, i * 2 + 1)));
    } else {
        const uint kh = head - HQ - HK, at = row * ldv + kh * VD;
        for (uint i = lane; i < VD / 2; i += SG)
            kv_store2(vc, uint(slot), kh, VD, i, vec2(v.v[at + i * 2], v.v[at + i * 2 + 1]));
    }
}
