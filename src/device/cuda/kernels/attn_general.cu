/* attn_general.cu: attention in f32 arithmetic for every shape: the exact class, and what the fast
 * kernels do not take. After attn_prepare_f32.
 *
 * An entry is one query head of one row. A CTA takes a tile of 8 * NI entries of one kv head and
 * one segment (entries [row][head]), warp w the entries w + 8 i. Keys come in blocks of 32, one a
 * lane for the scores; values then replace the keys in shared memory, a lane taking dims lane + 32
 * k. The CTAs along x, a cluster, take the blocks in turn and join. Blocks lie at fixed positions
 * and what an entry may not see adds exactly nothing, so its result depends on its own position
 * alone. */
#include "attn_common.h"

enum { WARPS = 8, KEYS = 32 };

/* Floats of shared memory: q [8 NI][head_dim], rows of keys or values [32][ld], m and l [8 NI]. */
DEVICE int rows_ld(const AttnParams &p)
{
    return imax(p.head_dim, p.v_dim) + 4; /* 4: lanes read rows 16 bytes at a time */
}

/* 32 positions from `at` of a cache with rows of `dim` elements, as f32; zeros past `last`. */
DEVICE void load_block(const AttnParams &p, const AttnSeg &seg, uint64_t cache, int dim,
                       int kv_head, int at, int last, float *rows)
{
    const int ld = rows_ld(p);
    const int pieces = dim / 8;
    for (int i = thread_id(); i < KEYS * pieces; i += WARPS * 32) {
        const int r = i / pieces;
        const int c = i - r * pieces;
        const int pos = at + r;
        const int page = pos <= last ? seg.pages[pos >> p.page_shift] : -1;
        f32x4 a = {0, 0, 0, 0};
        f32x4 b = {0, 0, 0, 0};
        if (page >= 0) {
            const int64_t from = cache_row(p, page, kv_head, pos) * dim + c * 8;
            if (p.f32_cache) {
                a = load_f32x4((const float *)cache + from);
                b = load_f32x4((const float *)cache + from + 4);
            } else {
                const u32x4 v = load_u32x4((const uint16_t *)cache + from);
                a = f32x4{f32_of_f16(v.x & 0xffff), f32_of_f16(v.x >> 16), f32_of_f16(v.y & 0xffff),
                          f32_of_f16(v.y >> 16)};
                b = f32x4{f32_of_f16(v.z & 0xffff), f32_of_f16(v.z >> 16), f32_of_f16(v.w & 0xffff),
                          f32_of_f16(v.w >> 16)};
            }
        }
        *(f32x4 *)(rows + r * ld + c * 8) = a;
        *(f32x4 *)(rows + r * ld + c * 8 + 4) = b;
    }
}

/* Scores of the lane's key with n entries of the warp. */
template <int NI>
DEVICE void dots(const AttnParams &p, const float *q, const float *rows, int n, float s[NI])
{
    const float *key = rows + (thread_id() & 31) * rows_ld(p);
    const float *mine = q + thread_id() / 32 * p.head_dim;
    UNROLL
    for (int i = 0; i < NI; i++)
        s[i] = 0.0f;
    for (int d = 0; d < p.head_dim; d += 4) {
        const f32x4 k = *(const f32x4 *)(key + d);
        UNROLL
        for (int i = 0; i < NI; i++) {
            if (i >= n)
                break;
            const f32x4 x = *(const f32x4 *)(mine + i * WARPS * p.head_dim + d);
            s[i] += x.x * k.x;
            s[i] += x.y * k.y;
            s[i] += x.z * k.z;
            s[i] += x.w * k.w;
        }
    }
}

/* KD: dims a lane, v_dim <= 32 KD. */
template <int NI, int KD> DEVICE void attn_general(const AttnParams &p)
{
    SHARED_DYNAMIC(memory);
    griddep_launch();
    griddep_wait();
    constexpr int R = WARPS * NI;
    float *q = (float *)memory;
    float *rows = q + R * p.head_dim;
    float *top = rows + KEYS * rows_ld(p);
    float *all = top + R;
    const int warp = thread_id() / 32;
    const int lane = thread_id() & 31;
    const int kv_head = block_y();
    const int share = p.n_heads / p.n_kv_heads;
    AttnSeg seg;
    int first;
    if (!find_tile(p, block_z(), share, R, &seg, &first))
        return;
    const int n = imin(R, seg.n_rows * share - first);
    const int first_pos = seg.base + first / share;
    const int last_pos = seg.base + (first + n - 1) / share;
    const int lo = p.window > 0 ? imax(0, first_pos - p.window + 1) : 0;
    const float scale = score_scale(p);
    for (int i = thread_id(); i < R * p.head_dim; i += WARPS * 32) {
        const int e = i / p.head_dim;
        const int64_t row = seg.row0 + (first + e) / share;
        const int head = kv_head * share + (first + e) % share;
        q[i] = e < n ? scale * load_f32((const float *)p.q_ready +
                                        (row * p.n_heads + head) * p.head_dim + i % p.head_dim)
                     : 0.0f;
    }
    const int mine = imax(0, (n - warp + WARPS - 1) / WARPS);
    int pos[NI];
    float m[NI];
    float l[NI];
    float acc[NI][KD];
    UNROLL
    for (int i = 0; i < NI; i++) {
        pos[i] = seg.base + (first + warp + i * WARPS) / share;
        m[i] = -INFINITY;
        l[i] = 0.0f;
        UNROLL
        for (int k = 0; k < KD; k++)
            acc[i][k] = 0.0f;
    }
    const int step = p.cluster;
    int block = lo / KEYS;
    block += (block_x() % step - block % step + step) % step;
    for (; block <= last_pos / KEYS; block += step) {
        const int at = block * KEYS;
        float s[NI];
        block_sync();
        load_block(p, seg, p.cache_k, p.head_dim, kv_head, at, last_pos, rows);
        block_sync();
        dots<NI>(p, q, rows, mine, s);
        block_sync();
        load_block(p, seg, p.cache_v, p.v_dim, kv_head, at, last_pos, rows);
        block_sync();
        UNROLL
        for (int i = 0; i < NI; i++) {
            const int key = at + lane;
            const bool seen = key <= pos[i] && (p.window <= 0 || key > pos[i] - p.window);
            s[i] = seen ? capped(p, s[i]) : -INFINITY;
            float max = s[i];
            UNROLL
            for (int o = 16; o > 0; o /= 2)
                max = fmaxf(max, shfl_xor(max, o));
            max = fmaxf(max, m[i]);
            const float shift = weight_of(m[i], max);
            s[i] = weight_of(s[i], max);
            m[i] = max;
            l[i] = l[i] * shift + s[i];
            UNROLL
            for (int k = 0; k < KD; k++)
                acc[i][k] *= shift;
        }
        if (mine == 0)
            continue;
        for (int key = 0; key < KEYS; key++) {
            float v[KD];
            UNROLL
            for (int k = 0; k < KD; k++)
                v[k] = lane + 32 * k < p.v_dim ? rows[key * rows_ld(p) + lane + 32 * k] : 0.0f;
            UNROLL
            for (int i = 0; i < NI; i++) {
                const float w = shfl(s[i], key);
                UNROLL
                for (int k = 0; k < KD; k++)
                    acc[i][k] += w * v[k];
            }
        }
    }
    block_sync();
    UNROLL
    for (int i = 0; i < NI; i++) {
        const int e = warp + i * WARPS;
        const float sum = warp_sum(l[i]);
        UNROLL
        for (int k = 0; k < KD; k++) {
            if (lane + 32 * k < p.v_dim)
                rows[e * p.v_dim + lane + 32 * k] = acc[i][k];
        }
        if (lane == 0) {
            top[e] = m[i];
            all[e] = sum;
        }
    }
    attn_join(
        p, 1, 0, R, n, p.v_dim, top, all, rows,
        [&](int e) {
            const int head = kv_head * share + (first + e) % share;
            return p.sinks ? load_f32((const float *)p.sinks + head) * LOG2_E : -INFINITY;
        },
        [&](int e, int d, float x) {
            const int64_t row = seg.row0 + (first + e) / share;
            const int head = kv_head * share + (first + e) % share;
            ((float *)p.out)[row * p.ldo + head * p.v_dim + d] = x;
        });
}

KERNEL(256, 3) attn_general_128(const AttnParams p)
{
    attn_general<4, 4>(p);
}

KERNEL(256, 3) attn_general_256(const AttnParams p)
{
    attn_general<2, 8>(p);
}

KERNEL(256, 2) attn_general_512(const AttnParams p)
{
    attn_general<1, 16>(p);
}
