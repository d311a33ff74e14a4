#version 460
// Attention of many rows: QT consecutive query rows of a segment and one query head a workgroup of
// 256, KT keys at a time in shared memory, running softmax. Grid: x query heads, y tiles: those of
// the segments one after another, found by walking the segments.
#include "attn_base.glsl"
layout(push_constant) uniform P {
    F1 q; // [row][HQ][HD] of attn_prep
    I1 step; W4 kc; W4 vc; F1 sinks; OF1 y;
    uint ldy;
    float scale, softcap;
};
const uint QT = SPLITS; // rows of a tile; QT * max(HD, VD) <= 4096
const uint ED = HD > VD ? HD : VD, UNITS = KV_F32 ? ED / 4 + 1 : ED / 8 + 1, QP = HD / 4 + 1, SP = KT / 4 + 1;
const uint BOX = 4; // rows of the result a thread has, four dims each
shared vec4 qs[QT * QP];
shared uvec4 kv[KT * UNITS];
shared vec4 ss[QT * SP]; // scores, then weights
shared float tops[QT], sums[QT], shifts[QT];

void load_kv(W4 from, uint dim, I1 table, uint pages, uint kh, uint key0, uint lo, uint hi)
{
    const uint per = KV_F32 ? dim / 4 : dim / 8;
    EACH(i, KT * per) {
        const uint key = key0 + i / per;
        uvec4 x = uvec4(0);
        if (key >= lo && key <= hi)
            x = from.v[kv_unit(kv_slot(table, pages, key), kh, dim) * (KV_F32 ? 2 : 1) + i % per];
        kv[i / per * UNITS + i % per] = x;
    }
}

void main()
{
    const uint t = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, kh = head / (HQ / HK);
    uint tile = gl_WorkGroupID.y, seg = SEGS_AT, seg_rows = 0;
    const uint end = SEGS_AT + uint(step.v[GPU_STEP_N_SEGS]) * GPU_SEG_WORDS;
    for (; seg < end; seg += GPU_SEG_WORDS) {
        seg_rows = uint(step.v[seg + GPU_SEG_N_ROWS]);
        const uint n = BY_SEGMENT && seg_rows == 1 ? 0 : (seg_rows + QT - 1) / QT;
        if (tile < n)
            break;
        tile -= n;
    }
    if (seg >= end)
        return;
    const uint row0 = uint(step.v[seg + GPU_SEG_ROW0]) + tile * QT, rows = min(QT, seg_rows - tile * QT);
    const uint pos0 = uint(step.v[seg + GPU_SEG_KV_LEN]) - seg_rows + tile * QT, hi = pos0 + rows - 1;
    const uint pages = uint(step.v[seg + GPU_SEG_PAGES + KV_GROUP]);
    const uint lo = WINDOW != 0 && pos0 >= WINDOW ? pos0 - WINDOW + 1 : 0;

    EACH(i, QT * (HD / 4)) {
        const uint r = i / (HD / 4), d = i % (HD / 4);
        vec4 x = vec4(0);
        if (r < rows)
            x = F4(q).v[((row0 + r) * HQ + head) * (HD / 4) + d] * scale;
        qs[r * QP + d] = x;
    }
    EACH(o, QT) {
        tops[o] = LOWEST;
        sums[o] = 0.0;
    }
    // of the result: rows BOX * (t / VU) .., dims 4 * (t % VU) ..
    const uint VU = VD / 4, vu = t % VU, box = min(t / VU, QT / BOX - 1); // threads past the last: copies
    const bool has_box = t / VU < QT / BOX;
    vec4 acc[BOX];
    [[unroll]] for (uint i = 0; i < BOX; i++)
        acc[i] = vec4(0);

    for (uint key0 = lo / KT * KT; key0 <= hi; key0 += KT) {
        load_kv(kc, HD, step, pages, kh, key0, lo, hi);
        barrier();
        // scores: two rows (r, r + QT / 2) and a key a turn
        for (uint i0 = 0; i0 < QT / 2 * KT; i0 += WG) {
            const uint i = min(i0 + t, QT / 2 * KT - 1), j = i % KT, r = i / KT;
            vec2 s = vec2(0);
            if (KV_F32) {
                for (uint u = 0; u < HD / 4; u++) {
                    const vec4 k = uintBitsToFloat(kv[j * UNITS + u]);
                    s += vec2(dot(k, qs[r * QP + u]), dot(k, qs[(r + QT / 2) * QP + u]));
                }
            } else {
                for (uint u = 0; u < HD / 8; u++) {
                    const uvec4 w = kv[j * UNITS + u];
                    const vec4 a = vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)), b = vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w));
                    s.x += dot(a, qs[r * QP + u * 2]) + dot(b, qs[r * QP + u * 2 + 1]);
                    s.y += dot(a, qs[(r + QT / 2) * QP + u * 2]) + dot(b, qs[(r + QT / 2) * QP + u * 2 + 1]);
                }
            }
            if (SOFTCAP)
                s = softcap * tanh(s / softcap);
            const uint key = key0 + j;
            [[unroll]] for (uint h = 0; h < 2; h++) {
                const uint row = r + h * (QT / 2), pos = pos0 + row;
                const bool seen = row < rows && key <= pos && (WINDOW == 0 || key + WINDOW > pos);
                if (i0 + t < QT / 2 * KT)
                    ss[row * SP + j / 4][j & 3] = seen ? s[h] : LOWEST;
            }
        }
        barrier();
        load_kv(vc, VD, step, pages, kh, key0, lo, hi);
        { // softmax: eight lanes a row
            const uint r = min(t / 8, QT - 1);
            const float before = tops[r];
            float top = before, sum = 0.0;
            for (uint j = t & 7; j < KT; j += 8)
                top = max(top, ss[r * SP + j / 4][j & 3]);
            top = max(top, subgroupShuffleXor(top, 1));
            top = max(top, subgroupShuffleXor(top, 2));
            top = max(top, subgroupShuffleXor(top, 4));
            for (uint j = t & 7; j < KT; j += 8) {
                const float s = ss[r * SP + j / 4][j & 3], e = s <= LOWEST ? 0.0 : exp(s - top);
                if (t / 8 < QT)
                    ss[r * SP + j / 4][j & 3] = e;
                sum += e;
            }
            sum += subgroupShuffleXor(sum, 1);
            sum += subgroupShuffleXor(sum, 2);
            sum += subgroupShuffleXor(sum, 4);
            if (t / 8 < QT && (t & 7) == 0) {
                const float shift = exp(before - top);
                shifts[r] = shift;
                tops[r] = top;
                sums[r] = sums[r] * shift + sum;
            }
        }
        barrier();
        [[unroll]] for (uint i = 0; i < BOX; i++)
            acc[i] *= shifts[box * BOX + i];
        for (uint j = 0; j < KT / 4; j++) {
            vec4 v[4];
            [[unroll]] for (uint i = 0; i < 4; i++) {
                if (KV_F32) {
                    v[i] = uintBitsToFloat(kv[(j * 4 + i) * UNITS + vu]);
                } else {
                    const uvec4 w = kv[(j * 4 + i) * UNITS + vu / 2];
                    const uvec2 h = (vu & 1) == 0 ? w.xy : w.zw;
                    v[i] = vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y));
                }
            }
            [[unroll]] for (uint i = 0; i < BOX; i++) {
                const vec4 p = ss[(box * BOX + i) * SP + j];
                acc[i] += p.x * v[0] + p.y * v[1] + p.z * v[2] + p.w * v[3];
            }
        }
        barrier();
    }
    if (has_box)
        [[unroll]] for (uint i = 0; i < BOX; i++) {
            const uint r = box * BOX + i;
            if (r >= rows)
                continue;
            const float sink = SINKS ? sinks.v[head] : LOWEST, top = max(tops[r], sink), w = exp(tops[r] - top);
            const vec4 o = acc[i] * (w / (sums[r] * w + (SINKS ? exp(sink - top) : 0.0)));
            [[unroll]] for (uint d = 0; d < 4; d++)
                y.v[(row0 + r) * ldy + head * VD + vu * 4 + d] = o[d];
        }
}
