/* Around the products with many rows: activations packed, silu(gate) * up, who goes to which
 * expert, experts' results joined. */
#include "gemm_params.h"
#include "gpu_compat.h"
#include "gpu_words.h"

DEVICE bool is_row_wanted(const int32_t *limit, int times, int row)
{
    return !limit || row < load_i32(limit) * times;
}

/* 8 consecutive numbers of a row from column k on, zeros from p.k on. */
DEVICE void pack_read(const GemmPackParams &p, int64_t row, int k, float v[8])
{
    UNROLL
    for (int half = 0; half < 2; half++) {
        const int at = k + half * 4;
        float *o = v + half * 4;
        if (p.quads && at + 4 <= p.k) {
            const f32x4 x = load_f32x4(p.x + row * p.ldx + at);
            o[0] = x.x, o[1] = x.y, o[2] = x.z, o[3] = x.w;
        } else {
            UNROLL
            for (int i = 0; i < 4; i++)
                o[i] = at + i < p.k ? load_f32(p.x + row * p.ldx + at + i) : 0.0F;
        }
    }
    if (p.up) {
        UNROLL
        for (int i = 0; i < 8; i++) {
            const float u = k + i < p.k ? load_f32(p.up + row * p.ldx + k + i) : 0.0F;
            v[i] = v[i] / (1.0F + exp_fast(-v[i])) * u;
        }
    }
}

DEVICE void pack_times_norm(const GemmPackParams &p, int k, float v[8])
{
    if (!p.norm)
        return;
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] *= k + i < p.k ? p.norm[k + i] : 0.0F;
}

/* One row a CTA. f16 keeps 11 bits only from 2^-14 on and ends at 65504, so that each row is
 * brought under 512 by a power of two: what is 2^32 times smaller than the row's largest is lost.
 * 1 / rms of the norm is a factor of the row as well. */
KERNEL(256, 4) gemm_pack(const GemmPackParams p)
{
    SHARED(float, sums, 8);
    SHARED(float, tops, 8);
    griddep_launch();
    griddep_wait();
    const int r = block_x();
    if (!is_row_wanted(p.limit, p.limit_times, r))
        return;
    const int64_t row = p.gather ? load_i32(p.gather + r) : r;
    float sum = 0.0F;
    float top = 0.0F;
    for (int k = thread_id() * 8; k < p.k; k += 256 * 8) {
        float v[8];
        pack_read(p, row, k, v);
        UNROLL
        for (int i = 0; i < 8; i++)
            sum += v[i] * v[i];
        pack_times_norm(p, k, v);
        UNROLL
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, fabsf(v[i]));
    }
    UNROLL
    for (int o = 16; o > 0; o /= 2) {
        sum += shfl_xor(sum, o);
        top = fmaxf(top, shfl_xor(top, o));
    }
    if (thread_id() % 32 == 0) {
        sums[thread_id() / 32] = sum;
        tops[thread_id() / 32] = top;
    }
    block_sync();
    sum = 0.0F;
    top = 0.0F;
    UNROLL
    for (int i = 0; i < 8; i++) {
        sum += sums[i];
        top = fmaxf(top, tops[i]);
    }
    /* 2^(exponent - 8) and its inverse; zeros and what is too small or infinite as they are */
    const int exponent = (int)(bits_of_f32(top) >> 23);
    const bool scaled = !p.bf16 && exponent > 8 && exponent < 255;
    const float up = scaled ? f32_of_bits((uint32_t)(exponent - 8) << 23) : 1.0F;
    const float down = scaled ? f32_of_bits((uint32_t)(262 - exponent) << 23) : 1.0F;
    if (thread_id() == 0) {
        const float rms = p.eps > 0.0F ? 1.0F / sqrtf(sum / (float)p.k + p.eps) : 1.0F;
        p.row_scale[r] = up * rms;
    }
    uint32_t *out = p.out + (int64_t)r * (p.kp / 2);
    for (int k = thread_id() * 8; k < p.kp; k += 256 * 8) {
        float v[8] = {};
        if (k < p.k) {
            pack_read(p, row, k, v);
            pack_times_norm(p, k, v);
        }
        uint32_t *to =
            out + k / GEMM_CHUNK * (GEMM_CHUNK / 2) + k % 32 / 8 * 16 + k % GEMM_CHUNK / 32;
        UNROLL
        for (int j = 0; j < 4; j++)
            to[j * 4] =
                p.bf16 ? bf16x2_of_f32(v[j], v[j + 4]) : f16x2_of_f32(v[j] * down, v[j + 4] * down);
    }
}

KERNEL(256, 4) gemm_silu(const GemmSiluParams p)
{
    griddep_launch();
    griddep_wait();
    const int64_t r = block_x();
    for (int i = 0; i < 4; i++) {
        const int c = block_y() * 1024 + i * 256 + thread_id();
        if (c >= p.n)
            return;
        const float g = load_f32(p.x + r * p.ldx + c);
        p.y[r * p.ldy + c] = g / (1.0F + exp_fast(-g)) * load_f32(p.up + r * p.ldx + c);
    }
}

/* A warp a row. A lane holds logits lane, lane + 32, ..; the best is taken top_k times, of equals
 * the one with the smaller number. NaN is less than all. */
KERNEL(128, 4) gemm_route(const GemmRouteParams p)
{
    enum { MINE = GEMM_EXPERTS_MAX / 32 };
    griddep_launch();
    griddep_wait();
    const int lane = thread_id() % 32;
    const int r = block_x() * 4 + thread_id() / 32;
    if (r >= p.rows || !is_row_wanted(p.limit, 1, r))
        return;
    const float lowest = f32_of_bits(0xff800000u);
    float v[MINE];
    UNROLL
    for (int i = 0; i < MINE; i++) {
        const int e = i * 32 + lane;
        v[i] = e < p.n_experts ? load_f32(p.logits + (int64_t)r * p.ld + e) : lowest;
    }
    float max = 0.0F;
    float best = 0.0F;
    float mine = 0.0F; /* lane j: e^(logit - max) of the j-th */
    int my_id = 0;
    uint32_t taken = 0;
    float all = 0.0F;
    for (int j = 0; j < p.top_k; j++) {
        float top = lowest;
        int id = 1 << 30;
        UNROLL
        for (int i = 0; i < MINE; i++) {
            const float x = v[i] == v[i] ? v[i] : lowest;
            const int e = i * 32 + lane;
            if (e < p.n_experts && !(taken >> i & 1) && (x > top || id == 1 << 30)) {
                top = x;
                id = e;
            }
        }
        UNROLL
        for (int o = 16; o > 0; o /= 2) {
            const float t = shfl_xor(top, o);
            const int d = shfl_xor(id, o);
            if (t > top || (t == top && d < id)) {
                top = t;
                id = d;
            }
        }
        if (id % 32 == lane)
            taken |= 1u << id / 32;
        if (j == 0) {
            max = top;
            UNROLL
            for (int i = 0; i < MINE; i++)
                all += i * 32 + lane < p.n_experts ? expf(v[i] - max) : 0.0F;
            UNROLL
            for (int o = 16; o > 0; o /= 2)
                all += shfl_xor(all, o);
        }
        const float e = expf(top - max);
        best += e;
        if (lane == j) {
            mine = e;
            my_id = id;
        }
    }
    if (lane < p.top_k) {
        p.ids[r * p.top_k + lane] = my_id;
        p.shares[r * p.top_k + lane] = mine / (p.renorm ? best : all);
    }
}

/* Assignments of one expert, ascending; the CTA that comes last cuts all lists into tiles. */
KERNEL(128, 4) gemm_list(const GemmListParams p)
{
    SHARED(int, found, 16);
    SHARED(int, ticket, 1);
    griddep_launch();
    griddep_wait();
    const int e = block_x();
    const int warp = thread_id() / 32;
    const int lane = thread_id() % 32;
    const int wanted = load_i32(p.limit);
    const int n = (wanted < p.rows ? wanted : p.rows) * p.top_k;
    int32_t *list = p.list + (int64_t)e * p.rows;
    int have = 0;
    for (int at = 0; at < n; at += 4 * GEMM_THREADS) {
        uint32_t who[4];
        UNROLL
        for (int j = 0; j < 4; j++) {
            const int i = at + j * GEMM_THREADS + thread_id();
            who[j] = i < n ? (uint32_t)load_i32(p.ids + i) : ~0u;
        }
        UNROLL
        for (int j = 0; j < 4; j++) {
            who[j] = warp_ballot(who[j] == (uint32_t)e);
            if (lane == 0)
                found[j * 4 + warp] = popcount(who[j]);
        }
        block_sync();
        UNROLL
        for (int j = 0; j < 4; j++) {
            int before = have;
            UNROLL
            for (int w = 0; w < 4; w++) {
                before += w < warp ? found[j * 4 + w] : 0;
                have += found[j * 4 + w];
            }
            if (who[j] >> lane & 1)
                list[before + popcount(who[j] & ((1u << lane) - 1))] =
                    at + j * GEMM_THREADS + thread_id();
        }
        block_sync();
    }
    if (thread_id() == 0) {
        p.counts[e] = have;
        fence_device();
        ticket[0] = (int)atomic_add(p.ticket, 1);
    }
    block_sync();
    if (ticket[0] != p.n_experts - 1 || warp > 0)
        return;
    fence_device();
    int base = 0;
    for (int first = 0; first < p.n_experts; first += 32) {
        const int expert = first + lane;
        const int count = expert < p.n_experts ? load_i32(p.counts + expert) : 0;
        const int tiles = (count + p.tile_rows - 1) / p.tile_rows;
        int end = tiles;
        UNROLL
        for (int o = 1; o < 32; o *= 2) {
            const int v = shfl_up(end, o);
            end += lane >= o ? v : 0;
        }
        for (int i = 0; i < tiles; i++) {
            const int left = count - i * p.tile_rows;
            p.tiles[base + end - tiles + i] =
                GemmTile{expert, i * p.tile_rows, left < p.tile_rows ? left : p.tile_rows, 0};
        }
        base += shfl(end, 31);
    }
    if (lane == 0) {
        *p.n_tiles = base;
        *p.ticket = 0;
    }
}

KERNEL(128, 8) gemm_combine(const GemmCombineParams p)
{
    griddep_launch();
    griddep_wait();
    const int r = block_x();
    if (!is_row_wanted(p.limit, 1, r))
        return;
    const int c0 = block_y() * 512 + thread_id();
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int c = c0 + i * 128;
        if (c >= p.n)
            return;
        float sum = 0.0F;
        for (int j = 0; j < p.top_k; j++)
            sum += load_f32(p.shares + r * p.top_k + j) *
                   load_f32(p.x + (int64_t)(r * p.top_k + j) * p.n + c);
        if (p.add)
            sum += load_f32(p.add + (int64_t)r * p.ld_add + c);
        p.y[(int64_t)r * p.ldy + c] = sum;
    }
}
