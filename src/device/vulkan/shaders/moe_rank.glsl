// moe_rank.glsl: a token's experts, as route_softmax chooses them: the TOP_K largest logits (equal
// ones: lower id first; NaN counts as -infinity), shares by softmax over all or over the chosen.
// A workgroup ranks all logits itself: each has as its rank the number of those before it.
//
// Wants N_EXPERTS, TOP_K (at most 16), RENORM, WG, SG.
const uint RANK_QUADS = (N_EXPERTS + 3) / 4;
const uint RANK_LANES = WG >= 4 * N_EXPERTS ? 4 : WG >= 2 * N_EXPERTS ? 2 : 1; // for one logit
shared vec4 rank_logit[N_EXPERTS == 0 ? 1 : RANK_QUADS];
shared uint rank_id[16];
shared float rank_top[16];
shared float rank_share[16];
shared float rank_part[128];

// The token's logits begin at `at`. All see the results after the call (shares: only if wanted).
void rank_experts(F1 logits, uint at, const bool shares)
{
    const uint tid = gl_LocalInvocationID.x;
    const float none = uintBitsToFloat(0xff800000u);
    EACH(i, RANK_QUADS * 4) {
        const float l = i < N_EXPERTS ? logits.v[at + i] : none;
        rank_logit[i / 4][i % 4] = isnan(l) ? none : l;
    }
    barrier();
    for (uint base = 0; base < N_EXPERTS; base += WG / RANK_LANES) {
        const uint e = min(base + tid / RANK_LANES, N_EXPERTS - 1);
        const float me = rank_logit[e / 4][e % 4];
        uint rank = 0;
        for (uint o0 = 0; o0 < RANK_QUADS; o0 += RANK_LANES) {
            const uint o = o0 + tid % RANK_LANES;
            const vec4 l = rank_logit[min(o, RANK_QUADS - 1)];
            [[unroll]] for (uint i = 0; i < 4; i++)
                rank += uint(o < RANK_QUADS && (l[i] > me || (l[i] == me && o * 4 + i < e)));
        }
        if (RANK_LANES > 1)
            rank += subgroupShuffleXor(rank, 1);
        if (RANK_LANES > 2)
            rank += subgroupShuffleXor(rank, 2);
        if (rank < TOP_K && tid % RANK_LANES == 0 && base + tid / RANK_LANES < N_EXPERTS) {
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
