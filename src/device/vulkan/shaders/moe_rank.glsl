// moe_rank.glsl: a token's experts, as route_softmax chooses them: the TOP_K largest logits (equal
// ones: lower id first; NaN counts as -infinity), shares by softmax over all or over the chosen.
// A workgroup ranks all logits itself: each has as its rank the number of those before it.
//
// Wants N_EXPERTS, TOP_K (at most 16), RENORM, WG, SG.
shared float rank_logit[N_EXPERTS == 0 ? 1 : (N_EXPERTS + 3) / 4 * 4];
shared uint rank_id[16];
shared float rank_top[16];
shared float rank_share[16];
shared float rank_part[128];

// The token's logits begin at `at`. All see the results after the call (shares: only if wanted).
void rank_experts(F1 logits, uint at, const bool shares)
{
    const uint tid = gl_LocalInvocationID.x, padded = (N_EXPERTS + 3) / 4 * 4;
    const float none = uintBitsToFloat(0xff800000u);
    EACH(i, padded) {
        const float l = i < N_EXPERTS ? logits.v[at + i] : none;
        rank_logit[i] = isnan(l) ? none : l;
    }
    barrier();
    for (uint base = 0; base < N_EXPERTS; base += WG) {
        const uint e = min(base + tid, N_EXPERTS - 1);
        const float me = rank_logit[e];
        uint rank = base + tid < N_EXPERTS ? 0 : TOP_K;
        for (uint o = 0; o < padded; o += 4)
            [[unroll]] for (uint i = 0; i < 4; i++) {
                const float l = rank_logit[o + i];
                rank += uint(l > me || (l == me && o + i < e));
            }
        if (rank < TOP_K) {
            rank_id[rank] = e;
            rank_top[rank] = me;
        }
    }
    barrier();
    if (!shares)
        return;
    float sum = 0.0;
    const float top = rank_top[0];
    if (RENORM != 0) {
        for (uint i = 0; i < TOP_K; i++)
            sum += exp(rank_top[i] - top);
    } else {
        EACH(e, N_EXPERTS)
            sum += exp(logits.v[at + e] - top);
        sum = subgroupAdd(sum);
        if (gl_SubgroupInvocationID == 0)
            rank_part[gl_SubgroupID] = sum;
        barrier();
        sum = 0.0;
        for (uint i = 0; i < WG / SG; i++)
            sum += rank_part[i];
    }
    if (tid < TOP_K)
        rank_share[tid] = exp(rank_top[tid] - top) / sum;
    barrier();
}
