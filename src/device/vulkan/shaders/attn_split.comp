#version 460
// Attention of single rows: a query head and a part of the cache a workgroup of 128, 64 keys at a
// time: two threads a key for the scores, then eight dims of v a thread. The last workgroup of a
// head (by ticket) joins the parts. Grid: x query heads, y parts, z rows (or segments).
//
// One query head a workgroup: its kv head's other query heads read the same keys from the L2.
#include "attn_base.glsl"
layout(buffer_reference, std430, buffer_reference_align = 4) devicecoherent buffer CF1 { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) devicecoherent buffer CU1 { uint v[]; };
layout(push_constant) uniform P {
    F1 q; // FOLD: as the product left it; else [row][HQ][HD] of attn_prep
    F1 k; F1 v; F1 q_norm; F1 k_norm; F2 rope; // FOLD
    I1 step; W4 kc; W4 vc;
    CF1 part; // [z][HQ][SPLITS][VD + 2]: sum of v, then maximum and sum
    F1 sinks; OF1 y; CU1 tickets; // [z][HQ]
    uint ldy;
    float scale, softcap, q_eps, k_eps;
};
const bool AHEAD = !KV_F32 && HD <= 256; // keys are loaded a tile ahead
const uint KEYS = 64, KU = (HD / 8 + 1) / 2, DU = VD / 8, NG = WG / DU, NS = WG / SG, NV = (KEYS + NG - 1) / NG;
shared vec4 qs[HD / 4];
shared float ks[FOLD ? HD : 1], p[KEYS], maxima[64], sums[64];
shared vec4 va[NG * DU * 2];
shared float joined[2][32]; // of the parts: maxima, then weights; sums
shared uint ticket;

// Keys that are not seen: another's is read and dropped, so that no load waits for a branch.
uint slot_of(uint page_slot, uint pages, uint tile, uint token)
{
    return PT >= KEYS ? page_slot + (token - tile * KEYS) : kv_slot(step, pages, token);
}

uint slot_of_tile(uint pages, uint tile) { return PT >= KEYS ? kv_slot(step, pages, tile * KEYS) : 0; }

void main()
{
    const uint t = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, split = gl_WorkGroupID.y, z = gl_WorkGroupID.z;
    const uint kh = head / (HQ / HK), lane = gl_SubgroupInvocationID;
    if (BY_SEGMENT && z >= uint(step.v[GPU_STEP_N_SEGS]))
        return;
    const int of_row = FOLD ? 0 : BY_SEGMENT ? int(z) : step.v[SEG_AT + z];
    if (of_row < 0)
        return;
    const uint seg = SEGS_AT + uint(of_row) * GPU_SEG_WORDS;
    const uint seg_row0 = uint(step.v[seg + GPU_SEG_ROW0]), seg_rows = uint(step.v[seg + GPU_SEG_N_ROWS]);
    if (BY_SEGMENT && seg_rows != 1)
        return;
    const uint row = BY_SEGMENT ? seg_row0 : z, pages = uint(step.v[seg + GPU_SEG_PAGES + KV_GROUP]);
    const uint pos = uint(step.v[seg + GPU_SEG_KV_LEN]) - seg_rows + (row - seg_row0);
    const uint from = WINDOW != 0 && pos >= WINDOW ? pos - WINDOW + 1 : 0;
    const uint tile0 = from / KEYS, n_tiles = pos / KEYS + 1 - tile0;
    const uint per = (n_tiles + SPLITS - 1) / SPLITS, parts = (n_tiles + per - 1) / per;
    if (split >= parts)
        return;
    const uint first = tile0 + split * per, last = min(first + per, tile0 + n_tiles);
    const bool own = FOLD && last == tile0 + n_tiles; // the new key is among this part's

    uvec4 kk[16];
    uint page_slot = slot_of_tile(pages, first);
#define LOAD_KEYS(tile)                                                                            \
    {                                                                                              \
        const uint key_ = clamp((tile) * KEYS + t / 2, from, pos);                                 \
        const uint at_ = kv_unit(slot_of(page_slot, pages, tile, key_), kh, HD);                   \
        [[unroll]] for (uint i_ = 0; i_ < 16; i_++)                                                \
            if (i_ < KU)                                                                           \
                kk[i_] = kc.v[at_ + min(i_ * 2 + (t & 1), HD / 8 - 1)];                            \
    }
    if (AHEAD)
        LOAD_KEYS(first)
    if (FOLD) {
        const float inv = head_inv(q, head * HD, Q_NORM, q_eps);
        EACH(d, HD)
            qs[d / 4][d & 3] = head_value(q, head * HD, q_norm, Q_NORM, inv, rope, 0, d) * scale;
        if (own) {
            const float kinv = head_inv(k, kh * HD, K_NORM, k_eps);
            const int slot = head % (HQ / HK) == 0 ? step.v[SLOTS_AT] : -1;
            EACH(i, HD / 2) {
                const vec2 x = vec2(head_value(k, kh * HD, k_norm, K_NORM, kinv, rope, 0, i * 2),
                                    head_value(k, kh * HD, k_norm, K_NORM, kinv, rope, 0, i * 2 + 1));
                const vec2 r = kv_rounded(x);
                ks[i * 2] = r.x;
                ks[i * 2 + 1] = r.y;
                if (slot >= 0)
                    kv_store2(OU1(kc), uint(slot), kh, HD, i, x);
            }
            EACH(j, VD / 2)
                if (slot >= 0)
                    kv_store2(OU1(vc), uint(slot), kh, VD, j, vec2(v.v[kh * VD + j * 2], v.v[kh * VD + j * 2 + 1]));
        }
    } else {
        EACH(d, HD)
            qs[d / 4][d & 3] = q.v[(row * HQ + head) * HD + d] * scale;
    }
    barrier();

    const uint g = t / DU, du = t % DU; // of v: keys g, g + NG, ..., dims 8 du ..; g >= NG: idle copies
    vec4 acc0 = vec4(0), acc1 = vec4(0);
    float m = LOWEST, l = 0.0;
    for (uint tile = first; tile < last; tile++) {
        const uint key = tile * KEYS + t / 2;
        const bool seen = key >= from && key <= pos;
        if (!AHEAD)
            page_slot = slot_of_tile(pages, tile);
        uvec4 vv[8]; // the first values, loaded before the softmax needs them
        if (!KV_F32)
            [[unroll]] for (uint i = 0; i < 8; i++)
                if (i < NV)
                    vv[i] = vc.v[kv_unit(slot_of(page_slot, pages, tile, clamp(tile * KEYS + min(g + i * NG, KEYS - 1), from, pos)), kh, VD) + du];
        float s = 0.0;
        if (AHEAD) {
            [[unroll]] for (uint i = 0; i < 16; i++) {
                const uint u = i * 2 + (t & 1);
                if (i < KU && u < HD / 8)
                    s += dot(vec4(unpackHalf2x16(kk[i].x), unpackHalf2x16(kk[i].y)), qs[u * 2]) +
                         dot(vec4(unpackHalf2x16(kk[i].z), unpackHalf2x16(kk[i].w)), qs[u * 2 + 1]);
            }
            if (tile + 1 < last) {
                page_slot = slot_of_tile(pages, tile + 1);
                LOAD_KEYS(tile + 1)
            }
        } else {
            const uint at = kv_unit(slot_of(page_slot, pages, tile, clamp(key, from, pos)), kh, HD);
            for (uint i = 0; i < KU; i++) {
                const uint u = i * 2 + (t & 1);
                vec4 a, b;
                kv_load8(kc, at + min(u, HD / 8 - 1), a, b);
                if (u < HD / 8)
                    s += dot(a, qs[u * 2]) + dot(b, qs[u * 2 + 1]);
            }
        }
        if (FOLD && own && tile == pos / KEYS) {
            float x = 0.0;
            for (uint i = 0; i < HD / 2; i++) {
                const uint d = (t & 1) * (HD / 2) + i;
                x += qs[d / 4][d & 3] * ks[d];
            }
            s = key == pos ? x : s;
        }
        s += subgroupShuffleXor(s, 1);
        if (SOFTCAP)
            s = softcap * tanh(s / softcap);
        if (!seen)
            s = LOWEST;
        const float tile_max = subgroupMax(s);
        if (lane == 0)
            maxima[gl_SubgroupID] = tile_max;
        barrier();
        float top = m;
        for (uint i = 0; i < NS; i++)
            top = max(top, maxima[i]);
        const float e = seen ? exp(s - top) : 0.0, sum = subgroupAdd((t & 1) == 0 ? e : 0.0);
        if ((t & 1) == 0)
            p[t / 2] = e;
        if (lane == 0)
            sums[gl_SubgroupID] = sum;
        barrier();
        const float shift = exp(m - top);
        m = top;
        l *= shift;
        for (uint i = 0; i < NS; i++)
            l += sums[i];
        acc0 *= shift;
        acc1 *= shift;
        if (!KV_F32)
            [[unroll]] for (uint i = 0; i < 8; i++) {
                const uint j = g + i * NG, token = tile * KEYS + j;
                if (i < NV && j < KEYS && token >= from && token <= pos && !(own && token == pos)) {
                    const float w = p[j];
                    acc0 += w * vec4(unpackHalf2x16(vv[i].x), unpackHalf2x16(vv[i].y));
                    acc1 += w * vec4(unpackHalf2x16(vv[i].z), unpackHalf2x16(vv[i].w));
                }
            }
        for (uint j0 = KV_F32 ? 0 : 8 * NG; j0 < KEYS; j0 += NG) {
            const uint j = j0 + g, token = tile * KEYS + j;
            if (j < KEYS && token >= from && token <= pos && !(own && token == pos)) {
                vec4 a, b;
                kv_load8(vc, kv_unit(kv_slot(step, pages, token), kh, VD) + du, a, b);
                acc0 += p[j] * a;
                acc1 += p[j] * b;
            }
        }
        if (FOLD && own && tile == pos / KEYS && pos % KEYS % NG == g) {
            const float w = p[pos % KEYS];
            const uint o = kh * VD + du * 8;
            acc0 += w * vec4(kv_rounded(vec2(v.v[o], v.v[o + 1])), kv_rounded(vec2(v.v[o + 2], v.v[o + 3])));
            acc1 += w * vec4(kv_rounded(vec2(v.v[o + 4], v.v[o + 5])), kv_rounded(vec2(v.v[o + 6], v.v[o + 7])));
        }
    }
    if (g < NG) {
        va[(g * DU + du) * 2] = acc0;
        va[(g * DU + du) * 2 + 1] = acc1;
    }
    barrier();
    const float sink = SINKS ? sinks.v[head] : LOWEST;
    const uint at = (z * HQ + head) * SPLITS * (VD + 2);
    for (uint base = 0; base < VD; base += WG) {
        const uint o = min(base + t, VD - 1);
        float sum = 0.0;
        for (uint i = 0; i < NG; i++)
            sum += va[i * DU * 2 + o / 4][o & 3];
        if (base + t >= VD)
            continue;
        if (parts == 1) {
            const float top = max(m, sink), w = exp(m - top);
            y.v[row * ldy + head * VD + o] = sum * w / (l * w + (SINKS ? exp(sink - top) : 0.0));
        } else {
            part.v[at + split * (VD + 2) + o] = sum;
        }
    }
    if (parts == 1)
        return;
    if (t == 0) {
        part.v[at + split * (VD + 2) + VD] = m;
        part.v[at + split * (VD + 2) + VD + 1] = l;
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    if (t == 0)
        ticket = atomicAdd(tickets.v[z * HQ + head], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                           gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    if (ticket != parts - 1)
        return;
    if (t < 32) { // one round trip for all parts
        joined[0][t] = t < parts ? part.v[at + t * (VD + 2) + VD] : LOWEST;
        joined[1][t] = t < parts ? part.v[at + t * (VD + 2) + VD + 1] : 0.0;
    }
    barrier();
    float top = sink;
    for (uint i = 0; i < parts; i++)
        top = max(top, joined[0][i]);
    barrier();
    if (t < 32)
        joined[0][t] = t < parts ? exp(joined[0][t] - top) : 0.0;
    barrier();
    float all = SINKS ? exp(sink - top) : 0.0;
    for (uint i = 0; i < parts; i++)
        all += joined[0][i] * joined[1][i];
    for (uint base = 0; base < VD; base += WG) {
        const uint d = min(base + t, VD - 1);
        float sum = 0.0;
        for (uint i = 0; i < parts; i += 8) {
            float x[8];
            [[unroll]] for (uint j = 0; j < 8; j++)
                x[j] = part.v[at + min(i + j, parts - 1) * (VD + 2) + d];
            [[unroll]] for (uint j = 0; j < 8; j++)
                sum += joined[0][i + j] * x[j];
        }
        if (base + t < VD)
            y.v[row * ldy + head * VD + d] = sum / all;
    }
    if (t == 0)
        tickets.v[z * HQ + head] = 0;
}
