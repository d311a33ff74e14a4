// attn_base.glsl: what attention's shaders share: the step's words, pages, the cache's formats, and
// a head after norm and rotation. K [page][kv head][page_tokens][HD], V alike with VD, f16 or f32.
//
// Constants 2 to 15 are the same for all of them.
#pragma use_vulkan_memory_model
#extension GL_KHR_memory_scope_semantics : require
#include "lin_base.glsl"
layout(constant_id = 2) const uint HD = 64;       // head size of q and k
layout(constant_id = 3) const uint VD = 64;       // of v
layout(constant_id = 4) const uint HQ = 1;        // query heads
layout(constant_id = 5) const uint HK = 1;        // kv heads
layout(constant_id = 6) const uint PT = 64;       // tokens of a page, a power of two
layout(constant_id = 7) const uint WINDOW = 0;    // keys visible, the query's own included; 0: all
layout(constant_id = 8) const uint FLAGS = 0;
layout(constant_id = 9) const uint ROT = 0;       // dims that rotate
layout(constant_id = 10) const uint SEG_AT = 0;   // words of the step block: segment of each row
layout(constant_id = 11) const uint SEGS_AT = 0;  // segments
layout(constant_id = 12) const uint SLOTS_AT = 0; // cache slot of each row, of the layer's group
layout(constant_id = 13) const uint KV_GROUP = 0;
layout(constant_id = 14) const uint SPLITS = 1;   // attn_split: parts of the cache. attn_tile: rows of a tile
layout(constant_id = 15) const uint KT = 32;      // attn_tile: keys of a tile
const bool SOFTCAP = (FLAGS & 1) != 0, SINKS = (FLAGS & 2) != 0;
const bool BY_SEGMENT = (FLAGS & 4) != 0;  // segments of one row belong to attn_split, others to attn_tile
const bool FOLD = (FLAGS & 8) != 0;        // attn_split: norm, rope and cache write inside; the step has one row
const uint Q_NORM = FLAGS >> 4 & 3, K_NORM = FLAGS >> 6 & 3; // 1 with weight, 2 without
const bool PAIRS = (FLAGS & 256) != 0;     // rotates (2i, 2i + 1), else (i, i + ROT / 2)
const bool KV_F32 = (FLAGS & 512) != 0;
const float LOWEST = -3.0e38;

uint kv_slot(I1 step, uint pages, uint token) // pages: word of the segment's table
{
    return uint(max(step.v[pages + token / PT], 0)) * PT + token % PT;
}

// Index of a token's first eight elements in units of eight.
uint kv_unit(uint slot, uint head, uint dim) { return ((slot / PT * HK + head) * PT + slot % PT) * (dim / 8); }

void kv_load8(W4 kv, uint unit, out vec4 a, out vec4 b)
{
    if (KV_F32) {
        a = uintBitsToFloat(kv.v[unit * 2]);
        b = uintBitsToFloat(kv.v[unit * 2 + 1]);
    } else {
        const uvec4 q = kv.v[unit];
        a = vec4(unpackHalf2x16(q.x), unpackHalf2x16(q.y));
        b = vec4(unpackHalf2x16(q.z), unpackHalf2x16(q.w));
    }
}

// Writes dims 2i, 2i + 1 of a slot.
void kv_store2(OU1 kv, uint slot, uint head, uint dim, uint i, vec2 x)
{
    const uint at = ((slot / PT * HK + head) * PT + slot % PT) * dim + i * 2;
    if (KV_F32) {
        kv.v[at] = floatBitsToUint(x.x);
        kv.v[at + 1] = floatBitsToUint(x.y);
    } else {
        kv.v[at / 2] = packHalf2x16(x);
    }
}

// As the cache will give it back.
vec2 kv_rounded(vec2 x) { return KV_F32 ? x : unpackHalf2x16(packHalf2x16(x)); }

// 1 / rms of a head, the same in all lanes of the subgroup.
float head_inv(F1 x, uint at, uint norm, float eps)
{
    if (norm == 0)
        return 1.0;
    float sq = 0.0;
    for (uint d = gl_SubgroupInvocationID; d < HD; d += SG)
        sq += x.v[at + d] * x.v[at + d];
    return 1.0 / sqrt(subgroupAdd(sq) / float(HD) + eps);
}

float normed(F1 x, uint at, F1 w, uint norm, float inv, uint d)
{
    return x.v[at + d] * inv * (norm == 1 ? w.v[d] : 1.0);
}

// Dim d of a head after norm and rotation. rope: pairs (cos, sin) of the row from `angles` on.
float head_value(F1 x, uint at, F1 w, uint norm, float inv, F2 rope, uint angles, uint d)
{
    const float v = normed(x, at, w, norm, inv, d);
    if (d >= ROT)
        return v;
    const uint half_rot = ROT / 2;
    const uint i = PAIRS ? d / 2 : d % max(half_rot, 1);
    const bool second = PAIRS ? (d & 1) != 0 : d >= half_rot;
    const float other = normed(x, at, w, norm, inv, PAIRS ? d ^ 1 : second ? d - half_rot : d + half_rot);
    const vec2 cs = rope.v[angles + i];
    return second ? v * cs.x + other * cs.y : v * cs.x - other * cs.y;
}
