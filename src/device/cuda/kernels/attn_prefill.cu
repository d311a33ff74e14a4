/* attn_prefill.cu: attention of many query rows.
 *
 * attn_prepare makes the rows ready: head norm and rotation of q and k, k and v into the cache, q
 * where the attention kernel wants it. attn_flash then attends by matrix instructions: a CTA takes
 * 64 rows of one segment for one head, a warp 16 of them; K and V go through shared memory in
 * blocks of keys, two in flight, with the 16-byte pieces of a row permuted by its number so that
 * reading 8 rows at once meets no bank twice. Blocks lie at fixed positions, and a block that a row
 * may not see adds exactly nothing to it, so a row's result depends neither on its tile nor on the
 * chunking of its prompt. Where the CTAs along x form a cluster they take the blocks in turn and
 * join. */
#include "attn_common.h"

/* A warp makes one head of one row ready. HALF: q becomes f16 and is scaled, for attn_flash. */
template <bool HALF> DEVICE void prepare(const AttnParams &p)
{
    SHARED_DYNAMIC(memory); /* two heads a warp */
    const int wide = imax(p.head_dim, p.v_dim);
    float *tmp = (float *)memory + thread_id() / 32 * 2 * wide;
    float *x = tmp + wide;
    griddep_launch();
    griddep_wait();
    const int warp = thread_id() / 32;
    const int lane = thread_id() & 31;
    const int row = block_y();
    const int32_t *step = (const int32_t *)p.step;
    const int s = load_i32(step + p.seg_at + row);
    int head = block_x() * 8 + warp;
    if (s < 0 || head >= p.n_heads + 2 * p.n_kv_heads || attn_seg(p, s).n_rows < p.min_rows)
        return;
    if (head < p.n_heads) {
        ready_head(p, (const float *)p.q + (int64_t)row * p.ldq + head * p.head_dim, p.head_dim,
                   p.q_eps, p.q_norm, true, row, tmp, x);
        const int64_t to = ((int64_t)row * p.n_heads + head) * p.head_dim;
        const float scale = score_scale(p);
        for (int d = lane; d < p.head_dim; d += 32) {
            if (HALF)
                ((uint16_t *)p.q_ready)[to + d] = (uint16_t)f16_of_f32(x[d] * scale);
            else
                ((float *)p.q_ready)[to + d] = x[d];
        }
        return;
    }
    head -= p.n_heads;
    const bool is_k = head < p.n_kv_heads;
    head -= is_k ? 0 : p.n_kv_heads;
    const int slot = load_i32(step + p.slots_at + row);
    if (slot < 0)
        return;
    const int dim = is_k ? p.head_dim : p.v_dim;
    if (is_k)
        ready_head(p, (const float *)p.k + (int64_t)row * p.ldk + head * dim, dim, p.k_eps,
                   p.k_norm, true, row, tmp, x);
    else
        ready_head(p, (const float *)p.v + (int64_t)row * p.ldv + head * dim, dim, 0.0f, 0, false,
                   row, tmp, x);
    const uint64_t cache = is_k ? p.cache_k : p.cache_v;
    const int64_t to =
        cache_row(p, slot >> p.page_shift, head, slot & ((1 << p.page_shift) - 1)) * dim;
    for (int d = lane; d < dim; d += 32) {
        if (p.f32_cache)
            ((float *)cache)[to + d] = x[d];
        else
            ((uint16_t *)cache)[to + d] = (uint16_t)f16_of_f32(x[d]);
    }
}

KERNEL(256, 4) attn_prepare_f16(const AttnParams p)
{
    prepare<true>(p);
}

KERNEL(256, 4) attn_prepare_f32(const AttnParams p)
{
    prepare<false>(p);
}

enum { ROWS = ATTN_FLASH_ROWS, THREADS = 128 };

/* KB keys a block. Head size 256 keeps q in shared memory and takes smaller blocks. */
template <int HD> struct Flash {
    static constexpr int KB = HD > 128 ? 32 : 64;
    static constexpr int PIECES = HD / 8; /* of 16 bytes, in a row */
    union {
        struct {
            uint16_t k[2][KB][HD], v[2][KB][HD];
            uint16_t q[HD > 128 ? ROWS : 1][HD];
        } in;
        float o[ROWS][HD];
    } u;
    float m[ROWS], l[ROWS];
    int64_t at[2][KB]; /* where the rows of the next blocks lie in the cache; -1: nowhere */
};

/* Rows of q [ROWS][HD]: up to head size 128 they are read once, from where block 1 comes later. */
template <int HD> DEVICE uint16_t *flash_q_row(Flash<HD> &sh, int r)
{
    return (HD > 128 ? &sh.u.in.q[0][0] : &sh.u.in.k[1][0][0]) + r * HD;
}

/* Where piece c of row r lies in a row of shared memory, in elements. */
DEVICE int piece_at(int r, int c)
{
    return (c ^ (r & 7)) * 8;
}

struct Tile {
    AttnSeg seg;
    int first, n; /* rows of the segment */
    int head, kv_head;
    int last_pos; /* that any row sees */
};

/* Looks up where a block's rows lie, for a flash_load after the next barrier. */
template <int HD>
DEVICE void flash_find(const AttnParams &p, const Tile &t, int block, int stage, Flash<HD> &sh)
{
    const int r = thread_id();
    if (r >= Flash<HD>::KB)
        return;
    const int pos = block * Flash<HD>::KB + r;
    const int page = pos <= t.last_pos ? t.seg.pages[pos >> p.page_shift] : -1;
    sh.at[stage][r] = page < 0 ? -1 : cache_row(p, page, t.kv_head, pos) * HD;
}

template <int HD> DEVICE void flash_load(const AttnParams &p, int stage, Flash<HD> &sh)
{
    constexpr int KB = Flash<HD>::KB;
    constexpr int PIECES = Flash<HD>::PIECES;
    const int c = thread_id() % PIECES;
    UNROLL
    for (int i = 0; i < KB * PIECES / THREADS; i++) {
        const int r = thread_id() / PIECES + i * (THREADS / PIECES);
        const int64_t row = sh.at[stage][r];
        const int64_t from = row < 0 ? 0 : row + c * 8;
        const int bytes = row < 0 ? 0 : 16;
        copy_async16(&sh.u.in.k[stage][r][piece_at(r, c)], (const uint16_t *)p.cache_k + from,
                     bytes);
        copy_async16(&sh.u.in.v[stage][r][piece_at(r, c)], (const uint16_t *)p.cache_v + from,
                     bytes);
    }
}

template <int HD> DEVICE void flash_load_q(const AttnParams &p, const Tile &t, Flash<HD> &sh)
{
    constexpr int PIECES = Flash<HD>::PIECES;
    UNROLL
    for (int i = 0; i < ROWS * PIECES / THREADS; i++) {
        const int at = thread_id() + i * THREADS;
        const int r = at / PIECES;
        const int c = at % PIECES;
        const int64_t row = t.seg.row0 + t.first + imin(r, t.n - 1);
        copy_async16(flash_q_row(sh, r) + piece_at(r, c),
                     (const uint16_t *)p.q_ready + (row * p.n_heads + t.head) * HD + c * 8,
                     r < t.n ? 16 : 0);
    }
}

/* A fragment of q: rows 16 warp .., dims 16 kk .. */
template <int HD> DEVICE void flash_q(Flash<HD> &sh, int kk, uint32_t a[4])
{
    const int lane = thread_id() & 31;
    const int r = thread_id() / 32 * 16 + (lane & 15);
    load_matrix(a, flash_q_row(sh, r) + piece_at(r, 2 * kk + lane / 16));
}

/* Sums of a lane: rows g and g + 8 of the warp's 16, dims 8 n + 2t, + 1. */
template <int HD> struct FlashSums {
    float m[2], l[2];
    float acc[HD / 8][4];
};

template <int HD>
DEVICE void flash_scores(Flash<HD> &sh, const uint32_t (*q)[4], int stage,
                         float s[Flash<HD>::KB / 8][4])
{
    constexpr int KB = Flash<HD>::KB;
    const int lane = thread_id() & 31;
    const int r = lane / 16 * 8 + (lane & 7);
    UNROLL
    for (int n = 0; n < KB / 8; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    UNROLL
    for (int kk = 0; kk < HD / 16; kk++) {
        uint32_t a[4];
        if (HD > 128) {
            flash_q(sh, kk, a);
        } else {
            UNROLL
            for (int i = 0; i < 4; i++)
                a[i] = q[kk][i];
        }
        UNROLL
        for (int n = 0; n < KB / 16; n++) {
            uint32_t b[4];
            load_matrix(b, &sh.u.in.k[stage][16 * n + r][piece_at(r, 2 * kk + (lane / 8 & 1))]);
            mma_f16(s[2 * n], a, b);
            mma_f16(s[2 * n + 1], a, b + 2);
        }
    }
}

/* Masks the scores of a block at position `at`; row_pos of the lane's first row. */
template <int HD>
DEVICE void flash_mask(const AttnParams &p, int at, int row_pos, float s[Flash<HD>::KB / 8][4])
{
    const int t = thread_id() & 3;
    UNROLL
    for (int n = 0; n < Flash<HD>::KB / 8; n++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int pos = at + 8 * n + 2 * t + (i & 1);
            const int row = row_pos + 8 * (i >> 1);
            if (pos > row || (p.window > 0 && pos <= row - p.window))
                s[n][i] = -INFINITY;
        }
    }
}

/* Scores become weights; the sums so far are scaled to the new largest score. */
template <int HD> DEVICE void flash_soften(float s[Flash<HD>::KB / 8][4], FlashSums<HD> &sum)
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        float top = sum.m[i];
        UNROLL
        for (int n = 0; n < Flash<HD>::KB / 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        top = fmaxf(top, shfl_xor(top, 1));
        top = fmaxf(top, shfl_xor(top, 2));
        const float at = top == -INFINITY ? 0.0f : top;
        const float shift = exp2_fast(sum.m[i] - at);
        sum.m[i] = top;
        sum.l[i] *= shift;
        UNROLL
        for (int n = 0; n < Flash<HD>::KB / 8; n++) {
            s[n][2 * i] = exp2_fast(s[n][2 * i] - at);
            s[n][2 * i + 1] = exp2_fast(s[n][2 * i + 1] - at);
            sum.l[i] += s[n][2 * i] + s[n][2 * i + 1];
        }
        UNROLL
        for (int n = 0; n < HD / 8; n++) {
            sum.acc[n][2 * i] *= shift;
            sum.acc[n][2 * i + 1] *= shift;
        }
    }
}

template <int HD>
DEVICE void flash_values(const Flash<HD> &sh, int stage, const float s[Flash<HD>::KB / 8][4],
                         FlashSums<HD> &sum)
{
    const int lane = thread_id() & 31;
    UNROLL
    for (int k = 0; k < Flash<HD>::KB / 16; k++) {
        const uint32_t a[4] = {f16x2_of_f32(s[2 * k][0], s[2 * k][1]),
                               f16x2_of_f32(s[2 * k][2], s[2 * k][3]),
                               f16x2_of_f32(s[2 * k + 1][0], s[2 * k + 1][1]),
                               f16x2_of_f32(s[2 * k + 1][2], s[2 * k + 1][3])};
        const int r = 16 * k + (lane & 15);
        UNROLL
        for (int n = 0; n < HD / 16; n++) {
            uint32_t b[4];
            load_matrix_trans(b, &sh.u.in.v[stage][r][piece_at(r, 2 * n + lane / 16)]);
            mma_f16(sum.acc[2 * n], a, b);
            mma_f16(sum.acc[2 * n + 1], a, b + 2);
        }
    }
}

/* Weight of the head's sink relative to the largest score, and the factor that makes a result. */
DEVICE float flash_factor(const AttnParams &p, int head, float m, float l)
{
    const float extra = p.sinks ? load_f32((const float *)p.sinks + head) * LOG2_E : -INFINITY;
    const float top = fmaxf(m, extra);
    const float e = weight_of(m, top);
    return e / (l * e + weight_of(extra, top));
}

template <int HD>
DEVICE void flash_store(const AttnParams &p, const Tile &t, Flash<HD> &sh, FlashSums<HD> &sum)
{
    const int lane = thread_id() & 31;
    const int r0 = thread_id() / 32 * 16 + lane / 4;
    float *out = (float *)p.out + (int64_t)(t.seg.row0 + t.first) * p.ldo + t.head * HD;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int r = r0 + 8 * i;
        float l = sum.l[i];
        l += shfl_xor(l, 1);
        l += shfl_xor(l, 2);
        const float factor = p.cluster > 1 ? 1.0f : flash_factor(p, t.head, sum.m[i], l);
        float *to = p.cluster > 1 ? sh.u.o[r] : out + (int64_t)r * p.ldo;
        if (p.cluster > 1 || r < t.n) {
            UNROLL
            for (int n = 0; n < HD / 8; n++)
                *(f32x2 *)(to + 8 * n + lane % 4 * 2) =
                    f32x2{sum.acc[n][2 * i] * factor, sum.acc[n][2 * i + 1] * factor};
        }
        if (p.cluster > 1 && lane % 4 == 0) {
            sh.m[r] = sum.m[i];
            sh.l[r] = l;
        }
    }
    if (p.cluster == 1)
        return;
    attn_join(
        p, 1, 0, ROWS, t.n, HD, sh.m, sh.l, &sh.u.o[0][0],
        [&](int) {
            return p.sinks ? load_f32((const float *)p.sinks + t.head) * LOG2_E : -INFINITY;
        },
        [&](int r, int d, float x) { out[(int64_t)r * p.ldo + d] = x; });
}

template <int HD> DEVICE void attn_flash(const AttnParams &p)
{
    constexpr int KB = Flash<HD>::KB;
    SHARED_DYNAMIC(memory);
    Flash<HD> &sh = *(Flash<HD> *)memory;
    griddep_launch();
    griddep_wait();
    Tile t;
    t.head = block_y();
    t.kv_head = t.head / (p.n_heads / p.n_kv_heads);
    if (!find_tile(p, block_z(), 1, ROWS, &t.seg, &t.first))
        return;
    t.n = imin(ROWS, t.seg.n_rows - t.first);
    const int first_pos = t.seg.base + t.first;
    t.last_pos = first_pos + t.n - 1;
    const int lo = p.window > 0 ? imax(0, first_pos - p.window + 1) : 0;
    const int step = p.cluster;
    int block = lo / KB; /* ours: those whose number is our rank modulo the cluster */
    block += (block_x() % step - block % step + step) % step;
    const int last = t.last_pos / KB;

    flash_find(p, t, block, 0, sh);
    flash_find(p, t, block + step, 1, sh);
    flash_load_q(p, t, sh);
    block_sync();
    if (block <= last)
        flash_load(p, 0, sh);
    copy_commit();
    FlashSums<HD> sum;
    UNROLL
    for (int i = 0; i < 2; i++) {
        sum.m[i] = -INFINITY;
        sum.l[i] = 0.0f;
    }
    UNROLL
    for (int n = 0; n < HD / 8; n++)
        sum.acc[n][0] = sum.acc[n][1] = sum.acc[n][2] = sum.acc[n][3] = 0.0f;
    uint32_t q[HD > 128 ? 1 : HD / 16][4];
    copy_wait<0>();
    block_sync();
    if (HD <= 128) {
        UNROLL
        for (int kk = 0; kk < (HD > 128 ? 1 : HD / 16); kk++)
            flash_q(sh, kk, q[kk]);
        block_sync();
    }
    const int row_pos = first_pos + thread_id() / 32 * 16 + (thread_id() & 31) / 4;
    const int warp_pos = first_pos + thread_id() / 32 * 16;
    int stage = 0;
    NO_UNROLL
    for (; block <= last; block += step) {
        if (block + step <= last)
            flash_load(p, stage ^ 1, sh);
        copy_commit();
        flash_find(p, t, block + 2 * step, stage, sh);
        copy_wait<1>();
        block_sync();
        float s[KB / 8][4];
        flash_scores(sh, q, stage, s);
        if (p.softcap > 0.0f) {
            UNROLL
            for (int n = 0; n < KB / 8; n++) {
                UNROLL
                for (int i = 0; i < 4; i++)
                    s[n][i] = capped(p, s[n][i]);
            }
        }
        const int at = block * KB;
        if (at + KB - 1 > warp_pos || (p.window > 0 && at <= warp_pos + 15 - p.window))
            flash_mask<HD>(p, at, row_pos, s);
        flash_soften<HD>(s, sum);
        flash_values(sh, stage, s, sum);
        stage ^= 1;
        block_sync();
    }
    copy_wait<0>();
    block_sync(); /* what the results overwrite */
    flash_store(p, t, sh, sum);
}

KERNEL(128, 3) attn_flash_64(const AttnParams p)
{
    attn_flash<64>(p);
}

KERNEL(128, 3) attn_flash_128(const AttnParams p)
{
    attn_flash<128>(p);
}

KERNEL(128, 2) attn_flash_256(const AttnParams p)
{
    attn_flash<256>(p);
}
