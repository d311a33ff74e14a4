// sample.comp: draws a token of one row by one workgroup (engine/sample.h steps 4 to 9).
//
// Nothing is sorted: the tokens in order of falling logits are walked by radix selection. Weights
// e^((x - max) / temperature) are summed in 64-bit fixed point (2^40 is 1), so sums depend on no
// order; each cut (top-k, top-p, min-p) is a weight that a prefix of the order has, the smallest
// wins, and the draw is the first token at which the running sum passes random * that weight.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lin_base.glsl"
#include "sample.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(push_constant) uniform P
{
    F1 logits; // [rows][vocab]
    I1 words;
    Best best; // [rows][blocks]
    OI1 sampled; // [slots]
    OI1 results; // [ring][stride] words: token, logit
    OI1 count;
    uint vocab, blocks;
    uint samples; // word of the first sample
    uint ring, stride;
};

shared uint bin_n[256], bin_lo[256], bin_hi[256];

uint row;        // first logit of the row
float top;       // largest logit
float scale;     // 1 / temperature
uint t;

// e^x for x <= 0: the steps of engine/sample.c, so that equal logits give equal weights.
float exp_neg(float logit)
{
    precise const float x = logit > -87.0 ? logit : -87.0;
    precise const float shifted = x * 1.44269504 + 12582912.0;
    precise const float n = shifted - 12582912.0;
    precise const float r = (x - n * 0.693359375) + n * 2.12194440e-4;
    precise float p = 1.9875691500e-4;
    p = p * r + 1.3981999507e-3;
    p = p * r + 8.3334519073e-3;
    p = p * r + 4.1665795894e-2;
    p = p * r + 1.6666665459e-1;
    p = p * r + 5.0000001201e-1;
    p = (p * r) * r + r + 1.0;
    return p * uintBitsToFloat(uint(int(n) + 127) << 23);
}

float weight(float x) { return exp_neg((x - top) * scale); }

uint64_t fixed_of(float w) // w <= 1
{
    const float scaled = w * 1048576.0;
    const float whole = floor(scaled);
    return uint64_t(uint(whole)) << 20 | uint64_t(uint((scaled - whole) * 1048576.0));
}

// Order of floats as integers.
uint key_of(float x)
{
    const uint u = floatBitsToUint(x);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

float float_of(uint key) { return uintBitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

uint64_t times(uint64_t a, float f) // f in [0, 1], as at least 2^-32: of a sum of weights above 0
{
    if (f >= 1.0)
        return a;
    const uint64_t m = uint64_t(max(uint(f * 4294967296.0), 1u));
    return (a >> 32) * m + ((a & 0xfffffffful) * m >> 32);
}

// Loops over the row turn equally often for every subgroup: lavapipe goes wrong otherwise.
void clear()
{
    barrier();
    for (uint i = t; i < 256; i += WG) {
        bin_n[i] = 0;
        bin_lo[i] = 0;
        bin_hi[i] = 0;
    }
    barrier();
}

void add(uint bin, uint64_t amount)
{
    const uint lo = uint(amount);
    uint hi = uint(amount >> 32);
    const uint before = atomicAdd(bin_lo[bin], lo);
    if (before + lo < before)
        hi++;
    if (hi != 0)
        atomicAdd(bin_hi[bin], hi);
    atomicAdd(bin_n[bin], 1u);
}

uint64_t amount_in(uint bin) { return uint64_t(bin_hi[bin]) << 32 | uint64_t(bin_lo[bin]); }

// Sum of weights of logits above `key`, or whose weight is at least `least` when that is above 0.
uint64_t mass(uint key, bool all, float least)
{
    clear();
    for (uint b = 0; b < vocab; b += WG) {
        const uint i = b + t;
        if (i >= vocab)
            continue;
        const float x = logits.v[row + i];
        const float w = weight(x);
        if ((all || key_of(x) > key) && w >= least)
            add(i & 255u, fixed_of(w));
    }
    barrier();
    uint64_t sum = 0;
    for (uint i = 0; i < 256; i++)
        sum += amount_in(i);
    return sum;
}

// The logit, from the largest down, at which the running amount first exceeds `want`: its key, the
// amount above it, and how many logits have that key. Amounts are counts or weights.
void select(uint64_t want, bool by_count, out uint key, out uint64_t above, out uint n)
{
    uint prefix = 0;
    above = 0;
    n = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        clear();
        for (uint b = 0; b < vocab; b += WG) {
            if (b + t >= vocab)
                continue;
            const float x = logits.v[row + b + t];
            const uint k = key_of(x);
            if (shift < 24 && k >> (shift + 8) != prefix >> (shift + 8))
                continue;
            const uint64_t amount = by_count ? 1ul : fixed_of(weight(x));
            if (amount > 0)
                add(k >> shift & 255u, amount);
        }
        barrier();
        uint64_t sum = above;
        uint bin = 0, last = 0;
        bool found = false;
        for (int i = 255; i >= 0 && !found; i--) { // by all, alike
            const uint64_t m = amount_in(uint(i));
            if (m == 0)
                continue;
            last = uint(i);
            if (sum + m > want) {
                bin = uint(i);
                found = true;
            } else {
                sum += m;
            }
        }
        if (!found) { // rounding: the last there is
            bin = last;
            sum -= amount_in(last);
        }
        prefix |= bin << shift;
        above = sum;
        n = bin_n[bin];
    }
    key = prefix;
}

// The id of the j-th logit (from 0) with this key, of n.
uint find(uint key, uint j, uint n)
{
    uint from = 0, to = vocab; // ids in which it lies
    while (to - from > 1) {
        const uint middle = (from + to) / 2;
        clear();
        uint have = 0;
        for (uint b = from; b < middle; b += WG)
            have += uint(b + t < middle && key_of(logits.v[row + min(b + t, vocab - 1)]) == key);
        atomicAdd(bin_n[0], have);
        barrier();
        have = bin_n[0];
        if (j < have) {
            to = middle;
        } else {
            j -= have;
            from = middle;
        }
    }
    return from;
}

uint draw(uint at)
{
    const int top_k = words.v[at + GPU_SAMPLE_TOP_K];
    const float top_p = intBitsToFloat(words.v[at + GPU_SAMPLE_TOP_P]);
    const float min_p = intBitsToFloat(words.v[at + GPU_SAMPLE_MIN_P]);
    const float random = intBitsToFloat(words.v[at + GPU_SAMPLE_RANDOM]);
    uint key, n;
    uint64_t above, kept;
    if (top_k > 0 && uint(top_k) < vocab) {
        select(uint64_t(uint(top_k - 1)), true, key, above, n);
        const uint ties = uint(top_k) - uint(above);
        kept = mass(key, false, 0.0) + uint64_t(ties) * fixed_of(weight(float_of(key)));
    } else {
        kept = mass(0, true, 0.0);
    }
    if (top_p > 0.0 && top_p < 1.0) {
        /* Above 0. In `part > 0 ? part - 1 : 0` NVIDIA's 580.159 loses the upper half. */
        const uint64_t want = times(kept, top_p) - 1;
        select(want, false, key, above, n);
        const uint64_t w = fixed_of(weight(float_of(key)));
        kept = min(kept, above + ((want - above) / w + 1) * w);
    }
    if (min_p > 0.0)
        kept = min(kept, mass(0, true, min_p));
    uint64_t want = times(kept, random);
    if (want >= kept)
        want = kept - 1;
    select(want, false, key, above, n);
    const uint64_t w = fixed_of(weight(float_of(key)));
    const uint j = want > above && w > 0 ? uint(min((want - above) / w, uint64_t(n - 1))) : 0;
    return find(key, j, n);
}

void main()
{
    t = gl_LocalInvocationID.x;
    const uint s = gl_WorkGroupID.x;
    if (s == 0 && t == 0)
        count.v[0]++;
    if (s >= uint(words.v[GPU_STEP_N_SAMPLES]))
        return;
    const uint at = samples + s * GPU_SAMPLE_WORDS;
    const uint r = uint(words.v[at + GPU_SAMPLE_OUT]);
    row = r * vocab;
    uvec4 m = best.v[r * blocks];
    for (uint i = 1; i < blocks; i++) {
        const uvec4 o = best.v[r * blocks + i];
        if (uintBitsToFloat(o.x) > uintBitsToFloat(m.x))
            m.xy = o.xy;
        m.z |= o.z;
    }
    top = uintBitsToFloat(m.x);
    uint token = m.y;
    const float temperature = intBitsToFloat(words.v[at + GPU_SAMPLE_TEMPERATURE]);
    const bool bad = m.z != 0 || m.x == 0xff800000u;
    if (!bad && temperature >= 1e-4) {
        scale = 1.0 / temperature;
        token = draw(at);
    }
    if (t == 0) {
        const uint entry = uint(words.v[GPU_STEP_TICKET]) % ring * stride + s * 2;
        sampled.v[words.v[at + GPU_SAMPLE_SLOT]] = bad ? -1 : int(token);
        results.v[entry] = bad ? -1 : int(token);
        results.v[entry + 1] = bad ? 0 : floatBitsToInt(logits.v[row + token]);
    }
}
