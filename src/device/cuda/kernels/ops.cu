/* ops.cu: elementwise and reducing operations, embedding, gathering, the short convolution. These
 * are bound by memory or by their launch, so the C library's expf serves both numeric classes. */
#include "gpu_compat.h"
#include "gpu_words.h"
#include "ops_params.h"
#include "step_segs.h"

enum { THREADS = 256 };

DEVICE float warp_sum(float v)
{
    UNROLL
    for (int o = 16; o > 0; o /= 2)
        v += shfl_xor(v, o);
    return v;
}

DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

DEVICE float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* Whether rows may be accessed 16 bytes at a time. */
DEVICE bool is_vector(uint64_t p, int ld)
{
    return ((p | (uint64_t)(uint32_t)ld * 4) & 15) == 0;
}

enum { ADD, SILU_MUL, SIGMOID_MUL };

template <int F> DEVICE float apply(float a, float b)
{
    return F == ADD ? a + b : F == SILU_MUL ? silu(a) * b : a * sigmoid(b);
}

/* out = F(a, b), 4 elements a thread. */
template <int F> DEVICE void elementwise(const OpsParams &p)
{
    griddep_launch();
    griddep_wait();
    const int i = (block_x() * THREADS + thread_id()) * 4;
    const int64_t row = block_y();
    const float *a = (const float *)p.a + row * p.lda;
    const float *b = (const float *)p.b + row * p.ldb;
    float *y = (float *)p.out + row * p.ldo;
    if (i + 4 <= p.width && is_vector(p.a, p.lda) && is_vector(p.out, p.ldo) &&
        (p.b_step == 0 || is_vector(p.b, p.ldb))) {
        const f32x4 u = load_f32x4(a + i);
        const float one = p.b_step == 0 ? load_f32(b) : 0.0f;
        const f32x4 v = p.b_step == 0 ? f32x4{one, one, one, one} : load_f32x4(b + i);
        *(f32x4 *)(y + i) =
            f32x4{apply<F>(u.x, v.x), apply<F>(u.y, v.y), apply<F>(u.z, v.z), apply<F>(u.w, v.w)};
        return;
    }
    UNROLL
    for (int j = i; j < i + 4; j++) {
        if (j < p.width)
            y[j] = apply<F>(load_f32(a + j), load_f32(b + (int64_t)j * p.b_step));
    }
}

KERNEL(256, 4) ops_add(const OpsParams p)
{
    elementwise<ADD>(p);
}

KERNEL(256, 4) ops_silu_mul(const OpsParams p)
{
    elementwise<SILU_MUL>(p);
}

KERNEL(256, 4) ops_sigmoid_mul(const OpsParams p)
{
    elementwise<SIGMOID_MUL>(p);
}

/* What the norm makes of element i of a group; b: the gate, or NULL. */
DEVICE float normed(const OpsParams &p, float x, float s, int i, const float *b)
{
    float y = p.vec ? x * s * load_f32((const float *)p.vec + i) : x * s;
    if (b)
        y *= silu(load_f32(b + i));
    return y;
}

/* A CTA a group. */
KERNEL(512, 2) ops_norm_row(const OpsParams p)
{
    SHARED(float, sums, 16);
    griddep_launch();
    griddep_wait();
    const int tid = thread_id();
    const int64_t row = block_y();
    const int64_t at = (int64_t)block_x() * p.group;
    const float *x = (const float *)p.a + row * p.lda + at;
    const float *b = p.b ? (const float *)p.b + row * p.ldb + at : nullptr;
    float *y = (float *)p.out + row * p.ldo + at;
    float sum = 0.0f;
    for (int i = tid; i < p.group; i += 512) {
        const float v = load_f32(x + i);
        sum += v * v;
    }
    sum = warp_sum(sum);
    if (tid % 32 == 0)
        sums[tid / 32] = sum;
    block_sync();
    sum = 0.0f;
    UNROLL
    for (int i = 0; i < 16; i++)
        sum += sums[i];
    const float s = 1.0f / sqrtf(sum / (float)p.group + p.eps);
    for (int i = tid; i < p.group; i += 512)
        y[i] = normed(p, load_f32(x + i), s, i, b);
}

/* A warp a group. */
KERNEL(256, 4) ops_norm_group(const OpsParams p)
{
    griddep_launch();
    griddep_wait();
    const int lane = thread_id() & 31;
    const int g = block_x() * (THREADS / 32) + thread_id() / 32;
    if (g >= p.width / p.group)
        return;
    const int64_t row = block_y();
    const int64_t at = (int64_t)g * p.group;
    const float *x = (const float *)p.a + row * p.lda + at;
    const float *b = p.b ? (const float *)p.b + row * p.ldb + at : nullptr;
    float *y = (float *)p.out + row * p.ldo + at;
    float sum = 0.0f;
    for (int i = lane; i < p.group; i += 32) {
        const float v = load_f32(x + i);
        sum += v * v;
    }
    const float s = 1.0f / sqrtf(warp_sum(sum) / (float)p.group + p.eps);
    for (int i = lane; i < p.group; i += 32)
        y[i] = normed(p, load_f32(x + i), s, i, b);
}

/* Two elements a thread: those that turn together, or two that pass. */
KERNEL(256, 4) ops_rope(const OpsParams p)
{
    griddep_launch();
    griddep_wait();
    const int at = block_x() * THREADS + thread_id();
    if (at >= p.width / 2)
        return;
    const int64_t row = block_y();
    const int per_head = p.head_dim / 2;
    const int half = p.rot_dim / 2;
    const int head = at / per_head;
    const int i = at - head * per_head;
    const float *x = (const float *)p.a + row * p.lda + (int64_t)head * p.head_dim;
    float *y = (float *)p.out + row * p.ldo + (int64_t)head * p.head_dim;
    const int d0 = i >= half || p.rope_pairs ? 2 * i : i;
    const int d1 = i >= half || p.rope_pairs ? 2 * i + 1 : i + half;
    const float u = load_f32(x + d0);
    const float v = load_f32(x + d1);
    float c = 1.0f;
    float s = 0.0f;
    if (i < half) {
        const float *cs = (const float *)p.rope + (row * half + i) * 2;
        c = load_f32(cs);
        s = load_f32(cs + 1);
    }
    y[d0] = i < half ? u * c - v * s : u;
    y[d1] = i < half ? v * c + u * s : v;
}

KERNEL(256, 4) ops_out_rows(const OpsParams p)
{
    griddep_launch();
    griddep_wait();
    const int i = (block_x() * THREADS + thread_id()) * 4;
    const int64_t from = load_i32((const int32_t *)p.step + p.out_rows_at + block_y());
    const float *x = (const float *)p.a + from * p.lda;
    float *y = (float *)p.out + (int64_t)block_y() * p.ldo;
    if (i + 4 <= p.width && is_vector(p.a, p.lda) && is_vector(p.out, p.ldo)) {
        *(f32x4 *)(y + i) = load_f32x4(x + i);
        return;
    }
    UNROLL
    for (int j = i; j < i + 4; j++) {
        if (j < p.width)
            y[j] = load_f32(x + j);
    }
}

/* ---- embedding ---- */

struct Pair {
    float scale, bias;
};

DEVICE Pair affine(const OpsEmbedParams &p, const uint8_t *scales, int g)
{
    if (p.scale == GPU_SCALE_KIND_F32_PAIR)
        return Pair{f32_of_bits(load_stream_u32(scales + 8 * g)),
                    f32_of_bits(load_stream_u32(scales + 8 * g + 4))};
    const uint32_t v = load_stream_u32(scales + 4 * g);
    return p.scale == GPU_SCALE_KIND_F16_PAIR ? Pair{f32_of_f16(v & 0xffff), f32_of_f16(v >> 16)}
                                              : Pair{f32_of_bf16(v & 0xffff), f32_of_bf16(v >> 16)};
}

DEVICE float e2m1(uint32_t code)
{
    const uint32_t m = code & 7;
    const float v = m < 4 ? 0.5f * (float)m : (float)(m < 6 ? m - 2 : 2 * m - 8);
    return code & 8 ? -v : v;
}

/* Power of two of an e8m0 byte; 255 is NaN. */
DEVICE float e8m0(uint32_t e)
{
    return f32_of_bits(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23);
}

/* Elements 8 i .. 8 i + 7 of a packed row; past k they are of no account. */
DEVICE void unpack8(const OpsEmbedParams &p, const uint8_t *codes, const uint8_t *scales, int i,
                    float v[8])
{
    const int at = 8 * i;
    switch (p.layout) {
    case GPU_LAYOUT_F32:
        UNROLL
        for (int j = 0; j < 8; j++)
            v[j] = at + j < p.k ? f32_of_bits(load_stream_u32(codes + 4 * (at + j))) : 0.0f;
        break;
    case GPU_LAYOUT_F16:
    case GPU_LAYOUT_BF16: {
        const u32x4 w = load_stream(codes + 2 * at);
        const uint32_t u[4] = {w.x, w.y, w.z, w.w};
        UNROLL
        for (int j = 0; j < 8; j++) {
            const uint32_t h = u[j / 2] >> 16 * (j & 1) & 0xffff;
            v[j] = p.layout == GPU_LAYOUT_F16 ? f32_of_f16(h) : f32_of_bf16(h);
        }
        break;
    }
    case GPU_LAYOUT_A4: {
        const Pair g = affine(p, scales, at / p.group);
        const uint32_t w = load_stream_u32(codes + 4 * i);
        UNROLL
        for (int j = 0; j < 8; j++)
            v[j] = g.scale * (float)(w >> 4 * j & 15) + g.bias;
        break;
    }
    case GPU_LAYOUT_S4: {
        const float s = f32_of_f16(load_stream_u16(scales + at / 32 * 2));
        const uint32_t w = load_stream_u32(codes + 4 * i);
        UNROLL
        for (int j = 0; j < 8; j++)
            v[j] = s * (float)((int)(w >> 4 * j & 15) - 8);
        break;
    }
    case GPU_LAYOUT_E4: {
        const float s = e8m0(load_stream_u8(scales + at / 32));
        const uint32_t w = load_stream_u32(codes + 4 * i);
        UNROLL
        for (int j = 0; j < 8; j++)
            v[j] = s * e2m1(w >> 4 * j & 15);
        break;
    }
    case GPU_LAYOUT_A8: {
        const Pair g = affine(p, scales, at / p.group);
        UNROLL
        for (int j = 0; j < 8; j++)
            v[j] = g.scale * (float)load_stream_u8(codes + at + j) + g.bias;
        break;
    }
    case GPU_LAYOUT_S8: {
        const float s = f32_of_f16(load_stream_u16(scales + at / 32 * 2));
        UNROLL
        for (int j = 0; j < 8; j++)
            v[j] = s * (float)(int8_t)load_stream_u8(codes + at + j);
        break;
    }
    case GPU_LAYOUT_K6: { /* 20 bytes of scales for 256 k: 16 int8, f16, 2 of zero */
        const uint8_t *block = scales + at / 256 * 20;
        const float s = f32_of_f16(load_stream_u16(block + 16)) *
                        (float)(int8_t)load_stream_u8(block + at % 256 / 16);
        const uint32_t w = load_stream_u32(codes + 4 * i);
        const uint32_t h = load_stream_u16(codes + p.k / 2 + 2 * i);
        UNROLL
        for (int j = 0; j < 8; j++)
            v[j] = s * (float)((int)((w >> 4 * j & 15) | (h >> 2 * j & 3) << 4) - 32);
        break;
    }
    default:
        break;
    }
}

/* Comes right after the kernel that writes the step block, and lets the launches after it start
 * only when that one has ended: so all of them may read the step block before their own wait. */
KERNEL(128, 4) ops_embed(const OpsEmbedParams p)
{
    griddep_wait();
    griddep_launch();
    const int i = block_x() * 128 + thread_id();
    if (8 * i >= p.k)
        return;
    const int64_t token = load_i32((const int32_t *)p.step + p.tokens_at + block_y());
    const bool known = token >= 0 && token < p.n;
    const int64_t row = token - p.row0;
    if (known ? row < 0 || row >= p.rows : !p.first)
        return;
    float v[8];
    UNROLL
    for (int j = 0; j < 8; j++)
        v[j] = 0.0f;
    if (known)
        unpack8(p, (const uint8_t *)p.codes + row * p.code_stride,
                (const uint8_t *)p.scales + row * p.scale_stride, i, v);
    float *y = (float *)p.out + (int64_t)block_y() * p.ldo + 8 * i;
    if (8 * i + 8 <= p.k && is_vector(p.out, p.ldo)) {
        *(f32x4 *)y = f32x4{v[0], v[1], v[2], v[3]};
        *(f32x4 *)(y + 4) = f32x4{v[4], v[5], v[6], v[7]};
        return;
    }
    UNROLL
    for (int j = 0; j < 8; j++) {
        if (8 * i + j < p.k)
            y[j] = v[j];
    }
}

/* ---- convolution ---- */

/* A thread takes one channel of 16 rows of a segment. Only the first rows of a segment look at its
 * state, so their thread also writes the new one, which may lie in the same place. */
KERNEL(128, 4) ops_conv(const OpsConvParams p)
{
    griddep_launch();
    griddep_wait();
    const int32_t *step = (const int32_t *)p.step;
    int s;
    int first;
    if (!step_find_tile(step, p.segs_at, 1, 1, OPS_CONV_ROWS, block_y(), &s, &first))
        return;
    const int c = block_x() * 128 + thread_id();
    if (c >= p.channels)
        return;
    const int32_t *seg = step + p.segs_at + (int64_t)s * GPU_SEG_WORDS;
    const int64_t row0 = load_i32(seg + GPU_SEG_ROW0);
    const int n_rows = load_i32(seg + GPU_SEG_N_ROWS);
    const int64_t in = load_i32(seg + GPU_SEG_STATE_IN);
    const int64_t out = load_i32(seg + GPU_SEG_STATE_OUT);
    const int past = p.width - 1;
    const float *x = (const float *)p.x + row0 * p.ldx + c;
    const float *w = (const float *)p.w + (int64_t)c * p.width;
    float *state = (float *)p.state + p.state_offset + (int64_t)c * past;
    float taps[OPS_CONV_WIDTH];
    float before[OPS_CONV_WIDTH]; /* the inputs before row `first`, oldest at 0 */
    UNROLL
    for (int t = 0; t < OPS_CONV_WIDTH; t++) {
        taps[t] = t < p.width ? load_f32(w + t) : 0.0f;
        before[t] = 0.0f;
        if (t < past && first > 0)
            before[t] = load_f32(x + (int64_t)(first - past + t) * p.ldx);
        else if (t < past && in >= 0)
            before[t] = load_f32(state + in * p.state_floats + t);
    }
    float seen[OPS_CONV_WIDTH]; /* window: the last input at width - 1 */
    UNROLL
    for (int t = 0; t < OPS_CONV_WIDTH; t++)
        seen[t] = before[t];
    const int last = n_rows < first + OPS_CONV_ROWS ? n_rows : first + OPS_CONV_ROWS;
    for (int r = first; r < last; r++) {
        const float now = load_f32(x + (int64_t)r * p.ldx);
        float sum = 0.0f;
        UNROLL
        for (int t = 0; t < OPS_CONV_WIDTH; t++) {
            if (t == past)
                seen[t] = now;
            sum += taps[t] * seen[t]; /* taps past the width are zero */
        }
        ((float *)p.out)[(row0 + r) * p.ldo + c] = silu(sum);
        UNROLL
        for (int t = 0; t + 1 < OPS_CONV_WIDTH; t++)
            seen[t] = seen[t + 1];
    }
    if (first > 0)
        return;
    UNROLL
    for (int t = 0; t < OPS_CONV_WIDTH - 1; t++) {
        if (t >= past)
            break;
        float v = 0.0f; /* input n_rows - past + t, of the rows or of the old state */
        if (n_rows - past + t >= 0)
            v = load_f32(x + (int64_t)(n_rows - past + t) * p.ldx);
        UNROLL
        for (int o = 0; o < OPS_CONV_WIDTH; o++) {
            if (o == n_rows + t && o < past)
                v = before[o];
        }
        state[out * p.state_floats + t] = v;
    }
}
