/* attn_common.h: what the attention kernels share: heads made ready (norm, rotation), the tile a
 * CTA works on, and the joining of partial results.
 *
 * Scores are kept times log2(e), so that the softmax is made of powers of two. */
#ifndef MERE_ATTN_COMMON_H
#define MERE_ATTN_COMMON_H

#include "attn_params.h"
#include "gpu_compat.h"
#include "gpu_words.h"
#include "step_segs.h"

#define LOG2_E 1.4426950408889634f

DEVICE float warp_sum(float v)
{
    UNROLL
    for (int o = 16; o > 0; o /= 2)
        v += shfl_xor(v, o);
    return v;
}

DEVICE int imin(int a, int b)
{
    return a < b ? a : b;
}

DEVICE int imax(int a, int b)
{
    return a > b ? a : b;
}

/* 16 bytes of shared memory. */
DEVICE u32x4 shared_u32x4(const void *p)
{
    return *(const u32x4 *)p;
}

/* 2^(a - max), where nothing has been seen yet (both -infinity) 0. */
DEVICE float weight_of(float a, float max)
{
    return exp2_fast(a - (max == -INFINITY ? 0.0f : max));
}

/* What a score is multiplied by before the softmax; with a softcap the cap's own factor follows. */
DEVICE float score_scale(const AttnParams &p)
{
    return p.softcap > 0.0f ? p.scale : p.scale * LOG2_E;
}

DEVICE float capped(const AttnParams &p, float s)
{
    return p.softcap > 0.0f ? p.softcap * LOG2_E * tanhf(s / p.softcap) : s;
}

/* One segment as a kernel sees it. */
struct AttnSeg {
    int row0, n_rows;
    int base; /* position of its first row */
    const int32_t *pages;
};

DEVICE AttnSeg attn_seg(const AttnParams &p, int s)
{
    const int32_t *step = (const int32_t *)p.step;
    const int32_t *w = step + p.segs_at + (int64_t)s * GPU_SEG_WORDS;
    AttnSeg g;
    g.row0 = load_i32(w + GPU_SEG_ROW0);
    g.n_rows = load_i32(w + GPU_SEG_N_ROWS);
    g.base = load_i32(w + GPU_SEG_KV_LEN) - g.n_rows;
    g.pages = step + load_i32(w + p.pages_word);
    return g;
}

/* Row of the cache (of head_dim or v_dim elements) that holds position `pos` of kv head h. */
DEVICE int64_t cache_row(const AttnParams &p, int page, int h, int pos)
{
    const int64_t block = (int64_t)page * p.n_kv_heads + h;
    return (block << p.page_shift) + (pos & ((1 << p.page_shift) - 1));
}

/* Tile `tile` of the segments with at least p.min_rows rows (step_find_tile). */
DEVICE bool find_tile(const AttnParams &p, int tile, int per_row, int size, AttnSeg *seg,
                      int *first)
{
    int s;
    if (!step_find_tile((const int32_t *)p.step, p.segs_at, p.min_rows, per_row, size, tile, &s,
                        first))
        return false;
    *seg = attn_seg(p, s);
    return true;
}

/* One head of one row, by one warp: x [head_dim] in global memory, normed (eps 0: not) and rotated
 * (rope 0: not) into `y` [head_dim] in shared memory. */
DEVICE void ready_head(const AttnParams &p, const float *x, int dim, float eps, uint64_t norm,
                       bool rotate, int row, float *tmp, float *y)
{
    const int lane = thread_id() & 31;
    const bool turn = rotate && p.rope != 0;
    float *to = turn ? tmp : y;
    float sum = 0.0f;
    for (int d = lane; d < dim; d += 32) {
        const float v = load_f32(x + d);
        sum += v * v;
        to[d] = v;
    }
    if (eps > 0.0f) {
        const float *w = (const float *)norm;
        const float s = 1.0f / sqrtf(warp_sum(sum) / (float)dim + eps);
        for (int d = lane; d < dim; d += 32)
            to[d] = w ? to[d] * s * load_f32(w + d) : to[d] * s;
    }
    warp_sync();
    if (turn) {
        const int half = p.rot_dim / 2;
        const float *cs = (const float *)p.rope + (int64_t)row * p.rot_dim;
        for (int d = lane; d < dim; d += 32) {
            float v = tmp[d];
            if (d < p.rot_dim) {
                const int i = p.rope_pairs ? d / 2 : d % half;
                const bool second = p.rope_pairs ? (d & 1) != 0 : d >= half;
                const int step = p.rope_pairs ? 1 : half;
                const float other = tmp[second ? d - step : d + step];
                const float c = load_f32(cs + 2 * i);
                const float s = load_f32(cs + 2 * i + 1);
                v = second ? v * c + other * s : v * c - other * s;
            }
            y[d] = v;
        }
        warp_sync();
    }
}

/* Joins the partial results of the CTAs along x that share a unit of work (a tile of R query rows
 * and their sums): first within clusters through their shared memory, then, where n_groups > 1,
 * across clusters through global memory, by whichever CTA ends last. Always in ascending order.
 *
 *   m, l [R], o [R][width]   shared memory, the same place in each CTA: largest score, sum of
 *                            weights, weighted sum of values
 *   unit, max_rows           number of the unit, for its partials [groups][max_rows][width + 2] and
 *                            its counter
 *   sink(r), out(r, d, x)    the row's extra logit (times log2 e; -infinity: none), its result
 *
 * All threads of the CTAs of the n_groups first clusters call it. */
enum { CLUSTER_MAX = 8 };

template <class Sink, class Out>
DEVICE void attn_join(const AttnParams &p, int n_groups, int64_t unit, int max_rows, int R,
                      int width, const float *m, const float *l, const float *o, Sink sink, Out out)
{
    SHARED(int, is_last, 1);
    const int C = p.cluster;
    const int rank = block_x() % C;
    const int tid = thread_id();
    const int step = block_threads();
    const int size = R * width;
    const int share = (size + C - 1) / C;
    const int64_t floats = (int64_t)max_rows * (width + 2);
    float *partial = (float *)p.partials + unit * (grid_x() / C) * floats;
    float *mine = partial + block_x() / C * floats;
    if (C > 1)
        cluster_sync();
    else
        block_sync();
    for (int i = rank * share + tid; i < imin(size, (rank + 1) * share); i += step) {
        const int r = i / width;
        const int d = i - r * width;
        float ms[CLUSTER_MAX], ls[CLUSTER_MAX], xs[CLUSTER_MAX]; /* all in flight at once */
        UNROLL
        for (int c = 0; c < CLUSTER_MAX; c++) {
            const bool there = c < C;
            ms[c] = !there ? -INFINITY : C > 1 ? cluster_load_f32(m + r, c) : m[r];
            ls[c] = !there ? 0.0f : C > 1 ? cluster_load_f32(l + r, c) : l[r];
            xs[c] = !there ? 0.0f : C > 1 ? cluster_load_f32(o + i, c) : o[i];
        }
        float max = -INFINITY;
        float sum = 0.0f;
        float x = 0.0f;
        UNROLL
        for (int c = 0; c < CLUSTER_MAX; c++)
            max = fmaxf(max, ms[c]);
        UNROLL
        for (int c = 0; c < CLUSTER_MAX; c++) {
            const float e = weight_of(ms[c], max);
            sum += e * ls[c];
            x += e * xs[c];
        }
        if (n_groups == 1) {
            const float extra = sink(r);
            const float top = fmaxf(max, extra);
            const float e = weight_of(max, top);
            out(r, d, x * e / (sum * e + weight_of(extra, top)));
        } else {
            mine[i] = x;
            if (d == 0) {
                mine[size + r] = max;
                mine[size + R + r] = sum;
            }
        }
    }
    if (C > 1)
        cluster_sync(); /* nobody leaves while its memory may be read */
    if (n_groups == 1)
        return;
    uint32_t *counter = (uint32_t *)p.counters + unit;
    fence_device();
    block_sync();
    if (tid == 0)
        is_last[0] = atomic_add(counter, 1) == (uint32_t)(n_groups * C - 1);
    block_sync();
    if (!is_last[0])
        return;
    fence_device();
    for (int i = tid; i < size; i += step) {
        const int r = i / width;
        const float extra = sink(r);
        float top = extra;
        float sum = 0.0f;
        float x = 0.0f;
        for (int g = 0; g < n_groups; g++)
            top = fmaxf(top, load_f32(partial + g * floats + size + r));
        for (int g = 0; g < n_groups; g++) {
            const float *from = partial + g * floats;
            const float e = weight_of(load_f32(from + size + r), top);
            sum += e * load_f32(from + size + R + r);
            x += e * load_f32(from + i);
        }
        out(r, i - r * width, x / (sum + weight_of(extra, top)));
    }
    if (tid == 0)
        *counter = 0;
}

#endif
