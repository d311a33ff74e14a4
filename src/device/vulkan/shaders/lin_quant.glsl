// lin_quant.glsl: activations as int8 per 32 k. Four neighbouring lanes hold a chunk, eight k each
// (a: k = 8u .. 8u + 3, b: the next four). Factors of a chunk: the scale, and scale * sum of codes
// through which a weight's offset acts.
//
// ORDER_NIBBLES: word i of the first plane holds the even k of 8i .. 8i + 7, of the second the odd:
// they meet the low and the high nibbles of weight word i. ORDER_BYTES: k ascending.
#define ORDER_NIBBLES 0
#define ORDER_BYTES 1

float max4_lanes(float v)
{
    v = max(v, subgroupShuffleXor(v, 1));
    return max(v, subgroupShuffleXor(v, 2));
}

int add4_lanes(int v)
{
    v += subgroupShuffleXor(v, 1);
    return v + subgroupShuffleXor(v, 2);
}

uint pack_bytes(ivec4 q) { return uint(q.x & 255) | uint(q.y & 255) << 8 | uint(q.z & 255) << 16 | uint(q.w) << 24; }

// All lanes must come here. words: of the two planes (nibbles), or two consecutive (bytes).
void quant8(vec4 a, vec4 b, uint order, out uvec2 words, out vec2 factors)
{
    const vec4 m4 = max(abs(a), abs(b));
    const float m = max4_lanes(max(max(m4.x, m4.y), max(m4.z, m4.w)));
    const float scale = m / 127.0, inverse = m > 0.0 ? 127.0 / m : 0.0;
    const ivec4 qa = ivec4(roundEven(a * inverse)), qb = ivec4(roundEven(b * inverse)), q = qa + qb;
    factors = vec2(scale, scale * float(add4_lanes(q.x + q.y + q.z + q.w)));
    words = order == ORDER_NIBBLES ? uvec2(pack_bytes(ivec4(qa.x, qa.z, qb.x, qb.z)), pack_bytes(ivec4(qa.y, qa.w, qb.y, qb.w)))
                                   : uvec2(pack_bytes(qa), pack_bytes(qb));
}
