// lin_scale.glsl: the layouts of gpu_weight.h: value = scale.x * code + scale.y. Constants 3 to 7
// describe the part; rows count through all experts, so that row e * n + i is row i of expert e.
layout(constant_id = 3) const uint LAYOUT = GPU_LAYOUT_S4;
layout(constant_id = 4) const uint SCALE = GPU_SCALE_KIND_F16;
layout(constant_id = 5) const uint GROUP = 32;  // k that share a scale
layout(constant_id = 6) const uint WS = 4;      // code words (u32) from row to row
layout(constant_id = 7) const uint SS = 1;      // scale words from row to row

// The words that hold the scale of k = 16 * k16 .. + 15, not yet decoded: what is loaded ahead.
uvec2 scale_load(W1 s, uint row, uint k16)
{
    const uint base = row * SS;
    if (SCALE == GPU_SCALE_KIND_F16)
        return uvec2(s.v[base + k16 / 4], 0);
    if (SCALE == GPU_SCALE_KIND_E8M0)
        return uvec2(s.v[base + k16 / 8], 0);
    if (SCALE == GPU_SCALE_KIND_K6)
        return uvec2(s.v[base + k16 / 16 * 5 + k16 % 16 / 4], s.v[base + k16 / 16 * 5 + 4]);
    if (SCALE == GPU_SCALE_KIND_NONE)
        return uvec2(0);
    const uint g = k16 / (GROUP / 16);
    if (SCALE == GPU_SCALE_KIND_F32_PAIR)
        return uvec2(s.v[base + g * 2], s.v[base + g * 2 + 1]);
    return uvec2(s.v[base + g], 0);
}

// Scale and offset for stored codes (unsigned, but for S8 and the signed e2m1 codes).
vec2 scale_decode(uvec2 raw, uint k16)
{
    if (SCALE == GPU_SCALE_KIND_F16) {
        const float d = unpackHalf2x16(raw.x >> (k16 & 2) * 8).x;
        return vec2(d, LAYOUT == GPU_LAYOUT_S4 ? -8.0 * d : 0.0);
    }
    if (SCALE == GPU_SCALE_KIND_E8M0)
        return vec2(e8m0_float(raw.x >> (k16 / 2 & 3) * 8 & 255), 0.0);
    if (SCALE == GPU_SCALE_KIND_K6) {
        const float d = unpackHalf2x16(raw.y).x * float(int(raw.x << (24 - (k16 & 3) * 8)) >> 24);
        return vec2(d, -32.0 * d);
    }
    if (SCALE == GPU_SCALE_KIND_F16_PAIR)
        return unpackHalf2x16(raw.x);
    if (SCALE == GPU_SCALE_KIND_BF16_PAIR)
        return vec2(bf16_float(raw.x), uintBitsToFloat(raw.x & 0xffff0000u));
    if (SCALE == GPU_SCALE_KIND_F32_PAIR)
        return uintBitsToFloat(raw);
    return vec2(1.0, 0.0);
}

// Four e2m1 codes, one a byte (low nibble), as int8 of twice their value: 0 1 2 3 4 6 8 12.
uint e2m1_bytes(uint c)
{
    const uint m = c & 0x07070707u, b = m >> 2 & 0x01010101u, t = m & (b | b << 1);
    const uint v = m + t + ((t & t >> 1 & 0x01010101u) << 1);
    const uint neg = c >> 3 & 0x01010101u; // -v as (128 - v) ^ 128: no carry into the next byte
    return ((v ^ ((neg << 7) - neg)) + neg) ^ (neg << 7);
}

// Sixteen bits as eight pairs of bits or four nibbles: nibble i goes to byte i.
uint spread_nibbles(uint h)
{
    h = (h | h << 8) & 0x00ff00ffu;
    return (h | h << 4) & 0x0f0f0f0fu;
}

vec4 byte_floats(uint w) { return vec4(w & 255, w >> 8 & 255, w >> 16 & 255, w >> 24); }
vec4 sbyte_floats(uint w) { return vec4(int(w << 24) >> 24, int(w << 16) >> 24, int(w << 8) >> 24, int(w) >> 24); }

// Weights k = 8u .. 8u + 7 of a row in f32: the layout's definition. What lies past k is 0.
void weight8(W4 w, W1 s, uint row, uint u, uint k, out vec4 a, out vec4 b)
{
    if (LAYOUT == GPU_LAYOUT_F32) {
        const uint at = row * (WS / 4) + u * 2;
        a = uintBitsToFloat(w.v[at]);
        b = u * 8 + 4 < k ? uintBitsToFloat(w.v[at + 1]) : vec4(0);
        return;
    }
    if (LAYOUT == GPU_LAYOUT_F16 || LAYOUT == GPU_LAYOUT_BF16) {
        const uvec4 q = w.v[row * (WS / 4) + u];
        if (LAYOUT == GPU_LAYOUT_F16) {
            a = vec4(unpackHalf2x16(q.x), unpackHalf2x16(q.y));
            b = vec4(unpackHalf2x16(q.z), unpackHalf2x16(q.w));
        } else {
            const uvec4 lo = q << 16, hi = q & 0xffff0000u;
            a = uintBitsToFloat(uvec4(lo.x, hi.x, lo.y, hi.y));
            b = uintBitsToFloat(uvec4(lo.z, hi.z, lo.w, hi.w));
        }
        return;
    }
    const vec2 sc = scale_decode(scale_load(s, row, u / 2), u / 2);
    if (LAYOUT == GPU_LAYOUT_A8 || LAYOUT == GPU_LAYOUT_S8) {
        const uvec2 q = W2(w).v[row * (WS / 2) + u];
        a = LAYOUT == GPU_LAYOUT_S8 ? sbyte_floats(q.x) : byte_floats(q.x);
        b = LAYOUT == GPU_LAYOUT_S8 ? sbyte_floats(q.y) : byte_floats(q.y);
    } else {
        const uint q = W1(w).v[row * WS + u];
        uint even = q & 0x0f0f0f0fu, odd = q >> 4 & 0x0f0f0f0fu;
        if (LAYOUT == GPU_LAYOUT_K6) {
            const uint h = spread_nibbles(W1(w).v[row * WS + k / 8 + u / 2] >> (u & 1) * 16 & 0xffffu);
            even |= (h & 0x03030303u) << 4;
            odd |= (h & 0x0c0c0c0cu) << 2;
        }
        vec4 e, o;
        if (LAYOUT == GPU_LAYOUT_E4) {
            e = 0.5 * sbyte_floats(e2m1_bytes(even));
            o = 0.5 * sbyte_floats(e2m1_bytes(odd));
        } else {
            e = byte_floats(even);
            o = byte_floats(odd);
        }
        a = vec4(e.x, o.x, e.y, o.y);
        b = vec4(e.z, o.z, e.w, o.w);
    }
    a = a * sc.x + sc.y;
    b = b * sc.x + sc.y;
}
