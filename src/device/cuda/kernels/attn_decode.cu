/* attn_decode.cu: attention of few query rows over a long cache, f16 cache, head size 64, 128, 256.
 *
 * A CTA takes up to 8 query heads of one kv head of one row; the row's positions go in chunks of 64
 * (a warp 16) in turn over the CTAs along x, whose results attn_join joins. K is multiplied as the
 * matrix A of mma (16 positions x 16 dims) straight from registers: the order of dims inside a
 * product is free, so a lane's 16 bytes are the operand of two products. V^T likewise, after
 * pairing the halves of two positions. Only the softmax weights pass through shared memory.
 *
 * The step's own rows of the segment (at most ATTN_DECODE_ROWS) are not in the cache yet: norm,
 * rotation and rounding of their keys is done here by every CTA that meets their positions, and
 * each row is written to the cache by one. So the old cache depends on nothing in this step and is
 * read before griddep_wait. The step block and the rope tables may be read before it too: ops_embed
 * lets no later launch start until they are written. */
#include "attn_common.h"

enum { WARPS = 4, CHUNK = 16 * WARPS, WEIGHT_LD = 24 };

/* Shared memory of a CTA. */
template <int HD> struct Decode {
    float o[WARPS][ATTN_DECODE_HEADS][HD]; /* [0]: the CTA's, for attn_join */
    float m[ATTN_DECODE_HEADS], l[ATTN_DECODE_HEADS];
    float wm[WARPS][ATTN_DECODE_HEADS], wl[WARPS][ATTN_DECODE_HEADS];
    float tmp[WARPS][HD];
    uint16_t q[ATTN_DECODE_HEADS][HD + 32]; /* padded: 8 lanes read 128 bytes in a row */
    uint16_t weights[WARPS][ATTN_DECODE_HEADS][WEIGHT_LD]; /* of 16 positions */
    uint16_t k[ATTN_DECODE_ROWS][HD], v[ATTN_DECODE_ROWS][HD];
};

/* What a lane holds of 16 positions. lane = 4 g + t: K of positions g and g + 8, dims 32 j + 8 t
 * ..; V of positions 2t, 2t + 1, 2t + 8, 2t + 9, dims 64 j + 8 g .. */
template <int HD> struct Held {
    u32x4 k[2][HD / 32];
    u32x4 v[4][HD / 64];
};

struct Span { /* positions from lo to hi see this row; from base on they are the step's own */
    int lo, hi, base;
};

DEVICE int v_place(int t, int i)
{
    return 2 * t + (i & 1) + 8 * (i >> 1);
}

DEVICE u32x4 zero4()
{
    return u32x4{0, 0, 0, 0};
}

template <int HD>
DEVICE void load_keys(const AttnParams &p, const AttnSeg &seg, const Span &s, int kv_head, int at,
                      Held<HD> &h)
{
    const int lane = thread_id() & 31;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int pos = at + lane / 4 + 8 * i;
        const bool old = pos >= s.lo && pos < s.base && pos <= s.hi;
        const int page = old ? load_i32(seg.pages + (pos >> p.page_shift)) : 0;
        const uint16_t *row =
            (const uint16_t *)p.cache_k + cache_row(p, page, kv_head, pos) * HD + lane % 4 * 8;
        UNROLL
        for (int j = 0; j < HD / 32; j++)
            h.k[i][j] = old ? load_stream(row + 32 * j) : zero4();
    }
}

template <int HD>
DEVICE void load_values(const AttnParams &p, const AttnSeg &seg, const Span &s, int kv_head, int at,
                        Held<HD> &h)
{
    const int lane = thread_id() & 31;
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int pos = at + v_place(lane % 4, i);
        const bool old = pos >= s.lo && pos < s.base && pos <= s.hi;
        const int page = old ? load_i32(seg.pages + (pos >> p.page_shift)) : 0;
        const uint16_t *row =
            (const uint16_t *)p.cache_v + cache_row(p, page, kv_head, pos) * HD + lane / 4 * 8;
        UNROLL
        for (int j = 0; j < HD / 64; j++)
            h.v[i][j] = old ? load_stream(row + 64 * j) : zero4();
    }
}

/* The step's own positions come from shared memory. */
template <int HD> DEVICE void take_own(const Decode<HD> &sh, const Span &s, int at, Held<HD> &h)
{
    const int lane = thread_id() & 31;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int pos = at + lane / 4 + 8 * i;
        if (pos >= s.base && pos <= s.hi) {
            UNROLL
            for (int j = 0; j < HD / 32; j++)
                h.k[i][j] = shared_u32x4(&sh.k[pos - s.base][32 * j + lane % 4 * 8]);
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int pos = at + v_place(lane % 4, i);
        if (pos >= s.base && pos <= s.hi) {
            UNROLL
            for (int j = 0; j < HD / 64; j++)
                h.v[i][j] = shared_u32x4(&sh.v[pos - s.base][64 * j + lane / 4 * 8]);
        }
    }
}

/* Running softmax of a lane: heads 2t and 2t + 1. */
template <int HD> struct Sums {
    float m[2], l[2];
    float acc[HD / 64][4][4]; /* dims 64 s + 8 g + 2 i, + 1, heads 2t, 2t + 1 */
};

/* Scores of 16 positions: c[0..1] position g, c[2..3] position g + 8, heads 2t, 2t + 1. */
template <int HD>
DEVICE void scores(const AttnParams &p, const Decode<HD> &sh, const Span &s, int at,
                   const Held<HD> &h, float c[4])
{
    const int lane = thread_id() & 31;
    const uint16_t *q = &sh.q[lane / 4][lane % 4 * 8];
    float odd[4] = {0, 0, 0, 0}; /* two chains of products */
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    UNROLL
    for (int j = 0; j < HD / 32; j++) {
        const u32x4 b = shared_u32x4(q + 32 * j);
        const uint32_t a0[4] = {h.k[0][j].x, h.k[1][j].x, h.k[0][j].y, h.k[1][j].y};
        const uint32_t a1[4] = {h.k[0][j].z, h.k[1][j].z, h.k[0][j].w, h.k[1][j].w};
        const uint32_t b0[2] = {b.x, b.y};
        const uint32_t b1[2] = {b.z, b.w};
        mma_f16(c, a0, b0);
        mma_f16(odd, a1, b1);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int pos = at + lane / 4 + 8 * (i / 2);
        c[i] = pos >= s.lo && pos <= s.hi ? capped(p, c[i] + odd[i]) : -INFINITY;
    }
}

/* Takes the scores into the running sums; the weights go to shared memory as [head][position]. */
template <int HD> DEVICE void soften(Decode<HD> &sh, float c[4], Sums<HD> &sum)
{
    const int warp = thread_id() / 32;
    const int g = (thread_id() & 31) / 4;
    const int t = thread_id() & 3;
    UNROLL
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(c[i], c[i + 2]);
        top = fmaxf(top, shfl_xor(top, 4));
        top = fmaxf(top, shfl_xor(top, 8));
        top = fmaxf(top, shfl_xor(top, 16));
        top = fmaxf(top, sum.m[i]);
        const float shift = weight_of(sum.m[i], top);
        const float w0 = weight_of(c[i], top);
        const float w1 = weight_of(c[i + 2], top);
        sum.m[i] = top;
        sum.l[i] = sum.l[i] * shift + w0 + w1;
        UNROLL
        for (int j = 0; j < HD / 64; j++) {
            UNROLL
            for (int k = 0; k < 4; k++) {
                sum.acc[j][k][i] *= shift;
                sum.acc[j][k][i + 2] *= shift;
            }
        }
        sh.weights[warp][2 * t + i][g] = (uint16_t)f16_of_f32(w0);
        sh.weights[warp][2 * t + i][g + 8] = (uint16_t)f16_of_f32(w1);
    }
    warp_sync();
}

template <int HD> DEVICE void add_values(const Decode<HD> &sh, const Held<HD> &h, Sums<HD> &sum)
{
    const uint16_t *w =
        &sh.weights[thread_id() / 32][(thread_id() & 31) / 4][2 * (thread_id() & 3)];
    const uint32_t b[2] = {*(const uint32_t *)w, *(const uint32_t *)(w + 8)};
    UNROLL
    for (int j = 0; j < HD / 64; j++) {
        const uint32_t v[4][4] = {{h.v[0][j].x, h.v[0][j].y, h.v[0][j].z, h.v[0][j].w},
                                  {h.v[1][j].x, h.v[1][j].y, h.v[1][j].z, h.v[1][j].w},
                                  {h.v[2][j].x, h.v[2][j].y, h.v[2][j].z, h.v[2][j].w},
                                  {h.v[3][j].x, h.v[3][j].y, h.v[3][j].z, h.v[3][j].w}};
        UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t a[4] = {
                byte_perm(v[0][i], v[1][i], 0x5410), byte_perm(v[0][i], v[1][i], 0x7632),
                byte_perm(v[2][i], v[3][i], 0x5410), byte_perm(v[2][i], v[3][i], 0x7632)};
            mma_f16(sum.acc[j][i], a, b);
        }
    }
    warp_sync(); /* before the next weights */
}

/* A head that a warp makes ready: lane l has elements l + 32 e. */
template <int HD> struct Head {
    float w[HD / 32];                     /* of its norm */
    float cosine[HD / 32], sine[HD / 32]; /* sine with the sign for this element */
    float x[HD / 32], v[HD / 32];         /* v: the value that goes with a key */
};

struct Task { /* a query head, or the key and value of one of the step's rows */
    bool have, is_key;
    int row, head;
};

/* Tasks of a CTA: its query heads, then the new rows up to the last one. */
struct Work {
    AttnSeg seg;
    int row, kv_head, head0, n_heads, n_new;
};

DEVICE Task task_of(const Work &w, int i)
{
    Task t;
    t.have = i < w.n_heads + w.n_new;
    t.is_key = i >= w.n_heads;
    t.row = t.is_key ? w.seg.row0 + i - w.n_heads : w.row;
    t.head = t.is_key ? w.kv_head : w.head0 + i;
    return t;
}

/* What does not depend on the launch before. */
template <int HD> DEVICE void load_fixed(const AttnParams &p, const Task &t, Head<HD> &h)
{
    const int lane = thread_id() & 31;
    const float *w = (const float *)(t.is_key ? p.k_norm : p.q_norm);
    const int half = p.rot_dim / 2;
    const float *cs = (const float *)p.rope + (int64_t)t.row * p.rot_dim;
    UNROLL
    for (int e = 0; e < HD / 32; e++) {
        const int d = lane + 32 * e;
        const bool turns = t.have && p.rope != 0 && d < p.rot_dim;
        const bool second = p.rope_pairs ? (d & 1) != 0 : d >= half;
        const int i = p.rope_pairs ? d / 2 : second ? d - half : d;
        h.w[e] = t.have && w ? load_f32(w + d) : 1.0f;
        h.cosine[e] = turns ? load_f32(cs + 2 * i) : 1.0f;
        h.sine[e] = turns ? load_f32(cs + 2 * i + 1) : 0.0f;
        h.sine[e] = second ? h.sine[e] : -h.sine[e];
    }
}

template <int HD> DEVICE void load_row(const AttnParams &p, const Task &t, Head<HD> &h)
{
    const int lane = thread_id() & 31;
    const float *x = t.is_key ? (const float *)p.k + (int64_t)t.row * p.ldk
                              : (const float *)p.q + (int64_t)t.row * p.ldq;
    const float *v = (const float *)p.v + (int64_t)t.row * p.ldv + t.head * HD;
    UNROLL
    for (int e = 0; e < HD / 32; e++) {
        h.x[e] = t.have ? load_f32(x + t.head * HD + lane + 32 * e) : 0.0f;
        h.v[e] = t.have && t.is_key ? load_f32(v + lane + 32 * e) : 0.0f;
    }
}

template <int HD>
DEVICE void finish_head(const AttnParams &p, const Work &w, const Task &t, int i, Head<HD> &h,
                        Decode<HD> &sh)
{
    const int lane = thread_id() & 31;
    float *tmp = sh.tmp[thread_id() / 32];
    const float eps = t.is_key ? p.k_eps : p.q_eps;
    const int half = p.rot_dim / 2;
    float sum = 0.0f;
    UNROLL
    for (int e = 0; e < HD / 32; e++)
        sum += h.x[e] * h.x[e];
    const float by = eps > 0.0f ? 1.0f / sqrtf(warp_sum(sum) / (float)HD + eps) : 1.0f;
    UNROLL
    for (int e = 0; e < HD / 32; e++) {
        h.x[e] = h.x[e] * by * h.w[e];
        tmp[lane + 32 * e] = h.x[e];
    }
    warp_sync();
    const float scale = score_scale(p);
    UNROLL
    for (int e = 0; e < HD / 32; e++) {
        const int d = lane + 32 * e;
        const bool second = p.rope_pairs ? (d & 1) != 0 : d >= half;
        const int step = p.rope_pairs ? 1 : half;
        const float other = d < p.rot_dim ? tmp[second ? d - step : d + step] : 0.0f;
        const float y = h.x[e] * h.cosine[e] + other * h.sine[e];
        if (!t.have)
            continue;
        if (t.is_key) {
            sh.k[i - w.n_heads][d] = (uint16_t)f16_of_f32(y);
            sh.v[i - w.n_heads][d] = (uint16_t)f16_of_f32(h.v[e]);
        } else {
            sh.q[i][d] = (uint16_t)f16_of_f32(y * scale);
        }
    }
    warp_sync();
}

/* q of our heads, and the segment's new keys and values up to this row, as the cache holds them.
 * first, second: the fixed part of the warp's first two tasks. */
template <int HD>
DEVICE void make_ready(const AttnParams &p, const Work &w, Head<HD> &first, Head<HD> &second,
                       Decode<HD> &sh)
{
    const int warp = thread_id() / 32;
    for (int i = thread_id(); i < (ATTN_DECODE_HEADS - w.n_heads) * HD; i += WARPS * 32)
        sh.q[w.n_heads + i / HD][i % HD] = 0;
    NO_UNROLL
    for (int i = warp; i < w.n_heads + w.n_new; i += 2 * WARPS) {
        const Task a = task_of(w, i);
        const Task b = task_of(w, i + WARPS);
        if (i != warp) {
            load_fixed(p, a, first);
            load_fixed(p, b, second);
        }
        load_row(p, a, first);
        load_row(p, b, second);
        finish_head(p, w, a, i, first, sh);
        finish_head(p, w, b, i + WARPS, second, sh);
    }
    block_sync();
}

/* The row's key and value go to the cache. */
template <int HD>
DEVICE void write_cache(const AttnParams &p, const Work &w, int slot, const Decode<HD> &sh)
{
    if (slot < 0)
        return;
    const int64_t to =
        cache_row(p, slot >> p.page_shift, w.kv_head, slot & ((1 << p.page_shift) - 1)) * HD;
    for (int d = thread_id(); d < HD / 2; d += WARPS * 32) {
        ((uint32_t *)p.cache_k)[to / 2 + d] = ((const uint32_t *)sh.k[w.n_new - 1])[d];
        ((uint32_t *)p.cache_v)[to / 2 + d] = ((const uint32_t *)sh.v[w.n_new - 1])[d];
    }
}

/* The warps' sums become the CTA's. */
template <int HD> DEVICE void join_warps(Decode<HD> &sh, Sums<HD> &sum, int n_heads)
{
    const int warp = thread_id() / 32;
    const int g = (thread_id() & 31) / 4;
    const int t = thread_id() & 3;
    UNROLL
    for (int i = 0; i < 2; i++) {
        float l = sum.l[i];
        l += shfl_xor(l, 4);
        l += shfl_xor(l, 8);
        l += shfl_xor(l, 16);
        if (g == 0) {
            sh.wm[warp][2 * t + i] = sum.m[i];
            sh.wl[warp][2 * t + i] = l;
        }
        UNROLL
        for (int j = 0; j < HD / 64; j++) {
            UNROLL
            for (int k = 0; k < 4; k++)
                *(f32x2 *)&sh.o[warp][2 * t + i][64 * j + 8 * g + 2 * k] =
                    f32x2{sum.acc[j][k][i], sum.acc[j][k][i + 2]};
        }
    }
    block_sync();
    for (int i = thread_id(); i < n_heads * HD; i += WARPS * 32) {
        const int h = i / HD;
        const int d = i % HD;
        float m = -INFINITY;
        float l = 0.0f;
        float x = 0.0f;
        UNROLL
        for (int w = 0; w < WARPS; w++)
            m = fmaxf(m, sh.wm[w][h]);
        UNROLL
        for (int w = 0; w < WARPS; w++) {
            const float e = weight_of(sh.wm[w][h], m);
            l += e * sh.wl[w][h];
            x += e * sh.o[w][h][d];
        }
        sh.o[0][h][d] = x;
        if (d == 0) {
            sh.m[h] = m;
            sh.l[h] = l;
        }
    }
}

template <int HD> DEVICE void attn_decode(const AttnParams &p)
{
    SHARED_DYNAMIC(memory);
    Decode<HD> &sh = *(Decode<HD> *)memory;
    griddep_launch();
    const int share = p.n_heads / p.n_kv_heads;
    const int parts = (share + p.heads - 1) / p.heads;
    const int kv_head = block_y() / parts;
    const int part = block_y() % parts;
    const int head0 = kv_head * share + part * p.heads;
    const int n_heads = imin(p.heads, share - part * p.heads);
    const int32_t *step = (const int32_t *)p.step;
    int s = block_z();
    if (!p.by_segment)
        s = load_i32(step + p.seg_at + block_z());
    else if (s >= load_i32(step + GPU_STEP_N_SEGS))
        s = -1;
    AttnSeg seg = {0, 0, 0, step};
    if (s >= 0)
        seg = attn_seg(p, s);
    if (s < 0 || (p.by_segment && seg.n_rows != 1)) {
        griddep_wait(); /* a launch that does not wait would let those after it pass this one */
        return;
    }
    const int row = p.by_segment ? seg.row0 : block_z();
    Span span;
    span.base = seg.base;
    span.hi = seg.base + row - seg.row0;
    span.lo = p.window > 0 ? imax(0, span.hi - p.window + 1) : 0;
    const int first = span.lo / CHUNK;
    const int last = span.hi / CHUNK;
    /* A group of CTAs more pays from some chunks a CTA on. */
    const int most = grid_x() / p.cluster;
    const int groups =
        imax(1, imin(most, (last - first + 1) / (p.cluster > 1 ? 2 * p.cluster : 1)));
    if (block_x() >= groups * p.cluster) {
        griddep_wait();
        return;
    }
    const int stride = groups * p.cluster;
    const int place = thread_id() / 32 * 16;
    int chunk = first + block_x();
    Held<HD> held;
    load_keys(p, seg, span, kv_head, chunk * CHUNK + place, held);
    load_values(p, seg, span, kv_head, chunk * CHUNK + place, held);
    /* The chunk of the row itself is ours when it lies a multiple of the stride away; with the
     * step's rows on both sides of a border, everybody makes them ready. */
    const bool write = (last - first) % stride == block_x();
    const bool own = write || span.base / CHUNK < last;
    const Work work = {seg, row, kv_head, head0, n_heads, own ? row - seg.row0 + 1 : 0};
    const int slot = write && part == 0 ? load_i32(step + p.slots_at + row) : -1;
    Head<HD> one, two;
    load_fixed(p, task_of(work, thread_id() / 32), one);
    load_fixed(p, task_of(work, thread_id() / 32 + WARPS), two);
    griddep_wait();

    make_ready(p, work, one, two, sh);
    write_cache(p, work, slot, sh);
    Sums<HD> sum;
    UNROLL
    for (int i = 0; i < 2; i++) {
        sum.m[i] = -INFINITY;
        sum.l[i] = 0.0f;
    }
    UNROLL
    for (int j = 0; j < HD / 64; j++) {
        UNROLL
        for (int k = 0; k < 4; k++)
            sum.acc[j][k][0] = sum.acc[j][k][1] = sum.acc[j][k][2] = sum.acc[j][k][3] = 0.0f;
    }
    NO_UNROLL
    for (; chunk <= last; chunk += stride) {
        const int at = chunk * CHUNK + place;
        const int next = at + stride * CHUNK;
        float c[4];
        if (at + 16 > span.base)
            take_own(sh, span, at, held);
        scores(p, sh, span, at, held, c);
        load_keys(p, seg, span, kv_head, next, held);
        soften(sh, c, sum);
        add_values(sh, held, sum);
        load_values(p, seg, span, kv_head, next, held);
    }
    join_warps(sh, sum, n_heads);
    const int64_t unit = (int64_t)block_z() * grid_y() + block_y();
    attn_join(
        p, groups, unit, ATTN_DECODE_HEADS, n_heads, HD, sh.m, sh.l, &sh.o[0][0][0],
        [&](int r) {
            return p.sinks ? load_f32((const float *)p.sinks + head0 + r) * LOG2_E : -INFINITY;
        },
        [&](int r, int d, float x) {
            ((float *)p.out)[(int64_t)row * p.ldo + (head0 + r) * HD + d] = x;
        });
}

KERNEL(128, 4) attn_decode_64(const AttnParams p)
{
    attn_decode<64>(p);
}

KERNEL(128, 3) attn_decode_128(const AttnParams p)
{
    attn_decode<128>(p);
}

KERNEL(128, 2) attn_decode_256(const AttnParams p)
{
    attn_decode<256>(p);
}
